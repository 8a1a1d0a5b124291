//! Routes and connections as they were before a follower: at its end, and after one that died.

use crate::{Result, follow::Event, follower::given_back, netlink::Netlink, sockets::Sockets, state::State};
use longfat_kernel::tcb::{CcName, ControlBlock, Step};
use std::{collections::HashMap, fmt, path::Path};

/// How much is as it was before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutBack {
    /// Routes without our rto_min.
    pub routes: usize,
    /// Connections with their own congestion control, and without a bound of ours.
    pub connections: usize,
}

impl fmt::Display for PutBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} routes and {} connections are as before", self.routes, self.connections)
    }
}

/// Puts back what a follower that died has left, and writes that down.
///
/// # Errors
/// When the state cannot be read or written, or the kernel refuses; the rest is put back all the same.
pub fn clean(path: &Path, tell: &mut dyn FnMut(Event<'_>)) -> Result<PutBack> {
    let mut state = State::read(path)?;
    if state.changed_nothing() {
        return Ok(PutBack::default());
    }
    let mut sockets = match state.changed_connections() {
        true => Some(Sockets::open(std::iter::empty(), tell)?),
        false => None,
    };
    let (done, failed) = put_back(&mut state, path, &mut Netlink::open()?, sockets.as_mut());
    failed.map(|()| done)
}

/// Puts back what `state` says was changed: how much that was, and what kept the rest from it. `sockets` are not needed
/// where no connection was changed.
pub(crate) fn put_back(
    state: &mut State,
    path: &Path,
    netlink: &mut Netlink,
    sockets: Option<&mut Sockets>,
) -> (PutBack, Result<()>) {
    let connections = sockets.map_or(Ok(0), |sockets| give_back(state, sockets));
    let routes = state.routes.restore(netlink);
    let done = PutBack {
        routes: routes.as_ref().map_or(0, |changed| changed.routes),
        connections: *connections.as_ref().unwrap_or(&0),
    };
    let written = state.write(path);
    let refused = || routes?.refused.into_iter().next().map_or(Ok(()), Err);
    (done, connections.and_then(|_| refused()).and(written))
}

/// Their own congestion controls, and windows without a bound of ours.
fn give_back(state: &mut State, sockets: &mut Sockets) -> Result<usize> {
    if !state.changed_connections() {
        return Ok(0);
    }
    let own: HashMap<u64, CcName> = state.own_cc().collect();
    let step = |block: &ControlBlock| {
        let bounded = state.bounded.contains(&block.cookie);
        let change = given_back(block, own.get(&block.cookie).copied(), bounded)?;
        sockets.step(block, &change).ok()
    };
    let steps: Vec<Step> = sockets.look()?.iter().filter_map(step).collect();
    let answers = sockets.apply(&steps)?;
    state.replaced_cc.clear();
    state.bounded.clear();
    Ok(answers.iter().filter(|answer| answer.blocks.is_some() && answer.errors.is_empty()).count())
}
