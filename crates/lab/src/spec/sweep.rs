//! `[sweep]`: axes along which keys of the file change, crossed by default. Each combination is a cell: a case of its
//! own, named by its values.
//!
//! ```toml
//! [sweep]
//! "links.path.rate" = ["25Mbit", "50Mbit"]                  # a key and its values: the axis is called `rate`
//! rtt = { set = "links.path.delay", values = ["5ms", "50ms"], labels = ["10ms", "100ms"] }
//! buffers = { set = ["flows.a.sndbuf", "flows.b.sndbuf"], values = ["64KiB", "1MiB"] }
//! queue = { values = [{ links.path.queue.limit = "1MB", sysctls."net.ipv4.tcp_ecn" = 1 }, …], labels = […] }
//! zip = [["rate", "buffers"]]                               # these go in step instead of crossed
//! exclude = [{ rate = "25Mbit", rtt = ["10ms", "100ms"] }]  # by labels; `case` too
//! ```

use super::{
    Head, Problem,
    decode::{self, join, unknown},
    overlay::{self, Value},
};
use longfat_schema::{
    run::AxisPoint,
    units::{Nanos, Rate, Size},
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use toml::Table;

/// Keys of `[sweep]` that are no axes.
const OWN: [&str; 2] = ["zip", "exclude"];
/// Names that every run's coordinates have besides its axes.
const RESERVED: [&str; 2] = ["case", "repeat"];
/// Longest label: labels become directories and parts of names.
const LABEL_MAX: usize = 60;

/// One or several texts.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// `"a"`.
    One(#[schemars(schema_with = "super::schema::label")] String),
    /// `["a", "b"]`.
    Many(#[schemars(schema_with = "super::schema::labels")] Vec<String>),
}

impl OneOrMany {
    /// All of them.
    pub fn all(&self) -> &[String] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }
}

/// Labels wanted of some coordinates.
pub type Filter = BTreeMap<String, OneOrMany>;

/// One value of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// How it is called, and what it is as a number.
    pub at: AxisPoint,
    /// Keys it sets.
    pub set: Vec<(String, Value)>,
}

/// One axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name of the axis.
    pub name: String,
    /// Points of the axis, in order.
    pub points: Vec<Point>,
    /// Whether the command line changed them: labels that the file speaks of may be gone.
    pub changed: bool,
}

/// What `[sweep]` says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sweep {
    /// Axes of a group go in step; groups are crossed.
    groups: Vec<Vec<Axis>>,
    /// Cells left out.
    exclude: Vec<Filter>,
    /// Names of axes that have faults of their own and are left out: what speaks of them is not wrong.
    faulty: BTreeSet<String>,
}

/// An axis as a table of the file.
#[derive(Debug, Deserialize)]
struct AxisFile {
    set: Option<OneOrMany>,
    values: Vec<Value>,
    labels: Option<Vec<String>>,
}

impl Sweep {
    /// Reads the `[sweep]` of a file. An axis that the command line sets becomes that one value.
    pub fn read(file: &Table, overrides: &[(String, Value)], problems: &mut Vec<Problem>) -> Sweep {
        let Some(section) = file.get("sweep") else { return Sweep::default() };
        let Value::Table(section) = section else {
            problems
                .push(Problem::new("sweep", "is a table of axes; write [sweep] and KEY = [VALUES] below it"));
            return Sweep::default();
        };
        let (own, axes): (Table, Table) =
            section.clone().into_iter().partition(|(key, _)| OWN.contains(&key.as_str()));
        let (mut drafts, mut faulty) = (Vec::new(), BTreeSet::new());
        collect(&axes, &[], &mut drafts, (problems, &mut faulty));
        for draft in &mut drafts {
            draft.changed = overrides.iter().any(|(key, _)| changes(key, &draft.path));
        }
        let mut axes = named(drafts, (problems, &mut faulty));
        overrides.iter().for_each(|(key, value)| override_axis(&mut axes, key, value, problems));
        check_axes(&axes, problems);
        let zip: Vec<Vec<String>> = own
            .get("zip")
            .and_then(|value| decode::decode(value, "sweep.zip", &[], problems))
            .unwrap_or_default();
        let exclude: Vec<Filter> = own
            .get("exclude")
            .and_then(|value| decode::decode(value, "sweep.exclude", &[], problems))
            .unwrap_or_default();
        let zip: Vec<Vec<String>> =
            zip.into_iter().filter(|names| names.iter().all(|name| !faulty.contains(name))).collect();
        let groups = zipped(axes, &zip, (problems, &mut faulty));
        Sweep { groups, exclude, faulty }
    }

