//! Random small scenarios: they end, nothing is lost or doubled, windows stay sane.

use crate::support::*;
use longfat_link::plan::{DisciplinePlan, LossPlan};
use longfat_schema::record::Record;
use longfat_sim::{EndpointPlan, FlowPlan, HoldUp, ReceiveBuffer, SendBuffer};
use proptest::prelude::*;

fn endpoint() -> impl Strategy<Value = EndpointPlan> {
    let cc = prop::sample::select(vec!["reno", "highspeed"]);
    let unsent = prop::option::of(1u64..100_000);
    let window = prop::option::of(1500u64..300_000);
    let buffers = (1500u64..300_000, 1500u64..300_000, unsent, window);
    (cc, buffers, any::<[bool; 4]>(), 1u32..20).prop_map(
        |(cc, (send, receive, unsent, window), on, ack_every)| EndpointPlan {
            cc: cc.to_owned(),
            settings: Vec::new(),
            send_buffer: if on[0] { SendBuffer::Fixed(send) } else { SendBuffer::Auto(send * 10) },
            unsent_limit_bytes: unsent,
            receive_buffer: ReceiveBuffer::Fixed(receive),
            window_bytes: window,
            sack: on[1],
            ecn: on[2],
            pacing: on[3],
            ack_every,
            ..EndpointPlan::default()
        },
    )
}

fn one_flow() -> impl Strategy<Value = FlowPlan> {
    (
        endpoint(),
        endpoint(),
        1u64..300_000,
        0u64..400,
        prop::option::of(500_000u64..20_000_000),
        any::<bool>(),
    )
        .prop_map(|(sender, receiver, bytes, start_ms, rate_bps, echo)| {
            let mut plan = tcp("reno");
            (plan.sender, plan.receiver) = (sender, receiver);
            plan.echo_every_bytes = echo.then_some(5000);
            let mut one = flow("f", 0, 1, plan);
            (one.bytes, one.start_ns, one.rate_bps) = (Some(bytes), start_ms * MS, rate_bps);
            one
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn every_transfer_ends_with_each_byte_delivered_once(
        flows in prop::collection::vec(one_flow(), 1..4),
        rate_bps in 500_000u64..100_000_000,
        delay_us in 0u64..60_000,
        queue_bytes in 3_000u64..200_000,
        loss in 0.0f64..0.08,
        jitter_us in 0u64..5_000,
        reorder: bool,
        codel: bool,
        hold_ups in prop::collection::vec((0usize..2, 0u64..5_000, 1u64..100), 0..20),
        seed: u64,
    ) {
        let mut forward = direction(Some(rate_bps), delay_us * 1000, queue_bytes);
        forward.line.loss = LossPlan::Bernoulli { probability: loss };
        forward.line.jitter_ns = jitter_us * 1000;
        forward.reorder = reorder;
        if codel {
            forward.queue.discipline = codel_with_ecn();
        } else {
            forward.queue.discipline = DisciplinePlan::Droptail { mark_threshold_bytes: Some(queue_bytes / 2) };
        }
        let mut scenario = path(forward, flows, 600 * SECOND);
        scenario.links[0].plan.backward.line.loss = LossPlan::Bernoulli { probability: loss / 2.0 };
        scenario.sample_every_ns = 50 * MS;
        scenario.seed = seed;
        for (node, from_ms, for_ms) in hold_ups {
            let held = HoldUp { from_ns: from_ms * MS, to_ns: (from_ms + for_ms) * MS };
            scenario.nodes[node].hold_ups.push(held);
        }
        for (index, flow) in scenario.flows.iter_mut().enumerate() {
            flow.name = format!("f{index}");
        }
        let outcome = outcome(&scenario);
        for flow in &scenario.flows {
            let summary = outcome.flow(&flow.name);
            prop_assert_eq!(Some(summary.received_bytes), flow.bytes, "{:?}", summary);
            let last = outcome.tcp().filter(|tcp| tcp.flow == flow.name).last().unwrap();
            prop_assert_eq!(Some(last.acked_bytes), flow.bytes);
            prop_assert_eq!(last.flight_segments, 0);
            prop_assert_eq!(Some(last.sent_bytes - last.retransmitted_bytes), flow.bytes);
        }
        for record in &outcome.records {
            if let Record::Tcp(tcp) = record {
                prop_assert!(tcp.cwnd_segments >= 1 && tcp.ssthresh_segments.is_none_or(|s| s >= 2), "{tcp:?}");
                prop_assert!(tcp.acked_bytes <= tcp.sent_bytes - tcp.retransmitted_bytes);
            }
        }
    }
}
