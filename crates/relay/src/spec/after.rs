//! When a connection is worth stepping into: bytes that have passed, or its age.

use longfat_kernel::watch::After;
use longfat_schema::units::{Nanos, Size};
use serde::{Deserialize, Serialize, Serializer};
use std::str::FromStr;

/// Bytes of both ends that have passed (`1MB`), or time since the SYN (`500ms`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub enum AfterSpec {
    /// So many bytes.
    Bytes(Size),
    /// So long.
    Time(Nanos),
}

impl AfterSpec {
    /// As the kernel is told, or what is wrong.
    pub(super) fn checked(self) -> Result<After, String> {
        match self {
            AfterSpec::Bytes(Size(0)) | AfterSpec::Time(Nanos(0)) => Err(
                "0 is right after the handshake, which is what a rule without this key does: leave it out"
                    .into(),
            ),
            AfterSpec::Bytes(Size(bytes)) => Ok(After { bytes: Some(bytes), time: None }),
            AfterSpec::Time(time) => Ok(After { bytes: None, time: Some(time.into()) }),
        }
    }
}

impl FromStr for AfterSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<AfterSpec, String> {
        if let Ok(bytes) = text.parse() {
            return Ok(AfterSpec::Bytes(bytes));
        }
        let time = text.parse().map(AfterSpec::Time);
        time.map_err(|_| format!("'{text}' is neither a size nor a time: write '1MB' or '500ms', say"))
    }
}

impl TryFrom<String> for AfterSpec {
    type Error = String;

    fn try_from(text: String) -> Result<AfterSpec, String> {
        text.parse()
    }
}

impl Serialize for AfterSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            AfterSpec::Bytes(bytes) => bytes.serialize(serializer),
            AfterSpec::Time(time) => time.serialize(serializer),
        }
    }
}
