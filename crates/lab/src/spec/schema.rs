//! The experiment file as JSON Schema (draft 7, which editors of TOML know): made from the types that read it.
//!
//! It is somewhat wider than the reader: nothing is required of a file that others include, dotted keys may be
//! anything. `longfat lab check` says the rest.

use super::{ExpectSpec, FlowSpec, FollowSpec, Head, HostSpec, PublishedSpec, RelaySpec, sweep::Filter};
use longfat_cc::Algorithm;
use longfat_link::LinkSpec;
use longfat_schema::metric::NAMES;
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Definitions whose required keys may come from another file, or from a case.
const LAYERED: [&str; 5] = ["HostSpec", "Cable", "FlowSpec", "RelaySpec", "FollowSpec"];

/// What an experiment file may hold.
#[derive(JsonSchema)]
#[schemars(title = "longfat experiment")]
#[expect(dead_code, reason = "only its schema is used")]
struct File {
    #[serde(flatten)]
    head: Head,
    /// Files this one builds on, relative to it; tables are merged key by key.
    include: Option<Vec<String>>,
    /// Hosts by name.
    hosts: BTreeMap<String, HostSpec>,
    /// Links by name.
    links: BTreeMap<String, Cable>,
    /// Flows by name.
    flows: BTreeMap<String, FlowSpec>,
    /// Relays by name.
    relays: Option<BTreeMap<String, RelaySpec>>,
    /// Routers whose links are followed, by name.
    follows: Option<BTreeMap<String, FollowSpec>>,
    /// Tunables of our congestion controls, by the kernel's name.
    #[schemars(schema_with = "tunables")]
    cc: Option<Value>,
    /// Cases: dotted keys laid over the file.
    cases: Option<Vec<CaseFile>>,
    /// Axes along which keys change, crossed unless they are zipped.
    #[schemars(schema_with = "sweep")]
    sweep: Option<Value>,
    /// What must hold; `longfat lab run` ends with exit code 1 when it does not.
    expect: Option<Vec<Expectation>>,
    /// Figures published elsewhere, to stand beside ours.
    published: Option<Vec<PublishedSpec>>,
}

/// What joins two hosts: a plain cable, or an emulated path.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Cable {
    /// Names of the link's two ends; `forward` is from the first to the second.
    between: [String; 2],
    #[serde(flatten)]
    line: LinkSpec,
}

/// One case: dotted keys laid over the file.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct CaseFile {
    /// Short name, also its directory.
    name: String,
    /// What a reader sees.
    title: Option<String>,
    /// Dotted keys and their values.
    set: Option<Map<String, Value>>,
    /// This case's figures as published elsewhere.
    published: Option<Vec<PublishedSpec>>,
}

/// An expectation: `"goodput of measured >= 20Mbit"`, or a table.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Expectation {
    /// METRIC [of NAME] [in CASE] [at AXIS=LABEL], a comparison, a number with its unit or another figure.
    Short(String),
    Long(Box<ExpectSpec>),
}

/// The schema of an experiment file.
pub fn json() -> Value {
    let generator = SchemaSettings::draft07().into_generator();
    let mut schema = generator.into_root_schema_for::<File>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.remove("required");
    }
    for name in LAYERED {
        if let Some(definition) =
            schema.pointer_mut(&format!("/definitions/{name}")).and_then(Value::as_object_mut)
        {
            definition.remove("required");
        }
    }
    close(&mut schema);
    schema
}

/// A key that is not known is an error, everywhere.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("properties").is_some_and(Value::is_object) {
                fields.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            fields.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

pub(super) fn metric(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": NAMES })
}

pub(super) fn sysctls(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "type": ["string", "number"] } })
}

/// Labels of numbers may be written as numbers.
pub(super) fn label(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "number"] })
}

pub(super) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": ["string", "number"] } })
}

/// Every tunable of every algorithm of ours with its range.
fn tunables(_: &mut SchemaGenerator) -> Schema {
    let of = |algorithm: &Algorithm| {
        let tunable = |tunable: longfat_cc::Tunable| {
            let range = tunable.range();
            let schema = json!({
                "description": tunable.about(), "default": tunable.default_value(),
                "type": "integer", "minimum": range.start(), "maximum": range.end(),
            });
            (tunable.name().to_owned(), schema)
        };
        json!({ "type": "object", "properties": algorithm.tunables().map(tunable).collect::<Map<_, _>>() })
    };
    let all: Map<String, Value> = Algorithm::all().map(|a| (a.kernel_name(), of(&a))).collect();
    json_schema!({ "type": "object", "properties": all })
}

/// `[sweep]`: an axis is a list of values, or a table with `values`; dotted keys are nested tables.
fn sweep(generator: &mut SchemaGenerator) -> Schema {
    let filter = generator.subschema_for::<Filter>();
    let texts = || json!({ "type": "array", "items": { "type": "string" } });
    let axis = json!({ "anyOf": [
        { "type": "array", "minItems": 1 },
        {
            "type": "object",
            "required": ["values"],
            "properties": {
                "set": { "description": "The key, or keys, that the values are of.", "anyOf": [{ "type": "string" }, texts()] },
                "values": { "description": "Values, or tables of keys and values.", "type": "array", "minItems": 1 },
                "labels": { "description": "What the values are called; themselves, when absent.", "type": "array", "items": { "type": ["string", "number"] } },
            },
        },
        {
            "type": "object",
            "not": { "required": ["values"] },
            "additionalProperties": { "$ref": "#/definitions/Axis" },
        },
    ] });
    generator.definitions_mut().insert("Axis".to_owned(), axis);
    json_schema!({
        "type": "object",
        "properties": {
            "zip": { "description": "Axes that go in step.", "type": "array", "items": texts() },
            "exclude": { "description": "Cells left out, by labels.", "type": "array", "items": filter },
        },
        "additionalProperties": { "$ref": "#/definitions/Axis" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn the_schema_that_is_published_is_that_of_the_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/experiment.schema.json");
        let text = format!("{:#}\n", json());
        if std::env::var_os("LONGFAT_UPDATE").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let published = fs::read_to_string(&path).unwrap();
        assert!(
            published == text,
            "experiments/experiment.schema.json is stale; 'longfat lab schema' writes what it is to be"
        );
    }

    #[test]
    fn every_key_that_is_documented_is_there_and_others_are_refused() {
        let schema = json();
        let top = &schema["properties"];
        for key in ["name", "warmup"].into_iter().chain(super::super::read::SECTIONS) {
            assert!(top[key].is_object(), "{key}");
        }
        assert_eq!(schema["additionalProperties"], false);
        let cable = &schema["definitions"]["Cable"];
        assert!(
            cable["properties"]["rate"].is_object() && cable["properties"]["between"].is_object(),
            "{cable:#}"
        );
        assert_eq!(cable["additionalProperties"], false);
        assert!(
            top["cc"]["properties"]["lf_highspeed"]["properties"]["max_ssthresh_segments"]["maximum"]
                .is_u64()
        );
    }
}
