//! The bottleneck queue: bounded in bytes, with its discipline.

use super::{
    codel::Codel,
    fifo::Fifo,
    packet::{Ecn, Packet},
    random::Random,
    red::{Opinion, Red},
};
use crate::plan::{DisciplinePlan, QueuePlan};

#[derive(Debug)]
enum Discipline {
    DropTail { mark_threshold_bytes: Option<u64> },
    Red { red: Red, ecn: bool },
    Codel(Codel),
}

/// A queue. What it holds never exceeds its limit.
#[derive(Debug)]
pub struct Queue<P> {
    fifo: Fifo<P>,
    limit_bytes: u64,
    discipline: Discipline,
    marked_packets: u64,
}

impl<P> Queue<P> {
    /// An empty queue.
    pub fn new(plan: &QueuePlan, mtu_bytes: u32) -> Queue<P> {
        Queue {
            fifo: Fifo::default(),
            limit_bytes: plan.limit_bytes,
            discipline: discipline(plan, mtu_bytes),
            marked_packets: 0,
        }
    }

    /// Changes limit and discipline. Packets stay, except the youngest beyond a lowered limit.
    pub fn change(&mut self, plan: &QueuePlan, mtu_bytes: u32, mut drop: impl FnMut(Packet<P>)) {
        self.marked_packets = self.marked_packets();
        self.limit_bytes = plan.limit_bytes;
        self.discipline = discipline(plan, mtu_bytes);
        while self.fifo.bytes() > self.limit_bytes {
            if let Some(packet) = self.fifo.pop_youngest() {
                drop(packet);
            }
        }
    }

    /// Takes in a packet, perhaps marked, or gives it back: dropped. `typical_ns` is the transmission time of a
    /// typical packet.
    pub fn offer(
        &mut self,
        now_ns: u64,
        mut packet: Packet<P>,
        typical_ns: u64,
        random: &mut Random,
    ) -> Result<(), Packet<P>> {
        let bytes = self.fifo.bytes();
        let fits = bytes + u64::from(packet.length_bytes) <= self.limit_bytes;
        let (opinion, ecn) = match &mut self.discipline {
            // An average that misses the arrivals dropped at the limit would lag: RED sees every arrival.
            Discipline::Red { red, ecn } => (red.arrive(now_ns, bytes, typical_ns, random), *ecn),
            Discipline::DropTail { mark_threshold_bytes: Some(threshold) } if bytes > *threshold => {
                // A step threshold only marks; what cannot be marked passes until the limit.
                (if packet.ecn.is_capable() { Opinion::Notify } else { Opinion::Accept }, true)
            }
            Discipline::DropTail { .. } | Discipline::Codel(_) => (Opinion::Accept, false),
        };
        match opinion {
            _ if !fits => return Err(packet),
            Opinion::Accept => {}
            Opinion::Notify if ecn && packet.ecn.is_capable() => self.mark(&mut packet),
            Opinion::Notify | Opinion::Drop => return Err(packet),
        }
        self.fifo.push(now_ns, packet);
        Ok(())
    }

    /// The next packet to transmit; what is dropped on the way goes to `drop`.
    pub fn take(&mut self, now_ns: u64, drop: impl FnMut(Packet<P>)) -> Option<Packet<P>> {
        let taken = match &mut self.discipline {
            Discipline::Codel(codel) => codel.take(now_ns, &mut self.fifo, drop),
            _ => self.fifo.pop().map(|(_, packet)| packet),
        };
        if let (Discipline::Red { red, .. }, true, 0) =
            (&mut self.discipline, taken.is_some(), self.fifo.bytes())
        {
            red.emptied(now_ns);
        }
        taken
    }

    /// Bytes waiting.
    pub fn bytes(&self) -> u64 {
        self.fifo.bytes()
    }

    /// Packets waiting.
    pub fn packets(&self) -> u64 {
        self.fifo.packets()
    }

    /// Packets changed to CE since the beginning.
    pub fn marked_packets(&self) -> u64 {
        let by_codel = match &self.discipline {
            Discipline::Codel(codel) => codel.marked_packets(),
            _ => 0,
        };
        self.marked_packets + by_codel
    }

    fn mark(&mut self, packet: &mut Packet<P>) {
        self.marked_packets += u64::from(packet.ecn != Ecn::Ce);
        packet.ecn = Ecn::Ce;
    }
}

fn discipline(plan: &QueuePlan, mtu_bytes: u32) -> Discipline {
    match &plan.discipline {
        DisciplinePlan::Droptail { mark_threshold_bytes } => {
            Discipline::DropTail { mark_threshold_bytes: *mark_threshold_bytes }
        }
        DisciplinePlan::Red { red, ecn } => Discipline::Red { red: Red::new(red.clone()), ecn: *ecn },
        DisciplinePlan::Codel(codel) => Discipline::Codel(Codel::new(codel.clone(), mtu_bytes)),
    }
}
