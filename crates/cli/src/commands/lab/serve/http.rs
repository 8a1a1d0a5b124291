//! As much of HTTP/1.1 (RFC 9112) as a local page needs: one GET, one answer, the connection closed. Everything a
//! stranger may send, or leave unread, is bounded in bytes, time and number.

use super::{
    head::{Refusal, Request, parse},
    open::{Connection, NoTurn, Open},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, recv},
};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long a request may take to come, to wait for its turn, and its answer to go, all pieces together.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a client may have sent beyond its request is read so far, so that it sees the answer (RFC 9112, 9.6).
const LINGER_BYTES_MAX: usize = 64 << 10;
/// How long the next of it is waited for.
const LINGER: Duration = Duration::from_millis(500);
/// How long all of it is.
const LINGER_ALL: Duration = Duration::from_secs(2);
/// How every answer begins, whatever its status.
const BEGINNING: &str = "HTTP/1.1 ";
/// How long the reset of a client that has closed may be under way, in milliseconds.
const RESET_WITHIN_MS: u16 = 100;
const BUSY: Refusal = Refusal { status: 503, why: "Other pages are being drawn: try again." };

/// What is answered: a status and HTML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub html: String,
}

impl Answer {
    pub fn ok(html: String) -> Answer {
        Answer { status: 200, html }
    }

