//! Connections of a relay whose ends are acknowledged by each other alone: packets of the sockets between them have
//! their acknowledgement numbers held back by programs at tc.
//!
//! The programs are attached by TCX links. They must outlive the sockets, however a process ends: without them the
//! kernel would acknowledge what comes meanwhile. So the links lie in a [box](Acknowledging::descriptors), a pair of
//! unix sockets in which they are under way: they are let go of when the last process has closed both sockets, and then
//! after everything else that it had.

use crate::{
    Error, Result,
    object::{self, bpf_object, refused},
    support::{self, Capability},
    tcx,
    watch::RawEnds,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapInfo, Object};
use longfat_host::{monotonic_us, support::Missing};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socket, socketpair},
};
use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

static OBJECT: &[u8] = bpf_object!(concat!(env!("OUT_DIR"), "/acknowledge.bpf.o"));

/// The layout of the maps that a process hands to the next one: another number with every change of what lies in them.
pub const LAYOUT: u32 = 2;
const MAP: &str = "acknowledged";
const HANDSHAKES: &str = "handshakes";
/// Both bits of `lf_heard`.
const BOTH_HEARD: u32 = 3;
/// BPF_F_BEFORE: packets are heard before another program leads or drops them.
const BEFORE: tcx::Order = 1 << 3;
/// SCM_MAX_FD of `net/scm.h`.
const MOST_DESCRIPTORS: usize = 253;
/// ARPHRD_ETHER of `linux/if_arp.h`.
const ETHERNET: u16 = 1;

/// Descriptors that a process of such a layout hands to the next one.
pub fn descriptor_count(layout: u32) -> usize {
    if layout < 2 { 3 } else { 4 }
}

/// What this process or kernel lacks for it; nothing is touched.
pub fn missing() -> Vec<Missing> {
    support::missing(&[Capability::Marking])
}

/// Names interfaces of the calling thread's network namespace that are up and have no Ethernet frames, of those given:
/// an acknowledgement cannot be sent on to or from there.
///
/// # Errors
/// When the kernel does not say.
pub fn not_ethernet(interfaces: &[String]) -> Result<Vec<String>> {
    let failed = |errno: Errno| Error::io("ask for the kinds of interfaces", errno);
    let any =
        socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).map_err(failed)?;
    let mut found = Vec::new();
    for name in interfaces {
        match (flags(&any, name), kind(&any, name)) {
            // It is gone by now.
            (Err(Errno::ENODEV), _) | (_, Err(Errno::ENODEV)) => {}
            (Ok(flags), Ok(kind)) if flags & libc::IFF_UP == 0 || kind == ETHERNET => {}
            (Ok(_), Ok(_)) => found.push(name.clone()),
            (Err(errno), _) | (_, Err(errno)) => return Err(failed(errno)),
        }
    }
    Ok(found)
}

fn flags(socket: &OwnedFd, name: &str) -> nix::Result<i32> {
    let mut request = request(name);
    // SAFETY: the descriptor is open and the request is valid; the kernel fills in its flags.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request) };
    Errno::result(asked)?;
    // SAFETY: the kernel has filled in this member.
    Ok(i32::from(unsafe { request.ifr_ifru.ifru_flags }))
}

fn kind(socket: &OwnedFd, name: &str) -> nix::Result<u16> {
    let mut request = request(name);
    // SAFETY: the descriptor is open and the request is valid; the kernel fills in the address.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) };
    Errno::result(asked)?;
    // SAFETY: the kernel has filled in this member.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: integers and arrays of them, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let most = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()).take(most) {
        *place = byte as libc::c_char;
    }
    request
}

/// `struct lf_ack_leg`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct RawLeg {
    acked_ns: u64,
    acked: u32,
    want: u32,
    edge: u32,
    next: u32,
    stamp: u32,
    echo: u32,
    interface: u32,
    sent_on: u32,
    scale: u8,
    link: [u8; 12],
    zero: [u8; 3],
}

const LEG_BYTES: usize = size_of::<RawLeg>();
const BIRTH_AT: usize = 2 * LEG_BYTES;
const ACKS_BYTES: usize = BIRTH_AT + 8;
const ACKED_AT: usize = std::mem::offset_of!(RawLeg, acked);

/// What is known of the socket towards an end when it begins, or before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeginLeg {
    /// Sequence number up to which the other end has acknowledged what that end sent.
    pub acked: u32,
    /// Sequence number up to which was received here what that end sent.
    pub received: u32,
    /// Behind what was sent to that end.
    pub sent: u32,
    /// Shift of the windows that it is told.
    pub scale: u8,
}

impl BeginLeg {
    /// What acknowledges nothing that anybody waits for, until it is heard: far behind where an end may be.
    const UNHEARD: u32 = 1 << 30;

