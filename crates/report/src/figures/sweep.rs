//! The axes of a sweep: over which one figures are drawn, which ones tell lines apart, which ones figures. Pure.

use crate::plot::lines::MOST_LINES;
use longfat_schema::run::AxisPoint;

/// An axis of fewer numbers is no curve.
const FEWEST_NUMBERS: usize = 3;

/// Where one case stands in the sweep.
pub type Place<'a> = &'a [AxisPoint];

/// An axis with more than one value.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name of the axis.
    pub name: String,
    /// What its values are called, in the experiment's order.
    pub labels: Vec<String>,
    /// Unit of its numbers as [`AxisPoint::unit`]; `None` where not all values are numbers of one unit.
    pub unit: Option<String>,
    /// How many different numbers it has.
    pub numbers: usize,
}

impl Axis {
    fn has_numbers(&self) -> bool {
        self.unit.is_some() && self.numbers >= FEWEST_NUMBERS
    }
}

/// How the cases of a sweep become figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Horizontal axis.
    pub over: Axis,
    /// Axes whose values are lines of one figure.
    pub lines: Vec<String>,
    /// Axes whose values are figures of their own.
    pub parts: Vec<String>,
    /// Axes that go in step with the horizontal one (`zip`), and tell nothing apart.
    pub in_step: Vec<String>,
}

impl Layout {
    /// Figures over the axis that is `wanted`, or else over the one with the most numbers, of several the last. `None`
    /// where there is no such axis.
    pub fn of(places: &[Place], wanted: Option<&str>) -> Option<Layout> {
        let axes = axes(places);
        let candidates = || candidates(&axes, places);
        let asked = wanted.and_then(|name| axes.iter().find(|axis| axis.name == name && axis.has_numbers()));
        let over = asked.or_else(|| candidates().into_iter().max_by_key(|axis| axis.numbers))?;
        let others = axes.iter().filter(|axis| axis.name != over.name);
        let (in_step, mut lines): (Vec<&Axis>, Vec<&Axis>) =
            others.partition(|axis| is_in_step(places, &over.name, &axis.name));
        let mut parts = Vec::new();
        while lines.len() > 1 && combinations(places, &names(&lines)).len() > MOST_LINES {
            let next = next_part(&lines);
            parts.push(lines.remove(next));
        }
        // Both in the sweep's order.
        parts.sort_by_key(|part| axes.iter().position(|axis| axis.name == part.name));
        Some(Layout {
            over: over.clone(),
            lines: names(&lines),
            parts: names(&parts),
            in_step: names(&in_step),
        })
    }
}

/// Names of the axes that figures can be drawn over.
pub fn axes_of_numbers(places: &[Place]) -> Vec<String> {
    axes(places).into_iter().filter(Axis::has_numbers).map(|axis| axis.name).collect()
}

/// What a case has on some axes.
pub fn at(place: Place, axes: &[String]) -> Vec<AxisPoint> {
    axes.iter().filter_map(|name| place.iter().find(|at| at.axis == *name)).cloned().collect()
}

/// What tells cases apart on some axes, in the experiment's order.
pub fn combinations(places: &[Place], axes: &[String]) -> Vec<Vec<AxisPoint>> {
    let mut found: Vec<Vec<AxisPoint>> = Vec::new();
    for place in places {
        let here = at(place, axes);
        if !found.contains(&here) {
            found.push(here);
        }
    }
    found
}

/// Points in words: `narrow, cc=reno, way=up`.
pub fn in_words(points: &[AxisPoint]) -> String {
    let word = |at: &AxisPoint| if at.axis == "case" { at.label.clone() } else { at.to_string() };
    points.iter().map(word).collect::<Vec<_>>().join(", ")
}

fn names(axes: &[&Axis]) -> Vec<String> {
    axes.iter().map(|axis| axis.name.clone()).collect()
}

/// Axes with more than one value, in the sweep's order.
fn axes(places: &[Place]) -> Vec<Axis> {
    let mut known: Vec<&str> = Vec::new();
    for at in places.iter().copied().flatten() {
        if !known.contains(&at.axis.as_str()) {
            known.push(&at.axis);
        }
    }
    known.into_iter().map(|name| axis(places, name)).filter(|axis| axis.labels.len() > 1).collect()
}

fn axis(places: &[Place], name: &str) -> Axis {
    let points: Vec<&AxisPoint> = places.iter().copied().flatten().filter(|at| at.axis == name).collect();
    let mut labels: Vec<String> = Vec::new();
    let mut numbers: Vec<f64> = Vec::new();
    for at in &points {
        if !labels.contains(&at.label) {
            labels.push(at.label.clone());
        }
        numbers.extend(at.number.filter(|number| number.is_finite() && !numbers.contains(number)));
    }
    // A bare 0 is one of any unit.
    let with_unit = points.iter().find(|at| !at.unit.is_empty());
    let unit = with_unit.map_or("", |at| at.unit.as_str());
    let is_of_unit = |at: &&AxisPoint| {
        at.number.is_some_and(|number| number.is_finite() && (at.unit == unit || number == 0.0))
    };
    let unit = points.iter().all(is_of_unit).then(|| unit.to_owned());
    Axis { name: name.to_owned(), labels, unit, numbers: numbers.len() }
}

/// Axes of numbers; of those that go in step the first.
fn candidates<'a>(axes: &'a [Axis], places: &[Place]) -> Vec<&'a Axis> {
    let mut found: Vec<&Axis> = Vec::new();
    for axis in axes.iter().filter(|axis| axis.has_numbers()) {
        if !found.iter().any(|earlier| is_in_step(places, &earlier.name, &axis.name)) {
            found.push(axis);
        }
    }
    found
}

