//! The page and the figures of a synthetic result, read as a browser would.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use longfat_report::{
    Report, ReportError,
    compare::{Side, compare, html},
    figures::{Choice, Repeats},
    load::Experiment,
};
use longfat_schema::run::{
    AxisPoint, CaseInfo, CellVerdict, Expectation, Metric, PLAN_FILE, RESULT_FILE, RUN_FILE, ResultManifest,
    ResultStatus, RunDirectory, RunError, RunStatus, read_json, seal_run, write_json,
};
use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};
use support::{CASES, REPEATS};

struct Fixture {
    directory: PathBuf,
    html: String,
}

static RESULT: LazyLock<Fixture> = LazyLock::new(|| {
    // Statics are never dropped: a temporary directory would stay. This one is cargo's to remove.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-result");
    let _ = std::fs::remove_dir_all(&directory);
    support::write_result(&directory);
    let html = report(&[&directory]).html();
    // For looking at it.
    if let Ok(path) = std::env::var("LONGFAT_REPORT_HTML") {
        std::fs::write(path, &html).unwrap();
    }
    Fixture { directory, html }
});

fn report(paths: &[&Path]) -> Report {
    Report::new(paths.iter().map(|path| Experiment::open(path).unwrap()).collect())
}

#[test]
fn every_case_and_every_run_is_on_the_page() {
    let html = &RESULT.html;
    for (index, case) in CASES.iter().enumerate().take(6) {
        assert!(html.contains(&format!("<h3>{}</h3>", case.title)), "{}", case.name);
        assert!(html.contains(&format!("id=\"e1c{}\"", index + 1)));
    }
    assert_eq!(
        html.matches("<details><summary><span class=\"chip").count(),
        CASES.len() * (REPEATS as usize - 1)
    );
    assert!(html.contains("<b>21 runs</b>: 19 valid, 1 invalid, 1 failed"));
    assert!(
        html.contains("p99 lateness 5210 µs exceeds the limit")
            && html.contains("relay ended with exit code 2")
    );
}

#[test]
fn names_and_texts_from_files_cannot_break_out_of_the_page() {
    let html = &RESULT.html;
    for hostile in
        ["<img", "x</script>", "<or more>", "<b>breaks", "<CPU>", "<6291456>", "<unexpectedly>", "<see log>"]
    {
        assert!(!html.contains(hostile), "{hostile}");
    }
    assert!(html.contains("&lt;img src=x onerror=alert(1)&gt; &amp; &quot;quoted&quot;"));
    assert_eq!(html.matches("<script").count(), 1);
    assert_eq!(html.matches("</script>").count(), 1);
}

#[test]
fn the_page_fetches_nothing_and_holds_no_broken_number() {
    let html = RESULT.html.replace("http://www.w3.org/2000/svg", "");
    for forbidden in ["http:", "https:", "src=", "@import", "url(", "NaN", ">inf"] {
        let found = html.find(forbidden).filter(|at| !html[..*at].ends_with("&lt;img "));
        assert_eq!(found.map(|at| &html[at.saturating_sub(60)..at + 40]), None, "{forbidden}");
    }
}

#[test]
fn twenty_one_runs_make_a_page_below_three_megabytes() {
    assert!(RESULT.html.len() < 3_000_000, "{} bytes", RESULT.html.len());
}

#[test]
fn every_element_id_is_unique_and_every_reference_has_a_target() {
    let values = |attribute: &str| -> Vec<String> {
        let opening = format!(" {attribute}=\"");
        let parts = RESULT.html.split(&opening).skip(1);
        parts.filter_map(|part| part.split('"').next()).map(str::to_owned).collect()
    };
    let ids = values("id");
    let unique: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len());
    let labels = values("aria-labelledby");
    let labels = labels.iter().flat_map(|value| value.split(' ').map(str::to_owned));
    let links = values("href").into_iter().map(|href| href.trim_start_matches('#').to_owned());
    for target in labels.chain(links) {
        assert!(ids.contains(&target), "{target}");
    }
}

