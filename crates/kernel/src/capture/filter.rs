//! Which packets: `host 10.0.0.0/8 and tcp and not port 22`.
//!
//! ```text
//! filter  = term { ("and" | "or") term }, "and" binds tighter; "not" or "!" before a term; parentheses
//! term    = "src" | "dst" | "host" ADDRESS[/LENGTH][:PORTS] | "sport" | "dport" | "port" [OPERATOR] PORTS
//!         | "tcp" | "udp" | "sctp" | "icmp" | "proto" NUMBER | "ipv4" | "ipv6" | "arp"
//!         | "vlan" [ID | ID-ID] | "gre" | "ipip" | "syn" | "fin" | "rst" | "in" | "out"
//! PORTS   = 80 | 8000-8999
//! ```
//!
//! As people know it from tcpdump, `src port 80`, `dst net 10.0.0.0/8` and the like are read, too. Addresses and
//! families are looked for in the outermost and in the innermost IP header; ports, protocol and flags in the innermost.
//!
//! Pure: text in, a row of tests out that the kernel's side walks through (bpf/capture.h).

use crate::filter::{
    self, Condition, Expression, FilterError, Parser, Ports,
    lex::{Kind, Operator, Token},
};
use longfat_host::network::Network;
use longfat_schema::spelling::nearest;
use std::{net::IpAddr, str::FromStr};

/// `LF_TESTS_MAX`.
pub const TESTS_MAX: usize = 64;
const ACCEPT: u8 = 254;
const REJECT: u8 = 255;
const SOURCE: u8 = 1;
const DESTINATION: u8 = 2;

type Result<T> = std::result::Result<T, FilterError>;

/// `LF_TEST_…`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
enum Subject {
    #[default]
    Direction = 1,
    Family = 2,
    Address = 3,
    Protocol = 4,
    Port = 5,
    Vlan = 6,
    Tunnel = 7,
    TcpFlags = 8,
    EtherType = 9,
}

/// `struct lf_test` without its jumps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Test {
    subject: Subject,
    side: u8,
    low: u16,
    high: u16,
    address: [u8; 16],
    mask: [u8; 16],
}

/// A condition: any of several rows of tests that must all hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Packets {
    negated: bool,
    any: Vec<Vec<Test>>,
}

/// A filter of packets; the empty text matches all.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    text: String,
    steps: Vec<Step>,
}

/// A test, and where to go by its verdict.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    test: Test,
    if_true: Target,
    if_false: Target,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Target {
    Accept,
    Reject,
    /// Steps from the end.
    Step(usize),
}

/// Octets of `struct lf_test`.
pub(super) const TEST_BYTES: usize = 40;

impl Filter {
    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether every packet matches.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The kernel's row of `struct lf_test`.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let last = self.steps.len().saturating_sub(1);
        let place = |target| match target {
            Target::Accept => ACCEPT,
            Target::Reject => REJECT,
            Target::Step(from_end) => (last - from_end) as u8,
        };
        let mut bytes = Vec::with_capacity(self.steps.len() * TEST_BYTES);
        for step in self.steps.iter().rev() {
            let test = &step.test;
            bytes.extend([test.subject as u8, place(step.if_true), place(step.if_false), test.side]);
            bytes.extend(test.low.to_ne_bytes());
            bytes.extend(test.high.to_ne_bytes());
            bytes.extend(test.address);
            bytes.extend(test.mask);
        }
        bytes
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter> {
        let mut steps = Vec::new();
        if let Some(expression) = filter::parse::<Packets>(text)? {
            row(&expression, Target::Accept, Target::Reject, &mut steps);
        }
        if steps.len() > TESTS_MAX {
            let message = format!("this is {} tests for every packet; at most {TESTS_MAX}", steps.len());
            return Err(FilterError::new(text, (0, text.len()), message));
        }
        Ok(Filter { text: text.trim().to_owned(), steps })
    }
}

/// Adds the tests of an expression before those that are there, and says where it begins: jumps go forward only.
fn row(expression: &Expression<Packets>, yes: Target, no: Target, steps: &mut Vec<Step>) -> Target {
    match expression {
        Expression::All(parts) => parts.iter().rev().fold(yes, |next, part| row(part, next, no, steps)),
        Expression::Any(parts) => parts.iter().rev().fold(no, |next, part| row(part, yes, next, steps)),
        Expression::Not(inside) => row(inside, no, yes, steps),
        Expression::Test(packets) => packets.row(yes, no, steps),
    }
}

