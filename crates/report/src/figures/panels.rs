//! The charts of one run over time: six, and a seventh where a connection measured its path. One colour per thing in
//! all of them: the focus flow is style 0, other flows of one stream 1, the relay's long leg 2; flows of many streams
//! are drawn pale.

use super::{
    Panel, RunSamples,
    samples::{Keyed, series},
};
use crate::{
    plot::{
        decimate::Point,
        time::{Rug, Series, Shape, TimeChart},
    },
    quantity::{Quantity, Unit, WHOLE, number},
};
use longfat_schema::{record::*, run::RunManifest};
use std::collections::{BTreeMap, BTreeSet};

const FOCUS: usize = 0;
const OTHER: usize = 1;
const RELAY: usize = 2;
const SECOND: usize = 3;
const QUEUE: usize = 4;
/// Echoes drawn as dots; more become a line.
const MOST_DOTS: usize = 500;
/// Ratio of medians above which two series need a logarithmic axis to be seen together.
const FAR_APART: f64 = 15.0;

struct Run<'a> {
    manifest: &'a RunManifest,
    samples: &'a RunSamples,
    focus: Option<&'a str>,
    prefix: &'a str,
    span: (f64, f64),
}

/// A chart before it has a place: what a panel says about itself.
struct Draft {
    name: &'static str,
    title: &'static str,
    quantity: Quantity,
    description: String,
    series: Vec<Series>,
    rug: Option<Rug>,
    absent: &'static str,
}

/// Draws the panels of a run; `prefix` makes their ids unique.
pub fn draw(manifest: &RunManifest, samples: &RunSamples, focus: Option<&str>, prefix: &str) -> Vec<Panel> {
    let run = Run::of(manifest, samples, focus, prefix);
    let charts: Vec<_> = run.drafts().into_iter().map(|draft| run.chart(draft, &[])).collect();
    let rows = legend_rows(&charts);
    charts.into_iter().map(|chart| panel(chart, rows)).collect()
}

/// One side of a comparison.
pub struct Side<'a> {
    /// The run that stands for its case.
    pub manifest: &'a RunManifest,
    /// What was sampled in it.
    pub samples: &'a RunSamples,
    /// The flow that the experiment is about.
    pub focus: Option<&'a str>,
    /// Makes the figures' ids unique.
    pub prefix: String,
}

/// Draws two runs to stand beside each other: a figure has the same span of time, unit and axis on both sides.
pub fn draw_beside(sides: &[Side; 2]) -> [Vec<Panel>; 2] {
    let mut runs = sides.each_ref().map(|s| Run::of(s.manifest, s.samples, s.focus, &s.prefix));
    let end = runs[0].span.1.max(runs[1].span.1);
    runs.iter_mut().for_each(|run| run.span.1 = end);
    let drafts = runs.each_ref().map(Run::drafts);
    let series = drafts
        .each_ref()
        .map(|own| own.iter().map(|d| (d.name, d.series.clone())).collect::<BTreeMap<_, _>>());
    let [left, right] = drafts;
    let draw = |run: &Run, own: Vec<Draft>, other: &BTreeMap<&str, Vec<Series>>| -> Vec<_> {
        own.into_iter()
            .map(|draft| {
                let beside = other.get(draft.name).map_or(&[][..], Vec::as_slice);
                run.chart(draft, beside)
            })
            .collect()
    };
    let charts = [draw(&runs[0], left, &series[1]), draw(&runs[1], right, &series[0])];
    let rows = charts.iter().map(|charts| legend_rows(charts)).max().unwrap_or(1);
    charts.map(|charts| charts.into_iter().map(|chart| panel(chart, rows)).collect())
}