#[test]
fn figures_have_titles_and_tables_have_scopes() {
    let html = &RESULT.html;
    let figures = html.matches("<svg class=\"figure\"").count();
    assert_eq!(html.matches("<title id=").count(), figures);
    assert_eq!(html.matches("<desc id=").count(), figures);
    assert_eq!(html.matches("<th>").count(), 0);
    assert_eq!(html.matches("<table>").count(), html.matches("<caption>").count());
}

#[test]
fn what_a_run_lacks_is_said_instead_of_drawn() {
    let html = &RESULT.html;
    assert!(html.contains("No relay on this path."));
    assert!(html.contains("No flow carried timestamps to echo."));
    assert!(html.contains("No interval samples."), "the failed run has empty tables");
}

#[test]
fn a_relays_control_connection_does_not_stand_for_its_data() {
    let html = &RESULT.html;
    assert!(html.contains("relay: whole backlog") && !html.contains("(to client)"));
    assert!(!html.contains("Relay backlog, GB"), "the control connection's samples say gigabytes");
    assert!(html.contains("class=\"series s2\" data-label=\"relay long leg: cwnd\""));
}

#[test]
fn two_relays_share_a_chart_and_what_was_measured_stands_beside_what_was_free() {
    let html = &RESULT.html;
    let chart = |title: &str| {
        let start = html.find(&format!(">{title}")).unwrap_or_else(|| panic!("no chart '{title}'"));
        &html[start..start + html[start..].find("</figure>").unwrap()]
    };
    let backlogs = chart("Relay backlog by case");
    for case in CASES.iter().filter(|case| case.relayed) {
        assert!(backlogs.contains(&format!("data-label=\"{}\"", case.title)), "{}", case.name);
    }
    let avails = chart("Available bandwidth by case");
    assert_eq!(avails.matches("data-label=\"free (One Reno beside one HighSpeed)\"").count(), 1);
    let error = chart("Error of available bandwidth, % of capacity");
    assert!(error.contains("5.00 % (confidence 0.900)"), "{error}");
    assert!(
        html.contains("data-label=\"focus: as it measured\"") && html.contains("data-label=\"focus: free\"")
    );
}

#[test]
fn more_cases_than_styles_share_no_chart() {
    let directory = tempfile::tempdir().unwrap();
    support::write_result(directory.path());
    let mut experiment = Experiment::open(directory.path()).unwrap();
    let relayed = experiment.cases.iter().find(|case| case.info.name == "reno-relayed").unwrap().clone();
    experiment.cases = vec![relayed; 7];
    let figures = longfat_report::figures::draw(&experiment, "e1", &Choice::default());
    assert!(figures.together.is_empty(), "{:?}", figures.together.len());
}

#[test]
fn elements_are_closed_in_the_order_they_were_opened() {
    let void = ["meta", "br", "img", "!doctype"];
    let mut open: Vec<&str> = Vec::new();
    for tag in RESULT.html.split('<').skip(1) {
        let name = tag.split([' ', '>', '/']).next().unwrap_or_default();
        if let Some(closing) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), closing.split('>').next(), "…<{}", &tag[..tag.len().min(80)]);
        } else if open.last() == Some(&"script") || void.contains(&name) {
            // Script is not markup.
        } else if !tag.split('>').next().unwrap_or_default().ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn every_figure_is_written_as_svg_under_a_plain_name() {
    let directory = tempfile::tempdir().unwrap();
    let written = report(&[&RESULT.directory]).write_svg(&directory.path().join("figures")).unwrap();
    // Five overviews, two that cases share; six panels a case, less the relay's in five cases and the echoes of the
    // last; one more for two that measured.
    assert_eq!(written.len(), 5 + 2 + 7 * 6 - 5 - 1 + 2);
    for path in &written {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.'), "{name}");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("<svg xmlns=") && text.trim_end().ends_with("</svg>"), "{name}");
        assert!(text.contains("<style>") && !text.contains("NaN"), "{name}");
    }
}

