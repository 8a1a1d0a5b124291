//! What a sender knows of each segment between the acknowledged and the unsent (RFC 6675, section 3; counts as
//! Linux keeps them, so that `in_flight` is its `tcp_packets_in_flight`).

use crate::ranges::{Range, Ranges};
use std::collections::VecDeque;

/// Bits of [`Sent::flags`].
pub mod mark {
    /// Selectively acknowledged.
    pub const SACKED: u8 = 1;
    /// Taken for lost.
    pub const LOST: u8 = 2;
    /// A retransmission of it is in flight.
    pub const RETRANS: u8 = 4;
    /// The segment was retransmitted at some time.
    pub const EVER_RETRANS: u8 = 8;
    /// The application had no more to give.
    pub const PUSH: u8 = 16;
    /// The first segment of a buffer of the kernel's, while that is kept by itself.
    pub const SKB: u8 = 32;
}

/// One segment that was sent and not cumulatively acknowledged.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// When it was last sent.
    pub sent_ns: u64,
    /// When the newest delivery known at that time happened.
    pub delivered_ns: u64,
    /// How many segments were delivered by then.
    pub delivered: u64,
    /// Payload.
    pub length_bytes: u32,
    /// See [`mark`].
    pub flags: u8,
}

impl Sent {
    /// Whether any of the bits is set.
    pub fn has(&self, bits: u8) -> bool {
        self.flags & bits != 0
    }
}

/// The segments outstanding.
#[derive(Debug, Default)]
pub struct Scoreboard {
    sent: VecDeque<Sent>,
    /// First segment not cumulatively acknowledged.
    pub una: u64,
    /// Selectively acknowledged; without SACK, segments that duplicate acknowledgements stand for.
    pub sacked_out: u32,
    /// Taken for lost, retransmitted or not.
    pub lost_out: u32,
    /// Retransmissions in flight.
    pub retrans_out: u32,
    /// Segments ever taken for lost.
    pub losses: u64,
    /// Buffers that hold the segments. Those that are selectively acknowledged are merged (tcp_shift_skb_data).
    pub skbs: u64,
    sacked: Ranges,
    fresh: Vec<(u64, u64)>,
    /// Transmissions in order of time: RACK's view. An entry whose segment was sent again since is void.
    by_time: VecDeque<(u64, u64)>,
    /// No segment below this one waits for retransmission.
    hint: u64,
}

impl Scoreboard {
    /// First segment number not sent yet.
    pub fn next(&self) -> u64 {
        self.una + self.sent.len() as u64
    }

    /// Segments sent and not cumulatively acknowledged.
    pub fn packets_out(&self) -> u32 {
        self.sent.len() as u32
    }

    /// Segments taken to be in the network.
    pub fn in_flight(&self) -> u32 {
        (self.packets_out() + self.retrans_out).saturating_sub(self.sacked_out + self.lost_out)
    }

    /// One past the highest segment known to have arrived.
    pub fn highest_sacked(&self) -> u64 {
        self.sacked.end().unwrap_or(self.una)
    }

    /// An outstanding segment.
    pub fn get(&self, number: u64) -> &Sent {
        &self.sent[(number - self.una) as usize]
    }

