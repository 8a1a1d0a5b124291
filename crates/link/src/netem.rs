//! A link by the kernel's own emulator: two interfaces bridged, netem (delay, loss) over tbf (rate) over the
//! queue's discipline on each way out. For hosts whose kernel has it; it does not know its own lateness.
//!
//! What differs from the model: loss strikes before the queue, the delay is ahead of it, and the rate counts the
//! Ethernet header (14 bytes) where `overhead` says less.

use crate::plan::{DirectionPlan, DisciplinePlan, LinePlan, LinkPlan, LossPlan};
use longfat_host::{monotonic_us, run_command, support::Missing};
use longfat_schema::{
    lines::Lines,
    record::{LinkSummary, Note, Record},
};
use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

const BRIDGE: &str = "lfbridge";
const ETHERNET_BYTES: u32 = 14;
/// netem counts its limit in packets and holds everything on the line: room for 10 Gbit/s of small packets.
const NETEM_LIMIT_PACKETS: u64 = 1_000_000;

/// Why a link cannot be run by netem.
#[derive(Debug, thiserror::Error)]
pub enum NetemError {
    /// The plan asks for what netem cannot do as the model does.
    #[error("link '{link}': netem cannot do {what}; use the default driver")]
    Unable {
        /// Which link.
        link: String,
        /// What it cannot do.
        what: &'static str,
    },
    /// A command failed, or its answer could not be read.
    #[error(transparent)]
    Host(#[from] longfat_host::Error),
    /// `tc` answered with something unexpected.
    #[error("read the statistics of 'tc': {0}")]
    Statistics(#[from] serde_json::Error),
    /// The samples could not be written.
    #[error("write the link's samples: {0}; is the disk full?")]
    Samples(std::io::Error),
}

/// What this host lacks: `tc`, and qdiscs tried in a namespace that vanishes at once.
pub fn missing() -> Vec<Missing> {
    if let Some(no_tc) = longfat_host::support::missing_program("tc", "iproute2") {
        return vec![no_tc];
    }
    let tries = [("netem", "delay 1ms"), ("tbf", "rate 1mbit burst 10kb limit 10kb")];
    let try_all = || tries.iter().filter_map(|(kind, options)| missing_qdisc(kind, options)).collect();
    let in_own_namespace = || {
        // SAFETY: changes the namespace of this short-lived thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            let why = std::io::Error::last_os_error().to_string();
            return vec![Missing::new("a network namespace to try netem in", why, "run it with sudo")];
        }
        try_all()
    };
    std::thread::scope(|scope| scope.spawn(in_own_namespace).join().unwrap_or_default())
}

fn missing_qdisc(kind: &str, options: &str) -> Option<Missing> {
    let mut command = Command::new("tc");
    command.args(["qdisc", "add", "dev", "lo", "root", kind]).args(options.split(' '));
    let error = run_command(command).err()?;
    let _ = run_command({
        let mut delete = Command::new("tc");
        delete.args(["qdisc", "del", "dev", "lo", "root"]);
        delete
    });
    let mend = format!("load the module sch_{kind}, or use the default driver (--driver af_packet)");
    Some(Missing::new(format!("the kernel's qdisc '{kind}'"), error.to_string(), mend))
}

/// The commands that make the link between interfaces `a` and `b`, in order, each as program and arguments.
///
/// # Errors
/// When netem cannot do what the plan asks for.
pub fn commands(plan: &LinkPlan, a: &str, b: &str) -> Result<Vec<String>, NetemError> {
    let mut all = vec![
        format!("ip link add {BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"),
        format!("ip link set dev {BRIDGE} mtu {} up", plan.mtu_bytes),
    ];
    for interface in [a, b] {
        all.push(format!("ip link set dev {interface} master {BRIDGE}"));
    }
    all.extend(direction(plan, &plan.forward, b)?);
    all.extend(direction(plan, &plan.backward, a)?);
    Ok(all)
}

fn direction(link: &LinkPlan, plan: &DirectionPlan, out: &str) -> Result<Vec<String>, NetemError> {
    let unable = |what| Err(NetemError::Unable { link: link.name.clone(), what });
    if plan.changes() {
        return unable("a schedule of changes, or a trace");
    }
    if plan.line.jitter_ns > 0 && !plan.reorder {
        return unable("jitter without reordering");
    }
    if plan.line.rate_bps == Some(0) {
        return unable("a rate of zero");
    }
    if matches!(plan.queue.discipline, DisciplinePlan::Droptail { mark_threshold_bytes: Some(_) }) {
        return unable("marks beyond a step threshold");
    }
    let mut all = vec![format!("tc qdisc add dev {out} root handle 1: netem {}", netem(&plan.line))];
    if let Some(rate_bps) = plan.line.rate_bps {
        // A burst of 1 ms, at least two packets: what tbf needs to reach the rate with a coarse timer.
        let burst = (rate_bps / 8000).max(2 * u64::from(link.mtu_bytes + ETHERNET_BYTES));
        let overhead = match plan.overhead_bytes.saturating_sub(ETHERNET_BYTES) {
            0 => String::new(),
            bytes => format!(" overhead {bytes}"),
        };
        let limit = plan.queue.limit_bytes;
        all.push(format!(
            "tc qdisc add dev {out} parent 1:1 handle 10: tbf rate {rate_bps}bit burst {burst} limit {limit}{overhead}"
        ));
        all.push(format!("tc qdisc add dev {out} parent 10:1 handle 20: {}", discipline(link, plan)));
    }
    Ok(all)
}

fn netem(line: &LinePlan) -> String {
    let mut text = format!("limit {NETEM_LIMIT_PACKETS}");
    // The model's jitter is uniform from 0 to J beyond the delay; netem's is uniform around it.
    let middle_us = (line.delay_ns + line.jitter_ns / 2) as f64 / 1e3;
    text += &format!(" delay {middle_us}us");
    if line.jitter_ns > 0 {
        text += &format!(" {}us", line.jitter_ns as f64 / 2e3);
    }
    let percent = |probability: f64| format!("{}%", probability * 100.0);
    match &line.loss {
        LossPlan::Bernoulli { probability } if *probability == 0.0 => {}
        LossPlan::Bernoulli { probability } => text += &format!(" loss random {}", percent(*probability)),
        LossPlan::GilbertElliott { to_bad, to_good, loss_bad, loss_good } => {
            let [p, r, bad, good] = [to_bad, to_good, loss_bad, loss_good].map(|value| percent(*value));
            text += &format!(" loss gemodel {p} {r} {bad} {good}");
        }
    }
    text
}

fn discipline(link: &LinkPlan, plan: &DirectionPlan) -> String {
    let (limit, ecn) = (plan.queue.limit_bytes, |on: bool| if on { " ecn" } else { "" });
    match &plan.queue.discipline {
        DisciplinePlan::Droptail { .. } => format!("bfifo limit {limit}"),
        DisciplinePlan::Red { red, ecn: marks } => {
            let (min, max, packet) = (red.min_threshold_bytes, red.max_threshold_bytes, link.mtu_bytes);
            // tc derives the weight from the burst: (2 min + max) / (3 packets) is its own advice.
            let burst = (2 * min + max) / (3 * u64::from(packet)) + 1;
            let probability = red.max_probability;
            format!(
                "red limit {limit} min {min} max {max} avpkt {packet} burst {burst} probability {probability} \
                 bandwidth {}bit{}",
                plan.line.rate_bps.unwrap_or_default(),
                ecn(*marks)
            )
        }
        DisciplinePlan::Codel(codel) => {
            let packets = limit / u64::from(link.mtu_bytes);
            let (target, interval) = (codel.target_ns / 1000, codel.interval_ns / 1000);
            format!("codel limit {packets} target {target}us interval {interval}us{}", ecn(codel.ecn))
        }
    }
}

/// Makes the link, waits for the stop flag, and reads what became of it.
///
/// # Errors
/// When the plan is beyond netem, or a command fails.
pub fn run(
    plan: &LinkPlan,
    [a, b]: [&str; 2],
    lines: &Lines,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> Result<[LinkSummary; 2], NetemError> {
    let mut made = Made::default();
    for line in commands(plan, a, b)? {
        run_command(words(&line))?;
        made.0.extend(undoing(&line));
    }
    ready();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let read = |interface: &str| run_command(words(&format!("tc -s -j qdisc show dev {interface}")));
    let forward = summary(plan, "forward", &read(b)?)?;
    let backward = summary(plan, "backward", &read(a)?)?;
    let message = "netem does not know its own lateness, and its queue is not sampled".to_owned();
    let (level, source) = ("warning".to_owned(), plan.name.clone());
    let note = Record::Note(Note { time_us: monotonic_us(), level, source, message });
    for record in [Record::Link(forward.clone()), Record::Link(backward.clone()), note] {
        lines.write(&record).map_err(NetemError::Samples)?;
    }
    lines.flush().map_err(NetemError::Samples)?;
    Ok([forward, backward])
}

/// What was made of a link, each as the command that takes it away; all of it is, at the end and after a fault.
#[derive(Default)]
struct Made(Vec<String>);

impl Drop for Made {
    fn drop(&mut self) {
        for line in self.0.iter().rev() {
            // An interface may have gone, and what stood on it with it.
            let _ = run_command(words(line));
        }
    }
}

/// The command that takes away what a command of [`commands`] made, with all that stands on it.
fn undoing(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["ip", "link", "add", bridge, ..] => Some(format!("ip link del {bridge}")),
        ["ip", "link", "set", "dev", interface, "master", ..] => {
            Some(format!("ip link set dev {interface} nomaster"))
        }
        ["tc", "qdisc", "add", "dev", interface, "root", ..] => {
            Some(format!("tc qdisc del dev {interface} root"))
        }
        _ => None,
    }
}

fn words(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Reads `tc -s -j qdisc show`: the root counts every drop, its children those of the queue.
fn summary(plan: &LinkPlan, direction: &str, json: &str) -> Result<LinkSummary, serde_json::Error> {
    let qdiscs: Vec<serde_json::Value> = serde_json::from_str(json)?;
    let of = |root: bool| qdiscs.iter().filter(move |qdisc| qdisc["root"].as_bool().unwrap_or(false) == root);
    let number = |qdisc: &serde_json::Value, field: &str| qdisc[field].as_u64().unwrap_or(0);
    let root_sum = |field| of(true).map(|qdisc| number(qdisc, field)).sum::<u64>();
    let dropped = of(false).map(|qdisc| number(qdisc, "drops")).max().unwrap_or(0);
    let marked = of(false).map(|qdisc| number(qdisc, "marked") + number(qdisc, "ecn_mark")).sum();
    let delivered = root_sum("packets");
    let gone = root_sum("drops").max(dropped);
    Ok(LinkSummary {
        link: plan.name.clone(),
        direction: direction.to_owned(),
        driver: "netem".to_owned(),
        offered_packets: delivered + gone,
        delivered_packets: delivered,
        delivered_bytes: root_sum("bytes"),
        dropped_packets: dropped,
        lost_packets: gone - dropped,
        marked_packets: marked,
        late_limit_us: plan.late_limit_ns / 1000,
        punctual: true,
        ..LinkSummary::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkSpec;

    fn plan(toml: &str) -> LinkPlan {
        LinkSpec::from_toml(toml).unwrap().resolve("path", 1).unwrap()
    }

    #[test]
    fn a_long_fat_path_becomes_netem_over_tbf_over_a_byte_queue_each_way() {
        let plan = plan(
            "rate = '100Mbit'\ndelay = '14.2ms'\nqueue = { limit = '355KB' }\nbackward = { rate = 'unlimited' }",
        );
        let all = commands(&plan, "a", "b").unwrap();
        assert_eq!(
            all[4..],
            [
                "tc qdisc add dev b root handle 1: netem limit 1000000 delay 14200us",
                "tc qdisc add dev b parent 1:1 handle 10: tbf rate 100000000bit burst 12500 limit 355000",
                "tc qdisc add dev b parent 10:1 handle 20: bfifo limit 355000",
                "tc qdisc add dev a root handle 1: netem limit 1000000 delay 14200us",
            ]
        );
    }

    #[test]
    fn whatever_is_made_is_taken_away_again_once() {
        let all = commands(&plan("rate = '100Mbit'\ndelay = '14.2ms'"), "a", "b").unwrap();
        let undone: Vec<String> = all.iter().filter_map(|line| undoing(line)).collect();
        assert_eq!(
            undone,
            [
                "ip link del lfbridge",
                "ip link set dev a nomaster",
                "ip link set dev b nomaster",
                "tc qdisc del dev b root",
                "tc qdisc del dev a root",
            ]
        );
    }

    #[test]
    fn loss_jitter_and_disciplines_are_said_in_the_words_of_tc() {
        let text = |toml: &str| commands(&plan(toml), "a", "b").unwrap().join("\n");
        assert!(text("delay = '10ms'\njitter = '4ms'\nreorder = true").contains("delay 12000us 2000us"));
        assert!(text("loss = 0.01").contains("loss random 1%"));
        assert!(text("loss = { to_bad = 0.01, to_good = 0.25 }").contains("loss gemodel 1% 25% 100% 0%"));
        let codel = text("rate = '1Mbit'\nqueue = { discipline = 'codel', ecn = true, limit = '15KB' }");
        assert!(codel.contains("codel limit 10 target 5000us interval 100000us ecn"), "{codel}");
        let red = text("rate = '1Mbit'\nqueue = { discipline = 'red', limit = '120KB' }");
        assert!(red.contains("red limit 120000 min 10000 max 30000 avpkt 1500 burst 12"), "{red}");
    }

    #[test]
    fn what_netem_cannot_do_is_refused_by_name() {
        for (toml, what) in [
            ("schedule = [{ at = '1s', loss = 0.1 }]", "a schedule of changes"),
            ("jitter = '1ms'", "jitter without reordering"),
            ("rate = '0bit'", "a rate of zero"),
            ("queue = { mark_threshold = '30KB' }", "marks beyond a step threshold"),
        ] {
            let message = commands(&plan(toml), "a", "b").unwrap_err().to_string();
            assert!(message.contains(what) && message.contains("use the default driver"), "{message}");
        }
    }

    #[test]
    fn statistics_tell_queue_drops_from_losses() {
        let json = r#"[{"kind":"netem","root":true,"bytes":150000,"packets":100,"drops":30},
                       {"kind":"tbf","parent":"1:1","bytes":150000,"packets":100,"drops":20},
                       {"kind":"red","parent":"10:1","packets":100,"drops":20,"marked":4}]"#;
        let found = summary(&plan("loss = 0.1"), "forward", json).unwrap();
        assert_eq!((found.offered_packets, found.dropped_packets, found.lost_packets), (130, 20, 10));
        assert_eq!((found.delivered_bytes, found.marked_packets), (150_000, 4));
    }
}
