//! A link with every value resolved: what runs, what is recorded, what a rerun reads.

use crate::trace::Opportunities;
use longfat_schema::units::Nanos;
use serde::{Deserialize, Serialize};

/// A link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPlan {
    /// The link's name in records.
    pub name: String,
    /// Largest IP packet it carries.
    pub mtu_bytes: u32,
    /// Seed of everything random on it.
    pub seed: u64,
    /// Limit of the 99th percentile of lateness; beyond it the run is invalid.
    pub late_limit_ns: u64,
    /// Share of the time for which the path may stand still with its machine; beyond it the run is invalid.
    pub pause_limit: f64,
    /// Time between two samples of the queue.
    pub sample_interval_ns: u64,
    /// How late a packet may leave so that neighbours leave together; 0: every packet at its own time.
    pub coalesce_ns: u64,
    /// From the first end to the second.
    pub forward: DirectionPlan,
    /// From the second end to the first.
    pub backward: DirectionPlan,
}

/// One direction of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectionPlan {
    /// Rate, delay, jitter and loss at the beginning.
    pub line: LinePlan,
    /// The queue at the beginning.
    pub queue: QueuePlan,
    /// Whether jitter may change the order of packets.
    pub reorder: bool,
    /// Bytes the rate counts per packet beyond the IP packet (38: Ethernet with preamble and gap).
    pub overhead_bytes: u32,
    /// Changes, in the order of their times.
    pub schedule: Vec<ChangePlan>,
    /// After so long the schedule begins again; absent: it is gone through once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_ns: Option<u64>,
    /// Recorded opportunities to send, which the line follows from the start of the schedule on. The rate is their mean
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opportunities: Option<OpportunitiesPlan>,
}

/// Latest change of a link, and longest schedule that begins again: a month.
pub const SPAN_MAX_NS: u64 = 31 * 86_400 * 1_000_000_000;
/// Shortest schedule that begins again. A shorter one would hardly let time go on.
const REPEATS_MIN_NS: u64 = 1_000_000;
/// Time that each change of a schedule that begins again takes at least, on the average.
const CHANGE_MIN_NS: u64 = 1_000;

/// Why a schedule cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unscheduled {
    /// What is wrong with its times.
    pub why: String,
    /// What to do about it.
    pub mend: String,
}

impl DirectionPlan {
    /// What is wrong with the times of its changes: too late, or so close together, again and again, that they are all
    /// there is time for.
    pub fn unscheduled(&self) -> Option<Unscheduled> {
        let latest_ns = self.schedule.iter().map(|change| change.at_ns).chain(self.repeats_ns).max()?;
        if latest_ns > SPAN_MAX_NS {
            let why = format!("takes {}", Nanos(latest_ns));
            return Some(Unscheduled { why, mend: format!("cut it to {} at most", Nanos(SPAN_MAX_NS)) });
        }
        let count = self.schedule.len() as u64;
        let least_ns = count.saturating_mul(CHANGE_MIN_NS).max(REPEATS_MIN_NS);
        let repeats_ns = self.repeats_ns.filter(|ns| *ns < least_ns)?;
        let why = format!("begins again every {}, with {count} changes", Nanos(repeats_ns));
        let mend = format!("have it take {} at least, or go through it once", Nanos(least_ns));
        Some(Unscheduled { why, mend })
    }
}

/// Times at which a line sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpportunitiesPlan {
    /// Bytes that one carries, with those that the rate counts beyond the IP packet.
    pub bytes: u32,
    /// The unit of their times.
    pub unit_ns: u64,
    /// Whether they begin again after the last.
    pub repeat: bool,
    /// When they are.
    pub at: Opportunities,
}

impl OpportunitiesPlan {
    /// What they carry on the average.
    pub fn mean_bps(&self) -> u64 {
        let bits = u128::from(self.at.count()) * u128::from(self.bytes) * 8_000_000_000;
        let ns = u128::from(self.at.length()) * u128::from(self.unit_ns.max(1));
        u64::try_from(bits.div_ceil(ns)).unwrap_or(u64::MAX)
    }

    /// Most bytes that can be sent within a time.
    fn most_bytes(&self, within_ns: u64) -> u64 {
        self.at.most_within(within_ns.div_ceil(self.unit_ns.max(1))).saturating_mul(self.bytes.into())
    }
}

