//! How a receive buffer grows with what its connection brings, and the window with it: dynamic right-sizing (Fisk and
//! Feng 2001) as Linux has it (tcp_rcv_space_adjust, tcp_rcvbuf_grow, tcp_grow_window of 6.18).
//!
//! The buffer follows what the application read in the last round trip: it is room for twice as much, and for six times
//! while that doubles. Nothing is read behind a hole, so a sender that repairs its losses for long meets the window of
//! the round trip before them.

/// Window of a connection's first segments: SYNs tell it unscaled.
const FIRST_WINDOW_BYTES: u64 = 65_535;
/// Segments that count as read in the round trip before the first (TCP_INIT_CWND).
const FIRST_SEGMENTS: u64 = 10;

/// What a buffer is sized by. All bytes are payload.
#[derive(Debug)]
pub struct Autotune {
    most_bytes: u64,
    mss_bytes: u64,
    /// Most that is advertised: grows by two segments with each that arrives (rcv_ssthresh).
    threshold_bytes: u64,
    /// Most that was read in a round trip (rcvq_space.space).
    read_bytes: u64,
    /// Where and when this round trip began.
    from: (u64, u64),
    rtt_ns: u64,
}

impl Autotune {
    /// Autotuning of a buffer that begins with `first_bytes` and has `most_bytes` at most.
    pub fn new(first_bytes: u64, most_bytes: u64, mss_bytes: u64) -> Autotune {
        let threshold_bytes = first_bytes.min(FIRST_WINDOW_BYTES);
        let read_bytes = threshold_bytes.min(FIRST_SEGMENTS * mss_bytes).max(1);
        Autotune { most_bytes, mss_bytes, threshold_bytes, read_bytes, from: (0, 0), rtt_ns: 0 }
    }

    /// Most that is advertised.
    pub fn threshold_bytes(&self) -> u64 {
        self.threshold_bytes
    }

    /// A full segment came that echoes a time of this end. Only an empty queue tells of a longer round trip: the
    /// sender may have waited for the window.
    pub fn sample(&mut self, rtt_ns: u64, queue_is_empty: bool) {
        if self.rtt_ns == 0 || rtt_ns < self.rtt_ns {
            self.rtt_ns = rtt_ns;
        } else if queue_is_empty {
            self.rtt_ns = self.rtt_ns - self.rtt_ns / 8 + rtt_ns / 8;
        }
    }

    /// A segment came: `room_bytes` are free in the buffer. Whether the window opened.
    pub fn arrived(&mut self, payload_bytes: u64, room_bytes: u64) -> bool {
        let room_bytes = room_bytes.saturating_sub(self.threshold_bytes);
        self.threshold_bytes += room_bytes.min(2 * payload_bytes.max(self.mss_bytes));
        room_bytes > 0
    }

    /// The application has read up to a position of the stream, and so many bytes wait: the size of the buffer, if it
    /// is to grow.
    pub fn read(&mut self, position_bytes: u64, unread_bytes: u64, now_ns: u64) -> Option<u64> {
        let (from_ns, from_bytes) = self.from;
        if self.rtt_ns == 0 || now_ns - from_ns < self.rtt_ns {
            return None;
        }
        self.from = (now_ns, position_bytes);
        let read_bytes = (position_bytes - from_bytes).saturating_sub(unread_bytes);
        if read_bytes <= self.read_bytes {
            return None;
        }
        let before_bytes = std::mem::replace(&mut self.read_bytes, read_bytes);
        let twice = 2 * read_bytes;
        let growth = u128::from(twice) * u128::from(read_bytes - before_bytes) / u128::from(before_bytes);
        let wanted = u128::from(twice) + 2 * growth;
        Some(wanted.min(u128::from(self.most_bytes)) as u64)
    }

    /// A segment came behind a hole, and the last that is held ends so many bytes after the first that is missing: the
    /// size of a buffer with room for them.
    pub fn held(&self, span_bytes: u64) -> u64 {
        (2 * self.read_bytes + span_bytes).min(self.most_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 40_000_000;

    fn autotune() -> Autotune {
        let mut autotune = Autotune::new(65_536, 16_000_000, 1448);
        autotune.sample(RTT_NS, true);
        autotune
    }

    #[test]
    fn a_buffer_is_six_times_what_is_read_while_that_doubles_and_twice_when_it_does_not() {
        let mut autotune = autotune();
        assert_eq!(autotune.read(14_480, 0, RTT_NS), None, "no more than at first");
        assert_eq!(autotune.read(3 * 14_480, 0, 2 * RTT_NS - 1), None, "the round trip is not over");
        assert_eq!(autotune.read(3 * 14_480, 0, 2 * RTT_NS), Some(6 * 2 * 14_480));
        assert_eq!(autotune.read(3 * 14_480 + 28_960, 0, 3 * RTT_NS), None);
        assert_eq!(autotune.read(3 * 14_480 + 28_960 + 31_856, 0, 4 * RTT_NS), Some(2 * 31_856 + 2 * 6_371));
    }

    #[test]
    fn what_waits_unread_does_not_count_and_no_buffer_grows_beyond_its_bound() {
        let mut autotune = autotune();
        assert_eq!(autotune.read(20_000, 6_000, RTT_NS), None);
        assert_eq!(autotune.read(100_000_000, 0, 2 * RTT_NS), Some(16_000_000));
        assert_eq!(autotune.held(u64::from(u32::MAX)), 16_000_000);
    }

    #[test]
    fn the_window_opens_by_two_segments_with_each_that_comes_where_there_is_room() {
        let mut autotune = autotune();
        assert_eq!(autotune.threshold_bytes(), 65_535);
        autotune.arrived(1448, 1_000_000);
        assert_eq!(autotune.threshold_bytes(), 65_535 + 2 * 1448);
        autotune.arrived(1448, 65_535 + 2 * 1448 + 10);
        autotune.arrived(1448, 0);
        assert_eq!(autotune.threshold_bytes(), 65_535 + 2 * 1448 + 10);
    }

    #[test]
    fn the_round_trip_is_the_shortest_and_grows_only_while_nothing_waits() {
        let mut autotune = autotune();
        autotune.sample(2 * RTT_NS, false);
        assert_eq!(autotune.rtt_ns, RTT_NS);
        autotune.sample(2 * RTT_NS, true);
        assert_eq!(autotune.rtt_ns, RTT_NS + RTT_NS / 8);
        autotune.sample(RTT_NS / 2, false);
        assert_eq!(autotune.rtt_ns, RTT_NS / 2);
    }
}