fn legend_rows(charts: &[Result<(&'static str, TimeChart), Panel>]) -> usize {
    charts.iter().flatten().map(|(_, chart)| chart.legend_rows()).max().unwrap_or(1)
}

fn panel(chart: Result<(&'static str, TimeChart), Panel>, legend_rows: usize) -> Panel {
    match chart {
        Ok((name, chart)) => Panel::Drawn { name, figure: Box::new(chart.draw(legend_rows)) },
        Err(absent) => absent,
    }
}

/// A socket that is drawn; ordered as it is drawn.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Socket {
    style: usize,
    label: String,
    stream: u32,
    faint: bool,
}

impl<'a> Run<'a> {
    fn of(
        manifest: &'a RunManifest,
        samples: &'a RunSamples,
        focus: Option<&'a str>,
        prefix: &'a str,
    ) -> Run<'a> {
        let span = (0.0, (manifest.duration_us as f64 / 1e6).max(1e-3));
        Run { manifest, samples, focus, prefix, span }
    }

    fn drafts(&self) -> Vec<Draft> {
        let always = [self.goodput(), self.cwnd(), self.srtt(), self.echo(), self.queue(), self.backlog()];
        let avail = (!self.samples.avail.is_empty()).then(|| self.avail());
        always.into_iter().chain(avail).collect()
    }

    /// Scales a draft to its unit, or says why there is nothing to draw. `beside` is what the chart next to it shows.
    fn chart(&self, mut draft: Draft, beside: &[Series]) -> Result<(&'static str, TimeChart), Panel> {
        draft.series.retain(|series| series.points.iter().any(|p| p.1.is_finite()));
        if draft.series.is_empty() {
            return Err(Panel::Absent { title: draft.title, why: draft.absent.to_owned() });
        }
        let unit = draft.quantity.unit(greatest(&draft.series).max(greatest(beside)));
        let logarithmic = far_apart(&draft.series) || far_apart(beside);
        rescale(&mut draft.series, unit);
        let beside = beside.iter().flat_map(|series| &series.points);
        let beside = beside.map(|(time, value)| (*time, value / unit.factor)).collect();
        let chart = TimeChart {
            id: format!("{}-{}", self.prefix, draft.name),
            title: heading(draft.title, unit, logarithmic),
            description: draft.description + &extent(&draft.series, unit),
            span: self.span,
            window: self.window(),
            series: draft.series,
            rug: draft.rug,
            logarithmic,
            beside,
            bands: Vec::new(),
        };
        Ok((draft.name, chart))
    }

    fn window(&self) -> Option<(f64, f64)> {
        let (start, end) = (self.manifest.window_start_us, self.manifest.window_end_us);
        (end > start).then_some((start as f64 / 1e6, end as f64 / 1e6))
    }

    fn is_focus(&self, flow: &str) -> bool {
        self.focus.is_none_or(|focus| focus == flow)
    }

    /// One series per stream: the focus flow bold and on top, single-stream flows in a colour, others pale.
    fn by_stream(&self, keyed: &Keyed<(String, u32)>, shape: Shape) -> Vec<Series> {
        let count = |flow: &str| keyed.keys().filter(|(name, _)| name == flow).count();
        let drawn = |((flow, stream), points): (&(String, u32), &Vec<Point>)| {
            let streams = count(flow);
            let focus = self.is_focus(flow);
            let faint = (!focus && streams > 1) || streams > 4;
            let label = match (faint, streams) {
                (true, _) => format!("{flow} (each of {streams})"),
                (false, 1) => flow.clone(),
                (false, _) => format!("{flow} {stream}"),
            };
            let style = if focus { FOCUS + *stream as usize } else { OTHER };
            Series { label, style, faint, shape, points: points.clone() }
        };
        let mut all: Vec<Series> = keyed.iter().map(drawn).collect();
        all.sort_by_key(|series| (!series.faint, series.style == FOCUS));
        all
    }

    fn goodput(&self) -> Draft {
        let rate = |row: &IntervalSample| row.bytes as f64 * 8e6 / row.duration_us.max(1) as f64;
        let key = |row: &IntervalSample| Some(((row.flow.clone(), row.stream), row.time_us, rate(row)));
        Draft {
            name: "goodput",
            title: "Goodput",
            quantity: Quantity::Rate,
            description: "Payload each stream's receiver got, interval by interval.".into(),
            series: self.by_stream(&series(&self.samples.interval, key), Shape::Line),
            rug: None,
            absent: "No interval samples.",
        }
    }

    /// The sockets worth looking into: senders of the focus and of other single-stream flows, and the relay's
    /// outbound legs. Gives label and style.
    fn socket(&self, row: &TcpSample) -> Option<(usize, String)> {
        let streams =
            || self.samples.tcp.iter().filter(|r| r.flow == row.flow && r.role == "sender" && r.stream > 0);
        match row.role.as_str() {
            "sender" if self.focus == Some(row.flow.as_str()) => {
                Some((FOCUS, format!("{} sender", row.flow)))
            }
            "sender" if streams().next().is_none() => Some((OTHER, format!("{} sender", row.flow))),
            "relay_out" => Some((RELAY, format!("{} long leg", row.flow))),
            _ => None,
        }
    }

    /// One series per socket of interest.
    fn by_socket(
        &self,
        shape: Shape,
        second: bool,
        name: &str,
        value: impl Fn(&TcpSample) -> Option<f64>,
    ) -> Vec<Series> {
        let sockets = self.sockets();
        let point = |row: &TcpSample| {
            let socket = sockets.get(&(row.flow.as_str(), row.role.as_str(), row.stream))?;
            Some((socket.clone(), row.time_us, value(row).unwrap_or(f64::NAN)))
        };
        let drawn = |(socket, points): (Socket, Vec<Point>)| Series {
            label: format!("{}{name}", socket.label),
            style: if second { SECOND + socket.style } else { socket.style },
            faint: socket.faint,
            shape,
            points,
        };
        let mut all: Vec<Series> = series(&self.samples.tcp, point).into_iter().map(drawn).rev().collect();
        all.sort_by_key(|series| !series.faint);
        all
    }

    /// Every socket worth looking into, found once: a run has far more rows than sockets.
    fn sockets(&self) -> BTreeMap<(&str, &str, u32), Socket> {
        let connections = self.samples.relay_connections();
        let mut seen = BTreeSet::new();
        let key = |row: &'_ &TcpSample| (row.flow.clone(), row.role.clone(), row.stream);
        let first = self.samples.tcp.iter().filter(|row| seen.insert(key(row)));
        let known = |row: &'_ TcpSample| -> Option<Socket> {
            let (style, label) = self.socket(row)?;
            let is_main = match style {
                RELAY => *connections.get(&(row.flow.as_str(), row.stream))?,
                _ => row.stream == 0,
            };
            Some(Socket { style, label, stream: row.stream, faint: !is_main })
        };
        first
            .filter_map(|row| Some(((row.flow.as_str(), row.role.as_str(), row.stream), known(row)?)))
            .collect()
    }

    fn cwnd(&self) -> Draft {
        let mut all = self.by_socket(Shape::Step, true, ": ssthresh", |r| r.ssthresh_segments.map(f64::from));
        all.extend(self.by_socket(Shape::Step, false, ": cwnd", |r| Some(f64::from(r.cwnd_segments))));
        Draft {
            name: "cwnd",
            title: "Congestion window, segments",
            quantity: Quantity::Count,
            description: "cwnd and ssthresh of the focus flow's sender and of the relay's long leg.".into(),
            series: all,
            rug: retransmissions(&self.samples.trace),
            absent: "No TCP samples of the focus flow or of a relay.",
        }
    }

    fn srtt(&self) -> Draft {
        Draft {
            name: "srtt",
            title: "Smoothed round-trip time",
            quantity: Quantity::Time,
            description: "srtt of the same sockets.".into(),
            series: self
                .by_socket(Shape::Line, false, "", |r| (r.srtt_us > 0).then_some(f64::from(r.srtt_us))),
            rug: None,
            absent: "No TCP samples of the focus flow or of a relay.",
        }
    }

    fn echo(&self) -> Draft {
        let key =
            |row: &EchoSample| Some(((row.flow.clone(), row.stream), row.time_us, row.latency_us as f64));
        let few = self.samples.echo.len() <= MOST_DOTS;
        Draft {
            name: "echo",
            title: "Echo latency",
            quantity: Quantity::Time,
            description: "From handing a timestamp to the sending socket to reading its echo.".into(),
            series: self
                .by_stream(&series(&self.samples.echo, key), if few { Shape::Dots } else { Shape::Line }),
            rug: None,
            absent: "No flow carried timestamps to echo.",
        }
    }

    /// What was free lies over what was measured: it is the thinner truth.
    fn avail(&self) -> Draft {
        let measured =
            |row: &AvailSample| Some(((row.flow.clone(), row.stream), row.time_us, row.avail_bps as f64));
        let free = |row: &AvailSample| Some((row.flow.clone(), row.time_us, row.free_bps? as f64));
        let mut all = self.by_stream(&series(&self.samples.avail, measured), Shape::Step);
        all.iter_mut().for_each(|series| series.label += ": as it measured");
        all.extend(series(&self.samples.avail, free).into_iter().map(|(flow, points)| Series {
            label: format!("{flow}: free"),
            style: SECOND,
            faint: false,
            shape: Shape::Step,
            points,
        }));
        Draft {
            name: "avail",
            title: "Available bandwidth",
            quantity: Quantity::Rate,
            description:
                "What a connection could have, with headers: as it measured it, and as others left it.".into(),
            series: all,
            rug: None,
            absent: "Nothing was measured.",
        }
    }

    fn backlog(&self) -> Draft {
        let mut all = self.by_connection(": unacknowledged", SECOND, |r| r.unacked_bytes);
        all.extend(self.by_connection(": whole backlog", RELAY, |r| r.backlog_bytes));
        // What never holds a hundredth of the fullest, as the way back of a one-way transfer, is left out.
        let floor = greatest(&all) / 100.0;
        all.retain(|series| series.points.iter().any(|p| p.1 > floor));
        all.sort_by_key(|series| !series.faint);
        Draft {
            name: "backlog",
            title: "Relay backlog",
            quantity: Quantity::Bytes,
            description:
                "Bytes the relay received and its long leg has not seen acknowledged; the part of them in \
                          the outbound socket."
                    .into(),
            series: all,
            rug: None,
            absent: if self.samples.relay.is_empty() {
                "No relay on this path."
            } else {
                "The relay held nothing."
            },
        }
    }

    /// One series per connection worth drawing and direction.
    fn by_connection(&self, name: &str, style: usize, value: fn(&RelaySample) -> u64) -> Vec<Series> {
        let connections = self.samples.relay_connections();
        let point = |row: &RelaySample| {
            let main = connections.get(&(row.relay.as_str(), row.connection))?;
            let key = (!main, direction_label(&row.direction), row.relay.clone(), row.connection);
            Some((key, row.time_us, value(row) as f64))
        };
        let keyed = series(&self.samples.relay, point);
        let drawn =
            |((faint, direction, relay, _), points): ((bool, &str, String, u32), Vec<Point>)| Series {
                label: format!("{relay}{direction}{name}"),
                style: if direction.is_empty() { style } else { style + 2 },
                faint,
                shape: Shape::Line,
                points,
            };
        // The way to the server last: on top.
        keyed.into_iter().map(drawn).rev().collect()
    }

    fn queue(&self) -> Draft {
        let bottleneck = self.samples.bottleneck();
        let is_it = |row: &QueueSample| {
            bottleneck
                .as_ref()
                .is_some_and(|(link, direction)| *link == row.link && *direction == row.direction)
        };
        let name =
            bottleneck.as_ref().map_or_else(String::new, |(link, direction)| format!("{link}, {direction}"));
        let key = |row: &QueueSample| is_it(row).then(|| (name.clone(), row.time_us, row.queue_bytes as f64));
        let line = |(label, points): (String, Vec<Point>)| Series {
            label,
            style: QUEUE,
            faint: false,
            shape: Shape::Line,
            points,
        };
        let rows: Vec<&QueueSample> = self.samples.queue.iter().filter(|row| is_it(row)).collect();
        Draft {
            name: "queue",
            title: "Bottleneck queue",
            quantity: Quantity::Bytes,
            description: format!(
                "Bytes waiting at {name}, the link direction with the most drops; marks above show when."
            ),
            series: series(&self.samples.queue, key).into_iter().map(line).collect(),
            rug: drops(&rows),
            absent: "No queue samples.",
        }
    }
}