#[test]
fn the_representative_is_the_valid_repeat_with_the_median_goodput() {
    let experiment = Experiment::open(&RESULT.directory).unwrap();
    for (case, summary) in experiment.cases.iter().zip(&experiment.summary.cases) {
        let run = &case.runs[case.representative.unwrap()].manifest;
        assert_eq!(run.status, RunStatus::Done);
        let spread = summary.columns[0].as_ref().unwrap();
        let goodput = run.metric("goodput_bps", "focus").unwrap();
        let expected = if spread.count % 2 == 1 { spread.median } else { spread.min };
        assert_eq!(goodput, expected, "{}", summary.name);
    }
}

#[test]
fn several_results_are_compared_case_by_case() {
    let path = &RESULT.directory;
    let html = report(&[path, path]).html();
    assert!(html.contains("<h2>2 results</h2>") && html.contains("Cases that several have"));
    assert!(
        html.contains(
            "<th scope=\"rowgroup\" rowspan=\"2\">Reno end to end, beside ten HighSpeed flows</th>"
        )
    );
    assert!(html.contains("<article id=\"e2\">"));
}

#[test]
fn results_without_a_case_in_common_are_listed_and_not_compared() {
    let other = changed(2, |result| {
        result.experiment = "other".to_owned();
        result.cases.iter_mut().for_each(|case| case.name = format!("other-{}", case.name));
        result.runs.iter_mut().for_each(|run| run.case = format!("other-{}", run.case));
    });
    for case in 1..=2 {
        for repeat in 1..=REPEATS {
            let run = other.path().join(format!("case{case}/r{repeat}"));
            let mut manifest = RunDirectory::open(&run).unwrap().manifest;
            manifest.case = format!("other-{}", manifest.case);
            seal_run(&run, &mut manifest).unwrap();
        }
    }
    let html = report(&[&RESULT.directory, other.path()]).html();
    assert!(html.contains("<h2>2 results</h2>") && !html.contains("Cases that several have"));
    assert_eq!(html.matches("<span class=\"chip missed\">1 of 3 met</span>").count(), 2);
}

#[test]
fn flows_and_latencies_stand_beside_each_other_by_case() {
    let html = &RESULT.html;
    let chart = |title: &str| {
        let start = html.find(&format!(">{title}")).unwrap_or_else(|| panic!("no chart '{title}'"));
        &html[start..start + html[start..].find("</figure>").unwrap()]
    };
    let flows = chart("Goodput of each flow by case, ");
    assert!(flows.contains("<title>focus: ") && flows.contains("<title>background: "), "{flows}");
    let echo = chart("99th percentile of echo latency by case, ");
    assert!(echo.contains(CASES[0].title.split(',').next().unwrap()));
    assert!(!echo.contains("onerror"), "the last case has no echoes");
}

#[test]
fn a_flow_that_got_nothing_stands_at_zero_and_one_that_was_not_to_send_stays_away() {
    let directory = changed(3, |_| ());
    for (case, repeat) in (1..=3).flat_map(|case| (1..=REPEATS).map(move |repeat| (case, repeat))) {
        let run = directory.path().join(format!("case{case}/r{repeat}"));
        let mut manifest = RunDirectory::open(&run).unwrap().manifest;
        let figure = |of: &str, value| Metric {
            metric: "goodput_bps".to_owned(),
            of: of.to_owned(),
            stream: None,
            value,
        };
        manifest.metrics.retain(|metric| metric.of != "background");
        manifest.metrics.push(figure("background", if case == 3 { 800e6 } else { 0.0 }));
        if case == 3 {
            manifest.metrics.extend([figure("starved", 0.0), figure("trickle", 1e6)]);
        }
        seal_run(&run, &mut manifest).unwrap();
        let start_us = if case == 2 { manifest.window_end_us } else { 0 };
        let flow = format!(
            "{{\"flows\":[{{\"name\":\"background\",\"start_us\":{start_us},\"duration_us\":90000000}}],"
        );
        let plan = run.join("plan.json");
        let text = std::fs::read_to_string(&plan).unwrap();
        std::fs::write(&plan, text.replacen('{', &flow, 1)).unwrap();
    }
    let html = report(&[directory.path()]).html();
    let start = html.find(">Goodput of each flow by case, ").unwrap();
    let chart = &html[start..start + html[start..].find("</figure>").unwrap()];
    let dots = |flow: &str| chart.matches(&format!("<title>{flow}")).count();
    assert_eq!([dots("focus: "), dots("background: "), dots("background: 0")], [3, 2, 1], "{chart}");
    assert_eq!([dots("starved: 0"), dots("trickle: ")], [1, 0], "{chart}");
    assert!(
        chart.contains(&format!("{}: focus 7", CASES[0].title)) && chart.contains("· background 0. "),
        "{chart}"
    );
}

