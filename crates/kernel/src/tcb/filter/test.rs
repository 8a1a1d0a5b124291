//! Whether a connection fits a condition.

use crate::{
    filter::{Ports, lex::Operator},
    sockets::connection::Connection,
    tcb::{
        field::{Field, Value},
        keep,
    },
};
use longfat_host::network::Network;
use std::net::SocketAddr;

/// Which end of a connection is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Local,
    Remote,
    Either,
}

#[derive(Debug, Clone)]
pub enum Test {
    Family { ipv6: bool },
    Address { end: End, equal: bool, network: Option<Network>, ports: Option<Ports> },
    Port { end: End, operator: Operator, ports: Ports },
    Name { field: &'static Field, equal: bool, wanted: String },
    Number { field: &'static Field, operator: Operator, value: u64 },
}

impl PartialEq for Test {
    fn eq(&self, other: &Test) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Test {
    pub fn field(&self) -> Option<&'static Field> {
        match self {
            Test::Name { field, .. } | Test::Number { field, .. } => Some(field),
            _ => None,
        }
    }

    pub fn matches(&self, connection: &Connection) -> bool {
        match self {
            Test::Family { ipv6 } => connection.remote.is_ipv6() == *ipv6,
            Test::Address { end, equal, network, ports } => {
                let fits = |address: &SocketAddr| {
                    network.is_none_or(|network| network.contains(address.ip()))
                        && ports.is_none_or(|ports| ports.contains(address.port()))
                };
                end.addresses(connection).any(|address| fits(&address)) == *equal
            }
            Test::Port { end, operator, ports } => {
                let equal = end.addresses(connection).any(|address| ports.contains(address.port()));
                match operator {
                    Operator::Equal => equal,
                    Operator::NotEqual => !equal,
                    _ => end
                        .addresses(connection)
                        .any(|address| operator.holds(address.port().into(), ports.first.into())),
                }
            }
            Test::Name { field, equal, wanted } => match field.value(connection) {
                Value::Text(found) => (same_name(field, &found, wanted)) == *equal,
                _ => false,
            },
            Test::Number { field, operator, value } => match field.value(connection) {
                Value::Number(found) => operator.holds(found, *value),
                _ => false,
            },
        }
    }
}

/// A congestion control whose state a wrapper of ours keeps answers to both names.
fn same_name(field: &Field, found: &str, wanted: &str) -> bool {
    let inner = if field.name == "cc" { keep::wrapped(found) } else { None };
    fits_pattern(found, wanted) || inner.is_some_and(|inner| fits_pattern(inner, wanted))
}

impl End {
    fn addresses(self, connection: &Connection) -> impl Iterator<Item = SocketAddr> {
        let local = (self != End::Remote).then_some(connection.local);
        let remote = (self != End::Local).then_some(connection.remote);
        local.into_iter().chain(remote)
    }
}

impl Operator {
    fn holds(self, found: u64, wanted: u64) -> bool {
        match self {
            Operator::Equal => found == wanted,
            Operator::NotEqual => found != wanted,
            Operator::Less => found < wanted,
            Operator::LessOrEqual => found <= wanted,
            Operator::Greater => found > wanted,
            Operator::GreaterOrEqual => found >= wanted,
        }
    }
}

/// `*` stands for any row of characters.
fn fits_pattern(text: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return text == pattern };
    let Some(mut left) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<_> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}
