//! `longfat relay run FILE`: the relay as a service.

use super::{
    confine::{Kept, UserArgs},
    log::Log,
    notify::Notify,
};
use crate::outcome::{Failure, Outcome};
use anyhow::Context;
use longfat_kernel::cc::{self, Registration};
use longfat_relay::{
    Commands, ConnectionSummary, Error, LogLevel, Observer, Ready, RelayPlan, RelayStats, Stop,
    spec::RelaySpec,
};
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

const EXAMPLES: &str = "\
Examples:
  longfat relay check /etc/longfat/relay.toml
      what the file says, and the nft and ip rules it comes to
  longfat relay run /etc/longfat/relay.toml
  kill -HUP PID
      read the file again; living connections keep what they have
  kill -TERM PID
      new connections pass, living ones have the drain time; twice: at once

A file:
  drain = \"30s\"
  metrics = \"127.0.0.1:9469\"

  [intercept]
  interfaces = [\"lan\"]

  [defaults]
  server = { cc = \"lf_highspeed\", rate = \"1Gbit\", rtt = \"28.4ms\" }

  [[rule]]
  name = \"ssh\"
  port = 22
  action = \"pass\"

  [[rule]]
  name = \"science\"
  destination = [\"203.0.113.0/24\", \"2001:db8::/32\"]
  idle = \"1h\"

docs/reference/relay-file.md explains every key.";

/// Run a relay as its file says, as a service.
///
/// Speaks sd_notify, logs to standard error, answers 'longfat relay status' and Prometheus. When it is ready it becomes
/// another user (--user) if root started it, and gives up every capability but CAP_NET_ADMIN and CAP_NET_BIND_SERVICE.
/// SIGHUP: read the file again. SIGTERM or SIGINT: drain and end; a second one: at once.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The relay's file.
    file: PathBuf,
    #[command(flatten)]
    user: UserArgs,
}

const UPGRADE_EXAMPLES: &str = "\
Examples:
  longfat relay upgrade /etc/longfat/relay.toml
      this program instead of the one that runs

Under systemd 'systemctl reload' does it with contrib/systemd/longfat-relay-upgrade.conf. What the new file says counts for new \
connections; living ones go by their rules' names. The number of workers, mark and table stay.";

/// Take over from the relay of the same name that runs, with its connections, and go on as 'longfat relay run'.
///
/// Listeners, connections and the bytes in between come over; the old process ends when this one holds everything, and
/// goes on if anything fails before. Nothing is reset. To be run as who started the old one, or as root.
#[derive(clap::Args)]
#[command(after_help = UPGRADE_EXAMPLES)]
pub struct UpgradeArgs {
    #[command(flatten)]
    run: Args,
    /// Return when the new relay is ready, and leave it running.
    #[arg(long)]
    background: bool,
    /// What the process in the background is started with.
    #[arg(long, hide = true, conflicts_with = "background")]
    say_ready: bool,
}

pub fn upgrade(args: &UpgradeArgs) -> Outcome {
    let way = if args.say_ready { Way::Background } else { Way::Upgrade };
    if args.background { in_background() } else { run_by(&args.run, way) }
}

/// Starts the same command as a process of its own; what it says first is whether it is ready.
fn in_background() -> Outcome {
    use std::os::unix::process::CommandExt as _;
    let program = std::env::current_exe().context("find this program")?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--background");
    let (mut ready, told) = std::io::pipe().context("make a pipe")?;
    let mut command = std::process::Command::new(program);
    command
        .args(arguments)
        .arg("--say-ready")
        .stdin(std::process::Stdio::null())
        .stdout(told)
        .process_group(0);
    let mut child = command.spawn().context("start the new relay")?;
    drop(command);
    let mut word = [0];
    let is_ready = std::io::Read::read_exact(&mut ready, &mut word).is_ok();
    if is_ready {
        return Ok(());
    }
    let status = child.wait().context("wait for the new relay")?;
    Err(anyhow::anyhow!("the new relay did not start ({status}), the old one goes on").into())
}

/// Says on standard output that it is ready, to whoever started it in the background, and nothing more.
fn say_ready() {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    // Nobody may be there to read it.
    let _ = out.write_all(b"ready\n").and_then(|()| out.flush());
}

/// How a relay begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Anew,
    Upgrade,
    /// An upgrade, started by a process that waits for a word.
    Background,
}

pub fn run(args: &Args) -> Outcome {
    run_by(args, Way::Anew)
}

fn run_by(args: &Args, way: Way) -> Outcome {
    let signals = Signals::catch(true)?;
    let plan = read(&args.file)?;
    let kept = args.user.kept(&plan, Some(&args.file))?;
    let log = Log::new(&plan.log);
    let notify = Notify::from_environment();
    if way == Way::Anew {
        super::keep::ensure(&plan)?;
    }
    let held = hold(&plan)?;
    let (file, held) = (args.file.clone(), Mutex::new(held));
    let is_ready = AtomicBool::new(way == Way::Anew);
    let daemon = Daemon { file, way, kept, signals, log, notify, held, is_ready };
    let run = if way == Way::Anew { longfat_relay::run } else { longfat_relay::upgrade };
    let ended = run(&plan, &daemon, &daemon);
    if ended.is_err() && !daemon.is_ready.load(Ordering::Acquire) {
        // The control socket is still the predecessor's.
        daemon.kept.leave();
    }
    let stats = ended.map_err(|error| match error {
        Error::Unsupported(missing) => Failure::Unsupported(missing),
        error => error.into(),
    })?;
    let text = end_text(&stats);
    daemon.log.say(LogLevel::Info, "ended", &text, json!({ "totals": stats }));
    Ok(())
}

/// Connections that were left in a pause before may have ended since.
fn end_text(stats: &RelayStats) -> String {
    match (stats.released.saturating_sub(stats.paused), stats.stopped) {
        (0, 0) => "the relay has ended".to_owned(),
        (released, reset) => {
            format!("the relay has ended: {released} connections go on without it, {reset} were reset")
        }
    }
}

/// The plan of a file.
pub fn read(file: &Path) -> anyhow::Result<RelayPlan> {
    read_spec(file)?.resolve().with_context(|| format!("'{}'", file.display()))
}

/// What a file says, before it is resolved.
pub fn read_spec(file: &Path) -> anyhow::Result<RelaySpec> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read '{}'", file.display()))?;
    RelaySpec::parse(&text).with_context(|| format!("'{}'", file.display()))
}

