//! Which parameters of two sets of runs differ: of plans, programs, kernels and hosts.

use super::Run;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A parameter's values over the runs of a case.
type Values = BTreeMap<String, BTreeSet<String>>;

/// What of a plan tells a run from its like, or says nothing about what was run.
const OF_ONE_RUN: [&str; 5] = ["case", "case_title", "axes", "repeat", "experiment"];

/// Keys whose values the two sides have none of in common. What varies within a side from repeat to repeat (a seed, a
/// counter) is no difference unless it does so elsewhere.
pub(super) fn differences(sides: &[Vec<&Run>; 2]) -> Vec<(String, [String; 2])> {
    // A world without hosts has no parameters of theirs that could differ.
    let with_hosts = sides.iter().all(|runs| runs.iter().any(|run| !run.manifest.hosts.is_empty()));
    let [left, right] = [0, 1].map(|side| gather(&sides[side], with_hosts));
    let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let none = BTreeSet::new();
    let values = |side: &Values, key: &String| side.get(key).unwrap_or(&none).clone();
    let both = keys.into_iter().map(|key| (key, values(&left, key), values(&right, key)));
    let differing = both.filter(|(_, left, right)| left.is_disjoint(right));
    differing.map(|(key, left, right)| (key.clone(), [joined(&left), joined(&right)])).collect()
}

/// Values of two plans that differ, each as `KEY: ONE then, OTHER now`.
pub fn plan_differences(then: &Value, now: &Value) -> Vec<String> {
    let values = |plan: &Value| {
        let mut found = Values::new();
        flatten("", plan, &mut found);
        found
    };
    let (then, now) = (values(then), values(now));
    let keys: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let shown = |side: &Values, key: &String| side.get(key).map_or_else(|| "nothing".to_owned(), joined);
    let differing = keys.into_iter().filter(|key| then.get(*key) != now.get(*key));
    differing
        .map(|key| {
            format!("{}: {} then, {} now", key.trim_start_matches('.'), shown(&then, key), shown(&now, key))
        })
        .collect()
}

fn joined(values: &BTreeSet<String>) -> String {
    values.iter().cloned().collect::<Vec<_>>().join(", ")
}

fn gather(runs: &[&Run], with_hosts: bool) -> Values {
    let mut found = Values::new();
    for run in runs {
        flatten("plan", &run.plan, &mut found);
        flatten("run", &of_manifest(run), &mut found);
        if with_hosts {
            for (name, host) in &run.manifest.hosts {
                let state = json!({ "sysctls": host.sysctls, "interfaces": host.interfaces });
                flatten(&format!("host.{name}"), &state, &mut found);
            }
        }
    }
    found
}

fn of_manifest(run: &Run) -> Value {
    let provenance = &run.manifest.provenance;
    json!({
        "backend": run.manifest.backend,
        "longfat_version": provenance.longfat_version,
        "git_revision": provenance.git_revision,
        "kernel": provenance.kernel,
        "cpu": provenance.cpu,
        "cpu_count": provenance.cpu_count,
        "facts": provenance.facts,
    })
}

/// Every value under a dotted key; what has a name is called by it.
fn flatten(prefix: &str, value: &Value, into: &mut Values) {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(key, _)| !OF_ONE_RUN.contains(&key.as_str()));
            fields.for_each(|(key, value)| flatten(&format!("{prefix}.{key}"), value, into));
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (index, item) in items.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str);
                let name = name.map_or_else(|| index.to_string(), str::to_owned);
                flatten(&format!("{prefix}.{name}"), item, into);
            }
        }
        Value::Null => {}
        Value::String(text) => insert(prefix, text.clone(), into),
        other => insert(prefix, other.to_string(), into),
    }
}

fn insert(key: &str, value: String, into: &mut Values) {
    into.entry(key.to_owned()).or_default().insert(value);
}
