//! What hold-ups of the machine could have done to a run: how much of what was dropped came within a round trip after
//! one. Pure.
//!
//! Hosts that share processors with all others are held up now and then. They answer late and then all at once, and a
//! queue that drains in less time than that, or a window that should be spread over a round trip, meets a clump of the
//! machine's making. A run whose drops may come from such clumps says nothing about TCP.
//!
//! A drop has consequences of its own: without selective acknowledgements a sender that has repaired its losses sends
//! what its window holds at once, and loses half of it again. What is dropped while a connection repairs what a hold-up
//! cost it, and when it has done so, is the hold-up's doing, too.

use crate::{
    counter::growth,
    dilation::{MOST, refusals, round_trip_ns},
    plan::{CablePlan, FlowPlan, Plan, need::harmless_ns, network::Topology},
    samples::Samples,
};
use longfat_schema::{
    own_time::Dilation,
    record::{StallSample, TcpSample},
};
use std::collections::BTreeMap;

/// Share of what was dropped above which a run is invalid, where the experiment says nothing.
const SHARE_MOST: f64 = 0.25;
/// Fewer drops than this are chance.
const DROPS_LEAST: f64 = 4.0;

/// Answers that come late together and are a clump for a queue. Fewer are not, however late.
const CLUMP_LEAST: u32 = 8;

/// A time within which what was dropped may be a hold-up's doing.
type Span = (i64, i64);

/// A time in which a connection repaired losses. It began between two samples, and ended between two.
#[derive(Debug, Clone, Copy)]
struct Repair {
    /// The last sample before it.
    after_us: i64,
    /// The first that saw it.
    seen_us: i64,
    /// The first that did not any more.
    over_us: i64,
}

/// What hold-ups could have done on one link.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Consequence {
    /// The link.
    pub link: String,
    /// How many there were.
    pub count: usize,
    /// The longest that nine of ten of them do not exceed, in the experiment's time.
    pub length_us: u64,
    /// How long one may be without consequence.
    pub harmless_us: u64,
    /// Packets dropped within a round trip after one, or while the connection repaired these losses.
    pub after: f64,
    /// Packets dropped in all.
    pub all: f64,
    /// Share of the window that lies within a round trip after one.
    pub covered: f64,
}

impl Consequence {
    /// Share of what was dropped that hold-ups could have caused.
    pub fn share(&self) -> f64 {
        if self.all > 0.0 { self.after / self.all } else { 0.0 }
    }
}

/// A time for which a host did nothing, as far as links could tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldUp {
    /// The host.
    pub host: String,
    /// Since when, from the start of the run.
    pub from_us: i64,
    /// Until when.
    pub to_us: i64,
    /// By how much earlier it may have begun: one packet alone is owed no answer, so it is told of since the second.
    pub earlier_us: u64,
}

/// Every hold-up, however short, of the hosts at the ends of emulated links. When a link's driver is held up both hear
/// nothing.
pub(crate) fn held_up(plan: &Plan, samples: &Samples) -> Vec<HeldUp> {
    let connections = connections(samples);
    let of_link = |cable: &'_ CablePlan| -> Vec<HeldUp> {
        let led = cable.ends.each_ref().map(|end| leads_to_hosts(plan, cable, &end.host));
        let mine = samples.stall.iter().filter(|stall| counts(cable, led, stall, &connections));
        let packet_us = packet_us(cable);
        let of_hosts = mine.flat_map(|stall| {
            let from = stall.of.split('/').nth(1);
            let ends = [("forward", &cable.ends[0]), ("backward", &cable.ends[1])];
            let held =
                ends.into_iter().filter(move |(direction, _)| from.is_none_or(|from| from == *direction));
            let earlier_us = from.map_or(0, |_| 2 * packet_us);
            held.map(move |(_, end)| HeldUp {
                host: end.host.clone(),
                from_us: stall.time_us - stall.duration_us as i64,
                to_us: stall.time_us,
                earlier_us,
            })
        });
        of_hosts.filter(|held| held.from_us < held.to_us).collect()
    };
    plan.links.iter().filter(|cable| cable.path.is_some()).flat_map(of_link).collect()
}

/// How long a full packet takes at a link's lowest rate.
fn packet_us(cable: &CablePlan) -> u64 {
    let rates = cable.path.iter().flat_map(|path| [&path.forward, &path.backward]);
    let least_bps = rates.filter_map(|direction| direction.line.rate_bps).filter(|bps| *bps > 0).min();
    least_bps.map_or(0, |bps| u64::from(cable.mtu_bytes) * 8_000_000 / bps)
}

