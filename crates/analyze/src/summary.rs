//! What an analysis found, as text for a terminal: pure.

use crate::{
    analysis::{Analysis, CaptureReport},
    clock::ClockStep,
    findings::Finding,
    flow::{connection::Vantage, known::Missing},
    report::{DirectionReport, Ending, FlowReport, Unopened},
    words::{bytes, counted, duration, micros, rate},
};
use std::fmt::Write as _;

mod unopened;

/// Flows shown one by one.
const SHOWN_FLOWS: usize = 10;
/// Kinds of packets that were not looked into, by name.
const SHOWN_KINDS: usize = 8;
/// Steps of the clock shown.
const SHOWN_STEPS: usize = 3;
/// Findings shown of each.
const SHOWN_FINDINGS: usize = 6;

/// The whole text.
pub fn text(analysis: &Analysis) -> String {
    let mut text = capture(&analysis.capture);
    let totals = &analysis.totals;
    let _ = writeln!(
        text,
        "{}, {} of payload, {} of {} ({}) sent again{}, {}",
        counted(totals.flows, "flow"),
        bytes(totals.payload_bytes as f64),
        totals.resent_segments,
        counted(totals.sent_segments, "segment"),
        bytes(totals.resent_bytes as f64),
        match totals.resent_syns {
            0 => String::new(),
            syns => format!(", {} among them", counted(syns, "SYN")),
        },
        counted(totals.timeouts, "timeout"),
    );
    if totals.flows_cut > 0 {
        let _ = writeln!(
            text,
            "  {} of them were taken for over early, longest without a packet first: too many were live (--live-flows)",
            totals.flows_cut
        );
    }
    text += &unopened::text(analysis);
    let shown: Vec<&FlowReport> = unopened::shown_alone(analysis).take(SHOWN_FLOWS).collect();
    for flow in &shown {
        text.push('\n');
        text += &one_flow(flow);
    }
    let hidden = totals.flows - unopened::summed_up(analysis) - shown.len() as u64;
    if hidden > 0 {
        let has = match totals.flows_left_out {
            0 => "--json has them".to_owned(),
            left => format!("--json has {} of them (--most-flows)", hidden.saturating_sub(left)),
        };
        let _ = writeln!(text, "\n{hidden} smaller flows are not shown; {has}");
    }
    text
}

fn capture(capture: &CaptureReport) -> String {
    let mut text = format!(
        "{} in {}, {} of them TCP\n",
        counted(capture.packets, "packet"),
        duration(capture.duration_s),
        capture.tcp_packets
    );
    let several = [
        (capture.truncated_packets, "packets were cut before the end of TCP's header"),
        (capture.fragments, "later IP fragments, whose payload is not counted"),
        (capture.malformed_packets, "packets whose headers contradict themselves"),
        (
            capture.backwards_packets.saturating_sub(capture.unsorted_packets),
            "packets out of the order of their times; sorted",
        ),
        (capture.damage_count, "places where the files are damaged"),
    ];
    for (count, what) in several.iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(text, "  {count} {what}");
    }
    if capture.unsorted_packets > 0 {
        let _ = writeln!(
            text,
            "  {} too far out of the order of their times to be sorted (up to {}): times and round trips are not exact; \
             'reordercap' puts a file in order",
            counted(capture.unsorted_packets, "packet"),
            duration(capture.most_backwards_us / 1e6)
        );
    }
    text += &clock_steps(capture);
    let named = capture.not_looked_into.iter().take(SHOWN_KINDS);
    let named: Vec<String> = named.map(|kind| format!("{} {}", kind.packets, plain(&kind.what))).collect();
    if !named.is_empty() {
        let _ = writeln!(text, "  not looked into: {}", named.join(", "));
    }
    for damage in capture.damages.iter().take(5) {
        let _ = writeln!(
            text,
            "    {} at octet {}: {}; {} passed over",
            plain(&damage.file),
            damage.offset,
            plain(&damage.what),
            bytes(damage.skipped_bytes as f64)
        );
    }
    for interface in &capture.interfaces {
        if let Some(dropped) = interface.dropped.filter(|dropped| *dropped > 0) {
            let _ = writeln!(text, "  the capture lost {dropped} packets at {}", plain(&interface.interface));
        }
    }
    text
}

/// Where the capture's clock was set.
fn clock_steps(capture: &CaptureReport) -> String {
    let shown: Vec<String> =
        capture.clock_step_list.iter().take(SHOWN_STEPS).map(ClockStep::to_string).collect();
    let more = match capture.clock_steps - shown.len() as u64 {
        0 if shown.is_empty() => return String::new(),
        0 => String::new(),
        more => format!(", and {more} times more"),
    };
    let (what, returns) = match capture.clock_returns {
        0 => ("the capture's clock was set", String::new()),
        times => (
            "the capture has times of several clocks, which differ:",
            format!("; {times} changes between known ones, over which times are not exact"),
        ),
    };
    format!("  {what} {}{more}{returns}; times go on as if it had not been\n", shown.join(", "))
}

