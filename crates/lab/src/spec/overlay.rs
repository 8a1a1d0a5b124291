//! Dotted keys laid over an experiment: cases, axes of a sweep and `--set` are the same thing.

use longfat_schema::decode::{Problem, join, unknown};
use toml::Table;
pub use toml::Value;

/// Tables whose entries are things with names: an overlay changes them and never makes new ones.
const NAMED: [&str; 5] = ["hosts", "links", "flows", "relays", "follows"];
/// What belongs to the whole experiment and cannot differ between its cases.
const WHOLE: [&str; 9] =
    ["name", "title", "description", "cases", "expect", "focus", "sweep", "published", "include"];

/// Sets `key` (dotted; quotes around parts that hold dots) to `value`.
pub fn set(table: &mut Table, key: &str, value: Value) -> Result<(), Problem> {
    let problem = |message: String| Problem { path: key.to_owned(), message };
    let parts = split(key).map_err(problem)?;
    check_named(table, &parts).map_err(problem)?;
    insert(table, &parts, value).map_err(problem)
}

/// As [`set`], for a case: what belongs to the whole experiment is refused.
pub fn set_in_case(table: &mut Table, key: &str, value: Value) -> Result<(), Problem> {
    let first = split(key).ok().and_then(|parts| parts.first().cloned()).unwrap_or_default();
    if WHOLE.contains(&first.as_str()) {
        let message = format!("'{first}' belongs to the whole experiment; a case cannot change it");
        return Err(Problem { path: key.to_owned(), message });
    }
    set(table, key, value)
}

/// Reads `KEY=VALUE` of the command line. The value is TOML where it can be (`true`, `3`, `["a"]`), else text.
pub fn parse_assignment(text: &str) -> Result<(String, Value), String> {
    let wrong = || format!("'{text}' is no KEY=VALUE; write it like 'links.path.rate=100Mbit'");
    let (key, value) = text.split_once('=').ok_or_else(wrong)?;
    if key.trim().is_empty() {
        return Err(wrong());
    }
    let as_toml = format!("value = {value}").parse::<Table>().ok().and_then(|mut t| t.remove("value"));
    Ok((key.trim().to_owned(), as_toml.unwrap_or_else(|| Value::String(value.trim().to_owned()))))
}

/// `a."b.c".d` into its parts.
pub(super) fn split(key: &str) -> Result<Vec<String>, String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in key.chars() {
        match c {
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(String::new()),
            _ => parts.last_mut().into_iter().for_each(|part| part.push(c)),
        }
    }
    if quoted {
        return Err("has an opening quote without its closing one".into());
    }
    if parts.iter().any(String::is_empty) {
        return Err("has an empty part; write it like 'flows.measured.cc'".into());
    }
    Ok(parts)
}

fn check_named(table: &Table, parts: &[String]) -> Result<(), String> {
    let [section, name, ..] = parts else { return Ok(()) };
    if !NAMED.contains(&section.as_str()) {
        return Ok(());
    }
    let empty = Table::new();
    let things = table.get(section).and_then(Value::as_table).unwrap_or(&empty);
    if things.contains_key(name) {
        return Ok(());
    }
    Err(unknown(section.trim_end_matches('s'), name, things.keys().map(String::as_str)))
}

/// A value on the way gives place to a table: what is set of it is all that it then has. A list does not.
fn insert(table: &mut Table, parts: &[String], value: Value) -> Result<(), String> {
    let Some((first, rest)) = parts.split_first() else { return Ok(()) };
    if rest.is_empty() {
        table.insert(first.clone(), value);
        return Ok(());
    }
    let entry = table.entry(first.clone()).or_insert_with(|| Value::Table(Table::new()));
    if !entry.is_table() && !entry.is_array() {
        *entry = Value::Table(Table::new());
    }
    match entry {
        Value::Table(inner) => insert(inner, rest, value),
        _ => Err(format!("'{}' holds a list, not a table; set all of it at once", join("", first))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Table {
        "name = 'x'\n[links.path]\nrate = '1Gbit'\nqueue = { limit = '1KB' }\n[flows.measured]\ncc = 'reno'"
            .parse()
            .unwrap()
    }

    #[test]
    fn a_dotted_key_replaces_one_value_and_leaves_the_rest() {
        let mut table = base();
        set(&mut table, "links.path.queue.limit", Value::String("2KB".into())).unwrap();
        assert_eq!(table["links"]["path"]["queue"]["limit"].as_str(), Some("2KB"));
        assert_eq!(table["links"]["path"]["rate"].as_str(), Some("1Gbit"));
    }

    #[test]
    fn a_quoted_part_may_hold_dots() {
        let mut table = base();
        set(&mut table, "sysctls.\"net.ipv4.tcp_sack\"", Value::Integer(0)).unwrap();
        assert_eq!(table["sysctls"]["net.ipv4.tcp_sack"].as_integer(), Some(0));
    }

    #[test]
    fn a_thing_that_does_not_exist_is_not_made() {
        let problem = set(&mut base(), "flows.mesured.cc", Value::Boolean(true)).unwrap_err().to_string();
        assert!(problem.contains("unknown flow 'mesured'; did you mean 'measured'?"), "{problem}");
        assert!(set(&mut base(), "a..b", Value::Boolean(true)).is_err());
        assert!(set(&mut base(), "a.\"b", Value::Boolean(true)).is_err());
    }

    #[test]
    fn a_table_takes_the_place_of_a_value_as_a_whole() {
        let mut table = base();
        for (key, value) in [("process", "bernoulli"), ("probability", "0.1")] {
            set(&mut table, &format!("links.path.rate.{key}"), Value::String(value.into())).unwrap();
        }
        let rate = table["links"]["path"]["rate"].as_table().unwrap();
        assert_eq!(rate.keys().collect::<Vec<_>>(), ["process", "probability"]);
        set(&mut table, "links.path.rate", Value::String("2Gbit".into())).unwrap();
        assert_eq!(table["links"]["path"]["rate"].as_str(), Some("2Gbit"));
        set(&mut table, "expect", Value::Array(Vec::new())).unwrap();
        let problem = set(&mut table, "expect.that", Value::String("x".into())).unwrap_err().to_string();
        assert!(problem.contains("'expect' holds a list"), "{problem}");
    }

    #[test]
    fn a_case_cannot_change_what_belongs_to_the_experiment() {
        let problem = set_in_case(&mut base(), "focus", Value::Integer(1)).unwrap_err().to_string();
        assert!(problem.contains("belongs to the whole experiment"), "{problem}");
        set_in_case(&mut base(), "flows.measured.cc", Value::String("cubic".into())).unwrap();
    }

    #[test]
    fn assignments_read_toml_values_and_plain_text() {
        let value = |text: &str| parse_assignment(text).unwrap().1;
        assert_eq!(value("repeats=1"), Value::Integer(1));
        assert_eq!(value("relays.pep.enabled=true"), Value::Boolean(true));
        assert_eq!(value("links.path.rate=100Mbit"), Value::String("100Mbit".into()));
        assert_eq!(value("a=28.4ms"), Value::String("28.4ms".into()));
        assert_eq!(value("a='q=r'"), Value::String("q=r".into()));
        assert!(parse_assignment("no-equals").unwrap_err().contains("KEY=VALUE"));
        assert!(parse_assignment("=1").is_err());
    }
}
