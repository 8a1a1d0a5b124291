//! What can be shown, sorted by and filtered on: one table.

use crate::sockets::{
    connection::{Connection, Measurement},
    limit::{self, Limit},
};
use longfat_host::socket::TcpInfo;
use std::{borrow::Cow, net::SocketAddr};

/// One value of a connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// The connection has none: its state has no control block, or it is not known yet.
    Absent,
    /// In the unit of the field's [`Kind`].
    Number(u64),
    /// A name.
    Text(Cow<'a, str>),
    /// An address with its port.
    Address(SocketAddr),
}

/// What a value is, hence how it is written and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A plain number.
    Count,
    /// Microseconds.
    TimeUs,
    /// Bit/s.
    RateBps,
    /// Bytes.
    Bytes,
    /// A name; `*` in a filter stands for anything.
    Text,
    /// A state of RFC 9293.
    State,
    /// A name of [`Limit`].
    Limit,
    /// An address with its port.
    Address,
    /// A port.
    Port,
}

/// One field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// In filters, `--columns` and `--sort`.
    pub name: &'static str,
    /// Other names that people use for it.
    pub aliases: &'static [&'static str],
    /// In JSON: with its unit.
    pub json: &'static str,
    /// What it is.
    pub kind: Kind,
    /// For help texts.
    pub meaning: &'static str,
    get: for<'a> fn(&'a Connection) -> Value<'a>,
}

impl Field {
    /// The field of that name or alias.
    pub fn find(name: &str) -> Option<&'static Field> {
        FIELDS.iter().find(|field| field.name == name || field.aliases.contains(&name))
    }

    /// Names near to what was written, best first.
    pub fn nearest(name: &str) -> Option<&'static str> {
        let names = FIELDS.iter().flat_map(|field| field.aliases.iter().chain([&field.name]));
        longfat_schema::spelling::nearest(name, names.copied())
    }

    /// Value of the field in a connection.
    pub fn value<'a>(&self, connection: &'a Connection) -> Value<'a> {
        (self.get)(connection)
    }
}

fn info(connection: &Connection, get: impl Fn(&TcpInfo) -> u64) -> Value<'_> {
    connection.info.as_ref().map_or(Value::Absent, |info| Value::Number(get(info)))
}

fn maybe(connection: &Connection, get: impl Fn(&TcpInfo) -> Option<u64>) -> Value<'_> {
    connection.info.as_ref().and_then(get).map_or(Value::Absent, Value::Number)
}

fn measured(connection: &Connection, get: impl Fn(&Measurement) -> u64) -> Value<'_> {
    connection.measurement.as_ref().map_or(Value::Absent, |measurement| Value::Number(get(measurement)))
}

fn text(text: &str) -> Value<'_> {
    Value::Text(Cow::Borrowed(text))
}

/// The limit: from two looks where there were two, else from one.
pub fn limit_of(connection: &Connection) -> Option<Limit> {
    connection.limit.or_else(|| limit::of(connection))
}

macro_rules! fields {
    ($($name:literal $aliases:tt $json:literal $kind:ident $meaning:literal $get:expr;)*) => {
        /// Every field, in the order of a wide table.
        pub static FIELDS: &[Field] = &[$(Field {
            name: $name, aliases: &$aliases, json: $json, kind: Kind::$kind, meaning: $meaning, get: $get,
        }),*];
    };
}

