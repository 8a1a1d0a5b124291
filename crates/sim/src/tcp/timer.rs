//! The one timer of a sender: retransmission (RFC 6298), tail loss probe (RFC 8985, section 7), reordering
//! (section 6.3), zero window (RFC 9293, section 3.8.6.1). As in Linux only one of them runs at a time.

use super::{
    output::Outlet,
    rtt::{RTO_MAX_US, RTO_MIN_US},
    send_buffer::Push,
    sender::{CaState, Found, Sender},
};
use crate::timers::NEVER;

/// Least wait of the probe and reordering timers (TCP_TIMEOUT_MIN_US).
const TIMER_MIN_NS: u64 = 2_000_000;

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The timer is off.
    Off,
    /// Retransmission timeout.
    Retransmission,
    /// Tail loss probe.
    LossProbe,
    /// End of the reordering window.
    Reordering,
    /// Zero-window probe.
    ZeroWindow,
}

/// The timer.
#[derive(Debug, Clone, Copy)]
pub struct Timer {
    /// What it is for.
    pub kind: Kind,
    /// When it expires.
    pub at_ns: u64,
}

impl Default for Timer {
    fn default() -> Timer {
        Timer { kind: Kind::Off, at_ns: NEVER }
    }
}

impl Timer {
    /// Starts it anew.
    pub fn set(&mut self, kind: Kind, at_ns: u64) {
        *self = Timer { kind, at_ns };
    }
}

impl Sender {
    /// When the sender has to act without being asked.
    pub fn deadline_ns(&self) -> u64 {
        self.timer.at_ns.min(self.pace_at_ns)
    }

    /// Least wait of the probe and reordering timers, which are the kernel's whatever a run's speed.
    pub(super) fn timer_min_ns(&self) -> u64 {
        TIMER_MIN_NS / u64::from(self.times_slower)
    }

    fn rto_ns(&self) -> u64 {
        self.rtt.rto_us() * 1000
    }

    /// tcp_set_xmit_timer: data was acknowledged.
    pub(super) fn set_timer(&mut self, now_ns: u64) {
        if !self.schedule_probe(now_ns, true) {
            self.rearm_rto(now_ns);
        }
    }

    /// A timeout that was set aside for a shorter timer keeps its own time: a timeout after the head was sent.
    pub(super) fn rearm_rto(&mut self, now_ns: u64) {
        let Some(head) = self.board.head() else {
            self.timer = Timer::default();
            return;
        };
        let at_ns = match self.timer.kind {
            Kind::Reordering | Kind::LossProbe => (head.sent_ns + self.rto_ns()).max(now_ns + 1000),
            _ => now_ns + self.rto_ns(),
        };
        self.timer.set(Kind::Retransmission, at_ns);
    }

    /// The timeout runs from now.
    pub(super) fn restart_rto(&mut self, now_ns: u64) {
        self.timer.set(Kind::Retransmission, now_ns + self.rto_ns());
    }

    /// RFC 8985, section 7.2. Returns whether the probe timer runs.
    pub(super) fn schedule_probe(&mut self, now_ns: u64, advancing: bool) -> bool {
        let Some(head) = self.board.head() else { return false };
        if !self.with_sack || !matches!(self.ca_state, CaState::Open | CaState::Cwr) {
            return false;
        }
        let wait_ns = match self.rtt.srtt_us() {
            0 => 1_000_000_000,
            srtt_us => {
                // A lone segment's acknowledgement may be delayed.
                let slack_ns =
                    if self.board.packets_out() == 1 { RTO_MIN_US * 1000 } else { self.timer_min_ns() };
                u64::from(srtt_us) * 2000 + slack_ns
            }
        };
        let timeout_ns = if advancing { now_ns } else { head.sent_ns } + self.rto_ns();
        let at_ns = now_ns + wait_ns;
        let at_ns = if timeout_ns > now_ns { at_ns.min(timeout_ns) } else { at_ns };
        self.timer.set(Kind::LossProbe, at_ns);
        true
    }

