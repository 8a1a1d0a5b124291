//! The clocks, and sleeping until something comes in.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    os::fd::BorrowedFd,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// CLOCK_MONOTONIC.
pub(crate) fn monotonic_us() -> u64 {
    longfat_host::monotonic_ns() / 1000
}

/// The wall clock, microseconds since 1970: what two hosts have in common.
pub(crate) fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Until one of these can be read, but no longer than this. A signal ends it early.
pub(crate) fn wait(on: &[BorrowedFd<'_>], no_longer_than: Duration) {
    let mut fds: Vec<PollFd<'_>> = on.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Rounded up: otherwise the last millisecond would be spent turning.
    let ms = no_longer_than.as_micros().div_ceil(1000);
    let _ = poll(&mut fds, PollTimeout::try_from(ms as u64).unwrap_or(PollTimeout::MAX));
}
