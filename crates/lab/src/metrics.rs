//! What a run came to: figures over its window, from its records. Pure.
//!
//! Counters are read at the window's edges (interpolated between samples), levels such as a queue are averaged over
//! time (a level holds until its next sample), and bytes are counted at the receiver.

mod avail;
mod change;
mod scaling;
mod timeouts;

pub use avail::record_free;

use crate::{counter::growth, judge::consequences, plan::Plan, samples::Samples, spec::Protocol};
use longfat_schema::{
    record::{IntervalSample, TcpSample},
    run::{Metric, Spread},
};
use std::collections::{BTreeMap, BTreeSet};

/// Every figure of a run.
pub fn metrics(plan: &Plan, samples: &Samples, cpu_busy: Option<f64>) -> Vec<Metric> {
    let window = Window { start_us: plan.window_start_us, end_us: plan.window_end_us };
    let mut found = Figures::default();
    goodput(plan, samples, window, &mut found);
    completion(plan, samples, &mut found);
    change::rises(plan, samples, window, &mut found);
    scaling::scaling(plan, samples, &mut found);
    echoes(samples, window, &mut found);
    control_blocks(samples, window, &mut found);
    datagrams(plan, samples, &mut found);
    links(plan, samples, window, &mut found);
    for held_up in consequences(plan, samples) {
        found.push("held_up_drops_ratio", &held_up.link, held_up.share());
    }
    backlogs(samples, window, &mut found);
    avail::avail(plan, samples, window, &mut found);
    found.extend("cpu_busy_ratio", "", cpu_busy);
    found.metrics
}

/// The span in which things count.
#[derive(Debug, Clone, Copy)]
struct Window {
    start_us: i64,
    end_us: i64,
}

impl Window {
    fn holds(self, time_us: i64) -> bool {
        (self.start_us..self.end_us).contains(&time_us)
    }

    fn span(self) -> (i64, i64) {
        (self.start_us, self.end_us)
    }

    fn length_s(self) -> f64 {
        (self.end_us - self.start_us) as f64 / 1e6
    }

    /// Length in common with a span, in microseconds.
    fn overlap_us(self, from_us: i64, to_us: i64) -> i64 {
        (to_us.min(self.end_us) - from_us.max(self.start_us)).max(0)
    }
}

#[derive(Default)]
struct Figures {
    metrics: Vec<Metric>,
}

impl Figures {
    fn push(&mut self, metric: &str, of: &str, value: f64) {
        self.metrics.push(Metric { metric: metric.into(), of: of.into(), stream: None, value });
    }

    fn extend(&mut self, metric: &str, of: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.push(metric, of, value);
        }
    }
}

fn goodput(plan: &Plan, samples: &Samples, window: Window, found: &mut Figures) {
    let mut bytes: BTreeMap<(&str, u32), f64> = BTreeMap::new();
    for sample in &samples.interval {
        *bytes.entry((&sample.flow, sample.stream)).or_default() += bytes_within(sample, window);
    }
    let rate = |bytes: f64| bytes * 8.0 / window.length_s();
    let mut rates_of_tcp = Vec::new();
    for flow in &plan.flows {
        let of_stream = |stream| bytes.get(&(flow.name.as_str(), stream)).copied().unwrap_or(0.0);
        let streams: Vec<f64> = (0..flow.streams).map(|stream| rate(of_stream(stream))).collect();
        found.push("goodput_bps", &flow.name, streams.iter().sum());
        if flow.streams > 1 {
            let per_stream = streams.iter().zip(0..).map(|(value, stream)| Metric {
                metric: "goodput_bps".into(),
                of: flow.name.clone(),
                stream: Some(stream),
                value: *value,
            });
            found.metrics.extend(per_stream);
        }
        if flow.protocol == Protocol::Tcp {
            rates_of_tcp.extend(streams);
        }
    }
    found.extend("fairness_jain", "", jain(&rates_of_tcp));
}

/// How long a flow of a given size took, from its planned start to the last byte of its last stream at the receiver.
fn completion(plan: &Plan, samples: &Samples, found: &mut Figures) {
    for flow in plan.flows.iter().filter(|flow| flow.size_bytes.is_some()) {
        let streams = samples.flow.iter().filter(|summary| summary.flow == flow.name);
        let end_us = streams.map(|summary| summary.start_us + summary.duration_us as i64).max();
        found.extend(
            "completion_us",
            &flow.name,
            end_us.map(|end_us| (end_us - flow.start_us as i64) as f64),
        );
    }
}

