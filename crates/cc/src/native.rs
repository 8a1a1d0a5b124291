//! The C side: mirrors of the contract's structs, and the only unsafe code of this crate.

use std::ffi::{CStr, c_char, c_void};

/// Room for any algorithm's private state (LF_LARGE_STATE_BYTES).
pub const STATE_BYTES: usize = 768;
/// Greatest window (LF_WINDOW_MAX), and the threshold before the first loss.
pub const WINDOW_MAX: u32 = 0x7fff_ffff;
/// `ca_state` in normal operation.
pub const OPEN: u32 = 0;
/// `ca_state` while a loss is repaired by retransmission.
pub const RECOVERY: u32 = 3;
/// `ca_state` after a retransmission timeout.
pub const LOSS: u32 = 4;

/// What an algorithm sees of a connection: `struct lf_conn`, which documents the fields.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Conn {
    pub now_us: u64,
    pub cwnd_segments: u32,
    pub cwnd_credit_segments: u32,
    pub ssthresh_segments: u32,
    pub cwnd_clamp_segments: u32,
    pub prior_cwnd_segments: u32,
    pub flight_segments: u32,
    pub max_flight_segments: u32,
    pub is_cwnd_limited: u32,
    pub ca_state: u32,
    pub mss_bytes: u32,
    pub srtt_us: u32,
    pub min_rtt_us: u32,
}

impl Default for Conn {
    /// A connection that has just begun: the initial window of RFC 6928, no round-trip sample.
    fn default() -> Conn {
        Conn {
            now_us: 0,
            cwnd_segments: 10,
            cwnd_credit_segments: 0,
            ssthresh_segments: WINDOW_MAX,
            cwnd_clamp_segments: WINDOW_MAX,
            prior_cwnd_segments: 0,
            flight_segments: 0,
            max_flight_segments: 0,
            is_cwnd_limited: 1,
            ca_state: OPEN,
            mss_bytes: 1448,
            srtt_us: 0,
            min_rtt_us: u32::MAX,
        }
    }
}

/// What an acknowledgement brought: `struct lf_ack`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ack {
    /// Segments newly acknowledged.
    pub acked_segments: u32,
}

/// What an algorithm that measures sees of the sender: `struct lf_sending`, which documents the fields.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sending {
    pub pacing_bytes_per_s: u64,
    pub next_seq: u32,
    pub una_seq: u32,
    pub unsent_bytes: u32,
    pub packet_bytes: u32,
    pub burst_segments: u32,
    pub repair_segments: u32,
}

/// What a measuring algorithm has found: `struct lf_avail`, with which its state begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Avail {
    /// When, on the clock of [`Conn::now_us`] (in the kernel CLOCK_MONOTONIC); 0: nothing yet.
    pub at_us: u64,
    /// Available bandwidth in kbit/s with IP headers: what the connection could have, its own share included.
    pub avail_kbps: u32,
    /// Standard deviation of that.
    pub deviation_kbps: u32,
    /// Capacity of the bottleneck in kbit/s; 0: the estimator does not know.
    pub capacity_kbps: u32,
    /// 0 to 1000.
    pub confidence_permille: u32,
    /// Streams that gave a result.
    pub results: u32,
    /// Streams that gave none.
    pub rejected: u32,
}

impl Avail {
    /// Reads it from the beginning of a state as the kernel keeps it; `None` when too short.
    pub fn read(state: &[u8]) -> Option<Avail> {
        let word = |at: usize| Some(u32::from_ne_bytes(state.get(at..at + 4)?.try_into().ok()?));
        Some(Avail {
            at_us: u64::from_ne_bytes(state.get(..8)?.try_into().ok()?),
            avail_kbps: word(8)?,
            deviation_kbps: word(12)?,
            capacity_kbps: word(16)?,
            confidence_permille: word(20)?,
            results: word(24)?,
            rejected: word(28)?,
        })
    }
}

/// An algorithm's private state of one connection: bytes that only the algorithm understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct State(pub [u64; STATE_BYTES / 8]);

impl Default for State {
    fn default() -> State {
        State([0; STATE_BYTES / 8])
    }
}

impl State {
    /// What a measuring algorithm has found.
    pub fn avail(&self) -> Avail {
        let bytes: [[u8; 8]; 4] = std::array::from_fn(|word| self.0[word].to_ne_bytes());
        Avail::read(bytes.as_flattened()).unwrap_or_default()
    }
}

/// `struct lf_tunable`.
#[repr(C)]
pub struct RawTunable {
    name: *const c_char,
    about: *const c_char,
    pub value: u32,
    pub least: u32,
    pub greatest: u32,
}

impl RawTunable {
    pub fn name(&self) -> &'static str {
        text(self.name)
    }

    pub fn about(&self) -> &'static str {
        text(self.about)
    }
}

