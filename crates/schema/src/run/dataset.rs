//! Every figure of every run of a result in one table, `results.parquet`: a row per run and thing (flow, link
//! direction, relay direction, or the run as a whole), a column per axis and per metric. What sweeps are plotted and
//! queried by.

use super::{
    AxisPoint, RunError, RunManifest, TableError,
    directory::{create_new, unfinished},
    table::properties,
};
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use parquet::arrow::ArrowWriter;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
};

/// Columns that say where a row belongs; `result` and `run` are what `longfat lab query` adds.
const PLACE: [&str; 11] =
    ["experiment", "cell", "repeat", "seed", "backend", "status", "path", "of", "stream", "result", "run"];

/// File name of the dataset.
pub const DATASET_FILE: &str = "results.parquet";

/// One row: a run, and what of it.
struct Row<'a> {
    run: &'a RunManifest,
    of: &'a str,
    stream: Option<u32>,
    values: BTreeMap<&'a str, f64>,
}

/// Writes the dataset of a result. `runs` are given with their directories.
pub fn write_dataset(path: &Path, runs: &[(&str, &RunManifest)]) -> Result<(), RunError> {
    let temporary = unfinished(path);
    let error = |source| RunError::Table { path: path.display().to_string(), source };
    write(&temporary, runs).map_err(error)?;
    fs::rename(&temporary, path).map_err(|source| RunError::io(path, source))
}

fn write(path: &Path, runs: &[(&str, &RunManifest)]) -> Result<(), TableError> {
    let rows: Vec<(&str, Row<'_>)> = runs
        .iter()
        .flat_map(|(directory, run)| rows(run).into_iter().map(move |row| (*directory, row)))
        .collect();
    let batch = RecordBatch::try_from_iter_with_nullable(columns(&rows))?;
    let mut writer = ArrowWriter::try_new(create_new(path)?, batch.schema(), Some(properties()))?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(())
}

/// A run that came to nothing has one row, so that it is not forgotten.
fn rows(run: &RunManifest) -> Vec<Row<'_>> {
    let mut found: BTreeMap<(&str, Option<u32>), BTreeMap<&str, f64>> = BTreeMap::new();
    for metric in &run.metrics {
        found.entry((&metric.of, metric.stream)).or_default().insert(&metric.metric, metric.value);
    }
    if found.is_empty() {
        found.insert(("", None), BTreeMap::new());
    }
    found.into_iter().map(|((of, stream), values)| Row { run, of, stream, values }).collect()
}

