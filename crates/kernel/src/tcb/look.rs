//! One look at the connections of a scope: gathered, joined with their processes, filtered.

use super::{
    connection::{Connection, Process},
    diag::{ALL_STATES, CONNECTED, Request, dump},
    filter::Filter,
    namespace::{Place, Scope},
};
use crate::{Result, sockets};
use std::sync::Arc;

/// What a look is for.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Where.
    pub scope: Scope,
    /// Which.
    pub filter: Filter,
    /// Whether to find out which process has each open: walks /proc.
    pub processes: bool,
}

impl Look {
    /// Connections that match, in the kernel's order. Those being made or gone (LISTEN, SYN_RECV, TIME_WAIT) are
    /// looked at only when the filter speaks of states. Namespaces that may not be entered are left out.
    pub fn take(&self) -> Result<Vec<Connection>> {
        Ok(self.take_each()?.into_iter().flat_map(|(_, found)| found).collect())
    }

    /// The same, namespace by namespace.
    ///
    /// # Errors
    /// When a namespace named is not there, or the kernel refuses to list sockets.
    pub fn take_each(&self) -> Result<Vec<(Place, Vec<Connection>)>> {
        let places = self.scope.places()?;
        let owners = self.needs_processes().then(|| std::thread::spawn(sockets::all_owners));
        let mut each = Vec::new();
        for place in places {
            let found = self.inside(&place)?;
            each.push((place, found));
        }
        if let Some(owners) = owners {
            let owners = owners.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            each.iter_mut().for_each(|(_, found)| name_processes(found, &owners));
        }
        each.iter_mut().for_each(|(_, found)| found.retain(|connection| self.filter.matches(connection)));
        Ok(each)
    }

    fn needs_processes(&self) -> bool {
        self.processes || self.filter.asks_for("process") || self.filter.asks_for("pid")
    }

    fn inside(&self, place: &Place) -> Result<Vec<Connection>> {
        let states = if self.filter.asks_for("state") { ALL_STATES } else { CONNECTED };
        let request = Request { states, details: true };
        place.run(|| dump(request, &place.label)).unwrap_or_else(|| Ok(Vec::new()))
    }
}

fn name_processes(connections: &mut [Connection], owners: &sockets::Owners) {
    for connection in connections {
        let owner = owners.get(&connection.inode);
        connection.process = owner.map(|(pid, command)| Process { pid: *pid, command: Arc::clone(command) });
    }
}
