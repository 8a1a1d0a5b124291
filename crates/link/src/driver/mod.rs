//! Runs a link in real time between two interfaces of the calling thread's network namespace.
//!
//! One thread serves both directions: a packet socket with a mapped receive ring per interface ([`socket`]), the
//! pure model ([`crate::model`]), buffers for what is inside ([`pool`]), departures met by sleeping and spinning
//! ([`pace`]), adjacent TCP segments joined on request ([`frame`], [`batch`]). Frames are bridged as they are: any
//! address, ARP and neighbour discovery included, all with the delay. Frames carry the kernel's arrival time, so
//! reading them late does not falsify the model.
//!
//! The driver measures itself: how late each packet left, what it lost outside the model, how long it was held up. And
//! the hosts at its ends, which share its processors: how long they owed an answer ([`answers`]).
//!
//! Not supported: VLAN tags, and segmentation offload on the sending hosts (call [`prepare_host_end`]); such frames
//! are not delivered, are counted, and make the run invalid.

mod answers;
mod batch;
mod clock;
mod engine;
pub mod frame;
mod pace;
mod pool;
mod reporter;
pub mod socket;
mod taken;

use crate::plan::LinkPlan;
use engine::Engine;
use longfat_host::{Namespace, interface, monotonic_ns, monotonic_us};
use longfat_schema::{
    lines::Lines,
    record::{LinkSummary, Note, Record},
};
use reporter::Reporter;
use socket::PacketSocket;
use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
};
use taken::Taken;

/// Why the driver could not run.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The kernel refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// An interface cannot be asked.
    #[error(transparent)]
    Host(#[from] longfat_host::Error),
    /// An interface is smaller than the link.
    #[error(
        "interface '{interface}' has MTU {has}, the link carries {wants} bytes; set it with 'ip link set dev {interface} \
         mtu {wants}' or lower the link's mtu"
    )]
    Mtu {
        /// Which interface.
        interface: String,
        /// The interface's MTU, in bytes.
        has: u32,
        /// The link's MTU, in bytes.
        wants: u32,
    },
    /// Both ends are one interface.
    #[error("both ends of the link are interface '{0}'; name two")]
    Same(String),
    /// Another driver has an interface.
    #[error("interface '{interface}' is driven by process {pid} already; end that first, or name another")]
    Busy {
        /// Which interface.
        interface: String,
        /// Which process drives it.
        pid: i32,
    },
    /// The samples could not be written.
    #[error("write the link's samples: {0}; is the disk full?")]
    Samples(io::Error),
    /// The link ended before it was told to, as where an interface was set down; what it had carried is known.
    #[error("{}", .0.failure.as_deref().unwrap_or("the link ended early"))]
    Cut(Box<DriverReport>),
    /// A library refused constants of this crate.
    #[error("link driver: {0}")]
    Internal(String),
}

/// When the schedule of changes begins.
#[derive(Debug, Clone)]
pub enum Start {
    /// With the driver.
    Now,
    /// At this CLOCK_MONOTONIC time in nanoseconds.
    At(u64),
    /// When the flag is raised.
    OnFlag(Arc<AtomicBool>),
}

/// What to run.
#[derive(Debug)]
pub struct Options<'a> {
    /// The link.
    pub plan: &'a LinkPlan,
    /// Interface of its first end.
    pub a: &'a str,
    /// Interface of its second end.
    pub b: &'a str,
    /// Where samples and the summary go.
    pub lines: &'a Lines,
    /// Raised by another thread or a signal handler: come to an end.
    pub stop: &'a AtomicBool,
    /// When the schedule of changes begins.
    pub start: Start,
}

