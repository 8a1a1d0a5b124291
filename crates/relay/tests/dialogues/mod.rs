//! Made-up dialogues of two programs, each carried out with plain forwarding and through the transparent relay: both
//! programs must see the same. `make test` has 200 of them, always the same; by hand
//!
//!     DIALOGUES=10000 cargo test --release -p longfat-relay dialogues::made_up -- --nocapture
//!
//! (`make soak-relay-dialogues`) as many as one likes, others each time; `DIALOGUES_SEED` repeats a run,
//! `DIALOGUES_AT_ONCE` of them (40) are under way together, `DIALOGUES_ONLY=NUMBER` carries out one again and again.
//! Of a difference the smallest dialogue that still shows it is printed as Rust, for a regression test.

mod differences;
mod found;
mod judge;
mod known;
mod program;
mod script;
mod stage;

use differences::Allowed;
use judge::{Judgement, judge};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use script::Dialogue;
use stage::{Stage, with_stage};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Always the same dialogues, unless others are asked for.
const SEED: u64 = 19;
const DIALOGUES: usize = 200;
const AT_ONCE: u8 = 40;
/// A smaller dialogue is looked for at most so long.
const SHRINKING: Duration = Duration::from_secs(60);

fn from_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: give a whole number")))
}

fn any_seed() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// The dialogue of a seed and a number, with those that are smaller than it.
fn made_up(seed: u64, number: usize) -> impl ValueTree<Value = Dialogue> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&(number as u64).to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    script::dialogues().new_tree(&mut runner).unwrap()
}

#[test]
fn made_up_dialogues_are_the_same_with_and_without_the_relay() {
    let asked = from_environment("DIALOGUES");
    let usual_seed = if asked.is_some() { any_seed() } else { SEED };
    let seed = from_environment("DIALOGUES_SEED").unwrap_or(usual_seed);
    let (count, lanes) =
        (asked.unwrap_or(DIALOGUES), from_environment("DIALOGUES_AT_ONCE").unwrap_or(AT_ONCE));
    println!("{count} dialogues, DIALOGUES_SEED={seed}");
    let begun = Instant::now();
    let run = with_stage("dlg", |stage| {
        println!("hosts after {:.1} s", begun.elapsed().as_secs_f64());
        let run = Run::new(seed, count).all(stage, lanes);
        println!("judged after {:.1} s", begun.elapsed().as_secs_f64());
        run
    });
    let allowed: Vec<_> = Allowed::ALL.map(|one| (one, one.used())).to_vec();
    println!("allowed differences: {allowed:?}");
    println!("in {:.0} s", begun.elapsed().as_secs_f64());
    assert!(run.failures.is_empty(), "{}", run.failures.join("\n\n"));
}

#[test]
fn dialogues_that_once_differed_are_the_same_with_and_without_the_relay() {
    const TIMES: usize = 3;
    let differing = with_stage("dlf", |stage| {
        let each = found::dialogues().into_iter();
        let trials = each.flat_map(|found| std::iter::repeat_n(found, TIMES));
        trials
            .filter_map(|(what, dialogue)| match judge(stage, &dialogue, 0) {
                Judgement::Differs(seen) => Some(format!("{what}: {seen}")),
                _ => None,
            })
            .collect::<Vec<_>>()
    });
    assert!(differing.is_empty(), "{}", differing.join("\n\n"));
}

/// What becomes of all dialogues of a run.
struct Run {
    seed: u64,
    count: usize,
    only: Option<usize>,
    next: AtomicUsize,
    judgements: Mutex<BTreeMap<String, usize>>,
    failed: Mutex<Vec<(usize, String)>>,
    failures: Vec<String>,
}

impl Run {
    /// More failures than this are not looked at.
    const MOST_FAILURES: usize = 10;

    fn new(seed: u64, count: usize) -> Run {
        let (judgements, failed) = (Mutex::default(), Mutex::default());
        let (only, next) = (from_environment("DIALOGUES_ONLY"), AtomicUsize::new(0));
        Run { seed, count, only, next, judgements, failed, failures: Vec::new() }
    }

    fn all(mut self, stage: &Stage<'_>, lanes: u8) -> Run {
        std::thread::scope(|scope| {
            for lane in 0..lanes {
                let run = &self;
                scope.spawn(move || run.in_lane(stage, lane));
            }
        });
        let begun = Instant::now();
        println!("{} dialogues: {:?}", self.count, self.judgements.lock().unwrap());
        for (number, what) in std::mem::take(self.failed.get_mut().unwrap()) {
            let smallest = shrunk(stage, made_up(self.seed, number), begun + SHRINKING);
            self.failures.push(format!("dialogue {number}: {}", smallest.unwrap_or(what)));
        }
        self
    }

    fn in_lane(&self, stage: &Stage<'_>, lane: u8) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count || self.failed.lock().unwrap().len() >= Run::MOST_FAILURES {
                return;
            }
            let number = self.only.unwrap_or(number);
            let judgement = judge(stage, &made_up(self.seed, number).current(), lane);
            *self.judgements.lock().unwrap().entry(judgement.name()).or_default() += 1;
            if let Judgement::Differs(what) = judgement {
                self.failed.lock().unwrap().push((number, what));
            }
        }
    }
}

/// The smallest dialogue found that still differs, and how; none when not even the first does so again.
fn shrunk(stage: &Stage<'_>, mut tree: impl ValueTree<Value = Dialogue>, until: Instant) -> Option<String> {
    let mut smallest = None;
    let mut go_on = true;
    while go_on && Instant::now() < until {
        go_on = if let Judgement::Differs(what) = judge(stage, &tree.current(), 0) {
            smallest = Some(what);
            tree.simplify()
        } else if smallest.is_none() {
            false
        } else {
            tree.complicate()
        };
    }
    smallest
}
