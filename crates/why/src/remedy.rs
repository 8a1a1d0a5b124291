//! What mends a cause: where, by which command, what that costs others, and how it is undone.

use crate::{cause::Cause, verdict::Figures, words::size};
use longfat_schema::units::{Nanos, Rate, Size};
use serde::Serialize;
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

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
    /// Place of the remedy.
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

/// The connection that a remedy is for.
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
    /// Send buffers that the kernel of this host sizes itself (net.ipv4.tcp_wmem): the least, the first and the most
    /// bytes, where they are known.
    pub wmem: Option<[u64; 3]>,
    /// A relay on this host that carries such connections, or could.
    pub relay: Option<&'a RelayWay>,
}

/// A relay's leg that sends, or would send, what such connections send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayWay {
    /// Control socket of the relay.
    pub socket: PathBuf,
    /// Network namespace of the relay, as the kernel knows it.
    pub netns_inode: u64,
    /// Whether the connection that was watched ends at the relay itself.
    pub is_own_leg: bool,
    /// Which leg.
    pub leg: Leg,
    /// Clients that a rule has to match; all when absent.
    pub client: Option<IpAddr>,
    /// The server that a rule has to match.
    pub server: SocketAddr,
}

/// A leg of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leg {
    /// Towards the client.
    Client,
    /// Towards the server.
    Server,
}

impl RelayWay {
    /// Keys of a rule that spares successors this cause, as the relay's file has them; `None` where none would.
    pub fn rule_against(&self, cause: Cause, figures: &Figures, path_rate: Option<Rate>) -> Option<String> {
        let setting = match cause {
            Cause::RandomLoss | Cause::AfterLoss => "cc = \"bbr\"".to_owned(),
            Cause::SendBuffer => format!("buffer = \"{}B\"", send_buffer_bytes(figures, path_rate)),
            _ => return None,
        };
        let leg = self.leg.name();
        let client = self.client.map_or(String::new(), |client| format!("source = \"{client}\", "));
        let (server, port) = (self.server.ip(), self.server.port());
        Some(format!("{client}destination = \"{server}\", port = {port}, {leg} = {{ {setting} }}"))
    }
}

impl Leg {
    /// As the relay's file and options have it.
    fn name(self) -> &'static str {
        match self {
            Leg::Client => "client",
            Leg::Server => "server",
        }
    }

    fn other(self) -> Leg {
        match self {
            Leg::Client => Leg::Server,
            Leg::Server => Leg::Client,
        }
    }
}

/// First port that Linux gives a program that asks for none (net.ipv4.ip_local_port_range).
const FIRST_EPHEMERAL_PORT: u16 = 32_768;

/// Whether this end was connected to, as far as the ports tell.
pub fn is_server(local: SocketAddr, remote: SocketAddr) -> bool {
    local.port() < FIRST_EPHEMERAL_PORT && remote.port() >= FIRST_EPHEMERAL_PORT
}

/// The client and the server of a connection by its two ends, and the leg of a relay on its path that would send what
/// the local end sends.
pub fn ends(local: SocketAddr, remote: SocketAddr) -> (SocketAddr, SocketAddr, Leg) {
    if is_server(local, remote) { (remote, local, Leg::Client) } else { (local, remote, Leg::Server) }
}

const NOBODY: &str = "nobody";
const MEMORY: &str = "memory of the host, as much for each connection that needs it";
const ALL_OF_HOST: &str = "all connections of that host";

/// What would help against a cause; the nearest first.
pub fn remedies(cause: Cause, patient: &Patient) -> Vec<Remedy> {
    match cause {
        Cause::AnswerAwaited => vec![pipeline(), nearer()],
        Cause::Nagle => vec![no_delay()],
        Cause::SlowReader => vec![read_faster(patient)],
        Cause::ReceiveWindow => vec![larger_rmem(patient), relay_near_receiver(patient)],
        Cause::WindowScaling => vec![scaling()],
        Cause::SendBuffer => {
            std::iter::once(larger_wmem(patient)).chain(relay_rule(cause, patient)).collect()
        }
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
        Cause::AfterLoss | Cause::RandomLoss => {
            vec![other_cc(patient), relay_rule(cause, patient).unwrap_or_else(|| relay_near_losses(patient))]
        }
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
        Cause::NoAnswer => vec![reach(patient, "packets"), probing_if_small_ones_pass(), give_up()],
        Cause::LostSyns => vec![reach(patient, "SYNs")],
        _ => Vec::new(),
    }
}

fn remedy(place: Place, what: &str, costs: &'static str) -> Remedy {
    Remedy { place, what: what.to_owned(), command: None, costs, undo: None }
}

