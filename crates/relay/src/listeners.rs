//! Listeners, and what becomes of those who come in by them.
//!
//! nftables finds the rule of an intercepted connection, and sends it to that rule's own listener: so the client's
//! leg has its congestion control and its buffers before the handshake, and nothing is looked up per connection. A
//! client of an explicit listener is matched when it is accepted; options that differ from the listener's are set then.

use crate::{
    Error, ListenerPlan, RelayPlan, Result,
    handover::estate::{Inherited, take_listeners},
    intercept::{self, ListenPorts},
    keeping::{
        Keeping,
        record::{Holding, Purpose},
    },
    legs::{
        leg::{Leg, Share},
        queue::begin_clients_small,
        steer,
    },
    plan::{ConnectionPlan, destination, loops},
};
use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::AsFd,
    sync::Arc,
};

/// Names a listener: the same in every worker, and after a reload.
pub(crate) type ListenerId = u32;

/// What the clients of a listener are.
#[derive(Debug, Clone)]
pub(crate) enum Clients {
    /// Intercepted, and all carried in one way.
    Intercepted(Arc<ConnectionPlan>),
    /// Clients that connected to the relay.
    Own {
        /// Where they are connected to.
        targets: Arc<[SocketAddr]>,
        /// How each is carried.
        plan: Arc<RelayPlan>,
        /// How the listener is prepared: as most of them are likely to be carried.
        likely: Arc<ConnectionPlan>,
        /// Where the listener is that would lead back to itself if this host came to have its server's address.
        suspect: Option<SocketAddr>,
    },
}

