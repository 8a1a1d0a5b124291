//! Changing rules and listeners while connections live.
//!
//! A listener whose address (or rule's name) stays keeps its socket, with everybody who is shaking hands with it: the
//! options of its next clients change. nftables exchanges all rules in one transaction. What has no use any more
//! stays open for a little, for handshakes under way, then closes. Living connections keep the plan they began with.
//!
//! A reload happens whole or not at all: whatever can fail comes first, and what it made is closed again when it does.

use super::{
    answers::{Description, Relay, RuleChange},
    missing,
    told::Told,
};
use crate::{
    Commands, Error, Fail, RelayPlan, Result, hold,
    intercept::{Interception, ListenPorts, Taking},
    legs::diag::{self, Retransmissions},
    listeners::{Clients, ListenerId, ListenerOrder, Listeners, Wanted},
    observe::journal::Once,
    spec::RuleSpec,
    worker::Workers,
};
use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// Least between two lists of clients whose connections pass, as they have their share.
const EXCLUDING: Duration = Duration::from_millis(200);
/// Between two looks for clients that are answered and not heard of.
const LISTENING: Duration = Duration::from_secs(3);
/// Retransmissions of SYN-ACKs after which a client is unheard: after 1, 3 and 7 s.
const UNHEARD_RETRANSMISSIONS: u8 = 3;
/// Least between two times that rules are made again which somebody has taken away.
const MENDING: Duration = Duration::from_secs(1);
/// For handshakes under way when a listener goes: a round trip of a satellite path and a lost packet.
const LINGER: Duration = Duration::from_secs(3);

/// The listeners that stand, and the plan they stand for.
pub(crate) struct Running<'a> {
    pub plan: Arc<RelayPlan>,
    /// The plan without the rules that were added.
    base: Arc<RelayPlan>,
    added: Vec<RuleSpec>,
    pub listeners: Listeners,
    /// Ports of the rules' listeners.
    ports: Vec<ListenPorts>,
    pub interception: Option<&'a Interception>,
    retiring: Vec<(Instant, ListenerId)>,
    excluded: Excluded,
    told: Told,
    /// When clients that are not heard of were last looked for.
    listened: Instant,
    retransmissions: Retransmissions,
    /// When rules are next looked at: what somebody takes away again and again is not made again all the time.
    next_mend: Instant,
}

