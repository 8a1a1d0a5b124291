//! Facts about this machine and a namespace that decide what a measurement means: recorded with every run.

use crate::{Namespace, Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, path::Path, process::Command};

/// Kernel release and version, as `uname -rv`.
pub fn kernel() -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    format!("{} {}", read("osrelease").trim(), read("version").trim())
}

/// The user this process acts for.
pub fn user_id() -> u32 {
    nix::unistd::getuid().as_raw()
}

/// File descriptors this process has open.
pub fn open_descriptors() -> Option<u64> {
    // Since Linux 6.2 the directory's size is their number; before, it is 0 and they are counted.
    match std::fs::metadata("/proc/self/fd").ok()?.len() {
        0 => Some(std::fs::read_dir("/proc/self/fd").ok()?.count() as u64),
        count => Some(count),
    }
}

/// Processor time of this process so far, its own and the kernel's on its behalf, microseconds.
pub fn own_cpu_us() -> u64 {
    // SAFETY: all-zero is a valid rusage, and getrusage writes no further than it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let us = |time: libc::timeval| (time.tv_sec * 1_000_000 + time.tv_usec) as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// Processor model; empty where the kernel does not say.
pub fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name") || line.starts_with("Model"));
    line.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, model)| model.trim().to_owned())
}

/// Processors this process may run on.
pub fn cpu_count() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// Main memory.
pub fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Load average over one minute.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// Clock source of the kernel: a slow one makes every timestamp dear.
pub fn clock_source() -> String {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The first line a program says to `ARGUMENT`, such as its version; absent when it cannot be run.
pub fn first_line_of(program: &str, argument: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.arg(argument);
    let text = crate::run_command(command).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Time all processors have spent since boot, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuTimes {
    /// Not idle; time a hypervisor took away counts, because it could not be used.
    pub busy_ticks: u64,
    /// Ticks of all kinds together.
    pub total_ticks: u64,
}

impl CpuTimes {
    /// Processor times so far.
    pub fn now() -> Option<CpuTimes> {
        CpuTimes::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// From the text of /proc/stat: user nice system idle iowait irq softirq steal (proc_stat(5)).
    fn parse(text: &str) -> Option<CpuTimes> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?;
        // Guest time, the two last fields, is part of user time already.
        let ticks: Vec<u64> = fields.split_whitespace().take(8).map_while(|tick| tick.parse().ok()).collect();
        let total_ticks = ticks.iter().sum();
        let idle_ticks: u64 = ticks.get(3..5)?.iter().sum();
        Some(CpuTimes { busy_ticks: total_ticks - idle_ticks, total_ticks })
    }

    /// Share of busy time since `earlier`, from 0 to 1.
    pub fn busy_since(self, earlier: CpuTimes) -> Option<f64> {
        let total = self.total_ticks.checked_sub(earlier.total_ticks).filter(|total| *total > 0)?;
        Some(self.busy_ticks.saturating_sub(earlier.busy_ticks) as f64 / total as f64)
    }
}

/// The kernel's network counters of the calling thread's namespace (`nstat -az`): `TcpExtTCPTimeouts` and the like.
pub fn counters() -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    for file in ["snmp", "netstat"] {
        parse_paired(
            &fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default(),
            &mut found,
        );
    }
    let text = fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    found.extend(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))));
    found
}

/// A line of names, then a line of values, both under the same heading.
fn parse_paired(text: &str, found: &mut BTreeMap<String, i64>) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((heading, names)), Some((other, values))) = (names.split_once(':'), values.split_once(':'))
        else {
            return;
        };
        if heading != other {
            return;
        }
        let pairs = names.split_whitespace().zip(values.split_whitespace());
        found.extend(
            pairs.filter_map(|(name, value)| Some((format!("{heading}{name}"), value.parse().ok()?))),
        );
    }
}

/// What grew between two readings of [`counters`].
pub fn growth(before: &BTreeMap<String, i64>, after: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let grown = |(name, after): (&String, &i64)| {
        let by = after.saturating_sub(*before.get(name).unwrap_or(&0));
        (by != 0).then(|| (name.clone(), by))
    };
    after.iter().filter_map(grown).collect()
}

