//! A download steered by the window that its receiver advertises (`cc/receive/`), compiled natively: the same code
//! runs in the kernel at each arriving segment.

/// Bytes of options that a TCP header has room for.
pub const OPTIONS_BYTES: usize = 40;

/// What decides now (`enum lf_give_way_phase`).
pub const START: u32 = 0;
/// The target is held.
pub const STEADY: u32 = 1;
/// The queue empties, so that the least delay is seen.
pub const LOW: u32 = 2;
/// Back from that.
pub const CLIMB: u32 = 3;

/// An arriving segment that carries data (`struct lf_arrival`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Arrival {
    /// From any fixed point.
    pub now_us: u64,
    /// The TSval that we would send now.
    pub now_ts: u32,
    /// A tick of our TSval.
    pub tick_us: u32,
    /// The segment's TSval.
    pub ts_value: u32,
    /// TSecr of the segment.
    pub ts_echo: u32,
    /// Sequence number of the segment's first byte.
    pub seq: u32,
    /// How many it carries.
    pub payload_bytes: u32,
    /// Largest segment of the connection.
    pub mss_bytes: u32,
    /// The first byte beyond the window.
    pub edge_seq: u32,
}

/// `struct lf_delay`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct Delay {
    minute_began_us: u64,
    base_us: [u32; 10],
    recent_us: [u32; 4],
    minute: u32,
    samples: u32,
}

/// Decides what a connection advertises (`struct lf_give_way`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GiveWay {
    delay: Delay,
    next_low_us: u64,
    phase_began_us: u64,
    last_us: u64,
    window_bytes: u32,
    mss_bytes: u32,
    highest_seq: u32,
    highest_ts: u32,
    last_echo: u32,
    round_ts: u32,
    round_bytes: u32,
    target_us: u32,
    peak_us: u32,
    last_peak_us: u32,
    cautious_from_bytes: u32,
    resume_bytes: u32,
    phase: u32,
    quiet_rounds: u32,
    settling_rounds: u32,
    has_lost: u32,
}

/// `struct lf_timestamps`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct RawTimestamps {
    value: u32,
    echo: u32,
}

unsafe extern "C" {
    fn lf_native_give_way_begin(
        state: *mut GiveWay,
        now_us: u64,
        now_ts: u32,
        next_seq: u32,
        mss_bytes: u32,
        rtt_us: u32,
    );
    fn lf_native_give_way_on_segment(state: *mut GiveWay, arrival: *const Arrival);
    fn lf_native_timestamps(options: *const u8, length: u32, out: *mut RawTimestamps) -> u32;
}

impl GiveWay {
    /// A connection begins. `arrival` says when, and which sequence number comes first; the round trip of the
    /// handshake is 0 when not known.
    pub fn begin(arrival: &Arrival, rtt_us: u32) -> GiveWay {
        let mut state = GiveWay::default();
        let Arrival { now_us, now_ts, seq, mss_bytes, .. } = *arrival;
        // SAFETY: the struct mirrors C's (a test compares them) and lives through the call.
        unsafe { lf_native_give_way_begin(&raw mut state, now_us, now_ts, seq, mss_bytes, rtt_us) }
        state
    }

    /// A segment arrives; what is to be advertised from now on.
    pub fn on_segment(&mut self, arrival: &Arrival) -> u32 {
        // SAFETY: as above.
        unsafe { lf_native_give_way_on_segment(std::ptr::from_mut(self), arrival) }
        self.window_bytes
    }

    /// To be advertised.
    pub fn window_bytes(&self) -> u32 {
        self.window_bytes
    }

    /// What decides: [`START`] and so on.
    pub fn phase(&self) -> u32 {
        self.phase
    }

    /// Delay allowed beyond the least.
    pub fn target_us(&self) -> u32 {
        self.target_us
    }
}

/// TSval and TSecr among the options of a TCP header.
pub fn timestamps(options: &[u8]) -> Option<(u32, u32)> {
    let mut whole = [0; OPTIONS_BYTES];
    let length = options.len().min(OPTIONS_BYTES);
    whole[..length].copy_from_slice(&options[..length]);
    let mut found = RawTimestamps::default();
    // SAFETY: OPTIONS_BYTES bytes, and a struct that mirrors C's; both live through the call.
    let has = unsafe { lf_native_timestamps(whole.as_ptr(), length as u32, &raw mut found) } != 0;
    has.then_some((found.value, found.echo))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    unsafe extern "C" {
        static lf_receive_layout: [u32; 8];
    }

    #[test]
    fn the_mirrors_have_the_layout_of_the_c_structs() {
        let mirrors = [
            size_of::<GiveWay>(),
            size_of::<Arrival>(),
            size_of::<RawTimestamps>(),
            offset_of!(GiveWay, window_bytes),
            offset_of!(GiveWay, phase),
            offset_of!(GiveWay, has_lost),
            offset_of!(GiveWay, last_us),
            offset_of!(Arrival, edge_seq),
        ];
        // SAFETY: a constant array of the C side, of this length.
        let layout = unsafe { lf_receive_layout };
        assert_eq!(layout.map(|bytes| bytes as usize), mirrors);
    }
}
