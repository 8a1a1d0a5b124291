//! A packet-level simulator: hosts with a TCP like Linux's, relays and UDP sources on the links of `longfat-link`,
//! with the congestion controls of `longfat-cc`, under virtual time. No privileges, no clock, any operating system.
//!
//! - [`Scenario`]: what is simulated, as plain data. [`run`] runs it and hands over records as a real run's programs
//!   write them.
//! - `tcp`: the TCP model. Nothing in it knows the event queue but by a time to be woken at.
//!
//! The same scenario (seed included) gives the same records.

mod engine;
mod hold_up;
mod net;
mod packet;
mod queue;
mod ranges;
mod relay;
mod route;
mod sample;
pub mod scenario;
mod tcp;
mod timers;
mod udp;
mod world;

pub use engine::{SimStats, run};
pub use packet::Family;
pub use scenario::{
    EndpointPlan, FlowPlan, HoldUp, LinkBetween, NodePlan, ReceiveBuffer, RelayPlan, Scenario, ScenarioError,
    SendBuffer, TcpPlan, Transport, UdpPlan,
};
pub use tcp::BUNDLE_MOST_BYTES;