fn parse(file: &Path, text: &str) -> anyhow::Result<RelayPlan> {
    RelaySpec::parse(text).and_then(|spec| spec.resolve()).with_context(|| format!("'{}'", file.display()))
}

/// Makes every congestion control of the plan usable, or says what this host lacks.
pub fn hold(plan: &RelayPlan) -> Result<Vec<Registration>, Failure> {
    ensure(plan).map_err(|error| match longfat_relay::missing(plan) {
        missing if missing.is_empty() => error.into(),
        missing => Failure::Unsupported(missing),
    })
}

/// Makes every congestion control of the plan usable. Without the privileges to look after ours, what the kernel has
/// is taken as it is.
fn ensure(plan: &RelayPlan) -> longfat_kernel::Result<Vec<Registration>> {
    let names = plan.ccs();
    cc::ensure(&names).or_else(|error| {
        let present = names.iter().all(|name| cc::kernel_has(name).unwrap_or(false));
        if present { Ok(Vec::new()) } else { Err(error) }
    })
}

/// Signals as what they ask for.
pub struct Signals {
    end: Arc<AtomicBool>,
    hang_up: Option<Arc<AtomicBool>>,
    ends: AtomicU32,
}

impl Signals {
    /// SIGINT and SIGTERM end; SIGHUP, too, unless it reloads.
    pub fn catch(reloads: bool) -> std::io::Result<Signals> {
        use signal_hook::{consts, flag};
        let (end, hang_up) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        flag::register(consts::SIGINT, Arc::clone(&end))?;
        flag::register(consts::SIGTERM, Arc::clone(&end))?;
        flag::register(consts::SIGHUP, Arc::clone(if reloads { &hang_up } else { &end }))?;
        Ok(Signals { end, hang_up: reloads.then_some(hang_up), ends: AtomicU32::new(0) })
    }

