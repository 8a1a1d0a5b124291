//! A link as a person writes it, and its resolution into a [`LinkPlan`].
//!
//! ```toml
//! rate = "1Gbit"                  # bits of IP packets per second; left out: unlimited
//! delay = "14.2ms"                # one way; left out: none
//! queue = { discipline = "droptail", limit = "3550KB" }
//! backward = { rate = "100Mbit" } # what differs in the other direction
//! schedule = [ { at = "10s", rate = "100Mbit" } ]
//! ```

mod followed;
mod resolve;

use crate::{
    plan::LinkPlan,
    trace::{Trace, TraceError, TraceSpec},
};
use longfat_schema::units::{Nanos, Rate, Size};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// A link. Every field may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Rate of the line; default unlimited.
    pub rate: Option<RateSpec>,
    /// One-way propagation delay; default none.
    pub delay: Option<Nanos>,
    /// Extra delay, uniform from 0 to this; default none.
    pub jitter: Option<Nanos>,
    /// Whether jitter may change the order of packets; default no.
    pub reorder: Option<bool>,
    /// Random loss; default none.
    pub loss: Option<LossSpec>,
    /// The queue before the line; default drop-tail.
    pub queue: Option<QueueSpec>,
    /// Bytes the rate counts per packet beyond the IP packet; default 0.
    pub overhead: Option<Size>,
    /// Largest IP packet in bytes; default 1500.
    pub mtu: Option<u32>,
    /// Seed of everything random; default: the caller's.
    pub seed: Option<u64>,
    /// Limit of the 99th percentile of lateness; default 300 us.
    pub late_limit_p99: Option<Nanos>,
    /// Share of the time, 0 to 1, for which the path may stand still with its machine; default 0.02.
    pub pause_limit: Option<f64>,
    /// Time between two samples of the queue; default 1 ms.
    pub sample_interval: Option<Nanos>,
    /// How late a packet may leave so that neighbours leave together; default 0: never.
    pub coalesce: Option<Nanos>,
    /// What differs from the second end to the first.
    pub backward: Option<DirectionSpec>,
    /// Changes over time.
    pub schedule: Option<Vec<ChangeSpec>>,
    /// A recorded link that this one follows: a file of delivery opportunities (mahimahi's), a `.csv` or a `.parquet`.
    pub trace: Option<TraceSpec>,
}

/// What may differ in the other direction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DirectionSpec {
    /// Rate of the line, or `unlimited`.
    pub rate: Option<RateSpec>,
    /// One-way propagation delay.
    pub delay: Option<Nanos>,
    /// Extra delay.
    pub jitter: Option<Nanos>,
    /// Whether jitter may change the order of packets.
    pub reorder: Option<bool>,
    /// Random loss.
    pub loss: Option<LossSpec>,
    /// The queue; replaces the other direction's table as a whole.
    pub queue: Option<QueueSpec>,
    /// Bytes the rate counts per packet beyond the IP packet.
    pub overhead: Option<Size>,
    /// A recorded link that this direction follows; default the other direction's, unless this one has a rate.
    pub trace: Option<TraceSpec>,
}

/// A change of the link at a time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangeSpec {
    /// When, since the start of the schedule.
    pub at: Nanos,
    /// Which direction; default both.
    pub direction: Option<DirectionName>,
    /// New rate, or `unlimited`.
    pub rate: Option<RateSpec>,
    /// New delay.
    pub delay: Option<Nanos>,
    /// New jitter.
    pub jitter: Option<Nanos>,
    /// New loss.
    pub loss: Option<LossSpec>,
    /// New queue; a limit left out stays.
    pub queue: Option<QueueSpec>,
}

/// A direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DirectionName {
    /// First end to second.
    Forward,
    /// Second end to first.
    Backward,
}

impl DirectionName {
    /// The direction's name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            DirectionName::Forward => "forward",
            DirectionName::Backward => "backward",
        }
    }
}

/// A rate, or the word `unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSpec(pub Option<Rate>);

impl FromStr for RateSpec {
    type Err = longfat_schema::units::UnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim() == "unlimited" { Ok(RateSpec(None)) } else { Ok(RateSpec(Some(text.parse()?))) }
    }
}

impl<'de> Deserialize<'de> for RateSpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "json-schema")]
impl schemars::JsonSchema for RateSpec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RateOrUnlimited".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let rate = generator.subschema_for::<Rate>();
        schemars::json_schema!({ "anyOf": [rate, { "const": "unlimited" }] })
    }
}

impl Serialize for RateSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(rate) => rate.serialize(serializer),
            None => serializer.serialize_str("unlimited"),
        }
    }
}

/// Random loss: a probability, or the chances of a two-state process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(
    untagged,
    expecting = "loss must be a probability such as 0.001, or { to_bad = 0.001, to_good = 0.2, loss_bad = 1.0, \
                 loss_good = 0.0 } (the last two may be left out)"
)]
pub enum LossSpec {
    /// Each packet by itself.
    Probability(f64),
    /// Gilbert-Elliott.
    Bursts(BurstSpec),
}

