//! `longfat transfer`.

use crate::outcome::Outcome;

/// Memory-to-memory transfers over TCP and UDP, with echo latency.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> Outcome {
    Err(anyhow::anyhow!("'longfat transfer' is not built yet").into())
}
