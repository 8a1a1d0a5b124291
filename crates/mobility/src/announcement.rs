//! What a router tells of the link it uses now: one datagram, tagged with a shared key.
//!
//! All numbers are big-endian. Bytes:
//!
//! ```text
//!   0  "LFMB"                       magic
//!   4  2                            version
//!   5  length of the router's name  1 to 32
//!   6  length of the link's name    1 to 32
//!   7  number of addresses          0 to 8
//!   8  key id                       32 bits: which key, in the case of several
//!  12  loss                         32 bits: packets in a million
//!  16  delay                        32 bits: microseconds, one way
//!  20  epoch                        64 bits: microseconds since 1970 when the router began to announce, or its
//!                                   clock was set since
//!  28  sequence                     64 bits: raised with every change of the link
//!  36  sent                         64 bits: microseconds since 1970
//!  44  changed                      64 bits: microseconds since 1970 when the link became so
//!  52  up                           64 bits: bit/s from the nodes behind the router outwards
//!  60  down                         64 bits: bit/s towards them
//!  68  queue up                     32 bits: bytes that may wait before the link, outwards; 0: not known
//!  72  queue down                   32 bits: the same towards the nodes
//!  76  addresses                    17 bytes each: 4 or 6, then 16 bytes, IPv4 in the first four
//!   …  the router's name, the link's name
//!   …  HMAC-SHA-256 over everything before it, 32 bytes
//! ```

use crate::name::Name;
use longfat_host::key::{Key, TAG_BYTES};
use longfat_schema::units::{Nanos, Rate, Size};
use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr};

pub(crate) const MAGIC: &[u8; 4] = b"LFMB";
/// Version of the datagram.
pub const VERSION: u8 = 2;
const FIXED_BYTES: usize = 76;
const ADDRESS_BYTES: usize = 17;
/// Most addresses of a router in a datagram.
pub const ADDRESSES_MAX: usize = 8;
/// No datagram is shorter: one letter each for the names.
pub(crate) const DATAGRAM_MIN_BYTES: usize = FIXED_BYTES + 2 + TAG_BYTES;
/// No datagram is longer.
pub const DATAGRAM_MAX_BYTES: usize =
    FIXED_BYTES + ADDRESSES_MAX * ADDRESS_BYTES + 2 * crate::name::NAME_MAX_BYTES + TAG_BYTES;

/// What a link can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Character {
    /// Rate from the nodes behind the router outwards, of IP packets.
    pub up_bps: u64,
    /// Rate towards them.
    pub down_bps: u64,
    /// Delay one way.
    pub delay_us: u32,
    /// Packets lost in a million.
    pub loss_ppm: u32,
    /// Bytes that may wait before the link, outwards; 0 where that is not known.
    #[serde(default)]
    pub up_queue_bytes: u32,
    /// Bytes that may wait before it towards the nodes; 0 where that is not known.
    #[serde(default)]
    pub down_queue_bytes: u32,
}

impl fmt::Display for Character {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Rate(self.up_bps))?;
        if self.down_bps != self.up_bps {
            write!(f, " up, {} down", Rate(self.down_bps))?;
        }
        write!(f, ", {}", Nanos(u64::from(self.delay_us) * 1000))?;
        if self.loss_ppm > 0 {
            write!(f, ", loss {} %", f64::from(self.loss_ppm) / 1e4)?;
        }
        let [up, down] = [self.up_queue_bytes, self.down_queue_bytes].map(|bytes| Size(bytes.into()));
        match (up.0, down.0) {
            (0, 0) => {}
            (a, b) if a == b => write!(f, ", queue {up}")?,
            _ => write!(f, ", queue {up} up, {down} down")?,
        }
        Ok(())
    }
}

