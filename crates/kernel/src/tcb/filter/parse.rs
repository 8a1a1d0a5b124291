//! Tokens into an expression, by recursive descent.

use super::{
    FilterError,
    lex::{Kind, Operator, Token, tokens},
    test::{End, Expression, Network, Ports, Test},
};
use crate::tcb::{
    connection::State,
    field::{self, Field},
    limit::Limit,
};
use longfat_schema::units::{Nanos, Rate, Size};
use std::net::{IpAddr, Ipv4Addr};

/// Parentheses and negations within each other; more is no person's filter, and would overflow the stack.
pub const DEPTH_MAX: usize = 64;

type Result<T> = std::result::Result<T, FilterError>;

/// `None` for a text without words.
pub fn parse(text: &str) -> Result<Option<Expression>> {
    let mut parser = Parser { text, tokens: tokens(text), at: 0, depth: 0 };
    if parser.peek().kind == Kind::End {
        return Ok(None);
    }
    let expression = parser.any()?;
    let rest = parser.peek();
    match rest.kind {
        Kind::End => Ok(Some(expression)),
        Kind::Close => Err(parser.error(rest, "this ')' has no '(' before it")),
        _ => Err(parser.error(rest, "expected 'and' or 'or' between two conditions")),
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn error(&self, token: Token<'_>, message: impl Into<String>) -> FilterError {
        FilterError::new(self.text, token.place(), message)
    }

    /// Conditions of which any must hold.
    fn any(&mut self) -> Result<Expression> {
        let mut either = vec![self.all()?];
        while self.peek().kind == Kind::Or {
            self.take();
            either.push(self.all()?);
        }
        Ok(if either.len() == 1 { either.remove(0) } else { Expression::Any(either) })
    }

    /// Conditions that must all hold.
    fn all(&mut self) -> Result<Expression> {
        let mut every = vec![self.one()?];
        while self.peek().kind == Kind::And {
            self.take();
            every.push(self.one()?);
        }
        Ok(if every.len() == 1 { every.remove(0) } else { Expression::All(every) })
    }

    fn one(&mut self) -> Result<Expression> {
        let token = self.take();
        match token.kind {
            Kind::Not => self.deeper(token, |parser| Ok(Expression::Not(Box::new(parser.one()?)))),
            Kind::Open => self.deeper(token, |parser| {
                let inside = parser.any()?;
                let close = parser.take();
                let closed = close.kind == Kind::Close;
                closed.then_some(inside).ok_or_else(|| parser.error(close, "expected ')' here"))
            }),
            Kind::Word => self.condition(token).map(Expression::Test),
            Kind::End => Err(self.error(token, "the filter ends where a condition was expected")),
            _ => Err(self.error(
                token,
                format!("a condition begins with a field ('cc', 'rtt', 'dst'…), not with '{}'", token.text),
            )),
        }
    }

    fn deeper<T>(&mut self, token: Token<'_>, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH_MAX {
            return Err(self.error(token, format!("more than {DEPTH_MAX} parentheses within each other")));
        }
        self.depth += 1;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    fn condition(&mut self, word: Token<'a>) -> Result<Test> {
        let name = word.text.to_ascii_lowercase();
        match name.as_str() {
            "ipv4" | "inet" => return Ok(Test::Family { ipv6: false }),
            "ipv6" | "inet6" => return Ok(Test::Family { ipv6: true }),
            "host" => return self.network(End::Either),
            "port" => return self.ports(End::Either),
            _ => {}
        }
        let field = Field::find(&name).ok_or_else(|| self.unknown(word, &name))?;
        match field.kind {
            field::Kind::Address => self.network(end(field)),
            field::Kind::Port => self.ports(end(field)),
            field::Kind::Text | field::Kind::State | field::Kind::Limit => self.name(field),
            _ => self.number(field),
        }
    }

    fn unknown(&self, word: Token<'_>, name: &str) -> FilterError {
        let mend = match Field::nearest(name) {
            Some(near) => format!("did you mean '{near}'?"),
            None => {
                "fields are cc, rtt, cwnd, dst, dport, process, state… ('longfat tcb list --help')".to_owned()
            }
        };
        self.error(word, format!("no field is called '{}'; {mend}", word.text))
    }

    fn operator(&mut self) -> (Operator, Token<'a>) {
        let token = self.peek();
        match token.kind {
            Kind::Operator(operator) => {
                self.take();
                (operator, token)
            }
            _ => (Operator::Equal, token),
        }
    }

    fn value(&mut self) -> Result<Token<'a>> {
        let token = self.take();
        match token.kind {
            Kind::Word => Ok(token),
            Kind::End => Err(self.error(token, "the filter ends where a value was expected")),
            _ => Err(self.error(token, format!("expected a value here, not '{}'", token.text))),
        }
    }

    /// An operator that only says whether, not how much.
    fn equality(&mut self, what: &str) -> Result<bool> {
        let (operator, token) = self.operator();
        match operator {
            Operator::Equal => Ok(true),
            Operator::NotEqual => Ok(false),
            _ => Err(self.error(token, format!("{what} knows only '=' and '!='"))),
        }
    }

    fn name(&mut self, field: &'static Field) -> Result<Test> {
        let equal = self.equality(&format!("'{}'", field.name))?;
        let token = self.value()?;
        let wanted = match field.kind {
            field::Kind::State => self.state(token)?,
            field::Kind::Limit => self.limit(token)?,
            _ => token.text.to_owned(),
        };
        Ok(Test::Name { field, equal, wanted })
    }

    fn state(&self, token: Token<'_>) -> Result<String> {
        let known = || State::NAMES.map(|(_, name)| name).join(", ");
        let found = State::parse(token.text).map(|state| state.name().to_owned());
        found.ok_or_else(|| self.error(token, format!("no state is called '{}' ({})", token.text, known())))
    }

    fn limit(&self, token: Token<'_>) -> Result<String> {
        let known = || Limit::NAMES.map(|(_, name)| name).join(", ");
        let found = Limit::NAMES.iter().find(|(_, name)| *name == token.text);
        let name = found.map(|(_, name)| (*name).to_owned());
        name.ok_or_else(|| self.error(token, format!("no limit is called '{}' ({})", token.text, known())))
    }

    fn number(&mut self, field: &'static Field) -> Result<Test> {
        let (operator, _) = self.operator();
        let token = self.value()?;
        let text = token.text;
        let unit = |error: longfat_schema::units::UnitError| self.error(token, error.to_string());
        let value = match field.kind {
            field::Kind::TimeUs => text.parse::<Nanos>().map_err(unit)?.as_us(),
            field::Kind::RateBps => text.parse::<Rate>().map_err(unit)?.0,
            field::Kind::Bytes if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map_err(|_| self.error(token, "is too large"))?
            }
            field::Kind::Bytes => text.parse::<Size>().map_err(unit)?.0,
            _ => text.parse().map_err(|_| {
                self.error(token, format!("'{}' is compared with a number; '{text}' is none", field.name))
            })?,
        };
        Ok(Test::Number { field, operator, value })
    }

    fn ports(&mut self, end: End) -> Result<Test> {
        let (operator, sign) = self.operator();
        let token = self.value()?;
        let text = token.text.strip_prefix(':').unwrap_or(token.text);
        let ports = self.range(token, text)?;
        if ports.first != ports.last && !matches!(operator, Operator::Equal | Operator::NotEqual) {
            return Err(self.error(sign, "a range of ports knows only '=' and '!='"));
        }
        Ok(Test::Port { end, operator, ports })
    }

    fn range(&self, token: Token<'_>, text: &str) -> Result<Ports> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |part: &str| {
            let wrong = || {
                self.error(
                    token,
                    format!("'{part}' is no port: write a number up to 65535, or a range like 8000-8999"),
                )
            };
            part.parse::<u16>().map_err(|_| wrong())
        };
        let ports = Ports { first: port(first)?, last: port(last)? };
        if ports.first > ports.last {
            return Err(self.error(token, format!("the range '{text}' ends before it begins")));
        }
        Ok(ports)
    }

    fn network(&mut self, end: End) -> Result<Test> {
        let equal = self.equality("an address")?;
        let token = self.value()?;
        let (address, ports) = split_ports(token.text);
        let ports = ports.map(|text| self.range(token, text)).transpose()?;
        let network = match address {
            "" | "*" => None,
            text => Some(self.prefix(token, text)?),
        };
        Ok(Test::Address { end, equal, network, ports })
    }

    fn prefix(&self, token: Token<'_>, text: &str) -> Result<Network> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address = read_address(address).ok_or_else(|| {
            let why = "is no address; names are not looked up, write 10.0.0.0/8 or 2001:db8::/32";
            self.error(token, format!("'{address}' {why}"))
        })?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Ok(most), |text| {
            let number = text.parse::<u8>().ok().filter(|length| *length <= most);
            number.ok_or_else(|| {
                self.error(token, format!("'/{text}' is no prefix length: a number, at most {most}"))
            })
        })?;
        Ok(Network { address, length })
    }
}

fn end(field: &Field) -> End {
    if matches!(field.name, "src" | "sport") { End::Local } else { End::Remote }
}

/// `10.0.0.1:80`, `10.0.0.0/8:80-90`, `[::1]:80`, `[::]/0:80`: the address and the ports.
fn split_ports(text: &str) -> (&str, Option<&str>) {
    if let Some((inside, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(ports) => (inside, Some(ports)),
            // With a length, the brackets are taken off by whoever reads the address.
            None if rest.is_empty() => (inside, None),
            None => (text, None),
        };
    }
    match text.rsplit_once(':') {
        // An IPv6 address has more than one colon.
        Some((address, ports)) if !address.contains(':') => (address, Some(ports)),
        _ => (text, None),
    }
}

/// Also the short form of IPv4 networks: `10/8`.
fn read_address(text: &str) -> Option<IpAddr> {
    let plain = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = plain.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let mut octets = [0; 4];
    let parts: Vec<_> = plain.split('.').collect();
    if parts.len() > 4 {
        return None;
    }
    for (octet, part) in octets.iter_mut().zip(&parts) {
        *octet = part.parse().ok()?;
    }
    Some(IpAddr::V4(Ipv4Addr::from(octets)))
}
