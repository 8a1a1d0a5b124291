//! Why a window is what it is: what held a connection, told from the whole watch.
//!
//! [`crate::divide`] says which window or clock held each span. Which cause lies behind a congestion window is told
//! here: by how much the round trip exceeds its least (a queue), where losses lie (a policer, a path that is full, or
//! chance), what was sent again without need (reordering), and whether the window grew. Thresholds stand beside their
//! rule.

use crate::{
    cause::{Basis, Cause},
    divide::{self, HOLDS, Hold, Look, Spent, Talk, divide},
    price::{self, Price},
    words::{duration, rate, size},
};
use longfat_schema::units::Rate;
use serde::Serialize;

/// What is known beside the kernel's facts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Assumed {
    /// Rate of the path's slowest link, IP packets counted, where somebody knows it.
    pub path_rate: Option<Rate>,
}

/// A cause and its share of the time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Share {
    /// Which.
    pub cause: Cause,
    /// How long.
    pub time_us: u64,
    /// Of the whole watch, 0 to 1.
    pub share: f64,
    /// Whether the kernel says so.
    pub basis: Basis,
    /// The figures behind it.
    pub evidence: String,
    /// The rate without it; absent for what cannot be mended, or said.
    pub without: Option<Price>,
}

/// Figures of a watch, all of this end.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Payload that the other end acknowledged, or sent where this end only receives, per second.
    pub rate_bps: f64,
    /// Least round trip the kernel knows of.
    pub least_rtt_us: u32,
    /// Median of the smoothed round trip while data was outstanding.
    pub rtt_us: u32,
    /// Segments sent again, of those sent.
    pub resent_share: f64,
    /// Segments sent again.
    pub resent_segments: u64,
    /// Of those had arrived.
    pub needless_segments: u64,
    /// Retransmission timeouts; absent where the kernel does not count them.
    pub timeouts: Option<u64>,
    /// Largest window the receiver offered.
    pub window_bytes: u32,
    /// Congestion window at the end.
    pub cwnd_segments: u32,
    /// Payload of a full segment.
    pub mss_bytes: u32,
    /// Greatest delivery rate that the program did not limit.
    pub best_bps: f64,
    /// Send buffer, the kernel's bookkeeping included.
    pub sndbuf_bytes: u32,
    /// Receive buffer, the same.
    pub rcvbuf_bytes: u32,
}

/// What was found of a connection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Of the watch.
    pub elapsed_us: u64,
    /// The causes, the longest first; their times sum up to the watch.
    pub causes: Vec<Share>,
    /// What it is judged by.
    pub figures: Figures,
}

impl Verdict {
    /// The cause that took most of the time.
    pub fn first(&self) -> Option<&Share> {
        self.causes.first()
    }
}

/// Judges the looks of one watch, the oldest first. `None` where no time passed.
pub fn judge(looks: &[Look], assumed: &Assumed) -> Option<Verdict> {
    let watch = Watch::of(looks)?;
    let mut found: Vec<Share> = Vec::new();
    for (hold, time_us) in HELD.iter().map(|hold| (*hold, watch.spent[*hold as usize])) {
        if time_us > 0 {
            add(&mut found, &watch, &watch.cause_of(hold), time_us);
        }
    }
    found.sort_by_key(|share| std::cmp::Reverse(share.time_us));
    price::add(&mut found, &watch.figures, assumed);
    Some(Verdict { elapsed_us: watch.elapsed_us, causes: found, figures: watch.figures })
}

