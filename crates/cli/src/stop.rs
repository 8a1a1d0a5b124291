//! One flag for every way a person ends a program early: Ctrl-C, SIGTERM, a closed terminal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How often a wait looks at the flag.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A flag that SIGINT, SIGTERM and SIGHUP raise; a second signal ends the process at once.
pub fn flag() -> std::io::Result<Arc<AtomicBool>> {
    use signal_hook::{consts, flag};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [consts::SIGINT, consts::SIGTERM, consts::SIGHUP] {
        // Registered first, so that it sees the flag as the first signal left it.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
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
