//! Tests of the simulator: one program, since each would be linked again. `scripts/test` carries out each file
//! by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod avail;
mod background;
mod behaviour;
mod golden;
mod known_results;
mod random_scenarios;
mod relay_leg;
mod scale;
mod short_path;
mod support;
