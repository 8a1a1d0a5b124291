//! A split-TCP relay with one congestion control per leg (Isogaki 2005: the long leg of a Reno connection runs
//! HighSpeed TCP).
//!
//! - [`connection`]: the logic of one connection, without sockets and without a clock.
//! - `relayed`, `buffer`, `leg`: its sockets; splice(2) through pooled pipes, plain memory as second engine.
//! - `worker`: epoll loops, one per core, that share the load.
//! - `intercept`: nft and routing rules of a transparent relay, made and removed.
//! - `sampling`, [`observer`]: what it tells.
//!
//! ```no_run
//! use longfat_relay::{Mode, RelayPlan};
//! use std::sync::atomic::AtomicBool;
//!
//! let mode = Mode::Explicit { listen: "0.0.0.0:8080".parse()?, to: vec!["192.0.2.1:80".parse()?] };
//! let mut plan = RelayPlan::new("pep", mode);
//! plan.server.cc = Some("cubic".into());
//! let stop = AtomicBool::new(false);
//! let stats = longfat_relay::run(&plan, &stop, &())?;
//! println!("{} connections", stats.connections);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffer;
pub mod connection;
mod error;
mod intercept;
mod leg;
mod limits;
pub mod observer;
mod plan;
mod relayed;
mod run;
mod sampling;
mod shared;
mod worker;

pub use buffer::BUFFER_BYTES;
pub use error::{Error, Result};
pub use observer::{ConnectionSummary, Ended, Observer, Ready, RelayStats};
pub use plan::{InterceptPlan, LegPlan, Mode, Network, Ports, RelayPlan};
pub use run::{missing, run};
