//! Buffers and windows: what a window of so many bytes carries over the round trip.

use super::{Advice, Asked, Ground, of_sysctl};
use longfat_path_plan::WINDOW_MAX_BYTES;

const WINDOW: Ground = Ground::Book("RFC 7323, section 1.1; fasterdata.es.net, host tuning");
/// Half of a receive buffer is the kernel's bookkeeping.
const OVERHEAD: f64 = 2.0;
/// Largest window without a scale.
const UNSCALED_BYTES: f64 = 65_535.0;
/// Page of tcp_mem.
const PAGE_BYTES: f64 = 4096.0;
/// What a SO_RCVBUF or SO_SNDBUF may be, since the kernel doubles it, and keeps an int.
const ASKED_MAX_BYTES: u64 = (1 << 30) - 1;
/// Part of main memory that connections may take together at the most: the rest is the programs'.
const MEMORY_SHARE: f64 = 0.5;
const OWN_BUFFERS: &str = "programs that set SO_RCVBUF or SO_SNDBUF themselves";

pub(super) fn advice(asked: &Asked) -> Vec<Advice> {
    [
        receive(asked),
        send(asked),
        scaling(asked),
        all_together(asked),
        own(asked, "net.core.rmem_max", "SO_RCVBUF"),
        own(asked, "net.core.wmem_max", "SO_SNDBUF"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What `path-plan` would set.
fn planned<'a>(asked: &'a Asked, key: &str) -> &'a str {
    asked.path.sysctls.iter().find(|plan| plan.key == key).map_or("", |plan| plan.value.as_str())
}

/// What a window of one connection carries, of what the largest one can.
fn one_window(asked: &Asked, window_bytes: f64) -> (String, f64) {
    asked.window_words(window_bytes, WINDOW_MAX_BYTES as f64)
}

fn by_window(asked: &Asked, key: &str, window_bytes: f64, what: &str) -> Option<Advice> {
    let (words, share) = one_window(asked, window_bytes);
    advised(asked, key, format!("{what}: {words}"), share, planned(asked, key))
}

/// Advice to set something that it is not set to yet, where it costs something.
fn advised(asked: &Asked, key: &str, costs: String, share: f64, better: &str) -> Option<Advice> {
    let value = asked.sysctl(key)?;
    let is_other = !value.split_whitespace().eq(better.split_whitespace());
    let of = of_sysctl(key, value, costs, better, WINDOW);
    (is_other && Asked::is_worth(share)).then_some(Advice { share: Some(share), ..of })
}

fn receive(asked: &Asked) -> Option<Advice> {
    let most = asked.number_of("net.ipv4.tcp_rmem", 2)? as f64;
    by_window(asked, "net.ipv4.tcp_rmem", most / OVERHEAD, "receiving")
}

fn send(asked: &Asked) -> Option<Advice> {
    let most = asked.number_of("net.ipv4.tcp_wmem", 2)? as f64;
    by_window(asked, "net.ipv4.tcp_wmem", most, "sending")
}

fn scaling(asked: &Asked) -> Option<Advice> {
    let is_off = asked.sysctl("net.ipv4.tcp_window_scaling")? == "0";
    is_off.then(|| by_window(asked, "net.ipv4.tcp_window_scaling", UNSCALED_BYTES, "both ways"))?
}

/// From the middle of tcp_mem on, buffers do not grow any more. Its last, half as much again, is bounded by memory.
fn all_together(asked: &Asked) -> Option<Advice> {
    let key = "net.ipv4.tcp_mem";
    let pages = asked.number_of(key, 1)? as f64;
    let (words, share) = asked.window_words(pages * PAGE_BYTES / OVERHEAD, f64::INFINITY);
    let wanted = (3.0 * asked.path.window.bytes as f64 / PAGE_BYTES).ceil();
    let memory_bytes = asked.counts.get("memory bytes").copied().unwrap_or(f64::INFINITY);
    let most = (memory_bytes * MEMORY_SHARE / 1.5 / PAGE_BYTES).floor();
    let better = wanted.min(most);
    // More is what this host has no memory for.
    if better <= pages {
        return None;
    }
    let bound = if most < wanted { "; memory allows no more than is advised" } else { "" };
    let costs = format!("all connections together, under pressure from there on: {words}{bound}");
    let better = format!("{:.0} {better:.0} {:.0}", (better * 0.75).floor(), (better * 1.5).floor());
    advised(asked, key, costs, share, &better)
}

/// A buffer that a program asks for is doubled: the window is what it asked for.
fn own(asked: &Asked, key: &str, option: &str) -> Option<Advice> {
    let (words, share) = one_window(asked, asked.number(key)? as f64);
    let better = asked.path.window.bytes.min(ASKED_MAX_BYTES).to_string();
    let of = advised(asked, key, format!("the most {option} gets: {words}"), share, &better)?;
    Some(Advice { only: Some(OWN_BUFFERS), ..of })
}
