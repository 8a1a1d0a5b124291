//! Rows of a trace from what other programs print: iperf3's JSON, ping's lines. With each come remarks: what such a
//! record cannot know.

use super::{
    TraceError,
    table::{ROWS_MAX, Row},
};
use longfat_schema::units::Nanos;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A trace made of something that was none.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The trace's rows, in order of time.
    pub rows: Vec<Row>,
    /// What a reader should know of them.
    pub remarks: Vec<String>,
}

/// Reads what `iperf3 --json` or `ping` wrote. `interval` lies between two probes of a ping without times (`ping -D`).
///
/// # Errors
/// It is neither, or holds nothing to make rows of.
pub fn read(bytes: &[u8], interval: Nanos) -> Result<Imported, TraceError> {
    let is_json = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if is_json { iperf3(bytes) } else { ping(&String::from_utf8_lossy(bytes), interval) }
}

#[derive(Deserialize)]
struct Iperf3 {
    #[serde(default)]
    start: Iperf3Start,
    intervals: Vec<Iperf3Interval>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Default, Deserialize)]
struct Iperf3Start {
    #[serde(default)]
    test_start: Iperf3Test,
    #[serde(default)]
    tcp_mss_default: Option<u32>,
}

#[derive(Default, Deserialize)]
struct Iperf3Test {
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    blksize: u32,
}

#[derive(Deserialize)]
struct Iperf3Interval {
    sum: Iperf3Sum,
}

#[derive(Deserialize)]
struct Iperf3Sum {
    start: f64,
    bits_per_second: f64,
    #[serde(default)]
    omitted: bool,
    /// Share of UDP datagrams that were lost, where the receiver wrote it.
    #[serde(default)]
    lost_percent: Option<f64>,
}

/// IPv4 and UDP, IPv4 and TCP with timestamps.
const UDP_HEADER_BYTES: f64 = 28.0;
const TCP_HEADER_BYTES: f64 = 52.0;
/// Payload of a full segment, where nobody says: Ethernet's, IPv4, timestamps.
const MSS_BYTES: u32 = 1448;
/// As many as iperf3 itself allows: a day of tenths of a second.
const INTERVALS_MAX: usize = ROWS_MAX;

fn iperf3(bytes: &[u8]) -> Result<Imported, TraceError> {
    let mend = "is it what 'iperf3 --json' wrote, whole?";
    let record: Iperf3 = serde_json::from_slice(bytes)
        .map_err(|error| TraceError::Whole(format!("no iperf3 JSON: {error}; {mend}")))?;
    let mut sums: Vec<Iperf3Sum> =
        record.intervals.into_iter().map(|interval| interval.sum).filter(|sum| !sum.omitted).collect();
    if sums.is_empty() {
        let why = record.error.map_or(String::new(), |error| format!(" (iperf3 says: {error})"));
        return Err(TraceError::Whole(format!(
            "holds no interval that counts{why}; let iperf3 run to its end"
        )));
    }
    if sums.len() > INTERVALS_MAX {
        return Err(TraceError::TooMuch { what: "intervals", most: INTERVALS_MAX as u64 });
    }
    sums.sort_by(|a, b| a.start.total_cmp(&b.start));
    let is_udp = record.start.test_start.protocol.eq_ignore_ascii_case("udp");
    let with_headers = match is_udp {
        true => 1.0 + UDP_HEADER_BYTES / f64::from(record.start.test_start.blksize.max(64)),
        false => {
            1.0 + TCP_HEADER_BYTES
                / f64::from(record.start.tcp_mss_default.filter(|mss| *mss >= 64).unwrap_or(MSS_BYTES))
        }
    };
    let first_s = sums[0].start;
    let losses: Option<Vec<f64>> = sums.iter().map(|sum| sum.lost_percent).collect();
    let loss = match &losses {
        None => Loss::Unknown,
        Some(losses) if losses.iter().filter(|percent| **percent > 0.0).count() * 2 > losses.len() => {
            Loss::OfTheQueue
        }
        Some(_) => Loss::OfTheLine,
    };
    let row = |(number, sum): (usize, &Iperf3Sum)| {
        let values =
            [sum.start - first_s, sum.bits_per_second * with_headers, sum.lost_percent.unwrap_or(0.0)];
        let sound = values.iter().all(|value| value.is_finite() && *value >= 0.0) && values[2] <= 100.0;
        let why = format!("interval {} has a time, rate or loss that cannot be; {mend}", number + 1);
        let lost = if loss == Loss::OfTheLine { values[2] / 100.0 } else { 0.0 };
        // The receiver counts what arrived: the line had carried what was lost on it, too.
        let carried_bps = if lost < 1.0 { values[1] / (1.0 - lost) } else { values[1] };
        let row = Row {
            at_ns: (values[0] * 1e9).round() as u64,
            rate_bps: Some(carried_bps.round() as u64),
            delay_ns: None,
            loss: (loss == Loss::OfTheLine).then_some(lost),
        };
        sound.then_some(row).ok_or(TraceError::Whole(why))
    };
    let mut rows: Vec<Row> = sums.iter().enumerate().map(row).collect::<Result<_, _>>()?;
    rows.dedup_by_key(|row| row.at_ns);
    Ok(Imported { rows, remarks: iperf3_remarks(is_udp, loss) })
}

