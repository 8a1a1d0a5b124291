//! What the doctor looks at on a host: read, and written again.

use anyhow::{Context as _, bail};
use longfat_host::{facts, run_command, sysctl};
use longfat_why::host::{Counts, Settings};
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;
use std::{fs, path::Path, process::Command, time::Instant};

/// Sysctls that are looked at, where there are such.
const SYSCTLS: &[&str] = &[
    "net.core.default_qdisc",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.netfilter.nf_conntrack_max",
];
/// A setting that the kernel finds out by itself: whoever loads a congestion control changes it.
const READ_ONLY: &str = "sysctl net.ipv4.tcp_available_congestion_control";
const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// Offloads that are looked at.
const OFFLOADS: [&str; 3] =
    ["tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload"];

/// Sysctls that only the machine's first network namespace has, or only there can be set.
const OF_FIRST: [&str; 6] = [
    "net.core.default_qdisc",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_mem",
    "net.netfilter.nf_conntrack_max",
];

/// Where those are set, in words.
pub const FIRST: &str = "only in the machine's first network namespace";

/// Sysctls of the first network namespace that this one lacks, or shows and lets nobody set; none in the first one.
pub fn elsewhere() -> Vec<&'static str> {
    // Every other namespace lacks it.
    if sysctl::read("net.core.netdev_max_backlog").is_ok() {
        return Vec::new();
    }
    OF_FIRST.into_iter().filter(|key| !sysctl::is_settable(key)).collect()
}

/// Whether a setting is one of those sysctls.
pub fn is_elsewhere(setting: &str, elsewhere: &[&str]) -> bool {
    setting.strip_prefix("sysctl ").is_some_and(|key| elsewhere.contains(&key))
}

