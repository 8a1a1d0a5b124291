//! The command lines of a run's programs. Pure.

use crate::{
    backend::DRAIN_MS,
    plan::{
        CablePlan, FarPlan, FlowPlan, FollowPlan, Plan, RelayPlan,
        network::{IPV4_PREFIX, IPV6_PREFIX},
    },
};
use longfat_mobility::lan;
use longfat_relay::{
    QueueSpec,
    spec::{InterceptSpec, LegSpec, List, RelaySpec, WaySpec},
};
use longfat_schema::units::{Nanos, Rate, Size};
use longfat_transfer::TransferPlan;
use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

/// Interface of a link's namespace towards the link's first end.
pub const FIRST: &str = "first";
/// Interface of a link's namespace towards its second end.
pub const SECOND: &str = "second";

/// `longfat link drive` for one emulated link. Its schedule begins when it is told that the flows do.
pub fn link(cable: &CablePlan, link_plan: &Path, samples: &Path) -> Vec<String> {
    let mut line = words(&["link", "drive", "--a", FIRST, "--b", SECOND]);
    if changes(cable) {
        line.push("--schedule-on-usr1".into());
    }
    option(&mut line, "--plan", Some(link_plan.display()));
    option(&mut line, "--samples", Some(samples.display()));
    line
}

/// What one relay's file says. `forwarding`: its host forwards while it runs, whatever it does at other times.
pub fn relay_spec(relay: &RelayPlan, forwarding: bool) -> RelaySpec {
    let leg = |cc: &str, buffer_bytes: Option<u64>| LegSpec {
        cc: Some(cc.to_owned()),
        buffer: buffer_bytes.map(Size),
        ..LegSpec::default()
    };
    let interfaces = List(relay.intercept.clone());
    let pacing = relay.pacing_server_bps.map(Rate);
    RelaySpec {
        name: Some(relay.name.clone()),
        intercept: Some(InterceptSpec { interfaces, mark: None, table: None, forwarding }),
        defaults: WaySpec {
            client: leg(&relay.cc_client, relay.buffer_client_bytes),
            server: LegSpec { pacing, ..leg(&relay.cc_server, relay.buffer_server_bytes) },
            queue: Some(QueueSpec::of(relay.queue.as_ref())),
            ..WaySpec::default()
        },
        coalesce: relay.coalesce_us.map(|us| Nanos(us * 1000)),
        ..RelaySpec::default()
    }
}

/// `longfat relay` for one relay, whose [`relay_spec`] the file holds.
pub fn relay(plan: &Plan, config: &Path, samples: &Path) -> Vec<String> {
    let mut line = words(&["relay"]);
    option(&mut line, "--config", Some(config.display()));
    option(&mut line, "--sample-every", us(plan.sample_every_us));
    option(&mut line, "--samples", Some(samples.display()));
    line
}

/// Files and names of what follows a link.
pub struct FollowFiles<'a> {
    /// The shared key.
    pub key: &'a Path,
    /// What its processes are called on this machine.
    pub name: &'a str,
}

/// `longfat mobility announce` for one router. Its model begins when it is told that the flows do.
pub fn announce(follow: &FollowPlan, files: &FollowFiles<'_>, model: &Path, changes: bool) -> Vec<String> {
    let mut line = words(&["mobility", "announce", "--every", "200ms"]);
    option(&mut line, "--router", Some(&follow.name));
    option(&mut line, "--name", Some(files.name));
    option(&mut line, "--key", Some(files.key.display()));
    follow.interfaces.iter().for_each(|interface| option(&mut line, "--interface", Some(interface)));
    let told = |far: &FarPlan| SocketAddr::new(far.ipv4.into(), lan::PORT);
    follow.far.iter().for_each(|far| option(&mut line, "--to", Some(told(far))));
    option(&mut line, "--model", Some(model.display()));
    if follow.backward {
        line.push("--model-backward".into());
    }
    if changes {
        line.push("--schedule-on-usr1".into());
    }
    line
}

