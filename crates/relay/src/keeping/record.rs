//! Records of a handover, as they are written: pure, and read by types that refuse what they do not know.
//!
//! A message is one datagram: what it says (a byte), of which holding (a number), its body (JSON), and descriptors
//! beside it. Whoever only keeps holdings for others needs no more than the first two.

use crate::logic::{
    adopted::AdoptedStatus,
    connection::{Direction, Side},
};
use longfat_kernel::acknowledge;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What whoever comes to a keeper too early hears.
pub(crate) const LIVES: &str = "its relay lives";
/// Version of all of this. A relay of another one refuses, and nothing is touched.
pub const VERSION: u32 = 1;
/// Longest body.
pub const MOST_BYTES: usize = 16 * 1024;
/// Most descriptors beside a message: two sockets, and a pipe for each direction.
pub const MOST_DESCRIPTORS: usize = 6;
const HEAD_BYTES: usize = 9;

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Say {
    /// The speaker: a [`Hello`].
    Hello = 1,
    /// A [`Holding`], with its descriptors.
    Put = 2,
    /// A connection and all that belongs to it has gone.
    Gone = 3,
    /// Nothing more follows.
    End = 4,
    /// The successor stands and wants the connections.
    Give = 5,
    /// The successor holds everything.
    Held = 6,
    /// All is the successor's from now on.
    Go = 7,
    /// No, and why, in words.
    Refused = 8,
}

impl Say {
    const ALL: [Say; 8] =
        [Say::Hello, Say::Put, Say::Gone, Say::End, Say::Give, Say::Held, Say::Go, Say::Refused];
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
    /// A body that is not what its kind has.
    #[error("a body that is not understood: {0}")]
    Body(String),
    /// Descriptors are missing, or too many.
    #[error("{found} descriptors instead of {wanted} beside {what}")]
    Descriptors {
        /// Beside what.
        what: String,
        /// How many belong there.
        wanted: usize,
        /// How many came.
        found: usize,
    },
}

/// A message without its descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub say: Say,
    /// Number of the holding; zero where there is none.
    pub id: u64,
    /// JSON, or words of a refusal.
    pub body: Vec<u8>,
}

impl Message {
    /// Without a body.
    pub fn bare(say: Say, id: u64) -> Message {
        Message { say, id, body: Vec::new() }
    }

    /// With something that is written as JSON.
    pub fn with(say: Say, id: u64, body: &impl Serialize) -> Message {
        Message { say, id, body: serde_json::to_vec(body).unwrap_or_default() }
    }

    /// As it is sent.
    pub fn bytes(&self) -> Vec<u8> {
        let head = [self.say as u8].into_iter().chain(self.id.to_le_bytes());
        head.chain(self.body.iter().copied()).collect()
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, or of a kind that this version does not have.
    pub fn parse(bytes: &[u8]) -> Result<Message, Unreadable> {
        let Some((head, body)) = bytes.split_at_checked(HEAD_BYTES) else {
            return Err(Unreadable::Length(bytes.len()));
        };
        if body.len() > MOST_BYTES {
            return Err(Unreadable::Length(bytes.len()));
        }
        let say = Say::ALL.into_iter().find(|say| *say as u8 == head[0]);
        let say = say.ok_or(Unreadable::Kind(head[0]))?;
        let id = u64::from_le_bytes(head[1..].try_into().unwrap_or_default());
        Ok(Message { say, id, body: body.to_vec() })
    }

    /// Reads the body as a type.
    ///
    /// # Errors
    /// It is something else.
    pub fn read<T: for<'a> Deserialize<'a>>(&self) -> Result<T, Unreadable> {
        serde_json::from_slice(&self.body).map_err(|error| Unreadable::Body(error.to_string()))
    }

    /// The holding that it puts, which must come with so many descriptors.
    ///
    /// # Errors
    /// It is none, or others belong to it.
    pub fn holding(&self, descriptors: usize) -> Result<Holding, Unreadable> {
        let holding: Holding = self.read()?;
        let wanted = holding.descriptors();
        if wanted != descriptors {
            let what = holding.what().to_owned();
            return Err(Unreadable::Descriptors { what, wanted, found: descriptors });
        }
        Ok(holding)
    }
}

/// The speaker at one end of a handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// The relay's name.
    pub name: String,
    /// Process number of the speaker.
    pub pid: u32,
    /// Worker threads of the speaker: listeners and interfaces are each worker's own.
    pub workers: usize,
}

