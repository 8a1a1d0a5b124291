//! `longfat tcb set`, `save` and `restore`.

use super::Choice;
use crate::{
    outcome::{Failure, Outcome, require},
    output::print_json,
};
use anyhow::{Context as _, bail};
use clap::builder::NonEmptyStringValueParser;
use longfat_kernel::{
    support::{Capability, missing},
    tcb::{
        Answer, CcKind, Change, ChangeError, Connection, ControlBlock, Filter, HostKey, Keep, NetNamespace,
        Refusal, SAVED_VERSION, Saved, SavedBlocks, Setter, Step, UNLIMITED_SSTHRESH, missing_rto_max, plan,
    },
};
use longfat_schema::units::Nanos;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Set windows, timers and congestion control of live connections, of any process and namespace.
///
/// Shows what would change; --yes does it. Each connection is changed under its socket's lock, between two segments.
/// Words of the form NAME=VALUE are what to set, all others are the filter.
///
/// A congestion control's private state (cubic's W_max, BBR's model) is kept wherever the kernel lets it be kept: the
/// kernel's cubic and bbr then go on under the names 'lfkeep_cubic' and 'lfkeep_bbr', which are the same code.
#[derive(clap::Args)]
#[command(after_help = "What can be set:
  cwnd=N, ssthresh=N|unlimited  windows, in segments
  clamp=N|unlimited             what cwnd may not exceed
  rto-min=20ms, rto-max=10s     bounds of the timeout: 1ms to 200ms, 1s to 120s
  cc=NAME                       another congestion control, with a fresh state

Examples:
  longfat tcb set dst 10.0.0.0/8 cwnd=200 ssthresh=200
      what would change
  longfat tcb set dst 10.0.0.0/8 cwnd=200 ssthresh=200 --yes \\
      --audit /var/log/longfat-tcb.log
  longfat tcb set 'cc cubic and rtt > 200ms' cc=bbr --yes
  longfat tcb set 'process rsync' rto-min=20ms --yes")]
pub struct Set {
    /// Which connections, and NAME=VALUE for what to set.
    #[arg(value_name = "FILTER… NAME=VALUE", required = true)]
    words: Vec<String>,
    /// Another network namespace: a name, a pid in it, or 'all'.
    #[arg(long, value_name = "NAME|PID|all", value_parser = NonEmptyStringValueParser::new())]
    netns: Option<String>,
    /// Every connection: without it an empty filter is refused.
    #[arg(long)]
    all: bool,
    /// What becomes of the congestion control's private state: 'possible' keeps it where the kernel lets it be kept,
    /// 'always' refuses connections where it cannot, 'never' lets it begin anew and keeps the name.
    #[arg(long, value_name = "WHEN", default_value = "possible", value_parser = ["possible", "always", "never"])]
    keep_state: String,
    #[command(flatten)]
    act: Act,
}

