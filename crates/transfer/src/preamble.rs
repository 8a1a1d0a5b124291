//! What a data connection sends before anything else: to which transfer it belongs, and which of its streams it is.
//! Pure.
//!
//! Control connections come to the same port. They begin with the length of a message, which is never as large as the
//! first bytes of a preamble are.

use crate::control::{FrameError, PROTOCOL_VERSION};

/// Length of a preamble.
pub const PREAMBLE_BYTES: usize = 36;
/// First bytes of a preamble.
const MAGIC: [u8; 4] = *b"LFda";

/// What a data connection says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// The transfer's number at its server.
    pub transfer: u64,
    /// The transfer's token, which only its client knows.
    pub token: u128,
    /// Stream number, from 0 on.
    pub stream: u32,
}

impl Preamble {
    /// The preamble as it is sent: magic, version, transfer, token, stream, each in network byte order.
    pub fn encode(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&PROTOCOL_VERSION.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.transfer.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.token.to_be_bytes());
        bytes[32..].copy_from_slice(&self.stream.to_be_bytes());
        bytes
    }

    /// The preamble behind the magic bytes, which are not looked at.
    ///
    /// # Errors
    /// A version that is not this program's.
    fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Preamble, FrameError> {
        let word = |range: std::ops::Range<usize>| {
            bytes[range].iter().fold(0u128, |word, byte| word << 8 | u128::from(*byte))
        };
        match word(4..8) as u32 {
            PROTOCOL_VERSION => {
                let (transfer, stream) = (word(8..16) as u64, word(32..36) as u32);
                Ok(Preamble { transfer, token: word(16..32), stream })
            }
            theirs => Err(FrameError::Version(theirs)),
        }
    }
}

/// What a connection is for, as far as its first bytes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Too little has come to tell.
    Undecided,
    /// Control messages, or what is none: whoever reads them tells.
    Control,
    /// The payload of one stream.
    Data(Preamble),
}

impl Opening {
    /// Reads the first bytes of a connection, as many as have come; beyond [`PREAMBLE_BYTES`] nothing is looked at.
    ///
    /// # Errors
    /// A preamble of another version.
    pub fn of(bytes: &[u8]) -> Result<Opening, FrameError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Ok(Opening::Control);
        }
        bytes.first_chunk().map_or(Ok(Opening::Undecided), |whole| Preamble::decode(whole).map(Opening::Data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::FRAME_MAX_BYTES;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_preamble_reads_back_once_it_is_whole(transfer: u64, token: u128, stream: u32, more: u8) {
            let preamble = Preamble { transfer, token, stream };
            let mut bytes = preamble.encode().to_vec();
            for length in 0..PREAMBLE_BYTES {
                prop_assert_eq!(Opening::of(&bytes[..length]).unwrap(), Opening::Undecided);
            }
            bytes.push(more);
            prop_assert_eq!(Opening::of(&bytes).unwrap(), Opening::Data(preamble));
        }

        #[test]
        fn no_length_of_a_message_is_taken_for_a_preamble(bytes in 0..=FRAME_MAX_BYTES as u32, body: Vec<u8>) {
            let frame = [&bytes.to_be_bytes(), body.as_slice()].concat();
            prop_assert_eq!(Opening::of(&frame).unwrap(), Opening::Control);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Opening::of(&bytes);
            let _ = Opening::of(&[&MAGIC, bytes.as_slice()].concat());
        }
    }

    #[test]
    fn a_preamble_of_another_version_is_named() {
        let mut bytes = Preamble { transfer: 1, token: 2, stream: 3 }.encode();
        bytes[7] = 99;
        assert!(matches!(Opening::of(&bytes), Err(FrameError::Version(99))));
    }
}