impl Packets {
    fn row(&self, yes: Target, no: Target, steps: &mut Vec<Step>) -> Target {
        let (yes, no) = if self.negated { (no, yes) } else { (yes, no) };
        self.any.iter().rev().fold(no, |otherwise, all| {
            all.iter().rev().fold(yes, |next, test| {
                steps.push(Step { test: *test, if_true: next, if_false: otherwise });
                Target::Step(steps.len() - 1)
            })
        })
    }

    fn one(test: Test) -> Packets {
        Packets { negated: false, any: vec![vec![test]] }
    }

    fn of(subject: Subject, value: u16) -> Packets {
        Packets::one(Test { subject, low: value, ..Test::default() })
    }
}

const WORDS: [&str; 23] = [
    "src", "dst", "host", "net", "sport", "dport", "port", "tcp", "udp", "sctp", "icmp", "proto", "ipv4",
    "ipv6", "arp", "vlan", "gre", "ipip", "syn", "fin", "rst", "in", "out",
];

impl Condition for Packets {
    const EXAMPLES: &'static str = "a word ('host', 'port', 'tcp'…)";

    fn read<'a>(parser: &mut Parser<'a>, word: Token<'a>) -> Result<Packets> {
        let name = word.text.to_ascii_lowercase();
        if let Some(found) = plain(&name) {
            return Ok(found);
        }
        match name.as_str() {
            "src" => side(parser, SOURCE),
            "dst" => side(parser, DESTINATION),
            "host" | "net" => network(parser, SOURCE | DESTINATION),
            "sport" => ports(parser, SOURCE),
            "dport" => ports(parser, DESTINATION),
            "port" => ports(parser, SOURCE | DESTINATION),
            "proto" => protocol(parser),
            "vlan" => vlan(parser),
            _ => Err(unknown(parser, word, &name)),
        }
    }
}

/// Conditions of one word.
fn plain(name: &str) -> Option<Packets> {
    let protocol = |number| Packets::of(Subject::Protocol, number);
    Some(match name {
        "tcp" => protocol(6),
        "udp" => protocol(17),
        "sctp" => protocol(132),
        "icmp" => Packets { any: [1, 58].map(|p| protocol(p).any.concat()).to_vec(), negated: false },
        "ipv4" | "ip" => Packets::of(Subject::Family, 4),
        "ipv6" | "ip6" => Packets::of(Subject::Family, 6),
        "arp" => Packets::of(Subject::EtherType, 0x0806),
        "gre" => Packets::of(Subject::Tunnel, 1),
        "ipip" => Packets::of(Subject::Tunnel, 2),
        "fin" => Packets::of(Subject::TcpFlags, 1),
        "syn" => Packets::of(Subject::TcpFlags, 2),
        "rst" => Packets::of(Subject::TcpFlags, 4),
        "in" | "inbound" => Packets::of(Subject::Direction, 0),
        "out" | "outbound" => Packets::of(Subject::Direction, 1),
        _ => return None,
    })
}

fn unknown(parser: &Parser<'_>, word: Token<'_>, name: &str) -> FilterError {
    let mend = nearest(name, WORDS)
        .map_or_else(|| format!("known are {}", WORDS.join(", ")), |near| format!("did you mean '{near}'?"));
    parser.error(word, format!("no condition is called '{}'; {mend}", word.text))
}

/// After `src` or `dst`: an address, or tcpdump's `port`, `host` and `net`.
fn side(parser: &mut Parser<'_>, side: u8) -> Result<Packets> {
    match parser.peek().text.to_ascii_lowercase().as_str() {
        "port" | "portrange" => {
            parser.take();
            ports(parser, side)
        }
        "host" | "net" => {
            parser.take();
            network(parser, side)
        }
        _ => network(parser, side),
    }
}

fn network(parser: &mut Parser<'_>, sides: u8) -> Result<Packets> {
    let equal = parser.equality("an address")?;
    let token = parser.value()?;
    let (network, ports) = parser.network_and_ports(token)?;
    let sides = [SOURCE, DESTINATION].into_iter().filter(|side| sides & side != 0);
    let tests = |side| {
        let address = network.map(|network| address_test(network, side));
        let ports = ports.map(|ports| port_test(ports, side));
        address.into_iter().chain(ports).collect::<Vec<Test>>()
    };
    let any: Vec<Vec<Test>> = sides.map(tests).collect();
    if any.iter().any(Vec::is_empty) {
        return Err(parser.error(token, "neither an address nor a port: this would be any packet"));
    }
    Ok(Packets { negated: !equal, any })
}

