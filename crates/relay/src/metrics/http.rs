//! As much of HTTP/1.1 as Prometheus needs: a GET of `/metrics`, answered and closed (RFC 9112).
//!
//! One request at a time, of at most [`REQUEST_MAX_BYTES`], within [`PATIENCE`]: whoever sends slowly or nothing keeps
//! others waiting for so long and no longer.

use super::Format;
use crate::{Error, Result};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const REQUEST_MAX_BYTES: usize = 8192;
const FIELDS_MAX: usize = 64;
const TOO_LONG: &str = "431 Request Header Fields Too Large";
/// What who understands OpenMetrics accepts.
const OPEN: &str = "application/openmetrics-text";
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(50);

/// A listening socket.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
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
    /// Listens on a loopback address.
    pub fn open(address: SocketAddr) -> Result<Server> {
        let failed = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Server { listener })
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Answers with what `render` writes at that moment, until `done`.
    pub fn serve(&self, render: &dyn Fn(Format) -> String, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            match self.listener.accept() {
                // Who asks and goes away loses nothing but the answer.
                Ok((asker, _)) => drop(answer(asker, render)),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }
}

fn answer(mut asker: TcpStream, render: &dyn Fn(Format) -> String) -> io::Result<()> {
    asker.set_nonblocking(false)?;
    asker.set_write_timeout(Some(PATIENCE))?;
    let request = read(&mut asker, Instant::now() + PATIENCE)?;
    let response = match request {
        Request::Metrics { format, body } => {
            let text = render(format);
            response("200 OK", format.content_type(), &text, body)
        }
        Request::Refused(status) => {
            response(status, "text/plain; charset=utf-8", "the metrics are at /metrics\n", true)
        }
        Request::Incomplete => return Ok(()),
    };
    asker.write_all(response.as_bytes())?;
    asker.shutdown(Shutdown::Write)?;
    // A close with bytes unread is a reset, which could overtake the answer: what is still coming is taken, a little.
    let rest = &mut [0; 1024];
    asker.set_read_timeout(Some(PATIENCE / 4))?;
    for _ in 0..REQUEST_MAX_BYTES / rest.len() {
        if asker.read(rest)? == 0 {
            break;
        }
    }
    Ok(())
}

fn read(asker: &mut TcpStream, deadline: Instant) -> io::Result<Request> {
    let mut bytes = Vec::new();
    let mut block = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Request::Refused("408 Request Timeout"));
        }
        asker.set_read_timeout(Some(left))?;
        match asker.read(&mut block) {
            Ok(0) => return Ok(Request::Incomplete),
            Ok(count) => bytes.extend_from_slice(&block[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        match parse(&bytes) {
            Request::Incomplete if bytes.len() >= REQUEST_MAX_BYTES => {
                return Ok(Request::Refused(TOO_LONG));
            }
            Request::Incomplete => {}
            request => return Ok(request),
        }
    }
}

/// Reads the head of a request; a body is not looked at.
fn parse(bytes: &[u8]) -> Request {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Request::Incomplete,
        Err(httparse::Error::TooManyHeaders) => return Request::Refused(TOO_LONG),
        Err(_) => return Request::Refused("400 Bad Request"),
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
        let plain = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
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

    proptest! {
        #[test]
        fn any_bytes_are_understood_or_refused_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..40,
        ) {
            let _ = parse(&bytes);
            let good = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
            let cut = cut.min(good.len() - 1);
            prop_assert_eq!(parse(&good[..cut]), Request::Incomplete);
        }
    }
}
