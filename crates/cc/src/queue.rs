//! Controllers of a relay's queue (`cc/queue/`), compiled natively: the same code marks packets in the kernel and in
//! the simulator.
//!
//! - [`Marker`]: which arriving packets to mark, by one of four [`Kind`]s of controller.
//! - [`Window`]: what to advertise on the inbound leg, and how far ahead of the outbound leg to read.

use serde::{Deserialize, Serialize};
use std::{fmt, ops::RangeInclusive, str::FromStr};

/// What decides which packets are marked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Kind {
    /// All of them while the backlog exceeds what is allowed.
    Fixed = 0,
    /// More and more of them as the backlog nears what is allowed.
    Red = 1,
    /// As many as hold the target delay.
    Pi = 2,
    /// None: the window alone.
    #[default]
    None = 3,
    /// One per so many bytes received.
    Every = 4,
}

impl Kind {
    const NAMES: [(&'static str, Kind); 5] = [
        ("fixed", Kind::Fixed),
        ("red", Kind::Red),
        ("pi", Kind::Pi),
        ("every", Kind::Every),
        ("none", Kind::None),
    ];

    /// Name of the kind in files and options.
    pub fn name(self) -> &'static str {
        Kind::NAMES.iter().find(|(_, kind)| *kind == self).map_or("none", |(name, _)| name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let found = Kind::NAMES.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, kind)| *kind)
            .ok_or_else(|| format!("unknown controller '{text}'; there are fixed, red, pi, every and none"))
    }
}

/// What is seen of both legs at one time (`struct lf_queue_view`). Counts begin with the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct View {
    /// From any fixed point.
    pub now_us: u64,
    /// Inbound, in order.
    pub received_bytes: u64,
    /// Outbound, for the first time.
    pub sent_bytes: u64,
    /// Bytes acknowledged on the outbound leg.
    pub acked_bytes: u64,
    /// 0 when not known.
    pub inbound_rtt_us: u32,
    /// Smoothed; 0 when not known.
    pub outbound_rtt_us: u32,
    /// Outbound congestion window.
    pub outbound_cwnd_bytes: u32,
    /// Largest segment of the inbound leg.
    pub mss_bytes: u32,
    /// Uniform over all values.
    pub random: u32,
    /// Padding, always zero.
    pub reserved: u32,
}

/// What a person chooses (`struct lf_queue_settings`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Settings {
    /// The controller.
    pub kind: Kind,
    /// Delay to hold.
    pub target_us: u32,
    /// Inbound round trips without a mark after a mark; 0: none.
    pub hold_off_rtts: u32,
    /// Backlog allowed (fixed, red) in sixteenths of the outbound window.
    pub allowed_cwnds_x16: u32,
    /// Backlog allowed (fixed, red) in bytes: the greater of both holds.
    pub allowed_bytes: u64,
    /// How far below it marking begins (red).
    pub red_bytes: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            kind: Kind::default(),
            target_us: 20_000,
            hold_off_rtts: 4,
            // Two and a half windows: the thesis takes two or three.
            allowed_cwnds_x16: 40,
            allowed_bytes: 0,
            red_bytes: 1 << 20,
        }
    }
}

/// How the queue of a relay is kept short: what plans hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueuePlan {
    /// Delay that bytes may wait in the relay.
    pub target_us: u32,
    /// A leg is left alone while it is so fast that full buffers would go out within so many targets.
    #[serde(default = "at_once")]
    pub tolerance: u32,
    /// What decides which packets are marked.
    pub controller: Kind,
    /// Whether the advertised window is the steady limit.
    pub window: bool,
    /// Inbound round trips without a mark after a mark.
    pub hold_off_rtts: u32,
    /// Backlog allowed (fixed, red) in sixteenths of the outbound window.
    pub allowed_cwnds_x16: u32,
    /// Backlog allowed (fixed, red) in bytes: the greater of both holds.
    pub allowed_bytes: u64,
    /// How far below it marking begins (red).
    pub red_bytes: u64,
    /// Packets of senders without ECN are dropped where they would be marked.
    pub drop: bool,
    /// How many times slower than the host's time goes the plan's: 1, but in a run that is carried out slower.
    #[serde(skip_serializing_if = "is_own_time")]
    pub dilate: u32,
}

/// How many times slower a plan's time may go.
pub const DILATE: RangeInclusive<u32> = 1..=3600;

fn is_own_time(dilate: &u32) -> bool {
    *dilate == 1
}

/// What a queue's target may be.
pub const TARGET_US: RangeInclusive<u32> = 1000..=10_000_000;
/// Tolerance of a target that somebody asked for.
fn at_once() -> u32 {
    1
}

