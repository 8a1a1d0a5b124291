//! Congestion marks on packets that arrive at this host: by the backlog of a relay ([`Marking`]), or once per so many
//! bytes of one connection ([`Congesting`]).
//!
//! The programs are attached by TCX links, which this process holds: they are gone when it ends, however it ends, and
//! a second start finds nothing of the first.

use crate::{
    Error, Result,
    object::{self, bpf_object, refused},
    support::{self, Capability},
    tcx,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use longfat_cc::queue::{MarkState, QueuePlan, Settings};
use longfat_host::support::Missing;
use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

static OBJECT: &[u8] = bpf_object!(concat!(env!("OUT_DIR"), "/mark.bpf.o"));

/// `struct lf_tuple`.
const TUPLE_BYTES: usize = 40;
/// `struct lf_mark`: the tuple, a flag, how much slower, a count, settings, state.
const FLAG_AT: usize = TUPLE_BYTES;
const DILATE_AT: usize = FLAG_AT + 4;
const INCAPABLE_AT: usize = FLAG_AT + 8;
const SETTINGS_AT: usize = INCAPABLE_AT + 8;
const STATE_AT: usize = SETTINGS_AT + size_of::<Settings>();
const MARK_BYTES: usize = STATE_AT + size_of::<MarkState>();
/// `struct lf_every`.
const EVERY_BYTES: usize = 40;

/// What this kernel lacks for marking; nothing is touched.
pub fn missing() -> Vec<Missing> {
    support::missing(&[Capability::Marking])
}

/// Every interface of the calling thread's network namespace: where packets may arrive.
///
/// # Errors
/// When the kernel does not list them.
pub fn interfaces() -> Result<Vec<String>> {
    let found = nix::net::if_::if_nameindex()
        .map_err(|errno| Error::io("list the interfaces of this host", errno))?;
    Ok(found.iter().map(|interface| interface.name().to_string_lossy().into_owned()).collect())
}

/// A connection as one of its ends sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// This end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
}

impl Ends {
    /// `struct lf_tuple`. IPv4 that an IPv6 socket carries arrives as IPv4.
    fn to_bytes(self) -> [u8; TUPLE_BYTES] {
        let mut bytes = [0; TUPLE_BYTES];
        let (local, remote) = (self.local.ip().to_canonical(), self.remote.ip().to_canonical());
        for (at, address) in [(0, remote), (16, local)] {
            match address {
                IpAddr::V4(four) => bytes[at..at + 4].copy_from_slice(&four.octets()),
                IpAddr::V6(six) => bytes[at..at + 16].copy_from_slice(&six.octets()),
            }
        }
        bytes[32..34].copy_from_slice(&self.remote.port().to_be_bytes());
        bytes[34..36].copy_from_slice(&self.local.port().to_be_bytes());
        bytes[36..40].copy_from_slice(&u32::from(remote.is_ipv6()).to_ne_bytes());
        bytes
    }
}

/// What the kernel has seen of one direction of a relayed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marked {
    /// Measured and counted by the controller.
    pub state: MarkState,
    /// Packets that were to be marked, of a sender without ECN.
    pub incapable_packets: u64,
}

/// Marks packets of relayed connections, while it lives.
pub struct Marking {
    links: Vec<OwnedFd>,
    _object: Object,
    pairs: MapHandle,
}

impl Marking {
    /// Attaches to the arriving packets of interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// When an interface is not there, or the kernel refuses; nothing is left then.
    pub fn attach(interfaces: &[String]) -> Result<Marking> {
        let (object, links) = attach("mark", interfaces)?;
        Ok(Marking { pairs: object::map_handle(&object, "pairs")?, links, _object: object })
    }

    /// Descriptors it keeps open.
    pub fn descriptors(&self) -> usize {
        /// The object's maps, programs and type information, and the handle of the pairs.
        const OBJECT: usize = 8;
        OBJECT + self.links.len()
    }

    /// Lets packets that arrive for `inbound` be marked by the backlog towards `outbound`, as a plan says, until that
    /// socket is closed.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn pair(&self, inbound: &impl AsFd, outbound: Ends, plan: &QueuePlan) -> Result<()> {
        let mut value = [0; MARK_BYTES];
        value[..TUPLE_BYTES].copy_from_slice(&outbound.to_bytes());
        value[FLAG_AT..DILATE_AT].copy_from_slice(&u32::from(plan.drop).to_ne_bytes());
        value[DILATE_AT..INCAPABLE_AT].copy_from_slice(&plan.dilate.to_ne_bytes());
        value[SETTINGS_AT..STATE_AT].copy_from_slice(&plan.settings().to_bytes());
        self.pairs
            .update(&key(inbound), &value, MapFlags::ANY)
            .map_err(|source| refused("pair the sockets of a relayed connection", source))
    }

    /// What was seen for `inbound`; nothing for a socket that was not paired.
    pub fn read(&self, inbound: &impl AsFd) -> Option<Marked> {
        let value = self.pairs.lookup(&key(inbound), MapFlags::ANY).ok()??;
        let state = MarkState::from_bytes(value.get(STATE_AT..)?)?;
        Some(Marked { state, incapable_packets: u64_at(&value, INCAPABLE_AT)? })
    }
}

