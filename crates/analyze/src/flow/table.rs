//! Which connection a segment belongs to. A connection that is closed, idle or reopened becomes a report and is forgotten.

use super::{connection::Connection, report::FlowReport};
use crate::{
    Settings,
    segment::{FlowKey, Segment, flag},
};
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

impl Hash for SpreadKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash());
    }
}

/// A key that hashes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SpreadKey(FlowKey);

/// Hands on what [`SpreadKey`] wrote.
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

/// Connections of one shard.
pub struct FlowTable {
    settings: Settings,
    slots: HashMap<SpreadKey, Box<Connection>, BuildHasherDefault<Handed>>,
    retired: Retired,
}

/// Reports of connections that are over, and sums of all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Retired {
    /// The greatest, by payload; as many as the settings say, and at times twice that.
    pub reports: Vec<FlowReport>,
    /// All of them.
    pub flows: u64,
    /// Their packets.
    pub packets: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// Retransmitted segments.
    pub resent_segments: u64,
    /// Retransmitted payload.
    pub resent_bytes: u64,
    /// Timeouts.
    pub timeouts: u64,
}

impl Retired {
    fn add(&mut self, report: FlowReport, keep: usize) {
        self.flows += 1;
        self.packets += report.packets;
        for direction in &report.directions {
            self.payload_bytes += direction.payload_bytes;
            self.resent_segments += direction.resent_segments;
            self.resent_bytes += direction.resent_bytes;
            self.timeouts += direction.timeouts;
        }
        self.reports.push(report);
        if self.reports.len() > keep.saturating_mul(2).max(64) {
            self.prune(keep);
        }
    }

    /// Keeps the greatest; in an order that does not depend on how flows were shared out.
    pub fn prune(&mut self, keep: usize) {
        self.reports.sort_by_key(|report| (std::cmp::Reverse(report.payload_bytes()), report.first_packet));
        self.reports.truncate(keep);
    }

    /// Adds another shard's.
    pub fn merge(&mut self, other: Retired) {
        self.reports.extend(other.reports);
        self.flows += other.flows;
        self.packets += other.packets;
        self.payload_bytes += other.payload_bytes;
        self.resent_segments += other.resent_segments;
        self.resent_bytes += other.resent_bytes;
        self.timeouts += other.timeouts;
    }
}

impl FlowTable {
    /// Empty.
    pub fn new(settings: Settings) -> FlowTable {
        FlowTable { settings, slots: HashMap::default(), retired: Retired::default() }
    }

    /// Connections that are live.
    pub fn live(&self) -> usize {
        self.slots.len()
    }

    /// The next segment.
    #[inline]
    pub fn on_segment(&mut self, segment: &Segment) {
        let key = SpreadKey(segment.key);
        if let Some(connection) = self.slots.get_mut(&key) {
            let over = is_over(connection, segment.time_ns, &self.settings);
            if !over && !connection.is_reopened_by(segment) {
                connection.on_segment(segment);
                return;
            }
            self.retire(key);
            self.open(segment, key, true);
        } else {
            self.open(segment, key, false);
        }
    }

    #[cold]
    fn open(&mut self, segment: &Segment, key: SpreadKey, reused: bool) {
        let mut connection = Box::new(Connection::new(segment, self.settings.detailed));
        connection.reused = reused && segment.has(flag::SYN);
        connection.on_segment(segment);
        self.slots.insert(key, connection);
    }

    #[cold]
    fn retire(&mut self, key: SpreadKey) {
        if let Some(mut connection) = self.slots.remove(&key) {
            connection.finish();
            self.retired
                .add(FlowReport::of(&mut connection, self.settings.epoch_ns), self.settings.most_flows);
        }
    }

    /// A router's word about a live connection.
    pub fn on_too_big(&mut self, key: FlowKey, end: u8, mtu_bytes: u32) {
        if let Some(connection) = self.slots.get_mut(&SpreadKey(key)) {
            connection.halves[usize::from(end)].on_too_big(mtu_bytes);
        }
    }

    /// Turns what is over by now into reports.
    pub fn sweep(&mut self, now_ns: i64) {
        let settings = self.settings;
        let over = self.slots.iter().filter(|(_, c)| is_over(c, now_ns, &settings));
        let mut keys: Vec<_> = over.map(|(key, c)| (c.first_index, *key)).collect();
        keys.sort_unstable_by_key(|(index, _)| *index);
        keys.into_iter().for_each(|(_, key)| self.retire(key));
    }

    /// The capture is over.
    pub fn finish(mut self) -> Retired {
        let mut keys: Vec<_> = self.slots.iter().map(|(key, c)| (c.first_index, *key)).collect();
        keys.sort_unstable_by_key(|(index, _)| *index);
        keys.into_iter().for_each(|(_, key)| self.retire(key));
        self.retired
    }
}

/// Whether a connection ends before a packet at this time: depends on nothing but its own packets.
#[inline]
fn is_over(connection: &Connection, now_ns: i64, settings: &Settings) -> bool {
    let idle = now_ns.saturating_sub(connection.last_ns);
    idle > settings.linger_ns && (idle > settings.idle_ns || connection.is_closed())
}
