//! `longfat mobility follow` and `clean`.

use super::pair;
use crate::{
    outcome::{Failure, Outcome, require},
    output::print_json,
    stop,
};
use anyhow::{Context, anyhow, bail};
use longfat_host::{Network, confine::Account, support};
use longfat_kernel::{
    support::{Capability, missing},
    tcb::{CcName, UNLIMITED_SSTHRESH},
};
use longfat_mobility::{
    Key, Name, control,
    event::{Done, Event},
    follow::{self, FollowPlan},
    follower::{Settings, is_bound},
    lan::PORT,
    policy::Policy,
    put_back,
    state::{self, State},
};
use longfat_schema::units::{Nanos, Size};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

const EXAMPLES: &str = "\
Examples:
  # On a node behind the mobile router:
  sudo longfat mobility follow --key mobility.key \\
      --audit /var/log/longfat-mobility.jsonl

  # BBR on the satellite, each connection's own congestion control elsewhere;
  # routes are left as they are:
  sudo longfat mobility follow --key mobility.key --cc satellite=bbr \\
      --rto-min 0ms

  # On a server far away that sends to nodes behind the router ('announce --to'
  # tells it):
  sudo longfat mobility follow --key mobility.key --peers bus-7=10.7.0.0/16

  longfat mobility status";

/// On a node: fit TCP connections to the link that their router announces.
///
/// A window too large for the new link is lowered at once. It is raised, or set again after losses, once everything
/// sent before the change is acknowledged, and never while a loss is being repaired. Routes through the router get a
/// high rto_min, so that connections that begin now take no rise of the delay for a loss. The end (SIGTERM) puts
/// routes and congestion controls back; after a crash the next start does, or 'longfat mobility clean'.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A shared key; repeat it while keys are being changed.
    #[arg(long, value_name = "FILE", required = true)]
    key: Vec<PathBuf>,
    /// Believe this router alone; may be repeated [default: every one that has the key]. Where several routers share a
    /// key, who recorded what one of them said could say it again behind another one with the same address.
    #[arg(long = "router", value_name = "NAME")]
    routers: Vec<Name>,
    /// Interface to listen on; may be repeated [default: all].
    #[arg(long = "interface", short, value_name = "IFACE")]
    interfaces: Vec<String>,
    /// Where windows come from: what the connection had on that link (restore; an estimate where it had none), what it
    /// has now times the change of rate x delay (scale), or the announced rate x delay (estimate).
    #[arg(long, value_name = "POLICY", default_value_t)]
    policy: Policy,
    /// No window is set above this.
    #[arg(long, value_name = "SIZE", default_value_t = Size(64_000_000))]
    ceiling: Size,
    /// Share of a greater window that is sent as one burst; slow start does the rest.
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u32).range(0..=100))]
    burst: u32,
    /// Congestion control on a link; may be repeated.
    #[arg(long, value_name = "LINK=CC", value_parser = pair::<String>)]
    cc: Vec<(Name, String)>,
    /// Addresses behind a router, for a node at the other end of the path; may be repeated.
    #[arg(long, value_name = "ROUTER=PREFIX", value_parser = pair::<Network>)]
    peers: Vec<(Name, Network)>,
    /// Least retransmission timeout on routes through the router, and to networks of its peers: more than the
    /// round-trip time of its slowest link. 0ms leaves routes alone.
    #[arg(long, value_name = "TIME", default_value_t = Nanos(2_000_000_000))]
    rto_min: Nanos,
    /// By how much the router's clock and this host's may differ.
    #[arg(long, value_name = "TIME", default_value_t = Nanos(30_000_000_000))]
    tolerance: Nanos,
    /// A connection whose old data has not arrived after this stays as it is.
    #[arg(long, value_name = "TIME", default_value_t = Nanos(60_000_000_000))]
    patience: Nanos,
    /// Append one JSON line per connection set to this file.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// UDP port.
    #[arg(long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Name of this process: its files are /run/longfat-mobility/NAME.*.
    #[arg(long, default_value = "follow", value_parser = super::process_name)]
    name: String,
    /// Control socket of the follower, in place of that of --name.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// File of the state that outlives this process, in place of that of --name.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Started by root: the user it becomes when it hears; 'root' to stay [default: longfat, or else nobody]. A small
    /// process stays root beside it and keeps its state.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// Put back what a 'follow' which was killed has left: routes, congestion controls, bounds on windows.
