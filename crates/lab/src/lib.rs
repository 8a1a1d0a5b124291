//! Experiment file to plan, plan to run directory.
//!
//! ```text
//! experiment.toml ──spec──▶ Experiment ──plan──▶ Plan ──backend──▶ Samples ──metrics, judge──▶ run directory
//! ```
//!
//! - [`spec`]: what a person writes, with every problem named by its key.
//! - [`plan`]: one run with every value resolved; a pure function of the experiment.
//! - [`backend`]: who carries a plan out. [`emulated`]: network namespaces with real kernel TCP. [`simulated`]: the
//!   simulator, without privileges and in virtual time. [`hosts`]: machines reached by SSH.
//! - [`conductor`]: one run, whose parts are watched together. [`part`]: what one machine does in a run.
//! - [`dilation`]: runs carried out slower than they are meant.
//! - [`metrics`], [`judge`]: from records to figures, validity and expectations. Pure.
//! - [`session`]: every run of an experiment into one result directory.
//! - [`archive`]: a run or result as one file.
//! - [`rerun`]: a run made again, and what came out otherwise.
//! - [`show`]: spreads and spans as people read them.

pub mod archive;
pub mod backend;
mod child;
mod conductor;
mod counter;
pub mod dilation;
pub mod emulated;
pub mod hosts;
pub mod judge;
pub mod metrics;
mod network;
mod part;
pub mod plan;
mod process;
mod programs;
pub mod rerun;
pub mod session;
pub mod show;
pub mod simulated;
pub mod spec;

pub use child::ChildError;
pub use conductor::Ending;
pub use longfat_schema::samples;
pub use part::PartError;