impl Default for QueuePlan {
    fn default() -> QueuePlan {
        let Settings { target_us, hold_off_rtts, allowed_cwnds_x16, allowed_bytes, red_bytes, kind } =
            Settings::default();
        QueuePlan {
            target_us,
            // Nobody asked: to keep a queue short costs a fast leg half of its rate where packets come one by one.
            tolerance: 4,
            controller: kind,
            window: true,
            hold_off_rtts,
            allowed_cwnds_x16,
            allowed_bytes,
            red_bytes,
            drop: false,
            dilate: 1,
        }
    }
}

impl QueuePlan {
    /// Settings of the marking beside the window. Where the window holds the target, marks are for what it does not
    /// hold: they begin at twice the target.
    pub fn settings(&self) -> Settings {
        let factor = if self.window { 2 } else { 1 };
        Settings {
            kind: self.controller,
            target_us: self.target_us.saturating_mul(factor),
            hold_off_rtts: self.hold_off_rtts,
            allowed_cwnds_x16: self.allowed_cwnds_x16,
            allowed_bytes: self.allowed_bytes,
            red_bytes: self.red_bytes,
        }
    }

    /// What of it cannot be.
    ///
    /// # Errors
    /// The field, its value and what it may be.
    pub fn check(&self) -> Result<(), String> {
        if !TARGET_US.contains(&self.target_us) {
            return Err(format!("a queue's target of {} us is not between 1 ms and 10 s", self.target_us));
        }
        if !(1..=1000).contains(&self.tolerance) {
            return Err(format!(
                "a queue's tolerance of {} targets is not between 1 and 1000",
                self.tolerance
            ));
        }
        if !DILATE.contains(&self.dilate) {
            return Err(format!("a queue whose time goes {} times slower: give 1 to 3600", self.dilate));
        }
        let is_marked_by_size = matches!(self.controller, Kind::Fixed | Kind::Red);
        if is_marked_by_size && self.allowed_cwnds_x16 == 0 && self.allowed_bytes == 0 {
            return Err(
                "a fixed or red controller needs an allowed backlog, in bytes or in windows".to_owned()
            );
        }
        if self.controller == Kind::Every && self.allowed_bytes == 0 {
            return Err("a controller that marks every so many bytes needs 'allowed', in bytes".to_owned());
        }
        if self.controller == Kind::None && !self.window {
            return Err(
                "a queue with neither window nor controller is not kept short; write target = \"off\""
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// `struct lf_drain`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct Drain {
    since_us: u64,
    since_sent_bytes: u64,
    bytes_per_s: u64,
    was_dry: u32,
    is_growing: u32,
}

/// State of one direction of a connection (`struct lf_queue_state`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MarkState {
    drain: Drain,
    hold_until_us: u64,
    pi_at_us: u64,
    /// Packets marked.
    pub marks: u64,
    /// Data packets seen.
    pub packets: u64,
    /// Received and not yet acknowledged onwards, at the last packet.
    pub backlog_bytes: u64,
    /// Received and not yet sent on, at the last packet.
    pub waiting_bytes: u64,
    /// How long that waits at the drain rate.
    pub delay_us: u32,
    pi_delay_us: u32,
    /// Probability of a mark, in parts of 2^32.
    pub pi_probability: u32,
    pi_least_us: u32,
}

impl MarkState {
    /// Rate of the outbound leg.
    pub fn drain_bps(&self) -> u64 {
        self.drain.bytes_per_s.saturating_mul(8)
    }

    /// Read from the bytes of the C struct, as the kernel hands them out.
    pub fn from_bytes(bytes: &[u8]) -> Option<MarkState> {
        let bytes = bytes.get(..size_of::<MarkState>())?;
        // SAFETY: the struct is plain integers, so any bytes of its size are a value of it; read_unaligned asks for
        // no alignment.
        Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }
}

impl Settings {
    /// As the C struct's bytes, for the kernel.
    pub fn to_bytes(self) -> [u8; size_of::<Settings>()] {
        // SAFETY: both are of one size, and the struct has no padding: four u32 and two u64.
        unsafe { std::mem::transmute(self) }
    }
}

unsafe extern "C" {
    fn lf_native_queue_on_packet(view: *const View, state: *mut MarkState, settings: *const Settings) -> u32;
    fn lf_native_queue_marked(view: *const View, state: *mut MarkState, settings: *const Settings);
    fn lf_native_window_update(
        view: *const View,
        state: *mut WindowState,
        target_us: u32,
        out: *mut Advertised,
    );
}

/// Decides which packets are marked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marker {
    settings: Settings,
    state: MarkState,
}

impl View {
    /// What was seen at a host whose time goes so many times faster than the controllers'.
    #[must_use]
    pub fn slower(self, times: u32) -> View {
        View {
            now_us: self.now_us / u64::from(times.max(1)),
            inbound_rtt_us: self.inbound_rtt_us / times.max(1),
            outbound_rtt_us: self.outbound_rtt_us / times.max(1),
            ..self
        }
    }
}

impl Marker {
    /// Before the first packet.
    pub fn new(settings: Settings) -> Marker {
        Marker { settings, state: MarkState::default() }
    }