/// Numbers of a connection's holdings: its sockets', a pipe's for each direction, and that of a failure.
pub const PER_CONNECTION: u64 = 4;

/// Something that has descriptors, or belongs to what has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Holding {
    /// One worker's listener.
    Listener {
        /// What it is for.
        purpose: Purpose,
        /// Where it listens.
        address: SocketAddr,
        /// The worker that has it.
        worker: usize,
    },
    /// The interface by which one worker holds SYNs of a rule.
    Interface {
        /// The rule's index.
        rule: usize,
        /// The worker.
        holder: usize,
    },
    /// The socket that says to other PID namespaces that the relay lives.
    Life {},
    /// The listening socket of `longfat relay status`.
    Control {},
    /// The listening socket of the metrics.
    Metrics {},
    /// The wire to the keeper.
    Keeper {},
    /// Where successors ask.
    Exit {},
    /// What is known of connections that are watched, or were: two maps of the kernel.
    Watched {
        /// How what lies in them is laid out.
        layout: u32,
    },
    /// Link of a program at an interface by which packets look forwarded.
    Alike {},
    /// Programs at tc that hold acknowledgements back: their maps, and both ends of the box in which they lie.
    Acknowledging {
        /// How what lies in the maps is laid out.
        layout: u32,
    },
    /// Both sockets of a connection, and its buffers.
    Connection(Box<ConnectionRecord>),
    /// A pipe of the connection whose number is next below that divides by [`PER_CONNECTION`].
    Pipe {
        /// Direction whose bytes the pipe holds.
        direction: Way,
    },
    /// A side of that connection was found reset: its socket may not say so any more.
    Failed(Failure),
    /// A SYN that is held, and the dial to its server, if it has begun.
    Handshake {
        /// The index of the rule whose interface it came in by.
        rule: usize,
        /// The worker that holds it.
        holder: usize,
        /// The packet.
        syn: Vec<u8>,
        /// Whether the dial's socket is there.
        is_dialled: bool,
    },
}

/// What a listener is for: a listener with the same purpose is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Purpose {
    /// Clients connect to this address.
    Own(SocketAddr),
    /// Clients intercepted by the rule of that name.
    Rule {
        /// The rule's name.
        name: String,
        /// Which IP family.
        ipv6: bool,
    },
}

/// A [`Direction`], as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl From<Direction> for Way {
    fn from(direction: Direction) -> Way {
        match direction {
            Direction::ClientToServer => Way::ToServer,
            Direction::ServerToClient => Way::ToClient,
        }
    }
}

impl From<Way> for Direction {
    fn from(way: Way) -> Direction {
        match way {
            Way::ToServer => Direction::ClientToServer,
            Way::ToClient => Direction::ServerToClient,
        }
    }
}

/// What a side failed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// Whether it was the client.
    pub is_client: bool,
    /// Whether it had finished sending before.
    pub after_fin: bool,
}

impl Failure {
    /// Which side it was.
    pub fn side(self) -> Side {
        if self.is_client { Side::Client } else { Side::Server }
    }
}

/// Where a direction's bytes are that were read and not yet written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// There are none, or they are in a pipe that comes by itself.
    #[default]
    Nowhere,
    /// In a pipe: its reading and its writing end.
    Pipe,
    /// In memory: a file of it.
    Memory,
    /// This byte, which is urgent.
    Mark(u8),
}

impl Held {
    fn descriptors(self) -> usize {
        match self {
            Held::Nowhere | Held::Mark(_) => 0,
            Held::Memory => 1,
            Held::Pipe => 2,
        }
    }
}