    /// A leg between ends that speak past this host still, whose acknowledgements are heard from now on: so far the end
    /// that it is towards has sent, so far the other one.
    pub fn unheard(sent_by_it: u32, sent_to_it: u32, scale: u8) -> BeginLeg {
        let far_behind = sent_by_it.wrapping_sub(BeginLeg::UNHEARD);
        BeginLeg { acked: far_behind, received: far_behind, sent: sent_to_it, scale }
    }

    fn raw(self) -> RawLeg {
        let BeginLeg { acked, received, sent, scale } = self;
        let acked_ns = monotonic_us().max(0) as u64 * 1000;
        RawLeg { acked_ns, acked, want: received, edge: received, next: sent, scale, ..RawLeg::default() }
    }
}

/// How far a socket towards an end is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AckedLeg {
    /// Sequence number up to which the other end has acknowledged what that end sent.
    pub acked: u32,
    /// Sequence number up to which the socket has acknowledged what that end sent, be it told or held back.
    pub wanted: u32,
    /// Acknowledgements of the other end that were sent on to this end.
    pub sent_on: u32,
}

impl AckedLeg {
    /// Bytes that the socket has acknowledged and whose acknowledgement is held back.
    pub fn held_back_bytes(&self) -> u32 {
        (self.wanted.wrapping_sub(self.acked) as i32).max(0) as u32
    }

    fn of(bytes: &[u8]) -> Option<AckedLeg> {
        let at = |offset: usize| Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?));
        let sent_on = at(std::mem::offset_of!(RawLeg, sent_on))?;
        Some(AckedLeg { acked: at(ACKED_AT)?, wanted: at(ACKED_AT + 4)?, sent_on })
    }
}

/// How far both sockets of a connection are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acked {
    /// Tells it from others of the same ends.
    pub birth: u32,
    /// Towards the client, towards the server.
    pub legs: [AckedLeg; 2],
}

type Pair = (SocketAddr, SocketAddr);

/// Holds acknowledgements back while it lives, or whoever it was handed to.
pub struct Acknowledging {
    map: MapHandle,
    handshakes: MapHandle,
    links: [OwnedFd; 2],
    _object: Option<Object>,
}

impl std::fmt::Debug for Acknowledging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acknowledging").finish_non_exhaustive()
    }
}

impl Acknowledging {
    /// Attaches to interfaces of the calling thread's network namespace, but for those that are gone by now. Nothing is
    /// held back before [`Acknowledging::begin`].
    ///
    /// # Errors
    /// When the kernel refuses; nothing is left then.
    pub fn attach(interfaces: &[String]) -> Result<Acknowledging> {
        let object = object::load("acknowledge", object::open("acknowledge", OBJECT)?)?;
        let hooks = interfaces.iter().flat_map(|name| [(name, "hear", BEFORE), (name, "tell", 0)]);
        let attach = |(name, program, order): (&String, &str, tcx::Order)| match tcx::attach(
            &object, program, name, order,
        ) {
            Err(_) if tcx::is_gone(name) => None,
            outcome => Some(outcome),
        };
        let links = hooks.filter_map(attach).collect::<Result<Vec<_>>>()?;
        let descriptors: Vec<RawFd> = links.iter().map(|link| link.as_fd().as_raw_fd()).collect();
        let links = boxed(&descriptors)
            .map_err(|source| Error::io("put programs at tc where they outlive this process", source))?;
        let [map, handshakes] = [MAP, HANDSHAKES].map(|name| object::map_handle(&object, name));
        Ok(Acknowledging { map: map?, handshakes: handshakes?, links, _object: Some(object) })
    }

    /// Goes on with the programs of another process of the same [`LAYOUT`].
    ///
    /// # Errors
    /// When these are no such descriptors.
    pub fn inherit(descriptors: Vec<OwnedFd>) -> Result<Acknowledging> {
        let what = "go on with acknowledgements of another relay";
        let Ok([map, handshakes, one, other]) = <[OwnedFd; 4]>::try_from(descriptors) else {
            return Err(Error::io(what, io::ErrorKind::InvalidInput));
        };
        let handle = |map: OwnedFd| {
            let id = MapInfo::new(map.as_fd())?.info.id;
            MapHandle::from_map_id(id)
        };
        let failed = |source| refused(what, source);
        let [map, handshakes] = [map, handshakes].map(|map| handle(map).map_err(failed));
        Ok(Acknowledging { map: map?, handshakes: handshakes?, links: [one, other], _object: None })
    }

