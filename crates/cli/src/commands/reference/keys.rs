//! Keys of every file that a person writes, from the JSON Schema of the types that read it.

use super::{
    Page,
    markdown::{cell, heading, table},
};
use longfat_schema::units::{Nanos, Rate, Size};
use serde_json::{Map, Value};
use std::collections::VecDeque;

/// One kind of file.
struct File {
    page: &'static str,
    title: &'static str,
    intro: &'static str,
    schema: Value,
}

fn files() -> [File; 4] {
    [
        File {
            page: "experiment.md",
            title: "Keys of an experiment file",
            intro: "What `longfat lab` reads. An unknown key is an error, with its path and a suggestion. \
                    `longfat lab check FILE` names every problem at once. How the parts work together is in \
                    [Experiments](../design/lab.md).",
            schema: longfat_lab::spec::schema::json(),
        },
        File {
            page: "relay-file.md",
            title: "Keys of a relay's file",
            intro: "What `longfat relay run` reads. `longfat relay check FILE` names every problem at once and \
                    prints the rules and commands that follow. How a relay works is in [The relay](../design/relay.md).",
            schema: longfat_relay::spec::RelaySpec::schema(),
        },
        File {
            page: "hosts-file.md",
            title: "Keys of a table of hosts",
            intro: "What `longfat lab run --backend hosts --hosts FILE` reads: which machine is which host of an \
                    experiment.",
            schema: longfat_lab::hosts::Table::schema(),
        },
        File {
            page: "links-file.md",
            title: "Keys of a table of links",
            intro: "What `longfat mobility announce --links FILE` reads: one table for each link, called by its name.",
            schema: longfat_mobility::links::LinkTable::schema(),
        },
    ]
}

pub fn pages() -> Vec<Page> {
    files().iter().map(page).collect()
}

fn page(file: &File) -> Page {
    let head = heading(file.title, "the types that read the file");
    let text = format!("{head}{}\n\n{QUANTITIES}\n\n{}", file.intro, sections(&file.schema));
    Page { name: file.page.into(), text: text.trim_end().to_owned() + "\n" }
}

const QUANTITIES: &str = "A *time*, *rate* or *size* is text with a unit: `\"28.4ms\"`, `\"1Gbit\"`, `\"64KiB\"`. A \
                          key without a default may be left out unless it is called required.";

/// A table of keys: where it stands in the file, and what it may hold.
struct Section<'a> {
    title: String,
    schema: &'a Value,
}

/// The file's own keys, then every table below, nearest first; a type that stands in several places is described once.
fn sections(root: &Value) -> String {
    let mut text = String::new();
    let mut described: Vec<String> = Vec::new();
    let mut waiting = VecDeque::from([Section { title: String::new(), schema: root }]);
    while let Some(section) = waiting.pop_front() {
        text.push_str(&describe(&section, root));
        for (title, name) in below(&section, root) {
            if !described.contains(&name) {
                described.push(name.clone());
                waiting.push_back(Section { title, schema: definition(root, &name) });
            }
        }
    }
    text
}

fn describe(section: &Section, root: &Value) -> String {
    let about = section.schema["description"].as_str().unwrap_or_default();
    let mut text = match section.title.as_str() {
        "" => String::new(),
        title => format!("## `{}`\n\n{}\n\n", bracketed(title), cell(about)),
    };
    text.push_str(&table(["key", "type", "meaning"], &rows(section.schema, root)));
    for variant in variants(section.schema) {
        if !rows(variant, root).is_empty() {
            let about = variant["description"].as_str().unwrap_or_default();
            text.push_str(&format!("{}\n\n", cell(about)));
            text.push_str(&table(["key", "type", "meaning"], &rows(variant, root)));
        }
    }
    text
}

/// A table's heading as TOML writes it.
fn bracketed(title: &str) -> String {
    match title.strip_suffix("[]") {
        Some(list) => format!("[[{list}]]"),
        None => format!("[{title}]"),
    }
}

/// The forms a value may have.
fn variants(schema: &Value) -> impl Iterator<Item = &Value> {
    ["oneOf", "anyOf", "allOf"].iter().filter_map(|key| schema[*key].as_array()).flatten()
}

fn rows(schema: &Value, root: &Value) -> Vec<[String; 3]> {
    let none = Map::new();
    let required: Vec<_> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let row = |(key, of): (&String, &Value)| {
        let about = of["description"].as_str().or_else(|| described(of, root)).unwrap_or_default();
        let required = if required.contains(&key.as_str()) { " Required." } else { "" };
        [format!("`{key}`"), kind(of, root), cell(&format!("{about}{}{required}", default(of)))]
    };
    properties.iter().map(row).collect()
}

/// What the type says of itself, where a key says nothing.
fn described<'a>(of: &'a Value, root: &'a Value) -> Option<&'a str> {
    definition(root, &reference(of)?)["description"].as_str()
}

