//! Connections between others that pass this host, watched by a program in the kernel: told of when they have reached
//! so many bytes or such an age, and led to user space when that asks for it.
//!
//! The program is attached by TCX links, which this process holds: when it ends, however it ends, nothing is watched
//! and nothing is led anywhere.

use crate::{
    Result,
    alike::Alike,
    object::{self, bpf_object, refused},
    support::{self, Capability},
    tcx,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapInfo, Object, OpenObject};
use longfat_host::support::Missing;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

static OBJECT: &[u8] = bpf_object!(concat!(env!("OUT_DIR"), "/watch.bpf.o"));

/// The settings' map, by its section.
const AFTER: &str = ".data.after";
const COUNTS: &str = ".bss.counts";
const WATCH: &str = "watch";
/// The only element of either.
const ONLY: [u8; 4] = [0; 4];
const HEADER_BYTES: usize = 60;

/// Layout of the maps that a process hands to the next one: another number with every change of `lf_watched`.
pub const LAYOUT: u32 = 1;
/// Maps that hold what is known of connections.
const KNOWN: [&str; 2] = ["connections", "places"];

/// What this process or kernel lacks for it; nothing is touched.
pub fn missing() -> Vec<Missing> {
    // The same as a marking program, and maps that are older than these links.
    support::missing(&[Capability::Marking])
}

/// When a connection is told of: when all that is given holds. With none of them, never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Payload of both ends that has passed, at least.
    pub bytes: Option<u64>,
    /// Time since its SYN, at least: told with the next packet.
    pub time: Option<Duration>,
    /// Payload of both ends in a second, at least: told when as much as that rate gives in [`Conditions::RATE_OVER`]
    /// has passed in that time.
    pub rate_bps: Option<u64>,
    /// Least round trip from here to the end that is farther, at least.
    pub rtt: Option<Duration>,
    /// Share of bytes in a million that came behind others of their end or again, at least; of 100 KB or more.
    pub losses_ppm: Option<u32>,
}

impl Conditions {
    /// Time that a rate must last. Within a shorter one, any burst of a few packets would do.
    pub const RATE_OVER: Duration = Duration::from_secs(1);

    /// Whether none is given.
    pub fn is_none(&self) -> bool {
        *self == Conditions::default()
    }

    /// Bytes that pass in [`Conditions::RATE_OVER`] by the rate.
    fn fast_bytes(&self) -> Option<u64> {
        let bytes = |bps| u128::from(bps) * Conditions::RATE_OVER.as_millis() / 8000;
        self.rate_bps.map(|bps| u64::try_from(bytes(bps)).unwrap_or(u64::MAX))
    }
}

/// What the program does from now on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Orders {
    /// Without any nothing is watched.
    pub after: Conditions,
    /// Whether connections can be led that nobody was told of.
    pub leads_any: bool,
    /// Mark of packets of connections that are only watched: nobody here has a socket of them.
    pub pass_mark: Option<u32>,
    /// Packets may be for sockets that have others' addresses. Until then none gets a mark, and nothing is noted.
    pub has_sockets: bool,
    /// Packets of some connections are dropped ([`Lead::Drop`]). Until then nobody looks for them.
    pub drops: bool,
    /// For so long packets are dropped of connections that are seen first in mid-stream.
    pub hold: Option<Duration>,
    /// Names the process that follows connections from now on. Those that another one knew are watched anew.
    pub epoch: u32,
}

