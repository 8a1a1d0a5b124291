//! Every ACK of chosen connections: the programs of bpf/tcb_trace.bpf.c, and the reader that polls them.

use super::query::Query;
use crate::{
    Result,
    object::{self, bpf_object, refused},
    sockets::{
        connection::{CcName, Connection, State, ip},
        namespace::{NetNamespace, Scope},
        visit::{attach_program, visit},
    },
};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, Object, RingBuffer, RingBufferBuilder};
use std::{
    collections::{HashMap, HashSet},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How often to read: the kernel does not wake us. Waking up takes the processor from the flow, whatever there is to
/// read.
pub const POLL_EVERY: Duration = Duration::from_millis(50);

/// `struct lf_event` of bpf/tcb_trace.bpf.c: integers only, no padding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Cookie of the connection.
    pub cookie: u64,
    /// Number of [`EventKind`].
    pub kind: u32,
    /// First sequence number that is not acknowledged.
    pub snd_una: u32,
    /// First sequence number that was never sent.
    pub snd_nxt: u32,
    /// Window the other end offers.
    pub snd_wnd_bytes: u32,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Slow-start threshold.
    pub ssthresh_segments: u32,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Round-trip time variation.
    pub rttvar_us: u32,
    /// Segments in flight (RFC 6675 pipe).
    pub flight_segments: u32,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    /// Segments thought lost and not repaired.
    pub lost_segments: u32,
    /// Segments retransmitted so far.
    pub total_retrans_segments: u32,
    /// Sending maximum segment size.
    pub mss_bytes: u32,
    /// State of RFC 9293.
    pub tcp_state: u8,
    /// Recovery state.
    pub ca_state: u8,
    zero: [u8; 2],
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The connection began, or the trace did.
    Begin,
    /// An ACK arrived; the values are those before it was processed.
    Ack,
    /// A segment was retransmitted.
    Retransmit,
    /// The recovery state changed, to `ca_state`; to loss: the retransmission timer ran out.
    CaState,
    /// Another congestion control took over.
    Cc,
    /// The state of RFC 9293 changed, to `tcp_state`.
    State,
}

/// Ends of a connection: `struct lf_identity` after its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// This end.
    pub local: std::net::SocketAddr,
    /// The other end.
    pub remote: std::net::SocketAddr,
    /// Inode of its network namespace.
    pub netns: u32,
    /// Congestion control of the connection.
    pub cc: CcName,
    /// Whether it is known to be meant; else [`Tracer::poll`] judges it.
    pub is_chosen: bool,
}

static OBJECT: &[u8] = bpf_object!(concat!(env!("OUT_DIR"), "/tcb_trace.bpf.o"));

const IDENTITY_BYTES: usize = size_of::<Event>() + 16 + 16 + 2 + 2 + 4 + 4 + 4 + 16;

impl Event {
    /// What it is; `None` for a kind this program does not know.
    pub fn kind(&self) -> Option<EventKind> {
        use EventKind::{Ack, Begin, CaState, Cc, Retransmit, State};
        let index = usize::try_from(self.kind).ok()?.checked_sub(1)?;
        [Begin, Ack, Retransmit, CaState, Cc, State].get(index).copied()
    }
}

/// Reads one record: the event, and who it is where the record says so. `None` when it is none of ours.
pub fn decode(bytes: &[u8]) -> Option<(Event, Option<Identity>)> {
    let head = bytes.get(..size_of::<Event>())?;
    // SAFETY: as long as an Event, for which every byte pattern is valid; the read may be unaligned.
    let event = unsafe { head.as_ptr().cast::<Event>().read_unaligned() };
    match event.kind()? {
        EventKind::Begin | EventKind::Cc => Some((event, Some(identity(bytes)?))),
        _ => Some((event, None)),
    }
}

