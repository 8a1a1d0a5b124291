//! `longfat lab check` and `schema`: what an experiment file may hold, what it means, and whether this host can do it.

use super::{CheckArgs, expected_time, hosts, missing, table};
use crate::{
    fitted::{fitted, prose},
    outcome::{Failure, Outcome},
    stop,
};
use longfat_host::facts;
use longfat_lab::{backend::BackendKind, dilation, hosts::Hosts, plan::Plan, show};
use longfat_schema::quantity;
use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

/// How often and how long the clock is tried.
const NAPS: u32 = 200;
const NAP: Duration = Duration::from_millis(1);
/// Load per processor from which runs are likely to be disturbed.
const LOAD_LIMIT: f64 = 0.5;

/// Prints a line as prose that fits the terminal.
macro_rules! say {
    ($($text:tt)*) => { println!("{}", prose(&format!($($text)*), "    ")) };
}

pub fn check(args: &CheckArgs) -> Outcome {
    let read = args.spec.read()?;
    if args.json {
        crate::output::print_json(&read.plans)?;
        return Ok(());
    }
    let head = &read.experiment.head;
    let title =
        if head.title.is_empty() { head.name.clone() } else { format!("{}: {}", head.name, head.title) };
    println!("{}\n", prose(&title, "    "));
    println!("{}", fitted(table::plans(&read.plans), &[]));
    let ccs: BTreeSet<_> = read.plans.iter().flat_map(Plan::ccs).collect();
    say!("Congestion controls: {}", ccs.into_iter().collect::<Vec<_>>().join(", "));
    let counted = |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
    let (runs, expectations) = (read.plans.len(), read.experiment.expect.len());
    println!("{}; {}\n", counted(runs, "run"), counted(expectations, "expectation"));
    let lacking = emulation(&read.plans);
    let can_simulate = simulation(&read.plans);
    match &args.hosts {
        Some(file) => on_hosts(&read.plans, file),
        None if lacking > 0 && !can_simulate => Err(Failure::Lacking(lacking)),
        None => Ok(()),
    }
}

fn on_hosts(plans: &[Plan], file: &Path) -> Outcome {
    let time = show::span(expected_time(plans, BackendKind::Hosts));
    say!("On real hosts (--backend hosts): about {time}, {}", disk(plans, BackendKind::Hosts));
    let read = hosts::read(file, plans)?;
    read.refuse(file)?;
    for (host, entry) in &read.table.hosts {
        say!("  {host} is {}", entry.ssh);
    }
    say!("  the path is theirs; what the experiment says of links is what it expects");
    let program = std::env::current_exe()?;
    let stop = stop::flag()?;
    let missing = Hosts::look(&read.table, plans, &program, &stop)?;
    if missing.is_empty() {
        say!("  these machines can run it, as far as looking at them tells");
    }
    missing.iter().for_each(|thing| say!("  - {thing}"));
    if missing.is_empty() { Ok(()) } else { Err(Failure::Lacking(missing.len())) }
}

/// Says whether this host can emulate it; how many things are missing for that.
fn emulation(plans: &[Plan]) -> usize {
    let time = show::span(expected_time(plans, BackendKind::Emulated));
    say!("Emulated: about {time}, {}", disk(plans, BackendKind::Emulated));
    let missing = missing(plans);
    let dilations = dilations(plans);
    if missing.is_empty() && dilations.is_empty() {
        say!("  this host can run it");
    } else if missing.is_empty() {
        say!("  this host has what it needs, but runs may come out invalid:");
    } else {
        say!("  this host cannot run it as it is:");
        missing.iter().for_each(|thing| say!("  - {thing}"));
    }
    honesty(plans).iter().for_each(|line| say!("  {line}"));
    dilations.iter().for_each(|line| say!("  - {line}"));
    missing.len()
}

