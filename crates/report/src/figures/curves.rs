//! Metrics over a numeric axis of the sweep: medians of the repeats as lines, one per value of the other axes.

use super::sweep::{self, Layout, Place};
use crate::{
    load::{Case, Experiment},
    plot::{
        Figure,
        lines::{Line, LineChart, MOST_LINES, Spot},
    },
    quantity::{Quantity, Unit},
    summary::{self, COLUMNS, CaseSummary, Column, Scope},
};
use longfat_schema::{
    metric,
    run::{AxisPoint, Metric, RunManifest, Spread},
};

/// More figures of one metric are not read; what is left out is told.
const MOST_PARTS: usize = 12;

/// Columns of the summary that are left to its table: rare events, and what tells little more than its neighbour.
const LEFT_TO_THE_TABLE: [&str; 4] =
    ["timeouts", "spurious_timeouts", "echo_p50_us", "avail_confidence_ratio"];

/// Metrics that are no columns of the summary: drawn before and behind those.
const FURTHER: [&str; 2] = ["completion_us", "srtt_mean_us"];

/// What a mark is where there are repeats.
const REPEATED: &str =
    "A mark is the median of the valid repeats, its whisker goes from the least to the greatest.";

/// Every figure over one axis.
#[derive(Debug, Clone)]
pub struct Curves {
    /// Name of the axis.
    pub axis: String,
    /// What a reader must know of all of them, plain text.
    pub caption: String,
    /// By metric, goodput first.
    pub measures: Vec<Measure>,
}

/// The figures of one metric.
#[derive(Debug, Clone)]
pub struct Measure {
    /// What a reader calls the metric.
    pub heading: &'static str,
    /// Several where one could not hold all lines.
    pub figures: Vec<Figure>,
}

impl Curves {
    /// Figures over the axis that is `wanted`, or else over that with the most numbers; `None` where no axis has three,
    /// or no two points have a figure.
    pub fn of(experiment: &Experiment, wanted: Option<&str>, prefix: &str) -> Option<Curves> {
        let cases = || experiment.cases.iter().zip(&experiment.summary.cases);
        let layout = Layout::of(&places(experiment), wanted)?;
        let on_axis = |(case, summary)| Some(Cell { x: number(case, &layout)?, case, summary });
        let cells: Vec<Cell> = cases().filter_map(on_axis).collect();
        let grid = Grid { experiment, parts: parts(&cells, &layout), layout: &layout, cells: &cells };
        let measures: Vec<Measure> =
            columns(experiment).iter().filter_map(|column| grid.measure(column, prefix)).collect();
        let caption = grid.caption();
        (!measures.is_empty()).then(|| Curves { axis: layout.over.name.clone(), caption, measures })
    }

    /// Every figure with the name of its file.
    pub fn named(&self) -> impl Iterator<Item = (String, &Figure)> {
        self.measures.iter().flat_map(|measure| {
            let name = |(index, figure)| {
                let part = if measure.figures.len() > 1 { format!("-{}", index + 1) } else { String::new() };
                (format!("{} over {}{part}", measure.heading, self.axis), figure)
            };
            measure.figures.iter().enumerate().map(name)
        })
    }
}

/// Names of the axes that an experiment's figures can be drawn over.
pub fn axes_of_numbers(experiment: &Experiment) -> Vec<String> {
    sweep::axes_of_numbers(&places(experiment))
}

fn places(experiment: &Experiment) -> Vec<Place<'_>> {
    let places = experiment.cases.iter().map(|case| case.info.axes.as_slice());
    places.filter(|axes| !axes.is_empty()).collect()
}

/// A case that stands on the axis.
struct Cell<'a> {
    x: f64,
    case: &'a Case,
    summary: &'a CaseSummary,
}

/// Style of a line, and what its cases have on the axes that tell lines apart.
type Styled = (usize, Vec<AxisPoint>);

/// Lines of one figure: what they have in common, and that in words.
struct Part {
    at: Vec<AxisPoint>,
    lines: Vec<Styled>,
    words: String,
}

