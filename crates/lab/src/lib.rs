//! Experiment file to plan, plan to run directory.
//!
//! ```text
//! experiment.toml ──spec──▶ Experiment ──plan──▶ Plan ──emulated──▶ Samples ──metrics, judge──▶ run directory
//! ```
//!
//! - [`spec`]: what a person writes, with every problem named by its key.
//! - [`plan`]: one run with every value resolved; a pure function of the experiment.
//! - [`emulated`]: the plan carried out in network namespaces with real kernel TCP.
//! - [`samples`], [`metrics`], [`judge`]: from records to figures, validity and expectations. Pure.
//! - [`session`]: every run of an experiment into one result directory.
//! - [`show`]: figures as people read them.

pub mod emulated;
pub mod judge;
pub mod metrics;
pub mod plan;
pub mod samples;
pub mod session;
pub mod show;
pub mod spec;
