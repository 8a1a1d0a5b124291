//! Buffers and windows: what a window of so many bytes carries over the round trip.

use super::{Advice, Asked, Ground, of_sysctl};

const WINDOW: Ground = Ground::Book("RFC 7323, section 1.1; fasterdata.es.net, host tuning");
/// Half of a receive buffer is the kernel's bookkeeping.
const OVERHEAD: f64 = 2.0;
/// Largest window without a scale.
const UNSCALED_BYTES: f64 = 65_535.0;
/// Page of tcp_mem.
const PAGE_BYTES: f64 = 4096.0;
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

fn by_window(asked: &Asked, key: &str, window_bytes: f64, what: &str) -> Option<Advice> {
    let (words, share) = asked.window_words(window_bytes);
    let value = asked.sysctl(key)?;
    let of = of_sysctl(key, value, format!("{what}: {words}"), planned(asked, key), WINDOW);
    Asked::is_worth(share).then_some(Advice { share: Some(share), ..of })
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

/// From the middle of tcp_mem on, buffers do not grow any more.
fn all_together(asked: &Asked) -> Option<Advice> {
    let pages = asked.number_of("net.ipv4.tcp_mem", 1)? as f64;
    let (words, share) = asked.window_words(pages * PAGE_BYTES / OVERHEAD);
    let window = asked.path.window.bytes as f64;
    let better = (3.0 * window / PAGE_BYTES).ceil();
    let better = format!("{:.0} {:.0} {:.0}", better * 0.75, better, better * 1.5);
    let value = asked.sysctl("net.ipv4.tcp_mem")?;
    let costs = format!("all connections together, under pressure from there on: {words}");
    let of = of_sysctl("net.ipv4.tcp_mem", value, costs, &better, WINDOW);
    Asked::is_worth(share).then_some(Advice { share: Some(share), ..of })
}

/// A buffer that a program asks for is doubled: the window is what it asked for.
fn own(asked: &Asked, key: &str, option: &str) -> Option<Advice> {
    let (words, share) = asked.window_words(asked.number(key)? as f64);
    let better = asked.path.window.bytes.min((1 << 30) - 1).to_string();
    let of = of_sysctl(key, asked.sysctl(key)?, format!("the most {option} gets: {words}"), &better, WINDOW);
    Asked::is_worth(share).then_some(Advice { share: Some(share), only: Some(OWN_BUFFERS), ..of })
}
