//! Files of earlier schema versions, brought up to date as they are read; newer ones are refused.

use super::{RunError, Table};
use crate::{SCHEMA_VERSION, arrivals::Arrivals, record::StallSample, regular};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::Path;

/// Which of the versioned texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `plan.json`.
    Plan,
    /// `manifest.json`.
    Run,
    /// `result.json`.
    Result,
    /// What a capture kept as a table says of itself. There are none of before version 3.
    Capture,
}

/// Last version whose runs may lack any table that came later.
const TABLES_MAY_LACK: u32 = 1;
/// Tables that came while a version stood, each with the last version whose runs may lack it.
const CAME_WITHIN: [(&str, u32); 1] = [(StallSample::NAME, 3)];

/// One step: from version `index + 1` to the next.
type Step = fn(Kind, &mut Map<String, Value>);
const STEPS: [Step; 3] = [hashes, arrivals_and_pauses, unexplained_and_traces];

/// 1 to 2: files are hashed. What was never hashed has none, which is not the same as none of its files.
fn hashes(kind: Kind, fields: &mut Map<String, Value>) {
    match kind {
        Kind::Plan => {
            // Runs of before tunables were recorded had the defaults of their day.
            fields.entry("tunables").or_insert_with(|| Value::Object(Default::default()));
        }
        Kind::Run | Kind::Result => {
            fields.insert("files".to_owned(), Value::Null);
            fields.insert("seal".to_owned(), Value::Null);
        }
        Kind::Capture => {}
    }
}

/// 2 to 3: a flow says by which law its datagrams leave; it was even, or with a seed for it Poisson. A path says how
/// long it may stand still; it was 2 % of the time.
fn arrivals_and_pauses(kind: Kind, fields: &mut Map<String, Value>) {
    if kind != Kind::Plan {
        return;
    }
    for path in members(fields, "links").filter_map(|link| link.get_mut("path")?.as_object_mut()) {
        path.entry("pause_limit").or_insert_with(|| 0.02.into());
    }
    for flow in members(fields, "flows") {
        let seed = flow.remove("poisson_seed").unwrap_or_default();
        let law = if seed.is_null() { Arrivals::Constant } else { Arrivals::Poisson };
        flow.insert("arrivals".to_owned(), law.word().into());
        flow.insert("arrivals_seed".to_owned(), seed);
    }
}

/// 3 to 4: a run may be unexplained, and a link may follow a trace. Earlier files say neither.
fn unexplained_and_traces(_: Kind, _: &mut Map<String, Value>) {}

/// The objects of a list.
fn members<'a>(
    fields: &'a mut Map<String, Value>,
    list: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    fields.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Whether a run written under this version may be without this table.
pub(super) fn may_lack<T: Table>(version: u32) -> bool {
    version <= TABLES_MAY_LACK
        || CAME_WITHIN.iter().any(|(table, last)| *table == T::NAME && version <= *last)
}

/// Reads one of the versioned files, brought up to [`SCHEMA_VERSION`].
///
/// # Errors
/// It cannot be read, is damaged, or was written by a newer longfat.
pub fn read_versioned<T: DeserializeOwned>(path: &Path, kind: Kind) -> Result<T, RunError> {
    let text = regular::read_json_bytes(path).map_err(|source| RunError::io(path, source))?;
    Ok(parse_versioned(&text, &path.display().to_string(), kind)?.0)
}

/// Parses bytes, called `path` in messages. Gives the version they were written under, too.
///
/// # Errors
/// They are damaged, or were written by a newer longfat.
pub fn parse_versioned<T: DeserializeOwned>(
    bytes: &[u8],
    path: &str,
    kind: Kind,
) -> Result<(T, u32), RunError> {
    #[derive(serde::Deserialize)]
    struct Version {
        schema_version: u32,
    }
    let json = |source| RunError::Json { path: path.to_owned(), source };
    let found = serde_json::from_slice::<Version>(bytes).map_err(json)?.schema_version;
    if found > SCHEMA_VERSION {
        return Err(RunError::Newer { path: path.to_owned(), found, known: SCHEMA_VERSION });
    }
    if found == SCHEMA_VERSION {
        return Ok((serde_json::from_slice(bytes).map_err(json)?, found));
    }
    // A list, too, would do for the struct above.
    let mut value: Map<String, Value> = serde_json::from_slice(bytes).map_err(json)?;
    // There never was a version 0: what claims to be it is read as the first.
    STEPS.iter().skip(found.max(1) as usize - 1).for_each(|step| step(kind, &mut value));
    value.insert("schema_version".to_owned(), SCHEMA_VERSION.into());
    Ok((serde_json::from_value(Value::Object(value)).map_err(json)?, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_step_to_every_version() {
        assert_eq!(STEPS.len() + 1, SCHEMA_VERSION as usize);
    }

    #[test]
    fn a_plan_of_the_first_version_is_read_as_one_of_today() {
        let (plan, found): (Value, u32) =
            parse_versioned(br#"{"schema_version": 1, "case": "c"}"#, "plan.json", Kind::Plan).unwrap();
        assert_eq!((&plan["schema_version"], found), (&Value::from(SCHEMA_VERSION), 1));
        assert!(plan["tunables"].is_object());
    }

    #[test]
    fn cross_traffic_of_before_there_were_laws_is_even_or_poisson() {
        let text = br#"{"schema_version": 2, "flows": [{"poisson_seed": null}, {"poisson_seed": 7}]}"#;
        let (plan, _): (Value, u32) = parse_versioned(text, "plan.json", Kind::Plan).unwrap();
        let flow = |index: usize| {
            (plan["flows"][index]["arrivals"].clone(), plan["flows"][index]["arrivals_seed"].clone())
        };
        assert_eq!(flow(0), ("constant".into(), Value::Null));
        assert_eq!(flow(1), ("poisson".into(), 7.into()));
        assert!(plan["flows"][0].get("poisson_seed").is_none());
    }

    #[test]
    fn what_is_no_versioned_file_is_named() {
        let read =
            |bytes: &[u8]| parse_versioned::<Value>(bytes, "x.json", Kind::Run).unwrap_err().to_string();
        assert!(read(b"{}").contains("x.json: missing field `schema_version`"), "{}", read(b"{}"));
        assert!(read(b"\xff").contains("damaged"));
        assert!(read(b"[1]").contains("x.json: "), "{}", read(b"[1]"));
        assert!(read(br#"{"schema_version": 3000000000}"#).contains("upgrade longfat"));
    }
}
