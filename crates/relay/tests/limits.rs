//! What a relay may use up: time of idle connections, and memory.

use crate::bed::{ANYWHERE, Bed, Running, accept, at, carry, ends_with_reset, path::eventually};
use longfat_relay::{Ended, Fail, RelayPlan};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

#[test]
fn an_idle_connection_ends_and_one_that_is_used_now_and_then_does_not() {
    let bed = Bed::new("idle");
    let listener = bed.listen(ANYWHERE);
    let mut plan = Bed::explicit(at(ANYWHERE));
    plan.defaults_mut().idle = Some(Duration::from_secs(2));
    let relay = bed.start(plan);
    let (idle, idle_far) = bed.pair(&listener, relay.address());
    let (mut used, mut used_far) = bed.pair(&listener, relay.address());
    for _ in 0..20 {
        used.write_all(b"x").unwrap();
        used_far.read_exact(&mut [0]).unwrap();
        std::thread::sleep(Duration::from_millis(150));
    }
    assert!(ends_with_reset(&idle) && ends_with_reset(&idle_far));
    let closed = relay.notes.closed.lock().unwrap();
    assert_eq!(closed.iter().map(|end| end.ended).collect::<Vec<_>>(), [Ended::Idle]);
}

/// Each holds less, the more there are; but what it was promised as it began it may always hold.
const STALLED: usize = 96;

