//! The block format (draft-ietf-opsawg-pcapng): sections, interfaces, enhanced, simple and obsolete packets, and
//! interface statistics with what the capture lost.

use super::{
    Direction, InterfaceStatistics, LATEST_NS, LinkType, Located, MAX_RECORD_BYTES, Step, u16_at, u32_at,
    u64_at,
};

use std::collections::BTreeMap;

const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const NAME_RESOLUTION: u32 = 4;
const STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// Interfaces of one section that are remembered: a file that declares more is made to exhaust memory.
const MAX_INTERFACES: usize = 1 << 16;
/// Blocks other than packets are passed over in pieces; a packet block has the packet and its options.
const MAX_BLOCK_BYTES: usize = MAX_RECORD_BYTES + (1 << 16);

#[derive(Debug, Clone, PartialEq)]
struct Interface {
    link: LinkType,
    name: Option<String>,
    units: Units,
    offset_s: i64,
    snap_bytes: u32,
}

/// Length of one unit of a timestamp.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Units {
    /// A fixed number of nanoseconds.
    Nanoseconds(u64),
    /// A tick is one of so many parts of a second.
    PerSecond(u128),
}

impl Units {
    /// `if_tsresol`: a negative power of ten, or of two when the highest bit is set.
    fn from_option(value: u8) -> Units {
        match value {
            0..=9 => Units::Nanoseconds(10u64.pow(9 - u32::from(value))),
            10..=38 => Units::PerSecond(10u128.pow(u32::from(value))),
            value if value & 0x80 != 0 => Units::PerSecond(1u128 << (value & 0x7f).min(100)),
            _ => Units::Nanoseconds(1000),
        }
    }

    fn nanoseconds(self, count: u64) -> i64 {
        let wide = match self {
            Units::Nanoseconds(each) => u128::from(count) * u128::from(each),
            Units::PerSecond(parts) if parts <= u128::from(u64::MAX) => {
                u128::from(count) * 1_000_000_000 / parts
            }
            Units::PerSecond(_) => 0,
        };
        i64::try_from(wide).unwrap_or(i64::MAX)
    }
}

/// What has been read of a file so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pcapng {
    big_endian: bool,
    /// Sections begun; interfaces are numbered anew in each.
    sections: u32,
    interfaces: Vec<Interface>,
    /// What statistics blocks say, by section and interface.
    statistics: BTreeMap<(u32, u32), InterfaceStatistics>,
    /// What packet blocks themselves say was lost before them, by the same.
    dropped_before: BTreeMap<(u32, u32), InterfaceStatistics>,
    last_ns: i64,
    skipping: u64,
}