/// What the datagrams that iperf3's receiver missed say of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// Nobody counted them.
    Unknown,
    /// Some were lost most of the time: more was sent than the path carries, and what arrived is what it carries.
    OfTheQueue,
    /// Mostly none were: the path carried all that was sent, but for these.
    OfTheLine,
}

fn iperf3_remarks(is_udp: bool, loss: Loss) -> Vec<String> {
    let mut remarks = vec![
        "The rates are what one iperf3 achieved, headers added; an achieved rate is no capacity.".to_owned(),
        match (is_udp, loss) {
            (false, _) => "TCP: the capacity is this or more; losses, windows and other traffic kept it lower.",
            (true, Loss::OfTheQueue) => {
                "UDP, with losses in most intervals: what arrived is taken for the capacity, what was lost for the queue's."
            }
            (true, Loss::OfTheLine) => {
                "UDP, with losses in few intervals: the rate is what was sent, the capacity that or more; the loss is the line's."
            }
            (true, Loss::Unknown) => "UDP: the rate is what was sent; nobody counted what arrived.",
        }
        .to_owned(),
        "Delay is not in it: give the link one, or import a ping of the same time.".to_owned(),
    ];
    match loss {
        Loss::OfTheLine => {}
        Loss::OfTheQueue => remarks.push("Loss of the line is not in it.".to_owned()),
        Loss::Unknown => remarks.push(
            "Loss of the line is not in it: retransmissions are the queue's as well as the line's."
                .to_owned(),
        ),
    }
    remarks
}

/// One answered probe.
struct Probe {
    /// When the answer came, where lines bear times.
    stamp_s: Option<f64>,
    rtt_ms: f64,
}

/// Probes that the loss at one of them is counted over: as many before it and after it.
const NEIGHBOURS: i64 = 5;