fn one_flow(flow: &FlowReport) -> String {
    let main = flow.main();
    let mut text = format!(
        "{} > {}  {} in {} from {}{}\n",
        main.from,
        main.to,
        bytes(main.counts.unique_bytes as f64),
        duration(main.active_s),
        duration(flow.start_s),
        main.throughput_bps.map_or(String::new(), |bps| format!(", {}", rate(bps))),
    );
    let mut lacks: Vec<String> = flow.directions.iter().map(lacking).collect();
    // Of both directions at once.
    lacks.dedup();
    text += &lacks.concat();
    let _ = writeln!(text, "  {}", opening(flow));
    let _ = writeln!(text, "  {}", timing(flow));
    let _ = writeln!(text, "  {}", repairs(flow));
    let _ = writeln!(text, "  {}", limits(main));
    for finding in flow.findings.iter().take(SHOWN_FINDINGS) {
        text += &one_finding(finding);
    }
    text
}

/// What the capture lacks of a direction, before anything else is said of it.
fn lacking(direction: &DirectionReport) -> String {
    let what = match direction.missing {
        None => return String::new(),
        Some(Missing::Direction) => {
            return format!(
                "  one direction is missing: nothing that {} sent is in the capture\n",
                direction.from
            );
        }
        Some(Missing::Numbering) => {
            return "  two connections have the same ends, as on the two sides of a relay that keeps addresses: capture on \
                    one side; figures that need the order of numbers are not told\n"
                .to_owned();
        }
        Some(Missing::Acknowledgements) => format!("the acknowledgements of what {} sent", direction.from),
        Some(Missing::Data) => {
            format!("{} that {} sent", bytes(direction.counts.unseen_bytes as f64), direction.from)
        }
    };
    format!("  filtered or incomplete: {what} are not in the capture, so what needs them is not told\n")
}

/// Why there is no round trip of the handshake.
fn no_round_trip(flow: &FlowReport) -> &'static str {
    match (flow.unopened(), flow.directions.each_ref().map(|one| one.offers_sack.is_some())) {
        (Some(Unopened::Refused), _) => "SYN refused",
        (Some(Unopened::Unanswered), _) => "SYN not answered",
        (Some(Unopened::NotCompleted), _) => "handshake not completed",
        (None, [true, true]) if flow.handshake.repeated_syns > 0 => "handshake RTT ambiguous",
        (None, [true, true]) => "handshake RTT unknown",
        (None, [true, false]) => "SYN-ACK not in the capture",
        (None, [false, true]) => "SYN not in the capture",
        (None, [false, false]) => "handshake not seen",
    }
}

fn opening(flow: &FlowReport) -> String {
    let shake = &flow.handshake;
    let yes = |name: &str, value: Option<bool>| match value {
        Some(true) => name.to_owned(),
        Some(false) => format!("no {name}"),
        None => format!("{name} unknown"),
    };
    let place = match flow.vantage {
        Vantage::Client => "captured at the client",
        Vantage::Server => "captured at the server",
        Vantage::Middle => "captured between the ends",
        Vantage::Unknown => "place of capture unknown",
    };
    let end = match flow.ending {
        Ending::Closed => "closed",
        Ending::ResetByClient => "reset by the client",
        Ending::ResetByServer => "reset by the server",
        Ending::Open => "not closed",
    };
    let mss = flow.directions.iter().map(|d| d.mss_bytes.map_or("?".to_owned(), |mss| mss.to_string()));
    let mss: Vec<String> = mss.collect();
    let handshake =
        shake.rtt_us.zip(shake.server_side_us).map_or(no_round_trip(flow).to_owned(), |(rtt, server)| {
            format!("handshake RTT {} ({} of it towards the server)", micros(rtt), micros(server))
        });
    let again = match (shake.repeated_syns, shake.syn_wait_s) {
        (0, _) => String::new(),
        (times, wait) => format!(", {times} SYNs sent again over {}", duration(wait.unwrap_or(0.0))),
    };
    let fast_open = match shake.fast_open {
        Some("data_refused") => "Fast Open data not accepted",
        Some("data") => "Fast Open data in the SYN",
        _ => "",
    };
    let facts = [
        place.to_owned(),
        handshake + &again,
        format!("MSS {}", mss.join("/")),
        yes("SACK", shake.sack),
        yes("timestamps", shake.timestamps),
        yes("window scaling", shake.window_scaling),
        format!("ECN {}", shake.ecn.unwrap_or("unknown")),
        fast_open.to_owned(),
        end.to_owned(),
    ];
    facts.iter().filter(|fact| !fact.is_empty()).cloned().collect::<Vec<_>>().join(", ")
}

