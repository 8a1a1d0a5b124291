//! `longfat relay`.

use crate::outcome::Outcome;

/// Split TCP connections and carry them on with another congestion control.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> Outcome {
    Err(anyhow::anyhow!("'longfat relay' is not built yet").into())
}
