//! Any datagram is read or rejected; what is read is what a holder of the key can send again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_mobility::{Key, announcement::Announcement};

fuzz_target!(|bytes: &[u8]| {
    let Ok(key) = Key::new(&[7; 32]) else { return };
    assert!(Announcement::open(bytes, std::slice::from_ref(&key)).is_err(), "forged");
    // The tag hides the parser from a fuzzer: the same bytes with a right one.
    if let Ok(read) = Announcement::read_said(bytes) {
        let Ok(datagram) = read.seal(&key) else { panic!("it was read, so that it fits") };
        assert_eq!(Announcement::open(&datagram, &[key]), Ok(read));
    }
});
