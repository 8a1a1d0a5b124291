//! One transfer at one end, once its data connections are there: the streams on threads of their own, the control
//! connection on the calling one.

use crate::{
    channel::{Channel, beginning},
    context::Context,
    control::{Message, RECORDS_MAX, Records, Results, Stop},
    ends::{SinkEnd, SourceEnd},
    error::Error,
    sink, source, threads, udp_sink, udp_source,
};
use longfat_host::monotonic_ns;
use longfat_schema::record::Record;
use std::{
    collections::VecDeque,
    net::{TcpStream, UdpSocket},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

/// How often the control connection looks after its other duties.
const TURN: Duration = Duration::from_millis(20);
/// A transfer stopped by a person ends after so long even when the other end does not play along.
const STOP_LIMIT: Duration = Duration::from_secs(4);
/// Messages full of records between two looks at the other duties.
const MESSAGES_PER_TURN: usize = 16;

/// The data connections of one end, and what it does with them.
pub(crate) enum Work {
    TcpSource(Vec<TcpStream>),
    /// With what bounds their windows, if anything does.
    TcpSink(Vec<TcpStream>, Option<u64>),
    UdpSource(Vec<UdpSocket>, u64),
    UdpSink(Vec<UdpSocket>, u64),
}

/// What the streams of one end came to: one of the two is empty.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) sources: Vec<SourceEnd>,
    pub(crate) sinks: Vec<SinkEnd>,
}

impl Work {
    fn run(self, start_ns: u64, context: &Context<'_>) -> Ends {
        match self {
            Work::TcpSource(sockets) => {
                Ends { sources: source::run(&sockets, start_ns, context), ..Ends::default() }
            }
            Work::TcpSink(sockets, window_bytes) => {
                Ends { sinks: sink::run(sockets, window_bytes, context), ..Ends::default() }
            }
            Work::UdpSource(sockets, token) => {
                Ends { sources: udp_source::run(&sockets, start_ns, token, context), ..Ends::default() }
            }
            Work::UdpSink(sockets, token) => {
                Ends { sinks: udp_sink::run(&sockets, token, context), ..Ends::default() }
            }
        }
    }
}

/// Records on their way to the client. Bounded, for each transfer and for all of a server: a control connection that
/// cannot keep up loses samples, never memory.
#[derive(Debug)]
pub(crate) struct Outbox<'a> {
    records: Mutex<(VecDeque<Record>, u64)>,
    waiting_in_all: &'a AtomicUsize,
}

const OUTBOX_MAX: usize = 100_000;
const OUTBOXES_MAX: usize = 200_000;

impl<'a> Outbox<'a> {
    /// Outbox among those whose waiting bytes count together.
    pub(crate) fn new(waiting_in_all: &'a AtomicUsize) -> Outbox<'a> {
        Outbox { records: Mutex::default(), waiting_in_all }
    }

    pub(crate) fn put(&self, record: Record) {
        let mut guard = self.records();
        let (records, lost) = &mut *guard;
        if records.len() >= OUTBOX_MAX || self.waiting_in_all.load(Relaxed) >= OUTBOXES_MAX {
            *lost += 1;
        } else {
            records.push_back(record);
            self.waiting_in_all.fetch_add(1, Relaxed);
        }
    }

    fn take(&self) -> Vec<Record> {
        let mut guard = self.records();
        let count = guard.0.len().min(RECORDS_MAX);
        self.waiting_in_all.fetch_sub(count, Relaxed);
        guard.0.drain(..count).collect()
    }

    /// How many records were lost since the last time.
    fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.records().1)
    }

    fn records(&self) -> MutexGuard<'_, (VecDeque<Record>, u64)> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outbox<'_> {
    fn drop(&mut self) {
        let count = self.records().0.len();
        self.waiting_in_all.fetch_sub(count, Relaxed);
    }
}

/// Both ends' streams, and why the other end's are missing if they are.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub(crate) own: Ends,
    pub(crate) peer: Ends,
    pub(crate) lost: Option<String>,
}

