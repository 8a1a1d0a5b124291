//! What a server allows: how much one plan may ask for, and what all transfers, and those of one peer, may have at the
//! same time. Pure.

use crate::{
    admit::STRANGERS_MAX,
    datagram::BATCH_MAX,
    plan::{Amount, DATAGRAM_MAX_BYTES, PlanError, Protocol, STREAMS_MAX, TransferPlan, span},
    sink::{ECHOES_HELD_MAX_BYTES, READ_BYTES},
    sockets::UDP_RCVBUF_BYTES,
};
use longfat_host::Network;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What a server allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Transfers at the same time.
    pub transfers: u64,
    /// Data connections and UDP sockets of all transfers together.
    pub streams: u64,
    /// Rate at which the datagrams of all transfers together may leave, headers included. (TCP gives way to others by
    /// itself.)
    pub udp_rate_bps: u64,
    /// How long before each departure a sender of datagrams may spin: while it does, a processor does nothing else.
    pub udp_spin_us: u64,
    /// How long a client may be silent while datagrams are sent to it.
    pub udp_silence_us: u64,
    /// Memory of all transfers together: blocks, and socket buffers where plans ask for them.
    pub memory_bytes: u64,
    /// How long one transfer may take, and how long it may wait for its start.
    pub duration_us: u64,
    /// Payload of one transfer.
    pub bytes: u64,
    /// What one peer (an IPv4 address, a /64 of IPv6) may have of what all together may.
    pub peer_percent: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            transfers: 256,
            streams: 1024,
            udp_rate_bps: 2_000_000_000,
            udp_spin_us: 0,
            udp_silence_us: 5_000_000,
            memory_bytes: 1 << 30,
            duration_us: 3_600_000_000,
            bytes: 10_000_000_000_000,
            peer_percent: 50,
        }
    }
}

impl Limits {
    /// For networks whose hosts are all one's own: as much as plans can say.
    pub fn trusting() -> Limits {
        Limits {
            transfers: 4096,
            streams: 64 * u64::from(STREAMS_MAX),
            udp_rate_bps: u64::MAX,
            udp_spin_us: u64::MAX,
            udp_silence_us: u64::MAX,
            memory_bytes: u64::MAX,
            duration_us: u64::MAX,
            bytes: u64::MAX,
            peer_percent: 100,
        }
    }

    /// Refuses a plan that asks for more than this server gives to one transfer.
    pub(crate) fn check(&self, plan: &TransferPlan) -> Result<(), PlanError> {
        let span_us = plan.duration_us().map_or(0, |span| span.saturating_add(plan.last_start_us()));
        let spans =
            [("the duration", span_us), ("the drain limit", plan.drain_us), ("the timeout", plan.timeout_us)];
        for (what, span_us) in spans {
            refuse_beyond(span(self.duration_us), what, span(span_us), "--max-duration")?;
        }
        refuse_beyond(self.bytes, "the number of bytes", planned_bytes(plan), "--max-bytes")
    }

    /// Takes from a plan what it gets less of, and need not be refused for.
    pub(crate) fn moderate(&self, plan: &mut TransferPlan) {
        plan.spin_us = plan.spin_us.min(self.udp_spin_us);
    }

    /// How long a client may be silent. One to which datagrams are sent must be heard of more often than it asks for:
    /// what is not there any more cannot stop them.
    pub(crate) fn silence_us(&self, plan: &TransferPlan) -> u64 {
        let sends_datagrams = plan.protocol == Protocol::Udp && plan.reverse;
        if sends_datagrams { plan.timeout_us.min(self.udp_silence_us) } else { plan.timeout_us }
    }

    /// Most payload of each stream, whatever the path would carry.
    pub(crate) fn stream_bytes(&self, plan: &TransferPlan) -> u64 {
        self.bytes.div_ceil(u64::from(plan.streams.max(1)))
    }
}

fn refuse_beyond<T: Copy + PartialOrd + fmt::Display>(
    limit: T,
    what: &'static str,
    value: T,
    flag: &str,
) -> Result<(), PlanError> {
    if value <= limit {
        return Ok(());
    }
    Err(PlanError::new(what, &value, format!("this server allows {limit} ({flag})")))
}

