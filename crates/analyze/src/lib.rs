//! Packet captures in, flows and findings out. No kernel, no privilege, no clock.
//!
//! - [`capture`]: pcap and pcapng, read as a stream, damage and all.
//! - [`decode`]: from a frame to a [`segment::Segment`].
//! - [`segments`]: captures as what an analysis reads.
//! - [`files`]: captures as files.
//! - [`clock`]: a capture's clock, and where it leaps.
//! - [`flow`]: what the segments of one flow show.
//! - [`findings`]: what the figures mean, with evidence.
//! - [`mod@report`]: what is said of a flow.
//! - [`table`]: from segments to flows, in memory bounded by the flows that are live.
//! - [`merge`]: several captures as one.
//! - [`analysis`]: all of it.
//! - [`matching`]: two captures of the same traffic at two places.
//! - [`expect`]: expectations of it.
//! - [`contradictions`]: what no analysis may say, for tests.
//! - [`summary`]: the result as text.
//! - [`words`]: figures as people read them.
//! - `tables` (a feature): the result as Parquet.

pub mod analysis;
pub mod capture;
#[cfg(test)]
#[path = "../tests/support/cases.rs"]
mod cases;
pub mod clock;
pub mod contradictions;
pub mod decode;
pub mod expect;
pub mod files;
pub mod findings;
pub mod flow;
pub mod matching;
pub mod merge;
pub mod report;
pub mod segment;
pub mod segments;
pub mod summary;
pub mod table;
#[cfg(feature = "tables")]
pub mod tables;
pub mod words;

/// What an analysis is to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Whether points for figures are kept.
    pub detailed: bool,
    /// A flow without packets for longer than this is over, unless payload went over it, both ends were seen, and what
    /// comes within two and a half hours goes on with its numbers.
    pub idle_ns: i64,
    /// A closed flow is over after this.
    pub linger_ns: i64,
    /// Flows that are reported one by one, the greatest by payload; all count in the sums. While reading, memory holds
    /// up to twice as many reports of up to 20 KB.
    pub most_flows: usize,
    /// Flows that are live at once: of more, those longest without a packet are taken for over, and counted. One of few
    /// packets takes up to 2 KB.
    pub live_flows: usize,
    /// Time that others are relative to, nanoseconds since 1970: that of the first packet.
    pub epoch_ns: i64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            detailed: false,
            idle_ns: 300_000_000_000,
            linger_ns: 10_000_000_000,
            most_flows: 10_000,
            live_flows: 500_000,
            epoch_ns: 0,
        }
    }
}