    fn head(&self) -> String {
        let more = match self.status {
            405 => "Allow: GET\r\n",
            503 => "Retry-After: 5\r\n",
            _ => "",
        };
        // Nothing from elsewhere, nothing framed, nothing kept: a page is as its runs are now.
        format!(
            "{BEGINNING}{} {}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n{more}\
             Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
             connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.status,
            reason(self.status),
            self.html.len(),
        )
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        410 => "Gone",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

/// Talks with every connection in a thread of its own, for as long as the listener lives. One answer is made at a time.
pub fn serve(listener: &TcpListener, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    let open = Arc::new(Open::default());
    for stream in listener.incoming() {
        let Ok((client, stream)) = stream.and_then(|stream| Ok((stream.peer_addr()?.ip(), stream))) else {
            // Out of descriptors, most likely: there will be some again.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let connection = open.add(client, stream);
        let answer = Arc::clone(&answer);
        // Whoever went away needs no answer.
        let talk = move || drop(talk(&connection, &*answer));
        let _ = thread::Builder::new().name("http".to_owned()).spawn(talk);
    }
}

fn talk(connection: &Connection, answer: &dyn Fn(&Request) -> Answer) -> io::Result<()> {
    let stream = &*connection.stream;
    let (answer, sent) = match read(stream)? {
        Ok(Some(request)) => match made(connection, || answer(&request)) {
            Some(made) => made,
            None => return Ok(()),
        },
        Ok(None) => return Ok(()),
        Err(refusal) => (refused(refusal), 0),
    };
    send(stream, &answer, sent)?;
    drop(answer);
    connection.holds(0);
    linger(stream, LINGER_ALL)
}

/// An answer, made once it is the connection's turn, and how much of it is sent already; none for who has gone away
/// meanwhile.
fn made(connection: &Connection, answer: impl FnOnce() -> Answer) -> Option<(Answer, usize)> {
    let _turn = match connection.turn(PATIENCE) {
        Ok(turn) => turn,
        Err(NoTurn::Late) => return Some((refused(BUSY), 0)),
        Err(NoTurn::Closed) => return None,
    };
    let sent = begun(&connection.stream)?;
    let answer = answer();
    connection.holds(answer.html.len());
    Some((answer, sent))
}

/// How much of the answer is sent before it is made; `None` where nobody will read it. Who sends no more has closed, or
/// waits for the answer with its half of the connection closed (RFC 9293, 3.6). The answer's beginning tells: who has
/// closed resets the connection then.
fn begun(stream: &TcpStream) -> Option<usize> {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    match recv(stream.as_raw_fd(), &mut [0], flags) {
        Ok(0) => {}
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => return Some(0),
        Err(_) => return None,
    }
    let mut writer = stream;
    writer.write_all(BEGINNING.as_bytes()).ok()?;
    // Errors and resets are told of without being asked for.
    let mut reset = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let is_reset = poll(&mut reset, PollTimeout::from(RESET_WITHIN_MS)).is_ok_and(|count| count > 0);
    (!is_reset).then_some(BEGINNING.len())
}

/// The request; `None` when the client went away before it was whole.
fn read(mut connection: &TcpStream) -> io::Result<Result<Option<Request>, Refusal>> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 2048];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Refusal { status: 408, why: "The request did not come to its end." }));
        }
        connection.set_read_timeout(Some(left))?;
        let count = match connection.read(&mut piece) {
            Ok(0) => return Ok(Ok(None)),
            Ok(count) => count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        head.extend_from_slice(&piece[..count]);
        match parse(&head) {
            Ok(None) => {}
            Ok(Some(request)) => return Ok(Ok(Some(request))),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

fn refused(refusal: Refusal) -> Answer {
    Answer {
        status: refusal.status,
        html: longfat_report::site::refusal(reason(refusal.status), refusal.why),
    }
}

/// Sends an answer, of which so many bytes are sent already.
fn send(stream: &TcpStream, answer: &Answer, sent: usize) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    send_until(stream, &answer.head().as_bytes()[sent..], until)?;
    send_until(stream, answer.html.as_bytes(), until)?;
    stream.shutdown(Shutdown::Write)
}

/// A socket's own timeout is of one piece, of which a slow reader can make as many as it likes.
fn send_until(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A connection closed with bytes unread is reset, and the answer may be lost with it. Who goes on sending a little now
/// and then does not keep its place.
fn linger(mut connection: &TcpStream, all: Duration) -> io::Result<()> {
    let until = Instant::now() + all;
    let mut rest = [0; 2048];
    let mut left_bytes = LINGER_BYTES_MAX;
    while left_bytes > 0 {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        connection.set_read_timeout(Some(left.min(LINGER)))?;
        match connection.read(&mut rest)? {
            0 => break,
            count => left_bytes = left_bytes.saturating_sub(count),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::open::CONNECTIONS_MAX, *};

    #[test]
    fn however_many_dawdle_who_comes_last_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener, |_| Answer::ok("<p>here</p>".to_owned())));
        let dawdling: Vec<TcpStream> =
            (0..CONNECTIONS_MAX + 8).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut asker = TcpStream::connect(address).unwrap();
        asker.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        asker.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = String::new();
        asker.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        drop(dawdling);
    }

    #[test]
    fn who_has_closed_its_half_after_its_request_has_the_whole_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener, |_| Answer::ok("<p>here</p>".to_owned())));
        let ask = || {
            let mut asker = TcpStream::connect(address).unwrap();
            asker.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            asker.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            asker
        };
        let answer = |mut asker: TcpStream| {
            let mut answer = String::new();
            asker.read_to_string(&mut answer).unwrap();
            answer
        };
        let half = ask();
        half.shutdown(Shutdown::Write).unwrap();
        let half = answer(half);
        assert!(half.starts_with("HTTP/1.1 200 OK\r\n"), "{half}");
        assert_eq!(half, answer(ask()));
    }

    #[test]
    fn who_has_closed_is_told_apart_from_who_has_closed_its_half() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let end_is_seen = || {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (connection, _) = listener.accept().unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(connection.peek(&mut [0]).unwrap(), 0);
            (client, connection)
        };
        let (mut client, connection) = end_is_seen();
        assert_eq!(begun(&connection), Some(BEGINNING.len()));
        let mut beginning = [0; BEGINNING.len()];
        client.read_exact(&mut beginning).unwrap();
        assert_eq!(beginning, BEGINNING.as_bytes());
        let (client, connection) = end_is_seen();
        drop(client);
        assert_eq!(begun(&connection), None);
    }

    #[test]
    fn who_sends_a_little_now_and_then_after_its_answer_does_not_keep_its_place() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (connection, _) = listener.accept().unwrap();
        let lingering = thread::spawn(move || linger(&connection, Duration::from_millis(200)));
        // Each byte is well within the time of one read, and all of them are few.
        for _ in 0..2000 {
            if lingering.is_finished() {
                break;
            }
            let _ = sender.write_all(b"x");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(lingering.is_finished());
    }

    #[test]
    fn who_reads_a_little_now_and_then_does_not_hold_an_answer_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (connection, _) = listener.accept().unwrap();
        let until = Instant::now() + Duration::from_millis(300);
        let sending = thread::spawn(move || send_until(&connection, &vec![0; 200 << 20], until));
        let mut piece = vec![0; 16 << 10];
        // Each piece is well within the time of one write.
        while !sending.is_finished() && reader.read(&mut piece).is_ok_and(|count| count > 0) {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(sending.join().unwrap().is_err());
    }
}
