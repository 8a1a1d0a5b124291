//! Taking an interception back: what its record says was made, and nothing else.

use super::{
    DELIVERY, FAMILIES, FORWARDING, IPV6_METRIC, REFUSAL, RULE_PRIORITY,
    commands::{ip_try, nft},
    marks,
    rules::{self, Record},
    stale::{is_living, records},
};
use crate::{Error, Result};
use longfat_host::sysctl;

/// What could not be set back, although the rest was undone: no reason to keep the record, or not to go on.
pub(super) type Left = Option<Error>;

/// Packets first, then routes and sysctls, the record last.
///
/// # Errors
/// The record stays, as something stays that it tells of.
pub(super) fn undo(table_name: &str, record: &Record) -> Result<Left> {
    nft(&rules::delete_rules(table_name))?;
    undo_routes(record)?;
    let left = stop_forwarding(table_name, record).err();
    nft(&rules::delete_table(table_name))?;
    Ok(left)
}

/// Undoes everything but the table, in which at any moment something refuses what the relay would take: these chains
/// from the beginning on, which need no routes.
pub(super) fn undo_behind(table_name: &str, record: &Record, refusals: &str) -> Result<Left> {
    nft(&rules::replace(table_name, record, refusals))?;
    undo_routes(record)?;
    let left = stop_forwarding(table_name, record).err();
    // Whoever turns forwarding on from now on is somebody else.
    let undone = Record { forwarding: [false; 2], ..record.clone() };
    if undone != *record {
        nft(&rules::replace(table_name, &undone, refusals))?;
    }
    Ok(left)
}

/// What takes back one way of marked packets: the route that the relay made (one to an interface goes with it) and then
/// the rule, by which it is found. The rest of the table is not the relay's.
pub(super) fn unroute(family: &str, record: &Record, (mark, table): (u32, u32)) -> String {
    let metric = if family == FAMILIES[1] { IPV6_METRIC } else { "" };
    let route = match (mark == record.numbers.mark, record.keep) {
        (true, _) => format!("route del {DELIVERY}{metric} table {table}\n"),
        (false, true) => format!("route del {REFUSAL} table {table}\n"),
        (false, false) => String::new(),
    };
    format!("{route}rule del priority {RULE_PRIORITY} fwmark {mark:#x} lookup {table}\n")
}

/// The rules that stand, and what they lead by.
pub(super) fn undo_routes(record: &Record) -> Result<()> {
    for family in FAMILIES {
        // One for packets of the relay's connections, and one for each rule and worker that hold SYNs.
        let rules = marks::routing_rules(family)?;
        let made = rules.lines().filter_map(|line| marks::made(line, &record.numbers));
        ip_try(family, &made.map(|way| unroute(family, record, way)).collect::<String>())?;
    }
    Ok(())
}

/// Turns off what the relay turned on, unless it is off: the relay may not have come to it. Another relay that lives
/// and needs it turns it off in its time.
fn stop_forwarding(table_name: &str, record: &Record) -> Result<()> {
    if record.forwarding == [false; 2] {
        return Ok(());
    }
    let others = records()?.into_iter().filter(|(name, other)| name != table_name && is_living(name, other));
    let needed: Vec<_> = others.map(|(_, other)| other.forwarding).collect();
    let mut outcome = Ok(());
    for (family, key) in FORWARDING.into_iter().enumerate() {
        let is_mine = record.forwarding[family] && !needed.iter().any(|needed| needed[family]);
        if is_mine && sysctl::read(key).is_ok_and(|value| value == "1") {
            outcome = outcome.and(sysctl::write(key, "0"));
        }
    }
    Ok(outcome?)
}
