//! Ethernet frames: what the model must know of one, the CE mark, and joining adjacent TCP segments of one flow
//! into one frame for segmentation offload. Pure functions on bytes; any bytes are safe.

use crate::model::Ecn;

/// Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// `struct virtio_net_hdr`: checksum and segmentation state, in front of every frame of the packet sockets.
pub const VNET_BYTES: usize = 10;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_TCP: u8 = 6;
const TCP_PSH: u8 = 0x08;
/// Flags of a plain data segment: ACK, and ECE which a receiver of both directions may set.
const TCP_PLAIN: u8 = 0x10 | 0x40;
const VNET_NEEDS_CSUM: u8 = 1;
const VNET_GSO_TCPV4: u8 = 1;
const VNET_GSO_TCPV6: u8 = 4;
/// Most segments joined: what fits the length field of IPv4 at an MTU of 1500.
const MAX_SEGMENTS: u16 = 44;
const MAX_IP_BYTES: usize = 65_535;

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Whether it is TCP, without options or extensions before it.
pub fn is_tcp(frame: &[u8]) -> bool {
    if frame.len() < ETHERNET_BYTES + 20 {
        return false;
    }
    match be16(frame, 12) {
        ETHERTYPE_IPV4 => frame[23] == PROTOCOL_TCP,
        ETHERTYPE_IPV6 => frame[20] == PROTOCOL_TCP,
        _ => false,
    }
}

/// The frame's ECN codepoint; frames that are not IP have none.
pub fn ecn(frame: &[u8]) -> Ecn {
    if frame.len() < ETHERNET_BYTES + 2 {
        return Ecn::NotEct;
    }
    match be16(frame, 12) {
        ETHERTYPE_IPV4 => Ecn::from_bits(frame[15]),
        ETHERTYPE_IPV6 => Ecn::from_bits(frame[15] >> 4),
        _ => Ecn::NotEct,
    }
}

