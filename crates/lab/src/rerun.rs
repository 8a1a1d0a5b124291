//! A run made again from its plan, and what came out otherwise. Only `plan.json` and `manifest.json` are needed: the
//! experiment file, whatever it has become, has no part in it.

use crate::{
    judge,
    plan::{FlowPlan, Plan},
    samples::Samples,
    session::unix_ms_of,
    simulated,
    spec::check::{PARTS_MAX, SPAN_MAX_NS, STREAMS_MAX},
};
use longfat_host::sysctl::is_net;
use longfat_link::plan::DirectionPlan;
use longfat_schema::run::{
    FileRecord, PLAN_FILE, RUN_FILE, RunDirectory, RunError, RunManifest, RunStatus, TableError,
    is_plain_name, is_plain_path, read_rows, reseal_run,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::SystemTime,
};

/// Columns of a row that are named when it differs.
const COLUMNS_SHOWN: usize = 4;

/// Why a run cannot be made again.
#[derive(Debug, thiserror::Error)]
pub enum RerunError {
    /// The run's plan is not the one it was made from.
    #[error("{path} is not the plan that the run was made from; its manifest says so")]
    OtherPlan {
        /// The plan.
        path: String,
    },
    /// The run's plan names what would be written outside the place given.
    #[error(
        "{path} names {name:?}, which would lead outside the directory or namespace it is given; it is no plan of longfat's"
    )]
    Outside {
        /// The plan.
        path: String,
        /// The name.
        name: String,
    },
    /// The run's plan asks for what no experiment may.
    #[error("{path}: {what}; it is no plan of longfat's")]
    Beyond {
        /// The plan.
        path: String,
        /// What it asks for.
        what: String,
    },
    /// The run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Longest run, as of an experiment file.
const SPAN_MAX_US: u64 = SPAN_MAX_NS / 1000;

/// The plan a run was made from.
///
/// # Errors
/// There is none, it has changed since, or it would lead outside the directory it is given.
pub fn plan_of(run: &RunDirectory) -> Result<Plan, RerunError> {
    let path = run.path.join(PLAN_FILE);
    let recorded = run.manifest.files.as_ref().and_then(|files| files.get(PLAN_FILE));
    if recorded.is_some_and(|recorded| FileRecord::of_file(&path).is_ok_and(|now| now != *recorded)) {
        return Err(RerunError::OtherPlan { path: path.display().to_string() });
    }
    let plan: Plan = run.plan()?;
    let path = path.display().to_string();
    if let Some(name) = outside(&plan) {
        return Err(RerunError::Outside { path, name });
    }
    match beyond(&plan) {
        Some(what) => Err(RerunError::Beyond { path, what }),
        None => Ok(plan),
    }
}

/// What came of simulating a run's twin again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TwinAgain {
    /// The new twin stands beside the run now.
    Renewed,
    /// The run is too far from it; why, in words. A valid run keeps its own.
    Far(String),
    /// The run has no twin, or failed by itself, or the simulation was interrupted.
    Left,
}

