//! A look at both sockets of a connection: what moved, what waits, what to set.

use super::{
    super::{Legs, leg},
    show_marks,
};
use crate::{
    logic::connection::{Direction, Side},
    plan::{BUFFER_BYTES, ConnectionPlan, LegPlan},
};
use longfat_cc::queue::{Advertised, Room, View, Window};
use longfat_host::{
    monotonic_us,
    socket::{self, Buffer, TcpInfo, tcp_info},
};
use longfat_kernel::mark::Marking;
use std::{
    net::TcpStream,
    time::{Duration, Instant},
};

/// How often a connection is looked at whose bytes wait, or whose rate is not known.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Time between looks while little waits.
const CALM_EVERY: Duration = Duration::from_millis(8);
/// Time between looks where nothing needs to be set: full buffers would take the target.
const FAST_EVERY: Duration = Duration::from_millis(16);
/// What does not move is looked at half as often each time, and then no more.
const REST_EVERY: Duration = Duration::from_millis(64);
/// A path from the sender on which next to nothing is under way: this part of a target is longer than its round trip.
const NEAR_PART: u32 = 32;
/// A receive buffer of fewer bytes is filled by single bundles of segments: too coarse to keep a queue short alone.
const FINE_BYTES: u32 = 128 * 1024;
/// A clamp that clamps nothing.
const NO_CLAMP_BYTES: u32 = 1 << 30;

/// Both directions of a connection, and when to look again.
#[derive(Debug)]
pub(crate) struct Looks {
    of: [Look; 2],
    due: Instant,
    every: Duration,
    /// What the connection may come to hold, as of the last look.
    memory_bytes: Option<u64>,
}

impl Looks {
    pub fn new(legs: &Legs, now: Instant) -> Looks {
        let mut of = Direction::BOTH.map(|direction| Look::new(&legs.plan, direction));
        if legs.is_inserted {
            // More room brought those nothing, and cost eight at a time some of their rate.
            of.iter_mut().for_each(|look| look.fast_buffer_bytes = 0);
        }
        Looks { of, due: now, every: LOOK_EVERY, memory_bytes: None }
    }

    /// When the next look is due; never when nothing moves any more, or a leg has ended.
    pub fn look(&mut self, legs: &Legs, marking: Option<&Marking>, now: Instant) -> Option<Instant> {
        let memory_bytes = legs.queues.memory_bytes();
        if now < self.due && memory_bytes == self.memory_bytes {
            return Some(self.due);
        }
        self.memory_bytes = memory_bytes;
        let infos = [tcp_info(&legs.client).ok()?, tcp_info(&legs.server).ok()?];
        let info = |side: Side| &infos[side as usize];
        let mut every = None;
        for direction in Direction::BOTH {
            let look = &mut self.of[direction.index()];
            if let Some(marking) = marking {
                show_marks(marking, legs, direction);
            }
            let most = memory_bytes.map(|bytes| Most::of(&legs.plan, direction, bytes));
            let wanted = look.look(legs, direction, most, info(direction.from()), info(direction.to()));
            every = every.into_iter().chain(wanted).min();
        }
        self.every = every.unwrap_or(2 * self.every);
        self.due = now + self.every * self.of[0].dilate;
        let rests = self.every >= REST_EVERY;
        if rests {
            // It begins anew with whatever moves next.
            (self.due, self.every) = (now, LOOK_EVERY);
        }
        (!rests).then_some(self.due)
    }
}

/// What was set for one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Set {
    pub window_bytes: u32,
    pub ahead_bytes: u32,
    /// As the kernel counts it; zero: not set yet.
    pub buffer_bytes: u64,
}

/// What memory allows the sockets of one direction, as the kernel counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Most {
    receive_bytes: u64,
    send_bytes: u64,
}

impl Most {
    /// A connection goes on with so much, however little is free: a few segments that come alone.
    const LEAST_BYTES: u64 = 16 * 1024;

    fn of(plan: &ConnectionPlan, direction: Direction, memory_bytes: u64) -> Most {
        let buffers = plan.buffers_within(memory_bytes);
        let of = |side: Side| buffers[side as usize].max(Most::LEAST_BYTES);
        Most { receive_bytes: of(direction.from()), send_bytes: of(direction.to()) }
    }

