//! `longfat link`.

use crate::outcome::Outcome;

/// An emulated path: run a shell or a command inside it.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> Outcome {
    Err(anyhow::anyhow!("'longfat link' is not built yet").into())
}
