//! What two relays say to each other about connections that move: bytes in, bytes out.
//!
//! A message is a byte that says its kind, and JSON. A connection has its bytes behind that: first what was sent on
//! both legs and is not acknowledged, then what is held for both directions. Whatever does not fit together is refused.

use super::watched::WatchedRecord;
use crate::logic::adopted::AdoptedStatus;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::net::SocketAddr;

/// Version of all of this.
pub const VERSION: u32 = 2;
/// Bytes of one connection, in all its queues.
pub const MOST_QUEUED_BYTES: usize = 64 << 20;
/// The rest of a message.
const MOST_WORDS_BYTES: usize = 64 << 10;
/// Longest message.
pub const MOST_BYTES: usize = MOST_QUEUED_BYTES + MOST_WORDS_BYTES + HEAD_BYTES;
/// Connections named in one message.
pub const MOST_NAMED: usize = 256;
/// Watched connections in one message: each takes less than a kilobyte.
pub const MOST_WATCHED: usize = 64;
/// The kind, and how long the JSON is.
const HEAD_BYTES: usize = 5;
/// Shift of a window at most (RFC 7323 section 2.3), window at most, and least segment that a Linux socket can be told.
const MOST_SCALE: u8 = 14;
const MOST_WINDOW_BYTES: u32 = u16::MAX as u32 * (1 << MOST_SCALE);
const LEAST_MSS_BYTES: u16 = 88;

/// Why a connection was not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stay {
    /// The legs have sequence numbers of their own: another `accept` than `end-to-end`.
    Numbers,
    /// Both ends have finished, or one was reset.
    Closing,
    /// Urgent data are under way.
    Urgent,
    /// The relay was stepping into it, or leaving it, or it never rested.
    Busy,
    /// This kernel has no program that keeps its packets away meanwhile.
    Unwatched,
    /// More bytes are queued than are moved.
    Size,
    /// The receiving relay has no rule of that name that accepts end to end.
    Rule,
    /// The receiving relay is full.
    Full,
    /// The receiving relay is ending.
    Draining,
    /// The receiving router has a connection of the same addresses and ports.
    PairBusy,
    /// A socket could not be looked at, or not be made.
    Socket,
    /// The time was over.
    Late,
    /// The other relay was not heard any more.
    Unheard,
}

impl Stay {
    /// All of them.
    pub const ALL: [Stay; 13] = [
        Stay::Numbers,
        Stay::Closing,
        Stay::Urgent,
        Stay::Busy,
        Stay::Unwatched,
        Stay::Size,
        Stay::Rule,
        Stay::Full,
        Stay::Draining,
        Stay::PairBusy,
        Stay::Socket,
        Stay::Late,
        Stay::Unheard,
    ];

    /// As the answer names it.
    pub fn name(self) -> &'static str {
        match self {
            Stay::Numbers => "numbers",
            Stay::Closing => "closing",
            Stay::Urgent => "urgent",
            Stay::Busy => "busy",
            Stay::Unwatched => "unwatched",
            Stay::Size => "size",
            Stay::Rule => "rule",
            Stay::Full => "full",
            Stay::Draining => "draining",
            Stay::PairBusy => "pair_busy",
            Stay::Socket => "socket",
            Stay::Late => "late",
            Stay::Unheard => "unheard",
        }
    }

    /// Whether it may be otherwise in a moment.
    pub fn passes(self) -> bool {
        matches!(self, Stay::Urgent | Stay::Busy)
    }
}

/// A socket that goes on elsewhere: it speaks as one end to the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LegRecord {
    /// The first sequence number that its peer has not acknowledged.
    pub send_next: u32,
    /// How many bytes were sent from there on.
    pub unacknowledged_bytes: u32,
    /// The next sequence number that it expects.
    pub receive_next: u32,
    /// Whether the peer's FIN has come, at that number.
    pub has_fin: bool,
    /// Largest segment that its peer takes.
    pub peer_mss_bytes: u16,
    /// Shift of its peer's windows, and of its own.
    pub peer_scale: u8,
    /// Shift of the socket's own windows.
    pub own_scale: u8,
    /// Both take selective acknowledgements.
    pub sack: bool,
    /// What its clock said, where there are timestamps.
    pub timestamp: Option<u32>,
    /// Window of the peer from `send_next` on.
    pub peer_window_bytes: u32,
    /// What its peer was told, from `window_told_at` on.
    pub told_window_bytes: u32,
    /// The last number that it acknowledged when it told that.
    pub window_told_at: u32,
}