/// One announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Name of the router that announces.
    pub router: Name,
    /// Addresses of the router towards the nodes: what they know it by.
    pub addresses: Vec<IpAddr>,
    /// When it began to announce, or its clock was set since; microseconds since 1970.
    pub epoch_us: u64,
    /// Raised with every change.
    pub sequence: u64,
    /// When this datagram was sent, microseconds since 1970.
    pub sent_us: u64,
    /// When the link became so, microseconds since 1970.
    pub changed_us: u64,
    /// The link in use.
    pub link: Name,
    /// What it can do.
    pub character: Character,
}

/// Why a datagram is none of ours to believe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// The datagram does not begin as an announcement does.
    #[error("no announcement")]
    NotOurs,
    /// The announcement is of another version.
    #[error("version {0} of the announcement is not known; upgrade the older of the two programs")]
    Version(u8),
    /// Tagged with a key that we have not.
    #[error("tagged with the unknown key {0:08x}")]
    ForeignKey(u32),
    /// The tag is not that of the bytes.
    #[error("its tag is wrong: forged or damaged")]
    Forged,
    /// Tagged rightly, and yet not as described above.
    #[error("its {0} is wrong")]
    Malformed(&'static str),
}

impl Announcement {
    /// The datagram.
    ///
    /// # Errors
    /// When there are more addresses than it can hold.
    pub fn seal(&self, key: &Key) -> Result<Vec<u8>, Reject> {
        if self.addresses.len() > ADDRESSES_MAX {
            return Err(Reject::Malformed("number of addresses"));
        }
        let (router, link) = (self.router.as_str().as_bytes(), self.link.as_str().as_bytes());
        let character = &self.character;
        let mut bytes = Vec::with_capacity(DATAGRAM_MAX_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend([VERSION, router.len() as u8, link.len() as u8, self.addresses.len() as u8]);
        let words = [key.id(), character.loss_ppm, character.delay_us];
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        let times = [self.epoch_us, self.sequence, self.sent_us, self.changed_us];
        let rates = [character.up_bps, character.down_bps];
        bytes.extend(times.iter().chain(&rates).flat_map(|word| word.to_be_bytes()));
        let queues = [character.up_queue_bytes, character.down_queue_bytes];
        bytes.extend(queues.iter().flat_map(|word| word.to_be_bytes()));
        bytes.extend(self.addresses.iter().flat_map(|address| address_bytes(*address)));
        bytes.extend_from_slice(router);
        bytes.extend_from_slice(link);
        let tag = key.tag(&bytes);
        bytes.extend_from_slice(&tag);
        Ok(bytes)
    }

    /// Length of its packet, IP and UDP headers (RFC 8200, section 3; RFC 768) included.
    pub fn packet_bytes(&self) -> u64 {
        const HEADERS_BYTES: usize = 40 + 8;
        let names = self.router.as_str().len() + self.link.as_str().len();
        (HEADERS_BYTES + FIXED_BYTES + self.addresses.len() * ADDRESS_BYTES + names + TAG_BYTES) as u64
    }

    /// Reads a datagram; nothing of its contents is looked at before its tag has been found right.
    ///
    /// # Errors
    /// Why it is not to be believed.
    pub fn open(datagram: &[u8], keys: &[Key]) -> Result<Announcement, Reject> {
        if datagram.len() < FIXED_BYTES + TAG_BYTES || &datagram[..4] != MAGIC {
            return Err(Reject::NotOurs);
        }
        if datagram[4] != VERSION {
            return Err(Reject::Version(datagram[4]));
        }
        let id = word(datagram, 8);
        let key = keys.iter().find(|key| key.id() == id).ok_or(Reject::ForeignKey(id))?;
        let (said, tag) = datagram.split_at(datagram.len() - TAG_BYTES);
        if !key.is_tag_of(said, tag) {
            return Err(Reject::Forged);
        }
        read(said)
    }

    /// Reads a datagram's contents without its tag: what a holder of the key may have said.
    ///
    /// # Errors
    /// When they are not as described.
    pub fn read_said(said: &[u8]) -> Result<Announcement, Reject> {
        if said.len() < FIXED_BYTES { Err(Reject::NotOurs) } else { read(said) }
    }
}

fn read(said: &[u8]) -> Result<Announcement, Reject> {
    let [router, link, addresses] = [5, 6, 7].map(|at| usize::from(said[at]));
    let names_at = FIXED_BYTES + addresses * ADDRESS_BYTES;
    if addresses > ADDRESSES_MAX || said.len() != names_at + router + link {
        return Err(Reject::Malformed("length"));
    }
    let list = said[FIXED_BYTES..names_at].chunks_exact(ADDRESS_BYTES);
    let name = |from, to| Name::from_bytes(&said[from..to]).ok_or(Reject::Malformed("name"));
    let character = Character {
        up_bps: long(said, 52),
        down_bps: long(said, 60),
        delay_us: word(said, 16),
        loss_ppm: word(said, 12),
        up_queue_bytes: word(said, 68),
        down_queue_bytes: word(said, 72),
    };
    if character.up_bps == 0 || character.down_bps == 0 || character.loss_ppm > 1_000_000 {
        return Err(Reject::Malformed("rate or loss"));
    }
    Ok(Announcement {
        router: name(names_at, names_at + router)?,
        link: name(names_at + router, said.len())?,
        addresses: list.map(address).collect::<Option<_>>().ok_or(Reject::Malformed("address"))?,
        epoch_us: long(said, 20),
        sequence: long(said, 28),
        sent_us: long(said, 36),
        changed_us: long(said, 44),
        character,
    })
}

/// 32 bits at a place inside the fixed part.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// 64 bits at a place inside the fixed part.
fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4))
}

