//! What others take from an interception: by `nft flush ruleset`, a restart of nftables, a network manager that removes
//! what it has not made, an interface that is set down and takes its routes along.
//!
//! The kernel tells of every change. Whoever changes the interception itself looks before, and says so afterwards.

use crate::{Result, plan::marks::Marks};
use longfat_host::netlink::{Message, Netlink, ROUTE_BYTES, Told, attributes, number};
use nix::sys::socket::SockProtocol;
use std::cell::Cell;

/// NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h; RTNLGRP_IPV4_RULE and RTNLGRP_IPV6_RULE of linux/rtnetlink.h.
const TABLES: u32 = 1 << (7 - 1);
const ROUTING_RULES: u32 = 1 << (8 - 1) | 1 << (19 - 1);
/// RTNLGRP_LINK, RTNLGRP_IPV4_ROUTE and RTNLGRP_IPV6_ROUTE. The routes of an interface that is set down go without a
/// word where they are of IPv4.
const ROUTES: u32 = 1 | 1 << (7 - 1) | 1 << (11 - 1);
/// RTM_NEWLINK, and RTM_DELLINK; `struct ifinfomsg` and IFLA_IFNAME of linux/if_link.h.
const LINK_TOLD: [u16; 2] = [16, 17];
const LINK_BYTES: usize = 16;
const LINK_NAME: u16 = 3;
/// RTM_DELROUTE, and RTA_TABLE.
const ROUTE_DELETED: u16 = 25;
const ROUTE_TABLE: u16 = 15;
/// NFT_MSG_DELTABLE, -CHAIN, -RULE and -SET of linux/netfilter/nf_tables.h, in NFNL_SUBSYS_NFTABLES.
const DELETIONS: [u16; 4] = [10 << 8 | 2, 10 << 8 | 5, 10 << 8 | 8, 10 << 8 | 11];
/// NFT_MSG_NEWGEN, the last of every transaction.
const TRANSACTION_DONE: u16 = 10 << 8 | 15;
/// `struct nfgenmsg`, and the attribute that all of those have: the table's name.
const GENERIC_BYTES: usize = 4;
const TABLE_NAME: u16 = 1;
/// RTM_DELRULE; `struct fib_rule_hdr` and FRA_FWMARK of linux/fib_rules.h.
const ROUTING_RULE_DELETED: u16 = 33;
const ROUTING_RULE_BYTES: usize = 12;
const MARK: u16 = 10;

/// Tells whether anything was taken from one interception.
#[derive(Debug)]
pub(super) struct Watch {
    tables: Netlink,
    routing_rules: Netlink,
    routes: Netlink,
    has_lost: Cell<bool>,
}

impl Watch {
    pub fn open() -> Result<Watch> {
        Ok(Watch {
            tables: Netlink::listen(SockProtocol::NetlinkNetFilter, TABLES)?,
            routing_rules: Netlink::listen(SockProtocol::NetlinkRoute, ROUTING_RULES)?,
            routes: Netlink::listen(SockProtocol::NetlinkRoute, ROUTES)?,
            has_lost: Cell::new(false),
        })
    }

    /// Hears what was taken away since it last heard. Where the kernel had more to tell than was taken in time,
    /// something may have been.
    pub fn look(&self, table_name: &str, numbers: &Marks) {
        let (transactions, ways) = (self.transactions(table_name), self.ways(numbers));
        self.note(transactions > 0 || ways);
    }

    /// Whether something may be missing; said once, to whoever makes it again.
    pub fn take_lost(&self, table_name: &str, numbers: &Marks) -> bool {
        self.look(table_name, numbers);
        self.has_lost.take()
    }

    /// Whether routes may be missing, to whoever looks for them. What is told of interfaces and routes says
    /// little: a host may have many of either.
    pub fn take_doubts(&self, numbers: &Marks) -> bool {
        let mut any = false;
        let told = self.routes.take(|message| any |= is_about_routes(message, numbers));
        told == Told::Cut || any
    }

    /// The relay has just changed something itself: whatever else was taken away counts.
    pub fn changed(&self, what: Own, table_name: &str, numbers: &Marks) {
        let (transactions, ways) = (self.transactions(table_name), self.ways(numbers));
        self.note(match what {
            Own::Table => transactions > 1 || ways,
            Own::Ways => transactions > 0,
        });
    }

    /// What is missing was not made again.
    pub fn not_mended(&self) {
        self.note(true);
    }

    fn note(&self, has_lost: bool) {
        self.has_lost.set(self.has_lost.get() || has_lost);
    }

