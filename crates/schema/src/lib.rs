//! Units, records and the run directory: the facts every other crate of longfat shares.
//!
//! - [`arrivals`]: laws by which datagrams of cross traffic leave.
//! - [`units`]: rates, sizes and times as people write them (`1Gbit`, `256KiB`, `28.4ms`), with errors that say the
//!   mend.
//! - [`record`]: what a measuring program says while it runs, one JSON object per line.
//! - [`lines`]: those lines in a file.
//! - [`samples`]: those of a whole run in memory, by kind.
//! - [`decode`]: TOML into types, every problem found and named by its key (feature `toml`).
//! - [`metric`]: every metric of a run, and what a reader should know of it.
//! - [`hex`]: octets as hexadecimal digits.
//! - [`quantity`]: figures in the units people read.
//! - [`random`]: the one generator of random numbers.
//! - [`own_time`]: from a slowed run's time to the experiment's.
//! - [`spelling`]: what a mistyped word may have meant.
//! - [`text`]: text of others, made safe to show.
//! - [`run`]: the run directory, its manifest and its Parquet tables (feature `store`).
//!
//! This crate is a leaf: it knows no kernel, no network and no clock.

pub mod arrivals;
#[cfg(feature = "toml")]
pub mod decode;
pub mod hex;
pub mod lines;
pub mod metric;
pub mod own_time;
pub mod quantity;
pub mod random;
pub mod record;
mod regular;
#[cfg(feature = "store")]
pub mod run;
pub mod samples;
pub mod send_buffer;
pub mod spelling;
pub mod text;
pub mod units;

/// Version of the run directory, the records and the manifest. Readers refuse a newer one and bring an older one up to
/// date: 1 had no hashes, and runs of before there were traces; plans of 2 knew cross traffic evenly spaced or Poisson.
pub const SCHEMA_VERSION: u32 = 4;

/// JSON Schema (draft 7, which editors of TOML know) of what `T` reads.
#[cfg(feature = "json-schema")]
pub fn json_schema<T: schemars::JsonSchema>() -> serde_json::Value {
    schemars::generate::SchemaSettings::draft07().into_generator().into_root_schema_for::<T>().to_value()
}
