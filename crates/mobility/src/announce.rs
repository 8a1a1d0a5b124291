//! `longfat mobility announce`: the loop around [`Announcer`].

use crate::{
    Error, Key, Name, Result,
    announcement::{ADDRESSES_MAX, Character},
    announcer::{Announcer, Clocks},
    control,
    lan::{Interface, Mouth, interfaces},
    links::{LinkEntry, LinkTable, ModelChange},
    wait::{monotonic_us, unix_us, wait},
};
use longfat_host::netlink::{Hop, Netlink};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Longest sleep: how soon the end, and the start of a model, are noticed.
const LOOK_US: u64 = 50_000;
/// How often interfaces and addresses are looked at where nobody tells of their changes.
const ADDRESSES_EVERY_US: u64 = 1_000_000;

/// How a router announces.
#[derive(Debug, Clone)]
pub struct AnnouncePlan {
    /// What it is called.
    pub router: Name,
    /// What its datagrams are tagged with.
    pub key: Key,
    /// Interfaces towards the nodes.
    pub interfaces: Vec<String>,
    /// Nodes far away that are told too.
    pub to: Vec<SocketAddr>,
    /// UDP port.
    pub port: u16,
    /// Whether the IPv6 group of the site is told too.
    pub site: bool,
    /// Between two repeats long after a change.
    pub every_us: u64,
    /// Links by name.
    pub table: LinkTable,
    /// Addresses outside, whose routes tell which link is in use.
    pub towards: Vec<IpAddr>,
    /// Changes of a model, and what starts it; at once when nothing does.
    pub model: Vec<ModelChange>,
    /// Raised when the model starts.
    pub model_start: Option<Arc<AtomicBool>>,
    /// Where it is told and asked.
    pub control: PathBuf,
}

/// A link, told by a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// Name of the link.
    pub link: Name,
    /// What of it is not in the table.
    #[serde(flatten)]
    pub entry: LinkEntry,
}

struct Speaker<'a> {
    plan: &'a AnnouncePlan,
    announcer: Announcer,
    mouth: Mouth,
    interfaces: Vec<Interface>,
    looked_us: u64,
    netlink: Netlink,
    /// The way out and the link it goes over, as last looked up. What a command told since stands until they change.
    route: Option<(Hop, Name)>,
    model: VecDeque<ModelChange>,
    model_zero_us: Option<u64>,
    datagrams: u64,
    say: &'a mut dyn FnMut(&str),
}

/// Announces until `stop`. `say` is given what a log wants; `ready` is called when it can be told.
///
/// # Errors
/// When sockets cannot be had, or the kernel does not tell of its routes.
pub fn run(
    plan: &AnnouncePlan,
    stop: &AtomicBool,
    ready: impl FnOnce() -> Result<()>,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    let asked = control::open(&plan.control)?;
    let watch = Netlink::watch()?;
    let mut speaker = Speaker {
        plan,
        announcer: Announcer::new(plan.router.clone(), clocks(), plan.every_us, plan.to.len()),
        mouth: Mouth::open(plan.port, plan.site)?,
        interfaces: Vec::new(),
        looked_us: 0,
        netlink: Netlink::open()?,
        route: None,
        model: plan.model.iter().cloned().collect(),
        model_zero_us: None,
        datagrams: 0,
        say,
    };
    speaker.look_at_interfaces()?;
    speaker.follow_routes()?;
    speaker.tell_unknown();
    ready()?;
    while !stop.load(Ordering::Acquire) {
        speaker.follow_model();
        speaker.speak()?;
        wait(&[watch.as_fd(), asked.as_fd()], speaker.sleep());
        control::answer(&asked, |question| speaker.answer(question));
        if watch.drain() {
            speaker.look_at_interfaces()?;
            speaker.follow_routes()?;
        } else if monotonic_us().saturating_sub(speaker.looked_us) > ADDRESSES_EVERY_US {
            speaker.look_at_interfaces()?;
        }
    }
    Ok(())
}

fn clocks() -> Clocks {
    Clocks { now_us: monotonic_us(), unix_us: unix_us() }
}

