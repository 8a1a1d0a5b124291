//! Listeners, and what becomes of those who come in by them.
//!
//! nftables finds the rule of an intercepted connection, and sends it to that rule's own listener: so the client's
//! leg has its congestion control and its buffers before the handshake, and nothing is looked up per connection. A
//! client of an explicit listener is matched when it is accepted; options that differ from the listener's are set then.

use crate::{
    Error, ListenerPlan, RelayPlan, Result,
    intercept::{self, ListenPorts},
    leg::{Leg, Share},
    plan::ConnectionPlan,
};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    sync::Arc,
};

/// Names a listener: the same in every worker, and after a reload.
pub(crate) type DoorId = u32;

/// What the clients of a listener are.
#[derive(Debug, Clone)]
pub(crate) enum Clients {
    /// Intercepted, and all carried in one way.
    Intercepted(Arc<ConnectionPlan>),
    /// They connected to the relay.
    Own {
        /// Where they are connected to.
        targets: Arc<[SocketAddr]>,
        /// How each is carried.
        plan: Arc<RelayPlan>,
        /// How the listener is prepared: as most of them are likely to be carried.
        likely: Arc<ConnectionPlan>,
    },
}

impl Clients {
    /// Of an explicit listener.
    fn own(listener: &ListenerPlan, plan: &Arc<RelayPlan>) -> Clients {
        let ports = |rule: &&crate::RulePlan| {
            let anyone = crate::MatchPlan { sources: Vec::new(), ..rule.matches.clone() };
            listener.to.first().is_some_and(|server| anyone.takes_listeners_client(*server, *server))
        };
        let rules = plan.rules.iter().filter(ports);
        let likely = rules.filter_map(|rule| rule.relay.as_ref()).next().unwrap_or(&plan.defaults);
        Clients::Own {
            targets: listener.to.as_slice().into(),
            plan: Arc::clone(plan),
            likely: Arc::clone(likely),
        }
    }

    /// How the listener, and the socket towards its next client's server, are prepared.
    pub fn likely(&self) -> &Arc<ConnectionPlan> {
        match self {
            Clients::Intercepted(way) => way,
            Clients::Own { likely, .. } => likely,
        }
    }

    /// How a client is carried; none when it is not to be.
    pub fn way_of(&self, client: SocketAddr, server: SocketAddr) -> Option<&Arc<ConnectionPlan>> {
        match self {
            Clients::Intercepted(way) => Some(way),
            Clients::Own { plan, .. } => plan.way_of(client, server),
        }
    }

    /// The server's addresses; none when the client names the server.
    pub fn targets(&self) -> Option<&Arc<[SocketAddr]>> {
        match self {
            Clients::Intercepted(_) => None,
            Clients::Own { targets, .. } => Some(targets),
        }
    }

    pub fn is_intercepted(&self) -> bool {
        matches!(self, Clients::Intercepted(_))
    }
}

/// One worker's listener.
#[derive(Debug)]
pub(crate) struct DoorPlan {
    pub id: DoorId,
    pub listener: TcpListener,
    pub clients: Clients,
}

/// Listeners of all workers, being made.
pub(crate) struct Doors {
    /// The mark of the relay's own packets, when it intercepts.
    own_mark: Option<u32>,
    next_id: DoorId,
    /// Per worker.
    pub made: Vec<Vec<DoorPlan>>,
    /// Addresses, in the order of making.
    pub listening: Vec<SocketAddr>,
}

impl Doors {
    pub fn new(workers: usize, own_mark: Option<u32>) -> Doors {
        let mut made = Vec::new();
        made.resize_with(workers, Vec::new);
        Doors { own_mark, next_id: 0, made, listening: Vec::new() }
    }

    /// Listens on every explicit address of the plan.
    pub fn open_explicit(&mut self, plan: &Arc<RelayPlan>) -> Result<()> {
        plan.listeners
            .iter()
            .try_for_each(|listener| self.open(listener.listen, &Clients::own(listener, plan)).map(drop))
    }

    /// Listens on the loopback addresses, for packets the interception brings: on ports of their own for each rule
    /// that relays, or for everything when there are no rules. Not reachable from elsewhere.
    pub fn open_intercepted(&mut self, plan: &RelayPlan) -> Result<Vec<ListenPorts>> {
        let rules = plan.rules.iter().map(|rule| rule.relay.as_ref());
        let all = plan.rules.is_empty().then_some(Some(&plan.defaults));
        rules
            .chain(all)
            .map(|way| way.map_or(Ok(ListenPorts::default()), |way| self.open_rule(way)))
            .collect()
    }

    fn open_rule(&mut self, way: &Arc<ConnectionPlan>) -> Result<ListenPorts> {
        let clients = Clients::Intercepted(Arc::clone(way));
        let ipv4 = Some(self.open((Ipv4Addr::LOCALHOST, 0).into(), &clients)?);
        let ipv6 = match intercept::has_ipv6() {
            true => Some(self.open((Ipv6Addr::LOCALHOST, 0).into(), &clients)?),
            false => None,
        };
        Ok(ListenPorts { ipv4, ipv6 })
    }

    /// One listener per worker on one address; the first one's port when none is given.
    fn open(&mut self, address: SocketAddr, clients: &Clients) -> Result<u16> {
        let transparent = self.own_mark.filter(|_| clients.is_intercepted());
        let leg = Leg { plan: &clients.likely().client, transparent };
        let first = leg.listen(address, Share::Found)?;
        let address = first.local_addr().map_err(|source| Error::Listen { address, source })?;
        let id = self.next_id;
        self.next_id += 1;
        let mut first = Some(first);
        for own in &mut self.made {
            let listener = match first.take() {
                Some(listener) => listener,
                None => leg.listen(address, Share::Join)?,
            };
            own.push(DoorPlan { id, listener, clients: clients.clone() });
        }
        self.listening.push(address);
        Ok(address.port())
    }
}
