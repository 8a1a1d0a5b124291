//! A control block as an iterator reads it: `struct lf_block` of bpf/tcb.h.

use crate::sockets::connection::{CcName, State, ip};
use std::net::{IpAddr, SocketAddr};

/// The congestion control's own memory in a socket (icsk_ca_priv), 104 bytes.
pub type PrivateState = [u64; 13];

/// The largest bound of cwnd that can be set; the kernel's own default is beyond it, and bounds as little.
pub const UNLIMITED_CLAMP: u32 = i32::MAX as u32;

/// `snd_ssthresh` of a connection that has met no loss yet (TCP_INFINITE_SSTHRESH).
pub const UNLIMITED_SSTHRESH: u32 = 0x7fff_ffff;

/// `struct lf_block`: integers only, no padding.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct RawBlock {
    pub cookie: u64,
    pub state: PrivateState,
    pub netns: u32,
    pub interface: u32,
    pub gateway: [u8; 16],
    pub local: [u8; 16],
    pub remote: [u8; 16],
    pub snd_una: u32,
    pub snd_nxt: u32,
    pub cwnd_segments: u32,
    pub cwnd_credit_segments: u32,
    pub ssthresh_segments: u32,
    pub clamp_segments: u32,
    pub srtt_us: u32,
    pub rttvar_us: u32,
    pub min_rtt_us: u32,
    pub flight_segments: u32,
    pub lost_segments: u32,
    pub mss_bytes: u32,
    pub rto_min_us: u32,
    pub rto_max_ms: u32,
    pub local_port: u16,
    pub remote_port: u16,
    pub family: u8,
    pub gateway_family: u8,
    pub tcp_state: u8,
    pub ca_state: u8,
    pub cc: [u8; 16],
}

/// What can be read of a connection's control block under the socket's lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlBlock {
    /// What the kernel knows the socket by, as in [`super::Connection::cookie`].
    pub cookie: u64,
    /// Inode of the network namespace, as in [`super::NetNamespace::inode`].
    pub netns: u32,
    /// Interface its packets leave by; 0 while no route is cached.
    pub interface: u32,
    /// Router its packets go through; absent where the other end is on the link itself.
    pub gateway: Option<IpAddr>,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// State of RFC 9293.
    pub state: State,
    /// Recovery state by its number in the kernel: 0 open, 1 disorder, 2 cwr, 3 recovery, 4 loss.
    pub ca_state: u8,
    /// Congestion control.
    pub cc: CcName,
    /// First sequence number that is not acknowledged.
    pub snd_una: u32,
    /// First sequence number that was never sent.
    pub snd_nxt: u32,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Slow-start threshold; [`UNLIMITED_SSTHRESH`] before the first loss.
    pub ssthresh_segments: u32,
    /// What cwnd may not exceed.
    pub clamp_segments: u32,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Round-trip time variation.
    pub rttvar_us: u32,
    /// Least round-trip time; absent while none was measured.
    pub min_rtt_us: Option<u32>,
    /// Segments in flight (RFC 6675 pipe).
    pub flight_segments: u32,
    /// Segments thought lost and not repaired.
    pub lost_segments: u32,
    /// Sending maximum segment size.
    pub mss_bytes: u32,
    /// Least retransmission timeout; absent where the kernel does not tell.
    pub rto_min_us: Option<u32>,
    /// Greatest retransmission timeout; absent where the kernel does not tell.
    pub rto_max_ms: Option<u32>,
    /// The congestion control's own memory.
    pub private: PrivateState,
}

impl From<&RawBlock> for ControlBlock {
    fn from(raw: &RawBlock) -> ControlBlock {
        let address = |bytes, port| SocketAddr::new(ip(raw.family, bytes).to_canonical(), port);
        ControlBlock {
            cookie: raw.cookie,
            netns: raw.netns,
            interface: raw.interface,
            gateway: (raw.gateway_family != 0).then(|| ip(raw.gateway_family, &raw.gateway)),
            local: address(&raw.local, raw.local_port),
            remote: address(&raw.remote, raw.remote_port),
            state: State(raw.tcp_state),
            ca_state: raw.ca_state,
            cc: CcName::from_bytes(&raw.cc),
            snd_una: raw.snd_una,
            snd_nxt: raw.snd_nxt,
            cwnd_segments: raw.cwnd_segments,
            ssthresh_segments: raw.ssthresh_segments,
            clamp_segments: raw.clamp_segments,
            srtt_us: raw.srtt_us,
            rttvar_us: raw.rttvar_us,
            // The kernel begins with the greatest number.
            min_rtt_us: Some(raw.min_rtt_us).filter(|us| *us != 0 && *us != u32::MAX),
            flight_segments: raw.flight_segments,
            lost_segments: raw.lost_segments,
            mss_bytes: raw.mss_bytes,
            rto_min_us: (raw.rto_min_us != 0).then_some(raw.rto_min_us),
            rto_max_ms: (raw.rto_max_ms != 0).then_some(raw.rto_max_ms),
            private: raw.state,
        }
    }
}

impl ControlBlock {
    /// Whether a loss is being repaired or cwnd is being reduced: the kernel then decides on cwnd itself.
    pub fn is_recovering(&self) -> bool {
        self.ca_state >= 2
    }
}

/// Blocks out of what an iterator wrote, which ends with a whole one.
pub(super) fn read_all(bytes: &[u8]) -> Vec<ControlBlock> {
    let whole = bytes.chunks_exact(size_of::<RawBlock>());
    // SAFETY: a chunk has the size of a RawBlock, for which every byte pattern is valid; the read may be unaligned.
    whole
        .map(|chunk| ControlBlock::from(&unsafe { chunk.as_ptr().cast::<RawBlock>().read_unaligned() }))
        .collect()
}

/// A moment in a connection's life: all it had sent when this was taken is acknowledged.
///
/// What was sent over an old path must be acknowledged or repaired before the windows of a new one are right
/// (Ishibashi 2003, figure 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Cookie of the connection.
    pub cookie: u64,
    /// `snd_nxt` of the connection at that moment.
    pub snd_nxt: u32,
}

impl Moment {
    /// From now on.
    pub fn of(block: &ControlBlock) -> Moment {
        Moment { cookie: block.cookie, snd_nxt: block.snd_nxt }
    }

    /// Whether everything sent before it has arrived, and nothing is being repaired.
    pub fn has_passed(&self, block: &ControlBlock) -> bool {
        let acknowledged = block.snd_una.wrapping_sub(self.snd_nxt) as i32 >= 0;
        block.cookie == self.cookie && acknowledged && !block.is_recovering()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_moment_passes_with_the_acknowledgement_of_all_that_was_sent_even_across_the_wrap() {
        let mut block = ControlBlock::from(&RawBlock { snd_nxt: 10, ..RawBlock::default() });
        let moment = Moment::of(&block);
        block.snd_una = u32::MAX - 5;
        assert!(!moment.has_passed(&block));
        block.snd_una = 10;
        assert!(moment.has_passed(&block));
        block.ca_state = 3;
        assert!(!moment.has_passed(&block), "it is still repairing");
    }

    proptest! {
        #[test]
        fn any_bytes_are_whole_blocks_and_a_rest(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
            prop_assert_eq!(read_all(&bytes).len(), bytes.len() / size_of::<RawBlock>());
        }
    }
}
