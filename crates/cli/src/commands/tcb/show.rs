//! Values of connections as people and programs read them; tables of many rows without a layout engine.

use anyhow::{Context as _, anyhow};
use longfat_kernel::tcb::{
    Connection,
    field::{FIELDS, Field, Kind, Value},
};
use std::{
    cmp::Ordering,
    fmt::Write as _,
    io,
    net::{SocketAddr, SocketAddrV4},
};

/// Fields named by a person: `cwnd,rtt`.
pub fn fields(names: &str) -> anyhow::Result<Vec<&'static Field>> {
    names.split(',').map(|name| find(name.trim())).collect()
}

/// The field of that name.
pub fn find(name: &str) -> anyhow::Result<&'static Field> {
    Field::find(name).ok_or_else(|| match Field::nearest(name) {
        Some(near) => anyhow!("no field is called '{name}'; did you mean '{near}'?"),
        None => {
            let known: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
            anyhow!("no field is called '{name}' ({})", known.join(", "))
        }
    })
}

/// One line per field, for help texts.
pub fn legend() -> String {
    FIELDS.iter().map(|field| format!("  {:<15} {}\n", field.name, field.meaning)).collect()
}

/// An order of connections: by a field, `-` before it for the greatest first.
#[derive(Clone, Copy)]
pub struct Order {
    /// By what.
    pub field: &'static Field,
    /// Greatest first.
    pub descending: bool,
}

impl std::str::FromStr for Order {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Order> {
        let name = text.strip_prefix('-');
        let field = find(name.unwrap_or(text)).context("--sort")?;
        Ok(Order { field, descending: name.is_some() })
    }
}

impl Order {
    /// Absent values stand last in either direction.
    pub fn compare(&self, a: &Connection, b: &Connection) -> Ordering {
        let (a, b) = (self.field.value(a), self.field.value(b));
        let turn = |order: Ordering| if self.descending { order.reverse() } else { order };
        match (&a, &b) {
            (Value::Absent, Value::Absent) => Ordering::Equal,
            (Value::Absent, _) => Ordering::Greater,
            (_, Value::Absent) => Ordering::Less,
            (Value::Number(a), Value::Number(b)) => turn(a.cmp(b)),
            (Value::Text(a), Value::Text(b)) => turn(a.cmp(b)),
            (Value::Address(a), Value::Address(b)) => turn(a.cmp(b)),
            _ => Ordering::Equal,
        }
    }
}

/// Whether columns of this kind are set flush right.
pub fn is_numeric(kind: Kind) -> bool {
    matches!(kind, Kind::Count | Kind::TimeUs | Kind::RateBps | Kind::Bytes | Kind::Port)
}

/// Appends a value as people read it: `12.3ms`, `94.1M`, `-` where there is none.
pub fn write_value(kind: Kind, value: &Value<'_>, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = match value {
        Value::Absent => out.write_str("-"),
        Value::Text(text) if text.is_empty() => out.write_str("-"),
        Value::Text(text) => out.write_str(text),
        Value::Address(SocketAddr::V4(address)) => {
            push_ipv4(out, *address);
            Ok(())
        }
        Value::Address(address) => write!(out, "{address}"),
        Value::Number(number) => {
            match kind {
                Kind::TimeUs => write_scaled(out, *number, &[(1_000_000, "s"), (1000, "ms"), (1, "us")]),
                Kind::RateBps => {
                    write_scaled(
                        out,
                        *number,
                        &[(1_000_000_000, "G"), (1_000_000, "M"), (1000, "k"), (1, "")],
                    );
                }
                Kind::Bytes => {
                    write_scaled(out, *number, &[(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"), (1, "")]);
                }
                _ => push_number(out, *number),
            }
            Ok(())
        }
    };
}

/// Three digits of the largest unit that fits: `1.23s`, `12.3ms`, `123us`.
fn write_scaled(out: &mut String, number: u64, units: &[(u64, &str)]) {
    let (factor, unit) =
        units.iter().find(|(factor, _)| number >= *factor).unwrap_or(&units[units.len() - 1]);
    let (whole, rest) = (number / factor, number % factor);
    push_number(out, whole);
    if *factor > 1 && whole < 100 {
        let digits = if whole < 10 { 100 } else { 10 };
        let part = u128::from(rest) * digits / u128::from(*factor);
        out.push('.');
        if digits == 100 && part < 10 {
            out.push('0');
        }
        push_number(out, part as u64);
    }
    out.push_str(unit);
}

fn push_ipv4(out: &mut String, address: SocketAddrV4) {
    for (octet, before) in address.ip().octets().into_iter().zip(["", ".", ".", "."]) {
        out.push_str(before);
        push_number(out, octet.into());
    }
    out.push(':');
    push_number(out, address.port().into());
}

/// The formatting machinery costs more than the digits, and there are hundreds of thousands of them.
fn push_number(out: &mut String, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.push_str(std::str::from_utf8(&digits[at..]).unwrap_or_default());
}

/// An aligned table being made: every cell is written once, widths are known before the first line.
pub struct Table<'a> {
    columns: &'a [&'static Field],
    text: String,
    /// Where each cell ends.
    ends: Vec<u32>,
    widths: Vec<usize>,
}

