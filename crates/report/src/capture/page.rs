//! The page of a capture: one file, nothing fetched from anywhere, readable without script.

use super::{DRAWN_FLOWS, figures};
use crate::{
    page::{
        document,
        tables::{column_heading, scrolling},
    },
    plot,
    plot::svg::escape,
};
use longfat_analyze::{
    analysis::Analysis,
    findings::Finding,
    report::FlowReport,
    words::{bytes, duration, micros, rate},
};

/// Flows in the table.
const LISTED_FLOWS: usize = 500;

/// The whole page.
pub fn html(analysis: &Analysis, name: &str) -> String {
    let ranked = by_weight(&analysis.flows);
    let drawn = ranked.iter().take(DRAWN_FLOWS).enumerate();
    let flows: String = drawn.map(|(n, f)| flow(n, f, analysis)).collect();
    let sections = [
        header(analysis, name),
        lead(&ranked),
        findings(analysis, &ranked),
        table(analysis, &ranked),
        help(ranked.len()),
        flows,
    ];
    document(name, &format!("<article>{}</article>", sections.concat()))
}

/// Part of the capture's payload from which on a flow's lost seconds matter more than another's octets.
const WORTH: f64 = 0.01;

/// Seconds that a flow's findings cost it; no more than it lasted, for several may be behind one silence.
fn lost_s(flow: &FlowReport) -> f64 {
    // An empty sum is -0, which would be less than nothing.
    flow.findings.iter().fold(0.0, |sum, finding| sum + finding.cost_s).min(flow.duration_s)
}

fn payload(flow: &FlowReport) -> u64 {
    flow.directions.iter().map(|direction| direction.counts.unique_bytes).sum()
}

/// Flows by their weight. Those that carry a hundredth of the payload or more and lost most seconds go first; then
/// others by payload.
fn by_weight(flows: &[FlowReport]) -> Vec<&FlowReport> {
    let all: u64 = flows.iter().map(payload).sum();
    let rank = |flow: &FlowReport| {
        let is_worth = payload(flow) as f64 >= WORTH * all as f64;
        (if is_worth { lost_s(flow) } else { 0.0 }, payload(flow))
    };
    let mut ranked: Vec<&FlowReport> = flows.iter().collect();
    ranked.sort_by(|a, b| {
        let (a, b) = (rank(a), rank(b));
        b.0.total_cmp(&a.0).then(b.1.cmp(&a.1))
    });
    ranked
}

/// The flow that matters most, in words.
fn lead(ranked: &[&FlowReport]) -> String {
    let Some(first) = ranked.first() else { return String::new() };
    let (main, lost) = (first.main(), lost_s(first));
    let all: u64 = ranked.iter().map(|flow| payload(flow)).sum();
    let cost = if lost > 0.0 {
        format!("its findings cost it about {} of {}", duration(lost), duration(first.duration_s))
    } else {
        format!("it carries most, in {}", duration(first.duration_s))
    };
    format!(
        "<p class=\"lead\">What matters most: <a href=\"#f1\">{} → {}</a>, {} ({:.0} % of the payload): {cost}.</p>",
        escape(&main.from),
        escape(&main.to),
        bytes(payload(first) as f64),
        100.0 * payload(first) as f64 / all.max(1) as f64,
    )
}

fn header(analysis: &Analysis, name: &str) -> String {
    let (capture, totals) = (&analysis.capture, &analysis.totals);
    let facts = format!(
        "{} packets in {} · {} flows · {} of payload · {} segments sent again · {} timeouts",
        capture.packets,
        duration(capture.duration_s),
        totals.flows,
        bytes(totals.payload_bytes as f64),
        totals.resent_segments,
        totals.timeouts,
    );
    let lost =
        capture.interfaces.iter().filter_map(|i| i.dropped.filter(|n| *n > 0).map(|n| (n, &i.interface)));
    let lost = lost.map(|(n, name)| format!("<li>The capture lost {n} packets at {}.</li>", escape(name)));
    let damage = capture.damages.iter().map(|damage| {
        let (file, what) = (escape(&damage.file), escape(&damage.what));
        format!(
            "<li>{file} is damaged at octet {}: {what}; {} octets passed over.</li>",
            damage.offset, damage.skipped_bytes
        )
    });
    let troubles: String = lost.chain(damage.take(10)).collect();
    let troubles =
        if troubles.is_empty() { troubles } else { format!("<ul class=\"trouble\">{troubles}</ul>") };
    format!(
        "<header><p class=\"kicker\">Packet capture</p><h1>{}</h1><p class=\"meta\">{facts}</p>{troubles}</header>",
        escape(name)
    )
}

