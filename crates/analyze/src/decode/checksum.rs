//! TCP's checksum (RFC 9293, 3.1; RFC 1071), where a packet was kept whole.

use crate::segment::Checksum;

/// Sum of an address, in the order of this machine: 32 bits at a time, as carries go round.
pub fn address(address: u128) -> u64 {
    // An IPv4 address that is mapped counts as its 32 bits.
    let bits = if address >> 32 == 0xffff { address & 0xffff_ffff } else { address };
    (0..4).map(|word| u64::from(((bits >> (32 * word)) as u32).to_be())).sum()
}

/// Adds, with the carry.
#[inline(always)]
fn plus(sum: u64, other: u64) -> u64 {
    let (sum, is_over) = sum.overflowing_add(other);
    sum + u64::from(is_over)
}

/// Sum of 16-bit words in the order of this machine, in which it is the same but for the order (RFC 1071, 2); the last
/// octet alone is the first of a word.
#[inline(always)]
fn octets(data: &[u8]) -> u64 {
    let (long, rest) = data.as_chunks::<8>();
    let mut sum = 0;
    for eight in long {
        sum = plus(sum, u64::from_ne_bytes(*eight));
    }
    if rest.is_empty() {
        return sum;
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    plus(sum, u64::from_ne_bytes(last))
}

/// Folds a sum to 16 bits, with the carries.
#[inline(always)]
fn folded(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// Protocol 6 and a length: what the pseudo-header has beside addresses.
#[inline(always)]
fn rest_of_pseudo(length: usize) -> u64 {
    u64::from((6 + length as u32).to_be())
}

/// Judges a whole segment, header and payload, between ends whose addresses have this sum.
#[inline(always)]
pub fn judge(ends: u64, segment: &[u8]) -> Checksum {
    let pseudo = ends + rest_of_pseudo(segment.len());
    if folded(plus(octets(segment), pseudo)) == 0xffff {
        Checksum::Right
    } else {
        unset_or_wrong(ends, segment)
    }
}

#[cold]
fn unset_or_wrong(ends: u64, segment: &[u8]) -> Checksum {
    let field = segment.get(16..18).map_or(0, |field| u16::from_ne_bytes([field[0], field[1]]));
    let is_partial = |length| folded(ends + rest_of_pseudo(length)) == field;
    if field == 0 || is_partial(segment.len()) || is_partial(0) { Checksum::Unset } else { Checksum::Wrong }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071's own words: pairs of octets, one after another.
    fn slowly(ends: u64, segment: &[u8]) -> bool {
        let ends = u64::from(u16::from_be(folded(ends)));
        let pairs =
            segment.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
        let mut sum = ends + 6 + segment.len() as u64 + pairs.sum::<u64>();
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum == 0xffff
    }

    #[test]
    fn sums_of_any_length_are_those_of_the_rfc() {
        let mut state = 1u64;
        for length in 20..200usize {
            let mut segment: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8 | 0x80
                })
                .collect();
            let ends = address(state.into()) + address(0xffff_0a00_0001);
            let right = (0..=u16::MAX).find(|sum| {
                segment[16..18].copy_from_slice(&sum.to_be_bytes());
                judge(ends, &segment) == Checksum::Right
            });
            segment[16..18].copy_from_slice(&right.unwrap_or(0).to_be_bytes());
            assert!(slowly(ends, &segment), "{length}");
            segment[19] ^= 0x10;
            assert_eq!(judge(ends, &segment), Checksum::Wrong, "{length}");
        }
    }
}