    /// A data packet arrives: whether it is to be marked.
    pub fn on_packet(&mut self, view: &View) -> bool {
        // SAFETY: the three structs mirror C's (a test compares them) and live through the call.
        unsafe { lf_native_queue_on_packet(view, &raw mut self.state, &raw const self.settings) != 0 }
    }

    /// Takes note that a packet was marked.
    pub fn marked(&mut self, view: &View) {
        // SAFETY: as above.
        unsafe { lf_native_queue_marked(view, &raw mut self.state, &raw const self.settings) }
    }

    /// What it has counted and measured.
    pub fn state(&self) -> &MarkState {
        &self.state
    }
}

/// `struct lf_window_state`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct WindowState {
    drain: Drain,
    peak_bytes_per_s: u64,
    gain_x64: u32,
    delay_us: u32,
}

/// What is to be set (`struct lf_window`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Advertised {
    /// Under way to the relay and waiting in it.
    pub limit_bytes: u32,
    /// To be advertised.
    pub window_bytes: u32,
    /// The relay reads no more than this ahead of the outbound leg.
    pub ahead_bytes: u32,
    /// The receive buffer shall hold so much payload.
    pub buffer_bytes: u32,
}

/// What may wait in a relay, per direction, when nothing keeps it short: what its buffers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The receive buffer of the inbound leg, and what the relay itself holds.
    pub inbound_bytes: u64,
    /// Unsent bytes of the outbound leg.
    pub unsent_bytes: u32,
}

impl Room {
    fn bytes(self) -> u64 {
        self.inbound_bytes.saturating_add(self.unsent_bytes.into())
    }
}

/// Decides what an inbound leg advertises, and whether it need be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    target_us: u32,
    tolerance: u32,
    room: Room,
    is_fast: bool,
    /// Since when the rate is one that is tolerated.
    fast_since_us: Option<u64>,
    state: WindowState,
}

impl Window {
    /// A path's first queue takes a burst at the rate of the LAN before it: what is only tolerated must last.
    const LASTING_US: u64 = 500_000;

    /// Holds a target delay.
    pub fn new(target_us: u32, room: Room) -> Window {
        Window {
            target_us,
            tolerance: 1,
            room,
            is_fast: false,
            fast_since_us: None,
            state: WindowState::default(),
        }
    }

    /// Sets nothing while full buffers would wait no longer than so many targets.
    #[must_use]
    pub fn tolerating(self, tolerance: u32) -> Window {
        Window { tolerance, ..self }
    }

    /// Looks at the connection. Nothing is to be set while the outbound leg is so fast that full buffers would not wait
    /// longer than is tolerated; before its rate is known it is not taken for fast.
    pub fn update(&mut self, view: &View) -> Option<Advertised> {
        let mut out = Advertised::default();
        // SAFETY: the structs mirror C's (a test compares them) and live through the call.
        unsafe { lf_native_window_update(view, &raw mut self.state, self.target_us, &raw mut out) }
        self.is_fast = self.is_fast_at(view.now_us);
        (!self.is_fast).then(|| {
            out.ahead_bytes =
                out.ahead_bytes.min(self.room.unsent_bytes.max(view.mss_bytes.saturating_mul(4)));
            out.buffer_bytes = out.buffer_bytes.max(out.limit_bytes.saturating_sub(out.ahead_bytes));
            out
        })
    }

    /// Whether full buffers go out within the target, or, for some time, within what is tolerated.
    fn is_fast_at(&mut self, now_us: u64) -> bool {
        let quarters = if self.is_fast { 3 } else { 4 };
        if !self.would_drain(quarters, self.tolerance) {
            self.fast_since_us = None;
            return false;
        }
        let since_us = *self.fast_since_us.get_or_insert(now_us);
        now_us - since_us >= Window::LASTING_US || self.would_drain(quarters, 1)
    }

    /// Whether so many quarters of what the buffers hold go out within so many targets.
    fn would_drain(&self, quarters: u128, targets: u32) -> bool {
        let within_us = u128::from(self.target_us) * u128::from(targets);
        let within = u128::from(self.state.drain.bytes_per_s) * within_us / 1_000_000;
        within > 0 && within >= u128::from(self.room.bytes()) * quarters / 4
    }

    /// Whether the rate of the outbound leg was measured.
    pub fn knows_rate(&self) -> bool {
        self.state.drain.bytes_per_s > 0
    }

