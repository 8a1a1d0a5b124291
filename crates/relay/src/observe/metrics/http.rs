//! As much of HTTP/1.1 as Prometheus needs: a GET of `/metrics`, answered and closed (RFC 9112).
//!
//! Up to [`ASKERS_MAX`] at once, each with a request of at most [`REQUEST_MAX_BYTES`] within [`PATIENCE`], and so long
//! again to take the answer: whoever sends or reads slowly keeps nobody waiting, and when there are too many the oldest
//! goes.
//!
//! On a loopback address it answers this machine's names alone: pages elsewhere can make a browser ask here under a
//! name of their own (DNS rebinding), and must not read the answer.

use super::Format;
use crate::{Error, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const REQUEST_MAX_BYTES: usize = 8192;
const FIELDS_MAX: usize = 64;
const TOO_LONG: &str = "431 Request Header Fields Too Large";
const FOREIGN: &str = "403 Forbidden";
/// What who understands OpenMetrics accepts.
const OPEN: &str = "application/openmetrics-text";
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// Most that are answered at once: Prometheus, a person, and some that dawdle.
const ASKERS_MAX: usize = 16;

/// A listening socket.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    names: Names,
    patience: Duration,
}

/// Under which names the listener is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Names of this machine from itself: the listener has a loopback address.
    Local,
    /// Whatever others call its address.
    Any,
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// A client of the metrics.
struct Asker {
    stream: TcpStream,
    names: Names,
    deadline: Instant,
    phase: Phase,
}

/// How far he is.
enum Phase {
    /// What came of the request.
    Reading(Vec<u8>),
    /// The answer, and how much of it has gone.
    Writing(Vec<u8>, usize),
    /// A close with bytes unread is a reset, which could overtake the answer: so many that still come are taken.
    Draining(usize),
}

/// What a request's bytes come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// There is more to come.
    Incomplete,
    Metrics {
        format: Format,
        body: bool,
    },
    /// A status of refusal.
    Refused(&'static str),
}

impl Server {
    /// Listens, as a rule on a loopback address.
    pub fn open(address: SocketAddr) -> Result<Server> {
        Server::open_or(address, None)
    }

    /// Goes on where another relay listened, if it is there.
    pub(crate) fn open_or(address: SocketAddr, inherited: Option<TcpListener>) -> Result<Server> {
        let failed = |source| Error::Listen { address, source };
        let inherited =
            inherited.filter(|listener| listener.local_addr().is_ok_and(|found| found == address));
        let listener = inherited.map_or_else(|| TcpListener::bind(address), Ok).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let names = if address.ip().is_loopback() { Names::Local } else { Names::Any };
        Ok(Server { listener, names, patience: PATIENCE })
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Answers with what `render` writes at that moment, until `done`.
    pub fn serve(&self, render: &dyn Fn(Format) -> String, done: &AtomicBool) {
        let mut askers = Vec::new();
        while !done.load(Ordering::Acquire) {
            wait(&self.listener, &askers);
            if let Err(error) = self.accept(&mut askers)
                && error.kind() != io::ErrorKind::WouldBlock
            {
                // Out of descriptors, most likely: there will be some again.
                std::thread::sleep(LOOK);
            }
            askers.retain_mut(|asker| asker.step(render, self.patience));
        }
    }

    /// As many as may be answered at once; then those who have been there longest make room.
    fn accept(&self, askers: &mut Vec<Asker>) -> io::Result<()> {
        for _ in 0..ASKERS_MAX {
            let (stream, _) = self.listener.accept()?;
            stream.set_nonblocking(true)?;
            if askers.len() == ASKERS_MAX {
                askers.remove(0);
            }
            let deadline = Instant::now() + self.patience;
            let phase = Phase::Reading(Vec::new());
            askers.push(Asker { stream, names: self.names, deadline, phase });
        }
        Ok(())
    }
}

/// Until somebody comes, can go on, or it is time to look for the end.
fn wait(listener: &TcpListener, askers: &[Asker]) {
    let wanted = |asker: &Asker| match asker.phase {
        Phase::Writing(..) => PollFlags::POLLOUT,
        Phase::Reading(_) | Phase::Draining(_) => PollFlags::POLLIN,
    };
    let mut on = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    on.extend(askers.iter().map(|asker| PollFd::new(asker.stream.as_fd(), wanted(asker))));
    // Interrupted or not, everybody is looked at.
    let _ = poll(&mut on, PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO));
}

