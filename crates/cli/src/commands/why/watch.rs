//! Living connections, looked at again and again.

use super::{Args, relay::Relays};
use crate::output;
use longfat_host::sysctl;
use longfat_kernel::tcb::{Connection, Filter, Finder, NetNamespace, Query, Scope, Setter, State};
use longfat_why::{Memory, Stretch, Verdict, course, divide, judge, record::MOST_LOOKS, remedy::RelayWay};
use nix::time::{ClockId, clock_gettime};
use std::{
    collections::{HashMap, HashSet},
    io::IsTerminal as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Which connections.
pub struct Chosen {
    /// Network namespaces to look in.
    pub scope: Scope,
    /// By the filter.
    pub filter: Filter,
    /// By a process.
    pub pid: Option<u32>,
}

impl Chosen {
    fn matches(&self, connection: &Connection) -> bool {
        let pid = connection.process.as_ref().map(|process| process.pid as u32);
        let is_of_process = self.pid.is_none_or(|wanted| pid == Some(wanted));
        connection.state != State::LISTEN && connection.info.is_some() && is_of_process
    }
}

/// One connection being watched.
pub struct Watched {
    /// As it was last seen.
    pub connection: Connection,
    /// Everything seen of it in this stretch.
    pub looks: Vec<longfat_why::Look>,
    /// A relay on this host that carries such connections, or could.
    pub relay: Option<RelayWay>,
    /// Send buffers that the kernel sizes itself there (net.ipv4.tcp_wmem): the least, the first and the most bytes.
    pub wmem: Option<[u64; 3]>,
    /// The course of the stretches before, where a page is asked for.
    before: Vec<Stretch>,
}

impl Watched {
    /// What holds it; `None` when it was seen once only.
    pub fn verdict(&self, args: &Args) -> Option<Verdict> {
        judge(&self.looks, &args.assumed())
    }

    /// Course of the connection since it was first seen.
    pub fn course(&self) -> Vec<Stretch> {
        let mut whole = self.before.clone();
        course::append(&mut whole, course::course(&self.looks));
        whole
    }

    fn see(&mut self, found: &Connection, began: Instant) {
        self.connection.state = found.state;
        if let Some(look) = taken(found, began.elapsed().as_micros() as u64) {
            self.add(look);
        }
    }

    /// Adds a look. When there are too many, every other one goes: the time between two still has its cause.
    fn add(&mut self, look: longfat_why::Look) {
        if self.looks.len() >= MOST_LOOKS {
            let mut number = 0;
            self.looks.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
        self.looks.push(look);
    }
}

/// Looks at new connections, which ask for processes, come this often at the most.
const NEW_EVERY: Duration = Duration::from_secs(1);
/// [`NEW_EVERY`] for a program of one's own, whose connections may be short.
const NEW_OF_PROGRAM_EVERY: Duration = Duration::from_millis(200);
/// Up to so many connections are asked for one by one: to ask for all makes the kernel go through its whole table.
const ONE_BY_ONE: usize = 200;
/// Time between two looks, unless looking takes more than this part of a processor then.
const EVERY: Duration = Duration::from_millis(100);
const LOOKING_ONE_IN: u32 = 150;
/// Part of a processor for the search for new connections: with [`LOOKING_ONE_IN`] it stays below a hundredth.
const SEARCHING_ONE_IN: u32 = 400;
/// How soon a signal is answered.
const NAP: Duration = Duration::from_millis(50);

/// A watch of the connections chosen.
pub struct Watch {
    /// By cookie.
    pub watched: HashMap<u64, Watched>,
    chosen: Chosen,
    every: Option<Duration>,
    keeps_course: bool,
    last_new: Option<Instant>,
    new_every: Duration,
    finders: HashMap<Arc<str>, Finder>,
    start: Instant,
    /// When the last round of looks began.
    round_us: u64,
}

impl Watch {
    /// Nothing is looked at yet.
    pub fn new(chosen: Chosen, args: &Args) -> Watch {
        Watch {
            watched: HashMap::new(),
            chosen,
            every: args.every.map(Duration::from),
            keeps_course: args.page.is_some(),
            last_new: None,
            new_every: NEW_EVERY,
            finders: HashMap::new(),
            start: Instant::now(),
            round_us: 0,
        }
    }

    /// Looks for so long; whether it was asked to end, or nothing is left to look at.
    pub fn run(&mut self, span: Duration, stop: &AtomicBool) -> anyhow::Result<bool> {
        let end = Instant::now() + span;
        let shows = std::io::stderr().is_terminal();
        while !stop.load(Ordering::Relaxed) {
            let took = match self.look() {
                Err(_) if self.has_vanished() => break,
                looked => looked?,
            };
            if shows {
                let left = end.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
                output::show_progress(&format!("{} connections, {left:.0} s to go", self.watched.len()));
            }
            if Instant::now() >= end {
                break;
            }
            self.wait(took, end, stop);
        }
        let has_vanished = self.has_vanished();
        if has_vanished {
            eprintln!("longfat: the network namespace has gone; this is what was seen until then");
        } else if stop.load(Ordering::Relaxed) {
            // A stretch that is cut short ends with a look, too: there is something to be told of it.
            self.look()?;
        }
        if shows {
            output::show_progress(&" ".repeat(40));
            output::show_progress("");
        }
        Ok(has_vanished || stop.load(Ordering::Relaxed))
    }

    /// Whether the namespace that was looked into is there no more.
    fn has_vanished(&self) -> bool {
        !self.watched.is_empty() && self.chosen.scope.namespaces().is_err()
    }

    /// The last look of one stretch is the first of the next.
    pub fn begin_again(&mut self) {
        let round_us = self.round_us;
        self.watched.retain(|_, one| one.looks.last().is_some_and(|look| look.time_us >= round_us));
        let keeps_course = self.keeps_course && self.watched.len() <= ONE_BY_ONE;
        for one in self.watched.values_mut() {
            if keeps_course {
                course::append(&mut one.before, course::course(&one.looks));
            }
            one.looks.drain(..one.looks.len() - 1);
        }
    }

    fn wait(&self, took: Duration, end: Instant, stop: &AtomicBool) {
        let every = self.every.unwrap_or_else(|| EVERY.max(took * LOOKING_ONE_IN));
        let until = end.min(Instant::now() + every.saturating_sub(took));
        while !stop.load(Ordering::Relaxed) && Instant::now() < until {
            thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// One look at all of them, and now and then at new ones; the processor time that the first took.
    pub fn look(&mut self) -> anyhow::Result<Duration> {
        if self.last_new.is_none_or(|last| last.elapsed() >= self.new_every) {
            let took = timed(|| self.look_for_new())?;
            self.new_every = NEW_EVERY.max(took * SEARCHING_ONE_IN);
            self.last_new = Some(Instant::now());
        }
        let is_few = self.watched.len() <= ONE_BY_ONE;
        self.round_us = self.start.elapsed().as_micros() as u64;
        timed(|| if is_few { self.look_one_by_one() } else { self.look_at_all() })
    }

    fn look_one_by_one(&mut self) -> anyhow::Result<()> {
        let began = self.start;
        for one in self.watched.values_mut() {
            let Some(finder) = self.finders.get(&one.connection.netns) else { continue };
            if let Some(found) = finder.find(&one.connection)? {
                one.see(&found, began);
            }
        }
        Ok(())
    }

    fn look_at_all(&mut self) -> anyhow::Result<()> {
        let look = Query { scope: self.chosen.scope.clone(), ..Query::default() };
        let (began, watched) = (self.start, &mut self.watched);
        look.each(|connection| {
            if let Some(one) = watched.get_mut(&connection.cookie) {
                one.see(&connection, began);
            }
        })?;
        Ok(())
    }

    /// The namespaces it looks into.
    pub fn places(&self) -> anyhow::Result<Vec<NetNamespace>> {
        Ok(self.chosen.scope.namespaces()?)
    }

    /// Namespaces are entered once, to be asked from outside later.
    fn open_finders(&mut self) -> anyhow::Result<()> {
        for place in self.chosen.scope.namespaces()? {
            if !self.finders.contains_key(&place.label)
                && let Some(finder) = place.run(Finder::open)
            {
                self.finders.insert(Arc::clone(&place.label), finder?);
            }
        }
        Ok(())
    }

    fn look_for_new(&mut self) -> anyhow::Result<()> {
        self.open_finders()?;
        let (scope, filter) = (self.chosen.scope.clone(), self.chosen.filter.clone());
        let look = Query { scope, filter, processes: true, ..Query::default() };
        for connection in look.take()? {
            if self.chosen.matches(&connection) {
                self.watch(connection);
            }
        }
        Ok(())
    }

    /// Looks at a program's connections, as it opens them.
    pub fn look_at(&mut self, pids: impl FnOnce() -> HashSet<i32>) -> anyhow::Result<()> {
        if self.last_new.is_none_or(|last| last.elapsed() >= NEW_OF_PROGRAM_EVERY) {
            let pids = pids();
            self.open_finders()?;
            let look = Query { filter: self.chosen.filter.clone(), processes: true, ..Query::default() };
            for connection in look.take()? {
                let pid = connection.process.as_ref().map(|process| process.pid);
                if pid.is_some_and(|pid| pids.contains(&pid)) && self.chosen.matches(&connection) {
                    self.watch(connection);
                }
            }
            self.last_new = Some(Instant::now());
        }
        self.look_one_by_one()
    }

    fn watch(&mut self, connection: Connection) {
        self.watched.entry(connection.cookie).or_insert_with(|| Watched {
            connection,
            looks: Vec::new(),
            relay: None,
            wmem: None,
            before: Vec::new(),
        });
    }

    /// Asks for what only BPF tells: the bounds of congestion windows.
    pub fn ask_bounds(&mut self) -> anyhow::Result<()> {
        let setter = Setter::load()?;
        for place in self.places()? {
            for block in setter.look(&place)? {
                if let Some(look) = self.watched.get_mut(&block.cookie).and_then(|one| one.looks.last_mut()) {
                    look.clamp_segments = Some(block.clamp_segments);
                }
            }
        }
        Ok(())
    }

    /// Asks for what remedies depend on: relays, and the bounds of send buffers.
    pub fn ask_surroundings(&mut self) {
        self.find_relays();
        self.ask_wmem();
    }

    /// Asks each namespace for the send buffers that its kernel sizes itself.
    fn ask_wmem(&mut self) {
        let places = self.places().unwrap_or_default();
        let of_place = |place: NetNamespace| Some((Arc::clone(&place.label), place.run(wmem)??));
        let known: HashMap<_, _> = places.into_iter().filter_map(of_place).collect();
        for one in self.watched.values_mut() {
            one.wmem = known.get(&one.connection.netns).copied();
        }
    }

    /// Looks for relays on this host that carry the connections, or could.
    fn find_relays(&mut self) {
        let mut relays = Relays::running();
        if relays.is_empty() {
            return;
        }
        // A namespace that has gone has no connections to help.
        let places = self.places().unwrap_or_default();
        let inodes: HashMap<_, _> = places.into_iter().map(|place| (place.label, place.inode)).collect();
        for one in self.watched.values_mut() {
            let inode = inodes.get(&one.connection.netns);
            one.relay = inode.and_then(|inode| relays.way(&one.connection, *inode));
        }
    }

    /// Each with its verdict, the one that carries most first. Of two ends on this host, the one that sends answers for
    /// both.
    pub fn verdicts(&self, args: &Args) -> Vec<(&Watched, Verdict)> {
        let ends: HashSet<_> =
            self.watched.values().map(|one| (one.connection.local, one.connection.remote)).collect();
        let is_mirrored = |one: &Watched, verdict: &Verdict| {
            let only_receives =
                verdict.first().is_some_and(|share| share.cause == longfat_why::Cause::OtherEndSends);
            only_receives && ends.contains(&(one.connection.remote, one.connection.local))
        };
        let judged = self.watched.values().filter_map(|one| Some((one, one.verdict(args)?)));
        let mut found: Vec<_> = judged.filter(|(one, verdict)| !is_mirrored(one, verdict)).collect();
        found.sort_by(|(a, x), (b, y)| {
            y.figures
                .rate_bps
                .total_cmp(&x.figures.rate_bps)
                .then(a.connection.remote.cmp(&b.connection.remote))
        });
        found
    }
}

/// The three numbers of net.ipv4.tcp_wmem, in the namespace of the calling thread.
fn wmem() -> Option<[u64; 3]> {
    let value = sysctl::read("net.ipv4.tcp_wmem").ok()?;
    let numbers: Vec<u64> = value.split_whitespace().map_while(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

/// The processor time that this took: what held it up meanwhile is no cost of looking.
fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let used = || clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from);
    let before = used()?;
    work()?;
    Ok(used()?.saturating_sub(before))
}

/// What a verdict needs of one look.
pub fn taken(connection: &Connection, time_us: u64) -> Option<longfat_why::Look> {
    let memory = connection.memory.unwrap_or_default();
    Some(divide::Look {
        time_us,
        info: connection.info?,
        memory: Memory {
            rcvbuf_bytes: memory.rcvbuf_bytes,
            sndbuf_bytes: memory.sndbuf_bytes,
            send_queued_bytes: memory.send_queued_bytes,
            below_tcp_bytes: memory.below_tcp_bytes,
        },
        receive_queue_bytes: connection.receive_queue_bytes,
        paces: connection.cc.as_ref().is_some_and(|cc| cc.as_str().contains("bbr")),
        clamp_segments: None,
    })
}
