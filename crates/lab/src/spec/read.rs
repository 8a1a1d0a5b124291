//! From the tables of a file to an experiment: sections, cases, the cells of a sweep.

use super::{
    CableSpec, Case, ExpectSpec, Experiment, Problem, PublishedSpec, Setting, SpecError, check, decode,
    expect::{self, Known},
    include::Source,
    overlay,
    sweep::{self, Point, Sweep},
};
use longfat_link::{LinkSpec, spec::Traces};
use longfat_schema::run::AxisPoint;
use serde::Deserialize;
use std::{collections::BTreeMap, path::Path};
use toml::{Table, Value};

/// The case of a file that has none.
const NO_CASE: &str = "default";

/// Sections that are read apart from the head.
pub(super) const SECTIONS: [&str; 11] = [
    "hosts",
    "links",
    "flows",
    "relays",
    "follows",
    "cc",
    "cases",
    "expect",
    "published",
    "sweep",
    "include",
];

#[derive(Debug, Deserialize)]
struct CaseFile {
    name: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    set: BTreeMap<String, Value>,
    #[serde(default)]
    published: Vec<PublishedSpec>,
}

#[derive(Debug, Deserialize)]
struct CableFile {
    between: Vec<String>,
}

impl Experiment {
    /// Reads an experiment file with overrides of the command line (`KEY`, value) on top of every case.
    pub fn read(text: &str, overrides: &[(String, Value)]) -> Result<Experiment, SpecError> {
        Experiment::from_table(&Source::of_text(text)?.table, overrides, Path::new("."))
    }

    /// As [`Experiment::read`], from a file that has been read with all it includes. Traces lie where `base` says.
    pub fn from_table(
        table: &Table,
        overrides: &[(String, Value)],
        base: &Path,
    ) -> Result<Experiment, SpecError> {
        let mut problems = Vec::new();
        let mut experiment = read_all(table, overrides, &mut problems);
        if let Some(experiment) = &mut experiment {
            load_traces(experiment, base, &mut problems);
            check::experiment(experiment, &mut problems);
        }
        let mut unique = Vec::new();
        problems.into_iter().for_each(|p| {
            if !unique.contains(&p) {
                unique.push(p)
            }
        });
        match experiment {
            Some(experiment) if unique.is_empty() => Ok(experiment),
            _ => Err(SpecError::Problems(unique)),
        }
    }
}

/// Reads what the links of every case follow; what cannot be read is followed no more, so that it is said once.
fn load_traces(experiment: &mut Experiment, base: &Path, problems: &mut Vec<Problem>) {
    let mut read = Traces::default();
    let settings = experiment.cases.iter_mut().map(|case| &mut case.setting);
    for (name, cable) in settings.flat_map(|setting| &mut setting.links) {
        if let Err(error) = cable.line.load_traces(name, base, &mut read) {
            let message = format!("{} {}; {}", error.value, error.why, error.mend);
            problems.push(Problem::new(format!("links.{name}.{}", error.field), message));
            cable.line.trace = None;
            cable.line.backward.iter_mut().for_each(|backward| backward.trace = None);
        }
    }
}

fn read_all(table: &Table, overrides: &[(String, Value)], problems: &mut Vec<Problem>) -> Option<Experiment> {
    let mut base = table.clone();
    lay_overrides(&mut base, overrides, problems);
    if base.contains_key("include") {
        problems.push(Problem::new("include", "is for files; a text by itself has nothing beside it"));
    }
    let sweep = Sweep::read(&base, overrides, problems);
    let setting = read_setting(&base, problems)?;
    let files: Vec<CaseFile> = read_list(&base, "cases", problems);
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    sweep.check_exclusions(&names_of_cases(&base), problems);
    let coordinates = sweep.coordinates(if sweep.is_empty() { &[] } else { &names });
    let published: Vec<PublishedSpec> = read_list(&base, "published", problems);
    let expect: Vec<ExpectSpec> = read_expectations(&base, problems);
    let before = problems.clone();
    let mut cases = read_cases(&base, &setting, &files, &sweep, overrides, problems);
    if cases.is_empty() && *problems == before {
        problems.push(Problem::new(
            "sweep.exclude",
            "leaves out every cell, and there is nothing to run; leave out fewer",
        ));
        return None;
    }
    // What is wrong with the file itself is said once, not once per case.
    if !before.is_empty() {
        *problems = before;
        return None;
    }
    // A case that could not be read lacks what others then seem to miss.
    if !problems.is_empty() {
        return None;
    }
    publish(published, &mut cases, &coordinates, problems);
    let head = setting.head;
    let known = Known { cases: &cases, coordinates: &coordinates, focus: head.focus.as_deref() };
    let expect = expect::resolve(&expect, &known, problems);
    Some(Experiment { head, cases, expect })
}

