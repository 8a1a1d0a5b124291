//! What travels: TCP segments and datagrams, in a pool, named by number.

/// Number of a packet in the pool.
pub type PacketId = u32;

/// What the path model carries: a router need not look at the packet itself, which is likely far from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// The packet.
    pub id: PacketId,
    /// Where in the route table its next direction is.
    pub route: u32,
}

/// Version of IP by which a flow goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4, whose header has 20 bytes.
    #[default]
    Ipv4,
    /// IPv6, whose header has 40 bytes.
    Ipv6,
}

impl Family {
    fn ip_bytes(self) -> u32 {
        match self {
            Family::Ipv4 => 20,
            Family::Ipv6 => 40,
        }
    }

    /// IP and TCP headers with the timestamp option (RFC 7323), as Linux sends them.
    pub fn tcp_header_bytes(self) -> u32 {
        self.ip_bytes() + 20 + 12
    }

    /// IP and UDP headers.
    pub fn udp_header_bytes(self) -> u32 {
        self.ip_bytes() + 8
    }
}

/// SACK blocks beside a timestamp (RFC 2018, section 3).
pub const SACK_BLOCKS: usize = 3;

/// Bits of [`Segment::flags`].
pub mod flag {
    /// Opens a connection.
    pub const SYN: u8 = 1;
    /// The acknowledgement fields hold.
    pub const ACK: u8 = 2;
    /// The sending application had no more to give.
    pub const PSH: u8 = 4;
    /// ECN echo (RFC 3168).
    pub const ECE: u8 = 8;
    /// Congestion window reduced (RFC 3168).
    pub const CWR: u8 = 16;
    /// A datagram, not TCP.
    pub const UDP: u8 = 32;
    /// The first SACK block tells of a duplicate (RFC 2883).
    pub const DSACK: u8 = 64;
    /// Asks for an acknowledgement: a zero-window probe (RFC 9293, section 3.8.6.1).
    pub const PROBE: u8 = 128;
}

/// A packet of this simulator. Segments are numbered in stream order from 0; a retransmission carries the same
/// number and the same bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Segment {
    /// The endpoint (or the UDP receiver) it goes to.
    pub to: u32,
    /// Payload.
    pub payload_bytes: u32,
    /// Receive window.
    pub window_bytes: u32,
    /// Segment number.
    pub number: u64,
    /// Next segment number expected.
    pub ack: u64,
    /// When this copy was sent (RFC 7323: TSval).
    pub sent_ns: u64,
    /// The time echoed (RFC 7323: TSecr).
    pub echo_ns: u64,
    /// SACK blocks: first number and the one after the last, relative to `ack`.
    pub sack: [(i32, i32); SACK_BLOCKS],
    /// How many blocks hold.
    pub sack_count: u8,
    /// See [`flag`].
    pub flags: u8,
    /// Whether the packet arrived with a CE mark.
    pub is_marked: bool,
    /// Version of IP.
    pub family: Family,
}

impl Segment {
    /// Whether a flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Bytes of the IP packet. SACK costs 8 bytes a block and 4 for the option, padding included.
    pub fn packet_bytes(&self) -> u32 {
        if self.has(flag::UDP) {
            return self.family.udp_header_bytes() + self.payload_bytes;
        }
        let option = if self.sack_count > 0 { 4 + 8 * u32::from(self.sack_count) } else { 0 };
        let syn = if self.has(flag::SYN) { 8 } else { 0 };
        self.family.tcp_header_bytes() + option + syn + self.payload_bytes
    }

    /// The SACK blocks, in segment numbers.
    pub fn sack_blocks(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let whole = |x: i32| self.ack.saturating_add_signed(i64::from(x));
        self.sack.iter().take(self.sack_count as usize).map(move |(start, end)| (whole(*start), whole(*end)))
    }
}

/// Packets in flight. Numbers are used again; nothing is allocated once the pool has grown.
#[derive(Debug, Default)]
pub struct Pool {
    slots: Vec<Segment>,
    free: Vec<PacketId>,
}

impl Pool {
    /// Takes a packet in.
    pub fn put(&mut self, segment: Segment) -> PacketId {
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = segment;
            return id;
        }
        self.slots.push(segment);
        self.slots.len() as PacketId - 1
    }

    /// Takes a packet out. Each number is taken once.
    pub fn take(&mut self, id: PacketId) -> Segment {
        self.free.push(id);
        self.slots[id as usize]
    }
}
