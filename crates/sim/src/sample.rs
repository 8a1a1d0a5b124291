//! The state of a world as records: the very ones that measuring programs write about real connections.

use crate::{
    scenario::Scenario,
    tcp::{Endpoint, app::App, sender::Sender},
    world::{Carrier, Stream, World},
};
use longfat_cc::WINDOW_MAX;
use longfat_schema::record::{
    AvailSample, EchoSample, FlowSummary, IntervalSample, LinkSummary, QueueSample, Record, RelaySample,
    TcpSample,
};

/// Directions of a link, by the lowest bit of their number.
const DIRECTIONS: [&str; 2] = ["forward", "backward"];
/// Directions of a relayed connection.
const RELAY_DIRECTIONS: [&str; 2] = ["client_to_server", "server_to_client"];

/// Bytes of a stream that arrived in order, and when the last of them did.
fn arrived(world: &World, carrier: Carrier) -> (u64, u64) {
    match carrier {
        Carrier::Tcp { sink, .. } => {
            let endpoint = &world.endpoints[sink];
            (endpoint.receiver.bytes, endpoint.last_arrival_ns)
        }
        Carrier::Udp(index) => (world.udp_sinks[index].bytes, world.udp_sinks[index].last_ns),
    }
}

fn us(ns: u64) -> i64 {
    (ns / 1000) as i64
}

/// Everything that is sampled periodically.
pub fn sample(scenario: &Scenario, world: &mut World, sink: &mut impl FnMut(Record)) {
    count(scenario, world, sink);
    for index in 0..world.streams.len() {
        sample_stream(scenario, world, index, sink);
    }
    for index in 0..world.relays.len() {
        sample_relay(scenario, world, index, sink);
    }
    for direction in 0..scenario.links.len() * 2 {
        sink(Record::Queue(queue(scenario, world, direction)));
    }
}

/// Bytes of every stream that arrived since they were last counted.
pub fn count(scenario: &Scenario, world: &mut World, sink: &mut impl FnMut(Record)) {
    let duration_us = (world.net.now_ns - world.counted_ns) / 1000;
    if duration_us == 0 {
        return;
    }
    world.counted_ns = world.net.now_ns;
    for index in 0..world.streams.len() {
        let Stream { flow, number, carrier, counted_bytes, .. } = world.streams[index];
        let (bytes, _) = arrived(world, carrier);
        sink(Record::Interval(IntervalSample {
            time_us: us(world.net.now_ns),
            duration_us,
            flow: scenario.flows[flow].name.clone(),
            stream: number,
            bytes: bytes - counted_bytes,
        }));
        world.streams[index].counted_bytes = bytes;
    }
}

fn sample_stream(scenario: &Scenario, world: &mut World, index: usize, sink: &mut impl FnMut(Record)) {
    let Stream { flow, number, carrier, .. } = world.streams[index];
    let name = &scenario.flows[flow].name;
    let Carrier::Tcp { source, .. } = carrier else { return };
    if world.endpoints[source].established_ns > 0 {
        sink(Record::Tcp(tcp(&world.endpoints[source], world.net.now_ns, name, number, "sender")));
    }
    avail(name, &mut world.streams[index], &world.endpoints[source], sink);
    echoes(name, &mut world.streams[index], &mut world.endpoints[source], sink);
}

/// What a measuring sender has found since the last sample.
fn avail(name: &str, stream: &mut Stream, endpoint: &Endpoint, sink: &mut impl FnMut(Record)) {
    let Some(found) = endpoint.sender.control.avail() else { return };
    if found.at_us == stream.sampled_avail_us {
        return;
    }
    stream.sampled_avail_us = found.at_us;
    sink(Record::Avail(AvailSample {
        time_us: found.at_us as i64,
        flow: name.to_owned(),
        stream: stream.number,
        avail_bps: u64::from(found.avail_kbps) * 1000,
        deviation_bps: u64::from(found.deviation_kbps) * 1000,
        capacity_bps: Some(u64::from(found.capacity_kbps) * 1000).filter(|rate| *rate > 0),
        confidence_ratio: f64::from(found.confidence_permille) / 1000.0,
        results: found.results,
        rejected: found.rejected,
        free_bps: None,
    }));
}

