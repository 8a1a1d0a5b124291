//! Lines over an axis of numbers, with the range that each point stands for.

use super::{
    Figure, WIDTH, columns, data_row,
    decimate::Point,
    from_the_left, path,
    scale::{FAR_APART, Scale, Tick},
    svg::{Mark, coordinate, escape, line, mark, text, text_width, wrap},
};
use serde_json::json;

/// As many lines as there are colours and shapes: more could not be told apart.
pub const MOST_LINES: usize = 6;

const RIGHT: f64 = 12.0;
const PLOT_HEIGHT: f64 = 190.0;
/// Ticks and title of the axis beneath the plot.
const AXIS_HEIGHT: f64 = 42.0;
const LEGEND_TOP: f64 = 36.0;
const LEGEND_ROW: f64 = 17.0;
/// Width of a line in the legend.
const SAMPLE: f64 = 26.0;
/// Marks at the ends of the axis are as far from the frame.
const INSET: f64 = 9.0;
/// What a zero beside a logarithmic axis takes of its length.
const ZERO: f64 = 30.0;
/// Ranges at one place lie as far apart, so that none hides another.
const APART: f64 = 2.0;
/// Share of an axis by which a figure may be over its end: what a link delivers is at times a hair more than all.
const OVER: f64 = 0.004;
/// A line of more points than this has small marks.
const MANY_POINTS: usize = 24;

/// Corners of the mark of each style but the first, which is a disc.
const SHAPES: [&[Point]; MOST_LINES - 1] = [
    &[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)],
    &[(0.0, -4.8), (4.6, 3.4), (-4.6, 3.4)],
    &[(0.0, -5.2), (4.4, 0.0), (0.0, 5.2), (-4.4, 0.0)],
    &[(0.0, 4.8), (4.6, -3.4), (-4.6, -3.4)],
    &[
        (-1.5, -4.5),
        (1.5, -4.5),
        (1.5, -1.5),
        (4.5, -1.5),
        (4.5, 1.5),
        (1.5, 1.5),
        (1.5, 4.5),
        (-1.5, 4.5),
        (-1.5, 1.5),
        (-4.5, 1.5),
        (-4.5, -1.5),
        (-1.5, -1.5),
    ],
];

/// A point of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Spot {
    /// Place along the horizontal axis.
    pub x: f64,
    /// Place along the vertical axis.
    pub y: f64,
    /// Least and greatest of what it stands for; absent where it is one thing alone.
    pub range: Option<(f64, f64)>,
    /// Shown on hovering, plain text.
    pub hint: String,
}

/// A line. Its points are in order of their `x`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Line {
    /// Plain text.
    pub label: String,
    /// Colour and shape, 0 to 5.
    pub style: usize,
    /// Filled marks, joined; a `y` that is no number is a gap.
    pub spots: Vec<Spot>,
    /// Open marks of the same colour and shape, not joined.
    pub open: Vec<Spot>,
    /// A dashed line of the same colour, without marks.
    pub dashed: Vec<Point>,
}

/// Lines over two axes, each logarithmic where its numbers are far apart.
#[derive(Debug, Clone, PartialEq)]
pub struct LineChart {
    /// As [`Figure::id`].
    pub id: String,
    /// Without units.
    pub title: String,
    /// What all of its lines have in common; empty where that is nothing.
    pub part: String,
    /// As [`Figure::description`].
    pub description: String,
    /// Names of the horizontal and the vertical axis, with units.
    pub axes: [String; 2],
    /// At most [`MOST_LINES`], drawn first to last.
    pub lines: Vec<Line>,
    /// What open marks and dashed lines are, in the legend.
    pub said: [&'static str; 2],
    /// Lines of charts that stand beside this one: not drawn, and within its axes, so that all can be compared.
    pub beside: Vec<Line>,
}

struct Axes {
    x: Scale,
    /// Where zeros stand that a logarithmic axis has no place for.
    zero: Option<f64>,
    y: Scale,
    left: f64,
    top: f64,
}

impl Axes {
    fn bottom(&self) -> f64 {
        self.top + PLOT_HEIGHT
    }

