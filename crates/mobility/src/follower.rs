//! What a node does to its connections when the link of their router changes. Pure: control blocks, announcements and
//! the time go in, wishes come out.
//!
//! **When.** Losses of what was sent over the old link are found after the change, and cut whatever was set before
//! (Ishibashi 2006, figure 7). So a window is raised only once everything that had been sent at the change is
//! acknowledged ([`Moment`]) and nothing is being repaired. A window too large for the new link is lowered at once:
//! it is what keeps ACKs of the old data from releasing more than the link can take; a cut after that does no harm,
//! since the window is set again at the moment. Nothing is ever set while a loss is being repaired.
//!
//! **What.** [`Policy`] finds the window W, and the room that pipe and queue have for what is in flight
//! ([`Situation::room_segments`]). A window between them is left as it is: nothing of it is lost, and whatever begins
//! anew has to find the queue's end again. One above both is lowered: cwnd and ssthresh to W. Raising sets ssthresh to
//! W and leaves the way up to slow start, from a share of W that the queue before the link can take as a burst. A
//! connection that does not fill its window (RFC 7661, section 4.1) is only ever lowered: its window says nothing about
//! the link, and it takes no share of it.
//!
//! **How far.** Where the router says how much may wait before its link, no window grows beyond what link and queue
//! hold ([`Path::holds_segments`]): the kernel keeps to that bound (snd_cwnd_clamp) by itself, and it is lifted with
//! the link.

use crate::{
    announcement::{Announcement, Character},
    name::Name,
    policy::{Path, Policy, Remembered, Situation, Way},
};
use longfat_host::Network;
use longfat_kernel::tcb::{CcName, Change, ControlBlock, Keep, Moment, State};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

/// How a node follows.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where windows come from.
    pub policy: Policy,
    /// No window is set above this.
    pub ceiling_bytes: u64,
    /// Percentage of the new window that may be sent as one burst.
    pub burst_percent: u32,
    /// Congestion control on a link; connections on other links have their own.
    pub cc: BTreeMap<Name, CcName>,
    /// Networks behind each router, for a node at the other end of the path.
    pub peers: BTreeMap<Name, Vec<Network>>,
    /// A connection that has not settled by then is left as it is.
    pub patience_us: u64,
}

/// Why a connection is to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The connection's window is too large for the new link.
    Lowered,
    /// Everything from before the change has arrived: its window is made to fit.
    Fitted,
    /// The connection's window gets the bound of what the link holds, another one, or none any more.
    Bounded,
    /// The connection began on a link that has a congestion control of its own.
    Began,
    /// The connection goes over no router's link any more: its own congestion control comes back, and no bound of ours
    /// stays.
    Left,
}

/// One connection to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Which socket.
    pub cookie: u64,
    /// To what.
    pub change: Change,
    /// Reason for the change.
    pub why: Why,
    /// The link it is fitted to.
    pub link: Name,
}

/// A router as last heard.
#[derive(Debug, Clone)]
pub struct Router {
    /// The link it uses.
    pub link: Name,
    /// What that can do.
    pub character: Character,
    /// What nodes know it by.
    pub addresses: Vec<IpAddr>,
    /// Interfaces it is heard on; none for one that is far away.
    pub interfaces: BTreeSet<u32>,
    /// When it was last heard, repeats included.
    pub heard_us: u64,
    /// Changes of its link heard.
    pub changes: u64,
}

/// One connection over a router's link.
#[derive(Debug, Clone)]
struct Tracked {
    router: Name,
    way: Way,
    /// Congestion control of its own, where ours stands in its place.
    own_cc: Option<CcName>,
    /// Window when it was last seen to fill it without repairing, on the present link.
    steady_segments: Option<u32>,
    proven: ProvenWindow,
    /// Round-trip time without the link's delay.
    rest_us: Option<u32>,
    memory: BTreeMap<Name, Remembered>,
    pending: Option<Pending>,
    /// Whether the connection cannot be set: not tried again on this link.
    refused: bool,
    /// The kernel would not give it the congestion control: not tried again on this link.
    cc_refused: bool,
    /// Whether the window has a bound of ours.
    bounded: bool,
}

/// One connection that still has something of ours, and goes over no router's link any more.
#[derive(Debug, Clone)]
struct Departed {
    own_cc: Option<CcName>,
    bounded: bool,
    /// Whether nothing can be given back now: that is not tried again before the end.
    refused: bool,
    /// The last link.
    link: Name,
}

