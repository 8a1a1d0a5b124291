//! The nft program of an interception, and the record of who made it: text only, nothing is run here.

mod end_to_end;

use crate::{
    legs::steer,
    logic::one_way::{ONE_WAY_SECONDS, OneWay},
    plan::{
        Accept, ConnectionPlan, Fail, MatchPlan, Mptcp, RelayPlan, RulePlan, destination,
        marks::{HoldSlot, Marks, TAKEN_BIT},
    },
};
use std::{fmt::Write, net::IpAddr, sync::Arc, time::Duration};

/// How long the pair of a SYN is remembered: a handshake by cookies takes a round trip, and a retransmission or two.
const PAIR_SECONDS: u64 = 5;
/// Pairs remembered per rule and family: at 50,000 new connections a second, all of them.
const PAIRS: u32 = 1 << 18;

/// Pairs of hosts per family, and ports of servers per client, that pass because they go one way.
const ONE_WAY_PAIRS: u32 = 1 << 12;

/// What every relay's table is called, before its name.
pub(super) const TABLE_PREFIX: &str = "longfat_";

/// The maker of an interception and what else must be undone: the comment of its nft table. The table is made first and
/// deleted last, so after a crash at any point it says what is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub pid: i32,
    /// Start time of the process in clock ticks: a later process may have the same pid.
    pub start_ticks: u64,
    /// The PID namespace that its number is of; records of older versions do not say.
    pub pid_namespace: Option<u64>,
    pub numbers: Marks,
    /// Forwarding sysctls found off and turned on, by this relay or another that lived then: IPv4's and IPv6's.
    pub forwarding: [bool; 2],
    /// The relay fails closed: when it is dead its table goes on refusing connections until somebody removes it.
    pub keep: bool,
}

impl Record {
    /// The table's comment (nft allows 128 bytes: after 3000 years of uptime it is too long).
    pub fn comment(&self) -> String {
        let namespace = self.pid_namespace.map(|inode| format!(" ns {inode}")).unwrap_or_default();
        format!(
            "longfat relay pid {} start {} mark {} own {} table {} fwd4 {} fwd6 {} keep {}{namespace}",
            self.pid,
            self.start_ticks,
            self.numbers.mark,
            self.numbers.own_mark,
            self.numbers.table,
            u8::from(self.forwarding[0]),
            u8::from(self.forwarding[1]),
            u8::from(self.keep),
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
            pid_namespace: value("ns"),
            numbers: Marks { mark: number("mark")?, own_mark: number("own")?, table: number("table")? },
            forwarding: [value("fwd4")? != 0, value("fwd6")? != 0],
            keep: value("keep")? != 0,
        })
    }
}

/// Ports of the listeners on the loopback addresses; a family that this host lacks has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ListenPorts {
    pub ipv4: Option<u16>,
    pub ipv6: Option<u16>,
}

/// The nft table of a relay.
pub(crate) fn table_name(name: &str) -> String {
    format!("{TABLE_PREFIX}{}", name.replace('-', "_"))
}

/// Whether new connections are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taking {
    Yes,
    /// None but those whose handshake is under way.
    No,
}

/// The table with its record and no rules.
pub(crate) fn table(name: &str, record: &Record) -> String {
    format!("create table inet {name} {{\ncomment \"{}\"\n}}\n", record.comment())
}

/// The table, with its record and these chains, instead of the one that stands: at no moment there is none.
pub(crate) fn replace(name: &str, record: &Record, chains: &str) -> String {
    format!("{}{}{chains}", delete_table(name), table(name, record))
}

/// Whether packets can be kept out of conntrack (`notrack`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Untracked {
    Can,
    /// The kernel has no nft_ct.
    Cannot,
}

impl Untracked {
    fn statement(self) -> &'static str {
        match self {
            Untracked::Can => "notrack ",
            Untracked::Cannot => "",
        }
    }
}

/// What others do for the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Means {
    pub untracked: Untracked,
    /// A program at tc marks packets of connections that are only watched, and there are no others.
    pub tells_watched: bool,
}