    /// No more than that, whether a queue is to be short or not. How much payload fits into a receive buffer the kernel
    /// knows, and advertises.
    fn bound(self, wanted: Option<Advertised>, unsent_bytes: u32) -> Advertised {
        let in_32 = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (receive_bytes, ahead_bytes) = (in_32(self.receive_bytes), in_32(self.send_bytes / 2));
        let planned = Advertised {
            limit_bytes: receive_bytes,
            window_bytes: receive_bytes,
            ahead_bytes: unsent_bytes,
            buffer_bytes: receive_bytes,
        };
        let wanted = wanted.unwrap_or(planned);
        Advertised {
            limit_bytes: wanted.limit_bytes,
            window_bytes: wanted.window_bytes.min(receive_bytes),
            ahead_bytes: wanted.ahead_bytes.min(ahead_bytes),
            buffer_bytes: wanted.buffer_bytes.min(receive_bytes),
        }
    }
}

/// One direction.
#[derive(Debug)]
struct Look {
    target_us: u32,
    /// How many times slower than this host's time goes that of the plan, in which everything here is.
    dilate: u32,
    window: Option<Window>,
    /// How soon to look again where there is none.
    without_window: Duration,
    /// Absent while its sockets are as the plan says.
    set: Option<Set>,
    /// Size of the inbound leg's buffer when nothing is set, and what may wait unsent on the other.
    buffer_bytes: u64,
    unsent_bytes: u32,
    /// What its receive buffer may grow to while nothing is set, and what it was given then.
    fast_buffer_bytes: u64,
    left_buffer_bytes: u64,
    /// The outbound leg's send buffer as its plan says, and as it was set last.
    send_bytes: u64,
    set_send_bytes: u64,
    /// What memory allowed at the last look.
    most: Option<Most>,
    received_bytes: u64,
    sent_bytes: u64,
    /// What the kernel takes of the receive buffer for a byte of payload, in sixteenths.
    bookkeeping_x16: u64,
}

impl Look {
    /// Until there was enough to see.
    const BOOKKEEPING_X16: u64 = 32;
    const ENOUGH_BYTES: u64 = 16 * 1024;

    fn new(plan: &ConnectionPlan, direction: Direction) -> Look {
        let leg = |side: Side| -> &LegPlan {
            match side {
                Side::Client => &plan.client,
                Side::Server => &plan.server,
            }
        };
        let (inbound, outbound) = (leg(direction.from()), leg(direction.to()));
        let room = Room {
            inbound_bytes: inbound.buffer_bytes + BUFFER_BYTES as u64,
            unsent_bytes: outbound.notsent_lowat_bytes,
        };
        // Limits of memory count buffers as planned, and whoever made them smaller wants them so.
        let may_grow = !inbound.begins_small && inbound.buffer_bytes >= LegPlan::CLIENT_BUFFER_BYTES;
        let queue = plan.queue.as_ref();
        Look {
            target_us: queue.map_or(u32::MAX, |queue| queue.target_us),
            dilate: queue.map_or(1, |queue| queue.dilate),
            window: queue
                .filter(|queue| queue.window)
                .map(|queue| Window::new(queue.target_us, room).tolerating(queue.tolerance)),
            // Marks are read often; memory alone changes seldom.
            without_window: if queue.is_some() { LOOK_EVERY } else { FAST_EVERY },
            // A connection begins with little room.
            set: Some(Set::default()),
            buffer_bytes: inbound.buffer_bytes,
            unsent_bytes: outbound.notsent_lowat_bytes,
            fast_buffer_bytes: if may_grow { inbound.fast_buffer_bytes } else { 0 },
            left_buffer_bytes: inbound.buffer_bytes,
            send_bytes: outbound.buffer_bytes,
            set_send_bytes: outbound.buffer_bytes,
            most: None,
            received_bytes: 0,
            sent_bytes: 0,
            bookkeeping_x16: Look::BOOKKEEPING_X16,
        }
    }

    /// How soon to look again; absent when nothing has moved.
    fn look(
        &mut self,
        legs: &Legs,
        direction: Direction,
        most: Option<Most>,
        from: &TcpInfo,
        to: &TcpInfo,
    ) -> Option<Duration> {
        let moved = self.note_movement(from, to);
        self.most = most;
        let shown = legs.queues.of(direction);
        let view = view(from, to).slower(self.dilate);
        let wanted = self.window.as_mut().and_then(|window| window.update(&view));
        let wanted = wanted.map(|wanted| kept_by_buffer(wanted, view.inbound_rtt_us, self.target_us));
        let wanted = most.map_or(wanted, |most| Some(most.bound(wanted, self.unsent_bytes)));
        let (inbound, outbound) = (legs.leg(direction.from()), legs.leg(direction.to()));
        match wanted {
            Some(wanted) => self.hold(wanted, inbound, outbound, from),
            None => self.leave_alone(inbound, outbound, from),
        }
        self.fit_send_buffer(outbound);
        shown.show(self.set.as_ref());
        let Some(window) = &self.window else { return moved.then_some(self.without_window) };
        let (delay_us, knows_rate) = (window.delay_us(), window.knows_rate());
        shown.show_rate(delay_us, window.drain_bps(), self.dilate);
        let is_calm = knows_rate && delay_us < self.target_us / 4;
        moved.then_some(match (self.set, is_calm) {
            (None, _) => FAST_EVERY,
            (Some(_), true) => CALM_EVERY,
            (Some(_), false) => LOOK_EVERY,
        })
    }

