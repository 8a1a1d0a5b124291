//! The receiving half of a connection: reassembly, what to acknowledge, and when (RFC 9293, 5681 section 4.2, 2018,
//! 2883; delays and quick acknowledgements as Linux has them).

use super::autotune::Autotune;
use crate::{
    packet::{SACK_BLOCKS, Segment, flag},
    ranges::{Range, Ranges},
    scenario::{EndpointPlan, ReceiveBuffer},
    timers::NEVER,
};
use std::collections::VecDeque;

/// Segments acknowledged one by one at the start (TCP_MAX_QUICKACKS).
const QUICK_ACKS: u32 = 16;
/// Duplicate acknowledgements sent before they are compressed (tcp_ack_send: dup_ack_counter).
const DUP_ACKS: u32 = 3;
/// Most acknowledgements compressed into one (tcp_comp_sack_nr).
const COMPRESSED_MAX: u32 = 44;
/// Longest delay of a compressed acknowledgement (tcp_comp_sack_delay_ns).
const COMPRESSED_NS: u64 = 1_000_000;
/// What its timer may be later, to fire with others (tcp_comp_sack_slack_ns): on a host with little to do it is.
const COMPRESSED_SLACK_NS: u64 = 100_000;

/// The receiving half.
#[derive(Debug)]
pub struct Receiver {
    /// Next segment number expected.
    pub next: u64,
    /// Stream position reached in order.
    pub bytes: u64,
    /// Bytes in order that the application has not taken.
    pub unread_bytes: u64,
    /// Segments that arrived with a CE mark.
    pub marked: u64,
    /// Right edge of the window: stream position.
    pub edge_bytes: u64,
    capacity_bytes: u64,
    /// What the buffer grows by, where it does.
    autotune: Option<Autotune>,
    /// Most that is advertised (TCP_WINDOW_CLAMP).
    clamp_bytes: u64,
    mss_bytes: u64,
    with_sack: bool,
    /// Full segments per acknowledgement.
    ack_every: u64,
    ack_delay_ns: u64,
    held: Ranges,
    held_bytes: u64,
    fresh: Vec<(u64, u64)>,
    /// Ranges to report, the newest first.
    recent: VecDeque<(u64, u64)>,
    duplicate: Option<u64>,
    last_acked: u64,
    last_acked_bytes: u64,
    last_window_bytes: u64,
    echo_ns: u64,
    demand_cwr: bool,
    quick: u32,
    unacked: u32,
    ack_now: bool,
    /// The sender had nothing more to send behind what has come.
    is_pushed: bool,
    /// The sender had nothing more to send, twice (ICSK_ACK_PUSHED2).
    is_pushed_again: bool,
    /// When data last arrived in order.
    arrived_ns: u64,
    /// What arrives is answered with data, which will acknowledge it (pingpong mode): nothing is acknowledged quickly.
    is_replying: bool,
    delay_at_ns: u64,
    compressed: u32,
    dup_acks: (u64, u32),
    compressed_at_ns: u64,
}

impl Receiver {
    /// Receiver that has received nothing.
    pub fn new(plan: &EndpointPlan, mss_bytes: u32) -> Receiver {
        let capacity_bytes = plan.receive_buffer.first_bytes();
        let clamp_bytes = plan.window_bytes.unwrap_or(u64::MAX);
        let autotune = match plan.receive_buffer {
            ReceiveBuffer::Fixed(_) => None,
            ReceiveBuffer::Auto { most_bytes, .. } => {
                Some(Autotune::new(capacity_bytes, most_bytes, u64::from(mss_bytes)))
            }
        };
        let mut receiver = Receiver {
            next: 0,
            bytes: 0,
            unread_bytes: 0,
            marked: 0,
            edge_bytes: 0,
            capacity_bytes,
            autotune,
            clamp_bytes,
            mss_bytes: u64::from(mss_bytes),
            with_sack: plan.sack,
            ack_every: u64::from(plan.ack_every.max(1)),
            ack_delay_ns: plan.ack_delay_ns,
            held: Ranges::default(),
            held_bytes: 0,
            fresh: Vec::new(),
            recent: VecDeque::new(),
            duplicate: None,
            last_acked: 0,
            last_acked_bytes: 0,
            last_window_bytes: 0,
            echo_ns: 0,
            demand_cwr: false,
            quick: QUICK_ACKS,
            unacked: 0,
            ack_now: false,
            is_pushed: false,
            is_pushed_again: false,
            arrived_ns: 0,
            is_replying: false,
            delay_at_ns: NEVER,
            compressed: 0,
            dup_acks: (0, 0),
            compressed_at_ns: NEVER,
        };
        receiver.edge_bytes = receiver.window_bytes();
        receiver.last_window_bytes = receiver.edge_bytes;
        receiver
    }

