//! Lines, steps and dots over time.

use super::{
    Figure, WIDTH,
    decimate::{Point, extremes},
    from_the_left, path,
    scale::Scale,
    svg::{coordinate, escape, line, text, text_width},
};
use std::fmt::Write as _;

const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const LEGEND_TOP: f64 = 36.0;
const LEGEND_ROW: f64 = 17.0;
const PLOT_HEIGHT: f64 = 160.0;
const AXIS_HEIGHT: f64 = 28.0;
/// Strip at the top of the plot that a rug has for itself.
const RUG_HEIGHT: f64 = 8.0;
/// Columns of decimation: two per unit, so that zooming in and dense displays still find detail.
const COLUMNS: usize = 760;
/// Columns of a faint line: it is there for its outline.
const FAINT_COLUMNS: usize = 190;

/// How many times what the window holds a peak outside it must be to be left off the scale.
const OFF_SCALE: f64 = 2.0;

/// How points are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Straight lines.
    Line,
    /// A value holds until the next.
    Step,
    /// Not at all.
    Dots,
}

/// One series; a `y` that is no number is a gap.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Plain text. Series of one label share a legend entry.
    pub label: String,
    /// Colour and dash pattern of the style sheet, 0 to 5.
    pub style: usize,
    /// Drawn thin and pale: one of many.
    pub faint: bool,
    /// How points are joined.
    pub shape: Shape,
    /// Seconds and value, in order of time.
    pub points: Vec<Point>,
}

/// Marks along the top at the times something happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Rug {
    /// Plain text.
    pub label: String,
    /// Times, in seconds.
    pub times: Vec<f64>,
}

/// A chart over time.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeChart {
    /// As [`Figure::id`].
    pub id: String,
    /// With the unit: `Goodput, Mbit/s`.
    pub title: String,
    /// As [`Figure::description`].
    pub description: String,
    /// First and last second shown.
    pub span: (f64, f64),
    /// The seconds metrics are counted over; what is outside is shaded.
    pub window: Option<(f64, f64)>,
    /// Drawn first to last.
    pub series: Vec<Series>,
    /// Marks along the top.
    pub rug: Option<Rug>,
    /// Whether equal heights are equal ratios.
    pub logarithmic: bool,
    /// Points of a chart that stands beside this one: not drawn, and within its axis, so that heights can be compared.
    pub beside: Vec<Point>,
    /// Drawn beneath the series.
    pub bands: Vec<Band>,
}

/// A filled part of a chart: what held from a time to another.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// Plain text. Bands of one label share a legend entry.
    pub label: String,
    /// Colour of the style sheet, 0 to 4; all above are grey.
    pub style: usize,
    /// First and last second.
    pub span: (f64, f64),
    /// Lower and upper end, values of the axis. Their difference is what is read out.
    pub heights: (f64, f64),
}

struct Entry<'a> {
    label: &'a str,
    class: String,
    dots: bool,
}

struct Axes {
    x: Scale,
    y: Scale,
    top: f64,
    width: f64,
}

impl TimeChart {
    /// Rows its legend needs; charts side by side are drawn with the most any of them needs.
    pub fn legend_rows(&self) -> usize {
        self.placed_legend().iter().map(|(_, row, _)| row + 1).max().unwrap_or(0)
    }

    /// Draws it, leaving room for `legend_rows`.
    pub fn draw(&self, legend_rows: usize) -> Figure {
        let axes = self.axes(LEGEND_TOP + legend_rows.max(self.legend_rows()) as f64 * LEGEND_ROW - 5.0);
        let mut body = text(0.0, 15.0, "heading", &self.title);
        body += &self.aside();
        body += &self.legend();
        body += &y_axis(&axes);
        body += &x_axis(&axes);
        body += &self.plot(&axes);
        body += &line((0.0, axes.top), (0.0, axes.top + PLOT_HEIGHT), "crosshair");
        Figure {
            id: self.id.clone(),
            title: self.title.clone(),
            description: self.description.clone(),
            height: axes.top + PLOT_HEIGHT + AXIS_HEIGHT,
            data: self.data(&axes),
            body,
        }
    }