/// Why a connection does not send faster, as far as one look can tell.
pub fn at_once(look: &Look) -> Cause {
    let info = &look.info;
    let talk = match (info.sent_bytes > 0, info.received_bytes > 0) {
        (true, true) => Talk::Both,
        (false, true) => Talk::Receives,
        _ => Talk::Sends,
    };
    match divide::at(look, talk) {
        Hold::Program => Cause::ProgramIdle,
        Hold::Answer => Cause::AnswerAwaited,
        Hold::Receiving => Cause::OtherEndSends,
        Hold::Nagle => Cause::Nagle,
        Hold::Window if info.options & HAS_SCALE == 0 => Cause::WindowScaling,
        Hold::Window => Cause::ReceiveWindow,
        Hold::Buffer => Cause::SendBuffer,
        Hold::SlowStart => Cause::SlowStart,
        Hold::Timeout => Cause::Timeouts,
        Hold::Pacing => Cause::Pacing,
        Hold::Host => Cause::Host,
        Hold::Syn if info.total_retrans_segments > 0 => Cause::LostSyns,
        Hold::Syn => Cause::SlowStart,
        // Which cause lies behind a congestion window takes a watch to tell.
        Hold::Cwnd | Hold::Repair | Hold::Unknown => Cause::Unknown,
    }
}

/// Who speaks over a watch, and which cause lies behind each [`Hold`], by its number: what a course is made of. `None`
/// where no time passed.
pub(crate) fn held(looks: &[Look]) -> Option<(Talk, [Cause; HOLDS])> {
    let watch = Watch::of(looks)?;
    let mut causes = [Cause::Unknown; HOLDS];
    for hold in HELD.into_iter().filter(|hold| watch.spent[*hold as usize] > 0) {
        causes[hold as usize] = watch.cause_of(hold).cause;
    }
    Some((watch.talk, causes))
}

/// Several holds may have one cause.
fn add(found: &mut Vec<Share>, watch: &Watch, why: &Why, time_us: u64) {
    let whole = watch.elapsed_us as f64;
    if let Some(share) = found.iter_mut().find(|share| share.cause == why.cause) {
        share.time_us += time_us;
        share.share = share.time_us as f64 / whole;
        return;
    }
    found.push(Share {
        cause: why.cause,
        time_us,
        share: time_us as f64 / whole,
        basis: why.basis,
        evidence: why.evidence.clone(),
        without: None,
    });
}

/// In the order of their causes' precedence.
const HELD: [Hold; HOLDS] = [
    Hold::Program,
    Hold::Answer,
    Hold::Receiving,
    Hold::Nagle,
    Hold::Window,
    Hold::Buffer,
    Hold::SlowStart,
    Hold::Cwnd,
    Hold::Repair,
    Hold::Timeout,
    Hold::Pacing,
    Hold::Host,
    Hold::Syn,
    Hold::Unknown,
];

/// A cause, and why it is said.
struct Why {
    cause: Cause,
    basis: Basis,
    evidence: String,
}

fn kernel(cause: Cause, evidence: String) -> Why {
    Why { cause, basis: Basis::Kernel, evidence }
}

fn inferred(cause: Cause, evidence: String) -> Why {
    Why { cause, basis: Basis::Inference, evidence }
}

/// Losses that are repaired together.
struct Episode {
    time_us: u64,
    /// Acknowledged since the watch began.
    acked_bytes: u64,
    cwnd_segments: u32,
    segments: u64,
}

/// A whole watch, prepared.
struct Watch<'a> {
    looks: &'a [Look],
    elapsed_us: u64,
    spent: Spent,
    talk: Talk,
    episodes: Vec<Episode>,
    figures: Figures,
}

fn median<T: Copy + Ord>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn ratio<T>(of: &[T], over: &[T], get: impl Fn(&T) -> f64) -> f64 {
    let mean = |points: &[T]| mean(&points.iter().map(&get).collect::<Vec<_>>());
    mean(of) / mean(over).max(1e-9)
}

/// Standard deviation over mean.
fn scatter(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len().max(1) as f64).sqrt() / mean.max(1e-9)
}