struct Grid<'a> {
    experiment: &'a Experiment,
    layout: &'a Layout,
    cells: &'a [Cell<'a>],
    parts: Vec<Part>,
}

/// How far numbers are scaled for reading.
#[derive(Clone, Copy)]
struct Units {
    x: Unit,
    y: Unit,
}

fn number(case: &Case, layout: &Layout) -> Option<f64> {
    case.info.axes.iter().find(|at| at.axis == layout.over.name)?.number
}

/// Goodput, what was published of the flow or the run, and what else tells how a sweep went.
fn columns(experiment: &Experiment) -> Vec<Column> {
    let of_kind = |name: &str, scope| {
        let kind = metric::find(name)?;
        Some(Column { heading: kind.heading, metric: kind.name, scope, meaning: kind.meaning })
    };
    let known = |name: &str| COLUMNS.iter().any(|column| column.metric == name) || FURTHER.contains(&name);
    let mut columns = vec![COLUMNS[0]];
    let published = experiment.cases.iter().flat_map(|case| &case.info.published);
    for figure in published.filter(|figure| figure.stream.is_none() && !known(&figure.metric)) {
        if columns.iter().all(|column| column.metric != figure.metric) {
            columns.extend(of_kind(&figure.metric, scope(figure, experiment.focus())));
        }
    }
    let [first, last] = FURTHER.map(|name| of_kind(name, Scope::Focus));
    columns.extend(first);
    columns.extend(COLUMNS[1..].iter().filter(|column| !LEFT_TO_THE_TABLE.contains(&column.metric)));
    columns.extend(last);
    columns
}

fn scope(figure: &Metric, focus: Option<&str>) -> Scope {
    match figure.of.as_str() {
        "" => Scope::Run,
        flow if Some(flow) == focus => Scope::Focus,
        _ => Scope::Greatest,
    }
}

/// The figures that the cells need: by the axes that are figures of their own, and by as many lines as one can hold.
fn parts(cells: &[Cell], layout: &Layout) -> Vec<Part> {
    let places: Vec<Place> = cells.iter().map(|cell| cell.case.info.axes.as_slice()).collect();
    let lines = sweep::combinations(&places, &layout.lines);
    let styled: Vec<Styled> =
        lines.into_iter().enumerate().map(|(index, line)| (index % MOST_LINES, line)).collect();
    let heaps: Vec<&[Styled]> = styled.chunks(evenly(styled.len())).collect();
    let part = |at: &Vec<AxisPoint>| {
        let words = |index: usize| match (sweep::in_words(at), heaps.len()) {
            (words, 0 | 1) => words,
            (words, all) if words.is_empty() => format!("lines {} of {all}", index + 1),
            (words, all) => format!("{words}; lines {} of {all}", index + 1),
        };
        let heaps = heaps.iter().enumerate();
        heaps
            .map(|(index, heap)| Part { at: at.clone(), lines: heap.to_vec(), words: words(index) })
            .collect::<Vec<Part>>()
    };
    sweep::combinations(&places, &layout.parts).iter().flat_map(part).collect()
}

/// How many lines each figure has, so that all have about as many.
fn evenly(lines: usize) -> usize {
    lines.div_ceil(lines.div_ceil(MOST_LINES).max(1)).max(1)
}