    /// Whether there is nothing to sweep.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Every axis, in order.
    pub fn axes(&self) -> impl Iterator<Item = &Axis> {
        self.groups.iter().flatten()
    }

    /// The axis that sets a key, if one does.
    pub fn axis_of(&self, key: &str) -> Option<&Axis> {
        self.axes()
            .find(|axis| axis.points.iter().flat_map(|point| &point.set).any(|(set, _)| touches(set, key)))
    }

    /// Every combination that is not excluded, the last axis fastest. `case` is the case's name, when there are cases.
    pub fn cells<'a>(&'a self, case: Option<&str>) -> Vec<Vec<&'a Point>> {
        let mut cells: Vec<Vec<&'a Point>> = vec![Vec::new()];
        for group in &self.groups {
            let steps = group.first().map_or(0, |axis| axis.points.len());
            let longer = |cell: &Vec<&'a Point>| {
                let step = |step: usize| group.iter().map(move |axis| &axis.points[step]);
                (0..steps).map(|at| cell.iter().copied().chain(step(at)).collect()).collect::<Vec<_>>()
            };
            cells = cells.iter().flat_map(longer).collect();
        }
        cells.retain(|cell| !self.exclude.iter().any(|filter| excludes(filter, case, cell)));
        cells
    }

    /// Names exclusions that say nothing: an axis, case or label that there is not. Of an axis that the command line
    /// changed, a label may be gone.
    pub fn check_exclusions(&self, cases: &[&str], problems: &mut Vec<Problem>) {
        for (index, filter) in self.exclude.iter().enumerate() {
            let path = format!("sweep.exclude[{index}]");
            if filter.is_empty() {
                problems.push(Problem::new(&path, "is empty and would leave out every run"));
            }
            let coordinates = self.coordinates(cases);
            let is_changed = |name: &str| self.axes().any(|axis| axis.changed && axis.name == name);
            let is_said = |name: &String| is_changed(name) || self.faulty.contains(name);
            for (axis, labels) in filter.iter().filter(|(axis, _)| !is_said(axis)) {
                check_labels(&path, axis, labels, &coordinates, problems);
            }
        }
    }

    /// Every coordinate with its labels: `case` when there are cases, then the axes.
    pub fn coordinates(&self, cases: &[&str]) -> Vec<(String, Vec<String>)> {
        let of_axis = |axis: &Axis| {
            (axis.name.clone(), axis.points.iter().map(|point| point.at.label.clone()).collect())
        };
        let cases = (!cases.is_empty())
            .then(|| ("case".to_owned(), cases.iter().map(|case| (*case).to_owned()).collect()));
        cases.into_iter().chain(self.axes().map(of_axis)).collect()
    }
}

/// Says which coordinate or label of a filter there is not.
pub fn check_labels(
    path: &str,
    axis: &str,
    labels: &OneOrMany,
    coordinates: &[(String, Vec<String>)],
    problems: &mut Vec<Problem>,
) {
    let Some((_, known)) = coordinates.iter().find(|(name, _)| name == axis) else {
        let names = coordinates.iter().map(|(name, _)| name.as_str());
        problems.push(Problem::new(path, unknown("axis", axis, names)));
        return;
    };
    for label in labels.all().iter().filter(|label| !known.contains(label)) {
        let known = known.iter().map(String::as_str);
        problems.push(Problem::new(join(path, axis), unknown("label", label, known)));
    }
}

fn excludes(filter: &Filter, case: Option<&str>, cell: &[&Point]) -> bool {
    let label_of = |axis: &str| match axis {
        "case" => case,
        _ => cell.iter().find(|point| point.at.axis == axis).map(|point| point.at.label.as_str()),
    };
    !filter.is_empty() && holds(filter, label_of)
}

