//! Transparent interception: an nft table, a routing rule and a routing table per IP family, made and removed.
//!
//! Packets of the relay's connections get a mark; a rule routes marked packets to a table whose only route is
//! "local", so that the kernel delivers them although they carry somebody else's address.

mod commands;
mod marks;
mod rules;
mod stale;
mod undo;
mod watch;

use crate::{
    Error, Fail, InterceptPlan, Observer, RelayPlan, Result, adopt,
    legs::tun::{self, Tun},
    logic::one_way::OneWay,
    plan::marks::{HoldSlot, Marks, passing_mark},
};
use commands::{interface_exists, ip_all, ip_shown, ip_try, nft, nft_check};
use longfat_host::{interface, lease, support, support::Missing, sysctl};
use marks::FIRST_NUMBER;
pub(crate) use rules::{ListenPorts, Taking};
use rules::{Means, Record, Untracked};
pub use stale::clean;
use stale::{find, is_living, of_the_dead, owner, records, show_life, sweep};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    net::IpAddr,
    os::unix::net::UnixDatagram,
    sync::atomic::{AtomicBool, Ordering},
};
use undo::{Left, undo, undo_behind, undo_routes, unroute};
use watch::{Own, Watch};

/// Before anything an administrator is likely to have, after the kernel's own `local` at 0.
const RULE_PRIORITY: &str = "10";
/// Where marked packets are delivered.
const DELIVERY: &str = "local default dev lo";
/// Metric of an IPv6 route that has none of its own: deleting a route without naming one takes any, of whatever type.
const IPV6_METRIC: &str = " metric 1024";
/// Where held ones end when nobody holds them.
const REFUSAL: &str = "blackhole default metric 4096";
/// The IPv4 dummy address (RFC 7600 section 4.8): nothing is ever sent to it.
const DUMMY_ADDRESS: &str = "192.0.0.8/32";
const FAMILIES: [&str; 2] = ["-4", "-6"];
const BRIDGE_CALLS: [&str; 2] = ["net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"];
const FORWARDING: [&str; 2] = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];

/// The nft and ip commands a plan comes to, as text for a person: ports and numbers are chosen at the start.
pub fn explain(relay: &RelayPlan) -> String {
    let Some(plan) = &relay.intercept else { return String::new() };
    let mark = plan.mark.unwrap_or(FIRST_NUMBER);
    let numbers = Marks { mark, own_mark: mark.wrapping_add(1), table: plan.table.unwrap_or(FIRST_NUMBER) };
    let ports = |index: u16| ListenPorts { ipv4: Some(40_000 + 2 * index), ipv6: Some(40_001 + 2 * index) };
    let ports: Vec<_> = (0..relay.rules.len().max(1)).map(|index| ports(index as u16)).collect();
    let mut text = rules::chains(
        &rules::table_name(&relay.name),
        relay,
        &numbers,
        &ports,
        Taking::Yes,
        Means { untracked: Untracked::Can, tells_watched: relay.only_watches() },
        0,
    );
    if relay.only_watches() {
        text.insert_str(0, "# All of it stands from the first connection on that is to be stepped into.\n");
    }
    for family in FAMILIES {
        text.push_str(&format!(
            "ip {family} rule add priority {RULE_PRIORITY} fwmark {mark:#x} lookup {table}\n\
             ip {family} route add {DELIVERY} table {table}\n",
            table = numbers.table
        ));
    }
    text.push_str(&explain_held(relay, &numbers));
    for key in FORWARDING.into_iter().filter(|_| plan.set_forwarding) {
        text.push_str(&format!("sysctl -w {key}=1    (if it is 0)\n"));
    }
    text
}