/// Bytes that are known before the transfer: those of a duration only with a rate.
fn planned_bytes(plan: &TransferPlan) -> u64 {
    match (plan.amount, plan.rate_bps) {
        (Amount::Bytes(bytes), _) => bytes,
        (Amount::DurationUs(span_us), Some(rate_bps)) => {
            let bytes = u128::from(span_us) * u128::from(rate_bps) / 8_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        }
        (Amount::DurationUs(_), None) => 0,
    }
}

/// What a transfer takes of what there is for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Need {
    transfers: u64,
    streams: u64,
    udp_rate_bps: u64,
    memory_bytes: u64,
    descriptors: u64,
}

/// A thread's stack as far as it is used, and what the kernel keeps of it.
const THREAD_BYTES: u64 = 64 << 10;
/// Headers of a datagram, of IPv4 and UDP: many small ones are more than their payload says.
const HEADERS_BYTES: u64 = 28;
/// Messages, the pattern of the payload and threads that a transfer has besides those of its streams.
const TRANSFER_BYTES: u64 = 1 << 20;

impl Need {
    /// Need of the serving end.
    pub(crate) fn of(plan: &TransferPlan) -> Need {
        let streams = u64::from(plan.streams);
        let files = u64::from(plan.reverse && plan.zero_copy);
        let listening = if plan.protocol == Protocol::Tcp { 1 + STRANGERS_MAX as u64 } else { 0 };
        let sends_datagrams = plan.protocol == Protocol::Udp && plan.reverse;
        Need {
            transfers: 1,
            streams,
            udp_rate_bps: plan
                .rate_bps
                .filter(|_| sends_datagrams)
                .map_or(0, |rate| on_the_wire_bps(plan, rate)),
            memory_bytes: TRANSFER_BYTES
                .saturating_add(block_bytes(plan))
                .saturating_add(streams.saturating_mul(stream_memory_bytes(plan))),
            descriptors: 1 + listening + streams * (1 + files),
        }
    }

    /// Each figure of two, put together by `join`.
    fn zip(self, other: Need, join: impl Fn(u64, u64) -> u64) -> Need {
        Need {
            transfers: join(self.transfers, other.transfers),
            streams: join(self.streams, other.streams),
            udp_rate_bps: join(self.udp_rate_bps, other.udp_rate_bps),
            memory_bytes: join(self.memory_bytes, other.memory_bytes),
            descriptors: join(self.descriptors, other.descriptors),
        }
    }

    /// What there is too little of, and the option that gives more.
    fn beyond(&self, room: &Need) -> Option<(&'static str, &'static str, u64)> {
        let figures = [
            ("transfers", "--max-transfers", self.transfers, room.transfers),
            ("streams", "--max-streams", self.streams, room.streams),
            ("bit/s of datagrams", "--max-udp-rate", self.udp_rate_bps, room.udp_rate_bps),
            ("bytes of memory", "--max-memory", self.memory_bytes, room.memory_bytes),
            ("file descriptors", "ulimit -n", self.descriptors, room.descriptors),
        ];
        let found = figures.into_iter().find(|(_, _, asked, room)| asked > room);
        found.map(|(what, option, _, room)| (what, option, room))
    }
}

/// The rate of whole datagrams whose payload has this one.
fn on_the_wire_bps(plan: &TransferPlan, payload_bps: u64) -> u64 {
    let payload_bytes = u128::from(plan.datagram_bytes.max(1));
    let bps = u128::from(payload_bps) * (payload_bytes + u128::from(HEADERS_BYTES)) / payload_bytes;
    u64::try_from(bps).unwrap_or(u64::MAX)
}

/// The block that a sending end writes from.
fn block_bytes(plan: &TransferPlan) -> u64 {
    if plan.reverse { plan.block_bytes.into() } else { 0 }
}