/// The largest window that the path was seen to hold: it was filled, and a round trip later it had not been cut.
#[derive(Debug, Clone, Copy, Default)]
struct ProvenWindow {
    segments: Option<u32>,
    /// Filled, and since when; not yet shown to be held.
    filled: Option<(u32, u64)>,
}

#[derive(Debug, Clone)]
struct Pending {
    moment: Moment,
    since_us: u64,
    window_segments: u32,
    /// A window larger than this is too large.
    most_segments: u32,
    /// What may be sent of it at once.
    burst_segments: u32,
    /// Whether the window was what limited the connection when the link changed.
    fills: bool,
    lowered: bool,
}

/// The state of a node that follows.
#[derive(Debug)]
pub struct Follower {
    settings: Settings,
    routers: BTreeMap<Name, Router>,
    tracked: HashMap<u64, Tracked>,
    departed: HashMap<u64, Departed>,
}

impl Follower {
    /// One that has heard nothing yet.
    pub fn new(settings: Settings) -> Follower {
        Follower { settings, routers: BTreeMap::new(), tracked: HashMap::new(), departed: HashMap::new() }
    }

    /// Routers heard.
    pub fn routers(&self) -> &BTreeMap<Name, Router> {
        &self.routers
    }

    /// Connections over their links.
    pub fn connections(&self) -> usize {
        self.tracked.len()
    }

    /// Connections that wait for what they sent before a change.
    pub fn waiting(&self) -> usize {
        self.tracked.values().filter(|tracked| tracked.pending.is_some()).count()
    }

    /// Congestion controls that were replaced, in the order of cookies: what to put back at the end.
    pub fn replaced_cc(&self) -> Vec<(u64, CcName)> {
        let over = self.tracked.iter().filter_map(|(cookie, tracked)| Some((*cookie, tracked.own_cc?)));
        let departed = self.departed.iter().filter_map(|(cookie, gone)| Some((*cookie, gone.own_cc?)));
        let mut all: Vec<(u64, CcName)> = over.chain(departed).collect();
        all.sort_unstable_by_key(|(cookie, _)| *cookie);
        all
    }

    /// Connections whose windows have a bound of ours, by cookie: to be lifted at the end.
    pub fn bounded(&self) -> BTreeSet<u64> {
        let over = self.tracked.iter().filter(|(_, tracked)| tracked.bounded).map(|(cookie, _)| *cookie);
        let departed = self.departed.iter().filter(|(_, gone)| gone.bounded).map(|(cookie, _)| *cookie);
        over.chain(departed).collect()
    }

    /// The newest announcement of a router, once more; whether it came in by an interface on which that router was not
    /// heard before: another way to it, or the interface of before, plugged in anew.
    pub fn hear_again(&mut self, router: &Name, interface: u32, now_us: u64) -> bool {
        let Some(router) = self.routers.get_mut(router) else { return false };
        router.heard_us = now_us;
        router.interfaces.insert(interface)
    }

    /// Forgets interfaces that are no more.
    pub fn keep_interfaces(&mut self, is_there: impl Fn(u32) -> bool) {
        self.routers.values_mut().for_each(|router| router.interfaces.retain(|index| is_there(*index)));
    }

    /// News of a router, heard on an interface; `blocks` are the control blocks of this moment.
    pub fn hear(
        &mut self,
        news: &Announcement,
        interface: Option<u32>,
        blocks: &[ControlBlock],
        now_us: u64,
    ) -> Vec<Wish> {
        let old = self.routers.get(&news.router).cloned();
        let changed = old.as_ref().is_some_and(|o| o.link != news.link || o.character != news.character);
        let router = Router {
            link: news.link.clone(),
            character: news.character,
            addresses: news.addresses.clone(),
            interfaces: old.iter().flat_map(|old| old.interfaces.iter().copied()).chain(interface).collect(),
            heard_us: now_us,
            changes: old.as_ref().map_or(0, |old| old.changes) + u64::from(changed),
        };
        self.routers.insert(news.router.clone(), router);
        self.meet(blocks, now_us);
        if let Some(old) = old.filter(|_| changed) {
            self.turn(&news.router, &old, blocks, now_us);
        }
        self.wishes(blocks, now_us)
    }

