//! The host, judged for a path; its settings kept, compared and put back.

use super::settings::{self, FIRST, counts};
use crate::{
    commands::why::wrapped,
    outcome::{Failure, Outcome},
};
use anyhow::{Context as _, bail};
use longfat_kernel::tcb::{Query, State};
use longfat_path_plan::PathPlan;
use longfat_schema::units::{Nanos, Rate};
use longfat_why::{
    host::{self, Advice, DEAR, Settings},
    words,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{fs, path::Path};

/// Version of the files that keep settings.
const SCHEMA_VERSION: u32 = 1;

/// Settings in a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    schema_version: u32,
    kernel: String,
    settings: Settings,
}

/// A path, and where it is known from.
struct Judged {
    plan: PathPlan,
    from: String,
}

/// Judges the host for the path given, or for the one with the largest pipe that a living connection has.
pub fn run(given: Option<(Rate, Nanos)>, json: bool) -> Outcome {
    let path = match given {
        Some((rate, rtt)) => Judged { plan: host::path(rate, rtt)?, from: "as given".to_owned() },
        None => living()?,
    };
    let elsewhere = settings::elsewhere();
    let mut advice = host::advice(&path.plan, &settings::settings(), &counts());
    for one in advice.iter_mut().filter(|one| settings::is_elsewhere(&one.setting, &elsewhere)) {
        one.costs.push_str(&format!("; it is set {FIRST}"));
        one.mend = one.mend.take().map(|mend| format!("nsenter --net=/proc/1/ns/net {mend}"));
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&document(&path, &advice, &elsewhere))?);
    } else {
        print(&path, &advice);
        print!("{}", said_elsewhere(&elsewhere));
    }
    match advice.iter().filter(|one| one.costs_more_than(DEAR)).count() {
        0 => Ok(()),
        dear => Err(Failure::Missed(format!(
            "{dear} settings cost more than {:.0} % of the path each",
            100.0 * DEAR
        ))),
    }
}

/// The rate that a living connection was delivered at, over its least round trip.
fn living() -> anyhow::Result<Judged> {
    let far = |address: &std::net::SocketAddr| !address.ip().is_loopback();
    let mut most: Option<(f64, Judged)> = None;
    for one in Query::default().take()?.iter().filter(|one| one.state != State::LISTEN && far(&one.remote)) {
        let Some(info) = &one.info else { continue };
        let Some(rtt_us) = info.least_rtt_us() else { continue };
        let (rate, rtt) =
            (Rate(info.delivery_rate_bytes_per_s.saturating_mul(8)), Nanos(u64::from(rtt_us) * 1000));
        let pipe = rate.0 as f64 * rtt.0 as f64;
        // A path of less than two packets has nothing to be tuned for.
        let Ok(plan) = host::path(rate, rtt) else { continue };
        if most.as_ref().is_none_or(|(largest, _)| pipe > *largest) {
            let bound = if info.is_app_limited() {
                ", which its program limited: the path may carry more"
            } else {
                ""
            };
            most = Some((pipe, Judged { plan, from: format!("of the connection to {}{bound}", one.remote) }));
        }
    }
    most.map(|(_, judged)| judged).context(
        "no living connection tells a path (rate and round trip): give --rate and --rtt of the one that is to be used",
    )
}

fn print(path: &Judged, advice: &[Advice]) {
    let plan = &path.plan;
    println!("path     {} x {}, {}", plan.path.rate, plan.path.rtt, path.from);
    println!("         a pipe of {}; {}\n", words::size(plan.window.pipe_bytes), windows(plan));
    if advice.is_empty() {
        println!("Nothing that was looked at costs this path anything.");
    }
    advice.iter().for_each(|one| print!("{}", text(one)));
}

/// What was not looked at, or cannot be set here.
fn said_elsewhere(keys: &[&str]) -> String {
    match keys {
        [] => String::new(),
        keys => wrapped(&format!("Set {FIRST}: {}", keys.join(", ")), ""),
    }
}

/// What both hosts must allow.
fn windows(plan: &PathPlan) -> String {
    let (window, flows) = (words::size(plan.window.each_bytes()), plan.window.flows_min());
    match flows {
        1 => format!("both hosts must allow a window of {window}"),
        _ => format!(
            "it takes {flows} flows,\n         and both hosts must allow each the most there is, {window}"
        ),
    }
}

fn text(advice: &Advice) -> String {
    let share = match advice.share {
        Some(share) if advice.only.is_none() => format!("{:>3.0} %", 100.0 * share),
        Some(share) => format!("({:.0} %)", 100.0 * share),
        None => "    -".to_owned(),
    };
    let only = advice.only.map_or(String::new(), |only| format!(" (only {only})"));
    let lines = [
        wrapped(&format!("{share}  {} = {}", advice.setting, advice.value), "         "),
        wrapped(&format!("       {}{only}.", advice.costs), "       "),
        // A command is pasted: it is not broken.
        advice.mend.as_ref().map_or(String::new(), |mend| format!("       {mend}\n")),
        wrapped(&format!("       {}", advice.ground.words()), "       "),
    ];
    lines.concat() + "\n"
}

fn document(path: &Judged, advice: &[Advice], elsewhere: &[&str]) -> serde_json::Value {
    json!({
        "schema_version": SCHEMA_VERSION,
        "path": {
            "rate_bps": path.plan.path.rate.0,
            "rtt_ns": path.plan.path.rtt.0,
            "from": path.from,
            "pipe_bytes": path.plan.window.pipe_bytes,
            "window_bytes": path.plan.window.each_bytes(),
            "flows_min": path.plan.window.flows_min(),
            "goodput_max_bps": path.plan.goodput_max_bps,
        },
        "advice": advice,
        "first_namespace_only": elsewhere,
    })
}

