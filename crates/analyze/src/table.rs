//! Which connection a segment belongs to. A connection that is closed, idle or reopened becomes a report and is
//! forgotten.

use crate::{
    Settings,
    clock::Passed,
    flow::{connection::Connection, young::Young},
    report::FlowReport,
    segment::{FlowKey, Segment},
};
use indexmap::IndexMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A connection over which payload went may be silent this long: keep-alives come every two hours (RFC 1122, 4.2.3.6),
/// and their timers are late.
const MOST_IDLE_NS: i64 = 9_000_000_000_000;
/// Flows that may: of more, those longest without a packet are over when they are idle as any other.
const MOST_IDLE_FLOWS: usize = 1_000;

/// Flows that are found by their ports alone, at most.
const LATEST: usize = 256;

/// Hands on what a [`FlowKey`] wrote: it is well spread.
#[derive(Debug, Clone, Copy, Default)]
struct Handed(u64);

impl Hasher for Handed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// What is known of a flow.
enum Flow {
    /// First packets of a flow.
    Young(Box<Young>),
    /// What they mean.
    Followed(Box<Connection>),
}

impl Flow {
    fn first_index(&self) -> u64 {
        match self {
            Flow::Young(young) => young.first_index,
            Flow::Followed(connection) => connection.first_index,
        }
    }

    /// Follows it from now on.
    #[inline]
    fn follow(&mut self, key: &FlowKey, detailed: bool) -> &mut Connection {
        loop {
            match self {
                Flow::Followed(connection) => return connection,
                Flow::Young(young) => *self = Flow::Followed(young.followed(*key, detailed)),
            }
        }
    }

    fn last_ns(&self) -> i64 {
        match self {
            Flow::Young(young) => young.last_ns,
            Flow::Followed(connection) => connection.last_ns,
        }
    }

    /// Whether it may be over; if not, it is not.
    fn may_be_over(&self, now_ns: i64, settings: &Settings) -> bool {
        match self {
            Flow::Young(young) => {
                let (closed, used) = (|| young.may_be_closed(), || young.may_be_used());
                is_over(young.last_ns, closed, used, now_ns, settings)
            }
            Flow::Followed(connection) => is_connection_over(connection, now_ns, settings),
        }
    }
}

/// Connections that are live, and what became of the others.
pub struct FlowTable {
    settings: Settings,
    flows: IndexMap<FlowKey, Flow, BuildHasherDefault<Handed>>,
    /// Places of the flows that the last segments were of, by their ports: packets come in trains, of few flows.
    latest: Box<[u32; LATEST]>,
    /// A connection silent for less is not over.
    patience_ns: u64,
    /// The clock of the current times, where the capture has several.
    clock_ns: Option<i64>,
    retired: Retired,
}

/// Reports of connections that are over, and sums of all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Retired {
    /// The greatest, by payload; as many as the settings say, and at times twice that.
    pub reports: Vec<FlowReport>,
    /// All of them.
    pub flows: u64,
    /// Packets of the flows.
    pub packets: u64,
    /// Payload of the flows.
    pub payload_bytes: u64,
    /// Number of segments sent.
    pub sent_segments: u64,
    /// Retransmitted segments.
    pub resent_segments: u64,
    /// SYNs among the segments sent again.
    pub resent_syns: u64,
    /// Packets with a wrong checksum.
    pub damaged_packets: u64,
    /// Retransmitted payload.
    pub resent_bytes: u64,
    /// Number of retransmission timeouts.
    pub timeouts: u64,
    /// Flows whose SYN was refused, was not answered, and whose answer was not acknowledged.
    pub unopened: [u64; 3],
    /// Flows taken for over because too many were live.
    pub cut_flows: u64,
}

impl Retired {
    fn add(&mut self, report: FlowReport, keep: usize) {
        self.flows += 1;
        self.packets += report.packets;
        if let Some(why) = report.unopened() {
            self.unopened[why as usize] += 1;
        }
        for direction in &report.directions {
            self.payload_bytes += direction.counts.payload_bytes;
            self.sent_segments += direction.counts.sent_segments;
            self.resent_segments += direction.counts.resent_segments;
            self.resent_syns += direction.counts.resent_syns;
            self.damaged_packets += direction.counts.damaged_packets;
            self.resent_bytes += direction.counts.resent_bytes;
            self.timeouts += direction.timeouts;
        }
        self.reports.push(report);
        if self.reports.len() > keep.saturating_mul(2).max(64) {
            self.prune(keep);
        }
    }