    /// A look at all control blocks.
    pub fn look(&mut self, blocks: &[ControlBlock], now_us: u64) -> Vec<Wish> {
        self.meet(blocks, now_us);
        self.wishes(blocks, now_us)
    }

    /// What came of a wish: the control block before and after, nothing when the connection had gone. A window that was
    /// not set is wished again at the next look; a congestion control that the kernel refused is not.
    pub fn done(&mut self, wish: &Wish, blocks: Option<(&ControlBlock, &ControlBlock)>) {
        self.done_for_departed(wish.cookie, blocks.map(|(_, after)| after));
        let Some(tracked) = self.tracked.get_mut(&wish.cookie) else { return };
        let Some((before, after)) = blocks else {
            self.tracked.remove(&wish.cookie);
            return;
        };
        match wish.why {
            Why::Lowered => tracked.pending.iter_mut().for_each(|pending| pending.lowered = true),
            Why::Fitted => tracked.pending = None,
            Why::Bounded | Why::Began | Why::Left => {}
        }
        if wish.change.clamp_segments.is_some() {
            tracked.bounded = is_bound(after.clamp_segments);
        }
        match wish.change.cc {
            Some(cc) if after.cc == cc => {
                let own = tracked.own_cc.unwrap_or(before.cc);
                tracked.own_cc = (own != cc).then_some(own);
            }
            Some(_) => tracked.cc_refused = true,
            None => {}
        }
    }

    /// What is still owed to a connection that has left its router.
    fn done_for_departed(&mut self, cookie: u64, after: Option<&ControlBlock>) {
        let Some(gone) = self.departed.get_mut(&cookie) else { return };
        gone.own_cc = gone.own_cc.filter(|cc| after.is_some_and(|after| after.cc != *cc));
        gone.bounded &= after.is_some_and(|after| is_bound(after.clamp_segments));
        gone.refused = true;
        if gone.own_cc.is_none() && !gone.bounded {
            self.departed.remove(&cookie);
        }
    }

    /// Takes note that a wish cannot be done: the connection stays as it is until the next change, and what is owed to
    /// one that left its router is tried again at the end.
    pub fn refused(&mut self, wish: &Wish) {
        if let Some(gone) = self.departed.get_mut(&wish.cookie) {
            gone.refused = true;
        }
        if let Some(tracked) = self.tracked.get_mut(&wish.cookie) {
            (tracked.pending, tracked.refused) = (None, true);
        }
    }

    /// Finds out which connections there are, and over which router they go.
    fn meet(&mut self, blocks: &[ControlBlock], now_us: u64) {
        let mut before = std::mem::take(&mut self.tracked);
        let mut departed = std::mem::take(&mut self.departed);
        for block in blocks.iter().filter(|block| sends(block)) {
            let known = before.remove(&block.cookie);
            let left = departed.remove(&block.cookie).or_else(|| self.departure(known.as_ref()));
            let Some((router, way)) = self.path_of(block, known.as_ref()) else {
                self.departed.extend(left.map(|left| (block.cookie, left)));
                continue;
            };
            let known = known.filter(|known| known.router == router && known.way == way);
            let (own_cc, bounded) = left.map_or((None, false), |left| (left.own_cc, left.bounded));
            let mut tracked =
                known.unwrap_or_else(|| Tracked { own_cc, bounded, ..Tracked::new(router, way) });
            if tracked.pending.is_none() {
                tracked.see(block, now_us);
            }
            self.tracked.insert(block.cookie, tracked);
        }
    }

    /// What is left to be done for a connection that leaves its router.
    fn departure(&self, known: Option<&Tracked>) -> Option<Departed> {
        let known = known.filter(|known| known.own_cc.is_some() || known.bounded)?;
        let link = self.routers.get(&known.router)?.link.clone();
        Some(Departed { own_cc: known.own_cc, bounded: known.bounded, refused: false, link })
    }

    fn path_of(&self, block: &ControlBlock, known: Option<&Tracked>) -> Option<(Name, Way)> {
        if let Some(known) = known.filter(|known| known.way == Way::Up && block.interface == 0) {
            // Its route has just been forgotten and is looked up with the next segment.
            return Some((known.router.clone(), known.way));
        }
        let near = |router: &Router| {
            router.interfaces.contains(&block.interface)
                && block.gateway.is_some_and(|gateway| router.addresses.contains(&gateway))
        };
        if let Some((name, _)) = self.routers.iter().find(|(_, router)| near(router)) {
            return Some((name.clone(), Way::Up));
        }
        let far =
            |networks: &Vec<Network>| networks.iter().any(|network| network.contains(block.remote.ip()));
        let peers = self.settings.peers.iter().find(|(_, networks)| far(networks));
        peers.map(|(name, _)| (name.clone(), Way::Down)).filter(|(name, _)| self.routers.contains_key(name))
    }

