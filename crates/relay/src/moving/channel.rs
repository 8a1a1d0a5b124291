//! A connection between two relays that know the same key: encrypted, and each side knows that the other one has the
//! key and speaks now.
//!
//! Noise (revision 34) with the pattern `NNpsk0`: the key is mixed in before the first message, fresh keys of both
//! sides before the third. So whoever lacks the key is refused at his first message, what was recorded says nothing to
//! anybody later, and who learns the key later cannot read it. A message is a length and as many pieces as it takes.

use super::message::{MOST_BYTES, Message};
use snow::{Builder, HandshakeState, TransportState};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"longfat relay move 1";
/// What the key of a file is made into this one by.
pub(crate) const PURPOSE: &[u8] = b"longfat relay: moves of connections";
/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// A piece on the wire, and what encryption adds to it.
const PIECE_BYTES: usize = u16::MAX as usize;
const TAG_BYTES: usize = 16;
/// A handshake's message has a key of 32 bytes and a tag.
const MOST_HANDSHAKE_BYTES: usize = 64;

/// Both ends have shaken hands.
pub(crate) struct Channel {
    stream: TcpStream,
    noise: TransportState,
    piece: Box<[u8]>,
    open: Box<[u8]>,
}

impl Channel {
    /// The side that connected.
    ///
    /// # Errors
    /// The other side does not have the key, says nothing for so long, or is no relay.
    pub fn ask(stream: TcpStream, key: &[u8; KEY_BYTES], patience: Duration) -> io::Result<Channel> {
        let mut noise = builder(key)?.build_initiator().map_err(broken)?;
        let deadline = Instant::now() + patience;
        send_handshake(&stream, &mut noise, deadline)?;
        receive_handshake(&stream, &mut noise, deadline)?;
        Channel::new(stream, noise)
    }

    /// The side that was connected to.
    ///
    /// # Errors
    /// The other side has another key, or was not heard within `patience`.
    pub fn answer(stream: TcpStream, key: &[u8; KEY_BYTES], patience: Duration) -> io::Result<Channel> {
        let mut noise = builder(key)?.build_responder().map_err(broken)?;
        let deadline = Instant::now() + patience;
        receive_handshake(&stream, &mut noise, deadline)?;
        send_handshake(&stream, &mut noise, deadline)?;
        Channel::new(stream, noise)
    }