impl Means {
    /// The first of the early chain, the last of it, and the first of the late one.
    fn watched_lines(self, numbers: &Marks) -> [String; 3] {
        if !self.tells_watched {
            return Default::default();
        }
        let early = server_lines(numbers.own_mark, numbers.taken_mark());
        // Nobody has translated the addresses of a connection that is known from its handshake on.
        [end_to_end::watched_line(numbers.own_mark), early, "meta mark 0 return\n".into()]
    }
}

/// Matches a packet that begins no connection.
const NOT_SYN: &str = "tcp flags & (syn | ack | rst | fin) != syn";
const SYN: &str = "tcp flags & (syn | ack | rst | fin) == syn";
/// To this host, or to many, as its routes say.
const NOT_ELSEWHERE: &str = "fib daddr type { local, anycast, broadcast, multicast } return";
const ICMP: &str = "meta l4proto { 1, 58 }";

/// A client's SYN with one of these TCP options begins what the relay cannot carry: MD5 signatures (RFC 2385) and
/// TCP-AO (RFC 5925) cover what only the ends may send, and MP_JOIN (RFC 8684) adds to a connection that passes
/// elsewhere.
const NOT_CARRIED: [&str; 3] = ["tcp option 19 exists", "tcp option 29 exists", "tcp option mptcp subtype 1"];
/// MP_CAPABLE of a client that would use several ways (RFC 8684).
const MP_CAPABLE: &str = "tcp option mptcp subtype 0";