fields! {
    "netns" [] "netns" Text "network namespace; empty for that of this process" |c| text(&c.netns);
    "state" [] "state" State "state of RFC 9293" |c| text(c.state.name());
    "src" ["local", "saddr"] "local" Address "this end" |c| Value::Address(c.local);
    "dst" ["remote", "daddr", "peer"] "remote" Address "the other end" |c| Value::Address(c.remote);
    "sport" ["lport"] "local_port" Port "port of this end" |c| Value::Number(c.local.port().into());
    "dport" ["rport"] "remote_port" Port "port of the other end" |c| Value::Number(c.remote.port().into());
    "pid" [] "pid" Count "a process that has it open"
        |c| c.process.as_ref().map_or(Value::Absent, |p| Value::Number(p.pid as u64));
    "process" ["command", "comm", "proc"] "process" Text "that process's name"
        |c| c.process.as_ref().map_or(Value::Absent, |p| text(&p.command));
    "cc" ["congestion"] "cc" Text "congestion control"
        |c| c.cc.as_ref().map_or(Value::Absent, |cc| text(cc.as_str()));
    "ca" ["ca_state"] "ca_state" Text "recovery state: open, disorder, cwr, recovery, loss"
        |c| c.info.as_ref().map_or(Value::Absent, |i| text(i.ca_state_name()));
    "cwnd" [] "cwnd_segments" Count "congestion window, in segments" |c| info(c, |i| i.snd_cwnd_segments.into());
    "ssthresh" [] "ssthresh_segments" Count "slow-start threshold, in segments; absent while unlimited"
        |c| maybe(c, |i| i.ssthresh_segments().map(u64::from));
    "rtt" ["srtt"] "srtt_us" TimeUs "smoothed round-trip time" |c| info(c, |i| i.srtt_us.into());
    "rttvar" [] "rttvar_us" TimeUs "round-trip time variation" |c| info(c, |i| i.rttvar_us.into());
    "minrtt" ["min_rtt"] "min_rtt_us" TimeUs "least round-trip time" |c| maybe(c, |i| i.least_rtt_us().map(u64::from));
    "rto" [] "rto_us" TimeUs "retransmission timeout" |c| info(c, |i| i.rto_us.into());
    "backoff" [] "backoff" Count "times the timeout was doubled" |c| info(c, |i| i.backoff.into());
    "mss" [] "mss_bytes" Bytes "sending maximum segment size" |c| info(c, |i| i.snd_mss_bytes.into());
    "flight" ["inflight"] "flight_segments" Count "segments in flight (RFC 6675 pipe)" |c| info(c, |i| i.flight_segments().into());
    "unacked" [] "unacked_segments" Count "segments sent and not acknowledged" |c| info(c, |i| i.unacked_segments.into());
    "lost" [] "lost_segments" Count "segments thought lost and not repaired" |c| info(c, |i| i.lost_segments.into());
    "retrans" ["retransmits"] "retransmitted_segments" Count "segments retransmitted so far" |c| info(c, |i| i.total_retrans_segments.into());
    "delivery" ["rate", "delivery_rate"] "delivery_rate_bps" RateBps "latest delivery rate"
        |c| info(c, |i| i.delivery_rate_bytes_per_s.saturating_mul(8));
    "pacing" ["pacing_rate"] "pacing_rate_bps" RateBps "pacing rate; absent when not limited" |c| maybe(c, TcpInfo::pacing_rate_bps);
    "avail" ["available"] "avail_bps" RateBps "available bandwidth, where it is measured (lf_imtcp*; root)"
        |c| measured(c, |m| u64::from(m.found.avail_kbps) * 1000);
    "avail_confidence" [] "avail_confidence_permille" Count "how far to trust it, in thousandths"
        |c| measured(c, |m| m.found.confidence_permille.min(1000).into());
    "avail_age" [] "avail_age_us" TimeUs "how old it is" |c| measured(c, |m| m.age_us);
    "rwnd" ["snd_wnd", "peer_window"] "peer_window_bytes" Bytes "window the other end offers" |c| info(c, |i| i.snd_wnd_bytes.into());
    "rcvwnd" ["rcv_wnd"] "own_window_bytes" Bytes "window this end offers" |c| info(c, |i| i.rcv_wnd_bytes.into());
    "limit" ["limited"] "limit" Limit "what limits it now: idle, app, cwnd, rwnd, sndbuf, pacing"
        |c| limit_of(c).map_or(Value::Absent, |limit| text(limit.name()));
    "cause" ["why"] "cause" Text "why it sends no faster, in the words of 'longfat why'"
        |c| c.cause.map_or(Value::Absent, text);
    "unsent" ["notsent"] "unsent_bytes" Bytes "written, never sent" |c| info(c, |i| i.notsent_bytes.into());
    "sendq" ["send_queue"] "send_queue_bytes" Bytes "written, not acknowledged" |c| Value::Number(c.send_queue_bytes.into());
    "recvq" ["receive_queue"] "receive_queue_bytes" Bytes "received, not read" |c| Value::Number(c.receive_queue_bytes.into());
    "sent" [] "sent_bytes" Bytes "sent so far, retransmissions included" |c| info(c, |i| i.sent_bytes);
    "acked" [] "acked_bytes" Bytes "acknowledged so far" |c| info(c, |i| i.acked_bytes);
    "received" [] "received_bytes" Bytes "received so far" |c| info(c, |i| i.received_bytes);
    "busy" [] "busy_us" TimeUs "time spent with something outstanding" |c| info(c, |i| i.busy_us);
    "rwnd_limited" [] "rwnd_limited_us" TimeUs "of it limited by the receiver's window" |c| info(c, |i| i.rwnd_limited_us);
    "sndbuf_limited" [] "sndbuf_limited_us" TimeUs "of it limited by the send buffer" |c| info(c, |i| i.sndbuf_limited_us);
    "app_limited" [] "app_limited" Count "1 when the latest delivery rate was limited by the program" |c| info(c, |i| i.is_app_limited().into());
    "ce" [] "delivered_ce_segments" Count "segments delivered with a congestion mark" |c| info(c, |i| i.delivered_ce_segments.into());
    "sndbuf" [] "sndbuf_bytes" Bytes "send buffer" |c| c.memory.map_or(Value::Absent, |m| Value::Number(m.sndbuf_bytes.into()));
    "rcvbuf" [] "rcvbuf_bytes" Bytes "receive buffer" |c| c.memory.map_or(Value::Absent, |m| Value::Number(m.rcvbuf_bytes.into()));
    "pmtu" [] "pmtu_bytes" Bytes "path MTU" |c| info(c, |i| i.pmtu_bytes.into());
    "uid" [] "uid" Count "user it belongs to" |c| Value::Number(c.uid.into());
    "inode" [] "inode" Count "inode of the socket" |c| Value::Number(c.inode.into());
    "cookie" [] "cookie" Count "what the kernel knows the socket by" |c| Value::Number(c.cookie);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_and_no_json_key_stands_twice() {
        let names: Vec<_> = FIELDS.iter().flat_map(|f| f.aliases.iter().chain([&f.name])).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert_eq!(FIELDS.iter().map(|f| f.json).collect::<BTreeSet<_>>().len(), FIELDS.len());
    }

    #[test]
    fn what_a_state_has_not_is_absent() {
        let at = "127.0.0.1:80".parse().unwrap();
        let bare = Connection::bare("".into(), at, at, crate::tcb::State::LISTEN);
        assert_eq!(Field::find("srtt").unwrap().value(&bare), Value::Absent);
        assert_eq!(Field::find("limit").unwrap().value(&bare), Value::Absent);
        assert_eq!(Field::find("dport").unwrap().value(&bare), Value::Number(80));
        assert_eq!(Field::nearest("cwdn"), Some("cwnd"));
    }
}
