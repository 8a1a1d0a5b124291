//! Rows of time, rate, delay and loss: what a link was from each row's time to the next row's.
//!
//! Columns are found by their names, which carry the unit: `time_s`, `time_ms`, `time_us`; `rate_bps`, `rate_kbps`,
//! `rate_mbps`; `delay_s`, `delay_ms`, `delay_us` (one way); `loss` (a share), `loss_percent`. Time is needed, and one
//! other at least.

use super::TraceError;
use std::fmt::Write as _;

/// Most rows.
pub const ROWS_MAX: usize = 100_000;
/// Fastest line.
const RATE_BPS_MAX: f64 = 1e13;
/// Longest trace, and longest delay.
const TIME_NS_MAX: f64 = 1e9 * 86_400.0 * 366.0;
const DELAY_NS_MAX: f64 = 6e11;

/// A link from one time on.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Row {
    /// Since the first row.
    pub at_ns: u64,
    /// Bits per second, where rows say.
    pub rate_bps: Option<u64>,
    /// One way, where rows say.
    pub delay_ns: Option<u64>,
    /// Probability, where rows say.
    pub loss: Option<f64>,
}

/// What a column says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    Time,
    Rate,
    Delay,
    Loss,
}

impl Quantity {
    fn most(self) -> f64 {
        match self {
            Quantity::Time => TIME_NS_MAX,
            Quantity::Rate => RATE_BPS_MAX,
            Quantity::Delay => DELAY_NS_MAX,
            Quantity::Loss => 1.0,
        }
    }
}

const NAMES: [(&str, Quantity, f64); 11] = [
    ("time_s", Quantity::Time, 1e9),
    ("time_ms", Quantity::Time, 1e6),
    ("time_us", Quantity::Time, 1e3),
    ("rate_bps", Quantity::Rate, 1.0),
    ("rate_kbps", Quantity::Rate, 1e3),
    ("rate_mbps", Quantity::Rate, 1e6),
    ("delay_s", Quantity::Delay, 1e9),
    ("delay_ms", Quantity::Delay, 1e6),
    ("delay_us", Quantity::Delay, 1e3),
    ("loss", Quantity::Loss, 1.0),
    ("loss_percent", Quantity::Loss, 0.01),
];

