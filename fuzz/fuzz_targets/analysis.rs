//! Any packets as a capture through the whole analysis: no panic, the sums are those of the packets, and no figure
//! contradicts another.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_analyze::{
    Settings,
    analysis::analyze,
    capture::{LinkType, reader::CaptureReader, write::PcapWriter},
    contradictions::contradictions,
};

fuzz_target!(|packets: Vec<(u32, Vec<u8>)>| {
    let mut writer = PcapWriter::new(Vec::new(), LinkType(101), 65_535).expect("memory takes it");
    // At a time that is: a header of zeros is none.
    let mut time_ns = 1_000_000_000;
    for (gap_us, data) in &packets {
        time_ns += i64::from(*gap_us) * 1000;
        writer.packet(time_ns, data.len() as u32, data).expect("memory takes it");
    }
    let file = std::io::Cursor::new(writer.into_inner());
    let reader =
        CaptureReader::new(Box::new(file) as Box<dyn std::io::Read + Send>, "fuzz").expect("a capture");
    let analysis =
        analyze(vec![reader], Settings { detailed: true, ..Settings::default() }, |_| {}).expect("read");
    assert_eq!(analysis.capture.packets, packets.len() as u64);
    assert_eq!(contradictions(&analysis), Vec::<String>::new());
});
