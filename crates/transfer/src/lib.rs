//! Memory-to-memory transfers with echo latency and TCP_INFO series.
//!
//! A server ([`serve`]) waits; a client ([`send`]) brings the plan, makes the connections and keeps the book. Either
//! end may be the one that sends. Layers, from the bottom:
//!
//! - pure, time passed in: [`plan`], [`pattern`], [`echo`], [`schedule`], [`datagram`], [`control`], [`ends`];
//! - sockets: blocks out (`block`), bytes in (`sink`), echoes back (`returns`), datagrams (`udp_*`);
//! - one transfer at one end: `session` on top of the control connection (`channel`);
//! - who comes to a server (`lobby`) and what it allows (`limits`);
//! - the two programs: `server`, `client`.

pub mod control;
pub mod datagram;
pub mod echo;
pub mod ends;
pub mod pattern;
pub mod plan;
pub mod schedule;

mod admit;
mod block;
mod channel;
mod client;
mod context;
mod counter;
mod error;
mod halt;
mod ledger;
mod limits;
mod lobby;
mod outcome;
mod proof;
mod returns;
mod room;
mod server;
mod session;
mod sink;
mod sockets;
mod source;
mod start;
mod threads;
mod udp_sink;
mod udp_source;

pub use client::{SendObserver, SendOptions, send};
pub use error::{End, Error, Result};
pub use ledger::{IntervalReport, IntervalRow};
pub use limits::Limits;
pub use outcome::Outcome;
pub use plan::{Amount, Protocol, Receive, TransferPlan};
pub use server::{ServeObserver, ServeOptions, Served, Server, serve};
pub use start::{Start, Step, Told};
