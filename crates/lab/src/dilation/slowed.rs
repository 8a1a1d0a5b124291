//! The plan that is carried out: the experiment's own, some times slower.
//!
//! Every plan is taken apart field by field: a new field does not compile until somebody has said what becomes of it.

use crate::plan::{CablePlan, FlowPlan, FollowPlan, HostPlan, Plan, RelayPlan};
use longfat_link::plan::{
    ChangePlan, CodelPlan, DirectionPlan, DisciplinePlan, LinePlan, LinkPlan, OpportunitiesPlan, QueuePlan,
};
use std::collections::BTreeMap;

/// Parameters of a host that are times of TCP's, and the kernel's own values where it has one that runs depend on.
const CLOCKS: [(&str, Option<u64>); 6] = [
    ("net.ipv4.tcp_rto_min_us", Some(200_000)),
    ("net.ipv4.tcp_rto_max_ms", None),
    ("net.ipv4.tcp_comp_sack_delay_ns", Some(1_000_000)),
    ("net.ipv4.tcp_comp_sack_slack_ns", Some(100_000)),
    ("net.ipv4.tcp_min_rtt_wlen", Some(300)),
    ("net.ipv4.tcp_invalid_ratelimit", Some(500)),
];

/// The kernel takes no more of these.
const MOST: [(&str, u64); 2] = [("net.ipv4.tcp_rto_max_ms", 120_000), ("net.ipv4.tcp_min_rtt_wlen", 86_400)];

/// Plan of the run, so many times slower.
pub fn slowed(plan: &Plan) -> Plan {
    let mut slow = plan.clone();
    if !plan.dilation.is_none() {
        Slow(plan.dilation.times().into()).plan(&mut slow);
    }
    slow
}

struct Slow(u64);

impl Slow {
    fn span(&self, time: &mut u64) {
        *time = time.saturating_mul(self.0);
    }

    fn point(&self, time: &mut i64) {
        *time = time.saturating_mul(self.0 as i64);
    }

    /// A rate of 0 stops; no other becomes it.
    fn rate(&self, bps: &mut u64) {
        *bps = if *bps == 0 { 0 } else { bps.div_ceil(self.0) };
    }

    fn plan(&self, plan: &mut Plan) {
        let Plan {
            schema_version: _,
            experiment: _,
            case: _,
            case_title: _,
            axes: _,
            repeat: _,
            seed: _,
            dilation: _,
            focus: _,
            window_start_us,
            window_end_us,
            sample_every_us,
            start_within_us,
            cpu_limit: _,
            hold_up_limit: _,
            twin_limit: _,
            hosts,
            links,
            relays,
            follows,
            flows,
            tunables: _,
        } = plan;
        [window_start_us, window_end_us].into_iter().for_each(|at| self.point(at));
        [sample_every_us, start_within_us].into_iter().for_each(|us| self.span(us));
        hosts.iter_mut().for_each(|host| self.host(host));
        links.iter_mut().for_each(|cable| self.cable(cable));
        relays.iter_mut().for_each(|relay| self.relay(relay));
        follows.iter_mut().for_each(|follow| self.follow(follow));
        flows.iter_mut().for_each(|flow| self.flow(flow));
    }

    fn host(&self, host: &mut HostPlan) {
        let HostPlan { name: _, forward: _, sysctls, routes: _, unsegmented: _ } = host;
        for (key, default) in CLOCKS {
            let own = sysctls.get(key).and_then(|value| value.trim().parse::<u64>().ok());
            // What is no number the kernel will refuse by itself.
            if let Some(value) = own.or(default.filter(|_| !sysctls.contains_key(key))) {
                sysctls.insert(key.to_owned(), self.clock(key, value).to_string());
            }
        }
    }

    fn clock(&self, key: &str, value: u64) -> u64 {
        let most = BTreeMap::from(MOST).get(key).copied().unwrap_or(u64::MAX);
        value.saturating_mul(self.0).min(most)
    }

    fn cable(&self, cable: &mut CablePlan) {
        let CablePlan { name: _, mtu_bytes: _, ends: _, path } = cable;
        path.iter_mut().for_each(|path| self.path(path));
    }

