//! The leg between a client and a relay: a plain cable, which loses nothing; and what a seed changes.

use crate::support::*;
use longfat_link::plan::LossPlan;
use longfat_sim::{EndpointPlan, NodePlan, ReceiveBuffer, RelayPlan, Scenario, SendBuffer};

/// A client on a cable of 100 Gbit/s with a host's jitter, a relay with its usual buffers, 100 Mbit/s and 28 ms beyond
/// it.
fn cabled() -> Scenario {
    let mut cable = direction(Some(100_000_000_000), 10_000, 1 << 32);
    cable.line.jitter_ns = 20_000;
    let lan = link("lan", [0, 1], cable);
    let wan = link("wan", [1, 2], direction(Some(100_000_000), 14 * MS, 175_000));
    let end = |bytes: u64| EndpointPlan {
        receive_buffer: ReceiveBuffer::Fixed(bytes),
        send_buffer: SendBuffer::Fixed(bytes),
        unsent_limit_bytes: Some(256 << 10),
        ..EndpointPlan::default()
    };
    let mut plan = tcp("reno");
    plan.relay = Some(0);
    plan.sender.unsent_limit_bytes = Some(512 << 10);
    Scenario {
        nodes: ["client", "relay", "server"].map(NodePlan::router).to_vec(),
        links: vec![lan, wan],
        flows: vec![flow("f", 0, 2, plan)],
        relays: vec![RelayPlan {
            name: "pep".into(),
            node: 1,
            buffer_bytes: 256 << 10,
            filling_bytes: 256 << 10,
            queue: None,
            client_side: end(2 << 20),
            server_side: end(8 << 20),
        }],
        settle_ns: SECOND,
        ..path(direction(None, 0, 1), Vec::new(), 10 * SECOND)
    }
}

#[test]
fn on_a_cable_that_loses_nothing_only_tail_loss_probes_send_a_segment_again() {
    // A relay that reads nothing for two round trips acknowledges nothing either (delayed, 40 ms), and the client's
    // sender asks by a probe whether the last segment was lost: Linux counts it as a retransmission, and so do we.
    // Nothing is taken for lost, and no window is reduced.
    for (seed, wan_loss) in [(1, 0.0), (2, 3e-4), (3, 3e-3)] {
        let mut scenario = cabled();
        scenario.seed = seed;
        scenario.links[1].plan.forward.line.loss = LossPlan::Bernoulli { probability: wan_loss };
        let outcome = outcome(&scenario);
        let client: Vec<_> = outcome.tcp().filter(|tcp| tcp.role == "sender").collect();
        let again = client.last().unwrap().retransmitted_segments;
        assert!(
            again <= outcome.stats.repeated_probes,
            "{again} of {} probes",
            outcome.stats.repeated_probes
        );
        assert!(again > 0 || wan_loss == 0.0, "no probe was needed: this test shows nothing");
        assert!(client.iter().all(|tcp| tcp.ca_state == "open" && tcp.ssthresh_segments.is_none()));
    }
}

#[test]
fn repeats_with_other_seeds_begin_at_other_times_and_the_same_seed_at_the_same() {
    let samples = |seed: u64| {
        let mut scenario = cabled();
        (scenario.seed, scenario.start_within_ns, scenario.duration_ns) = (seed, MS, SECOND / 4);
        let outcome = outcome(&scenario);
        outcome.tcp().map(|tcp| (tcp.cwnd_segments, tcp.srtt_us, tcp.sent_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(samples(1), samples(1));
    assert_ne!(samples(1), samples(2));
}
