//! The page of a packet capture.
#![allow(clippy::unwrap_used)]

mod packets;

use longfat_analyze::{
    Settings,
    analysis::{Analysis, analyze},
    capture::{LinkType, reader::CaptureReader, write::PcapWriter},
};
use longfat_report::capture::html;
use packets::packet;

fn transfer(segments: u32) -> Analysis {
    analysed(|writer| write_transfer(writer, segments))
}

fn analysed(write: impl FnOnce(&mut PcapWriter<Vec<u8>>)) -> Analysis {
    let mut writer = PcapWriter::new(Vec::new(), LinkType(101), 96).unwrap();
    write(&mut writer);
    let bytes = writer.into_inner();
    let reader = CaptureReader::new(bytes.as_slice(), "memory").unwrap();
    analyze(vec![reader], Settings { detailed: true, ..Settings::default() }, |_| {}).unwrap()
}

fn write_transfer(writer: &mut PcapWriter<Vec<u8>>, segments: u32) {
    for n in 0..segments {
        let at = 1_700_000_000_000_000_000 + i64::from(n) * 1_000_000;
        let (data, data_length) = packet(true, n * 1000, 0, 1000);
        writer.packet(at, data_length, &data).unwrap();
        let (ack, ack_length) = packet(false, 0, (n + 1) * 1000, 0);
        writer.packet(at + 300_000, ack_length, &ack).unwrap();
    }
}

#[test]
fn the_page_begins_with_the_flow_that_matters_most() {
    let mut analysis = transfer(300);
    let mut small = analysis.flows[0].clone();
    small.findings.clear();
    for direction in &mut small.directions {
        direction.from = direction.from.replace("10.0.0.", "10.9.9.");
        direction.to = direction.to.replace("10.0.0.", "10.9.9.");
        direction.counts.unique_bytes /= 4;
    }
    // As it stands the large flow is first; the small one that lost seconds comes before it.
    let lead = |analysis: &Analysis| {
        let page = html(analysis, "two.pcap");
        let lead = page.split("<p class=\"lead\">").nth(1).unwrap().split("</p>").next().unwrap().to_owned();
        let first = page.split("id=\"f1\"").nth(1).unwrap().split("</h3>").next().unwrap().to_owned();
        (lead, first)
    };
    analysis.flows[0].findings.clear();
    analysis.flows.push(small);
    let (said, drawn) = lead(&analysis);
    assert!(
        said.contains("10.0.0.1") && said.contains("carries most") && drawn.contains("10.0.0.1"),
        "{said} {drawn}"
    );
    let from = analysis.flows[1].directions[0].from.clone();
    analysis.flows[1].findings.push(longfat_analyze::findings::Finding {
        kind: longfat_analyze::findings::Kind::Timeouts,
        from,
        what: "it was silent".to_owned(),
        evidence: "a timeout".to_owned(),
        at_s: 0.0,
        cost_s: 0.1,
    });
    let (said, drawn) = lead(&analysis);
    assert!(
        said.contains("10.9.9.1") && said.contains("100 ms of") && drawn.contains("10.9.9.1"),
        "{said} {drawn}"
    );
    // One that carries next to nothing does not lead, whatever it lost.
    for direction in &mut analysis.flows[1].directions {
        direction.counts.unique_bytes /= 100;
    }
    assert!(lead(&analysis).0.contains("10.0.0.1"));
}

#[test]
fn the_page_of_a_capture_has_its_figures_and_fetches_nothing() {
    let page = html(&transfer(500), "slow.pcap");
    for title in [
        "Sequence and acknowledgement",
        "Outstanding",
        "RTT from the capture on",
        "Time between data packets",
        "Time between ACKs",
    ] {
        assert!(page.contains(title), "{title}");
    }
    assert!(page.contains("10.0.0.1:40000 → 10.0.0.2:80"));
    for fetched in ["src=", "href=\"http", "url(", "@import", "NaN", ">inf"] {
        assert!(!page.contains(fetched), "{fetched}");
    }
}

#[test]
fn a_name_cannot_bring_markup_into_the_page() {
    let page = html(&transfer(3), "<script>alert(1)</script>.pcap");
    assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;alert"));
}