/// The interfaces of held SYNs and the ways there, for every rule that holds.
fn explain_held(relay: &RelayPlan, numbers: &Marks) -> String {
    let mut text = String::new();
    for rule in relay.holding_rules() {
        let places = places(rule, relay.holders());
        let names = places.iter().map(|place| numbers.hold_interface(*place));
        names.for_each(|name| {
            text.push_str(&format!(
                "ip tuntap add dev {name} mode tun\nsysctl -w net.ipv4.conf.{name}.rp_filter=2\n"
            ));
        });
        let ways = held_ways(numbers, &places, relay.fail == Fail::Closed);
        let commands = [("-4", held_links(numbers, &places)), ("-4", ways.clone()), ("-6", ways)];
        for (family, commands) in commands {
            commands.lines().for_each(|line| text.push_str(&format!("ip {family} {line}\n")));
        }
    }
    text
}

/// The places of a rule.
fn places(rule: usize, holders: usize) -> Vec<HoldSlot> {
    (0..holders).map(|holder| HoldSlot { rule, holder }).collect()
}

/// What makes their interfaces ready. Loose validation of sources is content with any route back, but not on an
/// interface without an address.
fn held_links(numbers: &Marks, places: &[HoldSlot]) -> String {
    let names = places.iter().map(|place| numbers.hold_interface(*place));
    names.map(|name| format!("addr add {DUMMY_ADDRESS} dev {name}\nlink set {name} up\n")).collect()
}

/// Longest packet of IP.
const MOST_PACKET_BYTES: u32 = 65535;
/// Packets that wait in such an interface, at a time when a fast stream is led there.
const HELD_PACKETS: u32 = 4096;

/// What leads there, for either IP family.
fn held_ways(numbers: &Marks, places: &[HoldSlot], refuses: bool) -> String {
    let way = |place: &HoldSlot| {
        let (name, table) = (numbers.hold_interface(*place), numbers.hold_table(*place));
        let mark = numbers.hold_mark(*place);
        let refusal = format!("route add {REFUSAL} table {table}\n");
        format!(
            "rule add priority {RULE_PRIORITY} fwmark {mark:#x} lookup {table}\n\
             route add default dev {name} table {table}\n{}",
            if refuses { &refusal } else { "" }
        )
    };
    places.iter().map(way).collect()
}

/// What this host lacks for the plan.
pub(crate) fn missing(relay: &RelayPlan) -> Vec<Missing> {
    let Some(plan) = &relay.intercept else { return Vec::new() };
    let programs = [
        support::missing_network_admin("interception of packets"),
        support::missing_program("nft", "nftables"),
        support::missing_program("ip", "iproute2"),
    ];
    let mut missing: Vec<_> = programs.into_iter().flatten().collect();
    if missing.is_empty() {
        missing.extend(missing_tproxy(relay));
        missing.extend(plan.interfaces.iter().filter(|name| !interface_exists(name)).map(|name| {
            let why = "no interface of this network namespace has that name";
            Missing::new(format!("the interface '{name}'"), why, "see 'ip link' for what there is")
        }));
        missing.extend(missing_unmarked_validation(plan));
        missing.extend(missing_late_rules(plan));
        if relay.holding_rules().next().is_some() {
            missing.extend(missing_tun());
        }
        if relay.steps_in() {
            missing.extend(adopt::missing());
        }
        match plan.set_forwarding {
            true => missing.extend(missing_right_to_forward()),
            false => missing.extend(missing_forwarding()),
        }
    }
    missing
}

/// Has the kernel check, and not apply, rules like ours.
fn missing_tproxy(plan: &RelayPlan) -> Option<Missing> {
    let numbers = Marks { mark: 1, own_mark: 2, table: 1 };
    let ports = vec![ListenPorts { ipv4: Some(1), ipv6: Some(1) }; plan.rules.len().max(1)];
    let check = |untracked| {
        let means = Means { untracked, tells_watched: plan.only_watches() };
        nft_check(&rules::chains("longfat_check", plan, &numbers, &ports, Taking::Yes, means, 0))
    };
    let error = match check(Untracked::Can) {
        Ok(_) => {
            CAN_UNTRACK.store(true, Ordering::Relaxed);
            return None;
        }
        Err(_) => check(untracked()).err()?,
    };
    let mend =
        "use a kernel with CONFIG_NFT_TPROXY, CONFIG_NFT_SOCKET, CONFIG_NFT_HASH and CONFIG_NFT_FIB_INET";
    Some(Missing::new("transparent interception by nftables", error.to_string(), mend))
}