/// `struct lf_algorithm`.
#[repr(C)]
pub struct RawAlgorithm {
    name: *const c_char,
    tunables: *const RawTunable,
    tunable_count: u32,
    init: unsafe extern "C" fn(*mut Conn, *mut c_void, *const c_void),
    on_ack: unsafe extern "C" fn(*mut Conn, *mut c_void, *const c_void, *const Ack),
    ssthresh: unsafe extern "C" fn(*mut Conn, *mut c_void, *const c_void) -> u32,
    undo_cwnd: unsafe extern "C" fn(*mut Conn, *mut c_void, *const c_void) -> u32,
    on_rtt_sample: Option<unsafe extern "C" fn(*mut Conn, *mut c_void, *const c_void, u32)>,
    on_restart: Option<unsafe extern "C" fn(*mut Conn, *mut c_void, *const c_void)>,
    on_send: Option<unsafe extern "C" fn(*mut Conn, *mut c_void, *const c_void, *mut Sending) -> u32>,
    on_ack_seen: Option<unsafe extern "C" fn(*mut Conn, *mut c_void, *const c_void, *const Sending)>,
}

// SAFETY: the table and what it points to are constant C data, never written.
unsafe impl Sync for RawAlgorithm {}
// SAFETY: as for RawAlgorithm.
unsafe impl Sync for RawTunable {}

unsafe extern "C" {
    static lf_algorithms: [RawAlgorithm; 0];
    static lf_algorithm_count: u32;
}

/// Every algorithm compiled in.
pub fn algorithms() -> &'static [RawAlgorithm] {
    // SAFETY: `lf_algorithms` is a constant C array of `lf_algorithm_count` entries of this layout.
    unsafe { std::slice::from_raw_parts((&raw const lf_algorithms).cast(), lf_algorithm_count as usize) }
}

fn text(pointer: *const c_char) -> &'static str {
    // SAFETY: names and descriptions are C string literals.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap_or_default()
}