/// A sweep of the first six cases, each of whose runs measured: errors of 0, 1, 2 % and so on, the less trusted the
/// more.
fn measured(axes: impl Fn(usize) -> Vec<AxisPoint>, copies: usize) -> Vec<tempfile::TempDir> {
    let copy = |_| {
        let directory = changed(6, |result| {
            result.cases.iter_mut().enumerate().for_each(|(index, case)| case.axes = axes(index));
        });
        for case in 0..6 {
            for repeat in 1..=REPEATS {
                let run = directory.path().join(format!("case{}/r{repeat}", case + 1));
                let mut manifest = RunDirectory::open(&run).unwrap().manifest;
                manifest.metrics.retain(|metric| !metric.metric.starts_with("avail_"));
                let share = case as f64 / 100.0;
                for (metric, value) in
                    [("avail_error_ratio", share), ("avail_confidence_ratio", 0.9 - 10.0 * share)]
                {
                    let (metric, of) = (metric.to_owned(), "focus".to_owned());
                    manifest.metrics.push(Metric { metric, of, stream: None, value });
                }
                seal_run(&run, &mut manifest).unwrap();
            }
        }
        directory
    };
    (0..copies).map(copy).collect()
}

#[test]
fn errors_of_a_sweep_are_a_table_of_cells_with_the_last_axis_across() {
    let axes = |index: usize| {
        let (rate, law) = (["10Mbit", "1Gbit"][index / 3], ["even", "<b>", "pareto"][index % 3]);
        vec![AxisPoint::named("always", "same"), AxisPoint::named("rate", rate), AxisPoint::named("law", law)]
    };
    let html = report(&[measured(axes, 1)[0].path()]).html();
    let table = html.split("<h2>Error of available bandwidth, cell by cell</h2>").nth(1).unwrap();
    let table = table.split("</section>").next().unwrap();
    assert!(table.contains("law &lt;b&gt;</th>") && !table.contains("always"), "{table}");
    let row = table.split("<th scope=\"row\">1Gbit</th>").nth(1).unwrap();
    assert!(row.starts_with("<td>3.00\u{a0}%<small>0.60</small></td><td>4.00\u{a0}%"), "{row}");
    assert!(!RESULT.html.contains("cell by cell"), "no sweep");
}

#[test]
fn whether_the_confidence_tells_is_drawn_over_all_results_of_a_page() {
    let results = measured(|_| Vec::new(), 2);
    let page =
        |count: usize| report(&results.iter().take(count).map(|d| d.path()).collect::<Vec<_>>()).html();
    let html = page(2);
    assert_eq!(
        html.matches("<h2>Whether the confidence tells</h2>").count(),
        1,
        "six cases alone are too few"
    );
    assert!(html.contains("confidence is −1.00 over 12 cases"));
    assert!(html.contains("<th scope=\"row\">0.75 and more</th><td>4</td><td>0.500\u{a0}%</td><td>0\u{a0}%</td><td>1.00\u{a0}%</td>"));
    assert!(!page(1).contains("Whether the confidence tells"));
}

#[test]
fn a_brief_page_draws_the_representatives_alone_and_still_names_every_run() {
    let experiments = vec![Experiment::open(&RESULT.directory).unwrap()];
    let html = Report::with(experiments, &Choice { repeats: Repeats::Representative, over: None }).html();
    assert!(html.contains("<b>21 runs</b>: 19 valid, 1 invalid, 1 failed"));
    let panels = |html: &str| html.matches("Congestion window").count();
    let sections = |html: &str| -> Vec<usize> {
        let section = |case: usize| panels(html.split(&format!(" id=\"e1c{case}\"")).nth(1).unwrap());
        let from: Vec<usize> = (1..=CASES.len()).map(section).chain([0]).collect();
        from.windows(2).map(|pair| pair[0] - pair[1]).collect()
    };
    for (index, (brief, whole)) in sections(&html).into_iter().zip(sections(&RESULT.html)).enumerate() {
        assert!(brief > 0, "case {index} has its representative's panel");
        assert!(whole >= 2 * brief, "case {index}: {brief} of {whole}");
    }
    assert!(html.contains("died &lt;unexpectedly&gt;"), "what went wrong in a run that is not drawn");
}