    /// When an acknowledgement that waits is to be sent.
    pub fn deadline_ns(&self) -> u64 {
        self.delay_at_ns.min(self.compressed_at_ns)
    }

    /// The time to echo to a segment that carries the acknowledgement (RFC 7323, section 4).
    pub fn note_time(&mut self, segment: &Segment) {
        let number = if segment.payload_bytes > 0 { segment.number } else { self.next };
        if number <= self.last_acked {
            self.echo_ns = segment.sent_ns;
        }
    }

    /// A segment with payload arrived. Returns the bytes that are newly in order. `rtt_us` bounds compression.
    pub fn on_data(&mut self, segment: &Segment, now_ns: u64, rtt_us: u32) -> u64 {
        self.note_ecn(segment);
        if segment.number < self.next || self.held.contains(segment.number) {
            self.duplicate = Some(segment.number);
            self.acknowledge_quickly();
            self.ack_now = true;
            return 0;
        }
        self.measure(segment, now_ns);
        if segment.number > self.next {
            self.hold(segment);
            self.make_room(segment);
            self.after_gap(now_ns, rtt_us);
            return 0;
        }
        let filled = !self.held.is_empty();
        let bytes = self.take_in_order(segment);
        self.open_window(segment);
        self.unacked += 1;
        // A hole closed: the sender should hear now.
        self.ack_now |= filled && self.held.is_empty();
        self.arrived_ns = now_ns;
        self.note_push(segment);
        if filled && !self.held.is_empty() {
            self.after_gap(now_ns, rtt_us);
        } else {
            self.after_data(now_ns);
        }
        bytes
    }

    /// What follows is acknowledged at once for a while (tcp_enter_quickack_mode).
    fn acknowledge_quickly(&mut self) {
        self.quick = self.quick.max(2);
        self.is_replying = false;
    }

    fn is_quick(&self) -> bool {
        self.quick > 0 && !self.is_replying
    }

    /// A segment that is not full ends a write, marked as its end or not (tcp_measure_rcv_mss).
    fn note_push(&mut self, segment: &Segment) {
        let is_full = u64::from(segment.payload_bytes) >= self.mss_bytes;
        self.is_pushed_again |= !is_full && self.is_pushed;
        self.is_pushed |= !is_full || segment.has(flag::PSH);
    }

    fn note_ecn(&mut self, segment: &Segment) {
        if segment.has(flag::CWR) {
            self.demand_cwr = false;
            self.ack_now = true;
        }
        if segment.is_marked {
            self.marked += 1;
            if !self.demand_cwr {
                self.acknowledge_quickly();
                self.demand_cwr = true;
            }
        }
    }

    /// How long a round trip takes, by the time that a full segment echoes.
    fn measure(&mut self, segment: &Segment, now_ns: u64) {
        let queue_is_empty = self.unread_bytes == 0;
        let is_full = u64::from(segment.payload_bytes) >= self.mss_bytes;
        if let Some(autotune) = self.autotune.as_mut().filter(|_| is_full && segment.echo_ns > 0) {
            autotune.sample(now_ns.saturating_sub(segment.echo_ns), queue_is_empty);
        }
    }

    /// While the window opens each segment is acknowledged (tcp_grow_window: `quick |= 1`).
    fn open_window(&mut self, segment: &Segment) {
        let room_bytes = self.room_bytes();
        let opened = |autotune: &mut Autotune| autotune.arrived(segment.payload_bytes.into(), room_bytes);
        if self.autotune.as_mut().is_some_and(opened) {
            self.quick |= 1;
        }
    }

