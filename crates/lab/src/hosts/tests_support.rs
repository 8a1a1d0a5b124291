//! A network's parameters to try things on, which are nobody's.

use nix::sched::{CloneFlags, unshare};

/// One that each network namespace has of its own.
pub const KEY: &str = "net.ipv4.tcp_rmem";

/// On a thread in a network namespace of its own: a thread's namespace ends with it.
pub fn in_a_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
            work()
        });
        inside.join().unwrap()
    })
}