    /// The oldest outstanding segment.
    pub fn head(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// An outstanding segment.
    pub fn get_mut(&mut self, number: u64) -> &mut Sent {
        &mut self.sent[(number - self.una) as usize]
    }

    /// A segment was sent for the first time.
    pub fn push(&mut self, sent: Sent) {
        self.by_time.push_back((sent.sent_ns, self.next()));
        self.skbs += u64::from(sent.has(mark::SKB));
        self.sent.push_back(sent);
    }

    /// A segment was sent again.
    pub fn sent_again(&mut self, number: u64, now_ns: u64, delivered: u64, delivered_ns: u64) -> Sent {
        self.by_time.push_back((now_ns, number));
        let sent = self.get_mut(number);
        sent.sent_ns = now_ns;
        sent.delivered = delivered;
        sent.delivered_ns = delivered_ns;
        sent.flags |= mark::EVER_RETRANS;
        *sent
    }

    /// A retransmission is in flight from now on. A loss probe is not counted (tcp_send_loss_probe).
    pub fn count_retrans(&mut self, number: u64) {
        let sent = self.get_mut(number);
        let counted = sent.has(mark::RETRANS);
        sent.flags |= mark::RETRANS;
        self.retrans_out += u32::from(!counted);
    }

    /// Takes the oldest segment out: it was cumulatively acknowledged. `with_sack` tells whether the count of
    /// sacked segments is of marked ones.
    pub fn pop(&mut self, with_sack: bool) -> Option<Sent> {
        let sent = self.sent.pop_front()?;
        self.una += 1;
        self.skbs -= u64::from(sent.has(mark::SKB));
        self.retrans_out -= u32::from(sent.has(mark::RETRANS));
        self.lost_out -= u32::from(sent.has(mark::LOST));
        if with_sack {
            self.sacked_out -= u32::from(sent.has(mark::SACKED));
        }
        Some(sent)
    }

    /// After taking segments out: forgets what lies below.
    pub fn settle(&mut self) {
        self.sacked.remove_below(self.una);
        self.hint = self.hint.max(self.una);
        while self.by_time.front().is_some_and(|(at_ns, number)| self.is_void(*at_ns, *number)) {
            self.by_time.pop_front();
        }
    }

    /// Whether an entry of `by_time` no longer stands for a transmission whose fate is open.
    fn is_void(&self, at_ns: u64, number: u64) -> bool {
        if number < self.una {
            return true;
        }
        let sent = self.get(number);
        sent.sent_ns != at_ns || sent.has(mark::SACKED) || (sent.has(mark::LOST) && !sent.has(mark::RETRANS))
    }

    /// Takes a segment for lost (tcp_mark_skb_lost): a lost retransmission is to be sent again.
    pub fn mark_lost(&mut self, number: u64) {
        let index = (number - self.una) as usize;
        let sent = &mut self.sent[index];
        if sent.has(mark::SACKED) {
            return;
        }
        if !sent.has(mark::LOST) {
            sent.flags |= mark::LOST;
            self.lost_out += 1;
        } else if sent.has(mark::RETRANS) {
            sent.flags &= !mark::RETRANS;
            self.retrans_out -= 1;
        } else {
            return;
        }
        self.losses += 1;
        self.hint = self.hint.min(number);
    }

    /// Takes no segment for lost any more: a reduction is undone.
    pub fn unmark_lost(&mut self) {
        self.sent.iter_mut().for_each(|sent| sent.flags &= !mark::LOST);
        self.lost_out = 0;
        self.hint = self.next();
        // What a timeout took for lost is outstanding as before, and may be found lost.
        let open = self.sent.iter().zip(self.una..).filter(|(sent, _)| !sent.has(mark::SACKED));
        let mut by_time: Vec<_> = open.map(|(sent, number)| (sent.sent_ns, number)).collect();
        by_time.sort_unstable();
        self.by_time = by_time.into();
    }

    /// The lowest segment that waits for retransmission.
    pub fn next_lost(&mut self) -> Option<u64> {
        if self.retrans_out >= self.lost_out {
            return None;
        }
        for number in self.hint.max(self.una)..self.next() {
            let sent = self.get(number);
            if sent.has(mark::LOST) && !sent.has(mark::SACKED | mark::RETRANS) {
                self.hint = number;
                return Some(number);
            }
        }
        self.hint = self.next();
        None
    }

    /// Enters a SACK block; `each` sees every segment newly acknowledged by it, before its counts change.
    pub fn sack(&mut self, start: u64, end: u64, mut each: impl FnMut(u64, &Sent)) {
        let (start, end) = (start.max(self.una), end.min(self.next()));
        if start >= end {
            return;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.clear();
        self.sacked.insert(Range { start, end, bytes: 0 }, &mut fresh);
        for number in fresh.iter().flat_map(|(from, to)| *from..*to) {
            each(number, self.get(number));
            self.mark_sacked(number);
        }
        self.fresh = fresh;
    }

    /// A retransmission of what was not taken for lost stays counted: it may still be in flight.
    fn mark_sacked(&mut self, number: u64) {
        let sent = self.get_mut(number);
        let (lost, again) = (sent.has(mark::LOST), sent.has(mark::LOST) && sent.has(mark::RETRANS));
        let skb = sent.has(mark::SKB);
        sent.flags = sent.flags & !mark::SKB | mark::SACKED;
        if lost {
            sent.flags &= !(mark::LOST | mark::RETRANS);
        }
        self.skbs -= u64::from(skb);
        self.lost_out -= u32::from(lost);
        self.retrans_out -= u32::from(again);
        self.sacked_out += 1;
    }

    /// A duplicate arrived: the retransmission is no longer in flight.
    pub fn clear_retrans(&mut self, number: u64) {
        if number >= self.una && number < self.next() && self.get(number).has(mark::RETRANS) {
            self.get_mut(number).flags &= !mark::RETRANS;
            self.retrans_out -= 1;
        }
    }

    /// RACK (RFC 8985, section 6.2, step 5): `verdict(sent_ns, number)` is asked for transmissions, oldest first,
    /// until it says [`Verdict::Later`].
    pub fn scan(&mut self, mut verdict: impl FnMut(u64, u64) -> Verdict) {
        let mut index = 0;
        while let Some(&(at_ns, number)) = self.by_time.get(index) {
            let void = self.is_void(at_ns, number);
            if !void {
                match verdict(at_ns, number) {
                    Verdict::Later => return,
                    Verdict::Wait => {
                        index += 1;
                        continue;
                    }
                    Verdict::Lost => self.mark_lost(number),
                }
            }
            if index == 0 {
                self.by_time.pop_front();
            } else {
                index += 1;
            }
        }
    }

    /// Whether every count is that of the marks it stands for.
    pub fn counts_hold(&self, with_sack: bool) -> bool {
        let count = |bits: u8| self.sent.iter().filter(|sent| sent.has(bits)).count() as u32;
        (!with_sack || self.sacked_out == count(mark::SACKED))
            && self.lost_out == count(mark::LOST)
            && self.retrans_out == count(mark::RETRANS)
            && self.sacked_out + self.lost_out <= self.packets_out()
    }
}

/// What RACK says of a transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Overtaken long enough ago.
    Lost,
    /// Overtaken, but the reordering window is not over.
    Wait,
    /// Not overtaken, nor is anything sent after it.
    Later,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(count: u64) -> Scoreboard {
        let mut board = Scoreboard::default();
        for n in 0..count {
            let sent = Sent { sent_ns: n, delivered_ns: 0, delivered: 0, length_bytes: 100, flags: 0 };
            board.push(sent);
        }
        board
    }

    #[test]
    fn sacked_lost_and_retransmitted_segments_leave_and_enter_the_network() {
        let mut board = board(10);
        let mut seen = Vec::new();
        board.sack(4, 8, |number, _| seen.push(number));
        board.sack(3, 9, |number, _| seen.push(number));
        assert_eq!(seen, [4, 5, 6, 7, 3, 8]);
        assert_eq!(board.in_flight(), 4);
        board.mark_lost(0);
        board.mark_lost(1);
        assert_eq!((board.in_flight(), board.next_lost()), (2, Some(0)));
        board.count_retrans(0);
        board.sent_again(0, 100, 0, 0);
        assert_eq!((board.in_flight(), board.next_lost()), (3, Some(1)));
        board.mark_lost(0);
        assert_eq!((board.in_flight(), board.next_lost(), board.losses), (2, Some(0), 3));
        assert!(board.counts_hold(true));
    }

    #[test]
    fn buffers_are_counted_until_their_first_segment_is_acknowledged_or_merged() {
        let mut board = Scoreboard::default();
        for n in 0..6 {
            let flags = if n % 2 == 0 { mark::SKB } else { 0 };
            board.push(Sent { sent_ns: n, delivered_ns: 0, delivered: 0, length_bytes: 100, flags });
        }
        assert_eq!(board.skbs, 3);
        board.sack(4, 6, |_, _| {});
        assert_eq!(board.skbs, 2);
        board.pop(true);
        assert_eq!(board.skbs, 1);
        while board.pop(true).is_some() {}
        assert_eq!(board.skbs, 0);
    }

    #[test]
    fn segments_acknowledged_take_their_marks_along() {
        let mut board = board(5);
        board.sack(1, 3, |_, _| {});
        board.mark_lost(0);
        board.count_retrans(0);
        board.sent_again(0, 50, 0, 0);
        (0..3).for_each(|_| assert!(board.pop(true).is_some()));
        board.settle();
        assert_eq!((board.una, board.packets_out(), board.in_flight()), (3, 2, 2));
        assert!(board.counts_hold(true));
    }

    #[test]
    fn what_is_not_taken_for_lost_any_more_is_scanned_again() {
        let mut board = board(4);
        (0..4).for_each(|number| board.mark_lost(number));
        board.scan(|_, _| Verdict::Wait);
        board.count_retrans(0);
        board.sent_again(0, 10, 0, 0);
        board.sack(2, 3, |_, _| {});
        board.unmark_lost();
        let mut seen = Vec::new();
        board.scan(|at_ns, number| {
            seen.push((at_ns, number));
            Verdict::Wait
        });
        assert_eq!(seen, [(1, 1), (3, 3), (10, 0)]);
    }

    #[test]
    fn a_scan_meets_transmissions_in_order_of_time_and_passes_over_void_ones() {
        let mut board = board(4);
        board.mark_lost(1);
        board.count_retrans(1);
        board.sent_again(1, 10, 0, 0);
        board.sack(2, 3, |_, _| {});
        let mut seen = Vec::new();
        board.scan(|at_ns, number| {
            seen.push((at_ns, number));
            Verdict::Wait
        });
        assert_eq!(seen, [(0, 0), (3, 3), (10, 1)]);
    }
}
