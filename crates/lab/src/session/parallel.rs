//! Runs side by side: each needs a processor and nothing else.

use super::{Event, Finished, Session, SessionError};
use crate::{backend::Tick, plan::Plan};
use longfat_schema::run::RunManifest;
use std::{
    num::NonZero,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
};

/// What a worker says; [`Event`] borrows what it tells of.
enum Message {
    Kept,
    Begins { index: usize, attempt: u32 },
    Ticks { index: usize, tick: Tick },
    Ends { index: usize, attempt: u32, manifest: Box<RunManifest>, again: bool },
    Made { index: usize, made: Result<Option<Box<RunManifest>>, SessionError> },
}

impl From<Event<'_>> for Message {
    fn from(event: Event<'_>) -> Message {
        match event {
            // Said before any worker begins.
            Event::Kept { .. } => Message::Kept,
            Event::Begins { index, attempt, .. } => Message::Begins { index, attempt },
            Event::Ticks { index, tick } => Message::Ticks { index, tick },
            Event::Ends { index, attempt, manifest, again } => {
                Message::Ends { index, attempt, manifest: Box::new(manifest.clone()), again }
            }
        }
    }
}

impl Message {
    /// The event it stands for.
    fn tell(&self, plans: &[Plan], tell: &mut dyn FnMut(Event<'_>)) {
        match self {
            Message::Begins { index, attempt } => {
                tell(Event::Begins { index: *index, plan: &plans[*index], attempt: *attempt });
            }
            Message::Ticks { index, tick } => tell(Event::Ticks { index: *index, tick: *tick }),
            Message::Ends { index, attempt, manifest, again } => {
                tell(Event::Ends { index: *index, attempt: *attempt, manifest, again: *again });
            }
            Message::Kept | Message::Made { .. } => {}
        }
    }
}

impl Session<'_> {
    /// Makes the runs on every processor; whether all were. What is written to the result is in the plans' order at
    /// any time.
    pub(super) fn side_by_side(
        &self,
        workers: Option<usize>,
        pending: &[usize],
        finished: &mut Finished,
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<bool, SessionError> {
        let processors = || thread::available_parallelism().map_or(1, NonZero::get);
        let workers = workers.unwrap_or_else(processors).clamp(1, pending.len().max(1));
        let next = AtomicUsize::new(0);
        let (to_us, messages) = channel();
        thread::scope(|scope| {
            for _ in 0..workers {
                let to_us = to_us.clone();
                let next = &next;
                scope.spawn(move || self.work(pending, next, &to_us, stop));
            }
            drop(to_us);
            let mut outcome = Ok(true);
            for message in messages {
                message.tell(self.plans, tell);
                let Message::Made { index, made } = message else { continue };
                let kept = match made {
                    Ok(Some(manifest)) => self.keep(index, *manifest, finished).map(|()| true),
                    Ok(None) => Ok(false),
                    Err(error) => Err(error),
                };
                if !matches!(kept, Ok(true)) {
                    // What is under way ends by itself; nothing more is begun.
                    next.store(pending.len(), Ordering::Relaxed);
                    outcome = outcome.and(kept);
                }
            }
            outcome
        })
    }

    fn work(&self, pending: &[usize], next: &AtomicUsize, to_us: &Sender<Message>, stop: &AtomicBool) {
        loop {
            let Some(index) = pending.get(next.fetch_add(1, Ordering::Relaxed)).copied() else { return };
            let plan = &self.plans[index];
            // Nobody listens any more only when the session has ended.
            let mut tell = |event: Event<'_>| drop(to_us.send(event.into()));
            let made = self.run_until_valid(index, plan, &mut tell, stop).map(|made| made.map(Box::new));
            drop(to_us.send(Message::Made { index, made }));
        }
    }
}
