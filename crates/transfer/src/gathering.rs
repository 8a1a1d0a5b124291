//! Transfers of one server that wait for their data connections. These come to the one port, as everybody does; who
//! listens there hands each to the transfer whose token it shows.

use crate::{
    error::{Error, Result},
    preamble::Preamble,
    proof::is_same,
};
use longfat_host::Network;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    collections::BTreeMap,
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// All that wait.
#[derive(Debug, Default)]
pub(crate) struct Gatherings {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Nobody listens any more.
    is_closed: bool,
    transfers: BTreeMap<u64, Entry>,
}

/// The streams of one transfer, and the connections that have come for them.
#[derive(Debug)]
pub(crate) struct Streams {
    token: u128,
    connections: Vec<Option<TcpStream>>,
}

impl Streams {
    pub(crate) fn new(token: u128, count: u32) -> Streams {
        Streams { token, connections: (0..count).map(|_| None).collect() }
    }

    /// How many there are, with a connection or without.
    pub(crate) fn count(&self) -> usize {
        self.connections.len()
    }

    /// The number of streams whose connection has not come.
    pub(crate) fn missing(&self) -> usize {
        self.connections.iter().filter(|connection| connection.is_none()).count()
    }

    /// Takes a connection with the right token and a free stream number; whether it did. Any other is closed.
    pub(crate) fn admit(&mut self, preamble: &Preamble, socket: TcpStream) -> bool {
        if !is_same(self.token, preamble.token) {
            return false;
        }
        let Some(slot @ None) = self.connections.get_mut(preamble.stream as usize) else { return false };
        *slot = Some(socket);
        true
    }

    /// The connections that have come, in the order of their streams.
    pub(crate) fn into_connections(self) -> Vec<TcpStream> {
        self.connections.into_iter().flatten().collect()
    }
}

/// What one transfer waits for.
#[derive(Debug)]
struct Entry {
    network: Network,
    streams: Streams,
    /// Readable once there is nothing left to wait for.
    settled: Arc<EventFd>,
}

impl Entry {
    fn settle(&self) {
        // The counter is far from its limit, the only reason for a failure.
        let _ = self.settled.write(1);
    }
}

/// Data connections that may yet come.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    /// Missing connections of all transfers.
    pub(crate) all: usize,
    of_network: BTreeMap<Network, usize>,
}

impl Awaited {
    /// Missing connections of transfers whose control connection came from `network`.
    pub(crate) fn of(&self, network: Network) -> usize {
        self.of_network.get(&network).copied().unwrap_or(0)
    }
}

impl Gatherings {
    /// Begins to wait for `streams` connections that show this number and this token.
    pub(crate) fn begin(
        &self,
        transfer: u64,
        token: u128,
        network: Network,
        streams: u32,
    ) -> Result<Gathering<'_>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let settled = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| Error::io("make an event descriptor", errno))?;
        let settled = Arc::new(settled);
        let entry = Entry { network, streams: Streams::new(token, streams), settled: Arc::clone(&settled) };
        self.waiting().transfers.insert(transfer, entry);
        Ok(Gathering { all: self, transfer, settled })
    }

    /// Hands a connection to the transfer that waits for it; whether one does. Any other is closed.
    pub(crate) fn hand_over(&self, preamble: &Preamble, socket: TcpStream) -> bool {
        let mut waiting = self.waiting();
        let Some(entry) = waiting.transfers.get_mut(&preamble.transfer) else { return false };
        let is_taken = entry.streams.admit(preamble, socket);
        if is_taken && entry.streams.missing() == 0 {
            entry.settle();
        }
        is_taken
    }

    /// How many connections are waited for.
    pub(crate) fn awaited(&self) -> Awaited {
        let mut awaited = Awaited::default();
        for entry in self.waiting().transfers.values() {
            let missing = entry.streams.missing();
            awaited.all += missing;
            *awaited.of_network.entry(entry.network).or_default() += missing;
        }
        awaited
    }

    /// Nobody listens any more: who still waits waits in vain, and is told.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.is_closed = true;
        waiting.transfers.values().for_each(Entry::settle);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One transfer's wait. It ends when this is dropped: connections that come later belong to nobody.
#[derive(Debug)]
pub(crate) struct Gathering<'a> {
    all: &'a Gatherings,
    transfer: u64,
    settled: Arc<EventFd>,
}

impl Gathering<'_> {
    /// Streams whose connection has not come.
    pub(crate) fn missing(&self) -> usize {
        self.all.waiting().transfers.get(&self.transfer).map_or(0, |entry| entry.streams.missing())
    }

    /// Whether nobody listens any more.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.all.waiting().is_closed
    }

    /// The connections that have come, in the order of their streams.
    pub(crate) fn finish(self) -> Vec<TcpStream> {
        let entry = self.all.waiting().transfers.remove(&self.transfer);
        entry.map_or_else(Vec::new, |entry| entry.streams.into_connections())
    }
}

impl AsFd for Gathering<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.settled.as_fd()
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.all.waiting().transfers.remove(&self.transfer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::wait_any;
    use std::{io::Read, net::TcpListener, time::Instant};

    fn network(host: u8) -> Network {
        Network::of_peer([10, 0, 0, host].into())
    }

    /// A connection, and its other end.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn a_connection_reaches_the_transfer_whose_number_and_token_it_shows_and_no_other() {
        let all = Gatherings::default();
        let (one, two) = (all.begin(1, 11, network(1), 2).unwrap(), all.begin(2, 22, network(2), 1).unwrap());
        let show = |transfer, token, stream| {
            let (mut near, far) = pair();
            let taken = all.hand_over(&Preamble { transfer, token, stream }, far);
            // Who is not taken is closed at once.
            assert!(taken || near.read(&mut [0]).is_ok_and(|count| count == 0));
            taken
        };
        assert!(!show(1, 22, 0) && !show(3, 11, 0) && !show(1, 11, 2) && !show(1, 11, u32::MAX));
        assert!(show(1, 11, 1));
        assert!(!show(1, 11, 1), "a stream has one connection");
        let awaited = all.awaited();
        assert_eq!((awaited.all, awaited.of(network(1)), awaited.of(network(3))), (2, 1, 0));
        assert_eq!((one.missing(), two.missing()), (1, 1));
        assert!(show(1, 11, 0));
        wait_any([one.as_fd()].into_iter());
        assert_eq!(one.finish().len(), 2);
        assert!(!show(1, 11, 0), "it waits no longer");
        drop(two);
        assert!(!show(2, 22, 0) && all.awaited().all == 0);
    }

    #[test]
    fn who_waits_learns_at_once_that_nobody_listens_any_more() {
        let all = Gatherings::default();
        let one = all.begin(1, 11, network(1), 2).unwrap();
        assert!(!one.is_in_vain());
        all.close();
        let begun = Instant::now();
        wait_any([one.as_fd()].into_iter());
        assert!(begun.elapsed() < crate::sockets::LOOK_UP && one.is_in_vain());
    }
}
