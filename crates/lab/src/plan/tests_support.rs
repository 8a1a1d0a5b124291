//! A small plan for the tests of this crate.

use super::{Plan, plans};
use crate::spec::Experiment;

/// An experiment with a relay, an emulated link of 100 Mbit/s and a flow of two streams.
pub const SMALL: &str = r#"
name = "small"
warmup = "1s"
duration = "2s"
focus = "measured"
[hosts.a]
[hosts.r]
forward = true
[hosts.b]
sysctls = { "net.ipv4.tcp_sack" = 0 }
[links.lan]
between = ["a", "r"]
[links.path]
between = ["r", "b"]
rate = "100Mbit"
delay = "5ms"
[flows.measured]
from = "a"
to = "b"
cc = "reno"
streams = 2
[relays.pep]
host = "r"
intercept = ["lan"]
cc_client = "reno"
cc_server = "cubic"
"#;

/// The plan's only run.
pub fn plan() -> Plan {
    plans(&Experiment::read(SMALL, &[]).unwrap()).unwrap().remove(0)
}
