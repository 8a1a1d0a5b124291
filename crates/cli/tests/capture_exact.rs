//! What `longfat analyze` says of a capture made at the sender is exactly what the sender's kernel counted: segments and
//! octets sent again, and retransmission timeouts, over emulated paths that lose, reorder and go dark.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod capture_bed;

use capture_bed::{Bed, analyzed, ended, number, signal};
use longfat_host::{facts, socket, sysctl};
use std::time::{Duration, Instant};

/// What to send over what.
struct Case {
    name: &'static str,
    /// A link plan; its schedule begins with the transfer.
    link: &'static str,
    sysctls: &'static [(&'static str, &'static str)],
    bytes: usize,
}

/// Segments and octets sent again, and timeouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Again {
    segments: u64,
    bytes: u64,
    timeouts: u64,
}

/// Of the sender's namespace, which has this one connection; octets are the connection's.
fn kernel(bed: &Bed, retrans_bytes: u64) -> Again {
    let counters = bed.near.run(facts::counters).unwrap();
    let count = |name: &str| *counters.get(name).unwrap_or_else(|| panic!("{name}: {counters:?}")) as u64;
    Again { segments: count("TcpRetransSegs"), bytes: retrans_bytes, timeouts: count("TcpExtTCPTimeouts") }
}

/// Waits for something that the kernel does in its own time.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What the kernel counted, and what the capture says.
fn both(case: &Case) -> (Again, Again) {
    let bed = Bed::over_link(&format!("x{}", case.name), case.link);
    // Any kernel has it and allows it, and what detects losses is the same under all.
    let cc = ("net.ipv4.tcp_congestion_control", "reno");
    for (key, value) in case.sysctls.iter().chain([&cc]) {
        bed.near.run(|| sysctl::write(key, value)).unwrap().unwrap();
    }
    let file = bed.file("exact.pcapng");
    let capture = bed.capture(&["-o", &file, "--json", "tcp"]);
    let before = kernel(&bed, 0);
    bed.start_schedule();
    let near = bed.send(case.bytes);
    // The connection stays open, so that nothing is sent while the counters are read.
    let info = eventually("everything is acknowledged", || {
        let info = socket::tcp_info(&near).unwrap();
        (info.acked_bytes > case.bytes as u64 && info.unacked_segments == 0).then_some(info)
    });
    let after = kernel(&bed, info.retrans_bytes);
    std::thread::sleep(Duration::from_millis(50));
    signal(&capture, libc::SIGINT);
    assert_eq!(ended(capture).status.code(), Some(0), "the capture lost nothing");
    let sent = &analyzed(&[&file])["flows"][0]["directions"][0];
    let found = |name: &str| number(&sent[name]);
    let counted = Again {
        segments: after.segments - before.segments,
        bytes: after.bytes,
        timeouts: after.timeouts - before.timeouts,
    };
    let said = Again {
        segments: found("resent_segments"),
        bytes: found("resent_bytes"),
        timeouts: found("timeouts"),
    };
    (counted, said)
}

#[test]
fn after_random_loss() {
    let link = "rate = \"50Mbit\"\ndelay = \"5ms\"\nloss = 0.03\n";
    let case = Case { name: "loss", link, sysctls: &[], bytes: 2_000_000 };
    let (counted, said) = both(&case);
    assert_eq!(said, counted);
    assert!(counted.segments > 20, "{counted:?}");
}

#[test]
fn without_sack() {
    let link = "rate = \"50Mbit\"\ndelay = \"5ms\"\nloss = 0.02\n";
    let sysctls = &[("net.ipv4.tcp_sack", "0")];
    let case = Case { name: "nosack", link, sysctls, bytes: 1_000_000 };
    let (counted, said) = both(&case);
    assert_eq!(said, counted);
    assert!(counted.segments > 5, "{counted:?}");
}

#[test]
fn where_packets_overtake_each_other() {
    let link = "rate = \"30Mbit\"\ndelay = \"10ms\"\njitter = \"8ms\"\nreorder = true\n";
    let case = Case { name: "reorder", link, sysctls: &[], bytes: 3_000_000 };
    let (counted, said) = both(&case);
    assert_eq!(said, counted);
}

#[test]
fn through_a_dark_second_that_costs_timeouts() {
    let link = "rate = \"20Mbit\"\ndelay = \"10ms\"\n\
         schedule = [{ at = \"300ms\", loss = 1.0 }, { at = \"1600ms\", loss = 0.0 }]\n";
    let case = Case { name: "dark", link, sysctls: &[], bytes: 3_000_000 };
    let (counted, said) = both(&case);
    assert_eq!(said, counted);
    assert!(counted.timeouts > 1, "{counted:?}");
}
