//! Conditions on connections.

use super::{
    FilterError,
    test::{End, Test},
};
use crate::{
    filter::{
        Condition, Parser,
        lex::{Operator, Token},
    },
    sockets::{connection::State, limit::Limit},
    tcb::field::{self, Field},
};
use longfat_schema::units::{Nanos, Rate, Size};

type Result<T> = std::result::Result<T, FilterError>;

impl Condition for Test {
    const EXAMPLES: &'static str = "a field ('cc', 'rtt', 'dst'…)";

    fn read<'a>(parser: &mut Parser<'a>, word: Token<'a>) -> Result<Test> {
        parser.connection_condition(word)
    }
}

impl<'a> Parser<'a> {
    fn connection_condition(&mut self, word: Token<'a>) -> Result<Test> {
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
        let ports = self.port_range(token, token.text)?;
        if ports.first != ports.last && !matches!(operator, Operator::Equal | Operator::NotEqual) {
            return Err(self.error(sign, "a range of ports knows only '=' and '!='"));
        }
        Ok(Test::Port { end, operator, ports })
    }

    fn network(&mut self, end: End) -> Result<Test> {
        let equal = self.equality("an address")?;
        let token = self.value()?;
        let (network, ports) = self.network_and_ports(token)?;
        Ok(Test::Address { end, equal, network, ports })
    }
}

fn end(field: &Field) -> End {
    if matches!(field.name, "src" | "sport") { End::Local } else { End::Remote }
}