    /// As planned, or as memory allows.
    fn fit_send_buffer(&mut self, outbound: &TcpStream) {
        let wanted_bytes = self.most.map_or(self.send_bytes, |most| most.send_bytes.min(self.send_bytes));
        if self.set_send_bytes.abs_diff(wanted_bytes) > self.set_send_bytes / 8 {
            self.set_send_bytes = wanted_bytes;
            let _ = socket::set_buffer(outbound, Buffer::Send, wanted_bytes);
        }
    }

    /// Whether anything came or went since the last look.
    fn note_movement(&mut self, from: &TcpInfo, to: &TcpInfo) -> bool {
        let before = (self.received_bytes, self.sent_bytes);
        (self.received_bytes, self.sent_bytes) = (from.received_bytes, to.sent_bytes);
        before != (self.received_bytes, self.sent_bytes)
    }

    /// Sets what has changed enough to be worth a system call. A socket that refuses has ended.
    fn hold(&mut self, wanted: Advertised, inbound: &TcpStream, outbound: &TcpStream, from: &TcpInfo) {
        let set = self.set.get_or_insert_default();
        if set.is_clamp_due(wanted.window_bytes, from.rcv_wnd_bytes) {
            set.window_bytes = wanted.window_bytes;
            clamp(inbound, wanted.window_bytes);
        }
        if differs(set.ahead_bytes, wanted.ahead_bytes) {
            // The kernel says that there is room when less than half of this waits, which is just when the worker
            // writes again.
            set.ahead_bytes = wanted.ahead_bytes & !1;
            limit_unsent(outbound, set.ahead_bytes);
        }
        let (unread_bytes, occupied_bytes) = (leg::unread_bytes(inbound), occupied_bytes(inbound));
        if unread_bytes >= Look::ENOUGH_BYTES {
            // Bundles of segments need less bookkeeping than lone ones: what is there shows how much.
            self.bookkeeping_x16 = (16 * occupied_bytes / unread_bytes).clamp(17, 64);
        }
        let most_bytes = self.most.map_or(u64::MAX, |most| most.receive_bytes);
        let room_bytes = (u64::from(wanted.buffer_bytes) * self.bookkeeping_x16 / 16).min(most_bytes);
        let is_over = unread_bytes > u64::from(wanted.buffer_bytes);
        let promised_bytes = promised_bytes(from, occupied_bytes);
        // At first the buffer was the kernel's to size, which promised by it. Then the clamp bounds the promise: the
        // data have come with which the kernel forgets it.
        let now_bytes = if set.buffer_bytes == 0 { self.left_buffer_bytes } else { set.buffer_bytes };
        let wanted_bytes =
            buffer_bytes(room_bytes, promised_bytes, is_over, now_bytes).min(self.left_buffer_bytes);
        if set.buffer_bytes.abs_diff(wanted_bytes) > set.buffer_bytes / 8 {
            set.buffer_bytes = wanted_bytes;
            let _ = socket::set_buffer(inbound, Buffer::Receive, wanted_bytes);
        }
    }

    /// The sockets are as the plan says from now on; only the receive buffer follows the rate.
    fn leave_alone(&mut self, inbound: &TcpStream, outbound: &TcpStream, from: &TcpInfo) {
        let drain_bps = self.window.as_ref().map_or(0, Window::drain_bps);
        let wanted_bytes = self.fast_bytes(drain_bps);
        if self.set.take().is_some() {
            self.left_buffer_bytes = wanted_bytes;
            let _ = socket::set_buffer(inbound, Buffer::Receive, wanted_bytes);
            clamp(inbound, NO_CLAMP_BYTES);
            limit_unsent(outbound, self.unsent_bytes);
        } else if self.left_buffer_bytes.abs_diff(wanted_bytes) > self.left_buffer_bytes / 8 {
            let occupied_bytes = occupied_bytes(inbound);
            let is_over = occupied_bytes > wanted_bytes;
            let promised_bytes = promised_bytes(from, occupied_bytes);
            let bytes = buffer_bytes(wanted_bytes, promised_bytes, is_over, self.left_buffer_bytes);
            if bytes != self.left_buffer_bytes {
                self.left_buffer_bytes = bytes;
                let _ = socket::set_buffer(inbound, Buffer::Receive, bytes);
            }
        }
    }