/// What is known of a connection beside its sockets. What they say themselves is not written here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionRecord {
    /// Number of the connection in records and log.
    pub number: u32,
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// The listener that its client connected to; none for one that is intercepted.
    pub listener: Option<SocketAddr>,
    /// How many of that listener's servers are not yet tried.
    pub untried: usize,
    /// The rule that carries it.
    pub rule: String,
    /// CLOCK_MONOTONIC when its client was accepted.
    pub accepted_us: i64,
    /// The worker that has it.
    pub worker: usize,
    /// Per direction.
    pub held: [Held; 2],
    /// A side that was found reset.
    pub failure: Option<Failure>,
    /// Whether sockets were put between the connection's ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inserted: bool,
    /// Bytes that the ends had sent before, as the sockets of the client's and the server's leg count them.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub loaded_bytes: [u64; 2],
    /// Bytes that came with it from another router, as if they had been received by the client's and the server's leg.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub brought_bytes: [u64; 2],
    /// Facts of a connection that was adopted in mid-stream, from that moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<AdoptedStatus>,
}

fn is_nothing(bytes: &[u64; 2]) -> bool {
    *bytes == [0; 2]
}

impl Holding {
    /// How many descriptors belong to it.
    pub fn descriptors(&self) -> usize {
        match self {
            Holding::Failed(_) => 0,
            Holding::Handshake { is_dialled, .. } => usize::from(*is_dialled),
            Holding::Pipe { .. } | Holding::Watched { .. } => 2,
            Holding::Acknowledging { layout } => acknowledge::descriptor_count(*layout),
            Holding::Connection(record) => {
                2 + record.held.iter().map(|held| held.descriptors()).sum::<usize>()
            }
            _ => 1,
        }
    }