/// Whether to act, and who is told.
#[derive(clap::Args)]
struct Act {
    /// Do it; without it nothing is changed.
    #[arg(long)]
    yes: bool,
    /// Append one JSON line per change to this file.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// What was or would be done, connection by connection, as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Write the control blocks of connections to a file: windows, timers, congestion control and its private state.
#[derive(clap::Args)]
#[command(after_help = "Example:
  longfat tcb save before.json dst 10.0.0.0/8")]
pub struct Save {
    /// The file, before the filter; './dst' is a file that is called like a word of the filter.
    file: PathBuf,
    #[command(flatten)]
    choice: Choice,
    /// What was saved as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Bring living connections back to what 'save' wrote, with their private state where the kernel lets it be.
///
/// Private state is memory of the kernel: it is put back only from a file that this host wrote and nobody changed,
/// which its seal tells (a key of root's, /run/longfat/tcb.key).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat tcb restore before.json           what would change
  longfat tcb restore before.json --yes")]
pub struct Restore {
    /// The file.
    file: PathBuf,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    act: Act,
}

pub fn set(args: &Set) -> Outcome {
    let (changes, filter): (Vec<_>, Vec<_>) =
        args.words.iter().cloned().partition(|w| Change::is_assignment(w));
    let keep = match args.keep_state.as_str() {
        "always" => Keep::Always,
        "never" => Keep::Never,
        _ => Keep::WherePossible,
    };
    let change = Change { keep, ..Change::parse(&changes)? };
    if change == (Change { keep, ..Change::default() }) {
        return Err(ChangeError::Nothing.into());
    }
    if change.rto_max_ms.is_some() {
        require(missing_rto_max().into_iter().collect())?;
    }
    let choice = Choice { filter, netns: args.netns.clone() };
    if choice.filter()?.is_empty() && !args.all {
        return Err(anyhow::anyhow!("no filter: say which connections, or --all for every one").into());
    }
    run(&choice, &args.act, "set", |_| true, |_| Some(change.clone()))
}

pub fn save(args: &Save) -> Outcome {
    refuse_filter("save", &args.file)?;
    crate::kept::refuse_replacing("FILE", &args.file)?;
    let look = args.choice.look_without_cause(false)?;
    require(missing(&[Capability::ControlBlocks]))?;
    let setter = Setter::load()?;
    let mut connections = Vec::new();
    for (place, chosen) in look.take_each()? {
        let blocks = blocks(&setter, &place)?;
        connections.extend(chosen.iter().filter_map(|one| blocks.get(&one.cookie)).map(Saved::from));
    }
    let count = connections.len();
    if count == 0 {
        let why = "no connection matches, nothing was saved; 'longfat tcb list' shows what there is";
        return Err(Failure::Missed(why.to_owned()));
    }
    let saved = SavedBlocks {
        version: SAVED_VERSION,
        boot_id: boot_id()?,
        saved_unix_ms: unix_ms(),
        connections,
        seal: None,
    };
    let saved = match HostKey::of_host() {
        Ok(key) => saved.sealed(&key),
        Err(why) => {
            eprintln!("longfat: not sealed, so that private state will not be put back: {why}");
            saved
        }
    };
    longfat_schema::run::write_json(&args.file, &saved)?;
    if args.json {
        return Ok(print_json(
            &json!({ "file": args.file, "connections": count, "sealed": saved.seal.is_some() }),
        )?);
    }
    println!("{count} connections saved in {}", args.file.display());
    Ok(())
}

/// Without the file, the first word of the filter would be taken for it.
fn refuse_filter(command: &str, file: &Path) -> anyhow::Result<()> {
    let shown = file.display().to_string();
    if Filter::begins_with(&shown) {
        bail!(
            "'{shown}' begins a filter, and the file comes before it: 'longfat tcb {command} FILE {shown} …'; a file of that \
             name is './{shown}'"
        );
    }
    Ok(())
}

pub fn restore(args: &Restore) -> Outcome {
    refuse_filter("restore", &args.file)?;
    let shown = args.file.display();
    let text = fs::read_to_string(&args.file)
        .with_context(|| format!("read {shown}; 'longfat tcb save {shown}' writes such a file"))?;
    let saved: SavedBlocks = serde_json::from_str(&text)
        .with_context(|| format!("{shown} was not written by 'longfat tcb save'"))?;
    if saved.version > SAVED_VERSION {
        return Err(anyhow::anyhow!("{shown} was written by a newer longfat; upgrade longfat").into());
    }
    if saved.boot_id != boot_id()? {
        let why = "was saved on another machine or before a restart; its connections are gone";
        return Err(anyhow::anyhow!("{shown} {why}").into());
    }
    for one in &saved.connections {
        let which =
            || format!("{shown} was not written by 'longfat tcb save': {} -> {}", one.local, one.remote);
        one.check().with_context(which)?;
    }
    let is_sealed = HostKey::of_host().is_ok_and(|key| saved.is_sealed_by(&key));
    if !is_sealed {
        eprintln!("longfat: {shown} has no seal of this host: private state in it is left out");
    }
    let by_cookie: HashMap<u64, &Saved> = saved.connections.iter().map(|one| (one.cookie, one)).collect();
    let is_meant = |connection: &Connection| by_cookie.contains_key(&connection.cookie);
    run(&args.choice, &args.act, "restore", is_meant, |block| {
        let saved = by_cookie.get(&block.cookie).filter(|saved| saved.is_of(block))?;
        let change = saved.change(block);
        Some(Change { private: change.private.filter(|_| is_sealed), ..change })
    })
}

/// Plans, shows and, with --yes, does it.
fn run(
    choice: &Choice,
    act: &Act,
    command: &str,
    is_meant: impl Fn(&Connection) -> bool,
    change: impl Fn(&ControlBlock) -> Option<Change>,
) -> Outcome {
    let look = choice.look_without_cause(true)?;
    require(missing(&[Capability::ControlBlocks]))?;
    let mut audit = Audit::open(act.audit.as_deref(), command)?;
    let mut setter = Setter::load()?;
    let mut tally = Tally { told: act.json.then(Vec::new), ..Tally::default() };
    let mut kinds = HashMap::new();
    for (place, connections) in look.take_each()? {
        let blocks = blocks(&setter, &place)?;
        let mut steps = Vec::new();
        for connection in connections.iter().filter(|connection| is_meant(connection)) {
            let Some(block) = blocks.get(&connection.cookie) else {
                tally.without(connection);
                continue;
            };
            let Some(change) = change(block) else { continue };
            match plan_one(&mut setter, &mut kinds, block, &change)? {
                Ok(step) => steps.push((connection, block, step)),
                Err(refusal) => tally.refuse(connection, &refusal),
            }
        }
        if act.yes {
            let wanted: Vec<Step> = steps.iter().map(|(_, _, step)| step.clone()).collect();
            let answers = setter.apply(&place, &wanted)?;
            for ((connection, _, step), answer) in steps.iter().zip(&answers) {
                tally.done(connection, step, answer);
                audit.write(connection, step, answer)?;
            }
        } else {
            steps.iter().for_each(|(connection, block, step)| tally.would(connection, block, step));
        }
    }
    tally.end(act.yes)
}

fn plan_one(
    setter: &mut Setter,
    kinds: &mut HashMap<String, CcKind>,
    block: &ControlBlock,
    change: &Change,
) -> anyhow::Result<Result<Step, Refusal>> {
    // Asking goes through everything that is registered, and may load a wrapper: once per name.
    for name in [Some(block.cc), change.cc].into_iter().flatten() {
        if !kinds.contains_key(name.as_str()) {
            kinds.insert(name.as_str().to_owned(), setter.kind(name.as_str())?);
        }
    }
    Ok(plan(block, change, |name| kinds.get(name).copied().unwrap_or(CcKind::Absent)))
}

fn blocks(setter: &Setter, place: &NetNamespace) -> anyhow::Result<HashMap<u64, ControlBlock>> {
    Ok(setter.look(place)?.into_iter().map(|block| (block.cookie, block)).collect())
}

fn boot_id() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path).with_context(|| format!("read {path}"))?.trim().to_owned())
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A connection and what became of it, as JSON.
fn entry(connection: &Connection, what: Value) -> Value {
    let process = connection.process.as_ref();
    let mut entry = json!({
        "netns": &*connection.netns,
        "local": connection.local.to_string(),
        "remote": connection.remote.to_string(),
        "pid": process.map(|process| process.pid),
        "process": process.map(|process| process.command.to_string()),
        "cookie": connection.cookie,
    });
    if let (Value::Object(entry), Value::Object(what)) = (&mut entry, what) {
        entry.extend(what);
    }
    entry
}

