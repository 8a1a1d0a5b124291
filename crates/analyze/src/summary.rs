//! What an analysis found, as text for a terminal: pure.

use crate::{
    analysis::{Analysis, CaptureReport},
    findings::Finding,
    flow::{
        connection::Vantage,
        report::{DirectionReport, Ending, FlowReport},
    },
};
use std::fmt::Write as _;

/// Flows shown one by one.
const SHOWN_FLOWS: usize = 10;
/// Findings shown of each.
const SHOWN_FINDINGS: usize = 6;

/// The whole text.
pub fn text(analysis: &Analysis) -> String {
    let mut text = capture(&analysis.capture);
    let totals = &analysis.totals;
    let _ = writeln!(
        text,
        "{} flows, {} of payload, {} segments ({}) sent again, {} timeouts",
        totals.flows,
        bytes(totals.payload_bytes as f64),
        totals.resent_segments,
        bytes(totals.resent_bytes as f64),
        totals.timeouts,
    );
    for flow in analysis.flows.iter().take(SHOWN_FLOWS) {
        text.push('\n');
        text += &one_flow(flow);
    }
    let hidden = totals.flows.saturating_sub(SHOWN_FLOWS as u64);
    if hidden > 0 {
        let _ = writeln!(text, "\n{hidden} smaller flows are not shown; --json has them");
    }
    text
}

fn capture(capture: &CaptureReport) -> String {
    let mut text = format!(
        "{} packets in {}, {} of them TCP\n",
        capture.packets,
        duration(capture.duration_s),
        capture.tcp_packets
    );
    let counted = [
        (capture.truncated_packets, "packets were cut before the end of TCP's header"),
        (capture.fragments, "IP fragments, which are not followed"),
        (capture.malformed_packets, "packets whose headers contradict themselves"),
        (capture.unknown_link_packets, "packets of unknown link types"),
        (capture.clock_steps, "times the clock was set back"),
        (capture.backwards_packets, "packets out of the order of their times; sorted"),
        (capture.damage_count, "places where the files are damaged"),
    ];
    for (count, what) in counted.iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(text, "  {count} {what}");
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

fn one_flow(flow: &FlowReport) -> String {
    let main = flow.main();
    let mut text = format!(
        "{} > {}  {} in {} from {}{}\n",
        main.from,
        main.to,
        bytes(main.unique_bytes as f64),
        duration(main.active_s),
        duration(flow.start_s),
        main.throughput_bps.map_or(String::new(), |bps| format!(", {}", rate(bps))),
    );
    let _ = writeln!(text, "  {}", opening(flow));
    let _ = writeln!(text, "  {}", timing(main));
    let _ = writeln!(text, "  {}", repairs(main));
    let _ = writeln!(text, "  {}", limits(main));
    for finding in flow.findings.iter().take(SHOWN_FINDINGS) {
        text += &one_finding(finding);
    }
    text
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
    let facts = [
        place.to_owned(),
        format!("MSS {}", mss.join("/")),
        yes("SACK", shake.sack),
        yes("timestamps", shake.timestamps),
        yes("window scaling", shake.window_scaling),
        format!("ECN {}", shake.ecn.unwrap_or("unknown")),
        end.to_owned(),
    ];
    facts.join(", ")
}

fn timing(main: &DirectionReport) -> String {
    let rtt = main.rtt.as_ref().map_or("RTT unknown".to_owned(), |rtt| {
        format!(
            "RTT {} least, {} median, {} p95 ({} samples)",
            micros(main.least_rtt_us.unwrap_or(rtt.least_us)),
            micros(rtt.median_us),
            micros(rtt.p95_us),
            rtt.count
        )
    });
    let flight = format!("flight up to {}", bytes(main.most_flight_bytes as f64));
    let window = main.most_window_bytes.map_or("window unknown".to_owned(), |most| {
        format!("window {} to {}", bytes(main.least_window_bytes.unwrap_or(0) as f64), bytes(most as f64))
    });
    let acks = main.segments_per_ack.map(|per| format!("{per:.1} segments per ACK"));
    [Some(rtt), Some(flight), Some(window), acks].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn repairs(main: &DirectionReport) -> String {
    let mut parts = vec![format!(
        "{} of {} segments sent again ({:.2} %)",
        main.resent_segments,
        main.data_segments,
        main.retransmissions * 100.0
    )];
    let kinds = [
        (main.fast_segments, "fast"),
        (main.timeouts, "timeouts"),
        (main.go_back_segments, "after a timeout"),
        (main.tail_probe_segments, "tail probes"),
        (main.spurious_segments, "spurious"),
        (main.lost_before_segments, "lost before the capture"),
        (main.reordered_segments, "reordered"),
        (main.duplicate_acks, "duplicate ACKs"),
        (main.zero_windows, "zero windows"),
    ];
    parts.extend(kinds.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    if main.unseen_bytes > 0 {
        parts.push(format!("{} acknowledged but not captured", bytes(main.unseen_bytes as f64)));
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

/// Octets as people read them.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, "B", &["kB", "MB", "GB", "TB"])
}

/// Bits per second as people read them.
pub fn rate(bps: f64) -> String {
    scaled(bps, "bit/s", &["kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// Microseconds as people read them.
pub fn micros(us: f64) -> String {
    duration(us / 1e6)
}

/// Seconds as people read them.
pub fn duration(seconds: f64) -> String {
    match seconds.abs() {
        s if s >= 1.0 => format!("{} s", three(seconds)),
        s if s >= 1e-3 => format!("{} ms", three(seconds * 1e3)),
        0.0 => "0 s".to_owned(),
        _ => format!("{} µs", three(seconds * 1e6)),
    }
}

fn scaled(value: f64, unit: &str, larger: &[&str]) -> String {
    let mut value = value;
    let mut unit = unit;
    for name in larger {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, name);
    }
    format!("{} {unit}", three(value))
}

/// Three digits that matter.
fn three(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// No control character of a file reaches the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_people_read_them() {
        assert_eq!(bytes(999.0), "999 B");
        assert_eq!(bytes(1_448_000.0), "1.45 MB");
        assert_eq!(rate(45e6), "45 Mbit/s");
        assert_eq!(duration(0.0123), "12.3 ms");
        assert_eq!(duration(3.0), "3 s");
        assert_eq!(micros(12.0), "12 µs");
        assert_eq!(plain("a\u{1b}[31mb"), "a [31mb");
    }
}
