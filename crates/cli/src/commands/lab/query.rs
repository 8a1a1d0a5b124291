//! `longfat lab query`: SQL over results, by the DuckDB of this host's Python.

use super::table;
use crate::outcome::{Failure, Outcome};
use anyhow::{Context, anyhow};
use longfat_host::support::Missing;
use longfat_schema::run::{
    DATASET_FILE, Found, Kind, RESULT_FILE, ResultManifest, ResultStatus, find_readable_runs, read_versioned,
    write_dataset,
};
use longfat_schema::text::printable;
use serde_json::{Map, Value};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

const SCRIPT: &str = include_str!("query.py");
/// How [`SCRIPT`] says that there is no DuckDB.
const NO_DUCKDB: i32 = 3;

/// Ask results by SQL.
///
/// The table 'results' has a row per run and thing in 'of' (flow, link direction, relay direction; nothing for the
/// whole run). Streams have rows with 'stream' set. Columns are the axes of the sweep ('rate' and, as a number,
/// 'rate_bps') and the metrics. 'tcp', 'interval', 'echo', 'queue', 'relay', 'avail', 'flow', 'link', 'stall', 'trace'
/// and 'note' are the samples of all runs, as their files have them. 'run' joins them with 'results', which has the
/// axes. An axis that is called like another column of 'results' gets '_axis' at its end. An axis that has numbers in
/// one result and names in another is text in both, as its file has it, with the numbers beside it ('loss_number'). A
/// damaged file is named and left out.
///
/// The query sees these tables and nothing else: other files, the network and extensions are off.
///
/// It is done by DuckDB, from Python: 'python3 -m pip install duckdb'.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab query \"select rate, rtt, avg(goodput_bps) from results
      where of = 'measured' and stream is null group by all\" runs/sweep
  longfat lab query \"select result, cell, status from results\"
      every result below runs/
  longfat lab query --csv \\
      \"select run, max(cwnd_segments) from tcp group by run\" runs/sweep")]
pub struct QueryArgs {
    /// The query.
    #[arg(value_name = "SQL")]
    query: String,
    /// Results, or directories of results [default: runs].
    #[arg(value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Rows as comma-separated values; text like a spreadsheet's formula gets an apostrophe.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Rows as JSON objects; columns of one name are numbered.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &QueryArgs) -> Outcome {
    let asked =
        if args.directories.is_empty() { vec![PathBuf::from("runs")] } else { args.directories.clone() };
    let results = results_of(&asked)?;
    if results.is_empty() {
        return Err(anyhow!(
            "'{}' holds no result; give a directory that 'longfat lab run' wrote, or one of several",
            asked[0].display()
        )
        .into());
    }
    let made = tempfile::tempdir().context("a directory for tables")?;
    let place = |number: usize| made.path().join(format!("{number}.parquet"));
    let datasets = results.iter().enumerate().map(|(number, result)| dataset(result, place(number)));
    let datasets = datasets.collect::<anyhow::Result<Vec<_>>>()?;
    let (columns, rows) = ask(&args.query, &results, &datasets)?;
    if args.json {
        let names = distinct(&columns);
        let object = |row: Vec<Value>| names.iter().cloned().zip(row).collect::<Map<_, _>>();
        let objects: Vec<_> = rows.into_iter().map(object).collect();
        crate::output::print_json(&objects)?;
    } else if args.csv {
        println!("{}", columns.iter().map(|name| csv(name)).collect::<Vec<_>>().join(","));
        for row in rows {
            println!("{}", row.iter().map(|value| csv(&text(value))).collect::<Vec<_>>().join(","));
        }
    } else {
        let mut shown = table::table(&columns.iter().map(String::as_str).collect::<Vec<_>>());
        for row in &rows {
            shown.add_row(row.iter().map(text));
        }
        println!("{shown}");
    }
    Ok(())
}

/// The results in these directories, each once. A path is as the tables' files have it: no `/` at its end, none twice.
fn results_of(directories: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut results = Vec::new();
    for directory in directories {
        results.extend(results_in(&directory.components().collect::<PathBuf>())?);
    }
    let mut seen = BTreeSet::new();
    results.retain(|result| seen.insert(result.canonicalize().unwrap_or_else(|_| result.clone())));
    Ok(results)
}

/// A result, or the results right below a directory.
fn results_in(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let is_result = |path: &PathBuf| path.join(RESULT_FILE).is_file();
    if is_result(&directory.to_owned()) {
        return Ok(vec![directory.to_owned()]);
    }
    let entries = std::fs::read_dir(directory).with_context(|| {
        format!(
            "look for results in '{}'; name a directory that 'longfat lab run' wrote, or one of several",
            directory.display()
        )
    })?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_result).collect();
    found.sort();
    Ok(found)
}

