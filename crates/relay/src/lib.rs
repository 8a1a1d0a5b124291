//! A split-TCP relay with one congestion control per leg (Isogaki 2005: the long leg of a Reno connection runs
//! HighSpeed TCP).
//!
//! - [`spec`], `plan`: the relay's file, and what it resolves to.
//! - `doors`: listeners, and by which rule their clients are carried.
//! - [`connection`]: the logic of one connection, without sockets and without a clock.
//! - `relayed`, `buffer`, `leg`: its sockets; splice(2) through pooled pipes, plain memory as second engine.
//! - `inbound`: what a reading means: bytes, an urgent mark, an end that the kernel confirms.
//! - `hold`: SYNs that wait until the server has answered.
//! - [`adopt`]: sockets that are put between two ends right after their handshake.
//! - `worker`: epoll loops, one per core, that share the load.
//! - `intercept`: nft and routing rules of a transparent relay, made and removed.
//! - [`handover`]: to the next relay, when this one is upgraded or was killed.
//! - `reload`, [`Commands`]: what may be asked of it while it runs.
//! - `sampling`, [`observer`], [`status`], [`control`], [`metrics`]: what it tells.
//!
//! ```no_run
//! use longfat_relay::RelayPlan;
//! use std::sync::atomic::AtomicBool;
//!
//! let mut plan = RelayPlan::explicit("pep", "0.0.0.0:8080".parse()?, vec!["192.0.2.1:80".parse()?]);
//! plan.defaults_mut().server.cc = Some("cubic".into());
//! let stop = AtomicBool::new(false);
//! let stats = longfat_relay::run(&plan, &stop, &())?;
//! println!("{} connections", stats.connections);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod adopt;
mod buffer;
mod commands;
pub mod connection;
pub mod control;
mod crowd;
mod destination;
mod doors;
mod error;
mod gather;
pub mod handover;
mod hold;
mod inbound;
mod intercept;
mod leg;
mod limits;
pub mod metrics;
pub mod observer;
mod one_way;
mod pair;
mod places;
mod plan;
mod queue;
mod registry;
mod relayed;
mod reload;
mod run;
mod sampling;
mod shared;
mod shares;
pub mod spec;
pub mod status;
mod steer;
mod tcp_state;
mod worker;

pub use buffer::BUFFER_BYTES;
pub use commands::{Commands, Stop};
pub use error::{Error, Result};
pub use hold::{TUN_DEVICE, open_tun, open_tuns_by};
pub use intercept::{clean, explain, missing_tun};
pub use longfat_cc::queue::QueuePlan;
pub use observer::{ConnectionSummary, Ended, Observer, Ready, RelayStats};
pub use plan::{
    Accept, ConnectionPlan, ControlPlan, Fail, InterceptPlan, LegPlan, LimitsPlan, ListenerPlan, LogFormat,
    LogLevel, LogPlan, MatchPlan, Mptcp, Network, Ports, RelayPlan, RulePlan,
};
pub use queue::{QueueSpec, TargetSpec};
pub use run::{missing, missing_for_interception, run, upgrade};
