//! Metrics over an axis of a sweep: which runs become which points.
#![allow(clippy::unwrap_used, reason = "tests")]

use longfat_report::{
    Report,
    figures::{Choice, Curves, axes_of_numbers},
    load::{Case, Experiment},
    plot::Figure,
    summary::summarise,
};
use longfat_schema::run::{
    AxisPoint, CaseInfo, Metric, RunDirectory, RunEntry, RunManifest, RunStatus, Twin,
};

const FOCUS: &str = "one";

fn at(axis: &str, label: &str, number: Option<f64>, unit: &str) -> AxisPoint {
    AxisPoint { axis: axis.into(), label: label.into(), number, unit: unit.into() }
}

fn rtt(ms: f64) -> AxisPoint {
    at("rtt", &format!("{ms}ms"), Some(ms * 1e3), "us")
}

fn metric(name: &str, value: f64) -> Metric {
    Metric { metric: name.into(), of: FOCUS.into(), stream: None, value }
}

/// A run that ended so, with that goodput.
fn run(case: &str, repeat: u32, status: RunStatus, bps: f64) -> RunDirectory {
    let metrics = vec![metric("goodput_bps", bps)];
    let manifest = RunManifest { case: case.into(), repeat, status, metrics, ..RunManifest::default() };
    RunDirectory { path: case.into(), manifest, written_as: longfat_schema::SCHEMA_VERSION }
}

/// A case whose runs came to these goodputs.
fn case(axes: Vec<AxisPoint>, goodputs: &[f64]) -> Case {
    let name = axes.iter().map(AxisPoint::to_string).collect::<Vec<_>>().join(",");
    let run = |(index, bps): (usize, &f64)| run(&name, index as u32 + 1, RunStatus::Done, *bps);
    let runs = goodputs.iter().enumerate().map(run).collect();
    let info = CaseInfo { title: name.clone(), name, axes, published: vec![] };
    Case { info, runs, lost: vec![], representative: None }
}

/// `cc` and goodput at each round trip in milliseconds.
fn cases(cc: &str, points: &[(f64, &[f64])]) -> Vec<Case> {
    let point = |(ms, goodputs): &(f64, &[f64])| case(vec![rtt(*ms), at("cc", cc, None, "")], goodputs);
    points.iter().map(point).collect()
}

fn experiment(cases: Vec<Case>) -> Experiment {
    let runs = || cases.iter().flat_map(|case| &case.runs).map(|run| &run.manifest);
    let entry = |run: &RunManifest| RunEntry {
        case: run.case.clone(),
        repeat: run.repeat,
        path: run.case.clone(),
        status: run.status,
        seal: None,
    };
    let result = serde_json::json!({
        "schema_version": longfat_schema::SCHEMA_VERSION, "experiment": "x", "title": "X", "description": "",
        "started_unix_ms": 0, "status": "complete", "focus": FOCUS, "expectations": [],
        "provenance": runs().next().unwrap().provenance,
        "cases": cases.iter().map(|case| &case.info).collect::<Vec<_>>(), "runs": runs().map(entry).collect::<Vec<_>>(),
    });
    let result = serde_json::from_value(result).unwrap();
    let summary = summarise(Some(&result), None, &runs().collect::<Vec<_>>());
    let (name, title) = (result.experiment.clone(), result.title.clone());
    Experiment { path: "x".into(), name, title, result: Some(result), summary, cases, damaged: vec![] }
}

fn curves(cases: Vec<Case>) -> Option<Curves> {
    Curves::of(&experiment(cases), None, "e1")
}

fn goodput(cases: Vec<Case>) -> (Figure, String) {
    let mut curves = curves(cases).unwrap();
    (curves.measures.remove(0).figures.remove(0), curves.caption)
}

/// Rows of a figure's table, as text.
fn rows(figure: &Figure) -> Vec<String> {
    let attribute = |part: &str| part.split('"').next().unwrap().replace("&quot;", "\"");
    figure.body.split("data-row=\"").skip(1).map(attribute).collect()
}