    /// The receive buffer of a leg that is left alone: as planned, or as much as goes out within half a target. About
    /// half of what the kernel counts is payload.
    fn fast_bytes(&self, drain_bps: u64) -> u64 {
        let bytes = u128::from(drain_bps / 8) * u128::from(self.target_us) / 1_000_000;
        let most_bytes = self.fast_buffer_bytes.max(self.buffer_bytes);
        u64::try_from(bytes).unwrap_or(u64::MAX).clamp(self.buffer_bytes, most_bytes)
    }
}

impl Set {
    /// The kernel forgets a clamp when the first data show how large segments are: it then allows what the receive
    /// buffer holds. That shows in what it promises.
    fn is_clamp_due(&self, window_bytes: u32, promised_bytes: u32) -> bool {
        differs(self.window_bytes, window_bytes) || promised_bytes / 2 > self.window_bytes
    }
}

/// Near the sender the receive buffer alone keeps the queue short: what is under way counts for nothing, and the kernel
/// advertises what is free. A window that is smaller than that would have it acknowledge every second segment, where it
/// otherwise does as the relay reads.
fn kept_by_buffer(wanted: Advertised, inbound_rtt_us: u32, target_us: u32) -> Advertised {
    let is_near = (1..=target_us / NEAR_PART).contains(&inbound_rtt_us);
    let window_bytes =
        if is_near && wanted.buffer_bytes >= FINE_BYTES { wanted.limit_bytes } else { wanted.window_bytes };
    Advertised { window_bytes, ..wanted }
}

fn clamp(inbound: &TcpStream, bytes: u32) {
    let _ = socket::set_option(inbound, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes as i32);
}

fn limit_unsent(outbound: &TcpStream, bytes: u32) {
    let _ = socket::set_option(outbound, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes as i32);
}

/// The receive buffer, as the kernel counts it, bookkeeping included: room for what may be unread. What was promised to
/// the sender always keeps its place: the kernel drops what comes into a full buffer, and the sender, which sees no
/// more than its timer, comes back after 200 ms, and after twice that when the buffer is still full. It was promised
/// within the buffer as it is, which so never grows for it: the kernel would promise the more. When more is unread than
/// wanted and nothing is promised, the buffer shrinks at once: the kernel then advertises nothing until enough is read.
/// That is the hard limit: on a leg with a round trip of microseconds no window is small enough.
fn buffer_bytes(room_bytes: u64, promised_bytes: u64, is_over: bool, now_bytes: u64) -> u64 {
    let kept_bytes = promised_bytes.min(now_bytes);
    match is_over {
        true if promised_bytes == 0 => room_bytes.min(now_bytes),
        true => kept_bytes,
        false => room_bytes.max(kept_bytes),
    }
}

/// What the sender was promised, and what is there: as the kernel counts it, at its dearest.
fn promised_bytes(from: &TcpInfo, occupied_bytes: u64) -> u64 {
    match u64::from(from.rcv_wnd_bytes) {
        0 => 0,
        promised => occupied_bytes + 2 * promised,
    }
}

/// What the receive queue takes of its buffer: the first number of SO_MEMINFO.
fn occupied_bytes(socket: &TcpStream) -> u64 {
    socket::option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO).map_or(0, |bytes| u64::from(bytes as u32))
}

/// By more than an eighth.
fn differs(set: u32, wanted: u32) -> bool {
    set.abs_diff(wanted) > set / 8
}

