//! Values of connections as people and programs read them; tables of many rows without a layout engine.

use anyhow::anyhow;
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
    FIELDS.iter().map(|field| format!("  {:<16} {}\n", field.name, field.meaning)).collect()
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
        let field = find(name.unwrap_or(text))?;
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
        Value::Text(text) => {
            push_text(out, text);
            Ok(())
        }
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

/// A process may call itself anything: what would end a line, or tell the terminal something, is shown as `?`.
fn push_text(out: &mut String, text: &str) {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        out.extend(text.chars().map(|char| if char.is_control() { '?' } else { char }));
    } else {
        out.push_str(text);
    }
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

/// An aligned table being made: lines stand as they will be written while the connections are still being told, but for
/// those of before a column became wider.
pub struct Table<'a> {
    columns: &'a [&'static Field],
    blocks: Vec<Block>,
    cell: String,
}

/// Lines of the same widths.
#[derive(Clone)]
struct Block {
    widths: Vec<usize>,
    text: String,
}

impl<'a> Table<'a> {
    /// Without rows.
    pub fn new(columns: &'a [&'static Field]) -> Table<'a> {
        let widths = columns.iter().map(|field| field.name.len()).collect();
        let mut header = Block { widths, text: String::new() };
        for (index, field) in columns.iter().enumerate() {
            header.push(columns, index, field.name);
        }
        Table { columns, blocks: vec![header], cell: String::new() }
    }

    /// Adds a row.
    pub fn push(&mut self, row: &Connection) {
        let Some(mut block) = self.blocks.pop() else { return };
        let mut line = block.text.len();
        for (index, field) in self.columns.iter().enumerate() {
            self.cell.clear();
            write_value(field.kind, &field.value(row), &mut self.cell);
            if self.cell.len() > block.widths[index] {
                let wider = block.split_off(line, index, self.cell.len());
                self.blocks.push(std::mem::replace(&mut block, wider));
                line = 0;
            }
            block.push(self.columns, index, &self.cell);
        }
        self.blocks.push(block);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        matches!(&self.blocks[..], [header] if header.text.lines().count() <= 1)
    }

    /// The columns that have room in a terminal so wide.
    pub fn fitting(&self, room: usize) -> Vec<usize> {
        let names: Vec<&str> = self.columns.iter().map(|field| field.name).collect();
        self.blocks.last().map_or_else(Vec::new, |last| fitting(&names, &last.widths, room))
    }

    /// Writes some of its columns; all where none are named.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write(&self, to: &mut impl io::Write, shown: Option<&[usize]>) -> io::Result<()> {
        let Some((last, narrower)) = self.blocks.split_last() else { return Ok(()) };
        if let Some(shown) = shown {
            return self.blocks.iter().try_for_each(|block| {
                to.write_all(block.widened(self.columns, &last.widths, shown).as_bytes())
            });
        }
        let all: Vec<usize> = (0..self.columns.len()).collect();
        for block in narrower {
            to.write_all(block.widened(self.columns, &last.widths, &all).as_bytes())?;
        }
        to.write_all(last.text.as_bytes())
    }
}

const BLANKS: &str = "                                                                ";
const BETWEEN: &str = "  ";
/// Blanks between two columns.
pub const SPACING: usize = BETWEEN.len();
/// Columns that a narrow terminal does without, one after the other.
const LEFT_OUT_FIRST: [&str; 19] = [
    "cause", "avail", "pacing", "rcvwnd", "rwnd", "rttvar", "pid", "rto", "minrtt", "state", "ssthresh",
    "src", "process", "flight", "cc", "retrans", "limit", "netns", "delivery",
];

/// The columns that have room, in their order: a value cut short would be taken for another.
pub fn fitting(names: &[&str], widths: &[usize], room: usize) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..names.len()).collect();
    let takes = |shown: &[usize]| -> usize {
        let texts: usize = shown.iter().map(|column| widths[*column]).sum();
        texts + SPACING * shown.len().saturating_sub(1)
    };
    for name in LEFT_OUT_FIRST {
        if takes(&shown) <= room {
            break;
        }
        shown.retain(|column| names[*column] != name);
    }
    shown
}

impl Block {
    /// Takes the line away that begins at `line`, in which a cell is as wide as this.
    fn split_off(&mut self, line: usize, index: usize, width: usize) -> Block {
        let mut widths = self.widths.clone();
        widths[index] = width;
        Block { widths, text: self.text.split_off(line) }
    }

    /// Adds a cell that is no wider than its column.
    fn push(&mut self, columns: &[&Field], index: usize, cell: &str) {
        let is_last = index + 1 == columns.len();
        let blanks = self.widths[index] - cell.len();
        if is_numeric(columns[index].kind) {
            self.push_blanks(blanks);
            self.text.push_str(cell);
        } else {
            self.text.push_str(cell);
            // Nothing trails a line.
            self.push_blanks(if is_last { 0 } else { blanks });
        }
        self.text.push_str(if is_last { "\n" } else { BETWEEN });
    }