    /// Does what is due.
    pub fn on_timer(&mut self, out: &mut Outlet) {
        let now_ns = out.now_ns();
        if self.pace_at_ns <= now_ns {
            self.pace_at_ns = NEVER;
            self.send_lost(out);
            self.send_new(Push::Whole, out);
        }
        if self.timer.at_ns > now_ns {
            return;
        }
        match self.timer.kind {
            Kind::Off => {}
            Kind::Retransmission => self.on_rto(out),
            Kind::LossProbe => self.send_probe(out),
            Kind::Reordering => self.on_reordering(out),
            Kind::ZeroWindow => self.probe_window(out),
        }
    }

    fn on_rto(&mut self, out: &mut Outlet) {
        let now_ns = out.now_ns();
        if self.board.packets_out() == 0 {
            self.timer = Timer::default();
            return;
        }
        self.enter_loss(now_ns);
        self.timeouts += 1;
        self.timeouts_in_row += 1;
        self.retransmit(self.board.una, out);
        self.rtt.back_off();
        self.restart_rto(now_ns);
    }

    /// A probe: a new segment beyond the window, or the last one again (tcp_send_loss_probe).
    fn send_probe(&mut self, out: &mut Outlet) {
        let now_ns = out.now_ns();
        if self.probe_high.is_none() && self.board.packets_out() > 0 {
            self.probe_repeated = !self.can_send_new();
            if self.probe_repeated {
                self.repeated_probes += 1;
                self.send_again(self.board.next() - 1, out);
            } else {
                self.transmit_next(true, out);
            }
            self.probe_high = Some(self.board.next());
            // A probe is given the time to be answered.
            self.restart_rto(now_ns);
        } else {
            self.rearm_rto(now_ns);
        }
    }

    /// RFC 8985, section 7.4: whether the probe repaired a loss, which is then answered by one reduction.
    pub(super) fn end_probe(&mut self, ack: u64, now_ns: u64, found: &Found) {
        let Some(high) = self.probe_high.filter(|high| ack >= *high) else { return };
        if !self.probe_repeated || found.dsack {
            self.probe_high = None;
        } else if ack > high {
            self.begin_reduction(now_ns);
            self.ca_state = CaState::Cwr;
            self.end_reduction();
            self.keep_open();
        } else if !found.advanced && !found.not_dup && !found.sacked {
            self.probe_high = None;
        }
    }

    /// The reordering window is over (tcp_rack_reo_timeout).
    fn on_reordering(&mut self, out: &mut Outlet) {
        let now_ns = out.now_ns();
        let before = self.board.in_flight();
        self.rack_detect(now_ns);
        if self.board.in_flight() != before {
            self.recover_by_timer(now_ns);
            self.send_lost(out);
            self.send_new(Push::Whole, out);
        }
        if self.timer.kind == Kind::Reordering {
            self.rearm_rto(now_ns);
        }
    }

    /// The window is closed and nothing is outstanding: only a probe learns that it has opened.
    pub(super) fn schedule_window_probe(&mut self, now_ns: u64) {
        if self.board.packets_out() == 0 && self.timer.kind != Kind::ZeroWindow {
            self.window_probes = 0;
            self.timer.set(Kind::ZeroWindow, now_ns + self.rto_ns());
        }
    }

    fn probe_window(&mut self, out: &mut Outlet) {
        if self.can_send_new() || self.unsent_bytes() == 0 {
            self.timer = Timer::default();
            return;
        }
        out.probe();
        // Twice as long each time (tcp_probe0_when). The retransmission timeout stays: nothing was lost.
        self.window_probes += 1;
        let wait_ns = (self.rto_ns() << self.window_probes.min(16)).min(RTO_MAX_US * 1000);
        self.timer.set(Kind::ZeroWindow, out.now_ns() + wait_ns);
    }
}
