//! `longfat lab agent`: a machine's end of a run on real hosts. Nobody calls it by hand.

use crate::{outcome::Outcome, stop};
use anyhow::Context;
use longfat_lab::hosts::{agent, restore};
use std::{io, path::PathBuf};

/// Do a host's part in runs that another machine leads, as standard input says, until it ends.
#[derive(clap::Args)]
#[command(hide = true)]
pub struct AgentArgs {
    /// A directory for this alone.
    directory: PathBuf,
    /// The host of the experiment.
    #[arg(long)]
    host: String,
    /// Only set back what an agent that was killed had set.
    #[arg(long)]
    restore: bool,
}

pub fn run(args: AgentArgs) -> Outcome {
    if args.restore {
        return Ok(restore(&args.directory)?);
    }
    let program = std::env::current_exe().context("find the longfat program")?;
    let stop = stop::flag()?;
    let environment = agent::Environment { host: args.host, directory: args.directory, program };
    agent::serve(environment, io::BufReader::new(io::stdin()), &mut io::stdout().lock(), &stop)?;
    Ok(())
}
