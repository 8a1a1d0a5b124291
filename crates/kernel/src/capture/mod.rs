//! Headers of an interface's packets, in both directions, from programs at tc (bpf/capture.bpf.c).
//!
//! - [`Filter`]: which packets; pure, walked through by the programs.
//! - `ring`: the shared memory between the programs and the reader.
//!
//! One record is one packet as the host handles it: where segmentation is left to the interface (TSO, GSO) or segments
//! were gathered on arrival (GRO, LRO), that is a bundle of segments, which `segments` counts. Packets that arrive are
//! seen before any other tc program and nftables, those that leave after other tc programs and before the queueing
//! discipline.
//!
//! The programs are attached by TCX links, which this process holds: they are gone when it ends, however it ends.

mod filter;
mod ring;
#[cfg(test)]
mod synthetic;

pub use filter::Filter;
pub use ring::{Captured, Counts};

use crate::{
    Error, Result,
    object::{self, bpf_object, refused},
    support::{self, Capability},
    tcx,
};
use libbpf_rs::Object;
use longfat_host::{interface, support::Missing};
use ring::{BLOCK_BYTES, Mapping, RING_BYTES, Rings};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Which way a packet went at the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The packet arrived.
    Inbound,
    /// The packet left.
    Outbound,
}

/// What is kept of a packet: everything up to and with this header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Snap {
    /// The link header, with VLAN tags.
    Link = 0,
    /// The innermost IP header, with options and extension headers.
    Network = 1,
    /// The transport header, with options.
    #[default]
    Transport = 2,
}

/// What the interface's packets begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkHeader {
    /// 14 octets.
    Ethernet,
    /// None: tun and tunnels.
    RawIp,
}

/// Most payload that may be asked for.
pub const PAYLOAD_MAX_BYTES: u32 = 1500;
/// Least and most of what all rings together may have.
pub const BUFFER_BYTES: std::ops::RangeInclusive<u64> = 65_536..=1 << 31;

/// What to capture.
#[derive(Debug, Clone, PartialEq)]
pub struct CaptureSpec {
    /// Interface, of the calling thread's network namespace.
    pub interface: String,
    /// Which packets.
    pub filter: Filter,
    /// One direction only. Of a loopback interface, where what leaves arrives, both are what arrives.
    pub direction: Option<Direction>,
    /// How much of each.
    pub snap: Snap,
    /// Octets behind that header, at most [`PAYLOAD_MAX_BYTES`].
    pub payload_bytes: u32,
    /// Room for what happens between two looks, all processors together.
    pub buffer_bytes: u64,
    /// Let the kernel measure the time that the programs take ([`Capture::cost`]).
    pub measures_cost: bool,
}

/// What this kernel lacks for capturing; nothing is touched.
pub fn missing() -> Vec<Missing> {
    support::missing(&[Capability::Capture])
}

/// What the programs took of the traffic's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Packets that they looked at.
    pub runs: u64,
    /// All of them together.
    pub time_ns: u64,
}

/// A running capture; its programs leave the interface with it.
pub struct Capture {
    links: Vec<OwnedFd>,
    rings: Rings,
    object: Object,
    link_header: LinkHeader,
    _measuring: Option<OwnedFd>,
}

const NAME: &str = "capture";
static OBJECT: &[u8] = bpf_object!(concat!(env!("OUT_DIR"), "/capture.bpf.o"));
const INBOUND: &str = "inbound";
const OUTBOUND: &str = "outbound";
/// `LF_HEADERS_BYTES`, `LF_KEPT_MAX_BYTES`.
const HEADERS_BYTES: u32 = 256;
const KEPT_MAX_BYTES: u32 = 2048;
/// Octets of `struct lf_settings` before its tests.
const SETTINGS_BYTES: usize = 24;

impl Capture {
    /// Attaches to the interface.
    ///
    /// # Errors
    /// When the interface is not there or has headers that are not known here, or the kernel refuses.
    pub fn attach(spec: &CaptureSpec) -> Result<Capture> {
        let mut capture = Capture::load(spec, link_header(&spec.interface)?)?;
        let wanted = directions(spec.direction, interface::hardware_type(&spec.interface)?);
        for (direction, program, place) in [
            (Direction::Inbound, INBOUND, libbpf_sys::BPF_F_BEFORE),
            (Direction::Outbound, OUTBOUND, libbpf_sys::BPF_F_AFTER),
        ] {
            if wanted.is_none_or(|only| only == direction) {
                capture.links.push(tcx::attach(&capture.object, program, &spec.interface, place)?);
            }
        }
        Ok(capture)
    }