impl Pcapng {
    /// Whether these are the first octets of such a file.
    pub fn recognises(data: &[u8]) -> bool {
        data.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a])
    }

    /// The last statistics of every interface. Where they do not tell what was lost, the sum of `epb_dropcount` does.
    pub fn statistics(&self) -> Vec<InterfaceStatistics> {
        let mut all = self.dropped_before.clone();
        for (place, said) in &self.statistics {
            let before = all.remove(place).and_then(|before| before.dropped);
            all.insert(*place, InterfaceStatistics { dropped: said.dropped.or(before), ..said.clone() });
        }
        all.into_values().collect()
    }

    /// The name of an interface, or else its number.
    fn name(&self, index: u32) -> String {
        let name = self.interfaces.get(index as usize).and_then(|interface| interface.name.clone());
        name.unwrap_or_else(|| format!("interface {index}"))
    }

    /// The block at the beginning of `data`.
    pub(crate) fn step(&mut self, data: &[u8]) -> Step {
        if self.skipping > 0 {
            let now = self.skipping.min(data.len() as u64);
            self.skipping -= now;
            return if now == 0 { Step::Need(1) } else { Step::Skip { consumed: now as usize } };
        }
        if Pcapng::recognises(data) {
            return self.section(data);
        }
        let big = self.big_endian;
        let (Some(kind), Some(length)) = (u32_at(data, 0, big), u32_at(data, 4, big)) else {
            return Step::Need(8);
        };
        self.block(data, kind, length as usize)
    }

    fn block(&mut self, data: &[u8], kind: u32, length: usize) -> Step {
        if length < 12 || !length.is_multiple_of(4) {
            return Step::Damaged(format!("a block of type {kind:#x} claims {length} octets"));
        }
        let packet = matches!(kind, ENHANCED_PACKET | SIMPLE_PACKET | OBSOLETE_PACKET);
        if length > MAX_BLOCK_BYTES {
            if packet || kind == INTERFACE || length > 1 << 28 {
                return Step::Damaged(format!("a block of type {kind:#x} claims {length} octets"));
            }
            self.skipping = length as u64;
            return Step::Skip { consumed: 0 };
        }
        if data.len() < length {
            return Step::Need(length);
        }
        if u32_at(data, length - 4, self.big_endian) != Some(length as u32) {
            return Step::Damaged(format!("a block of type {kind:#x} does not end with its length {length}"));
        }
        self.whole_block(&data[..length - 4], kind, length)
    }

    fn whole_block(&mut self, block: &[u8], kind: u32, length: usize) -> Step {
        let located = match kind {
            ENHANCED_PACKET => self.enhanced(block),
            SIMPLE_PACKET => self.simple(block),
            OBSOLETE_PACKET => self.obsolete(block),
            _ => {
                match kind {
                    INTERFACE => self.interface(block),
                    STATISTICS => self.interface_statistics(block),
                    _ => {}
                }
                return Step::Skip { consumed: length };
            }
        };
        match located {
            Ok(at) => Step::Packet { at, consumed: length },
            Err(what) => Step::Damaged(what),
        }
    }

    fn section(&mut self, data: &[u8]) -> Step {
        let big = match data.get(8..12) {
            None => return Step::Need(12),
            Some([0x1a, 0x2b, 0x3c, 0x4d]) => true,
            Some([0x4d, 0x3c, 0x2b, 0x1a]) => false,
            Some(_) => return Step::Damaged("a section header without a byte-order mark".into()),
        };
        let length = u32_at(data, 4, big).unwrap_or(0) as usize;
        if !(28..=MAX_BLOCK_BYTES).contains(&length) || !length.is_multiple_of(4) {
            return Step::Damaged(format!("a section header claims {length} octets"));
        }
        if data.len() < length {
            return Step::Need(length);
        }
        self.big_endian = big;
        self.sections += 1;
        self.interfaces.clear();
        Step::Skip { consumed: length }
    }

    fn interface(&mut self, block: &[u8]) {
        let big = self.big_endian;
        let mut interface = Interface {
            link: LinkType(u32::from(u16_at(block, 8, big).unwrap_or(1))),
            name: None,
            units: Units::Nanoseconds(1000),
            offset_s: 0,
            snap_bytes: u32_at(block, 12, big).unwrap_or(0),
        };
        for (code, value) in options(block, 16, big) {
            match (code, value) {
                (2, name) => interface.name = Some(String::from_utf8_lossy(name).into_owned()),
                (9, [resolution, ..]) => interface.units = Units::from_option(*resolution),
                (14, value) => interface.offset_s = u64_at(value, 0, big).map_or(0, |s| s as i64),
                _ => {}
            }
        }
        if self.interfaces.len() < MAX_INTERFACES {
            self.interfaces.push(interface);
        }
    }

    fn interface_statistics(&mut self, block: &[u8]) {
        let big = self.big_endian;
        let Some(index) = u32_at(block, 8, big) else { return };
        let (mut received, mut dropped) = (None, None);
        for (code, value) in options(block, 20, big) {
            match code {
                4 => received = u64_at(value, 0, big),
                5 | 7 => {
                    dropped = Some(dropped.unwrap_or(0u64).saturating_add(u64_at(value, 0, big).unwrap_or(0)))
                }
                _ => {}
            }
        }
        let (place, interface) = ((self.sections, index), self.name(index));
        // Blocks are cumulative: the last of each interface counts.
        if self.statistics.len() < MAX_INTERFACES || self.statistics.contains_key(&place) {
            self.statistics.insert(place, InterfaceStatistics { interface, received, dropped });
        }
    }

    /// Packets of an interface that were lost, as one behind them says.
    fn on_dropped_before(&mut self, index: u32, lost: u64) {
        let place = (self.sections, index);
        if let Some(known) = self.dropped_before.get_mut(&place) {
            known.dropped = known.dropped.map(|dropped| dropped.saturating_add(lost));
        } else if self.dropped_before.len() < MAX_INTERFACES {
            let known =
                InterfaceStatistics { interface: self.name(index), received: None, dropped: Some(lost) };
            self.dropped_before.insert(place, known);
        }
    }

    fn enhanced(&mut self, block: &[u8]) -> Result<Located, String> {
        let big = self.big_endian;
        let field = |at| u32_at(block, at, big).ok_or("a packet block is too short");
        let (index, captured) = (field(8)?, field(20)? as usize);
        let count = u64::from(field(12)?) << 32 | u64::from(field(16)?);
        let original_bytes = field(24)?;
        let interface = self.known(index)?;
        let time_ns = interface
            .units
            .nanoseconds(count)
            .saturating_add(interface.offset_s.saturating_mul(1_000_000_000))
            .clamp(0, LATEST_NS);
        let link = interface.link;
        let padded = 28usize.checked_add(captured.next_multiple_of(4)).filter(|end| *end <= block.len());
        let after = padded.ok_or_else(|| format!("a packet of {captured} octets does not fit its block"))?;
        let direction = if after == block.len() { None } else { self.packet_options(index, block, after) };
        self.last_ns = time_ns;
        Ok(Located { time_ns, original_bytes, start: 28, length: captured, link, direction })
    }

    /// `epb_flags` tells the direction, `epb_dropcount` what was lost since the packet before.
    fn packet_options(&mut self, index: u32, block: &[u8], at: usize) -> Option<Direction> {
        let big = self.big_endian;
        let mut direction = None;
        for (code, value) in options(block, at, big) {
            match code {
                2 => {
                    direction = match u32_at(value, 0, big).unwrap_or(0) & 3 {
                        1 => Some(Direction::Inbound),
                        2 => Some(Direction::Outbound),
                        _ => None,
                    };
                }
                4 => self.on_dropped_before(index, u64_at(value, 0, big).unwrap_or(0)),
                _ => {}
            }
        }
        direction
    }

    fn obsolete(&mut self, block: &[u8]) -> Result<Located, String> {
        let big = self.big_endian;
        let short = "a packet block is too short";
        let index = u32::from(u16_at(block, 8, big).ok_or(short)?);
        let field = |at| u32_at(block, at, big).ok_or(short);
        let count = u64::from(field(12)?) << 32 | u64::from(field(16)?);
        let (captured, original_bytes) = (field(20)? as usize, field(24)?);
        let interface = self.known(index)?;
        let (time_ns, link) = (interface.units.nanoseconds(count).min(LATEST_NS), interface.link);
        if captured > block.len().saturating_sub(28) {
            return Err(format!("a packet of {captured} octets does not fit its block"));
        }
        Ok(Located { time_ns, original_bytes, start: 28, length: captured, link, direction: None })
    }

    /// Has no time: that of the packet before is the best there is.
    fn simple(&self, block: &[u8]) -> Result<Located, String> {
        let original_bytes = u32_at(block, 8, self.big_endian).ok_or("a packet block is too short")?;
        let interface = self.known(0)?;
        let snap = if interface.snap_bytes == 0 { u32::MAX } else { interface.snap_bytes };
        let length = (original_bytes.min(snap) as usize).min(block.len() - 12);
        let (time_ns, link) = (self.last_ns, interface.link);
        Ok(Located { time_ns, original_bytes, start: 12, length, link, direction: None })
    }

    fn known(&self, index: u32) -> Result<&Interface, String> {
        let found = self.interfaces.get(index as usize);
        found.ok_or_else(|| format!("a packet of interface {index}, which the section does not declare"))
    }

    /// Whether a block could begin here: for finding the next one after damage.
    pub(crate) fn plausible(&self, data: &[u8]) -> bool {
        if Pcapng::recognises(data) {
            return matches!(data.get(8..12), Some([0x1a, 0x2b, 0x3c, 0x4d] | [0x4d, 0x3c, 0x2b, 0x1a]));
        }
        let big = self.big_endian;
        let (Some(kind), Some(length)) = (u32_at(data, 0, big), u32_at(data, 4, big)) else { return false };
        let length = length as usize;
        let known = matches!(
            kind,
            INTERFACE | OBSOLETE_PACKET | SIMPLE_PACKET | NAME_RESOLUTION | STATISTICS | ENHANCED_PACKET
        );
        known
            && (12..=MAX_BLOCK_BYTES).contains(&length)
            && length.is_multiple_of(4)
            && u32_at(data, length - 4, big) == Some(length as u32)
    }
}

/// The options of a block from `at` on; ends at what does not fit.
fn options(block: &[u8], at: usize, big: bool) -> impl Iterator<Item = (u16, &[u8])> {
    let mut at = at;
    std::iter::from_fn(move || {
        let code = u16_at(block, at, big).filter(|code| *code != 0)?;
        let length = usize::from(u16_at(block, at + 2, big)?);
        let value = block.get(at + 4..at + 4 + length)?;
        at += 4 + length.next_multiple_of(4);
        Some((code, value))
    })
}
