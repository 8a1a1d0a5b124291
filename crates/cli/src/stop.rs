//! One flag for every way a person ends a program early: Ctrl-C, SIGTERM, a closed terminal.

use longfat_host::monotonic_ns;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How often a wait looks at the flag.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Signals that come within this time are one wish to end: `timeout` and terminals tell a process and then its group.
const ONE_WISH: Duration = Duration::from_millis(500);

/// A flag that SIGINT, SIGTERM and SIGHUP raise; a second signal, a while later, ends the process at once.
pub fn flag() -> std::io::Result<Arc<AtomicBool>> {
    use signal_hook::{consts, low_level};
    let stop = Arc::new(AtomicBool::new(false));
    let first_ns = Arc::new(AtomicU64::new(0));
    for signal in [consts::SIGINT, consts::SIGTERM, consts::SIGHUP] {
        let (stop, first_ns) = (Arc::clone(&stop), Arc::clone(&first_ns));
        let heard = move || {
            let now_ns = monotonic_ns();
            // Two handlers may run at once: whose time stands is the first.
            let ends_now = match first_ns.compare_exchange(0, now_ns, Ordering::SeqCst, Ordering::SeqCst) {
                // The program has raised the flag itself: it is ending already.
                Ok(_) => stop.swap(true, Ordering::SeqCst),
                Err(first_ns) => now_ns.saturating_sub(first_ns) > ONE_WISH.as_nanos() as u64,
            };
            if ends_now {
                low_level::exit(130);
            }
        };
        // SAFETY: it reads a clock, touches atomics and ends the process, all of which a signal handler may do.
        unsafe { low_level::register(signal, heard) }?;
    }
    Ok(stop)
}

/// Waits so long, or until the flag is raised.
pub fn wait(span: Duration, stop: &AtomicBool) {
    let until = Instant::now() + span;
    while !stop.load(Ordering::Relaxed) && Instant::now() < until {
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(LOOK_EVERY));
    }
}