    /// Everything but the interface.
    fn load(spec: &CaptureSpec, link_header: LinkHeader) -> Result<Capture> {
        let processors = processors()?;
        let ring_blocks = ring_blocks(spec.buffer_bytes, processors);
        let object = load(spec, link_header, processors, ring_blocks)?;
        let rings = Rings::new(
            map(&object, "rings", processors * RING_BYTES)?,
            map(&object, "blocks", processors * (ring_blocks + 1) * BLOCK_BYTES)?,
            processors,
            ring_blocks,
        );
        let measuring = if spec.measures_cost { Some(enable_stats()?) } else { None };
        Ok(Capture { links: Vec::new(), rings, object, link_header, _measuring: measuring })
    }

    /// What its packets begin with.
    pub fn link_header(&self) -> LinkHeader {
        self.link_header
    }

    /// Octets of one processor's ring.
    pub fn ring_bytes(&self) -> usize {
        self.rings.ring_bytes()
    }

    /// Hands over every record up to `horizon_ns` (CLOCK_MONOTONIC), in the order of their times, until `sink` says to
    /// stop (false). A horizon a little in the past lets processors that are just writing catch up. Gives back the
    /// octets that waited in the fullest ring.
    pub fn drain(&mut self, horizon_ns: u64, sink: impl FnMut(&Captured<'_>) -> bool) -> usize {
        self.rings.drain(horizon_ns, sink)
    }

    /// What the programs counted so far.
    pub fn counts(&self) -> Counts {
        self.rings.counts()
    }

    /// Whether packets are still seen: not when the interface is gone.
    pub fn is_attached(&self) -> bool {
        self.links.iter().all(tcx::is_on_interface)
    }

    /// Takes the programs off the interface; what they have written can still be drained.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// The programs' time so far; nothing unless it was asked for.
    pub fn cost(&self) -> Option<Cost> {
        self._measuring.as_ref()?;
        let mut cost = Cost { runs: 0, time_ns: 0 };
        for program in self.object.progs() {
            let mut info = libbpf_sys::bpf_prog_info::default();
            if info_of(program.as_fd().as_raw_fd(), &mut info) {
                cost.runs += info.run_cnt;
                cost.time_ns += info.run_time_ns;
            }
        }
        Some(cost)
    }
}

fn processors() -> Result<usize> {
    libbpf_rs::num_possible_cpus().map_err(|source| refused("count this host's processors", source))
}

/// Blocks of one ring: all rings together take at most `buffer_bytes`, and a ring has at least one.
fn ring_blocks(buffer_bytes: u64, processors: usize) -> usize {
    let each = (buffer_bytes / processors as u64 / BLOCK_BYTES as u64).max(1);
    1 << each.ilog2()
}

/// Most octets that are kept of one packet.
pub fn most_kept_bytes(payload_bytes: u32) -> u32 {
    if payload_bytes == 0 { HEADERS_BYTES } else { KEPT_MAX_BYTES }
}

/// ARPHRD_LOOPBACK.
const LOOPBACK: u16 = 772;

/// Which directions are looked at: none for both. A loopback interface hands every packet that leaves back as one that
/// arrives; it is one packet, which is recorded where it arrives, as tcpdump does.
fn directions(wanted: Option<Direction>, hardware_type: u16) -> Option<Direction> {
    wanted.or((hardware_type == LOOPBACK).then_some(Direction::Inbound))
}

/// What packets of an interface of the calling thread's namespace begin with.
///
/// # Errors
/// When the interface is not there, or has headers that are not known here.
pub fn link_header(name: &str) -> Result<LinkHeader> {
    // Numbers are ARPHRD_… of linux/if_arp.h.
    match interface::hardware_type(name)? {
        1 | LOOPBACK => Ok(LinkHeader::Ethernet),
        // ppp, rawip, ipip, ip6tnl, sit, gre, gre6, none (tun).
        512 | 519 | 768 | 769 | 776 | 778 | 823 | 0xfffe => Ok(LinkHeader::RawIp),
        other => Err(Error::io(
            format!(
                "capture on '{name}': its packets begin in a way that is not known here (ARPHRD {other}); \
                 Ethernet, tun, ppp and IP tunnels are"
            ),
            std::io::ErrorKind::Unsupported,
        )),
    }
}

fn load(
    spec: &CaptureSpec,
    link_header: LinkHeader,
    processors: usize,
    ring_blocks: usize,
) -> Result<Object> {
    let mut open = object::open(NAME, OBJECT)?;
    let tests = spec.filter.to_bytes();
    let settings = [
        ring_blocks as u32,
        u32::from(link_header == LinkHeader::RawIp),
        spec.snap as u32,
        spec.payload_bytes.min(PAYLOAD_MAX_BYTES),
        u32::from(!spec.filter.is_empty()),
        0,
    ];
    object::set_initial(&mut open, ".rodata.lf", |bytes| {
        for (to, setting) in bytes.chunks_exact_mut(4).zip(settings) {
            to.copy_from_slice(&setting.to_ne_bytes());
        }
        bytes[SETTINGS_BYTES..SETTINGS_BYTES + tests.len()].copy_from_slice(&tests);
    })?;
    for mut map in open.maps_mut() {
        let entries = match map.name().to_str() {
            Some("rings") => processors,
            Some("blocks") => processors * (ring_blocks + 1),
            _ => continue,
        };
        let sized = map.set_max_entries(entries as u32);
        sized.map_err(|source| refused("size the rings of captured headers", source))?;
    }
    object::load(NAME, open)
}

fn map(object: &Object, name: &str, bytes: usize) -> Result<Mapping> {
    let handle = object::map_handle(object, name)?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    Mapping::new(handle.as_fd(), bytes.next_multiple_of(page as usize))
        .map_err(|source| Error::io("map the rings of captured headers", source))
}

/// The kernel measures its programs while this is open.
fn enable_stats() -> Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(Error::io("let the kernel measure its BPF programs", std::io::Error::last_os_error()));
    }
    // SAFETY: a descriptor that was just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the kernel says of one of its BPF things; `T` is the kernel's structure for it.