/// Whether every coordinate that a filter names has one of the labels it wants.
pub fn holds<'a>(filter: &Filter, label_of: impl Fn(&str) -> Option<&'a str>) -> bool {
    filter.iter().all(|(axis, labels)| {
        label_of(axis).is_some_and(|label| labels.all().iter().any(|wanted| wanted == label))
    })
}

/// Whether setting one key changes what the other sets.
fn touches(a: &str, b: &str) -> bool {
    let (Ok(a), Ok(b)) = (overlay::split(a), overlay::split(b)) else { return false };
    a.iter().zip(&b).all(|(a, b)| a == b)
}

/// Parts of a key as a dotted one.
fn dotted(within: &str, parts: &[String]) -> String {
    parts.iter().fold(within.to_owned(), |path, part| join(&path, part))
}

/// An axis before it has a name: where it stands in `[sweep]`, as parts of a dotted key.
struct Draft {
    path: Vec<String>,
    file: AxisFile,
    changed: bool,
}

/// Whether a key of the command line is of an axis itself: `sweep.rtt.values`.
fn changes(key: &str, axis: &[String]) -> bool {
    let of_sweep = |parts: &[String]| {
        Some(parts.split_first().filter(|(first, _)| first.as_str() == "sweep")?.1.join("."))
    };
    let rest = overlay::split(key).ok().and_then(|parts| of_sweep(&parts));
    rest.is_some_and(|rest| touches(&rest, &axis.join(".")))
}

/// Whether the top of the file has this key, so that it can be swept without a name.
fn is_top_key(key: &str) -> bool {
    schemars::schema_for!(Head).as_value()["properties"].get(key).is_some()
}

/// What is wrong, and the axes whose fault it is.
type Faults<'a> = (&'a mut Vec<Problem>, &'a mut BTreeSet<String>);

/// Tables without `values` are parts of dotted keys: `links.path.rate = […]` need not be quoted.
fn collect(table: &Table, above: &[String], found: &mut Vec<Draft>, (problems, faulty): Faults<'_>) {
    for (key, value) in table {
        let mut path = above.to_vec();
        match overlay::split(key) {
            Ok(parts) => path.extend(parts),
            Err(why) => problems.push(Problem::new(join("sweep", key), why)),
        }
        let shown = || dotted("sweep", &path);
        match value {
            Value::Array(values) => {
                let file = AxisFile { set: None, values: values.clone(), labels: None };
                found.push(Draft { path, file, changed: false });
            }
            Value::Table(axis) if axis.contains_key("values") => {
                let before = problems.len();
                match decode::decode(value, &shown(), &[], problems).filter(|_| problems.len() == before) {
                    Some(file) => found.push(Draft { path, file, changed: false }),
                    None => faulty.extend(path.pop()),
                }
            }
            Value::Table(deeper) => collect(deeper, &path, found, (&mut *problems, &mut *faulty)),
            _ => {
                problems.push(Problem::new(shown(), "is no list of values; write KEY = [VALUE, VALUE]"));
                faulty.extend(path.pop());
            }
        }
    }
}

/// A key's axis is called by its last part; where two would have the same name, by as many as tell them apart.
fn named(drafts: Vec<Draft>, (problems, faulty): Faults<'_>) -> Vec<Axis> {
    let paths: Vec<Vec<String>> = drafts.iter().map(|draft| draft.path.clone()).collect();
    let mut axes = Vec::new();
    for (index, draft) in drafts.into_iter().enumerate() {
        let others = || paths.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, path)| path);
        let unique = |parts: &usize| !others().any(|other| tail(other, *parts) == tail(&draft.path, *parts));
        let parts = (1..=draft.path.len()).find(unique).unwrap_or(draft.path.len());
        let name = tail(&draft.path, parts).join(".");
        match axis(name.clone(), draft, problems) {
            Some(axis) => axes.push(axis),
            None => faulty.extend([name]),
        }
    }
    axes
}

fn tail(path: &[String], parts: usize) -> &[String] {
    &path[path.len().saturating_sub(parts)..]
}