/// A connection whose legs have the ends' own sequence numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionRecord {
    /// Number of the connection at the relay that it leaves.
    pub number: u32,
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// The rule that carries it.
    pub rule: String,
    /// Since its client was accepted.
    pub age_us: u64,
    /// Towards the client, towards the server.
    pub legs: [LegRecord; 2],
    /// Bytes that were received and not sent on: to the server, to the client.
    pub held_bytes: [u32; 2],
    /// Facts of a connection that was adopted in mid-stream, from that moment.
    pub adopted: Option<AdoptedStatus>,
    /// What is known of it since, should it be left in a pause.
    pub watched: Option<WatchedRecord>,
}

/// Bytes of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queues {
    /// Sent towards the client and the server, and not acknowledged.
    pub unacknowledged: [Vec<u8>; 2],
    /// To the server, to the client.
    pub held: [Vec<u8>; 2],
}

impl Queues {
    /// How many there are.
    pub fn bytes(&self) -> usize {
        self.parts().map(Vec::len).sum()
    }

    fn parts(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.unacknowledged.iter().chain(&self.held)
    }
}

/// The speaker at one end of a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// The relay's name.
    pub name: String,
    /// Names the move: a word that was lost is asked for by it.
    pub session: u64,
}

/// A connection by its number, and why it was not taken.
pub type Refused = (u32, Stay);

/// Something that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Both begin with it.
    Hello(Hello),
    /// No, and why, in words.
    Sorry(String),
    /// Connections, of a client and a server each, that will come: their packets are to be dropped until then.
    Expect(Vec<(SocketAddr, SocketAddr)>),
    /// The connections are expected.
    Expected,
    /// A connection.
    Put(Box<ConnectionRecord>, Queues),
    /// All connections for now were put.
    Ready,
    /// Sockets are there for the first of these, which say nothing yet; not for the others.
    Standing(Vec<u32>, Vec<Refused>),
    /// Connections that are the receiver's from now on.
    Go(Vec<u32>),
    /// The connections are taken.
    Taken(Vec<u32>),
    /// Which of these did an earlier session take? The others are never taken.
    Ask(u64, Vec<u32>),
    /// Connections that pass the sender's router from end to end, and may come to pass the receiver's.
    Watched(Vec<WatchedRecord>),
    /// Nothing more follows.
    End,
}

/// Why a message is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Shorter than its head, or longer than any.
    #[error("a message of {0} bytes")]
    Length(usize),
    /// A kind that this version does not have.
    #[error("a message of the unknown kind {0}")]
    Kind(u8),
    /// Words that are not what the kind has.
    #[error("words that are not understood: {0}")]
    Words(String),
    /// Something about a connection that cannot be.
    #[error("a connection of {client} to {server} with {what}")]
    Connection {
        /// The client.
        client: SocketAddr,
        /// The server.
        server: SocketAddr,
        /// What cannot be.
        what: String,
    },
}

