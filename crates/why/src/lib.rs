//! Why a connection is slow: looks at its control block, or a capture's flows, in; causes with their share of the time
//! out. Pure: nothing is looked at, and no clock is read here.
//!
//! ```text
//! Look, Look, … ──▶ divide (what held it, span by span) ──▶ judge (why) ──▶ Verdict ──▶ sentence, price, remedy
//! FlowReport ─────────────────────────────────────────────▶ capture ─────────▲
//! ```
//!
//! - [`cause`]: the catalogue: every cause, what it means, how it is told apart.
//! - [`divide`]: each span between two looks, divided without gap or overlap by the kernel's own clocks.
//! - [`mod@judge`]: why the congestion window or the receiver's window is what it is: from the whole watch.
//! - [`mod@course`]: the same, stretch by stretch, to be drawn.
//! - [`host`]: what a host's settings cost on a path.
//! - [`price`]: the rate without a cause.
//! - [`remedy`]: what mends it, as commands.
//! - [`proof`]: whether a remedy was one.
//! - [`record`]: looks kept in a file, to be judged again.
//! - [`verdict`]: what was found, as data; [`sentence`] puts it into words, [`words`] its figures.

pub mod capture;
pub mod cause;
pub mod course;
pub mod divide;
pub mod host;
pub mod judge;
pub mod price;
pub mod proof;
pub mod record;
pub mod remedy;
pub mod sentence;
pub mod verdict;
pub mod words;

pub use cause::{Basis, CATALOGUE, Cause, Entry};
pub use course::{Stretch, course};
pub use divide::{Hold, Look, Memory};
pub use judge::{at_once, judge};
pub use remedy::Remedy;
pub use verdict::{Assumed, Figures, Price, Share, Verdict};
