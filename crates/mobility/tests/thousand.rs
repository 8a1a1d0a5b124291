//! A thousand nodes learn of a change of link by one datagram.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod nodes;

use std::time::Duration;

#[test]
fn a_thousand_nodes_on_twenty_hosts_are_told_by_one_datagram() {
    nodes::allow_many_sockets();
    let told = nodes::tell("mbk", 20, 50, Duration::from_secs(60));
    assert_eq!((told.datagrams, told.known_after_us.len(), told.other), (1, 1000, 0));
}
