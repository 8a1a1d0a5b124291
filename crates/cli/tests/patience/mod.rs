//! Waiting for what another process does.

use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again until that holds.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