/// Marks an IP frame with CE, mending the IPv4 header checksum (RFC 1624 equation 3).
pub fn mark_ce(frame: &mut [u8]) {
    if frame.len() < ETHERNET_BYTES + 20 {
        return;
    }
    match be16(frame, 12) {
        ETHERTYPE_IPV4 => {
            let before = be16(frame, 14);
            frame[15] |= 3;
            let after = be16(frame, 14);
            let sum = u32::from(!be16(frame, 24)) + u32::from(!before) + u32::from(after);
            frame[24..26].copy_from_slice(&(!fold(sum)).to_be_bytes());
        }
        ETHERTYPE_IPV6 => frame[15] |= 0x30,
        _ => {}
    }
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn sum_words(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

/// Where things are in a TCP data segment that may be joined with its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the TCP header.
    pub tcp_at: usize,
    /// Offset of the payload.
    pub payload_at: usize,
    /// Bytes of payload.
    pub payload_bytes: usize,
    sequence: u32,
    pushed: bool,
}

impl Segment {
    /// Reads a frame; `None` for everything that is not a plain TCP data segment.
    pub fn parse(frame: &[u8]) -> Option<Segment> {
        if frame.len() < ETHERNET_BYTES + 40 {
            return None;
        }
        let (tcp_at, ip_bytes) = match be16(frame, 12) {
            ETHERTYPE_IPV4 => ipv4(frame)?,
            ETHERTYPE_IPV6 => ipv6(frame)?,
            _ => return None,
        };
        if ip_bytes + ETHERNET_BYTES != frame.len() || frame.len() < tcp_at + 20 {
            return None;
        }
        let payload_at = tcp_at + usize::from(frame[tcp_at + 12] >> 4) * 4;
        let flags = frame[tcp_at + 13];
        let plain = flags & 0x10 != 0 && flags & !(TCP_PLAIN | TCP_PSH) == 0;
        if !plain || payload_at < tcp_at + 20 || payload_at >= frame.len() {
            return None;
        }
        Some(Segment {
            tcp_at,
            payload_at,
            payload_bytes: frame.len() - payload_at,
            sequence: be32(frame, tcp_at + 4),
            pushed: flags & TCP_PSH != 0,
        })
    }
}

fn ipv4(frame: &[u8]) -> Option<(usize, usize)> {
    let ip = &frame[ETHERNET_BYTES..];
    // No options, no fragments, and an identification nobody needs (DF, RFC 6864).
    let simple = ip[0] == 0x45 && ip[9] == PROTOCOL_TCP && be16(ip, 6) == 0x4000;
    simple.then(|| (ETHERNET_BYTES + 20, usize::from(be16(ip, 2))))
}

fn ipv6(frame: &[u8]) -> Option<(usize, usize)> {
    let ip = &frame[ETHERNET_BYTES..];
    let simple = ip[0] >> 4 == 6 && ip[6] == PROTOCOL_TCP;
    simple.then(|| (ETHERNET_BYTES + 40, usize::from(be16(ip, 4)) + 40))
}

/// Segments joined so far.
#[derive(Debug, Clone, Copy)]
pub struct Joined {
    head: Segment,
    segments: u16,
    payload_bytes: usize,
    next_sequence: u32,
    /// A short or pushed segment ends the frame, as in the kernel's own GRO.
    closed: bool,
}

impl Joined {
    /// Begins with one segment.
    pub fn new(head: Segment) -> Joined {
        Joined {
            head,
            segments: 1,
            payload_bytes: head.payload_bytes,
            next_sequence: head.sequence.wrapping_add(head.payload_bytes as u32),
            closed: head.pushed,
        }
    }

    /// Segments joined.
    pub fn segments(&self) -> u16 {
        self.segments
    }

    /// Whether `next` continues `head`: same flow, same header but for the sequence number, next in sequence.
    pub fn accepts(&self, head_frame: &[u8], next_frame: &[u8], next: &Segment) -> bool {
        let head = &self.head;
        !self.closed
            && self.segments < MAX_SEGMENTS
            && next.sequence == self.next_sequence
            && (next.tcp_at, next.payload_at) == (head.tcp_at, head.payload_at)
            && next.payload_bytes <= head.payload_bytes
            && head.payload_at + self.payload_bytes + next.payload_bytes <= MAX_IP_BYTES
            && same_headers(head, head_frame, next_frame)
    }

    /// Adds a segment that [`Joined::accepts`] has accepted.
    pub fn add(&mut self, next: &Segment) {
        self.segments += 1;
        self.payload_bytes += next.payload_bytes;
        self.next_sequence = self.next_sequence.wrapping_add(next.payload_bytes as u32);
        self.closed = next.pushed || next.payload_bytes < self.head.payload_bytes;
        self.head.pushed |= next.pushed;
    }

    /// Rewrites the head (`vnet` header and frame) so that it stands for all segments: lengths, PSH, a partial
    /// checksum, and the size to cut at. One segment alone is left as it came.
    pub fn finish(&self, vnet: &mut [u8], frame: &mut [u8]) {
        if self.segments < 2 {
            return;
        }
        let Segment { tcp_at, payload_at, payload_bytes, pushed, .. } = self.head;
        let tcp_bytes = payload_at - tcp_at + self.payload_bytes;
        frame[tcp_at + 13] |= if pushed { TCP_PSH } else { 0 };
        let is_ipv4 = be16(frame, 12) == ETHERTYPE_IPV4;
        let addresses = if is_ipv4 { 26..34 } else { 22..54 };
        if is_ipv4 {
            set_ipv4_length(frame, tcp_bytes + 20);
        } else {
            frame[18..20].copy_from_slice(&(tcp_bytes as u16).to_be_bytes());
        }
        let pseudo = sum_words(&frame[addresses]) + u32::from(PROTOCOL_TCP) + tcp_bytes as u32;
        frame[tcp_at + 16..tcp_at + 18].copy_from_slice(&fold(pseudo).to_be_bytes());
        vnet[0] = VNET_NEEDS_CSUM;
        vnet[1] = if is_ipv4 { VNET_GSO_TCPV4 } else { VNET_GSO_TCPV6 };
        for (at, value) in [(2, payload_at), (4, payload_bytes), (6, tcp_at), (8, 16)] {
            vnet[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
        }
    }
}

fn set_ipv4_length(frame: &mut [u8], ip_bytes: usize) {
    frame[16..18].copy_from_slice(&(ip_bytes as u16).to_be_bytes());
    frame[24..26].fill(0);
    let sum = fold(sum_words(&frame[14..34]));
    frame[24..26].copy_from_slice(&(!sum).to_be_bytes());
}

/// Everything but lengths, checksums, the IPv4 identification, the sequence number and PSH.
fn same_headers(head: &Segment, a: &[u8], b: &[u8]) -> bool {
    let tcp = head.tcp_at;
    let same = |range: std::ops::Range<usize>| a[range.clone()] == b[range];
    let ip = if tcp == ETHERNET_BYTES + 20 {
        same(14..16) && same(20..24) && same(26..34)
    } else {
        same(14..18) && same(20..54)
    };
    let flags = (a[tcp + 13] ^ b[tcp + 13]) & !TCP_PSH == 0;
    // Ports; acknowledgement and data offset; window; options.
    ip && flags
        && same(0..14)
        && same(tcp..tcp + 4)
        && same(tcp + 8..tcp + 13)
        && same(tcp + 14..tcp + 16)
        && same(tcp + 18..head.payload_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ipv4_segment(sequence: u32, payload: usize, flags: u8, tos: u8) -> Vec<u8> {
        let mut frame = vec![0u8; ETHERNET_BYTES + 40 + payload];
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        frame[14..16].copy_from_slice(&[0x45, tos]);
        frame[20] = 0x40;
        frame[22..24].copy_from_slice(&[64, PROTOCOL_TCP]);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[38..42].copy_from_slice(&sequence.to_be_bytes());
        frame[46..48].copy_from_slice(&[0x50, flags]);
        set_ipv4_length(&mut frame, 40 + payload);
        frame
    }

    fn join(frames: &[Vec<u8>]) -> usize {
        let mut joined = Joined::new(Segment::parse(&frames[0]).unwrap());
        for frame in &frames[1..] {
            let Some(next) = Segment::parse(frame) else { break };
            if !joined.accepts(&frames[0], frame, &next) {
                break;
            }
            joined.add(&next);
        }
        usize::from(joined.segments())
    }

    #[test]
    fn adjacent_segments_of_one_flow_join_until_a_short_or_pushed_one() {
        let at = |n: u32| ipv4_segment(n * 1000, 1000, 0x10, 0);
        assert_eq!(join(&[at(0), at(1), at(2)]), 3);
        assert_eq!(join(&[at(0), ipv4_segment(1000, 400, 0x10, 0), ipv4_segment(1400, 400, 0x10, 0)]), 2);
        assert_eq!(join(&[at(0), ipv4_segment(1000, 1000, 0x18, 0), at(2)]), 2);
    }

    #[test]
    fn a_gap_a_flag_a_mark_or_another_window_keeps_segments_apart() {
        let head = ipv4_segment(0, 1000, 0x10, 2);
        let mut window = ipv4_segment(1000, 1000, 0x10, 2);
        window[48] = 1;
        for other in [
            ipv4_segment(2000, 1000, 0x10, 2),
            ipv4_segment(1000, 1000, 0x11, 2),
            ipv4_segment(1000, 1000, 0x10, 3),
            ipv4_segment(1000, 1200, 0x10, 2),
            window,
        ] {
            assert_eq!(join(&[head.clone(), other]), 1);
        }
    }

    #[test]
    fn a_joined_head_has_valid_lengths_and_header_checksum() {
        let (mut head, next) = (ipv4_segment(0, 1000, 0x10, 0), ipv4_segment(1000, 500, 0x18, 0));
        let mut joined = Joined::new(Segment::parse(&head).unwrap());
        let second = Segment::parse(&next).unwrap();
        assert!(joined.accepts(&head, &next, &second));
        joined.add(&second);
        let mut vnet = [0u8; VNET_BYTES];
        joined.finish(&mut vnet, &mut head);
        assert_eq!(be16(&head, 16), 1540);
        assert_eq!(fold(sum_words(&head[14..34])), 0xffff);
        assert_eq!(head[47] & TCP_PSH, TCP_PSH);
        assert_eq!((vnet[0], vnet[1], u16::from_ne_bytes([vnet[4], vnet[5]])), (1, 1, 1000));
    }

    #[test]
    fn marking_keeps_the_header_checksum_valid() {
        let mut frame = ipv4_segment(0, 10, 0x10, 2);
        mark_ce(&mut frame);
        assert_eq!((ecn(&frame), fold(sum_words(&frame[14..34]))), (Ecn::Ce, 0xffff));
        let mut ipv6 = vec![0u8; 80];
        ipv6[12..14].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
        ipv6[14..16].copy_from_slice(&[0x60, 0x20]);
        assert_eq!(ecn(&ipv6), Ecn::Ect0);
        mark_ce(&mut ipv6);
        assert_eq!((ecn(&ipv6), ipv6[14], ipv6[15]), (Ecn::Ce, 0x60, 0x30));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            mut a in prop::collection::vec(any::<u8>(), 0..200), b in prop::collection::vec(any::<u8>(), 0..200), v6: bool
        ) {
            if a.len() > 55 {
                a[12..16].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60, 0] } else { &[8, 0, 0x45, 0] });
            }
            ecn(&a);
            if let (Some(one), Some(two)) = (Segment::parse(&a), Segment::parse(&b)) {
                Joined::new(one).accepts(&a, &b, &two);
            }
            mark_ce(&mut a);
        }
    }
}
