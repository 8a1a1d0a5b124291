//! How many connections the file descriptors allow.

use crate::plan::LimitsPlan;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors kept for what is not a connection: listeners, samples, programs the relay starts.
const RESERVED: u64 = 24;
/// Descriptors per worker: epoll and wake-up.
const PER_WORKER: u64 = 2;
/// Descriptors per worker and listener: its socket and one prepared for its next client's server.
const PER_LISTENER: u64 = 2;

/// Held handshakes are dials under way: more of them at once is a flood, or a server that is gone.
const MOST_HELD: u64 = 1024;

/// As many descriptors may come as another process had.
pub(crate) fn raise_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// What the descriptor limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// For everything but what is reserved, and listeners.
    free: u64,
    workers: u64,
    /// What the plan allows.
    most: Option<usize>,
    pub pipes: usize,
    /// Handshakes held back for a server's answer.
    pub held: usize,
}

impl Descriptors {
    /// Raises the soft limit to the hard one, or to what the plan allows, and shares that out.
    pub fn raise(workers: usize, plan: &LimitsPlan) -> Descriptors {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
        let wanted = plan.descriptors.map_or(hard, |most| most.min(hard));
        let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
        let descriptors = if raised { wanted } else { soft.min(wanted) };
        Descriptors::share(descriptors, workers as u64, plan.connections)
    }

    /// A quarter of the free descriptors for pipes (two each), a sixteenth for held handshakes (one each), the rest
    /// for listeners and connections (two each).
    fn share(descriptors: u64, workers: u64, most: Option<usize>) -> Descriptors {
        let free = descriptors.saturating_sub(RESERVED + PER_WORKER * workers).max(8);
        let held = (free / 16).min(MOST_HELD);
        Descriptors { free, workers, most, pipes: (free / 8) as usize, held: held as usize }
    }

    /// Connections at a time, when every worker has so many listeners and so many more descriptors are used. At least
    /// one.
    pub fn connections(&self, listeners: usize, others: usize) -> usize {
        let for_listeners = PER_LISTENER * self.workers * listeners as u64;
        let taken = 2 * self.pipes as u64 + self.held as u64 + for_listeners + others as u64;
        let connections = (self.free.saturating_sub(taken) / 2).max(1) as usize;
        self.most.map_or(connections, |most| most.min(connections))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_pipes_stay_within_the_descriptors() {
        let hosts = [(0, 2, 0), (64, 2, 0), (100, 2, 3), (1024, 2, 60), (1024, 120, 9), (20_000, 400, 1000)];
        for (descriptors, listeners, others) in hosts {
            let limits = Descriptors::share(descriptors, 2, None);
            let (connections, Descriptors { pipes, held, .. }) =
                (limits.connections(listeners, others), limits);
            assert!(connections > 0);
            let needed = (2 * (connections + pipes) + held + 2 * 2 * listeners + others) as u64;
            assert!(needed <= descriptors.saturating_sub(28).max(18), "{descriptors}, {listeners}: {needed}");
        }
    }

    #[test]
    fn a_limit_of_connections_counts_where_it_is_the_lower_one() {
        let connections = |most| Descriptors::share(1024, 2, most).connections(2, 0);
        assert_eq!(connections(Some(5)), 5);
        assert_eq!(connections(Some(1 << 20)), connections(None));
    }
}