/// What the line does to packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinePlan {
    /// Bits per second; absent: unlimited; 0: nothing passes.
    pub rate_bps: Option<u64>,
    /// One-way propagation delay.
    pub delay_ns: u64,
    /// Extra delay, uniform from 0 to this.
    pub jitter_ns: u64,
    /// Random loss after transmission.
    pub loss: LossPlan,
}

/// A change: the whole line from then on, and the queue if that changes too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangePlan {
    /// When, since the start of the schedule.
    pub at_ns: u64,
    /// The line from then on.
    pub line: LinePlan,
    /// The queue from then on; absent: unchanged, its state kept.
    pub queue: Option<QueuePlan>,
}

/// Random loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "process", rename_all = "snake_case", deny_unknown_fields)]
pub enum LossPlan {
    /// Each packet by itself.
    Bernoulli {
        /// Probability of loss.
        probability: f64,
    },
    /// Two states, each with its loss, drawn anew per packet.
    GilbertElliott {
        /// Probability of turning bad.
        to_bad: f64,
        /// Probability of turning good.
        to_good: f64,
        /// Probability of loss in the bad state.
        loss_bad: f64,
        /// Probability of loss in the good state.
        loss_good: f64,
    },
}

impl LossPlan {
    /// No loss.
    pub const NONE: LossPlan = LossPlan::Bernoulli { probability: 0.0 };
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueuePlan {
    /// Most bytes waiting.
    pub limit_bytes: u64,
    /// What it does with them.
    pub discipline: DisciplinePlan,
}

/// A queue's discipline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DisciplinePlan {
    /// Drop what does not fit; perhaps mark beyond a step threshold (RFC 8257 section 3.1).
    Droptail {
        /// Mark arrivals that find more than this waiting.
        mark_threshold_bytes: Option<u64>,
    },
    /// Random Early Detection.
    Red {
        /// RED's parameters.
        red: RedPlan,
        /// Mark instead of drop where possible.
        ecn: bool,
    },
    /// Controlled Delay.
    Codel(CodelPlan),
}

/// Parameters of RED (Floyd and Jacobson 1993, and "gentle", 2000).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedPlan {
    /// Average queue from which packets are told.
    pub min_threshold_bytes: u64,
    /// Average queue at which the probability is `max_probability`.
    pub max_threshold_bytes: u64,
    /// Probability at the upper threshold.
    pub max_probability: f64,
    /// Weight of the newest queue length in the average.
    pub weight: f64,
    /// Beyond the upper threshold rise to certainty at its double instead of at once.
    pub gentle: bool,
}

/// Parameters of CoDel (RFC 8289).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodelPlan {
    /// Acceptable standing delay.
    pub target_ns: u64,
    /// In the order of a worst-case round-trip time.
    pub interval_ns: u64,
    /// Mark instead of drop where possible.
    pub ecn: bool,
}

/// Hold-ups of this part of the time in which a queue drains change which packets it drops.
const FELT: u64 = 10;
/// No sooner than this does a driver know that it, or a host, is late.
const LEAST_TOLD_NS: u64 = 100_000;
/// One that can matter on some path.
const ALWAYS_TOLD_NS: u64 = 1_000_000;

impl LinkPlan {
    /// From what length on hold-ups of hosts and driver can matter to the path: a tenth of the time in which the queue
    /// that is quicker at it drains.
    pub fn least_hold_up_ns(&self) -> u64 {
        let drains = [&self.forward, &self.backward].into_iter().filter_map(DirectionPlan::drain_ns);
        let felt_ns = drains.min().map_or(ALWAYS_TOLD_NS, |ns| ns / FELT);
        felt_ns.clamp(LEAST_TOLD_NS, ALWAYS_TOLD_NS)
    }

    /// Whether it does nothing to packets: a veth pair without a driver is that link.
    pub fn is_cable(&self) -> bool {
        [&self.forward, &self.backward].iter().all(|direction| direction.is_cable())
    }

    /// The plan as JSON.
    ///
    /// # Errors
    /// None in practice: the plan holds nothing JSON cannot say.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Reads a plan back.
    ///
    /// # Errors
    /// When the text is no plan.
    pub fn from_json(text: &str) -> serde_json::Result<LinkPlan> {
        serde_json::from_str(text)
    }
}