impl<'a> Running<'a> {
    pub fn new(
        plan: Arc<RelayPlan>,
        listeners: Listeners,
        ports: Vec<ListenPorts>,
        interception: Option<&'a Interception>,
    ) -> Running<'a> {
        let (retiring, told) = Default::default();
        let (excluded, listened, next_mend) = (Excluded::new(), Instant::now(), Instant::now());
        let retransmissions = Retransmissions::open();
        let (base, added) = (Arc::clone(&plan), Vec::new());
        Running {
            plan,
            base,
            added,
            listeners,
            ports,
            interception,
            retiring,
            excluded,
            told,
            listened,
            retransmissions,
            next_mend,
        }
    }

    /// Nothing of it is this relay's any more: a successor has it.
    pub fn leave(&self) {
        self.interception.iter().for_each(|interception| interception.leave());
    }

    /// No successor came about: the rules say again whose they are.
    pub fn stay(&mut self, workers: &Workers) {
        workers.held.adopting.watcher.go_on();
        self.forget_sets();
        let Some(interception) = self.interception else { return };
        if let Err(error) = interception.stay(&self.plan, &self.ports) {
            workers.shared.journal.warn(&format!("say in the rules that this relay goes on: {error}"));
        }
    }

    /// The table is made anew, and its sets are empty.
    fn forget_sets(&mut self) {
        (self.excluded, self.told) = (Excluded::new(), Default::default());
    }

    /// Makes again what somebody else has taken away of the rules, or of the ways to sockets. Packets that pass
    /// meanwhile are those of another connection to whom they come, so this is done at once.
    pub fn mend(&mut self, workers: &Workers) {
        let Some(interception) = self.interception.filter(|_| Instant::now() >= self.next_mend) else {
            return;
        };
        let journal = workers.shared.journal;
        match interception.mend(&self.plan, &self.ports) {
            Ok(false) => return,
            Ok(true) => {
                self.forget_sets();
                journal.warn(
                    "somebody removed rules or routes of this relay (nft flush ruleset, ip rule del, ip link set lo \
                     down); they stand again. Packets that passed meanwhile may have ended connections",
                );
            }
            Err(error) => journal.warn(&format!("make rules again that somebody removed: {error}")),
        }
        self.next_mend = Instant::now() + MENDING;
    }

    /// Puts listeners and interfaces that are new where they survive this process.
    pub fn keep(&mut self, workers: &Workers) {
        self.listeners.keep(&workers.keeping);
        workers.shared.packets.keep(&workers.keeping);
        workers.held.gates.keep(&workers.keeping);
        workers.held.adopting.watcher.keep(&workers.keeping);
        workers.held.adopting.watcher.acks.keep(&workers.keeping);
    }

    /// Reads the commands' new plan, if there is one, and says what became of it.
    pub fn look_for_reload(&mut self, relay: &Relay, commands: &dyn Commands) {
        let workers = relay.workers;
        let Some(wanted) = commands.reload() else { return };
        let mut again = |plan| self.change(relay, Arc::new(plan), self.added.clone(), commands);
        let outcome = wanted.and_then(|plan| again(plan).map_err(|error| error.to_string()));
        let mut description = relay.description();
        match &outcome {
            Ok(()) => description.reload.done += 1,
            Err(_) => description.reload.refused += 1,
        }
        description.reload.problem = outcome.as_ref().err().cloned();
        if outcome.is_ok() {
            self.describe(&mut description);
        }
        drop(description);
        workers
            .shared
            .journal
            .observer
            .reloaded(outcome.as_ref().map(|()| self.plan.as_ref()).map_err(String::as_str));
    }

    /// Adds and removes rules that somebody asked for.
    pub fn look_for_changes(&mut self, relay: &Relay, commands: &dyn Commands) {
        for asked in relay.take_asked() {
            let outcome = self.changed(&asked.change).and_then(|added| {
                self.change(relay, Arc::clone(&self.base), added, commands)?;
                self.describe(&mut relay.description());
                Ok(self.names_of_added())
            });
            asked.tell(outcome);
        }
    }

    /// The added rules with one more, which comes first, or without one.
    fn changed(&self, change: &RuleChange) -> Result<Vec<RuleSpec>> {
        match change {
            RuleChange::Add(rule) => Ok(std::iter::once(&**rule).chain(&self.added).cloned().collect()),
            RuleChange::Remove(name) => {
                let is_meant = |rule: &&RuleSpec| rule.name.as_ref() == Some(name);
                if !self.added.iter().any(|rule| is_meant(&rule)) {
                    let names = self.names_of_added();
                    let there = if names.is_empty() { "there are none".into() } else { names.join(", ") };
                    return Err(Error::Plan(format!(
                        "no rule '{name}' was added to this relay; of those that were: {there}. Rules of its file are \
                         removed there"
                    )));
                }
                Ok(self.added.iter().filter(|rule| !is_meant(rule)).cloned().collect())
            }
        }
    }

    fn names_of_added(&self) -> Vec<String> {
        self.added.iter().filter_map(|rule| rule.name.clone()).collect()
    }

    /// Looks for clients whose handshakes with the rules' listeners nobody completes.
    pub fn look_for_unheard(&mut self, workers: &Workers) {
        let Some(mark) = workers.shared.packets.mark().filter(|_| workers.shared.plan.fail == Fail::Open)
        else {
            return;
        };
        if self.listened.elapsed() < LISTENING {
            return;
        }
        self.listened = Instant::now();
        if !self.retransmissions.are_more() {
            return;
        }
        // Who may not ask finds nobody.
        let unheard = diag::unanswered(mark, UNHEARD_RETRANSMISSIONS).unwrap_or_default();
        for pair in unheard {
            let has_any = workers.shared.admission.has_any(pair.0.ip());
            workers.shared.bypass.note_unheard(pair, has_any);
        }
    }

    /// Has nftables pass what workers found to be answered by another way.
    pub fn pass_one_way(&mut self, workers: &Workers) {
        let noted = workers.shared.bypass.take();
        let Some(interception) = self.interception.filter(|_| !noted.is_empty()) else { return };
        if let Err(error) = self.told.tell(noted, |ways| interception.pass(ways)) {
            workers.shared.journal.warn_once(Once::NotPassed, || {
                format!("let connections pass that are answered elsewhere: {error}")
            });
        }
    }

    /// Makes rules and ways to sockets as soon as a connection is to be stepped into.
    pub fn wake(&mut self, workers: &Workers) {
        let watcher = &workers.held.adopting.watcher;
        let Some(interception) = self.interception.filter(|_| watcher.wants_routes()) else { return };
        match interception.wake(&self.plan, &self.ports) {
            Ok(()) => watcher.routed(),
            Err(error) => workers.shared.journal.warn_once(Once::NotRouted, || {
                format!("no connection is stepped into, as its packets find no way to the relay: {error}")
            }),
        }
    }

    /// What status and metrics say of the plan.
    pub fn describe(&self, description: &mut Description) {
        description.listening = self.plan.listeners.iter().map(|listener| listener.listen).collect();
        description.interfaces =
            self.plan.intercept.as_ref().map(|intercept| intercept.interfaces.clone()).unwrap_or_default();
        let relaying = self.plan.ways().map(|way| way.rule.clone());
        description.rules = relaying.collect();
        // Clients of a listener and what is intercepted may have the same last way.
        description.rules.dedup();
        description.added_rules = self.names_of_added();
    }

    /// Goes on by another file, or with other rules before it.
    fn change(
        &mut self,
        relay: &Relay,
        base: Arc<RelayPlan>,
        added: Vec<RuleSpec>,
        commands: &dyn Commands,
    ) -> Result<()> {
        let plan = base.with_rules(&added).map_err(|error| Error::Plan(error.to_string()))?;
        commands.equip(&plan).map_err(Error::Plan)?;
        self.reload(relay, plan)?;
        (self.base, self.added) = (base, added);
        Ok(())
    }

    fn reload(&mut self, relay: &Relay, mut plan: RelayPlan) -> Result<()> {
        let workers = relay.workers;
        plan.sample_every = self.plan.sample_every;
        plan.check()?;
        refuse_changes(&self.plan, &plan)?;
        let missing = missing::on_reload(&plan);
        if !missing.is_empty() {
            return Err(Error::Unsupported(missing));
        }
        let receiving = relay.receiver.prepare(&plan)?;
        let plan = Arc::new(plan.within_memory());
        let before = self.listeners.ids();
        let prepared = self.prepare(workers, &plan);
        let (ports, kept, gates) = prepared.inspect_err(|_| self.listeners.close_unused(&workers.keeping))?;
        workers.held.open(gates);
        relay.receiver.change(receiving);
        self.give_orders(workers, &kept, &before);
        self.retire_all_but(&before, &kept);
        workers.count_descriptors(self.listeners.ids().len());
        (self.plan, self.ports) = (plan, ports);
        self.keep(workers);
        Ok(())
    }

    /// All that can fail. The last step is nftables' exchange of all rules at once: when it is done, so is the reload.
    fn prepare(
        &mut self,
        workers: &Workers,
        plan: &Arc<RelayPlan>,
    ) -> Result<(Vec<ListenPorts>, Wanted, hold::Prepared)> {
        let mut wanted = self.listeners.open_explicit(plan)?;
        let Some(interception) = self.interception else {
            return Ok((Vec::new(), wanted, hold::Prepared::default()));
        };
        let (ports, of_rules) = self.listeners.open_intercepted(plan)?;
        wanted.extend(of_rules);
        let gates = workers.held.prepare(plan, interception, workers.shared.packets.alike())?;
        workers.shared.packets.mark_carried(plan, interception.taken_mark());
        match interception.exchange(plan, &ports, Taking::Yes) {
            Ok(()) => Ok((ports, wanted, gates)),
            Err(error) => {
                gates.discard(interception);
                Err(error)
            }
        }
    }

    /// A listener stays known until it is closed: the next reload may want it again, and its address is taken.
    fn retire_all_but(&mut self, before: &[ListenerId], kept: &[(ListenerId, Clients)]) {
        let is_kept = |id: &ListenerId| kept.iter().any(|(kept, _)| kept == id);
        self.retiring.retain(|(_, id)| !is_kept(id));
        let known: Vec<ListenerId> = self.retiring.iter().map(|(_, id)| *id).collect();
        let gone = before.iter().filter(|id| !is_kept(id) && !known.contains(id));
        let until = Instant::now() + LINGER;
        self.retiring.extend(gone.map(|id| (until, *id)));
    }

    /// Hands new listeners to the workers, and tells them what the kept ones' clients are now.
    fn give_orders(&mut self, workers: &Workers, kept: &[(ListenerId, Clients)], before: &[ListenerId]) {
        for (handle, made) in workers.handles.iter().zip(&mut self.listeners.made) {
            let opened = made.drain(..).map(ListenerOrder::Open);
            let changed = kept.iter().filter(|(id, _)| before.contains(id));
            let changed = changed.map(|(id, clients)| ListenerOrder::Change(*id, clients.clone()));
            handle.order(opened.chain(changed));
        }
    }

    /// Closes listeners that had no use for long enough.
    pub fn retire(&mut self, workers: &Workers) {
        let now = Instant::now();
        for (_, id) in self.retiring.extract_if(.., |(until, _)| *until <= now) {
            self.listeners.forget(&[id], &workers.keeping);
            workers.handles.iter().for_each(|handle| handle.order([ListenerOrder::Close(id)]));
            workers.count_descriptors(self.listeners.ids().len());
        }
    }

    /// Lets pass what clients open that have their share.
    pub fn exclude(&mut self, workers: &Workers) {
        let Some(interception) = self.interception.filter(|_| self.plan.fail == Fail::Open) else { return };
        if !self.excluded.is_due() {
            return;
        }
        if let Err(error) =
            self.excluded.follow(workers.shared.admission.sated(), |sated| interception.exclude(sated))
        {
            workers
                .shared
                .journal
                .warn_once(Once::NotExcluded, || format!("clients that have their share are reset: {error}"));
        }
    }

    /// New connections pass from now on (or are dropped, when the relay fails closed). Who is shaking hands already
    /// comes through, in this time.
    pub fn stop_taking(&self, workers: &Workers) -> Duration {
        const HANDSHAKES: Duration = Duration::from_millis(250);
        let Some(interception) = self.interception else { return Duration::ZERO };
        match interception.exchange(&self.plan, &self.ports, Taking::No) {
            Ok(()) => HANDSHAKES.min(self.plan.drain),
            Err(error) => {
                workers.shared.journal.warn(&format!("stop taking connections: {error}"));
                Duration::ZERO
            }
        }
    }
}