impl Message {
    /// As it is sent.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Message::Hello(hello) => written(1, hello),
            Message::Sorry(words) => written(2, words),
            Message::Expect(pairs) => written(3, pairs),
            Message::Expected => written(4, &()),
            Message::Put(record, queues) => {
                let mut bytes = written(5, record);
                bytes.reserve(queues.bytes());
                queues.parts().for_each(|part| bytes.extend_from_slice(part));
                bytes
            }
            Message::Ready => written(6, &()),
            Message::Standing(standing, refused) => written(7, &(standing, refused)),
            Message::Go(numbers) => written(8, numbers),
            Message::Taken(numbers) => written(9, numbers),
            Message::Ask(session, numbers) => written(10, &(session, numbers)),
            Message::End => written(11, &()),
            Message::Watched(watched) => written(12, watched),
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, or says what cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Message, Unreadable> {
        let length = Unreadable::Length(bytes.len());
        let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return Err(length) };
        let words = head[1..].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if bytes.len() > MOST_BYTES || words > MOST_WORDS_BYTES {
            return Err(length);
        }
        let Some((words, queues)) = rest.split_at_checked(words) else { return Err(length) };
        let kind = head[0];
        if kind == 5 {
            return connection(read(words)?, queues);
        }
        if !queues.is_empty() {
            return Err(length);
        }
        Ok(match kind {
            1 => Message::Hello(read(words)?),
            2 => Message::Sorry(read(words)?),
            3 => Message::Expect(few(read(words)?)?),
            4 => read::<()>(words).map(|()| Message::Expected)?,
            6 => read::<()>(words).map(|()| Message::Ready)?,
            7 => {
                let (standing, refused) = read(words)?;
                Message::Standing(few(standing)?, few(refused)?)
            }
            8 => Message::Go(few(read(words)?)?),
            9 => Message::Taken(few(read(words)?)?),
            10 => {
                let (session, numbers) = read(words)?;
                Message::Ask(session, few(numbers)?)
            }
            11 => read::<()>(words).map(|()| Message::End)?,
            12 => Message::Watched(watched(read(words)?)?),
            kind => return Err(Unreadable::Kind(kind)),
        })
    }
}

fn written(kind: u8, words: &impl Serialize) -> Vec<u8> {
    // Numbers, names and addresses are always written.
    let words = serde_json::to_vec(words).unwrap_or_default();
    let length = (words.len() as u32).to_be_bytes();
    [kind].into_iter().chain(length).chain(words).collect()
}

