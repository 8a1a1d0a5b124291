//! The processes of a run: what each is there for, on which host, and which part of the plan it carries out. Pure.

use crate::{
    plan::{CablePlan, FlowPlan, FollowPlan, Plan, RelayPlan},
    programs,
    spec::Protocol,
};
use std::{collections::BTreeSet, fmt};

/// Role of one process of a run, with the name of what it is for: no two processes of a run have the same. Texts and
/// file names follow from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Driver of a link.
    Link(String),
    /// A relay.
    Relay(String),
    /// Announces the link of a follow.
    Announcer(String),
    /// Follows an announced link: follow and host.
    Follower(String),
    /// Receiver of every flow to a host.
    Receiver(String),
    /// Sender of a flow.
    Sender(String),
}

impl Role {
    /// What it is in file names, what it is for people, and the name.
    fn words(&self) -> [&str; 3] {
        match self {
            Role::Link(name) => ["link", "link", name],
            Role::Relay(name) => ["relay", "relay", name],
            Role::Announcer(name) => ["announce", "announcer of", name],
            Role::Follower(name) => ["follow", "follower", name],
            Role::Receiver(name) => ["receiver", "receiver on", name],
            Role::Sender(name) => ["sender", "sender of flow", name],
        }
    }

    /// How the name of a file ends in which a follower says what it did.
    pub const AUDIT: &str = ".audit.jsonl";
    /// How the name of a file ends in which a follower keeps what it has to put back.
    pub const STATE: &str = ".state.json";

    /// Stem of its files: `link-path`.
    pub fn file(&self) -> String {
        let [stem, _, name] = self.words();
        format!("{stem}-{name}")
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, words, name] = self.words();
        write!(f, "{words} '{name}'")
    }
}

/// One process of a run, with the part of the plan that it carries out.
#[derive(Debug, Clone, Copy)]
pub enum Process<'a> {
    /// Driver of an emulated link.
    Link(&'a CablePlan),
    /// A relay.
    Relay(&'a RelayPlan),
    /// Announces a link.
    Announcer(&'a FollowPlan),
    /// Follows an announced link.
    Follower {
        /// What is followed.
        follow: &'a FollowPlan,
        /// Host whose connections follow.
        host: &'a str,
        /// The host is not behind the router.
        far: bool,
    },
    /// Receiver of every flow to a host.
    Receiver {
        /// Receiving host.
        host: &'a str,
        /// Port of all these flows.
        port: u16,
    },
    /// Sender of a flow.
    Sender(&'a FlowPlan),
}

impl<'a> Process<'a> {
    /// What it is there for.
    pub fn role(self) -> Role {
        match self {
            Process::Link(cable) => Role::Link(cable.name.clone()),
            Process::Relay(relay) => Role::Relay(relay.name.clone()),
            Process::Announcer(follow) => Role::Announcer(follow.name.clone()),
            Process::Follower { follow, host, .. } => Role::Follower(format!("{}-{host}", follow.name)),
            Process::Receiver { host, .. } => Role::Receiver(host.to_owned()),
            Process::Sender(flow) => Role::Sender(flow.name.clone()),
        }
    }

    /// Host on which it runs; `None` for a link, which is between hosts.
    pub fn host(self) -> Option<&'a str> {
        match self {
            Process::Link(_) => None,
            Process::Relay(relay) => Some(&relay.host),
            Process::Announcer(follow) => Some(&follow.router),
            Process::Follower { host, .. } | Process::Receiver { host, .. } => Some(host),
            Process::Sender(flow) => Some(&flow.from),
        }
    }

    /// Whether it stands for a host that answers when something comes, and not whenever this machine has time: it goes
    /// before what is no part of the run. Senders of datagrams spin, and would keep the others from a processor.
    pub fn goes_first(self) -> bool {
        match self {
            Process::Relay(_) | Process::Receiver { .. } => true,
            Process::Sender(flow) => flow.protocol == Protocol::Tcp,
            Process::Link(_) | Process::Announcer(_) | Process::Follower { .. } => false,
        }
    }

    /// Whether it waits to be told that the flows begin: its link changes over time.
    pub fn has_schedule(self, plan: &Plan) -> bool {
        let changes =
            |link: &str| programs::emulated(plan).any(|cable| cable.name == link && programs::changes(cable));
        match self {
            Process::Link(cable) => programs::changes(cable),
            Process::Announcer(follow) => changes(&follow.link),
            _ => false,
        }
    }
}

/// Processes that serve the flows from their beginning on, in an order in which each is ready before the next could
/// need it: links, relays, followers (which hear the first announcement), routers, receivers.
pub fn serving(plan: &Plan) -> Vec<Process<'_>> {
    let mut found: Vec<_> = programs::emulated(plan).map(Process::Link).collect();
    found.extend(plan.relays.iter().map(Process::Relay));
    for follow in &plan.follows {
        found.extend(followers(follow).filter(|_| follow.start_us == 0));
        found.push(Process::Announcer(follow));
    }
    let receivers: BTreeSet<_> = plan.flows.iter().map(|flow| (flow.to.as_str(), flow.port)).collect();
    found.extend(receivers.into_iter().map(|(host, port)| Process::Receiver { host, port }));
    found
}

/// Processes that begin to serve while the flows run, each so many microseconds after their start.
pub fn late(plan: &Plan) -> impl Iterator<Item = (u64, Process<'_>)> {
    let late = plan.follows.iter().filter(|follow| follow.start_us > 0);
    late.flat_map(|follow| followers(follow).map(|follower| (follow.start_us, follower)))
}

/// Senders, in the order of the plan's flows.
pub fn sending(plan: &Plan) -> impl Iterator<Item = Process<'_>> {
    plan.flows.iter().map(Process::Sender)
}