    fn x(&self, x: f64) -> f64 {
        self.zero.filter(|_| x <= 0.0).unwrap_or_else(|| self.x.position(x))
    }

    fn place(&self, (x, y): Point) -> Point {
        (self.x(x), self.y.position(y))
    }
}

impl LineChart {
    /// Draws it.
    pub fn draw(&self) -> Figure {
        let legend = self.placed_legend();
        let rows = legend.last().map_or(0, |(_, row, _)| row + 1) + usize::from(!self.part.is_empty());
        let axes = self.axes(LEGEND_TOP + rows as f64 * LEGEND_ROW - 4.0);
        let body = self.heading(&axes)
            + &legend.iter().map(|(entry, row, x)| self.draw_entry(entry, *row, *x)).collect::<String>()
            + &y_axis(&axes)
            + &x_axis(&axes, &self.axes[0])
            + &self.ranges(&axes)
            + &self.lines.iter().map(|line| line.draw(&axes, self.said)).collect::<String>();
        Figure {
            id: self.id.clone(),
            title: if self.part.is_empty() {
                self.title.clone()
            } else {
                format!("{}: {}", self.title, self.part)
            },
            description: self.description.clone(),
            height: axes.bottom() + AXIS_HEIGHT,
            data: columns(&["Line", &self.axes[0], &self.axes[1], "least", "greatest"]),
            body,
        }
    }

    fn heading(&self, axes: &Axes) -> String {
        let logarithmic = if axes.y.is_logarithmic() { " (logarithmic)" } else { "" };
        let room = WIDTH - text_width(logarithmic) - 20.0;
        let unit = self.axes[1].split_once(", ").map_or("", |(_, unit)| unit);
        let title = if unit.is_empty() { self.title.clone() } else { format!("{}, {unit}", self.title) };
        let title = wrap(&title, room, 1).concat();
        let part = wrap(&self.part, WIDTH - 12.0, 1).concat();
        text(0.0, 15.0, "heading", &format!("{title}{logarithmic}"))
            + &text(0.0, LEGEND_TOP - 2.0, "label", &part)
    }

    /// The ranges of all lines, beside each other beneath all marks.
    fn ranges(&self, axes: &Axes) -> String {
        let middle = (self.lines.len() as f64 - 1.0) / 2.0;
        let of_line = |(index, line): (usize, &Line)| {
            let aside = (index as f64 - middle) * APART;
            let drawn: String = line.spots.iter().filter_map(|spot| whisker(spot, aside, axes)).collect();
            format!("<g class=\"c{}\">{drawn}</g>", line.style % MOST_LINES)
        };
        self.lines.iter().enumerate().map(of_line).collect()
    }

    /// Everything that the axes must hold.
    fn held(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().chain(&self.beside)
    }

    /// Points of every kind, without the ends of ranges.
    fn points(&self) -> impl Iterator<Item = Point> {
        let of_line = |line: &Line| line.points().collect::<Vec<Point>>();
        self.held().flat_map(of_line).filter(is_finite)
    }

    fn axes(&self, top: f64) -> Axes {
        let y = self.up(top);
        let widest = y.ticks(5).iter().map(|tick| text_width(&tick.label)).fold(0.0, f64::max);
        let left = (widest + 10.0).max(30.0);
        let (from, to) = (left + INSET, WIDTH - RIGHT - INSET);
        let xs: Vec<f64> = self.points().map(|point| point.0).collect();
        let positive = || xs.iter().copied().filter(|x| *x > 0.0);
        let (least, greatest) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
        let is_far = greatest > least * FAR_APART && xs.iter().all(|x| *x >= 0.0);
        let has_zero = is_far && xs.contains(&0.0);
        let x = if is_far {
            Scale::logarithmic_between(least, greatest, if has_zero { from + ZERO } else { from }, to)
        } else {
            Scale::around(&xs, from, to)
        };
        Axes { x, zero: has_zero.then_some(from), y, left, top }
    }

