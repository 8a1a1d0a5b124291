//! The C side: mirrors of the contract's structs, and the only unsafe code of this crate.

use crate::algorithm::Tunables;
use std::ffi::{CStr, c_char, c_void};

/// Room for an algorithm's private state (LF_STATE_BYTES).
pub const STATE_BYTES: usize = 104;
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

/// An algorithm's private state of one connection: bytes that only the algorithm understands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct State(pub [u64; STATE_BYTES / 8]);

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

    pub fn init(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables) {
        // SAFETY: for all six: `Tunables` made for this algorithm holds its u32 fields in order; `State` is
        // LF_STATE_BYTES long and aligned to 8; the functions touch nothing else and keep no pointer.
        unsafe { (self.init)(conn, (&raw mut *state).cast(), self.fields(tunables)) }
    }

    pub fn on_ack(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables, ack: &Ack) {
        // SAFETY: as for init.
        unsafe { (self.on_ack)(conn, (&raw mut *state).cast(), self.fields(tunables), ack) }
    }

    pub fn ssthresh(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables) -> u32 {
        // SAFETY: as for init.
        unsafe { (self.ssthresh)(conn, (&raw mut *state).cast(), self.fields(tunables)) }
    }

    pub fn undo_cwnd(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables) -> u32 {
        // SAFETY: as for init.
        unsafe { (self.undo_cwnd)(conn, (&raw mut *state).cast(), self.fields(tunables)) }
    }

    pub fn on_rtt_sample(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables, rtt_us: u32) {
        if let Some(function) = self.on_rtt_sample {
            // SAFETY: as for init.
            unsafe { function(conn, (&raw mut *state).cast(), self.fields(tunables), rtt_us) }
        }
    }

    pub fn on_restart(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables) {
        if let Some(function) = self.on_restart {
            // SAFETY: as for init.
            unsafe { function(conn, (&raw mut *state).cast(), self.fields(tunables)) }
        }
    }

    /// The tunables as C reads them.
    ///
    /// # Panics
    /// When they were made for another algorithm: reading past them would be undefined.
    fn fields(&self, tunables: &Tunables) -> *const c_void {
        assert_eq!(tunables.algorithm().name(), self.name(), "tunables of another algorithm");
        tunables.values().as_ptr().cast()
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
        static lf_record_fields: [Field; 9];
        static lf_record_bytes: u32;
        fn lf_native_cube_root(x: u64) -> u32;
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

    proptest::proptest! {
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
        let rust =
            mirror!(RawRecord: conn_id, op, result, ack, rtt_us, before, after, state_before, state_after);
        // SAFETY: constant C data of the declared lengths.
        let (c, bytes) = unsafe { (layout(&lf_record_fields), lf_record_bytes) };
        assert_eq!((c, bytes as usize), (rust, size_of::<RawRecord>()));
    }
}
