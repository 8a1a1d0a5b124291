//! Tests of the congestion controls: one program, since each would be linked again. `scripts/test` carries out each
//! file by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bic;
mod cubic;
mod give_way;
mod imtcp;
mod properties;
mod queue;
mod rfc3649;
mod sawtooth;
mod scalable;
mod vectors;
mod vegas;
