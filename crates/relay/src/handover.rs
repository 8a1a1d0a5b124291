//! From one relay to the next: sockets, pipes with their bytes, interfaces, and what is known of each.
//!
//! - [`record`]: what is written, read by types that refuse what they do not know. Pure.
//! - [`mod@derive`]: what state a connection is in, by what the kernel says of its sockets and pipes. Pure.
//! - `wire`: a unix socket that carries both, with descriptors (SCM_RIGHTS).
//! - `estate`: what has come, in order.
//! - `facts`: what the kernel says.
//! - `arrival`: a connection that another relay has carried, in the hands of a worker.
//! - `leave`: the relay that hands over: its workers stand still, everything is sent, and it ends when the successor
//!   has said that it holds all of it, or goes on.
//! - `keeping`, [`keeper`]: a process that holds duplicates, so that a relay which is killed has a successor, too.

pub mod derive;
pub(crate) mod estate;
pub(crate) mod facts;
pub mod keeper;

pub use crate::keeping::record;