/// Every link's, where there were hold-ups that count.
pub(crate) fn consequences(plan: &Plan, samples: &Samples) -> Vec<Consequence> {
    if samples.stall.is_empty() {
        return Vec::new();
    }
    let connections = connections(samples);
    plan.links.iter().filter_map(|cable| of_link(plan, cable, samples, &connections)).collect()
}

/// Why a run is invalid for them.
pub(super) fn faults(plan: &Plan, samples: &Samples) -> Vec<String> {
    let most = plan.hold_up_limit.unwrap_or(SHARE_MOST);
    let grave = |c: &Consequence| c.all >= DROPS_LEAST && c.share() > most;
    consequences(plan, samples).into_iter().filter(grave).map(|found| fault(plan, &found)).collect()
}

fn fault(plan: &Plan, found: &Consequence) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    format!(
        "link '{}': {:.0} of {:.0} packets were dropped within a round trip after a hold-up of the hosts or the driver longer \
         than {:.1} ms, or while its losses were repaired: it may have caused them ({} of them, up to {:.1} ms; limit {:.0} %): {}",
        found.link,
        found.after,
        found.all,
        ms(found.harmless_us),
        found.count,
        ms(found.length_us),
        plan.hold_up_limit.unwrap_or(SHARE_MOST) * 100.0,
        remedy(plan, found)
    )
}

/// The dilation at which nearly all of them would have had no consequence.
fn remedy(plan: &Plan, found: &Consequence) -> String {
    let times = u64::from(plan.dilation.times()) * found.length_us.div_ceil(found.harmless_us.max(1));
    let wanted = u32::try_from(times).ok().filter(|times| *times <= MOST).and_then(Dilation::new);
    let elsewhere = "take a machine with more processors, or --backend sim";
    match wanted.map(|dilation| (dilation, refusals(plan, dilation))) {
        Some((dilation, refused)) if refused.is_empty() => format!("write dilate = {dilation}"),
        Some((dilation, refused)) => {
            format!(
                "{elsewhere}; dilate = {dilation} is refused: {}: {}",
                refused[0].path, refused[0].message
            )
        }
        None => elsewhere.to_owned(),
    }
}

fn of_link(
    plan: &Plan,
    cable: &CablePlan,
    samples: &Samples,
    connections: &Connections<'_>,
) -> Option<Consequence> {
    let path = cable.path.as_ref()?;
    let rtt_ns = plan.flows.iter().map(|flow| round_trip_ns(plan, flow)).filter(|ns| *ns > 0);
    let (least_rtt_ns, rtt_ns) = (rtt_ns.clone().min()?, rtt_ns.max()?);
    let drains = || [&path.forward, &path.backward].into_iter().filter_map(|direction| direction.drain_ns());
    let harmless_us = harmless_ns(drains().min(), Some(least_rtt_ns)) / 1000;
    let mut counted: Vec<&StallSample> = samples.stall.iter().collect();
    let led = cable.ends.each_ref().map(|end| leads_to_hosts(plan, cable, &end.host));
    let is_clump = |stall: &StallSample| stall.owed_packets.is_none_or(|owed| owed >= CLUMP_LEAST);
    counted.retain(|stall| {
        stall.duration_us > harmless_us && is_clump(stall) && counts(cable, led, stall, connections)
    });
    let mut lengths: Vec<u64> = counted.iter().map(|stall| stall.duration_us).collect();
    lengths.sort_unstable();
    let length_us = *lengths.get((lengths.len() * 9).div_ceil(10).checked_sub(1)?)?;
    // What the clump meets has waited as long as a full queue takes, at most.
    let reach_us = (rtt_ns + drains().max().unwrap_or(0)) / 1000;
    let drops = ["forward", "backward"].map(|direction| drops(samples, cable, direction));
    let dropped = |span: Span| drops.iter().map(|points| growth(points, span)).sum::<f64>();
    let repairs: Vec<Vec<Repair>> = connections.values().map(|states| repairs(states)).collect();
    let spans = united(counted.iter().map(|stall| {
        let end_us = stall.time_us.saturating_add(reach_us as i64);
        let span = (stall.time_us - stall.duration_us as i64, end_us);
        if dropped(span) < 0.5 { span } else { with_repairs(span, &repairs, reach_us as i64) }
    }));
    let window = (plan.window_start_us, plan.window_end_us);
    let inside: Vec<Span> = spans.into_iter().filter_map(|span| common(span, window)).collect();
    Some(Consequence {
        link: cable.name.clone(),
        count: counted.len(),
        length_us,
        harmless_us,
        // A sum of nothing is a negative zero.
        after: inside.iter().copied().map(dropped).sum::<f64>().round() + 0.0,
        all: dropped(window).round(),
        covered: inside.iter().map(|(from, to)| to - from).sum::<i64>() as f64 / (window.1 - window.0) as f64,
    })
}