/// Whether this kernel was seen to keep packets out of conntrack.
static CAN_UNTRACK: AtomicBool = AtomicBool::new(false);

/// Whether this host can keep packets out of conntrack.
fn untracked() -> Untracked {
    let rule = "table inet longfat_check {\nchain output {\nnotrack\n}\n}\n";
    let can = CAN_UNTRACK.load(Ordering::Relaxed) || nft_check(rule).is_ok();
    CAN_UNTRACK.fetch_or(can, Ordering::Relaxed);
    if can { Untracked::Can } else { Untracked::Cannot }
}

/// A TUN interface, unless this host can make one: with it a relay answers a client after its server has.
pub fn missing_tun() -> Option<Missing> {
    let error = tun::is_available().err()?;
    let mend = "run 'modprobe tun' and make /dev/net/tun, or accept early";
    Some(Missing::new("a TUN interface to hold handshakes", error.to_string(), mend))
}

fn missing_forwarding() -> Vec<Missing> {
    let off = FORWARDING.into_iter().filter(|key| is_off(key));
    off.map(|key| {
        let why = format!("sysctl {key} is 0, so what is not relayed would not pass");
        Missing::new("forwarding of packets", why, format!("run 'sysctl -w {key}=1', or give --forwarding"))
    })
    .collect()
}

/// Where forwarding is to be turned on and cannot be.
fn missing_right_to_forward() -> Vec<Missing> {
    let off = FORWARDING.into_iter().filter(|key| is_off(key));
    let refused = off.filter_map(|key| Some((key, sysctl::check_writable(key).err()?)));
    refused
        .map(|(key, error)| {
            let mend = format!(
                "set {key} = 1 in /etc/sysctl.d and leave 'forwarding' out, or give the service \
                 'ProtectKernelTunables=no'"
            );
            Missing::new(format!("the right to set sysctl {key}"), error.to_string(), mend)
        })
        .collect()
}

/// With src_valid_mark the kernel looks up a packet's source by its mark, finds it in our table as local, and drops
/// the packet as a martian (wg-quick sets it).
fn missing_unmarked_validation(plan: &InterceptPlan) -> Vec<Missing> {
    let interfaces = std::iter::once("all").chain(plan.interfaces.iter().map(String::as_str));
    let keys = interfaces.map(|interface| format!("net.ipv4.conf.{interface}.src_valid_mark"));
    let on = keys.filter(|key| sysctl::read(key).is_ok_and(|value| value == "1"));
    on.map(|key| {
        let why = format!("sysctl {key} is 1, so the kernel would drop the packets the relay marks");
        Missing::new("source validation without marks", why, format!("run 'sysctl -w {key}=0'"))
    })
    .collect()
}

/// With br_netfilter a bridge runs the rules for IP itself, before the IP layer has the packet (and then not again):
/// the choice of a listener is lost on the way there, and connections hang.
fn missing_late_rules(plan: &InterceptPlan) -> Vec<Missing> {
    let Some(bridge) = plan.interfaces.iter().find(|name| is_bridge(name)) else { return Vec::new() };
    let on = BRIDGE_CALLS.into_iter().filter(|key| sysctl::read(key).is_ok_and(|value| value == "1"));
    on.map(|key| {
        let why = format!("sysctl {key} is 1, and the interface '{bridge}' is a bridge");
        Missing::new(
            "rules that run in the IP layer and not in the bridge",
            why,
            format!("run 'sysctl -w {key}=0'"),
        )
    })
    .collect()
}

/// None that is not there is.
fn is_up(interface: &str) -> bool {
    interface::is_up(interface).unwrap_or(false)
}

/// None that is not there is one.
fn is_bridge(interface: &str) -> bool {
    interface::is_bridge(interface).unwrap_or(false)
}

