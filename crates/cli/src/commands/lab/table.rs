//! Plans and results as tables for a terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use longfat_lab::{
    judge::figures,
    plan::{FlowPlan, Plan},
    session::Finished,
    show,
    spec::Protocol,
};
use longfat_report::summary::guess_focus;
use longfat_schema::quantity;
use longfat_schema::run::{Beside, CaseInfo, Expectation, RunManifest, RunStatus, Spread};

pub fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(headings);
    table
}

/// Numbers stand right.
pub fn align_right(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Every case of a list of runs, with its flows and relays.
pub fn plans(plans: &[Plan]) -> Table {
    let mut table = table(&["case", "runs", "time", "flows", "relays"]);
    let mut seen: Vec<&str> = Vec::new();
    for plan in plans {
        if seen.contains(&plan.case.as_str()) {
            continue;
        }
        seen.push(&plan.case);
        let runs = plans.iter().filter(|other| other.case == plan.case).count();
        let flows: Vec<_> = plan.flows.iter().map(flow).collect();
        let relays: Vec<_> = plan
            .relays
            .iter()
            .map(|relay| {
                format!("{} on {}: {} | {}", relay.name, relay.host, relay.cc_client, relay.cc_server)
            })
            .collect();
        let slower = if plan.dilation.is_none() { String::new() } else { format!(" × {}", plan.dilation) };
        let time = plan.end_us() as f64 / 1e6;
        table.add_row([
            plan.case.clone(),
            runs.to_string(),
            format!("{time} s{slower}"),
            flows.join("\n"),
            relays.join("\n"),
        ]);
    }
    table
}

/// Every run by its number.
pub fn numbered(plans: &[Plan]) -> Table {
    let mut table = table(&["#", "case", "repeat", "seed", "directory"]);
    align_right(&mut table, 0..1);
    align_right(&mut table, 2..4);
    for (number, plan) in (1..).zip(plans) {
        let number: u64 = number;
        table.add_row([
            number.to_string(),
            plan.case.clone(),
            plan.repeat.to_string(),
            plan.seed.to_string(),
            plan.directory(),
        ]);
    }
    table
}

fn flow(flow: &FlowPlan) -> String {
    let what = match flow.protocol {
        Protocol::Tcp => flow.cc.clone().unwrap_or_default(),
        Protocol::Udp => {
            format!("UDP {}", quantity::of_metric("goodput_bps", flow.rate_bps.unwrap_or(0) as f64))
        }
    };
    let times = if flow.streams > 1 { format!("{} × ", flow.streams) } else { String::new() };
    format!("{}: {times}{what}, {} → {}", flow.name, flow.from, flow.to)
}

/// Case by case: the focus flow's figures, and the path's.
pub fn result(finished: &Finished) -> Table {
    let focus = focus(finished.result.focus.as_deref(), &finished.runs);
    let goodput = if focus.is_empty() { "goodput".to_owned() } else { format!("goodput of {focus}") };
    let headings =
        ["case", &goodput, "published", "echo p50 / p99", "retransmits", "fairness", "path used", "valid"];
    let mut table = table(&headings);
    align_right(&mut table, 1..headings.len());
    for case in &finished.result.cases {
        table.add_row(row(case, &focus, &finished.runs));
    }
    table
}

/// The flow whose figures stand in the table: the experiment's focus, or else the one that the report takes.
fn focus(named: Option<&str>, runs: &[RunManifest]) -> String {
    let guess = || guess_focus(&runs.iter().collect::<Vec<_>>());
    named.map(str::to_owned).or_else(guess).unwrap_or_default()
}

fn row(case: &CaseInfo, focus: &str, runs: &[RunManifest]) -> Vec<String> {
    let none = || "–".to_owned();
    let spread = |metric: &str, of: &str| show::spread(metric, &figures(&case.name, metric, of, runs));
    let median = |metric: &str, of: &str| {
        Spread::of(figures(&case.name, metric, of, runs))
            .map(|spread| quantity::of_metric(metric, spread.median))
    };
    let published = case.published.iter().find(|figure| figure.metric == "goodput_bps" && figure.of == focus);
    let echo = median("echo_p50_us", focus).zip(median("echo_p99_us", focus));
    let mine = || runs.iter().filter(|run| run.case == case.name);
    let with = |status| mine().filter(|run| run.status == status).count();
    let unexplained = match with(RunStatus::Unexplained) {
        0 => String::new(),
        count => format!(", {count} unexplained"),
    };
    vec![
        case.name.clone(),
        spread("goodput_bps", focus).unwrap_or_else(none),
        published.map_or_else(none, |figure| quantity::of_metric("goodput_bps", figure.value)),
        echo.map_or_else(none, |(p50, p99)| format!("{p50} / {p99}")),
        median("retransmitted_segments", focus).unwrap_or_else(none),
        median("fairness_jain", "").unwrap_or_else(none),
        busiest_link(case, runs).unwrap_or_else(none),
        format!("{} of {}{unexplained}{}", with(RunStatus::Done), mine().count(), slower(mine())),
    ]
}

/// By how much runs were carried out slower than meant, where they were.
fn slower<'a>(runs: impl Iterator<Item = &'a RunManifest>) -> String {
    let most = runs.map(|run| run.dilation).max().unwrap_or_default();
    if most.is_none() { String::new() } else { format!(", {most}× slower") }
}