impl Speaker<'_> {
    fn sleep(&self) -> Duration {
        let now_us = monotonic_us();
        let next = self.model.front().zip(self.model_zero_us).map(|(change, zero_us)| zero_us + change.at_us);
        let due_us = self.announcer.due_us().into_iter().chain(next).min().unwrap_or(u64::MAX);
        Duration::from_micros(due_us.saturating_sub(now_us).min(LOOK_US))
    }

    fn look_at_interfaces(&mut self) -> Result<()> {
        self.looked_us = monotonic_us();
        self.interfaces = interfaces(&self.plan.interfaces)?.into_values().collect();
        let mut addresses: Vec<IpAddr> =
            self.interfaces.iter().flat_map(|interface| interface.addresses.iter().copied()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.len() > ADDRESSES_MAX {
            // Link-local IPv6 and IPv4 are what nodes have routes to; of others there are often many.
            addresses.sort_by_key(|address| matches!(address, IpAddr::V6(v6) if !v6.is_unicast_link_local()));
            addresses.truncate(ADDRESSES_MAX);
        }
        self.announcer.set_addresses(addresses, self.looked_us);
        Ok(())
    }

    /// Announces the link that the route out uses now, where that is another way than at the last look: the kernel also
    /// tells of addresses and of routes that have nothing to do with it.
    fn follow_routes(&mut self) -> Result<()> {
        if !self.plan.table.watches_routes() {
            return Ok(());
        }
        let found = self.route_out()?;
        let route = found.as_ref().map(|(hop, link, _)| (hop.clone(), link.clone()));
        if self.route != route {
            self.route = route;
            found.into_iter().for_each(|(_, link, character)| self.set(&link, character));
        }
        Ok(())
    }

    /// Says why nothing is announced yet, where that is so.
    fn tell_unknown(&mut self) {
        if !self.plan.model.is_empty() || self.announcer.link().is_some() {
            return;
        }
        let why = if self.plan.table.watches_routes() {
            let towards: Vec<String> = self.plan.towards.iter().map(ToString::to_string).collect();
            format!(
                "no route to {} leads over a link of the table: nothing is announced until one does, or 'mobility tell' \
                 names the link; see 'ip route get', --towards and the interfaces of --links",
                towards.join(" or ")
            )
        } else {
            "nothing tells which link is in use, neither an interface in --links nor --model: nothing is announced until \
             'mobility tell' names it"
                .to_owned()
        };
        (self.say)(&format!("WARNING: {why}"));
    }

    /// The way to the first of the addresses outside that a link of the table leads to.
    fn route_out(&mut self) -> Result<Option<(Hop, Name, Character)>> {
        for destination in &self.plan.towards {
            let Some(hop) = self.netlink.hop_to(*destination)? else { continue };
            let name = nix::net::if_::if_indextoname(hop.interface).unwrap_or_default();
            let Some((link, character)) = self.plan.table.of(&hop, &name.to_string_lossy()) else { continue };
            return Ok(Some((hop, link.clone(), character)));
        }
        Ok(None)
    }

    fn follow_model(&mut self) {
        let started = self.plan.model_start.as_ref().is_none_or(|start| start.load(Ordering::Acquire));
        if started && !self.plan.model.is_empty() {
            self.model_zero_us.get_or_insert_with(monotonic_us);
        }
        // The beginning of a model holds before its start as well.
        let zero_us = self.model_zero_us;
        let due = |change: &ModelChange| match zero_us {
            Some(zero_us) => zero_us + change.at_us <= monotonic_us(),
            None => change.at_us == 0,
        };
        while let Some(change) = self.model.pop_front_if(|change| due(change)) {
            self.set(&change.link, change.character);
        }
    }

    fn set(&mut self, link: &Name, character: Character) {
        if self.announcer.set(link, character, clocks()) {
            (self.say)(&format!("the link is now '{link}': {character}"));
        }
    }

    fn speak(&mut self) -> Result<()> {
        let Some(due) = self.announcer.take_due(clocks()) else { return Ok(()) };
        let datagram = due
            .announcement
            .seal(&self.plan.key)
            .map_err(|reject| Error::Links(format!("this cannot be announced: {reject}")))?;
        let near: usize = self.interfaces.iter().map(|interface| self.mouth.say(interface, &datagram)).sum();
        let to = self.plan.to.iter().filter(|_| due.is_for_far);
        let far = to.filter(|to| self.mouth.say_to(**to, &datagram)).count();
        self.datagrams += (near + far) as u64;
        Ok(())
    }

    fn answer(&mut self, question: &str) -> serde_json::Value {
        if question == "status" {
            return self.status();
        }
        match self.tell(question) {
            Ok(()) => self.status(),
            Err(error) => serde_json::json!({ "error": error.to_string() }),
        }
    }

    fn tell(&mut self, question: &str) -> Result<()> {
        let told: Told = serde_json::from_str(question)
            .map_err(|error| Error::Links(format!("ask 'status' or tell a link: {error}")))?;
        let character = self.plan.table.told(&told.link, &told.entry)?;
        self.set(&told.link, character);
        // Before the answer, so that who tells knows it has been said.
        self.speak()
    }

    fn status(&self) -> serde_json::Value {
        let link = self.announcer.link();
        serde_json::json!({
            "version": crate::STATUS_VERSION,
            "role": "announce",
            "pid": std::process::id(),
            "router": self.plan.router,
            "link": link.map(|(name, _)| name),
            "character": link.map(|(_, character)| character),
            "sequence": self.announcer.sequence(),
            "interfaces": self.interfaces.len(),
            "datagrams": self.datagrams,
        })
    }
}
