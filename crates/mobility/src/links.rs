//! Links a router knows: a table that a person writes, or the model of an emulated one. Pure.

use crate::{Error, Result, announcement::Character, name::Name};
use longfat_host::netlink::Hop;
use longfat_link::{
    LinkPlan,
    plan::{DirectionPlan, DisciplinePlan, LinePlan, LossPlan},
};
use longfat_schema::units::{Nanos, Rate, Size};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::IpAddr};

/// What a link without a rate is announced with: more than any host sends.
const UNLIMITED_BPS: u64 = 1_000_000_000_000;

/// One link of the table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LinkEntry {
    /// The link is in use while the route out leaves by this interface.
    pub interface: Option<String>,
    /// Router to which that route goes; any when absent.
    pub gateway: Option<IpAddr>,
    /// Rate of both directions.
    pub rate: Option<Rate>,
    /// Rate outwards, where it differs.
    pub up: Option<Rate>,
    /// Rate inwards, where it differs.
    pub down: Option<Rate>,
    /// One-way delay; default none.
    pub delay: Option<Nanos>,
    /// Share of packets lost; default none.
    pub loss: Option<f64>,
    /// Bytes that may wait before it, either way; default not known.
    pub queue: Option<Size>,
}

impl LinkEntry {
    /// What the link can do; `name` for the message.
    ///
    /// # Errors
    /// When a rate is missing or a value cannot be.
    pub fn character(&self, name: &Name) -> Result<Character> {
        let wrong = |why: &str| Error::Links(format!("link '{name}': {why}"));
        let rate = |own: Option<Rate>| own.or(self.rate).map(|rate| rate.0).filter(|bps| *bps > 0);
        let needed = || wrong("give its rate (or both up and down), greater than zero");
        let loss = self.loss.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&loss) {
            return Err(wrong("loss is a share of packets, from 0 to 1"));
        }
        let delay_us = self.delay.unwrap_or_default().as_us();
        let queue_bytes = u32::try_from(self.queue.unwrap_or_default().0);
        let queue_bytes = queue_bytes.map_err(|_| wrong("its queue is more than 4 GiB"))?;
        Ok(Character {
            up_bps: rate(self.up).ok_or_else(needed)?,
            down_bps: rate(self.down).ok_or_else(needed)?,
            delay_us: u32::try_from(delay_us).map_err(|_| wrong("its delay is more than an hour"))?,
            loss_ppm: (loss * 1e6).round() as u32,
            up_queue_bytes: queue_bytes,
            down_queue_bytes: queue_bytes,
        })
    }

    fn takes(&self, hop: &Hop, interface: &str) -> bool {
        self.interface.as_deref() == Some(interface)
            && self.gateway.is_none_or(|gateway| hop.gateway == Some(gateway))
    }
}

/// The links of a router, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LinkTable {
    links: BTreeMap<Name, (LinkEntry, Character)>,
}

impl LinkTable {
    /// JSON Schema of a table.
    #[cfg(feature = "json-schema")]
    pub fn schema() -> serde_json::Value {
        longfat_schema::json_schema::<BTreeMap<String, LinkEntry>>()
    }

