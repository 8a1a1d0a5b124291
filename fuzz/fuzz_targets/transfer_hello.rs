//! What a stranger sends to `longfat transfer serve`: any bytes are a preamble, messages or an error, however they come
//! in pieces, and no more of them are kept than the longest message has. What is read says the same when it is written
//! and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_transfer::{
    TransferPlan,
    control::{FrameReader, HELLO_MAX_BYTES, Message, PROTOCOL_VERSION, Speaker, encode},
    preamble::{Opening, PREAMBLE_BYTES},
};

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    opens(bytes);
    // Behind the magic word, which is hard to find.
    opens(&[b"LFda", &PROTOCOL_VERSION.to_be_bytes()[..], bytes].concat());
    let mut reader = FrameReader::of_stranger();
    for piece in bytes.chunks(usize::from(*cut).max(1)) {
        reader.push(&piece[..piece.len().min(reader.room_bytes())]);
        assert!(reader.room_bytes() <= HELLO_MAX_BYTES + 4);
        loop {
            match reader.next_message() {
                Ok(Some(message)) => reads_back(&message),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    // Without the frame, which hides the parser from a fuzzer.
    if let Ok(message) = Message::decode(bytes, Speaker::Client) {
        reads_back(&message);
        if let Message::Hello(hello) = &message {
            let _ = hello.plan.check();
        }
    }
    let _ = Message::decode(bytes, Speaker::Server);
    // A plan as 'transfer send --plan' reads it from a file.
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = TransferPlan::parse(text);
    }
});

/// What the first bytes tell does not change as more come; a preamble is written as it was read.
fn opens(bytes: &[u8]) {
    let whole = Opening::of(bytes);
    for length in 0..bytes.len().min(PREAMBLE_BYTES) {
        match (Opening::of(&bytes[..length]), &whole) {
            (Ok(Opening::Undecided), _) => {}
            (part, whole) => assert!(matches!((part, whole), (Ok(a), Ok(b)) if a == *b)),
        }
    }
    if let Ok(Opening::Data(preamble)) = whole {
        assert_eq!(preamble.encode(), bytes[..PREAMBLE_BYTES]);
    }
}

fn reads_back(message: &Message) {
    let Ok(frame) = encode(message) else { return };
    let again = Message::decode(&frame[4..], Speaker::Client);
    assert!(again.is_ok_and(|again| again == *message), "{message:?}");
}