/// Use of the busiest direction of a link, of those whose rate is known and fixed; and which it is, unless it is the
/// way there by the only link.
fn busiest_link(case: &CaseInfo, runs: &[RunManifest]) -> Option<String> {
    const METRIC: &str = "utilisation_ratio";
    let of_case = runs.iter().filter(|run| run.case == case.name).flat_map(|run| &run.metrics);
    let scopes: std::collections::BTreeSet<&str> =
        of_case.filter(|metric| metric.metric == METRIC).map(|metric| metric.of.as_str()).collect();
    let used = scopes.iter().filter_map(|of| Some((Spread::of(figures(&case.name, METRIC, of, runs))?, *of)));
    let (spread, of) = used.max_by(|(one, _), (other, _)| one.median.total_cmp(&other.median))?;
    let text = quantity::of_metric(METRIC, spread.median);
    let links: std::collections::BTreeSet<_> = scopes.iter().filter_map(|of| of.split('/').next()).collect();
    let is_plain = links.len() == 1 && of.ends_with("/forward");
    Some(if is_plain { text } else { format!("{text} ({of})") })
}

/// Emulated figures beside what the simulator makes of the same plans: how many agree, and those that do not.
pub fn twins(finished: &Finished) -> String {
    let twins = &finished.result.twins;
    let mut lines: Vec<String> = Vec::new();
    if !twins.is_empty() {
        let far = twins.iter().filter(|beside| beside.is_far).count();
        let explained = match twins.iter().filter(|beside| beside.explained.is_some()).count() {
            0 => String::new(),
            count => format!(" What made {count} of the others differ is known (~)."),
        };
        lines.push(format!(
            "Beside the simulator: {} of {} figures agree.{explained}",
            twins.len() - far,
            twins.len()
        ));
    }
    lines.extend(twins.iter().filter(|beside| beside.is_far).map(apart));
    let left_out: std::collections::BTreeSet<&str> = finished
        .runs
        .iter()
        .filter_map(|run| run.twin.as_ref())
        .flat_map(|twin| twin.left_out.iter().map(String::as_str))
        .collect();
    lines.extend(left_out.into_iter().map(|what| format!("  not simulated: {what}")));
    lines.into_iter().map(|line| line + "\n").collect()
}

fn apart(beside: &Beside) -> String {
    let value = |value| quantity::of_metric(&beside.metric, value);
    let ratio = beside.ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} of it"));
    let (case, metric, of) = (&beside.case, &beside.metric, &beside.of);
    let known = beside.explained.as_ref().map_or_else(String::new, |found| {
        format!("; {} to {} {}", value(found.least), value(found.greatest), found.by.text())
    });
    let sign = if known.is_empty() { "!" } else { "~" };
    format!(
        "{sign} {case}: {metric} of {of}: {} emulated, {} simulated{ratio}{known}",
        value(beside.emulated),
        value(beside.simulated)
    )
}

/// One line per expectation, ✓ or ✗.
pub fn expectations(expectations: &[Expectation]) -> String {
    let line = |expectation: &Expectation| {
        let sign = match expectation.met {
            Some(true) => "✓",
            Some(false) => "✗",
            None => "?",
        };
        format!("{sign} {}\n    {}\n", expectation.text, expectation.detail)
    };
    expectations.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_schema::run::{Cause, Explanation, Metric};

    #[test]
    fn without_a_focus_the_table_is_of_the_flow_that_the_report_takes() {
        let goodput =
            |of: &str, stream| Metric { metric: "goodput_bps".into(), of: of.into(), stream, value: 1e6 };
        let metrics = vec![
            goodput("crowd", None),
            goodput("crowd", Some(0)),
            goodput("crowd", Some(1)),
            goodput("one", None),
        ];
        let run = RunManifest { metrics, ..RunManifest::default() };
        let report = longfat_report::summary::summarise(None, None, &[&run]).focus;
        assert_eq!(
            (focus(None, std::slice::from_ref(&run)), report.as_deref()),
            ("one".to_owned(), Some("one"))
        );
        assert_eq!(focus(Some("crowd"), &[run]), "crowd");
        assert_eq!(focus(None, &[]), "");
    }

    #[test]
    fn a_figure_that_more_simulations_explain_is_marked_otherwise_and_has_their_range() {
        let mut beside = Beside {
            case: "short".into(),
            metric: "goodput_bps".into(),
            of: "f".into(),
            emulated: 27.7e6,
            simulated: 67e6,
            ratio: Some(0.413),
            interval: None,
            runs: 1,
            is_far: true,
            explained: None,
        };
        let open = "! short: goodput_bps of f: 27.7 Mbit/s emulated, 67.0 Mbit/s simulated, 0.41 of it";
        assert_eq!(apart(&beside), open);
        beside.explained = Some(Explanation { by: Cause::HoldUps, least: 24e6, greatest: 48e6 });
        let known = format!("~{}; 24.0 Mbit/s to 48.0 Mbit/s with the machine's hold-ups", &open[1..]);
        assert_eq!(apart(&beside), known);
    }
}
