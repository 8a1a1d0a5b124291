//! A split-TCP relay with one congestion control per leg (Isogaki 2005: the long leg of a Reno connection runs
//! HighSpeed TCP).
//!
//! Modules lie in floors, each with a folder of its own, which use only those above them in this list:
//!
//! - `plan`: what a relay is told to do, every value resolved. [`spec`]: the file that says it.
//! - `logic`: what is decided without sockets and without a clock; [`connection`] above all.
//! - `keeping`: what survives the process, as it is written, and where it is put.
//! - [`moving`]: what two relays say to each other about connections that move to another router.
//! - `legs`: sockets, and what holds bytes between them: splice(2) through pooled pipes, plain memory as second engine.
//! - `observe`: [`observer`], [`status`], [`metrics`] and records: what a relay tells. Workers write it into a journal.
//! - [`handover`]: what comes from another relay, when that one is upgraded or was killed.
//! - `queue`: queues kept short.
//! - `shared`: handles that workers share, and are given with whatever works for them.
//! - [`adopt`]: sockets put between two ends right after their handshake.
//! - `intercept`: nft and routing rules of a transparent relay. `hold`: SYNs that wait until the server has answered.
//! - `listeners`: where clients come in, and by which rule they are carried.
//! - `worker`: epoll loops, one per core, that share the load.
//! - `daemon`: start, reload, [`control`], handing over, end.
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
mod daemon;
mod error;
pub mod handover;
mod hold;
mod intercept;
mod keeping;
mod legs;
mod listeners;
mod logic;
pub mod moving;
mod observe;
mod plan;
mod queue;
mod shared;
pub mod spec;
mod worker;

pub use daemon::{
    commands::{Commands, Stop},
    control,
    missing::{missing, missing_for_adoption, missing_for_interception},
    mover::{MoveStatus, Staying},
    run::{run, upgrade},
};
pub use error::{Error, Result};
pub use intercept::{clean, explain, missing_tun};
pub use legs::tun::{TUN_DEVICE, open_tun, open_tuns_by};
pub use logic::connection;
pub use longfat_cc::queue::QueuePlan;
pub use observe::{
    metrics,
    observer::{self, ConnectionSummary, Ended, Observer, Ready, RelayStats},
    status,
};
pub use plan::{
    Accept, Acknowledge, BUFFER_BYTES, ConnectionPlan, ControlPlan, Fail, InterceptPlan, LegPlan, LimitsPlan,
    ListenerPlan, LogFormat, LogLevel, LogPlan, MatchPlan, MovePlan, Mptcp, Network, Ports, RelayPlan,
    RulePlan, check_name, filling_bytes,
};
pub use spec::{AfterSpec, QueueSpec, TargetSpec};