/// Clients that have their share, as rules last heard of them.
struct Excluded {
    clients: BTreeSet<IpAddr>,
    told: Instant,
}

impl Excluded {
    fn new() -> Excluded {
        Excluded { clients: BTreeSet::new(), told: Instant::now() }
    }

    fn is_due(&self) -> bool {
        self.told.elapsed() >= EXCLUDING
    }

    /// Tells of them if they are others; again the next time if that fails.
    fn follow<E>(
        &mut self,
        sated: BTreeSet<IpAddr>,
        tell: impl FnOnce(&BTreeSet<IpAddr>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if sated == self.clients {
            return Ok(());
        }
        let outcome = tell(&sated);
        self.told = Instant::now();
        if outcome.is_ok() {
            self.clients = sated;
        }
        outcome
    }
}

/// What needs a new process.
fn refuse_changes(old: &RelayPlan, new: &RelayPlan) -> Result<()> {
    let numbers = |plan: &RelayPlan| {
        plan.intercept.as_ref().map(|intercept| (intercept.mark, intercept.table, intercept.set_forwarding))
    };
    let differs = [
        ("name", old.name != new.name),
        ("workers", old.workers != new.workers),
        ("reset_wait", old.reset_wait != new.reset_wait),
        ("coalesce", old.coalesce != new.coalesce),
        ("fail", old.fail != new.fail),
        ("limits", old.limits != new.limits),
        ("keep", old.keep != new.keep),
        ("control", old.control != new.control),
        ("metrics", old.metrics != new.metrics),
        ("intercept (other than its interfaces)", numbers(old) != numbers(new)),
    ];
    let changed: Vec<_> = differs.into_iter().filter(|(_, differs)| *differs).map(|(what, _)| what).collect();
    match changed[..] {
        [] => Ok(()),
        _ => Err(Error::Plan(format!(
            "cannot change while the relay runs: {}; restart it",
            changed.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_rules_did_not_hear_they_are_told_again() {
        let (mut excluded, sated) = (Excluded::new(), BTreeSet::from([IpAddr::from([192, 0, 2, 1])]));
        assert_eq!(excluded.follow(sated.clone(), |_| Err("nft is busy")), Err("nft is busy"));
        let heard = Cell::new(0);
        let tell = |sated: &BTreeSet<IpAddr>| {
            heard.set(heard.get() + sated.len());
            Ok::<(), ()>(())
        };
        excluded.follow(sated.clone(), tell).unwrap();
        assert_eq!(heard.get(), 1);
        excluded.follow(sated, tell).unwrap();
        assert_eq!(heard.get(), 1, "they know");
    }
}