fn is_off(key: &str) -> bool {
    sysctl::read(key).is_ok_and(|value| value == "0")
}

/// Whether an interception of the name stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The interception was made just now.
    Nothing,
    /// A living relay's, or one whose connections are kept.
    Others,
}

/// An interception that stands; removed on drop.
#[derive(Debug)]
pub(crate) struct Interception {
    table_name: String,
    record: Record,
    /// Chains of a relay that fails closed: they refuse what it would take, as its plan is now.
    refusals: RefCell<Option<String>>,
    untracked: Untracked,
    /// Connections have come to this relay in mid-stream only, so far; what is only watched comes with a mark.
    tells_watched: Cell<bool>,
    /// Whether routing rules stand. Each packet that the host forwards pays for any, and for chains. So where
    /// connections are only watched both wait for the first that is to be stepped into.
    is_routed: Cell<bool>,
    /// Places whose interfaces are there and to which nothing leads yet.
    unrouted: RefCell<Vec<HoldSlot>>,
    /// Whether the interception is another relay's, too: nothing is removed.
    is_shared: Cell<bool>,
    /// Whether the interception stood before: whoever begins to take packets exchanges the whole table.
    stood: bool,
    /// Where copies of handshakes are logged to.
    log_group: Cell<u16>,
    watch: Watch,
    removed: bool,
    /// Says to other PID namespaces that the relay lives; dropped last.
    _life: Option<UnixDatagram>,
}

impl Interception {
    /// Claims the name and the numbers: removes what dead relays left, makes the table that is the record, and the
    /// routes. No packet is taken before [`Interception::start`]. What a relay that fails closed would take is refused
    /// from now on, and if a dead one's refusals stand, at every moment.
    pub fn prepare(relay: &RelayPlan, plan: &InterceptPlan, observer: &dyn Observer) -> Result<Interception> {
        let table_name = rules::table_name(&relay.name);
        let refuses = relay.fail == Fail::Closed;
        let is_taken_over = inherit(relay, &table_name, observer)?;
        // It may have been on only since a dead relay turned it on.
        let missing = if plan.set_forwarding { Vec::new() } else { missing_forwarding() };
        if !missing.is_empty() {
            return Err(Error::Unsupported(missing));
        }
        let others: Vec<_> = records()?.into_iter().filter(|(name, _)| *name != table_name).collect();
        // Whoever ends last turns off what another one turned on.
        let is_to_end = |family: usize| {
            plan.set_forwarding
                && (is_off(FORWARDING[family]) || others.iter().any(|(_, other)| other.forwarding[family]))
        };
        let forwarding = [is_to_end(0), is_to_end(1)];
        let numbers =
            marks::choose(plan, others.into_iter().map(|(name, record)| (name, record.numbers)).collect())?;
        let (life, watch) = (show_life(&table_name)?, Watch::open()?);
        let pid = std::process::id() as i32;
        let record = Record {
            pid,
            start_ticks: lease::start_time(pid).unwrap_or(0),
            pid_namespace: lease::pid_namespace(),
            keep: refuses,
            forwarding,
            numbers,
        };
        let refusals = refuses.then(|| refusals(relay, &record.numbers));
        let chains = refusals.as_deref().unwrap_or_default();
        nft(&match is_taken_over {
            true => rules::replace(&table_name, &record, chains),
            false => rules::table(&table_name, &record) + chains,
        })?;
        // What a dead relay left behind was this one's to delete.
        watch.changed(Own::Table, &table_name, &record.numbers);
        let interception = Interception::new(table_name, record, refusals, Found::Nothing, (life, watch));
        match relay.only_watches() {
            true => interception.tells_watched.set(true),
            false => interception.route()?,
        }
        Ok(interception)
    }