    fn path(&self, path: &mut LinkPlan) {
        let LinkPlan {
            name: _,
            mtu_bytes: _,
            seed: _,
            late_limit_ns,
            pause_limit: _,
            sample_interval_ns,
            coalesce_ns,
            forward,
            backward,
        } = path;
        [late_limit_ns, sample_interval_ns, coalesce_ns].into_iter().for_each(|ns| self.span(ns));
        [forward, backward].into_iter().for_each(|direction| self.direction(direction));
    }

    fn direction(&self, direction: &mut DirectionPlan) {
        let DirectionPlan { line, queue, reorder: _, overhead_bytes: _, schedule, repeats_ns, opportunities } =
            direction;
        repeats_ns.iter_mut().for_each(|ns| self.span(ns));
        if let Some(OpportunitiesPlan { bytes: _, unit_ns, repeat: _, at: _ }) = opportunities {
            self.span(unit_ns);
        }
        self.line(line);
        self.queue(queue);
        for ChangePlan { at_ns, line, queue } in schedule {
            self.span(at_ns);
            self.line(line);
            queue.iter_mut().for_each(|queue| self.queue(queue));
        }
    }

    fn line(&self, line: &mut LinePlan) {
        let LinePlan { rate_bps, delay_ns, jitter_ns, loss: _ } = line;
        rate_bps.iter_mut().for_each(|bps| self.rate(bps));
        [delay_ns, jitter_ns].into_iter().for_each(|ns| self.span(ns));
    }

    /// RED counts packets, and idle time in transmission times.
    fn queue(&self, queue: &mut QueuePlan) {
        let QueuePlan { limit_bytes: _, discipline } = queue;
        match discipline {
            DisciplinePlan::Droptail { mark_threshold_bytes: _ } | DisciplinePlan::Red { red: _, ecn: _ } => {
            }
            DisciplinePlan::Codel(CodelPlan { target_ns, interval_ns, ecn: _ }) => {
                [target_ns, interval_ns].into_iter().for_each(|ns| self.span(ns));
            }
        }
    }

    fn relay(&self, relay: &mut RelayPlan) {
        let RelayPlan {
            name: _,
            host: _,
            intercept: _,
            cc_client: _,
            cc_server: _,
            buffer_client_bytes: _,
            buffer_server_bytes: _,
            queue,
            pacing_server_bps,
            coalesce_us,
        } = relay;
        let usual = [longfat_relay::RelayPlan::DEFAULT_COALESCE, longfat_relay::RelayPlan::COALESCE_MAX];
        let [usual_us, most_us] = usual.map(|time| time.as_micros() as u64);
        let mut longer_us = coalesce_us.unwrap_or(usual_us);
        self.span(&mut longer_us);
        *coalesce_us = Some(longer_us.min(most_us));
        // Its times stay those of the plan: the relay divides its host's.
        let times = u32::try_from(self.0).unwrap_or(u32::MAX);
        queue.iter_mut().for_each(|queue| queue.dilate = queue.dilate.saturating_mul(times));
        pacing_server_bps.iter_mut().for_each(|bps| self.rate(bps));
    }

    fn follow(&self, follow: &mut FollowPlan) {
        let FollowPlan {
            name: _,
            router: _,
            link: _,
            backward: _,
            interfaces: _,
            nodes: _,
            far: _,
            peers: _,
            policy: _,
            ceiling_bytes: _,
            burst_percent: _,
            rto_min_us,
            start_us,
            // Time of real hosts is not slowed down.
            real: _,
        } = follow;
        rto_min_us.iter_mut().for_each(|us| self.span(us));
        self.span(start_us);
    }

    fn flow(&self, flow: &mut FlowPlan) {
        // As many bytes at once as at the experiment's own rate.
        flow.block_bytes = Some(flow.offered_bytes());
        let FlowPlan {
            name: _,
            from: _,
            to: _,
            address: _,
            port: _,
            protocol: _,
            cc: _,
            cc_receiver: _,
            streams: _,
            stagger_us,
            sndbuf_bytes: _,
            rcvbuf_bytes: _,
            window_bytes: _,
            block_bytes: _,
            datagram_bytes: _,
            rate_bps,
            arrivals: _,
            arrivals_seed: _,
            ack_every: _,
            echo_every_bytes: _,
            start_us,
            duration_us,
            size_bytes: _,
        } = flow;
        [stagger_us, start_us, duration_us].into_iter().for_each(|us| self.span(us));
        rate_bps.iter_mut().for_each(|bps| self.rate(bps));
    }
}
