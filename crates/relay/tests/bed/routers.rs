//! Two routers between a client and a server, which choose one of them by their routes; each has a relay.

use super::{Bed, Running, control_of, path::StopOnDrop, set_forwarding, settings};
use longfat_host::{Namespace, interface, key::Key};
use longfat_link::{LinkPlan, LinkSpec, driver};
use longfat_relay::{MovePlan, MoveStatus, RelayPlan, control};
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{atomic::AtomicBool, mpsc},
    time::Duration,
};

/// Last byte, or group, of each router's addresses.
const ROUTERS: [u8; 2] = [1, 9];
/// Where relays take moves.
const PORT: u16 = 5202;

/// A client, two routers and a server on two wires: `bed.relay` is the first router.
pub struct Routers {
    pub bed: Bed,
    pub second: Namespace,
    pub keys: tempfile::TempDir,
    pub key: Key,
    tag: String,
    /// Has both wires.
    switch: Namespace,
}

impl Routers {
    /// With wires that cost no time.
    pub fn new(tag: &str) -> Routers {
        let routers = Routers::without_server(tag);
        routers.wire((&routers.bed.server, "eth0"), "server");
        routers.plug("wan", "server");
        routers.address_server();
        routers
    }

    fn wire(&self, (namespace, name): (&Namespace, &str), port: &str) {
        let (own, switch) = (interface::End { namespace, name }, &self.switch);
        interface::veth(own, interface::End { namespace: switch, name: port }, 1500).unwrap();
    }

    /// The server is behind an emulated link while `work` runs.
    pub fn over_link<T>(tag: &str, toml: &str, work: impl FnOnce(&Routers) -> T) -> T {
        let routers = Routers::without_server(tag);
        let bed = &routers.bed;
        let path = bed._lease.namespace("p").unwrap();
        routers.wire((&path, "a"), "server");
        let end = |namespace, name| interface::End { namespace, name };
        interface::veth(end(&bed.server, "eth0"), end(&path, "b"), 1500).unwrap();
        routers.plug("wan", "server");
        routers.address_server();
        for (host, name) in [(&bed.relay, "wan"), (&routers.second, "wan"), (&bed.server, "eth0")] {
            driver::prepare_host_end(host, name).unwrap();
        }
        let plan: LinkPlan = LinkSpec::from_toml(toml).unwrap().resolve("path", 3).unwrap();
        let (stop, lines) = (AtomicBool::new(false), longfat_schema::lines::Lines::default());
        let (ready, is_ready) = mpsc::channel();
        std::thread::scope(|scope| {
            let (stop, plan, lines, path) = (&stop, &plan, &lines, &path);
            scope.spawn(move || {
                let start = driver::Start::Now;
                let options = driver::Options { plan, a: "a", b: "b", lines, stop, start };
                path.run(|| driver::run(&options, || ready.send(()).unwrap())).unwrap().unwrap();
            });
            let raised = StopOnDrop(stop);
            is_ready.recv_timeout(super::PATIENCE).expect("the link starts");
            let value = work(&routers);
            drop(raised);
            value
        })
    }

    fn without_server(tag: &str) -> Routers {
        let bed = Bed::new(tag);
        let [second, switch] = ["r2", "w"].map(|name| bed._lease.namespace(name).unwrap());
        second.run(settings).unwrap().unwrap();
        for name in ["lan", "wan"] {
            bed.relay.ip(&["link", "del", name]).unwrap();
            switch.ip(&["link", "add", &bridge(name), "type", "bridge"]).unwrap();
            switch.ip(&["link", "set", &bridge(name), "up"]).unwrap();
        }
        let keys = tempfile::tempdir().unwrap();
        let key = Key::create(&keys.path().join("key")).unwrap();
        let routers = Routers { bed, second, keys, key, tag: tag.to_owned(), switch };
        for (router, number) in [&routers.bed.relay, &routers.second].into_iter().zip(ROUTERS) {
            for (wire, net) in [("lan", 1), ("wan", 2)] {
                let port = format!("{wire}{number}");
                routers.wire((router, wire), &port);
                routers.plug(wire, &port);
                address(router, wire, net, number);
            }
            set_forwarding(router, "1");
        }
        routers.wire((&routers.bed.client, "eth0"), "client");
        routers.plug("lan", "client");
        address(&routers.bed.client, "eth0", 1, 2);
        routers.lead_by(0, &[(&routers.bed.client, 1)]);
        routers
    }

    fn plug(&self, wire: &str, port: &str) {
        self.switch.ip(&["link", "set", port, "master", &bridge(wire), "up"]).unwrap();
    }

    fn address_server(&self) {
        address(&self.bed.server, "eth0", 2, 2);
        self.lead_by(0, &[(&self.bed.server, 2)]);
    }

    /// Both ends send by that router from now on.
    pub fn lead(&self, router: usize) {
        self.lead_by(router, &[(&self.bed.client, 1), (&self.bed.server, 2)]);
    }

    fn lead_by(&self, router: usize, ends: &[(&Namespace, u8)]) {
        let number = ROUTERS[router];
        for (host, net) in ends {
            host.ip(&["route", "replace", "default", "via", &format!("10.71.{net}.{number}")]).unwrap();
            host.ip(&["-6", "route", "replace", "default", "via", &format!("fd71:{net}::{number}")]).unwrap();
        }
    }

    pub fn router(&self, router: usize) -> &Namespace {
        [&self.bed.relay, &self.second][router]
    }

    /// Where a router's relay takes moves.
    pub fn address(&self, router: usize) -> SocketAddr {
        SocketAddr::new(format!("10.71.2.{}", ROUTERS[router]).parse().unwrap(), PORT)
    }

    /// By which name a router's relay can be asked.
    pub fn tag(&self, router: usize) -> String {
        format!("{}{router}", self.tag)
    }

    /// Where a relay is asked.
    pub fn socket(&self, router: usize) -> PathBuf {
        control_of(&self.tag(router)).socket
    }

    /// What a router's relay is told besides.
    pub fn plan(&self, router: usize, plan: &RelayPlan) -> RelayPlan {
        let hold = plan.moves.as_ref().and_then(|moves| moves.hold);
        let moves = MovePlan { listen: self.address(router), key: self.keys.path().join("key"), hold };
        RelayPlan { control: Some(control_of(&self.tag(router))), moves: Some(moves), ..plan.clone() }
    }

    /// Starts both relays.
    pub fn start(&self, plan: &RelayPlan) -> [Running; 2] {
        [0, 1].map(|router| Running::start(self.router(router), self.plan(router, plan)))
    }

    /// Moves what a router's relay has to the other one; what came of it.
    pub fn move_from(&self, router: usize, within: Duration) -> MoveStatus {
        self.begin_move(router, self.address(1 - router), &self.key, within);
        self.wait_for_move(router)
    }

    pub fn begin_move(&self, router: usize, to: SocketAddr, key: &Key, within: Duration) {
        control::begin_move(&self.socket(router), to, key, within).unwrap();
    }

    pub fn wait_for_move(&self, router: usize) -> MoveStatus {
        loop {
            let status = control::move_status(&self.socket(router)).unwrap();
            if !status.is_running {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn bridge(wire: &str) -> String {
    format!("br{wire}")
}

fn address(host: &Namespace, interface: &str, net: u8, number: u8) {
    host.ip(&["addr", "add", &format!("10.71.{net}.{number}/24"), "dev", interface]).unwrap();
    let six = format!("fd71:{net}::{number}/64");
    host.ip(&["-6", "addr", "add", &six, "dev", interface, "nodad"]).unwrap();
}
