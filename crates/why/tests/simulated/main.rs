//! Causes simulated on paths drawn by their seed, and which is named: many more runs than an emulated path allows.
//!
//! The simulator's samples become looks. Its time busy is that of the samples, five to a look; the receiver's window is
//! the buffer of its plan, which its model never changes.
//!
//! `TOLD=path_full:1-40 cargo test -p longfat-why --test simulated causes -- --nocapture` prints what is said of runs
//! that are wrong; `remedy_…` forecasts that were not met.
#![allow(clippy::unwrap_used)]

mod case;
mod causes;

use case::Case;
use causes::{FAULTS, HEALTHY, PAIRS, Prepare, PreparePair, pair, second_is_longer};
use longfat_schema::units::Rate;
use longfat_why::{Assumed, Price, Verdict, judge, remedy};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    ops::{Range, RangeInclusive},
    path::Path,
};

/// Seeds of each cause: those that the rules were made with, and those that were looked at once.
const TUNED: RangeInclusive<u64> = 1..=40;
const ASIDE: RangeInclusive<u64> = 41..=60;
/// Seeds of each kind of healthy connections.
const HEALTHY_SEEDS: RangeInclusive<u64> = 1..=50;
/// Seeds of each pair of causes.
const TUNED_PAIRS: RangeInclusive<u64> = 1..=10;
const ASIDE_PAIRS: RangeInclusive<u64> = 41..=45;

fn verdict(case: &Case, assumed: &Assumed) -> Option<Verdict> {
    judge(&case.looks(&case.samples()), assumed)
}

fn named(verdict: Option<&Verdict>, place: usize) -> &'static str {
    verdict.and_then(|verdict| verdict.causes.get(place)).map_or("nothing", |share| share.cause.name())
}

fn prepared(prepare: Prepare, seed: u64) -> Case {
    let mut case = Case::drawn(seed);
    prepare(&mut case);
    case
}

fn counts(prepare: Prepare, seeds: RangeInclusive<u64>) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for seed in seeds {
        let verdict = verdict(&prepared(prepare, seed), &Assumed::default());
        *found.entry(named(verdict.as_ref(), 0).to_owned()).or_default() += 1;
    }
    found
}

fn is_faultless(name: &str) -> bool {
    longfat_why::CATALOGUE.iter().any(|entry| entry.name == name && !entry.is_fault)
}

fn line(text: &mut String, name: &str, right: u64, found: &BTreeMap<String, u64>) {
    let named: Vec<_> = found.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let runs: u64 = found.values().sum();
    let _ = writeln!(text, "{name:<28} {runs:>4} {right:>5}  {}", named.join(", "));
}

fn head(what: &str) -> String {
    format!("{what:<28} {:>4} {:>5}  first cause named\n", "runs", "right")
}

fn injected(what: &str, seeds: &RangeInclusive<u64>) -> String {
    let (mut text, mut right_of_all, mut runs) = (head(what), 0, 0);
    for (expected, prepare) in FAULTS {
        let found = counts(prepare, seeds.clone());
        let right = found.get(expected).copied().unwrap_or(0);
        right_of_all += right;
        runs += found.values().sum::<u64>();
        line(&mut text, expected, right, &found);
    }
    let share = 100.0 * right_of_all as f64 / runs as f64;
    let _ = writeln!(text, "right cause first: {right_of_all} of {runs} ({share:.1} %)\n");
    text
}

fn healthy() -> String {
    let (mut text, mut accused, mut runs) = (head("healthy"), 0, 0);
    for (name, prepare) in HEALTHY {
        let found = counts(prepare, HEALTHY_SEEDS);
        let right: u64 = found.iter().filter(|(name, _)| is_faultless(name)).map(|(_, count)| count).sum();
        accused += found.values().sum::<u64>() - right;
        runs += found.values().sum::<u64>();
        line(&mut text, name, right, &found);
    }
    let _ = writeln!(text, "healthy ones accused: {accused} of {runs}\n");
    text
}