fn identity(bytes: &[u8]) -> Option<Identity> {
    let rest = bytes.get(size_of::<Event>()..IDENTITY_BYTES)?;
    let word = |at: usize| Some(u32::from_ne_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let port = |at: usize| Some(u16::from_ne_bytes(rest.get(at..at + 2)?.try_into().ok()?));
    let family = word(40)? as u8;
    let address = |at: usize, port: u16| -> Option<std::net::SocketAddr> {
        let bytes: &[u8; 16] = rest.get(at..at + 16)?.try_into().ok()?;
        Some(std::net::SocketAddr::new(ip(family, bytes).to_canonical(), port))
    };
    Some(Identity {
        local: address(0, port(32)?)?,
        remote: address(16, port(34)?)?,
        netns: word(36)?,
        is_chosen: word(44)? != 0,
        cc: CcName::from_bytes(rest.get(48..64)?),
    })
}

/// How many bytes the record at the beginning of `bytes` has; `None` when it is cut or none of ours.
pub fn record_length(bytes: &[u8]) -> Option<usize> {
    let (event, _) = decode(bytes)?;
    let long = matches!(event.kind()?, EventKind::Begin | EventKind::Cc);
    Some(if long { IDENTITY_BYTES } else { size_of::<Event>() })
}

/// The longest record.
pub const RECORD_MAX_BYTES: usize = IDENTITY_BYTES;

/// A running trace. Its programs leave the kernel with it.
pub struct Tracer {
    query: Query,
    namespaces: Vec<NetNamespace>,
    /// Verdict by cookie, as the programs read it.
    verdicts: MapHandle,
    /// Cookies of those that are meant.
    meant: HashSet<u64>,
    newly_meant: Vec<u64>,
    events: Events,
    lost: MapHandle,
    _links: Vec<Link>,
    _object: Object,
}

const MEANT: u32 = 1;
const NOT_MEANT: u32 = 2;

impl Tracer {
    /// Begins to record every connection of the look: those that stand, and those that begin from now on.
    /// `buffer_bytes` (a power of two) bounds what is kept between two polls.
    ///
    /// # Errors
    /// When a program is refused, or the connections cannot be listed.
    pub fn start(query: Query, buffer_bytes: u32) -> Result<Tracer> {
        const NAME: &str = "tcb_trace";
        let namespaces = query.scope.namespaces()?;
        let only = if matches!(query.scope, Scope::All) {
            0
        } else {
            namespaces.first().map_or(0, |p| p.inode as u32)
        };
        let mut open = object::open(NAME, OBJECT)?;
        object::set_initial(&mut open, ".rodata.lf", |bytes| {
            bytes[..4].copy_from_slice(&only.to_ne_bytes())
        })?;
        if let Some(mut events) = open.maps_mut().find(|map| map.name() == "events") {
            let sized = events.set_max_entries(buffer_bytes);
            sized.map_err(|source| refused("size the ring buffer of events", source))?;
        }
        let mut object = object::load(NAME, open)?;
        let mut links = Vec::new();
        for program in ["on_ack", "on_retransmit", "on_ca_state", "on_state"] {
            links.push(attach_program(&mut object, program)?);
        }
        let mut tracer = Tracer {
            verdicts: object::map_handle(&object, "verdicts")?,
            events: Events::open(&object::map_handle(&object, "events")?)?,
            lost: object::map_handle(&object, ".bss.lost")?,
            meant: HashSet::new(),
            newly_meant: Vec::new(),
            _links: links,
            query,
            namespaces,
            _object: object,
        };
        tracer.mark_standing()?;
        Ok(tracer)
    }

    fn mark_standing(&mut self) -> Result<()> {
        for connection in self.query.take()? {
            self.judge(connection.cookie, true)?;
        }
        let mark = attach_program(&mut self._object, "mark")?;
        for namespace in &self.namespaces {
            visit(namespace, mark.as_fd())?;
        }
        Ok(())
    }

    fn judge(&mut self, cookie: u64, is_meant: bool) -> Result<()> {
        let verdict = if is_meant { MEANT } else { NOT_MEANT };
        if is_meant {
            self.meant.insert(cookie);
            self.newly_meant.push(cookie);
        }
        self.verdicts
            .update(&cookie.to_ne_bytes(), &verdict.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| refused("say which connections are meant", source))
    }

    /// Hands every record since the last poll to `sink`, which says whether to go on (false: an error of its own).
    /// Connections that have just begun are judged by the filter; see [`Tracer::take_meant`].
    ///
    /// # Errors
    /// When the ring buffer cannot be read.
    pub fn poll(&mut self, mut sink: impl FnMut(&[u8])) -> Result<()> {
        let mut begun = Vec::new();
        self.events.take(|bytes| {
            if bytes.len() == IDENTITY_BYTES {
                begun.extend(decode(bytes).and_then(|(event, identity)| Some((event, identity?))));
            }
            sink(bytes);
        })?;
        begun.retain(|(event, identity)| event.kind() == Some(EventKind::Begin) && !identity.is_chosen);
        self.judge_begun(&begun)
    }

    fn judge_begun(&mut self, begun: &[(Event, Identity)]) -> Result<()> {
        if begun.is_empty() {
            return Ok(());
        }
        // A filter that asks for more than addresses needs a look at what the connections have become.
        let by_address = self.query.filter.is_about_addresses_only() && !self.query.filter.asks_for("netns");
        let seen = if by_address { Vec::new() } else { self.query.unfiltered().take()? };
        let by_cookie: HashMap<u64, &Connection> = seen.iter().map(|one| (one.cookie, one)).collect();
        for (event, identity) in begun {
            let bare = self.bare(event, identity);
            let connection = by_cookie.get(&event.cookie).copied().unwrap_or(&bare);
            let is_meant = self.query.filter.matches(connection);
            self.judge(event.cookie, is_meant)?;
        }
        Ok(())
    }

    fn bare(&self, event: &Event, identity: &Identity) -> Connection {
        let namespace = self.namespaces.iter().find(|namespace| namespace.inode as u32 == identity.netns);
        let netns = namespace.map_or_else(|| "".into(), |namespace| Arc::clone(&namespace.label));
        Connection {
            cc: Some(identity.cc),
            cookie: event.cookie,
            ..Connection::bare(netns, identity.local, identity.remote, State::ESTABLISHED)
        }
    }

    /// Connections that were found to be meant since the last call. Records of one that has just begun come before the
    /// filter has judged it: those of a connection that is never named here are not wanted.
    pub fn take_meant(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.newly_meant)
    }

    /// How many connections are meant so far.
    pub fn connections(&self) -> usize {
        self.meant.len()
    }

    /// Records that found the buffer full, so far.
    pub fn lost(&self) -> u64 {
        object::read_u64(&self.lost, 0).unwrap_or(0)
    }
}

