//! The manifest in readable form: where a result was made, how punctual its links were, what every host was set to.

use super::tables::{column_heading, scrolling, text_heading};
use crate::{
    figures::{ExperimentFigures, RunFigures},
    load::{Case, Experiment},
    plot::svg::escape,
    quantity::{Quantity, WHOLE, number, utc},
};
use longfat_schema::{
    record::LinkSummary,
    run::{HostState, Provenance, RunDirectory},
};
use std::collections::{BTreeMap, BTreeSet};

/// The collapsible part of the page.
pub fn section(experiment: &Experiment, figures: &ExperimentFigures) -> String {
    let parts = [
        folded("Provenance", &experiment.provenance().map_or(String::new(), provenance)),
        folded("Link lateness and drops", &links(experiment, figures)),
        folded("Runs: window, seed, length", &runs(experiment)),
        folded("Plans", &plans(experiment)),
        folded("Sysctls", &sysctls(experiment)),
        folded("Interfaces, queueing disciplines and routes", &each_case(experiment, interfaces)),
        folded("Kernel counters that grew", &each_case(experiment, counters)),
    ];
    format!("<section><h2>How it was made</h2>{}</section>", parts.concat())
}

fn folded(summary: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    format!("<details><summary>{}</summary>{content}</details>", escape(summary))
}

fn provenance(provenance: &Provenance) -> String {
    let memory = Quantity::Bytes.unit(provenance.memory_bytes as f64).text(provenance.memory_bytes as f64);
    let fixed = [
        ("longfat", provenance.longfat_version.clone()),
        ("git revision", provenance.git_revision.clone()),
        ("command line", provenance.command_line.join(" ")),
        ("kernel", provenance.kernel.clone()),
        ("processor", format!("{} × {}", provenance.cpu_count, provenance.cpu)),
        ("memory", memory),
        ("load average at the start", number(provenance.load_average)),
    ];
    let facts = provenance.facts.iter().map(|(name, value)| (name.as_str(), value.clone()));
    let row = |(name, value): (&str, String)| {
        format!("<dt>{}</dt><dd><code>{}</code></dd>", escape(name), escape(&value))
    };
    format!("<dl class=\"facts\">{}</dl>", fixed.into_iter().chain(facts).map(row).collect::<String>())
}

/// Every run with its figures.
fn each_run<'a>(
    experiment: &'a Experiment,
    figures: &'a ExperimentFigures,
) -> impl Iterator<Item = (&'a Case, &'a RunDirectory, &'a RunFigures)> {
    let cases = experiment.cases.iter().zip(&figures.cases);
    cases.flat_map(|(case, drawn)| {
        case.runs.iter().zip(&drawn.runs).map(move |(run, figures)| (case, run, figures))
    })
}

fn links(experiment: &Experiment, figures: &ExperimentFigures) -> String {
    let rows: String = each_run(experiment, figures)
        .flat_map(|(case, run, drawn)| drawn.links.iter().map(move |link| link_row(case, run, link)))
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let numbers = [
        "Late p50, µs",
        "p99",
        "p99.9",
        "max",
        "p99 limit",
        "Stood still",
        "Punctual",
        "Dropped",
        "Lost",
        "Marked",
        "Overrun",
    ];
    let head =
        column_heading("Case") + &column_heading("Repeat") + &["Link", "Driver"].map(text_heading).concat();
    let head = head + &numbers.map(column_heading).concat();
    let caption = "Lateness is actual minus scheduled departure of each packet; a p99 over the limit makes the run \
                   invalid. While the whole machine stood still, the path did, too; 2 % of the time make the run invalid";
    scrolling(caption, &head, &rows)
}

fn link_row(case: &Case, run: &RunDirectory, link: &LinkSummary) -> String {
    let numbers = [
        link.late_p50_us,
        link.late_p99_us,
        link.late_p999_us,
        link.late_max_us,
        link.late_limit_us,
        link.paused_us,
    ];
    let counts = [link.dropped_packets, link.lost_packets, link.marked_packets, link.overrun_packets];
    let cells = |values: &[u64]| {
        values.iter().map(|v| format!("<td>{}</td>", WHOLE.number(*v as f64))).collect::<String>()
    };
    let punctual = if link.punctual { "yes" } else { "<b>NO</b>" };
    format!(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"text\">{}, {}</td><td class=\"text\">{}</td>{}\
         <td>{punctual}</td>{}</tr>",
        escape(&case.info.title),
        run.manifest.repeat,
        escape(&link.link),
        escape(&link.direction),
        escape(&link.driver),
        cells(&numbers),
        cells(&counts),
    )
}

fn runs(experiment: &Experiment) -> String {
    let seconds = |us: i64| number(us as f64 / 1e6);
    let row = |(case, run): (&Case, &RunDirectory)| {
        let m = &run.manifest;
        format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{} – {}</td><td>{}</td>\
             <td class=\"text\">{}</td></tr>",
            escape(&case.info.title),
            m.repeat,
            utc(m.started_unix_ms),
            seconds(m.duration_us),
            seconds(m.window_start_us),
            seconds(m.window_end_us),
            m.seed,
            escape(&m.reasons.join("; ")),
        )
    };
    let all = experiment.cases.iter().flat_map(|case| case.runs.iter().map(move |run| (case, run)));
    let head = ["Case", "Repeat"].map(column_heading).concat()
        + &text_heading("Started")
        + &["Length, s", "Window, s", "Seed"].map(column_heading).concat()
        + &text_heading("Remarks");
    scrolling("Every run that left a manifest", &head, &all.map(row).collect::<String>())
}

