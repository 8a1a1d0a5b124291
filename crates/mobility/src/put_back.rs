//! Routes and connections as they were before a follower: at its end, and after one that died.

use crate::{
    Result,
    event::Event,
    follower::given_back,
    sockets::Sockets,
    state::{State, StateFile},
};
use longfat_host::netlink::Netlink;
use longfat_kernel::tcb::{CcName, Change, ControlBlock, Step};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    path::Path,
};

/// How much is as it was before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct PutBack {
    /// Routes without our rto_min.
    pub routes: usize,
    /// Connections with their own congestion control, and without a bound of ours.
    pub connections: usize,
    /// Routes and connections that are not yet: the state remembers them.
    pub owed: usize,
}

impl fmt::Display for PutBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == PutBack::default() {
            return f.write_str("nothing was left");
        }
        write!(f, "{} routes and {} connections are as before", self.routes, self.connections)?;
        if self.owed > 0 { write!(f, ", {} are not yet", self.owed) } else { Ok(()) }
    }
}

/// Puts back what a follower that died has left, and writes down what is still owed: how much that was, and what kept
/// the rest from it. Routes are put back where connections cannot be set, too.
///
/// # Errors
/// When the state cannot be read, or the kernel not be asked: nothing was done.
pub fn clean(path: &Path, tell: &mut dyn FnMut(Event<'_>)) -> Result<(PutBack, Result<()>)> {
    let mut state = State::take_over(path)?;
    if state.changed_nothing() {
        return Ok((PutBack::default(), Ok(())));
    }
    let mut netlink = Netlink::open()?;
    Ok(put_back(&mut state, &StateFile::new(path), &mut netlink, |state| {
        let mut sockets = Sockets::open(std::iter::empty(), tell)?;
        give_back(state, &mut sockets, tell)
    }))
}

/// Puts back what `state` says was changed: how much that was, and what kept the rest from it. `give_back` does so for
/// connections, where any was changed.
pub(crate) fn put_back(
    state: &mut State,
    file: &StateFile,
    netlink: &mut Netlink,
    give_back: impl FnOnce(&mut State) -> Result<usize>,
) -> (PutBack, Result<()>) {
    let connections = if state.changed_connections() { give_back(state) } else { Ok(0) };
    let routes = state.routes.restore(netlink);
    let done = PutBack {
        routes: routes.as_ref().map_or(0, |changed| changed.routes),
        connections: *connections.as_ref().unwrap_or(&0),
        owed: state.owed(),
    };
    let written = file.write(state);
    let refused = || routes?.refused.into_iter().next().map_or(Ok(()), Err);
    (done, connections.and_then(|_| refused()).and(written))
}

/// What connections cannot be given back now, by cookie.
#[derive(Default)]
struct Owed {
    cc: BTreeSet<u64>,
    bounds: BTreeSet<u64>,
}

impl Owed {
    fn add(&mut self, cookie: u64, change: &Change) {
        self.cc.extend(change.cc.map(|_| cookie));
        self.bounds.extend(change.clamp_segments.map(|_| cookie));
    }
}

/// Gives connections their own congestion controls, and windows without a bound of ours: how many are as before. What
/// cannot be given back now is told and stays owed; connections that have gone are forgotten.
pub(crate) fn give_back(
    state: &mut State,
    sockets: &mut Sockets,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<usize> {
    let blocks = sockets.look()?;
    let mut say = |block: &ControlBlock, why: &str| {
        tell(Event::Said(format!("{} -> {} is not as before yet: {why}", block.local, block.remote)));
    };
    let (steps, mut owed) = plan(state, sockets, &blocks, &mut say);
    let asked: Vec<Step> = steps.iter().map(|(_, step)| step.clone()).collect();
    let mut given = 0;
    for ((block, step), answer) in steps.iter().zip(&sockets.apply(&asked)?) {
        if !answer.errors.is_empty() {
            owed.add(block.cookie, &step.change);
            say(block, &answer.shortfalls(step).join("; "));
        } else if answer.blocks.is_some() && !owed.cc.contains(&block.cookie) {
            given += 1;
        }
    }
    state.replaced_cc.retain(|(cookie, _)| owed.cc.contains(cookie));
    state.bounded.retain(|cookie| owed.bounds.contains(cookie));
    Ok(given)
}

/// What is to be done, for which connection, and what cannot be.
fn plan<'a>(
    state: &State,
    sockets: &Sockets,
    blocks: &'a [ControlBlock],
    say: &mut dyn FnMut(&ControlBlock, &str),
) -> (Vec<(&'a ControlBlock, Step)>, Owed) {
    let own: HashMap<u64, CcName> = state.own_cc().collect();
    let (mut steps, mut owed) = (Vec::new(), Owed::default());
    for block in blocks {
        let bounded = state.bounded.contains(&block.cookie);
        let Some(change) = given_back(block, own.get(&block.cookie).copied(), bounded) else { continue };
        match sockets.step(block, &change) {
            Ok(step) => steps.push((block, step)),
            Err(why) => {
                say(block, &why);
                owed.add(block.cookie, &change);
                // Without its own congestion control the bound is lifted all the same.
                let lift = given_back(block, None, bounded);
                if let Some(step) = lift.and_then(|change| sockets.step(block, &change).ok()) {
                    owed.bounds.remove(&block.cookie);
                    steps.push((block, step));
                }
            }
        }
    }
    (steps, owed)
}