    /// How many transactions have deleted something of a table.
    fn transactions(&self, table_name: &str) -> usize {
        let (mut count, mut is_counted) = (0, false);
        let told = self.tables.take(|message| {
            if message.kind == TRANSACTION_DONE {
                is_counted = false;
            } else if !is_counted && is_of_table(message, table_name) {
                (count, is_counted) = (count + 1, true);
            }
        });
        if told == Told::Cut { usize::MAX } else { count }
    }

    /// Whether routing rules of such marks were deleted.
    fn ways(&self, numbers: &Marks) -> bool {
        let mut any = false;
        self.routing_rules.take(|message| any |= is_way(message, numbers)) == Told::Cut || any
    }
}

/// What a relay changes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// Rules of its table, in one transaction.
    Table,
    /// Ways of its marks.
    Ways,
}

/// Whether something of a table was deleted.
fn is_of_table(message: Message<'_>, table_name: &str) -> bool {
    let is_name = |value: &[u8]| value.strip_suffix(&[0]) == Some(table_name.as_bytes());
    let mut attributes = message.body.get(GENERIC_BYTES..).into_iter().flat_map(attributes);
    DELETIONS.contains(&message.kind) && attributes.any(|(kind, value)| kind == TABLE_NAME && is_name(value))
}

/// Whether a routing rule of marks like these was deleted.
fn is_way(message: Message<'_>, numbers: &Marks) -> bool {
    let mut attributes = message.body.get(ROUTING_RULE_BYTES..).into_iter().flat_map(attributes);
    let is_mark = |value| number(value).is_some_and(|mark| numbers.table_of(mark).is_some());
    message.kind == ROUTING_RULE_DELETED && attributes.any(|(kind, value)| kind == MARK && is_mark(value))
}

/// Whether an interface changed by which packets with such marks go, or a route of theirs was deleted.
fn is_about_routes(message: Message<'_>, numbers: &Marks) -> bool {
    let attribute = |behind: usize, wanted| {
        let mut attributes = message.body.get(behind..).into_iter().flat_map(attributes);
        attributes.find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
    };
    if message.kind == ROUTE_DELETED {
        return attribute(ROUTE_BYTES, ROUTE_TABLE)
            .and_then(number)
            .is_some_and(|table| numbers.has_table(table));
    }
    let name = || attribute(LINK_BYTES, LINK_NAME).and_then(|name| std::str::from_utf8(name).ok());
    let is_ours = |name: &str| {
        let name = name.trim_end_matches('\0');
        name == "lo" || numbers.is_hold_interface(name)
    };
    LINK_TOLD.contains(&message.kind) && name().is_some_and(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_host::netlink::push_attribute;

    #[test]
    fn only_what_was_deleted_of_the_own_table_or_of_the_own_marks_counts() {
        let mut body = vec![0; GENERIC_BYTES];
        push_attribute(&mut body, TABLE_NAME, b"longfat_one\0");
        let told = |kind, body| Message { kind, sequence: 0, body };
        let of_table = |kind| is_of_table(told(kind, &body), "longfat_one");
        assert!(DELETIONS.into_iter().all(of_table));
        assert!(!of_table(10 << 8), "a table that was made");
        assert!(!is_of_table(told(DELETIONS[0], &body), "longfat_on"));
        assert!(!is_of_table(told(DELETIONS[0], &body[..3]), "longfat_one"), "cut");

        let numbers = Marks { mark: 0x100, own_mark: 0x101, table: 7 };
        let mut body = vec![0; ROUTING_RULE_BYTES];
        push_attribute(&mut body, MARK, &0x100u32.to_ne_bytes());
        assert!(is_way(told(ROUTING_RULE_DELETED, &body), &numbers));
        assert!(!is_way(told(ROUTING_RULE_DELETED - 1, &body), &numbers), "a rule that was made");
        assert!(!is_way(told(ROUTING_RULE_DELETED, &body), &Marks { mark: 0x101, ..numbers }));

        let route = |table: u32| {
            let mut body = vec![0; ROUTE_BYTES];
            push_attribute(&mut body, ROUTE_TABLE, &table.to_ne_bytes());
            is_about_routes(Message { kind: ROUTE_DELETED, sequence: 0, body: &body }, &numbers)
        };
        assert_eq!([6, 7, 7 + Marks::TABLES - 1, 7 + Marks::TABLES].map(route), [false, true, true, false]);
        let link = |name: &[u8]| {
            let mut body = vec![0; LINK_BYTES];
            push_attribute(&mut body, LINK_NAME, name);
            LINK_TOLD.map(|kind| is_about_routes(Message { kind, sequence: 0, body: &body }, &numbers))
        };
        assert_eq!([link(b"lo\0"), link(b"lfh100-0\0"), link(b"eth0\0")], [[true; 2], [true; 2], [false; 2]]);
    }
}
