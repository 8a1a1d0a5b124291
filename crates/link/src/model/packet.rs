//! What the model knows of a packet: its length, its ECN codepoint, and a handle of the caller's choice.

/// ECN codepoint of the IP header (RFC 3168 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not speak ECN: congestion can only be told by a drop.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, codepoint 01.
    Ect1 = 1,
    /// ECN-capable transport, codepoint 10.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The codepoint in the two low bits of a TOS or traffic-class byte.
    pub fn from_bits(byte: u8) -> Ecn {
        match byte & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Whether congestion may be told by a mark.
    pub fn is_capable(self) -> bool {
        self != Ecn::NotEct
    }
}

/// One packet inside the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<P> {
    /// Bytes of the IP packet, headers included, link framing excluded.
    pub length_bytes: u32,
    /// ECN codepoint; the queue may change it to [`Ecn::Ce`].
    pub ecn: Ecn,
    /// The caller's handle: a buffer number, a simulated segment.
    pub payload: P,
}

/// What became of a packet that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<P> {
    /// The queue took the packet; [`super::Direction::dequeue`] gives it back.
    Queued,
    /// The queue refused it.
    Dropped(Packet<P>),
}

/// How a packet left the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The packet arrived at the far end.
    Delivered,
    /// The queue dropped it after it had been taken in (CoDel, or a limit that was lowered).
    Dropped,
    /// The loss model took it after it had been transmitted.
    Lost,
}

/// A packet on its way out of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure<P> {
    /// When it was to leave; never later than the time given to `dequeue`.
    pub due_ns: u64,
    /// How it left.
    pub fate: Fate,
    /// The packet.
    pub packet: Packet<P>,
}