/// Times at which the count of drops grew since the sample before.
fn drops(rows: &[&QueueSample]) -> Option<Rug> {
    let mut rows = rows.to_vec();
    rows.sort_by_key(|row| row.time_us);
    let grew = |pair: &&[&QueueSample]| pair[1].dropped_packets > pair[0].dropped_packets;
    let times: Vec<f64> = rows.windows(2).filter(grew).map(|pair| pair[1].time_us as f64 / 1e6).collect();
    let total = rows.last()?.dropped_packets - rows[0].dropped_packets.min(rows.last()?.dropped_packets);
    (!times.is_empty()).then(|| Rug { label: format!("{} drops", WHOLE.number(total as f64)), times })
}

fn direction_label(direction: &str) -> &'static str {
    if direction == "server_to_client" { " (to client)" } else { "" }
}

pub(super) fn heading(title: &str, unit: Unit, logarithmic: bool) -> String {
    let comma = if unit.name.is_empty() { "" } else { ", " };
    format!("{title}{comma}{}{}", unit.name, if logarithmic { " (logarithmic)" } else { "" })
}

fn values(series: &[Series]) -> impl Iterator<Item = f64> {
    series.iter().flat_map(|s| &s.points).map(|p| p.1).filter(|y| y.is_finite())
}

pub(super) fn greatest(series: &[Series]) -> f64 {
    values(series).fold(0.0, f64::max)
}