    fn axes(&self, top: f64) -> Axes {
        let width = WIDTH - LEFT - RIGHT;
        let ceiling = if self.rug.is_some() { RUG_HEIGHT + 2.0 } else { 0.0 };
        let least = self.values().map(|p| p.1).filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
        let y = if self.logarithmic && least.is_finite() {
            Scale::logarithmic(least, self.greatest(), PLOT_HEIGHT, ceiling)
        } else {
            let greatest = if self.is_off_scale() { self.greatest_in_window() } else { self.greatest() };
            Scale::from_zero(greatest, PLOT_HEIGHT, ceiling)
        };
        Axes { x: Scale::linear(self.span.0, self.span.1, 0.0, width), y, top, width }
    }

    fn values(&self) -> impl Iterator<Item = Point> {
        let drawn = self.series.iter().flat_map(|s| &s.points);
        let bands = self.bands.iter().map(|band| (band.span.0, band.heights.1));
        drawn.chain(&self.beside).copied().chain(bands).filter(|point| point.1.is_finite())
    }

    fn greatest(&self) -> f64 {
        self.values().map(|point| point.1).fold(0.0, f64::max)
    }

    fn greatest_in_window(&self) -> f64 {
        let (start, end) = self.window.unwrap_or(self.span);
        self.values().filter(|p| p.0 >= start && p.0 <= end).map(|p| p.1).fold(0.0, f64::max)
    }

    /// A peak outside the window, such as slow start's overshoot, must not flatten what the window shows: the axis
    /// is the window's, the line runs along its top, and the heading says how far it went.
    fn is_off_scale(&self) -> bool {
        let inside = self.greatest_in_window();
        !self.logarithmic && inside > 0.0 && self.greatest() > inside * OFF_SCALE
    }

    fn aside(&self) -> String {
        let drawn = self.series.iter().flat_map(|s| &s.points).map(|point| point.1);
        let peak = drawn.filter(|y| y.is_finite()).fold(0.0, f64::max);
        if !self.is_off_scale() || peak <= self.greatest_in_window() {
            return String::new();
        }
        let peak = format!("off the scale: up to {}", crate::quantity::number(peak));
        text(WIDTH - RIGHT, 15.0, "aside end", &peak)
    }

    /// What the page's script needs to turn positions back into values.
    fn data(&self, axes: &Axes) -> String {
        let ((x0, x1), (y0, y1)) = (axes.x.domain(), axes.y.domain());
        let drawn = || self.series.iter().flat_map(|s| &s.points).map(|point| point.1);
        let (above, below) = (drawn().any(|y| y > y1), drawn().any(|y| y < y0));
        format!(
            " data-chart=\"time\" data-left=\"{LEFT}\" data-top=\"{}\" data-width=\"{}\" data-bottom=\"{PLOT_HEIGHT}\" \
             data-ceiling=\"{}\" data-x0=\"{x0}\" data-x1=\"{x1}\" data-y0=\"{y0}\" data-y1=\"{y1}\" data-log=\"{}\" \
             data-above=\"{}\" data-below=\"{}\"",
            coordinate(axes.top),
            coordinate(axes.width),
            coordinate(axes.y.position(y1)),
            u8::from(axes.y.is_logarithmic()),
            u8::from(above),
            u8::from(below),
        )
    }

