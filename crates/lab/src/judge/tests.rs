use super::*;
use crate::plan::tests_support::plan;
use crate::spec::expect::{Bound, Bounds, Expected, FigureOf, Measure, Pair};
use longfat_schema::record::*;
use longfat_schema::run::RunManifest;

fn summary(stream: u32) -> FlowSummary {
    FlowSummary {
        flow: "measured".into(),
        stream,
        cc_sender: "reno".into(),
        cc_receiver: "reno".into(),
        ..FlowSummary::default()
    }
}

fn good() -> Samples {
    let link =
        LinkSummary { link: "path".into(), punctual: true, late_limit_us: 300, ..LinkSummary::default() };
    Samples { flow: vec![summary(0), summary(1)], link: vec![link], ..Samples::default() }
}

fn cpu(value: f64) -> Vec<Metric> {
    vec![Metric { metric: "cpu_busy_ratio".into(), of: String::new(), stream: None, value }]
}

#[test]
fn a_run_as_planned_is_done() {
    assert_eq!(verdict(&plan(), &good(), &cpu(0.5)), (RunStatus::Done, vec![]));
}

#[test]
fn a_run_whose_relay_took_no_connection_is_invalid_for_that_and_not_for_what_is_only_remarked() {
    let (plan, samples) = (plan(), good());
    let judged = |busy, samples: &Samples| {
        with_idle_relays(verdict(&plan, samples, &cpu(busy)), (&plan, &plan), samples)
    };
    let (status, reasons) = judged(0.99, &samples);
    assert_eq!((status, reasons.len()), (RunStatus::Invalid, 1), "{reasons:?}");
    assert!(reasons[0].starts_with("relay 'pep' took no connection on 'lan'"), "{reasons:?}");
    let relay = vec![RelaySample { relay: "pep".into(), ..RelaySample::default() }];
    let relayed = Samples { relay, ..good() };
    assert_eq!(judged(0.5, &relayed), (RunStatus::Done, vec![]));
    let mut cut = good();
    cut.flow[0].error = Some("connection reset".into());
    assert_eq!(judged(0.5, &cut).0, RunStatus::Failed);
}

#[test]
fn a_late_link_makes_the_run_invalid() {
    let mut samples = good();
    samples.link[0] = LinkSummary { punctual: false, late_p99_us: 900, ..samples.link[0].clone() };
    let (status, reasons) = verdict(&plan(), &samples, &[]);
    assert_eq!(status, RunStatus::Invalid);
    assert!(reasons[0].contains("900 us late (limit 300 us)"), "{reasons:?}");
}

#[test]
fn packets_lost_by_the_driver_make_the_run_invalid() {
    let mut samples = good();
    samples.link[0].overrun_packets = 3;
    let (status, reasons) = verdict(&plan(), &samples, &[]);
    assert!(status == RunStatus::Invalid && reasons[0].contains("lost 3 packets of its own"), "{reasons:?}");
}

#[test]
fn another_congestion_control_than_planned_makes_the_run_invalid_at_every_end() {
    let mut samples = good();
    samples.flow[1].cc_sender = "cubic".into();
    let tcp = |flow: &str, role: &str, cc: &str| TcpSample {
        flow: flow.into(),
        role: role.into(),
        cc: cc.into(),
        ..TcpSample::default()
    };
    samples.tcp = vec![
        tcp("pep", "relay_out", "bbr"),
        tcp("pep", "relay_in", "reno"),
        tcp("measured", "receiver", "bbr"),
    ];
    let (status, reasons) = verdict(&plan(), &samples, &[]);
    assert_eq!(status, RunStatus::Invalid);
    assert_eq!(
        reasons,
        [
            "'measured' receiver: ran under 'bbr' instead of 'reno'",
            "'measured' sender: ran under 'cubic' instead of 'reno'",
            "'pep' relay_out: ran under 'bbr' instead of 'cubic'"
        ]
    );
}

