//! The page of a capture: one file, nothing fetched from anywhere, readable without script.

use super::{DRAWN_FLOWS, figures};
use crate::{
    page::{SCRIPT, STYLE},
    plot,
    plot::svg::escape,
};
use longfat_analyze::{
    analysis::Analysis,
    findings::Finding,
    flow::report::FlowReport,
    summary::{bytes, duration, micros, rate},
};

/// Flows in the table.
const LISTED_FLOWS: usize = 500;

/// The whole page.
pub fn html(analysis: &Analysis, name: &str) -> String {
    let flows: String =
        analysis.flows.iter().take(DRAWN_FLOWS).enumerate().map(|(n, f)| flow(n, f, analysis)).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"generator\" content=\"longfat {version}\"><title>{title}</title>\
         <style>{figure}{STYLE}</style></head>\n<body><main><article>{header}{findings}{table}{help}{flows}</article></main>\
         <script>{SCRIPT}</script></body></html>\n",
        version = env!("CARGO_PKG_VERSION"),
        title = escape(name),
        figure = plot::STYLE,
        header = header(analysis, name),
        findings = findings(analysis),
        table = table(analysis),
        help = help(analysis),
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

fn findings(analysis: &Analysis) -> String {
    let mut all: Vec<(usize, &Finding)> = analysis
        .flows
        .iter()
        .enumerate()
        .flat_map(|(n, flow)| flow.findings.iter().map(move |finding| (n, finding)))
        .collect();
    all.sort_by(|a, b| b.1.cost_s.total_cmp(&a.1.cost_s));
    if all.is_empty() {
        return "<section class=\"verdict met\"><h2>Nothing remarkable was found</h2></section>".to_owned();
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

fn table(analysis: &Analysis) -> String {
    let rows: String = analysis.flows.iter().take(LISTED_FLOWS).enumerate().map(row).collect();
    let hidden = analysis.totals.flows.saturating_sub(LISTED_FLOWS as u64);
    let hidden = if hidden > 0 { format!(" {hidden} smaller ones are not shown.") } else { String::new() };
    format!(
        "<section><h2>Flows</h2><div class=\"scroll\"><table><caption><span>The greatest first; the direction that carries most.{hidden}</span></caption>\
         <thead><tr><th>Flow</th><th>Payload</th><th>Time</th><th>Throughput</th><th>Least RTT</th><th>Median RTT</th><th>Sent again</th>\
         <th>Timeouts</th><th>Most outstanding</th><th>Greatest window</th></tr></thead><tbody>{rows}</tbody></table></div></section>"
    )
}

fn row((number, flow): (usize, &FlowReport)) -> String {
    let main = flow.main();
    let name = format!("{} → {}", escape(&main.from), escape(&main.to));
    let name = if number < DRAWN_FLOWS { format!("<a href=\"#f{}\">{name}</a>", number + 1) } else { name };
    let dash = || "–".to_owned();
    format!(
        "<tr><th scope=\"row\">{name}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} ({:.2} %)</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        bytes(main.counts.unique_bytes as f64),
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

fn help(analysis: &Analysis) -> String {
    let drawn = DRAWN_FLOWS.min(analysis.flows.len());
    format!(
        "<section><h2>The {drawn} greatest</h2><p class=\"note\">Times are seconds since the first packet of the capture. Long series are thinned at \
         random, without favouring any pattern. <span class=\"scripted\">Point at a figure for values; drag sideways to zoom all \
         figures of the flow, double-click or Escape to reset.</span></p></section>"
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
