//! `longfat mobility follow`: the loop around [`Follower`].

use crate::{
    Key, Name, Result,
    announcement::{Announcement, Reject},
    control,
    doubts::{Doubt, Doubts},
    event::{Done, Event},
    follower::{Follower, Settings, Why, Wish},
    freshness::{Freshness, Verdict},
    lan::{self, Ears},
    put_back::{PutBack, give_back, put_back},
    routes::{self, Via},
    sockets::Sockets,
    state::{State, StateFile},
    wait::{monotonic_us, unix_us, wait},
};
use longfat_host::{
    capability,
    confine::{Account, Confinement},
    control::Control,
    netlink::Netlink,
};
use longfat_kernel::tcb::{Answer, CcName, ControlBlock, Step};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    os::fd::{AsFd as _, BorrowedFd},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Between two looks while connections wait for their moment: finer than any link's round-trip time that matters.
const WAITING_US: u64 = 5_000;
/// Between two looks otherwise: how old the window is that is remembered of a link.
const STEADY_US: u64 = 200_000;
/// Looks take at most this share of one processor: one part in so many.
const SHARE: u64 = 10;
/// Between two looks at interfaces and routes, which are taken only after the kernel has told of a change.
const ROUTES_US: u64 = 1_000_000;
/// Longest sleep.
const SLEEP_US: u64 = 50_000;

/// How a node follows.
#[derive(Debug, Clone)]
pub struct FollowPlan {
    /// Keys that are believed.
    pub keys: Vec<Key>,
    /// Routers that are believed; all who have a key when there are none.
    pub routers: Vec<Name>,
    /// Interfaces to listen on; all when there are none.
    pub interfaces: Vec<String>,
    /// UDP port.
    pub port: u16,
    /// Policies and bounds.
    pub settings: Settings,
    /// Least retransmission timeout on the routes of a router that was heard; they are left alone without one.
    pub rto_min_ms: Option<u32>,
    /// By how much the router's clock and ours may differ.
    pub tolerance_us: u64,
    /// Where it is asked.
    pub control: PathBuf,
    /// What outlives it.
    pub state: PathBuf,
    /// User that the process becomes when it hears, where that is another one.
    pub account: Option<Account>,
}

/// What was heard and done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Announcements that were news.
    pub news: u64,
    /// The newest once more.
    pub repeats: u64,
    /// Overtaken or replayed.
    pub old: u64,
    /// Sent too long ago or in the future.
    pub off_time: u64,
    /// Tagged with a key that we have not.
    pub foreign_key: u64,
    /// With a wrong tag.
    pub forged: u64,
    /// Announcements of a router that is not one of those to be believed.
    pub other_router: u64,
    /// Announcements of another version, or not as described.
    pub malformed: u64,
    /// No announcements; most of them the kernel drops, also what found no room.
    pub not_ours: u64,
    /// Connections whose window was lowered at once.
    pub lowered: u64,
    /// Connections whose window was made to fit.
    pub fitted: u64,
    /// Bounds set, changed and lifted by themselves: what a link with a known queue holds.
    pub bounded: u64,
    /// Connections that were given a link's congestion control when they began.
    pub began: u64,
    /// Connections that went over to another way, and were given back their own congestion control.
    pub left: u64,
    /// Connections that could not be set.
    pub refused: u64,
    /// Connections found repairing a loss at the last moment: tried again.
    pub postponed: u64,
    /// Looks at all control blocks.
    pub looks: u64,
}

struct Node<'a> {
    plan: &'a FollowPlan,
    follower: Follower,
    freshness: Freshness,
    doubts: Doubts,
    sockets: Sockets,
    ears: Ears,
    netlink: Netlink,
    /// Tells of changes of interfaces, addresses and routes.
    watch: Netlink,
    state: State,
    file: StateFile,
    /// What one that died has left and could not be put back yet.
    left: State,
    counters: Counters,
    look_due_us: u64,
    routes_due_us: u64,
    /// Interfaces and routes are to be looked at whether the kernel tells of a change or not.
    routes_stale: bool,
    tell: &'a mut dyn FnMut(Event<'_>),
}

/// Follows until `stop`, then puts back what it changed: also when something fails on the way. `ready` is called when
/// it hears.
///
/// # Errors
/// When sockets or programs cannot be had, or what was changed cannot be put back.
pub fn run(
    plan: &FollowPlan,
    stop: &AtomicBool,
    ready: impl FnOnce() -> Result<()>,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    let asked = control::open(&plan.control)?;
    let mut node = Node::begin(plan, tell)?;
    let given_up = give_up_privileges(plan, &mut node.file);
    let followed = given_up.and_then(|()| ready()).and_then(|()| node.follow(&asked, stop));
    let ended = node.put_back("the end");
    followed.and(ended)
}