/// What a conversation does beside talking.
pub(crate) struct Duties<'a> {
    /// Records for the other end.
    pub(crate) outbox: Option<&'a Outbox<'a>>,
    /// Records from the other end.
    pub(crate) on_records: &'a dyn Fn(Vec<Record>),
    /// Called every few tens of milliseconds.
    pub(crate) on_turn: &'a dyn Fn(),
    /// Tells the other end when the start has come, so that it counts the time from then on.
    pub(crate) says_start: bool,
    /// When this end stops the transfer, done or not.
    pub(crate) deadline: Deadline,
}

/// When an end stops a transfer, done or not.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    /// From the start on, while it has not come.
    after_start: Option<Duration>,
}

impl Deadline {
    /// Deadline of a transfer that starts now.
    pub(crate) fn of_started(span: Duration) -> Deadline {
        Deadline { at: Instant::now().checked_add(span), after_start: None }
    }

    /// Deadline of a transfer that is to start `within`, and to be done `span` after that.
    pub(crate) fn of_waiting(within: Duration, span: Duration) -> Deadline {
        Deadline { at: Instant::now().checked_add(within), after_start: Some(span) }
    }

    /// The start has come. It comes once.
    fn start(&mut self) {
        if let Some(span) = self.after_start.take() {
            *self = Deadline::of_started(span);
        }
    }

    /// Why the transfer must end, once it must.
    fn passed(&self) -> Option<&'static str> {
        self.at.filter(|at| Instant::now() > *at)?;
        Some(match self.after_start {
            Some(_) => "it did not start within what the server allows (--max-duration)",
            None => "it lasted longer than the server allows (--max-duration)",
        })
    }
}

/// Does the work and talks to the other end until both are done or one is dead.
pub(crate) fn run(
    work: Work,
    start_ns: u64,
    channel: &mut Channel,
    context: &Context<'_>,
    duties: &Duties<'_>,
) -> Finished {
    let (done, ends) = mpsc::channel();
    std::thread::scope(|scope| {
        let working = threads::spawn(scope, move || {
            // The receiver outlives this scope.
            let _ = done.send(work.run(start_ns, context));
        });
        let mut talk = Talk {
            channel,
            context,
            duties,
            finished: Finished::default(),
            start_ns: Some(start_ns).filter(|_| duties.says_start),
            deadline: duties.deadline,
            results: None,
            own_done: None,
            peer_done: false,
            stopping: None,
        };
        if let Err(error) = working {
            let reason = format!("the host has no thread for the transfer: {error}");
            // The client may be gone: then there is nobody to tell.
            let _ = talk.stop(reason.clone());
            talk.lose(reason);
        }
        talk.until_done(&ends);
        if talk.finished.lost.is_none() {
            talk.channel.finish();
        }
        talk.finished
    })
}

struct Talk<'a, 'b> {
    channel: &'a mut Channel,
    context: &'a Context<'b>,
    duties: &'a Duties<'a>,
    finished: Finished,
    /// When the other end is to be told that the start has come, until it is.
    start_ns: Option<u64>,
    deadline: Deadline,
    /// This end's last message, until it is said.
    results: Option<Message>,
    own_done: Option<Instant>,
    peer_done: bool,
    stopping: Option<Instant>,
}

impl Talk<'_, '_> {
    fn until_done(&mut self, ends: &mpsc::Receiver<Ends>) {
        loop {
            if self.own_done.is_none()
                && let Some(own) = received(ends)
            {
                self.own_done = Some(Instant::now());
                self.results = Some(results(&own));
                self.finished.own = own;
            }
            let has_said_all = self.results.is_none() && self.channel.is_clear();
            if self.own_done.is_some() && (has_said_all && self.peer_done || self.finished.lost.is_some()) {
                return;
            }
            self.turn();
            (self.duties.on_turn)();
        }
    }

    fn turn(&mut self) {
        if self.finished.lost.is_some() {
            std::thread::sleep(TURN);
            return;
        }
        let turned = self.say_start().and_then(|()| self.listen()).and_then(|()| self.say_what_waits());
        let turned = turned.and_then(|()| self.pass_on_stop());
        if let Err(error) = turned {
            self.lose(error.to_string());
        }
        self.mind_limits();
    }