/// Simulates the twin of a run again: the simulator may have changed since. Twins that differ in chance alone are made
/// where the run is far from it. Those with the machine's hold-ups cannot be: they take its samples. A run that only
/// its old twin spoke against is valid beside a new one that it is close to.
///
/// # Errors
/// The run's plan is not to be had, or its manifest not to be written.
pub fn renew_twin(run: &mut RunDirectory, stop: &AtomicBool) -> Result<TwinAgain, RerunError> {
    let plan = plan_of(run)?;
    if run.manifest.twin.is_none() || !run.manifest.went_as_planned() {
        return Ok(TwinAgain::Left);
    }
    let Some(mut twin) = simulated::twin(&plan, stop) else { return Ok(TwinAgain::Left) };
    let by_chance = simulated::twins_by_chance(&plan, &run.manifest.metrics, stop);
    let others = (by_chance, &[][..], std::iter::empty());
    let samples = Samples::default();
    let far = judge::beside_twins(&plan, &run.manifest.metrics, &samples, &mut twin, others);
    if stop.load(Ordering::Acquire) {
        // Some twins were not made.
        return Ok(TwinAgain::Left);
    }
    let is_valid = run.manifest.status == RunStatus::Done;
    if let (true, Some((_, why))) = (is_valid, &far) {
        return Ok(TwinAgain::Far(why.clone()));
    }
    let (status, why) = far.map_or((RunStatus::Done, None), |(status, why)| (status, Some(why)));
    // The old twin's verdict is the first reason.
    let others = run.manifest.reasons.iter().skip(usize::from(!is_valid));
    run.manifest.reasons = why.iter().chain(others).cloned().collect();
    run.manifest.status = status;
    twin.renewed_unix_ms = Some(unix_ms_of(SystemTime::now()));
    run.manifest.twin = Some(twin);
    reseal_run(&run.path, &mut run.manifest)?;
    Ok(why.map_or(TwinAgain::Renewed, TwinAgain::Far))
}

/// What a plan asks for that an experiment file would be refused for, and that would take all memory or time, or lead
/// nowhere. A plan that was unpacked may be anybody's.
pub fn beyond(plan: &Plan) -> Option<String> {
    let counts =
        [plan.hosts.len(), plan.links.len(), plan.relays.len(), plan.flows.len(), plan.follows.len()];
    if counts.iter().any(|count| *count > PARTS_MAX) {
        return Some(format!("has more than {PARTS_MAX} parts of a kind"));
    }
    let span_us = 0..=SPAN_MAX_US as i64;
    if plan.window_start_us > plan.window_end_us
        || [plan.window_start_us, plan.window_end_us].iter().any(|edge_us| !span_us.contains(edge_us))
    {
        return Some(format!("a window from {} to {} us", plan.window_start_us, plan.window_end_us));
    }
    if !(1000..=SPAN_MAX_US).contains(&plan.sample_every_us) {
        return Some(format!("samples every {} us", plan.sample_every_us));
    }
    if plan.start_within_us > SPAN_MAX_US {
        return Some(format!("flows that begin within {} us", plan.start_within_us));
    }
    let is_host = |name: &String| plan.hosts.iter().any(|host| host.name == *name);
    let ends = plan.links.iter().flat_map(|link| &link.ends).map(|end| &end.host);
    let places = plan.relays.iter().map(|relay| &relay.host);
    let flows = plan.flows.iter().flat_map(|flow| [&flow.from, &flow.to]);
    if let Some(name) = ends.chain(places).chain(flows).find(|name| !is_host(name)) {
        return Some(format!("names a host {name:?} that it does not have"));
    }
    let paths = plan.links.iter().filter_map(|cable| Some((&cable.name, cable.path.as_ref()?)));
    let directions = paths.flat_map(|(name, path)| [(name, &path.forward), (name, &path.backward)]);
    directions
        .into_iter()
        .find_map(beyond_of_direction)
        .or_else(|| plan.flows.iter().find_map(beyond_of_flow))
}

fn beyond_of_direction((name, direction): (&String, &DirectionPlan)) -> Option<String> {
    let lines = direction.schedule.iter().map(|change| &change.line).chain([&direction.line]);
    let longest_ns = lines.flat_map(|line| [line.delay_ns, line.jitter_ns]).max().unwrap_or(0);
    if longest_ns > SPAN_MAX_NS {
        return Some(format!("link {name:?} with a time of {longest_ns} ns"));
    }
    direction.unscheduled().map(|schedule| format!("link {name:?} with a schedule that {}", schedule.why))
}