/// Whether a link can tell a hold-up: its driver's own, and those of hosts at its ends and behind plain cables there.
/// What comes from behind another path answers when that lets it. `led`: which of its ends lead to hosts.
fn counts(cable: &CablePlan, led: [bool; 2], stall: &StallSample, connections: &Connections<'_>) -> bool {
    let mut parts = stall.of.split('/');
    let (link, direction, end) = (parts.next(), parts.next(), parts.next());
    let Some(direction) = direction.filter(|_| link == Some(&cable.name)) else {
        return link == Some(&cable.name);
    };
    led[usize::from(direction == "backward")] && (end.is_none() || could_send(connections, stall))
}

/// Whether no flow over this link comes to this end of it from another emulated path.
fn leads_to_hosts(plan: &Plan, cable: &CablePlan, host: &str) -> bool {
    let topology = Topology::of_plan(plan);
    let is_path = |link: &str| plan.links.iter().any(|cable| cable.name == link && cable.path.is_some());
    plan.flows.iter().all(|flow: &FlowPlan| {
        let hops = topology.path(&flow.from, &flow.to).unwrap_or_default();
        let Some(at) = hops.iter().position(|hop| hop.link == cable.name) else { return true };
        let beyond = if hops[at].from == host { &hops[..at] } else { &hops[at + 1..] };
        !beyond.iter().any(|hop| is_path(hop.link))
    })
}

/// Every connection that sends had unsent data and no losses to repair, from the last sample before a silence to the
/// first after it.
fn could_send(connections: &Connections<'_>, stall: &StallSample) -> bool {
    let from_us = stall.time_us - stall.duration_us as i64;
    let mut looked = 0;
    let could = connections.values().all(|states| {
        let first = states.partition_point(|state| state.time_us <= from_us).saturating_sub(1);
        let last = (states.partition_point(|state| state.time_us < stall.time_us) + 1).min(states.len());
        looked += last - first;
        states[first..last].iter().all(|state| state.unsent_bytes > 0 && !repairs_losses(state))
    });
    could && looked > 0
}

/// States of every connection that sends, in order, by flow and stream.
type Connections<'a> = BTreeMap<(&'a str, u32), Vec<&'a TcpSample>>;

fn connections(samples: &Samples) -> Connections<'_> {
    let mut found = Connections::new();
    for state in samples.tcp.iter().filter(|state| ["sender", "relay_out"].contains(&state.role.as_str())) {
        found.entry((state.flow.as_str(), state.stream)).or_default().push(state);
    }
    found
}

fn repairs_losses(state: &TcpSample) -> bool {
    ["recovery", "loss"].contains(&state.ca_state.as_str())
}

/// When a connection repaired losses.
fn repairs(states: &[&TcpSample]) -> Vec<Repair> {
    let mut found: Vec<Repair> = Vec::new();
    let mut before: Option<&TcpSample> = None;
    for state in states {
        let seen_us = state.time_us;
        match found.last_mut().filter(|_| before.is_some_and(repairs_losses)) {
            Some(last) => last.over_us = seen_us,
            None if repairs_losses(state) => {
                let after_us = before.map_or(seen_us, |before| before.time_us);
                found.push(Repair { after_us, seen_us, over_us: seen_us });
            }
            None => {}
        }
        before = Some(state);
    }
    found
}

/// The span with what the run's only connection repaired since: a repair begins within `reach_us` of a drop, and a drop
/// that is its doing comes as late after it. Of several connections nobody knows whose packets were dropped.
fn with_repairs(span: Span, repairs: &[Vec<Repair>], reach_us: i64) -> Span {
    let [only] = repairs else { return span };
    let later = only.iter().skip_while(|repair| repair.seen_us < span.0);
    let prolonged = |end_us: i64, repair: &Repair| {
        if repair.after_us <= end_us + reach_us { end_us.max(repair.over_us + reach_us) } else { end_us }
    };
    (span.0, later.fold(span.1, prolonged))
}

