//! Which charts a flow deserves: the Seq/Ack plot of Amagai 1995, flight and window, RTT, rate, and the inter-arrival
//! plots of Tamatsukuri 2006, data and ACKs apart.

use crate::plot::{
    Figure,
    histogram::{Bar, Histogram},
    time::{Series, Shape, TimeChart},
};
use longfat_analyze::{
    flow::{observers::Detail, thinned::Points as Thinned},
    report::{DirectionReport, FlowReport, SeriesReport},
};

/// Points over time, relative to the capture's start.
struct Points {
    start_ns: i64,
    span: (f64, f64),
    id: String,
}

/// Figures of one flow's greater direction: those over time, and the distributions.
pub struct FlowFigures {
    /// Figures over time, which share their zoom.
    pub over_time: Vec<Figure>,
    /// Gaps between packets.
    pub distributions: Vec<Figure>,
}

/// Draws a flow.
pub fn draw(flow: &FlowReport, start_ns: i64, id: &str) -> FlowFigures {
    let main = flow.main();
    let other = flow.directions.iter().find(|d| !std::ptr::eq(*d, main));
    let span = (flow.start_s, flow.start_s + flow.duration_s.max(1e-6));
    let points = Points { start_ns, span, id: id.to_owned() };
    let mut charts = Vec::new();
    if let Some(detail) = &main.detail {
        charts.extend([
            points.sequence(detail),
            points.flight(detail, main.series.as_ref()),
            points.rtt(detail),
        ]);
    }
    if let Some(series) = &main.series {
        charts.push(points.rate(series));
    }
    if let Some(detail) = &main.detail {
        charts.push(points.gaps("data", &detail.data_gap, "Time between data packets, µs"));
    }
    if let Some(detail) = other.and_then(|direction| direction.detail.as_ref()) {
        charts.push(points.gaps("acks", &detail.ack_gap, "Time between ACKs, µs"));
    }
    let rows = charts.iter().map(TimeChart::legend_rows).max().unwrap_or(0);
    let over_time = charts.iter().map(|chart| chart.draw(rows)).collect();
    FlowFigures { over_time, distributions: distributions(main, other, id) }
}

fn distributions(main: &DirectionReport, other: Option<&DirectionReport>, id: &str) -> Vec<Figure> {
    let data = gap_histogram(main, 0, "Distribution of time between data packets", &format!("{id}-hd"));
    let acks =
        other.and_then(|o| gap_histogram(o, 1, "Distribution of time between ACKs", &format!("{id}-ha")));
    data.into_iter().chain(acks).collect()
}

fn gap_histogram(direction: &DirectionReport, which: usize, title: &str, id: &str) -> Option<Figure> {
    let gaps = &direction.gap_histograms[which];
    let bars = gaps.buckets().filter(|(low, ..)| *low > 0);
    let bars = bars.map(|(low, high, count)| Bar {
        from: low as f64 / 1e3,
        to: high as f64 / 1e3,
        count: u64::from(count),
    });
    let bars: Vec<Bar> = bars.collect();
    (gaps.count() > 1).then(|| {
        let description = format!("{} gaps of packets from {}", gaps.count(), direction.from);
        Histogram { id: id.to_owned(), title: title.to_owned(), description, unit: "µs".into(), bars }.draw()
    })
}

impl Points {
    fn of(&self, thinned: &Thinned, scale: f64) -> Vec<(f64, f64)> {
        let since = |ns: i64| ns.saturating_sub(self.start_ns) as f64 / 1e9;
        let mut points: Vec<_> = thinned.kept().map(|(ns, value)| (since(ns), value / scale)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }

    fn chart(&self, suffix: &str, title: &str, description: &str, series: Vec<Series>) -> TimeChart {
        TimeChart {
            id: format!("{}-{suffix}", self.id),
            title: title.to_owned(),
            description: description.to_owned(),
            span: self.span,
            window: None,
            series,
            rug: None,
            logarithmic: false,
            beside: Vec::new(),
            bands: Vec::new(),
        }
    }

    fn sequence(&self, detail: &Detail) -> TimeChart {
        let series = vec![
            line("window's edge", 2, Shape::Step, self.of(&detail.edge, 1e6)),
            line("acknowledged", 4, Shape::Step, self.of(&detail.acked, 1e6)),
            line("sent", 0, Shape::Dots, self.of(&detail.sent, 1e6)),
            line("out of order", 3, Shape::Dots, self.of(&detail.disordered, 1e6)),
            line("sent again", 1, Shape::Dots, self.of(&detail.resent, 1e6)),
        ];
        let shown = series.into_iter().filter(|s| !s.points.is_empty() && !unknown_edge(s));
        self.chart(
            "seq",
            "Sequence and acknowledgement, MB",
            "Octets sent, acknowledged and sent again over time",
            shown.collect(),
        )
    }

    fn flight(&self, detail: &Detail, series: Option<&SeriesReport>) -> TimeChart {
        let window = series.map_or(Vec::new(), |series| {
            let value = |w: &Option<u64>| w.map_or(f64::NAN, |bytes| bytes as f64 / 1e3);
            over_time(series, series.window_bytes.iter().map(value))
        });
        let lines = vec![
            line("window offered", 2, Shape::Step, window),
            line("outstanding", 0, Shape::Dots, self.of(&detail.flight, 1e3)),
        ];
        self.chart("flight", "Outstanding, kB", "Octets outstanding and the window offered over time", lines)
    }

    fn rtt(&self, detail: &Detail) -> TimeChart {
        let lines = vec![line("RTT", 0, Shape::Dots, self.of(&detail.rtt, 1.0))];
        self.chart("rtt", "RTT from the capture on, ms", "Round-trip time samples", lines)
    }

    fn rate(&self, series: &SeriesReport) -> TimeChart {
        let lines = vec![
            line("sent again", 1, Shape::Step, over_time(series, series.resent_bps.iter().map(|b| b / 1e6))),
            line("new", 0, Shape::Step, over_time(series, series.rate_bps.iter().map(|b| b / 1e6))),
        ];
        self.chart("rate", "Payload, Mbit/s", "Payload sent for the first time and again over time", lines)
    }

    fn gaps(&self, suffix: &str, thinned: &Thinned, title: &str) -> TimeChart {
        let mut points = self.of(thinned, 1.0);
        points.retain(|(_, gap)| *gap > 0.0);
        let lines = vec![line("gap", if suffix == "data" { 0 } else { 2 }, Shape::Dots, points)];
        TimeChart {
            logarithmic: true,
            ..self.chart(suffix, title, "Time since the packet before, over time", lines)
        }
    }
}

/// Where the window scale is not known, its edge says nothing.
fn unknown_edge(series: &Series) -> bool {
    series.points.iter().any(|(_, megabytes)| *megabytes > 1e5)
}

fn line(label: &str, style: usize, shape: Shape, points: Vec<(f64, f64)>) -> Series {
    Series { label: label.to_owned(), style, faint: false, shape, points }
}

fn over_time(series: &SeriesReport, values: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    values.enumerate().map(|(n, value)| (series.start_s + n as f64 * series.bin_s, value)).collect()
}
