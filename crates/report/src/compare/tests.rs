use super::*;
use longfat_schema::random::SplitMix64;
use longfat_schema::run::{HostState, Metric, Provenance};
use serde_json::json;

fn run(case: &str, repeat: u32, figures: &[(&str, &str, f64)]) -> Run {
    let metric = |(metric, of, value): &(&str, &str, f64)| Metric {
        metric: (*metric).into(),
        of: (*of).into(),
        stream: None,
        value: *value,
    };
    let manifest = RunManifest {
        case: case.into(),
        repeat,
        backend: "emulated".into(),
        status: RunStatus::Done,
        metrics: figures.iter().map(metric).collect(),
        provenance: Provenance { kernel: "6.12".into(), ..Provenance::default() },
        ..RunManifest::default()
    };
    let plan = json!({
        "case": case, "repeat": repeat, "seed": 100 + repeat,
        "flows": [{ "name": "measured", "cc": "reno", "streams": 1 }],
        "hosts": [{ "name": "a", "sysctls": { "net.ipv4.tcp_sack": "1" } }],
    });
    Run { manifest, plan }
}

fn side(name: &str, runs: Vec<Run>) -> Side {
    Side { name: name.into(), runs, damaged: Vec::new() }
}

const GOODPUT: (&str, &str) = ("goodput_bps", "measured");

fn goodput(case: &str, repeat: u32, mbps: f64) -> Run {
    run(case, repeat, &[(GOODPUT.0, GOODPUT.1, mbps * 1e6)])
}

#[test]
fn figures_are_medians_over_valid_runs_and_their_ratio_is_the_second_over_the_first() {
    let mut invalid = goodput("c", 4, 9000.0);
    invalid.manifest.status = RunStatus::Invalid;
    let left =
        side("l", vec![goodput("c", 1, 80.0), goodput("c", 2, 100.0), goodput("c", 3, 300.0), invalid]);
    let right = side("r", vec![goodput("c", 1, 90.0)]);
    let comparison = compare(&left, &right);
    let case = &comparison.cases[0];
    assert_eq!(case.valid, [3, 1]);
    let figure = &case.figures[0];
    assert_eq!(figure.sides[0].as_ref().unwrap().median, 100e6);
    assert!((figure.ratio.unwrap() - 0.9).abs() < 1e-9);
    assert!(figure.is_within(0.11) && !figure.is_within(0.05));
    assert_eq!(comparison.parameters, []);
}

#[test]
fn a_figure_that_one_side_lacks_is_shown_without_a_ratio() {
    let left = side("l", vec![run("c", 1, &[("cpu_busy_ratio", "", 0.5), ("goodput_bps", "f", 0.0)])]);
    let right = side("r", vec![run("c", 1, &[("goodput_bps", "f", 0.0)])]);
    let comparison = compare(&left, &right);
    let [goodput, cpu] = comparison.cases[0].figures.as_slice() else { panic!("{comparison:?}") };
    assert_eq!((goodput.metric.as_str(), goodput.ratio), ("goodput_bps", Some(1.0)));
    assert!(cpu.sides[1].is_none() && cpu.ratio.is_none() && cpu.is_within(0.0) && !cpu.is_foremost());
}

#[test]
fn cases_are_matched_by_name_and_two_single_ones_with_each_other() {
    let left = side("l", vec![goodput("a", 1, 1.0), goodput("b", 1, 1.0)]);
    let right = side("r", vec![goodput("b", 1, 2.0), goodput("c", 1, 2.0)]);
    let comparison = compare(&left, &right);
    assert_eq!(comparison.cases.len(), 1);
    assert_eq!(comparison.cases[0].names, ["b", "b"]);
    assert_eq!(comparison.unmatched, [vec!["a".to_owned()], vec!["c".to_owned()]]);
    let single = compare(&side("l", vec![goodput("a", 1, 1.0)]), &side("r", vec![goodput("b", 1, 2.0)]));
    assert_eq!(single.cases[0].names, ["a", "b"]);
    assert_eq!(single.cases[0].figures[0].ratio, Some(2.0));
}

