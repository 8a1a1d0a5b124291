//! The reference says what the program does: generated pages are fresh, and lists in written ones are whole.

use std::{collections::BTreeSet, fs, process::Command};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");

fn page(name: &str) -> String {
    fs::read_to_string(format!("{REFERENCE}/{name}")).unwrap()
}

fn generate(directory: &str, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    let output = command.args(["reference", directory]).args(more).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn generated_pages_are_as_the_program_would_write_them() {
    let (code, said) = generate(REFERENCE, &["--check"]);
    assert_eq!(code, Some(0), "{said}run 'make reference'");
}

#[test]
fn a_stale_page_and_a_missing_one_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    assert_eq!(generate(path, &[]).0, Some(0));
    assert_eq!(generate(path, &["--check"]).0, Some(0));
    fs::write(directory.path().join("longfat-cc.md"), "by hand").unwrap();
    fs::remove_file(directory.path().join("tables.md")).unwrap();
    let (code, said) = generate(path, &["--check"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("longfat-cc.md") && said.contains("tables.md"), "{said}");
    assert!(!said.contains("longfat-lab.md"), "{said}");
}

/// Words in backticks in the first column of a page's tables.
fn first_column(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells.flat_map(|cell| cell.split(", ")).map(|word| word.trim_matches('`').to_owned()).collect()
}

#[test]
fn every_metric_is_explained_and_no_other() {
    let known = longfat_schema::metric::NAMES.map(str::to_owned);
    assert_eq!(first_column(&page("metrics.md")), BTreeSet::from(known));
}

#[test]
fn every_table_of_a_run_is_named_with_its_writer() {
    let tables = page("tables.md");
    let named: Vec<_> = tables.lines().filter_map(|line| line.strip_prefix("## `")).collect();
    let explained = first_column(&page("run-format.md"));
    for table in named.iter().map(|name| name.trim_end_matches('`')) {
        assert!(explained.contains(table), "run-format.md says nothing of the table '{table}'");
    }
}
