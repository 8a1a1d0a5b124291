use super::*;
use crate::{
    plan::{need, plans, tests_support::SMALL},
    spec::{Experiment, SpecError, overlay::Value},
};
use longfat_link::plan::{DirectionPlan, DisciplinePlan};

/// Reno over 200 Mbit/s, 40 ms there and back, a queue of 64 KB.
const SHORT_QUEUE: &str = r#"
name = "short"
warmup = "1s"
duration = "2s"
[hosts.a]
sysctls = { "net.ipv4.tcp_min_rtt_wlen" = 10 }
[hosts.b]
[links.path]
between = ["a", "b"]
rate = "200Mbit"
delay = "20ms"
jitter = "1ms"
queue = { discipline = "codel", limit = "64KB", target = "5ms", interval = "100ms" }
schedule = [{ at = "1s", rate = "50Mbit" }]
[flows.f]
from = "a"
to = "b"
cc = "lf_reno"
start = "500ms"
stagger = "10ms"
rate = "1Mbit"
"#;

fn with(text: &str, overrides: &[(&str, Value)]) -> Result<Plan, SpecError> {
    let overrides: Vec<_> = overrides.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    Ok(plans(&Experiment::read(text, &overrides)?)?.remove(0))
}

fn times(times: i64) -> (&'static str, Value) {
    ("dilate", Value::Integer(times))
}

fn refused(text: &str, overrides: &[(&str, Value)]) -> String {
    with(text, overrides).unwrap_err().to_string()
}

#[test]
fn times_are_multiplied_rates_divided_and_bytes_stay() {
    let own = with(SHORT_QUEUE, &[times(4)]).unwrap();
    let slow = slowed(&own);
    assert_eq!((slow.window_start_us, slow.window_end_us), (4_000_000, 12_000_000));
    assert_eq!((slow.sample_every_us, slow.start_within_us), (40_000, 400_000));
    let path = slow.links[0].path.as_ref().unwrap();
    assert_eq!(
        (path.sample_interval_ns, path.late_limit_ns),
        (40_000_000, 4 * own.links[0].path.as_ref().unwrap().late_limit_ns)
    );
    let DirectionPlan { line, queue, schedule, .. } = &path.forward;
    assert_eq!((line.rate_bps, line.delay_ns, line.jitter_ns), (Some(50_000_000), 80_000_000, 4_000_000));
    assert_eq!((schedule[0].at_ns, schedule[0].line.rate_bps), (4_000_000_000, Some(12_500_000)));
    assert_eq!(queue.limit_bytes, own.links[0].path.as_ref().unwrap().forward.queue.limit_bytes);
    let DisciplinePlan::Codel(codel) = &queue.discipline else { panic!("{queue:?}") };
    assert_eq!((codel.target_ns, codel.interval_ns), (20_000_000, 400_000_000));
    let flow = &slow.flows[0];
    assert_eq!((flow.start_us, flow.stagger_us, flow.rate_bps), (2_000_000, 40_000, Some(250_000)));
    assert_eq!(flow.duration_us, 4 * own.flows[0].duration_us);
    assert_eq!((flow.offered_bytes(), own.flows[0].offered_bytes()), (1448, 1448));
    let fast = with(SHORT_QUEUE, &[times(4), ("flows.f.rate", Value::String("40Mbit".into()))]).unwrap();
    assert_eq!(
        slowed(&fast).flows[0].offered_bytes(),
        10_000,
        "2 ms at the experiment's rate, not at the run's"
    );
}

#[test]
fn tcps_own_clocks_slow_down_from_what_the_host_has() {
    let slow = slowed(&with(SHORT_QUEUE, &[times(4)]).unwrap());
    let of = |host: usize, key: &str| slow.hosts[host].sysctls.get(key).cloned();
    assert_eq!(of(0, "net.ipv4.tcp_rto_min_us").as_deref(), Some("800000"));
    assert_eq!(of(0, "net.ipv4.tcp_min_rtt_wlen").as_deref(), Some("40"), "the experiment's own value");
    assert_eq!(of(1, "net.ipv4.tcp_min_rtt_wlen").as_deref(), Some("1200"), "the kernel's");
    assert_eq!(of(0, "net.ipv4.tcp_rto_max_ms"), None, "120 s is the most there is");
}

