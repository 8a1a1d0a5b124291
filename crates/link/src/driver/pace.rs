//! Waiting until the next departure: real-time priority, precise sleeps, the last stretch spun away.

use super::{DriverError, socket::PacketSocket};
use longfat_host::monotonic_ns;
use std::io;

/// A sleeping thread is woken this much late now and then, so it asks to be woken earlier and spins the rest.
const SPIN_NS: u64 = 50_000;
/// Longest wait: how soon a raised stop flag is seen.
const MAX_WAIT_NS: u64 = 50_000_000;
/// With at least this delay on the line, frames may be read late (they carry their arrival time), so the thread
/// sleeps by the clock instead of being woken by every frame.
const NAP_DELAY_NS: u64 = 1_000_000;
const REAL_TIME_PRIORITY: i32 = 20;
/// A real-time thread that never sleeps is preempted for 50 ms in every second (the kernel keeps 5 % of a core for
/// ordinary tasks). So it yields a little more than that by itself, in pauses of this length.
const BREATH_NS: u64 = 75_000;
/// Time awake that one unit of sleep allows: 1/14 is 7 %.
const AWAKE_PER_SLEPT: u64 = 13;
/// Time awake beyond the allowance at which it pauses.
const MAX_AWAKE_NS: u64 = 1_000_000;

/// When the driver wakes.
#[derive(Debug)]
pub struct Pace {
    /// Most it reads late; 0: every frame wakes it.
    nap_ns: u64,
    coalesce_ns: u64,
    next_check_ns: u64,
    /// When the loop should be back at the latest, if nothing holds it up.
    expected_ns: u64,
    /// Time awake beyond what the sleep so far allows.
    awake_ns: u64,
    woken_ns: u64,
}

impl Pace {
    /// For a link whose least delay is `min_delay_ns`.
    pub fn new(min_delay_ns: u64, coalesce_ns: u64) -> Pace {
        let nap_ns = if min_delay_ns < NAP_DELAY_NS { 0 } else { (min_delay_ns / 4).min(1_000_000) };
        let now_ns = monotonic_ns();
        Pace { nap_ns, coalesce_ns, next_check_ns: 0, expected_ns: now_ns, awake_ns: 0, woken_ns: now_ns }
    }

    /// Begins a round of the loop; by how much it was held up since the last one, at work or asleep.
    pub fn begin(&mut self, now_ns: u64) -> u64 {
        let late_ns = now_ns.saturating_sub(self.expected_ns);
        self.expected_ns = now_ns;
        late_ns
    }

    /// Waits until about `next_ns` (`None`: nothing is inside), or until frames may have to be read.
    ///
    /// # Errors
    /// When an interface is gone.
    pub fn wait(&mut self, next_ns: Option<u64>, sockets: &[PacketSocket; 2]) -> Result<(), DriverError> {
        let now_ns = monotonic_ns();
        let Some(next_ns) = next_ns else {
            // Idle: how late this ends harms nobody.
            poll(sockets, MAX_WAIT_NS)?;
            self.slept(now_ns);
            self.expected_ns = self.woken_ns;
            return Ok(());
        };
        let wake_ns = self.wake_ns(next_ns);
        if wake_ns <= now_ns {
            self.spin(now_ns);
            return Ok(());
        }
        let most_ns = if self.nap_ns == 0 { MAX_WAIT_NS } else { self.nap_ns };
        let until_ns = wake_ns.min(now_ns + most_ns);
        self.expected_ns += until_ns - now_ns;
        if self.nap_ns == 0 {
            poll(sockets, until_ns - now_ns)?;
        } else {
            sleep_until(until_ns);
        }
        self.slept(now_ns);
        self.check(now_ns, sockets)
    }

    /// Sleeping by the clock does not notice a vanished interface.
    fn check(&mut self, now_ns: u64, sockets: &[PacketSocket; 2]) -> Result<(), DriverError> {
        if now_ns < self.next_check_ns {
            return Ok(());
        }
        self.next_check_ns = now_ns + MAX_WAIT_NS;
        poll(sockets, 0)
    }

    /// Stays awake, unless it has been so for too long.
    fn spin(&mut self, now_ns: u64) {
        if self.awake_ns + now_ns.saturating_sub(self.woken_ns) > MAX_AWAKE_NS {
            self.expected_ns += BREATH_NS;
            sleep_until(now_ns + BREATH_NS);
            self.slept(now_ns);
        } else {
            std::hint::spin_loop();
        }
    }

    /// Accounts for a sleep that began at `from_ns` and ends now.
    fn slept(&mut self, from_ns: u64) {
        self.awake_ns += from_ns.saturating_sub(self.woken_ns);
        self.woken_ns = monotonic_ns();
        let allowed_ns = AWAKE_PER_SLEPT * (self.woken_ns - from_ns);
        self.awake_ns = self.awake_ns.saturating_sub(allowed_ns);
    }

    /// Joined departures have a window in which to leave, and aim at its middle; others are met exactly.
    fn wake_ns(&self, next_ns: u64) -> u64 {
        if self.coalesce_ns > 0 {
            next_ns.saturating_add(self.coalesce_ns / 2)
        } else {
            next_ns.saturating_sub(SPIN_NS)
        }
    }
}

/// Gives the calling thread real-time priority (not inherited by threads it starts); whether the host allowed it.
pub fn become_real_time() -> bool {
    // SAFETY: plain system calls on the calling thread with a valid parameter.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        let parameter = libc::sched_param { sched_priority: REAL_TIME_PRIORITY };
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameter) == 0
    }
}

/// Takes the priority back.
pub fn become_ordinary() {
    // SAFETY: as above.
    unsafe {
        let parameter = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameter);
    }
}

/// Processor time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `used` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut used) };
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ }
}

fn sleep_until(at_ns: u64) {
    let until = timespec(at_ns);
    // SAFETY: `until` is valid; an interrupted sleep merely ends early, and the caller looks at the clock again.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const until,
            std::ptr::null_mut(),
        )
    };
}

fn poll(sockets: &[PacketSocket; 2], wait_ns: u64) -> Result<(), DriverError> {
    let mut watched = [sockets[0].poll_fd(), sockets[1].poll_fd()];
    let limit = timespec(wait_ns);
    // SAFETY: `watched` has two entries to read and write; `limit` is valid; no signal mask.
    let result = unsafe { libc::ppoll(watched.as_mut_ptr(), 2, &raw const limit, std::ptr::null()) };
    if result < 0 {
        let source = io::Error::last_os_error();
        if source.kind() == io::ErrorKind::Interrupted {
            return Ok(());
        }
        return Err(DriverError::Io { what: "wait for frames".to_owned(), source });
    }
    for (socket, watched) in sockets.iter().zip(&watched) {
        if watched.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
            let what = format!("interface '{}' is down or gone", socket.interface());
            return Err(DriverError::Io { what, source: socket.pending_error() });
        }
    }
    Ok(())
}
