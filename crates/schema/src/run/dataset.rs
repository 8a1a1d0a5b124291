//! Every figure of every run of a result in one table, `results.parquet`: a row per run and thing (flow, link direction,
//! relay direction, or the run as a whole), a column per axis and per metric. What sweeps are plotted and queried by.

use super::{AxisPoint, RunError, RunManifest, TableError, table::properties};
use arrow::{
    array::{ArrayRef, Float64Array, StringArray, UInt32Array, UInt64Array},
    record_batch::RecordBatch,
};
use parquet::arrow::ArrowWriter;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::Path,
    sync::Arc,
};

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
    let temporary = path.with_extension("parquet.part");
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
    let mut writer = ArrowWriter::try_new(File::create(path)?, batch.schema(), Some(properties()))?;
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
    let mut columns = vec![
        ("experiment".to_owned(), text(&|row| Some(row.run.experiment.clone())), false),
        ("cell".to_owned(), text(&|row| Some(row.run.case.clone())), false),
    ];
    if runs.iter().all(|run| run.axes.iter().all(|at| at.axis != "case")) {
        columns.push(("case".to_owned(), text(&|row| Some(base(row.run))), false));
    }
    columns.extend(axes(&runs));
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
    let metrics: BTreeSet<&str> = rows.iter().flat_map(|(_, row)| row.values.keys().copied()).collect();
    let taken: BTreeSet<String> = columns.iter().map(|(name, ..)| name.clone()).collect();
    for metric in metrics.into_iter().filter(|metric| !taken.contains(*metric)) {
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
/// their base unit (`rate` and `rate_bps`).
fn axes(runs: &[&RunManifest]) -> Vec<(String, ArrayRef, bool)> {
    let mut names: Vec<&str> = Vec::new();
    for axis in runs.iter().flat_map(|run| &run.axes) {
        if !names.contains(&axis.axis.as_str()) {
            names.push(&axis.axis);
        }
    }
    names.into_iter().flat_map(|name| axis(name, runs)).collect()
}

fn axis(name: &str, runs: &[&RunManifest]) -> Vec<(String, ArrayRef, bool)> {
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
    match units.first().filter(|_| measured) {
        None => vec![(name.to_owned(), labels(), true)],
        Some(&"") => vec![(name.to_owned(), numbers(), true)],
        Some(unit) => vec![(name.to_owned(), labels(), true), (format!("{name}_{unit}"), numbers(), true)],
    }
}
