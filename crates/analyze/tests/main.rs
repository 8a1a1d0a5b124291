//! Tests of the analysis of traces: one program, since each would be linked again. `scripts/test` carries out each file
//! by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod checksums;
mod columns;
mod figures;
mod findings;
mod formats;
mod matching;
mod memory;
mod support;
mod words;
