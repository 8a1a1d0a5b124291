//! Messages of the control connection: JSON behind a 4-byte big-endian length, bounded.
//!
//! ```text
//! client                                   server
//!   Hello {version, nonce, plan}   ──▶
//!                                  ◀──     Challenge {version, nonce}       only when the server has a key
//!   Proof {proof}                  ──▶
//!                                  ◀──     Welcome {version, transfer, token, ports, proof}
//!                                          or  Refused {version, reason}
//!   Ping ⇄ Pong                             clock offset on the idle path; later: signs of life
//!   (data connections: see `preamble`; UDP: hello, and where the server sends: challenge, answer)
//!                                  ◀──     Ready
//!   Start                          ──▶     only when the server sends: it begins
//!                                  ◀──     Records, while it runs
//!   Results                        ⇄       Results
//! ```

use crate::{
    ends::{SinkEnd, SourceEnd},
    plan::TransferPlan,
};
use longfat_schema::record::Record;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version of the protocol. The ends must have the same.
pub const PROTOCOL_VERSION: u32 = 5;
/// Largest message. Longer ones are refused before they are read.
pub const FRAME_MAX_BYTES: usize = 1 << 20;
/// Largest message of a client with which no transfer is agreed yet.
pub const HELLO_MAX_BYTES: usize = 8 << 10;
/// Room in a client's last message for the figures of one stream.
const RESULT_MAX_BYTES: usize = 2 << 10;
/// Most records in one message.
pub const RECORDS_MAX: usize = 512;

/// What the ends say to each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    /// Opens the conversation.
    Hello(Hello),
    /// The server asks for a proof that the client has its key.
    Challenge(Challenge),
    /// The client has it.
    Proof(Proof),
    /// The server agrees.
    Welcome(Welcome),
    /// The server does not agree.
    Refused(Refused),
    /// A sign of life.
    Ping(Ping),
    /// The answer.
    Pong(Pong),
    /// All data connections are there.
    Ready,
    /// The start has come: payload may flow, and time counts.
    Start,
    /// What the server measured since the last such message.
    Records(Records),
    /// End the transfer early, keeping what was measured.
    Stop(Stop),
    /// What this end's streams came to. Its last message.
    Results(Results),
}

/// Content of [`Message::Hello`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The client's protocol version.
    pub version: u32,
    /// A number of the client's that no other conversation has.
    pub nonce: String,
    /// What it wants.
    pub plan: TransferPlan,
}

/// Content of [`Message::Challenge`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The server's protocol version.
    pub version: u32,
    /// A number of the server's that no other conversation has.
    pub nonce: String,
}

/// Content of [`Message::Proof`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// HMAC-SHA-256 over hello and challenge, in hexadecimal.
    pub proof: String,
}

/// Content of [`Message::Welcome`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The server's protocol version.
    pub version: u32,
    /// Number of the transfer at this server.
    pub transfer: u64,
    /// What each data connection must show besides, in hexadecimal.
    pub token: String,
    /// Where data go: nothing, which is where the control connection went; a TCP port for data alone; or one UDP port
    /// per stream.
    pub ports: Vec<u16>,
    /// Proof of a server with a key: HMAC-SHA-256 over hello, challenge and this answer, in hexadecimal.
    pub proof: Option<String>,
}

/// Content of [`Message::Refused`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The server's protocol version.
    pub version: u32,
    /// Why, for a person.
    pub reason: String,
}

/// Content of [`Message::Ping`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// CLOCK_MONOTONIC of the asking end.
    pub time_us: i64,
}

/// Content of [`Message::Pong`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// From the question.
    pub ping_us: i64,
    /// CLOCK_MONOTONIC of the answering end.
    pub time_us: i64,
}

/// Content of [`Message::Records`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Records {
    /// At most [`RECORDS_MAX`].
    pub records: Vec<Record>,
}

/// Content of [`Message::Stop`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Why, for a person.
    pub reason: String,
}

/// Content of [`Message::Results`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Streams as the sending end saw them.
    pub sources: Vec<SourceEnd>,
    /// Streams as the receiving end saw them.
    pub sinks: Vec<SinkEnd>,
}

/// Bytes that are no message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is out of bounds.
    #[error("a message of {bytes} bytes (the limit is {limit_bytes})")]
    TooLong {
        /// What it claims.
        bytes: usize,
        /// What it may have.
        limit_bytes: usize,
    },
    /// Not one of ours.
    #[error("an unreadable message: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// A program of another version wrote it.
    #[error("a message of version {0} (this program speaks {PROTOCOL_VERSION})")]
    Version(u32),
    /// Only the other end says such things.
    #[error("a message that is not for it to send")]
    WrongSpeaker,
}

