//! Any bytes as a file of 'longfat tcb save': read or refused; what passes its check asks for nothing that may not be
//! set.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_kernel::tcb::SavedBlocks;

fuzz_target!(|bytes: &[u8]| {
    let Ok(blocks) = serde_json::from_slice::<SavedBlocks>(bytes) else { return };
    for saved in blocks.connections.iter().filter(|saved| saved.check().is_ok()) {
        assert!((1..=1_000_000).contains(&saved.cwnd_segments), "{saved:?}");
        assert!(saved.ssthresh_segments != Some(0) && (1..=15).contains(&saved.cc.len()), "{saved:?}");
        assert!(!saved.cc.contains(char::is_control), "{saved:?}");
    }
});