fn address_bytes(address: IpAddr) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    match address {
        IpAddr::V4(v4) => {
            bytes[0] = 4;
            bytes[1..5].copy_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            bytes[0] = 6;
            bytes[1..].copy_from_slice(&v6.octets());
        }
    }
    bytes
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let family = bytes[0];
    let all: [u8; 16] = bytes[1..].try_into().ok()?;
    let first = [all[0], all[1], all[2], all[3]];
    match family {
        4 if all[4..].iter().all(|byte| *byte == 0) => Some(IpAddr::from(first)),
        6 => Some(IpAddr::from(all)),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn key(byte: u8) -> Key {
        Key::new(&[byte; 32]).unwrap()
    }

    pub fn announcement() -> Announcement {
        Announcement {
            router: "bus-7".parse().unwrap(),
            addresses: vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()],
            epoch_us: 1_700_000_000_000_000,
            sequence: 3,
            sent_us: 1_700_000_000_500_000,
            changed_us: 1_700_000_000_400_000,
            link: "phs".parse().unwrap(),
            character: Character {
                up_bps: 64_000,
                down_bps: 64_000,
                delay_us: 125_000,
                loss_ppm: 10_000,
                up_queue_bytes: 60_000,
                down_queue_bytes: 0,
            },
        }
    }

    prop_compose! {
        fn any_announcement()(
            router in "[a-zA-Z0-9._-]{1,32}", link in "[a-zA-Z0-9._-]{1,32}",
            addresses in prop::collection::vec(any::<IpAddr>(), 0..=ADDRESSES_MAX),
            times in any::<[u64; 4]>(), up_bps in 1..=u64::MAX, down_bps in 1..=u64::MAX,
            delay_us in any::<u32>(), loss_ppm in 0..=1_000_000u32, queues_bytes in any::<[u32; 2]>(),
        ) -> Announcement {
            Announcement {
                router: router.parse().unwrap(), link: link.parse().unwrap(), addresses,
                epoch_us: times[0], sequence: times[1], sent_us: times[2], changed_us: times[3],
                character: Character {
                    up_bps, down_bps, delay_us, loss_ppm,
                    up_queue_bytes: queues_bytes[0], down_queue_bytes: queues_bytes[1],
                },
            }
        }
    }

    /// A datagram with a right tag over any bytes: what only a holder of the key could send.
    fn sealed_anyhow(mut said: Vec<u8>) -> Vec<u8> {
        said.resize(said.len().max(FIXED_BYTES), 0);
        said[..4].copy_from_slice(MAGIC);
        said[4] = VERSION;
        said[8..12].copy_from_slice(&key(1).id().to_be_bytes());
        let tag = key(1).tag(&said);
        said.extend_from_slice(&tag);
        said
    }

    #[test]
    fn the_datagram_is_as_described_byte_by_byte() {
        let datagram = announcement().seal(&key(1)).unwrap();
        assert_eq!(datagram.len(), 76 + 2 * 17 + 5 + 3 + 32);
        assert_eq!(&datagram[..8], b"LFMB\x02\x05\x03\x02");
        assert_eq!(word(&datagram, 8), key(1).id());
        assert_eq!((word(&datagram, 12), word(&datagram, 16)), (10_000, 125_000));
        assert_eq!((long(&datagram, 28), long(&datagram, 52)), (3, 64_000));
        assert_eq!((word(&datagram, 68), word(&datagram, 72)), (60_000, 0));
        assert_eq!(datagram[76..81], [4, 10, 0, 0, 1]);
        assert_eq!(&datagram[110..118], b"bus-7phs");
    }

    #[test]
    fn what_is_not_ours_foreign_forged_or_newer_is_told_apart() {
        let datagram = announcement().seal(&key(1)).unwrap();
        let open = |bytes: &[u8]| Announcement::open(bytes, &[key(1), key(2)]);
        assert_eq!(open(&datagram), Ok(announcement()));
        assert_eq!(open(&datagram[..107]), Err(Reject::NotOurs));
        assert_eq!(open(b"GET / HTTP/1.1"), Err(Reject::NotOurs));
        let foreign = announcement().seal(&key(3)).unwrap();
        assert_eq!(open(&foreign), Err(Reject::ForeignKey(key(3).id())));
        let mut newer = datagram.clone();
        newer[4] = 3;
        assert_eq!(open(&newer), Err(Reject::Version(3)));
        let mut cut = datagram;
        cut.pop();
        assert_eq!(open(&cut), Err(Reject::Forged));
    }

    #[test]
    fn what_a_datagram_cannot_hold_is_refused_before_it_is_sent() {
        let many = Announcement { addresses: vec!["10.0.0.1".parse().unwrap(); 9], ..announcement() };
        assert!(many.seal(&key(1)).is_err());
        let still = Character { up_bps: 0, ..announcement().character };
        let datagram = Announcement { character: still, ..announcement() }.seal(&key(1)).unwrap();
        assert_eq!(Announcement::open(&datagram, &[key(1)]), Err(Reject::Malformed("rate or loss")));
    }

    proptest! {
        #[test]
        fn what_was_sealed_is_opened_as_it_was(sent in any_announcement()) {
            let datagram = sent.seal(&key(1)).unwrap();
            prop_assert!(datagram.len() <= DATAGRAM_MAX_BYTES);
            prop_assert_eq!(sent.packet_bytes(), datagram.len() as u64 + 48);
            prop_assert_eq!(Announcement::open(&datagram, &[key(2), key(1)]), Ok(sent));
        }

        #[test]
        fn a_change_of_any_bit_is_found(sent in any_announcement(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
            let mut datagram = sent.seal(&key(1)).unwrap();
            let at = at.index(datagram.len());
            datagram[at] ^= 1u8 << bit;
            prop_assert!(Announcement::open(&datagram, &[key(1)]).is_err());
        }

        #[test]
        fn any_bytes_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(Announcement::open(&bytes, &[key(1)]).is_err());
        }

        #[test]
        fn a_holder_of_the_key_who_errs_is_read_or_rejected(said in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(read) = Announcement::open(&sealed_anyhow(said), &[key(1)]) {
                let again = read.seal(&key(1)).unwrap();
                prop_assert_eq!(Announcement::open(&again, &[key(1)]), Ok(read));
            }
        }
    }
}
