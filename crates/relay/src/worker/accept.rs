//! New connections: accepting, and the leg to the server.
//!
//! Each listener keeps a prepared socket for the server's side, so that accepting a client never leaves one for whom
//! there is no descriptor. When there are no descriptors or no places, the listener is not watched until some
//! connection ends: clients wait in the kernel's queue.

use super::{LISTENERS, Token, Worker};
use crate::{
    Error, Mode, Result,
    connection::{Event, Side},
    leg,
    relayed::{Legs, Relayed},
    shared::{Once, Shared},
};
use longfat_host::socket;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// Clients taken per event, so that a storm of them does not stop the data.
const BATCH: usize = 64;
/// After running out of something, when to look again although no connection has ended.
const RETRY: Duration = Duration::from_millis(100);

/// A listener and the socket prepared for its next connection's server.
pub(super) struct Door {
    listener: TcpListener,
    prepared: Option<TcpStream>,
    /// Whether servers of its clients have IPv6 addresses.
    ipv6: bool,
}

impl Door {
    pub fn new(listener: TcpListener, shared: &Shared) -> Door {
        let own = || listener.local_addr().is_ok_and(|address| address.is_ipv6());
        let ipv6 = shared.targets().first().map_or_else(own, SocketAddr::is_ipv6);
        Door { listener, prepared: None, ipv6 }
    }
}

/// Whether the doors are watched.
#[derive(Default)]
pub(super) struct Accepting {
    paused: Option<Pause>,
}

struct Pause {
    /// Connections that had ended when it began.
    ended: u64,
    since: Instant,
}

