//! The text is read back by a parser that knows nothing of how it was made: the grammar of OpenMetrics 1.0, strictly.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Names of the samples of a text, or what is wrong with it (OpenMetrics 1.0, "Text Format" and "Overall Structure").
fn read(text: &str) -> Result<BTreeSet<String>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("does not end with '# EOF' and a line feed")?;
    let (mut names, mut families, mut series) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut family, mut kind, mut sampled) = (String::new(), String::new(), false);
    for line in body.lines() {
        let wrong = |why: &str| Err(format!("{why}: {line}"));
        if let Some(meta) = line.strip_prefix("# ") {
            let [what, name, rest] = meta.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                return wrong("metadata of too few words");
            };
            if name != family {
                if what != "TYPE" || !families.insert(name.to_owned()) {
                    return wrong("a family must begin with TYPE, and once");
                }
                (family, kind, sampled) = (name.to_owned(), String::new(), false);
            }
            match what {
                _ if sampled => return wrong("metadata after samples"),
                "TYPE" if !["counter", "gauge", "info"].contains(&rest) => return wrong("unknown type"),
                "TYPE" => kind = rest.to_owned(),
                "UNIT" if !name.ends_with(&format!("_{rest}")) => return wrong("the name lacks its unit"),
                "UNIT" | "HELP" => {}
                _ => return wrong("unknown metadata"),
            }
            continue;
        }
        let (name, rest) = line.split_at(line.find(['{', ' ']).ok_or("no value")?);
        let suffix = match kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        if name != format!("{family}{suffix}") {
            return wrong("a sample outside its family");
        }
        let value = labels(rest)?.strip_prefix(' ').ok_or("no space before the value")?;
        let number: f64 = value.parse().map_err(|_| format!("no number: {line}"))?;
        if kind == "counter" && number < 0.0 {
            return wrong("a negative counter");
        }
        if !series.insert(line[..line.len() - value.len()].to_owned()) {
            return wrong("the same series twice");
        }
        sampled = true;
        names.insert(name.to_owned());
    }
    Ok(names)
}

/// Passes over the labels; what follows them.
fn labels(text: &str) -> Result<&str, String> {
    let Some(mut rest) = text.strip_prefix('{') else { return Ok(text) };
    let mut seen = BTreeSet::new();
    loop {
        let (name, value) = rest.split_once("=\"").ok_or("a label without a value")?;
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(good) || !seen.insert(name) {
            return Err(format!("label name '{name}'"));
        }
        let mut escaped = false;
        let end = value.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = &value[end.ok_or("a label value without end")? + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return rest.strip_prefix('}').ok_or_else(|| "labels without end".into()),
        }
    }
}

fn families(rule: &str) -> Vec<Family> {
    let rules = BTreeMap::from([(rule.to_owned(), Rule::default()), ("other".into(), Rule::default())]);
    let mut families = of_rules(&rules);
    families.extend(process::families());
    families
}

#[test]
fn the_text_is_open_metrics_and_says_so_when_it_is_not() {
    let names = read(&text(&families("web"), Format::OpenMetrics)).unwrap();
    for name in ["longfat_relay_ended_connections_total", "longfat_relay_backlog_bytes", "process_open_fds"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    for wrong in [
        "# TYPE a counter\na 1\n# EOF\n",
        "# TYPE a gauge\na 1\n",
        "a 1\n# EOF\n",
        "# TYPE a gauge\na 1\na 1\n# EOF\n",
        "# TYPE a gauge\n# UNIT a bytes\na 1\n# EOF\n",
        "# TYPE a gauge\na{b=\"c} 1\n# EOF\n",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_older_format_names_counters_as_it_wants_them() {
    let text = text(&families("web"), Format::Prometheus);
    assert!(text.contains("# TYPE longfat_relay_relayed_bytes_total counter"), "{text}");
    assert!(!text.contains("# UNIT") && !text.contains("# EOF") && !text.contains(" info\n"), "{text}");
}

/// Every metric that the ready dashboard asks for exists.
#[test]
fn the_dashboards_queries_name_metrics_that_exist() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/grafana/longfat-relay.json");
    let dashboard: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut known: BTreeSet<String> = families("web").iter().map(Family::sample_name).collect();
    let overview = Overview { status: Status::default(), connection_limit: 1, passed: Vec::new() };
    known.extend(relay(&overview).iter().map(Family::sample_name));
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            asked.extend(
                words.filter(|w| w.starts_with("longfat_") || w.starts_with("process_")).map(str::to_owned),
            );
        }
    }
    assert!(asked.len() > 8, "{asked:?}");
    let unknown: Vec<_> = asked.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?} of {known:?}");
}

proptest! {
    #[test]
    fn any_name_of_a_rule_makes_a_text_that_can_be_read(rule in "\\PC{0,20}") {
        let read = read(&text(&families(&rule), Format::OpenMetrics));
        prop_assert!(read.is_ok(), "{:?}", read);
    }
}
