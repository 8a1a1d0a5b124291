//! Controlled Delay: RFC 8289.
//!
//! Model: a packet that waited longer than `target` in a queue that has not fallen below it for one `interval`
//! starts the dropping state; drops then follow each other by `interval / sqrt(count)`. States: not dropping,
//! dropping. Units: nanoseconds. With ECN a packet is marked and delivered in place of a drop.

use super::{fifo::Fifo, packet::Ecn, packet::Packet};
use crate::plan::CodelPlan;

/// State of one CoDel queue (RFC 8289 section 5.3; names follow its pseudocode).
#[derive(Debug, Clone)]
pub struct Codel {
    plan: CodelPlan,
    /// A queue of no more than this is never too long (MAXPACKET).
    mtu_bytes: u64,
    first_above_ns: Option<u64>,
    drop_next_ns: u64,
    count: u64,
    last_count: u64,
    dropping: bool,
    marked_packets: u64,
}

/// A packet that left the store, and whether the state machine may drop it.
struct Taken<P> {
    packet: Packet<P>,
    may_drop: bool,
}

impl Codel {
    /// An empty queue.
    pub fn new(plan: CodelPlan, mtu_bytes: u32) -> Codel {
        Codel {
            plan,
            mtu_bytes: u64::from(mtu_bytes),
            first_above_ns: None,
            drop_next_ns: 0,
            count: 0,
            last_count: 0,
            dropping: false,
            marked_packets: 0,
        }
    }

    /// Packets marked so far.
    pub fn marked_packets(&self) -> u64 {
        self.marked_packets
    }

    /// The next packet to transmit (`deque` of the RFC); what is dropped on the way goes to `drop`.
    pub fn take<P>(
        &mut self,
        now_ns: u64,
        fifo: &mut Fifo<P>,
        mut drop: impl FnMut(Packet<P>),
    ) -> Option<Packet<P>> {
        let Some(taken) = self.next(now_ns, fifo) else {
            self.dropping = false;
            return None;
        };
        if self.dropping {
            return self.while_dropping(now_ns, taken, fifo, &mut drop);
        }
        if !taken.may_drop {
            return Some(taken.packet);
        }
        self.begin_dropping(now_ns);
        self.notify(taken.packet, &mut drop).or_else(|| self.next(now_ns, fifo).map(|next| next.packet))
    }

    fn while_dropping<P>(
        &mut self,
        now_ns: u64,
        mut taken: Taken<P>,
        fifo: &mut Fifo<P>,
        drop: &mut impl FnMut(Packet<P>),
    ) -> Option<Packet<P>> {
        loop {
            self.dropping &= taken.may_drop;
            if !self.dropping || now_ns < self.drop_next_ns {
                return Some(taken.packet);
            }
            self.count += 1;
            let marked = self.notify(taken.packet, drop);
            if marked.is_some() {
                self.drop_next_ns = self.control_law(self.drop_next_ns);
                return marked;
            }
            let Some(next) = self.next(now_ns, fifo) else {
                self.dropping = false;
                return None;
            };
            taken = next;
            if taken.may_drop {
                self.drop_next_ns = self.control_law(self.drop_next_ns);
            }
        }
    }

    /// Enters the dropping state; after a short pause it resumes near the rate that last worked.
    fn begin_dropping(&mut self, now_ns: u64) {
        let delta = self.count - self.last_count;
        let recent = now_ns.saturating_sub(self.drop_next_ns) < 16 * self.plan.interval_ns;
        self.dropping = true;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next_ns = self.control_law(now_ns);
        self.last_count = self.count;
    }

    /// Marks the packet and gives it back, or drops it.
    fn notify<P>(&mut self, mut packet: Packet<P>, drop: &mut impl FnMut(Packet<P>)) -> Option<Packet<P>> {
        if self.plan.ecn && packet.ecn.is_capable() {
            self.marked_packets += u64::from(packet.ecn != Ecn::Ce);
            packet.ecn = Ecn::Ce;
            return Some(packet);
        }
        drop(packet);
        None
    }