/// Keeps everything that is looked at.
pub fn save(path: &Path) -> Outcome {
    crate::kept::refuse_replacing("--save", path)?;
    let kept = Saved {
        schema_version: SCHEMA_VERSION,
        kernel: longfat_host::facts::kernel(),
        settings: settings::settings(),
    };
    let text = serde_json::to_string_pretty(&kept)? + "\n";
    fs::write(path, text).with_context(|| {
        format!("write '{}'; --save needs a file in a directory that is there", path.display())
    })?;
    println!("{} settings kept in '{}'", kept.settings.len(), path.display());
    Ok(())
}

fn kept(path: &Path) -> anyhow::Result<Settings> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .with_context(|| format!("read '{shown}'; 'longfat doctor --save {shown}' writes such a file"))?;
    let kept: Saved = serde_json::from_str(&text).with_context(|| {
        format!("'{shown}' holds no settings: 'longfat doctor --save {shown}' writes such a file")
    })?;
    if kept.schema_version != SCHEMA_VERSION {
        bail!("'{shown}' is of version {}; this longfat reads version {SCHEMA_VERSION}", kept.schema_version);
    }
    Ok(kept.settings)
}

/// A setting, what it was, and what it is; either may be absent.
type Change = (String, Option<String>, Option<String>);

/// What differs, but for what cannot be set in this network namespace: that is said on standard error.
fn changes_here(before: &Settings) -> Vec<Change> {
    let elsewhere = settings::elsewhere();
    let is_elsewhere = |(key, ..): &Change| settings::is_elsewhere(key, &elsewhere);
    let (others, found): (Vec<_>, Vec<_>) =
        changes(before, &settings::settings()).into_iter().partition(is_elsewhere);
    for (key, before, _) in others {
        let before = before.unwrap_or_else(|| "(none)".to_owned());
        eprintln!("longfat: {key} = {before} is left out: it is set {FIRST}");
    }
    found
}

fn changes(before: &Settings, now: &Settings) -> Vec<Change> {
    let keys = before.keys().chain(now.keys().filter(|key| !before.contains_key(*key)));
    let of = |key: &String| (key.clone(), before.get(key).cloned(), now.get(key).cloned());
    let is_other = |(key, before, now): &Change| before != now && settings::can_be_set(key);
    let mut found: Vec<Change> = keys.map(of).filter(is_other).collect();
    found.sort();
    found
}

/// Shows which settings differ from the kept ones; exit code 1 where any does.
pub fn diff(path: &Path, json: bool) -> Outcome {
    let found = changes_here(&kept(path)?);
    let said = |value: &Option<String>| value.clone().unwrap_or_else(|| "(none)".to_owned());
    if json {
        let of = |(key, before, now): &Change| json!({ "setting": key, "kept": before, "now": now });
        let list: Vec<_> = found.iter().map(of).collect();
        println!("{}", serde_json::to_string_pretty(&json!({ "schema_version": 1, "changes": list }))?);
    } else {
        for (key, before, now) in &found {
            println!("{key}: {} -> {}", said(before), said(now));
        }
    }
    match found.len() {
        0 => Ok(()),
        count => Err(Failure::Missed(format!("{count} settings are not as they were kept"))),
    }
}

/// Puts back what is otherwise; what cannot be put back is told, and the rest is done.
pub fn restore(path: &Path) -> Outcome {
    let mut failed = 0;
    for (key, before, _) in changes_here(&kept(path)?) {
        // What was not there when it was kept is not ours to remove.
        let Some(before) = before else { continue };
        match settings::set(&key, &before) {
            Ok(()) => println!("{key} = {before}"),
            Err(error) => {
                failed += 1;
                eprintln!("longfat: {key}: {error:#}");
            }
        }
    }
    if failed > 0 {
        return Err(anyhow::anyhow!("{failed} settings could not be put back, see above").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Settings {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn changes_are_what_differs_what_came_and_what_went() {
        let found =
            changes(&of(&[("a", "1"), ("b", "2"), ("c", "3")]), &of(&[("a", "1"), ("b", "5"), ("d", "4")]));
        let keys: Vec<_> = found.iter().map(|(key, ..)| key.as_str()).collect();
        assert_eq!(keys, ["b", "c", "d"]);
    }

    #[test]
    fn a_congestion_control_that_somebody_loads_is_no_setting_that_changed() {
        let there = |names| of(&[("sysctl net.ipv4.tcp_available_congestion_control", names)]);
        assert!(changes(&there("reno cubic"), &there("reno cubic lf_vegas")).is_empty());
    }

    #[test]
    fn lines_of_advice_fit_a_terminal_but_for_the_command() {
        let settings =
            of(&[("sysctl net.ipv4.tcp_rmem", "4096 131072 6291456"), ("sysctl net.ipv4.tcp_sack", "0")]);
        let path = host::path("10Gbit".parse().unwrap(), "90ms".parse().unwrap()).unwrap();
        for advice in host::advice(&path, &settings, &Default::default()) {
            let text = text(&advice);
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("sysctl -w"));
            assert!(lines.into_iter().all(|line| line.chars().count() <= 80), "{text}");
        }
    }
}
