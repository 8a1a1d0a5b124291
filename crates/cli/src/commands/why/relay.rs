//! Relays of this host: which of them carries connections like one that was watched, or could, and rules that they are
//! given for its successors.

use super::route;
use crate::commands::relay::living_sockets;
use anyhow::Context as _;
use longfat_kernel::tcb::{Connection, NetNamespace, Scope};
use longfat_relay::{
    control,
    status::{ConnectionStatus, Status},
};
use longfat_why::remedy::{Leg, RelayWay, ends, is_server};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    fmt, fs,
    net::{IpAddr, SocketAddr},
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    path::PathBuf,
};

/// A relay that answered.
struct Running {
    socket: PathBuf,
    status: Status,
    place: NetNamespace,
    /// Interface by which packets to an address leave; none where there is no route.
    ways: HashMap<IpAddr, Option<String>>,
}

/// The relays of this host that this user may ask.
pub struct Relays(Vec<Running>);

impl Relays {
    /// Asks every relay at the default place.
    pub fn running() -> Relays {
        let sockets = living_sockets();
        if sockets.is_empty() {
            return Relays(Vec::new());
        }
        let mut places = Scope::All.namespaces().unwrap_or_default();
        let mut take = |inode: u64| {
            let at = places.iter().position(|place| place.inode == inode)?;
            Some(places.swap_remove(at))
        };
        let mut found = Vec::new();
        for socket in sockets {
            let Ok(status) = control::ask(&socket, control::STATUS) else { continue };
            let inode = fs::metadata(format!("/proc/{}/ns/net", status.pid)).map(|found| found.ino());
            if let Some(place) = inode.ok().and_then(&mut take).filter(|_| !status.draining) {
                found.push(Running { socket, status, place, ways: HashMap::new() });
            }
        }
        Relays(found)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The relay's leg that sends, or would send, what such connections of that namespace send.
    pub fn way(&mut self, connection: &Connection, netns_inode: u64) -> Option<RelayWay> {
        self.0.iter_mut().find_map(|relay| {
            if relay.place.inode == netns_inode { relay.own(connection) } else { relay.through(connection) }
        })
    }
}

impl Running {
    /// Where the connection is a leg of this relay. It may have ended, and no other of its kind live at this
    /// moment: then its ports tell which leg it was.
    fn own(&self, connection: &Connection) -> Option<RelayWay> {
        if connection.process.as_ref()?.pid != self.status.pid as i32 {
            return None;
        }
        let (local, remote) = (plain(connection.local), plain(connection.remote));
        let mut living = self.status.connections.iter();
        if let Some(one) = living.clone().find(|one| one.server == remote) {
            return Some(self.carrying(true, Leg::Server, None, one.server));
        }
        if let Some(one) = living.find(|one| one.client == remote) {
            return Some(self.carrying(true, Leg::Client, Some(one.client.ip()), one.server));
        }
        match (is_server(local, remote), self.status.listening.contains(&local)) {
            (false, _) => Some(self.carrying(true, Leg::Server, None, remote)),
            (true, false) => Some(self.carrying(true, Leg::Client, Some(remote.ip()), local)),
            // Which server a listener's client was carried to is not known any more.
            (true, true) => None,
        }
    }

    /// Where packets of the connection's client come in at an interface that this relay intercepts, and it carries the
    /// connection not yet.
    fn through(&mut self, connection: &Connection) -> Option<RelayWay> {
        let (client, server, leg) = ends(plain(connection.local), plain(connection.remote));
        let is_carried = |one: &ConnectionStatus| (one.client, one.server) == (client, server);
        if self.status.connections.iter().any(is_carried) {
            return None;
        }
        let interface = self.interface_to(client.ip())?;
        let comes_in = self.status.interfaces.contains(&interface);
        let passes = comes_in && self.interface_to(server.ip()).is_some_and(|way| way != interface);
        passes.then(|| self.carrying(false, leg, Some(client.ip()), server))
    }

    fn carrying(&self, is_own_leg: bool, leg: Leg, client: Option<IpAddr>, server: SocketAddr) -> RelayWay {
        let (socket, netns_inode) = (self.socket.clone(), self.place.inode);
        RelayWay { socket, netns_inode, is_own_leg, leg, client, server }
    }

    fn interface_to(&mut self, address: IpAddr) -> Option<String> {
        let place = &self.place;
        self.ways.entry(address).or_insert_with(|| route::interface_to(address, place)).clone()
    }
}

/// IPv4 as such, also where a socket for both families has it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A rule that a relay is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedRule {
    socket: PathBuf,
    name: String,
    keys: String,
}

impl AddedRule {
    /// Not yet given. The name is one of this process's alone.
    pub fn new(way: &RelayWay, keys: String, number: usize) -> AddedRule {
        let name = format!("why-{}-{number}", std::process::id());
        AddedRule { socket: way.socket.clone(), name, keys }
    }

    /// The relay carries new connections by it.
    ///
    /// # Errors
    /// When the relay does not answer, or refuses.
    pub fn add(&self) -> anyhow::Result<()> {
        control::add_rule(&self.socket, &self.name, &self.keys)?;
        Ok(())
    }

    /// Whether the relay has it.
    ///
    /// # Errors
    /// When the relay does not answer.
    fn is_there(&self) -> anyhow::Result<bool> {
        Ok(control::ask(&self.socket, control::SUMMARY)?.added_rules.contains(&self.name))
    }

    /// The relay is as before. One that has ended took the rule along.
    ///
    /// # Errors
    /// When the relay does not answer.
    pub fn take_back(&self) -> anyhow::Result<()> {
        if UnixStream::connect(&self.socket).is_err() || !self.is_there()? {
            return Ok(());
        }
        control::remove_rule(&self.socket, &self.name).with_context(|| format!("remove {self}"))?;
        Ok(())
    }
}

impl fmt::Display for AddedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the relay's rule '{}' ({})", self.name, self.keys)
    }
}
