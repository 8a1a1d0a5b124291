//! `longfat report`.

use crate::outcome::Outcome;

/// Runs in, one self-contained HTML page out.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> Outcome {
    Err(anyhow::anyhow!("'longfat report' is not built yet").into())
}
