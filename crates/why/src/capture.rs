//! Causes from a capture: what limited each direction, and what the findings of `analyze` say of why.

use crate::{
    cause::{Basis, Cause},
    course::Stretch,
    judge::NEARLY_UNSCALED_BYTES,
    price,
    verdict::{Assumed, Figures, Share, Verdict},
};
use longfat_analyze::{
    findings::{Finding, Kind},
    flow::series::Limit,
    report::{DirectionReport, FlowReport},
};

/// One direction of a flow, judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Direction {
    /// `address:port` of the sender.
    pub from: String,
    /// Address of the receiver.
    pub to: String,
    /// What was found.
    pub verdict: Verdict,
    /// Course of the direction, where points for figures were kept ([`longfat_analyze::Settings::detailed`]). A stretch
    /// has the cause that took most of it, so that the times differ a little from the verdict's.
    pub course: Vec<Stretch>,
}

/// Payload below which a direction is not worth a word.
const WORTH_BYTES: u64 = 10_000;

/// The directions of a flow that carry something, and that the capture tells enough of.
pub fn of_flow(flow: &FlowReport, assumed: &Assumed) -> Vec<Direction> {
    let is_told = |direction: &&DirectionReport| {
        direction.missing.is_none()
            && direction.counts.unique_bytes >= WORTH_BYTES
            && direction.active_s > 0.0
    };
    flow.directions.iter().filter(is_told).map(|direction| of_direction(flow, direction, assumed)).collect()
}

/// Findings of `analyze` as entries of the catalogue.
pub fn cause_of(kind: Kind) -> Option<Cause> {
    Some(match kind {
        Kind::WindowLimited => Cause::ReceiveWindow,
        Kind::ReceiverStalls | Kind::SillyWindow => Cause::SlowReader,
        Kind::LfpSyndrome | Kind::Timeouts => Cause::Timeouts,
        Kind::ConnectionDied => Cause::NoAnswer,
        Kind::Bufferbloat => Cause::StandingQueue,
        Kind::AckCompression | Kind::ReceiverTicks => Cause::Acknowledgements,
        Kind::Policer => Cause::Policer,
        Kind::MtuTrouble => Cause::PacketSize,
        Kind::SenderIdle => Cause::ProgramIdle,
        Kind::PathChange => Cause::PathChanged,
        Kind::SpuriousRetransmissions => Cause::Reordering,
        Kind::Losses | Kind::SackMissing => Cause::AfterLoss,
        Kind::LostSyns => Cause::LostSyns,
        Kind::DelayedAckNagle => Cause::Nagle,
        Kind::EcnMarks => Cause::PathFull,
        Kind::SenderTicks
        | Kind::CaptureIncomplete
        | Kind::Offloads
        | Kind::InjectedReset
        | Kind::WrongChecksums
        | Kind::EcnStripped => return None,
    })
}

fn of_direction(flow: &FlowReport, direction: &DirectionReport, assumed: &Assumed) -> Direction {
    let elapsed_us = (direction.active_s * 1e6) as u64;
    let found: Vec<&Finding> =
        flow.findings.iter().filter(|finding| finding.from == direction.from).collect();
    let limits = &direction.limits;
    let held = [
        (limits.application, of_application(flow, direction, &found)),
        (limits.window, of_window(flow, direction, &found)),
        (limits.congestion, of_congestion(&found)),
        (limits.recovery, of_recovery(&found)),
    ];
    let course = course(direction, held.each_ref().map(|(_, (cause, _))| *cause));
    let mut causes = divided(elapsed_us, held);
    let figures = figures(direction);
    price::add(&mut causes, &figures, assumed);
    Direction {
        from: direction.from.clone(),
        to: direction.to.clone(),
        verdict: Verdict { elapsed_us, causes, figures },
        course,
    }
}

/// Bin by bin. `causes` are those behind the limits: application, window, congestion, recovery.
fn course(direction: &DirectionReport, causes: [Cause; 4]) -> Vec<Stretch> {
    let Some(series) = &direction.series else { return Vec::new() };
    let cause_of = |limit: Option<Limit>| match limit {
        Some(Limit::Application) => causes[0],
        Some(Limit::Window) => causes[1],
        Some(Limit::Congestion) => causes[2],
        Some(Limit::Recovery) => causes[3],
        None => Cause::Unknown,
    };
    let time_us = |bin: usize| ((series.start_s + bin as f64 * series.bin_s).max(0.0) * 1e6).round() as u64;
    let stretch = |(bin, limit): (usize, &Option<Limit>)| {
        let (from_us, to_us) = (time_us(bin), time_us(bin + 1));
        Stretch {
            from_us,
            to_us,
            causes: vec![(cause_of(*limit), to_us - from_us)],
            rate_bps: series.rate_bps.get(bin).copied().unwrap_or(0.0),
            rtt_us: series.rtt_least_ms.get(bin).copied().flatten().map(|ms| ms * 1e3),
            cwnd_bytes: None,
            window_bytes: series.window_bytes.get(bin).copied().flatten(),
            flight_bytes: series.flight_bytes.get(bin).copied().unwrap_or(0),
        }
    };
    series.limit.iter().enumerate().map(stretch).collect()
}