/// Connections whose servers do not read, until the relay holds a few mebibytes.
fn stall(bed: &Bed, listener: &TcpListener, address: SocketAddr) -> Vec<(TcpStream, TcpStream)> {
    let stalled: Vec<_> = (0..STALLED).map(|_| bed.pair(listener, address)).collect();
    for (client, _) in &stalled {
        client.set_nonblocking(true).unwrap();
        let (mut client, block) = (client, vec![3; 1 << 16]);
        for _ in 0..30 {
            while client.write(&block).is_ok() {}
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    std::thread::sleep(Duration::from_millis(400));
    stalled
}

fn limited(plan: RelayPlan) -> RelayPlan {
    let mut plan = plan;
    plan.limits.memory_bytes = Some(2 << 20);
    // All of it, though everybody is of one network.
    (plan.limits.client_memory_bytes, plan.limits.network_memory_bytes) = (Some(2 << 20), Some(2 << 20));
    // Kept short, their queues hold less.
    plan.defaults_mut().queue = None;
    plan
}

#[test]
fn when_memory_is_full_new_clients_wait_and_no_byte_is_lost() {
    let bed = Bed::new("memw");
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(limited(Bed::explicit(at(ANYWHERE))));
    let stalled = stall(&bed, &listener, relay.address());
    let late = bed.connect(relay.address());
    listener.set_nonblocking(true).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(listener.accept().is_err(), "accepted although memory is full");
    assert!(relay.notes.warnings.lock().unwrap().iter().any(|warning| warning.contains("of 2097152 bytes")));
    // Every byte that was taken is there.
    for (client, mut far) in stalled {
        let taken = longfat_host::socket::tcp_info(&client).unwrap().acked_bytes;
        drop(client);
        let (mut total, mut block) = (0, vec![0; 1 << 16]);
        while let Ok(bytes @ 1..) = far.read(&mut block) {
            assert!(block[..bytes].iter().all(|byte| *byte == 3));
            total += bytes as u64;
        }
        assert!(total + 1 >= taken, "{total} of {taken}");
    }
    let far = accept(&listener);
    carry(&late, &far, 1 << 20);
}

#[test]
fn when_memory_is_full_held_clients_pass_unrelayed() {
    let bed = Bed::new("memp");
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(limited(Bed::after_server()));
    let stalled = stall(&bed, &listener, at(ANYWHERE));
    let (late, far) = bed.pair(&listener, at(ANYWHERE));
    carry(&late, &far, 1 << 20);
    drop(stalled);
    assert_eq!(relay.stop().connections, STALLED as u64);
}

#[test]
fn a_listeners_client_whose_network_has_its_share_of_memory_is_reset() {
    let bed = Bed::new("memr");
    let listener = bed.listen(ANYWHERE);
    let mut plan = limited(Bed::explicit(at(ANYWHERE)));
    plan.limits.network_memory_bytes = Some(1 << 20);
    plan.limits.client_memory_bytes = None;
    let relay = bed.start(plan);
    let stalled = stall(&bed, &listener, relay.address());
    let late = bed.try_connect(relay.address());
    assert!(late.map_or(true, |late| ends_with_reset(&late)));
    let notes = std::sync::Arc::clone(&relay.notes);
    eventually("it is told of", || {
        notes.closed.lock().unwrap().iter().any(|end| end.ended == Ended::Refused)
    });
    drop(stalled);
}

#[test]
fn beyond_its_limits_a_relay_that_fails_closed_lets_held_clients_wait() {
    let bed = Bed::new("limitc");
    let listener = bed.listen(ANYWHERE);
    let mut plan = RelayPlan { fail: Fail::Closed, ..Bed::after_server() };
    plan.limits.connections = Some(1);
    let relay = bed.start(plan);
    let first = bed.pair(&listener, at(ANYWHERE));
    std::thread::scope(|scope| {
        let late = scope.spawn(|| bed.connect(at(ANYWHERE)));
        eventually("the second client is refused a place", || {
            !relay.notes.warnings.lock().unwrap().is_empty()
        });
        std::thread::sleep(Duration::from_millis(300));
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "it passes unrelayed");
        drop(first);
        let (late, far) = (late.join().unwrap(), accept(&listener));
        carry(&late, &far, 1 << 20);
    });
    assert_eq!(relay.stop().connections, 2, "both are relayed");
}

/// A relay that has lost the right to make its sockets, and what it says when a client has come.
fn without_rights(tag: &str, plan: RelayPlan, client: impl FnOnce(&Bed)) {
    let bed = Bed::new(tag);
    let relay = Running::start_and(&bed.relay, plan, || longfat_host::capability::keep_only(&[]).unwrap());
    client(&bed);
    let warnings = || relay.notes.warnings.lock().unwrap().clone();
    eventually("it says why", || warnings().iter().any(|text| text.contains("not permitted")));
    assert_eq!(warnings().len(), 1, "{:?}", warnings());
}

#[test]
fn when_no_socket_can_be_made_it_is_said_why_clients_wait() {
    without_rights("nosock", Bed::transparent(), |bed| drop(bed.connect(at(ANYWHERE))));
}

#[test]
fn when_no_socket_can_be_made_it_is_said_why_held_clients_pass() {
    without_rights("nosockh", Bed::after_server(), |bed| {
        let listener = bed.listen(ANYWHERE);
        let (client, far) = bed.pair(&listener, at(ANYWHERE));
        carry(&client, &far, 1000);
    });
}

#[test]
fn a_held_client_whose_port_the_relay_may_not_have_passes_and_is_not_refused_in_the_servers_name() {
    use longfat_host::capability;
    let bed = Bed::new("noport");
    let keep = || capability::keep_only(&[capability::NET_ADMIN]).unwrap();
    let relay = Running::start_and(&bed.relay, Bed::after_server(), keep);
    let listener = bed.listen(ANYWHERE);
    let client = bed.connect_from(900, at(ANYWHERE));
    carry(&client, &accept(&listener), 1000);
    let warnings = relay.notes.warnings.lock().unwrap().clone();
    assert!(matches!(&warnings[..], [one] if one.contains(":900: Permission denied")), "{warnings:?}");
    assert_eq!(relay.stop().connections, 0, "it passed");
}

#[test]
fn a_listeners_client_whose_rule_cannot_be_followed_is_reset_and_it_is_said_which_and_why() {
    let bed = Bed::new("unfit");
    let _listener = bed.listen(ANYWHERE);
    let mut plan = Bed::explicit(at(ANYWHERE));
    let rule = |name: &str, sources: &[&str], mss_bytes| {
        let mut way = longfat_relay::ConnectionPlan { rule: name.into(), ..Default::default() };
        // More than the kernel takes; found out as late as that a congestion control has been unloaded.
        way.server.mss_bytes = mss_bytes;
        let sources = sources.iter().map(|text| text.parse().unwrap()).collect();
        let matches = longfat_relay::MatchPlan { sources, ..Default::default() };
        longfat_relay::RulePlan { name: name.into(), matches, relay: Some(way.into()) }
    };
    plan.rules = vec![rule("others", &["192.0.2.0/24"], None), rule("narrow", &[], Some(40_000))];
    let relay = bed.start(plan);
    for _ in 0..2 {
        // The reset may come before connect() has returned.
        let client = bed.try_connect(relay.address());
        assert!(client.map_or(true, |client| ends_with_reset(&client)));
    }
    let notes = std::sync::Arc::clone(&relay.notes);
    eventually("both are told of", || notes.closed.lock().unwrap().len() == 2);
    let warnings = notes.warnings.lock().unwrap().clone();
    assert!(
        matches!(&warnings[..], [one] if one.contains("'narrow'") && one.contains("Invalid argument")),
        "{warnings:?}"
    );
    for end in notes.closed.lock().unwrap().iter() {
        assert_eq!((end.rule.as_str(), end.ended, end.server), ("narrow", Ended::Unreachable, at(ANYWHERE)));
    }
    assert_eq!(relay.stop().unreachable, 2);
}

#[test]
fn a_connection_with_little_memory_carries_every_byte() {
    let bed = Bed::new("thrift");
    let listener = bed.listen(ANYWHERE);
    let mut plan = Bed::explicit(at(ANYWHERE));
    plan.defaults_mut().memory_bytes = Some(64 << 10);
    let fit = (*plan.defaults).clone().within_memory();
    assert!(2 * (fit.client.buffer_bytes + fit.server.buffer_bytes) <= 80 << 10);
    let relay = bed.start(plan);
    let (client, far) = bed.pair(&listener, relay.address());
    carry(&client, &far, 1 << 20);
    drop((client, far));
    let notes = std::sync::Arc::clone(&relay.notes);
    eventually("the connection ends", || !notes.closed.lock().unwrap().is_empty());
}
