//! What a path asks for, from its rate and distance: windows, sysctls, queues, the throughput that each congestion
//! control can expect, and an experiment that checks it. Pure: nothing is measured, nothing is set.
//!
//! ```text
//! PathSpec ──▶ PathPlan { window, queue, sysctls, forecasts } ──▶ experiment file
//! ```

mod experiment;
mod forecast;
mod window;

pub use experiment::{STREAMS_MAX, experiment, experiment_name};
pub use forecast::{Forecast, Limit};
pub use window::{QueuePlan, SysctlPlan, WINDOW_MAX_BYTES, WindowPlan};

use longfat_schema::units::{Nanos, Rate, Size};
use serde::Serialize;

/// Internet and TCP headers of a full segment: IPv4 without options, TCP with timestamps (RFC 7323).
pub const HEADER_BYTES: u32 = 52;

/// Longest time that a full queue delays: ten times the longest path's.
const QUEUE_DELAY_MAX_S: u64 = 1000;

/// A path as a person describes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathSpec {
    /// Rate of its slowest link, IP packets counted.
    pub rate: Rate,
    /// Round-trip time without a queue.
    pub rtt: Nanos,
    /// Largest IP packet.
    pub mtu_bytes: u32,
    /// Part of the packets that is lost whatever the queue does.
    pub loss: f64,
    /// Flows that share it.
    pub flows: u32,
    /// What its queue holds; absent: as much as is recommended.
    pub queue: Option<Size>,
}

/// What is wrong with a path, and the mend.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PathError {
    /// No path is like that.
    #[error("the rate is {0}; give one from 1kbit to 10000Gbit")]
    Rate(Rate),
    /// No path is like that.
    #[error("the round-trip time is {0}; give one from 1us to 100s")]
    Rtt(Nanos),
    /// IPv6 asks for some, and IP has no more.
    #[error("the MTU is {0} bytes; give one from 1280 (IPv6) to 65535")]
    Mtu(u32),
    /// Not a probability, or one at which nothing arrives.
    #[error("the loss is {0}; give the part of packets that is lost, from 0 to 0.1")]
    Loss(f64),
    /// Nobody sends.
    #[error("the number of flows is {0}; give one from 1 to 1000000")]
    Flows(u32),
    /// A packet has no room in it.
    #[error("the queue is {queue}; give one that holds a packet of {mtu} bytes, or leave it out")]
    Queue {
        /// What was given.
        queue: Size,
        /// Largest packet.
        mtu: u32,
    },
    /// No queue holds packets so long.
    #[error(
        "the queue is {queue}, which this path takes {delay} to carry; give one of at most {most}, or leave it out"
    )]
    LongQueue {
        /// What was given.
        queue: Size,
        /// When its last packet has left.
        delay: Nanos,
        /// Most that is planned for.
        most: Size,
    },
    /// An experiment has no such flow.
    #[error(
        "an experiment's flow has at most {STREAMS_MAX} connections, and these are {0}; give fewer flows"
    )]
    Connections(u32),
    /// Flows without a packet each.
    #[error("{flows} flows share {segments:.1} packets in flight; a flow needs at least 2: give fewer flows")]
    Share {
        /// Number of flows.
        flows: u32,
        /// Bandwidth-delay product.
        segments: f64,
    },
}

/// Everything said about a path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathPlan {
    /// The path.
    pub path: PathSpec,
    /// Payload of a full segment.
    pub mss_bytes: u32,
    /// Payload per second when the path is full.
    pub goodput_max_bps: u64,
    /// What must be in flight.
    pub window: WindowPlan,
    /// What should be able to wait.
    pub queue: QueuePlan,
    /// What to set on the hosts at both ends.
    pub sysctls: Vec<SysctlPlan>,
    /// What each congestion control gets, in the order of the catalogue.
    pub forecasts: Vec<Forecast>,
    /// What else a reader should know.
    pub notes: Vec<String>,
}

impl PathSpec {
    /// Checks the bounds.
    ///
    /// # Errors
    /// The first value that is out of them.
    pub fn check(&self) -> Result<(), PathError> {
        let refuse = |bad: bool, error: PathError| if bad { Err(error) } else { Ok(()) };
        refuse(!(1_000..=10_000_000_000_000).contains(&self.rate.0), PathError::Rate(self.rate))?;
        refuse(!(1_000..=100_000_000_000).contains(&self.rtt.0), PathError::Rtt(self.rtt))?;
        refuse(!(1_280..=65_535).contains(&self.mtu_bytes), PathError::Mtu(self.mtu_bytes))?;
        refuse(!(0.0..=0.1).contains(&self.loss), PathError::Loss(self.loss))?;
        refuse(!(1..=1_000_000).contains(&self.flows), PathError::Flows(self.flows))?;
        if let Some(queue) = self.queue.filter(|queue| queue.0 < u64::from(self.mtu_bytes)) {
            return Err(PathError::Queue { queue, mtu: self.mtu_bytes });
        }
        let most = Size(self.rate.0 / 8 * QUEUE_DELAY_MAX_S);
        if let Some(queue) = self.queue.filter(|queue| *queue > most) {
            return Err(PathError::LongQueue { queue, delay: window::queue_delay(queue.0, self.rate), most });
        }
        let (flows, segments) = (self.flows, self.pipe_segments());
        refuse(segments < 2.0 * f64::from(flows), PathError::Share { flows, segments })
    }

    /// Plans for the path.
    ///
    /// # Errors
    /// A value that no path has.
    pub fn plan(&self) -> Result<PathPlan, PathError> {
        self.check()?;
        let queue = QueuePlan::of(self);
        let window = WindowPlan::of(self, queue.bytes);
        let forecasts = forecast::all(self, queue.bytes);
        Ok(PathPlan {
            path: self.clone(),
            mss_bytes: self.mss_bytes(),
            goodput_max_bps: (self.rate.0 as f64 * self.payload_share()) as u64,
            sysctls: window::sysctls(&window),
            notes: window::notes(self, &window),
            window,
            queue,
            forecasts,
        })
    }

    fn mss_bytes(&self) -> u32 {
        self.mtu_bytes - HEADER_BYTES
    }

    fn payload_share(&self) -> f64 {
        f64::from(self.mss_bytes()) / f64::from(self.mtu_bytes)
    }

    fn rtt_s(&self) -> f64 {
        self.rtt.0 as f64 / 1e9
    }

    /// The bandwidth-delay product, packets and headers counted.
    fn pipe_bytes(&self) -> f64 {
        self.rate.0 as f64 / 8.0 * self.rtt_s()
    }

    fn pipe_segments(&self) -> f64 {
        self.pipe_bytes() / f64::from(self.mtu_bytes)
    }
}

#[cfg(test)]
mod tests;