/// Bytes the process `pid`'s namespace has received over `interface`.
pub fn received_bytes(pid: u32, interface: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?;
    let of =
        |line: &&str| line.trim_start().strip_prefix(interface).is_some_and(|rest| rest.starts_with(':'));
    text.lines().find(of)?.split_once(':')?.1.split_whitespace().next()?.parse().ok()
}

/// MTU and offloads of every interface of a namespace. Offloads that cannot change are left out, and all of them
/// where the host has no `ethtool`.
pub fn interfaces(namespace: &Namespace) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
    let text = namespace.ip(&["-j", "link"])?;
    let links: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    let mut found = BTreeMap::new();
    for link in &links {
        let Some(name) = link["ifname"].as_str() else { continue };
        let mut command = namespace.command("ethtool");
        command.args(["-k", name]);
        let mut facts = parse_features(&crate::run_command(command).unwrap_or_default());
        facts.insert("mtu_bytes".to_owned(), link["mtu"].to_string());
        found.insert(name.to_owned(), facts);
    }
    Ok(found)
}

/// `ethtool -k`: `name: on` lines; `[fixed]` ones say nothing about how the machine was set up.
fn parse_features(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(": "));
    let set = lines.filter(|(_, value)| !value.contains("[fixed]"));
    set.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// Queueing disciplines of a namespace, one JSON object each; empty where the host has no `tc`.
pub fn qdiscs(namespace: &Namespace) -> Vec<String> {
    let mut command = namespace.command("tc");
    command.args(["-j", "qdisc"]);
    let text = crate::run_command(command).unwrap_or_default();
    let found: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    found.iter().map(ToString::to_string).collect()
}

/// Routes of a namespace, IPv4 then IPv6.
pub fn routes(namespace: &Namespace) -> Result<Vec<String>> {
    let text = format!("{}\n{}", namespace.ip(&["route"])?, namespace.ip(&["-6", "route"])?);
    Ok(text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect())
}

/// Free bytes of the file system that holds `path`.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let found = nix::sys::statvfs::statvfs(path).ok()?;
    Some(found.blocks_available() as u64 * found.fragment_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_what_is_not_idle_nor_waiting() {
        let earlier = CpuTimes::parse("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 1").unwrap();
        let later = CpuTimes::parse("cpu  40 0 20 100 20 5 5 10 7 0\n").unwrap();
        assert_eq!(earlier, CpuTimes { busy_ticks: 20, total_ticks: 100 });
        assert_eq!(later.busy_since(earlier), Some(0.6));
        assert_eq!(earlier.busy_since(earlier), None);
        assert_eq!(CpuTimes::parse("intr 5"), None);
    }

    #[test]
    fn counters_bear_their_heading_and_growth_leaves_out_what_stood_still() {
        let mut before = BTreeMap::new();
        parse_paired("Tcp: MaxConn OutSegs\nTcp: -1 5\nTcpExt: TCPTimeouts\nTcpExt: 3\n", &mut before);
        assert_eq!(before["TcpMaxConn"], -1);
        let after = BTreeMap::from([("TcpOutSegs".to_owned(), 9), ("TcpExtTCPTimeouts".to_owned(), 3)]);
        assert_eq!(growth(&before, &after), BTreeMap::from([("TcpOutSegs".to_owned(), 4)]));
        assert!(counters().contains_key("TcpExtTCPTimeouts"));
    }

    #[test]
    fn features_that_can_change_are_kept() {
        let text = "Features for lan:\nrx-checksumming: on\n\ttx-checksum-ipv4: off [fixed]\ntcp-segmentation-offload: off\n";
        let found = parse_features(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found["tcp-segmentation-offload"], "off");
    }

    #[test]
    fn this_machine_has_a_kernel_memory_and_processors() {
        assert!(kernel().len() > 3 && memory_bytes() > 1 << 20 && cpu_count() > 0);
        assert!(free_bytes(Path::new("/")).is_some());
        assert!(received_bytes(std::process::id(), "lo").is_some());
        assert_eq!(received_bytes(std::process::id(), "l"), None);
    }
}
