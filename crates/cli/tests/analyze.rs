//! `longfat analyze` as a person uses it. Needs no privileges.

use longfat_analyze::capture::{LinkType, write::PcapWriter};
use std::{
    fs::File,
    path::Path,
    process::{Command, Output, Stdio},
};

/// A transfer of 200 segments of 1000 octets, one of them sent twice.
fn capture(path: &Path) {
    let mut writer = PcapWriter::new(File::create(path).unwrap(), LinkType(101), 96).unwrap();
    let mut at = 1_700_000_000_000_000_000;
    for n in (0..200).chain([199]) {
        at += 1_000_000;
        writer.packet(at, 1040, &headers(n * 1000)).unwrap();
    }
}

fn headers(seq: u32) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0x04, 0x10, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend([0x9c, 0x40, 0, 80]);
    packet.extend(seq.to_be_bytes());
    packet.extend([0, 0, 0, 0, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
    packet
}

fn longfat(arguments: &[&str], input: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.arg("analyze").args(arguments).stdin(input).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

#[test]
fn a_capture_is_told_as_text_as_json_and_as_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let (file, page) = (directory.path().join("a.pcap"), directory.path().join("a.html"));
    capture(&file);
    let (file, page) = (file.to_str().unwrap(), page.to_str().unwrap());
    let told = longfat(&[file, "--html", page], Stdio::null());
    let text = String::from_utf8(told.stdout.clone()).unwrap();
    assert_eq!(code(&told), 0, "{text}");
    assert!(text.contains("201 packets") && text.contains("10.0.0.1:40000 > 10.0.0.2:80"), "{text}");
    assert!(std::fs::read_to_string(page).unwrap().contains("Sequence and acknowledgement"));
    let json = longfat(&["-", "--json"], File::open(file).unwrap().into());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["flows"][0]["directions"][0]["resent_bytes"], 1000);
}

#[test]
fn tables_hold_what_json_says() {
    use longfat_analyze::tables::{EpisodeRow, FindingRow, FlowRow, SeriesRow};
    use longfat_schema::run::read_table;
    let directory = tempfile::tempdir().unwrap();
    let (file, tables) = (directory.path().join("a.pcap"), directory.path().join("new/tables"));
    capture(&file);
    let told =
        longfat(&[file.to_str().unwrap(), "--json", "--parquet", tables.to_str().unwrap()], Stdio::null());
    assert_eq!(code(&told), 0);
    let json: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    let main = &json["flows"][0]["directions"][0];
    let flows = read_table::<FlowRow>(&tables.join("flows.parquet")).unwrap();
    assert_eq!(flows.len(), 2);
    assert!(flows[0].is_client && !flows[1].is_client);
    assert_eq!(flows[0].resent_bytes, main["resent_bytes"].as_u64().unwrap());
    assert_eq!(flows[0].throughput_bps, main["throughput_bps"].as_f64());
    let series = read_table::<SeriesRow>(&tables.join("series.parquet")).unwrap();
    assert_eq!(series.len(), main["series"]["rate_bps"].as_array().unwrap().len());
    let episodes = read_table::<EpisodeRow>(&tables.join("episodes.parquet")).unwrap();
    assert_eq!(episodes.iter().map(|row| row.resent_segments).sum::<u64>(), 1);
    let findings = read_table::<FindingRow>(&tables.join("findings.parquet")).unwrap();
    assert_eq!(findings.len(), json["flows"][0]["findings"].as_array().unwrap().len());
    let refused = longfat(&[file.to_str().unwrap(), "--parquet", file.to_str().unwrap()], Stdio::null());
    assert_eq!(code(&refused), 2);
}

#[test]
fn a_missed_expectation_ends_with_1_and_a_met_one_with_0() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.pcap");
    capture(&file);
    let file = file.to_str().unwrap();
    let met = longfat(&[file, "--expect", "retransmissions < 1%", "--expect", "damage == 0"], Stdio::null());
    assert_eq!(code(&met), 0);
    let missed = longfat(&[file, "--expect", "retransmissions < 0.1%"], Stdio::null());
    assert_eq!(code(&missed), 1);
    assert!(String::from_utf8(missed.stderr).unwrap().contains("retransmissions < 0.1%"));
}

#[test]
fn what_is_no_capture_and_what_is_no_expectation_end_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.txt");
    std::fs::write(&file, "this is only text, and no capture").unwrap();
    let file = file.to_str().unwrap();
    let refused = longfat(&[file], Stdio::null());
    assert_eq!(code(&refused), 2);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("neither pcap nor pcapng"));
    assert_eq!(code(&longfat(&["/nonexistent.pcap"], Stdio::null())), 2);
    assert_eq!(code(&longfat(&[file, "--expect", "all is well"], Stdio::null())), 2);
}