    /// Takes over the interception of a relay that lives, or whose connections are kept: its numbers, its routes and
    /// what it turned on. None if there is no such table. Nothing is changed before [`Interception::start`].
    pub fn take_over(
        relay: &RelayPlan,
        plan: &InterceptPlan,
        life: Option<UnixDatagram>,
    ) -> Result<Option<Interception>> {
        let table_name = rules::table_name(&relay.name);
        let Some(found) = find(&table_name) else { return Ok(None) };
        let numbers = &found.numbers;
        let differs = plan.mark.is_some_and(|mark| mark != numbers.mark)
            || plan.table.is_some_and(|table| table != numbers.table);
        if differs {
            return Err(Error::Plan(format!(
                "intercept.mark and intercept.table cannot change while connections live: the relay has {} and {}",
                numbers.mark, numbers.table
            )));
        }
        let pid = std::process::id() as i32;
        let record = Record {
            pid,
            start_ticks: lease::start_time(pid).unwrap_or(0),
            pid_namespace: lease::pid_namespace(),
            keep: relay.fail == Fail::Closed,
            ..found
        };
        let refusals = record.keep.then(|| refusals(relay, &record.numbers));
        let life = life.map_or_else(|| show_life(&table_name), |life| Ok(Some(life)))?;
        let signs = (life, Watch::open()?);
        let interception = Interception::new(table_name, record, refusals, Found::Others, signs);
        interception.is_routed.set(interception.is_led(FAMILIES[0])?);
        Ok(Some(interception))
    }

    fn new(
        table_name: String,
        record: Record,
        refusals: Option<String>,
        found: Found,
        (life, watch): (Option<UnixDatagram>, Watch),
    ) -> Interception {
        let stood = found == Found::Others;
        Interception {
            table_name,
            record,
            refusals: RefCell::new(refusals),
            untracked: untracked(),
            tells_watched: Cell::new(false),
            is_routed: Cell::new(false),
            unrouted: RefCell::default(),
            is_shared: Cell::new(stood),
            stood,
            log_group: Cell::default(),
            watch,
            removed: false,
            _life: life,
        }
    }

    /// Makes the interception this relay's alone.
    pub fn own(&self) {
        self.is_shared.set(false);
    }

    /// Leaves the interception to another relay.
    pub fn leave(&self) {
        self.is_shared.set(true);
    }

    /// What says to other PID namespaces that the relay lives.
    pub fn life(&self) -> Option<&UnixDatagram> {
        self._life.as_ref()
    }

    /// The table says whose it is, and what it takes, again.
    fn renew(&self, plan: &RelayPlan, ports: &[ListenPorts]) -> Result<()> {
        let chains = self.chains(plan, ports, Taking::Yes);
        self.change(Own::Table, || Ok(nft(&rules::replace(&self.table_name, &self.record, &chains))?))?;
        Ok(())
    }

    /// The table says again that it is this relay's: a successor that had taken it over has failed.
    pub fn stay(&self, plan: &RelayPlan, ports: &[ListenPorts]) -> Result<()> {
        self.watch.take_lost(&self.table_name, &self.record.numbers);
        self.renew(plan, ports)
    }

    /// Makes again what somebody else has taken away, of rules or of ways; whether there was anything. A successor's
    /// are not touched.
    pub fn mend(&self, plan: &RelayPlan, ports: &[ListenPorts]) -> Result<bool> {
        let is_others = || find(&self.table_name).is_some_and(|found| found != self.record);
        let numbers = &self.record.numbers;
        let has_lost = self.watch.take_lost(&self.table_name, numbers);
        let is_in_doubt = self.watch.take_doubts(numbers);
        let lacks_any = has_lost || is_in_doubt && self.lacks_routes(plan);
        if !lacks_any || is_others() {
            return Ok(false);
        }
        let made = self.route_again(plan).and_then(|()| self.renew(plan, ports));
        made.inspect_err(|_| self.watch.not_mended())?;
        Ok(true)
    }