/// What was set before is not known from here, so the command keeps it.
fn sysctl(place: Place, key: &str, value: &str, what: &str, costs: &'static str) -> Remedy {
    Remedy {
        command: Some(format!("sysctl {key} > before.conf && sysctl -w {key}='{value}'")),
        undo: Some("sysctl -p before.conf".to_owned()),
        ..remedy(place, what, costs)
    }
}

/// A sysctl's third value is raised where it is lower, and stays where it is not: what it is there is not known from
/// here.
fn raised(place: Place, key: &str, least: u64, what: &str, costs: &'static str) -> Remedy {
    let raise = format!("awk '$5 < {least} {{ $5 = {least} }} 1' before.conf | sysctl -p -");
    Remedy {
        command: Some(format!("sysctl {key} > before.conf && {raise}")),
        undo: Some("sysctl -p before.conf".to_owned()),
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

fn read_faster(patient: &Patient) -> Remedy {
    let what = "the program there has to read faster: look at its processor time and what it writes to";
    if patient.figures.is_receiver {
        return remedy(Place::Program, &what.replace("there ", "here "), NOBODY);
    }
    remedy(Place::OtherEnd, what, NOBODY)
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
    let least = (OVERHEAD * window).max(6_291_456);
    let what = format!(
        "let its window grow to {}, where it may not; a program that sets SO_RCVBUF itself must set it larger, \
         or not at all",
        size(window)
    );
    raised(Place::OtherEnd, "net.ipv4.tcp_rmem", least, &what, MEMORY)
}

/// Least filling of a send buffer that a writer leaves a third empty: it is woken when so much is free
/// (sk_stream_is_writeable).
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
    const KEY: &str = "net.ipv4.tcp_wmem";
    let buffer = send_buffer_bytes(patient.figures, patient.path_rate);
    let wanted = buffer.max(4_194_304);
    let what = format!(
        "let the send buffer grow to {}; a program that sets SO_SNDBUF itself must set it larger, or not at all",
        size(buffer)
    );
    match patient.wmem {
        Some([_, _, most]) if most >= buffer => own_buffer(buffer, most),
        Some([least, first, _]) => {
            sysctl(Place::Here, KEY, &format!("{least} {first} {wanted}"), &what, MEMORY)
        }
        None => raised(Place::Here, KEY, wanted, &what, MEMORY),
    }
}

/// What the kernel lets grow so far already is held small by its program.
fn own_buffer(buffer: u64, most: u64) -> Remedy {
    let what = format!(
        "set the send buffer (SO_SNDBUF) to {} or more, or not at all: the kernel lets its own grow to {} \
         (net.ipv4.tcp_wmem)",
        size(buffer),
        size(most)
    );
    remedy(Place::Program, &what, MEMORY)
}

fn scaling() -> Remedy {
    let what = "both ends must offer window scaling, and nothing between them may strip it; holds for new connections";
    sysctl(Place::OtherEnd, "net.ipv4.tcp_window_scaling", "1", what, NOBODY)
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
        what,
        "all connections of this host: bursts after a pause",
    )
}