/// The chains that take packets.
///
/// Both legs of a connection go from the client's address and port to the server's: conntrack would take them for one
/// connection, whose sequence numbers are out of order, and address translation would leave both alone. So the clients'
/// legs are not tracked, before conntrack looks (`clients`, `output`); the servers' are, and are found when their
/// addresses are translated back (`servers`). The client's interfaces tell the legs apart, so that where both are
/// behind one of them neither is tracked.
///
/// Clients' SYNs are found by interface and rule, each rule sending them to its own listener;
/// without a listener the `tproxy` statement does not match, and they are forwarded unrelayed, or dropped by the next
/// line when the relay fails closed. Only `tproxy` knows that a SYN for a pair of addresses and ports in TIME_WAIT
/// begins a new connection. What the relay cannot carry passes, or is dropped when the relay fails closed. All other
/// packets are found by their socket, whatever interface they come from: one look-up per packet, and no route. They
/// come first, for they are nearly all; only the relay's own packets, should they come back, must not be taken for
/// their other leg's. ICMP errors about the relay's packets quote somebody else's address as their source, and belong
/// to its sockets all the same: path MTU discovery lives from them.
///
/// Where connections are only watched, packets of those that nobody has stepped into come with a mark, and are looked
/// at no further ([`end_to_end::watched_line`]). Without the program that marks them all are looked at.
///
/// A program at tc gives most packets of living connections the mark of what is taken (`carried_mark` of alike.bpf.c):
/// they need no look-up.
///
/// What is taken first gets a mark that no route knows, and the one that delivers it when firewalls have looked
/// for a way back to its source (`fib saddr . mark …`), which by the other mark would be this host itself.
pub(crate) fn chains(
    name: &str,
    plan: &RelayPlan,
    numbers: &Marks,
    ports: &[ListenPorts],
    taking: Taking,
    means: Means,
    log_group: u16,
) -> String {
    let (Marks { mark, own_mark, .. }, taken_mark) = (numbers, numbers.taken_mark());
    let untracked = means.untracked;
    let [watched, early, late] = means.watched_lines(numbers);
    let interfaces = quoted(plan.intercept.iter().flat_map(|intercept| &intercept.interfaces));
    let lfh = numbers.hold_interfaces();
    let notrack = untracked.statement();
    let take = marked(taken_mark, untracked);
    let mut text = format!(
        "table inet {name} {{\n{}chain held {{\n\
         {}meta mark set meta mark ^ {TAKEN_BIT:#x} accept\n\
         }}\nchain answered {{\n\
         {}drop\n\
         }}\nchain syn {{\n\
         {}{NOT_ELSEWHERE}\n\
         ip daddr {{ {} }} return\n\
         ip6 daddr {{ {} }} return\n",
        sets(plan, taking) + &end_to_end::unhooked_chains(plan, ports, &interfaces, notrack),
        match untracked {
            // Where its interface is gone it is forwarded.
            Untracked::Can => format!("fib daddr . mark oifname \"{lfh}\" notrack\n"),
            Untracked::Cannot => String::new(),
        },
        answered_lines(plan, numbers, ports, untracked),
        if plan.fail == Fail::Open { PASS_SATED } else { "" },
        destination::never_taken("ip"),
        destination::never_taken("ip6"),
    );
    if plan.fail == Fail::Open {
        let ways = |family| {
            format!(
                "{family} saddr . {family} daddr @one_way_{family} return\n\
                 {family} saddr . {family} daddr . tcp dport @silent_{family} return\n"
            )
        };
        text.push_str(&["ip", "ip6"].map(ways).concat());
        NOT_CARRIED.iter().for_each(|option| text.push_str(&format!("{option} return\n")));
    }
    let nobody = vec![ListenPorts::default(); ports.len()];
    for line in
        syn_lines(plan, numbers, if taking == Taking::Yes { ports } else { &nobody }, &take, log_group)
    {
        text.push_str(&line);
        text.push('\n');
    }
    let _ = write!(
        text,
        "}}\nchain client {{\n\
         meta mark {own_mark:#x} return\n\
         meta mark {taken_mark:#x} {notrack}accept\n\
         {shaken}{NOT_SYN} socket transparent 1 {take}\n\
         {SYN} goto syn\n\
         {ICMP} socket transparent 1 {take}\n\
         meta l4proto != tcp return\n\
         {cookies}}}\nchain clients {{\n\
         type filter hook prerouting priority raw; policy accept;\n\
         {watched}iifname {interfaces} goto client\n\
         meta mark {taken_mark:#x} accept\n\
         iifname \"{lfh}\" {SYN} goto answered\n\
         {back}{early}}}\nchain servers {{\n\
         type filter hook prerouting priority {LATE}; policy accept;\n\
         {clocks}{late}meta mark {taken_mark:#x} meta mark set {mark:#x} accept\n\
         {unmark}{servers}\
         {SYN} meta mark {held} meta mark set meta mark ^ {TAKEN_BIT:#x} accept\n\
         iifname \"{lfh}\" {SYN} meta mark set {mark:#x} accept\n\
         {answers}}}\n{passed}{leaving}",
        held = numbers.held_marks(),
        cookies = cookie_lines(plan, ports, &take),
        shaken = end_to_end::held_lines(plan, numbers),
        back = end_to_end::back_lines(plan, numbers),
        servers = server_lines(*own_mark, *mark),
        unmark = end_to_end::unmark_line(plan, numbers),
        answers = end_to_end::answer_lines(plan, log_group),
        passed = end_to_end::passed_chain(plan, *own_mark),
        clocks = end_to_end::clock_lines(plan, *own_mark, (taking, log_group)),
        leaving = end_to_end::leaving_chain(plan, *own_mark, taking),
    );
    if untracked == Untracked::Can {
        text.push_str(&output_chain(*own_mark, &interfaces, notrack));
    }
    text.push_str("}\n");
    text
}

/// Packets from servers, found by their sockets.
fn server_lines(own_mark: u32, mark: u32) -> String {
    format!(
        "meta mark {own_mark:#x} return\n\
         {NOT_SYN} socket transparent 1 meta mark set {mark:#x} accept\n\
         {ICMP} socket transparent 1 meta mark set {mark:#x} accept\n"
    )
}