impl Grid<'_> {
    /// The figures of one metric; `None` where no line has two points, or nothing ever came.
    fn measure(&self, column: &Column, prefix: &str) -> Option<Measure> {
        let greatest = |own: &dyn Fn(&Cell) -> f64| self.cells.iter().map(own).fold(0.0, f64::max);
        let most = greatest(&|cell| self.height(cell, column));
        if most <= 0.0 {
            return None;
        }
        let ending = self.layout.over.unit.as_deref().unwrap_or_default();
        let units = Units {
            x: Quantity::of_metric(&format!("_{ending}")).unit(greatest(&|cell| cell.x.abs())),
            y: Quantity::of_metric(column.metric).unit(most),
        };
        let drawn: Vec<(&Part, Vec<Line>)> = self
            .parts
            .iter()
            .map(|part| (part, self.lines(part, column, units)))
            .filter(|(_, lines)| lines.iter().any(|line| medians(line).count() + line.dashed.len() > 1))
            .take(MOST_PARTS)
            .collect();
        let beside: Vec<Line> = drawn.iter().flat_map(|(_, lines)| lines.clone()).collect();
        let figure = |(index, (part, lines)): (usize, &(&Part, Vec<Line>))| {
            let id = format!("{prefix}-over-{}-{}", column.metric.replace('_', "-"), index + 1);
            self.chart(column, id, part, lines, units, &beside).draw()
        };
        let figures: Vec<Figure> = drawn.iter().enumerate().map(figure).collect();
        (!figures.is_empty()).then_some(Measure { heading: column.heading, figures })
    }

    fn chart(
        &self,
        column: &Column,
        id: String,
        part: &Part,
        lines: &[Line],
        units: Units,
        beside: &[Line],
    ) -> LineChart {
        let flow = self.experiment.focus().filter(|_| column.scope == Scope::Focus);
        let of = flow.map_or_else(String::new, |flow| format!(" of {flow}"));
        let axis = &self.layout.over.name;
        let said = lines.iter().map(|line| in_words(line, &self.layout.over.name, units));
        LineChart {
            id,
            title: format!("{}{of} over {axis}", column.heading),
            part: part.words.clone(),
            description: format!("{} {} {}", column.meaning, self.caption(), said.collect::<String>()),
            axes: [with_unit(axis, units.x), with_unit(column.heading, units.y)],
            lines: lines.to_vec(),
            said: ["published", "simulated"],
            beside: beside.to_vec(),
        }
    }

    fn lines(&self, part: &Part, column: &Column, units: Units) -> Vec<Line> {
        let line = |(style, at): &Styled| {
            let is_of = |cell: &&Cell| {
                let axes = &cell.case.info.axes;
                sweep::at(axes, &self.layout.lines) == *at && sweep::at(axes, &self.layout.parts) == part.at
            };
            let mut cells: Vec<&Cell> = self.cells.iter().filter(is_of).collect();
            cells.sort_by(|one, other| one.x.total_cmp(&other.x));
            let label = sweep::in_words(at);
            Line {
                spots: cells.iter().map(|cell| self.spot(cell, column, units, &label)).collect(),
                open: cells.iter().filter_map(|cell| self.published(cell, column, units, &label)).collect(),
                dashed: cells
                    .iter()
                    .filter_map(|cell| {
                        Some((cell.x / units.x.factor, self.simulated(cell, column)? / units.y.factor))
                    })
                    .collect(),
                style: *style,
                label,
            }
        };
        let is_drawn =
            |line: &Line| !(medians(line).next().is_none() && line.open.is_empty() && line.dashed.is_empty());
        part.lines.iter().map(line).filter(is_drawn).collect()
    }

    /// The median of the runs that count, with the least and the greatest; a gap where none does.
    fn spot(&self, cell: &Cell, column: &Column, units: Units, label: &str) -> Spot {
        let (x, factor) = (cell.x / units.x.factor, units.y.factor);
        let Some(Spread { median, min, max, count }) = self.spread(cell, column) else {
            return Spot { x, y: f64::NAN, range: None, hint: String::new() };
        };
        let (range, ends) = match count {
            1 => (None, String::new()),
            _ => {
                let ends = format!(" ({} – {} of {count} runs)", units.y.number(min), units.y.number(max));
                (Some((min / factor, max / factor)), ends)
            }
        };
        let hint = format!("{}{}{ends}", self.place(cell, units, label), units.y.text(median));
        Spot { x, y: median / factor, range, hint }
    }

    fn published(&self, cell: &Cell, column: &Column, units: Units, label: &str) -> Option<Spot> {
        let value = summary::column_value(column, &cell.case.info.published, self.experiment.focus())?;
        let hint = format!("{}published {}", self.place(cell, units, label), units.y.text(value));
        Some(Spot { x: cell.x / units.x.factor, y: value / units.y.factor, range: None, hint })
    }

    fn simulated(&self, cell: &Cell, column: &Column) -> Option<f64> {
        let runs = cell.case.runs.iter().map(|run| &run.manifest).filter(|run| run.went_as_planned());
        let twins = runs.filter_map(|run| run.twin.as_ref());
        let values =
            twins.filter_map(|twin| summary::column_value(column, &twin.metrics, self.experiment.focus()));
        Some(Spread::of(values)?.median)
    }

    fn spread(&self, cell: &Cell, column: &Column) -> Option<Spread> {
        let runs: Vec<&RunManifest> = cell.case.runs.iter().map(|run| &run.manifest).collect();
        summary::spread_of(column, &runs, self.experiment.focus())
    }

    /// The greatest of all that a cell shows.
    fn height(&self, cell: &Cell, column: &Column) -> f64 {
        let published = summary::column_value(column, &cell.case.info.published, self.experiment.focus());
        let found =
            [self.spread(cell, column).map(|spread| spread.median), published, self.simulated(cell, column)];
        found.into_iter().flatten().fold(0.0, f64::max)
    }

    /// `cc=reno, rtt 50.0 ms: `.
    fn place(&self, cell: &Cell, units: Units, label: &str) -> String {
        let label = if label.is_empty() { String::new() } else { format!("{label}, ") };
        format!("{label}{} {}: ", self.layout.over.name, units.x.text(cell.x))
    }

    /// What marks and lines are, and what is not drawn.
    fn caption(&self) -> String {
        let count =
            |of: fn(&CaseSummary) -> usize| self.cells.iter().map(|cell| of(cell.summary)).sum::<usize>();
        let (runs, done) = (count(CaseSummary::runs), count(|case| case.done));
        let any = |is: fn(&Cell) -> bool| self.cells.iter().any(is);
        let has_twins = any(|cell| cell.case.runs.iter().any(|run| run.manifest.twin.is_some()));
        let mark = if any(|cell| cell.summary.done > 1) { REPEATED } else { "A mark is one run." };
        let mut said = vec![mark.to_owned()];
        if any(|cell| !cell.case.info.published.is_empty()) {
            said.push("Open marks are published figures.".to_owned());
        }
        if has_twins {
            said.push("Dashed is what the simulator makes of the same plans.".to_owned());
        }
        if done < runs {
            said.push(format!("{} of {runs} runs do not count and are not drawn.", runs - done));
        }
        if !self.layout.in_step.is_empty() {
            said.push(format!("In step with {}: {}.", self.layout.over.name, self.layout.in_step.join(", ")));
        }
        if self.parts.len() > MOST_PARTS {
            said.push(format!("The first {MOST_PARTS} of {} combinations are drawn.", self.parts.len()));
        }
        said.join(" ")
    }
}

/// Points of a line without its gaps.
fn medians(line: &Line) -> impl Iterator<Item = &Spot> {
    line.spots.iter().filter(|spot| spot.y.is_finite())
}

fn with_unit(name: &str, unit: Unit) -> String {
    if unit.name.is_empty() { name.to_owned() } else { format!("{name}, {}", unit.name) }
}

/// `cc=reno: rtt 1.00 93.0, 5.00 88.0. `, for those who cannot see it.
fn in_words(line: &Line, axis: &str, units: Units) -> String {
    let (across, up) = (Unit { factor: 1.0, ..units.x }, Unit { factor: 1.0, ..units.y });
    let point = |spot: &Spot| format!("{} at {}", up.text(spot.y), across.text(spot.x));
    let points: Vec<String> = medians(line).map(point).collect();
    let label = if line.label.is_empty() { format!("Over {axis}") } else { line.label.clone() };
    if points.is_empty() { String::new() } else { format!("{label}: {}. ", points.join(", ")) }
}