    /// Keeps the greatest, the first first.
    pub fn prune(&mut self, keep: usize) {
        self.reports
            .sort_by_cached_key(|report| (std::cmp::Reverse(report.payload_bytes()), report.first_packet));
        self.reports.truncate(keep);
    }
}

impl FlowTable {
    /// An empty table.
    pub fn new(settings: Settings) -> FlowTable {
        FlowTable {
            settings,
            flows: IndexMap::default(),
            latest: Box::new([0; LATEST]),
            patience_ns: settings.linger_ns.min(settings.idle_ns).max(0) as u64,
            clock_ns: None,
            retired: Retired::default(),
        }
    }

    /// The capture has several clocks; times are of this one now, by its offset.
    pub fn set_clock(&mut self, offset_ns: i64) {
        self.clock_ns = Some(offset_ns);
    }

    /// Connections that are live.
    pub fn live(&self) -> usize {
        self.flows.len()
    }

    /// The next segment.
    #[inline]
    pub fn on_segment(&mut self, segment: &Segment) {
        let key = &segment.key;
        let latest = &mut self.latest[usize::from(key.ports[0] ^ key.ports[1]) % LATEST];
        let mut place = *latest as usize;
        if self.flows.get_index(place).is_none_or(|(latest, _)| latest != key) {
            let Some(found) = self.flows.get_index_of(key) else { return self.open(segment, false) };
            (*latest, place) = (found as u32, found);
        }
        let Some((key, flow)) = self.flows.get_index_mut(place) else { return };
        let settings = &self.settings;
        if let Some(offset_ns) = self.clock_ns {
            flow.follow(key, settings.detailed).on_clock(offset_ns);
        }
        if let Flow::Young(young) = flow
            && young.take(segment, settings.linger_ns)
        {
            return;
        }
        let connection = flow.follow(key, settings.detailed);
        // What is earlier is very much later, without a sign.
        let silence_ns = segment.time_ns.wrapping_sub(connection.last_ns) as u64;
        let is_over = silence_ns > self.patience_ns && is_over_before(connection, segment, settings);
        if is_over || connection.is_reopened_by(segment) {
            self.retire(segment.key);
            return self.open(segment, true);
        }
        connection.on_segment(segment);
    }

    #[cold]
    fn open(&mut self, segment: &Segment, reused: bool) {
        let Settings { detailed, linger_ns, .. } = self.settings;
        let mut young = Box::new(Young::new(segment, reused));
        let flow = if young.take(segment, linger_ns) {
            Flow::Young(young)
        } else {
            let mut connection = Box::new(Connection::new(segment, reused, detailed));
            connection.on_segment(segment);
            Flow::Followed(connection)
        };
        if self.flows.len() >= self.settings.live_flows.max(1) {
            self.make_room();
        }
        self.flows.insert(segment.key, flow);
    }

    /// Takes an eighth of the flows, those longest without a packet, for over: at once, so that looking for them is
    /// seldom.
    fn make_room(&mut self) {
        let mut flows: Vec<_> =
            self.flows.iter().map(|(key, flow)| (flow.last_ns(), flow.first_index(), *key)).collect();
        let out = (flows.len() / 8).max(1);
        flows.select_nth_unstable_by_key(out - 1, |(last_ns, first, _)| (*last_ns, *first));
        flows.truncate(out);
        flows.sort_unstable_by_key(|(_, first, _)| *first);
        self.retired.cut_flows += out as u64;
        flows.into_iter().for_each(|(_, _, key)| self.retire(key));
    }

    #[cold]
    fn retire(&mut self, key: FlowKey) {
        if let Some(mut flow) = self.flows.swap_remove(&key) {
            let connection = flow.follow(&key, self.settings.detailed);
            connection.finish();
            self.retired.add(FlowReport::of(connection, self.settings.epoch_ns), self.settings.most_flows);
        }
    }