    fn new(stream: TcpStream, noise: HandshakeState) -> io::Result<Channel> {
        stream.set_nodelay(true)?;
        let buffer = || vec![0; PIECE_BYTES].into_boxed_slice();
        Ok(Channel {
            stream,
            noise: noise.into_transport_mode().map_err(broken)?,
            piece: buffer(),
            open: buffer(),
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other side has gone, or takes nothing for so long.
    pub fn send(&mut self, message: &Message, patience: Duration) -> io::Result<()> {
        let bytes = message.bytes();
        let length = (bytes.len() as u32).to_be_bytes();
        self.send_piece(&length, patience)?;
        bytes.chunks(PIECE_BYTES - TAG_BYTES).try_for_each(|part| self.send_piece(part, patience))
    }

    fn send_piece(&mut self, part: &[u8], patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        let bytes = self.noise.write_message(part, &mut self.piece).map_err(broken)?;
        let mut stream = Timed { stream: &self.stream, deadline };
        stream.write_all(&(bytes as u16).to_be_bytes())?;
        stream.write_all(&self.piece[..bytes])
    }

    /// Waits so long for a message, and for each piece of it: who sends has the key.
    ///
    /// # Errors
    /// The other side has gone, says nothing, or something that is not understood.
    pub fn receive(&mut self, patience: Duration) -> io::Result<Message> {
        let length: [u8; 4] = self.receive_piece(patience)?.try_into().map_err(|_| cut())?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST_BYTES {
            return Err(invalid(format!("a message of {length} bytes; {MOST_BYTES} at most")));
        }
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let piece = self.receive_piece(patience)?;
            if piece.is_empty() || bytes.len() + piece.len() > length {
                return Err(cut());
            }
            bytes.extend_from_slice(piece);
        }
        Message::parse(&bytes).map_err(|error| invalid(error.to_string()))
    }

    fn receive_piece(&mut self, patience: Duration) -> io::Result<&[u8]> {
        let deadline = Instant::now() + patience;
        let mut stream = Timed { stream: &self.stream, deadline };
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let piece = &mut self.piece[..usize::from(u16::from_be_bytes(length))];
        stream.read_exact(piece)?;
        let bytes = self.noise.read_message(piece, &mut self.open).map_err(broken)?;
        Ok(&self.open[..bytes])
    }
}

fn builder(key: &[u8; KEY_BYTES]) -> io::Result<Builder<'_>> {
    let pattern = PATTERN.parse().map_err(broken)?;
    Builder::new(pattern).prologue(PROLOGUE).and_then(|builder| builder.psk(0, key)).map_err(broken)
}

fn send_handshake(stream: &TcpStream, noise: &mut HandshakeState, deadline: Instant) -> io::Result<()> {
    let mut message = [0; MOST_HANDSHAKE_BYTES];
    let bytes = noise.write_message(&[], &mut message).map_err(broken)?;
    let mut stream = Timed { stream, deadline };
    stream.write_all(&(bytes as u16).to_be_bytes())?;
    stream.write_all(&message[..bytes])
}

fn receive_handshake(stream: &TcpStream, noise: &mut HandshakeState, deadline: Instant) -> io::Result<()> {
    let mut stream = Timed { stream, deadline };
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = [0; MOST_HANDSHAKE_BYTES];
    let message = message.get_mut(..usize::from(u16::from_be_bytes(length))).ok_or_else(wrong_key)?;
    stream.read_exact(message)?;
    noise.read_message(message, &mut [0; MOST_HANDSHAKE_BYTES]).map(drop).map_err(|_| wrong_key())
}

/// A stream's own timeouts are of one call each, of which there may be many.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        timed(self.stream.read(bytes))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        timed(self.stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket whose time is up says that it would have to wait.
fn timed(result: io::Result<usize>) -> io::Result<usize> {
    result.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn broken(error: snow::Error) -> io::Error {
    invalid(format!("what came is not what was sent by who has the key ({error})"))
}

fn wrong_key() -> io::Error {
    io::Error::new(
        ErrorKind::PermissionDenied,
        "the other side does not have this key, or is no relay that moves",
    )
}

fn cut() -> io::Error {
    invalid("a message that was cut".into())
}

fn invalid(message: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moving::message::Hello;
    use std::net::TcpListener;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];
    const PATIENCE: Duration = Duration::from_secs(10);

    fn streams() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn channels(keys: [[u8; KEY_BYTES]; 2]) -> [io::Result<Channel>; 2] {
        let (near, far) = streams();
        std::thread::scope(|scope| {
            let answer = scope.spawn(move || Channel::answer(far, &keys[1], PATIENCE));
            let asked = Channel::ask(near, &keys[0], PATIENCE);
            [asked, answer.join().unwrap()]
        })
    }

    #[test]
    fn who_has_the_key_is_understood_in_messages_of_any_length() {
        let [near, far] = channels([KEY; 2]);
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        for words in [0, 1, 60_000] {
            let hello = Message::Hello(Hello { version: 1, name: "r".repeat(words), session: 9 });
            std::thread::scope(|scope| {
                scope.spawn(|| near.send(&hello, PATIENCE).unwrap());
                assert_eq!(far.receive(PATIENCE).unwrap(), hello);
            });
            std::thread::scope(|scope| {
                scope.spawn(|| far.send(&hello, PATIENCE).unwrap());
                assert_eq!(near.receive(PATIENCE).unwrap(), hello);
            });
        }
    }

    #[test]
    fn who_has_another_key_is_refused_at_the_first_message() {
        let [near, far] = channels([KEY, [8; KEY_BYTES]]);
        assert_eq!(far.map(drop).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(near.is_err());
    }

    #[test]
    fn what_was_recorded_is_understood_by_nobody() {
        // Between two sides, all that the first one says is written down.
        let (near, mut tapped) = streams();
        let (mut through, far) = streams();
        let recorded = std::thread::scope(|scope| {
            let tap = scope.spawn(move || {
                let mut recorded = Vec::new();
                let mut back = through.try_clone().unwrap();
                let mut to_near = tapped.try_clone().unwrap();
                let answers = std::thread::spawn(move || drop(io::copy(&mut back, &mut to_near)));
                let mut block = [0; 4096];
                while let Ok(bytes @ 1..) = tapped.read(&mut block) {
                    recorded.extend_from_slice(&block[..bytes]);
                    through.write_all(&block[..bytes]).unwrap();
                }
                through.shutdown(std::net::Shutdown::Both).unwrap();
                answers.join().unwrap();
                recorded
            });
            let answer = scope.spawn(move || {
                let mut channel = Channel::answer(far, &KEY, PATIENCE).unwrap();
                channel.receive(PATIENCE).unwrap()
            });
            let mut channel = Channel::ask(near, &KEY, PATIENCE).unwrap();
            channel.send(&Message::Go(vec![1]), PATIENCE).unwrap();
            assert_eq!(answer.join().unwrap(), Message::Go(vec![1]));
            drop(channel);
            tap.join().unwrap()
        });
        let (mut again, far) = streams();
        again.write_all(&recorded).unwrap();
        // Its first message is one that has the key; nothing else of it is.
        let mut channel = Channel::answer(far, &KEY, PATIENCE).unwrap();
        assert_eq!(channel.receive(PATIENCE).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_stranger_who_says_nothing_or_nonsense_is_not_waited_for() {
        let (near, far) = streams();
        let refused = Channel::answer(far, &KEY, Duration::from_millis(50)).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
        drop(near);
        let (mut near, far) = streams();
        near.write_all(&[255; 100]).unwrap();
        let refused = Channel::answer(far, &KEY, PATIENCE).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }
}