/// Names that cases have, whatever else is wrong with them.
fn names_of_cases(table: &Table) -> Vec<&str> {
    let cases = table.get("cases").and_then(Value::as_array).into_iter().flatten();
    cases.filter_map(|case| case.get("name")?.as_str()).collect()
}

/// `expect = "fairness > 0.9"`, a list of such, `[[expect]]`, or both kinds in one list.
fn read_expectations(table: &Table, problems: &mut Vec<Problem>) -> Vec<ExpectSpec> {
    let short =
        |that: &str| Value::Table(Table::from_iter([("that".to_owned(), Value::String(that.to_owned()))]));
    let whole = |item: &Value| item.as_str().map_or_else(|| item.clone(), short);
    let list = match table.get("expect") {
        None => return Vec::new(),
        Some(Value::Array(items)) => Value::Array(items.iter().map(whole).collect()),
        Some(one) => Value::Array(vec![whole(one)]),
    };
    read_list(&Table::from_iter([("expect".to_owned(), list)]), "expect", problems)
}

/// Gives every case (cell) its published figures.
fn publish(
    published: Vec<PublishedSpec>,
    cases: &mut [Case],
    coordinates: &[(String, Vec<String>)],
    problems: &mut Vec<Problem>,
) {
    for (index, figure) in published.into_iter().enumerate() {
        let path = format!("published.{}", index + 1);
        for (axis, labels) in &figure.at {
            sweep::check_labels(&format!("{path}.at"), axis, labels, coordinates, problems);
        }
        let is_its = |case: &&mut Case| {
            figure.case.as_ref().is_none_or(|name| case.is_called(name)) && case.is_at(&figure.at)
        };
        let mut count = 0;
        for case in cases.iter_mut().filter(is_its) {
            case.published.push(figure.clone());
            count += 1;
        }
        if count == 0 {
            problems.push(Problem::new(path, "is of no case or cell that there is"));
        } else {
            let its = cases.iter().filter(|case| case.published.contains(&figure));
            expect::check_published(&path, &figure, its, problems);
        }
    }
}

fn lay_overrides(table: &mut Table, overrides: &[(String, Value)], problems: &mut Vec<Problem>) {
    for (key, value) in overrides {
        let laid = overlay::set(table, key, value.clone());
        problems.extend(laid.err().map(|p| Problem::new(format!("--set {}", p.path), p.message)));
    }
}

fn read_cases(
    base: &Table,
    setting: &Setting,
    files: &[CaseFile],
    sweep: &Sweep,
    overrides: &[(String, Value)],
    problems: &mut Vec<Problem>,
) -> Vec<Case> {
    if files.is_empty() && sweep.is_empty() {
        let title = setting.head.title.clone();
        let name = NO_CASE.to_owned();
        let (published, axes, setting) = (Vec::new(), Vec::new(), setting.clone());
        return vec![Case { base: name.clone(), name, title, published, axes, setting }];
    }
    let mut reading = Reading { base, sweep, overrides, said: Vec::new() };
    if files.is_empty() {
        return reading.cells(None, problems);
    }
    files.iter().flat_map(|file| reading.cells(Some(file), problems)).collect()
}

/// What cases are made of.
struct Reading<'a> {
    base: &'a Table,
    sweep: &'a Sweep,
    overrides: &'a [(String, Value)],
    /// Problems of cases: what is wrong with many is said of the first.
    said: Vec<Problem>,
}