impl Orders {
    /// `struct lf_after`.
    fn to_bytes(self) -> [u8; AFTER_BYTES] {
        let Conditions { bytes, time, rtt, losses_ppm, .. } = self.after;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let longs = [bytes, time.map(ns), self.after.fast_bytes(), Some(ns(Conditions::RATE_OVER))];
        let mut value = [0; AFTER_BYTES];
        for (at, long) in (0..).step_by(8).zip(longs) {
            let long = long.map_or(0, |long| long.max(1));
            value[at..at + 8].copy_from_slice(&long.to_ne_bytes());
        }
        // Who holds strangers back must know the others, though none of them is ever told of.
        let only_holds = self.after.is_none() && self.hold.is_some();
        if only_holds {
            value[..8].copy_from_slice(&u64::MAX.to_ne_bytes());
        }
        let hold_ns = self.hold.map_or(0, |hold| ns(hold).max(1));
        value[HOLD_AT..].copy_from_slice(&hold_ns.to_ne_bytes());
        let words = [
            rtt.map_or(0, |rtt| us(rtt).max(1)),
            losses_ppm.map_or(0, |losses| losses.max(1)),
            u32::from(!self.after.is_none() || only_holds),
            u32::from(self.leads_any),
            self.pass_mark.unwrap_or(0),
            u32::from(self.has_sockets),
            u32::from(self.drops),
            self.epoch,
        ];
        for (at, word) in (32..).step_by(4).zip(words) {
            value[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        value
    }
}

const HOLD_AT: usize = 64;
const AFTER_BYTES: usize = HOLD_AT + 8;

/// `struct lf_ends`: two ends in whichever order, as the program finds them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawEnds {
    low_address: [u8; 16],
    high_address: [u8; 16],
    low_port: [u8; 2],
    high_port: [u8; 2],
    is_ipv6: u32,
}

const ENDS_BYTES: usize = size_of::<RawEnds>();

impl RawEnds {
    /// The ends as the map has them, and whether the first one is the higher.
    pub(crate) fn of(first: SocketAddr, second: SocketAddr) -> (RawEnds, bool) {
        let [(one, one_port), (other, other_port)] = [first, second].map(raw);
        let is_high = number(one_port, one) > number(other_port, other);
        let [low, high] = if is_high {
            [(other, other_port), (one, one_port)]
        } else {
            [(one, one_port), (other, other_port)]
        };
        let is_ipv6 = u32::from(first.ip().to_canonical().is_ipv6());
        let ends =
            RawEnds { low_address: low.0, low_port: low.1, high_address: high.0, high_port: high.1, is_ipv6 };
        (ends, is_high)
    }

    pub(crate) fn to_bytes(self) -> [u8; ENDS_BYTES] {
        let mut bytes = [0; ENDS_BYTES];
        bytes[..16].copy_from_slice(&self.low_address);
        bytes[16..32].copy_from_slice(&self.high_address);
        bytes[32..34].copy_from_slice(&self.low_port);
        bytes[34..36].copy_from_slice(&self.high_port);
        bytes[36..].copy_from_slice(&self.is_ipv6.to_ne_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<RawEnds> {
        Some(RawEnds {
            low_address: bytes.get(..16)?.try_into().ok()?,
            high_address: bytes.get(16..32)?.try_into().ok()?,
            low_port: bytes.get(32..34)?.try_into().ok()?,
            high_port: bytes.get(34..36)?.try_into().ok()?,
            is_ipv6: u32_at(bytes, 36)?,
        })
    }

    pub(crate) fn low(&self) -> SocketAddr {
        address(self.low_address, self.low_port, self.is_ipv6 != 0)
    }

    pub(crate) fn high(&self) -> SocketAddr {
        address(self.high_address, self.high_port, self.is_ipv6 != 0)
    }
}

fn raw(end: SocketAddr) -> ([u8; 16], [u8; 2]) {
    let mut bytes = [0; 16];
    match end.ip().to_canonical() {
        IpAddr::V4(four) => bytes[..4].copy_from_slice(&four.octets()),
        IpAddr::V6(six) => bytes = six.octets(),
    }
    (bytes, end.port().to_be_bytes())
}

/// By what the program orders ends: numbers as this host reads what stands in packets.
fn number(port: [u8; 2], address: [u8; 16]) -> (u16, [u32; 4]) {
    let word =
        |at: usize| u32::from_ne_bytes([address[at], address[at + 1], address[at + 2], address[at + 3]]);
    (u16::from_ne_bytes(port), [word(0), word(4), word(8), word(12)])
}

fn address(bytes: [u8; 16], port: [u8; 2], is_ipv6: bool) -> SocketAddr {
    let ip = match is_ipv6 {
        true => IpAddr::V6(Ipv6Addr::from(bytes)),
        false => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
    };
    SocketAddr::new(ip, u16::from_be_bytes(port))
}

/// A SYN, or its answer: the TCP header with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenOffer {
    /// As it was on the wire.
    pub header: Vec<u8>,
    /// Bytes that came with it.
    pub payload_bytes: u16,
}

impl SeenOffer {
    /// `struct lf_offer`; none where no such packet was seen.
    fn from_bytes(bytes: &[u8]) -> Option<SeenOffer> {
        let header_bytes = usize::from(u16_at(bytes, 0)?);
        let header = bytes.get(4..4 + header_bytes.min(HEADER_BYTES))?.to_vec();
        (header_bytes > 0).then_some(SeenOffer { header, payload_bytes: u16_at(bytes, 2)? })
    }