    /// The link of a router has changed: every connection over it gets a window to come to, and its moment.
    fn turn(&mut self, name: &Name, old: &Router, blocks: &[ControlBlock], now_us: u64) {
        let Some(router) = self.routers.get(name) else { return };
        for way in [Way::Up, Way::Down] {
            let over = |block: &&ControlBlock| {
                self.tracked.get(&block.cookie).is_some_and(|t| t.router == *name && t.way == way)
            };
            let over: Vec<&ControlBlock> = blocks.iter().filter(over).collect();
            let sending = over.iter().filter(|block| fills(block)).count();
            for block in over {
                let Some(tracked) = self.tracked.get_mut(&block.cookie) else { continue };
                let shared = (sending as u32).max(1);
                tracked.turn(block, old, router, shared, &self.settings);
                if let Some(pending) = &mut tracked.pending {
                    pending.since_us = now_us;
                }
            }
        }
    }

    fn wishes(&mut self, blocks: &[ControlBlock], now_us: u64) -> Vec<Wish> {
        let mut wishes = Vec::new();
        for block in blocks {
            wishes.extend(self.departed.get(&block.cookie).and_then(|departed| departed.wish(block)));
            let Some(tracked) = self.tracked.get_mut(&block.cookie) else { continue };
            let Some(router) = self.routers.get(&tracked.router) else { continue };
            let expired =
                |pending: &Pending| now_us.saturating_sub(pending.since_us) > self.settings.patience_us;
            if tracked.pending.as_ref().is_some_and(expired) {
                tracked.pending = None;
            }
            let cc = tracked.cc_wanted(block, self.settings.cc.get(&router.link));
            let wish = match &tracked.pending {
                Some(pending) => pending.wish(block, cc),
                None => cc
                    .filter(|_| !block.is_recovering() && !tracked.refused)
                    .map(|cc| (Why::Began, only_cc(cc))),
            };
            let bound = tracked.bound_wanted(block, &router.character);
            let wish = match (wish, bound) {
                (Some((Why::Fitted, change)), None) if change == Change::default() => {
                    tracked.pending = None;
                    None
                }
                (Some((why, change)), bound) if change != Change::default() => {
                    Some((why, Change { clamp_segments: bound, ..change }))
                }
                (_, Some(bound)) => Some((Why::Bounded, bounded(block, bound))),
                (wish, None) => wish,
            };
            if let Some((why, change)) = wish {
                wishes.push(Wish { cookie: block.cookie, change, why, link: router.link.clone() });
            }
        }
        wishes
    }
}

/// Whether a connection may send data: ESTABLISHED, FIN_WAIT_1, CLOSE_WAIT, LAST_ACK, CLOSING.
fn sends(block: &ControlBlock) -> bool {
    matches!(block.state, State(1 | 4 | 8 | 9 | 11))
}

/// Whether a connection uses at least half of its window (RFC 7661, section 4.1): only then the window is what limits
/// it.
fn fills(block: &ControlBlock) -> bool {
    u64::from(block.flight_segments) * 2 >= u64::from(block.cwnd_segments)
}

impl Departed {
    fn wish(&self, block: &ControlBlock) -> Option<Wish> {
        let change = given_back(block, self.own_cc, self.bounded);
        let change = change.filter(|_| !block.is_recovering() && !self.refused)?;
        let change = Change { unless_recovering: true, ..change };
        Some(Wish { cookie: block.cookie, change, why: Why::Left, link: self.link.clone() })
    }
}

impl Tracked {
    fn new(router: Name, way: Way) -> Tracked {
        Tracked {
            router,
            way,
            own_cc: None,
            steady_segments: None,
            proven: ProvenWindow::default(),
            rest_us: None,
            memory: BTreeMap::new(),
            pending: None,
            refused: false,
            cc_refused: false,
            bounded: false,
        }
    }