/// A cause is named where it has such a share of the time.
const NAMED_SHARE: f64 = 0.05;
/// Shares of silence at which one of the two causes clearly holds longer, and the other is there.
const SHORTER: Range<f64> = 0.1..0.4;
const LONGER: Range<f64> = 0.6..0.9;

/// The causes named, the longest first, and whether the pair's longer one is first and the other among them. `None`
/// where timers that go off seldom left both about the same time, or one none.
fn judged_pair(names: [&str; 2], prepare: PreparePair, seed: u64) -> Option<(String, bool, Verdict)> {
    let case = pair(prepare, seed);
    let samples = case.samples();
    let silent = case.silent_share(&samples);
    let second_is_longer = match names[1] {
        "timeouts" if SHORTER.contains(&silent) => false,
        "timeouts" if LONGER.contains(&silent) => true,
        "timeouts" => return None,
        _ => second_is_longer(seed),
    };
    let verdict = judge(&case.looks(&samples), &Assumed::default())?;
    let told = verdict.causes.iter().filter(|share| share.share >= NAMED_SHARE);
    let told: Vec<&str> = told.map(|share| share.cause.name()).collect();
    let [longer, other] = if second_is_longer { [names[1], names[0]] } else { names };
    let is_right = told.first() == Some(&longer) && told.contains(&other);
    Some((told.join("+"), is_right, verdict))
}

fn pairs(what: &str, seeds: &RangeInclusive<u64>) -> String {
    let (mut text, mut right_of_all, mut runs) = (head(what), 0, 0);
    for (names, prepare) in PAIRS {
        let (mut found, mut right) = (BTreeMap::new(), 0);
        for (name, is_right, _) in seeds.clone().filter_map(|seed| judged_pair(names, prepare, seed)) {
            *found.entry(name).or_default() += 1;
            right += u64::from(is_right);
            runs += 1;
        }
        right_of_all += right;
        line(&mut text, &names.join("+"), right, &found);
    }
    let _ = writeln!(text, "the longer one first, the other named, too: {right_of_all} of {runs}\n");
    text
}

/// A forecast is met where the rate with the remedy lies in its interval, widened by this part.
const FORETOLD_WITHIN: f64 = 0.25;

/// A cause with a remedy that can be simulated: the cause, how it is injected, and the remedy, by the verdict.
type Mend = fn(&mut Case, &Verdict);
const MENDS: [(&str, Mend); 4] = [
    ("receive_window", |case, verdict| {
        let bytes = remedy::receive_window_bytes(&verdict.figures, Some(Rate(case.rate_bps)));
        case.receiver.receive_buffer = longfat_sim::ReceiveBuffer::Fixed(bytes);
    }),
    ("send_buffer", |case, verdict| {
        let bytes = remedy::send_buffer_bytes(&verdict.figures, Some(Rate(case.rate_bps))) as f64;
        case.sender.send_buffer =
            longfat_sim::SendBuffer::Fixed((bytes * remedy::payload_share(&verdict.figures)) as u64);
    }),
    ("random_loss", |case, _| {
        case.forward.line.loss = longfat_link::plan::LossPlan::Bernoulli { probability: 0.0 }
    }),
    ("after_loss", |case, _| case.forward.schedule.clear()),
];

/// Whether the rate with the remedy is the one foretold, and the greatest over the least of the forecast.
fn foretold(prepare: Prepare, mend: Mend, seed: u64) -> Option<(bool, f64)> {
    let mut case = prepared(prepare, seed);
    let assumed = Assumed { path_rate: Some(Rate(case.rate_bps)) };
    let before = verdict(&case, &assumed)?;
    let Price { least_bps, most_bps, .. } = before.causes.iter().find_map(|share| share.without.clone())?;
    mend(&mut case, &before);
    let rate_bps = verdict(&case, &assumed)?.figures.rate_bps;
    let most_bps = most_bps?;
    let is_met =
        rate_bps >= least_bps * (1.0 - FORETOLD_WITHIN) && rate_bps <= most_bps * (1.0 + FORETOLD_WITHIN);
    if std::env::var_os("TOLD").is_some() && !is_met {
        println!(
            "seed {seed}: {rate_bps:.3e} measured, {least_bps:.3e} to {most_bps:.3e} foretold, {:?}",
            before.figures
        );
    }
    Some((is_met, most_bps / least_bps))
}

