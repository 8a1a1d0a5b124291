//! Figures and verdicts in words.

use crate::{
    cause::Cause,
    judge::{Share, Verdict},
    price::Price,
};
use longfat_analyze::words;

/// `38.2 Mbit/s`
pub fn rate(bps: f64) -> String {
    words::rate(bps)
}

/// `28.4 ms`
pub fn duration(us: impl Into<u64>) -> String {
    words::duration(us.into() as f64 / 1e6)
}

/// `512 KiB`: windows and buffers are powers of two.
pub fn size(bytes: impl Into<u64>) -> String {
    let bytes = bytes.into() as f64;
    match bytes {
        large if large >= 1_048_576.0 => format!("{:.1} MiB", large / 1_048_576.0),
        middle if middle >= 1024.0 => format!("{:.0} KiB", middle / 1024.0),
        small => format!("{small:.0} bytes"),
    }
}

/// One sentence: what it gets, what holds it most, and what it would get without. `who` is `rsync to 192.0.2.7:22`.
pub fn sentence(who: &str, verdict: &Verdict) -> String {
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

/// `Without, it would get 260 to 320 Mbit/s, then the path is full.`
pub fn without(price: &Price) -> String {
    match price.most_bps {
        Some(most) if most > price.least_bps * 1.02 => {
            format!("Without this, {} to {}; then {}.", rate(price.least_bps), rate(most), price.then)
        }
        Some(_) => format!("Without this, {}; then {}.", rate(price.least_bps), price.then),
        None => format!("Without this, more than {}: {}.", rate(price.least_bps), price.then),
    }
}