/// What is left: routes and control blocks (CAP_NET_ADMIN), and the programs that were loaded (CAP_BPF). What it leaves
/// is believed by the next as the user who started it, so that its state stays that user's.
fn give_up_privileges(plan: &FollowPlan, file: &mut StateFile) -> Result<()> {
    file.by_monitor(plan.account.as_ref(), &plan.control)?;
    let own = [&plan.state, &plan.control].into_iter().filter_map(|path| path.parent());
    let kept = [capability::NET_ADMIN, capability::BPF];
    Confinement::of(plan.account.clone()).keeping(&kept).writing(own).using_bpf().enter()?;
    Ok(())
}

impl<'a> Node<'a> {
    fn begin(plan: &'a FollowPlan, tell: &'a mut dyn FnMut(Event<'_>)) -> Result<Node<'a>> {
        let mut freshness = Freshness::new(plan.tolerance_us);
        let state = State::take_over(&plan.state)?;
        for (router, newest) in &state.heard {
            freshness.remember(router.clone(), *newest);
        }
        let sockets = Sockets::open(plan.settings.cc.values().copied(), tell)?;
        let mut node = Node {
            plan,
            follower: Follower::new(plan.settings.clone()),
            freshness,
            doubts: Doubts::default(),
            sockets,
            // Before the interfaces are looked at: none that comes after that is missed.
            watch: Netlink::watch()?,
            ears: Ears::open(plan.interfaces.clone(), plan.port)?,
            netlink: Netlink::open()?,
            state,
            file: StateFile::new(&plan.state),
            left: State::default(),
            counters: Counters::default(),
            look_due_us: 0,
            routes_due_us: 0,
            routes_stale: false,
            tell,
        };
        // What the kernel refuses now it will refuse later: it is said, and no reason not to follow.
        if let Err(error) = node.put_back("left by one that died") {
            node.say(error.to_string());
        }
        node.left = node.state.clone();
        Ok(node)
    }

    fn follow(&mut self, asked: &Control, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Acquire) {
            {
                let mut on: Vec<BorrowedFd<'_>> = self.ears.sockets().collect();
                on.push(asked.as_fd());
                wait(&on, self.sleep());
            }
            self.hear()?;
            if monotonic_us() >= self.look_due_us && !self.follower.routers().is_empty() {
                let blocks = self.look()?;
                let wishes = self.follower.look(&blocks, monotonic_us());
                self.fulfil(&wishes, &blocks)?;
            }
            self.tend_routes()?;
            control::answer(asked, |question| self.answer(question));
        }
        Ok(())
    }

    fn sleep(&self) -> Duration {
        let due_us = match self.follower.routers().is_empty() {
            true => self.routes_due_us,
            false => self.look_due_us.min(self.routes_due_us),
        };
        Duration::from_micros(due_us.saturating_sub(monotonic_us()).min(SLEEP_US))
    }

    fn say(&mut self, text: String) {
        (self.tell)(Event::Said(text));
    }

    /// Every control block, and when the next look is due: soon while connections wait, and never so soon that looking
    /// takes more than its share of the processor.
    fn look(&mut self) -> Result<Vec<ControlBlock>> {
        let began_us = monotonic_us();
        let blocks = self.sockets.look()?;
        self.counters.looks += 1;
        let now_us = monotonic_us();
        let pause_us = if self.follower.waiting() > 0 { WAITING_US } else { STEADY_US };
        self.look_due_us = now_us + pause_us.max((now_us - began_us) * SHARE);
        Ok(blocks)
    }

    fn hear(&mut self) -> Result<()> {
        while let Some((datagram, interface)) = self.ears.take() {
            let announcement = match Announcement::open(&datagram, &self.plan.keys) {
                Ok(announcement) => announcement,
                Err(reject) => {
                    self.count(reject);
                    continue;
                }
            };
            if !self.plan.routers.is_empty() && !self.plan.routers.contains(&announcement.router) {
                self.counters.other_router += 1;
                self.doubt(&Doubt::OtherRouter(announcement.router));
                continue;
            }
            let now_unix_us = unix_us();
            let verdict = self.freshness.judge(&announcement, now_unix_us);
            if matches!(verdict, Verdict::News | Verdict::Repeat) {
                self.doubts.believed(&announcement.router, monotonic_us());
            }
            match verdict {
                Verdict::News => self.news(&announcement, interface)?,
                // Known from before a restart: its link is the present one all the same.
                Verdict::Repeat if !self.follower.routers().contains_key(&announcement.router) => {
                    self.news(&announcement, interface)?;
                }
                Verdict::Repeat => {
                    self.counters.repeats += 1;
                    if self.follower.hear_again(&announcement.router, interface, monotonic_us()) {
                        self.look_again();
                    }
                }
                Verdict::Old => self.counters.old += 1,
                Verdict::OffTime => {
                    self.counters.off_time += 1;
                    let ahead_us = announcement.sent_us.wrapping_sub(now_unix_us).cast_signed();
                    let tolerance_us = self.plan.tolerance_us;
                    self.doubt(&Doubt::OffTime { router: announcement.router, ahead_us, tolerance_us });
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, reject: Reject) {
        let counter = match reject {
            Reject::NotOurs => &mut self.counters.not_ours,
            Reject::Version(_) | Reject::Malformed(_) => &mut self.counters.malformed,
            Reject::ForeignKey(_) => &mut self.counters.foreign_key,
            Reject::Forged => &mut self.counters.forged,
        };
        *counter += 1;
        Doubt::of(reject).into_iter().for_each(|doubt| self.doubt(&doubt));
    }

    /// Says why what was heard is not believed, unless that was said.
    fn doubt(&mut self, doubt: &Doubt) {
        if self.doubts.is_new(doubt, monotonic_us()) {
            self.say(doubt.to_string());
        }
    }

    /// Connections and routes are to be looked at soon.
    fn look_again(&mut self) {
        (self.look_due_us, self.routes_due_us, self.routes_stale) = (0, 0, true);
    }

    fn news(&mut self, announcement: &Announcement, interface: u32) -> Result<()> {
        self.counters.news += 1;
        let blocks = self.look()?;
        let wishes = self.follower.hear(announcement, Some(interface), &blocks, monotonic_us());
        self.fulfil(&wishes, &blocks)?;
        self.look_due_us = self.look_due_us.min(monotonic_us() + WAITING_US);
        let age_ms = unix_us().saturating_sub(announcement.changed_us) / 1000;
        let Announcement { router, link, character, .. } = announcement;
        self.say(format!("router '{router}' uses '{link}' ({character}) since {age_ms} ms ago"));
        self.state.heard.insert(router.clone(), (announcement.epoch_us, announcement.sequence));
        self.file.write(&self.state)?;
        (self.routes_due_us, self.routes_stale) = (0, true);
        Ok(())
    }

    fn fulfil(&mut self, wishes: &[Wish], blocks: &[ControlBlock]) -> Result<()> {
        if wishes.is_empty() {
            return Ok(());
        }
        let by_cookie: HashMap<u64, &ControlBlock> =
            blocks.iter().map(|block| (block.cookie, block)).collect();
        let mut steps = Vec::new();
        for wish in wishes {
            let Some(block) = by_cookie.get(&wish.cookie) else { continue };
            match self.sockets.step(block, &wish.change) {
                Ok(step) => steps.push((wish, step)),
                Err(why) => {
                    self.counters.refused += 1;
                    self.follower.refused(wish);
                    self.say(format!("{} -> {} stays as it is: {why}", block.local, block.remote));
                }
            }
        }
        let asked: Vec<Step> = steps.iter().map(|(_, step)| step.clone()).collect();
        // Before it is done, as with routes. It stays when that fails: some may have been set, nobody knows which.
        let replaced = asked.iter().filter(|step| step.change.cc.is_some());
        let before = replaced.filter_map(|step| by_cookie.get(&step.cookie)).map(|b| (b.cookie, b.cc));
        let replaced_cc = owed(&self.state.replaced_cc, before);
        let bounding = asked.iter().filter(|step| step.change.clamp_segments.is_some());
        let bounded = bounding.map(|step| step.cookie).chain(self.state.bounded.iter().copied()).collect();
        self.write_changed(replaced_cc, bounded)?;
        let answers = self.sockets.apply(&asked)?;
        for ((wish, step), answer) in steps.iter().zip(&answers) {
            self.done(wish, step, answer);
        }
        let replaced = owed(&self.left.replaced_cc, self.follower.replaced_cc().into_iter());
        let bounded = &self.follower.bounded() | &self.left.bounded;
        self.write_changed(replaced, bounded)
    }

    fn write_changed(&mut self, replaced_cc: Vec<(u64, String)>, bounded: BTreeSet<u64>) -> Result<()> {
        if self.state.replaced_cc == replaced_cc && self.state.bounded == bounded {
            return Ok(());
        }
        (self.state.replaced_cc, self.state.bounded) = (replaced_cc, bounded);
        self.file.write(&self.state)
    }

    fn done(&mut self, wish: &Wish, step: &Step, answer: &Answer) {
        if answer.recovering {
            self.counters.postponed += 1;
            return;
        }
        self.follower.done(wish, answer.blocks.as_ref().map(|(before, after)| (before, after)));
        let Some((before, after)) = &answer.blocks else { return };
        let counter = match wish.why {
            _ if !answer.errors.is_empty() => &mut self.counters.refused,
            Why::Lowered => &mut self.counters.lowered,
            Why::Fitted => &mut self.counters.fitted,
            Why::Bounded => &mut self.counters.bounded,
            Why::Began => &mut self.counters.began,
            Why::Left => &mut self.counters.left,
        };
        *counter += 1;
        (self.tell)(Event::Done(Done { wish, blocks: (before, after), shortfalls: answer.shortfalls(step) }));
    }

    /// New interfaces are listened on, and routes through the routers that were heard have the high timeout.
    fn tend_routes(&mut self) -> Result<()> {
        if monotonic_us() < self.routes_due_us {
            return Ok(());
        }
        self.routes_due_us = monotonic_us() + ROUTES_US;
        if !self.watch.drain() && !self.routes_stale {
            return Ok(());
        }
        self.routes_stale = false;
        self.ears.join()?;
        self.follower.keep_interfaces(lan::is_there);
        self.raise_routes()
    }

    fn raise_routes(&mut self) -> Result<()> {
        let Some(ms) = self.plan.rto_min_ms else { return Ok(()) };
        let routers = self.follower.routers().iter();
        let vias: Vec<Via<'_>> = routers
            .flat_map(|(name, router)| {
                let peers = self.plan.settings.peers.get(name).map_or(&[][..], Vec::as_slice);
                let via =
                    |interface: &u32| Via { addresses: &router.addresses, interface: *interface, peers };
                router.interfaces.iter().map(via)
            })
            .collect();
        if vias.is_empty() {
            return Ok(());
        }
        let due = self.state.routes.note(routes::all(&mut self.netlink)?, &vias, ms);
        if due.is_empty() {
            return Ok(());
        }
        self.file.write(&self.state)?;
        let raised = self.state.routes.raise(&mut self.netlink, &due, ms);
        for refused in raised.refused {
            self.say(format!("a route is left alone: {refused}"));
        }
        if raised.routes > 0 {
            self.say(format!("connections that begin on the routers' routes have an rto_min of {ms} ms"));
        }
        Ok(())
    }

    /// What cannot be put back does not keep the rest from it.
    fn put_back(&mut self, why: &str) -> Result<()> {
        let (done, failed) = put_back(&mut self.state, &self.file, &mut self.netlink, |state| {
            give_back(state, &mut self.sockets, self.tell)
        });
        if done != PutBack::default() {
            self.say(format!("{done} ({why})"));
        }
        failed
    }

    fn answer(&self, question: &str) -> serde_json::Value {
        if question != "status" {
            return serde_json::json!({ "error": "ask 'status'" });
        }
        let now_us = monotonic_us();
        let not_ours = self.counters.not_ours + self.ears.dropped();
        let routers: Vec<serde_json::Value> = self
            .follower
            .routers()
            .iter()
            .map(|(name, router)| {
                serde_json::json!({
                    "router": name,
                    "link": router.link,
                    "character": router.character,
                    "addresses": router.addresses,
                    "changes": router.changes,
                    "heard_ago_us": now_us.saturating_sub(router.heard_us),
                })
            })
            .collect();
        serde_json::json!({
            "version": crate::STATUS_VERSION,
            "role": "follow",
            "pid": std::process::id(),
            "listening": self.ears.joined().collect::<Vec<_>>(),
            "routers": routers,
            "connections": self.follower.connections(),
            "waiting": self.follower.waiting(),
            "routes_raised": self.state.routes.len(),
            "routes_left_alone": self.state.routes.left_alone,
            "counters": Counters { not_ours, ..self.counters.clone() },
        })
    }
}

/// Congestion controls to be given back, in the order of cookies, when those that connections have now (`before`) are
/// replaced as well. One replaced earlier (`known`) stays: what stands in its place is not the connection's own.
fn owed(known: &[(u64, String)], before: impl Iterator<Item = (u64, CcName)>) -> Vec<(u64, String)> {
    let before = before.map(|(cookie, cc)| (cookie, cc.as_str().to_owned()));
    // Of two entries of one cookie the later stays.
    let all: BTreeMap<u64, String> = before.chain(known.iter().cloned()).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_to_be_replaced_is_owed_and_a_connections_own_stays_what_it_was() {
        let known = [(5, "reno".to_owned()), (9, "cubic".to_owned())];
        let before = [(7, CcName::from("cubic")), (5, CcName::from("bbr"))];
        let reno_cubic_cubic = [(5, "reno".into()), (7, "cubic".into()), (9, "cubic".into())];
        assert_eq!(owed(&known, before.into_iter()), reno_cubic_cubic);
        assert_eq!(owed(&known, std::iter::empty()), known);
    }
}