fn followers(follow: &FollowPlan) -> impl Iterator<Item = Process<'_>> {
    let nodes = follow.nodes.iter().map(|host| (host.as_str(), false));
    let far = follow.far.iter().map(|far| (far.host.as_str(), true));
    nodes.chain(far).map(move |(host, far)| Process::Follower { follow, host, far })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{plans, tests_support::SMALL},
        spec::Experiment,
    };

    fn plan(more: &str) -> Plan {
        plans(&Experiment::read(&format!("{SMALL}{more}"), &[]).unwrap()).unwrap().remove(0)
    }

    fn shown<'a>(processes: impl IntoIterator<Item = Process<'a>>) -> Vec<String> {
        processes.into_iter().map(|process| format!("{} @ {:?}", process.role(), process.host())).collect()
    }

    #[test]
    fn each_process_is_ready_before_another_could_need_it() {
        let plan = plan("[follows.move]\nrouter = \"r\"\nlink = \"path\"\nnodes = [\"a\"]\nfar = [\"b\"]\n");
        let expected = [
            "link 'path' @ None",
            "relay 'pep' @ Some(\"r\")",
            "follower 'move-a' @ Some(\"a\")",
            "follower 'move-b' @ Some(\"b\")",
            "announcer of 'move' @ Some(\"r\")",
            "receiver on 'b' @ Some(\"b\")",
        ];
        assert_eq!(shown(serving(&plan)), expected);
        assert_eq!(shown(sending(&plan)), ["sender of flow 'measured' @ Some(\"a\")"]);
        assert_eq!(late(&plan).count(), 0);
        assert!(!serving(&plan).iter().any(|process| process.has_schedule(&plan)));
    }

    #[test]
    fn hosts_that_answer_go_first_and_drivers_followers_and_senders_of_datagrams_do_not() {
        let mut plan = plan("[follows.move]\nrouter = \"r\"\nlink = \"path\"\nnodes = [\"a\"]\n");
        let first = |plan: &Plan| {
            let all = serving(plan).into_iter().chain(sending(plan)).filter(|process| process.goes_first());
            all.map(|process| process.role().file()).collect::<Vec<_>>()
        };
        assert_eq!(first(&plan), ["relay-pep", "receiver-b", "sender-measured"]);
        plan.flows[0].protocol = Protocol::Udp;
        assert_eq!(first(&plan), ["relay-pep", "receiver-b"]);
    }

    #[test]
    fn hosts_that_follow_later_are_not_started_before_and_what_changes_is_told_when_flows_begin() {
        let mut plan =
            plan("[follows.move]\nrouter = \"r\"\nlink = \"path\"\nnodes = [\"a\"]\nstart = \"1s\"\n");
        let late: Vec<_> = late(&plan).map(|(at_us, process)| (at_us, process.role().to_string())).collect();
        assert_eq!(late, [(1_000_000, "follower 'move-a'".to_owned())]);
        assert!(!shown(serving(&plan)).iter().any(|process| process.starts_with("follower")));
        let path = plan.links.iter_mut().find_map(|cable| cable.path.as_mut()).unwrap();
        let (line, queue) = (path.forward.line.clone(), None);
        path.forward.schedule.push(longfat_link::plan::ChangePlan { at_ns: 1, line, queue });
        let told = serving(&plan).into_iter().filter(|process| process.has_schedule(&plan));
        let told: Vec<_> = told.map(|process| process.role().to_string()).collect();
        assert_eq!(told, ["link 'path'", "announcer of 'move'"]);
    }
}