fn axis(name: String, draft: Draft, problems: &mut Vec<Problem>) -> Option<Axis> {
    let path = dotted("sweep", &draft.path);
    let changed = draft.changed;
    let AxisFile { set, values, labels } = draft.file;
    if values.is_empty() {
        problems.push(Problem::new(path, "has no values"));
        return None;
    }
    if let Some(labels) = labels.as_ref().filter(|labels| labels.len() != values.len()) {
        let message =
            format!("has {} values and {} labels; give each value its label", values.len(), labels.len());
        problems.push(Problem::new(path, message));
        return None;
    }
    let keys = match set {
        Some(keys) => keys.all().to_vec(),
        None if values.iter().all(Value::is_table) => Vec::new(),
        None if draft.path.len() == 1 && !is_top_key(&draft.path[0]) => {
            let message = format!(
                "'{name}' is no key of the file; say which it sets: {name} = {{ set = \"links.NAME.delay\", values = […] }}"
            );
            problems.push(Problem::new(path, message));
            return None;
        }
        None => vec![dotted("", &draft.path)],
    };
    let labels =
        labels.map(|labels| labels.into_iter().map(Some).collect()).unwrap_or(vec![None; values.len()]);
    let points = values.into_iter().zip(labels).map(|(value, label)| point(&name, &keys, value, label));
    let points: Result<Vec<Point>, String> = points.collect();
    let axis = points.map(|points| Axis { name, points, changed });
    axis.map_err(|why| problems.push(Problem::new(path, why))).ok()
}

fn point(axis: &str, keys: &[String], value: Value, label: Option<String>) -> Result<Point, String> {
    let shown = label_of(&value);
    let label =
        label.or_else(|| shown.clone()).ok_or("values that are tables need labels = [\"…\", \"…\"]")?;
    let (number, unit) = measure(&label).or_else(|| measure(shown.as_deref()?)).unzip();
    let at = AxisPoint { axis: axis.to_owned(), label, number, unit: unit.unwrap_or_default().to_owned() };
    let set = match value {
        Value::Table(table) if keys.is_empty() => leaves(&table, ""),
        value => keys.iter().map(|key| (key.clone(), value.clone())).collect(),
    };
    Ok(Point { at, set })
}

/// What a value is called when nobody says.
fn label_of(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(label_of).collect::<Option<Vec<_>>>()?.join("+"),
        Value::Table(_) => return None,
        other => other.to_string(),
    };
    let plain = |c: char| if is_plain(c) { c } else { '-' };
    Some(text.chars().map(plain).collect())
}

/// What directories and names can hold everywhere.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '%')
}

/// A label as a number in its base unit, where it is one.
fn measure(label: &str) -> Option<(f64, &'static str)> {
    let plain = label.parse::<f64>().ok().filter(|number| number.is_finite()).map(|number| (number, ""));
    let rate = || label.parse().ok().map(|Rate(bps)| (bps as f64, "bps"));
    let time = || label.parse().ok().map(|Nanos(ns)| (ns as f64 / 1000.0, "us"));
    let size = || label.parse().ok().map(|Size(bytes)| (bytes as f64, "bytes"));
    let share = || label.strip_suffix('%')?.parse::<f64>().ok().map(|percent| (percent / 100.0, "ratio"));
    plain.or_else(rate).or_else(time).or_else(size).or_else(share)
}

/// Every value of a table under its dotted key.
fn leaves(table: &Table, prefix: &str) -> Vec<(String, Value)> {
    let leaf = |(key, value): (&String, &Value)| {
        // A key that holds dots is a dotted key where it begins one, and a name where it does not.
        let path = if prefix.is_empty() { key.clone() } else { join(prefix, key) };
        match value {
            Value::Table(deeper) if !deeper.is_empty() => leaves(deeper, &path),
            value => vec![(path, value.clone())],
        }
    };
    table.iter().flat_map(leaf).collect()
}

fn override_axis(axes: &mut [Axis], key: &str, value: &Value, problems: &mut Vec<Problem>) {
    for axis in axes {
        let sets = || axis.points.iter().flat_map(|point| &point.set);
        if !sets().any(|(set, _)| touches(set, key)) {
            continue;
        }
        let same = |set: &str| overlay::split(set).ok() == overlay::split(key).ok();
        let only = axis.points.iter().all(|point| matches!(point.set.as_slice(), [(set, _)] if same(set)));
        match point(&axis.name, &[key.to_owned()], value.clone(), None) {
            Ok(point) if only => (axis.points, axis.changed) = (vec![point], true),
            _ => {
                let message = format!(
                    "the axis '{0}' of [sweep] sets it, and more; change the axis instead: --set 'sweep.{0}.values=[…]'",
                    axis.name
                );
                problems.push(Problem::new(format!("--set {key}"), message));
            }
        }
    }
}

