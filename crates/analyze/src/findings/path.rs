//! What something between the ends does: SYNs that are lost, resets that neither end sent, ECN.

use super::{Finding, Kind, basis::Basis};
use crate::{
    clock::seconds,
    flow::{
        connection::{Connection, Handshake},
        half::{Half, Reset},
    },
    words::duration,
};

fn finding(
    connection: &Connection,
    end: usize,
    kind: Kind,
    at_s: f64,
    cost_s: f64,
    what: &str,
    evidence: String,
) -> Finding {
    Finding { kind, from: connection.key.end(end), what: what.to_owned(), evidence, at_s, cost_s }
}

/// Options that an end's first SYN had, and the last one, sent again, has not.
fn left_out(half: &Half) -> Vec<&'static str> {
    let (Some(first), Some(last)) = (half.first_offer, half.offer.filter(|last| !last.is_cut)) else {
        return Vec::new();
    };
    let had = [
        (first.mss_bytes.is_some() && last.mss_bytes.is_none(), "MSS"),
        (first.window_scale.is_some() && last.window_scale.is_none(), "window scaling"),
        (first.sack && !last.sack, "SACK"),
        (first.timestamps && !last.timestamps, "timestamps"),
        (first.fast_open && !last.fast_open, "Fast Open"),
        (first.ecn_flags != 0 && last.ecn_flags == 0, "ECN"),
    ];
    had.into_iter().filter(|(is_left_out, _)| *is_left_out).map(|(_, name)| name).collect()
}

/// SYNs, or their answers, that had to be sent again.
pub fn lost_syns(connection: &Connection, epoch_ns: i64) -> Option<Finding> {
    let times: u64 = connection.halves.iter().map(|half| half.counts.resent_syns).sum();
    let wait_s = seconds(connection.syn_wait_ns().unwrap_or(0));
    let Handshake { syn_ack_ns, ack_ns, .. } = connection.handshake;
    (times > 0).then(|| {
        let what = match (syn_ack_ns, ack_ns) {
            (None, _) => "Lost SYNs: nobody answered",
            (Some(_), None) => "Lost SYNs: the answer was never acknowledged",
            (Some(_), Some(_)) => "Lost SYNs: opening had to be tried again",
        };
        let without = connection.halves.each_ref().map(left_out).concat().join(", ");
        let without = match without.as_str() {
            "" => String::new(),
            names => format!(
                "; the last one without {names}: where the first ones were dropped for these, something on the path drops them"
            ),
        };
        let wait = duration(wait_s);
        let evidence = format!("{times} sent again, {wait} from the first to the last{without}");
        let at_s = seconds(connection.first_ns - epoch_ns);
        finding(connection, connection.client.into(), Kind::LostSyns, at_s, wait_s, what, evidence)
    })
}

/// Hops by which a reset differs from its end's other packets.
const FOREIGN_HOPS: u8 = 2;

/// What about a reset is not like its end's.
fn oddities(half: &Half, reset: &Reset) -> Vec<String> {
    let usual = reset.ttl.1.filter(|usual| usual.abs_diff(reset.ttl.0) >= FOREIGN_HOPS);
    let ttl = usual.map(|usual| format!("its TTL is {}, that of the others {usual}", reset.ttl.0));
    let number = (reset.offset != 0).then(|| format!("its number is {:+} octets off", reset.offset));
    let after = half.counts.after_reset;
    let goes_on = (after > 0)
        .then(|| format!("its end sends {after} packets behind it (window of the reset {})", reset.window));
    [ttl, number, goes_on].into_iter().flatten().collect()
}

/// A reset that is not of the end it claims to be of: two of its time to live, its number and what its end does then do
/// not fit.
pub fn injected_reset(connection: &Connection, epoch_ns: i64) -> Option<Finding> {
    let found = [0, 1].into_iter().filter_map(|end| {
        let half = &connection.halves[end];
        half.reset.map(|reset| (end, reset, oddities(half, &reset)))
    });
    let (end, reset, odd) = found.into_iter().find(|(.., odd)| odd.len() >= 2)?;
    let what = "A reset was made up by something between the ends";
    let at_s = seconds(reset.time_ns - epoch_ns);
    Some(finding(connection, end, Kind::InjectedReset, at_s, 0.0, what, odd.join("; ")))
}

/// Packets whose checksum is wrong where their end's others are right.
pub fn wrong_checksums(connection: &Connection, epoch_ns: i64) -> Option<Finding> {
    let damaged = |end: usize| connection.halves[end].counts.damaged_packets;
    let end = usize::from(damaged(1) > damaged(0));
    let checked = connection.checksums[end].report();
    (damaged(end) > 0).then(|| {
        let what = "Wrong checksums: something damages packets, and their receiver throws them away";
        let evidence = format!(
            "{} of {} packets from {} that could be checked",
            damaged(end),
            checked.right + checked.wrong,
            connection.key.end(end),
        );
        let at_s = seconds(connection.first_ns - epoch_ns);
        finding(connection, end, Kind::WrongChecksums, at_s, 0.0, what, evidence)
    })
}

/// Packets from which on it can be said that none is ECN-capable.
const ECN_PACKETS: u64 = 20;

fn is_ecn_agreed(connection: &Connection) -> bool {
    connection.ecn().is_some_and(|agreed| agreed != "off")
}

/// A queue marks packets instead of dropping them.
pub fn ecn_marks(basis: &Basis) -> Option<Finding> {
    let (marked, echoed) = (basis.half.counts.ce_packets, basis.peer.counts.ece_packets);
    (marked + echoed > 0 && is_ecn_agreed(basis.connection)).then(|| {
        let what = "ECN marks: a queue on the path is congested, and says so without dropping".to_owned();
        let all = basis.half.counts.data_packets;
        let evidence = format!("{marked} of {all} packets with payload pass here marked; {echoed} of the receiver's packets tell of marks");
        basis.finding(Kind::EcnMarks, basis.start_s(), 0.0, what, evidence)
    })
}

/// ECN was agreed, and the packets do not carry it.
pub fn ecn_stripped(basis: &Basis) -> Option<Finding> {
    let counts = &basis.half.counts;
    let none = counts.ect_packets == 0 && counts.data_packets >= ECN_PACKETS;
    (none && is_ecn_agreed(basis.connection)).then(|| {
        let what =
            "ECN is stripped: both ends agreed on it, and no packet with payload carries it here".to_owned();
        let evidence = format!("{} packets with payload, all of them not ECN-capable", counts.data_packets);
        basis.finding(Kind::EcnStripped, basis.start_s(), 0.0, what, evidence)
    })
}
