//! TCP's checksum (RFC 9293, 3.1; RFC 1071), where a packet was kept whole.

/// What a packet's checksum says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Checksum {
    /// Not all that it covers was kept.
    #[default]
    Unchecked,
    /// It is right.
    Right,
    /// It is left to the interface: zero, or the sum of the pseudo-header alone, with or without the length.
    Unset,
    /// It is wrong.
    Wrong,
}

impl Checksum {
    /// As tables have it.
    pub fn name(self) -> &'static str {
        match self {
            Checksum::Unchecked => "unchecked",
            Checksum::Right => "right",
            Checksum::Unset => "unset",
            Checksum::Wrong => "wrong",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Checksum {
        let all = [Checksum::Right, Checksum::Unset, Checksum::Wrong];
        all.into_iter().find(|one| one.name() == name).unwrap_or_default()
    }
}

/// Sum of an address, as if of words of 32 bits: carries go round, so that it is the same of 16.
pub fn address(address: u128) -> u64 {
    // An IPv4 address that is mapped counts as its 32 bits.
    let bits = if address >> 32 == 0xffff { address & 0xffff_ffff } else { address };
    (0..4).map(|word| (bits >> (32 * word)) as u64 & 0xffff_ffff).sum()
}

/// Adds two halves.
#[inline(always)]
fn halves(sum: u64) -> u64 {
    (sum >> 32) + (sum & 0xffff_ffff)
}

/// Sum of 16-bit words in the order of this machine, in which it is the same but for the order (RFC 1071, 2); the last octet
/// alone is the first of a word.
#[inline(always)]
fn octets(data: &[u8]) -> u64 {
    let (long, rest) = data.as_chunks::<8>();
    let mut sum = 0;
    for eight in long {
        sum += halves(u64::from_ne_bytes(*eight));
    }
    let mut last = [0; 8];
    if !rest.is_empty() {
        last[..rest.len()].copy_from_slice(rest);
    }
    sum + halves(u64::from_ne_bytes(last))
}

/// Folds a sum to 16 bits, with the carries.
#[inline(always)]
fn folded(sum: u64) -> u16 {
    let sum = halves(halves(sum));
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// Judges a whole segment, header and payload, between ends whose addresses have this sum.
#[inline(always)]
pub fn judge(ends: u64, segment: &[u8]) -> Checksum {
    let pseudo = ends + 6 + segment.len() as u64;
    let sum = pseudo + u64::from(u16::from_be(folded(octets(segment))));
    if folded(sum) == 0xffff { Checksum::Right } else { unset_or_wrong(ends, segment) }
}

#[cold]
fn unset_or_wrong(ends: u64, segment: &[u8]) -> Checksum {
    let pseudo = ends + 6 + segment.len() as u64;
    let field = segment.get(16..18).map_or(0, |field| u16::from_be_bytes([field[0], field[1]]));
    let is_unset = [0, folded(pseudo), folded(ends + 6)].contains(&field);
    if is_unset { Checksum::Unset } else { Checksum::Wrong }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071's own words: pairs of octets, one after another.
    fn slowly(ends: u64, segment: &[u8]) -> bool {
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
