//! `longfat cc`.

use crate::outcome::Outcome;

/// Congestion controls: list, load, unload, and run a program under one.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> Outcome {
    Err(anyhow::anyhow!("'longfat cc' is not built yet").into())
}