/// Keeps what clients' legs send out of conntrack. A SYN without ACK is no client's leg: it goes to a server, or
/// passes.
fn output_chain(own_mark: u32, interfaces: &str, notrack: &str) -> String {
    format!(
        "chain output {{\n\
         type filter hook output priority raw; policy accept;\n\
         meta mark != {own_mark:#x} return\n\
         oifname != {interfaces} return\n\
         tcp flags & (syn | ack) == syn return\n\
         {notrack}\n\
         }}\n"
    )
}

/// After destinations are translated (-100), and after firewalls have looked for a way back (firewalld: 10).
const LATE: &str = "50";

/// What is done with a packet of a client's leg.
fn marked(mark: u32, untracked: Untracked) -> String {
    format!("meta mark set {mark:#x} {}accept", untracked.statement())
}

/// The protocol, family, address and port of a rule's listeners.
fn families(ports: &ListenPorts) -> [(&'static str, &'static str, &'static str, Option<u16>); 2] {
    [("ipv4", "ip", "127.0.0.1", ports.ipv4), ("ipv6", "ip6", "[::1]", ports.ipv6)]
}

fn sets(plan: &RelayPlan, taking: Taking) -> String {
    pair_sets(plan) + &end_to_end::sets(plan) + &end_to_end::clock_sets(plan, taking) + &one_way_sets()
}

/// The pairs whose SYNs a rule took lately. When so many SYNs wait that the kernel answers by cookies, it keeps no
/// socket for them, and only this tells the ACKs that complete a handshake from those of connections that pass. When
/// it is full, `add` does not match, and SYNs pass unrelayed: a flood cannot take more than this. (Those that were held
/// do not pass any more: each waits for a retransmission.)
fn pair_sets(plan: &RelayPlan) -> String {
    let mut text = String::new();
    for (set, address) in SATED.iter().filter(|_| plan.fail == Fail::Open) {
        let _ = writeln!(text, "set {set} {{ type {address}; }}");
    }
    for (rule, _) in plan.intercepted_ways() {
        for (family, address) in [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")] {
            text.push_str(&pair_set(&format!("{family}_{rule}"), address, Duration::from_secs(PAIR_SECONDS)));
        }
    }
    text
}

/// A set of pairs of addresses and ports, as [`pair`] finds them in packets, each for so long.
fn pair_set(name: &str, address: &str, life: Duration) -> String {
    format!(
        "set {name} {{ type {address} . inet_service . {address} . inet_service; flags dynamic, timeout; \
         timeout {}ms; size {PAIRS}; }}\n",
        life.as_millis()
    )
}

/// The pairs of hosts whose connections pass for a while, and those of which only the connections to one port do.
fn one_way_sets() -> String {
    let rest = format!("flags timeout; timeout {ONE_WAY_SECONDS}s; size {ONE_WAY_PAIRS};");
    let sets = |(family, address)| {
        format!(
            "set one_way_{family} {{ type {address} . {address}; {rest} }}\n\
             set silent_{family} {{ type {address} . {address} . inet_service; {rest} }}\n"
        )
    };
    [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")].map(sets).concat()
}

/// Adds to them.
pub(crate) fn pass(name: &str, ways: &[OneWay]) -> String {
    let element = |way: &OneWay| format!("add element inet {name} {} {{ {} }}\n", way.set(), way.element());
    ways.iter().map(element).collect()
}

/// The addresses and ports of a packet, as the sets of [`pair_sets`] have them.
fn pair(family: &str) -> String {
    format!("{family} saddr . tcp sport . {family} daddr . tcp dport")
}

/// Takes a SYN and remembers its pair.
fn take_syn(rule: usize, family: &str, to: &str, take: &str) -> String {
    let remember = remember(rule, family);
    format!("{remember} tproxy {family} to {to} {take}")
}

fn remember(rule: usize, family: &str) -> String {
    format!("add @{family}_{rule} {{ {} }}", pair(family))
}

/// ACKs of pairs whose SYNs were taken and that have no socket.
fn cookie_lines(plan: &RelayPlan, ports: &[ListenPorts], take: &str) -> String {
    let mut text = String::new();
    for (rule, _) in plan.intercepted_ways().filter(|(_, way)| way.accept != Accept::EndToEnd) {
        let Some(ports) = ports.get(rule) else { continue };
        for (protocol, family, address, port) in families(ports) {
            let Some(port) = port else { continue };
            let _ = writeln!(
                text,
                "meta nfproto {protocol} tcp flags & (syn | ack | rst | fin) == ack {} @{family}_{rule} \
                 tproxy {family} to {address}:{port} {take}",
                pair(family)
            );
        }
    }
    text
}

/// SYNs that were held and whose servers have answered: they come back by their place's interface, and go to the
/// listener of the worker that held them. (What comes back to nobody is dropped, not forwarded: its server has the
/// relay's leg by that name.)
fn answered_lines(plan: &RelayPlan, numbers: &Marks, ports: &[ListenPorts], untracked: Untracked) -> String {
    let mut text = String::new();
    for (rule, _) in plan.intercepted_ways().filter(|(_, way)| way.accept == Accept::AfterServer) {
        let Some(ports) = ports.get(rule) else { continue };
        for (protocol, family, address, port) in families(ports) {
            let Some(port) = port else { continue };
            for place in (0..plan.holders()).map(|holder| HoldSlot { rule, holder }) {
                let _ = writeln!(
                    text,
                    "iifname \"{}\" meta nfproto {protocol} meta l4proto tcp {} meta mark set {:#x} \
                     tproxy {family} to {address}:{port} {}",
                    numbers.hold_interface(place),
                    remember(rule, family),
                    steer::mark(place.holder),
                    marked(numbers.hold_mark(place), untracked),
                );
            }
        }
    }
    text
}

/// Marks a SYN for the place where it is held: always the same one for the same two addresses.
fn hold_syn(rule: usize, family: &str, numbers: &Marks, holders: usize) -> String {
    let mark = mark_by_holder(family, numbers, holders, numbers.hold_mark(HoldSlot { rule, holder: 0 }));
    format!("{mark} goto held")
}

/// Has it go to the listener of the worker that would hold it: what comes after it from the same port is that worker's,
/// too.
fn choose_holder(family: &str, numbers: &Marks, holders: usize) -> String {
    mark_by_holder(family, numbers, holders, steer::mark(0))
}

/// The first mark, or one of those after it, by the worker that holds such a SYN.
fn mark_by_holder(family: &str, numbers: &Marks, holders: usize, first: u32) -> String {
    match holders {
        1 => format!("meta mark set {first:#x}"),
        _ => format!(
            "meta mark set jhash {family} saddr . {family} daddr mod {holders} seed {:#x} offset {first}",
            numbers.mark
        ),
    }
}

/// More than this of a rule and family is a flood, or nearly: the kernel answers the rest itself, by cookies if need
/// be, and the worker that holds SYNs sees none of it.
const HOLDING: &str = "limit rate 4096/second burst 256 packets";

/// Clients that have their share, by family: what else they open passes. Where nothing passes nobody is in them.
const SATED: [(&str, &str); 2] = [("sated_ip", "ipv4_addr"), ("sated_ip6", "ipv6_addr")];
const PASS_SATED: &str = "ip saddr @sated_ip return\nip6 saddr @sated_ip6 return\n";

/// Excludes these clients, and no others: they have their share now.
pub(crate) fn exclude<'c>(name: &str, clients: impl IntoIterator<Item = &'c IpAddr>) -> String {
    let (four, six): (Vec<&IpAddr>, Vec<&IpAddr>) = clients.into_iter().partition(|client| client.is_ipv4());
    let mut text = String::new();
    for ((set, _), clients) in SATED.iter().zip([four, six]) {
        let _ = writeln!(text, "flush set inet {name} {set}");
        let clients: Vec<_> = clients.iter().map(ToString::to_string).collect();
        if !clients.is_empty() {
            let _ = writeln!(text, "add element inet {name} {set} {{ {} }}", clients.join(", "));
        }
    }
    text
}

/// What becomes of a SYN, rule by rule, for the IP families that each can match.
fn syn_lines(
    plan: &RelayPlan,
    numbers: &Marks,
    ports: &[ListenPorts],
    take: &str,
    log_group: u16,
) -> Vec<String> {
    let everything = [RulePlan {
        name: ConnectionPlan::DEFAULT_RULE.into(),
        matches: MatchPlan::default(),
        relay: Some(Arc::clone(&plan.defaults)),
    }];
    let rules = if plan.rules.is_empty() { &everything } else { plan.rules.as_slice() };
    let mut lines = Vec::new();
    for (index, (rule, ports)) in rules.iter().zip(ports).enumerate() {
        for (protocol, family, address, port) in families(ports) {
            let Some(filter) = filter(&rule.matches, family) else { continue };
            let matched = format!("meta nfproto {protocol} meta l4proto tcp {filter}");
            if rule.relay.is_some() {
                lines.extend(not_carried_lines(&matched, rule.relay.as_deref(), plan.fail));
            }
            match (&rule.relay, port) {
                (None, _) => lines.push(format!("{matched}return")),
                (Some(_), None) if plan.fail == Fail::Closed => lines.push(format!("{matched}drop")),
                (Some(_), None) => {}
                (Some(way), Some(port)) if way.accept == Accept::AfterServer => {
                    // A pair the kernel knows: a handshake under way, or TIME_WAIT, with which a forwarded packet would
                    // be dropped.
                    let take = take_syn(index, family, &format!("{address}:{port}"), take);
                    let choose = choose_holder(family, numbers, plan.holders());
                    lines.push(format!("{matched}socket transparent 1 {choose} {take}"));
                    let hold = hold_syn(index, family, numbers, plan.holders());
                    lines.push(format!("{matched}{HOLDING} {hold}"));
                    lines.push(format!("{matched}{take}"));
                    if plan.fail == Fail::Closed {
                        lines.push(format!("{matched}drop"));
                    }
                }
                (Some(way), Some(_)) if way.is_watched() => {
                    lines.extend(end_to_end::watched_syn_lines(&matched, take));
                }
                (Some(way), Some(_)) if way.accept == Accept::EndToEnd => {
                    lines.extend(end_to_end::syn_lines(&matched, (index, family), take, log_group));
                }
                (Some(_), Some(port)) => {
                    let take = take_syn(index, family, &format!("{address}:{port}"), take);
                    lines.push(format!("{matched}{take}"));
                    if plan.fail == Fail::Closed {
                        lines.push(format!("{matched}drop"));
                    }
                }
            }
        }
    }
    lines
}

/// What becomes of SYNs by which connections begin that cannot be two, or shall not.
fn not_carried_lines(matched: &str, way: Option<&ConnectionPlan>, fail: Fail) -> Vec<String> {
    // Where the relay fails open they pass whatever the rule says, by lines that stand before all rules.
    let refused: &[&str] = if fail == Fail::Closed { &NOT_CARRIED } else { &[] };
    let passes = way.is_some_and(|way| way.mptcp == Mptcp::Pass);
    let refused = refused.iter().map(|option| format!("{matched}{option} drop"));
    refused.chain(passes.then(|| format!("{matched}{MP_CAPABLE} return"))).collect()
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
    use crate::plan::marks::MOST_HOLDERS;
    use proptest::prelude::*;

    pub(super) const MEANS: Means = Means { untracked: Untracked::Can, tells_watched: false };

    fn record() -> Record {
        Record {
            pid: 4_194_304,
            start_ticks: 9_999_999_999_999,
            pid_namespace: Some(u32::MAX.into()),
            numbers: Marks { mark: u32::MAX - 1, own_mark: u32::MAX, table: u32::MAX },
            forwarding: [true, false],
            keep: true,
        }
    }

    #[test]
    fn the_record_is_read_back_from_the_tables_comment() {
        let comment = record().comment();
        assert!(comment.len() <= 128, "{} bytes", comment.len());
        let older = Record { pid_namespace: None, ..record() };
        for record in [record(), older] {
            let listing = format!("table inet longfat_x {{\n\tcomment \"{}\"\n}}\n", record.comment());
            assert_eq!(Record::parse(&listing), Some(record));
        }
        assert_eq!(Record::parse("table inet longfat_x {\n\tcomment \"of somebody else\"\n}"), None);
    }

    fn lines(toml: &str) -> Vec<String> {
        let text = format!("[intercept]\ninterfaces = ['lan', 'wlan']\n{toml}");
        let plan = crate::spec::RelaySpec::parse(&text).unwrap().resolve().unwrap();
        let ports = |index| ListenPorts { ipv4: Some(5000 + index), ipv6: Some(6000 + index) };
        let ports: Vec<_> = (0..plan.rules.len().max(1)).map(|index| ports(index as u16)).collect();
        assert!(
            chains("longfat_x", &plan, &record().numbers, &ports, Taking::Yes, MEANS, 7)
                .contains("iifname { \"lan\", \"wlan\" } goto client")
        );
        syn_lines(&plan, &Marks { mark: 1, own_mark: 2, table: 1 }, &ports, TAKE, 7)
    }

    const TAKE: &str = "meta mark set 0x1 accept";

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
                 8000-8080 } add @ip_1 { ip saddr . tcp sport . ip daddr . tcp dport } tproxy ip to 127.0.0.1:5001 meta mark set 0x1 accept",
                "meta nfproto ipv4 meta l4proto tcp ip saddr { 10.0.0.0/8 } add @ip_2 { ip saddr . tcp sport . ip daddr . tcp dport } tproxy ip to 127.0.0.1:5002 meta mark set \
                 0x1 accept",
                "meta nfproto ipv6 meta l4proto tcp ip6 saddr { 2001:db8::/32 } add @ip6_2 { ip6 saddr . tcp sport . ip6 daddr . tcp dport } tproxy ip6 to [::1]:6002 meta mark \
                 set 0x1 accept",
            ]
        );
    }

    #[test]
    fn what_is_held_goes_by_its_addresses_to_a_worker_and_comes_back_to_the_same_one() {
        let plan = |workers| {
            let text = format!(
                "workers = {workers}\n[intercept]\ninterfaces = 'lan'\n[defaults]\naccept = 'after-server'\n"
            );
            crate::spec::RelaySpec::parse(&text).unwrap().resolve().unwrap()
        };
        let numbers = Marks { mark: 0x100, own_mark: 0x101, table: 0x100 };
        let ports = [ListenPorts { ipv4: Some(5), ipv6: None }];
        let text = |workers| chains("longfat_x", &plan(workers), &numbers, &ports, Taking::Yes, MEANS, 7);
        let two = text(2);
        assert!(
            two.contains("meta mark set jhash ip saddr . ip daddr mod 2 seed 0x100 offset 258 goto held"),
            "{two}"
        );
        for (holder, mark) in [(0, steer::mark(0)), (1, steer::mark(1))] {
            let place = HoldSlot { rule: 0, holder };
            assert_eq!(
                (numbers.hold_mark(place), numbers.hold_table(place)),
                (258 + holder as u32, 257 + holder as u32)
            );
            let back = two.lines().find(|line| line.contains(&numbers.hold_interface(place))).unwrap();
            assert!(
                back.contains(&format!(
                    "meta mark set {mark:#x} tproxy ip to 127.0.0.1:5 meta mark set {:#x} notrack accept",
                    numbers.hold_mark(place)
                )),
                "{back}"
            );
        }
        assert!(text(1).contains("meta mark set 0x102 goto held"), "one worker needs no choice");
        let all = text(2 * MOST_HOLDERS);
        let (_, answered) = all.split_once("chain answered {\n").unwrap();
        let back = answered.lines().take_while(|line| *line != "}");
        let ends: Vec<_> = back.map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(ends, [vec!["accept"; MOST_HOLDERS], vec!["drop"]].concat(), "what comes back to nobody");
    }

    #[test]
    fn what_is_only_watched_is_looked_at_no_further_and_without_its_mark_everything_is() {
        let plan =
            "[intercept]\ninterfaces = 'lan'\n[defaults]\naccept = 'end-to-end'\nadopt_after = '1MB'\n";
        let plan = crate::spec::RelaySpec::parse(plan).unwrap().resolve().unwrap();
        assert!(plan.only_watches());
        let numbers = Marks { mark: 0x100, own_mark: 0x101, table: 0x100 };
        let ports = [ListenPorts { ipv4: Some(5), ipv6: Some(6) }];
        let means = Means { tells_watched: true, ..MEANS };
        let text = chains("longfat_x", &plan, &numbers, &ports, Taking::Yes, means, 7);
        let lines = |chain: &str| {
            let (_, rest) = text.split_once(&format!("chain {chain} {{\n")).unwrap();
            rest.lines().skip(1).take_while(|line| *line != "}").map(str::to_owned).collect::<Vec<_>>()
        };
        let (early, late) = (lines("clients"), lines("servers"));
        assert_eq!(early[0], "meta mark 0x80000101 meta mark set 0 accept");
        assert_eq!(late[0], "meta mark 0 return");
        let found = format!("{NOT_SYN} socket transparent 1 meta mark set 0x80000100 accept");
        assert!(early.contains(&found), "without the program: {early:?}");
        for line in ["meta mark 0x80000101", "meta mark 0 return"] {
            let others = chains("longfat_x", &plan, &numbers, &ports, Taking::Yes, MEANS, 7);
            assert!(!others.contains(line), "{others}");
        }
    }

    #[test]
    fn syns_of_what_cannot_be_carried_pass_before_any_rule_and_mptcp_where_a_rule_says_so() {
        let plan = "[intercept]\ninterfaces = 'lan'\n[[rule]]\nport = 80\nmptcp = 'pass'\n[[rule]]\n";
        let plan = crate::spec::RelaySpec::parse(plan).unwrap().resolve().unwrap();
        let ports = [ListenPorts { ipv4: Some(5), ipv6: None }; 2];
        let text = chains("longfat_x", &plan, &record().numbers, &ports, Taking::Yes, MEANS, 7);
        let (_, syn) = text.split_once("chain syn {\n").unwrap();
        let lines: Vec<_> = syn.lines().take_while(|line| *line != "}").collect();
        let at = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
        for option in NOT_CARRIED {
            assert_eq!(lines[at(option)], format!("{option} return"));
            assert!(at(option) < at("tcp dport { 80 }"), "{lines:?}");
        }
        assert_eq!(lines.iter().filter(|line| line.contains(MP_CAPABLE)).count(), 2, "by family: {lines:?}");
        assert!(at(MP_CAPABLE) < at("tproxy") && lines[at(MP_CAPABLE)].ends_with("return"), "{lines:?}");
    }

    #[test]
    fn without_rules_everything_is_taken_and_failing_closed_drops_what_nobody_takes() {
        assert_eq!(lines("").len(), 2);
        // Top-level keys stand before the tables.
        let plan = "fail = 'closed'\n[intercept]\ninterfaces = 'lan'\n";
        let plan = crate::spec::RelaySpec::parse(plan).unwrap().resolve().unwrap();
        let found = syn_lines(
            &plan,
            &Marks { mark: 1, own_mark: 2, table: 1 },
            &[ListenPorts { ipv4: Some(5), ipv6: None }],
            TAKE,
            0,
        );
        assert_eq!(found.len(), 9, "{found:?}");
        assert!(found.iter().enumerate().all(|(at, line)| at == 3 || line.ends_with("drop")), "{found:?}");
    }

    proptest! {
        #[test]
        fn any_listing_is_read_or_refused_without_panic(tail in ".{0,80}") {
            let _ = Record::parse(&format!("comment \"longfat relay {tail}"));
        }
    }
}