///
/// Routes need CAP_NET_ADMIN alone. What cannot be put back now is said, and stays written down for the next time.
#[derive(clap::Args)]
pub struct Clean {
    /// Name of the process that was killed.
    #[arg(long, default_value = "follow", value_parser = super::process_name)]
    name: String,
    /// Control socket of the follower, in place of that of --name.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// File of the follower's state, in place of that of --name.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// What was put back as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Least ceiling of windows: two segments of Ethernet.
const CEILING_LEAST: Size = Size(3_000);

pub fn run(args: &Args) -> Outcome {
    let plan = plan(args)?;
    require(missing(&[Capability::ControlBlocks]))?;
    let _held = hold(&plan.state)?;
    let open = |path: &PathBuf| {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.with_context(|| format!("--audit {} cannot be appended to; name a file", path.display()))
    };
    let mut audit = args.audit.as_ref().map(open).transpose()?;
    tell_absent(&args.interfaces);
    let stop = stop::flag()?;
    follow::run(&plan, &stop, super::ready, &mut |event| tell(&event, audit.as_mut()))?;
    Ok(())
}

fn plan(args: &Args) -> anyhow::Result<FollowPlan> {
    let rto_min_ms = u32::try_from(args.rto_min.0 / 1_000_000).unwrap_or(u32::MAX);
    if rto_min_ms > 120_000 {
        bail!("--rto-min {} is out of range: up to 120s", args.rto_min);
    }
    if args.ceiling < CEILING_LEAST {
        bail!("--ceiling {} lets no window be set; give {CEILING_LEAST} or more", args.ceiling);
    }
    let mut peers: BTreeMap<Name, Vec<Network>> = BTreeMap::new();
    for (router, prefix) in &args.peers {
        peers.entry(router.clone()).or_default().push(*prefix);
    }
    let mut cc = BTreeMap::new();
    for (link, name) in &args.cc {
        let has = longfat_kernel::cc::kernel_has(name);
        if !has.with_context(|| format!("--cc {link}={name}"))? {
            bail!(
                "--cc {link}={name}: this kernel has no congestion control '{name}'; 'longfat cc list' shows what there is"
            );
        }
        cc.insert(link.clone(), CcName::from(name.as_str()));
    }
    Ok(FollowPlan {
        keys: args.key.iter().map(|path| Key::read(path)).collect::<Result<_, _>>()?,
        routers: args.routers.clone(),
        interfaces: args.interfaces.clone(),
        port: args.port,
        settings: Settings {
            policy: args.policy,
            ceiling_bytes: args.ceiling.0,
            burst_percent: args.burst,
            cc,
            peers,
            patience_us: args.patience.as_us(),
        },
        rto_min_ms: Some(rto_min_ms).filter(|ms| *ms > 0),
        tolerance_us: args.tolerance.as_us(),
        control: super::socket(args.socket.as_deref(), &args.name),
        state: state_file(args.state.as_ref(), &args.name),
        account: Account::choose(args.user.as_deref())?,
    })
}

/// An interface may come later, and is heard then: whoever mistyped its name is told.
fn tell_absent(wanted: &[String]) {
    let there = longfat_kernel::mark::interfaces().unwrap_or_default();
    for name in wanted.iter().filter(|name| !there.contains(name)) {
        eprintln!(
            "longfat: mobility follow: WARNING: there is no interface '{name}' now, and nothing is heard on it before \
             it comes; there are {}",
            there.join(", ")
        );
    }
}

pub fn clean(args: &Clean) -> Outcome {
    require(support::missing_network_admin("routes").into_iter().collect())?;
    if control::ask(&super::socket(args.socket.as_deref(), &args.name), "status").is_ok() {
        return Err(
            anyhow!("'{}' is running; end it, and it puts back itself what it changed", args.name).into()
        );
    }
    let state = state_file(args.state.as_ref(), &args.name);
    if args.state.is_some() && !state.exists() {
        return Err(anyhow!("there is no state '{}'", state.display()).into());
    }
    let _held = hold(&state)?;
    let lacking = match State::read(&state)?.changed_connections() {
        true => missing(&[Capability::ControlBlocks]),
        false => Vec::new(),
    };
    let (done, failed) = put_back::clean(&state, &mut |event| tell(&event, None))?;
    if args.json {
        print_json(&done)?;
    } else {
        println!("{done}");
    }
    match failed {
        Err(error) if !lacking.is_empty() => {
            eprintln!("longfat: mobility clean: {error}");
            Err(Failure::PartlyUnsupported(lacking))
        }
        Err(error) => Err(error.into()),
        Ok(()) if done.owed > 0 => Err(Failure::Missed(format!(
            "{} routes and connections are not as before; the next 'follow' or 'clean' tries again",
            done.owed
        ))),
        Ok(()) => Ok(()),
    }
}

fn state_file(given: Option<&PathBuf>, name: &str) -> PathBuf {
    given.cloned().unwrap_or_else(|| state::state_of(name))
}

/// Makes a state this process's own for as long as the file is open: control sockets may be called anything, and do not
/// tell who keeps it.
fn hold(state: &Path) -> anyhow::Result<File> {
    let mut path = state.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let failed = || format!("lock the state '{}'", state.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new(""))).with_context(failed)?;
    // Nobody else may open it: who can open a file can lock it.
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let file = opened.with_context(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "a process that runs keeps the state '{}' (its socket may be another); end it, and it puts back itself what it \
             changed, or give another --name or --state",
            state.display()
        ),
        Err(TryLockError::Error(error)) => Err(error).with_context(failed),
    }
}

