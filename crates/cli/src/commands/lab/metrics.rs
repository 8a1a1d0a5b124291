//! `longfat lab metrics`.

use crate::{outcome::Outcome, output};
use longfat_schema::metric::{KINDS, Kind};
use serde_json::{Value, json};

/// List every metric of a run: its name, what it is of, what it counts.
///
/// Expectations, published figures, 'lab compare' and 'lab query' name them so. A name ends in its unit: '_bps' is
/// bit/s, '_us' microseconds, '_ratio' a share of one. The reference says more of each (docs/reference/metrics.md).
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  longfat lab metrics\n  longfat lab metrics --json | jq '.[] | select(.of == \"FLOW\") | .name'"
)]
pub struct MetricsArgs {
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &MetricsArgs) -> Outcome {
    Ok(output::write_out(&if args.json { as_json() } else { as_table() })?)
}

fn as_json() -> String {
    let kinds: Vec<Value> = KINDS.iter().map(of_kind).collect();
    format!("{}\n", Value::from(kinds))
}

fn of_kind(kind: &Kind) -> Value {
    let better = kind.better.map(|better| format!("{better:?}").to_lowercase());
    json!({ "name": kind.name, "heading": kind.heading, "of": kind.scope.of(), "better": better, "meaning": kind.meaning })
}

fn as_table() -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table.set_header(["metric", "of", "counts"]);
    for kind in &KINDS {
        table.add_row([kind.name, kind.scope.of(), kind.meaning]);
    }
    format!("{}\n", crate::fitted::fitted(table, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_listed_either_way() {
        let (table, json) = (as_table(), as_json());
        let json: Vec<Value> = serde_json::from_str(&json).unwrap();
        assert_eq!(json.len(), KINDS.len());
        assert!(
            KINDS
                .iter()
                .zip(&json)
                .all(|(kind, json)| json["name"] == kind.name && table.contains(kind.name))
        );
        assert_eq!((&json[2]["name"], &json[2]["better"]), (&"goodput_bps".into(), &"more".into()));
    }
}