/// A socket storage map is asked by descriptor.
fn key(socket: &impl AsFd) -> [u8; 4] {
    socket.as_fd().as_raw_fd().to_ne_bytes()
}

/// What was marked of one connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Congested {
    /// Payload that arrived.
    pub bytes: u64,
    /// Packets marked. A bundle of segments that the host received as one counts once.
    pub marks: u64,
    /// Packets that were to be marked, of a sender without ECN.
    pub incapable_packets: u64,
}

/// Marks one connection's arriving packets, one per so many bytes, while it lives.
pub struct Congesting {
    _links: Vec<OwnedFd>,
    _object: Object,
    flows: MapHandle,
    key: [u8; TUPLE_BYTES],
}

impl Congesting {
    /// Attaches to the arriving packets of interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// When an interface is not there, or the kernel refuses; nothing is left then.
    pub fn attach(interfaces: &[String], connection: Ends, every_bytes: u64) -> Result<Congesting> {
        let (object, links) = attach("congest", interfaces)?;
        let (flows, key) = (object::map_handle(&object, "flows")?, connection.to_bytes());
        let mut value = [0; EVERY_BYTES];
        value[..8].copy_from_slice(&every_bytes.max(1).to_ne_bytes());
        flows
            .update(&key, &value, MapFlags::ANY)
            .map_err(|source| refused("name the connection to be marked", source))?;
        Ok(Congesting { _links: links, _object: object, flows, key })
    }

    /// What was marked so far.
    pub fn read(&self) -> Congested {
        let value = self.flows.lookup(&self.key, MapFlags::ANY).ok().flatten().unwrap_or_default();
        let at = |offset| u64_at(&value, offset).unwrap_or(0);
        Congested { bytes: at(8), marks: at(24), incapable_packets: at(32) }
    }
}

/// Loads the object for one of its programs and attaches that to each interface.
fn attach(program: &str, interfaces: &[String]) -> Result<(Object, Vec<OwnedFd>)> {
    let mut open = object::open("mark", OBJECT)?;
    for mut candidate in open.progs_mut() {
        let wanted = candidate.name() == program;
        candidate.set_autoload(wanted);
    }
    let object = object::load("mark", open)?;
    let links =
        interfaces.iter().map(|name| tcx::attach(&object, program, name, 0)).collect::<Result<_>>()?;
    Ok((object, links))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, assert_mirrors};
    use std::mem::offset_of;

    #[test]
    fn what_is_shared_is_laid_out_as_in_the_object() {
        let tuple = Layout::of(OBJECT, "lf_tuple");
        let places =
            tuple.places(["remote_address", "local_address", "remote_port", "local_port", "is_ipv6"]);
        assert_eq!((tuple.bytes, places), (TUPLE_BYTES, [0, 16, 32, 34, 36]));
        let mark = Layout::of(OBJECT, "lf_mark");
        let places = mark.places(["outbound", "is_dropping", "dilate", "incapable", "settings", "state"]);
        let own = [0, FLAG_AT, DILATE_AT, INCAPABLE_AT, SETTINGS_AT, STATE_AT];
        assert_eq!((mark.bytes, places), (MARK_BYTES, own));
        let every = Layout::of(OBJECT, "lf_every");
        let places = every.places(["every_bytes", "bytes", "marks", "incapable"]);
        assert_eq!((every.bytes, places), (EVERY_BYTES, [0, 8, 24, 32]));
        assert_mirrors!(OBJECT, "lf_queue_settings", Settings:
            kind target_us hold_off_rtts allowed_cwnds_x16 allowed_bytes red_bytes);
        let state = Layout::of(OBJECT, "lf_queue_state");
        let fields = ["marks", "packets", "backlog_bytes", "waiting_bytes", "delay_us", "pi_probability"];
        let places = [
            offset_of!(MarkState, marks),
            offset_of!(MarkState, packets),
            offset_of!(MarkState, backlog_bytes),
            offset_of!(MarkState, waiting_bytes),
            offset_of!(MarkState, delay_us),
            offset_of!(MarkState, pi_probability),
        ];
        assert_eq!((state.bytes, state.places(fields)), (size_of::<MarkState>(), places));
    }

    #[test]
    fn an_end_is_written_as_an_arriving_packet_has_it() {
        let four = Ends { local: "192.0.2.1:80".parse().unwrap(), remote: "192.0.2.2:999".parse().unwrap() };
        let bytes = four.to_bytes();
        assert_eq!((&bytes[..4], &bytes[16..20]), (&[192, 0, 2, 2][..], &[192, 0, 2, 1][..]));
        assert_eq!((&bytes[32..36], &bytes[36..]), (&[3, 231, 0, 80][..], &[0, 0, 0, 0][..]));
        let mapped = Ends {
            local: "[::ffff:192.0.2.1]:80".parse().unwrap(),
            remote: "[::ffff:192.0.2.2]:999".parse().unwrap(),
        };
        assert_eq!(mapped.to_bytes(), bytes);
        let six =
            Ends { local: "[2001:db8::1]:80".parse().unwrap(), remote: "[2001:db8::2]:9".parse().unwrap() };
        assert_eq!((six.to_bytes()[15], six.to_bytes()[31], six.to_bytes()[36]), (2, 1, 1));
    }
}