    fn up(&self, top: f64) -> Scale {
        let ys: Vec<f64> = self.points().map(|point| point.1).collect();
        let ranges = || self.held().flat_map(|line| &line.spots).filter_map(|spot| spot.range);
        let least_of = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
        let greatest_of = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let least = least_of(&mut ys.iter().copied());
        let is_far = least > 0.0 && greatest_of(&mut ys.iter().copied()) > least * FAR_APART;
        let greatest = greatest_of(&mut ys.iter().copied().chain(ranges().map(|range| range.1)));
        let (bottom, top) = (top + PLOT_HEIGHT, top + 4.0);
        if is_far {
            let ends = ranges().map(|range| range.0).filter(|end| *end > 0.0);
            return Scale::logarithmic(least_of(&mut ends.chain([least])), greatest, bottom, top);
        }
        Scale::from_zero(greatest * (1.0 - OVER), bottom, top)
    }

    /// Entries with their row and x, filled from the left. A line without a name needs none where it is alone.
    fn placed_legend<'a>(&'a self) -> Vec<(Entry<'a>, usize, f64)> {
        let open = self.lines.iter().any(|line| !line.open.is_empty()).then_some(Entry::Open(self.said[0]));
        let dashed = self.lines.iter().any(|line| !line.dashed.is_empty());
        let dashed = dashed.then_some(Entry::Dashed(self.said[1]));
        let needs_one = |line: &&Line| !line.label.is_empty() || open.is_some() || dashed.is_some();
        let named: Vec<Entry<'a>> = self.lines.iter().filter(needs_one).map(Entry::Line).collect();
        let entries: Vec<Entry<'a>> = named.into_iter().chain(open).chain(dashed).collect();
        let widths = entries.iter().map(|entry| SAMPLE + 6.0 + text_width(&entry.label()));
        let places: Vec<_> = from_the_left(widths, 10.0).collect();
        entries.into_iter().zip(places).map(|(entry, (row, x))| (entry, row, x)).collect()
    }

    fn draw_entry(&self, entry: &Entry<'_>, row: usize, x: f64) -> String {
        let row = row + usize::from(!self.part.is_empty());
        let y = LEGEND_TOP + row as f64 * LEGEND_ROW;
        let middle = (x + SAMPLE / 2.0, y - 4.0);
        let d = path::polyline(&[(x, y - 4.0), (x + SAMPLE, y - 4.0)]);
        let sample = match entry {
            Entry::Line(own) => {
                format!(
                    "<path class=\"{}\" d=\"{d}\"/>{}",
                    own.class("solid"),
                    shape(own.style, "disc", middle, 1.0)
                )
            }
            Entry::Open(_) => mark(Mark::Ring, middle, "muted"),
            Entry::Dashed(_) => format!("<path class=\"whisker twin muted\" d=\"{d}\"/>"),
        };
        sample + &text(x + SAMPLE + 5.0, y, "legend", &entry.label())
    }
}

