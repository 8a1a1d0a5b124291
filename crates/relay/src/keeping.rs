//! The relay's side of a keeper: what it has is put there before it is used, and taken back when it has gone.

pub mod record;
pub(crate) mod wire;

use record::{ConnectionRecord, Holding, Message, PER_CONNECTION, Say};
use std::{
    io,
    os::fd::BorrowedFd,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use wire::Wire;

/// A keeper that does not read for so long is none.
const PATIENCE: Duration = Duration::from_millis(100);
/// Numbers of what is no connection begin here.
pub(crate) const OTHERS: u64 = 1 << 40;

/// A keeper, if there is one.
#[derive(Debug)]
pub(crate) struct Keeping {
    wire: Mutex<Option<Wire>>,
    is_on: AtomicBool,
    next_other: AtomicU64,
    /// Why there is none any more, until somebody asks.
    lost: Mutex<Option<io::Error>>,
}

/// The number under which a connection's sockets are handed over.
pub(crate) fn connection_id(number: u32) -> u64 {
    u64::from(number) * PER_CONNECTION
}

impl Keeping {
    /// Puts what it is told to there; `others` are numbers that are in use.
    pub fn new(wire: Option<Wire>, others: &[u64]) -> Keeping {
        let next = others.iter().map(|id| id + 1).max().unwrap_or(OTHERS).max(OTHERS);
        let wire = wire.filter(|wire| wire.wait_at_most(PATIENCE).is_ok());
        let is_on = AtomicBool::new(wire.is_some());
        let lost = Mutex::default();
        Keeping { wire: Mutex::new(wire), is_on, next_other: AtomicU64::new(next), lost }
    }

    /// Whether somebody keeps what this relay has.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// A number for what is no connection.
    pub fn other_id(&self) -> u64 {
        self.next_other.fetch_add(1, Ordering::Relaxed)
    }

    /// Puts something there; whether it is.
    pub fn put(&self, id: u64, holding: &Holding, descriptors: &[BorrowedFd<'_>]) -> bool {
        self.is_on() && self.send(&Message::with(Say::Put, id, holding), descriptors)
    }

    /// Puts a connection there, with its sockets and what else the record says.
    pub fn put_connection(&self, record: ConnectionRecord, descriptors: &[BorrowedFd<'_>]) -> bool {
        self.put(connection_id(record.number), &Holding::Connection(Box::new(record)), descriptors)
    }

    /// Something has gone, with all that belongs to it.
    pub fn gone(&self, id: u64) {
        if self.is_on() {
            self.send(&Message::bare(Say::Gone, id), &[]);
        }
    }

    /// The relay ends by itself: nothing is to be kept.
    pub fn end(&self) {
        if self.is_on() {
            self.send(&Message::bare(Say::End, 0), &[]);
        }
        self.is_on.store(false, Ordering::Relaxed);
        self.lock().take();
    }

    /// Why there is no keeper any more, once.
    pub fn take_lost(&self) -> Option<io::Error> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Does something with the wire, if there is one.
    pub fn with_wire<T>(&self, work: impl FnOnce(&Wire) -> T) -> Option<T> {
        self.lock().as_ref().map(work)
    }

    fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut wire = self.lock();
        let Some(sent) = wire.as_ref().map(|wire| wire.send(message, descriptors)) else { return false };
        let Err(error) = sent else { return true };
        self.is_on.store(false, Ordering::Relaxed);
        wire.take();
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        false
    }

    fn lock(&self) -> MutexGuard<'_, Option<Wire>> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