    fn see(&mut self, block: &ControlBlock, now_us: u64) {
        let filled = block.ca_state == 0 && fills(block);
        self.steady_segments = Some(block.cwnd_segments).filter(|_| filled).or(self.steady_segments);
        self.proven.see(block, filled, now_us);
    }

    fn turn(&mut self, block: &ControlBlock, old: &Router, new: &Router, sharing: u32, settings: &Settings) {
        // Of the first link it was seen on: the least round-trip time is of that one, later perhaps of another.
        let link_us = old.character.delay_us.saturating_mul(2);
        self.rest_us = self.rest_us.or_else(|| Some(block.min_rtt_us?.saturating_sub(link_us)));
        // A window on its way to fit the old link says nothing about it.
        let pending = self.pending.take();
        let steady = self.steady_segments.take();
        let proven = Some(block.cwnd_segments).filter(|_| block.ca_state == 0 && fills(block)).or(steady);
        let old_segments = match &pending {
            Some(pending) => pending.window_segments,
            None => proven.unwrap_or(block.cwnd_segments),
        };
        let held_segments = std::mem::take(&mut self.proven).segments;
        let left = Remembered { cwnd_segments: old_segments, held_segments, character: old.character };
        if pending.is_none() && proven.is_some() {
            self.memory.insert(old.link.clone(), left);
        }
        let situation = Situation {
            new: new.character,
            old: left,
            before: self.memory.get(&new.link).copied().filter(|_| new.link != old.link),
            way: self.way,
            // Nothing was measured yet: of the rest nothing is known.
            rest_us: self.rest_us.unwrap_or(0),
            sharing,
            mss_bytes: block.mss_bytes,
            ceiling_bytes: settings.ceiling_bytes,
        };
        let window_segments = match settings.policy {
            // The same link at another rate has nothing to be restored, and something to be scaled.
            Policy::Restore if new.link == old.link => Policy::Scale.window_segments(&situation),
            policy => policy.window_segments(&situation),
        };
        (self.refused, self.cc_refused) = (false, false);
        self.pending = self
            .may_begin_anew(block, &new.character)
            .then(|| Pending::new(block, &situation, window_segments, settings.burst_percent));
    }

    /// BBR that begins anew takes the least round-trip time the kernel has ever measured on the connection for that of
    /// its path, and holds to it for 10 s: on a link with a longer one its window would be a fraction of what that link
    /// takes.
    fn may_begin_anew(&self, block: &ControlBlock, link: &Character) -> bool {
        let rtt_us = u64::from(self.rest_us.unwrap_or(0)) + 2 * u64::from(link.delay_us);
        !is_bbr(block.cc) || block.min_rtt_us.is_some_and(|least_us| u64::from(least_us) * 5 / 4 >= rtt_us)
    }

    /// The bound that its window should have and has not; one that is nearly right stays, and so does one that is not
    /// ours.
    fn bound_wanted(&self, block: &ControlBlock, link: &Character) -> Option<u32> {
        let anothers = !self.bounded && is_bound(block.clamp_segments);
        if self.refused || anothers || block.is_recovering() {
            return None;
        }
        let measured_us = || Some(block.min_rtt_us?.saturating_sub(link.delay_us.saturating_mul(2)));
        // BBR bounds itself, by what it measures; what it measured would be lost.
        let rest_us = self.rest_us.or_else(measured_us).filter(|_| !is_bbr(block.cc));
        let holds = rest_us.and_then(|rest_us| {
            Path { link: *link, way: self.way, rest_us, mss_bytes: block.mss_bytes }.holds_segments()
        });
        match holds {
            Some(holds) if holds < UNBOUNDED_SEGMENTS => {
                (block.clamp_segments.abs_diff(holds) > holds / BOUND_TOLERATED_ONE_IN).then_some(holds)
            }
            _ => self.bounded.then_some(UNBOUNDED_SEGMENTS),
        }
    }

    /// The congestion control it should have and has not: the link's, else its own.
    fn cc_wanted(&self, block: &ControlBlock, of_link: Option<&CcName>) -> Option<CcName> {
        of_link.copied().or(self.own_cc).filter(|cc| *cc != block.cc && !self.cc_refused)
    }
}

impl ProvenWindow {
    fn see(&mut self, block: &ControlBlock, filled: bool, now_us: u64) {
        let (cwnd, rtt_us) = (block.cwnd_segments, u64::from(block.srtt_us));
        match self.filled {
            Some((segments, since_us)) if filled && cwnd >= segments => {
                if now_us.saturating_sub(since_us) > rtt_us {
                    self.segments = self.segments.max(Some(segments));
                    self.filled = Some((cwnd, now_us));
                }
            }
            _ => self.filled = filled.then_some((cwnd, now_us)),
        }
    }
}