    /// How much time has passed for a flow behind a silence of the capture, as this segment of it shows.
    pub fn time_passed(&mut self, segment: &Segment) -> Option<Passed> {
        let flow = self.flows.get_mut(&segment.key)?;
        flow.follow(&segment.key, self.settings.detailed).time_passed(segment)
    }

    /// The capture's clock was set: no time between what was so far and what comes can be told.
    pub fn forget_times(&mut self) {
        for flow in self.flows.values_mut() {
            match flow {
                Flow::Young(young) => young.forget_times(),
                Flow::Followed(connection) => connection.forget_times(),
            }
        }
    }

    /// A router's word about a live connection.
    pub fn on_too_big(&mut self, key: FlowKey, end: u8, mtu_bytes: u32) {
        if let Some(flow) = self.flows.get_mut(&key) {
            let connection = flow.follow(&key, self.settings.detailed);
            connection.halves[usize::from(end)].on_too_big(mtu_bytes);
        }
    }

    /// Turns what is over by now into reports.
    pub fn sweep(&mut self, now_ns: i64) {
        let settings = self.settings;
        for key in self.in_order(|flow| flow.may_be_over(now_ns, &settings)) {
            let flow = self.flows.get_mut(&key).map(|flow| flow.follow(&key, settings.detailed));
            if flow.is_some_and(|connection| is_connection_over(connection, now_ns, &settings)) {
                self.retire(key);
            }
        }
        self.retire_idle(now_ns);
    }

    /// Keeps as many idle flows as may wait for a keep-alive.
    fn retire_idle(&mut self, now_ns: i64) {
        let is_idle = |flow: &Flow| now_ns.saturating_sub(flow.last_ns()) > self.settings.idle_ns;
        let idle = self.flows.iter().filter(|(_, flow)| is_idle(flow));
        let mut idle: Vec<_> = idle.map(|(key, flow)| (flow.last_ns(), flow.first_index(), *key)).collect();
        idle.sort_unstable_by_key(|(last_ns, first, _)| (std::cmp::Reverse(*last_ns), *first));
        let mut out = idle.split_off(idle.len().min(MOST_IDLE_FLOWS));
        out.sort_unstable_by_key(|(_, first, _)| *first);
        out.into_iter().for_each(|(.., key)| self.retire(key));
    }

    /// The capture is over.
    pub fn finish(mut self) -> Retired {
        self.in_order(|_| true).into_iter().for_each(|key| self.retire(key));
        self.retired
    }

    /// Keys of such flows, in the order of their first packets.
    fn in_order(&self, such: impl Fn(&Flow) -> bool) -> Vec<FlowKey> {
        let found = self.flows.iter().filter(|(_, flow)| such(flow));
        let mut keys: Vec<_> = found.map(|(key, flow)| (flow.first_index(), *key)).collect();
        keys.sort_unstable_by_key(|(index, _)| *index);
        keys.into_iter().map(|(_, key)| key).collect()
    }
}

/// Whether a flow is over at this time, whatever comes.
#[inline]
fn is_over(
    last_ns: i64,
    is_closed: impl FnOnce() -> bool,
    is_used: impl FnOnce() -> bool,
    now_ns: i64,
    settings: &Settings,
) -> bool {
    let idle = now_ns.saturating_sub(last_ns);
    let most_idle = || if is_used() { settings.idle_ns.max(MOST_IDLE_NS) } else { settings.idle_ns };
    idle > settings.linger_ns && (is_closed() || idle > settings.idle_ns && idle > most_idle())
}

#[inline]
fn is_connection_over(connection: &Connection, now_ns: i64, settings: &Settings) -> bool {
    is_over(connection.last_ns, || connection.is_closed(), || connection.is_used(), now_ns, settings)
}

/// Whether a connection is over before this packet: depends on nothing but its own packets.
#[cold]
fn is_over_before(connection: &Connection, segment: &Segment, settings: &Settings) -> bool {
    let idle = segment.time_ns.saturating_sub(connection.last_ns);
    is_connection_over(connection, segment.time_ns, settings)
        || idle > settings.idle_ns && !connection.goes_on_with(segment)
}