    /// What is held behind a hole gets room of its own. Without selective acknowledgements the window stays: one that
    /// moved would make no duplicates of what is acknowledged.
    fn make_room(&mut self, segment: &Segment) {
        if self.with_sack {
            self.open_window(segment);
        }
        if let Some(autotune) = &self.autotune {
            let segments = self.held.end().unwrap_or(self.next) - self.next;
            let span_bytes = segments * self.mss_bytes;
            self.capacity_bytes = self.capacity_bytes.max(autotune.held(span_bytes));
        }
    }

    fn take_in_order(&mut self, segment: &Segment) -> u64 {
        let mut bytes = u64::from(segment.payload_bytes);
        self.next += 1;
        if let Some(range) = self.held.first().filter(|range| range.start == self.next) {
            self.held.pop_first();
            self.next = range.end;
            bytes += range.bytes;
            self.held_bytes -= range.bytes;
        }
        let next = self.next;
        self.recent.retain(|(_, end)| *end > next);
        self.bytes += bytes;
        self.unread_bytes += bytes;
        bytes
    }

    fn hold(&mut self, segment: &Segment) {
        let bytes = u64::from(segment.payload_bytes);
        let range = Range { start: segment.number, end: segment.number + 1, bytes };
        self.fresh.clear();
        let merged = self.held.insert(range, &mut self.fresh);
        self.held_bytes += bytes;
        let (start, end) = (merged.start, merged.end);
        let known = self.recent.iter().position(|(from, to)| *from <= end && *to >= start);
        // Ranges older than the second would no longer be reported: compression ends (tcp_sack_compress_send_ack).
        self.ack_now |= self.compressed > 0 && known.unwrap_or(self.recent.len()) >= SACK_BLOCKS - 1;
        self.recent.retain(|(from, to)| *to < start || *from > end);
        self.recent.push_front((start, end));
        self.recent.truncate(SACK_BLOCKS + 1);
    }

    /// Whether so many segments wait to be acknowledged, the last of them perhaps not full.
    fn owes_ack(&self) -> bool {
        self.bytes - self.last_acked_bytes > (self.ack_every - 1) * self.mss_bytes
    }

    /// Every second full segment is acknowledged, the first ones each; otherwise after a delay. Bytes that nobody takes
    /// close the window: then it is told by who takes them, or late (__tcp_ack_snd_check).
    fn after_data(&mut self, now_ns: u64) {
        let is_open = self.window_bytes() >= self.last_window_bytes;
        if self.owes_ack() && is_open || self.is_quick() {
            self.ack_now = true;
        } else if self.delay_at_ns == NEVER {
            self.delay_at_ns = now_ns + self.ack_delay_ns;
        }
    }

    /// Data are missing: each segment is acknowledged; after the third, several together (Linux 4.18).
    fn after_gap(&mut self, now_ns: u64, rtt_us: u32) {
        if self.owes_ack() || self.is_quick() || !self.with_sack || self.compressed >= COMPRESSED_MAX {
            self.ack_now = true;
            return;
        }
        if self.dup_acks.0 != self.next {
            self.dup_acks = (self.next, 0);
        }
        if self.dup_acks.1 < DUP_ACKS {
            self.dup_acks.1 += 1;
            self.ack_now = true;
            return;
        }
        self.compressed += 1;
        if self.compressed_at_ns == NEVER {
            // A twentieth of the round trip, at most 1 ms.
            self.compressed_at_ns =
                now_ns + COMPRESSED_NS.min(u64::from(rtt_us) * 1000 / 20) + COMPRESSED_SLACK_NS;
        }
    }

    /// The application took bytes: what is owed is acknowledged, so is the last of a write when nothing is left, and a
    /// window that has opened much is told at once (tcp_cleanup_rbuf).
    pub fn read(&mut self, bytes: u64, now_ns: u64) {
        self.unread_bytes -= bytes;
        if let Some(autotune) = &mut self.autotune {
            let wanted = autotune.read(self.bytes - self.unread_bytes, self.unread_bytes, now_ns);
            self.capacity_bytes = self.capacity_bytes.max(wanted.unwrap_or(0));
        }
        let (now, then) = (self.edge_bytes - self.bytes, self.window_bytes());
        let has_opened = 2 * now <= self.capacity_bytes && then >= 2 * now && then > 0;
        let is_told = self.is_pushed_again || self.is_pushed && !self.is_replying;
        let has_all = is_told && self.unread_bytes == 0;
        self.ack_now |= bytes > 0 && (self.owes_ack() || has_opened || has_all);
    }