fn beyond_of_flow(flow: &FlowPlan) -> Option<String> {
    let name = &flow.name;
    if !(1..=STREAMS_MAX).contains(&flow.streams) {
        return Some(format!("flow {name:?} of {} streams", flow.streams));
    }
    let span_us = flow.end_us();
    (span_us > SPAN_MAX_US).then(|| format!("flow {name:?} until {span_us} us"))
}

/// A name that becomes one of a directory, file or namespace and is not fit for it, or a sysctl of the whole machine. A
/// plan made from an experiment file was checked with it; one that was unpacked may be anybody's.
pub fn outside(plan: &Plan) -> Option<String> {
    let directory = plan.directory();
    if !is_plain_path(&directory) {
        return Some(directory);
    }
    let names = [
        vec![&plan.experiment],
        plan.hosts.iter().map(|host| &host.name).collect(),
        plan.links.iter().map(|link| &link.name).collect(),
        plan.relays.iter().map(|relay| &relay.name).collect(),
        plan.flows.iter().map(|flow| &flow.name).collect(),
        plan.follows.iter().map(|follow| &follow.name).collect(),
    ];
    let mut settings = plan.hosts.iter().flat_map(|host| host.sysctls.keys());
    names
        .into_iter()
        .flatten()
        .find(|name| !is_plain_name(name))
        .or_else(|| settings.find(|key| !is_net(key)))
        .cloned()
}

/// Everything in which a run made again differs from what it was: status, figures, and every table that has other bytes
/// than were recorded (of a run without hashes: than it has). Nothing, when it is the same bit for bit.
///
/// # Errors
/// A file of the new run cannot be read.
pub fn differences(then: &RunDirectory, now: &RunDirectory) -> Result<Vec<String>, RunError> {
    let mut found = of_manifests(&then.manifest, &now.manifest);
    let recorded = match &then.manifest.files {
        Some(files) => files.clone(),
        None => longfat_schema::run::Contents::of_directory(&then.path)?.files,
    };
    let made = now.manifest.files.clone().unwrap_or_default();
    let is_table = |name: &&String| name.ends_with(".parquet");
    let names: BTreeSet<&String> = recorded.keys().chain(made.keys()).filter(is_table).collect();
    found.extend(names.into_iter().filter_map(|name| of_table(name, then, now, &recorded, &made)));
    Ok(found)
}

fn of_manifests(then: &RunManifest, now: &RunManifest) -> Vec<String> {
    let mut found = Vec::new();
    let mut differs = |what: &str, then: String, now: String| {
        if then != now {
            found.push(format!("{RUN_FILE}: {what}: {then} then, {now} now"));
        }
    };
    differs("status", then.status.name().to_owned(), now.status.name().to_owned());
    differs("reasons", then.reasons.join("; "), now.reasons.join("; "));
    differs("duration_us", then.duration_us.to_string(), now.duration_us.to_string());
    let figures = |run: &RunManifest| -> BTreeMap<String, String> {
        let name = |m: &longfat_schema::run::Metric| {
            let stream = m.stream.map_or(String::new(), |stream| format!(" stream {stream}"));
            format!("{} of {}{stream}", m.metric, if m.of.is_empty() { "the run" } else { &m.of })
        };
        run.metrics.iter().map(|m| (name(m), m.value.to_string())).collect()
    };
    let (figures_then, figures_now) = (figures(then), figures(now));
    let names: BTreeSet<&String> = figures_then.keys().chain(figures_now.keys()).collect();
    let none = || "nothing".to_owned();
    for name in names {
        let value = |side: &BTreeMap<String, String>| side.get(name).cloned().unwrap_or_else(none);
        differs(name, value(&figures_then), value(&figures_now));
    }
    found
}