/// Why an axis cannot be called so.
fn why_no_name(name: &str) -> Option<String> {
    if RESERVED.contains(&name) {
        let others: Vec<&str> = RESERVED.into_iter().chain(OWN).filter(|other| *other != name).collect();
        return Some(format!(
            "'{name}' cannot be an axis's name: every run has its {name} beside its axes; call the axis something else, \
             and say which key it sets: NAME = {{ set = \"KEY\", values = […] }} (not '{}' either)",
            others.join("', '")
        ));
    }
    let is_name = !name.is_empty() && name.chars().all(is_plain);
    (!is_name).then(|| {
        format!("'{name}' cannot be an axis's name; use letters, digits, '-', '_', '.', '+' and '%'")
    })
}

fn check_axes(axes: &[Axis], problems: &mut Vec<Problem>) {
    let mut names = BTreeSet::new();
    for axis in axes {
        let path = join("sweep", &axis.name);
        let mut say = |message: String| problems.push(Problem::new(&path, message));
        if !names.insert(&axis.name) {
            say("two axes have this name".to_owned());
        }
        if let Some(why) = why_no_name(&axis.name) {
            say(why);
        }
        let mut labels = BTreeSet::new();
        for label in axis.points.iter().map(|point| &point.at.label) {
            if !labels.insert(label) {
                say(format!("two values are called '{label}'; give labels = [\"…\", \"…\"]"));
            }
            if label.is_empty() || label.len() > LABEL_MAX || !label.chars().all(is_plain) {
                say(format!(
                    "'{label}' cannot be a label; use 1 to {LABEL_MAX} letters, digits, '-', '_', '.', '+', '%'"
                ));
            }
        }
    }
    for (index, axis) in axes.iter().enumerate() {
        let keys = |axis: &Axis| {
            axis.points.iter().flat_map(|p| p.set.iter().map(|(key, _)| key.clone())).collect::<BTreeSet<_>>()
        };
        let mine = keys(axis);
        for other in &axes[index + 1..] {
            if let Some(key) = keys(other).iter().find(|key| mine.iter().any(|own| touches(own, key))) {
                let message = format!("sets '{key}', which the axis '{}' sets too", axis.name);
                problems.push(Problem::new(join("sweep", &other.name), message));
            }
        }
    }
}