#[test]
fn a_single_run_is_a_report_too() {
    let experiment = Experiment::open(&RESULT.directory.join("case3/r1")).unwrap();
    assert_eq!(experiment.focus(), Some("focus"), "the flow with the fewest streams");
    let html = Report::new(vec![experiment]).html();
    assert!(html.contains("<h1 id=\"e1-title\">conversion: reno-relayed, repeat 1</h1>"));
    assert!(html.contains("<b>1 run</b>: 1 valid") && html.contains("Relay backlog"));
    assert!(!html.contains("<h2>By case</h2>"), "there is one case");
}

#[test]
fn a_single_run_is_of_the_flow_that_its_plan_names() {
    let directory = tempfile::tempdir().unwrap();
    support::write_run(directory.path(), &CASES[0], 1, RunStatus::Done);
    let focus = || Experiment::open(directory.path()).unwrap().focus().map(str::to_owned);
    assert_eq!(focus().as_deref(), Some("focus"), "its plan names none");
    let file = directory.path().join(PLAN_FILE);
    let mut plan: serde_json::Value = read_json(&file).unwrap();
    plan["focus"] = "background".into();
    write_json(&file, &plan).unwrap();
    assert_eq!(focus().as_deref(), Some("background"));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(focus().as_deref(), Some("focus"), "it has no plan");
}

#[test]
fn a_directory_that_is_no_run_is_refused_with_the_mend() {
    let directory = tempfile::tempdir().unwrap();
    let error = Experiment::open(directory.path()).unwrap_err();
    assert!(matches!(error, ReportError::Run(RunError::NotARun(_))), "{error}");
}

#[test]
fn a_damaged_table_of_a_valid_run_is_a_warning_and_stands_on_the_page() {
    let directory = tempfile::tempdir().unwrap();
    support::write_run(directory.path(), &CASES[0], 1, RunStatus::Done);
    std::fs::write(directory.path().join("queue.parquet"), b"rubbish").unwrap();
    let report = report(&[directory.path()]);
    assert!(report.warnings()[0].contains("queue.parquet"), "{:?}", report.warnings());
    assert!(report.html().contains("queue.parquet: not a readable Parquet table"));
}

#[test]
fn a_run_whose_manifest_is_damaged_is_lost_and_all_others_are_shown() {
    let directory = changed(2, |_| ());
    let damaged = directory.path().join("case1/r2").join(RUN_FILE);
    std::fs::write(&damaged, "{\"schema_version\": 4, <b>").unwrap();
    let report = report(&[directory.path()]);
    let warnings = report.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("case1/r2/manifest.json"), "{warnings:?}");
    let html = report.html();
    assert!(html.contains("<b>6 runs</b>: 4 valid, 1 invalid, 1 failed"));
    let lost = html.split(", repeat 2: ").nth(1).unwrap();
    assert!(lost.starts_with(damaged.to_str().unwrap()) && !html.contains("repeat 2: left no manifest"));
    let side = Side::open(directory.path()).unwrap();
    assert!(side.runs.len() == 5 && side.damaged == warnings);
    std::fs::remove_file(&damaged).unwrap();
    let report = self::report(&[directory.path()]);
    assert!(report.warnings().is_empty() && report.html().contains("repeat 2: left no manifest"));
}

