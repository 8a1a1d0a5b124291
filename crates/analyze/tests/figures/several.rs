//! Several captures that are read as one.

use super::*;
use longfat_analyze::{
    Settings,
    analysis::{Analysis, analyze},
    capture::reader::CaptureReader,
};

fn read(traces: &[Trace]) -> Analysis {
    let files: Vec<Vec<u8>> = traces.iter().map(Trace::pcap).collect();
    let readers = files.iter().map(|file| CaptureReader::new(&file[..], "memory").unwrap());
    analyze(readers.collect(), Settings::default(), |_| {}).unwrap()
}

/// A transfer without packets at the same time: none of those is the first.
fn apart(transfer: &Transfer) -> Trace {
    let mut trace = made(transfer).trace;
    trace.packets.dedup_by_key(|(time_ns, _)| *time_ns);
    trace
}

/// Each packet in one of several captures.
fn dealt(trace: &Trace, captures: usize, which: impl Fn(usize, &Tcp) -> usize) -> Vec<Trace> {
    let mut dealt = vec![Trace::default(); captures];
    for (number, (time_ns, tcp)) in trace.packets.iter().enumerate() {
        dealt[which(number, tcp)].push(*time_ns, tcp.clone());
    }
    dealt
}

#[test]
fn two_captures_of_a_direction_each_are_one_of_both() {
    let whole = apart(&Transfer { segments: 2000, loss_permille: 10, ..Transfer::default() });
    let [forth, back] = dealt(&whole, 2, |_, tcp| usize::from(!tcp.from_client)).try_into().unwrap();
    let reference = whole.analyze();
    assert!(reference.flows[0].directions[0].rtt.unwrap().count > 1000);
    for both in [[forth.clone(), back.clone()], [back, forth]] {
        let found = read(&both);
        assert_eq!(found.flows, reference.flows);
        assert_eq!(found.capture.backwards_packets, 0);
    }
}

#[test]
fn captures_one_behind_the_other_are_one_whatever_their_order() {
    let whole = made(&Transfer { segments: 1000, ..Transfer::default() }).trace;
    let third = whole.packets.len() / 3 + 1;
    let mut parts = dealt(&whole, 3, |number, _| number / third);
    parts.reverse();
    parts.push(Trace::default());
    assert_eq!(read(&parts).flows, whole.analyze().flows);
}

#[test]
fn a_clock_that_is_set_under_two_captures_is_set_for_both_and_prices_nothing() {
    let whole = made(&Transfer { segments: 2000, ..Transfer::default() }).trace;
    let half = whole.packets.len() / 2;
    for by_s in [-3600, -2, 3600] {
        let mut set = whole.clone();
        set.packets[half..].iter_mut().for_each(|(time_ns, _)| *time_ns += by_s * 1000 * MS);
        let found = read(&dealt(&set, 2, |_, tcp| usize::from(!tcp.from_client)));
        let (flow, once) = (&found.flows[0], whole.flow());
        let steps = found.capture.clock_steps;
        assert!((1..=2).contains(&steps), "{steps} steps of {by_s} s");
        for duration_s in [flow.duration_s, found.capture.duration_s] {
            assert!((duration_s - once.duration_s).abs() < 0.05 * once.duration_s, "{by_s}: {duration_s}");
        }
        let [found, expected] = [flow, &once].map(|flow| flow.directions[0].counts);
        assert_eq!((found.unique_bytes, found.resent_segments), (expected.unique_bytes, 0), "{by_s}");
    }
}

proptest! {
    #![proptest_config(support::cases::cases(96))]

    #[test]
    fn however_packets_are_dealt_to_captures_the_flows_are_those_of_one(
        transfer in transfers(),
        dice in any::<u64>(),
        captures in 2usize..5,
    ) {
        let whole = apart(&transfer);
        let which = |number: usize, _: &Tcp| (Dice(dice ^ number as u64).next() % captures as u64) as usize;
        prop_assert_eq!(read(&dealt(&whole, captures, which)).flows, whole.analyze().flows);
    }
}
