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
    Begins { index: usize, attempt: u32 },
    Ticks { index: usize, tick: Tick },
    Ends { index: usize, attempt: u32, manifest: Box<RunManifest>, again: bool },
    Made { index: usize, made: Result<Option<Box<RunManifest>>, SessionError> },
}

impl From<Event<'_>> for Message {
    fn from(event: Event<'_>) -> Message {
        match event {
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
            Message::Made { .. } => {}
        }
    }
}

impl Session<'_> {
    /// Makes the runs on every processor; whether all were. What is written to the result is in the plans' order at
    /// any time.
    pub(super) fn side_by_side(
        &self,
        finished: &mut Finished,
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<bool, SessionError> {
        let workers = thread::available_parallelism().map_or(1, NonZero::get).min(self.plans.len());
        let next = AtomicUsize::new(0);
        let (to_us, messages) = channel();
        thread::scope(|scope| {
            for _ in 0..workers {
                let to_us = to_us.clone();
                let next = &next;
                scope.spawn(move || self.work(next, &to_us, stop));
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
                    next.store(self.plans.len(), Ordering::Relaxed);
                    outcome = outcome.and(kept);
                }
            }
            outcome
        })
    }

    fn work(&self, next: &AtomicUsize, to_us: &Sender<Message>, stop: &AtomicBool) {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(plan) = self.plans.get(index) else { return };
            // Nobody listens any more only when the session has ended.
            let mut tell = |event: Event<'_>| drop(to_us.send(event.into()));
            let made = self.run_until_valid(index, plan, &mut tell, stop).map(|made| made.map(Box::new));
            drop(to_us.send(Message::Made { index, made }));
        }
    }
}