/// `10.0.0.1:5000 -> 10.0.0.2:80 curl[77]`
fn name(connection: &Connection) -> String {
    let process = connection.process.as_ref();
    let owner = process.map(|process| format!(" {}[{}]", process.command, process.pid)).unwrap_or_default();
    let netns = if connection.netns.is_empty() { String::new() } else { format!("{}: ", connection.netns) };
    format!("{netns}{} -> {}{owner}", connection.local, connection.remote)
}

/// What differs, `from -> to`.
fn differences(before: &ControlBlock, after: &ControlBlock) -> Vec<String> {
    let mut found = Vec::new();
    let mut number = |what: &str, before: u32, after: u32| {
        if before != after {
            found.push(format!("{what} {} -> {}", segments(before), segments(after)));
        }
    };
    number("cwnd", before.cwnd_segments, after.cwnd_segments);
    number("ssthresh", before.ssthresh_segments, after.ssthresh_segments);
    number("clamp", before.clamp_segments, after.clamp_segments);
    let mut timer = |what: &str, before: Option<u32>, after: Option<u32>, unit_ns: u64| {
        if before != after {
            found.push(format!("{what} {} -> {}", time(before, unit_ns), time(after, unit_ns)));
        }
    };
    timer("rto-min", before.rto_min_us, after.rto_min_us, 1000);
    timer("rto-max", before.rto_max_ms, after.rto_max_ms, 1_000_000);
    if before.cc != after.cc {
        found.push(format!("cc {} -> {}", before.cc.as_str(), after.cc.as_str()));
    }
    found
}

