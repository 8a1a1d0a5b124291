//! Which values of two plans differ.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// By dotted key, the values that it has in one plan or in several.
pub type Values = BTreeMap<String, BTreeSet<String>>;

/// What of a plan tells a run from its like, or says nothing about what was run.
const OF_ONE_RUN: [&str; 5] = ["case", "case_title", "axes", "repeat", "experiment"];

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

/// Several values as one text.
pub fn joined(values: &BTreeSet<String>) -> String {
    values.iter().cloned().collect::<Vec<_>>().join(", ")
}

/// Every value under a dotted key; what has a name is called by it.
pub fn flatten(prefix: &str, value: &Value, into: &mut Values) {
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
