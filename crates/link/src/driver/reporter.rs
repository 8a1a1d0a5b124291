//! Samples leave the real-time thread through a bounded channel; an ordinary thread writes them to the file. The
//! real-time thread never waits: what does not fit is counted and said at the end.

use super::{
    answers::{End, HoldUp},
    engine::STALL_NS,
};
use crate::{model::Counters, spec::DirectionName};
use longfat_schema::{
    lines::Lines,
    record::{Note, Record, StallSample},
};
use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    thread::JoinHandle,
    time::Duration,
};

const CHANNEL_EVENTS: usize = 1 << 15;
const DRAIN_EVERY: Duration = Duration::from_millis(20);

/// What the real-time thread tells.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// State of a direction.
    Sample(DirectionName, u64, Counters),
    /// The hosts from which packets of that direction come were held up.
    HoldUp(DirectionName, HoldUp),
    /// The driver was held up.
    Stall {
        /// Until when.
        now_ns: u64,
        /// For how long.
        late_ns: u64,
        /// For how long of this everything stood still, and the path with it.
        paused_ns: u64,
    },
}

/// The real-time thread's end.
#[derive(Debug)]
pub struct Reporter {
    events: Option<SyncSender<Event>>,
    writer: Option<JoinHandle<io::Result<()>>>,
    dropped: u64,
}

impl Reporter {
    /// Starts the writing thread, if the records are kept at all.
    pub fn start(link: &str, lines: &Lines) -> Reporter {
        if !lines.is_kept() {
            return Reporter { events: None, writer: None, dropped: 0 };
        }
        let (events, received) = sync_channel(CHANNEL_EVENTS);
        let (link, lines) = (link.to_owned(), lines.clone());
        let writer = std::thread::spawn(move || write_all(&link, &lines, &received));
        Reporter { events: Some(events), writer: Some(writer), dropped: 0 }
    }

    /// Whether samples are wanted.
    pub fn is_kept(&self) -> bool {
        self.events.is_some()
    }

    /// Tells, without waiting.
    pub fn tell(&mut self, event: Event) {
        if let Some(events) = &self.events {
            self.dropped += u64::from(events.try_send(event).is_err());
        }
    }

    /// Waits until everything is written; how many events did not fit.
    ///
    /// # Errors
    /// When the file could not be written.
    pub fn finish(mut self) -> io::Result<u64> {
        self.events = None;
        match self.writer.take().map(JoinHandle::join) {
            Some(Ok(result)) => result.map(|()| self.dropped),
            Some(Err(_)) => Err(io::Error::other("the thread writing samples panicked")),
            None => Ok(0),
        }
    }
}

/// Looks now and then rather than waiting on the channel, so that the sender never has to wake anyone.
fn write_all(link: &str, lines: &Lines, events: &Receiver<Event>) -> io::Result<()> {
    loop {
        match events.try_recv() {
            Ok(event) => records(link, event).try_for_each(|record| lines.write(&record))?,
            Err(TryRecvError::Empty) => std::thread::sleep(DRAIN_EVERY),
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

/// A long hold-up of the driver is said to a person, too.
fn records(link: &str, event: Event) -> impl Iterator<Item = Record> {
    let stall = |of: String, to_ns: u64, for_ns: u64, owed_packets| {
        Record::Stall(StallSample {
            time_us: (to_ns / 1000) as i64,
            of,
            duration_us: for_ns / 1000,
            owed_packets,
        })
    };
    let measured = match event {
        Event::Stall { now_ns, late_ns, paused_ns } => {
            Some(stall(link.to_owned(), now_ns, late_ns.saturating_sub(paused_ns), None))
        }
        Event::HoldUp(from, HoldUp { end, from_ns, to_ns, owed }) => {
            let end = if end == End::Sender { "/sender" } else { "" };
            Some(stall(format!("{link}/{}{end}", from.as_str()), to_ns, to_ns - from_ns, Some(owed)))
        }
        Event::Sample(..) => None,
    };
    said(link, event).into_iter().chain(measured)
}

fn said(link: &str, event: Event) -> Option<Record> {
    Some(match event {
        Event::HoldUp(..) => return None,
        Event::Stall { late_ns, .. } if late_ns <= STALL_NS => return None,
        Event::Sample(direction, time_ns, counters) => {
            Record::Queue(counters.sample(time_ns, link, direction.as_str()))
        }
        Event::Stall { now_ns, late_ns, paused_ns } => Record::Note(Note {
            time_us: (now_ns / 1000) as i64,
            level: "warning".to_owned(),
            source: link.to_owned(),
            message: stall(late_ns, paused_ns),
        }),
    })
}

fn stall(late_ns: u64, paused_ns: u64) -> String {
    let [late_ms, paused_ms] = [late_ns, paused_ns].map(|ns| ns as f64 / 1e6);
    if paused_ns == 0 {
        return format!("the driver was held up for {late_ms:.1} ms; packets left that late");
    }
    format!("everything stood still for {paused_ms:.1} ms, and the path with it")
}