    fn put(&self, bytes: &mut [u8]) {
        let header_bytes = self.header.len().min(HEADER_BYTES);
        bytes[..2].copy_from_slice(&(header_bytes as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.payload_bytes.to_ne_bytes());
        bytes[4..4 + header_bytes].copy_from_slice(&self.header[..header_bytes]);
    }
}

/// What has passed of a connection whose handshake was seen whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// The end that sent the SYN.
    pub client: SocketAddr,
    /// The end that answered the SYN.
    pub server: SocketAddr,
    /// The client's SYN.
    pub syn: SeenOffer,
    /// The server's answer.
    pub answer: SeenOffer,
    /// Behind the last sequence number that the client sent.
    pub client_next: u32,
    /// Behind the last one of the server.
    pub server_next: u32,
    /// Payload that passed, repetitions included.
    pub bytes: u64,
    /// Payload behind other payload of its end, or sent again; part of `bytes`.
    pub repeated_bytes: u64,
    /// CLOCK_MONOTONIC of its SYN, or since when it is watched anew.
    pub opened_ns: u64,
    /// Least round trips from here to the client and to the server, where any was measured.
    pub rtts: [Option<Duration>; 2],
    /// Index of the interface at which the SYN arrived.
    pub interface: u32,
    /// The connection was told of.
    pub is_told: bool,
    /// An end has finished, or reset.
    pub is_ending: bool,
}

/// `struct lf_watched`.
const BYTES_AT: usize = 0;
const OPENED_AT: usize = 8;
const NEXT_AT: usize = 16;
const INTERFACE_AT: usize = 24;
const IS_TOLD_AT: usize = 28;
const IS_CLIENT_HIGH_AT: usize = 32;
const FINISHED_AT: usize = 33;
const UNHEARD_AT: usize = 34;
const EPOCH_AT: usize = 36;
const REPEATED_AT: usize = 40;
const STRETCH_BYTES_AT: usize = 48;
const STRETCH_AT: usize = 56;
/// What the client has sent comes back from the server.
const LEAST_AT: [usize; 2] = [92, 76];
const SYN_AT: usize = 96;
const OFFER_BYTES: usize = 4 + HEADER_BYTES;
const ANSWER_AT: usize = SYN_AT + OFFER_BYTES;
/// Filled up to a multiple of eight.
const WATCHED_BYTES: usize = (ANSWER_AT + OFFER_BYTES).next_multiple_of(8);

impl Watched {
    fn from_bytes(ends: &RawEnds, value: &[u8]) -> Option<Watched> {
        let (low, high) = (ends.low(), ends.high());
        let (client, server) = if *value.get(IS_CLIENT_HIGH_AT)? != 0 { (high, low) } else { (low, high) };
        let rtt = |at| u32_at(value, at).map(|us| (us > 0).then(|| Duration::from_micros(us.into())));
        Some(Watched {
            client,
            server,
            syn: SeenOffer::from_bytes(value.get(SYN_AT..)?)?,
            answer: SeenOffer::from_bytes(value.get(ANSWER_AT..)?)?,
            client_next: u32_at(value, NEXT_AT)?,
            server_next: u32_at(value, NEXT_AT + 4)?,
            bytes: u64_at(value, BYTES_AT)?,
            repeated_bytes: u64_at(value, REPEATED_AT)?,
            opened_ns: u64_at(value, OPENED_AT)?,
            rtts: [rtt(LEAST_AT[0])?, rtt(LEAST_AT[1])?],
            interface: u32_at(value, INTERFACE_AT)?,
            is_told: u32_at(value, IS_TOLD_AT)? != 0,
            is_ending: *value.get(FINISHED_AT)? != 0,
        })
    }