    /// Whether a route is missing that packets of the relay's marks need, and its interface could have.
    fn lacks_routes(&self, plan: &RelayPlan) -> bool {
        if !self.is_routed.get() {
            return false;
        }
        let numbers = &self.record.numbers;
        let held = plan.holding_rules().flat_map(|rule| places(rule, plan.holders()));
        let held = held.map(|place| (numbers.hold_table(place), numbers.hold_interface(place)));
        let delivery = (numbers.table, "lo".to_owned());
        let ways: Vec<_> = std::iter::once(delivery).chain(held).filter(|(_, name)| is_up(name)).collect();
        let shows: String = ways.iter().map(|(table, _)| format!("route show table {table}\n")).collect();
        families().any(|family| {
            let shown = ip_shown(family, &shows);
            let there: BTreeSet<&str> = shown.split_whitespace().collect();
            ways.iter().any(|(_, name)| !there.contains(name.as_str()))
        })
    }

    /// Makes the ways that are missing.
    fn route_again(&self, plan: &RelayPlan) -> Result<()> {
        if !self.is_routed.get() {
            return Ok(());
        }
        let places: Vec<_> = plan.holding_rules().flat_map(|rule| places(rule, plan.holders())).collect();
        for family in families() {
            // Those that are there are refused.
            ip_try(family, &(self.delivery() + &self.ways_to(&places)))?;
            if !self.is_led(family)? {
                ip_all(family, &self.delivery())?;
            }
        }
        Ok(())
    }

    /// Whether packets of the relay's connections find their way in a family.
    fn is_led(&self, family: &str) -> Result<bool> {
        let numbers = &self.record.numbers;
        let is_way = |line: &str| marks::made(line, numbers) == Some((numbers.mark, numbers.table));
        Ok(marks::routing_rules(family)?.lines().any(is_way))
    }

    /// Changes something: what is told of that is nobody else's doing.
    fn change<T>(&self, what: Own, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let numbers = &self.record.numbers;
        self.watch.look(&self.table_name, numbers);
        let outcome = work();
        self.watch.changed(what, &self.table_name, numbers);
        outcome
    }

    /// The mark of the relay's own packets.
    pub fn own_mark(&self) -> u32 {
        self.record.numbers.own_mark
    }

    /// Mark of packets that are taken, until firewalls have looked at them.
    pub fn taken_mark(&self) -> u32 {
        self.record.numbers.taken_mark()
    }

    /// Begins to take packets, for listeners on these ports: those of each rule, or one pair for everything.
    pub fn start(&self, plan: &RelayPlan, ports: &[ListenPorts]) -> Result<()> {
        for (key, set) in FORWARDING.into_iter().zip(self.record.forwarding) {
            if set {
                sysctl::write(key, "1")?;
            }
        }
        if !self.tells_watched.get() {
            self.route()?;
        }
        if self.stood { self.renew(plan, ports) } else { self.exchange(plan, ports, Taking::Yes) }
    }

    /// Lets these new connections pass for a while: all or none.
    pub fn pass(&self, ways: &[OneWay]) -> Result<()> {
        if self.is_quiet() {
            return Ok(());
        }
        nft(&rules::pass(&self.table_name, ways))?;
        Ok(())
    }

    /// Other rules instead of those that stand, in one transaction.
    pub fn exchange(&self, plan: &RelayPlan, ports: &[ListenPorts], taking: Taking) -> Result<()> {
        let chains = self.chains(plan, ports, taking);
        self.change(Own::Table, || Ok(nft(&format!("{}{chains}", rules::delete_rules(&self.table_name)))?))?;
        let refuses = self.record.keep;
        self.refusals.replace(refuses.then(|| refusals(plan, &self.record.numbers)));
        Ok(())
    }

    /// Lets what these clients open pass, and no others': they have their share.
    pub fn exclude(&self, clients: &BTreeSet<IpAddr>) -> Result<()> {
        if self.is_quiet() {
            return Ok(());
        }
        nft(&rules::exclude(&self.table_name, clients))?;
        Ok(())
    }

    fn chains(&self, plan: &RelayPlan, ports: &[ListenPorts], taking: Taking) -> String {
        if self.is_quiet() {
            return String::new();
        }
        let (numbers, group) = (&self.record.numbers, self.log_group.get());
        let means = Means { untracked: self.untracked, tells_watched: self.tells_watched.get() };
        rules::chains(&self.table_name, plan, numbers, ports, taking, means, group)
    }