fn stream_memory_bytes(plan: &TransferPlan) -> u64 {
    let buffers = match (plan.protocol, plan.reverse) {
        (Protocol::Tcp, false) => {
            plan.receive_buffer_bytes().unwrap_or(0) + READ_BYTES as u64 + echo_bytes(plan)
        }
        (Protocol::Tcp, true) => {
            plan.sndbuf_bytes.unwrap_or(0) + if plan.zero_copy { block_bytes(plan) } else { 0 }
        }
        (Protocol::Udp, false) => plan.rcvbuf_bytes.unwrap_or(UDP_RCVBUF_BYTES),
        (Protocol::Udp, true) => {
            let batch_bytes = u64::from(plan.datagram_bytes.min(DATAGRAM_MAX_BYTES)) * BATCH_MAX as u64;
            batch_bytes + plan.sndbuf_bytes.unwrap_or(0) + plan.rcvbuf_bytes.unwrap_or(UDP_RCVBUF_BYTES)
        }
    };
    THREAD_BYTES.saturating_add(buffers)
}

/// Echoes that wait because the peer does not read them: only those of close timestamps come to anything.
fn echo_bytes(plan: &TransferPlan) -> u64 {
    const CLOSE_BYTES: u64 = 100_000;
    plan.echo_every_bytes.filter(|every| *every < CLOSE_BYTES).map_or(0, |_| ECHOES_HELD_MAX_BYTES as u64)
}

/// What living transfers hold, in all and for each peer.
#[derive(Debug)]
pub(crate) struct Shares {
    room: Need,
    peer_room: Need,
    held: Mutex<BTreeMap<Network, Need>>,
}

impl Shares {
    pub(crate) fn new(limits: &Limits, descriptors: u64) -> Shares {
        let room = Need {
            transfers: limits.transfers,
            streams: limits.streams,
            udp_rate_bps: limits.udp_rate_bps,
            memory_bytes: limits.memory_bytes,
            descriptors,
        };
        let percent = limits.peer_percent.min(100);
        // A share of very little is one, not nothing.
        let share = |all: u64, _| (all / 100 * percent + all % 100 * percent / 100).max(all.min(1));
        Shares { room, peer_room: room.zip(Need::default(), share), held: Mutex::default() }
    }