#[test]
fn a_flow_that_began_late_makes_the_run_invalid() {
    let mut samples = good();
    samples.flow[1].start_us = 90_000;
    assert_eq!(verdict(&plan(), &samples, &[]).0, RunStatus::Done);
    samples.flow[1].start_us = 250_000;
    let (status, reasons) = verdict(&plan(), &samples, &[]);
    assert_eq!(status, RunStatus::Invalid);
    assert_eq!(reasons, ["flow 'measured' began 250 ms late: the machine was too busy"]);
    let (status, reasons) = simulated_verdict(&plan(), &samples, &[]);
    assert!(status == RunStatus::Invalid && reasons[0].contains("250 ms late: its handshake"), "{reasons:?}");
}

#[test]
fn a_flow_that_failed_or_said_nothing_fails_the_run() {
    let mut samples = good();
    samples.flow[1].error = Some("connection reset".into());
    let (status, reasons) = verdict(&plan(), &samples, &[]);
    assert!(status == RunStatus::Failed && reasons[0].contains("stream 1: connection reset"), "{reasons:?}");
    let mut samples = good();
    samples.flow.pop();
    let (status, reasons) = verdict(&plan(), &samples, &[]);
    assert!(status == RunStatus::Failed && reasons[0].contains("1 of 2 streams"), "{reasons:?}");
}

#[test]
fn a_busy_machine_is_noted_and_beyond_the_limit_the_run_is_invalid() {
    let (status, reasons) = verdict(&plan(), &good(), &cpu(0.99));
    assert!(status == RunStatus::Done && reasons[0].contains("99.0 % busy"), "{reasons:?}");
    let mut limited = plan();
    limited.cpu_limit = Some(0.9);
    let (status, reasons) = verdict(&limited, &good(), &cpu(0.95));
    assert!(status == RunStatus::Invalid && reasons[0].contains("cpu_limit 90.0 %"), "{reasons:?}");
}

#[test]
fn warnings_of_programs_reach_the_reader_once() {
    let mut samples = good();
    let note =
        Note { level: "warning".into(), source: "relay".into(), message: "no pipes".into(), time_us: 1 };
    samples.note = vec![note.clone(), Note { level: "info".into(), ..note.clone() }, note];
    assert_eq!(verdict(&plan(), &samples, &[]).1, ["warning: relay: no pipes"]);
}

fn run(case: &str, status: RunStatus, goodput: f64) -> RunManifest {
    RunManifest {
        case: case.into(),
        repeat: 1,
        status,
        metrics: vec![Metric { metric: "goodput_bps".into(), of: "f".into(), stream: None, value: goodput }],
        ..RunManifest::default()
    }
}

fn expect(at_least: Option<f64>, at_most: Option<f64>) -> Expected {
    let figure = |case: &str| FigureOf { case: case.into(), metric: "goodput_bps".into(), of: "f".into() };
    let bound = |value| Bound { value, strict: false };
    let pair = Pair {
        at: String::new(),
        left: figure("a"),
        measure: Measure::Over(figure("b")),
        bounds: Bounds { least: at_least.map(bound), most: at_most.map(bound) },
    };
    Expected { text: "t".into(), confidence: None, pairs: vec![pair] }
}

#[test]
fn an_expectation_compares_medians_of_valid_runs() {
    let runs = [
        run("a", RunStatus::Done, 10e6),
        run("a", RunStatus::Done, 30e6),
        run("a", RunStatus::Done, 20e6),
        run("a", RunStatus::Invalid, 1e6),
        run("b", RunStatus::Done, 16e6),
    ];
    let judged = expectation(&expect(Some(1.0), Some(2.0)), &runs);
    assert_eq!(judged.met, Some(true));
    assert_eq!(
        judged.detail,
        "median 20.0 Mbit/s against 16.0 Mbit/s: ratio 1.250, wanted at least 1.000 and at most 2.000"
    );
    assert_eq!(expectation(&expect(Some(1.3), None), &runs).met, Some(false));
    assert_eq!(expectation(&expect(None, Some(1.2)), &runs).met, Some(false));
}

