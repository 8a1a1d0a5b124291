//! Packet marks, routing tables and interfaces of one interception: blocks of consecutive numbers.

/// Rules that may hold SYNs, by their index.
pub(crate) const MOST_HOLDING_RULES: usize = 60;
/// Workers that hold SYNs. What they take is shared with the others when it stands.
pub(crate) const MOST_HOLDERS: usize = 8;

/// What tells the mark of a taken packet from the one that delivers it.
pub(crate) const TAKEN_BIT: u32 = 1 << 31;

/// Marks and addresses of one interception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Mark of packets that belong to the relay's sockets.
    pub mark: u32,
    /// Mark of packets the relay sends itself.
    pub own_mark: u32,
    /// Routing table that delivers marked packets locally.
    pub table: u32,
}

/// Where SYNs are held: a rule's, of the clients of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldSlot {
    pub rule: usize,
    pub holder: usize,
}

impl HoldSlot {
    fn number(self) -> u32 {
        (self.rule * MOST_HOLDERS + self.holder) as u32
    }
}

/// Places that a relay may come to have.
const HOLD_SLOTS: u32 = (MOST_HOLDING_RULES * MOST_HOLDERS) as u32;

impl Marks {
    /// Marks of one relay: of taken packets, its own, and those of every place.
    pub const MARKS: u32 = 2 + HOLD_SLOTS;
    /// Above are those of packets on their way through firewalls.
    pub const LAST_MARK: u32 = TAKEN_BIT - 1;
    /// Routing tables of one relay: the one that delivers, and those of every place.
    pub const TABLES: u32 = 1 + HOLD_SLOTS;

    /// The routing table for packets of a mark.
    pub fn table_of(&self, mark: u32) -> Option<u32> {
        match mark.checked_sub(self.mark)? {
            0 => Some(self.table),
            above @ 2..Self::MARKS => self.table.checked_add(above - 1),
            _ => None,
        }
    }

    /// Mark of packets that are taken, until firewalls have looked at them: no routing rule knows it.
    pub fn taken_mark(&self) -> u32 {
        self.mark ^ TAKEN_BIT
    }

    /// Marks of SYNs to be held, as nftables writes them.
    pub fn held_marks(&self) -> String {
        let mark = |number: u32| self.mark.wrapping_add(2 + number) ^ TAKEN_BIT;
        format!("{:#x}-{:#x}", mark(0), mark(HOLD_SLOTS - 1))
    }

    /// Mark of SYNs that are held there.
    pub fn hold_mark(&self, place: HoldSlot) -> u32 {
        self.mark.wrapping_add(2 + place.number())
    }

    /// Routing table that brings them to the place's TUN interface.
    pub fn hold_table(&self, place: HoldSlot) -> u32 {
        self.table.wrapping_add(1 + place.number())
    }

    /// Name of that interface.
    pub fn hold_interface(&self, place: HoldSlot) -> String {
        format!("{}{}", self.hold_prefix(), place.number())
    }

    /// Whether an interface of that name is one of them.
    pub fn is_hold_interface(&self, name: &str) -> bool {
        name.starts_with(&self.hold_prefix())
    }

    /// Whether it is a table of these.
    pub fn has_table(&self, table: u32) -> bool {
        table.wrapping_sub(self.table) < Self::TABLES
    }

    /// All of them, as nftables names many.
    pub fn hold_interfaces(&self) -> String {
        format!("{}*", self.hold_prefix())
    }

    fn hold_prefix(&self) -> String {
        format!("{HOLD_PREFIX}{:x}-", self.mark)
    }
}

const HOLD_PREFIX: &str = "lfh";

/// Whether an interface of that name holds handshakes for a relay: what comes by it was seen before.
pub fn is_hold_interface(name: &str) -> bool {
    name.starts_with(HOLD_PREFIX)
}

/// Mark of packets that go on: held ones to their servers and, until nftables has seen them, those of connections that
/// are only watched. No routing rule knows it.
pub(crate) fn passing_mark(own_mark: u32) -> u32 {
    own_mark ^ TAKEN_BIT
}
