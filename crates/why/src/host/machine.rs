//! Interfaces, processors and tables of a host.

use super::{Advice, Asked, Ground, JUMBO_BYTES};
use crate::words::{duration, rate};

pub(super) fn advice(asked: &Asked) -> Vec<Advice> {
    let mut found: Vec<Advice> =
        interfaces(asked).iter().flat_map(|name| of_interface(asked, name)).collect();
    found.extend([conntrack(asked), clock(asked)].into_iter().flatten());
    found
}

/// By their MTU, which all have.
fn interfaces<'a>(asked: &'a Asked) -> Vec<&'a str> {
    let names = asked.settings.keys().filter_map(|key| key.strip_prefix("link ")?.strip_suffix(" mtu"));
    names.collect()
}

fn of_interface(asked: &Asked, name: &str) -> Vec<Advice> {
    let mut found =
        vec![mtu(asked, name), qdisc(asked, name), queue_length(asked, name), steering(asked, name)];
    found.push(ring(asked, name, "rx"));
    found.push(ring(asked, name, "tx"));
    found.extend(OFFLOADS.iter().map(|offload| self::offload(asked, name, offload)));
    found.into_iter().flatten().collect()
}

fn of(setting: String, value: &str, costs: String, mend: String, ground: Ground) -> Advice {
    Advice { setting, value: value.to_owned(), costs, share: None, only: None, mend: Some(mend), ground }
}

/// Full packets a second of the path.
fn packets_per_s(asked: &Asked) -> f64 {
    asked.path.path.rate.0 as f64 / 8.0 / f64::from(asked.path.path.mtu_bytes)
}

fn mtu(asked: &Asked, name: &str) -> Option<Advice> {
    let key = format!("link {name} mtu");
    let value = asked.settings.get(&key)?;
    let bytes: u32 = value.parse().ok()?;
    let headers = f64::from(longfat_path_plan::HEADER_BYTES);
    let share = headers / f64::from(bytes.max(1)) - headers / f64::from(JUMBO_BYTES);
    let costs = format!("headers take {:.1} % of the path", 100.0 * headers / f64::from(bytes.max(1)));
    let mend = format!("ip link set dev {name} mtu {JUMBO_BYTES}");
    let advice = of(key, value, costs, mend, Ground::Book("fasterdata.es.net, MTU; RFC 4821"));
    let only = Some("paths that carry such packets from end to end");
    (bytes < JUMBO_BYTES && share > 0.02).then_some(Advice { share: Some(share), only, ..advice })
}

/// A rate that a queueing discipline holds, as `tbf 100000000`.
fn qdisc(asked: &Asked, name: &str) -> Option<Advice> {
    let key = format!("qdisc {name}");
    let value = asked.settings.get(&key)?;
    let held: f64 = value.split_whitespace().find_map(|word| word.strip_prefix("rate="))?.parse().ok()?;
    let most = asked.path.path.rate.0 as f64;
    let share = 1.0 - held / most;
    let costs = format!("holds {} of {}", rate(held), rate(most));
    let mend = format!("tc qdisc del dev {name} root");
    let ground = Ground::Measured("the rate that it is set to".to_owned());
    Asked::is_worth(share).then(|| Advice { share: Some(share), ..of(key, value, costs, mend, ground) })
}

/// Drops of the queueing discipline say that its queue is too short for the host's bursts.
fn queue_length(asked: &Asked, name: &str) -> Option<Advice> {
    let drops = asked.counts.get(&format!("drops {name} qdisc")).copied().filter(|drops| *drops > 0.0)?;
    let key = format!("link {name} txqueuelen");
    let value = asked.settings.get(&key)?;
    let now: f64 = value.parse().ok()?;
    let costs = format!("{drops:.0} packets were dropped by this host before they left it");
    let mend = format!("ip link set dev {name} txqueuelen {:.0}", (now * 10.0).clamp(1000.0, 10_000.0));
    Some(of(key, value, costs, mend, Ground::Measured(format!("tc -s qdisc, {drops:.0} dropped"))))
}

