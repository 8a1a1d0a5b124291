//! Deterministic simulation of one flow in congestion avoidance: exactly one loss every 1/p segments.

use longfat_cc::{Controller, Observation, Tunables};

/// Mean window over round trips of `cycles` sawteeth, after as many to settle. A segment sent at window w takes 1/w of
/// a round trip.
pub fn mean_window(mut flow: Flow, p: f64, cycles: u32) -> f64 {
    let segments_per_loss = (1.0 / p).round() as u64;
    let mut began = 0.0;
    for cycle in 0..2 * cycles {
        if cycle == cycles {
            began = flow.now_us;
        }
        (0..segments_per_loss).for_each(|_| flow.ack());
        flow.lose();
    }
    let round_trips = (flow.now_us - began) / f64::from(flow.rtt_us);
    (segments_per_loss * u64::from(cycles)) as f64 / round_trips
}

/// A flow whose window is full and whose round-trip time never changes.
#[derive(Clone)]
pub struct Flow {
    /// The congestion control.
    pub controller: Controller,
    /// Time since the flow began.
    pub now_us: f64,
    rtt_us: u32,
}

impl Flow {
    /// In congestion avoidance at `window`, if at least 2.
    pub fn new(tunables: Tunables, rtt_us: u32, window: u32) -> Flow {
        let mut controller = Controller::new(tunables);
        controller.set_window(window, 2);
        Flow { controller, now_us: f64::from(rtt_us), rtt_us }
    }

    /// One segment is acknowledged.
    pub fn ack(&mut self) {
        self.now_us += f64::from(self.rtt_us) / f64::from(self.controller.cwnd_segments());
        self.observe(true);
        self.controller.on_ack(1);
    }

    /// A whole window is acknowledged at once.
    pub fn round_trip(&mut self) {
        self.now_us += f64::from(self.rtt_us);
        self.observe(true);
        self.controller.on_ack(self.controller.cwnd_segments());
    }

    /// One segment is acknowledged `later_us`, and the window was not full.
    pub fn ack_unused(&mut self, later_us: f64) {
        self.now_us += later_us;
        self.observe(false);
        self.controller.on_ack(1);
    }

    /// Sending goes on after a pause.
    pub fn restart(&mut self) {
        self.observe(true);
        self.controller.on_restart();
    }

    fn observe(&mut self, is_cwnd_limited: bool) {
        let cwnd = self.controller.cwnd_segments();
        self.controller.observe(&Observation {
            now_us: self.now_us as u64,
            flight_segments: cwnd,
            max_flight_segments: cwnd,
            is_cwnd_limited,
            srtt_us: self.rtt_us,
            min_rtt_us: self.rtt_us,
        });
    }

    /// One segment is lost, and repaired at once.
    pub fn lose(&mut self) {
        self.controller.on_loss();
        self.controller.on_recovered();
    }
}