fn initcwnd(patient: &Patient) -> Remedy {
    let to = patient.remote.ip();
    // Of IPv6 the kernel says from which sources the way is ('from ::'): a route that keeps it is not what the undo
    // removes.
    let way = format!("ip -o route get {to} | sed 's/ from [^ ]*//; s/ src .*//; s/ uid .*//'");
    Remedy {
        command: Some(format!("ip route replace $({way}) initcwnd 40")),
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

/// Name of a rule that somebody pastes.
const RULE: &str = "why";

fn relay_rule(cause: Cause, patient: &Patient) -> Option<Remedy> {
    let way = patient.relay?;
    let keys = way.rule_against(cause, patient.figures, patient.path_rate)?;
    let socket = way.socket.display();
    let what = if way.is_own_leg {
        "have the relay here carry new connections of that kind otherwise"
    } else {
        "have the relay here carry new connections of that kind: its leg on the path needs nothing of this end's settings"
    };
    Some(Remedy {
        command: Some(format!("longfat relay rule add {RULE} '{keys}' --socket {socket}")),
        undo: Some(format!("longfat relay rule remove {RULE} --socket {socket}")),
        ..remedy(Place::Here, what, "the flows beside them, and memory of the relay")
    })
}

/// A relay that takes what comes from a client here, on whichever router it is pasted.
fn relay_command(patient: &Patient, leg_option: impl Fn(Leg) -> String) -> String {
    let (client, server, leg) = ends(patient.local, patient.remote);
    let interface = format!("$(ip -o route get {} | sed 's/.* dev \\([^ ]*\\).*/\\1/')", client.ip());
    let (address, port, option) = (server.ip(), server.port(), leg_option(leg));
    format!(
        "longfat relay --intercept {interface} --match-dst {address} --match-port {port} {option} --forwarding"
    )
}

fn relay_near_losses(patient: &Patient) -> Remedy {
    let option = |leg: Leg| format!("--cc-{} bbr", leg.name());
    Remedy {
        command: Some(relay_command(patient, option)),
        undo: Some("Ctrl-C".to_owned()),
        ..remedy(
            Place::Path,
            "a relay on a router near the lossy link, where the command is pasted: losses are repaired over the short way",
            "memory and processor time of that router",
        )
    }
}

fn relay_near_receiver(patient: &Patient) -> Remedy {
    let buffer = OVERHEAD * receive_window_bytes(patient.figures, patient.path_rate);
    // The leg from here ends at the relay, which takes what the receiver's window does not.
    let option = |leg: Leg| format!("--buffer-{} {buffer}B", leg.other().name());
    Remedy {
        command: Some(relay_command(patient, option)),
        undo: Some("Ctrl-C".to_owned()),
        ..remedy(
            Place::Path,
            "where that end cannot be changed: a relay on a router near it, where the command is pasted, takes what its window \
             does not, and gives it on over the short way",
            "memory and processor time of that router",
        )
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
    sysctl(Place::Here, "net.ipv4.tcp_mtu_probing", "1", "find the size that passes (RFC 4821)", ALL_OF_HOST)
}

fn probing_if_small_ones_pass() -> Remedy {
    let probing = probing();
    let what = format!(
        "full packets may not pass where small ones do ('ping -M do -s 1472' tells): {}",
        probing.what
    );
    Remedy { what, ..probing }
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
        let patient =
            Patient { local: at, remote: at, figures: &figures, path_rate: None, wmem: None, relay: None };
        for entry in CATALOGUE.iter().filter(|entry| entry.cause != Cause::Acknowledgements) {
            let found = remedies(entry.cause, &patient);
            let expected = entry.is_fault || matches!(entry.cause, Cause::SlowStart | Cause::StandingQueue);
            assert_eq!(!found.is_empty(), expected, "{}", entry.name);
        }
    }

    #[test]
    fn a_sysctl_is_raised_where_it_is_too_low_and_no_other_is_printed() {
        let at: SocketAddr = "192.0.2.7:443".parse().unwrap();
        let figures = Figures { sndbuf_bytes: 1 << 20, window_bytes: 1 << 20, ..Figures::default() };
        let command = |cause, wmem| {
            let patient =
                Patient { local: at, remote: at, figures: &figures, path_rate: None, wmem, relay: None };
            remedies(cause, &patient)[0].command.clone().unwrap_or_default()
        };
        let low = command(Cause::SendBuffer, Some([8192, 32_768, 4_194_304]));
        assert!(low.ends_with("sysctl -w net.ipv4.tcp_wmem='8192 32768 8388608'"), "{low}");
        assert_eq!(command(Cause::SendBuffer, Some([4096, 16_384, 33_554_432])), "");
        // 'before.conf' of a host that has more, and of one that has less.
        for (cause, most, expected) in [
            (Cause::SendBuffer, 33_554_432, 33_554_432),
            (Cause::SendBuffer, 65_536, 8_388_608),
            (Cause::ReceiveWindow, 33_554_432, 33_554_432),
            (Cause::ReceiveWindow, 65_536, 8_388_608),
        ] {
            let raises = command(cause, None);
            let sysctl = format!(
                "sysctl() {{ if [ \"$1\" = -p ]; then cat; else echo \"$1 = 4096\t16384\t{most}\"; fi; }}"
            );
            let folder = std::env::temp_dir().join(format!("longfat-why-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let mut shell = std::process::Command::new("sh");
            let output =
                shell.current_dir(&folder).args(["-c", &format!("{sysctl}; {raises}")]).output().unwrap();
            std::fs::remove_dir_all(&folder).unwrap();
            let words: Vec<String> =
                String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect();
            assert_eq!(words[2..], ["4096", "16384", &expected.to_string()], "{raises}");
        }
    }

    #[test]
    fn where_nothing_comes_back_full_packets_may_be_what_does_not_pass() {
        let at: SocketAddr = "192.0.2.7:443".parse().unwrap();
        let figures = Figures::default();
        let patient =
            Patient { local: at, remote: at, figures: &figures, path_rate: None, wmem: None, relay: None };
        let found = remedies(Cause::NoAnswer, &patient);
        let probing = found.iter().find(|one| one.what.contains("full packets may not pass")).unwrap();
        assert!(probing.command.as_ref().unwrap().contains("net.ipv4.tcp_mtu_probing='1'"), "{probing:?}");
    }

    #[test]
    fn a_slow_reader_is_mended_where_it_is_and_a_setting_is_kept_before_it_is_changed() {
        let at: SocketAddr = "192.0.2.7:443".parse().unwrap();
        for (is_receiver, place, whose) in
            [(true, Place::Program, "program here"), (false, Place::OtherEnd, "program there")]
        {
            let figures = Figures { is_receiver, ..Figures::default() };
            let patient = Patient {
                local: at,
                remote: at,
                figures: &figures,
                path_rate: None,
                wmem: None,
                relay: None,
            };
            let found = &remedies(Cause::SlowReader, &patient)[0];
            assert_eq!(found.place, place);
            assert!(found.what.contains(whose), "{}", found.what);
            let window = &remedies(Cause::ReceiveWindow, &patient)[0];
            assert!(
                window.command.as_ref().unwrap().starts_with("sysctl net.ipv4.tcp_rmem > before.conf && ")
            );
            assert_eq!(window.undo.as_deref(), Some("sysctl -p before.conf"));
        }
    }

    /// What a remedy's shell command calls `ip` with at last, where `ip` says this of the way.
    fn told(command: &str, way: &str) -> String {
        let ip = format!("ip() {{ if [ \"$1\" = -o ]; then echo '{way}'; else echo \"$@\"; fi; }}");
        let output =
            std::process::Command::new("sh").args(["-c", &format!("{ip}; {command}")]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn the_route_of_a_larger_initial_window_is_of_any_source_so_that_its_undo_finds_it() {
        let figures = Figures::default();
        for (remote, way, expected) in [
            (
                "[2001:db8::1]:443",
                "2001:db8::1 from :: via fe80::1 dev eth0 proto ra src 2001:db8::2 metric 1024 pref medium",
                "route replace 2001:db8::1 via fe80::1 dev eth0 proto ra initcwnd 40",
            ),
            (
                "192.0.2.7:443",
                "192.0.2.7 via 10.0.0.1 dev eth0 src 10.0.0.2 uid 0 \\    cache ",
                "route replace 192.0.2.7 via 10.0.0.1 dev eth0 initcwnd 40",
            ),
        ] {
            let remote: SocketAddr = remote.parse().unwrap();
            let patient = Patient {
                local: remote,
                remote,
                figures: &figures,
                path_rate: None,
                wmem: None,
                relay: None,
            };
            let found = &remedies(Cause::SlowStart, &patient)[1];
            assert_eq!(told(found.command.as_ref().unwrap(), way), expected);
            assert_eq!(found.undo, Some(format!("ip route del {}", remote.ip())));
        }
    }

    #[test]
    fn a_relay_that_runs_here_gets_a_rule_and_where_none_runs_one_is_told_with_the_leg_that_sends() {
        let figures = Figures { sndbuf_bytes: 65_536, ..Figures::default() };
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (near, far) = (at("10.0.0.2:40000"), at("192.0.2.7:443"));
        let way = RelayWay {
            socket: "/run/longfat-relay/relay.sock".into(),
            netns_inode: 1,
            is_own_leg: false,
            leg: Leg::Server,
            client: Some(near.ip()),
            server: far,
        };
        let mut patient = Patient {
            local: near,
            remote: far,
            figures: &figures,
            path_rate: None,
            wmem: None,
            relay: Some(&way),
        };
        let command = |patient: &Patient, cause, number: usize| {
            remedies(cause, patient)[number].command.clone().unwrap()
        };
        let with_cc = "longfat relay rule add why 'source = \"10.0.0.2\", destination = \"192.0.2.7\", port = 443, \
                       server = { cc = \"bbr\" }' --socket /run/longfat-relay/relay.sock";
        assert_eq!(command(&patient, Cause::RandomLoss, 1), with_cc);
        assert!(command(&patient, Cause::SendBuffer, 1).contains("server = { buffer = \"1048576B\" }"));
        patient.relay = None;
        assert!(command(&patient, Cause::AfterLoss, 1).contains("--match-port 443 --cc-server bbr"));
        assert!(command(&patient, Cause::ReceiveWindow, 1).contains("--buffer-client"));
        // The same connection, looked at where it was accepted.
        (patient.local, patient.remote) = (far, near);
        let told = command(&patient, Cause::AfterLoss, 1);
        assert!(told.contains("route get 10.0.0.2") && told.contains("--match-dst 192.0.2.7"), "{told}");
        assert!(told.contains("--cc-client bbr"), "{told}");
        assert!(command(&patient, Cause::ReceiveWindow, 1).contains("--buffer-server"));
    }
}