/// End of the control connection that speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The end that asks for the transfer.
    Client,
    /// The end that waits for it.
    Server,
}

/// The name of a message, read before anything else of it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Name {
    Hello,
    Challenge,
    Proof,
    Welcome,
    Refused,
    Ping,
    Pong,
    Ready,
    Start,
    Records,
    Stop,
    Results,
}

impl Name {
    fn is_said_by(self, speaker: Speaker) -> bool {
        match self {
            Name::Ping | Name::Pong | Name::Stop | Name::Results => true,
            Name::Hello | Name::Proof | Name::Start => speaker == Speaker::Client,
            Name::Challenge | Name::Welcome | Name::Refused | Name::Ready | Name::Records => {
                speaker == Speaker::Server
            }
        }
    }
}

/// What messages of every version have; the rest is passed over without being kept.
#[derive(Deserialize)]
struct Head {
    message: Name,
    version: Option<u32>,
}

impl Message {
    /// Reads a message of `speaker`. First its name and version alone, then straight into its own fields: nothing in it
    /// can ask for more memory than these.
    pub fn decode(body: &[u8], speaker: Speaker) -> Result<Message, FrameError> {
        fn content<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
            Ok(serde_json::from_slice(body)?)
        }
        let head: Head = content(body)?;
        if let Some(theirs) = head.version.filter(|version| *version != PROTOCOL_VERSION) {
            return Err(FrameError::Version(theirs));
        }
        if !head.message.is_said_by(speaker) {
            return Err(FrameError::WrongSpeaker);
        }
        Ok(match head.message {
            Name::Hello => Message::Hello(content(body)?),
            Name::Challenge => Message::Challenge(content(body)?),
            Name::Proof => Message::Proof(content(body)?),
            Name::Welcome => Message::Welcome(content(body)?),
            Name::Refused => Message::Refused(content(body)?),
            Name::Ping => Message::Ping(content(body)?),
            Name::Pong => Message::Pong(content(body)?),
            Name::Ready => Message::Ready,
            Name::Start => Message::Start,
            Name::Records => Message::Records(content(body)?),
            Name::Stop => Message::Stop(content(body)?),
            Name::Results => Message::Results(content(body)?),
        })
    }

    /// A refusal of this version.
    pub fn refusal(reason: String) -> Message {
        Message::Refused(Refused { version: PROTOCOL_VERSION, reason })
    }
}

/// The message as bytes to be sent.
pub fn encode(message: &Message) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let bytes = frame.len() - 4;
    if bytes > FRAME_MAX_BYTES {
        return Err(FrameError::TooLong { bytes, limit_bytes: FRAME_MAX_BYTES });
    }
    frame[..4].copy_from_slice(&(bytes as u32).to_be_bytes());
    Ok(frame)
}

/// Puts messages together from bytes that arrive in chunks of any size.
#[derive(Debug)]
pub struct FrameReader {
    held: Vec<u8>,
    speaker: Speaker,
    limit_bytes: usize,
}

impl FrameReader {
    /// Reads what a server says.
    pub fn of_server() -> FrameReader {
        FrameReader { held: Vec::new(), speaker: Speaker::Server, limit_bytes: FRAME_MAX_BYTES }
    }

    /// Reads what a client says of whom nothing is known yet.
    pub fn of_stranger() -> FrameReader {
        FrameReader { held: Vec::new(), speaker: Speaker::Client, limit_bytes: HELLO_MAX_BYTES }
    }

    /// From now on the client may send the figures of so many streams.
    pub fn agree_on(&mut self, streams: u32) {
        self.limit_bytes = (HELLO_MAX_BYTES + streams as usize * RESULT_MAX_BYTES).min(FRAME_MAX_BYTES);
    }

    /// How many bytes may be pushed before the longest message is whole.
    pub fn room_bytes(&self) -> usize {
        (4 + self.limit_bytes).saturating_sub(self.held.len())
    }

    /// What was pushed and is not part of a whole message yet.
    pub(crate) fn held(&self) -> &[u8] {
        &self.held
    }

    /// Takes bytes read from the connection.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Forgets what was pushed.
    pub fn clear(&mut self) {
        self.held = Vec::new();
    }

