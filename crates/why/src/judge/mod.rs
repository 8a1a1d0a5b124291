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
    divide::{self, HOLDS, Hold, Look, Spent, Talk, divide},
    price,
    verdict::{Assumed, Figures, Share, Verdict},
    words::{rate, size},
};
use figures::figures;
use longfat_schema::units::Rate;
use losses::{Episode, episodes};
use window::HAS_SCALE;

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
        for pair in looks.windows(2) {
            let part = divide(&pair[0], &pair[1], talk);
            spent.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        let figures = figures(looks, elapsed_us, talk);
        let (episodes, path_rate) = (episodes(looks), assumed.path_rate);
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
        let held = size(self.last().memory.below_tcp_bytes);
        inferred(Cause::Host, format!("{held} of what is out is still in this host"))
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
