//! What Linux counts in a send buffer besides payload.

/// Header room and skb_shared_info of a kernel's buffer.
const HEAD_BYTES: u32 = 320 + 320;
/// The sk_buff itself.
const SK_BUFF_BYTES: u64 = 256;

/// What a kernel's buffer takes of a send buffer besides its payload, in bytes (SKB_TRUESIZE).
pub const SKB_BYTES: u64 = HEAD_BYTES as u64 + SK_BUFF_BYTES;

/// What Linux reserves in the send buffer for a segment, in bytes (tcp_sndbuf_expand): the buffer's head and payload,
/// rounded up to a power of two, and the sk_buff.
pub fn reserved_bytes(mss_bytes: u32) -> u64 {
    u64::from((mss_bytes + HEAD_BYTES).next_power_of_two()) + SK_BUFF_BYTES
}