fn info_of<T>(fd: i32, info: &mut T) -> bool {
    let mut length = size_of::<T>() as u32;
    // SAFETY: `info` has `length` octets to write to.
    unsafe { libbpf_sys::bpf_obj_get_info_by_fd(fd, (&raw mut *info).cast(), &raw mut length) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    #[test]
    fn what_is_shared_is_laid_out_as_in_the_object() {
        let settings = Layout::of(OBJECT, "lf_settings");
        let fields = ["ring_blocks", "is_raw_ip", "snap", "payload_bytes", "has_filter", "tests"];
        assert_eq!(settings.places(fields), [0, 4, 8, 12, 16, SETTINGS_BYTES]);
        let test = Layout::of(OBJECT, "lf_test");
        let fields = ["kind", "if_true", "if_false", "side", "low", "high", "address", "mask"];
        assert_eq!((test.bytes, test.places(fields)), (filter::TEST_BYTES, [0, 1, 2, 3, 4, 6, 8, 24]));
        let ring = Layout::of(OBJECT, "lf_ring");
        let words = ring.places(["head", "seen", "matched", "dropped", "tail"]).map(|octets| octets / 8);
        assert_eq!((ring.bytes, words), (RING_BYTES, [0, 3, 5, 7, ring::TAIL_WORD]));
    }

    #[test]
    fn a_packet_of_a_loopback_interface_is_looked_at_once() {
        assert_eq!(directions(None, LOOPBACK), Some(Direction::Inbound));
        assert_eq!(directions(Some(Direction::Outbound), LOOPBACK), Some(Direction::Outbound));
        assert_eq!(directions(None, 1), None);
    }

    #[test]
    fn rings_share_the_buffer_and_are_a_power_of_two() {
        let mib = 1 << 20;
        assert_eq!(ring_blocks(64 * mib, 2), 512);
        assert_eq!(ring_blocks(64 * mib, 3), 256);
        assert_eq!(ring_blocks(64 * 1024, 64), 1);
    }
}