#[test]
fn the_page_of_a_comparison_shows_what_differs_and_draws_both_sides_beside_each_other() {
    let directory = tempfile::tempdir().unwrap();
    support::write_result(directory.path());
    // One case of the other side runs at twice the goodput, under another congestion control.
    for repeat in 1..=REPEATS {
        let run = directory.path().join(format!("case1/r{repeat}"));
        let mut manifest = longfat_schema::run::RunDirectory::open(&run).unwrap().manifest;
        manifest.metrics.iter_mut().filter(|m| m.metric == "goodput_bps").for_each(|m| m.value *= 2.0);
        longfat_schema::run::seal_run(&run, &mut manifest).unwrap();
        let plan = std::fs::read_to_string(run.join("plan.json")).unwrap();
        std::fs::write(run.join("plan.json"), plan.replace("14200000ns", "<1>ns")).unwrap();
    }
    let paths = [RESULT.directory.as_path(), directory.path()];
    let comparison = compare(&Side::open(paths[0]).unwrap(), &Side::open(paths[1]).unwrap());
    let experiments = paths.map(|path| Experiment::open(path).unwrap());
    let page = html(&comparison, &experiments);
    let first = CASES[0].name;
    let beyond = |case: &longfat_report::compare::CaseComparison| {
        case.figures.iter().filter(|figure| figure.beyond_spread == Some(true)).count()
    };
    for case in &comparison.cases {
        assert_eq!(beyond(case) > 0, case.names[0] == first, "{}", case.names[0]);
    }
    assert!(page.contains("plan.path.delay") && page.contains("&lt;1&gt;ns") && !page.contains("<1>ns"));
    assert!(page.contains("≠ differs") && page.contains("≈ within"));
    assert!(page.contains("one in ten seems to with three repeats"), "what chance alone makes differ");
    let drawn = page.matches("<svg").count();
    assert!(drawn >= 2 * 5 * CASES.len() && drawn.is_multiple_of(2), "{drawn}");
    // Beneath each other on a narrow screen, every chart says of which side it is.
    let figures = page.matches("<figure>").count();
    let labelled = |letter: &str| page.matches(&format!("<span class=\"letter\">{letter}</span>")).count();
    assert!(figures > 0 && [labelled("A"), labelled("B")] == [figures / 2; 2], "{figures}");
    let plain = page.replace("http://www.w3.org/2000/svg", "");
    for forbidden in ["http:", "https:", "src=", "@import", "url(", "NaN", ">inf"] {
        assert!(!plain.contains(forbidden), "{forbidden}");
    }
    if let Ok(path) = std::env::var("LONGFAT_COMPARE_HTML") {
        std::fs::write(path, &page).unwrap();
    }
    let apart = longfat_report::compare::Comparison { cases: vec![], parameters: vec![], ..comparison };
    let page = html(&apart, &experiments);
    assert!(page.contains("no case in common") && !page.contains("No parameter differs"), "{page}");
}

/// The figure's attributes, of every figure over time whose title begins so.
fn axes<'a>(page: &'a str, title: &str) -> Vec<Vec<&'a str>> {
    let shown = page.split("<svg class=\"figure\"").skip(1).filter(|figure| {
        figure
            .split_once("-t\">")
            .is_some_and(|(head, rest)| head.contains("<title") && rest.starts_with(title))
    });
    let attributes = |figure: &'a str| {
        let head = figure.split('>').next().unwrap();
        let of = |key| head.split(key).nth(1).unwrap().split('"').next().unwrap();
        [" data-x0=\"", " data-x1=\"", " data-y0=\"", " data-y1=\"", " data-log=\""].map(of).to_vec()
    };
    shown.map(attributes).collect()
}