    /// As the program finds it, of two ends of which neither was heard here: `is_client_high` is where the client
    /// stands.
    fn to_bytes(&self, is_client_high: bool, epoch: u32) -> [u8; WATCHED_BYTES] {
        let mut value = [0; WATCHED_BYTES];
        let mut put = |at: usize, bytes: &[u8]| value[at..at + bytes.len()].copy_from_slice(bytes);
        let longs = [
            (BYTES_AT, self.bytes),
            (OPENED_AT, self.opened_ns),
            (REPEATED_AT, self.repeated_bytes),
            (STRETCH_BYTES_AT, self.bytes),
            (STRETCH_AT, self.opened_ns),
        ];
        longs.iter().for_each(|(at, long)| put(*at, &long.to_ne_bytes()));
        let least_us =
            |rtt: Option<Duration>| rtt.map_or(0, |rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX));
        let words = [
            (NEXT_AT, self.client_next),
            (NEXT_AT + 4, self.server_next),
            (IS_TOLD_AT, u32::from(self.is_told)),
            (EPOCH_AT, epoch),
            (LEAST_AT[0], least_us(self.rtts[0])),
            (LEAST_AT[1], least_us(self.rtts[1])),
        ];
        words.iter().for_each(|(at, word)| put(*at, &word.to_ne_bytes()));
        put(IS_CLIENT_HIGH_AT, &[u8::from(is_client_high)]);
        put(UNHEARD_AT, &[3]);
        self.syn.put(&mut value[SYN_AT..]);
        self.answer.put(&mut value[ANSWER_AT..]);
        value
    }
}

/// Which packets of a connection are led away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// All, of both ends.
    All,
    /// Resets alone, which must not overtake what was led before them.
    Resets,
    /// None; but the connection is told of again, with its next packet.
    Nothing,
    /// None; the connection is watched anew from its next packet on, as if it had been opened then.
    NothingAnew,
    /// None: all are dropped, whatever is known of the connection, until a client begins anew with its addresses.
    Drop,
}

impl Lead {
    /// As `struct lf_order` has it.
    fn number(self) -> u32 {
        match self {
            Lead::All => 1,
            Lead::Resets => 2,
            Lead::Nothing => 3,
            Lead::NothingAnew => 4,
            Lead::Drop => 5,
        }
    }
}

/// What the program has counted since it was attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handshakes seen whole.
    pub opened: u64,
    /// Connections that were told of.
    pub reached: u64,
    /// Packets with which a connection was to be told of and could not be, as too many had not been asked for yet.
    pub untold: u64,
}

/// Watches while it lives.
pub struct Watching {
    links: Vec<OwnedFd>,
    _object: Object,
    connections: MapHandle,
    places: MapHandle,
    orders: MapHandle,
    strangers: MapHandle,
    /// Whether strangers are held back.
    holds: AtomicBool,
    reached: MapHandle,
    after: MapHandle,
    counts: MapHandle,
}

impl std::fmt::Debug for Watching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watching").field("links", &self.links.len()).finish_non_exhaustive()
    }
}