/// Each case that a small machine would hold up at the speed it is carried out at, and what would do.
fn dilations(plans: &[Plan]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let cases = plans.iter().filter(|plan| seen.insert(plan.case.as_str()));
    let short = cases.map(|plan| (plan, dilation::least(plan)));
    let said = short.filter(|(plan, need)| need.exceeds(plan.dilation));
    said.map(|(plan, need)| format!("{}: a machine of two cores may not be quick enough; {need}", plan.case))
        .collect()
}

/// Says whether it can be simulated.
fn simulation(plans: &[Plan]) -> bool {
    say!("Simulated (--backend sim): {}", disk(plans, BackendKind::Simulated));
    let checked = longfat_lab::simulated::check(plans);
    match &checked {
        Ok(()) => say!("  this host can run it"),
        Err(error) => say!("  it cannot be simulated: {error}"),
    }
    checked.is_ok()
}

fn disk(plans: &[Plan], backend: BackendKind) -> String {
    let bytes: f64 = plans.iter().map(|plan| plan.disk_bytes(backend)).sum();
    let said = format!("about {} on disk", quantity::of_metric("size_bytes", bytes));
    match facts::free_bytes(Path::new(".")) {
        Some(free) if bytes > free as f64 => {
            format!("{said}, but only {} are free here", quantity::of_metric("size_bytes", free as f64))
        }
        _ => said,
    }
}

/// What speaks for and against emulated runs being valid on this host as it is now. Runs judge themselves: this only
/// says beforehand what is likely.
fn honesty(plans: &[Plan]) -> Vec<String> {
    let paths = || plans.iter().flat_map(|plan| &plan.links).filter_map(|cable| cable.path.as_ref());
    let Some(limit_ns) = paths().map(|path| path.late_limit_ns).min() else {
        return vec!["no link is emulated: there is no path to keep".to_owned()];
    };
    let late = lateness(NAPS, NAP);
    let (late_us, limit_us) = (late.as_micros() as f64, limit_ns as f64 / 1000.0);
    let word = if late_us > limit_us { "runs will most likely be invalid" } else { "fine" };
    let shown = |us: f64| quantity::of_metric("late_us", us);
    let mut said = vec![format!(
        "punctual: a sleep of {} ms ended {} late (99th percentile of {NAPS}); the path may be {} late: {word}",
        NAP.as_millis(),
        shown(late_us),
        shown(limit_us)
    )];
    let (load, processors) = (facts::load_average(), f64::from(facts::cpu_count()));
    let word = if load > LOAD_LIMIT * processors {
        "it is busy; wait, or expect invalid runs"
    } else {
        "it is idle enough"
    };
    said.push(format!("load {load:.2} on {processors} processors: {word}"));
    let rate = |path: &longfat_link::LinkPlan| {
        let packets = |rate_bps: Option<u64>| {
            rate_bps.map_or(0.0, |rate| rate as f64 / 8.0 / f64::from(path.mtu_bytes))
        };
        packets(path.forward.line.rate_bps) + packets(path.backward.line.rate_bps)
    };
    let most = plans
        .iter()
        .map(|plan| plan.links.iter().filter_map(|cable| cable.path.as_ref()).map(&rate).sum::<f64>());
    let most = most.fold(0.0, f64::max);
    said.push(format!(
        "full links carry up to {} packets/s both ways; 'make bench-link' measures what this host keeps up with",
        quantity::of_metric("packets", most.round())
    ));
    said
}

/// 99th percentile of how late short sleeps end.
fn lateness(naps: u32, nap: Duration) -> Duration {
    let late = |_| {
        let begun = Instant::now();
        std::thread::sleep(nap);
        begun.elapsed().saturating_sub(nap)
    };
    let mut late: Vec<Duration> = (0..naps).map(late).collect();
    late.sort();
    late[(late.len() - 1) * 99 / 100]
}

/// The experiment file as JSON Schema.
pub fn schema() -> Outcome {
    println!("{:#}", longfat_lab::spec::schema::json());
    Ok(())
}