#[test]
fn a_point_is_the_median_of_its_valid_repeats_and_lines_go_by_rising_numbers() {
    let mut all = cases("reno", &[(50.0, &[40e6, 20e6, 30e6]), (10.0, &[90e6]), (100.0, &[15e6])]);
    all.extend(cases("cubic", &[(50.0, &[80e6]), (10.0, &[95e6]), (100.0, &[60e6])]));
    let (figure, caption) = goodput(all);
    assert_eq!(figure.title, "Goodput of one over rtt");
    let expected = [
        "[\"cc=reno\",10.0,90.0,null,null]",
        "[\"cc=reno\",50.0,30.0,20.0,40.0]",
        "[\"cc=reno\",100.0,15.0,null,null]",
        "[\"cc=cubic\",10.0,95.0,null,null]",
        "[\"cc=cubic\",50.0,80.0,null,null]",
        "[\"cc=cubic\",100.0,60.0,null,null]",
    ];
    assert_eq!(rows(&figure), expected);
    assert!(!caption.contains("do not count"), "{caption}");
}

#[test]
fn runs_that_do_not_count_are_told_and_not_drawn() {
    let mut all = cases("reno", &[(10.0, &[90e6, 92e6]), (50.0, &[40e6, 1e6]), (100.0, &[7e6])]);
    all[1].runs[1].manifest.status = RunStatus::Invalid;
    all[2].runs[0].manifest.status = RunStatus::Failed;
    let (figure, caption) = goodput(all);
    assert!(!figure.body.contains("NaN"));
    let expected = ["[\"cc=reno\",10.0,91.0,90.0,92.0]", "[\"cc=reno\",50.0,40.0,null,null]"];
    // One congestion control tells nothing apart.
    assert_eq!(rows(&figure), expected.map(|row| row.replace("cc=reno", "")));
    assert!(caption.contains("2 of 5 runs do not count and are not drawn."), "{caption}");
}

#[test]
fn both_axes_are_logarithmic_where_numbers_are_far_apart() {
    let (far, _) = goodput(cases("reno", &[(1.0, &[95e6]), (10.0, &[30e6]), (500.0, &[1e6])]));
    assert!(far.body.contains("rtt, ms (logarithmic)") && far.body.contains("Mbit/s (logarithmic)"));
    let (near, _) = goodput(cases("reno", &[(10.0, &[95e6]), (50.0, &[30e6]), (100.0, &[20e6])]));
    assert!(!near.body.contains("logarithmic"), "{}", near.body);
}

#[test]
fn without_an_axis_of_three_numbers_nothing_is_drawn() {
    assert!(curves(cases("reno", &[(10.0, &[95e6])])).is_none());
    assert!(curves(cases("reno", &[(10.0, &[95e6]), (20.0, &[90e6])])).is_none());
    let named = |label: &str| case(vec![at("cc", label, None, "")], &[9e6]);
    assert!(curves(vec![named("reno"), named("cubic"), named("bic")]).is_none());
    assert!(
        curves(cases("reno", &[(10.0, &[]), (20.0, &[9e6]), (30.0, &[])])).is_none(),
        "a point is no line"
    );
}

#[test]
fn published_figures_are_open_marks_and_twins_a_dashed_line() {
    let mut all = cases("reno", &[(10.0, &[90e6]), (50.0, &[40e6]), (100.0, &[20e6])]);
    all[1].info.published = vec![metric("goodput_bps", 50e6), metric("scaling_us", 4e6)];
    all[2].info.published = vec![metric("scaling_us", 9e6)];
    for case in &mut all {
        let manifest = &mut case.runs[0].manifest;
        manifest.metrics.push(metric("scaling_us", 5e6));
        manifest.twin = Some(Twin { metrics: vec![metric("goodput_bps", 60e6)], ..Twin::default() });
    }
    // A run that nothing but its twin speaks against has one that is shown.
    all[0].runs[0].manifest.status = RunStatus::Unexplained;
    let found = curves(all).unwrap();
    let headings: Vec<&str> = found.measures.iter().map(|measure| measure.heading).collect();
    assert_eq!(headings, ["Goodput", "Time to its pace"], "what was published is drawn");
    let goodput = rows(&found.measures[0].figures[0]);
    let simulated = [10.0, 50.0, 100.0].map(|x| format!("[\"(simulated)\",{x:.1},60.0,null,null]"));
    assert!(simulated.iter().all(|row| goodput.contains(row)), "{goodput:?}");
    assert!(goodput.contains(&"[\"(published)\",50.0,50.0,null,null]".to_owned()), "{goodput:?}");
    assert_eq!(goodput.len(), 6, "of the unexplained run nothing is drawn but its twin: {goodput:?}");
    assert!(found.caption.contains("Open marks are published") && found.caption.contains("Dashed is what"));
}

