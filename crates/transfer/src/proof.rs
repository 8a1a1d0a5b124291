//! Proofs that both ends have the same key, without saying it: HMAC-SHA-256 over what was said and over a random number
//! of each end, so that no proof is good for another conversation. Pure, but for the random numbers.

use crate::{
    control::{Hello, Welcome},
    error::{Error, Result},
};
use longfat_host::Key;
use longfat_schema::hex::{from_hex, to_hex};
use std::hint::black_box;

/// Random bytes of each end.
const NONCE_BYTES: usize = 16;

/// What both ends have said before one of them proves something.
#[derive(Debug)]
pub(crate) struct Transcript {
    said: Vec<u8>,
}

impl Transcript {
    /// Transcript of a client's hello and the server's random number.
    pub(crate) fn new(hello: &Hello, server_nonce: &str) -> Transcript {
        // Plain values: they can always be written, and both ends write them alike.
        let mut said = serde_json::to_vec(hello).unwrap_or_default();
        said.push(0);
        said.extend_from_slice(server_nonce.as_bytes());
        Transcript { said }
    }

    /// The client's proof.
    pub(crate) fn of_client(&self, key: &Key) -> String {
        to_hex(&key.tag(&self.client_words()))
    }

    /// Whether the client has the key.
    pub(crate) fn is_of_client(&self, key: &Key, proof: &str) -> bool {
        from_hex(proof).is_some_and(|proof| key.is_tag_of(&self.client_words(), &proof))
    }

    /// The server's proof, of what it answers.
    pub(crate) fn of_server(&self, key: &Key, transfer: u64, token: &str, ports: &[u16]) -> String {
        to_hex(&key.tag(&self.server_words(transfer, token, ports)))
    }

    /// Whether the server has the key, and said that itself.
    pub(crate) fn is_of_server(&self, key: &Key, welcome: &Welcome) -> bool {
        let words = self.server_words(welcome.transfer, &welcome.token, &welcome.ports);
        let proof = welcome.proof.as_deref().and_then(from_hex);
        proof.is_some_and(|proof| key.is_tag_of(&words, &proof))
    }

    fn client_words(&self) -> Vec<u8> {
        [b"longfat transfer: a client\0".as_slice(), &self.said].concat()
    }

    fn server_words(&self, transfer: u64, token: &str, ports: &[u16]) -> Vec<u8> {
        let answer = format!("\0{transfer} {token} {ports:?}");
        [b"longfat transfer: a server\0".as_slice(), &self.said, answer.as_bytes()].concat()
    }
}

/// Whether a number that was shown is the one that is kept, in a time that does not tell how much of it was right.
pub(crate) fn is_same(kept: u128, shown: u128) -> bool {
    let differ = |all: u8, (kept, shown): (u8, u8)| black_box(all | (kept ^ shown));
    kept.to_be_bytes().into_iter().zip(shown.to_be_bytes()).fold(0, differ) == 0
}

/// A number that nobody foresees, in hexadecimal.
pub(crate) fn nonce() -> Result<String> {
    Ok(to_hex(&random_bytes::<NONCE_BYTES>()?))
}

pub(crate) fn random_bytes<const COUNT: usize>() -> Result<[u8; COUNT]> {
    const { assert!(COUNT <= 256, "longer requests may be cut short") };
    let mut bytes = [0u8; COUNT];
    // SAFETY: `bytes` is valid for its length.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), COUNT, 0) };
    if count != COUNT as isize {
        return Err(Error::io("make a random number", std::io::Error::last_os_error()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{control::PROTOCOL_VERSION, plan::TransferPlan};

    fn hello(nonce: &str) -> Hello {
        Hello { version: PROTOCOL_VERSION, nonce: nonce.into(), plan: TransferPlan::default() }
    }

    fn key(byte: u8) -> Key {
        Key::new(&[byte; 32]).unwrap()
    }

    #[test]
    fn a_proof_is_good_for_its_key_its_plan_and_its_conversation_alone() {
        let said = Transcript::new(&hello("a"), "b");
        let proof = said.of_client(&key(1));
        assert!(said.is_of_client(&key(1), &proof));
        assert!(!said.is_of_client(&key(2), &proof));
        assert!(!Transcript::new(&hello("a"), "c").is_of_client(&key(1), &proof));
        assert!(!Transcript::new(&hello("c"), "b").is_of_client(&key(1), &proof));
        let mut other = hello("a");
        other.plan.reverse = true;
        assert!(!Transcript::new(&other, "b").is_of_client(&key(1), &proof));
        for wrong in ["", "00", "zz", "ü", &proof[..62], &format!("{proof}00")] {
            assert!(!said.is_of_client(&key(1), wrong), "{wrong}");
        }
    }

    #[test]
    fn a_client_cannot_pass_off_its_own_proof_as_a_servers() {
        let said = Transcript::new(&hello("a"), "b");
        let welcome = |proof| Welcome {
            version: PROTOCOL_VERSION,
            transfer: 7,
            token: "ff".into(),
            ports: vec![1],
            proof,
        };
        let of_server = |transfer, port| Some(said.of_server(&key(1), transfer, "ff", &[port]));
        assert!(said.is_of_server(&key(1), &welcome(of_server(7, 1))));
        for proof in [None, Some(said.of_client(&key(1))), of_server(7, 2), of_server(8, 1)] {
            assert!(!said.is_of_server(&key(1), &welcome(proof)));
        }
    }

    #[test]
    fn numbers_are_the_same_in_every_bit_or_not_at_all() {
        let number = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        assert!(is_same(number, number));
        assert!((0..128).all(|bit| !is_same(number, number ^ 1 << bit)));
    }
}
