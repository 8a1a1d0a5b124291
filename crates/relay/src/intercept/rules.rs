//! The nft program of an interception, and the record of who made it: text only, nothing is run here.

use crate::plan::{ConnectionPlan, Fail, MatchPlan, RelayPlan, RulePlan};
use std::{fmt::Write, sync::Arc};

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

/// The chains that take packets. SYNs are found by interface and rule, each rule sending them to its own listener;
/// without a listener the `tproxy` statement does not match, and they are forwarded unrelayed, or dropped by the next
/// line when the relay fails closed. Only `tproxy` knows that a SYN for a pair of addresses and ports in TIME_WAIT
/// begins a new connection. All other packets are found by their socket, whatever interface they come from (servers'
/// replies too): one look-up per packet, and no route.
pub(crate) fn chains(name: &str, plan: &RelayPlan, numbers: &Numbers, ports: &[ListenPorts]) -> String {
    let Numbers { mark, own_mark, .. } = numbers;
    let interfaces = plan.intercept.iter().flat_map(|intercept| &intercept.interfaces);
    let mut text = format!(
        "table inet {name} {{\nchain syn {{\n\
         iifname != {} return\n\
         fib daddr type local return\n",
        quoted(interfaces)
    );
    for line in syn_lines(plan, *mark, ports) {
        text.push_str(&line);
        text.push('\n');
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

/// What becomes of a SYN, rule by rule, for the IP families that each can match.
fn syn_lines(plan: &RelayPlan, mark: u32, ports: &[ListenPorts]) -> Vec<String> {
    let everything = [RulePlan {
        name: ConnectionPlan::DEFAULT_RULE.into(),
        matches: MatchPlan::default(),
        relay: Some(Arc::clone(&plan.defaults)),
    }];
    let rules = if plan.rules.is_empty() { &everything } else { plan.rules.as_slice() };
    let mut lines = Vec::new();
    for (rule, ports) in rules.iter().zip(ports) {
        let families = [("ipv4", "ip", "127.0.0.1", ports.ipv4), ("ipv6", "ip6", "[::1]", ports.ipv6)];
        for (protocol, family, address, port) in families {
            let Some(filter) = filter(&rule.matches, family) else { continue };
            let matched = format!("meta nfproto {protocol} meta l4proto tcp {filter}");
            match (&rule.relay, port) {
                (None, _) => lines.push(format!("{matched}return")),
                (Some(_), None) => {}
                (Some(_), Some(port)) => {
                    let to = format!("tproxy {family} to {address}:{port} meta mark set {mark:#x} accept");
                    lines.push(format!("{matched}{to}"));
                    if plan.fail == Fail::Closed {
                        lines.push(format!("{matched}drop"));
                    }
                }
            }
        }
    }
    lines
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let quoted: Vec<_> = names.into_iter().map(|name| format!("\"{name}\"")).collect();
    format!("{{ {} }}", quoted.join(", "))
}

/// Removes the rules and leaves the table, which is the record.
pub(crate) fn delete_rules(name: &str) -> String {
    format!("add table inet {name}\nflush table inet {name}\n")
}

/// Removes the table.
pub(crate) fn delete_table(name: &str) -> String {
    format!("add table inet {name}\ndelete table inet {name}\n")
}

/// What one rule matches in one family; none when it names only the other family.
fn filter(matches: &MatchPlan, family: &str) -> Option<String> {
    let mut text = String::new();
    if !matches.interfaces.is_empty() {
        let _ = write!(text, "iifname {} ", quoted(&matches.interfaces));
    }
    for (key, networks) in [("saddr", &matches.sources), ("daddr", &matches.destinations)] {
        if networks.is_empty() {
            continue;
        }
        let of_family = networks.iter().filter(|network| network.is_ipv4() == (family == "ip"));
        let networks: Vec<_> = of_family.map(ToString::to_string).collect();
        if networks.is_empty() {
            return None;
        }
        let _ = write!(text, "{family} {key} {{ {} }} ", networks.join(", "));
    }
    if !matches.ports.is_empty() {
        let ports: Vec<_> = matches.ports.iter().map(ToString::to_string).collect();
        let _ = write!(text, "tcp dport {{ {} }} ", ports.join(", "));
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

    fn lines(toml: &str) -> Vec<String> {
        let text = format!("[intercept]\ninterfaces = ['lan', 'wlan']\n{toml}");
        let plan = crate::spec::RelaySpec::parse(&text).unwrap().resolve().unwrap();
        let ports = |index| ListenPorts { ipv4: Some(5000 + index), ipv6: Some(6000 + index) };
        let ports: Vec<_> = (0..plan.rules.len().max(1)).map(|index| ports(index as u16)).collect();
        assert!(chains("longfat_x", &plan, &record().numbers, &ports).contains("\"lan\", \"wlan\" } return"));
        syn_lines(&plan, 1, &ports)
    }

    #[test]
    fn every_rule_has_a_line_per_family_in_the_order_of_the_file() {
        let found = lines(
            "[[rule]]\nport = 22\naction = 'pass'\n\
             [[rule]]\ninterface = 'lan'\nport = [80, '8000-8080']\ndestination = '192.0.2.0/24'\n\
             [[rule]]\nsource = ['10.0.0.0/8', '2001:db8::/32']\n",
        );
        assert_eq!(
            found,
            [
                "meta nfproto ipv4 meta l4proto tcp tcp dport { 22 } return",
                "meta nfproto ipv6 meta l4proto tcp tcp dport { 22 } return",
                "meta nfproto ipv4 meta l4proto tcp iifname { \"lan\" } ip daddr { 192.0.2.0/24 } tcp dport { 80, \
                 8000-8080 } tproxy ip to 127.0.0.1:5001 meta mark set 0x1 accept",
                "meta nfproto ipv4 meta l4proto tcp ip saddr { 10.0.0.0/8 } tproxy ip to 127.0.0.1:5002 meta mark set \
                 0x1 accept",
                "meta nfproto ipv6 meta l4proto tcp ip6 saddr { 2001:db8::/32 } tproxy ip6 to [::1]:6002 meta mark \
                 set 0x1 accept",
            ]
        );
    }

    #[test]
    fn without_rules_everything_is_taken_and_failing_closed_drops_what_nobody_takes() {
        assert_eq!(lines("").len(), 2);
        // Top-level keys stand before the tables.
        let plan = "fail = 'closed'\n[intercept]\ninterfaces = 'lan'\n";
        let plan = crate::spec::RelaySpec::parse(plan).unwrap().resolve().unwrap();
        let found = syn_lines(&plan, 1, &[ListenPorts { ipv4: Some(5), ipv6: None }]);
        assert!(found.len() == 2 && found[1].ends_with("tcp drop"), "{found:?}");
    }

    proptest! {
        #[test]
        fn any_listing_is_read_or_refused_without_panic(tail in ".{0,80}") {
            let _ = Record::parse(&format!("comment \"longfat relay {tail}"));
        }
    }
}