/// The ring buffer of events. It stays mapped: that writes a page table entry for each of its pages, too much to be
/// done at every poll.
struct Events {
    ring: RingBuffer<'static>,
    taken: Arc<Mutex<Taken>>,
}

/// Records, one after the other.
#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Events {
    fn open(map: &MapHandle) -> Result<Events> {
        let failed = |source| refused("map the ring buffer of events", source);
        let taken = Arc::new(Mutex::new(Taken::default()));
        let into = Arc::clone(&taken);
        let mut builder = RingBufferBuilder::new();
        let take = move |record: &[u8]| {
            let mut taken = into.lock().unwrap_or_else(PoisonError::into_inner);
            taken.bytes.extend_from_slice(record);
            let end = taken.bytes.len();
            taken.ends.push(end);
            0
        };
        builder.add(map, take).map_err(failed)?;
        Ok(Events { ring: builder.build().map_err(failed)?, taken })
    }

    /// Hands over every record that has come since.
    fn take(&self, mut sink: impl FnMut(&[u8])) -> Result<()> {
        let consumed = self.ring.consume();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut start = 0;
        for end in &taken.ends {
            sink(&taken.bytes[start..*end]);
            start = *end;
        }
        taken.bytes.clear();
        taken.ends.clear();
        consumed.map_err(|source| refused("read the ring buffer of events", source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, assert_mirrors};
    use proptest::prelude::*;

    #[test]
    fn records_are_laid_out_as_in_the_object_that_writes_them() {
        assert_mirrors!(OBJECT, "lf_event", Event:
            time_ns cookie kind snd_una snd_nxt snd_wnd_bytes cwnd_segments ssthresh_segments srtt_us rttvar_us
            flight_segments unacked_segments lost_segments total_retrans_segments mss_bytes tcp_state ca_state zero);
        let identity = Layout::of(OBJECT, "lf_identity");
        let fields = ["local", "remote", "local_port", "remote_port", "netns", "family", "chosen", "cc"];
        let places = identity.places(fields).map(|octets| octets - size_of::<Event>());
        assert_eq!((identity.bytes, places), (IDENTITY_BYTES, [0, 16, 32, 34, 36, 40, 44, 48]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            prop_assert!(record_length(&bytes).is_none_or(|length| length <= bytes.len()));
        }

        #[test]
        fn a_record_of_any_kind_is_decoded_or_refused(kind in 0u32..9, fill in any::<u8>()) {
            let mut bytes = vec![fill; IDENTITY_BYTES];
            bytes[16..20].copy_from_slice(&kind.to_ne_bytes());
            prop_assert_eq!(decode(&bytes).is_some(), (1..=6).contains(&kind));
        }
    }
}