fn zipped(axes: Vec<Axis>, zip: &[Vec<String>], (problems, faulty): Faults<'_>) -> Vec<Vec<Axis>> {
    let mut seen = BTreeSet::new();
    for name in zip.iter().flatten() {
        if axes.iter().all(|axis| axis.name != *name) {
            problems
                .push(Problem::new("sweep.zip", unknown("axis", name, axes.iter().map(|a| a.name.as_str()))));
        } else if !seen.insert(name) {
            problems.push(Problem::new("sweep.zip", format!("names the axis '{name}' twice")));
        }
    }
    let mut groups: Vec<(Option<usize>, Vec<Axis>)> = Vec::new();
    for axis in axes {
        let group = zip.iter().position(|names| names.contains(&axis.name));
        match groups.iter_mut().find(|(of, _)| group.is_some() && *of == group) {
            Some((_, axes)) => axes.push(axis),
            None => groups.push((group, vec![axis])),
        }
    }
    let mut even = Vec::new();
    for (_, group) in groups {
        let lengths: BTreeSet<usize> = group.iter().map(|axis| axis.points.len()).collect();
        if lengths.len() > 1 {
            let shown: Vec<_> =
                group.iter().map(|axis| format!("'{}' {}", axis.name, axis.points.len())).collect();
            let message = format!("axes that go in step need as many values each; {} have", shown.join(", "));
            problems.push(Problem::new("sweep.zip", message));
            faulty.extend(group.into_iter().map(|axis| axis.name));
        } else {
            even.push(group);
        }
    }
    even
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Sweep, Vec<String>) {
        read_with(text, &[])
    }

    fn read_with(text: &str, overrides: &[(&str, &str)]) -> (Sweep, Vec<String>) {
        let overrides: Vec<_> = overrides
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Value::String((*value).into())))
            .collect();
        let mut problems = Vec::new();
        let sweep = Sweep::read(&format!("[sweep]\n{text}").parse().unwrap(), &overrides, &mut problems);
        sweep.check_exclusions(&[], &mut problems);
        (sweep, problems.iter().map(Problem::to_string).collect())
    }

    fn cells(sweep: &Sweep) -> Vec<String> {
        let name = |cell: Vec<&Point>| cell.iter().map(|p| p.at.to_string()).collect::<Vec<_>>().join(",");
        sweep.cells(None).into_iter().map(name).collect()
    }

    #[test]
    fn axes_are_crossed_in_the_order_of_the_file_and_called_by_the_last_part_of_their_key() {
        let (sweep, problems) =
            read("\"links.path.rate\" = ['25Mbit', '50Mbit']\nflows.a.cc = ['reno', 'cubic']");
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            cells(&sweep),
            ["rate=25Mbit,cc=reno", "rate=25Mbit,cc=cubic", "rate=50Mbit,cc=reno", "rate=50Mbit,cc=cubic"]
        );
        let point = sweep.cells(None)[0][0];
        assert_eq!(point.set, [("links.path.rate".to_owned(), Value::String("25Mbit".into()))]);
        assert_eq!((point.at.number, point.at.unit.as_str()), (Some(25e6), "bps"));
    }

    #[test]
    fn keys_that_end_alike_are_told_apart_by_more_of_their_parts() {
        let (sweep, problems) = read("flows.a.cc = ['reno']\nflows.b.cc = ['reno', 'cubic']");
        assert_eq!(problems, [""; 0]);
        assert_eq!(cells(&sweep), ["a.cc=reno,b.cc=reno", "a.cc=reno,b.cc=cubic"]);
    }

    #[test]
    fn a_named_axis_sets_several_keys_and_has_labels() {
        let (sweep, problems) = read(
            "rtt = { set = ['links.p.delay', 'links.q.delay'], values = ['5ms', '50ms'], labels = ['10ms', '100ms'] }\n\
             kind = { values = [{ links.p.queue.limit = '1MB', 'flows.a.cc' = 'reno' }, { flows.a.cc = 'cubic' }], labels = ['x', 'y'] }",
        );
        assert_eq!(problems, [""; 0]);
        let cell = &sweep.cells(None)[2];
        assert_eq!(cell[0].set.len(), 2);
        assert_eq!((cell[0].at.to_string(), cell[0].at.number), ("rtt=100ms".to_owned(), Some(100_000.0)));
        let keys: Vec<_> = cell[1].set.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["links.p.queue.limit", "flows.a.cc"]);
    }

    #[test]
    fn zipped_axes_go_in_step_and_excluded_cells_are_left_out() {
        let (sweep, problems) = read(
            "a = { set = 'x.a', values = [1, 2] }\nb = { set = 'x.b', values = [3, 4] }\nc = { set = 'x.c', values = [5, 6] }\n\
             zip = [['a', 'c']]\nexclude = [{ a = '2', b = ['3', '4'] }]",
        );
        assert_eq!(problems, [""; 0]);
        assert_eq!(cells(&sweep), ["a=1,c=5,b=3", "a=1,c=5,b=4"]);
    }

    #[test]
    fn the_command_line_leaves_one_value_of_the_axis_it_sets() {
        let text =
            "\"links.path.rate\" = ['25Mbit', '50Mbit']\nboth = { set = ['x.a', 'x.b'], values = [1, 2] }";
        let (sweep, problems) = read_with(text, &[("links.path.rate", "10Mbit")]);
        assert_eq!(problems, [""; 0]);
        assert_eq!(cells(&sweep), ["rate=10Mbit,both=1", "rate=10Mbit,both=2"]);
        let (_, problems) = read_with(text, &[("x.a", "7")]);
        assert!(
            problems[0].contains("axis 'both'") && problems[0].contains("--set 'sweep.both.values"),
            "{problems:?}"
        );
    }

    #[test]
    fn every_key_at_the_top_of_the_file_is_an_axis_by_its_name() {
        for axis in ["family = [4, 6]", "dilate = [1, 2]", "twin_limit = [0.1, 0.2]", "warmup = ['1s', '2s']"]
        {
            let (sweep, problems) = read(axis);
            assert_eq!((problems, cells(&sweep).len()), (Vec::<String>::new(), 2), "{axis}");
        }
    }

    #[test]
    fn an_exclusion_may_name_labels_that_the_command_line_took_away_and_holds_for_those_it_left() {
        let text = "x.a = [1, 2, 3]\nx.b = [4, 5]\nexclude = [{ a = ['2', '3'], b = '4' }]";
        let (sweep, problems) = read_with(text, &[("x.a", "7")]);
        assert_eq!((problems, cells(&sweep)), (vec![], vec!["a=7,b=4".to_owned(), "a=7,b=5".to_owned()]));
        let (sweep, problems) = read_with(text, &[("x.a", "2")]);
        assert_eq!((problems, cells(&sweep)), (vec![], vec!["a=2,b=5".to_owned()]));
        let changed = |key| changes(key, &["x".to_owned(), "a".to_owned()]);
        assert!(changed("sweep.x.a.values") && changed("sweep.\"x.a\"") && changed("sweep.x"));
        assert!(!changed("x.a") && !changed("sweep.x.b") && !changed("sweep.zip"));
    }

    #[test]
    fn what_speaks_of_an_axis_with_a_fault_is_no_fault_too() {
        for axis in ["x.a = []", "x.a = 3", "x.a = { values = [1], label = ['b'] }", "x.a = { values = 1 }"] {
            let text =
                format!("{axis}\nx.b = [1, 2]\nzip = [['a', 'b']]\nexclude = [{{ a = '3', b = '1' }}]");
            let (_, problems) = read(&text);
            assert!(problems.iter().all(|problem| problem.contains("sweep.x.a")), "{axis}: {problems:?}");
            assert!(!problems.is_empty(), "{axis}");
        }
        let (_, problems) =
            read("x.a = [1]\nx.b = [1, 2]\nzip = [['a', 'b']]\nexclude = [{ a = '1', b = '1' }]");
        assert!(problems.len() == 1 && problems[0].starts_with("sweep.zip: "), "{problems:?}");
    }

    #[test]
    fn each_mistake_is_named_with_the_mend() {
        let mistakes = [
            ("rtt = ['1ms']", "sweep.rtt: 'rtt' is no key of the file; say which it sets"),
            ("x.a = []", "sweep.x.a: has no values"),
            ("x.a = 3", "is no list of values"),
            ("x.a = { values = [1, 2], labels = ['one'] }", "2 values and 1 labels"),
            ("x.a = [1, 1]", "two values are called '1'"),
            ("x.a = { values = [1], label = ['b'] }", "did you mean 'labels'"),
            ("k = { values = [{ x.a = 1 }] }", "need labels"),
            (
                "case = { set = 'x.a', values = [1] }",
                "sweep.case: 'case' cannot be an axis's name: every run has its case beside its axes",
            ),
            ("repeat = { set = 'x.a', values = [1] }", "(not 'case', 'zip', 'exclude' either)"),
            (
                "x.a = [1, 2]\nb = { set = 'x.a.c', values = [1] }",
                "sets 'x.a.c', which the axis 'a' sets too",
            ),
            ("x.a = [1, 2]\nzip = [['a', 'bb']]", "unknown axis 'bb'"),
            ("x.a = [1, 2]\nx.b = [1]\nzip = [['a', 'b']]", "as many values each"),
            ("x.a = [1, 2]\nexclude = [{ a = '3' }]", "unknown label '3'"),
            ("x.a = [1, 2]\nexclude = [{}]", "would leave out every run"),
            ("x.a = { values = [1], labels = ['a/b'] }", "'a/b' cannot be a label"),
        ];
        for (text, expected) in mistakes {
            let (_, problems) = read(text);
            assert!(problems.iter().any(|p| p.contains(expected)), "{text}: {problems:?}");
        }
    }
}
