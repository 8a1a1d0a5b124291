//! Memory-to-memory transfers with echo latency and TCP_INFO series.
//!
//! A server ([`serve`]) waits; a client ([`send`]) brings the plan, makes the connections and keeps the book. Either
//! end may be the one that sends. Layers, from the bottom:
//!
//! - pure, time passed in: [`plan`], [`pattern`], [`echo`], [`schedule`], [`datagram`], [`control`], [`preamble`],
//!   [`ends`];
//! - sockets: blocks out (`block`), bytes in (`sink`), echoes back (`returns`), datagrams (`udp_*`), and which of this
//!   host's addresses they come to (`destination`);
//! - one transfer at one end: `session` on top of the control connection (`channel`);
//! - who comes to a server's one port (`lobby`), which data connections are waited for there (`gathering`), and what it
//!   allows (`limits`);
//! - what a data connection must have before its handshake (`handshake`), and how both ends come to have all of them
//!   (`prepare`, `admit`);
//! - the two programs: `server`, `client`.

pub mod control;
pub mod datagram;
pub mod echo;
pub mod ends;
pub mod pattern;
pub mod plan;
pub mod preamble;
pub mod schedule;

mod admit;
mod block;
mod channel;
mod client;
mod context;
mod counter;
mod destination;
mod error;
mod gathering;
mod halt;
mod handshake;
mod ledger;
mod limits;
mod lobby;
mod outcome;
mod prepare;
mod proof;
mod returns;
mod room;
mod serve_options;
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
pub use serve_options::ServeOptions;
pub use server::{ServeObserver, Served, Server, serve};
pub use start::{Start, Step, Told};
