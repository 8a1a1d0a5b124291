//! `longfat lab`.

use crate::outcome::Outcome;

/// Experiments: one file in, one run directory out.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> Outcome {
    Err(anyhow::anyhow!("'longfat lab' is not built yet").into())
}