fn address_test(network: Network, side: u8) -> Test {
    let (mut address, mut mask) = ([0; 16], [0; 16]);
    let low = match network.address() {
        IpAddr::V4(four) => {
            address[..4].copy_from_slice(&four.octets());
            mask[..4].copy_from_slice(&prefix_mask(network.prefix_bits())[..4]);
            4
        }
        IpAddr::V6(six) => {
            address = six.octets();
            mask = prefix_mask(network.prefix_bits());
            6
        }
    };
    Test { subject: Subject::Address, side, low, address, mask, ..Test::default() }
}

fn prefix_mask(length: u8) -> [u8; 16] {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0).to_be_bytes()
}

fn port_test(ports: Ports, side: u8) -> Test {
    Test { subject: Subject::Port, side, low: ports.first, high: ports.last, ..Test::default() }
}

fn ports(parser: &mut Parser<'_>, side: u8) -> Result<Packets> {
    let (operator, sign) = parser.operator();
    let token = parser.value()?;
    let ports = parser.port_range(token, token.text)?;
    let is_range = ports.first != ports.last;
    if is_range && !matches!(operator, Operator::Equal | Operator::NotEqual) {
        return Err(parser.error(sign, "a range of ports knows only '=' and '!='"));
    }
    let port = ports.first;
    // Nothing is below 0 or above 65535: a range that ends before it begins holds for none.
    let (first, last) = match operator {
        Operator::Equal | Operator::NotEqual => (ports.first, ports.last),
        Operator::Less => port.checked_sub(1).map_or((1, 0), |last| (0, last)),
        Operator::LessOrEqual => (0, port),
        Operator::Greater => port.checked_add(1).map_or((1, 0), |first| (first, u16::MAX)),
        Operator::GreaterOrEqual => (port, u16::MAX),
    };
    let test = port_test(Ports { first, last }, side);
    Ok(Packets { negated: operator == Operator::NotEqual, ..Packets::one(test) })
}

fn protocol(parser: &mut Parser<'_>) -> Result<Packets> {
    let equal = parser.equality("a protocol")?;
    let token = parser.value()?;
    let number = token.text.parse::<u8>();
    let number = number.map_err(|_| {
        parser.error(token, format!("'{}' is no protocol: write a number up to 255", token.text))
    })?;
    Ok(Packets { negated: !equal, ..Packets::of(Subject::Protocol, number.into()) })
}

