//! Checksums: judged where they are those of the wire, and only there.

use crate::support::{
    Sum, Trace,
    script::script,
    traffic::{Dice, Transfer, made},
};
use longfat_analyze::{contradictions::contradictions, findings::Kind, report::FlowReport, summary};

/// A transfer whose packets are kept whole: the client's and the server's checksums are like these.
fn with(sums: [Sum; 2]) -> Trace {
    let mut trace = made(&Transfer { segments: 200, mss: 1000, ..Transfer::default() }).trace;
    trace.packets.iter_mut().for_each(|(_, tcp)| tcp.sum = sums[usize::from(!tcp.from_client)]);
    trace
}

/// Damages packets of the client from the `first` on, each `every`th, so that their numbers are wrong, too.
fn damage(trace: &mut Trace, first: usize, every: usize) -> u64 {
    let own = trace.packets.iter_mut().filter(|(_, tcp)| tcp.from_client && tcp.payload > 0);
    let mut times = 0;
    for (_, tcp) in own.skip(first).step_by(every) {
        (tcp.sum, tcp.seq, tcp.ack) = (Sum::Other, tcp.seq ^ 0x4000, tcp.ack + 700);
        times += 1;
    }
    times
}

fn figures(flow: &FlowReport) -> (u64, u64, u64) {
    let counts = &flow.directions[0].counts;
    (counts.unique_bytes, counts.resent_segments, counts.damaged_packets)
}

#[test]
fn what_the_path_damaged_is_counted_and_not_believed() {
    let mut trace = with([Sum::Right, Sum::Right]);
    // Sent again, whole, behind the damaged one.
    for at in [60, 90] {
        let (time_ns, mut tcp) = trace.packets[at].clone();
        (tcp.sum, tcp.seq, tcp.ack, tcp.window) = (Sum::Other, tcp.seq ^ 0x4000, tcp.ack ^ 0x2000, 0);
        trace.packets.insert(at, (time_ns - 1, tcp));
    }
    let clean = with([Sum::Right, Sum::Right]).flow();
    let (flow, analysis) = (trace.flow(), trace.analyze());
    let damaged: u64 = flow.directions.iter().map(|one| one.counts.damaged_packets).sum();
    assert_eq!((damaged, analysis.totals.damaged_packets), (2, 2));
    assert_eq!(figures(&flow).0, 200_000);
    for (one, other) in flow.directions.iter().zip(&clean.directions) {
        assert_eq!(
            (
                one.counts.zero_windows,
                one.counts.unseen_bytes,
                one.counts.resent_segments,
                one.counts.foreign_packets
            ),
            (other.counts.zero_windows, 0, other.counts.resent_segments, 0)
        );
    }
    assert!(
        flow.findings
            .iter()
            .any(|found| found.kind == Kind::WrongChecksums && found.evidence.starts_with("1 of"))
    );
    assert!(clean.findings.iter().all(|found| found.kind != Kind::WrongChecksums));
    assert!(summary::text(&analysis).contains("damaged (wrong checksum)"));
}

#[test]
fn what_is_left_to_the_interface_is_believed_whatever_stands_there() {
    for unset in [Sum::Partial, Sum::Other] {
        let flow = with([unset, Sum::Right]).flow();
        assert_eq!(figures(&flow), (200_000, 0, 0), "{unset:?}");
        let [client, server] = &flow.directions;
        let checked = if unset == Sum::Partial { client.checksums.unset } else { client.checksums.wrong };
        assert_eq!((checked, client.checksums.right), (client.counts.packets, 0), "{unset:?}");
        assert_eq!((server.checksums.right, server.checksums.wrong), (server.counts.packets, 0));
    }
}

#[test]
fn one_direction_left_to_the_interface_says_nothing_of_the_other() {
    let mut trace = with([Sum::Right, Sum::Other]);
    let damaged = damage(&mut trace, 50, 40);
    assert!(damaged > 3);
    let flow = trace.flow();
    assert_eq!(flow.directions.each_ref().map(|one| one.counts.damaged_packets), [damaged, 0]);
}

#[test]
fn bundles_that_the_receiver_gathered_hide_no_damage() {
    let mut trace = with([Sum::Partial, Sum::Right]);
    let own = trace.packets.iter_mut().filter(|(_, tcp)| tcp.from_client);
    own.step_by(9).for_each(|(_, tcp)| tcp.sum = Sum::Right);
    assert_eq!(damage(&mut trace, 50, 1000), 1);
    assert_eq!(figures(&trace.flow()).2, 1);
}

#[test]
fn a_damaged_first_packet_is_told_by_those_that_follow() {
    let trace = script(
        "0 > S win 65535 mss 1460 sum right
        +20 < SA win 77 mss 4 sum other
        +1 < SA win 65535 mss 1460 sum right
        +0.1 > A win 65535 sum right
        +1 > A len 100 sum right
        +20 < A ack 100 win 65535 sum right
        +1 > A seq 100 len 100 sum right
        +20 < A ack 200 win 65535 sum right",
    );
    let flow = trace.flow();
    assert_eq!(flow.directions[1].counts.damaged_packets, 1);
    assert_eq!((flow.directions[1].mss_bytes, flow.handshake.repeated_syns), (Some(1460), 0));
}

#[test]
fn what_was_not_kept_whole_is_not_judged() {
    let flow = made(&Transfer::default()).trace.flow();
    let [client, _] = &flow.directions;
    assert_eq!((client.checksums.right, client.checksums.wrong), (0, 0));
    assert!(client.checksums.unset <= 3, "pure ACKs of zero");
}

/// Seeds that no rule here was chosen by.
#[test]
fn damage_of_up_to_a_fifth_is_found_and_contradicts_nothing() {
    let mut dice = Dice(0xdead);
    for _ in 0..40 {
        let mut trace = with([Sum::Right, Sum::Right]);
        let share = 1 + dice.next() % 200;
        let mut times = 0;
        for (_, tcp) in &mut trace.packets {
            if dice.permille(share) {
                (tcp.sum, tcp.seq, times) = (Sum::Other, dice.next() as u32, times + 1);
            }
        }
        let analysis = trace.analyze();
        assert_eq!(contradictions(&analysis), Vec::<String>::new());
        let found: u64 = analysis
            .flows
            .iter()
            .flat_map(|flow| &flow.directions)
            .map(|one| one.counts.damaged_packets)
            .sum();
        assert_eq!(found, times, "{share}");
    }
}
