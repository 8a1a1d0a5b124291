//! The relay on a bridge: contrib/nftables/longfat-bridge.nft lifts TCP to the IP layer, where it is taken.

use crate::bed::{
    self, Running, accept, control_of, exchange, nft, path::eventually, set_forwarding, talk, told,
};
use longfat_host::{Lease, Namespace, interface, run_command, sysctl};
use longfat_kernel::watch::Conditions;
use longfat_relay::{Accept, Acknowledge, InterceptPlan, RelayPlan};
use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

const LIFT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/nftables/longfat-bridge.nft");
/// Where a bridge of this kernel runs the rules of inet for packets it bridges, if it can.
const CALLS: [&str; 2] = ["net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"];

/// client (10.73.0.1) - lan, bridge `br0` (10.73.0.9), wan - server (10.73.0.2): one network.
struct Bridged {
    client: Namespace,
    host: Namespace,
    server: Namespace,
    _lease: Lease,
}

impl Bridged {
    fn new(tag: &str) -> Bridged {
        let lease =
            Lease::take(&format!("rb{}-{tag}", std::process::id())).expect("root and iproute2 are needed");
        let [client, host, server] = ["c", "b", "s"].map(|name| lease.namespace(name).unwrap());
        let end = |namespace, name| interface::End { namespace, name };
        interface::veth(end(&client, "eth0"), end(&host, "lan"), 1500).unwrap();
        interface::veth(end(&server, "eth0"), end(&host, "wan"), 1500).unwrap();
        host.ip(&["link", "add", "br0", "type", "bridge", "forward_delay", "0"]).unwrap();
        for port in ["lan", "wan"] {
            host.ip(&["link", "set", port, "master", "br0"]).unwrap();
        }
        host.ip(&["link", "set", "br0", "up"]).unwrap();
        for (namespace, device, last) in [(&client, "eth0", 1), (&server, "eth0", 2), (&host, "br0", 9)] {
            namespace.ip(&["addr", "add", &format!("10.73.0.{last}/24"), "dev", device]).unwrap();
            namespace
                .ip(&["-6", "addr", "add", &format!("fd73::{last}/64"), "dev", device, "nodad"])
                .unwrap();
        }
        let bridged = Bridged { client, host, server, _lease: lease };
        set_forwarding(&bridged.host, "1");
        // What is lifted and not taken goes out by the bridge it came from.
        for key in ["net.ipv4.conf.all.send_redirects", "net.ipv4.conf.br0.send_redirects"] {
            bridged.set(key, "0");
        }
        bridged
    }

    fn set(&self, key: &str, value: &str) {
        self.host.run(|| sysctl::write(key, value)).unwrap().unwrap();
    }

    /// Whether the bridge would run the rules of inet, too early.
    fn call_rules(&self, value: &str) -> bool {
        CALLS.into_iter().all(|key| self.host.run(|| sysctl::write(key, value)).unwrap().is_ok())
    }

    fn lift(&self) {
        let link = self.host.ip(&["-o", "link", "show", "dev", "br0"]).unwrap();
        let address = link.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
        let mut nft = self.host.command("nft");
        nft.args(["-D", "ports={ lan, wan }", "-D", &format!("own={address}"), "-f", LIFT]);
        run_command(nft).unwrap();
    }

    fn let_down(&self) {
        nft(&self.host, "delete table bridge longfat_bridge");
    }

    fn listen(&self, address: &str) -> TcpListener {
        self.server.run(|| TcpListener::bind(address)).unwrap().unwrap()
    }

    fn connect(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        self.client.run(|| TcpStream::connect_timeout(&address, bed::PATIENCE)).unwrap()
    }

    /// The server sees the client's own address and port.
    fn pair(&self, address: &str) -> (TcpStream, TcpStream) {
        let listener = self.listen(address);
        let client = self.connect(address.parse().unwrap()).unwrap();
        let far = accept(&listener);
        assert_eq!(far.peer_addr().unwrap(), client.local_addr().unwrap());
        (client, far)
    }

    /// A stream each way.
    fn exchange(&self, address: &str) {
        let (client, far) = self.pair(address);
        exchange(&client, &far, 3 << 20);
    }
}

const SERVERS: [&str; 2] = ["10.73.0.2:9000", "[fd73::2]:9000"];

/// Every way in which a relay steps into connections whose handshakes pass.
fn stepping_in() -> [RelayPlan; 3] {
    let at_once = plan(Accept::EndToEnd);
    let [mut acknowledging, mut later] = [at_once.clone(), at_once.clone()];
    acknowledging.defaults_mut().acknowledge = Acknowledge::EndToEnd;
    later.defaults_mut().adopt = Conditions { bytes: Some(100_000), ..Conditions::default() };
    [at_once, acknowledging, later]
}

fn plan(accept: Accept) -> RelayPlan {
    let intercept = InterceptPlan { interfaces: vec!["br0".into()], ..InterceptPlan::default() };
    let mut plan = RelayPlan { drain: Duration::from_secs(1), ..RelayPlan::transparent("test", intercept) };
    plan.defaults_mut().accept = accept;
    plan
}

#[test]
fn on_a_bridge_lifted_connections_are_relayed_and_others_flow_on() {
    let bridged = Bridged::new("lift");
    bridged.call_rules("0");
    SERVERS.iter().for_each(|server| bridged.exchange(server));
    bridged.lift();
    for accept in [Accept::Early, Accept::AfterServer] {
        let relay = Running::start(&bridged.host, plan(accept));
        SERVERS.iter().for_each(|server| bridged.exchange(server));
        if accept == Accept::AfterServer {
            let error = bridged.connect("10.73.0.2:9999".parse().unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
        assert_eq!(relay.stop().finished, 2);
        // The relay is gone: they are routed.
        SERVERS.iter().for_each(|server| bridged.exchange(server));
    }
    for plan in stepping_in() {
        let plan = RelayPlan { control: Some(control_of("bridge")), ..plan };
        let relay = Running::start(&bridged.host, plan);
        for (server, so_many) in SERVERS.into_iter().zip(1..) {
            let (client, far) = bridged.pair(server);
            eventually("the relay has stepped in", || {
                talk(&client, &far, 50_000, (1 << 16, Duration::ZERO));
                told("bridge").inserted == so_many
            });
            exchange(&client, &far, 3 << 20);
        }
        assert_eq!(relay.stop().finished, 2);
    }
    bridged.let_down();
    SERVERS.iter().for_each(|server| bridged.exchange(server));
}

#[test]
fn a_bridge_that_runs_the_rules_too_early_is_refused_with_the_setting_that_mends_it() {
    let bridged = Bridged::new("calls");
    // Where the kernel cannot do it (no br_netfilter), there is nothing to refuse, and the relay starts.
    let can_call = bridged.call_rules("1");
    let plan = plan(Accept::Early);
    let missing = bridged.host.run(|| longfat_relay::missing(&plan)).unwrap();
    let mends: Vec<_> = missing.iter().map(|missing| missing.mend.as_str()).collect();
    let wanted = CALLS.map(|key| format!("run 'sysctl -w {key}=0'"));
    assert_eq!(mends, if can_call { wanted.iter().map(String::as_str).collect() } else { Vec::new() });
    // Of other interfaces nothing is asked.
    let mut others = plan.clone();
    others.intercept.as_mut().unwrap().interfaces = vec!["lo".into()];
    assert_eq!(bridged.host.run(|| longfat_relay::missing(&others)).unwrap(), []);
}
