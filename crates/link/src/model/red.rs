//! Random Early Detection: Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance",
//! IEEE/ACM ToN 1(4), 1993; "gentle": Floyd 2000.
//!
//! Model: an exponentially weighted average of the queue decides the probability `p_b` of telling a packet;
//! counting the packets since the last one told spreads the tellings evenly (`p_a`). Units: bytes, nanoseconds.
//! Packets are told regardless of their size (RFC 7141), though the queue is measured in bytes.

use super::random::Random;
use crate::plan::RedPlan;

/// What RED thinks of an arriving packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opinion {
    /// Let it in.
    Accept,
    /// Tell its sender of congestion: mark it if it can be marked, else drop it.
    Notify,
    /// Drop it: the average is beyond what marks may answer (RFC 3168 section 7).
    Drop,
}

/// State of one RED queue.
#[derive(Debug, Clone)]
pub struct Red {
    plan: RedPlan,
    average_bytes: f64,
    /// Packets accepted since the last one told; `None` while the average is below the lower threshold.
    count: Option<u64>,
    empty_since_ns: Option<u64>,
}

impl Red {
    /// An empty queue.
    pub fn new(plan: RedPlan) -> Red {
        Red { plan, average_bytes: 0.0, count: None, empty_since_ns: Some(0) }
    }

    /// Takes in one arrival. `typical_ns` is the transmission time of a typical packet: the step by which the
    /// average decays while the queue is empty (1993, section 4).
    pub fn arrive(&mut self, now_ns: u64, queue_bytes: u64, typical_ns: u64, random: &mut Random) -> Opinion {
        self.average(now_ns, queue_bytes, typical_ns);
        let probability = self.probability();
        if probability <= 0.0 {
            self.count = None;
            return Opinion::Accept;
        }
        if probability >= 1.0 {
            self.count = Some(0);
            return Opinion::Drop;
        }
        self.draw(probability, random)
    }

    /// The queue has become empty.
    pub fn emptied(&mut self, now_ns: u64) {
        self.empty_since_ns = Some(now_ns);
    }

    /// The average the decisions rest on.
    pub fn average_bytes(&self) -> f64 {
        self.average_bytes
    }

    fn average(&mut self, now_ns: u64, queue_bytes: u64, typical_ns: u64) {
        if queue_bytes > 0 {
            self.empty_since_ns = None;
            self.average_bytes += self.plan.weight * (queue_bytes as f64 - self.average_bytes);
            return;
        }
        // An empty queue counts as the arrivals of typical packets that could have been sent meanwhile.
        let since_ns = self.empty_since_ns.replace(now_ns).unwrap_or(now_ns);
        let steps = (now_ns.saturating_sub(since_ns) / typical_ns.max(1)).max(1);
        let exponent = i32::try_from(steps).unwrap_or(i32::MAX);
        self.average_bytes *= (1.0 - self.plan.weight).powi(exponent);
    }

    /// `p_b` of the paper; between the upper threshold and its double, gentle RED rises from `max_p` to 1.
    fn probability(&self) -> f64 {
        let (min, max) = (self.plan.min_threshold_bytes as f64, self.plan.max_threshold_bytes as f64);
        let max_p = self.plan.max_probability;
        match self.average_bytes {
            below if below < min => 0.0,
            between if between < max => max_p * (between - min) / (max - min),
            above if self.plan.gentle => (max_p + (1.0 - max_p) * (above - max) / max).min(1.0),
            _ => 1.0,
        }
    }

