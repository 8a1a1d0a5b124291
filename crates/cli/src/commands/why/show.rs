//! Verdicts as people and programs read them.

use super::{Args, watch::Watched};
use crate::{fitted, output};
use longfat_kernel::tcb::Connection;
use longfat_why::{
    CATALOGUE, Cause, Remedy, Verdict,
    remedy::{Patient, remedies},
    sentence, words,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write as _};

/// Version of the JSON output.
const SCHEMA_VERSION: u32 = 1;
/// More connections than this are told by cause, and these one by one.
const MANY: usize = 8;
/// Lines are not longer.
const WIDTH: usize = 80;
/// Causes from this share of the time on are told.
const TOLD: f64 = 0.02;
/// Share of a cause's time from which on a remedy is worth a word.
pub const WORTH_MENDING: f64 = 0.1;

/// `rsync[4711] to 192.0.2.7:22`
pub fn who(connection: &Connection) -> String {
    let process = connection.process.as_ref();
    let name = process.map_or_else(|| connection.local.to_string(), |p| format!("{}[{}]", p.command, p.pid));
    let netns = if connection.netns.is_empty() { String::new() } else { format!("{}: ", connection.netns) };
    format!("{netns}{name} to {}", connection.remote)
}

/// What is told of one connection.
pub struct Told<'a> {
    /// The connection, as a person reads it.
    pub who: String,
    /// What was found.
    pub verdict: &'a Verdict,
    /// What mends it.
    pub remedies: Vec<Remedy>,
}