impl Pending {
    fn new(block: &ControlBlock, situation: &Situation, window: u32, burst_percent: u32) -> Pending {
        let share = u64::from(window) * u64::from(burst_percent.min(100)) / 100;
        // BBR's window says nothing of what the path holds; what it keeps of the old link does the harm.
        let room = situation.room_segments().filter(|_| !is_bbr(block.cc));
        Pending {
            moment: Moment::of(block),
            since_us: 0,
            window_segments: window,
            most_segments: room.unwrap_or(0).max(window),
            burst_segments: (share as u32).max(1),
            fills: fills(block),
            lowered: false,
        }
    }

    /// What to do now; `Fitted` without a change when there is nothing left to do.
    fn wish(&self, block: &ControlBlock, cc: Option<CcName>) -> Option<(Why, Change)> {
        if block.is_recovering() {
            return None;
        }
        let window = self.window_segments;
        let begin_anew = |cwnd: u32, ssthresh: u32, cc| Change {
            cwnd_segments: Some(cwnd),
            ssthresh_segments: Some(ssthresh.max(2)),
            cc,
            // W_max and BBR's model are of another link.
            keep: Keep::Never,
            unless_recovering: true,
            ..Change::default()
        };
        if self.moment.has_passed(block) {
            if !self.fills && block.cwnd_segments <= window {
                return Some((Why::Fitted, cc.map_or_else(Change::default, only_cc)));
            }
            let fits = block.cwnd_segments >= window
                && cc.is_none()
                && (self.lowered || block.cwnd_segments <= self.most_segments);
            if fits {
                return Some((Why::Fitted, Change::default()));
            }
            // BBR decides on cwnd itself; once it began anew on this link, its model is of this link.
            let settled = self.lowered && is_bbr(block.cc) && cc.is_none();
            let cwnd = block.cwnd_segments.max(self.burst_segments).min(window);
            let same =
                cwnd == block.cwnd_segments && block.ssthresh_segments == window.max(2) && cc.is_none();
            let change = if settled || same { Change::default() } else { begin_anew(cwnd, window, cc) };
            return Some((Why::Fitted, change));
        }
        let too_large = !self.lowered && block.cwnd_segments > self.most_segments;
        too_large.then(|| (Why::Lowered, begin_anew(window, window.min(block.ssthresh_segments), None)))
    }
}

/// What the kernel takes for no bound at all.
pub const UNBOUNDED_SEGMENTS: u32 = i32::MAX as u32;
/// A bound that is off by less is not set anew: that begins the congestion control's state anew.
const BOUND_TOLERATED_ONE_IN: u32 = 8;

/// Whether that is a bound on the window.
pub fn is_bound(clamp_segments: u32) -> bool {
    clamp_segments < UNBOUNDED_SEGMENTS
}

/// What leaves nothing of ours on a connection: its own congestion control, no bound. Nothing where it is so already.
pub fn given_back(block: &ControlBlock, own_cc: Option<CcName>, bounded: bool) -> Option<Change> {
    let cc = own_cc.filter(|cc| *cc != block.cc);
    let clamp_segments = (bounded && is_bound(block.clamp_segments)).then_some(UNBOUNDED_SEGMENTS);
    let change = Change { cc, clamp_segments, keep: Keep::Never, ..Change::default() };
    (cc.is_some() || clamp_segments.is_some()).then_some(change)
}

/// A bound on the window, and the window within it.
fn bounded(block: &ControlBlock, clamp: u32) -> Change {
    let too_large = block.cwnd_segments > clamp;
    Change {
        clamp_segments: Some(clamp),
        cwnd_segments: too_large.then_some(clamp),
        ssthresh_segments: too_large.then_some(block.ssthresh_segments.min(clamp).max(2)),
        keep: Keep::Never,
        unless_recovering: true,
        ..Change::default()
    }
}

fn only_cc(cc: CcName) -> Change {
    Change { cc: Some(cc), unless_recovering: true, ..Change::default() }
}

fn is_bbr(cc: CcName) -> bool {
    cc.as_str().contains("bbr")
}

#[cfg(test)]
mod tests;
