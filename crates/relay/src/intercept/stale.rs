//! Tables that stand: of relays that live, and what dead ones left.
//!
//! A process is known by its pid and start time, within its PID namespace. Of another one, nothing but the network
//! namespace is shared (two containers of one pod): there a relay is known by a socket that it holds as long as it
//! lives, whose abstract name (unix(7)) belongs to the network namespace.

use super::{
    commands::nft,
    rules::{Record, TABLE_PREFIX},
    undo::{Left, undo},
};
use crate::{Error, Result, handover::keeper};
use longfat_host::lease;
use std::{
    io::ErrorKind,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::{Duration, Instant},
};

/// How long a relay that was killed may take to go, and how often it is looked at.
const DYING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// Where a relay that has this table says that it lives. Nobody sends anything there.
fn sign_of_life(table_name: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("longfat relay {table_name}"))
}

/// Says to other PID namespaces that the relay of this table lives, until it is dropped. Anybody may have the name, who
/// then says it, too.
pub(super) fn show_life(table_name: &str) -> Result<Option<UnixDatagram>> {
    match sign_of_life(table_name).and_then(|address| UnixDatagram::bind_addr(&address)) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(Error::io(format!("hold the name of nft table '{table_name}'"), error)),
    }
}

fn shows_life(table_name: &str) -> bool {
    let ask = || UnixDatagram::unbound()?.connect_addr(&sign_of_life(table_name)?);
    !ask().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Whether the process that made the table lives.
pub(super) fn is_living(table_name: &str, record: &Record) -> bool {
    if is_kept(table_name) {
        return true;
    }
    match record.pid_namespace {
        Some(namespace) if lease::pid_namespace() != Some(namespace) => shows_life(table_name),
        _ => lives_on(record),
    }
}

/// Whether its connections are kept for the next relay of that name.
fn is_kept(table_name: &str) -> bool {
    table_name.strip_prefix(TABLE_PREFIX).is_some_and(keeper::is_there)
}

/// One that is dying is waited for: to give back its sockets and programs takes a killed relay a while.
fn lives_on(record: &Record) -> bool {
    let deadline = Instant::now() + DYING;
    while lease::start_time(record.pid) == Some(record.start_ticks) {
        if !lease::is_dying(record.pid) || Instant::now() >= deadline {
            return true;
        }
        std::thread::sleep(LOOK);
    }
    false
}

/// The process of a record, for a person.
pub(super) fn owner(record: &Record) -> String {
    let elsewhere = record.pid_namespace.is_some_and(|namespace| lease::pid_namespace() != Some(namespace));
    format!("process {}{}", record.pid, if elsewhere { " of another PID namespace" } else { "" })
}

/// Removes what relays left whose process is dead, and, when asked to, the refusals that relays which fail closed left
/// on purpose; the names of the nft tables.
///
/// # Errors
/// What can be removed is removed, whatever cannot.
pub fn clean(refusals_too: bool) -> Result<Vec<String>> {
    let Swept { removed, problems } = sweep(|_, record| refusals_too || !record.keep)?;
    if problems.is_empty() { Ok(removed) } else { Err(Error::NotUndone { removed, problems }) }
}

/// What became of what dead relays left.
#[derive(Debug, Default)]
pub(super) struct Swept {
    pub removed: Vec<String>,
    pub problems: Vec<String>,
}

/// Removes what relays left whose process is dead, as far as it is meant.
pub(super) fn sweep(meant: impl Fn(&str, &Record) -> bool) -> Result<Swept> {
    let mut swept = Swept::default();
    for (name, record) in records()? {
        if is_living(&name, &record) || !meant(&name, &record) {
            continue;
        }
        let outcome = undo(&name, &record);
        swept.problems.extend(problem(&name, &outcome));
        swept.removed.extend(outcome.is_ok().then_some(name));
    }
    Ok(swept)
}

/// What a person should know of the undoing of a table.
fn problem(table_name: &str, outcome: &Result<Left>) -> Option<String> {
    let error = match outcome {
        Ok(left) => left.as_ref()?,
        Err(error) => error,
    };
    Some(of_the_dead(table_name, error))
}

/// Says where an error comes from.
pub(super) fn of_the_dead(table_name: &str, error: &Error) -> String {
    format!("what a dead relay left (nft table '{table_name}'): {error}")
}

/// The relays whose nft tables stand, by the names of these.
pub(super) fn records() -> Result<Vec<(String, Record)>> {
    let tables = nft("list tables\n")?;
    let names = tables.lines().filter_map(|line| line.strip_prefix("table inet ")).map(str::trim);
    let ours = names.filter(|name| name.starts_with(TABLE_PREFIX));
    Ok(ours.filter_map(|name| Some((name.to_owned(), find(name)?))).collect())
}

pub(super) fn find(table_name: &str) -> Option<Record> {
    Record::parse(&nft(&format!("list table inet {table_name}\n")).ok()?)
}