pub(super) fn rescale(series: &mut [Series], unit: Unit) {
    series.iter_mut().flat_map(|s| &mut s.points).for_each(|point| point.1 /= unit.factor);
}

/// When a traced connection retransmitted.
fn retransmissions(rows: &[TraceSample]) -> Option<Rug> {
    let seconds = |row: &TraceSample| row.time_us as f64 / 1e6;
    let times: Vec<f64> = rows.iter().filter(|row| row.event == "retransmit").map(seconds).collect();
    let label = format!("{} retransmissions", times.len());
    (!times.is_empty()).then_some(Rug { times, label })
}

/// Whether bold series differ so much that the smaller would lie on the axis.
pub(super) fn far_apart(series: &[Series]) -> bool {
    let bold = series.iter().filter(|s| !s.faint);
    let medians = bold.filter_map(|s| longfat_schema::run::Spread::of(s.points.iter().map(|p| p.1)));
    let medians: Vec<f64> = medians.map(|spread| spread.median).filter(|m| *m > 0.0).collect();
    let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
    medians.iter().any(|median| *median > least * FAR_APART)
}

/// Least and greatest of each bold series in words, for those who cannot see the chart.
pub(super) fn extent(series: &[Series], unit: Unit) -> String {
    let sentence = |s: &Series| {
        let spread = longfat_schema::run::Spread::of(s.points.iter().map(|p| p.1))?;
        let (min, median, max) = (number(spread.min), number(spread.median), number(spread.max));
        Some(format!(" {}: {min} to {max} {}, median {median}.", s.label, unit.name))
    };
    series.iter().filter(|s| !s.faint).filter_map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_is_marked_where_the_count_grew() {
        let row = |s: i64, dropped_packets| QueueSample {
            time_us: s * 1_000_000,
            dropped_packets,
            ..Default::default()
        };
        let rows = [row(1, 5), row(2, 5), row(3, 9), row(4, 9)];
        let rug = drops(&rows.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!((rug.times, rug.label.as_str()), (vec![3.0], "4 drops"));
        assert_eq!(drops(&[]), None);
    }

    #[test]
    fn windows_of_a_short_and_a_long_leg_share_a_logarithmic_axis() {
        let flat = |label: &str, value: f64| Series {
            label: label.into(),
            style: 0,
            faint: false,
            shape: Shape::Line,
            points: vec![(0.0, value), (1.0, value)],
        };
        assert!(far_apart(&[flat("short", 10.0), flat("long", 1000.0)]));
        assert!(!far_apart(&[flat("a", 100.0), flat("b", 300.0)]));
    }
}