fn of_table(
    name: &str,
    then: &RunDirectory,
    now: &RunDirectory,
    recorded: &BTreeMap<String, FileRecord>,
    made: &BTreeMap<String, FileRecord>,
) -> Option<String> {
    match (recorded.get(name), made.get(name)) {
        (Some(one), Some(other)) if one == other => None,
        (Some(_), Some(_)) => {
            let rows = |run: &RunDirectory| read_rows(&run.path.join(name));
            let why = match (rows(then), rows(now)) {
                (Ok(one), Ok(other)) => of_rows(&one, &other),
                (Err(TableError::Io(_)), _) => {
                    "other bytes than were recorded, and the table is not there to say which".to_owned()
                }
                (Err(error), _) => format!("other bytes than were recorded, and of the table then: {error}"),
                (_, Err(error)) => format!("other bytes than were recorded, and of the table now: {error}"),
            };
            Some(format!("{name}: {why}"))
        }
        // A kind of table that came later has nothing to compare with; one that is empty says nothing.
        (None, _) if is_empty(&now.path.join(name)) => None,
        (None, _) => Some(format!("{name}: was not there then")),
        (Some(_), None) => Some(format!("{name}: is not there now")),
    }
}

fn is_empty(table: &Path) -> bool {
    read_rows(table).is_ok_and(|rows| rows.is_empty())
}

/// In what rows differ: how many, and in which columns the first.
fn of_rows(then: &[Value], now: &[Value]) -> String {
    let longest = then.len().max(now.len());
    let differing: Vec<usize> = (0..longest).filter(|row| then.get(*row) != now.get(*row)).collect();
    let Some(first) = differing.first().copied() else {
        return format!(
            "the same {longest} rows in other bytes (written by another version of the table format)"
        );
    };
    let count = format!("{} of {longest} rows differ", differing.len());
    match (then.get(first), now.get(first)) {
        (Some(one), Some(other)) => format!("{count}, first row {}: {}", first + 1, of_columns(one, other)),
        _ => format!("{count}: {} then, {} now", then.len(), now.len()),
    }
}