/// Attaches the program to interfaces, but for those that are gone by now: where `alike` sees what arrives, by its link
/// and in its place, for it is called from here. With an error it has everything back.
fn at_interfaces(object: &Object, interfaces: &[String], alike: Option<&Alike>) -> Result<Vec<OwnedFd>> {
    let (mut taken, mut made) = (Vec::new(), Vec::new());
    for name in interfaces {
        let outcome = match alike.and_then(|alike| alike.take_arriving(name)) {
            Some(link) => {
                let replaced = tcx::replace(link.as_fd(), object, WATCH);
                taken.push((name, link));
                replaced
            }
            None => tcx::attach(object, WATCH, name, 0).map(|link| made.push(link)),
        };
        match outcome {
            Err(error) if !tcx::is_gone(name) => {
                if let Some(alike) = alike {
                    taken.into_iter().for_each(|(name, link)| alike.give_back(name, link));
                }
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(taken.into_iter().map(|(_, link)| link).chain(made).collect())
}

impl Watching {
    /// Attaches to interfaces of the calling thread's network namespace, but for those that are gone by now. Nothing is
    /// told before [`Watching::tell`]. What arrives there is noted for `alike` by this program from now on, as far as
    /// it may be the relay's. What another process knew of connections ([`Watching::known`]) is known here, too.
    ///
    /// # Errors
    /// When the kernel refuses; nothing is left then.
    pub fn attach(
        interfaces: &[String],
        alike: Option<&Alike>,
        known: Option<&[OwnedFd; 2]>,
    ) -> Result<Watching> {
        let mut open = object::open("watch", OBJECT)?;
        if let Some(known) = known {
            share(&mut open, known)?;
        }
        let object = object::load("watch", open)?;
        let map = |name| object::map_handle(&object, name);
        if let Some(alike) = alike {
            alike.note_by(&map("noting")?)?;
        }
        let [connections, places] = KNOWN.map(map);
        let (orders, strangers, reached) = (map("orders")?, map("strangers")?, map("reached")?);
        let (after, counts) = (map(AFTER)?, map(COUNTS)?);
        let links = at_interfaces(&object, interfaces, alike)?;
        Ok(Watching {
            links,
            connections: connections?,
            places: places?,
            orders,
            strangers,
            holds: AtomicBool::new(false),
            reached,
            after,
            counts,
            _object: object,
        })
    }

    /// Descriptors it keeps open.
    pub fn descriptors(&self) -> usize {
        /// The object's maps, program and type information, and a handle of each map.
        const OBJECT: usize = 18;
        OBJECT + self.links.len()
    }

    /// What is known of connections, for another process of the same [`LAYOUT`].
    pub fn known(&self) -> [BorrowedFd<'_>; 2] {
        [self.connections.as_fd(), self.places.as_fd()]
    }

    /// A connection that another process knew is this one's, and told of; whether it is known.
    pub fn claim(&self, (one, other): (SocketAddr, SocketAddr), epoch: u32) -> bool {
        let key = RawEnds::of(one, other).0.to_bytes();
        let Ok(Some(mut value)) = self.connections.lookup(&key, MapFlags::ANY) else { return false };
        for (at, word) in [(EPOCH_AT, epoch), (IS_TOLD_AT, 1)] {
            let Some(place) = value.get_mut(at..at + 4) else { return false };
            place.copy_from_slice(&word.to_ne_bytes());
        }
        self.connections.update(&key, &value, MapFlags::EXIST).is_ok()
    }

    /// What another host knew of a connection is known here from now on, in place of what was known before it went
    /// there. It is told of, if it is to be, when both ends have been heard here. One that was told of here stays as it
    /// is, unless the other host had been told of it, too.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn learn(&self, watched: &Watched, epoch: u32) -> Result<()> {
        let (ends, is_high) = RawEnds::of(watched.client, watched.server);
        let key = ends.to_bytes();
        let is_anew = self.order(&key) == Some(Lead::NothingAnew.number());
        if !watched.is_told && self.is_told(&key) && !is_anew {
            return Ok(());
        }
        if is_anew {
            // It was for what was known before.
            self.let_go((watched.client, watched.server));
        }
        let value = watched.to_bytes(is_high, epoch);
        let learned = self.connections.update(&key, &value, MapFlags::ANY);
        learned.map_err(|source| refused("watch a connection that another router knows", source))
    }

    /// All living connections whose handshakes were seen whole. One that is watched anew from its next packet on is not
    /// told of.
    pub fn living(&self) -> Vec<Watched> {
        let in_places = (0..self.places.max_entries()).filter_map(|index| {
            let value = self.places.lookup(&index.to_ne_bytes(), MapFlags::LOCK).ok()??;
            Watched::from_bytes(&RawEnds::from_bytes(&value)?, value.get(ENDS_BYTES..)?)
        });
        let elsewhere = self.connections.keys().filter_map(|key| {
            let value = self.connections.lookup(&key, MapFlags::ANY).ok()??;
            let watched = Watched::from_bytes(&RawEnds::from_bytes(&key)?, &value)?;
            let is_anew = watched.is_told && self.order(&key) == Some(Lead::NothingAnew.number());
            Some(if is_anew {
                Watched { is_told: false, bytes: 0, repeated_bytes: 0, ..watched }
            } else {
                watched
            })
        });
        in_places.chain(elsewhere).filter(|one| !one.is_ending).collect()
    }

    fn order(&self, key: &[u8]) -> Option<u32> {
        u32_at(&self.orders.lookup(key, MapFlags::ANY).ok()??, 0)
    }

    /// From now on connections are told of when they have come so far; those that were told of are not told of again.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn tell(&self, orders: Orders) -> Result<()> {
        self.holds.store(orders.hold.is_some(), Ordering::Relaxed);
        self.after
            .update(&ONLY, &orders.to_bytes(), MapFlags::ANY)
            .map_err(|source| refused("say when a watched connection is told of", source))
    }

    /// The next connection that has come so far, if there is one.
    pub fn next(&self) -> Option<(SocketAddr, SocketAddr)> {
        let bytes = self.reached.lookup_and_delete(&[]).ok()??;
        RawEnds::from_bytes(&bytes).map(|ends| (ends.low(), ends.high()))
    }

    /// What has passed of a connection that was told of; none when more of them came since than are remembered.
    pub fn look(&self, (one, other): (SocketAddr, SocketAddr)) -> Option<Watched> {
        let (ends, _) = RawEnds::of(one, other);
        let value = self.connections.lookup(&ends.to_bytes(), MapFlags::ANY).ok()??;
        Watched::from_bytes(&ends, &value)
    }

    /// Leads packets of a connection to an interface from now on, but for SYNs.
    ///
    /// # Errors
    /// When there are too many such connections.
    pub fn lead(&self, (one, other): (SocketAddr, SocketAddr), lead: Lead, interface: u32) -> Result<()> {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&lead.number().to_ne_bytes());
        value[4..].copy_from_slice(&interface.to_ne_bytes());
        self.orders
            .update(&RawEnds::of(one, other).0.to_bytes(), &value, MapFlags::ANY)
            .map_err(|source| refused("lead a watched connection to user space", source))
    }

    /// Whether all packets of a connection are led away, and have been since that was asked for: an order may be driven
    /// out by others, and a SYN begins anew.
    pub fn leads_all(&self, (one, other): (SocketAddr, SocketAddr)) -> bool {
        let key = RawEnds::of(one, other).0.to_bytes();
        self.is_told(&key) && self.order(&key) == Some(Lead::All.number())
    }

    fn is_told(&self, key: &[u8]) -> bool {
        let value = self.connections.lookup(key, MapFlags::ANY).ok().flatten();
        value.and_then(|value| u32_at(&value, IS_TOLD_AT)) == Some(1)
    }

    /// Leads nothing of a connection any more, and follows its numbers on.
    pub fn let_go(&self, (one, other): (SocketAddr, SocketAddr)) {
        // It may be gone already.
        let _ = self.orders.delete(&RawEnds::of(one, other).0.to_bytes());
    }

    /// Leads nothing of a connection any more, and watches it no more.
    pub fn forget(&self, (one, other): (SocketAddr, SocketAddr)) {
        let key = RawEnds::of(one, other).0.to_bytes();
        // It may be gone already.
        let _ = self.orders.delete(&key);
        let _ = self.connections.delete(&key);
        if self.holds.load(Ordering::Relaxed) {
            // It is no stranger: seen first when this host began.
            let _ = self.strangers.update(&key, &0u64.to_ne_bytes(), MapFlags::ANY);
        }
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        let at = |offset| object::read_u64(&self.counts, offset).unwrap_or(0);
        Counts { opened: at(0), reached: at(8), untold: at(16) }
    }
}