fn read<T: DeserializeOwned>(words: &[u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(words).map_err(|error| Unreadable::Words(error.to_string()))
}

fn few<T>(named: Vec<T>) -> Result<Vec<T>, Unreadable> {
    let count = named.len();
    if count > MOST_NAMED {
        return Err(Unreadable::Words(format!("{count} connections in one message; {MOST_NAMED} at most")));
    }
    Ok(named)
}

fn watched(watched: Vec<WatchedRecord>) -> Result<Vec<WatchedRecord>, Unreadable> {
    let count = watched.len();
    if count > MOST_WATCHED {
        return Err(Unreadable::Words(format!("{count} connections in one message; {MOST_WATCHED} at most")));
    }
    match watched.iter().find_map(|one| one.contradiction().map(|what| (one, what))) {
        Some((WatchedRecord { client, server, .. }, what)) => {
            Err(Unreadable::Connection { client: *client, server: *server, what })
        }
        None => Ok(watched),
    }
}

fn connection(record: ConnectionRecord, mut bytes: &[u8]) -> Result<Message, Unreadable> {
    if let Some(what) = record.contradiction(bytes.len()) {
        return Err(Unreadable::Connection { client: record.client, server: record.server, what });
    }
    let mut next = |count: u32| {
        let (part, rest) = bytes.split_at(count as usize);
        bytes = rest;
        part.to_vec()
    };
    let unacknowledged = [0, 1].map(|leg: usize| next(record.legs[leg].unacknowledged_bytes));
    let held = record.held_bytes.map(&mut next);
    Ok(Message::Put(Box::new(record), Queues { unacknowledged, held }))
}

impl ConnectionRecord {
    /// What about it cannot be, if so many bytes came with it.
    fn contradiction(&self, bytes: usize) -> Option<String> {
        let counts = self.legs.iter().map(|leg| leg.unacknowledged_bytes).chain(self.held_bytes);
        let counted: u64 = counts.map(u64::from).sum();
        if counted != bytes as u64 {
            return Some(format!("{bytes} bytes where {counted} are counted"));
        }
        let watched = || {
            let watched = self.watched.as_ref()?;
            let is_other = (watched.client, watched.server) != (self.client, self.server);
            watched.contradiction().or_else(|| is_other.then(|| "what is known of another one".into()))
        };
        pair_contradiction(self.client, self.server)
            .or_else(|| self.legs.iter().find_map(LegRecord::contradiction))
            .or_else(watched)
    }
}

/// What about the ends of a connection cannot be.
pub(super) fn pair_contradiction(client: SocketAddr, server: SocketAddr) -> Option<String> {
    let is_none =
        client.is_ipv4() != server.is_ipv4() || client == server || client.port() == 0 || server.port() == 0;
    is_none.then(|| "addresses of no connection".into())
}

impl LegRecord {
    fn contradiction(&self) -> Option<String> {
        let scale = self.peer_scale.max(self.own_scale);
        if scale > MOST_SCALE {
            return Some(format!("windows shifted by {scale}"));
        }
        if self.peer_mss_bytes < LEAST_MSS_BYTES {
            return Some(format!("segments of {} bytes", self.peer_mss_bytes));
        }
        let window = self.peer_window_bytes.max(self.told_window_bytes);
        if window > MOST_WINDOW_BYTES {
            return Some(format!("a window of {window} bytes"));
        }
        let unacknowledged = self.receive_next.wrapping_sub(self.window_told_at);
        (unacknowledged > MOST_WINDOW_BYTES).then(|| format!("{unacknowledged} bytes not acknowledged"))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::watched::OfferRecord, *};
    use proptest::prelude::*;

    fn leg() -> impl Strategy<Value = LegRecord> {
        let numbers = (any::<u32>(), any::<u32>(), 0..MOST_WINDOW_BYTES, 0..MOST_WINDOW_BYTES, 0u32..70_000);
        let agreed =
            (LEAST_MSS_BYTES..9000, 0..=MOST_SCALE, 0..=MOST_SCALE, any::<bool>(), any::<Option<u32>>());
        (numbers, agreed, any::<bool>()).prop_map(|(numbers, agreed, has_fin)| {
            let (send_next, receive_next, peer_window_bytes, told_window_bytes, unacknowledged) = numbers;
            let (peer_mss_bytes, peer_scale, own_scale, sack, timestamp) = agreed;
            LegRecord {
                send_next,
                unacknowledged_bytes: 0,
                receive_next,
                has_fin,
                peer_mss_bytes,
                peer_scale,
                own_scale,
                sack,
                timestamp,
                peer_window_bytes,
                told_window_bytes,
                window_told_at: receive_next.wrapping_sub(unacknowledged),
            }
        })
    }

    fn watched(client: SocketAddr, server_port: u16) -> WatchedRecord {
        let offer = |byte: u8| OfferRecord { header: vec![byte; 60], payload_bytes: u16::MAX };
        WatchedRecord {
            client,
            server: SocketAddr::new(client.ip(), server_port),
            syn: offer(255),
            answer: offer(128),
            next: [u32::MAX; 2],
            passed_bytes: u64::MAX,
            repeated_bytes: u64::MAX,
            age_us: u64::MAX,
            rtts_us: [None, Some(u32::MAX)],
        }
    }

    fn put() -> impl Strategy<Value = Message> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..200);
        let queues = [bytes(), bytes(), bytes(), bytes()];
        (any::<[u8; 4]>(), any::<[u8; 16]>(), any::<bool>(), [leg(), leg()], queues, 1u16..).prop_map(
            |(four, six, is_ipv6, mut legs, [one, two, up, down], port)| {
                let ip = if is_ipv6 { std::net::IpAddr::from(six) } else { four.into() };
                let held_bytes = [&up, &down].map(|part| part.len() as u32);
                for (leg, part) in legs.iter_mut().zip([&one, &two]) {
                    leg.unacknowledged_bytes = part.len() as u32;
                }
                let record = ConnectionRecord {
                    number: u32::from(port),
                    client: SocketAddr::new(ip, port),
                    server: SocketAddr::new(ip, port.wrapping_add(2).max(1)),
                    rule: "default".into(),
                    age_us: 7,
                    legs,
                    held_bytes,
                    adopted: (port > 99).then_some(AdoptedStatus {
                        passed_bytes: 1,
                        repeated_bytes: 0,
                        age_us: 2,
                        client_rtt_us: Some(3),
                        server_rtt_us: None,
                    }),
                    watched: (port > 999)
                        .then(|| watched(SocketAddr::new(ip, port), port.wrapping_add(2).max(1))),
                };
                let queues = Queues { unacknowledged: [one, two], held: [up, down] };
                Message::Put(Box::new(record), queues)
            },
        )
    }

    fn message() -> impl Strategy<Value = Message> {
        let numbers = || prop::collection::vec(any::<u32>(), 0..MOST_NAMED);
        let refused = prop::collection::vec((any::<u32>(), prop::sample::select(&Stay::ALL)), 0..9);
        let pair: (SocketAddr, SocketAddr) =
            ("192.0.2.1:1".parse().unwrap(), "[2001:db8::1]:2".parse().unwrap());
        prop_oneof![
            4 => put(),
            1 => (any::<u64>(), "[a-z]{1,8}").prop_map(|(session, name)| {
                Message::Hello(Hello { version: VERSION, name, session })
            }),
            1 => any::<String>().prop_map(Message::Sorry),
            1 => (0..MOST_NAMED).prop_map(move |count| Message::Expect(vec![pair; count])),
            1 => (numbers(), refused).prop_map(|(numbers, refused)| Message::Standing(numbers, refused)),
            1 => numbers().prop_map(Message::Go),
            1 => numbers().prop_map(Message::Taken),
            1 => (any::<u64>(), numbers()).prop_map(|(session, numbers)| Message::Ask(session, numbers)),
            1 => (0..=MOST_WATCHED).prop_map(move |count| {
                Message::Watched(vec![watched("[2001:db8:1:1:1:1:1:1]:65535".parse().unwrap(), 65534); count])
            }),
            1 => prop::sample::select(vec![Message::Expected, Message::Ready, Message::End]),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_it_was(message in message()) {
            prop_assert_eq!(Message::parse(&message.bytes()), Ok(message));
        }

        #[test]
        fn any_bytes_are_read_or_refused_with_words(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Err(error) = Message::parse(&bytes) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn a_connection_with_a_byte_too_few_or_too_many_is_refused(message in put(), more in any::<bool>()) {
            let mut bytes = message.bytes();
            if more { bytes.push(0) } else { bytes.pop(); }
            prop_assert!(Message::parse(&bytes).is_err());
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_value() {
        let leg = LegRecord {
            send_next: 1,
            unacknowledged_bytes: 0,
            receive_next: 2,
            has_fin: false,
            peer_mss_bytes: 1460,
            peer_scale: 7,
            own_scale: 7,
            sack: true,
            timestamp: None,
            peer_window_bytes: 1,
            told_window_bytes: 1,
            window_told_at: 2,
        };
        let good = ConnectionRecord {
            number: 3,
            client: "192.0.2.1:1000".parse().unwrap(),
            server: "192.0.2.2:80".parse().unwrap(),
            rule: "default".into(),
            age_us: 0,
            legs: [leg.clone(), leg.clone()],
            held_bytes: [0; 2],
            adopted: None,
            watched: None,
        };
        assert_eq!(good.contradiction(0), None);
        let said = |change: fn(&mut ConnectionRecord)| {
            let mut record = good.clone();
            change(&mut record);
            let sent = Message::Put(Box::new(record), Queues::default()).bytes();
            Message::parse(&sent).unwrap_err().to_string()
        };
        assert!(said(|record| record.legs[1].own_scale = 15).contains("15"));
        assert!(said(|record| record.legs[0].peer_mss_bytes = 87).contains("87"));
        assert!(said(|record| record.legs[0].told_window_bytes = u32::MAX).contains("4294967295"));
        assert!(said(|record| record.legs[0].window_told_at = 3).contains("not acknowledged"));
        assert!(said(|record| record.held_bytes[0] = 9).contains("9 are counted"));
        assert!(said(|record| record.server = "[2001:db8::1]:80".parse().unwrap()).contains("2001:db8::1"));
        let other = |record: &mut ConnectionRecord| record.watched = Some(watched(record.client, 81));
        assert!(said(other).contains("another one"));
        let strange = Message::Watched(vec![watched("192.0.2.1:1".parse().unwrap(), 0)]).bytes();
        assert!(Message::parse(&strange).unwrap_err().to_string().contains("addresses of no connection"));
        let many =
            Message::Watched(vec![watched("192.0.2.1:1".parse().unwrap(), 2); MOST_WATCHED + 1]).bytes();
        let many = Message::parse(&many).unwrap_err().to_string();
        assert!(many.contains("65") || many.contains("bytes"), "{many}");
        let many = Message::Go(vec![0; MOST_NAMED + 1]).bytes();
        assert!(Message::parse(&many).unwrap_err().to_string().contains("257"));
    }
}
