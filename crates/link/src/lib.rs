//! A path between two hosts: rate, delay, jitter, loss, a bounded queue with its discipline, a schedule of changes.
//!
//! - [`spec`]: what a person writes (TOML), [`plan`]: every value resolved (JSON).
//! - [`trace`]: recorded links, which a link may follow.
//! - [`model`]: one direction of a path as a pure state machine: time is passed in, randomness is seeded. The
//!   driver and a packet simulator run the same code.
//! - [`driver`]: runs two directions between two interfaces of a Linux network namespace, in real time.
//! - [`shell`]: a command inside such a path, with this host at its far end.
//! - [`netem`]: the same path as commands for the kernel's own emulator, where the kernel has it.

#[cfg(target_os = "linux")]
pub mod driver;
pub mod model;
#[cfg(target_os = "linux")]
pub mod netem;
pub mod plan;
#[cfg(target_os = "linux")]
pub mod shell;
pub mod spec;
pub mod trace;

pub use plan::LinkPlan;
pub use spec::{LinkSpec, SpecError};