/// What a run of the driver came to.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DriverReport {
    /// First end to second.
    pub forward: LinkSummary,
    /// Second end to first.
    pub backward: LinkSummary,
    /// Frames not modelled because they exceeded the MTU (segmentation offload) or carried a VLAN tag.
    pub oversize_frames: u64,
    /// Times the driver was held up for more than 3 ms.
    pub stalls: u64,
    /// The longest of them.
    pub longest_stall_us: u64,
    /// Processor time of the driver's thread over the time of the run. What the receiving host does in the softirq
    /// of a sent frame counts here.
    pub cpu_share: f64,
    /// Length of the run.
    pub duration_us: u64,
    /// How long the path may have stood still with its machine.
    pub pause_limit_us: u64,
    /// Whether the host granted real-time priority.
    pub real_time: bool,
    /// Why it ended before it was told to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl DriverReport {
    /// Whether both directions kept their promise.
    pub fn punctual(&self) -> bool {
        self.forward.punctual && self.backward.punctual
    }

    /// What a person should know, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for way in [&self.forward, &self.backward] {
            let LinkSummary { direction, late_p99_us, late_limit_us, overrun_packets, .. } = way;
            if late_p99_us > late_limit_us {
                warnings.push(format!(
                    "{direction}: 99 % of packets left within {late_p99_us} us of their time, the limit is \
                     {late_limit_us} us; repeat the run on an idle host, or raise late_limit_p99"
                ));
            }
            if *overrun_packets > 0 {
                warnings.push(format!("{direction}: {overrun_packets} packets were lost outside the model"));
            }
        }
        if self.forward.paused_us > self.pause_limit_us {
            warnings.push(format!(
                "the machine, and the path with it, stood still for {} ms in all, the limit is {} ms; repeat the run \
                 on an idle host, or raise pause_limit",
                self.forward.paused_us / 1000,
                self.pause_limit_us / 1000
            ));
        }
        if self.oversize_frames > 0 {
            warnings.push(format!(
                "{} frames were larger than the MTU or tagged and were not delivered; turn TSO and GSO off at the \
                 hosts' ends",
                self.oversize_frames
            ));
        }
        if !self.real_time {
            warnings.push("no real-time priority (CAP_SYS_NICE); expect lateness".to_owned());
        }
        warnings
    }
}

/// Longest frame of a link.
pub(crate) fn max_frame_bytes(mtu_bytes: u32) -> usize {
    mtu_bytes as usize + frame::ETHERNET_BYTES
}

/// Runs the link until `options.stop` is raised; `ready` is called once frames pass. Writes the summary and notes, also
/// where an interface vanishes meanwhile.
///
/// # Errors
/// When an interface is missing, too small or vanishes ([`DriverError::Cut`]), or the samples cannot be written.
pub fn run(options: &Options<'_>, ready: impl FnOnce()) -> Result<DriverReport, DriverError> {
    let plan = options.plan;
    if options.a == options.b {
        return Err(DriverError::Same(options.a.to_owned()));
    }
    let _taken = [Taken::take(options.a)?, Taken::take(options.b)?];
    let sockets = [open(options.a, plan.mtu_bytes)?, open(options.b, plan.mtu_bytes)?];
    let mut engine = Engine::new(plan, sockets)?;
    let mut reporter = Reporter::start(&plan.name, options.lines);
    let real_time = pace::become_real_time();
    ready();
    let (start_ns, start_cpu_ns) = (monotonic_ns(), pace::thread_cpu_ns());
    let result = engine.run(options, &mut reporter);
    let (duration_ns, cpu_ns) = (monotonic_ns() - start_ns, pace::thread_cpu_ns() - start_cpu_ns);
    pace::become_ordinary();
    let unsaid = reporter.finish().map_err(DriverError::Samples)?;
    let report = DriverReport {
        failure: result.err().map(|error| error.to_string()),
        oversize_frames: engine.ways().iter().map(|way| way.oversize_frames).sum(),
        stalls: engine.stalls,
        longest_stall_us: engine.longest_stall_ns / 1000,
        cpu_share: cpu_ns as f64 / duration_ns.max(1) as f64,
        duration_us: duration_ns / 1000,
        pause_limit_us: (plan.pause_limit * duration_ns as f64) as u64 / 1000,
        real_time,
        forward: LinkSummary::default(),
        backward: LinkSummary::default(),
    };
    let [forward, backward] = summaries(plan, &mut engine, report.pause_limit_us);
    let report = DriverReport { forward, backward, ..report };
    write_end(options.lines, plan, &report, unsaid).map_err(DriverError::Samples)?;
    if report.failure.is_some() { Err(DriverError::Cut(Box::new(report))) } else { Ok(report) }
}

