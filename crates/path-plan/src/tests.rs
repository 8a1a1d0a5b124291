use super::*;
use longfat_lab::{plan::plans, simulated, spec::Experiment};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

fn path(rate: &str, rtt: &str) -> PathSpec {
    let (rate, rtt) = (rate.parse().unwrap(), rtt.parse().unwrap());
    PathSpec { rate, rtt, mtu_bytes: 1500, loss: 0.0, flows: 1, queue: None }
}

fn of<'a>(plan: &'a PathPlan, cc: &str) -> &'a Forecast {
    plan.forecasts.iter().find(|forecast| forecast.cc == cc).unwrap()
}

#[test]
fn the_path_of_rfc_3649_needs_83333_segments_in_flight() {
    let plan = path("10Gbit", "100ms").plan().unwrap();
    assert_eq!((plan.window.pipe_segments, plan.window.pipe_bytes), (83_334, 125_000_000));
    // One loss in 4.6e9 packets, an hour and a half apart; HighSpeed's one in ten million.
    let reno = of(&plan, "reno");
    assert!((reno.loss_to_fill / 2.16e-10 - 1.0).abs() < 0.01, "{:e}", reno.loss_to_fill);
    assert!((reno.loss_spacing.0 as f64 / 1e9 / 5_555.0 - 1.0).abs() < 0.01, "{}", reno.loss_spacing);
    assert!((of(&plan, "highspeed").loss_to_fill / 1e-7 - 1.0).abs() < 0.05);
    // 13 doublings of 10 segments; 41,667 round trips after a loss.
    assert!((reno.slow_start.0 as f64 / 1e9 - 1.302).abs() < 0.01, "{}", reno.slow_start);
    assert!((reno.recovery.0 as f64 / 1e9 - 4_166.7).abs() < 1.0, "{}", reno.recovery);
}

#[test]
fn the_queue_is_renos_and_the_window_is_path_and_queue() {
    let plan = path("1Gbit", "28ms").plan().unwrap();
    assert_eq!(plan.window.pipe_bytes, 3_500_000);
    assert!(plan.queue.bytes.abs_diff(3_500_000) < 3, "{:?}", plan.queue);
    assert!(plan.queue.delay.0.abs_diff(28_000_000) < 1000);
    assert!(plan.window.bytes.abs_diff(14_000_000 * 1448 / 1500) < 10, "{:?}", plan.window);
    assert_eq!(plan.window.scale, 8, "65,535 << 7 is 8.39 MB, one more 16.8 MB");
    let rmem = plan.sysctls.iter().find(|sysctl| sysctl.key == "net.ipv4.tcp_rmem").unwrap();
    assert_eq!(rmem.value, format!("4096 131072 {}", 2 * plan.window.bytes));
    assert!(plan.forecasts.iter().all(|forecast| forecast.limit == Limit::Path), "{:?}", plan.forecasts);
}

#[test]
fn a_small_queue_costs_reno_most_and_scalable_least() {
    let plan = PathSpec { queue: Some(Size(50_000)), ..path("1Gbit", "28ms") }.plan().unwrap();
    let share = |cc: &str| of(&plan, cc).share;
    assert!(share("reno") < 0.78 && of(&plan, "reno").limit == Limit::Queue);
    assert!(share("reno") < share("cubic") && share("cubic") < share("scalable"), "{:?}", plan.forecasts);
    assert!(share("vegas") > 0.99, "it leaves the queue nearly empty");
}

#[test]
fn loss_limits_by_the_response_functions() {
    let plan = PathSpec { loss: 1e-4, ..path("10Gbit", "100ms") }.plan().unwrap();
    for (cc, window) in [("reno", 122.5), ("highspeed", 262.6), ("scalable", 748.9), ("cubic", 187.0)] {
        let forecast = of(&plan, cc);
        assert_eq!(forecast.limit, Limit::Loss);
        assert!((forecast.window_segments / window - 1.0).abs() < 0.06, "{forecast:?}");
    }
}

