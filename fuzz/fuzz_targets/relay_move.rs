//! Any bytes as what one router's relay says to another's about connections that move: read, and then written again
//! with the same meaning, or refused with words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_relay::moving::message::{MOST_NAMED, MOST_QUEUED_BYTES, Message};

fuzz_target!(|bytes: &[u8]| {
    match Message::parse(bytes) {
        Ok(message) => {
            if let Message::Put(record, queues) = &message {
                assert!(queues.bytes() <= MOST_QUEUED_BYTES);
                for (leg, sent) in record.legs.iter().zip(&queues.unacknowledged) {
                    assert_eq!(leg.unacknowledged_bytes as usize, sent.len());
                }
            }
            if let Message::Go(numbers) | Message::Taken(numbers) = &message {
                assert!(numbers.len() <= MOST_NAMED);
            }
            assert_eq!(Message::parse(&message.bytes()), Ok(message));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
