//! Expectations of a capture: `retransmissions < 1%`, `throughput >= 900Mbit`, `lfp_syndrome == 0`. Pure.

use crate::{
    analysis::Analysis,
    report::FlowReport,
    words::{duration, rate},
};
use longfat_schema::units::{Nanos, Rate};
use serde::Serialize;
use std::str::FromStr;

/// Why an expectation cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpectError {
    /// Not a figure, a comparison and a value.
    #[error("'{0}' is no expectation; write a figure, a comparison and a value, like 'retransmissions < 1%'")]
    Form(String),
    /// No such figure.
    #[error(
        "'{0}' is no figure; there are retransmissions, spurious, timeouts, zero_windows, throughput, rtt_least, rtt_median, rtt_p95, damage, lost_by_capture, flows, and kinds of findings, like lfp_syndrome"
    )]
    Figure(String),
    /// The value does not fit the figure.
    #[error("'{value}' is no value for {figure}; write {like}")]
    Value {
        /// Which figure.
        figure: String,
        /// What was given.
        value: String,
        /// What is possible.
        like: &'static str,
    },
}

/// What an expectation is about.
#[derive(Debug, Clone, PartialEq)]
enum Figure {
    /// Segments sent again of all, in all flows that are reported.
    Retransmissions,
    /// Share of needless segments among those sent again.
    Spurious,
    Timeouts,
    ZeroWindows,
    /// Throughput of the greatest flow.
    Throughput,
    RttLeast,
    RttMedian,
    RttP95,
    Damage,
    LostByCapture,
    Flows,
    /// Findings of this kind.
    Findings(String),
}

/// An expectation.
#[derive(Debug, Clone, PartialEq)]
pub struct Expect {
    text: String,
    figure: Figure,
    comparison: &'static str,
    value: f64,
}

/// Whether it was met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged {
    /// As it was written.
    pub text: String,
    /// Whether it holds; a figure that is not there meets nothing.
    pub met: bool,
    /// What was found.
    pub found: String,
}

/// Longer ones first, so that `<=` is not read as `<`.
const COMPARISONS: [&str; 5] = ["<=", ">=", "==", "<", ">"];

/// Kinds of findings as JSON has them.
const KINDS: [&str; 25] = [
    "window_limited",
    "lfp_syndrome",
    "bufferbloat",
    "ack_compression",
    "receiver_ticks",
    "sender_ticks",
    "policer",
    "mtu_trouble",
    "sender_idle",
    "path_change",
    "sack_missing",
    "spurious_retransmissions",
    "receiver_stalls",
    "capture_incomplete",
    "offloads",
    "losses",
    "timeouts",
    "connection_died",
    "lost_syns",
    "injected_reset",
    "wrong_checksums",
    "delayed_ack_nagle",
    "silly_window",
    "ecn_marks",
    "ecn_stripped",
];

impl FromStr for Expect {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Expect, ExpectError> {
        let form = || ExpectError::Form(text.to_owned());
        let (comparison, at) =
            COMPARISONS.iter().find_map(|c| text.find(c).map(|at| (*c, at))).ok_or_else(form)?;
        let (name, value) = (text[..at].trim(), text[at + comparison.len()..].trim());
        if name.is_empty() || value.is_empty() {
            return Err(form());
        }
        let figure = figure(name)?;
        let value = figure.value(name, value)?;
        Ok(Expect { text: text.trim().to_owned(), figure, comparison, value })
    }
}

fn figure(name: &str) -> Result<Figure, ExpectError> {
    Ok(match name {
        "retransmissions" => Figure::Retransmissions,
        "spurious" => Figure::Spurious,
        "timeouts" => Figure::Timeouts,
        "zero_windows" => Figure::ZeroWindows,
        "throughput" => Figure::Throughput,
        "rtt_least" => Figure::RttLeast,
        "rtt_median" => Figure::RttMedian,
        "rtt_p95" => Figure::RttP95,
        "damage" => Figure::Damage,
        "lost_by_capture" => Figure::LostByCapture,
        "flows" => Figure::Flows,
        kind if KINDS.contains(&kind) => Figure::Findings(kind.to_owned()),
        other => return Err(ExpectError::Figure(other.to_owned())),
    })
}

impl Figure {
    fn value(&self, name: &str, text: &str) -> Result<f64, ExpectError> {
        let (value, like) = match self {
            Figure::Retransmissions | Figure::Spurious => (share(text), "a share like 1% or 0.01"),
            Figure::Throughput => {
                (text.parse::<Rate>().ok().map(|rate| rate.0 as f64), "a rate like 900Mbit")
            }
            Figure::RttLeast | Figure::RttMedian | Figure::RttP95 => (time_s(text), "a time like 20ms"),
            _ => (text.parse().ok(), "a number like 0"),
        };
        let finite = value.filter(|value: &f64| value.is_finite());
        finite.ok_or_else(|| ExpectError::Value { figure: name.to_owned(), value: text.to_owned(), like })
    }

