//! As much of HTTP/1.1 (RFC 9112) as a local page needs: one GET, one answer, the connection closed. Heads are parsed by
//! `httparse`; everything a stranger may send is bounded in bytes, time and number.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Longest request line and header fields.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most header fields.
const FIELDS_MAX: usize = 64;
/// How long a request may take to come, and a piece of its answer to go.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at once; browsers open some that they may never use.
const CONNECTIONS_MAX: usize = 64;
/// What a client may have sent beyond its request is read so far, so that it sees the answer (RFC 9112, 9.6).
const LINGER_BYTES_MAX: usize = 64 << 10;
const LINGER: Duration = Duration::from_millis(500);

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// As sent: it is compared, never decoded or made a path of.
    pub path: String,
    /// Names and values of the query, decoded.
    pub query: Vec<(String, String)>,
    /// The Host field.
    pub host: Option<String>,
}

impl Request {
    /// The value of that name in the query; the first, and empty when there is none.
    pub fn value(&self, name: &str) -> &str {
        self.query.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }
}

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

/// Why a request is not answered with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub why: &'static str,
}

const MALFORMED: Refusal = Refusal { status: 400, why: "This is no HTTP request that is understood here." };
const TOO_LONG: Refusal = Refusal { status: 431, why: "The request is too long." };

/// Reads a request's head; `None` when there must be more of it.
pub fn parse(head: &[u8]) -> Result<Option<Request>, Refusal> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Err(TOO_LONG),
        Err(_) => return Err(MALFORMED),
    }
    if request.method != Some("GET") {
        return Err(Refusal { status: 405, why: "Only GET is answered: nothing can be changed here." });
    }
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let query = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decoded(name)?, decoded(value)?))
    });
    let query = query.collect::<Option<Vec<_>>>().ok_or(MALFORMED)?;
    let mut hosts = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
    let host = hosts.next().map(|field| String::from_utf8_lossy(field.value).into_owned());
    if hosts.next().is_some() {
        return Err(MALFORMED);
    }
    Ok(Some(Request { path: path.to_owned(), query, host }))
}

/// Text of a form (percent-encoded UTF-8, `+` for a space); `None` when it is not such, or holds control characters.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control))
}

/// Whether a Host field names this machine from itself. Pages elsewhere can make a browser ask here under a name of
/// their own (DNS rebinding); they must not read the answer.
pub fn is_local(host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(target: &str) -> Result<Option<Request>, Refusal> {
        parse(format!("GET {target} HTTP/1.1\r\nHost: localhost:1\r\n\r\n").as_bytes())
    }

    #[test]
    fn a_query_is_decoded_and_a_path_is_not() {
        let request = asked("/result%2f?of=a%20b%2Fc+d&run=%C3%A9&empty").unwrap().unwrap();
        assert_eq!((request.path.as_str(), request.value("of")), ("/result%2f", "a b/c d"));
        assert_eq!((request.value("run"), request.value("empty"), request.value("none")), ("é", "", ""));
        assert_eq!(request.host.as_deref(), Some("localhost:1"));
    }

    #[test]
    fn what_is_malformed_too_long_or_no_get_is_refused_by_its_status() {
        let status = |head: &[u8]| parse(head).unwrap_err().status;
        assert_eq!(status(b"POST / HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(status(b"HEAD / HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(status(b"rubbish\r\n\r\n"), 400);
        assert_eq!(status(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
        for query in ["%", "%2", "%zz", "%ff", "%00", "%0d%0a"] {
            assert_eq!(asked(&format!("/?of={query}")).unwrap_err().status, 400, "{query}");
        }
        assert_eq!(parse(b"GET / HTTP/1.1\r\n"), Ok(None));
        let long = [b"GET /".as_slice(), &[b'a'; HEAD_BYTES_MAX]].concat();
        assert_eq!(status(&long), 431);
        let many = "A: b\r\n".repeat(FIELDS_MAX + 1);
        assert_eq!(status(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()), 431);
    }

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8", "127.1.2.3", "[::1]:8", "[::1]"] {
            assert!(is_local(Some(host)), "{host}");
        }
        for host in
            ["example.org", "localhost.example.org:80", "127.0.0.1.example.org", "10.0.0.1:8", "", "[::2]"]
        {
            assert!(!is_local(Some(host)), "{host}");
        }
        assert!(!is_local(None));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_wait_for_more_than_the_longest_head(head in prop::collection::vec(any::<u8>(), 0..300), long in any::<bool>()) {
            let _ = parse(&head);
            if long {
                let padded = [head, vec![b'x'; HEAD_BYTES_MAX]].concat();
                prop_assert!(!matches!(parse(&padded), Ok(None)));
            }
        }

        #[test]
        fn what_a_form_sends_is_what_is_read(text in "[^\\p{Cc}]{0,40}") {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            prop_assert_eq!(decoded(&encoded), Some(text));
        }
    }
}