enum Entry<'a> {
    Line(&'a Line),
    Open(&'static str),
    Dashed(&'static str),
}

impl Entry<'_> {
    fn label(&self) -> String {
        match self {
            Entry::Line(line) if line.label.is_empty() => "this result".to_owned(),
            Entry::Line(line) => wrap(&line.label, WIDTH - SAMPLE - 12.0, 1).concat(),
            Entry::Open(said) | Entry::Dashed(said) => (*said).to_owned(),
        }
    }
}

impl Line {
    fn points(&self) -> impl Iterator<Item = Point> {
        let spots = self.spots.iter().chain(&self.open).map(|spot| (spot.x, spot.y));
        spots.chain(self.dashed.iter().copied())
    }

    fn class(&self, dash: &str) -> String {
        format!("series s{} {dash}", self.style % MOST_LINES)
    }

    /// Marks above the lines.
    fn draw(&self, axes: &Axes, said: [&str; 2]) -> String {
        let points: Vec<Point> = self.spots.iter().map(|spot| (spot.x, spot.y)).collect();
        let marks = |spots: &[Spot], kind: &str| -> String {
            let shown = spots.iter().filter(|spot| is_finite(&(spot.x, spot.y)));
            shown.map(|spot| self.mark(spot, kind, said[0], axes)).collect()
        };
        format!(
            "{}{}{}{}{}",
            joined(&self.dashed, &self.class("twin"), axes),
            joined(&points, &self.class("solid"), axes),
            self.dashed_rows(said[1]),
            marks(&self.spots, "disc"),
            marks(&self.open, "ring"),
        )
    }

    /// A mark with its row of the table; `ring` is an open one.
    fn mark(&self, spot: &Spot, kind: &str, open: &str, axes: &Axes) -> String {
        let size = if self.spots.len() > MANY_POINTS { 0.6 } else { 1.0 };
        let drawn = shape(self.style, kind, axes.place((spot.x, spot.y)), size);
        let label = if kind == "ring" { format!("{} ({open})", self.label) } else { self.label.clone() };
        let [least, greatest] =
            spot.range.map_or([None; 2], |(least, greatest)| [Some(least), Some(greatest)]);
        let data = data_row(&json!([label.trim_start(), spot.x, spot.y, least, greatest]));
        format!("<g{data}><title>{}</title>{drawn}</g>", escape(&spot.hint))
    }

    /// A dashed line has no marks that could carry its rows of the table.
    fn dashed_rows(&self, said: &str) -> String {
        let label = format!("{} ({said})", self.label);
        let shown = self.dashed.iter().filter(|point| is_finite(point));
        let row = |(x, y): &Point| data_row(&json!([label.trim_start(), x, y, null, null]));
        shown.map(|point| format!("<g{}/>", row(point))).collect()
    }
}

/// Straight lines between points; zeros beside a logarithmic axis are joined to nothing.
fn joined(points: &[Point], class: &str, axes: &Axes) -> String {
    let is_apart = |point: &Point| !is_finite(point) || (axes.zero.is_some() && point.0 <= 0.0);
    let part = |points: &[Point]| {
        path::polyline(&points.iter().map(|point| axes.place(*point)).collect::<Vec<Point>>())
    };
    let d: String = points.split(is_apart).filter(|part| part.len() > 1).map(part).collect();
    if d.is_empty() { d } else { format!("<path class=\"{class}\" d=\"{d}\"/>") }
}

fn whisker(spot: &Spot, aside: f64, axes: &Axes) -> Option<String> {
    let (least, greatest) = spot.range.filter(|(least, greatest)| least < greatest)?;
    let [(x, low), (_, high)] = [least, greatest].map(|y| axes.place((spot.x, y)));
    let x = x + aside;
    // What goes on below a logarithmic axis does not end there.
    let is_within = |y: &f64| *y > 0.0 || !axes.y.is_logarithmic();
    let ends = [(least, low), (greatest, high)].into_iter().filter(|(y, _)| is_within(y));
    let ends: String = ends.map(|(_, y)| path::polyline(&[(x - 2.0, y), (x + 2.0, y)])).collect();
    Some(format!("<path class=\"whisker\" d=\"{}{ends}\"/>", path::polyline(&[(x, low), (x, high)])))
}

/// A mark of the style's colour and shape; `kind` is `disc` or `ring`.
fn shape(style: usize, kind: &str, (x, y): Point, size: f64) -> String {
    let class = format!("{kind} c{}", style % MOST_LINES);
    let Some(corners) = (style % MOST_LINES).checked_sub(1).map(|index| SHAPES[index]) else {
        let (x, y, r) = (coordinate(x), coordinate(y), coordinate(4.0 * size));
        return format!("<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r}\"/>");
    };
    let corners: Vec<Point> = corners.iter().map(|(dx, dy)| (x + dx * size, y + dy * size)).collect();
    format!("<path class=\"{class}\" d=\"{}z\"/>", path::polyline(&corners))
}

fn is_finite((x, y): &Point) -> bool {
    x.is_finite() && y.is_finite()
}

fn y_axis(axes: &Axes) -> String {
    let tick = |tick: &Tick| {
        let y = axes.y.position(tick.value);
        line((axes.left, y), (WIDTH - RIGHT, y), "grid")
            + &text(axes.left - 6.0, y + 4.0, "tick end", &tick.label)
    };
    axes.y.ticks(5).iter().map(tick).collect()
}

fn x_axis(axes: &Axes, name: &str) -> String {
    let y = axes.bottom();
    let zero = axes.zero.map(|x| (x, "0".to_owned()));
    let ticks = axes.x.ticks(6).into_iter().map(|tick| (axes.x.position(tick.value), tick.label));
    let mut free = 0.0;
    let tick = |(x, label): (f64, String)| {
        let half = text_width(&label) / 2.0;
        let has_room = x - half > free;
        let label = if has_room { text(x, y + 16.0, "tick middle", &label) } else { String::new() };
        free = if has_room { x + half + 6.0 } else { free };
        line((x, axes.top), (x, y), "grid") + &label
    };
    let ticks: String = zero.into_iter().chain(ticks).map(tick).collect();
    // The frame is broken between a zero and where the logarithmic axis begins.
    let frame = axes.zero.map_or_else(
        || line((axes.left, y), (WIDTH - RIGHT, y), "axis"),
        |zero| {
            line((axes.left, y), (zero + ZERO / 3.0, y), "axis")
                + &line((zero + ZERO * 2.0 / 3.0, y), (WIDTH - RIGHT, y), "axis")
        },
    );
    let logarithmic = if axes.x.is_logarithmic() { " (logarithmic)" } else { "" };
    let name = wrap(name, WIDTH - text_width(logarithmic) - 20.0, 1).concat();
    ticks
        + &frame
        + &text(WIDTH - RIGHT, y + AXIS_HEIGHT - 8.0, "legend end", &format!("{name}{logarithmic}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[Point]) -> LineChart {
        let spot = |(x, y): &Point| Spot { x: *x, y: *y, range: None, hint: "<here>".into() };
        let spots = points.iter().map(spot).collect();
        LineChart {
            id: "l".into(),
            title: "Goodput over rtt".into(),
            part: String::new(),
            description: String::new(),
            axes: ["rtt, ms".into(), "Goodput, Mbit/s".into()],
            lines: vec![Line { label: "<a>".into(), spots, ..Line::default() }],
            said: ["published", "simulated"],
            beside: Vec::new(),
        }
    }

    fn body(points: &[Point]) -> String {
        chart(points).draw().inline()
    }

    #[test]
    fn axes_are_logarithmic_where_numbers_are_far_apart_each_by_its_own() {
        let far = body(&[(1.0, 5.0), (10.0, 6.0), (500.0, 7.0)]);
        assert!(
            far.contains(">rtt, ms (logarithmic)<") && far.contains(">Goodput over rtt, Mbit/s<"),
            "{far}"
        );
        let high = body(&[(1.0, 0.1), (2.0, 6.0), (3.0, 70.0)]);
        assert!(
            high.contains(">rtt, ms<") && high.contains(">Goodput over rtt, Mbit/s (logarithmic)<"),
            "{high}"
        );
        let near = body(&[(1.0, 5.0), (20.0, 90.0)]);
        assert!(!near.contains("logarithmic"), "{near}");
    }

    #[test]
    fn a_zero_stands_beside_a_logarithmic_axis_and_is_joined_to_nothing() {
        let drawn = body(&[(0.0, 9.0), (1e-4, 8.0), (1e-1, 7.0)]);
        assert!(drawn.contains("(logarithmic)") && drawn.contains(">0</text>"), "{drawn}");
        let axes = chart(&[(0.0, 9.0), (1e-4, 8.0), (1e-1, 7.0)]).axes(0.0);
        assert!(axes.x(0.0) + ZERO <= axes.x(1e-4), "{}", axes.x(0.0));
        let line = drawn.split("class=\"series s0 solid\" d=\"").nth(2).unwrap().split('"').next().unwrap();
        assert_eq!((line.matches('M').count(), line.matches('l').count()), (1, 1), "{line}");
    }

    #[test]
    fn a_zero_height_keeps_its_axis_linear() {
        assert!(!body(&[(1.0, 0.0), (2.0, 900.0), (3.0, 9000.0)]).contains("logarithmic"));
    }

    #[test]
    fn ranges_are_within_the_axis_and_in_the_table() {
        let mut chart = chart(&[(1.0, 5.0), (2.0, 6.0)]);
        chart.lines[0].spots[1].range = Some((4.0, 90.0));
        assert!(chart.axes(0.0).y.domain().1 >= 90.0);
        let drawn = chart.draw().inline();
        assert_eq!(drawn.matches("class=\"whisker\"").count(), 1);
        assert!(drawn.contains("data-row=\"[&quot;&lt;a&gt;&quot;,2.0,6.0,4.0,90.0]\""), "{drawn}");
        assert!(drawn.contains("data-row=\"[&quot;&lt;a&gt;&quot;,1.0,5.0,null,null]\""), "{drawn}");
    }

    #[test]
    fn a_gap_breaks_the_line_and_a_hair_over_the_end_takes_no_longer_axis() {
        let drawn = body(&[(1.0, 99.0), (2.0, 100.03), (3.0, f64::NAN), (4.0, 60.0), (5.0, 50.0)]);
        let line = drawn.split("class=\"series s0 solid\" d=\"").nth(2).unwrap().split('"').next().unwrap();
        assert_eq!((line.matches('M').count(), line.matches('l').count()), (2, 2), "{line}");
        assert!(drawn.contains(">100</text>") && !drawn.contains(">150</text>"), "{drawn}");
        assert_eq!(drawn.matches("data-row=").count(), 4);
    }

    #[test]
    fn charts_beside_each_other_have_the_same_axes() {
        let (mut one, mut other) = (chart(&[(1.0, 5.0), (2.0, 6.0)]), chart(&[(3.0, 90.0), (4.0, 60.0)]));
        (one.beside, other.beside) = (other.lines.clone(), one.lines.clone());
        let domains = |chart: &LineChart| (chart.axes(0.0).x.domain(), chart.axes(0.0).y.domain());
        assert_eq!(domains(&one), domains(&other));
    }

    #[test]
    fn open_marks_and_dashed_lines_are_told_in_the_legend_alone_where_there_are_some() {
        let mut chart = chart(&[(1.0, 5.0), (2.0, 6.0)]);
        assert!(!chart.draw().body.contains("published") && !chart.draw().body.contains("simulated"));
        chart.lines[0].open = chart.lines[0].spots.clone();
        chart.lines[0].dashed = vec![(1.0, 5.0), (2.0, 7.0)];
        let body = chart.draw().body;
        assert!(body.contains(">published<") && body.contains(">simulated<"), "{body}");
        assert_eq!(body.matches("class=\"series s0 twin\"").count(), 1);
        assert_eq!(body.matches("class=\"ring c0\"").count(), 2);
        chart.lines[0].label = String::new();
        assert!(chart.draw().body.contains(">this result<"), "the line is told from what stands beside it");
    }

    #[test]
    fn a_chart_of_nothing_is_still_well_formed() {
        for points in [&[][..], &[(f64::NAN, 1.0)], &[(1.0, f64::INFINITY)], &[(3.0, 0.0)], &[(-1.0, 2.0)]] {
            let svg = chart(points).draw().standalone();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn long_names_end_within_the_figure() {
        let mut chart = chart(&[(1.0, 5.0), (2.0, 6.0)]);
        chart.title = "A ".repeat(200);
        chart.part = "b=c ".repeat(90);
        chart.axes[0] = "d".repeat(300);
        chart.lines =
            (0..6).map(|style| Line { label: "e".repeat(200), style, ..chart.lines[0].clone() }).collect();
        let texts = chart.draw().body;
        let texts = texts.split("</text>").filter_map(|part| part.rsplit('>').next());
        assert!(texts.into_iter().all(|text| text_width(text) <= WIDTH + 10.0));
    }
}