fn echoes(name: &str, stream: &mut Stream, endpoint: &mut Endpoint, sink: &mut impl FnMut(Record)) {
    let App::Source(source) = &mut endpoint.app else { return };
    for echo in source.echoes.drain(..) {
        stream.echoes_ns.push(echo.latency_ns);
        sink(Record::Echo(EchoSample {
            time_us: us(echo.time_ns),
            flow: name.to_owned(),
            stream: stream.number,
            position_bytes: echo.position_bytes,
            latency_us: echo.latency_ns / 1000,
        }));
    }
}

fn tcp(endpoint: &Endpoint, now_ns: u64, flow: &str, stream: u32, role: &str) -> TcpSample {
    let Sender { control, board, rtt, .. } = &endpoint.sender;
    let sender = &endpoint.sender;
    let limited_us = sender.limited_ns(now_ns).map(|ns| ns / 1000);
    TcpSample {
        time_us: us(now_ns),
        flow: flow.to_owned(),
        stream,
        role: role.to_owned(),
        cc: control.name(),
        ca_state: sender.ca_state.name().to_owned(),
        cwnd_segments: control.cwnd(),
        ssthresh_segments: Some(control.ssthresh()).filter(|ssthresh| *ssthresh < WINDOW_MAX),
        srtt_us: rtt.srtt_us(),
        rttvar_us: rtt.rttvar_us(),
        min_rtt_us: Some(rtt.min_us()).filter(|us| *us < u32::MAX),
        rto_us: u32::try_from(rtt.rto_us()).unwrap_or(u32::MAX),
        mss_bytes: control.conn.mss_bytes,
        flight_segments: board.in_flight(),
        lost_segments: board.lost_out,
        retransmitted_segments: sender.retransmitted_segments,
        sent_bytes: sender.sent_bytes,
        retransmitted_bytes: sender.retransmitted_bytes,
        acked_bytes: sender.acked_bytes,
        received_bytes: endpoint.receiver.bytes,
        unsent_bytes: sender.unsent_bytes(),
        delivery_rate_bps: sender.delivery_rate_bps(),
        pacing_rate_bps: sender.pacing_rate_bps(),
        rwnd_limited_us: limited_us[0],
        sndbuf_limited_us: limited_us[1],
        delivered_ce_segments: sender.marked_segments,
        timeouts: Some(sender.timeouts),
        duplicate_segments: Some(sender.duplicate_segments),
    }
}

fn sample_relay(scenario: &Scenario, world: &World, index: usize, sink: &mut impl FnMut(Record)) {
    let connection = &world.relays[index];
    let name = &scenario.relays[connection.relay].name;
    let time_us = us(world.net.now_ns);
    let ends = connection.ends.map(|end| &world.endpoints[end as usize]);
    for (endpoint, role) in ends.iter().zip(["relay_in", "relay_out"]) {
        if endpoint.established_ns > 0 {
            sink(Record::Tcp(tcp(endpoint, world.net.now_ns, name, connection.number, role)));
        }
    }
    for direction in 0..2 {
        let (inbound, outbound) = (&ends[direction].receiver, &ends[1 - direction].sender);
        let unacked_bytes = outbound.written_bytes - outbound.acked_bytes;
        let held_bytes = connection.held_bytes[direction];
        sink(Record::Relay(RelaySample {
            time_us,
            relay: name.clone(),
            connection: connection.number,
            direction: RELAY_DIRECTIONS[direction].to_owned(),
            backlog_bytes: inbound.unread_bytes + held_bytes + unacked_bytes,
            unread_bytes: inbound.unread_bytes,
            held_bytes,
            unacked_bytes,
            relayed_bytes: connection.relayed_bytes[direction],
            ..connection
                .queues
                .as_ref()
                .map_or_else(RelaySample::default, |queues| queues[direction].sample())
        }));
    }
}

fn queue(scenario: &Scenario, world: &mut World, direction: usize) -> QueueSample {
    let now_ns = world.net.now_ns;
    world.net.counters(direction).sample(
        now_ns,
        &scenario.links[direction / 2].plan.name,
        DIRECTIONS[direction % 2],
    )
}

