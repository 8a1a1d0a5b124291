//! How far connections trusted what they measured, against how far it was off: whether the confidence tells.

use crate::{
    load::Experiment,
    plot::{
        Figure,
        scatter::{ScatterChart, Spot},
    },
    quantity::Quantity,
};

/// With fewer cases a rank correlation says nothing.
const FEWEST_CASES: usize = 8;
/// Least confidence of each class, the most trusted first.
const CLASSES: [f64; 4] = [0.75, 0.6, 0.4, 0.0];

/// The figure, and what it comes to.
#[derive(Debug, Clone)]
pub struct Trust {
    /// Error over confidence, a mark per case.
    pub figure: Figure,
    /// Correlation of ranks: -1 when the more a case is trusted the less it is off.
    pub rank_correlation: f64,
    /// By confidence, the most trusted first; those without a case are left out.
    pub classes: Vec<Class>,
}

/// Cases that were trusted alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// From this confidence on.
    pub from: f64,
    /// Below this one; `None` for the most trusted.
    pub below: Option<f64>,
    /// Error of each case, as a share of the capacity, ascending.
    pub errors: Vec<f64>,
}

struct Judged {
    title: String,
    confidence: f64,
    error: f64,
}

impl Trust {
    /// Over the cases of some results; nothing where too few have both figures.
    pub fn of<'a>(experiments: impl IntoIterator<Item = &'a Experiment>, id: &str) -> Option<Trust> {
        let judged: Vec<Judged> = experiments.into_iter().flat_map(judged).collect();
        if judged.len() < FEWEST_CASES {
            return None;
        }
        let of = |figure: fn(&Judged) -> f64| judged.iter().map(figure).collect::<Vec<f64>>();
        let rank_correlation =
            correlation(&ranks(&of(|case| case.confidence)), &ranks(&of(|case| case.error)))?;
        Some(Trust { figure: figure(&judged, id), rank_correlation, classes: classes(&judged) })
    }
}

fn judged(experiment: &Experiment) -> Vec<Judged> {
    let of_case = |case: &crate::summary::CaseSummary| {
        let title = format!("{}: {}", experiment.name, case.title);
        let (confidence, error) = (case.median("avail_confidence_ratio")?, case.median("avail_error_ratio")?);
        Some(Judged { title, confidence, error })
    };
    experiment.summary.cases.iter().filter_map(of_case).collect()
}

fn figure(judged: &[Judged], id: &str) -> Figure {
    let unit = Quantity::Share.unit(0.0);
    let spot = |case: &Judged| Spot {
        x: case.confidence,
        y: case.error / unit.factor,
        hint: format!(
            "{}: {} off at a confidence of {:.2}",
            case.title,
            unit.text(case.error),
            case.confidence
        ),
    };
    let spots: Vec<Spot> = judged.iter().map(spot).collect();
    let chart = ScatterChart {
        id: id.to_owned(),
        title: "Error of available bandwidth against confidence".to_owned(),
        description: spots.iter().map(|spot| format!("{}. ", spot.hint)).collect(),
        axes: ["confidence".to_owned(), "error, % of capacity".to_owned()],
        spots,
    };
    chart.draw()
}

fn classes(judged: &[Judged]) -> Vec<Class> {
    let class = |(index, from): (usize, &f64)| {
        let below = index.checked_sub(1).map(|above| CLASSES[above]);
        let is_in =
            |case: &&Judged| case.confidence >= *from && below.is_none_or(|below| case.confidence < below);
        let mut errors: Vec<f64> = judged.iter().filter(is_in).map(|case| case.error).collect();
        errors.sort_by(f64::total_cmp);
        Class { from: *from, below, errors }
    };
    CLASSES.iter().enumerate().map(class).filter(|class| !class.errors.is_empty()).collect()
}

/// From 1; equals share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |value: f64| values.iter().filter(|other| **other < value).count() as f64;
    let equal = |value: f64| values.iter().filter(|other| **other == value).count() as f64;
    values.iter().map(|value| below(*value) + (equal(*value) + 1.0) / 2.0).collect()
}

/// Pearson's; nothing where one side does not vary.
fn correlation(one: &[f64], other: &[f64]) -> Option<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_one, mean_other) = (mean(one), mean(other));
    let product = |a: &[f64], ma: f64, b: &[f64], mb: f64| -> f64 {
        a.iter().zip(b).map(|(x, y)| (x - ma) * (y - mb)).sum()
    };
    let spread = product(one, mean_one, one, mean_one) * product(other, mean_other, other, mean_other);
    (spread > 0.0).then(|| product(one, mean_one, other, mean_other) / spread.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_equals_are_shared_and_opposite_orders_correlate_by_minus_one() {
        assert_eq!(ranks(&[0.3, 0.1, 0.3, 0.9]), [2.5, 1.0, 2.5, 4.0]);
        let reverse = correlation(&ranks(&[1.0, 2.0, 30.0]), &ranks(&[9.0, 8.0, 0.1])).unwrap();
        assert!((reverse + 1.0).abs() < 1e-12, "{reverse}");
        assert_eq!(correlation(&[1.0, 1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn every_case_is_in_one_class() {
        let case = |confidence, error| Judged { title: String::new(), confidence, error };
        let found = classes(&[case(0.75, 0.02), case(0.9, 0.01), case(0.749, 0.03), case(0.0, 0.4)]);
        let said: Vec<_> = found.iter().map(|class| (class.from, class.below, class.errors.len())).collect();
        assert_eq!(said, [(0.75, None, 2), (0.6, Some(0.75), 1), (0.0, Some(0.4), 1)]);
        assert_eq!(found[0].errors, [0.01, 0.02]);
    }
}
