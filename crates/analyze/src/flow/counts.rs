//! Plain counters of one direction, and what its SYN offers.

use serde::Serialize;

/// What a SYN offers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Offer {
    /// MSS option.
    pub mss_bytes: Option<u16>,
    /// Window scale.
    pub window_scale: Option<u8>,
    /// SACK.
    pub sack: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// ECE, CWR and AE as they stood.
    pub ecn_flags: u16,
    /// TCP Fast Open option.
    pub fast_open: bool,
    /// The capture cut the SYN: what is not set here may have been offered.
    pub is_cut: bool,
    /// Payload of the SYN itself.
    pub data_bytes: u32,
}

/// Plain counters of what one end sent, and of the acknowledgements it got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Counts {
    /// All packets.
    pub packets: u64,
    /// Packets with payload.
    pub data_packets: u64,
    /// Segments with payload (a packet above the MSS was to be cut into several).
    pub data_segments: u64,
    /// Packets larger than the MSS.
    pub oversize_packets: u64,
    /// All payload, however often.
    pub payload_bytes: u64,
    /// Payload seen for the first time.
    pub unique_bytes: u64,
    /// Payload sent again.
    pub resent_bytes: u64,
    /// Segments sent again, FIN and SYN among them.
    pub resent_segments: u64,
    /// SYNs among the segments sent again.
    pub resent_syns: u64,
    /// Segments among them that went with a SYN (TCP Fast Open) and were not taken: no loss.
    pub fast_open_segments: u64,
    /// Payload of the SYN that the other end did not take.
    pub fast_open_refused_bytes: u64,
    /// Late segments whose first copy was lost before the capture.
    pub lost_before_segments: u64,
    /// Late segments that others overtook.
    pub reordered_segments: u64,
    /// Copies made by the network or the capture.
    pub duplicate_packets: u64,
    /// Packets that the path damaged: their checksum is wrong, their end's others are right. They move nothing.
    pub damaged_packets: u64,
    /// Acknowledged octets that were never seen: the capture lost them.
    pub unseen_bytes: u64,
    /// Pure ACKs this end got that repeat the one before.
    pub duplicate_acks: u64,
    /// ACKs this end got with SACK blocks.
    pub sack_acks: u64,
    /// ACKs this end got that report a duplicate.
    pub dsacks: u64,
    /// ACKs this end got that acknowledge something new.
    pub acks: u64,
    /// Segments they acknowledged.
    pub acked_segments: u64,
    /// ACKs of one, two, three or four, and more segments.
    pub ack_sizes: [u64; 4],
    /// Octets acknowledged.
    pub acked_bytes: u64,
    /// Times the window this end was offered fell to zero.
    pub zero_windows: u64,
    /// Small packets that waited for the acknowledgement of the small one before, which the receiver delayed; and how
    /// long.
    pub nagle_waits: u32,
    /// Nanoseconds of that.
    pub nagle_ns: i64,
    /// Packets smaller than a segment that fill a window smaller than one.
    pub silly_packets: u32,
    /// Packets that this end sent behind its own reset; no end does, so that the reset is not its.
    pub after_reset: u32,
    /// Keep-alives.
    pub keep_alives: u64,
    /// Probes of a closed window.
    pub window_probes: u64,
    /// Tail loss probes that carried data for the first time (RFC 8985, 7.3): nothing was sent again.
    pub new_data_probes: u64,
    /// Packets, and acknowledgements got, whose numbers lie outside any window: they move nothing.
    pub foreign_packets: u64,
    /// Times its numbers went back by more than any window: two connections between the same ends are in the capture.
    pub renumbered: u32,
    /// Sends with nothing outstanding that came behind payload of the other end, as answers do.
    pub answering_sends: u32,
    /// Other sends with nothing outstanding.
    pub unasked_sends: u32,
    /// Packets with payload beyond the window that was known to be offered: the capture lacks acknowledgements.
    pub beyond_window: u64,
    /// Packets that carry payload, a SYN or a FIN, in segments.
    pub sent_segments: u64,
    /// Packets with payload that are ECN-capable.
    pub ect_packets: u64,
    /// Packets marked CE.
    pub ce_packets: u64,
    /// Packets that tell of marks: with ECE, or where AccECN was agreed with a new count of them.
    pub ece_packets: u64,
    /// Resets.
    pub resets: u64,
}

impl Counts {
    /// Segments that were sent again, those too whose first copy was lost before the capture.
    pub fn repaired_segments(&self) -> u64 {
        self.resent_segments + self.lost_before_segments
    }

    /// Segments sent again because something was thought lost: no SYNs, and nothing that went with one.
    pub fn resent_for_loss(&self) -> u64 {
        self.resent_segments - self.resent_syns - self.fast_open_segments
    }
}
