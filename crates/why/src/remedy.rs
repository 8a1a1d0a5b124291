//! What mends a cause: where, by which command, what that costs others, and how it is undone.

use crate::{cause::Cause, verdict::Figures, words::size};
use longfat_schema::units::{Nanos, Rate, Size};
use serde::Serialize;
use std::net::SocketAddr;

/// Where something is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// On this host.
    Here,
    /// In the program at this end.
    Program,
    /// On the host of the other end.
    OtherEnd,
    /// Between them.
    Path,
}

impl Place {
    /// `here`, `the program`, …
    pub fn words(self) -> &'static str {
        match self {
            Place::Here => "here",
            Place::Program => "the program",
            Place::OtherEnd => "the other end",
            Place::Path => "the path",
        }
    }
}

/// Something that would help.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Remedy {
    /// Where.
    pub place: Place,
    /// In words.
    pub what: String,
    /// What to paste; absent where no command does it.
    pub command: Option<String>,
    /// What it costs others.
    pub costs: &'static str,
    /// What takes it back; absent where there is nothing to take back.
    pub undo: Option<String>,
}

/// Whom a remedy is for.
#[derive(Debug, Clone, Copy)]
pub struct Patient<'a> {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Figures of the watch.
    pub figures: &'a Figures,
    /// Rate of the path, where it is known.
    pub path_rate: Option<Rate>,
}

const NOBODY: &str = "nobody";
const MEMORY: &str = "memory of the host, as much for each connection that needs it";
const ALL_OF_HOST: &str = "all connections of that host";

/// What would help against a cause; the nearest first.
pub fn remedies(cause: Cause, patient: &Patient) -> Vec<Remedy> {
    match cause {
        Cause::AnswerAwaited => vec![pipeline(), nearer()],
        Cause::Nagle => vec![no_delay()],
        Cause::SlowReader => vec![read_faster()],
        Cause::ReceiveWindow => vec![larger_rmem(patient)],
        Cause::WindowScaling => vec![scaling()],
        Cause::SendBuffer => vec![larger_wmem(patient)],
        Cause::SlowStart | Cause::RestartAfterIdle => vec![restart(cause), initcwnd(patient)],
        Cause::SlowStartLeftEarly => {
            vec![set(patient, "ssthresh=unlimited", "lets slow start go on", "the flows beside it: a burst")]
        }
        Cause::CwndClamp => vec![set(
            patient,
            "clamp=unlimited",
            "lifts the bound of the congestion window",
            "the flows beside it",
        )],
        Cause::AfterLoss | Cause::RandomLoss => vec![other_cc(patient), relay(patient)],
        Cause::Pacing => vec![unpaced()],
        Cause::Policer => vec![paced(patient)],
        Cause::Reordering => vec![rack()],
        Cause::Timeouts => vec![set(
            patient,
            "rto-min=20ms",
            "lowers the least retransmission timeout",
            "nobody, where the round trip is steady",
        )],
        Cause::StandingQueue => vec![shorter_queue(patient)],
        Cause::PacketSize => vec![probing()],
        Cause::Host => vec![faster_queue()],
        Cause::NoAnswer => vec![reach(patient, "packets"), give_up()],
        Cause::LostSyns => vec![reach(patient, "SYNs")],
        _ => Vec::new(),
    }
}

fn remedy(place: Place, what: &str, costs: &'static str) -> Remedy {
    Remedy { place, what: what.to_owned(), command: None, costs, undo: None }
}

fn sysctl(place: Place, key: &str, value: &str, before: &str, what: &str, costs: &'static str) -> Remedy {
    Remedy {
        command: Some(format!("sysctl -w {key}='{value}'")),
        undo: Some(format!("sysctl -w {key}='{before}'")),
        ..remedy(place, what, costs)
    }
}

fn filter(patient: &Patient) -> String {
    format!("src {} and dst {}", patient.local, patient.remote)
}

fn set(patient: &Patient, change: &str, what: &str, costs: &'static str) -> Remedy {
    let filter = filter(patient);
    Remedy {
        command: Some(format!(
            "longfat tcb save before.json '{filter}' && longfat tcb set '{filter}' {change} --yes"
        )),
        undo: Some("longfat tcb restore before.json --yes".to_owned()),
        ..remedy(Place::Here, what, costs)
    }
}