/// A default that is worth saying, as a person would write it.
fn default(of: &Value) -> String {
    let shown = match &of["default"] {
        Value::Null => return String::new(),
        Value::String(text) if text.is_empty() => return String::new(),
        Value::Array(items) if items.is_empty() => return String::new(),
        Value::Object(fields)
            if fields.values().all(Value::is_null) || fields.values().any(Value::is_object) =>
        {
            return String::new();
        }
        Value::String(text) => quantity(text),
        other => other.to_string(),
    };
    format!(" Default: `{shown}`.")
}

/// `10000000ns` is written `10ms`.
fn quantity(text: &str) -> String {
    let time = text.strip_suffix("ns").and_then(|_| text.parse::<Nanos>().ok().map(|time| time.to_string()));
    let rate = || text.parse::<Rate>().ok().map(|rate| rate.to_string());
    let size = || text.parse::<Size>().ok().map(|size| size.to_string());
    time.or_else(rate).or_else(size).unwrap_or_else(|| text.to_owned())
}

/// The definition a schema stands for, itself or by way of 'or nothing'.
fn reference(of: &Value) -> Option<String> {
    let own = of["$ref"].as_str().map(|path| path.rsplit('/').next().unwrap_or_default().to_owned());
    own.or_else(|| variants(of).find_map(|variant| variant["$ref"].as_str().and_then(|_| reference(variant))))
}

fn definition<'a>(root: &'a Value, name: &str) -> &'a Value {
    &root["definitions"][name]
}

/// Definitions with keys that a section's keys lead to, and where those stand in the file.
fn below(section: &Section, root: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let own = section.schema["properties"].as_object();
    let of_variants = variants(section.schema).filter_map(|variant| variant["properties"].as_object());
    for (key, of) in own.into_iter().chain(of_variants).flatten() {
        let path = if section.title.is_empty() { key.clone() } else { format!("{}.{key}", section.title) };
        let items = variants(of).find_map(|variant| variant.get("items")).or_else(|| of.get("items"));
        let named = of.get("additionalProperties").filter(|more| more.is_object());
        let named = named.or_else(|| variants(of).find_map(|variant| variant.get("additionalProperties")));
        let places =
            [(path.clone(), Some(of)), (format!("{path}[]"), items), (format!("{path}.NAME"), named)];
        for (title, target) in places {
            let Some(name) = target.and_then(reference) else { continue };
            if has_keys(definition(root, &name)) {
                found.push((title, name));
            }
        }
    }
    if let Some(name) = section.schema.get("additionalProperties").and_then(reference) {
        found.push((format!("{}NAME", section.title), name));
    }
    found
}

fn has_keys(schema: &Value) -> bool {
    schema.get("properties").is_some()
        || variants(schema).any(|variant| variant.get("properties").is_some() || reference(variant).is_some())
}

/// What a value is, in a word or two.
pub fn kind(of: &Value, root: &Value) -> String {
    if let Some(path) = of["$ref"].as_str() {
        return named(path.rsplit('/').next().unwrap_or_default(), root);
    }
    if let Some(constant) = of.get("const") {
        return format!("`{}`", constant.as_str().map_or_else(|| constant.to_string(), str::to_owned));
    }
    if let Some(words) = of["enum"].as_array() {
        return some_of(words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect());
    }
    let kinds: Vec<_> =
        variants(of).map(|variant| kind(variant, root)).filter(|kind| kind != "nothing").collect();
    if !kinds.is_empty() {
        return some_of(kinds);
    }
    plain(of, root)
}

/// Many words are a list that a page need not repeat.
fn some_of(mut kinds: Vec<String>) -> String {
    kinds.dedup();
    if kinds.len() > 12 {
        return "text".into();
    }
    kinds.join(" or ")
}

fn named(name: &str, root: &Value) -> String {
    let target = definition(root, name);
    match name {
        "Nanos" => "time".into(),
        "Rate" => "rate".into(),
        "Size" => "size".into(),
        _ if target.get("properties").is_some() => "table".into(),
        _ if holds_itself(target, name) => "value, list or table".into(),
        _ => kind(target, root),
    }
}

/// Whether a type may hold more of its own kind.
fn holds_itself(target: &Value, name: &str) -> bool {
    target.to_string().contains(&format!("/definitions/{name}\""))
}

fn plain(of: &Value, root: &Value) -> String {
    let types: Vec<_> = match &of["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        Value::String(one) => vec![one.as_str()],
        _ => Vec::new(),
    };
    let word = |name: &&str| match *name {
        "string" => "text".to_owned(),
        "boolean" => "true or false".into(),
        "array" if types.len() > 1 => "list".into(),
        "array" => format!("list of {}", of.get("items").map_or("values".into(), |items| kind(items, root))),
        "object" => match of.get("additionalProperties").filter(|more| more.is_object()) {
            Some(more) => format!("{} by name", kind(more, root)),
            None => "table".into(),
        },
        "null" => "nothing".into(),
        other => other.to_owned(),
    };
    let words: Vec<_> = types.iter().map(word).filter(|word| types.len() == 1 || word != "nothing").collect();
    if words.is_empty() { "value".into() } else { words.join(" or ") }
}
