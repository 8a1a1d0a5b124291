//! Congestion control of one connection: the algorithm of `cc/` on the connection it sees.

use longfat_cc::{Ack, Algorithm, Avail, Conn, Sending, State, Tunables, WINDOW_MAX};

/// The contract's struct is the connection's own store of cwnd and ssthresh: nothing is copied per call.
#[derive(Debug)]
pub struct Control {
    /// What the algorithm sees and may change.
    pub conn: Conn,
    algorithm: Algorithm,
    tunables: Tunables,
    state: State,
}

impl Control {
    /// A connection begins, with the initial window of RFC 6928.
    pub fn new(tunables: Tunables, mss_bytes: u32) -> Control {
        let algorithm = tunables.algorithm();
        let conn = Conn { mss_bytes, is_cwnd_limited: 0, ..Conn::default() };
        let mut control = Control { conn, algorithm, tunables, state: State::default() };
        algorithm.init(&mut control.conn, &mut control.state, &control.tunables);
        control
    }

    /// Name of the congestion control in the kernel.
    pub fn name(&self) -> String {
        self.algorithm.kernel_name()
    }

    /// Segments were acknowledged and the window may grow.
    pub fn on_ack(&mut self, acked_segments: u32) {
        let ack = Ack { acked_segments };
        self.algorithm.on_ack(&mut self.conn, &mut self.state, &self.tunables, &ack);
    }

    /// A round-trip time was measured.
    pub fn on_rtt_sample(&mut self, rtt_us: u32) {
        self.algorithm.on_rtt_sample(&mut self.conn, &mut self.state, &self.tunables, rtt_us);
    }

    /// A segment is about to be sent while none is in flight.
    pub fn on_restart(&mut self) {
        self.algorithm.on_restart(&mut self.conn, &mut self.state, &self.tunables);
    }

    /// Whether it measures with its own segments, which wants pacing.
    pub fn measures(&self) -> bool {
        self.algorithm.measures()
    }

    /// New segments may be sent; what it wants to be sent at once, if it has a wish.
    pub fn on_send(&mut self, sending: &mut Sending) -> Option<u32> {
        self.algorithm.on_send(&mut self.conn, &mut self.state, &self.tunables, sending)
    }

    /// An acknowledgement arrived.
    pub fn on_ack_seen(&mut self, sending: &Sending) {
        self.algorithm.on_ack_seen(&mut self.conn, &mut self.state, &self.tunables, sending);
    }

    /// What it has found; `None` when it does not measure, or has not yet.
    pub fn avail(&self) -> Option<Avail> {
        self.algorithm.measures().then(|| self.state.avail()).filter(|avail| avail.at_us > 0)
    }

    /// Loss or ECE: sets the new threshold, remembers the window, forgets the credit.
    pub fn reduce(&mut self) {
        self.conn.prior_cwnd_segments = self.conn.cwnd_segments;
        self.conn.cwnd_credit_segments = 0;
        self.conn.ssthresh_segments =
            self.algorithm.ssthresh(&mut self.conn, &mut self.state, &self.tunables);
    }

    /// The loss was none: back to the window before.
    pub fn undo(&mut self) {
        let cwnd = self.algorithm.undo_cwnd(&mut self.conn, &mut self.state, &self.tunables);
        self.set_cwnd(cwnd);
    }

    /// Congestion window.
    pub fn cwnd(&self) -> u32 {
        self.conn.cwnd_segments
    }

    /// Sets it: at least 1.
    pub fn set_cwnd(&mut self, segments: u32) {
        self.conn.cwnd_segments = segments.clamp(1, WINDOW_MAX);
    }

    /// Slow-start threshold; `WINDOW_MAX` before the first loss.
    pub fn ssthresh(&self) -> u32 {
        self.conn.ssthresh_segments
    }
}