impl Reading<'_> {
    /// A case in each cell of the sweep.
    fn cells(&mut self, file: Option<&CaseFile>, problems: &mut Vec<Problem>) -> Vec<Case> {
        let mut table = self.base.clone();
        let place = file.map_or_else(|| "sweep".to_owned(), |file| format!("cases.{}.set", file.name));
        let mut own = Vec::new();
        for (key, value) in file.iter().flat_map(|file| &file.set) {
            own.extend(overlay::set_in_case(&mut table, key, value.clone()).err());
            if let Some(axis) = self.sweep.axis_of(key) {
                let message = format!("the axis '{}' of [sweep] sets it too; take it out of one", axis.name);
                own.push(Problem::new(key, message));
            }
        }
        self.say(&place, own, problems);
        let cells = self.sweep.cells(file.map(|file| file.name.as_str()));
        let cells = cells.into_iter().filter_map(|cell| self.cell(&table, file, &place, &cell, problems));
        let cells: Vec<Case> = cells.collect();
        for (file, figure) in
            file.iter().flat_map(|file| file.published.iter().map(move |figure| (file, figure)))
        {
            let path = format!("cases.{}.published", file.name);
            expect::check_published(&path, figure, cells.iter(), problems);
        }
        cells
    }

    fn cell(
        &mut self,
        table: &Table,
        file: Option<&CaseFile>,
        place: &str,
        cell: &[&Point],
        problems: &mut Vec<Problem>,
    ) -> Option<Case> {
        let mut table = table.clone();
        let mut own = Vec::new();
        for (key, value) in cell.iter().flat_map(|point| &point.set) {
            own.extend(overlay::set_in_case(&mut table, key, value.clone()).err());
        }
        // The command line has the last word, also over the case.
        lay_overrides(&mut table, self.overrides, &mut Vec::new());
        let setting = read_setting(&table, &mut own);
        self.say(place, own, problems);
        let (title, published) = match file {
            Some(file) => (file.title.clone(), file.published.clone()),
            None => (String::new(), Vec::new()),
        };
        let mut axes: Vec<AxisPoint> = cell.iter().map(|point| point.at.clone()).collect();
        let words: Vec<String> = axes.iter().map(AxisPoint::to_string).collect();
        if let Some(file) = file.filter(|_| !cell.is_empty()) {
            axes.insert(0, AxisPoint::named("case", &file.name));
        }
        let called = file.map(|file| file.name.clone());
        let title =
            if words.is_empty() { title } else { format!("{title} {}", words.join(", ")).trim().to_owned() };
        let mut case = Case {
            name: called.iter().chain(&words).cloned().collect::<Vec<_>>().join(","),
            base: called.unwrap_or_else(|| NO_CASE.to_owned()),
            title,
            published,
            axes,
            setting: setting?,
        };
        let published = std::mem::take(&mut case.published);
        case.published = published.into_iter().filter(|figure| case.is_at(&figure.at)).collect();
        Some(case)
    }

    fn say(&mut self, place: &str, own: Vec<Problem>, problems: &mut Vec<Problem>) {
        for problem in own {
            if !self.said.contains(&problem) {
                problems.push(Problem::new(format!("{place}: {}", problem.path), &problem.message));
                self.said.push(problem);
            }
        }
    }
}

fn read_setting(table: &Table, problems: &mut Vec<Problem>) -> Option<Setting> {
    let mut top = table.clone();
    SECTIONS.iter().for_each(|section| drop(top.remove(*section)));
    let head = decode::decode(&Value::Table(top), "", &SECTIONS, problems);
    let hosts = read_table(table, "hosts", problems);
    let links = read_named(table, "links", problems, read_cable);
    let flows = read_table(table, "flows", problems);
    let relays = read_table(table, "relays", problems);
    let follows = read_table(table, "follows", problems);
    let tunables = read_table(table, "cc", problems);
    Some(Setting { head: head?, hosts, links, flows, relays, follows, tunables })
}

fn read_table<T: serde::de::DeserializeOwned>(
    table: &Table,
    section: &str,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, T> {
    read_named(table, section, problems, |value, path, problems| decode::decode(value, path, &[], problems))
}

fn read_named<T>(
    table: &Table,
    section: &str,
    problems: &mut Vec<Problem>,
    read: impl Fn(&Value, &str, &mut Vec<Problem>) -> Option<T>,
) -> BTreeMap<String, T> {
    let empty = Table::new();
    let entries = match table.get(section) {
        None => &empty,
        Some(Value::Table(entries)) => entries,
        Some(_) => {
            let message = format!("is a table of named entries; write [{section}.NAME]");
            problems.push(Problem::new(section, message));
            &empty
        }
    };
    let mut found = BTreeMap::new();
    for (name, value) in entries {
        let decoded = read(value, &decode::join(section, name), problems);
        found.extend(decoded.map(|thing| (name.clone(), thing)));
    }
    found
}

fn read_list<T: serde::de::DeserializeOwned>(
    table: &Table,
    section: &str,
    problems: &mut Vec<Problem>,
) -> Vec<T> {
    match table.get(section) {
        None => Vec::new(),
        Some(Value::Array(items)) => {
            let mut found = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str).map(str::to_owned);
                let path = format!("{section}.{}", name.unwrap_or_else(|| (index + 1).to_string()));
                found.extend(decode::decode(item, &path, &[], problems));
            }
            found
        }
        Some(_) => {
            problems.push(Problem::new(section, format!("is a list of tables; write [[{section}]]")));
            Vec::new()
        }
    }
}

/// A link's table holds its two ends and the keys of [`LinkSpec`].
fn read_cable(value: &Value, path: &str, problems: &mut Vec<Problem>) -> Option<CableSpec> {
    const OWN: [&str; 1] = ["between"];
    let Value::Table(table) = value else {
        problems.push(Problem::new(path, "is a table; write it like { between = [\"a\", \"b\"] }"));
        return None;
    };
    let (own, rest): (Table, Table) =
        table.clone().into_iter().partition(|(key, _)| OWN.contains(&key.as_str()));
    let file: Option<CableFile> = decode::decode(&Value::Table(own), path, &[], problems);
    let line: Option<LinkSpec> = decode::decode(&Value::Table(rest), path, &OWN, problems);
    Some(CableSpec { between: file?.between, line: line? })
}