fn of_columns(then: &Value, now: &Value) -> String {
    let none = serde_json::Map::new();
    let (then, now) = (then.as_object().unwrap_or(&none), now.as_object().unwrap_or(&none));
    let names: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let shown = |row: &serde_json::Map<String, Value>, name: &str| {
        row.get(name).map_or_else(|| "no such column".to_owned(), Value::to_string)
    };
    let differing: Vec<String> = names
        .into_iter()
        .filter(|name| then.get(*name) != now.get(*name))
        .map(|name| format!("{name} {} then, {} now", shown(then, name), shown(now, name)))
        .collect();
    let more = differing.len().saturating_sub(COLUMNS_SHOWN);
    let more = if more > 0 { format!("; and {more} more columns") } else { String::new() };
    format!("{}{more}", differing[..differing.len().min(COLUMNS_SHOWN)].join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests_support::plan;
    use longfat_link::plan::LinkPlan;
    use serde_json::json;

    #[test]
    fn names_that_lead_outside_the_directory_are_found() {
        assert_eq!(outside(&plan()), None);
        let with = |change: fn(&mut Plan, String)| {
            ["../../etc", "/etc", "a/b", ".", "", "-rf", "a b", "a\u{1b}[2J"].map(|name| {
                let mut plan = plan();
                change(&mut plan, name.to_owned());
                (outside(&plan).is_some(), name)
            })
        };
        let found = [
            with(|plan, name| plan.experiment = name),
            with(|plan, name| plan.flows[0].name = name),
            with(|plan, name| plan.hosts[0].name = name),
            with(|plan, name| plan.links[0].name = name),
            with(|plan, name| drop(plan.hosts[0].sysctls.insert(name, "1".to_owned()))),
        ];
        assert!(found.iter().flatten().all(|(found, _)| *found), "{found:?}");
        let case = Plan { case: "../x".to_owned(), ..plan() };
        assert!(outside(&case).is_some());
    }

    fn first_path(plan: &mut Plan) -> &mut LinkPlan {
        plan.links.iter_mut().find_map(|cable| cable.path.as_mut()).unwrap()
    }

    #[test]
    fn plans_that_ask_for_all_memory_or_time_or_lead_nowhere_are_refused() {
        assert_eq!(beyond(&plan()), None);
        let changes: [fn(&mut Plan); 18] = [
            |plan| plan.flows[0].streams = u32::MAX,
            |plan| plan.flows[0].streams = 0,
            |plan| plan.flows[0].stagger_us = u64::MAX,
            |plan| plan.flows[0].start_us = u64::MAX,
            |plan| plan.flows[0].duration_us = u64::MAX,
            |plan| plan.flows[0].to = "nobody".to_owned(),
            |plan| plan.relays[0].host = "nobody".to_owned(),
            |plan| plan.links[0].ends[1].host = "nobody".to_owned(),
            |plan| plan.window_end_us = i64::MAX,
            |plan| plan.window_start_us = i64::MIN,
            |plan| plan.window_start_us = plan.window_end_us + 1,
            |plan| plan.sample_every_us = 0,
            |plan| plan.sample_every_us = u64::MAX,
            |plan| plan.start_within_us = u64::MAX,
            |plan| first_path(plan).forward.line.delay_ns = u64::MAX,
            |plan| first_path(plan).backward.line.jitter_ns = u64::MAX,
            |plan| first_path(plan).forward.repeats_ns = Some(1),
            |plan| plan.hosts = vec![plan.hosts[0].clone(); PARTS_MAX + 1],
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut plan = plan();
            change(&mut plan);
            assert!(beyond(&plan).is_some(), "change {number}");
        }
    }

    #[test]
    fn whatever_trace_an_experiment_may_follow_its_runs_can_be_made_again() {
        use crate::{
            plan::{plans, tests_support::SMALL},
            spec::{Experiment, include::Source},
        };
        let directory = tempfile::tempdir().unwrap();
        let text = SMALL.replace("rate = \"100Mbit\"\ndelay = \"5ms\"", "trace = \"t.csv\"");
        let table = Source::of_text(&text).unwrap().table;
        let mut followed = 0;
        // Rows apart by so many microseconds: from a nanosecond to ten days.
        for (count, apart_us) in
            [(2, 0.001), (2, 100.0), (20, 100.0), (2000, 0.5), (960, 3.6e9), (3, 8.64e11), (4, 8.64e11)]
        {
            let rows = (0..count).map(|row| format!("{},{}\n", f64::from(row) * apart_us, 10 + row % 2));
            let trace: String = std::iter::once("time_us,rate_mbps\n".to_owned()).chain(rows).collect();
            std::fs::write(directory.path().join("t.csv"), trace).unwrap();
            let Ok(experiment) = Experiment::from_table(&table, &[], directory.path()) else { continue };
            assert_eq!(beyond(&plans(&experiment).unwrap()[0]), None, "{count} rows, {apart_us} us apart");
            followed += 1;
        }
        assert_eq!(followed, 2);
    }

    #[test]
    fn rows_that_differ_are_counted_and_the_first_is_named_by_its_columns() {
        let row = |cwnd: u32, srtt: u32| json!({ "time_us": 1, "cwnd_segments": cwnd, "srtt_us": srtt });
        let then = [row(1, 5), row(2, 5), row(3, 5)];
        assert_eq!(
            of_rows(&then, &[row(1, 5), row(9, 6), row(4, 5)]),
            "2 of 3 rows differ, first row 2: cwnd_segments 2 then, 9 now; srtt_us 5 then, 6 now"
        );
        assert_eq!(of_rows(&then, &then[..2]), "1 of 3 rows differ: 3 then, 2 now");
        assert!(of_rows(&then, &then).contains("the same 3 rows in other bytes"));
        let wide = |value: u32| json!({ "a": value, "b": value, "c": value, "d": value, "e": value });
        assert!(of_rows(&[wide(1)], &[wide(2)]).ends_with("d 1 then, 2 now; and 1 more columns"));
    }
}