/// Has an object use another process's maps, if they are such as it would make.
fn share(open: &mut OpenObject, known: &[OwnedFd; 2]) -> Result<()> {
    for (name, known) in KNOWN.iter().zip(known) {
        let mut maps = open.maps_mut();
        let mut map = maps.find(|map| map.name() == *name).ok_or_else(|| object::missing_map(name))?;
        let failed = |source| refused(format!("go on with '{name}' of another relay"), source);
        let found = MapInfo::new(known.as_fd()).map_err(failed)?.info;
        let wanted = (map.key_size(), map.value_size(), map.max_entries());
        if (found.key_size, found.value_size, found.max_entries) == wanted {
            map.reuse_fd(known.as_fd()).map_err(failed)?;
        }
    }
    Ok(())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, assert_mirrors};

    #[test]
    fn what_is_shared_is_laid_out_as_in_the_object() {
        assert_mirrors!(OBJECT, "lf_ends", RawEnds: low_address high_address low_port high_port is_ipv6);
        let offer = Layout::of(OBJECT, "lf_offer");
        assert_eq!(
            (offer.bytes, offer.places(["header_bytes", "payload_bytes", "header"])),
            (OFFER_BYTES, [0, 2, 4])
        );
        let watched = Layout::of(OBJECT, "lf_watched");
        let places = watched.places([
            "bytes",
            "opened_ns",
            "next",
            "interface",
            "is_told",
            "is_client_high",
            "finished",
            "unheard",
            "epoch",
            "repeated_bytes",
            "stretch_bytes",
            "stretch_ns",
            "syn",
            "answer",
        ]);
        let ours = [
            BYTES_AT,
            OPENED_AT,
            NEXT_AT,
            INTERFACE_AT,
            IS_TOLD_AT,
            IS_CLIENT_HIGH_AT,
            FINISHED_AT,
            UNHEARD_AT,
            EPOCH_AT,
            REPEATED_AT,
            STRETCH_BYTES_AT,
            STRETCH_AT,
            SYN_AT,
            ANSWER_AT,
        ];
        assert_eq!((watched.bytes, places), (WATCHED_BYTES, ours));
        let (trip, [trips]) = (Layout::of(OBJECT, "lf_trip"), watched.places(["trips"]));
        let [least] = trip.places(["least_us"]);
        assert_eq!(LEAST_AT, [trips + trip.bytes + least, trips + least]);
        let order = Layout::of(OBJECT, "lf_order");
        assert_eq!((order.bytes, order.places(["lead", "interface"])), (8, [0, 4]));
        let after = Layout::of(OBJECT, "lf_after");
        let longs = after.places(["bytes", "ns", "fast_bytes", "fast_ns"]);
        assert_eq!(after.places(["hold_ns"]), [HOLD_AT]);
        let words = after.places([
            "rtt_us",
            "losses_ppm",
            "watches",
            "leads_any",
            "pass_mark",
            "has_sockets",
            "drops",
            "epoch",
        ]);
        assert_eq!(
            (after.bytes, longs, words),
            (AFTER_BYTES, [0, 8, 16, 24], [32, 36, 40, 44, 48, 52, 56, 60])
        );
        let place = Layout::of(OBJECT, "place");
        assert_eq!(place.places(["ends", "watched"]), [0, ENDS_BYTES]);
        let counts = Layout::of(OBJECT, "lf_watch_counts");
        assert_eq!((counts.bytes, counts.places(["opened", "reached", "untold"])), (24, [0, 8, 16]));
    }

    #[test]
    fn both_ends_in_whichever_order_are_one_connection() {
        let ends = [
            ("192.0.2.1:80", "192.0.2.2:999"),
            ("192.0.2.1:179", "192.0.2.2:179"),
            ("[2001:db8::1]:80", "[2001:db8::2]:9"),
            ("[2001:db8::1]:7", "[2001:db8:0:1::]:7"),
        ];
        for (one, other) in ends.map(|(one, other)| (one.parse().unwrap(), other.parse().unwrap())) {
            let (there, is_high) = RawEnds::of(one, other);
            assert_eq!(RawEnds::of(other, one), (there, !is_high));
            let both = if is_high { (there.high(), there.low()) } else { (there.low(), there.high()) };
            assert_eq!(both, (one, other));
            assert_eq!(RawEnds::from_bytes(&there.to_bytes()), Some(there));
        }
    }

    #[test]
    fn what_is_given_is_never_told_as_nothing_and_nothing_as_something() {
        let told = |after| {
            let bytes = Orders { after, ..Orders::default() }.to_bytes();
            let longs = [0, 8, 16].map(|at| u64_at(&bytes, at).unwrap());
            (longs, [32, 36, 40].map(|at| u32_at(&bytes, at).unwrap()))
        };
        assert_eq!(told(Conditions::default()), ([0; 3], [0; 3]));
        let least = Conditions {
            bytes: Some(0),
            time: Some(Duration::ZERO),
            rate_bps: Some(1),
            rtt: Some(Duration::from_nanos(1)),
            losses_ppm: Some(0),
        };
        assert_eq!(told(least), ([1; 3], [1; 3]));
        let rate = Conditions { rate_bps: Some(10_000_000), ..Conditions::default() };
        assert_eq!(told(rate), ([0, 0, 1_250_000], [0, 0, 1]), "as much as in a second");
        let bytes = Orders { hold: Some(Duration::from_secs(1)), ..Orders::default() }.to_bytes();
        assert_eq!(
            (u64_at(&bytes, 0), u32_at(&bytes, 40)),
            (Some(u64::MAX), Some(1)),
            "all are known, none is told of"
        );
        assert_eq!(u64_at(&bytes, HOLD_AT), Some(1_000_000_000));
    }

    #[test]
    fn a_handshake_that_was_seen_in_part_is_no_connection() {
        let ends = RawEnds::of("192.0.2.1:80".parse().unwrap(), "192.0.2.2:999".parse().unwrap()).0;
        let mut value = vec![0; ANSWER_AT + OFFER_BYTES];
        value[SYN_AT..SYN_AT + 2].copy_from_slice(&20u16.to_ne_bytes());
        assert_eq!(Watched::from_bytes(&ends, &value), None);
        value[ANSWER_AT..ANSWER_AT + 2].copy_from_slice(&u16::MAX.to_ne_bytes());
        let watched = Watched::from_bytes(&ends, &value).unwrap();
        assert_eq!((watched.syn.header.len(), watched.answer.header.len()), (20, HEADER_BYTES));
        assert_eq!(Watched::from_bytes(&ends, &value[..value.len() - 1]), None);
    }

    #[test]
    fn what_is_told_to_another_host_is_what_is_known_there_but_for_the_interface() {
        let offer = |byte: u8| SeenOffer { header: vec![byte; 40], payload_bytes: u16::from(byte) };
        for ports in [(80, 999), (999, 80)] {
            let end = |port| SocketAddr::new([192, 0, 2, 1].into(), port);
            let watched = Watched {
                client: end(ports.0),
                server: end(ports.1),
                syn: offer(1),
                answer: offer(2),
                client_next: 3,
                server_next: u32::MAX,
                bytes: 1 << 40,
                repeated_bytes: 5,
                opened_ns: 6 << 40,
                rtts: [None, Some(Duration::from_micros(7))],
                interface: 0,
                is_told: true,
                is_ending: false,
            };
            let (ends, is_high) = RawEnds::of(watched.client, watched.server);
            let value = watched.to_bytes(is_high, 9);
            assert_eq!(Watched::from_bytes(&ends, &value), Some(watched));
            assert_eq!((u32_at(&value, EPOCH_AT), value[UNHEARD_AT]), (Some(9), 3));
        }
    }
}