    /// Reads a table: `[wifi]`, then `interface = "wlan0"`, `rate = "54Mbit"`, `delay = "3ms"`, `loss = 0.01`.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn from_toml(text: &str) -> Result<LinkTable> {
        let entries: BTreeMap<Name, LinkEntry> =
            toml::from_str(text).map_err(|error| Error::Links(error.to_string()))?;
        let mut links = BTreeMap::new();
        for (name, entry) in entries {
            let character = entry.character(&name)?;
            links.insert(name, (entry, character));
        }
        Ok(LinkTable { links })
    }

    /// What of a table cannot work, for a person: links that no route can tell, or not from one another.
    pub fn flaws(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut told: BTreeMap<(&str, Option<IpAddr>), &Name> = BTreeMap::new();
        for (name, (entry, _)) in &self.links {
            let Some(interface) = entry.interface.as_deref() else {
                let lone = entry.gateway.map(|gateway| {
                    format!("link '{name}' has the gateway {gateway} and no interface: no route tells it; name its interface")
                });
                found.extend(lone);
                continue;
            };
            // Of two that a route fits alike the last by name is taken.
            if let Some(other) = told.insert((interface, entry.gateway), name) {
                let at = entry.gateway.map_or_else(
                    || "without a gateway; give each its own".to_owned(),
                    |gateway| format!("and gateway {gateway}; a route tells one link"),
                );
                found.push(format!(
                    "links '{other}' and '{name}' are both of interface '{interface}' {at}: no route tells '{other}'"
                ));
            }
        }
        found
    }

    /// Interfaces that tell links.
    pub fn interfaces(&self) -> impl Iterator<Item = (&Name, &str)> {
        self.links.iter().filter_map(|(name, (entry, _))| Some((name, entry.interface.as_deref()?)))
    }

    /// Whether any link is told by the interface in use.
    pub fn watches_routes(&self) -> bool {
        self.links.values().any(|(entry, _)| entry.interface.is_some())
    }

    /// The link that a hop goes over; one that names the gateway before one that does not.
    pub fn of(&self, hop: &Hop, interface: &str) -> Option<(&Name, Character)> {
        let taking = self.links.iter().filter(|(_, (entry, _))| entry.takes(hop, interface));
        taking
            .max_by_key(|(_, (entry, _))| entry.gateway.is_some())
            .map(|(name, (_, character))| (name, *character))
    }

    /// A link as it stands in the table, or as told, or the table's with what was told in place.
    ///
    /// # Errors
    /// When neither says enough.
    pub fn told(&self, name: &Name, told: &LinkEntry) -> Result<Character> {
        let known = self.links.get(name).map(|(entry, _)| entry.clone()).unwrap_or_default();
        let rate_told = told.rate.is_some();
        let entry = LinkEntry {
            rate: told.rate.or(known.rate),
            // A rate told replaces both directions'.
            up: told.up.or(known.up.filter(|_| !rate_told)),
            down: told.down.or(known.down.filter(|_| !rate_told)),
            delay: told.delay.or(known.delay),
            loss: told.loss.or(known.loss),
            queue: told.queue.or(known.queue),
            ..known
        };
        entry.character(name)
    }
}

/// What a model's link is at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelChange {
    /// Since the model's start.
    pub at_us: u64,
    /// Named by what it can do, so that a link that comes back is the same link.
    pub link: Name,
    /// What it can do.
    pub character: Character,
}

/// The changes of an emulated link, in the order of their times. `up_is_backward`: the nodes are at the link's second
/// end. While nothing passes (a rate of zero) nothing is announced: what held before is what nodes go on with.
///
/// # Errors
/// The link follows a trace: it has no schedule to announce.
pub fn model(plan: &LinkPlan, up_is_backward: bool) -> Result<Vec<ModelChange>> {
    let follows_trace = |way: &DirectionPlan| way.repeats_ns.is_some() || way.opportunities.is_some();
    if [&plan.forward, &plan.backward].into_iter().any(follows_trace) {
        let why = "follows a trace, which has no schedule to announce; give it a schedule instead";
        return Err(Error::Links(format!("the model '{}' {why}", plan.name)));
    }
    let (up, down) = match up_is_backward {
        false => (&plan.forward, &plan.backward),
        true => (&plan.backward, &plan.forward),
    };
    let mut times_ns: Vec<u64> = std::iter::once(0)
        .chain(up.schedule.iter().chain(&down.schedule).map(|change| change.at_ns))
        .collect();
    times_ns.sort_unstable();
    times_ns.dedup();
    let mut changes: Vec<ModelChange> = Vec::new();
    for at_ns in times_ns {
        let [up_queue_bytes, down_queue_bytes] = [up, down].map(|way| queue_bytes_at(way, at_ns));
        let (up, down) = (line_at(up, at_ns), line_at(down, at_ns));
        let character = Character {
            up_bps: up.rate_bps.unwrap_or(UNLIMITED_BPS),
            down_bps: down.rate_bps.unwrap_or(UNLIMITED_BPS),
            delay_us: u32::try_from((up.delay_ns + down.delay_ns) / 2000).unwrap_or(u32::MAX),
            loss_ppm: (mean_loss(&up.loss) * 1e6).round() as u32,
            up_queue_bytes,
            down_queue_bytes,
        };
        let passes = character.up_bps > 0 && character.down_bps > 0;
        if passes && changes.last().is_none_or(|last| last.character != character) {
            changes.push(ModelChange { at_us: at_ns / 1000, link: name_of(&character), character });
        }
    }
    Ok(changes)
}

