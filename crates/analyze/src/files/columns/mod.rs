//! The compact form of a capture: one row of a Parquet table for each packet, with what its headers say in columns.
//! Everything that an analysis reads of a packet is there, and not the octets themselves. The columns are described in
//! `docs/design/capture.md`.
//!
//! - `row`: the columns, both ways.
//! - [`mod@write`]: packets in, a table out.
//! - [`read`]: a table in, segments out.
//! - `bounded`: what a page may become.

pub mod read;
mod row;
pub mod write;

use super::roll::Origin;
use crate::capture::write::Totals;
use serde::{Deserialize, Serialize};

/// Where the file says what it is, as JSON: an [`About`].
const ABOUT: &str = "longfat.capture";

/// What stands beside the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    /// Schema version of this form; readers refuse a newer one.
    schema_version: u32,
    #[serde(flatten)]
    origin: Origin,
    #[serde(flatten)]
    totals: Totals,
}