fn findings(analysis: &Analysis, ranked: &[&FlowReport]) -> String {
    let mut all: Vec<(usize, &Finding)> = ranked
        .iter()
        .enumerate()
        .flat_map(|(n, flow)| flow.findings.iter().map(move |finding| (n, finding)))
        .collect();
    all.sort_by(|a, b| b.1.cost_s.total_cmp(&a.1.cost_s));
    if all.is_empty() {
        // What was not seen may have been remarkable.
        let lost = analysis.capture.interfaces.iter().any(|interface| interface.dropped > Some(0));
        let (class, but) = match lost || !analysis.capture.damages.is_empty() {
            true => ("open", " in what the capture holds; it is not complete"),
            false => ("met", ""),
        };
        return format!(
            "<section class=\"verdict {class}\"><h2>Nothing remarkable was found{but}</h2></section>"
        );
    }
    let items: String = all.iter().take(20).map(|(n, finding)| one_finding(*n, finding)).collect();
    let more = all.len().saturating_sub(20);
    let more = if more > 0 {
        format!("<p class=\"note\">{more} more are with their flows, or in --json.</p>")
    } else {
        String::new()
    };
    format!("<section class=\"verdict missed\"><h2>What it means</h2><ul>{items}</ul>{more}</section>")
}

fn one_finding(number: usize, finding: &Finding) -> String {
    let cost = if finding.cost_s > 0.0 {
        format!(" · cost about {}", duration(finding.cost_s))
    } else {
        String::new()
    };
    let from = if number < DRAWN_FLOWS {
        format!("<a href=\"#f{}\">{}</a>", number + 1, escape(&finding.from))
    } else {
        escape(&finding.from)
    };
    format!(
        "<li><span>{}<br><small>{from}, from {}{cost}. {}</small></span></li>",
        escape(&finding.what),
        duration(finding.at_s),
        escape(&finding.evidence),
    )
}

fn table(analysis: &Analysis, ranked: &[&FlowReport]) -> String {
    let rows: String = ranked.iter().take(LISTED_FLOWS).enumerate().map(|(n, flow)| row(n, flow)).collect();
    let hidden = analysis.totals.flows.saturating_sub(LISTED_FLOWS as u64);
    let hidden = if hidden > 0 { format!(" {hidden} smaller ones are not shown.") } else { String::new() };
    let heads = [
        "Flow",
        "Payload",
        "Lost time",
        "Time",
        "Throughput",
        "Least RTT",
        "Median RTT",
        "Sent again",
        "Timeouts",
        "Most outstanding",
        "Greatest window",
    ];
    let caption = format!(
        "Those that lost most time first (of flows with a hundredth of the payload), then the greatest; the direction that \
         carries most.{hidden}"
    );
    format!(
        "<section><h2>Flows</h2>{}</section>",
        scrolling(&caption, &heads.map(column_heading).concat(), &rows)
    )
}

fn row(number: usize, flow: &FlowReport) -> String {
    let main = flow.main();
    let name = format!("{} → {}", escape(&main.from), escape(&main.to));
    let name = if number < DRAWN_FLOWS { format!("<a href=\"#f{}\">{name}</a>", number + 1) } else { name };
    let dash = || "–".to_owned();
    format!(
        "<tr><th scope=\"row\">{name}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} ({:.2} %)</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        bytes(main.counts.unique_bytes as f64),
        if lost_s(flow) > 0.0 { duration(lost_s(flow)) } else { dash() },
        duration(main.active_s),
        main.throughput_bps.map_or_else(dash, rate),
        main.least_rtt_us.map_or_else(dash, micros),
        main.rtt.map_or_else(dash, |rtt| micros(rtt.median_us)),
        main.counts.resent_segments,
        main.retransmissions * 100.0,
        main.timeouts,
        bytes(main.most_flight_bytes as f64),
        main.most_window_bytes.map_or_else(dash, |w| bytes(w as f64)),
    )
}

fn help(flows: usize) -> String {
    let heading = match DRAWN_FLOWS.min(flows) {
        0 => return String::new(),
        1 => "The flow over time".to_owned(),
        drawn => format!("The first {drawn} over time"),
    };
    format!(
        "<section><h2>{heading}</h2><p class=\"note\">Times are seconds since the first packet of the capture. Long series are thinned at \
         random, without favouring any pattern. {}</p></section>",
        crate::page::FIGURES_HELP,
    )
}

fn flow(number: usize, flow: &FlowReport, analysis: &Analysis) -> String {
    let figures = figures::draw(flow, analysis.capture.start_ns, &format!("f{}", number + 1));
    let drawn = |figures: &[plot::Figure]| {
        figures.iter().map(|f| format!("<figure>{}</figure>", f.inline())).collect::<String>()
    };
    let findings: String = flow.findings.iter().map(|finding| one_finding(usize::MAX, finding)).collect();
    let findings =
        if findings.is_empty() { findings } else { format!("<ul class=\"trouble\">{findings}</ul>") };
    let oversize = flow.main().counts.oversize_packets > 0;
    let warning = if oversize {
        "<p class=\"note\">Packets exceed the MSS, so offloads were on where this was captured: the times between packets are not those of the wire.</p>"
    } else {
        ""
    };
    let main = flow.main();
    format!(
        "<section class=\"case\" id=\"f{}\"><h3>{} → {}</h3>{findings}<div class=\"panels\">{}</div>{warning}<div class=\"pair\">{}</div></section>\n",
        number + 1,
        escape(&main.from),
        escape(&main.to),
        drawn(&figures.over_time),
        drawn(&figures.distributions),
    )
}
