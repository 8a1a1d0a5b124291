//! Messages of the control connection: JSON behind a 4-byte big-endian length, bounded.
//!
//! ```text
//! client                                   server
//!   Hello {version, plan}          ──▶
//!                                  ◀──     Welcome {version, token, ports}  or  Refused {version, reason}
//!   Ping ⇄ Pong                             clock offset on the idle path; later: signs of life
//!   (data connections: token, stream number)
//!                                  ◀──     Ready
//!   Start                          ──▶     only when the server sends: it begins
//!                                  ◀──     Records, while it runs
//!   Results                        ⇄       Results
//! ```

use crate::ends::{SinkEnd, SourceEnd};
use longfat_schema::record::Record;
use serde::{Deserialize, Serialize};

/// Version of the protocol. The ends must have the same.
pub const PROTOCOL_VERSION: u32 = 3;
/// Largest message. Longer ones are refused before they are read.
pub const FRAME_MAX_BYTES: usize = 1 << 20;
/// Most records in one message.
pub const RECORDS_MAX: usize = 512;

/// What the ends say to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    /// Opens the conversation. `plan` is decoded only when the version fits.
    Hello {
        /// The client's protocol version.
        version: u32,
        /// A [`crate::TransferPlan`].
        plan: serde_json::Value,
    },
    /// The server agrees.
    Welcome {
        /// The server's protocol version.
        version: u32,
        /// What each data connection must show, in hexadecimal.
        token: String,
        /// Where data connections go: one TCP port, or one UDP port per stream.
        ports: Vec<u16>,
    },
    /// The server does not agree.
    Refused {
        /// The server's protocol version.
        version: u32,
        /// Why, for a person.
        reason: String,
    },
    /// A sign of life.
    Ping {
        /// CLOCK_MONOTONIC of the asking end.
        time_us: i64,
    },
    /// The answer.
    Pong {
        /// From the question.
        ping_us: i64,
        /// CLOCK_MONOTONIC of the answering end.
        time_us: i64,
    },
    /// All data connections are there.
    Ready,
    /// Payload may flow.
    Start,
    /// What the server measured since the last such message.
    Records {
        /// At most [`RECORDS_MAX`].
        records: Vec<Record>,
    },
    /// End the transfer early, keeping what was measured.
    Stop {
        /// Why, for a person.
        reason: String,
    },
    /// What this end's streams came to. Its last message.
    Results {
        /// Of the sending end.
        sources: Vec<SourceEnd>,
        /// Of the receiving end.
        sinks: Vec<SinkEnd>,
    },
}

/// Bytes that are no message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is out of bounds.
    #[error("a message of {0} bytes (the limit is {FRAME_MAX_BYTES})")]
    TooLong(usize),
    /// Not one of ours.
    #[error("an unreadable message: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// The message as bytes to be sent.
pub fn encode(message: &Message) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    if length > FRAME_MAX_BYTES {
        return Err(FrameError::TooLong(length));
    }
    frame[..4].copy_from_slice(&(length as u32).to_be_bytes());
    Ok(frame)
}

/// Puts messages together from bytes that arrive in chunks of any size.
#[derive(Debug, Default)]
pub struct FrameReader {
    held: Vec<u8>,
}

impl FrameReader {
    /// Takes bytes read from the connection.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one. After an error the connection is of no more use.
    pub fn next_message(&mut self) -> Result<Option<Message>, FrameError> {
        let Some(&[a, b, c, d]) = self.held.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > FRAME_MAX_BYTES {
            return Err(FrameError::TooLong(length));
        }
        let Some(body) = self.held.get(4..4 + length) else { return Ok(None) };
        let message = serde_json::from_slice(body)?;
        self.held.drain(..4 + length);
        Ok(Some(message))
    }
}

/// What a data connection sends before its payload: which transfer, which stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// The transfer's token.
    pub token: u128,
    /// Stream number.
    pub stream: u32,
}

/// Length of a preamble.
pub const PREAMBLE_BYTES: usize = 24;
const PREAMBLE_MAGIC: [u8; 4] = *b"LFda";

impl Preamble {
    /// As sent.
    pub fn encode(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..4].copy_from_slice(&PREAMBLE_MAGIC);
        bytes[4..20].copy_from_slice(&self.token.to_be_bytes());
        bytes[20..].copy_from_slice(&self.stream.to_be_bytes());
        bytes
    }

    /// `None` for anything else.
    pub fn decode(bytes: [u8; PREAMBLE_BYTES]) -> Option<Preamble> {
        let word = |range: std::ops::Range<usize>| {
            bytes[range].iter().fold(0u128, |word, byte| word << 8 | u128::from(*byte))
        };
        let ours = bytes[..4] == PREAMBLE_MAGIC;
        ours.then(|| Preamble { token: word(4..20), stream: word(20..24) as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<Message> {
        vec![
            Message::Ready,
            Message::Refused { version: 7, reason: "no".into() },
            Message::Welcome { version: 1, token: "ff".into(), ports: vec![1, 65535] },
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(sizes in prop::collection::vec(1usize..50, 1..10)) {
            let bytes: Vec<u8> = messages().iter().flat_map(|message| encode(message).unwrap()).collect();
            let (mut reader, mut found, mut at) = (FrameReader::default(), Vec::new(), 0);
            for size in sizes.iter().cycle() {
                if at == bytes.len() { break }
                let end = (at + size).min(bytes.len());
                reader.push(&bytes[at..end]);
                at = end;
                while let Some(message) = reader.next_message().unwrap() { found.push(message); }
            }
            prop_assert_eq!(found, messages());
        }

        #[test]
        fn arbitrary_bytes_never_panic_nor_are_kept_without_bound(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..20)
        ) {
            let mut reader = FrameReader::default();
            for chunk in &chunks {
                reader.push(chunk);
                while let Ok(Some(_)) = reader.next_message() {}
            }
        }

        #[test]
        fn arbitrary_json_is_a_message_or_an_error(text in "\\{\"message\":\"[a-z]{0,8}\".{0,40}\\}") {
            let mut frame = (text.len() as u32).to_be_bytes().to_vec();
            frame.extend_from_slice(text.as_bytes());
            let mut reader = FrameReader::default();
            reader.push(&frame);
            let _ = reader.next_message();
        }

        #[test]
        fn a_preamble_reads_back(token: u128, stream: u32, rubbish: [u8; PREAMBLE_BYTES]) {
            let preamble = Preamble { token, stream };
            prop_assert_eq!(Preamble::decode(preamble.encode()), Some(preamble));
            let _ = Preamble::decode(rubbish);
        }
    }

    #[test]
    fn a_web_browser_is_refused_at_its_first_bytes() {
        let mut reader = FrameReader::default();
        reader.push(b"GET / HTTP/1.1\r\n");
        assert!(matches!(reader.next_message(), Err(FrameError::TooLong(_))));
    }
}
