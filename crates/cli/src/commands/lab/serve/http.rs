//! As much of HTTP/1.1 (RFC 9112) as a local page needs: one GET, one answer, the connection closed. Everything a stranger
//! may send is bounded in bytes, time and number.

use super::head::{Refusal, Request, parse};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a request may take to come, and a piece of its answer to go.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at once; browsers open some that they may never use.
const CONNECTIONS_MAX: usize = 64;
/// What a client may have sent beyond its request is read so far, so that it sees the answer (RFC 9112, 9.6).
const LINGER_BYTES_MAX: usize = 64 << 10;
const LINGER: Duration = Duration::from_millis(500);

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

    fn bytes(&self) -> Vec<u8> {
        let allow = if self.status == 405 { "Allow: GET\r\n" } else { "" };
        // Nothing from elsewhere, nothing framed, nothing kept: a page is as its runs are now.
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n{allow}\
             Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
             connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.status,
            reason(self.status),
            self.html.len(),
        );
        [head.as_bytes(), self.html.as_bytes()].concat()
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

/// Answers every connection by a thread of its own, for as long as the listener lives.
pub fn serve(listener: &TcpListener, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    let open = Arc::new(AtomicUsize::new(0));
    for connection in listener.incoming() {
        let Ok(connection) = connection else {
            // Out of descriptors, most likely: there will be some again.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let (answer, held) = (Arc::clone(&answer), Held::new(&open));
        if open.load(Ordering::Relaxed) > CONNECTIONS_MAX {
            let _ = connection.set_write_timeout(Some(LINGER));
            let _ = send(&connection, &refused(Refusal { status: 503, why: "Too many connections." }));
            continue;
        }
        let talk = move || {
            let _held = held;
            // Whoever went away needs no answer.
            let _ = talk(&connection, &*answer);
        };
        let _ = thread::Builder::new().name("http".to_owned()).spawn(talk);
    }
}

/// Counts a connection for as long as it lives.
struct Held(Arc<AtomicUsize>);

impl Held {
    fn new(open: &Arc<AtomicUsize>) -> Held {
        open.fetch_add(1, Ordering::Relaxed);
        Held(Arc::clone(open))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn talk(connection: &TcpStream, answer: &dyn Fn(&Request) -> Answer) -> io::Result<()> {
    connection.set_write_timeout(Some(PATIENCE))?;
    let answer = match read(connection)? {
        Ok(Some(request)) => answer(&request),
        Ok(None) => return Ok(()),
        Err(refusal) => refused(refusal),
    };
    send(connection, &answer)?;
    linger(connection)
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

fn send(mut connection: &TcpStream, answer: &Answer) -> io::Result<()> {
    connection.write_all(&answer.bytes())?;
    connection.shutdown(Shutdown::Write)
}

/// A connection closed with bytes unread is reset, and the answer may be lost with it.
fn linger(mut connection: &TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(LINGER))?;
    let mut rest = [0; 2048];
    let mut left = LINGER_BYTES_MAX;
    while left > 0 {
        match connection.read(&mut rest)? {
            0 => break,
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}