impl<'a> Told<'a> {
    fn of(one: &Watched, verdict: &'a Verdict, args: &Args) -> Told<'a> {
        Told { who: who(&one.connection), verdict, remedies: remedies_of(one, verdict, args) }
    }

    /// In lines of at most 80 columns.
    pub fn text(&self) -> String {
        let mut text = wrapped(&sentence::of(&self.who, self.verdict), "");
        for share in self.verdict.causes.iter().filter(|share| share.share >= TOLD) {
            let basis = format!("{:?}", share.basis).to_lowercase();
            let line = format!(
                "{:>4.0} %  {:<21} {:<9}  {}",
                100.0 * share.share,
                share.cause.name(),
                basis,
                share.evidence
            );
            let _ = write!(text, "{}", wrapped(&line, &" ".repeat(41)));
        }
        self.remedies.iter().for_each(|remedy| text.push_str(&of_remedy(remedy)));
        text
    }
}

/// What mends a connection.
pub fn remedies_of(one: &Watched, verdict: &Verdict, args: &Args) -> Vec<Remedy> {
    let patient = Patient {
        local: one.connection.local,
        remote: one.connection.remote,
        figures: &verdict.figures,
        path_rate: args.rate,
        wmem: one.wmem,
        relay: one.relay.as_ref(),
    };
    of_first(verdict, &patient)
}

/// Remedies for the first cause that is worth it.
pub fn of_first(verdict: &Verdict, patient: &Patient) -> Vec<Remedy> {
    let worth = verdict.to_mend(WORTH_MENDING).into_iter();
    worth.map(|share| remedies(share.cause, patient)).find(|found| !found.is_empty()).unwrap_or_default()
}

fn of_remedy(remedy: &Remedy) -> String {
    let mut text = wrapped(&format!("  Remedy ({}): {}.", remedy.place.words(), remedy.what), "    ");
    if let Some(command) = &remedy.command {
        // A command is pasted: it is not broken.
        let _ = writeln!(text, "    {command}");
    }
    let undo = remedy.undo.as_ref().map_or(String::new(), |undo| format!("; undone by: {undo}"));
    text + &wrapped(&format!("    costs {}{undo}", remedy.costs), "      ")
}

/// A text in lines of at most 80 columns, or as many as a narrower terminal has; those behind the first begin with
/// `indent`.
pub fn wrapped(text: &str, indent: &str) -> String {
    fitted::wrapped(text, indent, fitted::room().map_or(WIDTH, |room| room.min(WIDTH)))
}

/// Connections with the same first cause.
#[derive(Default)]
pub struct Group {
    /// Number of connections.
    pub connections: usize,
    /// Time under the cause, of all connections.
    pub time_us: u64,
    /// What those connections get together.
    pub rate_bps: f64,
}

/// Time of all connections by cause: the shares sum up to one.
pub fn by_cause<'a>(verdicts: impl IntoIterator<Item = &'a Verdict>) -> Vec<(Cause, Group)> {
    let mut groups: BTreeMap<Cause, Group> = BTreeMap::new();
    for verdict in verdicts {
        for share in &verdict.causes {
            groups.entry(share.cause).or_default().time_us += share.time_us;
        }
        if let Some(first) = verdict.first() {
            let group = groups.entry(first.cause).or_default();
            group.connections += 1;
            group.rate_bps += verdict.figures.rate_bps;
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse((group.connections, group.time_us)));
    groups
}

fn table(verdicts: &[(&Watched, Verdict)]) -> String {
    let groups = by_cause(verdicts.iter().map(|(_, verdict)| verdict));
    let all: u64 = groups.iter().map(|(_, group)| group.time_us).sum();
    let mut text = format!("{:<22} {:>14} {:>10} {:>14}\n", "first cause", "connections", "all time", "rate");
    for (cause, group) in &groups {
        let share = 100.0 * group.time_us as f64 / all.max(1) as f64;
        let _ = writeln!(
            text,
            "{:<22} {:>14} {:>8.1} % {:>14}",
            cause.name(),
            group.connections,
            share,
            words::rate(group.rate_bps)
        );
    }
    text
}

/// Prints what a watch has found.
pub fn answer(verdicts: &[(&Watched, Verdict)], args: &Args) -> anyhow::Result<()> {
    if args.json {
        let value = document(verdicts, args);
        let text = if args.watch { value.to_string() } else { serde_json::to_string_pretty(&value)? };
        return output::write_out(&format!("{text}\n"));
    }
    if verdicts.is_empty() {
        return Ok(());
    }
    output::write_out(&text(verdicts, args))
}

fn text(verdicts: &[(&Watched, Verdict)], args: &Args) -> String {
    let mut text = String::new();
    let faulty = |verdict: &Verdict| verdict.first().is_some_and(|share| share.cause.is_fault());
    let is_many = verdicts.len() > MANY;
    if is_many {
        let _ = write!(text, "{} connections\n\n{}\n", verdicts.len(), table(verdicts));
    }
    let told = verdicts.iter().filter(|(_, verdict)| !is_many || faulty(verdict)).take(MANY);
    let parts: Vec<String> = told.map(|(one, verdict)| Told::of(one, verdict, args).text()).collect();
    text + &parts.join("\n")
}

fn document(verdicts: &[(&Watched, Verdict)], args: &Args) -> Value {
    let connections: Vec<Value> = verdicts.iter().map(|(one, verdict)| of_one(one, verdict, args)).collect();
    let causes = by_cause(verdicts.iter().map(|(_, verdict)| verdict));
    let causes: Vec<Value> = causes.iter().map(|(cause, group)| {
        json!({ "cause": cause, "connections": group.connections, "time_us": group.time_us, "rate_bps": group.rate_bps })
    }).collect();
    json!({ "schema_version": SCHEMA_VERSION, "causes": causes, "connections": connections })
}

fn of_one(one: &Watched, verdict: &Verdict, args: &Args) -> Value {
    let Connection { local, remote, netns, cookie, process, cc, .. } = &one.connection;
    let told = Told::of(one, verdict, args);
    json!({
        "netns": &**netns,
        "local": local.to_string(),
        "remote": remote.to_string(),
        "cookie": cookie,
        "pid": process.as_ref().map(|process| process.pid),
        "process": process.as_ref().map(|process| process.command.to_string()),
        "cc": cc.as_ref().map(|cc| cc.as_str()),
        "sentence": sentence::of(&told.who, verdict),
        "elapsed_us": verdict.elapsed_us,
        "causes": verdict.causes,
        "figures": verdict.figures,
        "remedies": told.remedies,
    })
}

/// Every cause, and how it is told from others.
pub fn catalogue() {
    for entry in CATALOGUE {
        print!("{}", wrapped(&format!("{:<22} {}", entry.name, entry.words), &" ".repeat(23)));
        if !entry.told_by.is_empty() {
            print!("{}", wrapped(&format!("{:<22} told by: {}", "", entry.told_by), &" ".repeat(23)));
        }
    }
}