/// `longfat mobility follow` on one host; `far`: not behind the router.
pub fn follow(
    follow: &FollowPlan,
    files: &FollowFiles<'_>,
    state: &Path,
    audit: &Path,
    far: bool,
) -> Vec<String> {
    let mut line = words(&["mobility", "follow"]);
    option(&mut line, "--name", Some(files.name));
    option(&mut line, "--key", Some(files.key.display()));
    option(&mut line, "--state", Some(state.display()));
    option(&mut line, "--audit", Some(audit.display()));
    option(&mut line, "--policy", Some(follow.policy));
    option(&mut line, "--ceiling", bytes(follow.ceiling_bytes));
    option(&mut line, "--burst", follow.burst_percent);
    option(&mut line, "--rto-min", follow.rto_min_us.and_then(us));
    if far {
        // As its routes: to whole links. What else is in a real host's network does not follow.
        let is_real = follow.real.is_some();
        let network = |peer: &IpAddr| match peer {
            IpAddr::V4(_) if is_real => format!("{}={peer}/32", follow.name),
            IpAddr::V6(_) if is_real => format!("{}={peer}/128", follow.name),
            IpAddr::V4(_) => format!("{}={peer}/{IPV4_PREFIX}", follow.name),
            IpAddr::V6(_) => format!("{}={peer}/{IPV6_PREFIX}", follow.name),
        };
        follow.peers.iter().for_each(|peer| option(&mut line, "--peers", Some(network(peer))));
    }
    line
}

/// A link that has just become slow holds what was sent over the fast one for many seconds: silence that is meant.
const SILENCE_OF_CHANGES_S: u64 = 60;
/// What `longfat transfer` takes by itself.
const SILENCE_S: u64 = 10;
/// The longest it can be told.
const SILENCE_MOST_S: u64 = 3600;

/// Seconds of silence after which a program takes its peer for dead, where it is not what the program itself takes.
fn silence_s(plan: &Plan) -> Option<u64> {
    let changes = emulated(plan).any(changes);
    let own_s = if changes { SILENCE_OF_CHANGES_S } else { SILENCE_S };
    let most_s = SILENCE_MOST_S;
    let slowed_s = u64::from(plan.dilation.times()).saturating_mul(own_s).min(most_s);
    (changes || !plan.dilation.is_none()).then_some(slowed_s)
}

/// `longfat transfer serve` for one receiving host, which nobody but the run's senders is to reach. Their samples files
/// hold both ends' records.
pub fn serve(port: u16, plan: &Plan) -> Vec<String> {
    let mut line = words(&["transfer", "serve", "--trusted"]);
    option(&mut line, "--listen", Some(format!("[::]:{port}")));
    option(&mut line, "--timeout", silence_s(plan).map(|silence_s| format!("{silence_s}s")));
    line
}

/// What the ends of one flow agree on.
pub fn transfer(flow: &FlowPlan, plan: &Plan) -> TransferPlan {
    let usual = flow.transfer();
    TransferPlan {
        sample_every_us: plan.sample_every_us,
        drain_us: u64::from(DRAIN_MS) * u64::from(plan.dilation.times()) * 1000,
        timeout_us: silence_s(plan).map_or(usual.timeout_us, |silence_s| silence_s * 1_000_000),
        ..usual
    }
}

/// `longfat transfer send` for one flow, whose [`transfer`] the file holds. It begins when it is told.
pub fn send(flow: &FlowPlan, transfer: &Path, samples: &Path) -> Vec<String> {
    let mut line = words(&["transfer", "send", "--start-when-told"]);
    line.push(SocketAddr::new(flow.address, flow.port).to_string());
    option(&mut line, "--plan", Some(transfer.display()));
    option(&mut line, "--samples", Some(samples.display()));
    line
}

/// Whether a link changes over time.
pub fn changes(cable: &CablePlan) -> bool {
    let directions = cable.path.iter().flat_map(|path| [&path.forward, &path.backward]);
    directions.into_iter().any(longfat_link::plan::DirectionPlan::changes)
}