/// Whether an interface of the calling thread's namespace has IPv6.
pub(crate) fn has_ipv6(interface: &str) -> bool {
    // A kernel without IPv6 has no such file.
    std::fs::read_to_string(ipv6_switch(interface)).is_ok_and(|off| off.trim() == "0")
}

/// File that says 1 where an interface has no IPv6. Its name may have dots, so that it is no key of a sysctl.
fn ipv6_switch(interface: &str) -> String {
    format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
}

/// The interface must carry the link's packets.
fn open(interface: &str, mtu_bytes: u32) -> Result<PacketSocket, DriverError> {
    let has = longfat_host::interface::mtu_bytes(interface)?;
    if has < mtu_bytes {
        return Err(DriverError::Mtu { interface: interface.to_owned(), has, wants: mtu_bytes });
    }
    PacketSocket::open(interface, mtu_bytes)
}

fn summaries(plan: &LinkPlan, engine: &mut Engine, pause_limit_us: u64) -> [LinkSummary; 2] {
    let paused_us = engine.paused_ns() / 1000;
    let counters = engine.counters();
    let names = ["forward", "backward"];
    [0, 1].map(|way| {
        let (counters, lateness_ns) = (counters[way], &engine.ways()[way].lateness_ns);
        let overrun_packets = engine.overruns(way);
        let late = |quantile: f64| lateness_ns.value_at_quantile(quantile) / 1000;
        let late_limit_us = plan.late_limit_ns / 1000;
        LinkSummary {
            link: plan.name.clone(),
            direction: names[way].to_owned(),
            driver: "af_packet".to_owned(),
            offered_packets: counters.offered_packets,
            delivered_packets: counters.delivered_packets,
            delivered_bytes: counters.delivered_bytes,
            dropped_packets: counters.dropped_packets,
            lost_packets: counters.lost_packets,
            marked_packets: counters.marked_packets,
            overrun_packets,
            queue_max_bytes: counters.queue_max_bytes,
            queue_mean_bytes: counters.queue_mean_bytes,
            late_p50_us: late(0.5),
            late_p99_us: late(0.99),
            late_p999_us: late(0.999),
            late_max_us: lateness_ns.max() / 1000,
            late_limit_us,
            paused_us,
            punctual: late(0.99) <= late_limit_us && overrun_packets == 0 && paused_us <= pause_limit_us,
        }
    })
}

fn write_end(lines: &Lines, plan: &LinkPlan, report: &DriverReport, unsaid: u64) -> io::Result<()> {
    lines.write(&Record::Link(report.forward.clone()))?;
    lines.write(&Record::Link(report.backward.clone()))?;
    let note = |level: &str, message: String| {
        let (level, source) = (level.to_owned(), plan.name.clone());
        lines.write(&Record::Note(Note { time_us: monotonic_us(), level, source, message }))
    };
    if let Some(failure) = &report.failure {
        note("warning", failure.clone())?;
    }
    for warning in report.warnings() {
        note("warning", warning)?;
    }
    if unsaid > 0 {
        note("warning", format!("{unsaid} samples did not fit the buffer and were left out"))?;
    }
    note("info", format!("the driver used {:.0} % of a processor core", report.cpu_share * 100.0))?;
    lines.flush()
}

/// Turns off what would make a sending host's frames larger than the MTU, or merge what it receives.
///
/// # Errors
/// When the interface does not exist or refuses.
pub fn prepare_host_end(namespace: &Namespace, interface: &str) -> longfat_host::Result<()> {
    namespace.run(|| prepare_interface(interface))?
}

/// [`prepare_host_end`] for an interface of the calling thread's namespace.
///
/// # Errors
/// When the interface does not exist or refuses.
pub fn prepare_interface(interface: &str) -> longfat_host::Result<()> {
    use interface::Offload;
    for offload in [Offload::Tso, Offload::Gso, Offload::Gro] {
        interface::set_offload(interface, offload, false)?;
    }
    Ok(())
}
