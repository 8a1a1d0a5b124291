//! What a retransmission was, told from outside.
//!
//! The sender's timers are judged by silence (RFC 6298, RFC 8985): a retransmission right after an acknowledgement was
//! caused by it; one after more than a round trip without any was caused by a timer. Of those, the first of the
//! last segment is a tail loss probe, where SACK allows one; of the first unacknowledged octet, a timeout. What is
//! sent again below the highest octet a timeout found outstanding is go-back, however it is paced.

use serde::Serialize;
use std::collections::VecDeque;

/// Retransmissions remembered until they are known to be needed or spurious.
const RECENT: usize = 4096;
/// Recovery episodes kept of one direction; more are counted.
const MAX_EPISODES: usize = 512;
/// Linux's least retransmission timeout, above the RTT.
pub const LEAST_RTO_NS: i64 = 200_000_000;

/// Why something was sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Duplicate or selective acknowledgements, or RACK.
    Fast,
    /// The retransmission timer.
    Timeout,
    /// After a timeout, what it had left to be sent again.
    GoBack,
    /// A tail loss probe.
    TailProbe,
}

/// Kinds of [`Cause`].
pub const CAUSES: usize = 4;

/// RTT smoothed as the sender does (RFC 6298, 2).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Smoothed {
    rtt_ns: f64,
    variance_ns: f64,
}

impl Smoothed {
    /// Takes a sample in.
    #[inline]
    pub fn sample(&mut self, rtt_ns: i64) {
        let rtt = rtt_ns as f64;
        if self.rtt_ns == 0.0 {
            (self.rtt_ns, self.variance_ns) = (rtt, rtt / 2.0);
            return;
        }
        self.variance_ns += 0.25 * ((self.rtt_ns - rtt).abs() - self.variance_ns);
        self.rtt_ns += 0.125 * (rtt - self.rtt_ns);
    }

    /// The smoothed RTT, if there is one.
    #[inline]
    pub fn rtt_ns(&self) -> Option<i64> {
        (self.rtt_ns > 0.0).then_some(self.rtt_ns as i64)
    }

    /// The timeout a Linux sender would use.
    pub fn rto_ns(&self) -> i64 {
        (self.rtt_ns as i64).saturating_add(LEAST_RTO_NS.max((4.0 * self.variance_ns) as i64))
    }
}

/// Something that was sent again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resent {
    /// First octet.
    pub start: u64,
    /// End of the data sent again, as a sequence number.
    pub end: u64,
    /// Segments it was.
    pub segments: u64,
    /// TSval of the segment, if any.
    pub ts_value: Option<u32>,
    /// Cause of the retransmission.
    pub cause: Cause,
    /// Found not to have been needed.
    pub spurious: bool,
    /// A DSACK said so.
    pub duplicated: bool,
}

/// From the first retransmission until everything then outstanding is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Episode {
    /// Nanoseconds since 1970.
    pub start_ns: i64,
    /// Nanoseconds since 1970; of the last event if it never ended.
    pub end_ns: i64,
    /// First octet sent again, relative.
    pub from_byte: u64,
    /// Outstanding when it began.
    pub flight_bytes: u64,
    /// The window then offered.
    pub window_bytes: u64,
    /// The last RTT before.
    pub rtt_us: u64,
    /// Payload sent again.
    pub resent_bytes: u64,
    /// Segments sent again.
    pub resent_segments: u64,
    /// Segments sent again that were found not to have been needed.
    pub spurious_segments: u64,
    /// Timeouts in it.
    pub timeouts: u32,
    /// Timeouts of a SYN, or of its answer.
    #[serde(skip)]
    pub syn_timeouts: u32,
    /// Longest time in which the sender sent nothing.
    pub silence_ns: i64,
    /// When that silence began.
    pub silence_from_ns: i64,
    /// Sequence number that ends it.
    #[serde(skip)]
    pub point: u64,
}