    /// Mark of packets of connections that are only watched, where rules know it.
    pub fn pass_mark(&self) -> Option<u32> {
        self.tells_watched.get().then(|| passing_mark(self.record.numbers.own_mark))
    }

    /// Whether packets with the relay's marks find their ways.
    pub fn is_routed(&self) -> bool {
        self.is_routed.get()
    }

    /// Connections are only watched, and there was no need for anything else yet: all packets pass.
    fn is_quiet(&self) -> bool {
        self.tells_watched.get() && !self.is_routed.get()
    }

    /// Makes what leads packets to sockets, before the first connection is stepped into.
    pub fn wake(&self, plan: &RelayPlan, ports: &[ListenPorts]) -> Result<()> {
        self.route()?;
        self.exchange(plan, ports, Taking::Yes)
    }

    /// Whatever the plan needs from now on before its rules stand.
    pub fn follow(&self, plan: &RelayPlan) -> Result<()> {
        match self.tells_watched.get() && !plan.only_watches() {
            true => self.expect_sockets(),
            false => Ok(()),
        }
    }

    /// Packets of connections that nobody has watched are to find sockets, too.
    pub fn expect_sockets(&self) -> Result<()> {
        self.tells_watched.set(false);
        self.route()
    }

    /// Makes the ways of packets with the relay's marks, if they are not there.
    fn route(&self) -> Result<()> {
        if self.is_routed.get() {
            return Ok(());
        }
        let routed = for_families(&(self.delivery() + &self.ways_to(&self.unrouted.borrow())));
        routed.inspect_err(|_| {
            // The next attempt begins anew.
            let _ = self.change(Own::Ways, || undo_routes(&self.record));
        })?;
        self.unrouted.borrow_mut().clear();
        self.is_routed.set(true);
        Ok(())
    }

    /// What leads marked packets to their sockets.
    fn delivery(&self) -> String {
        let Marks { mark, table, .. } = &self.record.numbers;
        format!(
            "rule add priority {RULE_PRIORITY} fwmark {mark:#x} lookup {table}\n\
             route add {DELIVERY} table {table}\n"
        )
    }

    /// Makes the interfaces that SYNs held for a rule come to, one per worker that holds some, and the ways there. When
    /// the process dies, interfaces and routes go with it, and SYNs are forwarded, or dropped when the relay fails
    /// closed.
    pub fn hold(&self, rule: usize, holders: usize) -> Result<Vec<Tun>> {
        let places = places(rule, holders);
        let make = |place: &HoldSlot| Tun::create(&self.record.numbers.hold_interface(*place));
        let tuns = places.iter().map(make).collect::<Result<_>>()?;
        self.route_held(&places).inspect_err(|_| self.unhold(rule, holders))?;
        Ok(tuns)
    }

    /// Finds interfaces of a rule that a relay before has made.
    pub fn find_held(&self, rule: usize, holders: usize) {
        let mut unrouted = self.unrouted.borrow_mut();
        if !self.is_routed.get() && unrouted.iter().all(|place| place.rule != rule) {
            unrouted.extend(places(rule, holders));
        }
    }

    fn route_held(&self, places: &[HoldSlot]) -> Result<()> {
        ip_all("-4", &held_links(&self.record.numbers, places))?;
        if self.is_routed.get() {
            return for_families(&self.ways_to(places));
        }
        self.unrouted.borrow_mut().extend_from_slice(places);
        Ok(())
    }

    fn ways_to(&self, places: &[HoldSlot]) -> String {
        held_ways(&self.record.numbers, places, self.record.keep)
    }

    /// Copies of handshakes are logged to this group from the next exchange of rules on.
    pub fn log_to(&self, group: u16) {
        self.log_group.set(group);
    }

