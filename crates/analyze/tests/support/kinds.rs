//! Thirty kinds of made-up traffic by name, for comparing what other programs make of them.

use super::{
    MS, Trace, US,
    script::script,
    traffic::{Capturing, Transfer, captured, made},
};
use std::fmt::Write as _;

const OPENING: &str =
    "0 > S win 65535 mss 1460 ws 0\n+20 < SA win 14480 mss 1460 ws 0\n+0.01 > A win 65535\n";

/// A closed window that is probed.
fn closed(probe: &str) -> Trace {
    let mut text = OPENING.to_owned();
    for n in 0..10 {
        let _ = writeln!(text, "+0.1 > A seq {} len 1448", n * 1448);
    }
    let _ = writeln!(text, "+20 < A ack 14480 win 0");
    for n in 0..5 {
        let _ = writeln!(text, "+{} > A {probe}\n+20 < A ack 14480 win 0", 300 << n);
    }
    text += "+500 < A ack 14480 win 14480\n+0.1 > A seq 14480 len 1448\n+20 < A ack 15928 win 14480";
    script(&text)
}

fn scripted() -> Vec<(&'static str, Trace)> {
    let mut idle = format!("{OPENING}+1 > A len 100\n+20 < A ack 100 win 500\n");
    (0..6).for_each(|_| idle += "+10000 > A seq 99\n+20 < A ack 100 win 500\n");
    let mut dead = format!("{OPENING}+1 > A len 112\n");
    for n in 0..9 {
        let _ = writeln!(dead, "+{} > A len 112", 200 << n);
    }
    let retried = "0 > S win 65535 mss 1460\n1000 > S win 65535 mss 1460\n3000 > S win 65535 mss 1460\n+70 < SA win 65535 mss 1460\n+0.1 > A\n+1 > A len 100\n+70 < A ack 100";
    let mut halves = OPENING.to_owned();
    for n in 0..10 {
        let (request, answer) = (n * 200, n * 300);
        let _ = writeln!(
            halves,
            "+5 > A seq {request} ack {answer} len 100 win 500\n+60 < A seq {answer} ack {} win 500",
            request + 100
        );
        let _ = writeln!(
            halves,
            "+0.05 > A seq {} ack {answer} len 100 win 500\n+20 < A seq {answer} ack {} len 300 win 500",
            request + 100,
            request + 200
        );
    }
    vec![
        ("probes_without_payload", closed("seq 14479")),
        ("probes_of_an_octet", closed("seq 14480 len 1")),
        ("keep_alives", script(&idle)),
        ("dead_peer", script(&dead)),
        ("lost_syns", script(retried)),
        ("delayed_acks_and_nagle", script(&halves)),
    ]
}

/// All of them.
pub fn kinds() -> Vec<(&'static str, Trace)> {
    let clean = Transfer { segments: 600, ..Transfer::default() };
    let lossy = Transfer { loss_permille: 10, ..clean.clone() };
    let transfers = [
        ("clean", clean.clone()),
        ("loss_1_percent", lossy.clone()),
        ("loss_5_percent", Transfer { loss_permille: 50, ..clean.clone() }),
        ("reordering", Transfer { reorder_permille: 20, place: 100, ..clean.clone() }),
        ("reordering_and_loss", Transfer { reorder_permille: 20, ..lossy.clone() }),
        ("loss_without_sack", Transfer { sack: false, ..lossy.clone() }),
        ("loss_without_timestamps", Transfer { timestamps: false, ..lossy.clone() }),
        ("without_window_scaling", Transfer { scale: None, ..clean.clone() }),
        ("in_the_middle", Transfer { place: 50, ..clean.clone() }),
        ("at_the_receiver", Transfer { place: 100, ..clean.clone() }),
        ("loss_in_the_middle", Transfer { place: 50, ..lossy.clone() }),
        ("loss_at_the_receiver", Transfer { place: 100, ..lossy.clone() }),
        ("two_segments", Transfer { window_segments: 2, ..lossy.clone() }),
        ("local_network", Transfer { one_way_ns: 50 * US, ..clean.clone() }),
        ("satellite", Transfer { one_way_ns: 300 * MS, window_segments: 200, ..lossy.clone() }),
        ("numbers_wrap", Transfer { first: u32::MAX - 50_000, ..lossy.clone() }),
        ("small_segments", Transfer { mss: 100, ..lossy }),
    ];
    let lossy = &transfers[1].1;
    let captures = [
        ("copies", Capturing { copied_permille: 200, ..Capturing::default() }),
        ("late_records", Capturing { late_permille: 100, late_ns: 30 * US, ..Capturing::default() }),
        ("capture_lost_packets", Capturing { lost_permille: 20, ..Capturing::default() }),
        ("begun_late", Capturing { cut_percent: 30, ..Capturing::default() }),
        ("without_handshake", Capturing { no_handshake: true, ..Capturing::default() }),
        ("data_only", Capturing { only_client: Some(true), ..Capturing::default() }),
        ("acknowledgements_only", Capturing { only_client: Some(false), ..Capturing::default() }),
    ];
    let mut all: Vec<_> = transfers.iter().map(|(name, transfer)| (*name, made(transfer).trace)).collect();
    all.extend(captures.iter().map(|(name, how)| (*name, captured(&made(lossy).trace, how))));
    all.extend(scripted());
    all
}