impl<'a> Watch<'a> {
    fn of(looks: &'a [Look]) -> Option<Watch<'a>> {
        let (first, last) = (looks.first()?, looks.last()?);
        let elapsed_us = last.time_us.checked_sub(first.time_us).filter(|elapsed| *elapsed > 0)?;
        let talk = Talk::of(&first.info, &last.info);
        let mut spent = [0; HOLDS];
        for pair in looks.windows(2) {
            let part = divide(&pair[0], &pair[1], talk);
            spent.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        let figures = figures(looks, elapsed_us, talk);
        Some(Watch { looks, elapsed_us, spent, talk, episodes: episodes(looks), figures })
    }

    fn last(&self) -> &Look {
        &self.looks[self.looks.len() - 1]
    }

    /// Looks at which the congestion window was what held it.
    fn bound(&self) -> impl Iterator<Item = &Look> {
        let is_bound =
            |look: &&Look| matches!(divide::at(look, self.talk), Hold::Cwnd | Hold::SlowStart | Hold::Repair);
        self.looks.iter().filter(is_bound)
    }

    fn cause_of(&self, hold: Hold) -> Why {
        match hold {
            Hold::Program => kernel(Cause::ProgramIdle, self.of_program()),
            Hold::Answer => inferred(Cause::AnswerAwaited, self.of_answers()),
            Hold::Receiving => self.of_receiving(),
            Hold::Nagle => inferred(
                Cause::Nagle,
                "less than a segment waits for an acknowledgement, both windows have room".into(),
            ),
            Hold::Window => self.of_window(),
            Hold::Buffer => {
                kernel(Cause::SendBuffer, format!("send buffer of {}, full", size(self.figures.sndbuf_bytes)))
            }
            Hold::SlowStart | Hold::Cwnd | Hold::Repair => self.of_cwnd(hold),
            Hold::Timeout => self.of_timeouts(),
            Hold::Pacing => kernel(
                Cause::Pacing,
                format!("pacing rate {}", rate(self.last().info.pacing_rate_bytes_per_s as f64 * 8.0)),
            ),
            Hold::Host => inferred(
                Cause::Host,
                format!("{} of what is out is still in this host", size(self.last().memory.below_tcp_bytes)),
            ),
            Hold::Syn => self.of_handshake(),
            Hold::Unknown => {
                inferred(Cause::Unknown, "bytes wait, and both windows seem to have room".into())
            }
        }
    }

    fn of_handshake(&self) -> Why {
        let connecting = self.looks.iter().filter(|look| divide::at(look, self.talk) == Hold::Syn);
        match connecting.map(|look| look.info.total_retrans_segments).max() {
            Some(again) if again > 0 => kernel(Cause::LostSyns, format!("{again} SYNs sent again")),
            _ => kernel(Cause::SlowStart, "the handshake takes a round trip".into()),
        }
    }

    fn of_program(&self) -> String {
        let idle = 1.0 - self.busy_us() as f64 / self.elapsed_us as f64;
        format!("nothing is outstanding for {:.0} % of the time", 100.0 * idle.max(0.0))
    }

    fn busy_us(&self) -> u64 {
        let (first, last) = (&self.looks[0].info, &self.last().info);
        last.busy_us.saturating_sub(first.busy_us).min(self.elapsed_us)
    }

    fn of_answers(&self) -> String {
        let (first, last) = (&self.looks[0].info, &self.last().info);
        let [out, back] = [
            last.data_segs_out.saturating_sub(first.data_segs_out),
            last.data_segs_in.saturating_sub(first.data_segs_in),
        ];
        let least = duration(self.figures.least_rtt_us);
        format!("{out} segments out and {back} back; each turn takes {least} at the least")
    }

    /// What can be said where the other end sends.
    fn of_receiving(&self) -> Why {
        let unread = median(self.looks.iter().map(|look| look.receive_queue_bytes).collect()).unwrap_or(0);
        let last = self.last();
        // What is read at once leaves the queue empty most of the time; half of a buffer is bookkeeping.
        if unread > 0 && u64::from(unread) * 4 >= u64::from(last.memory.rcvbuf_bytes) {
            let evidence = format!(
                "{} wait to be read here, receive buffer {}",
                size(unread),
                size(last.memory.rcvbuf_bytes)
            );
            return kernel(Cause::SlowReader, evidence);
        }
        let arrived_late = last.info.rcv_ooopack.saturating_sub(self.looks[0].info.rcv_ooopack);
        let late = if arrived_late > 0 {
            format!("; {arrived_late} segments came out of order: losses or reordering")
        } else {
            String::new()
        };
        inferred(Cause::OtherEndSends, format!("ask at the other end{late}"))
    }

    fn of_timeouts(&self) -> Why {
        let info = &self.last().info;
        if self.passes_no_full_segment() {
            let evidence = format!(
                "segments of {} bytes are sent again and again, the path MTU is taken to be {}",
                info.snd_mss_bytes, info.pmtu_bytes
            );
            return inferred(Cause::PacketSize, evidence);
        }
        let count = self.figures.timeouts.map_or(String::new(), |count| format!("{count} timeouts, "));
        kernel(Cause::Timeouts, format!("{count}retransmission timeout {}", duration(info.rto_us)))
    }

    /// Nothing is acknowledged any more though the peer is there.
    fn passes_no_full_segment(&self) -> bool {
        let (first, last) = (&self.looks[0].info, &self.last().info);
        let stuck = last.acked_bytes == first.acked_bytes && last.unacked_segments > 0 && last.backoff >= 1;
        stuck && last.segs_in > first.segs_in
    }

    /// The receiver's window stays the same where its buffer is small, and comes and goes where its program is slow.
    fn of_window(&self) -> Why {
        let info = &self.last().info;
        if info.options & HAS_SCALE == 0 {
            return kernel(
                Cause::WindowScaling,
                format!("window {}, no scale agreed on", size(self.figures.window_bytes)),
            );
        }
        let offered: Vec<u32> = self.looks.iter().map(|look| look.info.snd_wnd_bytes).collect();
        let (least, most) = (offered.iter().min().copied().unwrap_or(0), self.figures.window_bytes);
        let evidence = format!("window {} to {}", size(least), size(most));
        let is_steady =
            u64::from(least) * 10 >= u64::from(most) * STEADY_TENTHS && least > info.snd_mss_bytes;
        if is_steady && self.was_wider() {
            let held = self.last().info.snd_cwnd_segments;
            let what = format!("steady, but {held} segments were under way before: its buffer has filled");
            return inferred(Cause::SlowReader, format!("{evidence}, {what}"));
        }
        if is_steady {
            let what = "steady: its buffer is small, or its program reads slowly and evenly";
            return kernel(Cause::ReceiveWindow, format!("{evidence}, {what}"));
        }
        kernel(Cause::SlowReader, evidence)
    }

    /// A congestion window grows only while it is used, to twice what is in flight at the most (RFC 7661, 9438): one
    /// that is far larger than what the receiver's window lets pass is of a time when that was wider.
    fn was_wider(&self) -> bool {
        let info = &self.last().info;
        let window = f64::from(self.figures.window_bytes) / f64::from(info.snd_mss_bytes.max(1));
        f64::from(info.snd_cwnd_segments) > WIDER * window + FIRST_WINDOW
    }
}

/// A congestion window that is this many times what the receiver offers, and the first one (RFC 6928) beyond.
const WIDER: f64 = 2.2;
const FIRST_WINDOW: f64 = 10.0;

/// TCPI_OPT_WSCALE of the kernel.
const HAS_SCALE: u8 = 4;
/// A window that does not fall below these tenths of its largest stays the same.
const STEADY_TENTHS: u64 = 7;

/// What was sent again although it had arrived, from which on reordering is what it is.
const NEEDLESS: f64 = 0.25;
const NEEDLESS_SEGMENTS: u64 = 3;
const NEEDLESS_SHARE: f64 = 0.001;
/// Queueing over the least round trip: a standing queue, and any at all.
const STANDING: f64 = 0.25;
const STANDING_US: f64 = 5_000.0;
const QUEUED: f64 = 0.04;
const QUEUED_US: f64 = 1_000.0;
const SOME_QUEUE: f64 = 0.01;
const SOME_QUEUE_US: f64 = 300.0;
/// Mean over upper decile of what is delivered where a loss or two leave no gap.
const HARDLY_FALLS: f64 = 0.93;
/// Losses come at the same window where the path is full: standard deviation over mean.
const SAME_WINDOW: f64 = 0.15;
/// Losses from which on their place says something.
const FEW_EPISODES: usize = 3;
/// A policer: losses off one line of bytes over time, times the root of their number; and of how many it can be said,
/// with the part of a window that each takes.
const POLICED_SCATTER: f64 = 0.03;
const POLICED_EPISODES: [(usize, f64); 2] = [(4, 0.1), (3, 0.3)];
/// Looks at a full window from which on it can be said to stay the same.
const FEW_WINDOWS: usize = 4;
/// What a window that leaves at once may wait for itself.
const OWN_BURST: f64 = 0.15;
const OWN_BURST_US: f64 = 2_000.0;
/// A full path carries about as much all the time: mean over upper decile of what is delivered.
const STEADY_RATE: f64 = 0.85;
/// And where its window falls below the pipe after each loss, so much.
const NEARLY_STEADY_RATE: f64 = 0.9;
/// A window that changes by no more than this part, or a segment, stays about the same.
const STILL: f64 = 0.005;
/// Where the path is full, what is delivered does not go with the window: its change in the window's upper third
/// against the lower, as a power of the window's. Windows that differ by less do not tell.
const FULL_POWER: f64 = 0.4;
const WINDOWS_DIFFER: f64 = 1.15;

impl Watch<'_> {
    fn of_cwnd(&self, hold: Hold) -> Why {
        let queue_us = self.queue_us(hold);
        let (least, figures) = (f64::from(self.figures.least_rtt_us), &self.figures);
        let queue =
            || format!("round trip {}, least {}", duration(figures.rtt_us), duration(figures.least_rtt_us));
        let (losses, is_full) = (self.losses(), self.is_full());
        if self.last().clamp_segments.is_some_and(|clamp| self.last().info.snd_cwnd_segments >= clamp) {
            return self.of_clamp();
        }
        if figures.resent_segments >= NEEDLESS_SEGMENTS
            && figures.resent_share >= NEEDLESS_SHARE
            && self.needless() >= NEEDLESS
            && self.saw_reordering()
        {
            return kernel(
                Cause::Reordering,
                format!(
                    "{} of {} segments sent again had arrived (DSACK)",
                    figures.needless_segments, figures.resent_segments
                ),
            );
        }
        if hold == Hold::SlowStart && self.restarted() {
            return inferred(
                Cause::RestartAfterIdle,
                format!("window of {} segments, ssthresh {}", figures.cwnd_segments, self.ssthresh()),
            );
        }
        if self.is_still(queue_us) && self.episodes.is_empty() {
            return self.of_clamp();
        }
        if hold == Hold::SlowStart && self.episodes.is_empty() && self.doubles() {
            return self.of_slow_start();
        }
        if queue_us >= (STANDING * least).max(STANDING_US) && is_full {
            return inferred(Cause::StandingQueue, queue());
        }
        if hold == Hold::SlowStart && self.episodes.is_empty() {
            return self.of_slow_start();
        }
        if queue_us >= (QUEUED * least).max(QUEUED_US) && is_full {
            return inferred(Cause::PathFull, format!("{}{losses}", queue() + "; "));
        }
        if self.is_policed(queue_us) {
            return inferred(Cause::Policer, format!("{losses} at {}; {}", rate(figures.rate_bps), queue()));
        }
        match self.episodes.len() {
            0 => self.of_cwnd_without_losses(),
            few if few < FEW_EPISODES && self.fills_path() == Some(true) => {
                inferred(Cause::PathFull, format!("what arrives does not go with the window; {losses}"))
            }
            few if few < FEW_EPISODES && self.hardly_falls(queue_us) => {
                inferred(Cause::PathFull, format!("losses cost it next to nothing; {losses}; {}", queue()))
            }
            few if few < FEW_EPISODES => inferred(Cause::AfterLoss, format!("{losses}; {}", self.growth())),
            _ if self.windows_at_losses() <= SAME_WINDOW => self.of_same_window(is_full, &losses),
            _ => inferred(Cause::RandomLoss, format!("{losses}; {}", queue())),
        }
    }

    /// Something waits, and what is delivered stays near the best although the window falls: a short queue that is kept
    /// busy (CoDel).
    fn hardly_falls(&self, queue_us: f64) -> bool {
        let least = f64::from(self.figures.least_rtt_us);
        queue_us >= (SOME_QUEUE * least).max(SOME_QUEUE_US) && self.is_rate_steady(HARDLY_FALLS)
    }

    /// Losses at the same window are of a queue that is full: a short one leaves the path idle behind each.
    fn of_same_window(&self, is_full: bool, losses: &str) -> Why {
        let cause = if is_full { Cause::PathFull } else { Cause::AfterLoss };
        inferred(cause, format!("{losses}, always at about {:.0} segments", mean(&self.cwnds_at_losses())))
    }

    fn of_cwnd_without_losses(&self) -> Why {
        let last = &self.last().info;
        if self.last().paces {
            let held = rate(last.pacing_rate_bytes_per_s as f64 * 8.0);
            return inferred(
                Cause::PathFull,
                format!("its congestion control finds a rate of {held} and keeps to it"),
            );
        }
        if last.total_retrans_segments == 0 {
            return inferred(
                Cause::SlowStartLeftEarly,
                format!("ssthresh {}, nothing was ever sent again; {}", self.ssthresh(), self.growth()),
            );
        }
        inferred(
            Cause::AfterLoss,
            format!("{} segments were sent again before; {}", last.total_retrans_segments, self.growth()),
        )
    }

    /// Whether what is delivered while the window is full does not go with how large it is; `None` where it hardly
    /// changes.
    fn fills_path(&self) -> Option<bool> {
        let mut points: Vec<(u32, u64)> = self
            .bound()
            .map(|look| (look.info.snd_cwnd_segments, look.info.delivery_rate_bytes_per_s))
            .filter(|(_, rate)| *rate > 0)
            .collect();
        points.sort_unstable();
        let third = points.len() / 3;
        let (low, high) = (&points[..third], &points[points.len() - third..]);
        let windows = ratio(high, low, |point| f64::from(point.0));
        if third == 0 || windows < WINDOWS_DIFFER || self.last().paces {
            return None;
        }
        Some(ratio(high, low, |point| point.1 as f64).ln() < FULL_POWER * windows.ln())
    }

    fn is_full(&self) -> bool {
        match self.fills_path() {
            Some(fills) => fills || self.is_rate_steady(NEARLY_STEADY_RATE),
            None => self.is_rate_steady(STEADY_RATE),
        }
    }

    /// What is delivered while the window is full is about as much all the time: such a part of the best.
    fn is_rate_steady(&self, part: f64) -> bool {
        let is_bound =
            |look: &Look| matches!(divide::at(look, self.talk), Hold::Cwnd | Hold::SlowStart | Hold::Repair);
        let between = self.looks.windows(2).filter(|pair| is_bound(&pair[0]) && is_bound(&pair[1]));
        let grown = |pair: &[Look]| {
            let bytes = pair[1].info.acked_bytes.saturating_sub(pair[0].info.acked_bytes);
            (bytes, pair[1].time_us.saturating_sub(pair[0].time_us))
        };
        let (bytes, time_us) = between
            .map(grown)
            .fold((0_u64, 0_u64), |(b, t), (bytes, us)| (b.saturating_add(bytes), t.saturating_add(us)));
        let mut rates: Vec<u64> = self.bound().map(|look| look.info.delivery_rate_bytes_per_s).collect();
        rates.sort_unstable();
        let best = rates.get(rates.len() * 9 / 10).copied().unwrap_or(0) as f64;
        bytes as f64 * 1e6 >= part * best * time_us as f64
    }

    fn of_slow_start(&self) -> Why {
        let evidence =
            format!("window of {} segments, ssthresh {}", self.figures.cwnd_segments, self.ssthresh());
        kernel(Cause::SlowStart, evidence)
    }

    /// The window has grown as slow start has it grow.
    fn doubles(&self) -> bool {
        let mut starting = self.bound().filter(|look| divide::at(look, self.talk) == Hold::SlowStart);
        let first = starting.next().map_or(u32::MAX, |look| look.info.snd_cwnd_segments);
        starting.last().is_some_and(|last| u64::from(last.info.snd_cwnd_segments) * 2 >= u64::from(first) * 3)
    }

    /// No more waits than a window that leaves at once.
    fn is_queueless(&self, queue_us: f64) -> bool {
        queue_us < (OWN_BURST * f64::from(self.figures.least_rtt_us)).max(OWN_BURST_US)
    }

    /// The window is full and stays the same; of one that a rate decides it says nothing.
    fn is_still(&self, queue_us: f64) -> bool {
        let mut windows: Vec<u32> = self.bound().map(|look| look.info.snd_cwnd_segments).collect();
        windows.sort_unstable();
        // A tenth at each end may be of a moment between.
        let tenth = windows.len() / 10;
        let (Some(least), Some(most)) = (windows.get(tenth), windows.iter().rev().nth(tenth)) else {
            return false;
        };
        let (least, most) = (f64::from(*least), f64::from(*most));
        let is_about_the_same = most - least <= (STILL * most).max(1.0) && self.is_queueless(queue_us);
        !self.last().paces && windows.len() >= FEW_WINDOWS && (most == least || is_about_the_same)
    }

    fn of_clamp(&self) -> Why {
        let (window, clamp) = (self.last().info.snd_cwnd_segments, self.last().clamp_segments);
        let evidence = format!("window of {window} segments, which does not grow");
        let is_told = clamp.is_some_and(|clamp| window >= clamp);
        if is_told { kernel(Cause::CwndClamp, evidence) } else { inferred(Cause::CwndClamp, evidence) }
    }

    /// Median of what the round trip exceeds its least by while that is what holds it; slow start is judged by itself.
    fn queue_us(&self, hold: Hold) -> f64 {
        let is_meant =
            |look: &&Look| (divide::at(look, self.talk) == Hold::SlowStart) == (hold == Hold::SlowStart);
        let over = |look: &Look| look.info.srtt_us.saturating_sub(self.figures.least_rtt_us);
        median(self.bound().filter(is_meant).map(over).collect()).map_or(0.0, f64::from)
    }

    fn needless(&self) -> f64 {
        self.figures.needless_segments as f64 / self.figures.resent_segments.max(1) as f64
    }

    fn saw_reordering(&self) -> bool {
        self.last().info.reord_seen > self.looks[0].info.reord_seen
    }

    fn ssthresh(&self) -> String {
        self.last().info.ssthresh_segments().map_or("unlimited".into(), |segments| segments.to_string())
    }

    fn growth(&self) -> String {
        let windows: Vec<&Look> = self.bound().collect();
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else {
            return "window not seen full".into();
        };
        let seconds = last.time_us.saturating_sub(first.time_us) as f64 / 1e6;
        format!(
            "window {} to {} segments in {seconds:.1} s",
            first.info.snd_cwnd_segments, last.info.snd_cwnd_segments
        )
    }

    fn losses(&self) -> String {
        let (count, figures) = (self.episodes.len(), &self.figures);
        if count == 0 {
            return "no losses".into();
        }
        format!(
            "{count} times lost, {} segments sent again ({:.2} %)",
            figures.resent_segments,
            100.0 * figures.resent_share
        )
    }

    /// The window fell while nothing was sent and nothing was lost.
    fn restarted(&self) -> bool {
        self.looks.windows(2).any(|pair| {
            let (a, b) = (&pair[0].info, &pair[1].info);
            let nothing_lost =
                a.total_retrans_segments == b.total_retrans_segments && a.ca_state == 0 && b.ca_state == 0;
            let busy = b.busy_us.saturating_sub(a.busy_us);
            let was_idle = busy * 10 < (pair[1].time_us - pair[0].time_us) * 9;
            nothing_lost && was_idle && b.snd_cwnd_segments < a.snd_cwnd_segments
        })
    }

    fn cwnds_at_losses(&self) -> Vec<f64> {
        self.episodes.iter().map(|episode| episode.cwnd_segments.into()).collect()
    }

    fn windows_at_losses(&self) -> f64 {
        scatter(&self.cwnds_at_losses())
    }

    /// Flach 2016: losses lie on one line of bytes over time, take many packets at once, and no queue stands.
    fn is_policed(&self, queue_us: f64) -> bool {
        let (Some(first), Some(last)) = (self.episodes.first(), self.episodes.last()) else { return false };
        let time = last.time_us.saturating_sub(first.time_us) as f64;
        let bytes = last.acked_bytes.saturating_sub(first.acked_bytes) as f64;
        if time <= 0.0 || bytes <= 0.0 {
            return false;
        }
        let off: Vec<f64> = self
            .episodes
            .iter()
            .map(|episode| {
                // Figures of a file may go backwards.
                episode.time_us.saturating_sub(first.time_us) as f64 / time
                    - episode.acked_bytes.saturating_sub(first.acked_bytes) as f64 / bytes
            })
            .collect();
        let center = mean(&off);
        let scatter = off.iter().map(|one| (one - center).powi(2)).sum::<f64>().sqrt();
        let parts: Vec<f64> =
            self.episodes.iter().map(|e| e.segments as f64 / f64::from(e.cwnd_segments.max(1))).collect();
        let takes_much =
            |(least, part): &(usize, f64)| self.episodes.len() >= *least && mean(&parts) >= *part;
        self.is_queueless(queue_us) && scatter <= POLICED_SCATTER && POLICED_EPISODES.iter().any(takes_much)
    }
}

fn episodes(looks: &[Look]) -> Vec<Episode> {
    let mut found: Vec<Episode> = Vec::new();
    let mut going_on = false;
    let start = looks[0].info.acked_bytes;
    for pair in looks.windows(2) {
        let (a, b) = (&pair[0].info, &pair[1].info);
        let segments = u64::from(b.total_retrans_segments.saturating_sub(a.total_retrans_segments));
        match found.last_mut() {
            _ if segments == 0 => {}
            Some(episode) if going_on => episode.segments += segments,
            _ => found.push(Episode {
                time_us: pair[0].time_us,
                acked_bytes: a.acked_bytes.saturating_sub(start),
                cwnd_segments: a.snd_cwnd_segments,
                segments,
            }),
        }
        going_on = segments > 0 && b.ca_state >= 2;
    }
    found
}

fn figures(looks: &[Look], elapsed_us: u64, talk: Talk) -> Figures {
    let (first, last) = (&looks[0].info, &looks[looks.len() - 1].info);
    let memory = &looks[looks.len() - 1].memory;
    let grown = |get: fn(&longfat_host::socket::TcpInfo) -> u64| get(last).saturating_sub(get(first));
    let carried = match talk {
        Talk::Receives => grown(|info| info.received_bytes),
        _ => grown(|info| info.acked_bytes),
    };
    let resent_segments = grown(|info| info.total_retrans_segments.into());
    let least = looks.iter().filter_map(|look| look.info.least_rtt_us()).min();
    let busy = looks.iter().filter(|look| look.info.unacked_segments > 0);
    let delivered = looks.iter().filter(|look| !look.info.is_app_limited());
    Figures {
        rate_bps: carried as f64 * 8e6 / elapsed_us as f64,
        least_rtt_us: least.unwrap_or(last.srtt_us),
        rtt_us: median(busy.map(|look| look.info.srtt_us).collect()).unwrap_or(last.srtt_us),
        resent_share: resent_segments as f64 / grown(|info| info.data_segs_out.into()).max(1) as f64,
        resent_segments,
        needless_segments: grown(|info| info.dsack_dups.into()),
        timeouts: last.timeouts().zip(first.timeouts()).map(|(b, a)| b.saturating_sub(a).into()),
        window_bytes: looks.iter().map(|look| look.info.snd_wnd_bytes).max().unwrap_or(0),
        cwnd_segments: last.snd_cwnd_segments,
        mss_bytes: last.snd_mss_bytes,
        best_bps: delivered.map(|look| look.info.delivery_rate_bytes_per_s as f64 * 8.0).fold(0.0, f64::max),
        sndbuf_bytes: memory.sndbuf_bytes,
        rcvbuf_bytes: memory.rcvbuf_bytes,
    }
}