fn forecasts(seeds: &RangeInclusive<u64>) -> String {
    let mut text =
        format!("{:<28} {:>4} {:>5}  most over least foretold, median\n", "remedy of", "runs", "met");
    let (mut met_of_all, mut runs) = (0, 0);
    for (name, mend) in MENDS {
        let (_, prepare) = FAULTS.into_iter().find(|fault| fault.0 == name).unwrap();
        let found: Vec<_> = seeds.clone().filter_map(|seed| foretold(prepare, mend, seed)).collect();
        let met = found.iter().filter(|(is_met, _)| *is_met).count();
        let mut widths: Vec<f64> = found.iter().map(|(_, width)| *width).collect();
        widths.sort_by(f64::total_cmp);
        let width = widths.get(widths.len() / 2).copied().unwrap_or(0.0);
        let _ = writeln!(text, "{name:<28} {:>4} {met:>5}  {width:.2}", found.len());
        met_of_all += met;
        runs += found.len();
    }
    let _ = writeln!(
        text,
        "rate with the remedy within {FORETOLD_WITHIN} of the forecast: {met_of_all} of {runs}"
    );
    text
}

/// Compares with a table beside the recorded looks.
fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/looks").join(name);
    if std::env::var_os("LONGFAT_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "see crates/why/tests/looks/README.md");
}

#[test]
fn simulated_causes_are_named_as_the_table_beside_the_looks_says() {
    if let Ok(asked) = std::env::var("TOLD") {
        return tell_of_wrong_ones(&asked);
    }
    let text = [injected("tuned on", &TUNED), injected("looked at once", &ASIDE), healthy()].concat();
    compare("simulated.txt", &text);
}

#[test]
fn of_two_simulated_causes_the_longer_one_is_named_first() {
    let text = [pairs("tuned on", &TUNED_PAIRS), pairs("looked at once", &ASIDE_PAIRS)].concat();
    compare("simulated_pairs.txt", &text);
}

#[test]
fn simulated_remedies_bring_what_the_table_beside_the_looks_says() {
    compare("simulated_remedies.txt", &forecasts(&TUNED));
}

fn tell(case: &Case, verdict: Option<&Verdict>) {
    println!(
        "seed {}: {:.1} Mbit/s x {:.0} ms",
        case.seed,
        case.rate_bps as f64 / 1e6,
        case.rtt_ns as f64 / 1e6
    );
    for share in verdict.iter().flat_map(|verdict| &verdict.causes) {
        println!("    {:.2} {}: {}", share.share, share.cause.name(), share.evidence);
    }
    println!("    {:?}", verdict.map(|verdict| &verdict.figures));
}

/// `CAUSE:SEED-SEED`
fn tell_of_wrong_ones(asked: &str) {
    let (name, seeds) = asked.split_once(':').unwrap();
    let (from, to) = seeds.split_once('-').unwrap();
    for seed in from.parse::<u64>().unwrap()..=to.parse().unwrap() {
        for (expected, prepare) in FAULTS.into_iter().filter(|fault| fault.0 == name) {
            let case = prepared(prepare, seed);
            let verdict = verdict(&case, &Assumed::default());
            if named(verdict.as_ref(), 0) != expected {
                tell(&case, verdict.as_ref());
            }
        }
        for (names, prepare) in PAIRS.into_iter().filter(|(names, _)| names.join("+") == name) {
            if let Some((found, false, verdict)) = judged_pair(names, prepare, seed) {
                println!("{names:?}: {found}");
                tell(&pair(prepare, seed), Some(&verdict));
            }
        }
        for (_, mend) in MENDS.into_iter().filter(|mend| format!("remedy_{}", mend.0) == name) {
            let (_, prepare) = FAULTS.into_iter().find(|fault| name.ends_with(fault.0)).unwrap();
            foretold(prepare, mend, seed);
        }
    }
}
