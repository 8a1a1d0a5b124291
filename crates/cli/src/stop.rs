//! One flag for every way a person ends a program early: Ctrl-C, SIGTERM, a closed terminal.

use std::sync::{Arc, atomic::AtomicBool};

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