#[test]
fn with_a_confidence_an_expectation_is_missed_only_beyond_the_spread_of_its_repeats() {
    let runs = |left: [f64; 5], right: [f64; 5]| -> Vec<RunManifest> {
        let side = |case, values: [f64; 5]| values.map(|value| run(case, RunStatus::Done, value * 1e6));
        side("a", left).into_iter().chain(side("b", right)).collect()
    };
    let spec = Expected { confidence: Some(0.9), ..expect(Some(1.0), None) };
    let close = expectation(&spec, &runs([80.0, 95.0, 70.0, 110.0, 85.0], [90.0, 75.0, 100.0, 88.0, 92.0]));
    assert_eq!(close.met, Some(true), "{}", close.detail);
    let apart = expectation(&spec, &runs([40.0, 45.0, 38.0, 41.0, 39.0], [90.0, 75.0, 100.0, 88.0, 92.0]));
    assert_eq!(apart.met, Some(false), "{}", apart.detail);
    assert!(apart.detail.contains("90 % interval 0.4") && apart.detail.contains("within the interval"));
    let again = expectation(&spec, &runs([40.0, 45.0, 38.0, 41.0, 39.0], [90.0, 75.0, 100.0, 88.0, 92.0]));
    assert_eq!(again, apart);
}

#[test]
fn nothing_is_as_much_as_nothing_with_and_without_a_confidence() {
    let runs = |left: f64, right: f64| {
        let repeats = |case, value| (0..3).map(move |_| run(case, RunStatus::Done, value));
        repeats("a", left).chain(repeats("b", right)).collect::<Vec<_>>()
    };
    let met = |at_least, at_most, confidence, runs: &[RunManifest]| {
        let spec = Expected { confidence, ..expect(at_least, at_most) };
        expectation(&spec, runs).met
    };
    for confidence in [None, Some(0.9)] {
        let none = runs(0.0, 0.0);
        assert_eq!(met(None, Some(1.0), confidence, &none), Some(true));
        assert_eq!(met(Some(1.0), None, confidence, &none), Some(true));
        assert_eq!(met(Some(2.0), Some(0.5), confidence, &none), Some(true), "also twice, and half of it");
        assert_eq!(met(None, Some(1.0), confidence, &runs(3.0, 0.0)), Some(false));
        assert_eq!(met(Some(5.0), None, confidence, &runs(3.0, 0.0)), Some(true));
        assert_eq!(met(Some(0.1), None, confidence, &runs(0.0, 3.0)), Some(false));
        let mut less = expect(None, Some(1.0));
        less.pairs[0].bounds.most = Some(Bound { value: 1.0, strict: true });
        assert_eq!(expectation(&Expected { confidence, ..less }, &none).met, Some(false), "not less");
    }
    let detail = expectation(&expect(Some(1.0), None), &runs(0.0, 0.0)).detail;
    assert!(detail.contains("ratio 1.000"), "{detail}");
}

#[test]
fn without_a_valid_run_an_expectation_is_not_judged() {
    let judged = expectation(
        &expect(Some(1.0), None),
        &[run("a", RunStatus::Done, 1.0), run("b", RunStatus::Failed, 1.0)],
    );
    assert_eq!((judged.met, judged.detail.contains("'b'")), (None, true));
}

#[test]
fn over_several_cells_an_expectation_says_which_missed() {
    let cell = |case: &str| Pair {
        at: case.into(),
        left: FigureOf { case: case.into(), metric: "goodput_bps".into(), of: "f".into() },
        measure: Measure::Value,
        bounds: Bounds { least: Some(Bound { value: 5e6, strict: true }), most: None },
    };
    let expected = Expected { text: "t".into(), confidence: None, pairs: ["a", "b", "c"].map(cell).to_vec() };
    let runs =
        [run("a", RunStatus::Done, 6e6), run("b", RunStatus::Done, 5e6), run("c", RunStatus::Done, 9e6)];
    let judged = expectation(&expected, &runs);
    assert_eq!(judged.met, Some(false));
    assert_eq!(
        judged.detail,
        "met in 2 of 3 cells; missed in b: median 5.00 Mbit/s, wanted more than 5.00 Mbit/s"
    );
    assert_eq!(
        judged.cells.iter().map(|cell| cell.met).collect::<Vec<_>>(),
        [Some(true), Some(false), Some(true)]
    );
    assert_eq!(expectation(&expected, &runs[..1]).met, None);
    assert_eq!(within(&expected, &["c"]).unwrap().pairs.len(), 1);
    assert_eq!(within(&expected, &["d"]), None);
}