impl<'a> Table<'a> {
    /// Without rows.
    pub fn new(columns: &'a [&'static Field]) -> Table<'a> {
        let widths = columns.iter().map(|field| field.name.len()).collect();
        Table { columns, text: String::new(), ends: Vec::new(), widths }
    }

    /// Adds a row.
    pub fn push(&mut self, row: &Connection) {
        for (field, width) in self.columns.iter().zip(&mut self.widths) {
            let start = self.text.len();
            write_value(field.kind, &field.value(row), &mut self.text);
            *width = (*width).max(self.text.len() - start);
            self.ends.push(self.text.len() as u32);
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write(&self, to: &mut impl io::Write) -> io::Result<()> {
        let mut lines = Lines {
            columns: self.columns,
            widths: &self.widths,
            out: String::with_capacity(2 * WRITE_BYTES),
        };
        lines.push(self.columns.iter().map(|field| field.name));
        let mut start = 0;
        for row in self.ends.chunks(self.columns.len()) {
            lines.push(row.iter().map(|end| {
                let end = *end as usize;
                let cell = &self.text[start..end];
                start = end;
                cell
            }));
            if lines.out.len() >= WRITE_BYTES {
                to.write_all(lines.out.as_bytes())?;
                lines.out.clear();
            }
        }
        to.write_all(lines.out.as_bytes())
    }
}

/// Written at a time: memory that is touched again and again costs less than megabytes touched once.
const WRITE_BYTES: usize = 1 << 16;

struct Lines<'a> {
    columns: &'a [&'static Field],
    widths: &'a [usize],
    out: String,
}

const BLANKS: &str = "                                                                ";

impl Lines<'_> {
    fn push<'c>(&mut self, cells: impl Iterator<Item = &'c str>) {
        let last = self.columns.len() - 1;
        for (index, cell) in cells.enumerate() {
            let mut blanks = self.widths[index] - cell.len();
            let right = is_numeric(self.columns[index].kind);
            if !right {
                self.out.push_str(cell);
            }
            // Nothing trails a line.
            while blanks > 0 && (right || index < last) {
                let some = blanks.min(BLANKS.len());
                self.out.push_str(&BLANKS[..some]);
                blanks -= some;
            }
            if right {
                self.out.push_str(cell);
            }
            self.out.push_str(if index < last { "  " } else { "\n" });
        }
    }
}

/// One JSON object per connection, every field under its name with the unit.
pub fn json(columns: &[&'static Field], row: &Connection) -> serde_json::Value {
    let value = |field: &Field| match field.value(row) {
        Value::Absent => serde_json::Value::Null,
        Value::Number(number) => number.into(),
        Value::Text(text) => text.into_owned().into(),
        Value::Address(address) => address.to_string().into(),
    };
    columns.iter().map(|field| (field.json.to_owned(), value(field))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_kernel::tcb::State;

    fn shown(kind: Kind, number: u64) -> String {
        let mut out = String::new();
        write_value(kind, &Value::Number(number), &mut out);
        out
    }

    #[test]
    fn values_have_three_digits_and_a_unit() {
        assert_eq!(shown(Kind::TimeUs, 123), "123us");
        assert_eq!(shown(Kind::TimeUs, 12_345), "12.3ms");
        assert_eq!(shown(Kind::TimeUs, 1_050_000), "1.05s");
        assert_eq!(shown(Kind::RateBps, 94_100_000), "94.1M");
        assert_eq!(shown(Kind::Bytes, 65_536), "64.0Ki");
        assert_eq!(shown(Kind::Bytes, 0), "0");
        assert_eq!(shown(Kind::Count, u64::MAX), u64::MAX.to_string());
        assert_eq!(shown(Kind::RateBps, u64::MAX), "18446744073G");
    }

    fn row(remote: &str) -> Connection {
        let local = "10.0.0.1:5".parse().unwrap();
        Connection::bare("".into(), local, remote.parse().unwrap(), State::ESTABLISHED)
    }

    #[test]
    fn addresses_are_as_the_language_writes_them() {
        for text in ["10.0.0.1:5", "255.255.255.255:65535", "0.0.0.0:0", "[2001:db8::1]:443"] {
            let mut out = String::new();
            write_value(Kind::Address, &Value::Address(text.parse().unwrap()), &mut out);
            assert_eq!(out, text);
        }
    }

    #[test]
    fn a_table_is_aligned_and_nothing_trails_a_line() {
        let columns = fields("dst,dport,state").unwrap();
        let mut table = Table::new(&columns);
        ["10.0.0.2:80", "[2001:db8::1]:443"].iter().for_each(|remote| table.push(&row(remote)));
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "dst                dport  state\n\
             10.0.0.2:80           80  established\n\
             [2001:db8::1]:443    443  established\n"
        );
    }

    #[test]
    fn absent_values_stand_last_whichever_way_the_order_is() {
        let order: Order = "-dport".parse().unwrap();
        assert_eq!(order.compare(&row("10.0.0.2:80"), &row("10.0.0.2:443")), Ordering::Greater);
        let order: Order = "cwnd".parse().unwrap();
        assert_eq!(order.compare(&row("10.0.0.2:80"), &row("10.0.0.2:443")), Ordering::Equal);
        assert!("-cwdn".parse::<Order>().err().unwrap().root_cause().to_string().contains("'cwnd'"));
    }

    #[test]
    fn json_keys_carry_units_and_absent_values_are_null() {
        let value = json(&fields("cwnd,dst,dport").unwrap(), &row("10.0.0.2:80"));
        let wanted = serde_json::json!({
            "cwnd_segments": null, "remote": "10.0.0.2:80", "remote_port": 80
        });
        assert_eq!(value, wanted);
    }
}