fn view(from: &TcpInfo, to: &TcpInfo) -> View {
    // Both only err upwards: the sender's own pauses lengthen the one, a full path the other.
    let rtts = [from.rcv_rtt_us, from.srtt_us];
    View {
        now_us: monotonic_us() as u64,
        received_bytes: from.received_bytes,
        sent_bytes: to.sent_bytes.saturating_sub(to.retrans_bytes),
        acked_bytes: to.acked_bytes,
        inbound_rtt_us: rtts.into_iter().filter(|rtt_us| *rtt_us > 0).min().unwrap_or(0),
        outbound_rtt_us: to.srtt_us,
        outbound_cwnd_bytes: to.snd_cwnd_segments.saturating_mul(to.snd_mss_bytes),
        mss_bytes: from.advmss_bytes,
        random: 0,
        reserved: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_cc::queue::QueuePlan;

    #[test]
    fn a_clamp_that_the_kernel_forgot_is_set_again() {
        let mut set = Set::default();
        assert!(set.is_clamp_due(50_000, 0));
        set.window_bytes = 50_000;
        assert!(!set.is_clamp_due(52_000, 60_000));
        assert!(set.is_clamp_due(50_000, 130_000));
    }

    #[test]
    fn a_buffer_keeps_what_was_promised_and_shrinks_when_it_is_over_full_and_nothing_is() {
        const NOW: u64 = 2_000_000;
        assert_eq!(buffer_bytes(100_000, 80_000, false, NOW), 100_000);
        assert_eq!(buffer_bytes(100_000, 120_000, false, NOW), 120_000);
        assert_eq!(buffer_bytes(100_000, 1_606_000, true, NOW), 1_606_000);
        assert_eq!(buffer_bytes(100_000, 0, true, NOW), 100_000);
    }

    #[test]
    fn memory_bounds_what_a_queue_would_have_and_what_is_left_alone() {
        let plan = ConnectionPlan::default();
        let most = |direction, bytes| Most::of(&plan, direction, bytes);
        let up = most(Direction::ClientToServer, 1 << 20);
        assert_eq!(
            (up.receive_bytes, up.send_bytes),
            ((1 << 20) / 18, (1 << 20) * 8 / 18),
            "as their buffers are"
        );
        let down = most(Direction::ServerToClient, 1);
        assert_eq!((down.receive_bytes, down.send_bytes), (Most::LEAST_BYTES, Most::LEAST_BYTES));
        let bound = up.bound(None, 256 << 10);
        assert_eq!([bound.window_bytes, bound.buffer_bytes], [(1 << 20) / 18; 2]);
        assert_eq!(bound.ahead_bytes, (1 << 20) * 4 / 18);
        let held =
            Advertised { limit_bytes: 9000, window_bytes: 6000, ahead_bytes: 5000, buffer_bytes: 1 << 20 };
        let bound = up.bound(Some(held), 256 << 10);
        assert_eq!((bound.window_bytes, bound.ahead_bytes, bound.buffer_bytes), (6000, 5000, (1 << 20) / 18));
    }

    #[test]
    fn a_fast_legs_buffer_holds_half_a_target_within_what_its_plan_allows() {
        let up = |plan: &ConnectionPlan| Look::new(plan, Direction::ClientToServer);
        let mut plan = ConnectionPlan { queue: Some(QueuePlan::default()), ..ConnectionPlan::default() };
        let bytes = |plan: &ConnectionPlan, mbps: u64| up(plan).fast_bytes(mbps * 1_000_000);
        assert_eq!(bytes(&plan, 300), 2 << 20, "as planned");
        assert_eq!(bytes(&plan, 2000), 5_000_000, "of 20 ms half is payload");
        assert_eq!(bytes(&plan, 10_000), 8 << 20);
        assert_eq!(Look::new(&plan, Direction::ServerToClient).fast_bytes(u64::MAX), 16 << 20);
        plan.memory_bytes = Some(1 << 30);
        assert_eq!(bytes(&plan.within_memory(), 10_000), 2 << 20, "whoever bounds memory has said how much");
    }

    #[test]
    fn near_a_fast_sender_the_buffer_keeps_the_queue_and_elsewhere_the_window_does() {
        let wanted = |buffer_bytes| Advertised {
            limit_bytes: buffer_bytes + 100_000,
            window_bytes: 2896,
            ahead_bytes: 100_000,
            buffer_bytes,
        };
        let window = |buffer_bytes, rtt_us| kept_by_buffer(wanted(buffer_bytes), rtt_us, 20_000).window_bytes;
        assert_eq!(window(500_000, 50), 600_000);
        assert_eq!(window(500_000, 2000), 2896, "a tenth of the target is under way");
        assert_eq!(window(500_000, 0), 2896, "nobody knows");
        assert_eq!(window(50_000, 50), 2896, "less than a bundle of segments and its bookkeeping");
    }

    /// A buffer that grew would be promised in turn: 2 MB stood in a relay 10 ms after its sender began.
    #[test]
    fn a_buffer_does_not_grow_for_what_was_promised_within_it() {
        assert_eq!(buffer_bytes(64_000, 236_000, false, 131_072), 131_072);
        assert_eq!(buffer_bytes(150_000, 236_000, false, 131_072), 150_000);
        assert_eq!(buffer_bytes(64_000, 1_000_000, true, 131_072), 131_072);
    }
}
