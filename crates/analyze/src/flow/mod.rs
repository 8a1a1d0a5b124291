//! One flow, from its segments.
//!
//! - [`young`]: the first packets of a flow, until it is known to go on.
//! - [`connection`]: both ends: handshake, vantage point, closing.
//! - [`half`]: the data one end sends and the acknowledgements it gets, with what it consists of: [`sequence`], the
//!   numbers;
//!   [`round_trips`]; [`limits`], what kept it from sending; [`observers`], what is only looked at; [`copies`]; [`checksums`];
//!   [`counts`].
//! - [`recovery`]: what a retransmission was, and the episodes they form.
//! - [`spacing`]: time between packets: bursts, ticks, ACK compression.
//! - [`series`], [`histogram`], [`ranges`], [`thinned`]: bounded memory for values over time, distributions,
//!   sequence ranges and points of a plot.
//! - [`known`]: what can be known of a direction where the capture was made.
//!
//! The definitions are written down in `docs/reference/analyze.md`.

pub mod checksums;
pub mod connection;
pub mod copies;
pub mod counts;
pub mod half;
pub mod histogram;
pub mod known;
pub mod limits;
pub mod marks;
pub mod observers;
pub mod queue;
pub mod ranges;
pub mod recovery;
pub mod round_trips;
pub mod sequence;
pub mod series;
pub mod spacing;
pub mod thinned;
pub mod young;