/// All of one direction's retransmissions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recovery {
    /// Segments by [`Cause`].
    pub segments: [u64; CAUSES],
    /// Times the retransmission timer went off.
    pub timeouts: u64,
    /// Retransmitted segments that were not needed: said by DSACK (RFC 2883) or timestamps (RFC 3522).
    pub spurious_segments: u64,
    /// Needless segments that a DSACK told of.
    pub spurious_by_dsack: u64,
    /// Episodes, the first ones.
    pub episodes: Vec<Episode>,
    /// How many there were.
    pub episode_count: u64,
    recent: VecDeque<Resent>,
    /// Greatest end of any of them, so that most acknowledgements need no search.
    resent_end: u64,
    current: Option<Episode>,
    /// Highest octet outstanding at the last timeout.
    pub timeout_point: u64,
    /// A probe was sent and nothing was acknowledged since.
    pub probed: bool,
}

impl Recovery {
    /// Whether a loss is being repaired.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.current.is_some()
    }

    /// The episode that is not over.
    pub fn current(&self) -> Option<&Episode> {
        self.current.as_ref()
    }

    /// Begins an episode unless there is one.
    pub fn begin(&mut self, fresh: Episode) -> &mut Episode {
        self.current.get_or_insert(fresh)
    }

    /// Something was sent again.
    pub fn on_resent(&mut self, resent: Resent) {
        self.segments[resent.cause as usize] += resent.segments;
        match resent.cause {
            Cause::Timeout => self.timeouts += 1,
            Cause::TailProbe => self.probed = true,
            _ => {}
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.resent_end = self.resent_end.max(resent.end);
        self.recent.push_back(resent);
    }

    /// The sender has heard that everything below this was taken.
    #[inline]
    pub fn on_heard(&mut self, ack: u64, now_ns: i64) {
        if self.current.as_ref().is_some_and(|episode| ack >= episode.point) {
            self.close(now_ns);
        }
    }

    /// The acknowledgement now reaches `ack`, from `before`.
    pub fn on_advance(&mut self, before: u64, ack: u64, echo: Option<u32>) {
        self.probed = false;
        self.eifel(before, ack, echo);
        // A receiver's DSACK comes up to a round trip after the acknowledgement: the newest are kept.
        while self.recent.len() > RECENT / 2 && self.recent.front().is_some_and(|r| r.end <= before) {
            self.recent.pop_front();
        }
    }

    /// RFC 3522: the acknowledgement that first covers a retransmission echoes a timestamp older than it.
    fn eifel(&mut self, before: u64, ack: u64, echo: Option<u32>) {
        let Some(echo) = echo.filter(|_| self.resent_end > before) else { return };
        let found = self.recent.iter_mut().rev().find(|r| r.start == before && r.end <= ack && !r.spurious);
        let Some(resent) = found else { return };
        if resent.ts_value.is_some_and(|sent| (echo.wrapping_sub(sent) as i32) < 0) {
            resent.spurious = true;
            let segments = resent.segments;
            self.count_spurious(segments);
        }
    }

    /// RFC 2883: the receiver says it got these octets twice.
    pub fn on_dsack(&mut self, start: u64, end: u64, segments_of: impl Fn(u64) -> u64) {
        let overlapping = |r: &&mut Resent| r.start < end && r.end > start && !r.duplicated;
        let Some(resent) = self.recent.iter_mut().find(overlapping) else { return };
        resent.duplicated = true;
        let known = std::mem::replace(&mut resent.spurious, true);
        let segments = segments_of((resent.end - resent.start).min(end - start)).min(resent.segments);
        self.spurious_by_dsack += segments;
        if !known {
            self.count_spurious(segments);
        }
    }

    fn count_spurious(&mut self, segments: u64) {
        self.spurious_segments += segments;
        if let Some(episode) = self.current.as_mut().or(self.episodes.last_mut()) {
            episode.spurious_segments += segments;
        }
    }

    /// Ends the current episode.
    pub fn close(&mut self, now_ns: i64) {
        if let Some(mut episode) = self.current.take() {
            episode.end_ns = episode.start_ns.max(now_ns);
            self.episode_count += 1;
            if self.episodes.len() < MAX_EPISODES {
                self.episodes.push(episode);
            }
        }
    }
}