    /// The kernel's numbers of such interfaces; none of those that somebody has deleted.
    pub fn hold_indexes(&self, rule: usize, holders: usize) -> Vec<u32> {
        let name = |place| self.record.numbers.hold_interface(place);
        let index = |place| nix::net::if_::if_nametoindex(name(place).as_str()).ok();
        places(rule, holders).into_iter().map_while(index).collect()
    }

    /// Lets packets of any length come to such interfaces: one that is too long for them would be answered with an
    /// error about the path, which is none.
    pub fn widen(&self, rule: usize, holders: usize) -> Result<()> {
        places(rule, holders).into_iter().try_for_each(|place| {
            let name = self.record.numbers.hold_interface(place);
            Ok(interface::set_capacity(&name, MOST_PACKET_BYTES, HELD_PACKETS)?)
        })
    }

    /// Takes the ways to such interfaces back: routes there go with the interfaces.
    pub fn unhold(&self, rule: usize, holders: usize) {
        self.unrouted.borrow_mut().retain(|place| place.rule != rule);
        let numbers = &self.record.numbers;
        let way = |place: &HoldSlot| (numbers.hold_mark(*place), numbers.hold_table(*place));
        let ways: Vec<_> = places(rule, holders).iter().map(way).collect();
        for family in FAMILIES {
            // What stays is found again at the end.
            let commands: String = ways.iter().map(|way| unroute(family, &self.record, *way)).collect();
            let _ = self.change(Own::Ways, || Ok(ip_try(family, &commands)?));
        }
    }

    /// Removes everything. A relay that fails closed leaves its table, in which nothing but the refusals stand.
    pub fn remove(mut self) -> Result<()> {
        self.removed = true;
        self.take_back()?.map_or(Ok(()), Err)
    }

    fn take_back(&self) -> Result<Left> {
        if self.is_shared.get() {
            return Ok(None);
        }
        match &*self.refusals.borrow() {
            Some(refusals) => undo_behind(&self.table_name, &self.record, refusals),
            None => undo(&self.table_name, &self.record),
        }
    }
}

/// Removes what dead relays left, but for refusals: others' stay, and those of the same name become this relay's if it
/// fails closed, too. Whether they did, and the table stands.
fn inherit(relay: &RelayPlan, table_name: &str, observer: &dyn Observer) -> Result<bool> {
    let swept = sweep(|dead, record| !record.keep && dead != table_name)?;
    swept.problems.iter().for_each(|problem| observer.warning(problem));
    let Some(found) = find(table_name) else { return Ok(false) };
    if is_living(table_name, &found) {
        return Err(Error::NameTaken { name: relay.name.clone(), owner: owner(&found) });
    }
    let is_taken_over = found.keep && relay.fail == Fail::Closed;
    let left = match is_taken_over {
        true => undo_behind(table_name, &found, &refusals(relay, &found.numbers))?,
        false => undo(table_name, &found)?,
    };
    left.iter().for_each(|error| observer.warning(&of_the_dead(table_name, error)));
    Ok(is_taken_over)
}

/// Chains that refuse what the relay would take, and take nothing.
fn refusals(relay: &RelayPlan, numbers: &Marks) -> String {
    let nobody = vec![ListenPorts::default(); relay.rules.len().max(1)];
    let means = Means { untracked: Untracked::Cannot, tells_watched: false };
    rules::chains(&rules::table_name(&relay.name), relay, numbers, &nobody, Taking::No, means, 0)
}

impl Drop for Interception {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = self.take_back().and_then(|left| left.map_or(Ok(()), Err))
        {
            eprintln!(
                "longfat: removing nft table '{}': {error}; the next relay tries again",
                self.table_name
            );
        }
    }
}

/// Runs these commands of `ip` for every IP family that this namespace has.
fn for_families(commands: &str) -> Result<()> {
    families().try_for_each(|family| Ok(ip_all(family, commands)?))
}

/// The IP families that this namespace has.
fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().take(1 + usize::from(has_ipv6()))
}

/// Whether this namespace has IPv6 (IPv4 it has).
pub(crate) fn has_ipv6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}
