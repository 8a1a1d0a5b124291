use super::{table::read_csv, *};
use longfat_schema::units::Nanos;
use proptest::prelude::*;

fn opportunities(text: &str) -> Result<Opportunities, String> {
    Opportunities::read(text.as_bytes()).map_err(|error| error.to_string())
}

fn csv(text: &str) -> Result<Vec<Row>, String> {
    read_csv(text.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn a_line_is_an_opportunity_and_lines_of_one_time_are_several() {
    let read = opportunities("0\n5\n5\r\n9\n").unwrap();
    let moments: Vec<_> = read.moments().iter().map(|m| (m.at, m.count)).collect();
    assert_eq!((moments, read.count(), read.length()), (vec![(0, 1), (5, 2), (9, 1)], 4, 9));
}

#[test]
fn a_file_that_is_no_such_trace_is_refused_with_line_value_and_mend() {
    let said = |text| opportunities(text).unwrap_err();
    assert_eq!(
        said("1\n2.5\n"),
        "line 2: '2.5' is no time in milliseconds; write one time a line, in whole milliseconds, as '17'"
    );
    assert_eq!(said("7\n6\n"), "line 2: '6' is earlier than the line before; order them by time");
    assert!(said("1\n\n2\n").starts_with("line 2: '' is no time"), "as mahimahi: no line is empty");
    assert!(
        said("-1\n").contains("'-1'")
            && said("+1\n").contains("'+1'")
            && said("99999999999\n").contains("line 1")
    );
    assert!(said("").contains("holds no delivery opportunity"));
    assert!(said("0\n0\n").contains("ends at 0 ms, and so has no length"));
}

#[test]
fn plans_hold_opportunities_as_short_text() {
    let read = opportunities("0\n5\n5\n9\n").unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), "\"0 5x2 9\"");
    assert_eq!("0 5x2 9".parse::<Opportunities>().unwrap(), read);
    for bad in ["", "0", "5 4", "5x0", "x", "5x", "1x2x3"] {
        assert!(bad.parse::<Opportunities>().is_err(), "{bad}");
    }
}

#[test]
fn the_most_within_a_time_counts_the_trace_as_it_repeats() {
    let read = opportunities("1\n2\n2\n10\n").unwrap();
    assert_eq!([0, 1, 2, 8, 10, 20].map(|units| read.most_within(units)), [2, 3, 4, 4, 6, 10]);
}

#[test]
fn rows_are_found_by_names_with_units_and_their_time_begins_at_the_first() {
    let rows = csv("# a comment\ntime_s, rate_mbps,delay_ms,loss_percent\n10,8,20,0.5\n\n12.5,0.5,600,100\n")
        .unwrap();
    let first = Row { at_ns: 0, rate_bps: Some(8_000_000), delay_ns: Some(20_000_000), loss: Some(0.005) };
    let second =
        Row { at_ns: 2_500_000_000, rate_bps: Some(500_000), delay_ns: Some(600_000_000), loss: Some(1.0) };
    assert_eq!(rows, [first, second]);
    assert_eq!(csv("\u{feff}loss,time_us\n0.1,3\n").unwrap()[0].loss, Some(0.1));
}

#[test]
fn a_table_that_is_no_trace_is_refused_with_line_value_and_mend() {
    let said = |text| csv(text).unwrap_err();
    assert!(
        said("time_s,speed\n")
            .starts_with("line 1: 'speed' is no column of a trace; columns are time_s, time_ms")
    );
    assert!(said("time_s\n1\n").contains("does not name a time and what is at it"));
    assert!(said("rate_bps,loss\n1,0\n").contains("begin the file with a line like 'time_s,rate_mbps"));
    assert!(said("time_s,rate_bps,rate_mbps\n1,2,3\n").contains("says the same of a row twice"));
    assert!(said("time_s,rate_bps\n0,5\n1\n").starts_with("line 3: '1' has 1 values for 2 columns"));
    assert!(
        said("time_s,loss\n0,1.5\n").starts_with("line 2: '1.5' is no loss; write a number from 0 to 1e0")
    );
    assert!(said("time_s,rate_bps\n0,nan\n").contains("is no rate_bps"));
    assert!(said("time_s,delay_ms\n0,-3\n").contains("'-3' is no delay_ms"));
    assert!(
        said("time_s,rate_bps\n3,5\n3,6\n").starts_with("line 3: '3 s' is not after the row before, 3 s")
    );
    assert!(said("").contains("is empty") && said("time_s,loss\n").contains("holds no row"));
}

#[test]
fn what_is_written_is_read_again() {
    let rows = csv("time_s,rate_bps,delay_ms\n0,12345678,0.25\n0.1,5,10\n").unwrap();
    let text = table::write_csv(&rows, &["made by a test".to_owned()]);
    assert!(text.starts_with("# made by a test\ntime_s,rate_bps,delay_ms\n0,12345678,0.25\n"), "{text}");
    assert_eq!(csv(&text).unwrap(), rows);
}