impl Worker<'_> {
    pub(super) fn open_doors(&self) -> Result<()> {
        for (index, door) in self.doors.iter().enumerate() {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENERS + index as u64);
            self.epoll.add(&door.listener, event).map_err(|errno| Error::io("watch a listener", errno))?;
        }
        Ok(())
    }

    /// Closes the doors when the relay drains, opens them again when there may be room.
    pub(super) fn look_after_doors(&mut self) {
        if !self.doors.is_empty() && self.shared.draining.load(Ordering::Acquire) {
            // Whoever has shaken hands already is served.
            (0..self.doors.len()).for_each(|index| self.accept_some(index));
            self.doors.clear();
        }
        let ended = self.shared.ended.load(Ordering::Acquire);
        let may_resume = |pause: &Pause| pause.ended != ended || pause.since.elapsed() >= RETRY;
        if self.accepting.paused.as_ref().is_some_and(may_resume) {
            self.accepting.paused = None;
            self.shared.paused.fetch_sub(1, Ordering::AcqRel);
            self.watch_doors(EpollFlags::EPOLLIN);
        }
    }

    fn pause(&mut self) {
        if self.accepting.paused.is_none() {
            let ended = self.shared.ended.load(Ordering::Acquire);
            self.accepting.paused = Some(Pause { ended, since: Instant::now() });
            self.shared.paused.fetch_add(1, Ordering::AcqRel);
            self.watch_doors(EpollFlags::empty());
        }
    }

    fn watch_doors(&self, flags: EpollFlags) {
        for (index, door) in self.doors.iter().enumerate() {
            // Cannot fail for a descriptor that was added.
            let _ = self.epoll.modify(&door.listener, &mut EpollEvent::new(flags, LISTENERS + index as u64));
        }
    }

    pub(super) fn accept_some(&mut self, index: usize) {
        for _ in 0..BATCH {
            if !self.shared.admit() {
                return self.pause();
            }
            match self.accept_one(index) {
                Ok(Some((client, server))) => self.begin(client, server),
                // Nobody is waiting, or whoever was has gone.
                Ok(None) => return self.shared.unadmit(),
                Err(_) => {
                    self.shared.unadmit();
                    return self.pause();
                }
            }
        }
    }

    /// A client and a socket for its server; none when no client waits. An error: out of descriptors or memory.
    fn accept_one(&mut self, index: usize) -> io::Result<Option<(TcpStream, TcpStream)>> {
        let Some(door) = self.doors.get_mut(index) else { return Ok(None) };
        let prepared = match door.prepared.take() {
            Some(socket) => socket,
            None => self.shared.server_leg.outgoing(door.ipv6)?,
        };
        match leg::accept(&door.listener) {
            Ok(client) => Ok(Some((client, prepared))),
            Err(error) => {
                door.prepared = Some(prepared);
                match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    /// Starts the leg to the server. A client that cannot be served is reset.
    fn begin(&mut self, client: TcpStream, server: TcpStream) {
        let number = self.shared.number();
        self.check_cc(&client, Side::Client);
        let addresses = client.peer_addr().and_then(|peer| Ok((peer, self.target(&client)?)));
        let Ok((client_address, server_address)) = addresses else {
            leg::close_with_reset(&client);
            return self.shared.count_ended(crate::Ended::ResetByClient, [0, 0]);
        };
        let legs = Legs {
            number,
            client,
            server,
            client_address,
            server_address,
            held_bytes: Default::default(),
            relayed_bytes: Default::default(),
        };
        let untried = self.shared.targets().len().saturating_sub(1);
        let token = self.slots.insert(Box::new(Relayed::new(legs, untried)));
        self.connect(token);
    }

    /// Where a client wants to go.
    fn target(&self, client: &TcpStream) -> io::Result<SocketAddr> {
        if let Some(first) = self.shared.targets().first() {
            return Ok(*first);
        }
        let wanted = client.local_addr()?;
        // Somebody connected to the transparent listener itself: there is no server behind it but the relay.
        let own = self.doors.iter().any(|door| door.listener.local_addr().is_ok_and(|own| own == wanted));
        if own { Err(io::ErrorKind::AddrInUse.into()) } else { Ok(wanted) }
    }

    /// Dials, and watches both sockets; tries the server's next address when that fails at once.
    fn connect(&mut self, token: Token) {
        let Some(connection) = self.slots.get_mut(token) else { return };
        let source = match self.shared.plan.mode {
            Mode::Transparent(_) => Some(connection.legs.client_address),
            Mode::Explicit { .. } => None,
        };
        let legs = &connection.legs;
        let started = match (leg::start_connect(&legs.server, source, legs.server_address), source) {
            (Ok(false), Some(source)) => return self.connect_from_any_port(token, source),
            (started, _) => started,
        };
        match started {
            Ok(_) => self.watch_new(token),
            Err(_) => self.on_unreachable(token),
        }
    }

    fn connect_from_any_port(&mut self, token: Token, source: SocketAddr) {
        let Some(connection) = self.slots.get_mut(token) else { return };
        let to = connection.legs.server_address;
        self.shared.warn_once(Once::PortChanged, || {
            format!(
                "{source} reused its port towards {to} while the last connection of that name, which had no TCP \
                 timestamps, is in TIME_WAIT here: the server sees another port"
            )
        });
        let fresh = self.shared.server_leg.outgoing(to.is_ipv6());
        let started =
            fresh.and_then(|socket| leg::connect_from_any_port(&socket, source, to).map(|()| socket));
        match (started, std::sync::Arc::get_mut(&mut connection.legs)) {
            (Ok(socket), Some(legs)) => {
                legs.server = socket;
                self.watch_new(token);
            }
            _ => self.on_unreachable(token),
        }
    }

    fn watch_new(&mut self, token: Token) {
        if self.watch(token).is_err() {
            self.abandon(token);
        }
    }

    /// The leg to the server stands.
    pub(super) fn on_connected(&mut self, token: Token) {
        let Some(connection) = self.slots.get_mut(token) else { return };
        connection.on(Event::Connected);
        if let Some(registry) = &self.shared.registry {
            registry.insert(&connection.legs);
        }
        let legs = std::sync::Arc::clone(&connection.legs);
        self.check_cc(&legs.server, Side::Server);
    }

    /// Tries the server's next address, or gives up.
    pub(super) fn on_unreachable(&mut self, token: Token) {
        let Some(connection) = self.slots.get_mut(token) else { return };
        let targets = self.shared.targets();
        let next = targets.get(targets.len() - connection.untried.min(targets.len())).copied();
        if let Some(address) = next
            && let Ok(socket) = self.shared.server_leg.outgoing(address.is_ipv6())
            && let Some(legs) = std::sync::Arc::get_mut(&mut connection.legs)
        {
            connection.untried -= 1;
            let _ = self.epoll.delete(&legs.client);
            legs.server = socket;
            legs.server_address = address;
            return self.connect(token);
        }
        connection.on(Event::Failed(Side::Server));
        self.end(token);
    }

    /// Reads the congestion control back: a route's `congctl` overrides what the listener says.
    fn check_cc(&self, socket: &TcpStream, side: Side) {
        let plan = match side {
            Side::Client => &self.shared.plan.client,
            Side::Server => &self.shared.plan.server,
        };
        let Some(wanted) = &plan.cc else { return };
        let Ok(found) = socket::cc(socket) else { return };
        if found == *wanted {
            return;
        }
        let mended = socket::set_cc(socket, wanted).is_ok();
        self.shared.warn_once(Once::CcOverridden, || {
            let outcome = if mended { "was changed after the handshake" } else { "could not be changed" };
            format!(
                "a connection towards the {side:?} began with congestion control '{found}' instead of '{wanted}' and \
                 {outcome}: a route's 'congctl' overrides the choice (see 'ip route')"
            )
        });
    }
}