    fn push_blanks(&mut self, mut count: usize) {
        while count > 0 {
            let some = count.min(BLANKS.len());
            self.text.push_str(&BLANKS[..some]);
            count -= some;
        }
    }

    /// The lines with the columns that are shown, which are as wide as `widths` says.
    fn widened(&self, columns: &[&'static Field], widths: &[usize], shown: &[usize]) -> String {
        let columns: Vec<&Field> = shown.iter().map(|index| columns[*index]).collect();
        let widths = shown.iter().map(|index| widths[*index]).collect();
        let mut wider = Block { widths, text: String::with_capacity(2 * self.text.len()) };
        for line in self.text.lines() {
            let (mut rest, mut next) = (line, 0);
            for (index, width) in self.widths.iter().enumerate() {
                // The last cell of a line may be shorter than its column.
                let (cell, after) = rest.split_at((*width).min(rest.len()));
                if shown.get(next) == Some(&index) {
                    next += 1;
                    let is_last = next == shown.len();
                    wider.push(&columns, next - 1, if is_last { cell.trim_end() } else { cell });
                }
                rest = after.strip_prefix(BETWEEN).unwrap_or(after);
            }
        }
        wider.text
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
    use longfat_kernel::tcb::{Process, State};

    fn shown(kind: Kind, number: u64) -> String {
        let mut out = String::new();
        write_value(kind, &Value::Number(number), &mut out);
        out
    }

    #[test]
    fn a_narrow_terminal_gets_whole_columns_that_fit() {
        let (names, widths) = (["src", "dst", "cc", "pacing", "limit"], [15, 15, 8, 6, 9]);
        let shown = |room| fitting(&names, &widths, room).iter().map(|at| names[*at]).collect::<Vec<_>>();
        assert_eq!(shown(61), names);
        assert_eq!(shown(60), ["src", "dst", "cc", "limit"]);
        assert_eq!(shown(40), ["dst", "cc", "limit"]);
        assert_eq!(shown(20), ["dst"], "the least there is");
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
        let text = table_of("dst,dport,state", &["10.0.0.2:80", "[2001:db8::1]:443"].map(row));
        assert_eq!(
            text,
            "dst                dport  state\n\
             10.0.0.2:80           80  established\n\
             [2001:db8::1]:443    443  established\n"
        );
    }

    fn table_of(names: &str, rows: &[Connection]) -> String {
        let columns = fields(names).unwrap();
        let mut table = Table::new(&columns);
        rows.iter().for_each(|row| table.push(row));
        let mut out = Vec::new();
        table.write(&mut out, None).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_aligned_whichever_of_them_is_the_widest() {
        let wide = ["[2001:db8::1]:443", "10.0.0.200:80", "10.0.0.2:8", "[2001:db8::1:2]:44321"];
        let mut rows: Vec<Connection> = wide.iter().map(|remote| row(remote)).collect();
        for _ in 0..rows.len() {
            for names in ["dst,dport,state", "state,dst", "dport,dst,sport"] {
                let text = table_of(names, &rows);
                let lines: Vec<&str> = text.lines().collect();
                assert_eq!(lines.len(), 1 + rows.len());
                let columns = fields(names).unwrap();
                let cells: Vec<Vec<String>> =
                    std::iter::once(columns.iter().map(|f| f.name.to_owned()).collect())
                        .chain(
                            rows.iter().map(|row| columns.iter().map(|field| shown_of(field, row)).collect()),
                        )
                        .collect();
                let widths: Vec<usize> =
                    (0..columns.len()).map(|i| cells.iter().map(|row| row[i].len()).max().unwrap()).collect();
                for (line, cells) in lines.iter().zip(&cells) {
                    let wanted: Vec<String> = cells
                        .iter()
                        .zip(&widths)
                        .zip(&columns)
                        .map(|((cell, width), field)| match is_numeric(field.kind) {
                            true => format!("{cell:>width$}"),
                            false => format!("{cell:<width$}"),
                        })
                        .collect();
                    assert_eq!(*line, wanted.join("  ").trim_end());
                }
            }
            rows.rotate_left(1);
        }
    }

    fn shown_of(field: &Field, row: &Connection) -> String {
        let mut out = String::new();
        write_value(field.kind, &field.value(row), &mut out);
        out
    }

    #[test]
    fn a_process_that_calls_itself_a_line_and_an_escape_is_one_cell() {
        let process = Process { pid: 1, command: "a\nb\u{1b}[2J".into() };
        let named = Connection { process: Some(process), ..row("10.0.0.2:80") };
        assert_eq!(table_of("process,dport", &[named]), "process  dport\na?b?[2J     80\n");
    }

    #[test]
    fn absent_values_stand_last_whichever_way_the_order_is() {
        let order: Order = "-dport".parse().unwrap();
        assert_eq!(order.compare(&row("10.0.0.2:80"), &row("10.0.0.2:443")), Ordering::Greater);
        let order: Order = "cwnd".parse().unwrap();
        assert_eq!(order.compare(&row("10.0.0.2:80"), &row("10.0.0.2:443")), Ordering::Equal);
        assert!("-cwdn".parse::<Order>().err().unwrap().to_string().contains("'cwnd'"));
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
