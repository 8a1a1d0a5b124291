//! Tests of the relay: one program, since each would be linked again. `scripts/test` carries out each file
//! by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod acknowledge;
mod alike;
mod bed;
mod bridge;
mod dialogues;
mod early;
mod end_to_end;
mod firewall;
mod hold;
mod limits;
mod midstream;
mod moves;
mod one_way;
mod options;
mod order;
mod pairs;
mod pause;
mod queue;
mod reliability;
mod strangers;
mod streams;
mod transparent;
mod upgrade;
mod urgent;