    fn entries(&self) -> Vec<Entry<'_>> {
        let mut entries: Vec<Entry> = Vec::new();
        // What is drawn last, on top, comes first in the legend.
        let (faint, bold): (Vec<&Series>, Vec<&Series>) = self.series.iter().partition(|s| s.faint);
        for series in bold.into_iter().rev().chain(faint) {
            if entries.iter().all(|entry| entry.label != series.label) {
                let dots = series.shape == Shape::Dots;
                entries.push(Entry { label: &series.label, class: self.class(series), dots });
            }
        }
        let mut bands: Vec<&Band> = Vec::new();
        for band in &self.bands {
            if bands.iter().all(|known| known.label != band.label) {
                bands.push(band);
            }
        }
        bands.sort_by_key(|band| band.style);
        entries.extend(bands.into_iter().map(|band| Entry {
            label: &band.label,
            class: band.class(),
            dots: false,
        }));
        let rug = self.rug.as_ref().map(|rug| Entry { label: &rug.label, class: "rug".into(), dots: false });
        entries.into_iter().chain(rug).collect()
    }

    /// Entries with their row and x, filled from the left.
    fn placed_legend(&self) -> Vec<(Entry<'_>, usize, f64)> {
        let entries = self.entries();
        let widths = entries.iter().map(|entry| 34.0 + text_width(entry.label));
        let places: Vec<_> = from_the_left(widths, 8.0).collect();
        entries.into_iter().zip(places).map(|(entry, (row, x))| (entry, row, x)).collect()
    }

    fn legend(&self) -> String {
        let draw = |(entry, row, x): (Entry<'_>, usize, f64)| {
            let y = LEGEND_TOP + row as f64 * LEGEND_ROW;
            let d = match (entry.class.as_str(), entry.dots) {
                ("rug", _) => path::rug(&[x + 8.0, x + 14.0, x + 17.0], y - 8.0, 8.0),
                (band, _) if band.starts_with("band") => path::block((x, y - 9.0), 24.0, 9.0),
                (_, true) => path::dots(&[(x + 4.0, y - 4.0), (x + 12.0, y - 4.0), (x + 20.0, y - 4.0)]),
                (_, false) => path::polyline(&[(x, y - 4.0), (x + 24.0, y - 4.0)]),
            };
            let label = text(x + 29.0, y, "legend", entry.label);
            // What the page's script makes a button of is as large as its line and label together.
            let (width, top) = (coordinate(32.0 + text_width(entry.label)), coordinate(y - 13.0));
            format!(
                "<g class=\"entry\" data-for=\"{}\"><rect class=\"hit\" x=\"{}\" y=\"{top}\" width=\"{width}\" \
                 height=\"{LEGEND_ROW}\"/><path class=\"{}\" d=\"{d}\"/>{label}</g>",
                escape(entry.label),
                coordinate(x - 2.0),
                entry.class,
            )
        };
        self.placed_legend().into_iter().map(draw).collect()
    }

    /// The data, in a drawing of its own that clips it and that the script zooms.
    fn plot(&self, axes: &Axes) -> String {
        let (top, width) = (coordinate(axes.top), coordinate(axes.width));
        let mut plot = format!(
            "<svg class=\"plot\" x=\"{LEFT}\" y=\"{top}\" width=\"{width}\" height=\"{PLOT_HEIGHT}\" \
             viewBox=\"0 0 {width} {PLOT_HEIGHT}\" preserveAspectRatio=\"none\">"
        );
        plot += &self.outside_window(axes);
        plot.extend(self.bands.iter().map(|band| band.draw(axes)));
        plot.extend(self.series.iter().map(|series| self.draw_series(series, axes)));
        if let Some(rug) = &self.rug {
            let mut xs: Vec<f64> = rug.times.iter().map(|time| axes.x.position(*time).round()).collect();
            xs.dedup();
            let (label, d) = (escape(&rug.label), path::rug(&xs, 1.0, RUG_HEIGHT));
            let _ = write!(plot, "<path class=\"rug\" data-label=\"{label}\" d=\"{d}\"/>");
        }
        plot + "</svg>"
    }

    /// Classes of the style sheet. The series on top is drawn without dashes, whatever its colour: a chart's main
    /// line should be a line.
    fn class(&self, series: &Series) -> String {
        let top = self.series.iter().rev().find(|s| !s.faint).is_some_and(|s| std::ptr::eq(s, series));
        let solid = if top { " solid" } else { "" };
        let faint = if series.faint { " faint" } else { "" };
        let dots = if series.shape == Shape::Dots { " dots" } else { "" };
        format!("series s{}{faint}{dots}{solid}", series.style % 6)
    }

    fn draw_series(&self, series: &Series, axes: &Axes) -> String {
        let ((low, high), columns) = (axes.x.domain(), if series.faint { FAINT_COLUMNS } else { COLUMNS });
        let mut d = String::new();
        for points in series.points.split(|point| !point.1.is_finite()).filter(|part| !part.is_empty()) {
            let kept = extremes(points, low, high, columns);
            let placed: Vec<Point> =
                kept.iter().map(|p| (axes.x.position(p.0), axes.y.position(p.1))).collect();
            d += &match series.shape {
                Shape::Line => path::polyline(&placed),
                Shape::Step => path::steps(&placed),
                Shape::Dots => path::dots(&placed),
            };
        }
        let label = escape(&series.label);
        format!("<path class=\"{}\" data-label=\"{label}\" d=\"{d}\"/>", self.class(series))
    }

    fn outside_window(&self, axes: &Axes) -> String {
        let Some((start, end)) = self.window else { return String::new() };
        let rect = |from: f64, to: f64| {
            let (x, width) = (coordinate(from), coordinate(to - from));
            format!("<rect class=\"outside\" x=\"{x}\" y=\"0\" width=\"{width}\" height=\"{PLOT_HEIGHT}\"/>")
        };
        let sides = [(0.0, axes.x.position(start)), (axes.x.position(end), axes.width)];
        sides.into_iter().filter(|(from, to)| to - from > 0.5).map(|(from, to)| rect(from, to)).collect()
    }
}