    /// The next whole message, if there is one. After an error the connection is of no more use.
    pub fn next_message(&mut self) -> Result<Option<Message>, FrameError> {
        let Some(&[a, b, c, d]) = self.held.first_chunk::<4>() else { return Ok(None) };
        let bytes = u32::from_be_bytes([a, b, c, d]) as usize;
        if bytes > self.limit_bytes {
            return Err(FrameError::TooLong { bytes, limit_bytes: self.limit_bytes });
        }
        let Some(body) = self.held.get(4..4 + bytes) else { return Ok(None) };
        let message = Message::decode(body, self.speaker)?;
        self.held.drain(..4 + bytes);
        if self.held.is_empty() && self.held.capacity() > HELLO_MAX_BYTES {
            self.clear();
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<Message> {
        vec![
            Message::Ready,
            Message::refusal("no".into()),
            Message::Welcome(Welcome {
                version: PROTOCOL_VERSION,
                transfer: u64::MAX,
                token: "ff".into(),
                ports: vec![1, 65535],
                proof: None,
            }),
        ]
    }

    fn hello() -> Message {
        Message::Hello(Hello {
            version: PROTOCOL_VERSION,
            nonce: "0f".repeat(16),
            plan: TransferPlan::default(),
        })
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(sizes in prop::collection::vec(1usize..50, 1..10)) {
            let bytes: Vec<u8> = messages().iter().flat_map(|message| encode(message).unwrap()).collect();
            let (mut reader, mut found, mut at) = (FrameReader::of_server(), Vec::new(), 0);
            for size in sizes.iter().cycle() {
                if at == bytes.len() { break }
                let end = (at + size).min(bytes.len());
                reader.push(&bytes[at..end]);
                at = end;
                while let Some(message) = reader.next_message().unwrap() { found.push(message); }
            }
            prop_assert_eq!(found, messages());
        }

        #[test]
        fn arbitrary_bytes_never_panic_nor_are_kept_without_bound(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..20)
        ) {
            let mut reader = FrameReader::of_stranger();
            for chunk in &chunks {
                reader.push(&chunk[..chunk.len().min(reader.room_bytes())]);
                while let Ok(Some(_)) = reader.next_message() {}
                prop_assert!(reader.held.len() <= 4 + HELLO_MAX_BYTES);
            }
        }

        #[test]
        fn arbitrary_json_is_a_message_or_an_error(text in "\\{\"message\":\"[a-z]{0,8}\".{0,40}\\}") {
            let mut frame = (text.len() as u32).to_be_bytes().to_vec();
            frame.extend_from_slice(text.as_bytes());
            let mut reader = FrameReader::of_stranger();
            reader.push(&frame);
            let _ = reader.next_message();
        }
    }

    #[test]
    fn a_web_browser_is_refused_at_its_first_bytes() {
        let mut reader = FrameReader::of_stranger();
        reader.push(b"GET / HTTP/1.1\r\n");
        assert!(matches!(reader.next_message(), Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn a_stranger_may_send_a_hello_of_a_few_kilobytes_and_nothing_of_what_servers_say() {
        let mut reader = FrameReader::of_stranger();
        let frame = encode(&hello()).unwrap();
        assert!(frame.len() < HELLO_MAX_BYTES / 4, "{} bytes", frame.len());
        reader.push(&frame);
        assert_eq!(reader.next_message().unwrap(), Some(hello()));
        reader.push(&(HELLO_MAX_BYTES as u32 + 1).to_be_bytes());
        assert!(matches!(reader.next_message(), Err(FrameError::TooLong { .. })));
        let mut reader = FrameReader::of_stranger();
        reader.push(&encode(&Message::Records(Records { records: Vec::new() })).unwrap());
        assert!(matches!(reader.next_message(), Err(FrameError::WrongSpeaker)));
    }

    #[test]
    fn what_is_in_a_hello_beside_its_fields_is_read_over_not_kept() {
        let mut body = serde_json::to_value(hello()).unwrap();
        body["more"] = serde_json::json!([[[{ "deep": [0, 1, 2] }]]]);
        let body = body.to_string();
        assert_eq!(Message::decode(body.as_bytes(), Speaker::Client).unwrap(), hello());
    }

    #[test]
    fn another_version_is_known_before_its_plan_is_read() {
        let body = br#"{"message":"hello","version":99,"plan":{"shape":"of things to come"}}"#;
        assert!(matches!(Message::decode(body, Speaker::Client), Err(FrameError::Version(99))));
    }
}