/// Which part of the path the times from data to its acknowledgement are of.
fn round_trip_name(flow: &FlowReport) -> &'static str {
    let [client, _] = &flow.directions;
    let is_from_client = flow.main().from == client.from;
    match (flow.vantage, is_from_client) {
        (Vantage::Client, true) | (Vantage::Server, false) => "RTT",
        (Vantage::Client, false) | (Vantage::Server, true) => {
            "the receiver's own ACK lag (captured beside it: no RTT)"
        }
        _ => "RTT from here to the receiver",
    }
}

fn timing(flow: &FlowReport) -> String {
    let main = flow.main();
    let name = round_trip_name(flow);
    let rtt = main.rtt.as_ref().map_or("RTT unknown".to_owned(), |rtt| {
        format!(
            "{name} {} least, {} median, {} p95 ({} samples)",
            micros(main.least_rtt_us.unwrap_or(rtt.least_us)),
            micros(rtt.median_us),
            micros(rtt.p95_us),
            rtt.count
        )
    });
    let flight = match main.missing {
        None => format!("flight up to {}", bytes(main.most_flight_bytes as f64)),
        Some(_) => "flight unknown".to_owned(),
    };
    let window = main.most_window_bytes.map_or("window unknown".to_owned(), |most| {
        format!("window {} to {}", bytes(main.least_window_bytes.unwrap_or(0) as f64), bytes(most as f64))
    });
    let acks = main.segments_per_ack.map(|per| format!("{per:.1} segments per ACK"));
    [Some(rtt), Some(flight), Some(window), acks].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn repairs(flow: &FlowReport) -> String {
    let main = flow.main();
    // They are of whoever is idle, which is mostly not the end that sends.
    let keep_alives = flow.directions.iter().map(|one| one.counts.keep_alives).sum();
    let mut parts = vec![format!(
        "{} of {} segments sent again ({:.2} %)",
        main.counts.resent_segments,
        main.counts.sent_segments,
        main.retransmissions * 100.0
    )];
    let kinds = [
        (main.fast_segments - main.counts.fast_open_segments, "fast"),
        (main.counts.fast_open_segments, "that went with the SYN (Fast Open) and were not taken"),
        (main.timeouts, "timeouts"),
        (main.go_back_segments, "after a timeout"),
        (main.tail_probe_segments, "tail probes"),
        (main.counts.new_data_probes, "probes with new data"),
        (main.spurious_segments, "spurious"),
        (main.counts.lost_before_segments, "lost before the capture"),
        (main.counts.reordered_segments, "reordered"),
        (main.counts.duplicate_acks, "duplicate ACKs"),
        (main.counts.zero_windows, "zero windows"),
        (keep_alives, "keep-alives"),
        (main.probes - main.counts.keep_alives, "window probes"),
        (main.counts.duplicate_packets, "copies"),
        (main.counts.damaged_packets, "damaged (wrong checksum)"),
        (main.counts.foreign_packets, "with numbers outside any window"),
    ];
    parts.extend(kinds.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    if main.counts.unseen_bytes > 0 {
        parts.push(format!("{} acknowledged but not captured", bytes(main.counts.unseen_bytes as f64)));
    }
    parts.join(", ")
}

fn limits(main: &DirectionReport) -> String {
    let shares = [
        (main.limits.window, "the receiver's window"),
        (main.limits.congestion, "the congestion window"),
        (main.limits.application, "the application"),
        (main.limits.recovery, "repair of losses"),
    ];
    let mut shown: Vec<_> = shares.iter().filter(|(share, _)| *share >= 0.005).collect();
    shown.sort_by(|a, b| b.0.total_cmp(&a.0));
    let shown: Vec<String> =
        shown.iter().map(|(share, what)| format!("{:.0} % {what}", share * 100.0)).collect();
    if shown.is_empty() { "limits unknown".to_owned() } else { format!("limited by: {}", shown.join(", ")) }
}

fn one_finding(finding: &Finding) -> String {
    let cost = if finding.cost_s > 0.0 {
        format!(" (cost about {})", duration(finding.cost_s))
    } else {
        String::new()
    };
    format!("  ! {}{cost}\n      {}\n", plain(&finding.what), plain(&finding.evidence))
}

/// No control character of a file reaches the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_reaches_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb"), "a [31mb");
    }
}