#[test]
fn a_comparison_begins_with_the_largest_difference_and_both_sides_have_the_same_axes() {
    // The second case differs more than the first, and one side has a longer run.
    let other = changed(2, |_| ());
    for (case, times) in [(1, 1.5), (2, 4.0)] {
        for repeat in 1..=REPEATS {
            let run = other.path().join(format!("case{case}/r{repeat}"));
            let mut manifest = RunDirectory::open(&run).unwrap().manifest;
            manifest.metrics.iter_mut().filter(|m| m.metric == "goodput_bps").for_each(|m| m.value *= times);
            manifest.duration_us += 7_000_000;
            manifest.status = RunStatus::Done;
            seal_run(&run, &mut manifest).unwrap();
        }
    }
    let mine = changed(2, |_| ());
    for repeat in 1..=REPEATS {
        let run = mine.path().join(format!("case2/r{repeat}"));
        let mut manifest = RunDirectory::open(&run).unwrap().manifest;
        manifest.status = RunStatus::Done;
        seal_run(&run, &mut manifest).unwrap();
    }
    let paths = [mine.path(), other.path()];
    let comparison = compare(&Side::open(paths[0]).unwrap(), &Side::open(paths[1]).unwrap());
    let page = html(&comparison, &paths.map(|path| Experiment::open(path).unwrap()));
    let (first, second) = (CASES[0].name, CASES[1].name);
    let lead = page.split("<p class=\"lead\">").nth(1).unwrap().split("</p>").next().unwrap();
    assert!(lead.contains("goodput_bps") && lead.contains(second) && lead.contains("4.000 of A"), "{lead}");
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no '{text}'"));
    assert!(place(&format!("<h3>{second}</h3>")) < place(&format!("<h3>{first}</h3>")), "as drawn");
    for title in ["Goodput", "Congestion window", "Smoothed round-trip time", "Bottleneck queue"] {
        let axes = axes(&page, title);
        assert_eq!(axes.len(), 4, "{title}: two cases, two sides");
        axes.chunks(2).for_each(|pair| assert_eq!(pair[0], pair[1], "{title}"));
    }
    assert!(page.contains("<div class=\"linked\">"), "both sides zoom together");
}

#[test]
fn what_is_not_complete_is_not_green_however_well_it_goes() {
    let met = |status| {
        let judged = Expectation {
            text: "all well".to_owned(),
            met: Some(true),
            detail: "so far".to_owned(),
            cells: Vec::new(),
        };
        let directory = changed(1, |result| {
            result.expectations = vec![judged];
            result.status = status;
        });
        report(&[directory.path(), directory.path()]).html()
    };
    let whole = met(ResultStatus::Complete);
    assert!(whole.contains("class=\"verdict met\"") && whole.contains("✓ 1 of 1 met"));
    for status in [ResultStatus::Running, ResultStatus::Interrupted] {
        let page = met(status);
        assert!(
            page.contains("<section class=\"verdict open\"><h2>1 of 1 expectations met so far"),
            "{status:?}"
        );
        assert!(
            !page.contains("verdict met") && page.contains("<span class=\"chip open\">1 of 1 met so far")
        );
    }
}

#[test]
fn figures_carry_what_the_script_needs_for_legends_and_files() {
    let html = &RESULT.html;
    let figures: Vec<&str> = html.split("<svg class=\"figure\"").skip(1).collect();
    for figure in figures {
        let head = figure.split('>').next().unwrap();
        let is_over_time = head.contains("data-chart=\"time\"");
        assert!(is_over_time || head.contains("data-columns=\""), "{head}");
        for label in figure.split("<g class=\"entry\" data-for=\"").skip(1) {
            let label = label.split('"').next().unwrap();
            assert!(figure.contains(&format!("data-label=\"{label}\"")), "{label}");
        }
        let texts = figure.split(" data-row=\"").skip(1).map(|row| row.split('"').next().unwrap());
        for row in texts.map(|row| {
            row.replace("&quot;", "\"")
                .replace("&#39;", "'")
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&amp;", "&")
        }) {
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(&row).unwrap().as_array().unwrap().len(),
                3,
                "{row}"
            );
        }
    }
}

/// A result of the first cases alone, and with its manifest changed.
fn changed(cases: usize, change: impl FnOnce(&mut ResultManifest)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    support::write_cases(directory.path(), cases);
    let file = directory.path().join(RESULT_FILE);
    let mut result: ResultManifest = read_json(&file).unwrap();
    change(&mut result);
    write_json(&file, &result).unwrap();
    directory
}