    fn say_start(&mut self) -> Result<(), Error> {
        let is_due = self.start_ns.take_if(|start_ns| *start_ns <= monotonic_ns()).is_some();
        if is_due { self.channel.send(&Message::Start) } else { Ok(()) }
    }

    fn listen(&mut self) -> Result<(), Error> {
        // Results are not kept waiting.
        let wait = if self.results.is_some() && self.channel.is_clear() { Duration::ZERO } else { TURN };
        match self.channel.poll(wait)? {
            None => {}
            Some(Message::Start) => self.deadline.start(),
            Some(Message::Records(Records { records })) => (self.duties.on_records)(records),
            Some(Message::Stop(Stop { reason })) => {
                self.context.halt.ask(format!("the other end stopped it: {}", beginning(&reason)))
            }
            Some(Message::Results(Results { mut sources, mut sinks })) => {
                // One of each stream; more would only be kept.
                sources.truncate(self.context.plan.streams as usize);
                sinks.truncate(self.context.plan.streams as usize);
                sources.iter_mut().for_each(|end| shorten(&mut end.cc, end.error.as_mut()));
                sinks.iter_mut().for_each(|end| shorten(&mut end.cc, end.error.as_mut()));
                self.finished.peer = Ends { sources, sinks };
                self.peer_done = true;
                self.context.halt.peer_done(monotonic_ns());
            }
            Some(other) => return Err(self.channel.unexpected(&other)),
        }
        Ok(())
    }

    /// Records, and behind the last of them the results, as fast as the other end takes them.
    fn say_what_waits(&mut self) -> Result<(), Error> {
        self.channel.flush()?;
        for _ in 0..MESSAGES_PER_TURN {
            if !self.channel.is_clear() {
                return Ok(());
            }
            let records = self.duties.outbox.map(Outbox::take).unwrap_or_default();
            if !records.is_empty() {
                self.channel.send(&Message::Records(Records { records }))?;
            } else if let Some(results) = self.results.take() {
                self.channel.send(&results)?;
            } else {
                break;
            }
        }
        match self.duties.outbox.map_or(0, Outbox::take_lost) {
            0 => {}
            lost => {
                self.context.warn(format!("{lost} samples lost: the control connection could not keep up"))
            }
        }
        Ok(())
    }

    fn pass_on_stop(&mut self) -> Result<(), Error> {
        let reason = match (self.context.halt.by_person(), self.deadline.passed()) {
            _ if self.stopping.is_some() => return Ok(()),
            (true, _) => "a signal at its end",
            (false, Some(why)) => why,
            (false, None) => return Ok(()),
        };
        self.stop(reason.to_owned())
    }

    fn stop(&mut self, reason: String) -> Result<(), Error> {
        self.stopping = Some(Instant::now());
        self.context.halt.ask(reason.clone());
        self.channel.send(&Message::Stop(Stop { reason }))
    }

    fn mind_limits(&mut self) {
        let plan = self.context.plan;
        let limit = Duration::from_micros(plan.drain_us + plan.timeout_us);
        if self.own_done.is_some_and(|done| done.elapsed() > limit) {
            self.lose(format!("{} did not finish: no figures from it", self.channel.peer()));
        } else if self.stopping.is_some_and(|asked| asked.elapsed() > STOP_LIMIT) {
            self.lose(format!("it was stopped, and {} did not finish in time", self.channel.peer()));
        }
    }

    fn lose(&mut self, reason: String) {
        self.context.halt.abort(reason.clone());
        self.finished.lost.get_or_insert(reason);
    }
}

fn results(own: &Ends) -> Message {
    Message::Results(Results { sources: own.sources.clone(), sinks: own.sinks.clone() })
}

/// What a peer wrote becomes part of lines, and is kept.
fn shorten(cc: &mut String, error: Option<&mut String>) {
    for text in [Some(cc), error].into_iter().flatten() {
        *text = beginning(text);
    }
}

/// The streams' figures, once they are there. A worker that failed leaves none.
fn received(ends: &mpsc::Receiver<Ends>) -> Option<Ends> {
    match ends.try_recv() {
        Ok(own) => Some(own),
        Err(mpsc::TryRecvError::Empty) => None,
        Err(mpsc::TryRecvError::Disconnected) => Some(Ends::default()),
    }
}
