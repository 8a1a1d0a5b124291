//! Streams whose bytes tell their place.

use std::sync::OnceLock;

/// A prime: no loss of a round number of bytes goes unnoticed.
const PERIOD: usize = 1_048_573;
/// How far the streams of two seeds are apart.
const APART: u64 = 7919;

/// Bytes of the stream of that seed, from `place` on.
pub fn bytes(seed: u64, place: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let some = at(seed, place + bytes.len() as u64);
        bytes.extend_from_slice(&some[..some.len().min(length - bytes.len())]);
    }
    bytes
}

/// Panics at the first byte that is not the stream's from `place` on.
pub fn check(seed: u64, place: u64, got: &[u8]) {
    let expected = bytes(seed, place, got.len());
    if got != expected {
        let same = got.iter().zip(&expected).take_while(|(got, expected)| got == expected).count();
        panic!("byte {} of stream {seed} differs", place + same as u64);
    }
}

/// The stream from there on, as far as the table goes.
fn at(seed: u64, place: u64) -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    let table = TABLE.get_or_init(|| (0..PERIOD as u64).map(scrambled).collect());
    &table[(seed.wrapping_mul(APART).wrapping_add(place) % PERIOD as u64) as usize..]
}

/// The first byte of splitmix64.
fn scrambled(word: u64) -> u8 {
    let value = word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (value ^ (value >> 27)) as u8
}

#[test]
fn pieces_of_a_stream_make_the_stream() {
    let whole = bytes(3, 0, 3 * PERIOD);
    for (place, length) in [(0, 100), (1, 7), (13, 50), (PERIOD - 5, 10), (99, PERIOD + 1), (50, 0)] {
        assert_eq!(bytes(3, place as u64, length), whole[place..place + length]);
        check(3, place as u64, &whole[place..place + length]);
    }
    assert!(std::panic::catch_unwind(|| check(3, 1, &whole[..9])).is_err());
    assert_ne!(bytes(4, 0, 100), whole[..100]);
}