    fn hung_up(&self) -> bool {
        self.hang_up.as_ref().is_some_and(|flag| flag.swap(false, Ordering::AcqRel))
    }
}

impl Commands for Signals {
    fn stop(&self) -> Stop {
        if self.end.swap(false, Ordering::AcqRel) {
            self.ends.fetch_add(1, Ordering::AcqRel);
        }
        match self.ends.load(Ordering::Acquire) {
            0 => Stop::No,
            1 => Stop::Drain,
            _ => Stop::Now,
        }
    }
}

struct Daemon {
    file: PathBuf,
    way: Way,
    kept: Kept,
    signals: Signals,
    log: Log,
    notify: Notify,
    /// Our congestion controls, registered for as long as the relay runs.
    held: Mutex<Vec<Registration>>,
    /// Whether what it was told to take over is its own.
    is_ready: AtomicBool,
}

impl Commands for Daemon {
    fn stop(&self) -> Stop {
        self.signals.stop()
    }

    fn reload(&self) -> Option<Result<RelayPlan, String>> {
        self.signals.hung_up().then(|| {
            self.notify.reloading();
            let again = self.kept.read(&self.file).and_then(|text| parse(&self.file, &text));
            again.map_err(|error| format!("{error:#}"))
        })
    }

    fn equip(&self, plan: &RelayPlan) -> Result<(), String> {
        let held = ensure(plan).map_err(|error| error.to_string())?;
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(held);
        Ok(())
    }
}

impl Observer for Daemon {
    fn prepared(&self) -> longfat_relay::Result<()> {
        Ok(self.kept.alone()?)
    }

    fn ready(&self, ready: &Ready) {
        self.is_ready.store(true, Ordering::Release);
        let listening: Vec<_> = ready.listening.iter().map(ToString::to_string).collect();
        let text = format!(
            "relay '{}' takes connections on {} and listens on {}",
            ready.name,
            if ready.interfaces.is_empty() { "no interface".into() } else { ready.interfaces.join(", ") },
            listening.join(", ")
        );
        self.log.say(LogLevel::Info, "ready", &text, json!(ready));
        if self.way != Way::Anew {
            self.notify.serves();
        }
        self.notify.ready();
        if self.way == Way::Background {
            say_ready();
        }
    }

    fn left(&self) {
        self.kept.leave();
        self.log.say(LogLevel::Info, "left", "a successor has everything; this relay ends", json!({}));
    }

    fn alive(&self) {
        self.notify.alive();
    }

    fn reloaded(&self, outcome: Result<&RelayPlan, &str>) {
        match outcome {
            Ok(plan) => {
                let rules: Vec<_> = plan.rules.iter().map(|rule| rule.name.as_str()).collect();
                let text = format!("the file was read again: {} rules", rules.len());
                self.log.say(LogLevel::Info, "reloaded", &text, json!({ "rules": rules }));
            }
            Err(problem) => {
                let text = format!("the file was read again and refused, the old one stays: {problem}");
                self.log.say(LogLevel::Error, "reload_refused", &text, json!({ "problem": problem }));
            }
        }
        self.notify.ready();
    }

    fn draining(&self, live: usize, drain: Duration) {
        let text = format!("no new connections are taken; {live} living ones have {} s", drain.as_secs_f64());
        let fields = json!({ "live": live, "drain_us": drain.as_micros() as u64 });
        self.log.say(LogLevel::Info, "draining", &text, fields);
        self.notify.stopping();
    }

    fn closed(&self, end: &ConnectionSummary) {
        self.log.say(LogLevel::Debug, "closed", &super::describe(end), json!(end));
    }

    fn warning(&self, message: &str) {
        self.log.say(LogLevel::Warning, "warning", message, json!({}));
    }

    fn wants_summaries(&self) -> bool {
        self.log.wants(LogLevel::Debug)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_left_in_pauses_are_not_told_of_at_the_end() {
        let text = |released, paused, stopped| {
            end_text(&RelayStats { released, paused, stopped, ..RelayStats::default() })
        };
        assert_eq!(text(7, 7, 0), "the relay has ended");
        assert_eq!(text(7, 5, 1), "the relay has ended: 2 connections go on without it, 1 were reset");
    }
}
