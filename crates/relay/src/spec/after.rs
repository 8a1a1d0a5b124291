//! When a connection is worth stepping into: bytes that have passed, or its age; its rate, its path, its losses.

use super::WaySpec;
use longfat_kernel::watch::Conditions;
use longfat_schema::{
    decode::Problem,
    units::{Nanos, Rate, Size},
};
use serde::{Deserialize, Serialize, Serializer};
use std::str::FromStr;

/// Bytes of both ends that have passed (`1MB`), or time since the SYN (`500ms`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub enum AfterSpec {
    /// After so many bytes.
    Bytes(Size),
    /// After so much time.
    Time(Nanos),
}

impl AfterSpec {
    /// Puts its condition among the kernel's.
    fn put_into(self, conditions: &mut Conditions) -> Result<(), String> {
        let (bytes, time) = match self {
            AfterSpec::Bytes(Size(0)) | AfterSpec::Time(Nanos(0)) => {
                return Err(
                    "0 is right after the handshake, which is what a rule without this key does: leave it out"
                        .into(),
                );
            }
            AfterSpec::Bytes(Size(bytes)) => (Some(bytes), None),
            AfterSpec::Time(time) => (None, Some(time.into())),
        };
        *conditions = Conditions { bytes, time, ..*conditions };
        Ok(())
    }
}

/// Slower is no transfer.
const LEAST_RATE: Rate = Rate(8000);
/// Longer than any path.
const MOST_RTT: Nanos = Nanos(60_000_000_000);

impl WaySpec {
    /// As the kernel is told: the keys that are given, for others what is inherited.
    pub(super) fn conditions(
        &self,
        inherited: Conditions,
        path: &str,
        problems: &mut Vec<Problem>,
    ) -> Conditions {
        let mut wrong =
            |key: &str, message: String| problems.push(Problem::new(format!("{path}.{key}"), message));
        let mut conditions = inherited;
        if let Some(Err(message)) = self.adopt_after.map(|after| after.put_into(&mut conditions)) {
            wrong("adopt_after", message);
        }
        match self.adopt_rate {
            None => {}
            Some(rate) if rate < LEAST_RATE => {
                wrong("adopt_rate", format!("it is {rate}; give {LEAST_RATE} or more, or leave it out"));
            }
            Some(rate) => conditions.rate_bps = Some(rate.0),
        }
        match self.adopt_rtt {
            None => {}
            Some(rtt) if rtt.0 == 0 || rtt > MOST_RTT => {
                let message = format!("it is {rtt}; give a round trip of up to {MOST_RTT}, or leave it out");
                wrong("adopt_rtt", message);
            }
            Some(rtt) => conditions.rtt = Some(rtt.into()),
        }
        match self.adopt_losses {
            None => {}
            Some(losses) if !(1e-6..=0.5).contains(&losses) => {
                let message = format!(
                    "it is {losses}; give a share of 0.000001 to 0.5 (0.01 is one in a hundred), or leave it out"
                );
                wrong("adopt_losses", message);
            }
            Some(losses) => conditions.losses_ppm = Some((losses * 1e6).round() as u32),
        }
        conditions
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