    /// For another process: the maps, and both ends of the box in which the programs' links lie.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [self.map.as_fd(), self.handshakes.as_fd(), self.links[0].as_fd(), self.links[1].as_fd()]
    }

    /// Descriptors it keeps open: the object's maps, programs and type information, and those above.
    pub fn descriptor_count(&self) -> usize {
        12
    }

    /// Whether the handshake of a connection was heard from both ends, under the very addresses of its sockets here.
    pub fn has_heard_handshake(&self, (client, server): Pair) -> bool {
        let (ends, _) = RawEnds::of(client, server);
        let heard = self.handshakes.lookup(&ends.to_bytes(), MapFlags::ANY).ok().flatten();
        heard.is_some_and(|bytes| bytes == BOTH_HEARD.to_ne_bytes())
    }

    /// From now on sockets between a client and a server acknowledge what the other end has acknowledged: the socket
    /// towards the client, the one towards the server.
    ///
    /// # Errors
    /// When there is no room.
    pub fn begin(
        &self,
        (client, server): Pair,
        birth: u32,
        [to_client, to_server]: [BeginLeg; 2],
    ) -> Result<()> {
        let (ends, is_high) = RawEnds::of(client, server);
        let legs = if is_high { [to_server, to_client] } else { [to_client, to_server] };
        let mut value = [0; ACKS_BYTES];
        for (leg, bytes) in legs.iter().zip(value.chunks_exact_mut(LEG_BYTES)) {
            let RawLeg { acked_ns, acked, want, edge, next, scale, .. } = leg.raw();
            bytes[..ACKED_AT].copy_from_slice(&acked_ns.to_ne_bytes());
            for (word, place) in
                [acked, want, edge, next].into_iter().zip(bytes[ACKED_AT..].chunks_exact_mut(4))
            {
                place.copy_from_slice(&word.to_ne_bytes());
            }
            bytes[std::mem::offset_of!(RawLeg, scale)] = scale;
        }
        value[BIRTH_AT..BIRTH_AT + 4].copy_from_slice(&birth.to_ne_bytes());
        let begun = self.map.update(&ends.to_bytes(), &value, MapFlags::ANY);
        begun.map_err(|source| refused("hold acknowledgements of a connection back", source))
    }

    /// How far both sockets are; none of a connection that was not begun.
    pub fn look(&self, (client, server): Pair) -> Option<Acked> {
        let (ends, is_high) = RawEnds::of(client, server);
        let value = self.map.lookup(&ends.to_bytes(), MapFlags::ANY).ok()??;
        let [low, high] = [0, LEG_BYTES].map(|at| AckedLeg::of(value.get(at..)?));
        let (low, high) = (low?, high?);
        let birth = u32::from_ne_bytes(value.get(BIRTH_AT..BIRTH_AT + 4)?.try_into().ok()?);
        Some(Acked { birth, legs: if is_high { [high, low] } else { [low, high] } })
    }

    /// Nothing more is held back of a connection, if it is that one still.
    pub fn end(&self, pair: Pair, birth: u32) {
        if self.look(pair).is_some_and(|acked| acked.birth == birth) {
            // It may be gone already.
            let _ = self.map.delete(&RawEnds::of(pair.0, pair.1).0.to_bytes());
        }
    }

    /// Both ends of all connections, in whichever order.
    pub fn all(&self) -> Vec<Pair> {
        let ends = self.map.keys().filter_map(|key| RawEnds::from_bytes(&key));
        ends.map(|ends| (ends.low(), ends.high())).collect()
    }
}

/// A pair of sockets in which these descriptors are under way.
fn boxed(descriptors: &[RawFd]) -> io::Result<[OwnedFd; 2]> {
    let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    for some in descriptors.chunks(MOST_DESCRIPTORS) {
        let rights = [ControlMessage::ScmRights(some)];
        sendmsg::<()>(one.as_raw_fd(), &[IoSlice::new(b"links")], &rights, MsgFlags::MSG_DONTWAIT, None)?;
    }
    Ok([one, other])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, assert_mirrors};

    #[test]
    fn what_is_shared_is_laid_out_as_in_the_object() {
        assert_mirrors!(OBJECT, "lf_ack_leg", RawLeg:
            acked_ns acked want edge next stamp echo interface sent_on scale link zero);
        let acks = Layout::of(OBJECT, "lf_acks");
        assert_eq!((acks.bytes, acks.places(["legs", "birth"])), (ACKS_BYTES, [0, BIRTH_AT]));
    }

    #[test]
    fn what_a_socket_acknowledged_beyond_the_other_end_is_held_back() {
        let held = |acked, wanted| AckedLeg { acked, wanted, sent_on: 0 }.held_back_bytes();
        assert_eq!([held(5, 9), held(u32::MAX, 3), held(9, 5), held(7, 7)], [4, 4, 0, 0]);
        let unheard = BeginLeg::unheard(5, 6, 7).raw();
        assert_eq!(
            (unheard.acked, unheard.want, unheard.next),
            (5u32.wrapping_sub(1 << 30), unheard.acked, 6)
        );
    }
}