    /// Changes what is advertised at most and what can be held. The right edge does not move back, so what was
    /// advertised still has its place.
    pub fn limit(&mut self, clamp_bytes: u64, capacity_bytes: u64) {
        self.autotune = None;
        self.clamp_bytes = clamp_bytes;
        let promised = self.edge_bytes - self.bytes + self.unread_bytes;
        self.capacity_bytes = capacity_bytes.max(promised.min(self.capacity_bytes));
    }

    /// Something asks for an acknowledgement now.
    pub fn demand_ack(&mut self) {
        self.ack_now = true;
    }

    /// Whether an acknowledgement is to be sent by `now_ns`.
    pub fn wants_ack(&self, now_ns: u64) -> bool {
        self.ack_now || self.deadline_ns() <= now_ns
    }

    /// Size of the buffer.
    pub fn buffer_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn room_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.unread_bytes + self.held_bytes)
    }

    /// The window that would be advertised now: the right edge never moves back, and not forward by trifles
    /// (RFC 9293, section 3.8.6.2.2).
    fn window_bytes(&self) -> u64 {
        let threshold_bytes = self.autotune.as_ref().map_or(u64::MAX, Autotune::threshold_bytes);
        let room = self.room_bytes().min(threshold_bytes).min(self.clamp_bytes);
        let edge = self.bytes + room;
        let least = self.mss_bytes.min(self.capacity_bytes / 2);
        let moved = edge.saturating_sub(self.edge_bytes) >= least;
        if moved { room } else { self.edge_bytes - self.bytes }
    }

    /// Writes the acknowledgement into a segment that is about to leave.
    pub fn acknowledge(&mut self, segment: &mut Segment) {
        self.edge_bytes = self.edge_bytes.max(self.bytes + self.window_bytes());
        segment.flags |= flag::ACK;
        segment.ack = self.next;
        segment.window_bytes = u32::try_from(self.edge_bytes - self.bytes).unwrap_or(u32::MAX);
        segment.echo_ns = self.echo_ns;
        if self.demand_cwr {
            segment.flags |= flag::ECE;
        }
        if self.with_sack {
            self.report(segment);
        }
        self.quick = self.quick.saturating_sub(u32::from(self.unacked > 0));
        // An answer soon after data begins the mode, a delayed acknowledgement that no answer came for ends it.
        let is_soon = self.bytes > 0 && segment.sent_ns < self.arrived_ns + self.ack_delay_ns;
        let is_answer = segment.payload_bytes > 0 && is_soon;
        self.is_replying = is_answer || self.is_replying && segment.sent_ns < self.delay_at_ns;
        (self.last_acked, self.last_acked_bytes) = (self.next, self.bytes);
        self.last_window_bytes = self.edge_bytes - self.bytes;
        (self.unacked, self.compressed, self.ack_now) = (0, 0, false);
        (self.is_pushed, self.is_pushed_again) = (false, false);
        (self.delay_at_ns, self.compressed_at_ns) = (NEVER, NEVER);
    }

    fn report(&mut self, segment: &mut Segment) {
        let duplicate = self.duplicate.take().map(|number| (number, number + 1));
        segment.flags |= if duplicate.is_some() { flag::DSACK } else { 0 };
        let blocks = duplicate.into_iter().chain(self.recent.iter().copied()).take(SACK_BLOCKS);
        // 2^31 segments either way are more than any window.
        let relative = |number: u64| number.wrapping_sub(segment.ack) as i32;
        for (to, (start, end)) in segment.sack.iter_mut().zip(blocks) {
            *to = (relative(start), relative(end));
            segment.sack_count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(number: u64) -> Segment {
        Segment { number, payload_bytes: 100, ..Segment::default() }
    }

    /// With segments of 100 bytes.
    fn receiver(receive_buffer_bytes: u64, ack_every: u32) -> Receiver {
        let receive_buffer = ReceiveBuffer::Fixed(receive_buffer_bytes);
        Receiver::new(&EndpointPlan { receive_buffer, ack_every, ..EndpointPlan::default() }, 100)
    }

    fn ack_of(receiver: &mut Receiver) -> Segment {
        let mut segment = Segment::default();
        receiver.acknowledge(&mut segment);
        segment
    }

    /// Acknowledgements of so many segments that arrive in order and are read at once.
    fn acks_of(receiver: &mut Receiver, segments: u64) -> usize {
        let from = receiver.next;
        let is_acked = |number: &u64| {
            let bytes = receiver.on_data(&data(*number), 0, 1000);
            receiver.read(bytes, 0);
            let wants = receiver.wants_ack(0);
            if wants {
                ack_of(receiver);
            }
            wants
        };
        (from..from + segments).filter(is_acked).count()
    }

    #[test]
    fn the_last_of_a_write_is_acknowledged_when_nothing_is_left_to_read() {
        let mut receiver = receiver(10_000, 2);
        acks_of(&mut receiver, 16);
        let last = Segment { flags: flag::PSH, ..data(receiver.next) };
        let bytes = receiver.on_data(&last, 0, 1000);
        assert!(!receiver.wants_ack(0), "nobody has read it");
        receiver.read(bytes - 1, 0);
        assert!(!receiver.wants_ack(0), "a byte is left");
        receiver.read(1, 0);
        assert!(receiver.wants_ack(0));
        ack_of(&mut receiver);
        let next = data(receiver.next);
        let bytes = receiver.on_data(&next, 0, 1000);
        receiver.read(bytes, 0);
        assert!(!receiver.wants_ack(0), "more may follow at once");
    }

    /// A receiver that answers what it has read at once, with data.
    fn answering() -> Receiver {
        let mut receiver = receiver(10_000, 2);
        acks_of(&mut receiver, 18);
        let mut answer = Segment { payload_bytes: 12, ..Segment::default() };
        receiver.acknowledge(&mut answer);
        receiver
    }

    #[test]
    fn who_answers_acknowledges_nothing_quickly_until_an_answer_fails_to_come() {
        let mut receiver = answering();
        let push = |receiver: &mut Receiver| {
            let last = Segment { flags: flag::PSH, ..data(receiver.next) };
            let bytes = receiver.on_data(&last, 0, 1000);
            receiver.read(bytes, 0);
            receiver.wants_ack(0)
        };
        assert!(!push(&mut receiver), "the answer will carry it");
        let late_ns = receiver.ack_delay_ns;
        assert!(receiver.wants_ack(late_ns));
        receiver.acknowledge(&mut Segment { sent_ns: late_ns, ..Segment::default() });
        assert!(push(&mut receiver), "no answer came in time");
    }

    #[test]
    fn who_answers_acknowledges_a_second_short_write_when_it_has_been_read() {
        let mut receiver = answering();
        let short = |receiver: &mut Receiver| {
            let bytes = receiver.on_data(&Segment { payload_bytes: 10, ..data(receiver.next) }, 0, 1000);
            receiver.read(bytes, 0);
            receiver.wants_ack(0)
        };
        assert_eq!([short(&mut receiver), short(&mut receiver)], [false, true]);
    }

    #[test]
    fn who_answers_compresses_acknowledgements_also_while_others_acknowledge_quickly() {
        let opening = ReceiveBuffer::Auto { first_bytes: 2_000, most_bytes: 1 << 20 };
        let acks = |answers: bool| {
            let plan = EndpointPlan { receive_buffer: opening, ..EndpointPlan::default() };
            let mut receiver = Receiver::new(&plan, 100);
            acks_of(&mut receiver, 20);
            receiver.quick = 1;
            let payload_bytes = if answers { 12 } else { 0 };
            receiver.acknowledge(&mut Segment { payload_bytes, ..Segment::default() });
            let hole = receiver.next;
            let arrives = |number| {
                receiver.on_data(&data(number), 0, 100_000);
                let wants = receiver.wants_ack(0);
                if wants {
                    ack_of(&mut receiver);
                }
                wants
            };
            (hole + 1..=hole + 10).map(arrives).filter(|wants| *wants).count()
        };
        assert_eq!(acks(true), DUP_ACKS as usize);
        assert!(acks(false) > DUP_ACKS as usize, "{}", acks(false));
    }

    #[test]
    fn the_newest_range_is_reported_first_and_filled_holes_disappear() {
        let mut receiver = receiver(10_000, 2);
        let _ = [0, 2, 5, 3].map(|number| receiver.on_data(&data(number), 0, 1000));
        let ack = ack_of(&mut receiver);
        assert_eq!((ack.ack, ack.sack_blocks().collect::<Vec<_>>()), (1, vec![(2, 4), (5, 6)]));
        assert_eq!(receiver.on_data(&data(1), 0, 1000), 300);
        let ack = ack_of(&mut receiver);
        assert_eq!((ack.ack, ack.sack_blocks().collect::<Vec<_>>()), (4, vec![(5, 6)]));
        assert_eq!(receiver.held_bytes, 100);
    }

    #[test]
    fn after_the_first_sixteen_every_second_segment_is_acknowledged() {
        let mut receiver = receiver(1_000_000, 2);
        assert_eq!(acks_of(&mut receiver, 40), 16 + 12);
        receiver.on_data(&data(40), 7, 1000);
        assert!(!receiver.wants_ack(7) && receiver.wants_ack(7 + 40_000_000));
    }

    /// Linux's tcp_grow_window asks for an acknowledgement of each segment by which the window opens.
    #[test]
    fn while_the_window_opens_each_segment_is_acknowledged() {
        let receive_buffer = ReceiveBuffer::Auto { first_bytes: 20_000, most_bytes: 20_000 };
        let mut receiver = Receiver::new(&EndpointPlan { receive_buffer, ..EndpointPlan::default() }, 100);
        if let Some(autotune) = &mut receiver.autotune {
            *autotune = Autotune::new(10_000, 20_000, 100);
        }
        // 16 at first, and fifty segments open the window by 10,000 bytes.
        assert_eq!(acks_of(&mut receiver, 50), 50);
        assert_eq!(acks_of(&mut receiver, 16), 16);
        assert_eq!(acks_of(&mut receiver, 40), 20);
    }

    #[test]
    fn fewer_acknowledgements_are_sent_where_fewer_are_asked_for() {
        let mut receiver = receiver(1_000_000, 8);
        assert_eq!(acks_of(&mut receiver, 16 + 64), 16 + 8);
    }

    #[test]
    fn bytes_that_nobody_takes_are_acknowledged_late_or_when_they_are_taken() {
        let mut receiver = receiver(1_000_000, 2);
        for number in 0..16 {
            receiver.on_data(&data(number), 0, 1000);
            ack_of(&mut receiver);
        }
        let _ = [16, 17, 18].map(|number| receiver.on_data(&data(number), 7, 1000));
        assert!(!receiver.wants_ack(7) && receiver.wants_ack(7 + 40_000_000));
        receiver.read(100, 0);
        assert!(receiver.wants_ack(7));
    }

    #[test]
    fn a_duplicate_is_told_at_once() {
        let mut receiver = receiver(10_000, 2);
        let _ = [0, 1].map(|number| receiver.on_data(&data(number), 0, 1000));
        ack_of(&mut receiver);
        assert_eq!(receiver.on_data(&data(0), 0, 1000), 0);
        assert!(receiver.wants_ack(0));
        let ack = ack_of(&mut receiver);
        assert!(ack.has(flag::DSACK));
        assert_eq!(ack.sack_blocks().next(), Some((0, 1)));
    }

    #[test]
    fn the_window_closes_over_unread_bytes_and_opens_when_they_are_read() {
        let mut receiver = receiver(1000, 2);
        (0..10).for_each(|number| {
            receiver.on_data(&data(number), 0, 1000);
        });
        assert_eq!(ack_of(&mut receiver).window_bytes, 0);
        receiver.read(50, 0);
        assert_eq!(ack_of(&mut receiver).window_bytes, 0);
        receiver.read(600, 0);
        assert!(receiver.wants_ack(0));
        assert_eq!(ack_of(&mut receiver).window_bytes, 650);
    }

    #[test]
    fn no_more_is_advertised_than_the_window_however_much_can_be_held() {
        let plan = EndpointPlan {
            receive_buffer: ReceiveBuffer::Fixed(10_000),
            window_bytes: Some(1000),
            ..EndpointPlan::default()
        };
        let mut receiver = Receiver::new(&plan, 100);
        assert_eq!((receiver.edge_bytes, ack_of(&mut receiver).window_bytes), (1000, 1000));
        (0..10).for_each(|number| {
            receiver.on_data(&data(number), 0, 1000);
        });
        assert_eq!(ack_of(&mut receiver).window_bytes, 1000, "what waits to be read has room of its own");
    }
}