fn ping(text: &str, interval: Nanos) -> Result<Imported, TraceError> {
    let probes = probes(text)?;
    let (Some((first, _)), Some((last, _))) = (probes.first_key_value(), probes.last_key_value()) else {
        let mend = "is it what 'ping' or 'iperf3 --json' wrote? Lines look like '64 bytes from …: icmp_seq=1 ttl=57 time=23.4 ms'";
        return Err(TraceError::Whole(format!("holds no answer to a ping; {mend}")));
    };
    let stamped = probes.values().all(|probe| probe.stamp_s.is_some());
    let sent_s = |number: i64, probe: &Probe| match probe.stamp_s.filter(|_| stamped) {
        Some(stamp_s) => stamp_s - probe.rtt_ms / 1e3,
        None => (number - first) as f64 * interval.0 as f64 / 1e9,
    };
    if last - first >= ROWS_MAX as i64 {
        return Err(TraceError::TooMuch { what: "probes", most: ROWS_MAX as u64 });
    }
    let begin_s = probes.first_key_value().map_or(0.0, |(number, probe)| sent_s(*number, probe));
    let loss_at = |number: i64| {
        let (from, to) = ((number - NEIGHBOURS).max(*first), (number + NEIGHBOURS).min(*last));
        1.0 - probes.range(from..=to).count() as f64 / (to - from + 1) as f64
    };
    let row = |number: i64, sent_s: f64, rtt_ms: f64| Row {
        at_ns: ((sent_s - begin_s).max(0.0) * 1e9).round() as u64,
        rate_bps: None,
        delay_ns: Some((rtt_ms * 1e6 / 2.0).round() as u64),
        loss: Some(loss_at(number)),
    };
    let mut rows: Vec<Row> = Vec::with_capacity((last - first + 1) as usize);
    let mut before: Option<(i64, f64, f64)> = None;
    for (&number, probe) in &probes {
        let here_s = sent_s(number, probe);
        // Probes without an answer were sent evenly between those that have one, and nothing else is known of them.
        if let Some((from, from_s, rtt_ms)) = before {
            let each_s = (here_s - from_s) / (number - from) as f64;
            rows.extend((from + 1..number).map(|n| row(n, from_s + each_s * (n - from) as f64, rtt_ms)));
        }
        rows.push(row(number, here_s, probe.rtt_ms));
        before = Some((number, here_s, probe.rtt_ms));
    }
    rows.sort_by_key(|row| row.at_ns);
    rows.dedup_by_key(|row| row.at_ns);
    Ok(Imported { rows, remarks: ping_remarks(stamped, interval) })
}

fn ping_remarks(stamped: bool, interval: Nanos) -> Vec<String> {
    let mut remarks = vec![
        "The delay is half a round trip: the two directions may differ, and a ping cannot tell.".to_owned(),
        "What waited in queues is in it, so a queue of the link's own adds to what was there already."
            .to_owned(),
        format!("Loss is of both directions, counted over {} probes around each.", 2 * NEIGHBOURS + 1),
        "The rate is not in it: give the link one, or import an iperf3 of the same time.".to_owned(),
    ];
    if !stamped {
        remarks
            .push(format!("Its lines bear no times ('ping -D'): probes are taken to be {interval} apart."));
    }
    remarks
}

/// Every probe that was answered, by its number; duplicates count once. Numbers have 16 bits and begin again.
fn probes(text: &str) -> Result<BTreeMap<i64, Probe>, TraceError> {
    let mut found = BTreeMap::new();
    let mut latest: i64 = 0;
    for (line, text) in (1..).zip(text.lines()) {
        let Some((sequence, rtt)) =
            value_of(text, "seq=").zip(value_of(text, "time=").or_else(|| value_of(text, "time<")))
        else {
            continue;
        };
        let say = |value, why| TraceError::line(line, value, why, "is it what 'ping' wrote?");
        let number: u16 = sequence.parse().map_err(|_| say(sequence, "is no number of a probe"))?;
        let rtt_ms = rtt.trim_end_matches("ms").parse().ok().filter(|ms| (0.0..=1e6).contains(ms));
        let rtt_ms = rtt_ms.ok_or_else(|| say(rtt, "is no round trip in milliseconds"))?;
        // The nearest number that ends in these bits.
        latest += i64::from(number.wrapping_sub(latest as u16) as i16);
        let stamp_s = text.strip_prefix('[').and_then(|rest| rest.split_once(']')?.0.parse().ok());
        found.entry(latest).or_insert(Probe { stamp_s: stamp_s.filter(|s: &f64| s.is_finite()), rtt_ms });
        if found.len() > ROWS_MAX {
            return Err(TraceError::TooMuch { what: "answers", most: ROWS_MAX as u64 });
        }
    }
    Ok(found)
}

/// The word that follows `name`.
fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_once(name)?.1.split([' ', '\t', ',']).next()
}