#[test]
fn many_lines_become_figures_with_the_same_axes_and_names_of_their_own() {
    let mut all = Vec::new();
    for queue in [10.0, 50.0, 90.0] {
        for cc in ["reno", "cubic", "bic"] {
            let mut own =
                cases(cc, &[(10.0, &[queue * 1e6]), (20.0, &[9e6]), (50.0, &[8e6]), (90.0, &[5e6])]);
            own.iter_mut().for_each(|case| {
                case.info.axes.insert(0, at("queue", &format!("{queue}KB"), Some(queue * 1e3), "bytes"));
                case.info.name = format!("queue={queue},{}", case.info.name);
                case.runs[0].manifest.case = case.info.name.clone();
            });
            all.extend(own);
        }
    }
    let experiment = experiment(all);
    assert_eq!(axes_of_numbers(&experiment), ["queue", "rtt"]);
    let found = Curves::of(&experiment, None, "e1").unwrap();
    let titles: Vec<&str> = found.measures[0].figures.iter().map(|figure| figure.title.as_str()).collect();
    assert_eq!(
        titles,
        ["10KB", "50KB", "90KB"].map(|queue| format!("Goodput of one over rtt: queue={queue}"))
    );
    let has_top = |figure: &Figure| figure.body.contains(">100</text>");
    assert!(found.measures[0].figures.iter().all(has_top), "what is drawn beside is within the axis");
    let names: Vec<String> = found.named().map(|(name, _)| name).collect();
    assert_eq!(names[..2], ["Goodput over rtt-1", "Goodput over rtt-2"]);
    let over_queue = Curves::of(&experiment, Some("queue"), "e1").unwrap();
    assert_eq!((over_queue.axis.as_str(), over_queue.measures[0].figures.len()), ("queue", 4));
}

#[test]
fn more_values_than_styles_are_dealt_out_evenly() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let points: [(f64, &[f64]); 3] = [(10.0, &[9e6]), (20.0, &[8e6]), (30.0, &[7e6])];
    let found = curves(names.iter().flat_map(|cc| cases(cc, &points)).collect()).unwrap();
    let lines = |figure: &Figure| figure.body.matches("class=\"legend\">cc=").count();
    assert_eq!(found.measures[0].figures.iter().map(lines).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn axes_in_step_are_told() {
    let step = |n: f64| case(vec![at("rate", &n.to_string(), Some(n), ""), rtt(n)], &[n * 1e6]);
    let (figure, caption) = goodput([1.0, 2.0, 3.0].map(step).to_vec());
    assert!(figure.title.ends_with("over rate") && rows(&figure).len() == 3, "{}", figure.title);
    assert!(caption.contains("In step with rate: rtt."), "{caption}");
}

#[test]
fn a_page_has_them_above_its_summary_and_each_is_a_file() {
    let all = cases("reno", &[(10.0, &[90e6]), (50.0, &[40e6]), (100.0, &[20e6])]);
    let report = Report::new(vec![experiment(all)]);
    let html = report.html();
    let place = |what: &str| html.find(what).unwrap_or_else(|| panic!("no {what}"));
    assert!(place("<h2>Over rtt</h2>") < place("Goodput of one over rtt, Mbit/s"));
    assert!(place("Goodput of one over rtt, Mbit/s") < place("<h2>Summary"));
    let directory = tempfile::tempdir().unwrap();
    let written = report.write_svg(directory.path()).unwrap();
    assert_eq!(written[0].file_name().unwrap(), "goodput-over-rtt.svg", "the first of all figures");
}

#[test]
fn the_axis_that_is_chosen_is_drawn_where_a_result_has_it() {
    let mut all = cases("reno", &[(10.0, &[90e6]), (50.0, &[40e6]), (100.0, &[20e6])]);
    for (case, streams) in all.iter_mut().zip([1.0, 1.0, 3.0]) {
        case.info.axes.push(at("streams", &streams.to_string(), Some(streams), ""));
    }
    let drawn = |over: &str| {
        let choice = Choice { over: Some(over.into()), ..Choice::default() };
        Report::with(vec![experiment(all.clone())], &choice).html()
    };
    assert!(drawn("rtt").contains("<h2>Over rtt</h2>"));
    assert!(drawn("streams").contains("<h2>Over rtt</h2>"), "two numbers are no curve");
}
