//! What `longfat analyze` says of a capture made at the sender is exactly what the sender's kernel counted: segments
//! and octets sent again, and retransmission timeouts, over emulated paths that lose, reorder and go dark.

use crate::capture_bed::{Bed, analyzed, ended, number, signal};
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

/// What one run of a case gave.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// By the kernel.
    counted: Again,
    /// By the capture.
    said: Again,
    /// Times that the kernel found its packets overtaken.
    reorderings: u64,
}

/// Retransmissions and reorderings as the kernel counts them in the sender's namespace, for its one connection.
fn kernel(bed: &Bed, retrans_bytes: u64) -> (Again, u64) {
    let counters = bed.near.run(facts::counters).unwrap();
    let count = |name: &str| *counters.get(name).unwrap_or_else(|| panic!("{name}: {counters:?}")) as u64;
    let (segments, timeouts) = (count("TcpRetransSegs"), count("TcpExtTCPTimeouts"));
    let reorderings = count("TcpExtTCPSACKReorder") + count("TcpExtTCPTSReorder");
    (Again { segments, bytes: retrans_bytes, timeouts }, reorderings)
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
fn both(case: &Case) -> Outcome {
    let bed = Bed::over_link(&format!("x{}", case.name), case.link);
    // Any kernel has it and allows it, and what detects losses is the same under all.
    let cc = ("net.ipv4.tcp_congestion_control", "reno");
    for (key, value) in case.sysctls.iter().chain([&cc]) {
        bed.near.run(|| sysctl::write(key, value)).unwrap().unwrap();
    }
    let file = bed.file("exact.pcapng");
    let capture = bed.capture(&["-o", &file, "--json", "tcp"]);
    let (before, reorderings_before) = kernel(&bed, 0);
    bed.start_schedule();
    let near = bed.send(case.bytes);
    // The connection stays open, so that nothing is sent while the counters are read.
    let info = eventually("everything is acknowledged", || {
        let info = socket::tcp_info(&near).unwrap();
        (info.acked_bytes > case.bytes as u64 && info.unacked_segments == 0).then_some(info)
    });
    let (after, reorderings_after) = kernel(&bed, info.retrans_bytes);
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
    Outcome { counted, said, reorderings: reorderings_after - reorderings_before }
}

/// As [`both`], and they agree. A timeout and RACK's reordering timer are told apart by time alone, and a machine that
/// stands still for 0.2 s while RACK's is pending makes one of the other: where timeouts alone differ, the case is run
/// again, and in one of `TRIES` runs everything must agree. Segments and octets agree in each.
fn agreeing(case: &Case) -> Outcome {
    const TRIES: usize = 3;
    let mut runs = Vec::new();
    while runs.len() < TRIES {
        let outcome = both(case);
        let Outcome { counted, said, .. } = outcome;
        assert_eq!((said.segments, said.bytes), (counted.segments, counted.bytes), "{outcome:?}");
        if said == counted {
            return outcome;
        }
        eprintln!("{}: timeouts differ: {outcome:?}", case.name);
        runs.push(outcome);
    }
    panic!("{}: timeouts differ in each of {TRIES} runs: {runs:?}", case.name);
}

#[test]
fn after_random_loss() {
    let link = "rate = \"50Mbit\"\ndelay = \"5ms\"\nloss = 0.03\n";
    let case = Case { name: "loss", link, sysctls: &[], bytes: 2_000_000 };
    let Outcome { counted, .. } = agreeing(&case);
    assert!(counted.segments > 20, "{counted:?}");
}

#[test]
fn without_sack() {
    let link = "rate = \"50Mbit\"\ndelay = \"5ms\"\nloss = 0.02\n";
    let sysctls = &[("net.ipv4.tcp_sack", "0")];
    let case = Case { name: "nosack", link, sysctls, bytes: 1_000_000 };
    let Outcome { counted, said, .. } = both(&case);
    assert_eq!(said, counted);
    assert!(counted.segments > 5, "{counted:?}");
}

#[test]
fn where_packets_overtake_each_other() {
    let link = "rate = \"30Mbit\"\ndelay = \"10ms\"\njitter = \"8ms\"\nreorder = true\n";
    let case = Case { name: "reorder", link, sysctls: &[], bytes: 3_000_000 };
    let outcome = agreeing(&case);
    // The path loses nothing: what was sent again had been overtaken.
    assert!(outcome.reorderings > 0 || outcome.counted.segments > 0, "nothing was overtaken: {outcome:?}");
}

#[test]
fn through_a_dark_second_that_costs_timeouts() {
    let link = "rate = \"20Mbit\"\ndelay = \"10ms\"\n\
         schedule = [{ at = \"300ms\", loss = 1.0 }, { at = \"1600ms\", loss = 0.0 }]\n";
    let case = Case { name: "dark", link, sysctls: &[], bytes: 3_000_000 };
    let Outcome { counted, said, .. } = both(&case);
    assert_eq!(said, counted);
    assert!(counted.timeouts > 1, "{counted:?}");
}