/// Shares of one are times that sum up to the whole; what the shares leave is unknown.
fn divided(elapsed_us: u64, held: [(f64, (Cause, String)); 4]) -> Vec<Share> {
    let mut causes: Vec<Share> = Vec::new();
    let mut left = elapsed_us;
    let unknown = (1.0, (Cause::Unknown, "the capture does not tell".to_owned()));
    for (part, (cause, evidence)) in held.into_iter().chain([unknown]) {
        let time_us = ((part * elapsed_us as f64) as u64).min(left);
        left -= time_us;
        match causes.iter_mut().find(|share| share.cause == cause) {
            Some(share) => share.time_us += time_us,
            None if time_us == 0 => {}
            None => causes.push(Share {
                cause,
                time_us,
                share: 0.0,
                basis: Basis::Capture,
                evidence,
                without: None,
            }),
        }
    }
    causes.iter_mut().for_each(|share| share.share = share.time_us as f64 / elapsed_us.max(1) as f64);
    causes.sort_by_key(|share| std::cmp::Reverse(share.time_us));
    causes
}

/// The first finding of these kinds, as its cause with its evidence.
fn first(found: &[&Finding], kinds: &[Kind]) -> Option<(Cause, String)> {
    let finding = kinds.iter().find_map(|kind| found.iter().find(|finding| finding.kind == *kind))?;
    Some((cause_of(finding.kind)?, finding.evidence.clone()))
}

fn of_application(flow: &FlowReport, direction: &DirectionReport, found: &[&Finding]) -> (Cause, String) {
    if let Some(nagle) = first(found, &[Kind::DelayedAckNagle]) {
        return nagle;
    }
    let back: u64 = flow
        .directions
        .iter()
        .filter(|other| other.from != direction.from)
        .map(|other| other.counts.unique_bytes)
        .sum();
    // As of living connections: what comes back in plenty is answers, where it comes before what is sent.
    let answers = direction.counts.answering_sends >= direction.counts.unasked_sends;
    if answers && back * 100 > direction.counts.unique_bytes {
        return (Cause::AnswerAwaited, format!("both ends send, {back} bytes come back"));
    }
    (Cause::ProgramIdle, "nothing is sent although both windows have room".to_owned())
}

/// Part of the time without room for which the window is shut where the program does not read.
const CLOSED: f64 = 0.2;

fn of_window(flow: &FlowReport, direction: &DirectionReport, found: &[&Finding]) -> (Cause, String) {
    let fills = direction.most_window_bytes.is_some_and(|most| most >= NEARLY_UNSCALED_BYTES);
    if flow.handshake.window_scaling == Some(false) && fills {
        return (Cause::WindowScaling, "the SYNs agreed on no scale".to_owned());
    }
    // A small window closes now and then, too: it is the reader's doing where it is closed for a good part of the time.
    let is_closed = direction.zero_window_s >= CLOSED * direction.limits.window * direction.active_s;
    let stalls: &[Kind] = if is_closed { &[Kind::ReceiverStalls, Kind::SillyWindow] } else { &[] };
    let told = first(found, stalls).or_else(|| first(found, &[Kind::WindowLimited]));
    told.unwrap_or((Cause::ReceiveWindow, "the window is full".to_owned()))
}

fn of_congestion(found: &[&Finding]) -> (Cause, String) {
    let kinds = [
        Kind::Policer,
        Kind::SpuriousRetransmissions,
        Kind::Bufferbloat,
        Kind::EcnMarks,
        Kind::Losses,
        Kind::LfpSyndrome,
        Kind::SackMissing,
        Kind::PathChange,
        Kind::AckCompression,
        Kind::ReceiverTicks,
    ];
    first(found, &kinds).unwrap_or((Cause::Unknown, "the congestion window or the send buffer".to_owned()))
}

fn of_recovery(found: &[&Finding]) -> (Cause, String) {
    let kinds = [
        Kind::MtuTrouble,
        Kind::LfpSyndrome,
        Kind::ConnectionDied,
        Kind::Timeouts,
        Kind::Policer,
        Kind::SpuriousRetransmissions,
        Kind::Bufferbloat,
        Kind::Losses,
        Kind::SackMissing,
    ];
    first(found, &kinds).unwrap_or((Cause::AfterLoss, "losses are repaired".to_owned()))
}

fn figures(direction: &DirectionReport) -> Figures {
    let us = |value: Option<f64>| value.map_or(0, |us| us as u32);
    let resent_segments = direction.counts.resent_segments;
    Figures {
        rate_bps: direction.throughput_bps.unwrap_or(0.0),
        least_rtt_us: us(direction.least_rtt_us),
        rtt_us: us(direction.rtt.map(|rtt| rtt.median_us)),
        resent_share: direction.retransmissions,
        resent_segments,
        needless_segments: direction.spurious_segments,
        timeouts: Some(direction.timeouts),
        window_bytes: direction.most_window_bytes.map_or(0, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
        mss_bytes: direction.largest_payload_bytes.min(65_000),
        ..Figures::default()
    }
}
