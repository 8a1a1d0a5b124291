//! Every table of a run, from the records that programs write.

use super::{
    Page,
    keys::kind,
    markdown::{cell, heading, table},
};
use longfat_schema::record::tables;
use serde_json::{Map, Value};

pub fn page() -> Page {
    let mut text = heading("Tables of a run", "`crates/schema/src/record.rs`");
    text.push_str(
        "Every run directory holds these Parquet tables. Units stand in the names of columns. Times are microseconds \
         since the start of the run; counters are cumulative since the connection, link or flow began. A column that \
         may be absent is null there. [The run directory](run-format.md) says who writes which table.\n\n",
    );
    for (name, row, schema) in tables() {
        text.push_str(&format!("## `{name}`\n\nOne row: {}\n\n", lower(&row)));
        text.push_str(&table(["column", "type", "meaning"], &columns(&schema)));
    }
    Page { name: "tables.md".into(), text: text.trim_end().to_owned() + "\n" }
}

/// A sentence as the rest of another one, unless it begins with an abbreviation.
fn lower(sentence: &str) -> String {
    let mut letters = sentence.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if !second.is_uppercase() => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => sentence.to_owned(),
    }
}

fn columns(schema: &Value) -> Vec<[String; 3]> {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let row = |(name, of): (&String, &Value)| {
        [format!("`{name}`"), kind(of, schema), cell(of["description"].as_str().unwrap_or_default())]
    };
    properties.iter().map(row).collect()
}
