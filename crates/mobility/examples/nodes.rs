//! How long one announcement takes to reach many nodes: hosts (network namespaces on one switch), nodes on each,
//! rounds.
//!
//!     sudo target/release/examples/nodes 20 50 10
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

#[path = "../tests/nodes/mod.rs"]
mod nodes;

use std::time::Duration;

fn main() {
    let number = |at: usize, default: usize| {
        std::env::args().nth(at).map_or(default, |text| text.parse().expect("a number"))
    };
    let (hosts, each, rounds) = (number(1, 20), number(2, 50), number(3, 5));
    nodes::allow_many_sockets();
    for _ in 0..rounds {
        let mut told = nodes::tell("mbx", hosts, each, Duration::from_secs(60));
        told.known_after_us.sort_unstable();
        let known = &told.known_after_us;
        let at = |share: usize| known.get((known.len() * share / 100).min(known.len().saturating_sub(1)));
        println!(
            "{{\"nodes\": {}, \"told\": {}, \"datagrams\": {}, \"other\": {}, \"known_after_us\": {{\"p50\": {:?}, \"p99\": {:?}, \"last\": {:?}}}}}",
            hosts * each,
            known.len(),
            told.datagrams,
            told.other,
            at(50).copied().unwrap_or(0),
            at(99).copied().unwrap_or(0),
            known.last().copied().unwrap_or(0),
        );
    }
}