fn pipeline() -> Remedy {
    remedy(
        Place::Program,
        "send the next request before the answer to this one has come (pipelining, batches, several connections)",
        NOBODY,
    )
}

fn nearer() -> Remedy {
    remedy(Place::Path, "each turn takes a round trip: bring the ends nearer (a cache, a replica)", NOBODY)
}

fn no_delay() -> Remedy {
    remedy(Place::Program, "write at once what belongs together, or set TCP_NODELAY", "more small packets")
}

fn read_faster() -> Remedy {
    remedy(
        Place::OtherEnd,
        "the program there has to read faster: look at its processor time and what it writes to",
        NOBODY,
    )
}

/// A receiver's window that is no bound any more: twice what the path holds where its rate is known, else four times
/// what there is.
pub fn receive_window_bytes(figures: &Figures, path_rate: Option<Rate>) -> u64 {
    let rtt_s = f64::from(figures.least_rtt_us) / 1e6;
    let now = u64::from(figures.window_bytes);
    let pipe = path_rate.map(|rate| (rate.0 as f64 / 8.0 * rtt_s * 2.0) as u64);
    pipe.unwrap_or(now * 4).max(now).next_power_of_two()
}

/// Half of a receive buffer is the kernel's bookkeeping.
const OVERHEAD: u64 = 2;

fn larger_rmem(patient: &Patient) -> Remedy {
    let window = receive_window_bytes(patient.figures, patient.path_rate);
    let value = format!("4096 131072 {}", (OVERHEAD * window).max(6_291_456));
    let what = format!(
        "let its window grow to {}; a program that sets SO_RCVBUF itself must set it larger, or not at all",
        size(window)
    );
    sysctl(Place::OtherEnd, "net.ipv4.tcp_rmem", &value, "4096 131072 6291456", &what, MEMORY)
}

/// Of a send buffer a writer leaves a third empty at times: it is woken when so much is free (sk_stream_is_writeable).
pub const LEAST_FILLED: f64 = 2.0 / 3.0;
/// Times the send buffer that is too small, where the path's rate is not known, and no less than this.
const MORE_BUFFER: u64 = 8;
const LEAST_BUFFER: u64 = 1 << 20;
/// Largest that a socket can have.
const MOST_BUFFER: u64 = 1 << 30;
/// Payload of what a send buffer holds, where it was not seen: small writes have more bookkeeping.
const PAYLOAD_SHARE: f64 = 0.5;

/// Part of a full send buffer that is payload.
pub fn payload_share(figures: &Figures) -> f64 {
    if figures.sndbuf_payload_share > 0.0 { figures.sndbuf_payload_share } else { PAYLOAD_SHARE }
}

/// A send buffer, bookkeeping included, that is no bound any more where the path's rate is known: two pipes of payload,
/// also when it is filled the least.
pub fn send_buffer_bytes(figures: &Figures, path_rate: Option<Rate>) -> u64 {
    let rtt_s = f64::from(figures.least_rtt_us) / 1e6;
    let held = |rate: Rate| 2.0 * rate.0 as f64 / 8.0 * rtt_s / (LEAST_FILLED * payload_share(figures));
    let wanted = path_rate.map_or(0, |rate| held(rate) as u64);
    let now = u64::from(figures.sndbuf_bytes);
    wanted.max(now.saturating_mul(MORE_BUFFER)).clamp(LEAST_BUFFER, MOST_BUFFER)
}

fn larger_wmem(patient: &Patient) -> Remedy {
    let buffer = send_buffer_bytes(patient.figures, patient.path_rate);
    let value = format!("4096 16384 {}", buffer.max(4_194_304));
    let what = format!(
        "let the send buffer grow to {}; a program that sets SO_SNDBUF itself must set it larger, or not at all",
        size(buffer)
    );
    sysctl(Place::Here, "net.ipv4.tcp_wmem", &value, "4096 16384 4194304", &what, MEMORY)
}

fn scaling() -> Remedy {
    let what = "both ends must offer window scaling, and nothing between them may strip it; holds for new connections";
    sysctl(Place::OtherEnd, "net.ipv4.tcp_window_scaling", "1", "0", what, NOBODY)
}

fn restart(cause: Cause) -> Remedy {
    if cause == Cause::SlowStart {
        return remedy(
            Place::Program,
            "keep connections and use them again: a new one starts slowly",
            NOBODY,
        );
    }
    let what = "keep the window over pauses";
    sysctl(
        Place::Here,
        "net.ipv4.tcp_slow_start_after_idle",
        "0",
        "1",
        what,
        "all connections of this host: bursts after a pause",
    )
}