/// Each case's representative run.
fn each_case(experiment: &Experiment, content: impl Fn(&RunDirectory) -> String) -> String {
    let part = |case: &Case| {
        let content = content(&case.runs[case.representative?]);
        Some(folded(&case.info.title, &content))
    };
    experiment.cases.iter().filter_map(part).collect()
}

fn plans(experiment: &Experiment) -> String {
    each_case(experiment, |run| match run.plan::<serde_json::Value>() {
        Ok(plan) => format!("<pre tabindex=\"0\">{}</pre>", escape(&format!("{plan:#}"))),
        Err(error) => format!("<p class=\"note\">{}</p>", escape(&error.to_string())),
    })
}

/// What hosts of one run differ in, everything they share, and what other runs had differently.
fn sysctls(experiment: &Experiment) -> String {
    let runs = || experiment.cases.iter().filter_map(|case| Some((case, &case.runs[case.representative?])));
    let Some((case, first)) = runs().find(|(_, run)| !run.manifest.hosts.is_empty()) else {
        return String::new();
    };
    let hosts = &first.manifest.hosts;
    let (different, same) = by_agreement(hosts);
    let heads: String = hosts.keys().map(|host| text_heading(host)).collect();
    let row = |name: &&String| {
        let value = |host: &HostState| format!("<td class=\"text\">{}</td>", value_of(host, name));
        format!(
            "<tr><th scope=\"row\">{}</th>{}</tr>",
            escape(name),
            hosts.values().map(value).collect::<String>()
        )
    };
    let caption = format!("Sysctls that differ from host to host ({})", escape(&case.info.title));
    let table = scrolling(
        &caption,
        &(column_heading("Sysctl") + &heads),
        &different.iter().map(row).collect::<String>(),
    );
    let table = if different.is_empty() { "<p>All hosts agree.</p>".to_owned() } else { table };
    let list: String = same.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
    let same_everywhere = format!("<pre tabindex=\"0\">{}</pre>", escape(&list));
    let changes: String = runs().map(|(case, run)| changed(case, run, hosts)).collect();
    let changes =
        if changes.is_empty() { changes } else { format!("<p>In other cases:</p><ul>{changes}</ul>") };
    format!(
        "{table}{changes}{}",
        folded(&format!("{} on which all hosts agree", same.len()), &same_everywhere)
    )
}

fn value_of(host: &HostState, name: &str) -> String {
    host.sysctls.get(name).map_or_else(|| "–".to_owned(), |value| escape(value))
}

/// Names on which hosts differ (an absent one differs), and those on which all agree, with the value.
fn by_agreement(hosts: &BTreeMap<String, HostState>) -> (Vec<&String>, Vec<(&String, &String)>) {
    let names: BTreeSet<&String> = hosts.values().flat_map(|host| host.sysctls.keys()).collect();
    let agreed = |name: &'_ String| {
        let mut values = hosts.values().map(|host| host.sysctls.get(name));
        let first = values.next().flatten()?;
        values.all(|value| value == Some(first)).then_some(first)
    };
    let same = names.iter().filter_map(|name| Some((*name, agreed(name)?))).collect();
    (names.into_iter().filter(|name| agreed(name).is_none()).collect(), same)
}

/// Sysctls of a run that differ from the run shown in full.
fn changed(case: &Case, run: &RunDirectory, shown: &BTreeMap<String, HostState>) -> String {
    let differs = |(host, state): (&String, &HostState)| {
        let shown = shown.get(host).map(|shown| &shown.sysctls);
        let other = |(name, value): &(&String, &String)| shown.and_then(|s| s.get(*name)) != Some(*value);
        let other = state.sysctls.iter().filter(other);
        let items: Vec<String> = other.map(|(name, value)| format!("{host}: {name} = {value}")).collect();
        items
    };
    let items: Vec<String> = run.manifest.hosts.iter().flat_map(differs).collect();
    if items.is_empty() {
        return String::new();
    }
    let more = if items.len() > 40 { format!("; and {} more", items.len() - 40) } else { String::new() };
    let text = items.into_iter().take(40).collect::<Vec<_>>().join("; ");
    format!("<li>{}: <code>{}</code>{more}</li>", escape(&case.info.title), escape(&text))
}

fn interfaces(run: &RunDirectory) -> String {
    let pairs = |settings: &BTreeMap<String, String>| {
        settings.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    let host = |(name, host): (&String, &HostState)| {
        let interfaces =
            host.interfaces.iter().map(|(name, settings)| format!("{name}: {}", pairs(settings)));
        let lines: Vec<String> =
            interfaces.chain(host.qdiscs.iter().cloned()).chain(host.routes.iter().cloned()).collect();
        format!("<h4>{}</h4><pre tabindex=\"0\">{}</pre>", escape(name), escape(&lines.join("\n")))
    };
    run.manifest.hosts.iter().map(host).collect()
}

fn counters(run: &RunDirectory) -> String {
    let hosts = &run.manifest.hosts;
    let names: BTreeSet<&String> = hosts.values().flat_map(|host| host.counters.keys()).collect();
    if names.is_empty() {
        return String::new();
    }
    let cell = |host: &HostState, name: &str| {
        let value = host.counters.get(name).map_or_else(|| "–".to_owned(), |v| WHOLE.number(*v as f64));
        format!("<td>{value}</td>")
    };
    let row = |name: &&String| {
        let cells: String = hosts.values().map(|host| cell(host, name)).collect();
        format!("<tr><th scope=\"row\">{}</th>{cells}</tr>", escape(name))
    };
    let heads: String = hosts.keys().map(|host| column_heading(host)).collect();
    let caption = "Growth over the run";
    scrolling(caption, &(column_heading("Counter") + &heads), &names.iter().map(row).collect::<String>())
}
