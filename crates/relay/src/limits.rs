//! How many connections the file descriptors allow.

use crate::plan::LimitsPlan;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors kept for what is not a connection: listeners, samples, programs the relay starts.
const RESERVED: u64 = 24;
/// Descriptors per worker: epoll, wake-up, listeners and a prepared socket for each.
const PER_WORKER: u64 = 8;

/// Held handshakes are dials under way: more of them at once is a flood, or a server that is gone.
const MOST_HELD: u64 = 1024;

/// What the descriptor limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub connections: usize,
    pub pipes: usize,
    /// Handshakes held back for a server's answer.
    pub held: usize,
}

impl Limits {
    /// Raises the soft limit to the hard one, or to what the plan allows, and shares that out.
    pub fn raise(workers: usize, plan: &LimitsPlan) -> Limits {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
        let wanted = plan.descriptors.map_or(hard, |most| most.min(hard));
        let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
        Limits::share(if raised { wanted } else { soft.min(wanted) }, workers).at_most(plan.connections)
    }

    fn at_most(self, connections: Option<usize>) -> Limits {
        Limits {
            connections: connections.map_or(self.connections, |most| most.min(self.connections)),
            ..self
        }
    }

    /// A quarter of the free descriptors for pipes (two each), a sixteenth for held handshakes (one each), the rest
    /// for connections (two each).
    fn share(descriptors: u64, workers: usize) -> Limits {
        let free = descriptors.saturating_sub(RESERVED + PER_WORKER * workers as u64).max(8);
        let pipes = free / 8;
        let held = (free / 16).min(MOST_HELD);
        Limits {
            connections: ((free - held) / 2 - pipes) as usize,
            pipes: pipes as usize,
            held: held as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_pipes_stay_within_the_descriptors() {
        for descriptors in [0, 64, 100, 1024, 20_000, 1 << 20] {
            let Limits { connections, pipes, held } = Limits::share(descriptors, 2);
            assert!(connections > 0);
            let needed = (2 * (connections + pipes) + held) as u64;
            assert!(needed <= descriptors.saturating_sub(40).max(8), "{descriptors}: {needed}");
        }
    }

    #[test]
    fn a_limit_of_connections_counts_where_it_is_the_lower_one() {
        let shared = Limits::share(1024, 2);
        assert_eq!(shared.at_most(Some(5)).connections, 5);
        assert_eq!(shared.at_most(Some(1 << 20)), shared);
        assert_eq!(shared.at_most(None), shared);
    }
}
