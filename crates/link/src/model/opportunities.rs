//! A line that sends when a recorded one could: each opportunity carries so many bytes, and what nobody uses of it is
//! lost.
//!
//! Model: as mahimahi's mm-link does ([`crate::trace::opportunities`]). A packet that finds the line idle takes the
//! opportunities after its arrival; one that has waited goes on with what the one before it left of its last
//! opportunity. Units: nanoseconds, bytes.

use crate::{plan::OpportunitiesPlan, trace::Moment};

/// Opportunities still to come.
#[derive(Debug)]
pub struct Line {
    plan: OpportunitiesPlan,
    zero_ns: Option<u64>,
    /// How often the trace was gone through.
    turn: u64,
    /// The next moment in it, and how many of its opportunities are gone.
    next: usize,
    gone: u32,
    /// Bytes left of an opportunity, for a packet that is sent at once.
    left_bytes: u32,
    /// When the last packet was sent, if another can follow at once.
    sent_ns: Option<u64>,
}

impl Line {
    /// Begins when it is told.
    pub fn new(plan: &OpportunitiesPlan) -> Line {
        Line { plan: plan.clone(), zero_ns: None, turn: 0, next: 0, gone: 0, left_bytes: 0, sent_ns: None }
    }

    /// Sets the trace's time zero.
    pub fn start(&mut self, at_ns: u64) {
        self.zero_ns.get_or_insert(at_ns);
    }

    /// Whether the trace has begun.
    pub fn has_begun(&self, now_ns: u64) -> bool {
        self.zero_ns.is_some_and(|zero_ns| zero_ns <= now_ns)
    }

    /// When the last of these bytes is sent; `u64::MAX`: never.
    pub fn send(&mut self, now_ns: u64, bytes: u32) -> u64 {
        if self.sent_ns != Some(now_ns) {
            self.rest();
            self.pass(now_ns);
        }
        let (mut missing, mut at_ns) = (bytes, now_ns);
        loop {
            let used = missing.min(self.left_bytes);
            missing -= used;
            self.left_bytes -= used;
            if missing == 0 {
                break;
            }
            at_ns = self.take().unwrap_or(u64::MAX);
            if at_ns == u64::MAX {
                break;
            }
        }
        self.sent_ns = Some(at_ns);
        at_ns
    }

    /// Nothing waits: what is left of the opportunity is lost.
    pub fn rest(&mut self) {
        (self.left_bytes, self.sent_ns) = (0, None);
    }

    /// Takes one opportunity; its time.
    fn take(&mut self) -> Option<u64> {
        let Moment { at, count } = *self.plan.at.moments().get(self.next)?;
        let at_ns = self.zero_ns?.saturating_add(self.time_ns(at));
        self.gone += 1;
        if self.gone >= count {
            self.go_to(self.next + 1);
        }
        self.left_bytes = self.plan.bytes.max(1);
        Some(at_ns)
    }

    fn go_to(&mut self, next: usize) {
        (self.next, self.gone) = (next, 0);
        if self.plan.repeat && next >= self.plan.at.moments().len() {
            (self.next, self.turn) = (0, self.turn + 1);
        }
    }

    fn time_ns(&self, at: u32) -> u64 {
        let units = u128::from(self.turn) * u128::from(self.plan.at.length()) + u128::from(at);
        u64::try_from(units * u128::from(self.plan.unit_ns)).unwrap_or(u64::MAX)
    }

    /// Opportunities up to this time are gone.
    fn pass(&mut self, now_ns: u64) {
        let units = (now_ns - self.zero_ns.unwrap_or(now_ns).min(now_ns)) / self.plan.unit_ns.max(1);
        let (moments, length) = (self.plan.at.moments(), self.plan.at.length());
        // The last moment of a turn is the zero of the next.
        let mut turn = if self.plan.repeat { units.saturating_sub(1) / length } else { 0 };
        let within = units - turn * length;
        let mut next = moments.partition_point(|moment| u64::from(moment.at) <= within);
        if self.plan.repeat && next == moments.len() {
            (turn, next) = (turn + 1, usize::from(moments[0].at == 0));
        }
        if (turn, next) > (self.turn, self.next) {
            (self.turn, self.next, self.gone) = (turn, next, 0);
        }
    }
}