/// `unknown` where the kernel does not tell.
fn time(number: Option<u32>, unit_ns: u64) -> String {
    number.map_or("unknown".into(), |number| Nanos(u64::from(number) * unit_ns).to_string())
}

fn segments(number: u32) -> String {
    if number == UNLIMITED_SSTHRESH || number == u32::MAX { "unlimited".into() } else { number.to_string() }
}

/// The control block as the step would leave it.
fn expected(block: &ControlBlock, step: &Step) -> ControlBlock {
    let change = &step.change;
    ControlBlock {
        cwnd_segments: change.cwnd_segments.unwrap_or(block.cwnd_segments),
        ssthresh_segments: change.ssthresh_segments.unwrap_or(block.ssthresh_segments),
        clamp_segments: change.clamp_segments.unwrap_or(block.clamp_segments),
        rto_min_us: change.rto_min_us.or(block.rto_min_us),
        rto_max_ms: change.rto_max_ms.or(block.rto_max_ms),
        cc: step.route.map_or(block.cc, |route| route.to),
        ..block.clone()
    }
}

/// The fields of a control block that can be set, as JSON; no bound is `null`.
fn settings(block: &ControlBlock) -> Value {
    let bounded =
        |segments: u32| (segments != UNLIMITED_SSTHRESH && segments != u32::MAX).then_some(segments);
    json!({
        "cwnd_segments": block.cwnd_segments,
        "ssthresh_segments": bounded(block.ssthresh_segments),
        "clamp_segments": bounded(block.clamp_segments),
        "rto_min_us": block.rto_min_us,
        "rto_max_ms": block.rto_max_ms,
        "cc": block.cc.as_str(),
    })
}

/// What was done, counted, and said: line by line, or as JSON at the end.
#[derive(Default)]
struct Tally {
    changed: usize,
    refused: usize,
    missed: usize,
    /// Every connection, where JSON is asked for.
    told: Option<Vec<Value>>,
}

impl Tally {
    fn refuse(&mut self, connection: &Connection, refusal: &Refusal) {
        self.refused += 1;
        match &mut self.told {
            Some(told) => {
                told.push(entry(connection, json!({ "outcome": "refused", "why": refusal.to_string() })))
            }
            None => println!("{}: refused: {refusal}", name(connection)),
        }
    }

    /// One that has no control block.
    fn without(&mut self, connection: &Connection) {
        let why = match connection.state.has_control_block() {
            true => "the connection has gone".to_owned(),
            false => format!("in state {}: it has no control block", connection.state),
        };
        self.refuse(connection, &Refusal(why));
    }