/// Bytes of an interval that fall into the window, were they spread evenly over it.
fn bytes_within(sample: &IntervalSample, window: Window) -> f64 {
    let length_us = sample.duration_us as i64;
    if length_us == 0 {
        return if window.holds(sample.time_us) { sample.bytes as f64 } else { 0.0 };
    }
    let inside = window.overlap_us(sample.time_us - length_us, sample.time_us);
    sample.bytes as f64 * inside as f64 / length_us as f64
}

/// Jain's index (Jain, Chiu and Hawe 1984): 1 when all are equal, 1/n when one has everything.
fn jain(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (rates.len() > 1 && squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

fn echoes(samples: &Samples, window: Window, found: &mut Figures) {
    let mut latencies: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for echo in samples.echo.iter().filter(|echo| window.holds(echo.time_us)) {
        latencies.entry(&echo.flow).or_default().push(echo.latency_us);
    }
    for (flow, mut latencies) in latencies {
        latencies.sort_unstable();
        found.push("echo_p50_us", flow, percentile(&latencies, 0.50));
        found.push("echo_p99_us", flow, percentile(&latencies, 0.99));
        found.push("echo_max_us", flow, percentile(&latencies, 1.0));
    }
}

/// Nearest rank: the least value that at least this share of the values does not exceed.
fn percentile(sorted: &[u64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).map_or(f64::NAN, |value| *value as f64)
}

fn control_blocks(samples: &Samples, window: Window, found: &mut Figures) {
    let mut by_scope: BTreeMap<String, BTreeMap<u32, Vec<&TcpSample>>> = BTreeMap::new();
    for sample in samples.tcp.iter().filter(|sample| sample.role != "receiver") {
        by_scope.entry(scope(sample)).or_default().entry(sample.stream).or_default().push(sample);
    }
    for (scope, streams) in &mut by_scope {
        leave_out_idle(streams);
        let growth = |samples: &Vec<&TcpSample>| {
            let points = samples.iter().map(|sample| (sample.time_us, sample.retransmitted_segments as f64));
            growth(&points.collect::<Vec<_>>(), window.span())
        };
        found.push("retransmitted_segments", scope, streams.values().map(growth).sum::<f64>().round());
        timeouts::timeouts(scope, streams, window, found);
        let inside = || streams.values().flatten().filter(|sample| window.holds(sample.time_us));
        found.extend("srtt_mean_us", scope, mean(inside().map(|sample| f64::from(sample.srtt_us))));
        found.extend(
            "cwnd_mean_segments",
            scope,
            mean(inside().map(|sample| f64::from(sample.cwnd_segments))),
        );
        found.extend("cwnd_period_us", scope, period_us(streams.values(), window));
        let min_rtt = inside().filter_map(|sample| sample.min_rtt_us).min();
        found.extend("min_rtt_us", scope, min_rtt.map(f64::from));
    }
}

/// Period of the windows' saw-tooth: the median time from one reduction of a connection's window to its next.
fn period_us<'a>(streams: impl Iterator<Item = &'a Vec<&'a TcpSample>>, window: Window) -> Option<f64> {
    let between = streams.flat_map(|samples| {
        let inside = samples.iter().filter(|sample| window.holds(sample.time_us));
        let times = reductions(inside.map(|sample| (sample.time_us, f64::from(sample.cwnd_segments))));
        times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect::<Vec<_>>()
    });
    Spread::of(between).map(|spread| spread.median)
}

/// When a window fell by more than a tenth from its last peak. A reduction takes a round trip, and may overshoot: it
/// is over, and the next peak looked for, when the window has grown by a twentieth from its lowest.
fn reductions(windows: impl Iterator<Item = (i64, f64)>) -> Vec<i64> {
    let mut found = Vec::new();
    let (mut peak, mut trough) = (0.0f64, None::<f64>);
    for (time_us, cwnd) in windows {
        match trough {
            None if cwnd < 0.9 * peak => {
                found.push(time_us);
                trough = Some(cwnd);
            }
            None => peak = peak.max(cwnd),
            Some(lowest) if cwnd > 1.05 * lowest => (peak, trough) = (cwnd, None),
            Some(lowest) => trough = Some(lowest.min(cwnd)),
        }
    }
    found
}

/// A relay also carries what the ends of a transfer say to each other: connections that moved less than a hundredth of
/// what the busiest did are left out.
fn leave_out_idle(streams: &mut BTreeMap<u32, Vec<&TcpSample>>) {
    let moved =
        |samples: &Vec<&TcpSample>| samples.last().map_or(0, |last| last.sent_bytes + last.received_bytes);
    let busiest = streams.values().map(moved).max().unwrap_or(0);
    streams.retain(|_, samples| {
        samples.last().is_some_and(|last| last.role == "sender") || moved(samples) * 100 >= busiest
    });
}

/// A flow's own sender bears its name; a relay's legs are `NAME/relay_in` and `NAME/relay_out`.
fn scope(sample: &TcpSample) -> String {
    if sample.role == "sender" { sample.flow.clone() } else { format!("{}/{}", sample.flow, sample.role) }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

fn datagrams(plan: &Plan, samples: &Samples, found: &mut Figures) {
    for flow in plan.flows.iter().filter(|flow| flow.protocol == Protocol::Udp) {
        let of_flow = samples.flow.iter().filter(|summary| summary.flow == flow.name);
        found.push("lost_datagrams", &flow.name, of_flow.map(|summary| summary.lost_datagrams as f64).sum());
    }
}

fn links(plan: &Plan, samples: &Samples, window: Window, found: &mut Figures) {
    for cable in &plan.links {
        let Some(path) = &cable.path else { continue };
        for (name, direction) in [("forward", &path.forward), ("backward", &path.backward)] {
            let of = format!("{}/{name}", cable.name);
            let mine = || samples.queue.iter().filter(|s| s.link == cable.name && s.direction == name);
            let counter = |value: &dyn Fn(&longfat_schema::record::QueueSample) -> f64| {
                growth(
                    &mine().map(|sample| (sample.time_us, value(sample))).collect::<Vec<_>>(),
                    window.span(),
                )
            };
            let overhead = f64::from(direction.overhead_bytes);
            let delivered = counter(&|s| s.delivered_bytes as f64 + s.delivered_packets as f64 * overhead);
            // A line that changes its rate has no one rate to compare with.
            let utilisation =
                direction.steady_bps().map(|rate| delivered * 8.0 / (rate as f64 * window.length_s()));
            found.extend("utilisation_ratio", &of, utilisation);
            let depth = mine().map(|sample| (sample.time_us, sample.queue_bytes as f64));
            level(&depth.collect::<Vec<_>>(), "queue_mean_bytes", "queue_max_bytes", &of, window, found);
            found.push("dropped_packets", &of, counter(&|s| s.dropped_packets as f64).round());
            let summary = samples.link.iter().find(|s| s.link == cable.name && s.direction == name);
            found.extend("late_p99_us", &of, summary.map(|summary| summary.late_p99_us as f64));
        }
    }
}

/// Mean over time and greatest value of a level within the window.
fn level(points: &[(i64, f64)], mean: &str, max: &str, of: &str, window: Window, found: &mut Figures) {
    let ends = points.iter().skip(1).map(|(time_us, _)| *time_us).chain([window.end_us]);
    let held = points.iter().zip(ends).map(|((from, value), to)| (window.overlap_us(*from, to), *value));
    let held: Vec<(i64, f64)> = held.filter(|(length_us, _)| *length_us > 0).collect();
    let total_us: i64 = held.iter().map(|(length_us, _)| length_us).sum();
    if total_us > 0 {
        let weighted: f64 = held.iter().map(|(length_us, value)| *length_us as f64 * value).sum();
        found.push(mean, of, weighted / total_us as f64);
        found.push(max, of, held.iter().map(|(_, value)| *value).fold(0.0, f64::max));
    }
}

fn backlogs(samples: &Samples, window: Window, found: &mut Figures) {
    let scopes: BTreeSet<(&str, &str)> =
        samples.relay.iter().map(|sample| (sample.relay.as_str(), sample.direction.as_str())).collect();
    for (relay, direction) in scopes {
        let mut held: BTreeMap<u32, f64> = BTreeMap::new();
        let mut total = 0.0;
        let mut points = Vec::new();
        for sample in samples.relay.iter().filter(|s| s.relay == relay && s.direction == direction) {
            let now = sample.backlog_bytes as f64;
            total += now - held.insert(sample.connection, now).unwrap_or(0.0);
            points.push((sample.time_us, total));
        }
        let of = format!("{relay}/{direction}");
        level(&points, "backlog_mean_bytes", "backlog_max_bytes", &of, window, found);
    }
}

#[cfg(test)]
mod tests;