impl Band {
    fn class(&self) -> String {
        format!("band b{}", self.style.min(5))
    }

    fn draw(&self, axes: &Axes) -> String {
        let [from, to] = [self.span.0, self.span.1].map(|time| axes.x.position(time));
        let [low, high] = [self.heights.0, self.heights.1].map(|value| axes.y.position(value));
        format!(
            "<rect class=\"{}\" data-label=\"{}\" data-value=\"{:.1}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
            self.class(),
            escape(&self.label),
            self.heights.1 - self.heights.0,
            coordinate(from),
            coordinate(high),
            coordinate(to - from),
            coordinate(low - high),
        )
    }
}

fn y_axis(axes: &Axes) -> String {
    let tick = |tick: super::scale::Tick| {
        let y = axes.top + axes.y.position(tick.value);
        let label = text(LEFT - 6.0, y + 4.0, "tick end", &tick.label);
        line((LEFT, y), (WIDTH - RIGHT, y), "grid") + &label
    };
    axes.y.ticks(4).into_iter().map(tick).collect()
}

fn x_axis(axes: &Axes) -> String {
    let y = axes.top + PLOT_HEIGHT;
    let ticks = axes.x.ticks(6);
    let last = ticks.len().saturating_sub(1);
    let tick = |(index, tick): (usize, &super::scale::Tick)| {
        let x = LEFT + axes.x.position(tick.value);
        let unit = if index == last { " s" } else { "" };
        let label = text(x, y + 18.0, "tick middle", &format!("{}{unit}", tick.label));
        line((x, y), (x, y + 4.0), "axis") + &label
    };
    let drawn: String = ticks.iter().enumerate().map(tick).collect();
    format!("{}<g class=\"x-ticks\">{drawn}</g>", line((LEFT, y), (WIDTH - RIGHT, y), "axis"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: Vec<Series>) -> TimeChart {
        TimeChart {
            id: "c".into(),
            title: "Goodput, Mbit/s".into(),
            description: String::new(),
            span: (0.0, 10.0),
            window: Some((2.0, 9.0)),
            series,
            rug: None,
            logarithmic: false,
            beside: Vec::new(),
            bands: Vec::new(),
        }
    }

    fn series(label: &str, points: Vec<Point>) -> Series {
        Series { label: label.into(), style: 0, faint: false, shape: Shape::Line, points }
    }

    #[test]
    fn a_gap_breaks_the_line() {
        let points = vec![(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 2.0)];
        let chart = chart(vec![series("a", points)]);
        let drawn = chart.draw_series(&chart.series[0], &chart.axes(0.0));
        assert_eq!(drawn.matches('M').count(), 2, "{drawn}");
    }

    #[test]
    fn a_peak_outside_the_window_leaves_the_scale_and_is_said() {
        let overshoot = chart(vec![series("a", vec![(1.0, 1000.0), (3.0, 90.0), (4.0, 100.0)])]);
        assert_eq!(overshoot.axes(0.0).y.domain(), (0.0, 100.0));
        assert!(overshoot.draw(1).inline().contains("off the scale: up to 1000"));
        let calm = chart(vec![series("a", vec![(1.0, 150.0), (3.0, 90.0), (4.0, 100.0)])]);
        assert_eq!(calm.axes(0.0).y.domain(), (0.0, 150.0));
    }

    #[test]
    fn what_is_held_at_an_end_of_the_axis_is_told_from_what_lies_there() {
        let has = |chart: &TimeChart, what: &str| chart.draw(1).inline().contains(what);
        let mut whole = chart(vec![series("a", vec![(3.0, 0.0), (4.0, 100.0)])]);
        assert!(has(&whole, "data-above=\"0\" data-below=\"0\""));
        whole.logarithmic = true;
        assert!(has(&whole, "data-above=\"0\" data-below=\"1\""), "a zero has no logarithm");
        whole = chart(vec![series("a", vec![(1.0, 1000.0), (3.0, 0.0), (4.0, 100.0)])]);
        assert!(has(&whole, "data-above=\"1\" data-below=\"0\""));
    }

    #[test]
    fn charts_beside_each_other_have_one_axis() {
        let low = vec![(3.0, 40.0), (4.0, 20.0)];
        let high = vec![(3.0, 900.0), (4.0, 700.0)];
        let mut one = chart(vec![series("a", low.clone())]);
        let mut other = chart(vec![series("a", high.clone())]);
        (one.beside, other.beside) = (high, low);
        assert_eq!(one.axes(0.0).y.domain(), other.axes(0.0).y.domain());
        (one.logarithmic, other.logarithmic) = (true, true);
        assert_eq!(one.axes(0.0).y.domain(), other.axes(0.0).y.domain());
    }

    #[test]
    fn bands_stand_in_the_legend_once_and_carry_their_height() {
        let mut chart = chart(Vec::new());
        let band =
            |from: f64, heights| Band { label: "<b>".into(), style: 7, span: (from, from + 1.0), heights };
        chart.bands = vec![band(0.0, (0.0, 40.0)), band(1.0, (0.0, 100.0))];
        let drawn = chart.draw(1).inline();
        assert_eq!(drawn.matches("data-for=\"&lt;b&gt;\"").count(), 1, "{drawn}");
        assert_eq!(drawn.matches("class=\"band b5\" data-label=\"&lt;b&gt;\"").count(), 2, "{drawn}");
        assert!(drawn.contains("data-value=\"40.0\"") && chart.axes(0.0).y.domain() == (0.0, 100.0));
    }

    #[test]
    fn a_peak_of_the_chart_beside_is_not_said_to_be_its_own() {
        let mut calm = chart(vec![series("a", vec![(3.0, 90.0), (4.0, 100.0)])]);
        calm.beside = vec![(1.0, 1000.0)];
        let drawn = calm.draw(1).inline();
        assert_eq!(calm.axes(0.0).y.domain(), (0.0, 100.0));
        assert!(!drawn.contains("off the scale"), "{drawn}");
    }

    #[test]
    fn a_label_from_a_file_stays_a_label_in_the_legend_and_the_drawing() {
        let drawn = chart(vec![series("\"><script>", vec![(3.0, 1.0)])]).draw(1).inline();
        assert!(
            drawn.contains("data-for=\"&quot;&gt;&lt;script&gt;\"") && !drawn.contains("<script"),
            "{drawn}"
        );
    }

    #[test]
    fn a_chart_of_nothing_is_still_well_formed() {
        for series in [vec![], vec![series("a", vec![])], vec![series("b", vec![(f64::NAN, f64::NAN)])]] {
            let svg = chart(series).draw(1).standalone();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn many_legend_entries_take_rows_and_never_run_out_of_the_figure() {
        let label = |n: usize| format!("a rather long label number {n}");
        let chart = chart((0..6).map(|n| series(&label(n), vec![])).collect());
        assert!(chart.legend_rows() >= 3);
        for (entry, _, x) in chart.placed_legend() {
            assert!(x + 34.0 + text_width(entry.label) <= WIDTH);
        }
    }
}