fn line_at(direction: &DirectionPlan, at_ns: u64) -> &LinePlan {
    let past = direction.schedule.iter().rfind(|change| change.at_ns <= at_ns);
    past.map_or(&direction.line, |change| &change.line)
}

/// What may wait in a queue that is filled before it drops; of one that is managed (RED, CoDel) nothing is known.
fn queue_bytes_at(direction: &DirectionPlan, at_ns: u64) -> u32 {
    let past = direction.schedule.iter().filter(|change| change.at_ns <= at_ns);
    let queue = past.filter_map(|change| change.queue.as_ref()).next_back().unwrap_or(&direction.queue);
    match queue.discipline {
        DisciplinePlan::Droptail { .. } => u32::try_from(queue.limit_bytes).unwrap_or(u32::MAX),
        DisciplinePlan::Red { .. } | DisciplinePlan::Codel(_) => 0,
    }
}

fn mean_loss(loss: &LossPlan) -> f64 {
    match loss {
        LossPlan::Bernoulli { probability } => *probability,
        LossPlan::GilbertElliott { to_bad, to_good, loss_bad, loss_good } => {
            // The share of time in the bad state of a two-state Markov chain.
            let bad = if to_bad + to_good > 0.0 { to_bad / (to_bad + to_good) } else { 0.0 };
            bad * loss_bad + (1.0 - bad) * loss_good
        }
    }
}