#[test]
fn first_timeouts_and_neighbours_answers_take_a_second_of_the_experiments_own() {
    let (slow, own) = (with(SHORT_QUEUE, &[times(4)]).unwrap(), with(SHORT_QUEUE, &[]).unwrap());
    assert_eq!((first_timeout(&slow), first_timeout(&own)), (Some(Duration::from_secs(4)), None));
    assert_eq!((neighbour_wait(&slow), neighbour_wait(&own)), (Some(Duration::from_secs(4)), None));
}

#[test]
fn a_plan_at_its_own_speed_is_carried_out_as_it_is() {
    let own = with(SHORT_QUEUE, &[]).unwrap();
    assert_eq!(slowed(&own), own);
    assert!(
        !serde_json::to_string(&own).unwrap().contains("dilation"),
        "plans of before stay what they were"
    );
}

#[test]
fn what_has_a_clock_of_its_own_is_refused_with_the_mend() {
    let cc = |name: &str| ("flows.f.cc", Value::String(name.to_owned()));
    let said = refused(SHORT_QUEUE, &[times(4), cc("cubic")]);
    assert!(said.contains("flows.f.cc") && said.contains("'cubic'") && said.contains("lf_cubic"), "{said}");
    assert!(refused(SHORT_QUEUE, &[times(4), cc("bbr")]).contains("one of ours"));
    assert!(with(SHORT_QUEUE, &[times(1), cc("cubic")]).is_ok());
    assert!(with(SHORT_QUEUE, &[times(4), cc("reno")]).is_ok(), "the kernel's has no clock");
    assert!(with(SHORT_QUEUE, &[times(1000)]).is_ok(), "a round trip of 40 s");
    let said = refused(SHORT_QUEUE, &[times(1001)]);
    assert!(
        said.contains("40 ms, 40040 ms when 1001 times slower") && said.contains("dilate = 1000"),
        "{said}"
    );
}

#[test]
fn a_relay_slows_down_with_congestion_controls_that_do() {
    let leg = |key: &'static str, cc: &str| (key, Value::String(cc.to_owned()));
    let ours = [leg("relays.pep.cc_client", "reno"), leg("relays.pep.cc_server", "lf_highspeed")];
    let pacing = ("relays.pep.pacing_server", Value::String("8Mbit".into()));
    let own = with(SMALL, &[&[times(4), pacing][..], &ours].concat()).unwrap();
    let slow = slowed(&own);
    let relay = |plan: &Plan| {
        let relay = &plan.relays[0];
        let queue = relay.queue.as_ref().unwrap();
        (relay.pacing_server_bps, queue.target_us, queue.dilate)
    };
    assert_eq!(relay(&own), (Some(8_000_000), 20_000, 1));
    assert_eq!(relay(&slow), (Some(2_000_000), 20_000, 4), "the relay divides its host's time");
    let said = refused(SMALL, &[times(4), ours[0].clone(), leg("relays.pep.cc_server", "cubic")]);
    assert!(said.contains("relays.pep.cc_server") && said.contains("lf_cubic"), "{said}");
}

#[test]
fn a_dilation_that_is_none_is_refused_with_the_range() {
    for wrong in [Value::Integer(0), Value::Integer(5000), Value::String("fast".into()), Value::Integer(-1)] {
        let said = refused(SHORT_QUEUE, &[("dilate", wrong.clone())]);
        assert!(said.contains("no dilation: a whole number from 1 to 3600, or \"auto\""), "{wrong}: {said}");
    }
}

#[test]
fn auto_is_the_least_that_keeps_hold_ups_below_the_drain_of_a_queue_and_a_quarter_of_the_round_trip() {
    let auto = ("dilate", Value::String("auto".into()));
    let rate = |rate: &str| ("links.path.rate", Value::String(rate.to_owned()));
    // 64 KB at 200 Mbit/s drain in 2.6 ms, at 25 Mbit/s in 21 ms.
    let plan = with(SHORT_QUEUE, std::slice::from_ref(&auto)).unwrap();
    let need = least(&plan);
    assert_eq!((plan.dilation, need.dilation.times()), (need.dilation, 4));
    assert!(need.to_string().starts_with("dilate = 4: the queue of link 'path' drains in 2.6 ms"), "{need}");
    let calm =
        with(SHORT_QUEUE, &[auto.clone(), rate("25Mbit"), ("links.path.schedule", Value::Array(Vec::new()))]);
    assert_eq!(calm.unwrap().dilation, Dilation::NONE);
    let kernels = [auto, ("flows.f.cc", Value::String("cubic".into()))];
    assert_eq!(with(SHORT_QUEUE, &kernels).unwrap().dilation, Dilation::NONE, "it cannot be slowed");
}

