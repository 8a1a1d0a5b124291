//! A verdict in words.

use crate::{
    cause::Cause,
    verdict::{Price, Share, Verdict},
    words::rate,
};

/// One sentence: what it gets, what holds it most, and what it would get without. `who` is `rsync to 192.0.2.7:22`.
pub fn of(who: &str, verdict: &Verdict) -> String {
    let gets = rate(verdict.figures.rate_bps);
    let Some(first) = verdict.first() else { return format!("{who} gets {gets}.") };
    let verb = if first.cause == Cause::OtherEndSends { "receives" } else { "gets" };
    let share = format!("for {:.0} % of the time {}", 100.0 * first.share, first.cause.entry().words);
    let price = first.without.as_ref().map_or(String::new(), |price| format!(" {}", without(price)));
    format!("{who} {verb} {gets}: {share} ({}).{price}{}", first.evidence, also(&verdict.causes[1..]))
}

/// Other causes from this share of the time on are worth a word.
const WORTH: f64 = 0.1;

fn also(rest: &[Share]) -> String {
    let worth = rest.iter().filter(|share| share.share >= WORTH);
    let parts: Vec<String> =
        worth.map(|share| format!("{:.0} % {}", 100.0 * share.share, share.cause.name())).collect();
    if parts.is_empty() { String::new() } else { format!(" Also: {}.", parts.join(", ")) }
}

/// `Without this, 260 Mbit/s to 320 Mbit/s; then the path is full.`
pub fn without(price: &Price) -> String {
    format!("Without this, {}.", interval(price))
}

/// `260 Mbit/s to 320 Mbit/s; then the path is full`
pub fn interval(price: &Price) -> String {
    let least = rate(price.least_bps);
    match price.most_bps {
        Some(most) if most > price.least_bps * 1.02 => {
            format!("{least} to {}; then {}", rate(most), price.then)
        }
        Some(_) => format!("{least}; then {}", price.then),
        None => format!("more than {least}: {}", price.then),
    }
}
