//! Golden tables: what every congestion control does, simulated, as text that is reviewed as a diff.
//!
//! After a change that is meant: `LONGFAT_WRITE_GOLDEN=1 cargo test -p longfat-sim golden::`, then read `git
//! diff`.

use crate::support::*;
use longfat_cc::{Algorithm, Tunables, response::Law};
use longfat_link::plan::LossPlan;
use longfat_sim::Scenario;
use std::{
    fmt::Write as _,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

const RATE_BPS: u64 = 20_000_000;
const RTTS_MS: [u64; 3] = [10, 50, 200];
const LOSSES: [f64; 4] = [0.0, 1e-4, 1e-3, 1e-2];

/// Every congestion control whose window is a function of loss or delay that is known.
fn ccs() -> Vec<&'static str> {
    let is_known = |algorithm: &Algorithm| Law::of(&Tunables::defaults(*algorithm)).is_some();
    Algorithm::all().filter(is_known).map(|algorithm| algorithm.name()).collect()
}

/// Carries out work on all processors; results in the order of the work.
fn in_parallel<W: Sync, R: Send>(work: &[W], carry_out: impl Fn(&W) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = work.get(index) else { break };
            done.push((index, carry_out(one)));
        }
        done
    };
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        handles.into_iter().flat_map(|handle| handle.join().unwrap()).collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A path with a queue of one bandwidth-delay product.
fn golden_path(rtt_ms: u64, loss: f64, ccs: &[(&str, u64)], seconds: u64) -> Scenario {
    let mut forward = direction(Some(RATE_BPS), rtt_ms * MS / 2, RATE_BPS / 8 * rtt_ms / 1000);
    if loss > 0.0 {
        forward.line.loss = LossPlan::Bernoulli { probability: loss };
    }
    let flows = ccs.iter().enumerate().map(|(index, (cc, start_s))| {
        let mut flow = flow(&format!("f{index}"), 0, 1, tcp(cc));
        flow.start_ns = start_s * SECOND;
        flow
    });
    Scenario {
        sample_every_ns: 100 * MS,
        start_within_ns: MS,
        ..path(forward, flows.collect(), seconds * SECOND)
    }
}

/// Compares with the file, or writes it when told to.
fn assert_golden(name: &str, text: &str) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("LONGFAT_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    let differing: Vec<_> = text.lines().filter(|line| !golden.lines().any(|known| known == *line)).collect();
    assert!(
        golden == text,
        "{} no longer holds; if the change is meant, LONGFAT_WRITE_GOLDEN=1 cargo test -p longfat-sim golden::.\nNow:\n{}",
        file.display(),
        differing.join("\n")
    );
}

#[test]
fn throughput_by_round_trip_time_and_loss_is_as_it_was() {
    let mut cells = Vec::new();
    for cc in ccs() {
        for rtt_ms in RTTS_MS {
            cells.extend(LOSSES.map(|loss| (cc, rtt_ms, loss)));
        }
    }
    let goodput = |(cc, rtt_ms, loss): &(&str, u64, f64)| {
        outcome(&golden_path(*rtt_ms, *loss, &[(cc, 0)], 20)).mbps_between("f0", 5 * SECOND, 20 * SECOND)
    };
    let found = in_parallel(&cells, goodput);
    let mut text = String::from(
        "# Goodput in Mbit/s, 5 to 20 s: one flow, 20 Mbit/s, a queue of one bandwidth-delay product, random loss.\n\
         cc         rtt_ms   loss=0   1e-4   1e-3   1e-2\n",
    );
    for (row, values) in cells.chunks(LOSSES.len()).zip(found.chunks(LOSSES.len())) {
        let (cc, rtt_ms, _) = row[0];
        let _ = write!(text, "{cc:<10} {rtt_ms:>6} ");
        values.iter().for_each(|value| _ = write!(text, " {value:>6.2}"));
        text.push('\n');
    }
    assert_golden("throughput.txt", &text);
}

/// Second flow's start, and the run's length.
const LATE_S: u64 = 10;
const LONG_S: u64 = 60;

struct Sharing {
    jain: f64,
    share: f64,
    converged_s: Option<f64>,
}

/// A flow joins another: how fair they are in the last half, and when the late one first has four fifths of an equal
/// share over two seconds.
fn sharing(first: &str, late: &str) -> Sharing {
    let outcome = outcome(&golden_path(40, 0.0, &[(first, 0), (late, LATE_S)], LONG_S));
    let [a, b] = ["f0", "f1"].map(|name| outcome.mbps_between(name, LONG_S / 2 * SECOND, LONG_S * SECOND));
    let has_share = |tenth: &u64| {
        let from = tenth * SECOND / 10;
        let [a, b] = ["f0", "f1"].map(|name| outcome.mbps_between(name, from, from + 2 * SECOND));
        b >= 0.8 * (a + b) / 2.0
    };
    let converged = (LATE_S * 10..(LONG_S - 2) * 10).find(has_share);
    Sharing {
        jain: (a + b).powi(2) / (2.0 * (a * a + b * b)),
        share: b / (a + b),
        converged_s: converged.map(|tenth| tenth as f64 / 10.0 - LATE_S as f64),
    }
}

#[test]
fn fairness_and_convergence_time_are_as_they_were() {
    let ccs = ccs();
    let mut pairs = Vec::new();
    for cc in ccs {
        pairs.extend(["reno", "cubic"].map(|first| (first, cc)));
        if !["reno", "cubic"].contains(&cc) {
            pairs.push((cc, cc));
        }
    }
    let found = in_parallel(&pairs, |(first, late)| sharing(first, late));
    let mut text = String::from(
        "# Two flows on 20 Mbit/s, 40 ms, a queue of one bandwidth-delay product; the second joins after 10 s.\n\
         # Jain's index and the late flow's share from 30 to 60 s; seconds until it first has 80 % of an equal share over 2 s.\n\
         first      late        jain  share  converged_s\n",
    );
    for ((first, late), Sharing { jain, share, converged_s }) in pairs.iter().zip(&found) {
        let converged = converged_s.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.1}"));
        let _ = writeln!(text, "{first:<10} {late:<10} {jain:>5.3}  {share:>5.3}  {converged:>11}");
    }
    assert_golden("sharing.txt", &text);
}