#[test]
fn parameters_that_differ_are_named_by_their_keys_and_what_varies_within_a_side_is_not() {
    let mut other = goodput("c", 1, 1.0);
    other.manifest.backend = "sim".into();
    other.plan["flows"][0]["cc"] = "lf_highspeed".into();
    other.plan["hosts"][0]["sysctls"]["net.ipv4.tcp_sack"] = "0".into();
    other.plan["flows"][0]["echo_every_bytes"] = 7.into();
    let left = side("l", vec![goodput("c", 1, 1.0), goodput("c", 2, 1.0)]);
    let comparison = compare(&left, &side("r", vec![other]));
    let found: Vec<(&str, &str, &str)> = comparison
        .parameters
        .iter()
        .map(|d| (d.key.as_str(), d.values[0].as_str(), d.values[1].as_str()))
        .collect();
    assert_eq!(
        found,
        [
            ("plan.flows.measured.cc", "reno", "lf_highspeed"),
            ("plan.flows.measured.echo_every_bytes", "", "7"),
            ("plan.hosts.a.sysctls.net.ipv4.tcp_sack", "1", "0"),
            ("run.backend", "emulated", "sim"),
        ]
    );
    assert_eq!(comparison.parameters[0].cases, ["c"]);
}

#[test]
fn sysctls_of_hosts_are_compared_where_both_sides_have_hosts() {
    let with = |value: &str| {
        let mut run = goodput("c", 1, 1.0);
        let sysctls = [("net.core.rmem_max".to_owned(), value.to_owned())].into();
        run.manifest.hosts.insert("a".into(), HostState { sysctls, ..HostState::default() });
        side("s", vec![run])
    };
    let found = compare(&with("1"), &with("2")).parameters;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].key, "host.a.sysctls.net.core.rmem_max");
    assert_eq!(compare(&with("1"), &side("r", vec![goodput("c", 1, 1.0)])).parameters, []);
}

#[test]
fn a_figure_differs_when_the_repeats_do_not_explain_it_and_without_repeats_nothing_is_claimed() {
    let repeats = |mbps: &[f64]| (1..).zip(mbps).map(|(repeat, mbps)| goodput("c", repeat, *mbps)).collect();
    let figure = |left: &[f64], right: &[f64]| {
        let comparison = compare(&side("l", repeats(left)), &side("r", repeats(right)));
        comparison.cases[0].figures[0].clone()
    };
    let scattered = [80.0, 120.0, 95.0, 105.0, 100.0];
    assert_eq!(figure(&scattered, &[85.0, 118.0, 97.0, 110.0, 101.0]).beyond_spread, Some(false));
    let apart = figure(&scattered, &[160.0, 170.0, 165.0, 180.0, 175.0]);
    let [least, greatest] = apart.ratio_interval.unwrap();
    assert!(apart.beyond_spread == Some(true) && least > 1.0 && greatest < 2.4, "{least} to {greatest}");
    assert_eq!(figure(&scattered, &scattered).beyond_spread, Some(false));
    assert_eq!(figure(&[0.0; 3], &[1.0, 2.0, 3.0]).beyond_spread, Some(true));
    assert_eq!(figure(&[0.0; 3], &[1.0, 2.0, 3.0]).ratio_interval, None);
    assert_eq!(figure(&scattered, &[500.0, 510.0]).beyond_spread, None);
}

#[test]
fn of_figures_that_are_alike_one_in_ten_seems_to_differ_with_three_repeats_and_one_in_twenty_with_five() {
    let mut random = SplitMix64::new(5);
    // The sum of twelve uniform numbers is as good as normal.
    let mut normal = || (0..12).map(|_| random.unit()).sum::<f64>();
    let mut share = |repeats: usize| {
        let mut values = || (0..repeats).map(|_| normal()).collect::<Vec<f64>>();
        let pairs = (0..200).map(|_| [values(), values()]).collect::<Vec<_>>();
        let differ = pairs.iter().filter(|[left, right]| {
            let runs =
                |values: &[f64]| (1..).zip(values).map(|(at, value)| goodput("c", at, *value)).collect();
            let found = compare(&side("l", runs(left)), &side("r", runs(right)));
            found.cases[0].figures[0].beyond_spread == Some(true)
        });
        differ.count() as f64 / 200.0
    };
    let [three, five] = [share(3), share(5)];
    assert!((0.06..0.13).contains(&three) && (0.01..=0.05).contains(&five), "{three}, {five}");
}