fn initcwnd(patient: &Patient) -> Remedy {
    let to = patient.remote.ip();
    Remedy {
        command: Some(format!(
            "ip route replace $(ip -o route get {to} | sed 's/ src .*//; s/ uid .*//') initcwnd 40"
        )),
        undo: Some(format!("ip route del {to}")),
        ..remedy(
            Place::Here,
            "let new connections to it begin with 40 segments",
            "the flows beside them: a burst at each beginning",
        )
    }
}

fn other_cc(patient: &Patient) -> Remedy {
    set(
        patient,
        "cc=bbr",
        "a congestion control that does not take each loss for a full path",
        "the flows beside it: BBR may take more than its share",
    )
}

fn relay(patient: &Patient) -> Remedy {
    Remedy {
        command: Some(format!("longfat relay --help    # a relay before {}", patient.remote)),
        ..remedy(Place::Path, "a relay near the lossy link: losses are repaired over the short way", NOBODY)
    }
}

fn unpaced() -> Remedy {
    remedy(
        Place::Program,
        "raise or lift the rate that was set (SO_MAX_PACING_RATE; a program's --limit-rate, --bwlimit)",
        "the flows beside it",
    )
}

/// Part of the rate that a policer held it to, by which nothing is dropped.
pub const BELOW_POLICER: f64 = 0.97;

fn paced(patient: &Patient) -> Remedy {
    let rate = Rate((patient.figures.rate_bps * BELOW_POLICER) as u64);
    Remedy {
        command: Some(format!("longfat why '{}' --fix    # paces it at {rate}", filter(patient))),
        undo: Some("Ctrl-C".to_owned()),
        ..remedy(Place::Here, "send below the rate that is held, so that nothing is dropped", NOBODY)
    }
}

fn rack() -> Remedy {
    let what = "let RACK and the reordering degree follow what is seen, up to more segments";
    sysctl(
        Place::Here,
        "net.ipv4.tcp_max_reordering",
        "1000",
        "300",
        what,
        "losses are noticed later, on all connections of this host",
    )
}

fn shorter_queue(patient: &Patient) -> Remedy {
    let rtt = Nanos(u64::from(patient.figures.least_rtt_us) * 1000);
    let queue = Size((patient.figures.rate_bps / 8.0 * rtt.0 as f64 / 1e9) as u64);
    remedy(
        Place::Path,
        &format!(
            "the rate is all there is; CoDel or a queue of about {queue} at the slowest link would shorten the delay"
        ),
        NOBODY,
    )
}

fn probing() -> Remedy {
    sysctl(
        Place::Here,
        "net.ipv4.tcp_mtu_probing",
        "1",
        "0",
        "find the size that passes (RFC 4821)",
        ALL_OF_HOST,
    )
}

fn faster_queue() -> Remedy {
    Remedy {
        command: Some("tc -s qdisc show".to_owned()),
        ..remedy(Place::Here, "see which queueing discipline holds it, and at which rate", NOBODY)
    }
}

fn give_up() -> Remedy {
    remedy(
        Place::Program,
        "end what nobody answers sooner, and connect anew (TCP_USER_TIMEOUT; net.ipv4.tcp_retries2 for all)",
        "connections that a longer outage would not have ended",
    )
}

fn reach(patient: &Patient, what: &str) -> Remedy {
    let (address, port) = (patient.remote.ip(), patient.remote.port());
    Remedy {
        command: Some(format!("traceroute -T -p {port} {address}")),
        ..remedy(Place::Path, &format!("see how far {what} come"), NOBODY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::CATALOGUE;

    #[test]
    fn every_fault_has_a_remedy_and_nothing_else_asks_for_one_but_slow_start_and_a_queue() {
        let figures = Figures::default();
        let at: SocketAddr = "192.0.2.7:443".parse().unwrap();
        let patient = Patient { local: at, remote: at, figures: &figures, path_rate: None };
        for entry in CATALOGUE.iter().filter(|entry| entry.cause != Cause::Acknowledgements) {
            let found = remedies(entry.cause, &patient);
            let expected = entry.is_fault || matches!(entry.cause, Cause::SlowStart | Cause::StandingQueue);
            assert_eq!(!found.is_empty(), expected, "{}", entry.name);
        }
    }
}