    /// How long what waits takes at the drain rate.
    pub fn delay_us(&self) -> u32 {
        self.state.delay_us
    }

    /// Rate of the outbound leg.
    pub fn drain_bps(&self) -> u64 {
        self.state.drain.bytes_per_s.saturating_mul(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    unsafe extern "C" {
        static lf_queue_layout: [u32; 10];
    }

    #[test]
    fn the_mirrors_have_the_layout_of_the_c_structs() {
        let mirrors = [
            size_of::<View>(),
            size_of::<Settings>(),
            size_of::<MarkState>(),
            size_of::<WindowState>(),
            size_of::<Advertised>(),
            offset_of!(View, random),
            offset_of!(Settings, red_bytes),
            offset_of!(MarkState, marks),
            offset_of!(MarkState, pi_probability),
            offset_of!(WindowState, delay_us),
        ];
        // SAFETY: a constant array of the C side, of this length.
        let layout = unsafe { lf_queue_layout };
        assert_eq!(layout.map(|bytes| bytes as usize), mirrors);
    }

    /// A direction whose outbound leg sends so much per millisecond, of an endless supply.
    fn after(
        window: &mut Window,
        from_ms: u64,
        ms: u64,
        bytes_per_ms: u64,
        sent_bytes: &mut u64,
    ) -> Option<Advertised> {
        (from_ms..from_ms + ms).fold(None, |_, now_ms| {
            *sent_bytes += bytes_per_ms;
            window.update(&View {
                now_us: (now_ms + 1) * 1000,
                received_bytes: *sent_bytes + 100_000,
                sent_bytes: *sent_bytes,
                acked_bytes: *sent_bytes,
                inbound_rtt_us: 50,
                outbound_rtt_us: 50,
                outbound_cwnd_bytes: 14_480,
                mss_bytes: 1448,
                ..View::default()
            })
        })
    }

    const ROOM: Room = Room { inbound_bytes: 2 << 20, unsent_bytes: 256 << 10 };

    #[test]
    fn a_leg_that_empties_full_buffers_within_the_target_is_left_alone_once_its_rate_is_known() {
        let (mut window, mut sent_bytes) = (Window::new(20_000, ROOM), 0);
        let first = after(&mut window, 0, 5, 1_250_000, &mut sent_bytes);
        assert!(first.is_some(), "10 Gbit/s, but nobody has seen it yet");
        assert_eq!(after(&mut window, 5, 50, 1_250_000, &mut sent_bytes), None);
        assert!(after(&mut window, 55, 500, 6250, &mut sent_bytes).is_some(), "it has become 50 Mbit/s");
    }

    #[test]
    fn what_is_tolerated_is_left_alone_and_what_is_not_is_held() {
        // 2.36 MB: 38 ms at 500 Mbit/s, 94 ms at 200 Mbit/s.
        let held = |tolerance: u32, bytes_per_ms: u64| {
            let (mut window, mut sent_bytes) = (Window::new(20_000, ROOM).tolerating(tolerance), 0);
            assert!(after(&mut window, 0, 400, bytes_per_ms, &mut sent_bytes).is_some(), "it may be a burst");
            after(&mut window, 400, 400, bytes_per_ms, &mut sent_bytes).is_some()
        };
        assert!(held(1, 62_500) && !held(4, 62_500) && held(4, 25_000));
    }

    #[test]
    fn what_is_read_ahead_is_never_more_than_may_be_unsent() {
        let (mut window, mut sent_bytes) = (Window::new(20_000, ROOM), 0);
        let at_500_mbit = after(&mut window, 0, 500, 62_500, &mut sent_bytes).unwrap();
        assert_eq!(at_500_mbit.ahead_bytes, ROOM.unsent_bytes);
        assert_eq!(at_500_mbit.buffer_bytes, at_500_mbit.limit_bytes - ROOM.unsent_bytes);
        assert!(at_500_mbit.limit_bytes > 900_000, "{at_500_mbit:?}");
    }

    #[test]
    fn a_state_read_from_bytes_is_the_one_that_was_written() {
        let mut bytes = [0u8; size_of::<MarkState>()];
        bytes[offset_of!(MarkState, marks)] = 7;
        assert_eq!(MarkState::from_bytes(&bytes).unwrap(), MarkState { marks: 7, ..MarkState::default() });
        assert_eq!(MarkState::from_bytes(&bytes[1..]), None);
    }

    #[test]
    fn controllers_are_named_and_a_wrong_name_says_which_there_are() {
        for (name, kind) in Kind::NAMES {
            assert_eq!((name.parse(), kind.to_string().as_str()), (Ok(kind), name));
        }
        assert!("pie".parse::<Kind>().unwrap_err().contains("red"));
    }
}