fn tell(event: &Event<'_>, audit: Option<&mut File>) {
    match event {
        Event::Said(text) => eprintln!("longfat: mobility follow: {text}"),
        Event::Done(done) => tell_done(done, audit),
    }
}

fn tell_done(done: &Done<'_>, audit: Option<&mut File>) {
    let (before, after) = done.blocks;
    let why = serde_json::json!(done.wish.why);
    let (why, link) = (why.as_str().unwrap_or_default(), &done.wish.link);
    eprintln!(
        "longfat: mobility follow: {} -> {}: {why} to '{link}': cwnd {} -> {}, ssthresh {} -> {}, bound {} -> {}, \
         cc {} -> {}{}",
        before.local,
        before.remote,
        before.cwnd_segments,
        after.cwnd_segments,
        shown(before.ssthresh_segments),
        shown(after.ssthresh_segments),
        bound(before.clamp_segments),
        bound(after.clamp_segments),
        before.cc.as_str(),
        after.cc.as_str(),
        if done.shortfalls.is_empty() { String::new() } else { format!("; {}", done.shortfalls.join("; ")) },
    );
    let Some(file) = audit else { return };
    let time_unix_ms =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let line = serde_json::json!({
        "time_unix_ms": time_unix_ms,
        "command": "mobility follow",
        "by_pid": std::process::id(),
        "why": why,
        "link": link,
        "cookie": before.cookie,
        "local": before.local.to_string(),
        "remote": before.remote.to_string(),
        "cwnd_segments": [before.cwnd_segments, after.cwnd_segments],
        "ssthresh_segments": [before.ssthresh_segments, after.ssthresh_segments],
        "clamp_segments": [before.clamp_segments, after.clamp_segments],
        "cc": [before.cc.as_str(), after.cc.as_str()],
        "not_as_asked": done.shortfalls,
    });
    if writeln!(file, "{line}").is_err() {
        eprintln!("longfat: mobility follow: WARNING: the audit file cannot be written");
    }
}

fn bound(segments: u32) -> String {
    if is_bound(segments) { segments.to_string() } else { "none".into() }
}

fn shown(segments: u32) -> String {
    if segments >= UNLIMITED_SSTHRESH { "unlimited".into() } else { segments.to_string() }
}
