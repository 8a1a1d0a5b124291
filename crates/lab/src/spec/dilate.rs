//! `dilate = 4`, `dilate = "auto"`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::borrow::Cow;

/// How much slower than meant emulated runs are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DilateSpec {
    /// Slowed down so many times.
    Times(u32),
    /// As little as the path needs on a machine of two cores.
    Auto,
}

/// Slower than this, a second takes an hour.
const MOST: u32 = 3600;

impl DilateSpec {
    /// Most times that a run can be slower than meant.
    pub const MOST: u32 = MOST;
}

impl Default for DilateSpec {
    fn default() -> DilateSpec {
        DilateSpec::Times(1)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Times(i64),
    Word(String),
}

impl<'de> Deserialize<'de> for DilateSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DilateSpec, D::Error> {
        let wrong = |value: String| {
            D::Error::custom(format!(
                "'{value}' is no dilation: a whole number from 1 to {MOST}, or \"auto\""
            ))
        };
        match Written::deserialize(deserializer)? {
            Written::Word(word) if word == "auto" => Ok(DilateSpec::Auto),
            Written::Word(word) => Err(wrong(word)),
            Written::Times(times) => match u32::try_from(times) {
                Ok(times @ 1..=MOST) => Ok(DilateSpec::Times(times)),
                _ => Err(wrong(times.to_string())),
            },
        }
    }
}

impl JsonSchema for DilateSpec {
    fn schema_name() -> Cow<'static, str> {
        "Dilate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 1, "maximum": MOST }, { "const": "auto" }] })
    }
}