#[test]
fn a_message_repeats_little_of_a_strangers_file_and_no_control_characters() {
    let said = opportunities(&format!("\u{1b}[2J{}\n", "9".repeat(1000))).unwrap_err();
    assert!(said.len() < 200 && !said.contains('\u{1b}'), "{said}");
}

/// As iperf3 3.12 writes it, shortened.
const IPERF3: &str = r#"{"start":{"connected":[{}],"tcp_mss_default":1448,"test_start":{"protocol":"TCP","blksize":131072}},
    "intervals":[
    {"streams":[],"sum":{"start":0,"end":1,"seconds":1,"bytes":1,"bits_per_second":9e6,"omitted":true,"sender":true}},
    {"streams":[],"sum":{"start":1,"end":2,"seconds":1,"bytes":1,"bits_per_second":1.448e6,"omitted":false,"sender":true}},
    {"streams":[],"sum":{"start":2.000123,"end":3,"seconds":1,"bytes":1,"bits_per_second":2.896e6,"omitted":false}}],
    "end":{}}"#;

#[test]
fn iperf3_intervals_become_rates_of_ip_packets_and_say_what_they_are_not() {
    let Imported { rows, remarks } = read_import(IPERF3).unwrap();
    let found: Vec<_> = rows.iter().map(|row| (row.at_ns, row.rate_bps, row.delay_ns, row.loss)).collect();
    assert_eq!(found, [(0, Some(1_500_000), None, None), (1_000_123_000, Some(3_000_000), None, None)]);
    assert!(remarks[0].contains("an achieved rate is no capacity"), "{remarks:?}");
    let failed = read_import(r#"{"start":{},"intervals":[],"error":"unable to connect"}"#).unwrap_err();
    assert!(failed.contains("iperf3 says: unable to connect"), "{failed}");
    assert!(read_import("{\"a\":").unwrap_err().contains("no iperf3 JSON"));
}

use super::import::Imported;

fn read_import(text: &str) -> Result<Imported, String> {
    import::read(text.as_bytes(), Nanos(1_000_000_000)).map_err(|error| error.to_string())
}

fn read_datagrams(intervals: &[(f64, Option<f64>)]) -> Imported {
    let interval = |(start, (rate_bps, lost)): (usize, &(f64, Option<f64>))| {
        let lost = lost.map_or(String::new(), |percent| format!(r#""lost_percent":{percent},"#));
        format!(r#"{{"sum":{{"start":{start},"bits_per_second":{rate_bps},{lost}"omitted":false}}}}"#)
    };
    let intervals: Vec<String> = intervals.iter().enumerate().map(interval).collect();
    let start = r#"{"test_start":{"protocol":"UDP","blksize":1400}}"#;
    read_import(&format!(r#"{{"start":{start},"intervals":[{}]}}"#, intervals.join(","))).unwrap()
}

#[test]
fn datagrams_lost_now_and_then_are_the_lines_and_those_lost_all_the_time_the_queues() {
    let told = |imported: &Imported| -> Vec<_> {
        imported.rows.iter().map(|row| (row.rate_bps, row.loss)).collect()
    };
    // 1.4 Mbit/s of 1,400 bytes each are 1.428 with headers.
    let line = read_datagrams(&[
        (1.4e6, Some(0.0)),
        (0.7e6, Some(50.0)),
        (1.4e6, Some(0.0)),
        (0.0, Some(100.0)),
        (1.4e6, Some(0.0)),
    ]);
    let sent = Some(1_428_000);
    assert_eq!(
        told(&line),
        [(sent, Some(0.0)), (sent, Some(0.5)), (sent, Some(0.0)), (Some(0), Some(1.0)), (sent, Some(0.0))]
    );
    assert!(line.remarks[1].contains("what was sent") && line.remarks[1].contains("the line's"), "{line:?}");
    let flood = read_datagrams(&[(1.4e6, Some(0.0)), (1.4e6, Some(30.0)), (0.7e6, Some(65.0))]);
    assert_eq!(told(&flood), [(sent, None), (sent, None), (Some(714_000), None)]);
    assert!(flood.remarks[1].contains("the queue's") && flood.remarks.len() == 4, "{flood:?}");
    let sender = read_datagrams(&[(1.4e6, None)]);
    assert_eq!(told(&sender), [(sent, None)]);
    assert!(sender.remarks[1].contains("nobody counted"), "{sender:?}");
}

#[test]
fn while_nobody_answers_all_is_lost() {
    let line = |n: u32| format!("64 bytes from 192.0.2.1: icmp_seq={n} ttl=57 time=20 ms\n");
    let text: String = (1..=10).chain(41..=50).map(line).collect();
    let rows = read_import(&text).unwrap().rows;
    assert_eq!(rows.len(), 50);
    let loss = |second: usize| rows[second].loss.unwrap();
    assert!(rows.iter().all(|row| row.delay_ns == Some(10_000_000)));
    assert_eq!((loss(0), loss(15), loss(25), loss(34), loss(49)), (0.0, 1.0, 1.0, 1.0, 0.0));
    let far = |n: u32| format!("64 bytes: icmp_seq={n} time=20 ms\n");
    let text: String = (0..400).map(|n| far(n * 32_000 % 65_536)).collect();
    assert!(read_import(&text).unwrap_err().contains("probes"), "no more rows than a trace may have");
}

#[test]
fn a_ping_becomes_half_round_trips_and_the_share_that_nobody_answered() {
    let text = "PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.\n\
        [1700000000.020000] 64 bytes from 192.0.2.1: icmp_seq=1 ttl=57 time=20.0 ms\n\
        [1700000000.530000] 64 bytes from 192.0.2.1: icmp_seq=2 ttl=57 time=30 ms\n\
        [1700000000.531000] 64 bytes from 192.0.2.1: icmp_seq=2 ttl=57 time=31 ms (DUP!)\n\
        no answer yet for icmp_seq=3\n\
        [1700000001.540000] 64 bytes from 192.0.2.1: icmp_seq=4 ttl=57 time=40.0 ms\n\n\
        --- 192.0.2.1 ping statistics ---\n4 packets transmitted, 3 received, +1 duplicates, 25% packet loss, time 1500ms\n\
        rtt min/avg/max/mdev = 20.0/30.0/40.0/8.2 ms\n";
    let Imported { rows, remarks } = read_import(text).unwrap();
    let ms: Vec<_> = rows.iter().map(|r| (r.at_ns / 1_000_000, r.delay_ns.unwrap() / 1_000_000)).collect();
    assert_eq!(ms, [(0, 10), (500, 15), (1000, 15), (1500, 20)]);
    assert!(rows.iter().all(|row| row.loss == Some(0.25) && row.rate_bps.is_none()), "{rows:?}");
    assert!(remarks.iter().all(|remark| !remark.contains("bear no times")), "{remarks:?}");
}

#[test]
fn a_ping_without_times_is_as_regular_as_it_is_said_to_be_and_its_numbers_begin_again() {
    let line = |n: u16| format!("64 bytes from 192.0.2.1: seq={n} ttl=57 time=1.5 ms\n");
    let text: String = [65_534, 65_535, 0, 1].map(line).concat();
    let imported = import::read(text.as_bytes(), Nanos(200_000_000)).unwrap();
    let ms: Vec<_> = imported.rows.iter().map(|row| row.at_ns / 1_000_000).collect();
    assert_eq!(ms, [0, 200, 400, 600]);
    assert!(imported.remarks.last().unwrap().contains("200ms apart"), "{:?}", imported.remarks);
    assert!(read_import("64 bytes: seq=1 time=-1 ms\n").unwrap_err().contains("'-1' is no round trip"));
    assert!(read_import("hello\n").unwrap_err().contains("holds no answer to a ping"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(read) = Opportunities::read(&bytes) {
            prop_assert!(read.length() > 0 && read.count() > 0);
            let text = serde_json::to_string(&read).unwrap();
            prop_assert_eq!(serde_json::from_str::<Opportunities>(&text).unwrap(), read);
        }
        let _ = read_csv(&bytes);
        let _ = import::read(&bytes, Nanos(1));
    }

    #[test]
    fn digits_and_lines_are_read_or_refused(text in "[0-9x\n ]{0,60}", table in "[0-9.,e\n-]{0,80}") {
        if let Ok(read) = Opportunities::read(text.as_bytes()) {
            prop_assert!(read.moments().windows(2).all(|pair| pair[0].at < pair[1].at));
            prop_assert_eq!(read.count(), text.lines().count() as u64);
            prop_assert_eq!(read.most_within(read.length() * 3), {
                let most_at_one = read.most_within(0);
                read.count() * 3 + most_at_one
            });
        }
        if let Ok(rows) = csv(&format!("time_s,rate_bps,loss\n{table}")) {
            prop_assert!(rows[0].at_ns == 0 && rows.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns));
            prop_assert_eq!(csv(&table::write_csv(&rows, &[])).map(|again| again.len()), Ok(rows.len()));
        }
    }

    #[test]
    fn the_most_within_a_time_is_what_a_count_of_all_windows_gives(
        gaps in prop::collection::vec((0u32..6, 1u32..3), 1..12), units in 0u64..30,
    ) {
        let mut at = 0;
        let text: String = gaps.iter().map(|(gap, count)| { at += gap; format!("{at}\n").repeat(*count as usize) }).collect();
        let Ok(read) = Opportunities::read(text.as_bytes()) else { return Ok(()) };
        let all: Vec<u64> = (0..40u64)
            .flat_map(|turn| read.moments().iter().flat_map(move |m| vec![(turn, m.at); m.count as usize]))
            .map(|(turn, at)| turn * read.length() + u64::from(at))
            .collect();
        let counted = all.iter().filter(|from| **from <= 2 * read.length()).map(|from| all.iter().filter(|at| (*from..=from + units).contains(*at)).count() as u64);
        prop_assert!(counted.max().unwrap() <= read.most_within(units));
    }
}