/// Packets dropped in one direction, over time.
fn drops(samples: &Samples, cable: &CablePlan, direction: &str) -> Vec<(i64, f64)> {
    let mine = samples.queue.iter().filter(|s| s.link == cable.name && s.direction == direction);
    mine.map(|sample| (sample.time_us, sample.dropped_packets as f64)).collect()
}

fn common(a: Span, b: Span) -> Option<Span> {
    let (from, to) = (a.0.max(b.0), a.1.min(b.1));
    (from < to).then_some((from, to))
}

/// As few spans as there are, none of which touches another.
fn united(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut spans: Vec<Span> = spans.collect();
    spans.sort_unstable();
    let mut found: Vec<Span> = Vec::new();
    for (from, to) in spans {
        match found.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => found.push((from, to)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::plans, spec::Experiment};
    use longfat_schema::record::QueueSample;

    /// 64 KB at 200 Mbit/s drain in 2.6 ms; a round trip takes 40 ms. Counted from 1 s to 11 s.
    fn plan(more: &str) -> Plan {
        let text = format!(
            "name = \"short\"\nwarmup = \"1s\"\nduration = \"10s\"\n{more}\n[hosts.a]\n[hosts.b]\n[links.path]\n\
             between = [\"a\", \"b\"]\nrate = \"200Mbit\"\ndelay = \"20ms\"\nqueue = {{ limit = \"64KB\" }}\n\
             [flows.f]\nfrom = \"a\"\nto = \"b\"\ncc = \"lf_reno\"\n"
        );
        plans(&Experiment::read(&text, &[]).unwrap()).unwrap().remove(0)
    }

    fn stall(time_us: i64, duration_us: u64, of: &str) -> StallSample {
        StallSample { time_us, of: of.into(), duration_us, owed_packets: None }
    }

    /// One packet is dropped at each of these times.
    fn samples(dropped_at_us: &[i64], stalls: &[StallSample]) -> Samples {
        let sample = |time_us: i64| QueueSample {
            time_us,
            link: "path".into(),
            direction: "forward".into(),
            dropped_packets: dropped_at_us.iter().filter(|at_us| **at_us <= time_us).count() as u64,
            ..QueueSample::default()
        };
        let queue = (0..1200).map(|n| sample(n * 10_000)).collect();
        Samples { queue, stall: stalls.to_vec(), ..Samples::default() }
    }

    const DROPS_US: [i64; 6] = [2_005_000, 2_015_000, 3_005_000, 4_005_000, 5_005_000, 6_005_000];

    #[test]
    fn drops_within_a_round_trip_after_hold_ups_make_a_run_invalid_with_the_dilation_that_would_do() {
        let stalls = [stall(1_999_000, 6_000, "path/forward"), stall(2_990_000, 5_000, "path/backward")];
        let said = faults(&plan(""), &samples(&DROPS_US, &stalls));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("link 'path': 3 of 6 packets were dropped within a round trip"), "{said:?}");
        assert!(said[0].contains("longer than 2.6 ms") && said[0].contains("up to 6.0 ms"), "{said:?}");
        assert!(said[0].ends_with("write dilate = 3"), "6 ms at the most, 2.6 ms do no harm: {said:?}");
    }

    #[test]
    fn the_dilation_that_would_do_counts_from_that_of_the_run_and_is_not_named_where_it_is_refused() {
        let stalls = [stall(1_999_000, 6_000, "path/forward"), stall(2_990_000, 5_000, "path/backward")];
        let samples = samples(&DROPS_US, &stalls);
        assert!(faults(&plan("dilate = 2"), &samples)[0].ends_with("write dilate = 6"));
        let mut kernels = plan("");
        kernels.flows[0].cc = Some("cubic".into());
        let said = &faults(&kernels, &samples)[0];
        assert!(
            said.contains("--backend sim") && said.contains("dilate = 3 is refused: flows.f.cc: 'cubic'"),
            "{said}"
        );
    }

    #[test]
    fn every_hold_up_however_short_is_known_of_the_host_that_answered_late_and_a_drivers_of_both() {
        let held = |stalls: &[StallSample]| -> Vec<_> {
            let samples = with_states(samples(&[], stalls), 1000, &[]);
            let found = held_up(&plan(""), &samples);
            found.into_iter().map(|held| (held.host, held.from_us, held.to_us, held.earlier_us)).collect()
        };
        // 1500 bytes take 60 us.
        let of = |host: &str, from_us, to_us| (host.to_owned(), from_us, to_us, 120);
        let of_driver = |host: &str, from_us, to_us| (host.to_owned(), from_us, to_us, 0);
        assert_eq!(held(&[stall(2_000_000, 1_200, "path/forward")]), [of("a", 1_998_800, 2_000_000)]);
        assert_eq!(held(&[stall(2_000_000, 1_200, "path/backward")]), [of("b", 1_998_800, 2_000_000)]);
        assert_eq!(held(&[stall(2_000_000, 1_200, "path/forward/sender")]), [of("a", 1_998_800, 2_000_000)]);
        assert_eq!(
            held(&[stall(2_000_000, 4_000, "path")]),
            [of_driver("a", 1_996_000, 2_000_000), of_driver("b", 1_996_000, 2_000_000)]
        );
        assert_eq!(held(&[stall(2_000_000, 0, "path"), stall(2_000_000, 4_000, "other")]), []);
    }

    #[test]
    fn short_ones_and_few_drops_after_them_have_no_consequence() {
        let of = |stalls: &[StallSample], drops: &[i64]| faults(&plan(""), &samples(drops, stalls));
        assert!(
            of(&[stall(1_999_000, 2_500, "path/forward")], &DROPS_US).is_empty(),
            "the queue drains in 2.6 ms"
        );
        assert!(of(&[stall(3_999_000, 9_000, "path/forward")], &DROPS_US).is_empty(), "one drop of six");
        assert!(
            of(&[stall(1_999_000, 9_000, "path/forward")], &DROPS_US[..3]).is_empty(),
            "three are chance"
        );
        assert!(
            of(&[stall(500_000, 9_000, "path")], &[505_000, 506_000, 507_000, 508_000]).is_empty(),
            "warm-up"
        );
    }

    #[test]
    fn a_few_late_answers_are_no_clump_and_still_known_to_twins() {
        let owed = |owed_packets| StallSample { owed_packets, ..stall(1_999_000, 6_000, "path/backward") };
        let samples = |stall| samples(&DROPS_US, &[stall]);
        let count = |owed_packets| consequences(&plan(""), &samples(owed(owed_packets))).len();
        assert_eq!([count(Some(CLUMP_LEAST)), count(None), count(Some(CLUMP_LEAST - 1))], [1, 1, 0]);
        assert_eq!(held_up(&plan(""), &samples(owed(Some(4)))).len(), 1);
    }

    #[test]
    fn a_drivers_own_hold_up_counts_and_those_of_hosts_behind_cables() {
        let of = |plan: &Plan, of: &str| {
            consequences(plan, &samples(&DROPS_US, &[stall(1_999_000, 6_000, of)])).len()
        };
        let mut routed = plan("");
        assert_eq!((of(&routed, "path"), of(&routed, "path/backward"), of(&routed, "other")), (1, 1, 0));
        routed.hosts[1].forward = true;
        assert_eq!(of(&routed, "path/backward"), 1, "nothing but cables behind it");
    }

    #[test]
    fn what_comes_over_another_path_answers_when_that_lets_it() {
        let text = "name = \"two\"\nwarmup = \"1s\"\nduration = \"10s\"\n[hosts.a]\n[hosts.r]\nforward = true\n[hosts.b]\n[links.path]\n\
                    between = [\"a\", \"r\"]\nrate = \"200Mbit\"\ndelay = \"20ms\"\nqueue = { limit = \"64KB\" }\n[links.on]\n\
                    between = [\"r\", \"b\"]\ndelay = \"20ms\"\n[flows.f]\nfrom = \"a\"\nto = \"b\"\ncc = \"lf_reno\"\n";
        let plan = plans(&Experiment::read(text, &[]).unwrap()).unwrap().remove(0);
        let of = |of: &str| {
            consequences(&plan, &samples(&DROPS_US, &[stall(1_999_000, 6_000, of)]))
                .iter()
                .any(|c| c.link == "path")
        };
        assert_eq!((of("path/backward"), of("path/forward"), of("path")), (false, true, true));
    }

    /// The sender's state every 10 ms: what it has unsent, and when it repairs losses.
    fn with_states(samples: Samples, unsent_bytes: u64, repairs_us: &[Span]) -> Samples {
        with_states_every(10_000, samples, unsent_bytes, repairs_us)
    }

    fn with_states_every(
        every_us: i64,
        mut samples: Samples,
        unsent_bytes: u64,
        repairs_us: &[Span],
    ) -> Samples {
        let state = |time_us: i64| TcpSample {
            time_us,
            flow: "f".into(),
            role: "sender".into(),
            unsent_bytes,
            ca_state: if repairs_us.iter().any(|(from, to)| (*from..*to).contains(&time_us)) {
                "recovery"
            } else {
                "open"
            }
            .into(),
            ..TcpSample::default()
        };
        samples.tcp = (0..12_000_000 / every_us).map(|n| state(n * every_us)).collect();
        samples
    }

    #[test]
    fn a_silent_sender_was_held_up_where_it_could_have_sent() {
        let stalls = [stall(1_999_000, 6_000, "path/forward/sender")];
        let of = |unsent_bytes, repairs_us: &[Span]| {
            consequences(&plan(""), &with_states(samples(&DROPS_US, &stalls), unsent_bytes, repairs_us)).len()
        };
        assert_eq!(of(1000, &[]), 1);
        assert_eq!(of(0, &[]), 0, "it had nothing to send");
        assert_eq!(of(1000, &[(1_900_000, 2_010_000)]), 0, "its window was closed");
        assert!(consequences(&plan(""), &samples(&DROPS_US, &stalls)).is_empty(), "nobody knows what it had");
    }

    #[test]
    fn what_is_dropped_while_the_losses_of_a_hold_up_are_repaired_is_its_doing() {
        let stalls = [stall(1_999_000, 6_000, "path/backward")];
        let after = |repairs_us: &[Span]| {
            consequences(&plan(""), &with_states(samples(&DROPS_US, &stalls), 1000, repairs_us))[0].after
        };
        assert_eq!(after(&[]), 2.0);
        assert_eq!(after(&[(2_040_000, 2_990_000)]), 3.0, "the burst at the end of the repair");
        assert_eq!(after(&[(2_040_000, 2_990_000), (3_030_000, 3_990_000)]), 4.0, "and the repair of that");
        assert_eq!(after(&[(2_500_000, 5_990_000)]), 2.0, "a loss of its own");
        let none = [stall(1_500_000, 6_000, "path/backward")];
        let alone = with_states(samples(&DROPS_US, &none), 1000, &[(1_500_000, 6_500_000)]);
        assert_eq!(consequences(&plan(""), &alone)[0].after, 0.0, "nothing was dropped after it");
    }

    #[test]
    fn a_repair_that_began_between_two_samples_belongs_to_the_hold_up_before_it() {
        let stalls = [stall(1_999_000, 6_000, "path/backward")];
        let seldom = |repairs_us: &[Span]| {
            let samples = with_states_every(50_000, samples(&DROPS_US, &stalls), 1000, repairs_us);
            consequences(&plan(""), &samples)[0].after
        };
        assert_eq!(seldom(&[(2_060_000, 2_990_000)]), 3.0, "seen at 2.1 s, a round trip and more too late");
        assert_eq!(seldom(&[(2_160_000, 2_990_000)]), 2.0, "it began after 2.15 s: a loss of its own");
    }

    #[test]
    fn an_experiment_says_how_much_it_takes() {
        let stalls = [stall(1_999_000, 6_000, "path/forward"), stall(2_990_000, 5_000, "path/backward")];
        let samples = samples(&DROPS_US, &stalls);
        assert!(faults(&plan("hold_up_limit = 0.6"), &samples).is_empty(), "a half");
        assert!(faults(&plan("hold_up_limit = 0.4"), &samples)[0].contains("limit 40 %"));
    }

    #[test]
    fn hold_ups_outside_the_window_have_a_share_of_nothing() {
        let found = consequences(&plan(""), &samples(&DROPS_US, &[stall(500_000, 9_000, "path")]));
        assert_eq!((found[0].after, found[0].share().is_sign_positive()), (0.0, true));
    }

    #[test]
    fn hold_ups_close_to_each_other_count_a_drop_once() {
        let stalls: Vec<_> = (0..20).map(|n| stall(2_000_000 + n * 1_000, 4_000, "path/forward")).collect();
        let found = &consequences(&plan(""), &samples(&DROPS_US, &stalls))[0];
        assert_eq!((found.count, found.after, found.all), (20, 2.0, 6.0));
        assert!((0.006..0.0075).contains(&found.covered), "{}", found.covered);
    }
}