    fn draw(&mut self, probability: f64, random: &mut Random) -> Opinion {
        let count = self.count.map_or(0, |count| count + 1);
        self.count = Some(count);
        let spread = probability / (1.0 - count as f64 * probability).max(probability);
        if !random.chance(spread) {
            return Opinion::Accept;
        }
        self.count = Some(0);
        let beyond_marks = self.average_bytes >= self.plan.max_threshold_bytes as f64;
        if beyond_marks { Opinion::Drop } else { Opinion::Notify }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPICAL_NS: u64 = 12_000;

    fn plan() -> RedPlan {
        RedPlan {
            min_threshold_bytes: 50_000,
            max_threshold_bytes: 150_000,
            max_probability: 0.1,
            weight: 0.002,
            gentle: true,
        }
    }

    /// Arrivals at a queue held at `queue_bytes` until the average has settled, then counted.
    fn settled(plan: RedPlan, queue_bytes: u64, arrivals: usize) -> (Red, Vec<Opinion>) {
        let (mut red, mut random) = (Red::new(plan), Random::new(1, 0));
        for _ in 0..20_000 {
            red.arrive(1, queue_bytes, TYPICAL_NS, &mut random);
        }
        let opinions = (0..arrivals).map(|_| red.arrive(1, queue_bytes, TYPICAL_NS, &mut random)).collect();
        (red, opinions)
    }

    fn share(opinions: &[Opinion], wanted: Opinion) -> f64 {
        opinions.iter().filter(|opinion| **opinion == wanted).count() as f64 / opinions.len() as f64
    }

    #[test]
    fn the_average_follows_the_queue_with_its_weight() {
        let (mut red, mut random) = (Red::new(plan()), Random::new(1, 0));
        red.arrive(1, 100_000, TYPICAL_NS, &mut random);
        assert!((red.average_bytes() - 200.0).abs() < 1e-6);
        red.arrive(2, 100_000, TYPICAL_NS, &mut random);
        assert!((red.average_bytes() - 399.6).abs() < 1e-6);
    }

    #[test]
    fn below_the_lower_threshold_nobody_is_told() {
        let (_, opinions) = settled(plan(), 49_000, 10_000);
        assert_eq!(share(&opinions, Opinion::Accept), 1.0);
    }

    #[test]
    fn between_the_thresholds_tellings_are_evenly_spread_by_the_count() {
        // p_a spreads the gap uniformly; counting as in the paper's figure 2 (the count is 1 at the first packet
        // after a telling) it lies on 1..(1/p_b - 1), with mean 1/(2 p_b). Here p_b = 0.05.
        let (_, opinions) = settled(plan(), 100_000, 200_000);
        let told = share(&opinions, Opinion::Notify);
        assert!((told - 0.1).abs() < 0.003, "{told}");
        let accepted = opinions.split(|opinion| *opinion == Opinion::Notify);
        assert_eq!(accepted.map(<[_]>::len).max(), Some(18));
    }

    #[test]
    fn gentle_red_rises_to_certainty_at_twice_the_upper_threshold_and_drops_there() {
        let (_, opinions) = settled(plan(), 165_000, 10_000);
        // p_b = 0.1 + 0.9 * 0.1, beyond any mark.
        let dropped = share(&opinions, Opinion::Drop);
        assert!((0.3..0.5).contains(&dropped) && share(&opinions, Opinion::Notify) == 0.0, "{dropped}");
        let (_, opinions) = settled(plan(), 310_000, 1000);
        assert_eq!(share(&opinions, Opinion::Drop), 1.0);
    }

    #[test]
    fn without_gentle_everything_beyond_the_upper_threshold_is_dropped() {
        let (_, opinions) = settled(RedPlan { gentle: false, ..plan() }, 151_000, 1000);
        assert_eq!(share(&opinions, Opinion::Drop), 1.0);
    }

    #[test]
    fn an_idle_queue_lets_the_average_decay_as_if_packets_had_passed() {
        let (mut red, _) = settled(plan(), 100_000, 0);
        red.emptied(1_000_000);
        let before = red.average_bytes();
        red.arrive(1_000_000 + 100 * TYPICAL_NS, 0, TYPICAL_NS, &mut Random::new(1, 0));
        let expected = before * 0.998f64.powi(100);
        assert!((red.average_bytes() - expected).abs() < 1.0, "{} {expected}", red.average_bytes());
    }
}
