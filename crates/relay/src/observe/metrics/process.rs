//! What every process tells Prometheus, under the customary names.

use super::{Family, Kind};
use longfat_host::facts;
use nix::{
    sys::{
        resource::{Resource, UsageWho, getrlimit, getrusage},
        time::TimeValLike,
    },
    unistd::{SysconfVar, sysconf},
};

/// Nothing is told that cannot be read.
pub(super) fn families() -> Vec<Family> {
    let gauge = |name, unit, help, value: Option<f64>| {
        value.map(|value| Family::new(Kind::Gauge, name, unit, help).with(&[], value))
    };
    let cpu = cpu_seconds().map(|value| {
        let help = "CPU time spent, in user and kernel mode.";
        Family::new(Kind::Counter, "process_cpu_seconds", "seconds", help).with(&[], value)
    });
    let limit = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft as f64);
    let memory = resident_bytes().map(|bytes| bytes as f64);
    let found = [
        cpu,
        gauge(
            "process_open_fds",
            "",
            "File descriptors in use.",
            facts::open_descriptors().map(|n| n as f64),
        ),
        gauge("process_max_fds", "", "File descriptors allowed.", limit),
        gauge("process_resident_memory_bytes", "bytes", "Memory in use.", memory),
    ];
    found.into_iter().flatten().collect()
}

fn cpu_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    Some((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}

fn resident_bytes() -> Option<u64> {
    let pages: u64 =
        std::fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse().ok()?;
    let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    Some(pages * page_bytes as u64)
}
