//! The confusion table of recorded looks: bench/why/causes.py injected the causes and kept what was seen.
//!
//! `LOOKS=FILE cargo test -p longfat-why --test table -- --nocapture` prints the table of another file, with what was
//! said of each run that is wrong.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use longfat_schema::units::Rate;
use longfat_why::{
    Assumed, Cause, Verdict, judge,
    record::{Record, read},
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

/// What was injected.
#[derive(Debug, Deserialize)]
struct Note {
    case: String,
    path: (f64, f64, f64),
    seed: u64,
    expected: Vec<String>,
    besides: Vec<String>,
    /// Two causes at once: both have to be named.
    #[serde(default)]
    both: bool,
    /// Rate of the slowest link that 'why' was told, where that was noted.
    #[serde(default)]
    rate_mbps: Option<f64>,
}

/// Causes that accuse nobody.
const FAULTLESS: [Cause; 7] = [
    Cause::ProgramIdle,
    Cause::PathFull,
    Cause::StandingQueue,
    Cause::SlowStart,
    Cause::Unknown,
    Cause::OtherEndSends,
    Cause::PathChanged,
];

/// Each of two causes at once has to have such a share of the time.
const BOTH_SHARE: f64 = 0.05;

struct Run {
    note: Note,
    named: Option<Cause>,
    name: String,
    is_right: bool,
    verdict: Option<Verdict>,
}

impl Run {
    fn of(record: &Record) -> Run {
        let note: Note = serde_json::from_str(&record.note).unwrap();
        let assumed = Assumed { path_rate: note.rate_mbps.map(|rate| Rate((rate * 1e6) as u64)) };
        let verdict = judge(&record.to_looks(), &assumed);
        let brought_along = |cause: &Cause| note.besides.iter().any(|name| name == cause.name());
        let mut causes = verdict.iter().flat_map(|verdict| &verdict.causes).map(|share| share.cause);
        let named = causes.find(|cause| !brought_along(cause));
        let is_right = match named {
            Some(cause) if note.expected.is_empty() => FAULTLESS.contains(&cause),
            Some(cause) => note.expected.iter().any(|name| name == cause.name()),
            None => false,
        };
        let name = named.map_or("nothing", Cause::name).to_owned();
        if !note.both {
            return Run { note, named, name, is_right, verdict };
        }
        let shares = verdict.iter().flat_map(|verdict| &verdict.causes).take(2);
        let mut both: Vec<_> =
            shares.filter(|share| share.share >= BOTH_SHARE).map(|share| share.cause.name()).collect();
        both.sort_unstable();
        let mut expected: Vec<&str> = note.expected.iter().map(String::as_str).collect();
        expected.sort_unstable();
        Run { is_right: both == expected, name: both.join("+"), note, named, verdict }
    }

    fn told(&self) -> String {
        let Note { case, path, seed, .. } = &self.note;
        let mut text = format!("{case} {path:?} seed {seed}: {}\n", self.name);
        if let Some(verdict) = &self.verdict {
            for share in verdict.causes.iter().take(4) {
                let _ = writeln!(text, "    {:.2} {}: {}", share.share, share.cause.name(), share.evidence);
            }
            let _ = writeln!(text, "    {:?}", verdict.figures);
        }
        text
    }
}

fn runs(path: &Path) -> Vec<Run> {
    let mut bytes = Vec::new();
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_some_and(|end| end == "gz") {
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    } else {
        BufReader::new(file).read_to_end(&mut bytes).unwrap();
    }
    read(&bytes[..]).unwrap().iter().map(Run::of).collect()
}

#[test]
fn the_course_of_every_recorded_connection_has_the_times_of_its_verdict() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/looks/once_aside.looks.gz");
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut text).unwrap();
    let records = read(&text[..]).unwrap();
    assert!(records.len() > 100, "{}", records.len());
    for record in records {
        let looks = record.to_looks();
        let course = longfat_why::course(&looks);
        let verdict = judge(&looks, &Assumed::default()).unwrap();
        let bytes: f64 = course.iter().map(|s| s.rate_bps * (s.to_us - s.from_us) as f64 / 8e6).sum();
        let carried = verdict.figures.rate_bps * verdict.elapsed_us as f64 / 8e6;
        assert!((bytes - carried).abs() <= 1e-6 * carried + 1.0, "{}: {bytes} of {carried}", record.who);
        for share in &verdict.causes {
            let under = course.iter().flat_map(|stretch| &stretch.causes);
            let time_us: u64 = under.filter(|(cause, _)| *cause == share.cause).map(|(_, us)| us).sum();
            assert_eq!(time_us, share.time_us, "{}: {}", record.who, share.cause.name());
        }
    }
}

/// As bench/why/causes.py prints it.
fn table(runs: &[Run]) -> String {
    let mut cases: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    runs.iter().for_each(|run| cases.entry(&run.note.case).or_default().push(run));
    let mut text = format!("{:<24} {:>4} {:>5}  first cause named\n", "injected", "runs", "right");
    for (case, runs) in &cases {
        let mut named: BTreeMap<&str, usize> = BTreeMap::new();
        runs.iter().for_each(|run| *named.entry(&run.name).or_default() += 1);
        let named: Vec<_> = named.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let right = runs.iter().filter(|run| run.is_right).count();
        let _ = writeln!(text, "{case:<24} {:>4} {right:>5}  {}", runs.len(), named.join(", "));
    }
    let part = |is_meant: &dyn Fn(&&Run) -> bool| {
        let meant: Vec<&Run> = runs.iter().filter(is_meant).collect();
        let right = meant.iter().filter(|run| run.is_right).count();
        (right, meant.len())
    };
    let (right, injected) = part(&|run| !run.note.expected.is_empty() && !run.note.both);
    let (named, pairs) = part(&|run| run.note.both);
    let (unharmed, healthy) = part(&|run| run.note.expected.is_empty());
    let share = 100.0 * right as f64 / injected.max(1) as f64;
    let is_unknown = |run: &&Run| !run.note.expected.is_empty() && run.named == Some(Cause::Unknown);
    let unknown = runs.iter().filter(is_unknown).count();
    let _ = writeln!(text, "right cause first: {right} of {injected} ({share:.1} %); unknown: {unknown}");
    let _ = writeln!(text, "of two causes at once both named: {named} of {pairs}");
    let _ = writeln!(text, "healthy ones accused: {} of {healthy}", healthy - unharmed);
    text
}

#[test]
fn recorded_looks_are_judged_as_the_table_beside_them_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/looks");
    if let Some(path) = std::env::var_os("LOOKS") {
        let runs = runs(&PathBuf::from(path));
        runs.iter().filter(|run| !run.is_right).for_each(|run| print!("{}", run.told()));
        print!("{}", table(&runs));
        return;
    }
    for name in ["tuning", "once_aside", "second_aside", "aside", "last_aside"] {
        let found = table(&runs(&folder.join(format!("{name}.looks.gz"))));
        let golden = std::fs::read_to_string(folder.join(format!("{name}.txt"))).unwrap();
        assert_eq!(found, golden, "{name}: see crates/why/tests/looks/README.md");
    }
}