/// Any tag, or one of those named.
fn vlan(parser: &mut Parser<'_>) -> Result<Packets> {
    let next = parser.peek();
    let is_named =
        matches!(next.kind, Kind::Operator(_)) || next.text.starts_with(|c: char| c.is_ascii_digit());
    let any = Test { subject: Subject::Vlan, low: 0, high: 4095, ..Test::default() };
    if !is_named {
        return Ok(Packets::one(any));
    }
    let equal = parser.equality("a VLAN")?;
    let token = parser.value()?;
    let (first, last) = token.text.split_once('-').unwrap_or((token.text, token.text));
    let id = |text: &str| text.parse::<u16>().ok().filter(|id| *id < 4096);
    let (Some(low), Some(high)) = (id(first), id(last)) else {
        let message =
            format!("'{}' is no VLAN: write a number up to 4095, or a range like 100-199", token.text);
        return Err(parser.error(token, message));
    };
    Ok(Packets { negated: !equal, ..Packets::one(Test { low, high, ..any }) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filter(text: &str) -> Filter {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Walks the row as the kernel's side does.
    fn walk(filter: &Filter, holds: impl Fn(&Test) -> bool) -> bool {
        let bytes = filter.to_bytes();
        let steps: Vec<_> = filter.steps.iter().rev().collect();
        let mut at = 0;
        while at < steps.len() {
            let next =
                if holds(&steps[at].test) { bytes[at * TEST_BYTES + 1] } else { bytes[at * TEST_BYTES + 2] };
            assert!(usize::from(next) > at, "a jump backwards");
            at = next.into();
        }
        at == usize::from(ACCEPT)
    }

    #[test]
    fn an_address_with_a_port_means_both_at_the_same_end() {
        let found = filter("host 10.0.0.0/8:80-81");
        let tests: Vec<_> = found.steps.iter().rev().map(|s| (s.test.subject, s.test.side)).collect();
        let at = |side| [(Subject::Address, side), (Subject::Port, side)];
        assert_eq!(tests, [at(SOURCE), at(DESTINATION)].concat());
        assert_eq!(found.steps[3].test.mask[..5], [255, 0, 0, 0, 0]);
    }

    #[test]
    fn words_of_tcpdump_are_read() {
        for (theirs, ours) in [
            ("src port 80", "sport 80"),
            ("dst net 10/8", "dst 10.0.0.0/8"),
            ("dst 10.77.2", "dst 10.77.2.0/24"),
            ("src 10:80", "src 10.0.0.0/8:80"),
            ("src host ::1", "src ::1"),
            ("SRC PORT 80", "sport 80"),
            ("Dst Host ::1", "dst ::1"),
            ("ip6 and tcp", "ipv6 and tcp"),
        ] {
            assert_eq!(filter(theirs).to_bytes(), filter(ours).to_bytes(), "{theirs}");
        }
    }

    #[test]
    fn port_comparisons_are_ranges() {
        for (text, range) in [
            ("port < 1024", (0, 1023)),
            ("port <= 80", (0, 80)),
            ("port > 65534", (65535, 65535)),
            ("port > 65535", (1, 0)),
            ("port < 0", (1, 0)),
            ("port 8000-8999", (8000, 8999)),
        ] {
            let test = filter(text).steps[0].test;
            assert_eq!((test.low, test.high), range, "{text}");
        }
    }

    #[test]
    fn errors_show_the_place_and_suggest_the_mend() {
        for (text, part) in [
            ("sprot 22", "did you mean 'sport'?"),
            ("tcp and ouut", "did you mean 'out'?"),
            ("cwnd > 3", "in, out"),
            ("cwnd > 3", "known are"),
            ("port", "ends"),
            ("host example.org", "is no address"),
            ("vlan 5000", "up to 4095"),
            ("proto tcp", "up to 255"),
            ("tcp udp", "'and' or 'or'"),
            ("host *", "any packet"),
            ("= 3", "begins with a word"),
        ] {
            let error = text.parse::<Filter>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let many = vec!["host 10.0.0.1:80"; 17].join(" or ");
        assert!(many.parse::<Filter>().unwrap_err().to_string().contains("at most 64"));
    }

    #[test]
    fn every_word_known_is_read_alone_or_with_a_value() {
        for word in WORDS {
            let read = [word.to_owned(), format!("{word} 10.0.0.1"), format!("{word} 5")];
            assert!(read.iter().any(|text| text.parse::<Filter>().is_ok()), "{word}");
        }
    }

    fn expression() -> impl Strategy<Value = String> {
        let leaf = prop::sample::select(vec![
            "tcp",
            "icmp",
            "port 1",
            "host 10.0.0.1:2",
            "vlan 7",
            "src != 10.0.0.2",
        ]);
        leaf.prop_map(str::to_owned).prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..3).prop_map(|all| format!("({})", all.join(" and "))),
                prop::collection::vec(inner.clone(), 1..3).prop_map(|any| format!("({})", any.join(" or "))),
                inner.prop_map(|one| format!("not {one}")),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_row_of_tests_says_what_the_expression_says(text in expression(), truths in any::<u64>()) {
            // A test's verdict is anything, but the same for the same test.
            let holds = |test: &Test| truths >> ((test.subject as u16 * 7 + test.low + u16::from(test.side)) % 64) & 1 == 1;
            let parsed = filter::parse::<Packets>(&text).unwrap().unwrap();
            let meant = parsed.holds(&|packets: &Packets| {
                packets.any.iter().any(|all| all.iter().all(holds)) != packets.negated
            });
            if let Ok(row) = text.parse::<Filter>() {
                prop_assert_eq!(walk(&row, holds), meant);
            }
        }

        #[test]
        fn any_text_is_a_filter_or_an_error_within_it(text in ".{0,60}") {
            match text.parse::<Filter>() {
                Ok(filter) => prop_assert!(filter.steps.len() <= TESTS_MAX),
                Err(error) => prop_assert!(error.position <= text.len() && !error.to_string().is_empty()),
            }
        }
    }
}
