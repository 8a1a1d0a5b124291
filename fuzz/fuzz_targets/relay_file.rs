//! Any text as a relay's file: read and resolved, or refused with words; what is resolved is a plan that can be written
//! down.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_relay::spec::RelaySpec;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(error) = RelaySpec::parse(text).and_then(|spec| spec.resolve()) {
        assert!(!error.to_string().is_empty());
    }
});