#[test]
fn cells_of_untitled_cases_are_told_apart_and_a_cell_without_runs_is_set_against_nothing() {
    let cell = |name: &str, case: &str, follow: &str| CaseInfo {
        name: name.to_owned(),
        title: format!("follow={follow}"),
        axes: vec![AxisPoint::named("case", case), AxisPoint::named("follow", follow)],
        published: Vec::new(),
    };
    let directory = changed(3, |result| {
        result.cases[0] = cell(CASES[0].name, "narrow", "alone");
        result.cases[1] = cell(CASES[1].name, "narrow", "followed");
        result.cases[2] = cell(CASES[2].name, "widen", "alone");
        // Its runs are still to be made.
        result.cases.push(cell("to-come", "widen", "followed"));
    });
    for repeat in 1..=REPEATS {
        let plan = directory.path().join(format!("case2/r{repeat}/plan.json"));
        let text = std::fs::read_to_string(&plan).unwrap();
        std::fs::write(&plan, text.replacen('{', "{\"follows\":[{}],", 1)).unwrap();
    }
    let html = report(&[directory.path()]).html();
    for title in
        ["narrow: follow=alone", "widen: follow=alone", "narrow: follow=followed", "widen: follow=followed"]
    {
        assert!(html.contains(&format!("<h3>{title}</h3>")), "{title}");
    }
    assert!(html.contains("Of 1 cell that can be judged, following helps in"));
    assert!(html.contains("<th scope=\"row\">narrow</th><td class=\"text\">followed</td>"));
    assert!(!html.contains("<th scope=\"row\">followed</th>"));
}

#[test]
fn of_an_expectation_of_many_cells_those_that_did_not_meet_it_are_listed() {
    let shown = |missed: usize| {
        let verdict = |number: usize, met| CellVerdict {
            case: format!("cell{number},<b>"),
            met,
            detail: format!("median {number} %"),
        };
        let cells = (0..missed)
            .map(|number| verdict(number, Some(false)))
            .chain([verdict(90, Some(true)), verdict(91, None)]);
        let (text, detail) = ("all well".to_owned(), "not shown".to_owned());
        let expectation = Expectation { text, met: Some(false), detail, cells: cells.collect() };
        let directory = changed(1, |result| result.expectations = vec![expectation]);
        report(&[directory.path()]).html()
    };
    let few = shown(3);
    assert!(
        few.contains(
            "<details open><summary><small>met in 1, missed in 3, not judged in 1 of 5 cells</small>"
        )
    );
    assert!(few.contains("<li>cell0,<wbr>&lt;b&gt;: median 0\u{a0}%</li>") && !few.contains("cell90"));
    let many = shown(9);
    assert!(
        many.contains("<details><summary><small>met in 1, missed in 9, not judged in 1 of 11 cells</small>")
    );
    assert!(shown(0).contains("<li>cell91,<wbr>"));
}

#[test]
fn differences_of_a_hundredth_are_folded_away_from_those_that_a_reader_looks_for() {
    // In one case every repeat has these figures; all others are those of the other side.
    let side = |queue_bytes: f64, used: f64| {
        let directory = changed(1, |_| ());
        for repeat in 1..=REPEATS {
            let run = directory.path().join(format!("case1/r{repeat}"));
            let mut manifest = RunDirectory::open(&run).unwrap().manifest;
            for metric in &mut manifest.metrics {
                match metric.metric.as_str() {
                    "queue_mean_bytes" => metric.value = queue_bytes,
                    "utilisation_ratio" => metric.value = used,
                    _ => {}
                }
            }
            seal_run(&run, &mut manifest).unwrap();
        }
        directory
    };
    let page = |left: &tempfile::TempDir, right: &tempfile::TempDir| {
        let paths = [left.path(), right.path()];
        let comparison = compare(&Side::open(paths[0]).unwrap(), &Side::open(paths[1]).unwrap());
        let page = html(&comparison, &paths.map(|path| Experiment::open(path).unwrap()));
        let differs = page.split("<h2>What differs</h2>").nth(1).unwrap().split("</section>").next().unwrap();
        differs.to_owned()
    };
    let left = side(1000.0, 0.5);
    let both = page(&left, &side(1009.0, 0.75));
    let (clear, slight) =
        both.split_once("<details><summary>1 of them by 1\u{a0}% or less</summary>").unwrap();
    assert!(clear.contains("utilisation_ratio") && !clear.contains("queue_mean_bytes"), "{clear}");
    assert!(slight.contains("queue_mean_bytes") && !slight.contains("utilisation_ratio"), "{slight}");
    assert!(!page(&left, &side(1011.0, 0.5)).contains("<details>"));
}