/// A table's columns.
#[derive(Debug)]
pub(super) struct Columns(Vec<(&'static str, Quantity, f64)>);

impl Columns {
    /// By the names in a table's head.
    pub fn named(names: &[&str]) -> Result<Columns, TraceError> {
        let known: Vec<&str> = NAMES.iter().map(|(name, ..)| *name).collect();
        let find = |name: &&str| {
            let found = NAMES.iter().find(|(known, ..)| known == name).copied();
            let mend = format!("columns are {}", known.join(", "));
            found.ok_or_else(|| TraceError::line(1, name, "is no column of a trace", mend))
        };
        let columns = Columns(names.iter().map(find).collect::<Result<_, _>>()?);
        for quantity in [Quantity::Time, Quantity::Rate, Quantity::Delay, Quantity::Loss] {
            if columns.0.iter().filter(|(_, other, _)| *other == quantity).count() > 1 {
                let why = "says the same of a row twice";
                return Err(TraceError::line(1, &names.join(","), why, "leave one column of each kind"));
            }
        }
        let has_time = columns.0.iter().any(|(_, quantity, _)| *quantity == Quantity::Time);
        if !has_time || columns.0.len() < 2 {
            let mend = "begin the file with a line like 'time_s,rate_mbps,delay_ms,loss'";
            return Err(TraceError::line(
                1,
                &names.join(","),
                "does not name a time and what is at it",
                mend,
            ));
        }
        Ok(columns)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A row of as many values as there are columns, as numbers and as they are shown.
    fn row<'a>(
        &self,
        line: usize,
        values: impl Iterator<Item = (Option<f64>, &'a str)>,
    ) -> Result<Row, TraceError> {
        let mut row = Row::default();
        for ((name, quantity, factor), (value, shown)) in self.0.iter().zip(values) {
            let base =
                value.map(|value| value * factor).filter(|base| (0.0..=quantity.most()).contains(base));
            let mend = format!("write a number from 0 to {:e}", quantity.most() / factor);
            let base = base.ok_or_else(|| TraceError::line(line, shown, format!("is no {name}"), mend))?;
            match quantity {
                Quantity::Time => row.at_ns = base.round() as u64,
                Quantity::Rate => row.rate_bps = Some(base.round() as u64),
                Quantity::Delay => row.delay_ns = Some(base.round() as u64),
                Quantity::Loss => row.loss = Some(base),
            }
        }
        Ok(row)
    }
}

/// Rows as they are read.
#[derive(Debug)]
pub(super) struct Rows {
    columns: Columns,
    rows: Vec<Row>,
}

impl Rows {
    pub fn new(columns: Columns) -> Rows {
        Rows { columns, rows: Vec::new() }
    }

    pub fn push<'a>(
        &mut self,
        line: usize,
        values: impl Iterator<Item = (Option<f64>, &'a str)>,
    ) -> Result<(), TraceError> {
        let row = self.columns.row(line, values)?;
        if let Some(last) = self.rows.last().filter(|last| last.at_ns >= row.at_ns) {
            let (value, last) = (format!("{} s", row.at_ns as f64 / 1e9), last.at_ns as f64 / 1e9);
            let why = format!("is not after the row before, {last} s");
            return Err(TraceError::line(line, &value, why, "order rows by time, one of each"));
        }
        if self.rows.len() == ROWS_MAX {
            return Err(TraceError::TooMuch { what: "rows", most: ROWS_MAX as u64 });
        }
        self.rows.push(row);
        Ok(())
    }

    /// Times since the first row.
    pub fn whole(mut self) -> Result<Vec<Row>, TraceError> {
        let first_ns = self.rows.first().map(|row| row.at_ns);
        let first_ns = first_ns.ok_or_else(|| TraceError::Whole("holds no row below its head".to_owned()))?;
        self.rows.iter_mut().for_each(|row| row.at_ns -= first_ns);
        Ok(self.rows)
    }
}

/// Reads CSV: a head of columns' names, then numbers. Lines that begin with `#`, and empty ones, are skipped.
///
/// # Errors
/// The first line that is no such row, too many of them, or none.
pub fn read_csv(bytes: &[u8]) -> Result<Vec<Row>, TraceError> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches('\u{feff}');
    let lines = (1..).zip(text.lines().map(str::trim));
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let (_, head) = lines.next().ok_or_else(|| TraceError::Whole("is empty".to_owned()))?;
    let mut rows = Rows::new(Columns::named(&cells(head).collect::<Vec<_>>())?);
    for (line, text) in lines {
        let (found, wanted) = (cells(text).count(), rows.columns.len());
        if found != wanted {
            let why = format!("has {found} values for {wanted} columns");
            return Err(TraceError::line(line, text, why, "write one value of each column"));
        }
        rows.push(line, cells(text).map(|cell| (cell.parse().ok(), cell)))?;
    }
    rows.whole()
}

fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|cell| cell.trim().trim_matches('"'))
}

/// Writes CSV that [`read_csv`] reads, under comments.
pub fn write_csv(rows: &[Row], comments: &[String]) -> String {
    let first = rows.first().copied().unwrap_or_default();
    let mut text: String = comments.iter().map(|comment| format!("# {comment}\n")).collect();
    let name = |is: bool, name: &'static str| is.then_some(name);
    let head = [
        Some("time_s"),
        name(first.rate_bps.is_some(), "rate_bps"),
        name(first.delay_ns.is_some(), "delay_ms"),
        name(first.loss.is_some(), "loss"),
    ];
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}", head.into_iter().flatten().collect::<Vec<_>>().join(","));
    for row in rows {
        let cells = [
            Some((row.at_ns as f64 / 1e9).to_string()),
            row.rate_bps.map(|bps| bps.to_string()),
            row.delay_ns.map(|ns| (ns as f64 / 1e6).to_string()),
            row.loss.map(|loss| loss.to_string()),
        ];
        let _ = writeln!(text, "{}", cells.into_iter().flatten().collect::<Vec<_>>().join(","));
    }
    text
}