/// What every flow and link came to.
pub fn summarise(scenario: &Scenario, world: &mut World, sink: &mut impl FnMut(Record)) {
    count(scenario, world, sink);
    for index in 0..world.streams.len() {
        if let Carrier::Tcp { source, .. } = world.streams[index].carrier {
            let name = &scenario.flows[world.streams[index].flow].name;
            echoes(name, &mut world.streams[index], &mut world.endpoints[source], sink);
        }
        sink(Record::Flow(flow(scenario, world, index)));
    }
    for direction in 0..scenario.links.len() * 2 {
        sink(Record::Link(link(scenario, world, direction)));
    }
}

fn flow(scenario: &Scenario, world: &mut World, index: usize) -> FlowSummary {
    world.streams[index].echoes_ns.sort_unstable();
    let stream = &world.streams[index];
    let (received_bytes, last_ns) = arrived(world, stream.carrier);
    let start_ns = match stream.carrier {
        Carrier::Tcp { source, .. } => world.endpoints[source].began_ns(),
        Carrier::Udp(index) => world.udp_sources[index].start_ns,
    };
    let duration_us = last_ns.saturating_sub(start_ns) / 1000;
    let goodput = u128::from(received_bytes) * 8_000_000 / u128::from(duration_us.max(1));
    let mut summary = FlowSummary {
        flow: scenario.flows[stream.flow].name.clone(),
        stream: stream.number,
        protocol: "udp".to_owned(),
        start_us: us(start_ns),
        duration_us,
        received_bytes,
        goodput_bps: goodput as u64,
        ..FlowSummary::default()
    };
    match stream.carrier {
        Carrier::Udp(index) => summary.lost_datagrams = world.udp_sinks[index].lost(),
        Carrier::Tcp { source, sink } => {
            fill_tcp(&mut summary, world, stream, source, sink);
        }
    }
    summary
}

fn fill_tcp(summary: &mut FlowSummary, world: &World, stream: &Stream, source: usize, sink: usize) {
    let sender = &world.endpoints[source].sender;
    summary.protocol = "tcp".to_owned();
    summary.cc_sender = sender.control.name();
    summary.cc_receiver = world.endpoints[sink].sender.control.name();
    summary.retransmitted_segments = sender.retransmitted_segments;
    summary.retransmitted_bytes = sender.retransmitted_bytes;
    summary.min_rtt_us = Some(sender.rtt.min_us()).filter(|us| *us < u32::MAX);
    summary.mss_bytes = sender.control.conn.mss_bytes;
    summary.sndbuf_bytes = sender.buffer_bytes();
    summary.rcvbuf_bytes = world.endpoints[sink].receiver.buffer_bytes();
    let sorted = &stream.echoes_ns;
    summary.echo_count = sorted.len() as u64;
    summary.echo_p50_us = quantile_us(sorted, 50);
    summary.echo_p99_us = quantile_us(sorted, 99);
    summary.echo_max_us = quantile_us(sorted, 100);
}

/// The least latency that so many percent do not exceed.
fn quantile_us(sorted_ns: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted_ns.len() * percent).div_ceil(100).max(1);
    sorted_ns.get(rank - 1).map(|ns| ns / 1000)
}

fn link(scenario: &Scenario, world: &mut World, direction: usize) -> LinkSummary {
    let counters = world.net.counters(direction);
    let plan = &scenario.links[direction / 2].plan;
    LinkSummary {
        link: plan.name.clone(),
        direction: DIRECTIONS[direction % 2].to_owned(),
        driver: "sim".to_owned(),
        offered_packets: counters.offered_packets,
        delivered_packets: counters.delivered_packets,
        delivered_bytes: counters.delivered_bytes,
        dropped_packets: counters.dropped_packets,
        lost_packets: counters.lost_packets,
        marked_packets: counters.marked_packets,
        queue_max_bytes: counters.queue_max_bytes,
        queue_mean_bytes: counters.queue_mean_bytes,
        late_limit_us: plan.late_limit_ns / 1000,
        // Virtual time is never late.
        punctual: true,
        ..LinkSummary::default()
    }
}
