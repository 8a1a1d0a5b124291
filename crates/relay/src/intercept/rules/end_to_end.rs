//! Rules for connections that are accepted end to end: the ends' SYN and SYN-ACK pass, and a copy of each is logged;
//! what the client sends after them is held, until the relay lets it go on.

use super::{ListenPorts, NOT_SYN, Taking, mark_by_holder, pair, pair_set};
use crate::{
    adopt::{
        log::{CLOCK, COPIED_BYTES},
        table::LIFE,
    },
    plan::{
        Accept, RelayPlan,
        marks::{HoldSlot, Marks, TAKEN_BIT, passing_mark},
    },
};
use std::time::Duration;

const FAMILIES: [(&str, &str); 2] = [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")];

/// How seldom the timestamp of one end is copied.
const CLOCKS: Duration = Duration::from_millis(200);

/// Something is held as its handshake ends: rules that watch instead need none of that.
fn holds(plan: &RelayPlan) -> Option<()> {
    plan.inserts_at_once().then_some(())
}

/// The first of the rules, whose interfaces serve all of them.
fn first(plan: &RelayPlan) -> Option<usize> {
    plan.intercepted_ways().find(|(_, way)| way.accept == Accept::EndToEnd).map(|(rule, _)| rule)
}

/// A pair as it stands in what the server sends.
fn pair_back(family: &str) -> String {
    format!("{family} daddr . tcp dport . {family} saddr . tcp sport")
}

fn log(prefix: &str, group: u16) -> String {
    format!("log prefix \"{prefix}\" group {group} snaplen {COPIED_BYTES} queue-threshold 1")
}

/// Pairs whose SYNs went by, and those whose servers have answered.
pub(super) fn sets(plan: &RelayPlan) -> String {
    let set = |name: &str, (family, address)| pair_set(&format!("{name}_{family}"), address, LIFE);
    let both = |family| set("opened", family) + &set("shaken", family);
    holds(plan).map(|()| FAMILIES.map(both).concat()).unwrap_or_default()
}

/// Chains that no hook calls.
pub(super) fn unhooked_chains(
    plan: &RelayPlan,
    ports: &[ListenPorts],
    interfaces: &str,
    notrack: &str,
) -> String {
    whole_chain(plan, ports) + &back_chain(plan, interfaces, notrack)
}

/// Never reached: a `tproxy` statement has the kernel put fragments together before any rule sees them, which a look-up
/// of sockets does not. Without that the fragments of what has sockets here would pass them by.
fn whole_chain(plan: &RelayPlan, ports: &[ListenPorts]) -> String {
    let lines = [
        (
            ports.iter().any(|ports| ports.ipv4.is_some()),
            "meta nfproto ipv4 meta l4proto tcp tproxy ip to :1\n",
        ),
        (
            ports.iter().any(|ports| ports.ipv6.is_some()),
            "meta nfproto ipv6 meta l4proto tcp tproxy ip6 to :1\n",
        ),
    ];
    let lines = lines.map(|(is_there, line)| if is_there { line } else { "" });
    first(plan).map(|_| format!("chain whole {{\n{}}}\n", lines.concat())).unwrap_or_default()
}

/// What becomes of a SYN of a rule that watches: a program at tc has seen it.
pub(super) fn watched_syn_lines(matched: &str, take: &str) -> [String; 2] {
    [format!("{matched}socket transparent 1 {take}"), format!("{matched}return")]
}

/// A packet of a connection that is only watched: it goes on as if it had had no mark.
pub(super) fn watched_line(own_mark: u32) -> String {
    format!("meta mark {:#x} meta mark set 0 accept\n", passing_mark(own_mark))
}

/// What becomes of a SYN of one rule. A pair that has a socket here goes to that. Of a SYN that finds no room no copy
/// is made.
pub(super) fn syn_lines(matched: &str, (rule, family): (usize, &str), take: &str, group: u16) -> [String; 3] {
    let pair = pair(family);
    [
        format!("{matched}socket transparent 1 {take}"),
        format!("{matched}add @opened_{family} {{ {pair} }} {} return", log(&rule.to_string(), group)),
        format!("{matched}return"),
    ]
}

/// The server's answers: from now on what the client sends is held.
pub(super) fn answer_lines(plan: &RelayPlan, group: u16) -> String {
    let answer = |(family, _): (&str, &str)| {
        let pair = pair_back(family);
        format!(
            "tcp flags & (syn | ack | rst | fin) == (syn | ack) {pair} @opened_{family} \
             add @shaken_{family} {{ {pair} }} {}\n",
            log("answer", group)
        )
    };
    holds(plan).map(|()| FAMILIES.map(answer).concat()).unwrap_or_default()
}

/// Held packets are led away when firewalls have looked at them.
pub(super) fn unmark_line(plan: &RelayPlan, numbers: &Marks) -> String {
    let marks = numbers.held_marks();
    let line = |_| format!("{NOT_SYN} meta mark {marks} meta mark set meta mark ^ {TAKEN_BIT:#x} accept\n");
    first(plan).map(line).unwrap_or_default()
}

/// Lines that hold every packet but another SYN, also when a socket is there already, behind whose back packets would
/// come to it that their client sent later.
pub(super) fn held_lines(plan: &RelayPlan, numbers: &Marks) -> String {
    let held = |rule| {
        let lines = FAMILIES.map(|(family, _)| {
            let mark = numbers.hold_mark(HoldSlot { rule, holder: 0 });
            let mark = mark_by_holder(family, numbers, plan.holders(), mark);
            format!("tcp flags & syn == 0 {} @shaken_{family} {mark} goto held\n", pair(family))
        });
        lines.concat()
    };
    first(plan).filter(|_| plan.inserts_at_once()).map(held).unwrap_or_default()
}

/// What the relay gives its own sockets comes back by the interfaces, with a mark by which there is a way back to where
/// it came from: firewalls look for one.
pub(super) fn back_lines(plan: &RelayPlan, numbers: &Marks) -> String {
    let back = |place: HoldSlot| {
        format!(
            "iifname \"{}\" {NOT_SYN} socket transparent 1 meta mark set {:#x} goto back\n",
            numbers.hold_interface(place),
            numbers.hold_mark(place)
        )
    };
    let places =
        first(plan).map(|rule| (0..plan.holders()).map(move |holder| back(HoldSlot { rule, holder })));
    places.into_iter().flatten().collect()
}

/// Conntrack follows the servers' legs. Without what servers send in that moment it would lose count for good. What
/// nobody has sent says nothing new, and addresses that are translated do not fit it: it is at its last hop.
fn back_chain(plan: &RelayPlan, interfaces: &str, notrack: &str) -> String {
    let lines = match notrack {
        "" => String::new(),
        _ => format!(
            "fib saddr oifname {interfaces} {notrack}accept\nip ttl 1 {notrack}accept\nip6 hoplimit 1 {notrack}accept\n"
        ),
    };
    first(plan).map(|_| format!("chain back {{\n{lines}accept\n}}\n")).unwrap_or_default()
}

/// What has gone on is not held any more.
pub(super) fn passed_chain(plan: &RelayPlan, own_mark: u32) -> String {
    let forget = |(family, _): (&str, &str)| {
        let pair = pair(family);
        format!("delete @shaken_{family} {{ {pair} }}\ndelete @opened_{family} {{ {pair} }}\n")
    };
    let chain = |_| {
        format!(
            "chain passed {{\ntype filter hook output priority raw; policy accept;\nmeta mark != {:#x} return\n{}}}\n",
            passing_mark(own_mark),
            FAMILIES.map(forget).concat()
        )
    };
    holds(plan).map(|()| chain(())).unwrap_or_default()
}

/// While the relay leaves: pairs whose timestamps were copied lately.
pub(super) fn clock_sets(plan: &RelayPlan, taking: Taking) -> String {
    let set = |(family, address)| pair_set(&format!("clocks_{family}"), address, CLOCKS);
    first_leaving(plan, taking).map(|_| FAMILIES.map(set).concat()).unwrap_or_default()
}

/// Copies what the ends send, a few packets a second of each, for their timestamps.
pub(super) fn clock_lines(plan: &RelayPlan, own_mark: u32, (taking, group): (Taking, u16)) -> String {
    let copy = |(family, _): (&str, &str)| {
        let pair = pair(family);
        format!(
            "tcp flags & (syn | rst) == 0 meta length < {COPIED_BYTES} meta mark != {own_mark:#x} socket transparent 1 {pair} != @clocks_{family} \
             add @clocks_{family} {{ {pair} }} {}\n",
            log(CLOCK, group)
        )
    };
    first_leaving(plan, taking).map(|_| FAMILIES.map(copy).concat()).unwrap_or_default()
}

/// A packet that was led to a socket, which has left in that moment, would be answered with a reset in the other end's
/// name. The relay's own resets have its mark.
pub(super) fn leaving_chain(plan: &RelayPlan, own_mark: u32, taking: Taking) -> String {
    let chain = |_| {
        format!(
            "chain leaving {{\ntype filter hook output priority raw; policy accept;\n\
             tcp flags & rst == rst meta mark != {own_mark:#x} fib saddr type != local drop\n}}\n"
        )
    };
    first_leaving(plan, taking).map(chain).unwrap_or_default()
}

fn first_leaving(plan: &RelayPlan, taking: Taking) -> Option<usize> {
    first(plan).filter(|_| taking == Taking::No)
}

#[cfg(test)]
mod tests {
    use super::super::{ListenPorts, Taking, chains, tests::MEANS};
    use crate::plan::marks::Marks;

    fn text(toml: &str, taking: Taking) -> String {
        let text = format!("workers = 1\n[intercept]\ninterfaces = 'lan'\n{toml}");
        let plan = crate::spec::RelaySpec::parse(&text).unwrap().resolve().unwrap();
        let ports = vec![ListenPorts { ipv4: Some(5), ipv6: Some(6) }; plan.rules.len().max(1)];
        let numbers = Marks { mark: 0x100, own_mark: 0x101, table: 0x100 };
        chains("longfat_x", &plan, &numbers, &ports, taking, MEANS, 77)
    }

    #[test]
    fn syns_and_their_answers_are_copied_and_what_follows_is_held() {
        let text = text(
            "[[rule]]\nport = 22\naction = 'pass'\n[[rule]]\nport = 80\naccept = 'end-to-end'\n",
            Taking::Yes,
        );
        for part in [
            "tcp dport { 80 } add @opened_ip { ip saddr . tcp sport . ip daddr . tcp dport } log prefix \"1\" group 77",
            "ip daddr . tcp dport . ip saddr . tcp sport @opened_ip add @shaken_ip",
            "ip6 saddr . tcp sport . ip6 daddr . tcp dport @shaken_ip6 meta mark set 0x10a goto held",
            "meta mark != 0x80000101 return",
            "delete @shaken_ip6",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("tcp dport { 80 } add @ip_1"), "the relay answers none of them: {text}");
    }

    #[test]
    fn nothing_of_it_is_there_without_such_a_rule_and_no_new_ones_are_watched_at_the_end() {
        for plan in ["", "[defaults]\naccept = 'after-server'\n"] {
            let text = text(plan, Taking::Yes);
            assert!(!text.contains("opened") && !text.contains("shaken"), "{text}");
        }
        let text = text("[defaults]\naccept = 'end-to-end'\n", Taking::No);
        assert!(!text.contains("log prefix \"0\""), "{text}");
        assert!(text.contains("@shaken_ip "), "handshakes under way are looked after: {text}");
    }

    #[test]
    fn what_ends_say_is_copied_and_no_reset_made_up_only_while_the_relay_leaves() {
        let toml = "[defaults]\naccept = 'end-to-end'\n";
        let leaving = text(toml, Taking::No);
        for part in [
            "meta length < 256 meta mark != 0x101 socket transparent 1 ip saddr . tcp sport . ip daddr . tcp dport != @clocks_ip add",
            "log prefix \"clock\" group 77",
            "meta mark != 0x101 fib saddr type != local drop",
        ] {
            assert!(leaving.contains(part), "{part}\n{leaving}");
        }
        for staying in [text(toml, Taking::Yes), text("", Taking::No)] {
            assert!(!staying.contains("clock") && !staying.contains("leaving"), "{staying}");
        }
    }
}
