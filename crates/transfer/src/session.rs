//! One transfer at one end, once its data connections are there: the streams on threads of their own, the control
//! connection on the calling one.

use crate::{
    channel::Channel,
    context::Context,
    control::{Message, RECORDS_MAX},
    ends::{SinkEnd, SourceEnd},
    error::Error,
    sink, source, udp_sink, udp_source,
};
use longfat_host::monotonic_ns;
use longfat_schema::record::Record;
use std::{
    collections::VecDeque,
    net::{TcpStream, UdpSocket},
    sync::{Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

/// How often the control connection looks after its other duties.
const TURN: Duration = Duration::from_millis(20);
/// A transfer stopped by a person ends after so long even when the other end does not play along.
const STOP_LIMIT: Duration = Duration::from_secs(4);

/// The data connections of one end, and what it does with them.
pub(crate) enum Work {
    TcpSource(Vec<TcpStream>),
    TcpSink(Vec<TcpStream>),
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
            Work::TcpSink(sockets) => Ends { sinks: sink::run(sockets, context), ..Ends::default() },
            Work::UdpSource(sockets, token) => {
                Ends { sources: udp_source::run(&sockets, start_ns, token, context), ..Ends::default() }
            }
            Work::UdpSink(sockets, token) => {
                Ends { sinks: udp_sink::run(&sockets, token, context), ..Ends::default() }
            }
        }
    }
}

/// Records on their way to the client. Bounded: a control connection that cannot keep up loses samples, never
/// memory.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    records: Mutex<(VecDeque<Record>, u64)>,
}

const OUTBOX_MAX: usize = 100_000;

impl Outbox {
    pub(crate) fn put(&self, record: Record) {
        let mut guard = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let (records, lost) = &mut *guard;
        if records.len() == OUTBOX_MAX {
            *lost += 1;
        } else {
            records.push_back(record);
        }
    }

    fn take(&self) -> Vec<Record> {
        let mut guard = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let count = guard.0.len().min(RECORDS_MAX);
        guard.0.drain(..count).collect()
    }

    /// How many records were lost since the last time.
    fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.records.lock().unwrap_or_else(PoisonError::into_inner).1)
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
    pub(crate) outbox: Option<&'a Outbox>,
    /// Records from the other end.
    pub(crate) on_records: &'a dyn Fn(Vec<Record>),
    /// Called every few tens of milliseconds.
    pub(crate) on_turn: &'a dyn Fn(),
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
        scope.spawn(move || {
            // The receiver outlives this scope.
            let _ = done.send(work.run(start_ns, context));
        });
        let mut talk = Talk {
            channel,
            context,
            duties,
            finished: Finished::default(),
            own_done: None,
            peer_done: false,
            stopping: None,
        };
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
                self.report(own);
            }
            if self.own_done.is_some() && (self.peer_done || self.finished.lost.is_some()) {
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
        let turned = self.listen().and_then(|()| self.send_records()).and_then(|()| self.pass_on_stop());
        if let Err(error) = turned {
            self.lose(error.to_string());
        }
        self.mind_limits();
    }

    fn listen(&mut self) -> Result<(), Error> {
        match self.channel.poll(TURN)? {
            None | Some(Message::Start) => {}
            Some(Message::Records { records }) => (self.duties.on_records)(records),
            Some(Message::Stop { reason }) => {
                self.context.halt.ask(format!("the other end stopped it: {reason}"))
            }
            Some(Message::Results { sources, sinks }) => {
                self.finished.peer = Ends { sources, sinks };
                self.peer_done = true;
                self.context.halt.peer_done(monotonic_ns());
            }
            Some(other) => return Err(self.channel.unexpected(&other)),
        }
        Ok(())
    }

    fn send_records(&mut self) -> Result<(), Error> {
        let Some(outbox) = self.duties.outbox else { return Ok(()) };
        let records = outbox.take();
        if !records.is_empty() {
            self.channel.send(&Message::Records { records })?;
        }
        match outbox.take_lost() {
            0 => {}
            lost => {
                self.context.warn(format!("{lost} samples lost: the control connection could not keep up"))
            }
        }
        Ok(())
    }

    fn pass_on_stop(&mut self) -> Result<(), Error> {
        if self.stopping.is_some() || !self.context.halt.by_person() {
            return Ok(());
        }
        self.stopping = Some(Instant::now());
        self.channel.send(&Message::Stop { reason: "a signal at its end".to_owned() })
    }

    fn mind_limits(&mut self) {
        let plan = self.context.plan;
        let limit = Duration::from_micros(plan.drain_us + plan.timeout_us);
        if self.own_done.is_some_and(|done| done.elapsed() > limit) {
            self.lose(format!("{} did not finish: no figures from it", self.channel.peer()));
        } else if self.stopping.is_some_and(|asked| asked.elapsed() > STOP_LIMIT) {
            self.lose(format!("stopped by a signal; {} did not finish in time", self.channel.peer()));
        }
    }

    fn lose(&mut self, reason: String) {
        self.context.halt.abort(reason.clone());
        self.finished.lost.get_or_insert(reason);
    }

    /// Sends what is left of the records, then the results.
    fn report(&mut self, own: Ends) {
        let results = Message::Results { sources: own.sources.clone(), sinks: own.sinks.clone() };
        self.finished.own = own;
        if self.finished.lost.is_some() {
            return;
        }
        if let Err(error) = self.send_rest().and_then(|()| self.channel.send(&results)) {
            self.lose(error.to_string());
        }
    }

    fn send_rest(&mut self) -> Result<(), Error> {
        let Some(outbox) = self.duties.outbox else { return Ok(()) };
        loop {
            let records = outbox.take();
            if records.is_empty() {
                return Ok(());
            }
            self.channel.send(&Message::Records { records })?;
        }
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
