//! `longfat relay keep`, and the keeper that a relay starts for itself.

use crate::{outcome::Outcome, spans, stop};
use anyhow::{Context as _, anyhow};
use longfat_host::confine::{Account, Confinement};
use longfat_relay::{RelayPlan, handover::keeper};
use longfat_schema::units::Nanos;
use std::{
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// How long a keeper may take to begin.
const BEGINNING: Duration = Duration::from_secs(5);

/// Keep duplicates of a relay's sockets and pipes, so that the next relay goes on when it is killed.
///
/// A relay with 'keep = true' (or --keep) starts a keeper for itself if none runs. Start one beforehand where the
/// relay's death would take its children along, as a service manager's stop does. It serves one relay at a time, of one
/// name, in one network namespace, and becomes another user (--user) if root starts it. When the relay is killed and no
/// other comes within --patience, both sides of every connection are reset.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat relay keep relay &
  longfat relay run /etc/longfat/relay.toml
      with 'keep = true' in the file: 'kill -9' it, and start it again")]
pub struct Args {
    /// The relay's name.
    #[arg(default_value = "relay")]
    name: String,
    /// How long what a killed relay had is kept.
    #[arg(long, value_name = "TIME", default_value_t = Nanos(10_000_000_000))]
    patience: Nanos,
    /// End when the relay has ended by itself, or no other has come in time.
    #[arg(long)]
    once: bool,
    /// Started by root: the user it becomes; 'root' to stay [default: longfat, or else nobody].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// Shortest patience: a relay that is started again takes as long.
const PATIENCE_LEAST: Nanos = Nanos(100_000_000);

pub fn run(args: &Args) -> Outcome {
    longfat_relay::check_name(&args.name)?;
    spans::at_least("--patience", args.patience, PATIENCE_LEAST)?;
    let stop = stop::flag()?;
    let account = Account::choose(args.user.as_deref())?;
    let mut keeper = keeper::Keeper::open(&args.name, args.patience.into())?;
    keeper.confine(Confinement::of(account))?;
    Ok(keeper.serve(&stop, args.once)?)
}

/// Starts a keeper for the relay of this plan, if it wants one and none runs. It outlives the relay.
pub fn ensure(plan: &RelayPlan) -> anyhow::Result<()> {
    if !plan.keep || keeper::answers(&plan.name) {
        return Ok(());
    }
    let program = std::env::current_exe().context("find this program, to start a keeper")?;
    let mut command = Command::new(program);
    command.args(["relay", "keep", "--once", &plan.name]).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().context("start a keeper ('longfat relay keep')")?;
    let deadline = Instant::now() + BEGINNING;
    while !keeper::answers(&plan.name) {
        let ended = child.try_wait().context("wait for the keeper")?;
        if ended.is_some() || Instant::now() >= deadline {
            let how = ended.map_or_else(|| "it does not answer".to_owned(), |status| status.to_string());
            return Err(anyhow!("the keeper did not start ({how}): run 'longfat relay keep {}'", plan.name));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