impl DirectionPlan {
    /// A line that does not change before a queue that drops at its end; it counts IP packets, and loses none.
    pub fn plain(rate_bps: Option<u64>, delay_ns: u64, limit_bytes: u64) -> DirectionPlan {
        let discipline = DisciplinePlan::Droptail { mark_threshold_bytes: None };
        DirectionPlan {
            line: LinePlan { rate_bps, delay_ns, jitter_ns: 0, loss: LossPlan::NONE },
            queue: QueuePlan { limit_bytes, discipline },
            reorder: false,
            overhead_bytes: 0,
            schedule: Vec::new(),
            repeats_ns: None,
            opportunities: None,
        }
    }

    fn is_cable(&self) -> bool {
        let LinePlan { rate_bps, delay_ns, jitter_ns, loss } = &self.line;
        let idle = rate_bps.is_none() && *delay_ns == 0 && *jitter_ns == 0 && *loss == LossPlan::NONE;
        idle && !self.changes()
    }

    /// Rate of a direction, where that is given and the same all the time.
    pub fn steady_bps(&self) -> Option<u64> {
        self.line.rate_bps.filter(|rate| *rate > 0 && !self.changes())
    }

    /// Rate that a direction has changed to by then. One that changes again and again has none.
    pub fn changed_bps(&self, end_ns: u64) -> Option<u64> {
        let last = self.schedule.iter().rfind(|change| change.at_ns <= end_ns)?;
        last.line.rate_bps.filter(|rate| *rate > 0 && self.repeats_ns.is_none())
    }

    /// Whether it is not the same all the time.
    pub fn changes(&self) -> bool {
        !self.schedule.is_empty() || self.opportunities.is_some()
    }

    /// Bytes that can be inside at once: queue plus line, at the greatest rate and delay of the schedule. Without a
    /// rate the line's part is unknown and left out.
    pub fn capacity_bytes(&self) -> u64 {
        let lines = || std::iter::once(&self.line).chain(self.schedule.iter().map(|change| &change.line));
        let queues = self.schedule.iter().filter_map(|change| change.queue.as_ref());
        let limit_bytes =
            queues.map(|queue| queue.limit_bytes).fold(self.queue.limit_bytes, std::cmp::Ord::max);
        let rate_bps = self.most_bps().unwrap_or(0);
        let delay_ns = lines().map(|line| line.delay_ns + line.jitter_ns).max().unwrap_or(0);
        let line_bytes = u128::from(rate_bps) * u128::from(delay_ns) / 8_000_000_000;
        let recorded_bytes = self.opportunities.as_ref().map_or(0, |recorded| recorded.most_bytes(delay_ns));
        limit_bytes.saturating_add(u64::try_from(line_bytes).unwrap_or(u64::MAX).max(recorded_bytes))
    }

    /// Greatest rate of the schedule.
    pub fn most_bps(&self) -> Option<u64> {
        let changes = self.schedule.iter().map(|change| &change.line);
        std::iter::once(&self.line).chain(changes).filter_map(|line| line.rate_bps).max()
    }

    /// How long the queue takes to drain at the greatest rate.
    pub fn drain_ns(&self) -> Option<u64> {
        let bits = u128::from(self.queue.limit_bytes) * 8_000_000_000;
        let bps = self.most_bps().filter(|bps| *bps > 0)?;
        Some(u64::try_from(bits / u128::from(bps)).unwrap_or(u64::MAX))
    }

    /// Least delay of the schedule.
    pub fn min_delay_ns(&self) -> u64 {
        let changes = self.schedule.iter().map(|change| change.line.delay_ns);
        changes.fold(self.line.delay_ns, std::cmp::Ord::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link whose forward queue holds so much.
    fn link(rate_bps: Option<u64>, limit_bytes: u64) -> LinkPlan {
        LinkPlan {
            name: "path".into(),
            mtu_bytes: 1500,
            seed: 1,
            late_limit_ns: 0,
            pause_limit: 0.0,
            sample_interval_ns: 0,
            coalesce_ns: 0,
            forward: DirectionPlan::plain(rate_bps, 20_000_000, limit_bytes),
            backward: DirectionPlan::plain(None, 20_000_000, 1_000_000),
        }
    }

    #[test]
    fn a_path_feels_what_takes_a_tenth_of_the_time_in_which_its_queue_drains() {
        assert_eq!(link(Some(200_000_000), 64_000).least_hold_up_ns(), 256_000);
        assert_eq!(link(Some(10_000_000_000), 64_000).least_hold_up_ns(), LEAST_TOLD_NS);
        for slow in [link(Some(7_000_000), 64_000), link(Some(0), 64_000), link(None, 64_000)] {
            assert_eq!(slow.least_hold_up_ns(), ALWAYS_TOLD_NS);
        }
    }
}
