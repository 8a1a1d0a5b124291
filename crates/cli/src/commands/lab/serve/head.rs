//! The head of a request, as bytes (RFC 9112): parsed by `httparse`, bounded, and only of what is answered. Pure; the
//! fuzz target `http_head` drives it too.

/// Longest request line and header fields.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most header fields.
const FIELDS_MAX: usize = 64;
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
    host.is_some_and(longfat_relay::metrics::http::is_local)
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