/// Loss in bursts: Gilbert-Elliott.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BurstSpec {
    /// Probability, per packet, of turning bad.
    pub to_bad: f64,
    /// Probability, per packet, of turning good.
    pub to_good: f64,
    /// Loss in the bad state; default 1.
    pub loss_bad: Option<f64>,
    /// Loss in the good state; default 0.
    pub loss_good: Option<f64>,
}

/// A queue and its discipline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// `droptail` (default), `red` or `codel`.
    pub discipline: Option<DisciplineName>,
    /// Most bytes waiting; default one bandwidth-delay product of the round trip, at least 64 packets.
    pub limit: Option<Size>,
    /// Most bytes waiting, as a share of one bandwidth-delay product of the round trip, in place of `limit`.
    pub round_trips: Option<f64>,
    /// Mark instead of drop where the packet allows it: `red` and `codel`; default no.
    pub ecn: Option<bool>,
    /// `droptail`: mark arrivals that find more than this waiting.
    pub mark_threshold: Option<Size>,
    /// `red`: average from which packets are told; default a twelfth of the limit.
    pub min_threshold: Option<Size>,
    /// `red`: average at which the probability is `max_probability`; default a quarter of the limit.
    pub max_threshold: Option<Size>,
    /// `red`: default 0.1.
    pub max_probability: Option<f64>,
    /// `red`: weight of the newest queue length in the average; default 0.002.
    pub weight: Option<f64>,
    /// `red`: rise beyond the upper threshold instead of jumping to certainty; default yes.
    pub gentle: Option<bool>,
    /// `codel`: acceptable standing delay; default 5 ms.
    pub target: Option<Nanos>,
    /// `codel`: worst-case round-trip time; default 100 ms.
    pub interval: Option<Nanos>,
}

/// The name of a queue's discipline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DisciplineName {
    /// Drop what does not fit.
    #[default]
    Droptail,
    /// Random Early Detection.
    Red,
    /// Controlled Delay.
    Codel,
}

impl fmt::Display for DisciplineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DisciplineName::Droptail => "droptail",
            DisciplineName::Red => "red",
            DisciplineName::Codel => "codel",
        })
    }
}

impl FromStr for DisciplineName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let all = [DisciplineName::Droptail, DisciplineName::Red, DisciplineName::Codel];
        all.into_iter()
            .find(|name| name.to_string() == text)
            .ok_or_else(|| format!("unknown queue discipline '{text}'; choose droptail, red or codel"))
    }
}

/// Traces that were read, by their files.
#[derive(Debug, Default)]
pub struct Traces(BTreeMap<PathBuf, Arc<Trace>>);

impl Traces {
    fn open(&mut self, path: &Path) -> Result<Arc<Trace>, TraceError> {
        if let Some(known) = self.0.get(path) {
            return Ok(Arc::clone(known));
        }
        let trace = Arc::new(Trace::open(path)?);
        self.0.insert(path.to_owned(), Arc::clone(&trace));
        Ok(trace)
    }
}

/// A value that cannot be: names the field, the value and the mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("link '{link}': {field} = {value} {why}; {mend}")]
pub struct SpecError {
    /// Which link.
    pub link: String,
    /// Which field, with its table.
    pub field: String,
    /// The value that was given.
    pub value: String,
    /// What is wrong with it.
    pub why: String,
    /// What to write instead.
    pub mend: String,
}

impl LinkSpec {
    /// Reads a link from TOML.
    ///
    /// # Errors
    /// The first thing in the text that is no part of a link, with its line.
    pub fn from_toml(text: &str) -> Result<LinkSpec, toml::de::Error> {
        toml::from_str(text)
    }

    /// Whether one of its directions follows a trace.
    pub fn follows_trace(&self) -> bool {
        self.trace.is_some() || self.backward.as_ref().is_some_and(|backward| backward.trace.is_some())
    }

    /// Reads the traces that it names, relative to `base`. Each file is read once, if `read` is the same for many
    /// links.
    ///
    /// # Errors
    /// The first that cannot be read.
    pub fn load_traces(&mut self, name: &str, base: &Path, read: &mut Traces) -> Result<(), SpecError> {
        let backward = self.backward.as_mut().and_then(|backward| backward.trace.as_mut());
        let named = [("trace", self.trace.as_mut()), ("backward.trace", backward)];
        for (field, spec) in named {
            let Some(spec) = spec else { continue };
            spec.trace = Some(read.open(&base.join(&spec.file)).map_err(|error| {
                SpecError {
                    link: name.to_owned(),
                    field: field.to_owned(),
                    value: format!("'{}'", spec.file.display()),
                    why: format!("cannot be followed: {error}"),
                    mend:
                        "name a file of delivery opportunities, a .csv or a .parquet, relative to this file"
                            .to_owned(),
                }
            })?);
        }
        Ok(())
    }

    /// Resolves every value. `default_seed` is used where the link names none.
    ///
    /// # Errors
    /// The first value that cannot be.
    pub fn resolve(&self, name: &str, default_seed: u64) -> Result<LinkPlan, SpecError> {
        resolve::link(self, name, default_seed)
    }
}
