//! Several cases in one chart over time: what each relay held, and what each connection held for its path's bandwidth.

use super::{
    RunSamples,
    panels::{extent, far_apart, greatest, heading, rescale},
    samples::series,
};
use crate::{
    load::{Case, Experiment},
    plot::{
        Figure,
        decimate::Point,
        time::{Series, Shape, TimeChart},
    },
    quantity::Quantity,
};
use longfat_schema::record::{AvailSample, RelaySample};

/// As many cases as there are styles: more could not be told apart.
const MOST_CASES: usize = 6;

/// What the run that stands for a case has to show beside others.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// Title of the case.
    title: String,
    span_s: f64,
    window: Option<(f64, f64)>,
    /// What the relay held for its busiest connection.
    backlog: Vec<Point>,
    /// Available bandwidth as the focus flow measured it.
    avail: Vec<Point>,
    /// The truth beside it.
    free: Vec<Point>,
}

impl Shown {
    /// Series of the run that stands for a case.
    pub fn of(case: &Case, index: usize, samples: &RunSamples, focus: Option<&str>) -> Shown {
        let run = &case.runs[index].manifest;
        let window = (run.window_start_us as f64 / 1e6, run.window_end_us as f64 / 1e6);
        let busiest = samples.relay_connections();
        let backlog = |row: &RelaySample| {
            let is_main = busiest.get(&(row.relay.as_str(), row.connection)) == Some(&true);
            (is_main && row.direction == "client_to_server").then_some((
                (),
                row.time_us,
                row.backlog_bytes as f64,
            ))
        };
        let of_focus = |row: &AvailSample| row.stream == 0 && focus.is_none_or(|focus| focus == row.flow);
        let avail = |row: &AvailSample| of_focus(row).then_some(((), row.time_us, row.avail_bps as f64));
        let free =
            |row: &AvailSample| Some(((), row.time_us, row.free_bps.filter(|_| of_focus(row))? as f64));
        Shown {
            title: case.info.title.clone(),
            span_s: run.duration_us as f64 / 1e6,
            window: Some(window).filter(|(start, end)| end > start),
            backlog: series(&samples.relay, backlog).remove(&()).unwrap_or_default(),
            avail: series(&samples.avail, avail).remove(&()).unwrap_or_default(),
            free: series(&samples.avail, free).remove(&()).unwrap_or_default(),
        }
    }
}

/// The charts that two to six cases can share, with their names.
pub fn draw(experiment: &Experiment, cases: &[Shown], prefix: &str) -> Vec<(&'static str, Figure)> {
    let backlog = Draft {
        name: "backlogs",
        title: "Relay backlog by case",
        quantity: Quantity::Bytes,
        shape: Shape::Line,
        description: "What the relay held for its busiest connection, in the run that stands for each case.",
    };
    let avail = Draft {
        name: "avails",
        title: "Available bandwidth by case",
        quantity: Quantity::Rate,
        shape: Shape::Step,
        description: "What the focus flow measured, in the run that stands for each case; below, what was free.",
    };
    let mut drawn = Vec::new();
    drawn.extend(backlog.chart(experiment, cases, prefix, |case| &case.backlog));
    drawn.extend(avail.chart(experiment, cases, prefix, |case| &case.avail));
    drawn
}

struct Draft {
    name: &'static str,
    title: &'static str,
    quantity: Quantity,
    shape: Shape,
    description: &'static str,
}

impl Draft {
    fn chart(
        &self,
        experiment: &Experiment,
        cases: &[Shown],
        prefix: &str,
        points: impl Fn(&Shown) -> &Vec<Point>,
    ) -> Option<(&'static str, Figure)> {
        let shown: Vec<&Shown> = cases.iter().filter(|case| !points(case).is_empty()).collect();
        if !(2..=MOST_CASES).contains(&shown.len()) {
            return None;
        }
        let line = |(style, case): (usize, &&Shown)| Series {
            label: case.title.clone(),
            style,
            faint: false,
            shape: self.shape,
            points: points(case).clone(),
        };
        let mut series: Vec<Series> = shown.iter().enumerate().map(line).collect();
        if self.name == "avails" {
            series.extend(free(&shown));
        }
        let unit = self.quantity.unit(greatest(&series));
        let logarithmic = far_apart(&series);
        rescale(&mut series, unit);
        let chart = TimeChart {
            id: format!("{prefix}-{}", self.name),
            title: heading(self.title, unit, logarithmic),
            description: format!("{}: {}{}", experiment.name, self.description, extent(&series, unit)),
            span: (0.0, shown.iter().map(|case| case.span_s).fold(1e-3, f64::max)),
            window: shown[0].window.filter(|window| shown.iter().all(|case| case.window == Some(*window))),
            series,
            rug: None,
            logarithmic,
            beside: Vec::new(),
            bands: Vec::new(),
        };
        Some((self.name, chart.draw(1)))
    }
}

/// What was free in the first case, where it is known: cases that are to be compared share it.
fn free(shown: &[&Shown]) -> Option<Series> {
    let first = shown.iter().find(|case| !case.free.is_empty())?;
    Some(Series {
        label: format!("free ({})", first.title),
        style: shown.len(),
        faint: true,
        shape: Shape::Step,
        points: first.free.clone(),
    })
}
