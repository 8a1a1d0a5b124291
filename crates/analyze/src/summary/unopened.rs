//! Many flows that came to nothing (a scan, a flood, a server that is down) as a few lines.

use super::plain;
use crate::{
    analysis::Analysis,
    report::{FlowReport, Unopened},
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Number of unopened flows up to which each is shown by itself, as other flows are.
const SHOWN_ALONE: u64 = 3;
/// Addresses named.
const SHOWN_ADDRESSES: usize = 5;
/// What is said of each, in the order of [`Unopened`].
const WORDS: [&str; 3] = ["SYNs refused", "SYNs not answered", "handshakes not completed"];

fn count(analysis: &Analysis) -> u64 {
    let totals = &analysis.totals;
    totals.flows_refused + totals.flows_unanswered + totals.flows_not_completed
}

/// How many flows are not shown one by one since they came to nothing.
pub fn summed_up(analysis: &Analysis) -> u64 {
    Some(count(analysis)).filter(|count| *count > SHOWN_ALONE).unwrap_or(0)
}

/// Flows to be shown one by one.
pub fn shown_alone(analysis: &Analysis) -> impl Iterator<Item = &FlowReport> {
    let shows_all = summed_up(analysis) == 0;
    analysis.flows.iter().filter(move |flow| shows_all || flow.unopened().is_none())
}

/// How many came to nothing, and why; of many, whose they were.
pub fn text(analysis: &Analysis) -> String {
    let totals = &analysis.totals;
    if count(analysis) == 0 {
        return String::new();
    }
    let counts = [totals.flows_refused, totals.flows_unanswered, totals.flows_not_completed];
    let mut text = format!("  {} of them came to nothing: {}\n", count(analysis), worded(counts));
    if summed_up(analysis) > 0 {
        text += &addresses(analysis);
    }
    text
}

fn worded(counts: [u64; 3]) -> String {
    let told = counts.iter().zip(WORDS).filter(|(count, _)| **count > 0);
    told.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

/// The flows that came to nothing from, or to, one address.
#[derive(Default)]
struct Group<'a> {
    counts: [u64; 3],
    /// Addresses of the other ends.
    others: BTreeSet<&'a str>,
    /// Ports of the servers.
    ports: BTreeSet<&'a str>,
}

impl Group<'_> {
    fn flows(&self) -> u64 {
        self.counts.iter().sum()
    }
}

type Groups<'a> = BTreeMap<&'a str, Group<'a>>;

/// By the clients' addresses, or by the servers'.
fn grouped<'a>(failed: &[(&'a FlowReport, Unopened)], by_client: bool) -> Groups<'a> {
    let mut groups = Groups::new();
    for (flow, why) in failed {
        let [client, _] = &flow.directions;
        let (from, to) = (split(&client.from).0, split(&client.to));
        let (own, other) = if by_client { (from, to.0) } else { (to.0, from) };
        let group = groups.entry(own).or_default();
        group.counts[*why as usize] += 1;
        group.others.insert(other);
        group.ports.insert(to.1);
    }
    groups
}

/// Address and port.
fn split(end: &str) -> (&str, &str) {
    end.rsplit_once(':').unwrap_or((end, ""))
}

/// Addresses with most unopened flows, on the side that has fewer addresses.
fn addresses(analysis: &Analysis) -> String {
    let failed = analysis.flows.iter().filter_map(|flow| Some((flow, flow.unopened()?)));
    let failed: Vec<(&FlowReport, Unopened)> = failed.collect();
    let (clients, servers) = (grouped(&failed, true), grouped(&failed, false));
    let by_client = clients.len() <= servers.len();
    let mut groups: Vec<_> = if by_client { clients } else { servers }.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.flows()));
    let mut text = String::new();
    if (failed.len() as u64) < count(analysis) {
        let _ = writeln!(text, "    of {} of them, which are reported one by one:", failed.len());
    }
    for (address, group) in groups.iter().take(SHOWN_ADDRESSES) {
        let (others, ports) = (some(&group.others, "addresses"), some(&group.ports, "ports"));
        let ends = if by_client {
            format!("from {address} to {others}, {ports}")
        } else {
            format!("from {others} to {address}, {ports}")
        };
        let _ = writeln!(text, "    {}: {}", plain(&ends), worded(group.counts));
    }
    let more = groups.len().saturating_sub(SHOWN_ADDRESSES);
    if more > 0 {
        let _ = writeln!(text, "    and {more} addresses more; --json has them");
    }
    text
}

/// The only one, or how many.
fn some(all: &BTreeSet<&str>, what: &str) -> String {
    match (all.len(), all.first()) {
        (1, Some(one)) if what == "ports" => format!("port {one}"),
        (1, Some(one)) => (*one).to_owned(),
        (count, _) => format!("{count} {what}"),
    }
}
