//! An algorithm with what TCP does around it: loss recovery reduced to its effect on the window.

use crate::{
    Ack, Algorithm, Conn, State, Tunables, WINDOW_MAX,
    native::{LOSS, OPEN, RECOVERY},
};

/// What the sender measured, handed over before the event it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Time, from any fixed point.
    pub now_us: u64,
    /// Segments in flight.
    pub flight_segments: u32,
    /// Most segments in flight in the last window of sending.
    pub max_flight_segments: u32,
    /// Whether the window, not the application, stopped the last window of sending.
    pub is_cwnd_limited: bool,
    /// Smoothed round-trip time; 0 before the first sample.
    pub srtt_us: u32,
    /// Least round-trip time; `u32::MAX` before the first sample.
    pub min_rtt_us: u32,
}

/// The congestion control of one connection.
///
/// It holds no packets and no timers: a simulator detects losses and timeouts and says so. Recovery is reduced to
/// its outcome, the window at ssthresh (RFC 6582; the packet-by-packet course of RFC 6937 is the sender's).
#[derive(Debug, Clone)]
pub struct Controller {
    tunables: Tunables,
    conn: Conn,
    state: State,
    prior_ssthresh_segments: u32,
}

impl Controller {
    /// A connection begins: the initial window of RFC 6928, in slow start.
    pub fn new(tunables: Tunables) -> Controller {
        let mut controller = Controller {
            tunables,
            conn: Conn::default(),
            state: State::default(),
            prior_ssthresh_segments: WINDOW_MAX,
        };
        controller.algorithm().init(&mut controller.conn, &mut controller.state, &controller.tunables);
        controller
    }

    /// Which algorithm it runs.
    pub fn algorithm(&self) -> Algorithm {
        self.tunables.algorithm()
    }

    /// Congestion window.
    pub fn cwnd_segments(&self) -> u32 {
        self.conn.cwnd_segments
    }

    /// Slow-start threshold; [`WINDOW_MAX`] before the first loss.
    pub fn ssthresh_segments(&self) -> u32 {
        self.conn.ssthresh_segments
    }

    /// Everything the algorithm sees.
    pub fn conn(&self) -> &Conn {
        &self.conn
    }

    /// Starts from another window and threshold than a new connection's: segments, at least 1.
    pub fn set_window(&mut self, cwnd_segments: u32, ssthresh_segments: u32) {
        self.conn.cwnd_segments = cwnd_segments.clamp(1, WINDOW_MAX);
        self.conn.ssthresh_segments = ssthresh_segments.min(WINDOW_MAX);
    }

    /// What the sender sees now.
    pub fn observe(&mut self, seen: &Observation) {
        self.conn.now_us = seen.now_us;
        self.conn.flight_segments = seen.flight_segments;
        self.conn.max_flight_segments = seen.max_flight_segments;
        self.conn.is_cwnd_limited = u32::from(seen.is_cwnd_limited);
        self.conn.srtt_us = seen.srtt_us;
        self.conn.min_rtt_us = seen.min_rtt_us;
    }

    /// Segments were acknowledged outside of loss recovery.
    pub fn on_ack(&mut self, acked_segments: u32) {
        let ack = Ack { acked_segments };
        self.algorithm().on_ack(&mut self.conn, &mut self.state, &self.tunables, &ack);
    }

    /// A round-trip time was measured: the first thing an acknowledgement tells, before [`Controller::on_ack`] or the
    /// loss it shows. Observe first: the time matters.
    pub fn on_rtt_sample(&mut self, rtt_us: u32) {
        self.algorithm().on_rtt_sample(&mut self.conn, &mut self.state, &self.tunables, rtt_us.max(1));
    }

    /// A segment is about to be sent while none is in flight.
    pub fn on_restart(&mut self) {
        self.algorithm().on_restart(&mut self.conn, &mut self.state, &self.tunables);
    }

    /// A loss was detected by duplicate acknowledgements, or the path marked CE: at most once per window.
    pub fn on_loss(&mut self) {
        self.reduce(RECOVERY);
        self.conn.cwnd_segments = self.conn.cwnd_segments.min(self.conn.ssthresh_segments);
    }

    /// Everything outstanding at the loss was acknowledged.
    pub fn on_recovered(&mut self) {
        self.conn.ca_state = OPEN;
    }

    /// The retransmission timer expired. The threshold falls once, however often the timer backs off (RFC 5681, 3.1).
    pub fn on_rto(&mut self) {
        if self.conn.ca_state != LOSS {
            self.reduce(LOSS);
        }
        self.conn.cwnd_segments = 1;
    }

    /// The last reduction was for nothing: DSACK, Eifel or F-RTO showed that nothing was lost.
    pub fn undo(&mut self) {
        let window = self.algorithm().undo_cwnd(&mut self.conn, &mut self.state, &self.tunables);
        self.conn.cwnd_segments = window.clamp(1, WINDOW_MAX);
        self.conn.ssthresh_segments = self.conn.ssthresh_segments.max(self.prior_ssthresh_segments);
        self.conn.ca_state = OPEN;
    }

    fn reduce(&mut self, ca_state: u32) {
        self.prior_ssthresh_segments = self.conn.ssthresh_segments;
        self.conn.prior_cwnd_segments = self.conn.cwnd_segments;
        self.conn.ssthresh_segments =
            self.algorithm().ssthresh(&mut self.conn, &mut self.state, &self.tunables);
        self.conn.cwnd_credit_segments = 0;
        self.conn.ca_state = ca_state;
    }
}