    fn of(&self, analysis: &Analysis) -> Option<f64> {
        let sum = |of: fn(&crate::report::DirectionReport) -> u64| {
            analysis.flows.iter().flat_map(|flow| &flow.directions).map(of).sum::<u64>() as f64
        };
        let greatest = analysis.flows.first().map(FlowReport::main);
        let rtt = greatest.and_then(|main| main.rtt);
        match self {
            Figure::Retransmissions => {
                let sent = sum(|d| d.counts.sent_segments);
                (sent > 0.0).then(|| sum(|d| d.counts.repaired_segments()) / sent)
            }
            Figure::Spurious => {
                let share = || sum(|d| d.spurious_segments) / sum(|d| d.counts.repaired_segments()).max(1.0);
                (sum(|d| d.counts.sent_segments) > 0.0).then(share)
            }
            // What no flow has is none of it, and of no flow nothing is known.
            Figure::Timeouts | Figure::ZeroWindows | Figure::Findings(_) if analysis.totals.flows == 0 => {
                None
            }
            Figure::Timeouts => Some(analysis.totals.timeouts as f64),
            Figure::ZeroWindows => Some(sum(|d| d.counts.zero_windows)),
            Figure::Throughput => greatest.and_then(|main| main.throughput_bps),
            Figure::RttLeast => greatest.and_then(|main| main.least_rtt_us).map(|us| us / 1e6),
            Figure::RttMedian => rtt.map(|rtt| rtt.median_us / 1e6),
            Figure::RttP95 => rtt.map(|rtt| rtt.p95_us / 1e6),
            Figure::Damage => Some(analysis.capture.damage_count as f64),
            Figure::LostByCapture => lost_by_capture(analysis).map(|packets| packets as f64),
            Figure::Flows => Some(analysis.totals.flows as f64),
            Figure::Findings(kind) => Some(count(analysis, kind)),
        }
    }

    fn written(&self, value: f64) -> String {
        match self {
            Figure::Retransmissions | Figure::Spurious => format!("{:.3} %", value * 100.0),
            Figure::Throughput => rate(value),
            Figure::RttLeast | Figure::RttMedian | Figure::RttP95 => duration(value),
            _ => format!("{value}"),
        }
    }
}

/// Sum over the interfaces that tell; many captures have none.
fn lost_by_capture(analysis: &Analysis) -> Option<u64> {
    let told = analysis.capture.interfaces.iter().filter_map(|interface| interface.dropped);
    told.reduce(u64::saturating_add)
}

fn count(analysis: &Analysis, kind: &str) -> f64 {
    let findings = analysis.flows.iter().flat_map(|flow| &flow.findings);
    let named = |finding: &crate::findings::Finding| {
        serde_json::to_value(finding.kind).is_ok_and(|name| name == kind)
    };
    findings.filter(|finding| named(finding)).count() as f64
}

fn share(text: &str) -> Option<f64> {
    match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok().map(|p| p / 100.0),
        None => text.parse().ok(),
    }
}

fn time_s(text: &str) -> Option<f64> {
    text.parse::<Nanos>().ok().map(|time| time.0 as f64 / 1e9)
}

impl Expect {
    /// Whether an analysis meets it.
    pub fn judge(&self, analysis: &Analysis) -> Judged {
        let found = self.figure.of(analysis);
        let met = found.is_some_and(|found| match self.comparison {
            "<" => found < self.value,
            "<=" => found <= self.value,
            ">" => found > self.value,
            ">=" => found >= self.value,
            _ => (found - self.value).abs() <= f64::EPSILON * found.abs(),
        });
        let found =
            found.map_or("there is no such figure in this capture".to_owned(), |v| self.figure.written(v));
        Judged { text: self.text.clone(), met, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{analysis::Totals, findings::Kind};

    fn analysis() -> Analysis {
        Analysis {
            schema_version: 1,
            capture: crate::analysis::CaptureReport { damage_count: 2, ..Default::default() },
            totals: Totals { flows: 3, timeouts: 4, ..Default::default() },
            flows: Vec::new(),
        }
    }

    fn met(text: &str) -> bool {
        text.parse::<Expect>().unwrap().judge(&analysis()).met
    }

    #[test]
    fn expectations_are_met_or_missed_and_absent_figures_meet_nothing() {
        assert!(met("timeouts <= 4") && met("flows==3") && met("damage > 1"));
        assert!(
            !met("timeouts < 4")
                && !met("throughput >= 1bit")
                && !met("throughput < 1Gbit")
                && !met("rtt_p95 < 20ms")
                // No flow of it has a segment.
                && !met("retransmissions < 1%")
        );
        assert!(met("lfp_syndrome == 0"));
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_what_can() {
        let refused = |text: &str| text.parse::<Expect>().unwrap_err().to_string();
        assert!(refused("all is well").contains("retransmissions < 1%"));
        assert!(refused("speed > 1").contains("throughput"));
        assert!(refused("throughput > fast").contains("900Mbit"));
        assert!(refused("retransmissions < many%").contains("1%"));
    }

    #[test]
    fn a_time_is_read_as_the_tables_write_it() {
        let value = |text: &str| text.parse::<Expect>().unwrap().value;
        assert!((value("rtt_p95 < 500µs") - 500e-6).abs() < 1e-12);
        assert_eq!(value("rtt_p95 < 500µs"), value("rtt_p95 < 500us"));
        assert_eq!(duration(500e-6).parse::<Nanos>(), Ok(Nanos(500_000)));
    }

    #[test]
    fn every_kind_of_finding_can_be_expected() {
        for kind in [
            Kind::WindowLimited,
            Kind::LfpSyndrome,
            Kind::Bufferbloat,
            Kind::AckCompression,
            Kind::Offloads,
            Kind::WrongChecksums,
        ] {
            let name = serde_json::to_value(kind).unwrap();
            assert!(KINDS.contains(&name.as_str().unwrap()), "{name}");
        }
    }
}