    fn would(&mut self, connection: &Connection, block: &ControlBlock, step: &Step) {
        self.changed += 1;
        self.say(connection, "would_be_set", Some((block, &expected(block, step))), &step.notes, &[]);
    }

    fn done(&mut self, connection: &Connection, step: &Step, answer: &Answer) {
        let shortfalls = answer.shortfalls(step);
        let outcome = if shortfalls.is_empty() {
            self.changed += 1;
            "set"
        } else {
            self.missed += 1;
            "not_as_asked"
        };
        let blocks = answer.blocks.as_ref().map(|(before, after)| (before, after));
        self.say(connection, outcome, blocks, &step.notes, &shortfalls);
    }

    /// `blocks` are before and after.
    fn say(
        &mut self,
        connection: &Connection,
        outcome: &str,
        blocks: Option<(&ControlBlock, &ControlBlock)>,
        notes: &[String],
        shortfalls: &[String],
    ) {
        if let Some(told) = &mut self.told {
            let (before, after) = blocks.map(|(before, after)| (settings(before), settings(after))).unzip();
            let what = json!({
                "outcome": outcome, "before": before, "after": after, "notes": notes, "not_as_asked": shortfalls,
            });
            return told.push(entry(connection, what));
        }
        let differences = blocks.map(|(before, after)| differences(before, after)).unwrap_or_default();
        let what = if differences.is_empty() { "stays as it is".to_owned() } else { differences.join(", ") };
        println!("{}: {what}", name(connection));
        notes.iter().for_each(|note| println!("  {note}"));
        shortfalls.iter().for_each(|what| println!("  not as asked: {what}"));
    }

    fn end(&self, acted: bool) -> Outcome {
        let Tally { changed, refused, missed, told } = self;
        if let Some(connections) = told {
            print_json(&json!({
                "acted": acted, "set": changed, "not_as_asked": missed, "refused": refused, "connections": connections,
            }))?;
        }
        if changed + refused + missed == 0 {
            let why = "no connection matches, nothing was changed; 'longfat tcb list' shows what there is";
            return Err(Failure::Missed(why.to_owned()));
        }
        if !acted {
            if told.is_none() {
                println!(
                    "{changed} connections would be set, {refused} refused; nothing was changed, --yes does it"
                );
            }
            return match changed {
                0 => Err(Failure::Missed(format!("none of {refused} connections would be set"))),
                _ => Ok(()),
            };
        }
        if told.is_none() {
            println!("{changed} connections set, {missed} not as asked, {refused} refused");
        }
        if missed + refused > 0 {
            return Err(Failure::Missed(format!("{} connections are not as asked", missed + refused)));
        }
        Ok(())
    }
}

/// One line of JSON per change, for whoever asks later.
struct Audit<'a> {
    file: Option<fs::File>,
    command: &'a str,
}

impl<'a> Audit<'a> {
    fn open(path: Option<&Path>, command: &'a str) -> anyhow::Result<Audit<'a>> {
        let open = |path: &Path| {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            opened.with_context(|| format!("--audit {} cannot be appended to; name a file", path.display()))
        };
        Ok(Audit { file: path.map(open).transpose()?, command })
    }

    fn write(&mut self, connection: &Connection, step: &Step, answer: &Answer) -> anyhow::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let found =
            answer.blocks.as_ref().map(|(before, after)| differences(before, after)).unwrap_or_default();
        let what = json!({
            "time_unix_ms": unix_ms(),
            "by_uid": longfat_host::facts::user_id(),
            "by_pid": std::process::id(),
            "command": self.command,
            "changes": found,
            "not_as_asked": answer.shortfalls(step),
        });
        let line = entry(connection, what);
        if writeln!(file, "{line}").is_err() {
            bail!("the audit file cannot be written; the changes above it were made");
        }
        Ok(())
    }
}