impl Clients {
    /// Clients of an explicit listener.
    fn own(listener: &ListenerPlan, plan: &Arc<RelayPlan>) -> Clients {
        let ports = |rule: &&crate::RulePlan| {
            let anyone = crate::MatchPlan { sources: Vec::new(), ..rule.matches.clone() };
            listener.to.first().is_some_and(|server| anyone.takes_listeners_client(*server, *server))
        };
        let rules = plan.rules.iter().filter(ports);
        let likely = rules.filter_map(|rule| rule.relay.as_ref()).next().unwrap_or(&plan.defaults);
        let is_suspect = loops::leads_back(&plan.listeners, listener.listen, &|_| true);
        Clients::Own {
            targets: listener.to.as_slice().into(),
            plan: Arc::clone(plan),
            likely: Arc::clone(likely),
            suspect: is_suspect.then_some(listener.listen),
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

    /// The name of the rule that speaks of a client.
    pub fn rule_of(&self, client: SocketAddr, server: SocketAddr) -> &str {
        match self {
            Clients::Intercepted(way) => &way.rule,
            Clients::Own { plan, .. } => plan.rule_of(client, server),
        }
    }

    /// The server's addresses; none when the client names the server.
    pub fn targets(&self) -> Option<&Arc<[SocketAddr]>> {
        match self {
            Clients::Intercepted(_) => None,
            Clients::Own { targets, .. } => Some(targets),
        }
    }

    /// Whether they may come to be carried to the listener that they come from.
    pub fn are_suspect(&self) -> bool {
        matches!(self, Clients::Own { suspect: Some(_), .. })
    }

    /// Whether they would be carried there now; none if nobody knows.
    pub fn lead_back(&self) -> Option<bool> {
        let Clients::Own { plan, suspect: Some(listen), .. } = self else { return Some(false) };
        let is_doubtful = Cell::new(false);
        let is_own = |address| {
            let is_own = destination::is_own(address);
            is_doubtful.set(is_doubtful.get() || is_own.is_none());
            is_own == Some(true)
        };
        let leads_back = loops::leads_back(&plan.listeners, *listen, &is_own);
        (leads_back || !is_doubtful.get()).then_some(leads_back)
    }

    pub fn is_intercepted(&self) -> bool {
        matches!(self, Clients::Intercepted(_))
    }
}

/// One worker's listener.
#[derive(Debug)]
pub(crate) struct WorkerListener {
    pub id: ListenerId,
    pub listener: Arc<TcpListener>,
    pub clients: Clients,
}

/// What a worker shall do with its listeners.
#[derive(Debug)]
pub(crate) enum ListenerOrder {
    Open(WorkerListener),
    /// The next clients of a listener are others.
    Change(ListenerId, Clients),
    Close(ListenerId),
}

/// The listeners of one address: every worker has one.
#[derive(Debug, Clone)]
struct Group {
    id: ListenerId,
    purpose: Purpose,
    address: SocketAddr,
    /// Each worker's.
    listeners: Vec<Kept>,
}

impl Group {
    fn holding(&self, worker: usize) -> Holding {
        Holding::Listener { purpose: self.purpose.clone(), address: self.address, worker }
    }
}

/// A listener, and its number at whoever keeps it.
#[derive(Debug, Clone)]
struct Kept {
    listener: Arc<TcpListener>,
    id: Option<u64>,
}

/// The listeners of all workers.
pub(crate) struct Listeners {
    /// The mark of the relay's own packets, when it intercepts.
    own_mark: Option<u32>,
    next_id: ListenerId,
    groups: Vec<Group>,
    /// Per worker: made, and not yet handed over.
    pub made: Vec<Vec<WorkerListener>>,
    /// Listeners of another relay, that are used where they fit.
    inherited: Vec<Inherited>,
}

/// Listeners that are wanted, and what their clients are.
pub(crate) type Wanted = Vec<(ListenerId, Clients)>;

impl Listeners {
    pub fn new(workers: usize, own_mark: Option<u32>, inherited: Vec<Inherited>) -> Listeners {
        let mut made = Vec::new();
        made.resize_with(workers, Vec::new);
        Listeners { own_mark, next_id: 0, groups: Vec::new(), made, inherited }
    }

    /// Listens on every explicit address of the plan, if it does not yet.
    pub fn open_explicit(&mut self, plan: &Arc<RelayPlan>) -> Result<Wanted> {
        let mut wanted = Wanted::new();
        for listener in &plan.listeners {
            let clients = Clients::own(listener, plan);
            let (id, _) = self.open(Purpose::own(listener), listener.listen, &clients)?;
            wanted.push((id, clients));
        }
        Ok(wanted)
    }

    /// Listens on the loopback addresses, for packets the interception brings: on ports of their own for each rule
    /// that relays, or for everything when there are no rules. Not reachable from elsewhere.
    pub fn open_intercepted(&mut self, plan: &RelayPlan) -> Result<(Vec<ListenPorts>, Wanted)> {
        let rules = plan.rules.iter().map(|rule| rule.relay.as_ref());
        let all = plan.rules.is_empty().then_some(Some(&plan.defaults));
        let (mut ports, mut wanted) = (Vec::new(), Wanted::new());
        for way in rules.chain(all) {
            ports.push(match way {
                Some(way) => self.open_rule(way, &mut wanted)?,
                None => ListenPorts::default(),
            });
        }
        Ok((ports, wanted))
    }

    fn open_rule(&mut self, way: &Arc<ConnectionPlan>, wanted: &mut Wanted) -> Result<ListenPorts> {
        let clients = Clients::Intercepted(Arc::clone(way));
        let mut open = |address: IpAddr| -> Result<u16> {
            let purpose = Purpose::rule(way, address.is_ipv6());
            let (id, port) = self.open(purpose, (address, 0).into(), &clients)?;
            wanted.push((id, clients.clone()));
            Ok(port)
        };
        let ipv4 = Some(open(Ipv4Addr::LOCALHOST.into())?);
        let ipv6 = if intercept::has_ipv6() { Some(open(Ipv6Addr::LOCALHOST.into())?) } else { None };
        Ok(ListenPorts { ipv4, ipv6 })
    }

    /// One listener per worker on one address, unless they stand; the first one's port when none is given.
    fn open(
        &mut self,
        purpose: Purpose,
        address: SocketAddr,
        clients: &Clients,
    ) -> Result<(ListenerId, u16)> {
        if let Some(found) = self.groups.iter().find(|group| group.purpose == purpose) {
            return Ok((found.id, found.address.port()));
        }
        let (address, listeners) = self.listeners(&purpose, address, clients)?;
        let id = self.next_id;
        self.next_id += 1;
        listeners.iter().for_each(|listener| begin_clients_small(listener, clients.likely()));
        let listeners: Vec<_> = listeners.into_iter().map(Arc::new).collect();
        for (own, listener) in self.made.iter_mut().zip(&listeners) {
            own.push(WorkerListener { id, listener: Arc::clone(listener), clients: clients.clone() });
        }
        let listeners = listeners.into_iter().map(|listener| Kept { listener, id: None }).collect();
        self.groups.push(Group { id, purpose, address, listeners });
        Ok((id, address.port()))
    }

    /// Listeners of another relay, or new ones: one per worker, and where they listen.
    fn listeners(
        &mut self,
        purpose: &Purpose,
        address: SocketAddr,
        clients: &Clients,
    ) -> Result<(SocketAddr, Vec<TcpListener>)> {
        let transparent = self.own_mark.filter(|_| clients.is_intercepted());
        let leg = Leg { plan: &clients.likely().client, transparent };
        if let Some((address, listeners)) = take_listeners(&mut self.inherited, purpose, self.made.len()) {
            listeners.iter().try_for_each(|listener| leg.adopt(listener, address.is_ipv6()))?;
            return Ok((address, listeners));
        }
        let first = leg.listen(address, Share::Found)?;
        let address = first.local_addr().map_err(|source| Error::Listen { address, source })?;
        let mut listeners = vec![first];
        for _ in 1..self.made.len() {
            listeners.push(leg.listen(address, Share::Join)?);
        }
        steer::by_addresses(&listeners[0], listeners.len())
            .map_err(|source| Error::Listen { address, source })?;
        Ok((address, listeners))
    }

    /// Every worker's listeners, as they are handed over, with their numbers at whoever keeps them.
    pub fn holdings(&self) -> impl Iterator<Item = (Option<u64>, Holding, &TcpListener)> {
        self.groups.iter().flat_map(|group| {
            let numbered = group.listeners.iter().enumerate();
            numbered.map(|(worker, kept)| (kept.id, group.holding(worker), &*kept.listener))
        })
    }

    /// Puts new listeners where they survive this process.
    pub fn keep(&mut self, keeping: &Keeping) {
        for group in self.groups.iter_mut().filter(|_| keeping.is_on()) {
            for worker in 0..group.listeners.len() {
                let holding = group.holding(worker);
                let kept = &mut group.listeners[worker];
                if kept.id.is_none() {
                    let id = keeping.other_id();
                    kept.id = keeping.put(id, &holding, &[kept.listener.as_fd()]).then_some(id);
                }
            }
        }
    }

    /// Closes listeners of another relay that this one has no use for.
    pub fn close_inherited(&mut self) {
        self.inherited.clear();
    }

    /// The relay takes nobody any more.
    pub fn close(&mut self) {
        self.groups.clear();
    }

    /// Closes those that were made and not yet handed over: what they were made for did not come about.
    pub fn close_unused(&mut self, keeping: &Keeping) {
        let unused: Vec<ListenerId> = self.made.iter().flatten().map(|listener| listener.id).collect();
        self.made.iter_mut().for_each(Vec::clear);
        self.forget(&unused, keeping);
    }

    /// Addresses, in the order of making.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.groups.iter().map(|group| group.address).collect()
    }

    /// Listeners that stand.
    pub fn ids(&self) -> Vec<ListenerId> {
        self.groups.iter().map(|group| group.id).collect()
    }

    /// Forgets listeners that serve no purpose any more.
    pub fn forget(&mut self, gone: &[ListenerId], keeping: &Keeping) {
        let lost = self.groups.iter().filter(|group| gone.contains(&group.id));
        let kept = lost.flat_map(|group| &group.listeners).filter_map(|kept| kept.id);
        kept.for_each(|id| keeping.gone(id));
        self.groups.retain(|group| !gone.contains(&group.id));
    }
}

impl Purpose {
    fn own(listener: &ListenerPlan) -> Purpose {
        Purpose::Own(listener.listen)
    }

    fn rule(way: &ConnectionPlan, ipv6: bool) -> Purpose {
        Purpose::Rule { name: way.rule.clone(), ipv6 }
    }
}