fn columns(rows: &[(&str, Row<'_>)]) -> Vec<(String, ArrayRef, bool)> {
    let text = |f: &dyn Fn(&Row<'_>) -> Option<String>| -> ArrayRef {
        Arc::new(rows.iter().map(|(_, row)| f(row)).collect::<StringArray>())
    };
    let runs: Vec<&RunManifest> = rows.iter().map(|(_, row)| row.run).collect();
    let directory = rows.iter().map(|(directory, _)| Some(*directory)).collect::<StringArray>();
    let metrics: BTreeSet<&str> = rows.iter().flat_map(|(_, row)| row.values.keys().copied()).collect();
    let taken: BTreeSet<&str> = PLACE.into_iter().chain(metrics.iter().copied()).collect();
    let mut columns = vec![
        ("experiment".to_owned(), text(&|row| Some(row.run.experiment.clone())), false),
        ("cell".to_owned(), text(&|row| Some(row.run.case.clone())), false),
    ];
    if runs.iter().all(|run| run.axes.iter().all(|at| at.axis != "case")) {
        columns.push(("case".to_owned(), text(&|row| Some(base(row.run))), false));
    }
    columns.extend(axes(&runs, &taken));
    columns.extend([
        ("repeat".to_owned(), whole(runs.iter().map(|run| run.repeat)), false),
        (
            "seed".to_owned(),
            Arc::new(runs.iter().map(|run| Some(run.seed)).collect::<UInt64Array>()) as ArrayRef,
            false,
        ),
        ("backend".to_owned(), text(&|row| Some(row.run.backend.clone())), false),
        ("status".to_owned(), text(&|row| Some(row.run.status.name().to_owned())), false),
        ("path".to_owned(), Arc::new(directory) as ArrayRef, false),
        ("of".to_owned(), text(&|row| Some(row.of.to_owned())), false),
        (
            "stream".to_owned(),
            Arc::new(rows.iter().map(|(_, row)| row.stream).collect::<UInt32Array>()) as ArrayRef,
            true,
        ),
    ]);
    for metric in metrics {
        let values = rows.iter().map(|(_, row)| row.values.get(metric).copied());
        columns.push((metric.to_owned(), Arc::new(values.collect::<Float64Array>()) as ArrayRef, true));
    }
    columns
}

fn whole(values: impl Iterator<Item = u32>) -> ArrayRef {
    Arc::new(values.map(Some).collect::<UInt32Array>())
}

/// The case of a run whose result has no cases besides cells.
fn base(run: &RunManifest) -> String {
    if run.axes.is_empty() { run.case.clone() } else { "default".to_owned() }
}

/// A column of labels per axis; where every label is a number, of numbers, or beside the labels a column of them in
/// their base unit (`rate` and `rate_bps`; `queue` and `queue_number`, where numbers of no unit have names). An axis
/// that is called like another column gets `_axis` at its end.
fn axes(runs: &[&RunManifest], taken: &BTreeSet<&str>) -> Vec<(String, ArrayRef, bool)> {
    let mut names: Vec<&str> = Vec::new();
    for axis in runs.iter().flat_map(|run| &run.axes) {
        if !names.contains(&axis.axis.as_str()) {
            names.push(&axis.axis);
        }
    }
    let mut taken: BTreeSet<String> = taken.iter().map(|name| (*name).to_owned()).collect();
    let columns: Vec<String> = names.iter().map(|name| free(name, &mut taken)).collect();
    names.iter().zip(columns).flat_map(|(name, column)| axis(name, column, runs, &mut taken)).collect()
}

/// A column's name that no other has.
fn free(name: &str, taken: &mut BTreeSet<String>) -> String {
    let mut name = name.to_owned();
    while !taken.insert(name.clone()) {
        name.push_str("_axis");
    }
    name
}

fn axis(
    name: &str,
    column: String,
    runs: &[&RunManifest],
    taken: &mut BTreeSet<String>,
) -> Vec<(String, ArrayRef, bool)> {
    let at =
        |run: &&RunManifest| -> Option<AxisPoint> { run.axes.iter().find(|at| at.axis == name).cloned() };
    let points: Vec<Option<AxisPoint>> = runs.iter().map(at).collect();
    let known: Vec<&AxisPoint> = points.iter().flatten().collect();
    let units: BTreeSet<&str> = known.iter().map(|at| at.unit.as_str()).collect();
    let measured = known.iter().all(|at| at.number.is_some()) && units.len() == 1;
    let numbers = || -> ArrayRef {
        Arc::new(points.iter().map(|at| at.as_ref().and_then(|at| at.number)).collect::<Float64Array>())
    };
    let labels = || -> ArrayRef {
        Arc::new(points.iter().map(|at| at.as_ref().map(|at| at.label.clone())).collect::<StringArray>())
    };
    let says_the_number = |at: &&AxisPoint| at.label.parse().ok() == at.number;
    match units.first().filter(|_| measured) {
        None => vec![(column, labels(), true)],
        Some(&"") if known.iter().all(says_the_number) => vec![(column, numbers(), true)],
        Some(unit) => {
            let unit = if unit.is_empty() { "number" } else { unit };
            let of_numbers = free(&format!("{name}_{unit}"), taken);
            vec![(column, labels(), true), (of_numbers, numbers(), true)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Metric, read_rows};
    use super::*;

    #[test]
    fn an_axis_that_is_called_like_another_column_has_a_column_of_its_own() {
        let point = |axis: &str, label: &str| AxisPoint::named(axis, label);
        let number = |axis: &str, number, unit: &str| AxisPoint {
            number: Some(number),
            unit: unit.to_owned(),
            ..point(axis, &number.to_string())
        };
        let metric = |metric: &str, value| Metric {
            metric: metric.to_owned(),
            of: "measured".to_owned(),
            stream: None,
            value,
        };
        let run = RunManifest {
            axes: vec![point("of", "here"), number("seed", 9.0, ""), number("goodput", 5e6, "bps")],
            seed: 77,
            metrics: vec![metric("goodput_bps", 4e6)],
            ..RunManifest::default()
        };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(DATASET_FILE);
        write_dataset(&file, &[("r1", &run)]).unwrap();
        let row = read_rows(&file).unwrap().remove(0);
        let column = |name: &str| row[name].clone();
        assert_eq!((column("of"), column("of_axis")), ("measured".into(), "here".into()));
        assert_eq!((column("seed"), column("seed_axis")), (77.into(), 9.0.into()));
        assert_eq!((column("goodput_bps"), column("goodput_bps_axis")), (4e6.into(), 5e6.into()));
        assert_eq!(column("goodput"), "5000000");
    }

    #[test]
    fn names_of_numbers_without_a_unit_are_kept_beside_the_numbers() {
        let at = |label: &str, number| RunManifest {
            axes: vec![AxisPoint { number: Some(number), ..AxisPoint::named("sack", label) }],
            ..RunManifest::default()
        };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(DATASET_FILE);
        let (off, on) = (at("off", 0.0), at("on", 1.0));
        write_dataset(&file, &[("r1", &off), ("r2", &on)]).unwrap();
        let rows = read_rows(&file).unwrap();
        let found: Vec<_> =
            rows.iter().map(|row| (row["sack"].clone(), row["sack_number"].clone())).collect();
        assert_eq!(found, [("off".into(), 0.0.into()), ("on".into(), 1.0.into())]);
    }
}