impl RawAlgorithm {
    pub fn name(&self) -> &'static str {
        text(self.name)
    }

    pub fn tunables(&self) -> &'static [RawTunable] {
        // SAFETY: a constant C array of that many entries.
        unsafe { std::slice::from_raw_parts(self.tunables, self.tunable_count as usize) }
    }

    pub fn init(&self, conn: &mut Conn, state: &mut State, tunables: &[u32]) {
        // SAFETY: for all of them: `tunables` are as many as the algorithm's u32 fields, in their order; `State` is
        // LF_LARGE_STATE_BYTES long and aligned to 8; the functions touch nothing else and keep no pointer.
        unsafe { (self.init)(conn, (&raw mut *state).cast(), self.fields(tunables)) }
    }

    pub fn on_ack(&self, conn: &mut Conn, state: &mut State, tunables: &[u32], ack: &Ack) {
        // SAFETY: as for init.
        unsafe { (self.on_ack)(conn, (&raw mut *state).cast(), self.fields(tunables), ack) }
    }

    pub fn ssthresh(&self, conn: &mut Conn, state: &mut State, tunables: &[u32]) -> u32 {
        // SAFETY: as for init.
        unsafe { (self.ssthresh)(conn, (&raw mut *state).cast(), self.fields(tunables)) }
    }

    pub fn undo_cwnd(&self, conn: &mut Conn, state: &mut State, tunables: &[u32]) -> u32 {
        // SAFETY: as for init.
        unsafe { (self.undo_cwnd)(conn, (&raw mut *state).cast(), self.fields(tunables)) }
    }

    pub fn on_rtt_sample(&self, conn: &mut Conn, state: &mut State, tunables: &[u32], rtt_us: u32) {
        if let Some(function) = self.on_rtt_sample {
            // SAFETY: as for init.
            unsafe { function(conn, (&raw mut *state).cast(), self.fields(tunables), rtt_us) }
        }
    }

    pub fn on_restart(&self, conn: &mut Conn, state: &mut State, tunables: &[u32]) {
        if let Some(function) = self.on_restart {
            // SAFETY: as for init.
            unsafe { function(conn, (&raw mut *state).cast(), self.fields(tunables)) }
        }
    }

    pub fn measures(&self) -> bool {
        self.on_send.is_some()
    }

    pub fn on_send(
        &self,
        conn: &mut Conn,
        state: &mut State,
        tunables: &[u32],
        sending: &mut Sending,
    ) -> Option<u32> {
        self.on_send.map(|function| {
            // SAFETY: as for init.
            unsafe { function(conn, (&raw mut *state).cast(), self.fields(tunables), sending) }
        })
    }

    pub fn on_ack_seen(&self, conn: &mut Conn, state: &mut State, tunables: &[u32], sending: &Sending) {
        if let Some(function) = self.on_ack_seen {
            // SAFETY: as for init.
            unsafe { function(conn, (&raw mut *state).cast(), self.fields(tunables), sending) }
        }
    }

    /// The tunables as C reads them.
    ///
    /// # Panics
    /// When there are more or fewer: reading past them would be undefined.
    fn fields(&self, tunables: &[u32]) -> *const c_void {
        assert_eq!(tunables.len(), self.tunable_count as usize, "tunables of another algorithm");
        tunables.as_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RawRecord;
    use std::mem::offset_of;

    #[repr(C)]
    struct Field {
        name: *const c_char,
        offset: u32,
    }

    unsafe extern "C" {
        static lf_conn_fields: [Field; 13];
        static lf_conn_bytes: u32;
        static lf_record_fields: [Field; 11];
        static lf_sending_fields: [Field; 7];
        static lf_avail_fields: [Field; 7];
        static lf_record_bytes: u32;
        fn lf_native_cube_root(x: u64) -> u32;
        fn lf_native_square_root(x: u64) -> u32;
    }

    fn assert_cube_root(x: u64) {
        // SAFETY: a pure function.
        let root = u128::from(unsafe { lf_native_cube_root(x) });
        assert!(root.pow(3) <= u128::from(x) && (root + 1).pow(3) > u128::from(x), "{x}: {root}");
    }

    #[test]
    fn the_cube_root_is_exact_around_every_cube() {
        for root in (1u64..3_000).chain((3_000..2_097_152).step_by(997)).chain([2_097_151]) {
            let cube = root.pow(3);
            [cube - 1, cube, cube + 1].into_iter().for_each(assert_cube_root);
        }
        [0, 1, 7, 8, u64::MAX >> 1].into_iter().for_each(assert_cube_root);
    }

    fn assert_square_root(x: u64) {
        // SAFETY: a pure function.
        let root = u128::from(unsafe { lf_native_square_root(x) });
        assert!(root.pow(2) <= u128::from(x) && (root + 1).pow(2) > u128::from(x), "{x}: {root}");
    }

    #[test]
    fn the_square_root_is_exact_around_every_square() {
        for root in (1u64..3_000).chain((3_000..1 << 31).step_by(999_983)).chain([(1 << 31) - 1]) {
            [root * root - 1, root * root, root * root + 1].into_iter().for_each(assert_square_root);
        }
    }

    proptest::proptest! {
        #[test]
        fn the_square_root_is_exact_anywhere(x in 0u64..1 << 62, shift in 0u32..62) {
            assert_square_root(x >> shift);
        }

        #[test]
        fn the_cube_root_is_exact_anywhere(x in 0u64..1 << 63, shift in 0u32..63) {
            assert_cube_root(x >> shift);
        }
    }

    fn layout(fields: &'static [Field]) -> Vec<(&'static str, usize)> {
        fields.iter().map(|field| (text(field.name), field.offset as usize)).collect()
    }

    macro_rules! mirror {
        ($type:ty: $($field:ident),*) => { vec![$((stringify!($field), offset_of!($type, $field))),*] };
    }

    #[test]
    fn the_connection_has_the_same_layout_in_both_languages() {
        let rust = mirror!(Conn: now_us, cwnd_segments, cwnd_credit_segments, ssthresh_segments,
            cwnd_clamp_segments, prior_cwnd_segments, flight_segments, max_flight_segments, is_cwnd_limited,
            ca_state, mss_bytes, srtt_us, min_rtt_us);
        // SAFETY: constant C data of the declared lengths.
        let (c, bytes) = unsafe { (layout(&lf_conn_fields), lf_conn_bytes) };
        assert_eq!((c, bytes as usize), (rust, size_of::<Conn>()));
        assert_eq!(size_of::<Conn>(), 8 + 12 * 4, "no padding: it is compared as bytes");
    }

    #[test]
    fn a_record_has_the_same_layout_in_both_languages() {
        let rust = mirror!(RawRecord: conn_id, op, result, ack, rtt_us, before, after, sending_before, sending_after,
                state_before, state_after);
        // SAFETY: constant C data of the declared lengths.
        let (c, bytes) = unsafe { (layout(&lf_record_fields), lf_record_bytes) };
        assert_eq!((c, bytes as usize), (rust, size_of::<RawRecord>()));
    }

    #[test]
    fn what_measuring_needs_and_finds_has_the_same_layout_in_both_languages() {
        let sending = mirror!(Sending: pacing_bytes_per_s, next_seq, una_seq, unsent_bytes, packet_bytes,
            burst_segments, repair_segments);
        let avail = mirror!(Avail: at_us, avail_kbps, deviation_kbps, capacity_kbps, confidence_permille,
            results, rejected);
        // SAFETY: constant C data of the declared lengths.
        let found = unsafe { (layout(&lf_sending_fields), layout(&lf_avail_fields)) };
        assert_eq!(found, (sending, avail));
    }

    #[test]
    fn what_was_found_is_read_from_the_beginning_of_the_state() {
        let mut state = State::default();
        state.0[0] = 7;
        state.0[1] = 9 << 32 | 8;
        state.0[3] = 11 << 32;
        let expected = Avail { at_us: 7, avail_kbps: 8, deviation_kbps: 9, rejected: 11, ..Avail::default() };
        assert_eq!(state.avail(), expected);
        assert_eq!(Avail::read(&[0; 31]), None);
    }
}