    /// Kind of the holding, for a person.
    pub fn what(&self) -> &'static str {
        match self {
            Holding::Listener { .. } => "a listener",
            Holding::Interface { .. } => "an interface",
            Holding::Life {} => "a sign of life",
            Holding::Control {} => "a control socket",
            Holding::Metrics {} => "a socket of metrics",
            Holding::Keeper {} => "the wire to the keeper",
            Holding::Exit {} => "a socket for successors",
            Holding::Watched { .. } => "what is known of watched connections",
            Holding::Alike {} => "a program at an interface",
            Holding::Acknowledging { .. } => "programs that hold acknowledgements back",
            Holding::Connection(_) => "a connection",
            Holding::Pipe { .. } => "a pipe",
            Holding::Failed(_) => "a failure",
            Holding::Handshake { .. } => "a handshake",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(SocketAddr::from),
            any::<([u16; 8], u16)>().prop_map(SocketAddr::from)
        ]
    }

    fn held() -> impl Strategy<Value = Held> {
        prop_oneof![
            Just(Held::Nowhere),
            Just(Held::Pipe),
            Just(Held::Memory),
            any::<u8>().prop_map(Held::Mark)
        ]
    }

    fn failure() -> impl Strategy<Value = Failure> {
        any::<(bool, bool)>().prop_map(|(is_client, after_fin)| Failure { is_client, after_fin })
    }

    fn connection() -> impl Strategy<Value = ConnectionRecord> {
        let ends = (address(), address(), prop::option::of(address()));
        let rest = (any::<(u32, i64)>(), 0usize..100, "[a-z0-9-]{0,40}", [held(), held()]);
        (ends, rest, prop::option::of(failure())).prop_map(|(ends, rest, failure)| {
            let ((client, server, listener), ((number, accepted_us), some, rule, held)) = (ends, rest);
            let (untried, worker, inserted) = (some, some / 2, some % 2 == 0 && listener.is_none());
            ConnectionRecord {
                number,
                client,
                server,
                listener,
                untried,
                rule,
                accepted_us,
                worker,
                held,
                failure,
                inserted,
                loaded_bytes: if inserted { [some as u64, 7] } else { [0; 2] },
                brought_bytes: if inserted { [3, some as u64] } else { [0; 2] },
                adopted: inserted.then_some(AdoptedStatus {
                    passed_bytes: some as u64,
                    repeated_bytes: 1,
                    age_us: 2,
                    client_rtt_us: None,
                    server_rtt_us: Some(3),
                }),
            }
        })
    }

    fn purpose() -> impl Strategy<Value = Purpose> {
        let rule = ("[a-z-]{1,9}", any::<bool>()).prop_map(|(name, ipv6)| Purpose::Rule { name, ipv6 });
        prop_oneof![address().prop_map(Purpose::Own), rule]
    }

    fn holding() -> impl Strategy<Value = Holding> {
        let listener = (purpose(), address(), 0usize..9);
        let handshake = (any::<(u8, u8, bool)>(), prop::collection::vec(any::<u8>(), 0..200));
        prop_oneof![
            listener.prop_map(|(purpose, address, worker)| Holding::Listener { purpose, address, worker }),
            any::<(u8, u8)>()
                .prop_map(|(rule, holder)| Holding::Interface { rule: rule.into(), holder: holder.into() }),
            connection().prop_map(|record| Holding::Connection(Box::new(record))),
            failure().prop_map(Holding::Failed),
            Just(Holding::Alike {}),
            any::<u32>().prop_map(|layout| Holding::Watched { layout }),
            any::<u32>().prop_map(|layout| Holding::Acknowledging { layout }),
            any::<bool>()
                .prop_map(|up| Holding::Pipe { direction: if up { Way::ToServer } else { Way::ToClient } }),
            handshake.prop_map(|((rule, holder, is_dialled), syn)| {
                Holding::Handshake { rule: rule.into(), holder: holder.into(), syn, is_dialled }
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(holding in holding(), id: u64) {
            let message = Message::with(Say::Put, id, &holding);
            let read = Message::parse(&message.bytes()).unwrap();
            prop_assert_eq!(&read, &message);
            prop_assert_eq!(read.holding(holding.descriptors()), Ok(holding.clone()));
            prop_assert!(read.holding(holding.descriptors() + 1).is_err());
        }

        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.bytes(), bytes);
                let _ = (message.holding(2), message.read::<Hello>());
            }
        }
    }

    /// What lies in a keeper, or comes from a relay of last year: a change here needs another version.
    #[test]
    fn the_format_of_version_1() {
        let record = ConnectionRecord {
            number: 7,
            client: "192.0.2.1:4000".parse().unwrap(),
            server: "[2001:db8::1]:80".parse().unwrap(),
            listener: None,
            untried: 0,
            rule: "science".into(),
            accepted_us: 12,
            worker: 1,
            held: [Held::Memory, Held::Mark(33)],
            failure: Some(Failure { is_client: true, after_fin: false }),
            inserted: false,
            loaded_bytes: [0; 2],
            brought_bytes: [0; 2],
            adopted: None,
        };
        let message = Message::with(Say::Put, 4, &Holding::Connection(Box::new(record)));
        assert_eq!(message.bytes()[..HEAD_BYTES], [2, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            String::from_utf8(message.body).unwrap(),
            r#"{"connection":{"number":7,"client":"192.0.2.1:4000","server":"[2001:db8::1]:80","listener":null,"untried":0,"rule":"science","accepted_us":12,"worker":1,"held":["memory",{"mark":33}],"failure":{"is_client":true,"after_fin":false}}}"#
        );
    }

    #[test]
    fn what_is_not_known_is_refused_with_its_name() {
        let put = |body: &str| Message { say: Say::Put, id: 1, body: body.into() };
        let refused = |body: &str, descriptors| put(body).holding(descriptors).unwrap_err().to_string();
        assert!(refused(r#"{"tomorrow":{}}"#, 1).contains("tomorrow"));
        assert!(refused(r#"{"failed":{"is_client":true,"after_fin":false,"why":1}}"#, 0).contains("why"));
        assert!(refused(r#"{"life":{}}"#, 0).contains("0 descriptors instead of 1 beside a sign of life"));
        assert_eq!(Message::parse(&[99; 9]), Err(Unreadable::Kind(99)));
        assert_eq!(Message::parse(b"short"), Err(Unreadable::Length(5)));
    }
}