fn ring(asked: &Asked, name: &str, way: &str) -> Option<Advice> {
    let key = format!("ring {name} {way}");
    let value = asked.settings.get(&key)?;
    let now: f64 = value.parse().ok()?;
    let most = asked.counts.get(&format!("ring {name} {way} most")).copied().filter(|most| *most > now)?;
    let lasts = duration((now / packets_per_s(asked) * 1e6) as u64);
    let drops = asked.counts.get(&format!("drops {name} {way}")).copied().unwrap_or(0.0);
    let (ground, what) = match drops {
        some if some > 0.0 => (Ground::Measured(format!("{some:.0} packets dropped")), ""),
        _ => (Ground::Book("fasterdata.es.net, NIC tuning"), " (none was dropped so far)"),
    };
    let costs = format!("full after {lasts} in which no processor attends to it{what}");
    let mend = format!("ethtool -G {name} {way} {most:.0}");
    Some(of(key, value, costs, mend, ground))
}

/// Offloads without which each packet goes through the host alone, and their letters for ethtool -K.
const OFFLOADS: [(&str, &str); 3] = [
    ("tcp-segmentation-offload", "tso"),
    ("generic-segmentation-offload", "gso"),
    ("generic-receive-offload", "gro"),
];

fn offload(asked: &Asked, name: &str, (feature, short): &(&str, &str)) -> Option<Advice> {
    let key = format!("offload {name} {feature}");
    let value = asked.settings.get(&key).filter(|value| value.as_str() == "off")?;
    let costs = format!(
        "{:.0} packets a second go through this host one by one instead of up to 45 at once",
        packets_per_s(asked)
    );
    let mend = format!("ethtool -K {name} {short} on");
    Some(of(key, value, costs, mend, Ground::Book("Documentation/networking/segmentation-offloads.rst")))
}

/// Packets that one processor of today takes through the kernel in a second, without offloads: roughly.
const ONE_PROCESSOR_PACKETS_PER_S: f64 = 500_000.0;

/// One queue, and nobody passes its packets on to other processors.
fn steering(asked: &Asked, name: &str) -> Option<Advice> {
    let prefix = format!("rps {name} ");
    let queues: Vec<_> = asked.settings.iter().filter(|(key, _)| key.starts_with(&prefix)).collect();
    let (key, mask) = queues.first()?;
    let processors = asked.counts.get("processors").copied().unwrap_or(1.0);
    let is_alone = queues.len() == 1 && mask.chars().all(|digit| matches!(digit, '0' | ','));
    let packets = packets_per_s(asked);
    if !is_alone || processors < 2.0 || packets < ONE_PROCESSOR_PACKETS_PER_S {
        return None;
    }
    let all = (1_u64 << (processors as u32).min(32)) - 1;
    let queue = key.rsplit(' ').next().unwrap_or("rx-0");
    let mend = format!("echo {all:x} > /sys/class/net/{name}/queues/{queue}/rps_cpus");
    let costs = format!("up to {packets:.0} packets a second come through one queue to one processor");
    Some(of((*key).clone(), mask, costs, mend, Ground::Book("Documentation/networking/scaling.rst")))
}

/// From this part of the table on, there is little room left.
const NEARLY_FULL: f64 = 0.8;

fn conntrack(asked: &Asked) -> Option<Advice> {
    let key = "net.netfilter.nf_conntrack_max";
    let most = asked.number(key)? as f64;
    let entries = asked.counts.get("conntrack entries").copied()?;
    let costs =
        format!("{entries:.0} of {most:.0} entries are taken: new connections are dropped when it is full");
    let ground = Ground::Measured("nf_conntrack_count".to_owned());
    let better = format!("{:.0}", most * 4.0);
    (entries > NEARLY_FULL * most)
        .then(|| super::of_sysctl(key, asked.sysctl(key).unwrap_or_default(), costs, &better, ground))
}

/// A clock that takes longer to read is not read in user space.
const SLOW_CLOCK_NS: f64 = 200.0;
/// Reads of the clock for a packet: its time of departure, and the acknowledgement's of arrival.
const READS_FOR_A_PACKET: f64 = 2.0;

fn clock(asked: &Asked) -> Option<Advice> {
    let value = asked.settings.get("clocksource")?;
    let read_ns = asked.counts.get("clock read ns").copied().filter(|ns| *ns > SLOW_CLOCK_NS)?;
    let part = READS_FOR_A_PACKET * read_ns * packets_per_s(asked) / 1e9;
    let costs =
        format!("reading it takes {read_ns:.0} ns: {:.0} % of a processor on this path", 100.0 * part);
    let mend = "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource".to_owned();
    Some(of(
        "clocksource".to_owned(),
        value,
        costs,
        mend,
        Ground::Measured(format!("{read_ns:.0} ns a read")),
    ))
}
