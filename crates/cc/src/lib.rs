//! The congestion-control algorithms of `cc/`, compiled natively behind a safe controller.
//!
//! - [`Algorithm`]: the catalogue, with each algorithm's [`Tunables`]; the pure functions as the contract
//!   (`cc/include/longfat_cc.h`) states them.
//! - [`Controller`]: an algorithm with what TCP does around it: recovery, timeouts, undo. What a simulator drives.
//! - [`queue`]: controllers of a relay's queue (`cc/queue/`).
//! - [`receive`]: a download steered by the window that its receiver advertises (`cc/receive/`).
//! - [`record`]: callbacks as they ran in the kernel, replayed here bit for bit; `cc/vectors/` holds some.
//! - [`response`]: the algorithms' response functions and saw-teeth, as their references derive them.
//! - [`table`]: HighSpeed TCP's increase and decrease, from the formulas of RFC 3649.
//!
//! No kernel, no network, no clock.

mod algorithm;
mod controller;
mod native;
pub mod queue;
pub mod receive;
pub mod record;
pub mod response;
pub mod table;

pub use algorithm::{Algorithm, SettingError, Tunable, Tunables, UnknownAlgorithm};
pub use controller::{Controller, Observation};
pub use native::{Ack, Avail, Conn, LOSS, OPEN, RECOVERY, STATE_BYTES, Sending, State, WINDOW_MAX};

/// Names the sources in `cc/` that this build was made of. Two builds with the same id run the same algorithms.
pub const BUILD_ID: &str = env!("LONGFAT_CC_BUILD_ID");

/// [`BUILD_ID`] as the number that a loaded algorithm carries in the kernel.
pub fn build_id() -> u64 {
    // The build script wrote a decimal u64.
    BUILD_ID.parse().unwrap_or(0)
}