#[expect(clippy::expect_used, reason = "digits, letters, '.' and '-', and 32 bytes at most by the cut")]
fn name_of(character: &Character) -> Name {
    let text = format!("{}-{}", Rate(character.up_bps), Nanos(u64::from(character.delay_us) * 1000));
    text[..text.len().min(crate::name::NAME_MAX_BYTES)].parse().expect("a name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_link::LinkSpec;

    const TABLE: &str = r#"
        [wifi]
        interface = "wlan0"
        rate = "54Mbit"
        delay = "3ms"
        [office]
        interface = "wlan0"
        gateway = "10.9.0.1"
        up = "100Mbit"
        down = "200Mbit"
        [phs]
        interface = "ppp0"
        rate = "64kbit"
        delay = "125ms"
        loss = 0.01
        queue = "60KB"
    "#;

    fn hop(gateway: &str) -> Hop {
        Hop { interface: 3, gateway: Some(gateway.parse().unwrap()) }
    }

    #[test]
    fn the_link_in_use_is_found_by_interface_and_router() {
        let table = LinkTable::from_toml(TABLE).unwrap();
        let of =
            |gateway, interface| table.of(&hop(gateway), interface).map(|(name, _)| name.as_str().to_owned());
        assert_eq!(of("10.1.0.1", "wlan0").as_deref(), Some("wifi"));
        assert_eq!(of("10.9.0.1", "wlan0").as_deref(), Some("office"));
        assert_eq!(of("10.1.0.1", "eth0"), None);
        let (_, phs) = table.of(&hop("10.1.0.1"), "ppp0").unwrap();
        assert_eq!((phs.up_bps, phs.down_bps, phs.delay_us), (64_000, 64_000, 125_000));
        assert_eq!((phs.loss_ppm, phs.up_queue_bytes, phs.down_queue_bytes), (10_000, 60_000, 60_000));
    }

    #[test]
    fn links_that_no_route_can_tell_or_tell_apart_are_flaws_of_a_table() {
        assert_eq!(LinkTable::from_toml(TABLE).unwrap().flaws(), Vec::<String>::new());
        let text = r#"
            [lte]
            interface = "wwan0"
            rate = "40Mbit"
            [lte2]
            interface = "wwan0"
            rate = "4Mbit"
            [phs]
            gateway = "10.9.0.1"
            rate = "64kbit"
            [wifi]
            interface = "wlan0"
            gateway = "10.8.0.1"
            rate = "11Mbit"
            [wifi2]
            interface = "wlan0"
            gateway = "10.8.0.2"
            rate = "11Mbit"
            [told]
            rate = "1Mbit"
        "#;
        let flaws = LinkTable::from_toml(text).unwrap().flaws();
        let wanted = [
            "links 'lte' and 'lte2' are both of interface 'wwan0' without a gateway; give each its own: no route tells \
             'lte'",
            "link 'phs' has the gateway 10.9.0.1 and no interface: no route tells it; name its interface",
        ];
        assert_eq!(flaws, wanted);
    }

    #[test]
    fn what_is_told_stands_before_the_table() {
        let table = LinkTable::from_toml(TABLE).unwrap();
        let told = |name: &str, entry: &LinkEntry| table.told(&name.parse().unwrap(), entry);
        let slower = LinkEntry { rate: Some(Rate(5_500_000)), ..LinkEntry::default() };
        let office = told("office", &slower).unwrap();
        assert_eq!((office.up_bps, office.down_bps), (5_500_000, 5_500_000));
        assert_eq!(told("wifi", &LinkEntry::default()).unwrap().delay_us, 3000);
        let unknown = told("satellite", &LinkEntry::default()).unwrap_err().to_string();
        assert!(unknown.contains("'satellite'") && unknown.contains("rate"), "{unknown}");
        assert!(
            LinkTable::from_toml("[a]\nrate = \"1Mbit\"\nloss = 3").unwrap_err().to_string().contains("loss")
        );
        assert!(LinkTable::from_toml("[a]\nrate = \"1Mbit\"\nspeed = 3").is_err());
        assert!(LinkTable::from_toml("[\"a b\"]\nrate = \"1Mbit\"").is_err());
    }

    #[test]
    fn a_models_changes_are_named_by_what_the_link_can_do() {
        let text = r#"
            rate = "11Mbit"
            delay = "10ms"
            queue = { limit = "60KB" }
            backward = { rate = "5Mbit", queue = { discipline = "codel", limit = "1MB" } }
            schedule = [
                { at = "2s", rate = "64kbit", delay = "125ms", loss = 0.01 },
                { at = "42s", rate = "11Mbit", delay = "10ms", loss = 0.0 },
            ]
        "#;
        let plan = LinkSpec::from_toml(text).unwrap().resolve("path", 1).unwrap();
        let changes = model(&plan, false).unwrap();
        let told: Vec<_> = changes.iter().map(|change| (change.at_us, change.link.as_str())).collect();
        assert_eq!(told, [(0, "11Mbit-10ms"), (2_000_000, "64kbit-125ms"), (42_000_000, "11Mbit-10ms")]);
        assert_eq!((changes[0].character.up_bps, changes[0].character.down_bps), (11_000_000, 5_000_000));
        assert_eq!(changes[1].character.loss_ppm, 10_000);
        let queues =
            |change: &ModelChange| (change.character.up_queue_bytes, change.character.down_queue_bytes);
        assert_eq!(
            changes.iter().map(queues).collect::<Vec<_>>(),
            [(60_000, 0); 3],
            "CoDel keeps its queue short"
        );
        assert_eq!(model(&plan, true).unwrap()[0].character.up_bps, 5_000_000);
    }

    #[test]
    fn while_nothing_passes_nothing_is_announced_and_a_trace_is_refused() {
        let text = r#"
            rate = "11Mbit"
            schedule = [{ at = "2s", rate = "0bit" }, { at = "3s", rate = "11Mbit" }, { at = "4s", rate = "2Mbit" }]
        "#;
        let mut plan = LinkSpec::from_toml(text).unwrap().resolve("path", 1).unwrap();
        let times: Vec<u64> = model(&plan, false).unwrap().iter().map(|change| change.at_us).collect();
        assert_eq!(times, [0, 4_000_000]);
        plan.backward.repeats_ns = Some(1_000_000_000);
        let refused = model(&plan, false).unwrap_err().to_string();
        assert!(refused.contains("'path' follows a trace"), "{refused}");
    }
}