/// The table of a result. One without, of before there were any, and one still running, or killed, has it made of the
/// runs so far, at `elsewhere`: the result is its session's to write.
fn dataset(result: &Path, elsewhere: PathBuf) -> anyhow::Result<PathBuf> {
    let own = result.join(DATASET_FILE);
    let manifest: ResultManifest = read_versioned(&result.join(RESULT_FILE), Kind::Result)?;
    if manifest.status != ResultStatus::Running && own.exists() {
        return Ok(own);
    }
    let Found { runs, damaged, .. } = find_readable_runs(result)?;
    for run in &damaged {
        eprintln!("longfat: a run is left out: {}", printable(&run.error.to_string()));
    }
    let within = |path: &Path| path.strip_prefix(result).unwrap_or(path).display().to_string();
    let named: Vec<_> = runs.iter().map(|run| (within(&run.path), &run.manifest)).collect();
    let rows: Vec<_> = named.iter().map(|(path, manifest)| (path.as_str(), *manifest)).collect();
    write_dataset(&elsewhere, &rows)?;
    Ok(elsewhere)
}

fn ask(
    query: &str,
    results: &[PathBuf],
    datasets: &[PathBuf],
) -> Result<(Vec<String>, Vec<Vec<Value>>), Failure> {
    #[derive(serde::Deserialize)]
    struct Found {
        columns: Vec<String>,
        rows: Vec<Vec<Value>>,
    }
    let python = crate::python::program();
    let mut command = Command::new(&python);
    let pairs = results.iter().zip(datasets).flat_map(|(result, dataset)| [result, dataset]);
    command.args(["-c", SCRIPT, query]).args(pairs);
    let output = command.output().context("python3, which 'longfat lab query' needs")?;
    if output.status.code() == Some(NO_DUCKDB) {
        let python = python.display();
        let why = format!("{python} has none");
        let mend = format!("{python} -m pip install duckdb");
        return Err(Failure::Unsupported(vec![Missing::new("DuckDB for Python", why, mend)]));
    }
    if !output.status.success() {
        return Err(anyhow!("{}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    // Tables that were left out.
    eprint!("{}", printable(&String::from_utf8_lossy(&output.stderr)));
    let found: Found = serde_json::from_slice(&output.stdout).context("the answer of DuckDB")?;
    Ok((found.columns, found.rows))
}

/// Names that an object can have beside each other: of equal ones all but the first are numbered (`run`, `run_1`).
fn distinct(columns: &[String]) -> Vec<String> {
    let mut taken: BTreeSet<String> = columns.iter().cloned().collect();
    let mut seen = BTreeSet::new();
    let free = |name: &String| {
        if seen.insert(name.clone()) {
            return name.clone();
        }
        let numbered =
            (1..).map(|number: u32| format!("{name}_{number}")).find(|name| taken.insert(name.clone()));
        numbered.unwrap_or_default()
    };
    columns.iter().map(free).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Text that a spreadsheet would take for a formula begins with an apostrophe, which it shows as text: names and labels
/// may come from a stranger's run.
fn harmless(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    if is_formula { format!("'{text}") } else { text.to_owned() }
}

/// Quoted where it must be (RFC 4180).
fn csv(text: &str) -> String {
    let text = &harmless(text);
    let plain = !text.contains([',', '"', '\n', '\r']);
    if plain { text.to_owned() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_asked_once_and_by_the_path_that_its_tables_have_however_it_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let (all, one) = (directory.path().join("runs"), directory.path().join("runs/one"));
        for result in ["runs/one", "runs/two"] {
            std::fs::create_dir_all(directory.path().join(result)).unwrap();
            std::fs::write(directory.path().join(result).join(RESULT_FILE), "{}").unwrap();
        }
        let named = |ending: &str| PathBuf::from(format!("{}{ending}", one.display()));
        for ending in ["", "/", "//", "/."] {
            // As text: to a path a '/' at its end is nothing.
            let found = results_of(&[named(ending)]).unwrap();
            assert_eq!(
                found.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>(),
                [one.to_str().unwrap()]
            );
        }
        let found = results_of(&[named("/"), all.clone(), named(""), all.join("../runs/two")]).unwrap();
        assert_eq!(found, [one, all.join("two")]);
    }

    #[test]
    fn columns_of_one_name_are_numbered_and_take_no_other_columns_name() {
        let names =
            |columns: &[&str]| distinct(&columns.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["run", "of", "run", "run"]), ["run", "of", "run_1", "run_2"]);
        assert_eq!(names(&["a", "a", "a_1"]), ["a", "a_2", "a_1"]);
    }

    #[test]
    fn a_cell_is_quoted_where_it_must_be_and_never_a_formula() {
        for (text, cell) in [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("-12.5", "-12.5"),
            ("=HYPERLINK(\"http://x\")", "\"'=HYPERLINK(\"\"http://x\"\")\""),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
            ("-2+3", "'-2+3"),
        ] {
            assert_eq!(csv(text), cell);
        }
    }
}