/// Whether every value of one axis comes with one value of the other alone, and the other way round.
fn is_in_step(places: &[Place], one: &str, other: &str) -> bool {
    let mut pairs: Vec<[&str; 2]> = Vec::new();
    for place in places {
        let label = |name: &str| place.iter().find(|at| at.axis == name).map(|at| at.label.as_str());
        let (Some(left), Some(right)) = (label(one), label(other)) else { return false };
        if pairs.iter().any(|[l, r]| (*l == left) != (*r == right)) {
            return false;
        }
        if !pairs.contains(&[left, right]) {
            pairs.push([left, right]);
        }
    }
    true
}

/// Index of the axis that lines lose to figures: conditions are numbers as a rule, what is compared is not. Then the
/// one with the fewest values.
fn next_part(lines: &[&Axis]) -> usize {
    let of = |axis: &Axis| (axis.unit.is_none(), axis.name == "case", axis.labels.len());
    (0..lines.len()).min_by_key(|index| of(lines[*index])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(axis: &str, label: &str, number: f64, unit: &str) -> AxisPoint {
        AxisPoint { axis: axis.into(), label: label.into(), number: Some(number), unit: unit.into() }
    }

    /// Every combination of some axes.
    fn crossed(axes: &[Vec<AxisPoint>]) -> Vec<Vec<AxisPoint>> {
        axes.iter().fold(vec![Vec::new()], |cells, axis| {
            let grown = |cell: &Vec<AxisPoint>| {
                axis.iter().map(|at| [cell.clone(), vec![at.clone()]].concat()).collect::<Vec<_>>()
            };
            cells.iter().flat_map(grown).collect()
        })
    }

    fn counted(axis: &str, count: usize) -> Vec<AxisPoint> {
        (1..=count).map(|n| number(axis, &n.to_string(), n as f64, "")).collect()
    }

    fn named(axis: &str, labels: &[&str]) -> Vec<AxisPoint> {
        labels.iter().map(|label| AxisPoint::named(axis, label)).collect()
    }

    fn layout(cells: &[Vec<AxisPoint>], wanted: Option<&str>) -> Option<Layout> {
        Layout::of(&cells.iter().map(Vec::as_slice).collect::<Vec<Place>>(), wanted)
    }

    #[test]
    fn the_axis_with_the_most_numbers_lies_down_of_equals_the_last_or_the_one_that_is_asked_for() {
        let over = |cells: &[Vec<AxisPoint>], wanted| layout(cells, wanted).map(|found| found.over.name);
        let cells = crossed(&[counted("rate", 5), counted("rtt", 4), named("cc", &["a", "b"])]);
        assert_eq!(over(&cells, None).as_deref(), Some("rate"));
        assert_eq!(over(&cells, Some("rtt")).as_deref(), Some("rtt"));
        assert_eq!(over(&cells, Some("cc")).as_deref(), Some("rate"), "names are no numbers");
        let equal = crossed(&[counted("rate", 3), counted("rtt", 3)]);
        assert_eq!(over(&equal, None).as_deref(), Some("rtt"));
    }

    #[test]
    fn one_or_two_values_names_and_mixed_units_draw_nothing() {
        let mixed = vec![number("x", "1ms", 1e3, "us"), number("x", "2", 2.0, ""), number("x", "3", 3.0, "")];
        for axis in [counted("x", 1), counted("x", 2), named("x", &["a", "b", "c"]), mixed, vec![]] {
            assert_eq!(layout(&crossed(&[axis]), None), None);
        }
        let zero =
            vec![number("x", "0", 0.0, ""), number("x", "1ms", 1e3, "us"), number("x", "2ms", 2e3, "us")];
        assert_eq!(
            layout(&crossed(&[zero]), None).unwrap().over.unit.as_deref(),
            Some("us"),
            "0 has any unit"
        );
    }

    #[test]
    fn axes_with_one_value_and_those_in_step_tell_nothing_apart() {
        let mut cells = crossed(&[counted("rate", 3), named("cc", &["a", "b"]), named("way", &["up"])]);
        for cell in &mut cells {
            let rate = cell[0].number.unwrap();
            cell.push(number("queue", &format!("{rate}KB"), rate * 1000.0, "bytes"));
        }
        let found = layout(&cells, None).unwrap();
        assert_eq!(
            (found.over.name.as_str(), found.lines, found.in_step),
            ("rate", vec!["cc".into()], vec!["queue".into()])
        );
    }

    #[test]
    fn of_too_many_lines_numbers_become_figures_first() {
        let found =
            layout(&crossed(&[named("cc", &["a", "b", "c"]), counted("queue", 4), counted("rtt", 6)]), None);
        let found = found.unwrap();
        assert_eq!((found.lines, found.parts), (vec!["cc".to_owned()], vec!["queue".to_owned()]));
        let few =
            layout(&crossed(&[named("cc", &["a", "b", "c"]), counted("queue", 2), counted("rtt", 6)]), None);
        assert_eq!((few.clone().unwrap().lines.len(), few.unwrap().parts.len()), (2, 0), "six lines fit");
    }

    #[test]
    fn lines_are_called_by_their_axes_and_cases_by_their_names() {
        let points = [AxisPoint::named("case", "narrow"), AxisPoint::named("cc", "reno")];
        assert_eq!(in_words(&points), "narrow, cc=reno");
    }
}
