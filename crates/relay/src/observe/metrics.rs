//! Metrics for Prometheus: families as values, and their text. What is counted is gathered when it is asked for.
//!
//! Two formats: OpenMetrics 1.0 for whoever accepts it (Prometheus does), and Prometheus' older text format 0.0.4. They
//! differ in how a counter's family is named (without `_total` in OpenMetrics), in the type `info`, and in `# UNIT`
//! and `# EOF`.

pub mod http;
mod process;

use super::{
    observer::Ended,
    reading::Reading,
    registry::{Registry, RuleTotals},
    status::EndToEndStatus,
    status::Status,
};
use crate::{legs::Legs, logic::connection::Direction};
use std::{collections::BTreeMap, fmt::Write};

/// How the text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

impl Format {
    /// The value of Content-Type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// What a family's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Always 1; what it says is in its labels.
    Info,
}

/// A family of metrics: its name without suffix `_total` or `_info`, ending in its unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    help: &'static str,
    /// Labels and value.
    samples: Vec<(Vec<(&'static str, String)>, f64)>,
}

impl Family {
    /// A family without samples; `unit` is empty or what `name` ends in.
    pub fn new(kind: Kind, name: &'static str, unit: &'static str, help: &'static str) -> Family {
        Family { name, kind, unit, help, samples: Vec::new() }
    }

    /// One more sample.
    #[must_use]
    pub fn with(mut self, labels: &[(&'static str, &str)], value: impl Into<f64>) -> Family {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push((labels, value.into()));
        self
    }

    /// The name of its samples.
    fn sample_name(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.name),
            Kind::Info => format!("{}_info", self.name),
            Kind::Gauge => self.name.to_owned(),
        }
    }

    fn write(&self, text: &mut String, format: Format) {
        let sample = self.sample_name();
        let (family, kind) = match (format, self.kind) {
            (Format::OpenMetrics, Kind::Counter) => (self.name, "counter"),
            (Format::OpenMetrics, Kind::Info) => (self.name, "info"),
            (Format::Prometheus, Kind::Counter) => (sample.as_str(), "counter"),
            (Format::Prometheus, Kind::Info) => (sample.as_str(), "gauge"),
            (_, Kind::Gauge) => (self.name, "gauge"),
        };
        let _ = writeln!(text, "# TYPE {family} {kind}");
        if format == Format::OpenMetrics && !self.unit.is_empty() {
            let _ = writeln!(text, "# UNIT {family} {}", self.unit);
        }
        let _ = writeln!(text, "# HELP {family} {}", self.help);
        for (labels, value) in &self.samples {
            let labels: Vec<_> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(text, "{sample}{labels} {value}");
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The whole text of an answer.
pub fn text(families: &[Family], format: Format) -> String {
    let mut text = String::new();
    families.iter().for_each(|family| family.write(&mut text, format));
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// A relay as a whole, at the moment of asking.
#[derive(Debug)]
pub(crate) struct Overview {
    /// Without its connections.
    pub status: Status,
    /// Connections beyond which clients wait.
    pub connection_limit: usize,
    /// Connections that stayed end to end, by every reason that there may be.
    pub passed: Vec<(&'static str, u64)>,
}

/// The metrics of a relay now.
pub(crate) fn render(overview: &Overview, registry: &Registry, format: Format) -> String {
    let mut families = relay(overview);
    let names = overview.status.rules.iter();
    let mut rules: BTreeMap<String, Rule> = names.map(|name| (name.clone(), Rule::default())).collect();
    let (living, totals) = registry.look();
    for (name, totals) in totals {
        rules.entry(name).or_default().totals = totals;
    }
    for legs in &living {
        // A rule that a reload took away has an entry as long as one of its connections lives.
        let rule = rules.entry(legs.plan.rule.clone()).or_default();
        if let Some(reading) = Reading::take(legs) {
            rule.add(&reading);
        }
        // Also when a socket could not be read any more: a counter must not fall.
        rule.totals.add(legs);
        rule.look_at_queues(legs);
    }
    families.extend(of_rules(&rules));
    families.extend(process::families());
    text(&families, format)
}

/// One rule's connections, added up.
#[derive(Debug, Default)]
struct Rule {
    totals: RuleTotals,
    connections: u64,
    backlog_bytes: [u64; 2],
    largest_backlog_bytes: [u64; 2],
    srtt_sum_us: [u64; 2],
    largest_srtt_us: [u64; 2],
    /// Targets of queues that are kept short, in microseconds.
    target_us: [u64; 2],
    largest_delay_us: [u64; 2],
}

impl Rule {
    fn add(&mut self, reading: &Reading) {
        self.connections += 1;
        for direction in Direction::BOTH {
            let (index, backlog) = (direction.index(), reading.backlog_bytes(direction));
            self.backlog_bytes[index] += backlog;
            self.largest_backlog_bytes[index] = self.largest_backlog_bytes[index].max(backlog);
        }
        for (index, leg) in [&reading.client, &reading.server].into_iter().enumerate() {
            self.srtt_sum_us[index] += u64::from(leg.srtt_us);
            self.largest_srtt_us[index] = self.largest_srtt_us[index].max(leg.srtt_us.into());
        }
    }

    fn look_at_queues(&mut self, legs: &Legs) {
        for direction in Direction::BOTH {
            let (index, queue) = (direction.index(), legs.queue(direction).unwrap_or_default());
            self.target_us[index] = self.target_us[index].max(queue.target_us.into());
            self.largest_delay_us[index] = self.largest_delay_us[index].max(queue.delay_us.into());
        }
    }

    fn mean_srtt_s(&self, leg: usize) -> f64 {
        if self.connections == 0 { 0.0 } else { self.srtt_sum_us[leg] as f64 / self.connections as f64 / 1e6 }
    }
}

fn adopted(status: &EndToEndStatus) -> Family {
    let help = "Connections to be adopted in mid-stream: watched, of these worth it, of these adopted.";
    let family = Family::new(Kind::Counter, "longfat_relay_adopting_connections", "connections", help);
    let stages = [("watched", status.watched), ("reached", status.reached), ("adopted", status.adopted)];
    stages.into_iter().fold(family, |family, (stage, count)| family.with(&[("stage", stage)], count as f64))
}

fn released(status: &EndToEndStatus) -> Family {
    let help = "Connections that the relay has left to their ends, by the reason.";
    let family = Family::new(Kind::Counter, "longfat_relay_released_connections", "connections", help);
    let count = |reason: &str| status.released.get(reason).copied().unwrap_or(0) as f64;
    ["pause", "stop"]
        .into_iter()
        .fold(family, |family, reason| family.with(&[("reason", reason)], count(reason)))
}

fn moved(status: &EndToEndStatus) -> Family {
    let help = "Connections that came from the relay of another router, or went there.";
    let family = Family::new(Kind::Counter, "longfat_relay_moved_connections", "connections", help);
    let ways = [("in", status.moved_in), ("out", status.moved_out)];
    ways.into_iter().fold(family, |family, (way, count)| family.with(&[("direction", way)], count as f64))
}

fn passed(passed: &[(&'static str, u64)]) -> Family {
    let help = "Connections to be accepted end to end that stayed so, by the reason.";
    let family = Family::new(Kind::Counter, "longfat_relay_passed_connections", "connections", help);
    passed.iter().fold(family, |family, (reason, count)| family.with(&[("reason", reason)], *count as f64))
}

/// What concerns the relay as a whole.
fn relay(overview: &Overview) -> Vec<Family> {
    use Kind::{Counter, Gauge, Info};
    let status = &overview.status;
    let version = env!("CARGO_PKG_VERSION");
    let last_worked = f64::from(u8::from(status.reload.problem.is_none()));
    let draining = f64::from(u8::from(status.draining));
    vec![
        Family::new(Info, "longfat_relay", "", "The relay's name and version.")
            .with(&[("name", &status.name), ("version", version)], 1.0),
        Family::new(Gauge, "longfat_relay_draining", "", "1 while the relay ends and new connections pass.")
            .with(&[], draining),
        Family::new(Counter, "longfat_relay_accepted_connections", "connections", "Connections accepted.")
            .with(&[], status.totals.connections as f64),
        Family::new(
            Counter,
            "longfat_relay_taken_over_connections",
            "connections",
            "Connections that it went on with where another relay had been.",
        )
        .with(&[], status.taken_over as f64),
        Family::new(
            Counter,
            "longfat_relay_inserted_connections",
            "connections",
            "Connections accepted end to end between whose ends sockets were put.",
        )
        .with(&[], status.end_to_end.inserted as f64),
        adopted(&status.end_to_end),
        released(&status.end_to_end),
        moved(&status.end_to_end),
        passed(&overview.passed),
        Family::new(
            Gauge,
            "longfat_relay_live_connections",
            "connections",
            "Connections alive, also those whose server has not answered yet.",
        )
        .with(&[], status.live as f64),
        Family::new(
            Gauge,
            "longfat_relay_limit_connections",
            "connections",
            "Connections beyond which clients wait in the kernel's queue.",
        )
        .with(&[], overview.connection_limit as f64),
        Family::new(
            Counter,
            "longfat_relay_reloads",
            "",
            "Requests to read the file again, by what became of them.",
        )
        .with(&[("result", "done")], status.reload.done as f64)
        .with(&[("result", "refused")], status.reload.refused as f64),
        Family::new(
            Gauge,
            "longfat_relay_last_reload_successful",
            "",
            "0 when the file was refused the last time.",
        )
        .with(&[], last_worked),
    ]
}

const DIRECTIONS: [&str; 2] = ["client_to_server", "server_to_client"];
const LEGS: [&str; 2] = ["client", "server"];

type PerRule<'a> = &'a dyn Fn(&Rule, usize) -> f64;

/// A sample for each rule and each of two names.
fn per(
    rules: &BTreeMap<String, Rule>,
    family: Family,
    label: &'static str,
    names: [&str; 2],
    value: PerRule,
) -> Family {
    rules.iter().fold(family, |family, (rule, found)| {
        names.iter().enumerate().fold(family, |family, (index, name)| {
            family.with(&[("rule", rule), (label, name)], value(found, index))
        })
    })
}

fn of_rules(rules: &BTreeMap<String, Rule>) -> Vec<Family> {
    let help = "Connections whose legs stand, by the rule that carries them.";
    let connections = Family::new(Kind::Gauge, "longfat_relay_connections", "", help);
    let connections = rules
        .iter()
        .fold(connections, |family, (rule, found)| family.with(&[("rule", rule)], found.connections as f64));
    let mut families = vec![connections, ended(rules)];
    families.extend(of_directions(rules));
    families.extend(of_queues(rules));
    families.extend(of_legs(rules));
    families
}

fn of_directions(rules: &BTreeMap<String, Rule>) -> Vec<Family> {
    let family = |kind, name, unit, help, value: PerRule| {
        per(rules, Family::new(kind, name, unit, help), "direction", DIRECTIONS, value)
    };
    vec![
        family(
            Kind::Counter,
            "longfat_relay_relayed_bytes",
            "bytes",
            "Bytes given to the receiving sockets.",
            &|rule, index| rule.totals.relayed_bytes[index] as f64,
        ),
        family(
            Kind::Gauge,
            "longfat_relay_backlog_bytes",
            "bytes",
            "Bytes received and not yet acknowledged by the other side: unread, held and in flight.",
            &|rule, index| rule.backlog_bytes[index] as f64,
        ),
        family(
            Kind::Gauge,
            "longfat_relay_largest_backlog_bytes",
            "bytes",
            "The backlog of the connection that has the largest.",
            &|rule, index| rule.largest_backlog_bytes[index] as f64,
        ),
        family(
            Kind::Counter,
            "longfat_relay_outbound_idle_seconds",
            "seconds",
            "Time in which receiving legs had nothing to send and nothing under way, of all connections.",
            &|rule, index| rule.totals.outbound_idle_us[index] as f64 / 1e6,
        ),
    ]
}

fn of_queues(rules: &BTreeMap<String, Rule>) -> Vec<Family> {
    let family = |kind, name, unit, help, value: PerRule| {
        per(rules, Family::new(kind, name, unit, help), "direction", DIRECTIONS, value)
    };
    vec![
        family(
            Kind::Counter,
            "longfat_relay_marked_packets",
            "packets",
            "Arriving packets marked with congestion experienced, where queues are kept short.",
            &|rule, index| rule.totals.marked_packets[index] as f64,
        ),
        family(
            Kind::Gauge,
            "longfat_relay_queue_target_seconds",
            "seconds",
            "How long bytes of living connections may wait in the relay; 0 where queues are left alone.",
            &|rule, index| rule.target_us[index] as f64 / 1e6,
        ),
        family(
            Kind::Gauge,
            "longfat_relay_largest_queue_delay_seconds",
            "seconds",
            "How long bytes wait, of the connection where it is longest; 0 where queues are left alone.",
            &|rule, index| rule.largest_delay_us[index] as f64 / 1e6,
        ),
    ]
}

fn of_legs(rules: &BTreeMap<String, Rule>) -> Vec<Family> {
    let family = |name, help, value: PerRule| {
        per(rules, Family::new(Kind::Gauge, name, "seconds", help), "leg", LEGS, value)
    };
    vec![
        family(
            "longfat_relay_mean_rtt_seconds",
            "Mean of the connections' smoothed round-trip times.",
            &Rule::mean_srtt_s,
        ),
        family(
            "longfat_relay_largest_rtt_seconds",
            "Largest of the connections' smoothed round-trip times.",
            &|rule, index| rule.largest_srtt_us[index] as f64 / 1e6,
        ),
    ]
}

fn ended(rules: &BTreeMap<String, Rule>) -> Family {
    let help = "Connections that have ended, by rule and outcome.";
    let mut family = Family::new(Kind::Counter, "longfat_relay_ended_connections", "connections", help);
    for (rule, found) in rules {
        for outcome in Ended::ALL {
            let count = found.totals.ended[outcome as usize];
            family = family.with(&[("rule", rule), ("outcome", outcome.name())], count as f64);
        }
    }
    family
}

#[cfg(test)]
mod tests;