#[test]
fn what_no_path_has_is_refused_with_the_mend() {
    let message = |path: PathSpec| path.plan().unwrap_err().to_string();
    assert!(message(path("1bit", "1ms")).contains("from 1kbit"));
    assert!(message(PathSpec { loss: 0.5, ..path("1Gbit", "1ms") }).contains("from 0 to 0.1"));
    assert!(message(PathSpec { loss: f64::NAN, ..path("1Gbit", "1ms") }).contains("the loss is NaN"));
    assert!(message(PathSpec { flows: 100, ..path("10Mbit", "10ms") }).contains("give fewer flows"));
}

#[test]
fn every_path_within_the_bounds_is_planned_without_end_or_overflow() {
    let begun = std::time::Instant::now();
    for loss in [0.0, 1e-300, 1e-12, 0.1] {
        let longest = path("10000Gbit", "100s");
        for queue in [None, Some(Size(10_000_000_000_000 / 8 * 1000))] {
            let plan = PathSpec { loss, queue, ..longest.clone() }.plan().unwrap();
            assert!(plan.forecasts.iter().all(|forecast| forecast.share > 0.0), "{:?}", plan.forecasts);
        }
    }
    // Round trip by round trip it would take a quarter of an hour at best.
    assert!(begun.elapsed().as_secs() < 200, "{:?}", begun.elapsed());
    let said = PathSpec { queue: Some(Size(9_000_000 << 40)), ..path("1Gbit", "28ms") }.plan().unwrap_err();
    assert!(matches!(said, PathError::LongQueue { most: Size(125_000_000_000), .. }), "{said}");
}

#[test]
fn more_flows_than_an_experiment_has_connections_are_planned_and_not_written() {
    let of = |flows| PathSpec { flows, ..path("1Gbit", "1s") }.plan().unwrap();
    let written = experiment(&of(STREAMS_MAX)).unwrap();
    assert_eq!(plans(&Experiment::read(&written, &[]).unwrap()).unwrap()[0].flows[0].streams, STREAMS_MAX);
    let said = experiment(&of(STREAMS_MAX + 1)).unwrap_err().to_string();
    assert!(said.contains("these are 1001; give fewer flows"), "{said}");
    // The bound is the lab's own.
    let more = written.replace("streams = 1000", "streams = 1001");
    assert!(Experiment::read(&more, &[]).unwrap_err().to_string().contains("1001 is not between 1 and 1000"));
}

#[test]
fn vegas_is_waited_for_as_long_as_it_takes_to_fill_the_path() {
    // 2,334 segments, one more in a round trip of 28 ms from 146 on; the others double.
    let plan = path("1Gbit", "28ms").plan().unwrap();
    let start_s = |cc: &str| of(&plan, cc).slow_start.0 as f64 / 1e9;
    assert!((start_s("vegas") - 61.5).abs() < 0.5 && start_s("reno") < 0.25, "{:?}", plan.forecasts);
    let warmups_s = |plan: &PathPlan| -> Vec<(String, f64)> {
        let runs = plans(&Experiment::read(&experiment(plan).unwrap(), &[]).unwrap()).unwrap();
        runs.into_iter().map(|run| (run.case, run.window_start_us as f64 / 1e6)).collect()
    };
    for (cc, warmup_s) in warmups_s(&plan) {
        assert_eq!(warmup_s, if cc == "vegas" { 77.0 } else { 4.0 }, "{cc}");
    }
    // Six minutes are more than anybody waits for: the file says so, and expects nothing.
    let plan = path("2Gbit", "50ms").plan().unwrap();
    assert!(warmups_s(&plan).iter().all(|(_, warmup_s)| *warmup_s == 4.0));
    let text = experiment(&plan).unwrap();
    assert!(
        text.contains("# Nothing is expected of it: it fills the path only after about 489 s."),
        "{text}"
    );
    assert!(!text.contains("vegas gets what the plan says"), "{text}");
}

