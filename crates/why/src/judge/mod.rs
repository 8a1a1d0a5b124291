//! Why a window is what it is: what held a connection, told from the whole watch.
//!
//! [`crate::divide`] says which window or clock held each span. Which cause lies behind it is told here, a family of
//! causes a file, with its thresholds beside its rules:
//!
//! - `program`: the programs at both ends.
//! - `window`: the receiver's window.
//! - `congestion`: the congestion window: the order of its rules, slow start, clamps, restarts.
//! - `path`: queues, and whether the path is full.
//! - `losses`: policers, chance, reordering.
//! - `silence`: SYNs, timeouts, packets that do not pass.
//! - `figures`: the figures of a watch.

mod congestion;
mod figures;
mod losses;
mod path;
mod program;
mod silence;
mod window;

use crate::{
    cause::{Basis, Cause},
    divide::{self, HOLDS, Hold, Look, Spent, Talk, spans},
    price,
    verdict::{Assumed, Figures, Share, Verdict},
    words::{rate, size},
};
use figures::figures;
use longfat_host::socket::OPTION_WINDOW_SCALE;
use longfat_schema::units::Rate;
use losses::{Episode, episodes};

/// Judges the looks of one watch, the oldest first. `None` where no time passed.
pub fn judge(looks: &[Look], assumed: &Assumed) -> Option<Verdict> {
    let watch = Watch::of(looks, assumed)?;
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

/// Without a scale a window ends at 64 KiB. One that never comes near that is held small by something else.
pub(crate) const NEARLY_UNSCALED_BYTES: u64 = 48 << 10;

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
        Hold::Window
            if info.options & OPTION_WINDOW_SCALE == 0
                && u64::from(info.snd_wnd_bytes) >= NEARLY_UNSCALED_BYTES =>
        {
            Cause::WindowScaling
        }
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

/// Talk over a watch, and the cause behind each [`Hold`], by its number: what a course is made of. `None`
/// where no time passed.
pub(crate) fn held(looks: &[Look]) -> Option<(Talk, [Cause; HOLDS])> {
    let watch = Watch::of(looks, &Assumed::default())?;
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

/// A whole watch, prepared.
struct Watch<'a> {
    looks: &'a [Look],
    elapsed_us: u64,
    spent: Spent,
    talk: Talk,
    episodes: Vec<Episode>,
    figures: Figures,
    path_rate: Option<Rate>,
}

impl<'a> Watch<'a> {
    fn of(looks: &'a [Look], assumed: &Assumed) -> Option<Watch<'a>> {
        let (first, last) = (looks.first()?, looks.last()?);
        let elapsed_us = last.time_us.checked_sub(first.time_us).filter(|elapsed| *elapsed > 0)?;
        let talk = Talk::of(&first.info, &last.info);
        let mut spent = [0; HOLDS];
        for part in spans(looks, talk) {
            spent.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        let (episodes, path_rate) = (episodes(looks), assumed.path_rate);
        let figures = figures(looks, elapsed_us, talk, episodes.len());
        Some(Watch { looks, elapsed_us, spent, talk, episodes, figures, path_rate })
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

    fn of_below_tcp(&self) -> Why {
        let held = self.looks.iter().map(|look| look.memory.below_tcp_bytes).max().unwrap_or(0);
        inferred(Cause::Host, format!("up to {} of what is out is still in this host", size(held)))
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
            Hold::Host => self.of_below_tcp(),
            Hold::Syn => self.of_handshake(),
            Hold::Unknown => {
                inferred(Cause::Unknown, "bytes wait, and both windows seem to have room".into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::divide::Memory;
    use longfat_host::socket::TcpInfo;

    fn first(looks: &[Look], path_rate: Option<Rate>) -> Share {
        let verdict = judge(looks, &Assumed { path_rate }).unwrap();
        verdict.first().unwrap().clone()
    }

    /// A sender whose receiver's window is full all the time, and does not change.
    fn behind_a_window(cwnd_segments: u32, paces: bool) -> Vec<Look> {
        let look = |number: u64| {
            let us = number * 100_000;
            let info = TcpInfo {
                state: 1,
                options: OPTION_WINDOW_SCALE,
                busy_us: us,
                rwnd_limited_us: us,
                acked_bytes: number * 95_000,
                sent_bytes: number * 95_000,
                snd_mss_bytes: 1448,
                snd_wnd_bytes: 38_000,
                snd_cwnd_segments: cwnd_segments,
                unacked_segments: 26,
                notsent_bytes: 100_000,
                srtt_us: 40_000,
                min_rtt_us: 40_000,
                ..TcpInfo::default()
            };
            Look { time_us: us, info, paces, ..Look::default() }
        };
        (0..20).map(look).collect()
    }

    #[test]
    fn a_congestion_window_tells_of_a_wider_receive_window_unless_a_model_sets_it() {
        assert_eq!(first(&behind_a_window(70, false), None).cause, Cause::SlowReader);
        assert_eq!(first(&behind_a_window(70, true), None).cause, Cause::ReceiveWindow);
        assert_eq!(first(&behind_a_window(30, false), None).cause, Cause::ReceiveWindow);
    }

    #[test]
    fn a_window_without_a_scale_is_to_blame_where_it_comes_near_what_it_could_be_and_a_small_one_is_not() {
        let cause = |window_bytes: u32| {
            let mut looks = behind_a_window(60, false);
            for look in &mut looks {
                (look.info.options, look.info.snd_wnd_bytes) = (0, window_bytes);
                look.info.unacked_segments = window_bytes / 1448;
            }
            (first(&looks, None).cause, at_once(&looks[19]))
        };
        assert_eq!(cause(65_535), (Cause::WindowScaling, Cause::WindowScaling));
        assert_eq!(cause(8_192), (Cause::SlowReader, Cause::ReceiveWindow));
    }

    #[test]
    fn looks_of_a_file_whose_times_go_backwards_are_judged() {
        let look = |time_us: u64, segs_in: u32| {
            let info = TcpInfo {
                state: 1,
                ca_state: 4,
                backoff: 4,
                unacked_segments: 1,
                retransmits: 4,
                segs_in,
                busy_us: time_us,
                snd_mss_bytes: 1448,
                ..TcpInfo::default()
            };
            Look { time_us, info, ..Look::default() }
        };
        let looks = [look(0, 1), look(100_000, 1), look(50_000, 0), look(40_000, 0)];
        assert!(judge(&looks, &Assumed { path_rate: None }).is_some());
    }

    #[test]
    fn a_receiver_that_knows_the_paths_rate_knows_a_full_path() {
        let look = |number: u64| {
            let info = TcpInfo {
                state: 1,
                received_bytes: number * 240_000,
                snd_mss_bytes: 1448,
                ..TcpInfo::default()
            };
            Look { time_us: number * 100_000, info, ..Look::default() }
        };
        let looks: Vec<Look> = (0..20).map(look).collect();
        let found = first(&looks, Some(Rate(20_000_000)));
        assert_eq!(
            (found.cause, found.evidence.as_str()),
            (Cause::PathFull, "it carries 19.2 Mbit/s of 20Mbit")
        );
        assert_eq!(first(&looks, Some(Rate(50_000_000))).cause, Cause::OtherEndSends);
        assert_eq!(first(&looks, None).cause, Cause::OtherEndSends);
    }

    #[test]
    fn a_receiver_whose_program_is_behind_all_the_time_reads_slowly_also_where_its_buffer_is_not_full() {
        let cause = |unread_bytes: u32, empty_one_in: u64, path_rate| {
            let look = |number: u64| {
                let info = TcpInfo {
                    state: 1,
                    received_bytes: number * 240_000,
                    snd_mss_bytes: 1448,
                    min_rtt_us: 40_000,
                    ..TcpInfo::default()
                };
                let receive_queue_bytes = if number.is_multiple_of(empty_one_in) { 0 } else { unread_bytes };
                let memory = Memory { rcvbuf_bytes: 6 << 20, ..Memory::default() };
                Look { time_us: number * 100_000, info, receive_queue_bytes, memory, ..Look::default() }
            };
            let looks: Vec<Look> = (1..=40).map(look).collect();
            first(&looks, path_rate).cause
        };
        // Three round trips of 40 ms, at 2.4 MB/s.
        assert_eq!(cause(290_000, 20, None), Cause::SlowReader);
        assert_eq!(cause(280_000, 20, None), Cause::OtherEndSends);
        assert_eq!(cause(290_000, 5, None), Cause::OtherEndSends, "it reads all of it now and then");
        assert_eq!(cause(290_000, 20, Some(Rate(20_000_000))), Cause::PathFull);
    }

    #[test]
    fn full_segments_that_are_sent_in_vain_where_small_ones_were_acknowledged_are_too_large_for_the_path() {
        let cause = |acked_bytes: u64, delivered_segments: u32, out_bytes: u64| {
            let look = |number: u64| {
                let info = TcpInfo {
                    state: 1,
                    ca_state: 4,
                    backoff: 4,
                    retransmits: 4,
                    unacked_segments: 10,
                    snd_mss_bytes: 1448,
                    busy_us: number * 100_000,
                    sent_bytes: acked_bytes + out_bytes + 4 * 1448,
                    retrans_bytes: 4 * 1448,
                    acked_bytes,
                    delivered_segments,
                    ..TcpInfo::default()
                };
                Look { time_us: number * 100_000, info, ..Look::default() }
            };
            first(&(0..40).map(look).collect::<Vec<_>>(), None).cause
        };
        assert_eq!(cause(1, 1, 14_480), Cause::PacketSize, "the handshake alone passed");
        assert_eq!(cause(3_000, 8, 14_480), Cause::PacketSize);
        assert_eq!(cause(1 << 20, 725, 14_480), Cause::NoAnswer);
        assert_eq!(cause(3_000, 8, 1_000), Cause::NoAnswer, "small segments are out");
    }

    #[test]
    fn a_loss_far_below_the_rate_that_the_path_is_known_to_have_does_not_come_from_a_full_path() {
        let look = |number: u64| {
            let (srtt_us, cwnd) =
                if number < 2 { (215_000, 300) } else { (200_000, 150 + number as u32 / 8) };
            let info = TcpInfo {
                state: 1,
                busy_us: number * 100_000,
                acked_bytes: number * 160_000,
                sent_bytes: number * 160_000,
                snd_mss_bytes: 1448,
                snd_wnd_bytes: 8 << 20,
                snd_cwnd_segments: cwnd,
                unacked_segments: cwnd,
                snd_ssthresh_segments: 100,
                notsent_bytes: 100_000,
                srtt_us,
                min_rtt_us: 200_000,
                delivery_rate_bytes_per_s: if number < 2 { 2_000_000 } else { 1_600_000 },
                total_retrans_segments: if number < 2 { 0 } else { 3 },
                ..TcpInfo::default()
            };
            Look { time_us: number * 100_000, info, ..Look::default() }
        };
        let looks: Vec<Look> = (0..100).map(look).collect();
        assert_eq!(first(&looks, None).cause, Cause::PathFull);
        assert_eq!(first(&looks, Some(Rate(18_000_000))).cause, Cause::PathFull);
        assert_eq!(first(&looks, Some(Rate(100_000_000))).cause, Cause::AfterLoss);
    }
}
