//! TCP's checksum (RFC 9293, 3.1; RFC 1071), where a packet was kept whole.

/// What a packet's checksum says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

/// Sum of an address, as if of 16-bit words.
fn address(address: u128) -> u64 {
    // An IPv4 address that is mapped counts as its 32 bits.
    let bits = if address >> 32 == 0xffff { address & 0xffff_ffff } else { address };
    (0..4).map(|word| (bits >> (32 * word)) as u64 & 0xffff_ffff).sum()
}

/// Sum of 16-bit words in network order; the last octet alone is the first of a word.
fn octets(data: &[u8]) -> u64 {
    let (words, rest) = data.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum::<u64>() + u64::from(u32::from_be_bytes(last))
}

/// Folds a sum of 32-bit words to 16 bits, with the carries.
fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Judges a whole segment, header and payload, between two addresses (IPv4's mapped).
pub fn judge(source: u128, destination: u128, segment: &[u8]) -> Checksum {
    let ends = address(source) + address(destination);
    let pseudo = ends + 6 + segment.len() as u64;
    if folded(pseudo + octets(segment)) == 0xffff {
        return Checksum::Right;
    }
    let field = segment.get(16..18).map_or(0, |field| u16::from_be_bytes([field[0], field[1]]));
    let is_unset = [0, folded(pseudo), folded(ends + 6)].contains(&field);
    if is_unset { Checksum::Unset } else { Checksum::Wrong }
}