    /// Gives `peer` what it needs until the share is dropped; else the reason, for the client to read.
    pub(crate) fn take(&self, peer: Network, need: Need) -> Result<Share<'_>, String> {
        let mut held = self.held();
        let own = held.get(&peer).copied().unwrap_or_default();
        let all = held.values().fold(Need::default(), |sum, one| sum.zip(*one, u64::saturating_add));
        let with = |held: Need| held.zip(need, u64::saturating_add);
        if let Some((what, option, room)) = with(own).beyond(&self.peer_room) {
            return Err(format!("one peer may have {room} {what} at this server ({option}, --peer-share)"));
        }
        if let Some((what, option, room)) = with(all).beyond(&self.room) {
            return Err(format!(
                "this server has {room} {what}, and others use them now ({option}); try again later"
            ));
        }
        held.insert(peer, with(own));
        Ok(Share { shares: self, peer, need })
    }

    fn give_back(&self, peer: Network, need: Need) {
        let mut held = self.held();
        if let Some(own) = held.get_mut(&peer) {
            *own = own.zip(need, u64::saturating_sub);
            if own.transfers == 0 {
                held.remove(&peer);
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Network, Need>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one transfer holds.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    shares: &'a Shares,
    peer: Network,
    need: Need,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.shares.give_back(self.peer, self.need);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Receive;
    use proptest::prelude::*;

    fn peer(host: u8) -> Network {
        Network::of_peer([10, 0, 0, host].into())
    }

    #[test]
    fn one_peer_has_its_share_and_all_have_no_more_than_there_is() {
        let limits = Limits { streams: 8, ..Limits::default() };
        let shares = Shares::new(&limits, 1000);
        let need = |streams| Need::of(&TransferPlan { streams, ..TransferPlan::default() });
        let held = shares.take(peer(1), need(4)).unwrap();
        let said = shares.take(peer(1), need(1)).unwrap_err();
        assert_eq!(said, "one peer may have 4 streams at this server (--max-streams, --peer-share)");
        let other = shares.take(peer(2), need(4)).unwrap();
        assert!(shares.take(peer(3), need(1)).unwrap_err().contains("others use them now"));
        drop(held);
        assert!(shares.take(peer(1), need(4)).is_ok());
        drop(other);
        assert!(shares.held().is_empty(), "what was given back is not kept");
    }

    #[test]
    fn plans_of_ordinary_use_fit_the_defaults() {
        let plain = TransferPlan::default();
        let plans = [
            TransferPlan { streams: 256, ..plain.clone() },
            TransferPlan { streams: 64, window_bytes: Some(1 << 20), ..plain.clone() },
            TransferPlan { echo_every_bytes: Some(10_000), reverse: true, ..plain.clone() },
            TransferPlan {
                protocol: Protocol::Udp,
                rate_bps: Some(950_000_000),
                reverse: true,
                ..plain.clone()
            },
            TransferPlan { amount: Amount::Bytes(1 << 40), receive: Receive::Discard, ..plain },
        ];
        let limits = Limits::default();
        for plan in plans {
            limits.check(&plan).unwrap();
            Shares::new(&limits, 700).take(peer(1), Need::of(&plan)).unwrap();
        }
    }

    #[test]
    fn a_plan_beyond_what_is_allowed_names_the_option_that_allows_it() {
        let limits = Limits::default();
        let said = |plan: TransferPlan| limits.check(&plan).unwrap_err().to_string();
        let plain = TransferPlan::default();
        let (streams, stagger_us) = (2, 3_600_000_000);
        assert!(said(TransferPlan { streams, stagger_us, ..plain.clone() }).contains("--max-duration"));
        assert!(said(TransferPlan { drain_us: 4_000_000_000, ..plain.clone() }).contains("the drain limit"));
        assert!(
            said(TransferPlan { amount: Amount::Bytes(1 << 47), ..plain.clone() }).contains("--max-bytes")
        );
        let rate_bps = Some(10_u64.pow(13));
        let amount = Amount::DurationUs(60_000_000);
        assert!(said(TransferPlan { amount, rate_bps, ..plain }).contains("--max-bytes"));
    }

    #[test]
    fn small_datagrams_are_charged_with_their_headers_and_strangers_spin_on_no_processor_of_ours() {
        let need = |datagram_bytes, reverse| {
            let (protocol, rate_bps) = (Protocol::Udp, Some(100_000_000));
            let plan =
                TransferPlan { protocol, rate_bps, reverse, datagram_bytes, ..TransferPlan::default() };
            Need::of(&plan).udp_rate_bps
        };
        assert_eq!((need(28, true), need(1400, true), need(28, false)), (200_000_000, 102_000_000, 0));
        let spun = |limits: Limits| {
            let mut plan = TransferPlan { spin_us: 10_000, ..TransferPlan::default() };
            limits.moderate(&mut plan);
            plan.spin_us
        };
        assert_eq!((spun(Limits::default()), spun(Limits::trusting())), (0, 10_000));
    }

    #[test]
    fn gigabytes_of_buffers_and_blocks_are_refused_unless_hosts_are_trusted() {
        let block_bytes = crate::plan::BLOCK_MAX_BYTES;
        let plans = [
            TransferPlan { streams: 100, rcvbuf_bytes: Some(1 << 30), ..TransferPlan::default() },
            TransferPlan {
                streams: 100,
                reverse: true,
                zero_copy: true,
                block_bytes,
                ..TransferPlan::default()
            },
        ];
        for plan in plans {
            let said = Shares::new(&Limits::default(), 10_000).take(peer(1), Need::of(&plan)).unwrap_err();
            assert!(said.contains("--max-memory"), "{said}");
            assert!(Shares::new(&Limits::trusting(), 10_000).take(peer(1), Need::of(&plan)).is_ok());
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_and_given_back_in_any_order_leaves_nothing(
            steps in prop::collection::vec((0u8..4, 1u32..40, any::<bool>()), 0..60)
        ) {
            let shares = Shares::new(&Limits { streams: 100, ..Limits::default() }, 5000);
            let mut held = Vec::new();
            for (host, streams, gives) in steps {
                if gives { held.pop(); }
                held.extend(shares.take(peer(host), Need::of(&TransferPlan { streams, ..TransferPlan::default() })));
                let all: u64 = shares.held().values().map(|need| need.streams).sum();
                prop_assert!(all <= 100 && shares.held().values().all(|need| need.streams <= 50));
            }
            held.clear();
            prop_assert!(shares.held().is_empty());
        }
    }
}