impl Asker {
    /// Goes on as far as it can without waiting; whether there is more to come.
    fn step(&mut self, render: &dyn Fn(Format) -> String, patience: Duration) -> bool {
        if Instant::now() >= self.deadline {
            if !matches!(self.phase, Phase::Reading(_)) {
                return false;
            }
            self.reply(&refusal("408 Request Timeout"), patience);
        }
        match self.advance(render, patience) {
            Ok(()) => false,
            // Who asks and goes away loses nothing but the answer.
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Ends well when nothing more is to be done.
    fn advance(&mut self, render: &dyn Fn(Format) -> String, patience: Duration) -> io::Result<()> {
        let mut block = [0; 1024];
        loop {
            match &mut self.phase {
                Phase::Reading(bytes) => {
                    let count = self.stream.read(&mut block)?;
                    if count == 0 {
                        return Ok(());
                    }
                    bytes.extend_from_slice(&block[..count]);
                    if let Some(response) = response_to(bytes, self.names, render) {
                        self.reply(&response, patience);
                    }
                }
                Phase::Writing(response, sent) if *sent < response.len() => {
                    *sent += self.stream.write(&response[*sent..])?;
                }
                Phase::Writing(..) => {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.phase = Phase::Draining(REQUEST_MAX_BYTES);
                    self.deadline = Instant::now() + patience / 4;
                }
                Phase::Draining(left) => {
                    let count = self.stream.read(&mut block)?;
                    *left = left.saturating_sub(count);
                    if count == 0 || *left == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn reply(&mut self, response: &str, patience: Duration) {
        self.phase = Phase::Writing(response.as_bytes().to_vec(), 0);
        self.deadline = Instant::now() + patience;
    }
}

/// Response to the bytes so far; nothing while there is more to come.
fn response_to(bytes: &[u8], names: Names, render: &dyn Fn(Format) -> String) -> Option<String> {
    match parse(bytes, names) {
        Request::Metrics { format, body } => {
            Some(response("200 OK", format.content_type(), &render(format), body))
        }
        Request::Refused(status) => Some(refusal(status)),
        Request::Incomplete if bytes.len() >= REQUEST_MAX_BYTES => Some(refusal(TOO_LONG)),
        Request::Incomplete => None,
    }
}

fn refusal(status: &str) -> String {
    let mend = match status {
        FOREIGN => "the metrics are for this machine alone: ask for localhost or 127.0.0.1\n",
        _ => "the metrics are at /metrics\n",
    };
    response(status, "text/plain; charset=utf-8", mend, true)
}

/// Whether a Host field names this machine from itself.
pub fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Reads the head of a request; a body is not looked at.
fn parse(bytes: &[u8], names: Names) -> Request {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Request::Incomplete,
        Err(httparse::Error::TooManyHeaders) => return Request::Refused(TOO_LONG),
        Err(_) => return Request::Refused("400 Bad Request"),
    }
    let is_foreign = |field: &httparse::Header| {
        field.name.eq_ignore_ascii_case("host") && !is_local(&String::from_utf8_lossy(field.value))
    };
    // Browsers always send a Host; HTTP/1.0 has none.
    if names == Names::Local && request.headers.iter().any(is_foreign) {
        return Request::Refused(FOREIGN);
    }
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return Request::Refused("405 Method Not Allowed");
    }
    if request.path.and_then(|path| path.split('?').next()) != Some("/metrics") {
        return Request::Refused("404 Not Found");
    }
    let accepts = |field: &httparse::Header| {
        field.name.eq_ignore_ascii_case("accept") && String::from_utf8_lossy(field.value).contains(OPEN)
    };
    let format = if request.headers.iter().any(accepts) { Format::OpenMetrics } else { Format::Prometheus };
    Request::Metrics { format, body: request.method == Some("GET") }
}

fn response(status: &str, content_type: &str, text: &str, body: bool) -> String {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    if body { head + text } else { head }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_get_of_metrics_is_understood_and_everything_else_refused() {
        let get = |format| Request::Metrics { format, body: true };
        let parse = |bytes| parse(bytes, Names::Local);
        let plain = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        assert_eq!(parse(plain), get(Format::Prometheus));
        let open = b"GET /metrics?a=b HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0\r\n\r\n";
        assert_eq!(parse(open), get(Format::OpenMetrics));
        assert_eq!(
            parse(b"HEAD /metrics HTTP/1.0\r\n\r\n"),
            Request::Metrics { format: Format::Prometheus, body: false }
        );
        for (bytes, status) in [
            (&b"POST /metrics HTTP/1.1\r\n\r\n"[..], "405"),
            (b"GET / HTTP/1.1\r\n\r\n", "404"),
            (b"GET /metrics/x HTTP/1.1\r\n\r\n", "404"),
            (b"GET /metrics HTTP/2\r\n\r\n", "400"),
            (b"\xff\r\n\r\n", "400"),
            (b" \r\n\r\n", "400"),
        ] {
            assert!(
                matches!(parse(bytes), Request::Refused(found) if found.starts_with(status)),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn on_a_loopback_address_only_names_of_this_machine_are_answered() {
        let asked = |host: &str, names| {
            let head = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
            !matches!(parse(head.as_bytes(), names), Request::Refused(FOREIGN))
        };
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8", "127.1.2.3", "[::1]:8", "[::1]"] {
            assert!(asked(host, Names::Local), "{host}");
        }
        for host in [
            "evil.example:80",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "192.0.2.1:8",
            "",
            "[::2]",
        ] {
            assert!(!asked(host, Names::Local), "{host}");
            assert!(asked(host, Names::Any), "{host}");
        }
        let two = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
        assert_eq!(parse(two, Names::Local), Request::Refused(FOREIGN));
        let names = |address: &str| Server::open(address.parse().unwrap()).unwrap().names;
        assert_eq!([names("127.0.0.1:0"), names("0.0.0.0:0")], [Names::Local, Names::Any]);
    }

    #[test]
    fn neither_who_asks_slowly_nor_who_reads_slowly_keeps_others_from_an_answer() {
        let server = Server::open("127.0.0.1:0".parse().unwrap()).unwrap();
        // Nobody is sent away for being slow as long as this test lasts.
        let server = Server { patience: Duration::from_secs(600), ..server };
        let address = server.address().unwrap();
        let done = AtomicBool::new(false);
        let large = "x".repeat(20_000_000);
        std::thread::scope(|scope| {
            scope.spawn(|| server.serve(&|_| large.clone(), &done));
            let ask = |text: &str| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(text.as_bytes()).unwrap();
                stream
            };
            let get = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let slow: Vec<TcpStream> = (0..6).flat_map(|_| [ask("GET /met"), ask(get)]).collect();
            let mut good = ask("GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n");
            good.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut answer = [0; 12];
            let answered = good.read_exact(&mut answer);
            // However many there are, who comes last is answered: the oldest make room.
            let more: Vec<TcpStream> = (0..2 * ASKERS_MAX).map(|_| ask("GET /met")).collect();
            let mut last = ask("GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n");
            last.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let answered_last = last.read_exact(&mut [0; 12]);
            done.store(true, Ordering::Release);
            drop((slow, more));
            answered.unwrap();
            answered_last.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 404");
        });
    }

    proptest! {
        #[test]
        fn any_bytes_are_understood_or_refused_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..40,
        ) {
            let parse = |bytes| parse(bytes, Names::Local);
            let _ = parse(&bytes);
            let good = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let cut = cut.min(good.len() - 1);
            prop_assert_eq!(parse(&good[..cut]), Request::Incomplete);
        }
    }
}
