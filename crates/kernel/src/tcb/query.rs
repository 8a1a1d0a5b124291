//! One look at the connections of a scope: gathered, joined with their processes, filtered.

use super::filter::Filter;
use crate::{
    Result,
    avail::{self, Meters},
    sockets,
    sockets::{
        connection::{Connection, Measurement, Process},
        diag::{ALL_STATES, CONNECTED, Dump, Request, dump},
        namespace::{NetNamespace, Scope},
    },
};
use std::sync::Arc;

/// What a look is for.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Network namespaces to look in.
    pub scope: Scope,
    /// Connections to find.
    pub filter: Filter,
    /// Whether to find out which process has each open (walks /proc), and what those that measure have found.
    pub processes: bool,
    /// Whether to look at connections being made or gone, too, whatever the filter speaks of.
    pub every_state: bool,
}

impl Query {
    /// As wide a look as this one's filter asks for, without the filter: for those that fill in more before they
    /// filter.
    #[must_use]
    pub fn unfiltered(&self) -> Query {
        Query {
            scope: self.scope.clone(),
            filter: Filter::default(),
            processes: self.needs_processes(),
            every_state: self.looks_at_every_state(),
        }
    }

    /// Connections that match, in the kernel's order. Those being made or gone (LISTEN, SYN_RECV, TIME_WAIT) are
    /// looked at only when the filter speaks of states. Namespaces that may not be entered are left out.
    ///
    /// # Errors
    /// When a namespace named is not there, or the kernel refuses to list sockets.
    pub fn take(&self) -> Result<Vec<Connection>> {
        let mut all = Vec::new();
        self.each(|connection| all.push(connection))?;
        Ok(all)
    }

    /// Gives connections one by one: while the kernel is still telling of others, unless processes are to be found out.
    ///
    /// # Errors
    /// As [`Query::take`].
    pub fn each(&self, mut sink: impl FnMut(Connection)) -> Result<()> {
        if self.needs_processes() {
            self.take_each()?.into_iter().flat_map(|(_, found)| found).for_each(sink);
            return Ok(());
        }
        for namespace in self.scope.namespaces()? {
            if let Some(dump) = self.inside(&namespace)? {
                dump.each(&namespace.label, |connection| {
                    if self.filter.matches(&connection) {
                        sink(connection);
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Takes connections namespace by namespace.
    ///
    /// # Errors
    /// When a namespace named is not there, or the kernel refuses to list sockets.
    pub fn take_each(&self) -> Result<Vec<(NetNamespace, Vec<Connection>)>> {
        let namespaces = self.scope.namespaces()?;
        let owners = self.needs_processes().then(|| std::thread::spawn(sockets::all_owners));
        let mut each = Vec::new();
        for namespace in namespaces {
            let found = self.inside(&namespace)?.map(|dump| dump.all(&namespace.label)).transpose()?;
            each.push((namespace, found.unwrap_or_default()));
        }
        if let Some(owners) = owners {
            let owners = owners.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            each.iter_mut().for_each(|(_, found)| name_processes(found, &owners));
            ask_measuring(each.iter_mut().flat_map(|(_, found)| found));
        }
        each.iter_mut().for_each(|(_, found)| found.retain(|connection| self.filter.matches(connection)));
        Ok(each)
    }

    fn looks_at_every_state(&self) -> bool {
        self.every_state || self.filter.asks_for("state")
    }

    fn needs_processes(&self) -> bool {
        self.processes
            || ["process", "pid", "avail", "avail_confidence", "avail_age"]
                .iter()
                .any(|name| self.filter.asks_for(name))
    }

    /// `None` when it may not be entered.
    fn inside(&self, namespace: &NetNamespace) -> Result<Option<Dump>> {
        let states = if self.looks_at_every_state() { ALL_STATES } else { CONNECTED };
        namespace.run(|| dump(Request { states, details: true })).transpose()
    }
}

fn name_processes(connections: &mut [Connection], owners: &sockets::Owners) {
    for connection in connections {
        let owner = owners.get(&connection.inode);
        connection.process = owner.map(|(pid, command)| Process { pid: *pid, command: Arc::clone(command) });
    }
}

/// Asks those that measure what they have found, through their processes. Absent without the rights to: the rest of a
/// look needs none.
fn ask_measuring<'a>(connections: impl Iterator<Item = &'a mut Connection>) {
    let measures = |one: &&mut Connection| one.cc.is_some_and(|cc| avail::measures(cc.as_str()));
    let mut measuring = connections.filter(measures).peekable();
    let Some(meters) = measuring.peek().and_then(|_| Meters::open().ok()) else { return };
    for connection in measuring {
        let pid = connection.process.as_ref().map(|process| process.pid);
        let found = pid.and_then(|pid| meters.read_of(pid, connection.inode));
        connection.measurement = found.map(|found| Measurement { age_us: age_us(found.at_us), found });
    }
}

fn age_us(at_us: u64) -> u64 {
    u64::try_from(longfat_host::monotonic_us()).unwrap_or(0).saturating_sub(at_us)
}