/// The experiment's cases, or one of them, simulated: goodput over what was planned.
fn simulated_over_planned(plan: &PathPlan, only: Option<&str>) -> Vec<(String, f64, f64)> {
    let experiment = Experiment::read(&experiment(plan).unwrap(), &[]).unwrap();
    let is_meant = |run: &longfat_lab::plan::Plan| only.is_none_or(|cc| run.case == cc);
    let runs: Vec<_> = plans(&experiment).unwrap().into_iter().filter(is_meant).collect();
    let pairs = || experiment.expect.iter().flat_map(|expect| &expect.pairs);
    let expected = |case: &str| pairs().find(|pair| pair.left.case == case);
    let ratios = std::thread::scope(|scope| {
        let run = |run| {
            let observed = simulated::run(run, &mut |_| (), &AtomicBool::new(false)).unwrap();
            longfat_lab::metrics::metrics(run, &observed.samples, None)
        };
        let threads: Vec<_> =
            runs.iter().map(|plan| (plan.case.clone(), scope.spawn(move || run(plan)))).collect();
        threads.into_iter().map(|(case, thread)| (case, thread.join().unwrap())).collect::<Vec<_>>()
    });
    let ratio = |(case, metrics): (String, Vec<longfat_schema::run::Metric>)| {
        let is_total = |metric: &&longfat_schema::run::Metric| {
            metric.metric == "goodput_bps" && metric.of == "planned" && metric.stream.is_none()
        };
        let goodput = metrics.iter().find(is_total).unwrap().value;
        let at_most = expected(&case)?.bounds.most.unwrap().value;
        let planned = of(plan, &case).goodput.0 as f64;
        Some((case, goodput / planned, at_most))
    };
    ratios.into_iter().filter_map(ratio).collect()
}

fn assert_the_simulator_agrees(path: &PathSpec, only: Option<&str>) {
    let at_least = if only.is_some() { 1 } else { 6 };
    let ratios = simulated_over_planned(&path.plan().unwrap(), only);
    println!("{path:?}: {ratios:?}");
    assert!(ratios.len() >= at_least, "{ratios:?}");
    for (cc, ratio, factor) in ratios {
        assert!((1.0 / factor..=factor).contains(&ratio), "{cc} on {path:?}: {ratio:.2} of the plan");
    }
}

#[test]
fn the_simulator_agrees_on_a_path_with_queue_enough() {
    assert_the_simulator_agrees(&path("100Mbit", "30ms"), None);
}

#[test]
fn the_simulator_agrees_on_a_path_with_a_small_queue() {
    assert_the_simulator_agrees(&PathSpec { queue: Some(Size(30_000)), ..path("50Mbit", "40ms") }, None);
}

#[test]
fn the_simulator_agrees_on_a_lossy_path() {
    assert_the_simulator_agrees(&PathSpec { loss: 1e-3, ..path("200Mbit", "40ms") }, None);
}

#[test]
fn the_simulator_agrees_that_vegas_fills_a_long_path_at_last() {
    assert_the_simulator_agrees(&path("1Gbit", "28ms"), Some("vegas"));
}

#[test]
fn the_simulator_agrees_with_flows_side_by_side() {
    assert_the_simulator_agrees(&PathSpec { flows: 4, ..path("50Mbit", "40ms") }, None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_path_is_planned_its_experiment_is_one_the_lab_accepts_and_can_simulate(
        rate in 1_000_000u64..20_000_000_000, rtt_us in 1_000u64..600_000, mtu_bytes in 1_280u32..9_001,
        exponent in -7.0f64..-2.0, lossy: bool, flows in 1u32..20, queue in proptest::option::of(3_000u64..100_000_000),
    ) {
        let spec = PathSpec {
            rate: Rate(rate),
            rtt: Nanos(rtt_us * 1000),
            mtu_bytes,
            loss: if lossy { 10f64.powf(exponent) } else { 0.0 },
            flows,
            queue: queue.map(Size),
        };
        let Ok(plan) = spec.plan() else { return Ok(()) };
        let read = Experiment::read(&experiment(&plan).unwrap(), &[]).unwrap();
        simulated::check(&plans(&read).unwrap()).unwrap();
        let link = plans(&read).unwrap()[0].links[0].path.clone().unwrap();
        prop_assert_eq!(link.forward.line.rate_bps, Some(rate));
        let loss = format!("{:?}", link.forward.line.loss);
        prop_assert!(spec.loss == 0.0 || loss.contains(&format!("probability: {:?}", spec.loss)), "{}", loss);
        for forecast in &plan.forecasts {
            prop_assert!(forecast.share > 0.0 && forecast.share <= 1.0, "{:?}", forecast);
            prop_assert!(forecast.goodput.0 <= plan.goodput_max_bps + 1);
            prop_assert!(forecast.loss_to_fill > 0.0);
        }
    }
}
