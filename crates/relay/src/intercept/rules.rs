//! The nft program of an interception, and the record of who made it: text only, nothing is run here.

use crate::plan::InterceptPlan;
use std::fmt::Write;

/// Numbers and addresses of one interception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// Mark of packets that belong to the relay's sockets.
    pub mark: u32,
    /// Mark of packets the relay sends itself.
    pub own_mark: u32,
    /// Routing table that delivers marked packets locally.
    pub table: u32,
}

/// Who made an interception and what else must be undone: the comment of its nft table. The table is made first and
/// deleted last, so after a crash at any point it says what is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub pid: i32,
    /// Start time of the process in clock ticks: a later process may have the same pid.
    pub start_ticks: u64,
    pub numbers: Numbers,
    /// Forwarding sysctls found off and turned on.
    pub forwarding_ipv4: bool,
    pub forwarding_ipv6: bool,
}

impl Record {
    /// The table's comment (nft allows 128 bytes).
    pub fn comment(&self) -> String {
        format!(
            "longfat relay pid {} start {} mark {} own {} table {} fwd4 {} fwd6 {}",
            self.pid,
            self.start_ticks,
            self.numbers.mark,
            self.numbers.own_mark,
            self.numbers.table,
            u8::from(self.forwarding_ipv4),
            u8::from(self.forwarding_ipv6),
        )
    }

    /// Reads it back from what `nft list table` prints.
    pub fn parse(listing: &str) -> Option<Record> {
        let (_, rest) = listing.split_once("comment \"longfat relay ")?;
        let words: Vec<&str> = rest.split_once('"')?.0.split_whitespace().collect();
        let value = |name: &str| {
            let at = words.iter().step_by(2).position(|word| *word == name)?;
            words.get(at * 2 + 1)?.parse::<u64>().ok()
        };
        let number = |name: &str| value(name).and_then(|value| u32::try_from(value).ok());
        Some(Record {
            pid: i32::try_from(value("pid")?).ok()?,
            start_ticks: value("start")?,
            numbers: Numbers { mark: number("mark")?, own_mark: number("own")?, table: number("table")? },
            forwarding_ipv4: value("fwd4")? != 0,
            forwarding_ipv6: value("fwd6")? != 0,
        })
    }
}

/// Ports of the listeners on the loopback addresses; a family that this host lacks has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ListenPorts {
    pub ipv4: Option<u16>,
    pub ipv6: Option<u16>,
}

/// The table with its record and no rules.
pub(crate) fn table(name: &str, record: &Record) -> String {
    format!("create table inet {name} {{\ncomment \"{}\"\n}}\n", record.comment())
}

/// The chains that take packets. SYNs are found by interface and filter; without a listener the `tproxy` statement
/// does not match, and they are forwarded unrelayed. Only `tproxy` knows that a SYN for a pair of addresses and ports
/// in TIME_WAIT begins a new connection. All other packets are found by their socket, whatever interface they come
/// from (servers' replies too): one look-up per packet, and no route.
pub(crate) fn chains(name: &str, plan: &InterceptPlan, numbers: &Numbers, ports: ListenPorts) -> String {
    let Numbers { mark, own_mark, .. } = numbers;
    let mut text = format!("table inet {name} {{\nchain syn {{\nfib daddr type local return\n");
    let families = [("ipv4", "ip", "127.0.0.1", ports.ipv4), ("ipv6", "ip6", "[::1]", ports.ipv6)];
    for (protocol, family, address, port) in families {
        let Some(port) = port else { continue };
        let Some(filter) = filter(plan, family) else { continue };
        let _ = writeln!(
            text,
            "meta nfproto {protocol} meta l4proto tcp {filter}tproxy {family} to {address}:{port} meta mark set {mark:#x} accept"
        );
    }
    let _ = write!(
        text,
        "}}\nchain prerouting {{\n\
         type filter hook prerouting priority mangle; policy accept;\n\
         meta l4proto != tcp return\n\
         meta mark {own_mark:#x} return\n\
         tcp flags & (syn | ack | rst | fin) == syn goto syn\n\
         socket transparent 1 meta mark set {mark:#x} accept\n\
         }}\n}}\n"
    );
    text
}

/// Removes the rules and leaves the table, which is the record.
pub(crate) fn delete_rules(name: &str) -> String {
    format!("add table inet {name}\nflush table inet {name}\n")
}

/// Removes the table.
pub(crate) fn delete_table(name: &str) -> String {
    format!("add table inet {name}\ndelete table inet {name}\n")
}

/// Interface, ports and destinations of one family; none when the filter names only the other family.
fn filter(plan: &InterceptPlan, family: &str) -> Option<String> {
    let interfaces: Vec<_> = plan.interfaces.iter().map(|name| format!("\"{name}\"")).collect();
    let mut text = format!("iifname {{ {} }} ", interfaces.join(", "));
    if !plan.ports.is_empty() {
        let ports: Vec<_> = plan.ports.iter().map(ToString::to_string).collect();
        let _ = write!(text, "tcp dport {{ {} }} ", ports.join(", "));
    }
    if !plan.destinations.is_empty() {
        let of_family = plan.destinations.iter().filter(|network| network.is_ipv4() == (family == "ip"));
        let networks: Vec<_> = of_family.map(ToString::to_string).collect();
        if networks.is_empty() {
            return None;
        }
        let _ = write!(text, "{family} daddr {{ {} }} ", networks.join(", "));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> Record {
        Record {
            pid: 4_194_304,
            start_ticks: u64::MAX,
            numbers: Numbers { mark: u32::MAX - 1, own_mark: u32::MAX, table: u32::MAX },
            forwarding_ipv4: true,
            forwarding_ipv6: false,
        }
    }

    #[test]
    fn the_record_is_read_back_from_the_tables_comment() {
        let comment = record().comment();
        assert!(comment.len() <= 127, "{} bytes", comment.len());
        let listing = format!("table inet longfat_x {{\n\tcomment \"{comment}\"\n}}\n");
        assert_eq!(Record::parse(&listing), Some(record()));
        assert_eq!(Record::parse("table inet longfat_x {\n\tcomment \"of somebody else\"\n}"), None);
    }

    #[test]
    fn filters_apply_per_family() {
        let plan = InterceptPlan {
            interfaces: vec!["lan".into(), "wlan".into()],
            ports: vec!["80".parse().unwrap(), "8000-8080".parse().unwrap()],
            destinations: vec!["192.0.2.0/24".parse().unwrap()],
            ..Default::default()
        };
        let ports = ListenPorts { ipv4: Some(5000), ipv6: Some(5001) };
        let text = chains("longfat_x", &plan, &record().numbers, ports);
        assert!(
            text.contains(
                r#"iifname { "lan", "wlan" } tcp dport { 80, 8000-8080 } ip daddr { 192.0.2.0/24 }"#
            )
        );
        assert!(text.contains("tproxy ip to 127.0.0.1:5000") && !text.contains("tproxy ip6"), "{text}");
    }

    proptest! {
        #[test]
        fn any_listing_is_read_or_refused_without_panic(tail in ".{0,80}") {
            let _ = Record::parse(&format!("comment \"longfat relay {tail}"));
        }
    }
}