    /// `dodequeue` of the RFC.
    fn next<P>(&mut self, now_ns: u64, fifo: &mut Fifo<P>) -> Option<Taken<P>> {
        let Some((arrived_ns, packet)) = fifo.pop() else {
            self.first_above_ns = None;
            return None;
        };
        let sojourn_ns = now_ns.saturating_sub(arrived_ns);
        if sojourn_ns < self.plan.target_ns || fifo.bytes() <= self.mtu_bytes {
            self.first_above_ns = None;
            return Some(Taken { packet, may_drop: false });
        }
        let patience_ends_ns = *self.first_above_ns.get_or_insert(now_ns + self.plan.interval_ns);
        Some(Taken { packet, may_drop: now_ns >= patience_ends_ns })
    }

    fn control_law(&self, from_ns: u64) -> u64 {
        from_ns + (self.plan.interval_ns as f64 / (self.count as f64).sqrt()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn codel(ecn: bool) -> Codel {
        Codel::new(CodelPlan { target_ns: 5 * MS, interval_ns: 100 * MS, ecn }, 1500)
    }

    fn packet(ecn: Ecn) -> Packet<u64> {
        Packet { length_bytes: 1500, ecn, payload: 0 }
    }

    /// Takes one packet per millisecond out of a queue whose packets have always waited `sojourn_ms`; when each
    /// drop (or mark) happened.
    fn run(codel: &mut Codel, sojourn_ms: u64, ecn: Ecn, from_ms: u64, to_ms: u64) -> Vec<u64> {
        let mut notified = Vec::new();
        for now_ms in from_ms..to_ms {
            let mut fifo = Fifo::default();
            for _ in 0..10 {
                fifo.push(now_ms.saturating_sub(sojourn_ms) * MS, packet(ecn));
            }
            let out = codel.take(now_ms * MS, &mut fifo, |_| notified.push(now_ms)).unwrap();
            if out.ecn == Ecn::Ce {
                notified.push(now_ms);
            }
        }
        notified
    }

    #[test]
    fn a_queue_below_target_never_drops() {
        assert!(run(&mut codel(false), 4, Ecn::NotEct, 1000, 3000).is_empty());
    }

    #[test]
    fn the_first_drop_comes_one_interval_after_the_target_is_exceeded() {
        let drops = run(&mut codel(false), 20, Ecn::NotEct, 1000, 1150);
        assert_eq!(drops, [1100]);
    }

    #[test]
    fn drops_follow_by_interval_over_the_square_root_of_their_number() {
        let drops = run(&mut codel(false), 20, Ecn::NotEct, 1000, 1600);
        // 1100 + 100, + 100/sqrt(2), + 100/sqrt(3) … each rounded up to the next take.
        assert_eq!(drops[..5], [1100, 1200, 1271, 1329, 1379]);
    }

    #[test]
    fn one_packet_below_target_ends_the_dropping_state() {
        let mut codel = codel(false);
        run(&mut codel, 20, Ecn::NotEct, 1000, 1150);
        run(&mut codel, 1, Ecn::NotEct, 1150, 1151);
        assert!(run(&mut codel, 20, Ecn::NotEct, 1151, 1250).is_empty());
    }

    #[test]
    fn dropping_resumes_near_the_rate_that_last_worked() {
        let mut codel = codel(false);
        let before = run(&mut codel, 20, Ecn::NotEct, 1000, 1600).len() as u64;
        run(&mut codel, 1, Ecn::NotEct, 1600, 1601);
        let drops = run(&mut codel, 20, Ecn::NotEct, 1601, 1900);
        assert!(before > 5 && drops[1] - drops[0] < 60, "{drops:?}");
    }

    #[test]
    fn a_queue_of_one_packet_is_never_too_long() {
        let mut codel = codel(false);
        for now_ms in 1000..2000u64 {
            let mut fifo = Fifo::default();
            fifo.push((now_ms - 50) * MS, packet(Ecn::NotEct));
            assert!(codel.take(now_ms * MS, &mut fifo, |_| panic!("dropped")).is_some());
        }
    }

    #[test]
    fn capable_packets_are_marked_at_the_times_others_are_dropped() {
        let marks = run(&mut codel(true), 20, Ecn::Ect0, 1000, 1600);
        assert_eq!(marks[..5], [1100, 1200, 1271, 1329, 1379]);
        let mut other = codel(true);
        assert_eq!(run(&mut other, 20, Ecn::NotEct, 1000, 1150), [1100]);
        assert_eq!(other.marked_packets(), 0);
    }
}