#[test]
fn a_queue_of_many_round_trips_feels_what_lets_it_run_empty() {
    let ms = |ms: f64| (ms * 1e6) as u64;
    let harmless_ms = |drain_ms: f64, rtt_ms: f64| need::harmless_ns(Some(ms(drain_ms)), Some(ms(rtt_ms)));
    assert_eq!(harmless_ms(5.0, 1.0), ms(5.0));
    assert_eq!(harmless_ms(5.0, 2.0), ms(0.5));
    assert_eq!(harmless_ms(5.0, 40.0), ms(5.0));
    assert_eq!(need::harmless_ns(None, Some(ms(40.0))), ms(10.0));
    assert_eq!((need::harmless_ns(Some(7), None), need::harmless_ns(None, None)), (7, u64::MAX));

    // A LAN whose queue holds 25 round trips, and one of which it holds one.
    let least = |delay: &str, limit: &str| {
        let set = |key, value: &str| (key, Value::String(value.into()));
        let lan = [
            ("dilate", Value::String("auto".into())),
            set("links.path.delay", delay),
            set("links.path.queue.limit", limit),
            ("links.path.schedule", Value::Array(Vec::new())),
        ];
        need::least(&with(SHORT_QUEUE, &lan).unwrap())
    };
    let deep = least("50us", "64KB");
    assert!(deep.to_string().starts_with("dilate = 4: the queue of link 'path' drains in 2.6 ms"), "{deep}");
    let shallow = least("500us", "64KB");
    assert!(shallow.to_string().starts_with("dilate = 32: a quarter of the round trip"), "{shallow}");
}

#[test]
fn who_reads_the_figures_is_told_what_slowed_down_less() {
    let plan = with(SHORT_QUEUE, &[times(4)]).unwrap();
    let told = remarks(&plan, plan.dilation);
    assert_eq!(
        told,
        ["dilation 4: an acknowledgement is delayed by at most 10 ms (40 ms of the kernel's time)"]
    );
    let slow = with(SHORT_QUEUE, &[times(4), ("links.path.rate", Value::String("1Mbit".into()))]).unwrap();
    assert!(remarks(&slow, slow.dilation)[1].contains("link 'path'"));
    assert!(remarks(&plan, Dilation::NONE).is_empty());
}

#[test]
fn the_programs_of_a_run_go_first_only_where_its_links_bound_what_they_send() {
    let bounded =
        |overrides: &[(&str, Value)]| need::is_bounded(&slowed(&with(SHORT_QUEUE, overrides).unwrap()));
    let rate = |text: &str| ("links.path.rate", Value::String(text.to_owned()));
    assert!(bounded(&[rate("100Mbit")]));
    assert!(!bounded(&[rate("1Gbit")]), "125,000 packets per second");
    assert!(bounded(&[rate("1Gbit"), times(4)]), "a quarter of that");
    assert!(!need::is_bounded(
        &with(SMALL, &[("links.path.rate", Value::String("unlimited".into()))]).unwrap()
    ));
    assert!(need::is_bounded(&with(SMALL, &[]).unwrap()));
}

#[test]
fn of_its_way_a_flow_fills_only_the_narrowest_link() {
    let two_links = SHORT_QUEUE
        .replace("[hosts.b]", "[hosts.b]\n[hosts.router]\nforward = true\n[links.lan]\nbetween = ['a', 'router']\nrate = '1Gbit'")
        .replace("between = [\"a\", \"b\"]", "between = [\"router\", \"b\"]");
    let packets = |text: &str| {
        let plan = slowed(&with(text, &[("links.path.rate", Value::String("100Mbit".into()))]).unwrap());
        need::packets_per_s(&plan).round()
    };
    let alone = packets(SHORT_QUEUE);
    assert_eq!(packets(&two_links), 2.0 * alone, "each packet crosses both");
    let beside = format!("{two_links}[flows.short]\nfrom = 'a'\nto = 'router'\ncc = 'lf_reno'\n");
    assert!(packets(&beside) > 8.0 * alone, "that flow fills the LAN");
}