/// Links that need a driver.
pub fn emulated(plan: &Plan) -> impl Iterator<Item = &CablePlan> {
    plan.links.iter().filter(|cable| cable.path.is_some())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn option(line: &mut Vec<String>, name: &str, value: Option<impl ToString>) {
    if let Some(value) = value {
        line.extend([name.to_owned(), value.to_string()]);
    }
}

fn bytes(bytes: Option<u64>) -> Option<String> {
    bytes.map(|bytes| format!("{bytes}B"))
}

fn us(us: u64) -> Option<String> {
    Some(format!("{us}us"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dilation::slowed, plan::tests_support, spec::Protocol};
    use longfat_schema::own_time::Dilation;
    use longfat_transfer::Amount;

    #[test]
    fn a_relays_file_makes_the_relay_that_is_planned() {
        let mut plan = tests_support::plan();
        let relay = &mut plan.relays[0];
        (relay.buffer_client_bytes, relay.pacing_server_bps) = (Some(1 << 20), Some(30_000_001));
        let text = relay_spec(&plan.relays[0], true).text().unwrap();
        let made = RelaySpec::parse(&text).unwrap().resolve().unwrap();
        let intercept = made.intercept.as_ref().unwrap();
        assert_eq!((made.name.as_str(), &intercept.interfaces[..]), ("pep", &["lan".to_owned()][..]));
        assert!(intercept.set_forwarding);
        let usual = longfat_relay::LegPlan::server();
        let way = &made.defaults;
        assert_eq!((way.client.cc.as_deref(), way.client.buffer_bytes), (Some("reno"), 1 << 20));
        assert_eq!((way.server.cc.as_deref(), way.server.buffer_bytes), (Some("cubic"), usual.buffer_bytes));
        assert_eq!((way.client.pacing_bps, way.server.pacing_bps), (None, Some(30_000_001)));
        assert_eq!(way.queue, plan.relays[0].queue);
        let gathers = |times| {
            let slower = slowed(&Plan { dilation: Dilation::new(times).unwrap(), ..plan.clone() });
            let text = relay_spec(&slower.relays[0], true).text().unwrap();
            RelaySpec::parse(&text).unwrap().resolve().unwrap().coalesce.as_millis()
        };
        assert_eq!([1, 4, 1000].map(gathers), [2, 8, 100], "as much longer, up to the most there is");
    }

    #[test]
    fn a_flow_is_sent_as_its_plan_says_and_what_that_leaves_open_is_as_the_program_has_it() {
        let mut plan = tests_support::plan();
        let usual = TransferPlan::default();
        let made = transfer(&plan.flows[0], &plan);
        assert_eq!(made.check(), Ok(()));
        let (rate_bps, bytes) = (Some(80_000_000), Some(3_000_000));
        let drain_us = u64::from(DRAIN_MS) * 1000;
        let expected = TransferPlan {
            flow: "measured".into(),
            streams: 2,
            cc_sender: Some("reno".into()),
            cc_receiver: Some("reno".into()),
            amount: Amount::DurationUs(3_000_000),
            drain_us,
            ..usual.clone()
        };
        assert_eq!(made, expected);
        let flow = &mut plan.flows[0];
        (flow.rate_bps, flow.size_bytes, flow.rcvbuf_bytes) = (rate_bps, bytes, Some(1 << 20));
        let made = transfer(&plan.flows[0], &plan);
        let block_bytes = 80_000_000 / 2 / 8 / 500;
        let amount = Amount::Bytes(3_000_000);
        assert_eq!(
            made,
            TransferPlan { rate_bps, amount, block_bytes, rcvbuf_bytes: Some(1 << 20), ..expected }
        );
        plan.flows[0].protocol = Protocol::Udp;
        let made = transfer(&plan.flows[0], &plan);
        assert_eq!(
            (made.protocol, made.datagram_bytes),
            (longfat_transfer::Protocol::Udp, usual.datagram_bytes)
        );
        assert_eq!(made.check(), Ok(()));
    }
}