/// Everything that is set here.
pub fn settings() -> Settings {
    let mut found = Settings::new();
    for key in SYSCTLS {
        if let Ok(value) = sysctl::read(key) {
            found.insert(format!("sysctl {key}"), value.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    found.insert("clocksource".to_owned(), facts::clock_source());
    links().iter().for_each(|link| of_link(link, &mut found));
    found
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args);
    run_command(command).ok()
}

fn list(program: &str, args: &[&str]) -> Vec<Value> {
    output(program, args).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Interfaces that are up, but the loopback one.
fn links() -> Vec<Value> {
    let mut links = list("ip", &["-j", "link"]);
    let is_up =
        |link: &Value| link["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"));
    links.retain(|link| link["link_type"] != "loopback" && link["ifname"].is_string() && is_up(link));
    links
}

fn of_link(link: &Value, found: &mut Settings) {
    let name = link["ifname"].as_str().unwrap_or_default();
    for (what, value) in [("mtu", &link["mtu"]), ("txqueuelen", &link["txqlen"])] {
        if value.is_number() {
            found.insert(format!("link {name} {what}"), value.to_string());
        }
    }
    let text = output("ethtool", &["-k", name]).unwrap_or_default();
    for (feature, value) in text.lines().filter_map(|line| line.trim().split_once(": ")) {
        if OFFLOADS.contains(&feature) && !value.contains("[fixed]") {
            found.insert(format!("offload {name} {feature}"), value.trim().to_owned());
        }
    }
    for (way, value) in rings(name).1 {
        found.insert(format!("ring {name} {way}"), value.to_string());
    }
    if let Some(root) = root_qdisc(name) {
        found.insert(format!("qdisc {name}"), root);
    }
    of_processors(link, name, found);
}

type Rings = Vec<(&'static str, u64)>;

/// Most and present lengths of an interface's rings.
fn rings(name: &str) -> (Rings, Rings) {
    let text = output("ethtool", &["-g", name]).unwrap_or_default();
    let of = |text: &str| {
        let lengths = text.lines().filter_map(|line| {
            let (way, value) = line.split_once(':')?;
            let way = [("RX", "rx"), ("TX", "tx")].iter().find(|(name, _)| *name == way)?.1;
            Some((way, value.trim().parse().ok()?))
        });
        lengths.collect()
    };
    let (most, now) = text.split_once("Current hardware settings").unwrap_or_default();
    (of(most), of(now))
}

/// Kinds that are whole without options: what a bare name makes is what was there.
const WHOLE: [&str; 8] = ["fq", "fq_codel", "fq_pie", "pfifo_fast", "pfifo_head_drop", "mq", "sfq", "codel"];

fn root_qdisc(name: &str) -> Option<String> {
    let found = list("tc", &["-j", "qdisc", "show", "dev", name]);
    described(found.iter().find(|qdisc| qdisc["root"] == true)?)
}

/// A queueing discipline in a word: `fq_codel`, or `tbf rate=100000000` where it holds a rate, in bit/s.
fn described(root: &Value) -> Option<String> {
    let kind = root["kind"].as_str()?;
    // tbf has a number, netem an object; cake calls it its bandwidth, and is without one when that is a word.
    let options = &root["options"];
    let rate = [&options["rate"], &options["rate"]["rate"], &options["bandwidth"]];
    let rate = rate.into_iter().find_map(Value::as_u64);
    Some(rate.map_or_else(|| kind.to_owned(), |bytes_per_s| format!("{kind} rate={}", bytes_per_s * 8)))
}

/// Which processors attend to an interface. What /sys shows may be another namespace's.
fn of_processors(link: &Value, name: &str, found: &mut Settings) {
    let root = Path::new("/sys/class/net").join(name);
    let index = fs::read_to_string(root.join("ifindex")).unwrap_or_default();
    let is_this = index.trim().parse().is_ok_and(|index: u64| link["ifindex"] == index);
    let address = fs::read_to_string(root.join("address")).unwrap_or_default();
    if !is_this || link["address"] != address.trim() {
        return;
    }
    for entry in fs::read_dir(root.join("queues")).into_iter().flatten().flatten() {
        let queue = entry.file_name().to_string_lossy().into_owned();
        if let Ok(mask) = fs::read_to_string(entry.path().join("rps_cpus")) {
            found.insert(format!("rps {name} {queue}"), mask.trim().to_owned());
        }
    }
    for irq in interrupts(name) {
        if let Ok(list) = fs::read_to_string(affinity(&irq)) {
            found.insert(format!("irq {irq}"), list.trim().to_owned());
        }
    }
}

fn affinity(irq: &str) -> String {
    format!("/proc/irq/{irq}/smp_affinity_list")
}

/// Interrupts that /proc/interrupts names after an interface: `eth0`, `eth0-TxRx-1`.
fn interrupts(name: &str) -> Vec<String> {
    let text = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let is_its = |word: &str| word == name || word.starts_with(&format!("{name}-"));
    let lines = text.lines().filter(|line| line.split_whitespace().any(is_its));
    lines.filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// Everything that is counted and timed here.
pub fn counts() -> Counts {
    let mut found = Counts::new();
    found.insert("processors".to_owned(), facts::cpu_count().into());
    found.insert("clock read ns".to_owned(), clock_read_ns());
    let memory_bytes = facts::memory_bytes();
    if memory_bytes > 0 {
        found.insert("memory bytes".to_owned(), memory_bytes as f64);
    }
    if let Some(entries) =
        sysctl::read("net.netfilter.nf_conntrack_count").ok().and_then(|text| text.parse().ok())
    {
        found.insert("conntrack entries".to_owned(), entries);
    }
    for link in list("ip", &["-j", "-s", "link"]) {
        let name = link["ifname"].as_str().unwrap_or_default();
        for way in ["rx", "tx"] {
            let dropped = link["stats64"][way]["dropped"].as_f64().unwrap_or(0.0);
            found.insert(format!("drops {name} {way}"), dropped);
        }
        for (way, most) in rings(name).0 {
            found.insert(format!("ring {name} {way} most"), most as f64);
        }
    }
    for qdisc in list("tc", &["-j", "-s", "qdisc"]) {
        let name = qdisc["dev"].as_str().unwrap_or_default();
        *found.entry(format!("drops {name} qdisc")).or_default() += qdisc["drops"].as_f64().unwrap_or(0.0);
    }
    found
}

const CLOCK_READS: u32 = 2000;

fn clock_read_ns() -> f64 {
    let start = Instant::now();
    for _ in 0..CLOCK_READS {
        let _ = std::hint::black_box(clock_gettime(ClockId::CLOCK_MONOTONIC));
    }
    start.elapsed().as_nanos() as f64 / f64::from(CLOCK_READS)
}

/// Whether it is somebody's choice, which can be put back.
pub fn can_be_set(key: &str) -> bool {
    key != READ_ONLY
}

/// Sets one of them.
pub fn set(key: &str, value: &str) -> anyhow::Result<()> {
    let words: Vec<&str> = key.split(' ').collect();
    match words[..] {
        ["sysctl", name] => Ok(sysctl::write(name, value)?),
        ["clocksource"] => write(CLOCK, value),
        ["irq", number] => write(&affinity(number), value),
        ["rps", name, queue] => write(&format!("/sys/class/net/{name}/queues/{queue}/rps_cpus"), value),
        ["link", name, what] => run("ip", &["link", "set", "dev", name, what, value]),
        ["offload", name, feature] => run("ethtool", &["-K", name, feature, value]),
        ["ring", name, way] => run("ethtool", &["-G", name, way, value]),
        ["qdisc", name] => set_qdisc(name, value),
        _ => bail!("'{key}' is nothing that 'longfat doctor' sets"),
    }
}

/// Only its kind and rate were kept: one with settings of its own cannot be made again from that.
fn set_qdisc(name: &str, value: &str) -> anyhow::Result<()> {
    match value {
        "noqueue" => run("tc", &["qdisc", "del", "dev", name, "root"]),
        kind if WHOLE.contains(&kind) => run("tc", &["qdisc", "replace", "dev", name, "root", kind]),
        held => bail!(
            "the queueing discipline of '{name}' was '{held}', and its settings were not kept: make it again by tc, with \
             all of them"
        ),
    }
}

fn write(path: &str, value: &str) -> anyhow::Result<()> {
    fs::write(path, value).with_context(|| format!("write '{value}' to '{path}'"))
}

fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.args(args);
    Ok(run_command(command).map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rate_is_found_whatever_tc_calls_it() {
        let said =
            |kind: &str, options: Value| described(&json!({ "kind": kind, "options": options })).unwrap();
        assert_eq!(said("tbf", json!({ "rate": 12_500_000 })), "tbf rate=100000000");
        assert_eq!(
            said("netem", json!({ "rate": { "rate": 125_000, "cellsize": 0 } })),
            "netem rate=1000000"
        );
        assert_eq!(
            said("cake", json!({ "bandwidth": 12_500_000, "diffserv": "diffserv3" })),
            "cake rate=100000000"
        );
        assert_eq!(said("cake", json!({ "bandwidth": "unlimited" })), "cake");
        assert_eq!(said("htb", json!({ "default": "0x1" })), "htb");
    }
}
