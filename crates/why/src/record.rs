//! Looks kept in a file, to be judged again: one JSON object per connection and line, a column per figure of the
//! kernel.
//!
//! A column begins with the first look's figure; behind it stand differences from look to look, and nothing where they
//! are all zero. Columns of zeros are left out. All is modulo 2^64, so "unlimited" is -1.

use crate::divide::{Look, Memory};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io};
use thiserror::Error;

/// What reading a record meets.
#[derive(Debug, Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("read the looks: {0}")]
    Io(#[from] io::Error),
    /// A line is not a record.
    #[error(
        "line {line} is no record of looks ({source}): such files are written by 'longfat why --record FILE'"
    )]
    Line {
        /// From 1.
        line: usize,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// More or fewer looks than announced.
    #[error("line {line}: column '{column}' has {found} figures, {looks} looks were announced")]
    Length {
        /// From 1.
        line: usize,
        /// Name of the column.
        column: String,
        /// Figures in it.
        found: usize,
        /// Number of looks announced.
        looks: usize,
    },
    /// A record announces more looks than are ever kept.
    #[error("line {line}: {looks} looks, of which at most {MOST_LOOKS} are kept of a connection")]
    TooMany {
        /// From 1.
        line: usize,
        /// Number of looks announced.
        looks: usize,
    },
}

/// Looks kept of a connection at the most.
pub const MOST_LOOKS: usize = 2048;

/// One connection's looks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// `rsync[4711] to 192.0.2.7:22`
    pub who: String,
    /// What it was recorded for: a case of bench/why; free.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Number of looks.
    pub looks: usize,
    /// By the figure's name.
    pub columns: BTreeMap<String, Vec<i64>>,
}

type Get = fn(&Look) -> u64;
type Set = fn(&mut Look, u64);

macro_rules! figures {
    ($($name:ident)*) => {
        &[$((
            stringify!($name),
            |look: &Look| u64::from(look.info.$name),
            |look: &mut Look, value: u64| look.info.$name = value as _,
        )),*]
    };
}

/// Figures of TCP_INFO, by their names there.
const OF_INFO: &[(&str, Get, Set)] = figures! {
    state ca_state retransmits probes backoff options window_scales flags rto_us ato_us snd_mss_bytes rcv_mss_bytes
    unacked_segments sacked_segments lost_segments retrans_segments last_data_sent_ms last_data_recv_ms
    last_ack_recv_ms pmtu_bytes rcv_ssthresh_bytes srtt_us rttvar_us snd_ssthresh_segments snd_cwnd_segments
    advmss_bytes reordering_segments rcv_rtt_us rcv_space_bytes total_retrans_segments pacing_rate_bytes_per_s
    max_pacing_rate_bytes_per_s acked_bytes received_bytes segs_out segs_in notsent_bytes min_rtt_us data_segs_in
    data_segs_out delivery_rate_bytes_per_s busy_us rwnd_limited_us sndbuf_limited_us delivered_segments
    delivered_ce_segments sent_bytes retrans_bytes dsack_dups reord_seen rcv_ooopack snd_wnd_bytes rcv_wnd_bytes
    rehash total_rto total_rto_recoveries total_rto_time_ms
};

macro_rules! memory {
    ($($name:ident)*) => {
        &[$((
            stringify!($name),
            |look: &Look| u64::from(look.memory.$name),
            |look: &mut Look, value: u64| look.memory = Memory { $name: value as _, ..look.memory },
        )),*]
    };
}

const OF_MEMORY: &[(&str, Get, Set)] =
    memory! { rcvbuf_bytes sndbuf_bytes send_queued_bytes below_tcp_bytes };

const OTHERS: &[(&str, Get, Set)] = &[
    ("time_us", |look| look.time_us, |look, value| look.time_us = value),
    (
        "receive_queue_bytes",
        |look| look.receive_queue_bytes.into(),
        |look, value| look.receive_queue_bytes = value as u32,
    ),
    ("paces", |look| look.paces.into(), |look, value| look.paces = value != 0),
    // One more than the bound: none is zero.
    (
        "clamp_segments_and_1",
        |look| look.clamp_segments.map_or(0, |clamp| u64::from(clamp) + 1),
        |look, value| look.clamp_segments = value.checked_sub(1).map(|clamp| clamp as u32),
    ),
];

fn every() -> impl Iterator<Item = &'static (&'static str, Get, Set)> {
    OTHERS.iter().chain(OF_INFO).chain(OF_MEMORY)
}

impl Record {
    /// Record of a connection's looks.
    pub fn of(who: String, looks: &[Look]) -> Record {
        let columns = every()
            .map(|(name, get, _)| ((*name).to_owned(), column(looks.iter().map(get))))
            .filter(|(_, column)| column.iter().any(|figure| *figure != 0))
            .collect();
        Record { who, note: String::new(), looks: looks.len(), columns }
    }

    fn check(self, line: usize) -> Result<Record, Error> {
        let looks = self.looks;
        if looks > MOST_LOOKS {
            return Err(Error::TooMany { line, looks });
        }
        let is_wrong = |column: &Vec<i64>| column.len() != looks && column.len() != 1;
        match self.columns.iter().find(|(_, column)| is_wrong(column)) {
            Some((name, column)) => {
                Err(Error::Length { line, column: name.clone(), found: column.len(), looks })
            }
            None => Ok(self),
        }
    }

    /// The looks again; figures of other versions that this one does not know are left out.
    pub fn to_looks(&self) -> Vec<Look> {
        let mut looks = vec![Look::default(); self.looks];
        for (name, _, set) in every() {
            let Some(column) = self.columns.get(*name) else { continue };
            let mut value = 0_u64;
            for (number, look) in looks.iter_mut().enumerate() {
                value = value.wrapping_add(column.get(number).copied().unwrap_or(0) as u64);
                set(look, value);
            }
        }
        looks
    }
}

fn column(figures: impl Iterator<Item = u64>) -> Vec<i64> {
    let mut before = 0_u64;
    let mut column: Vec<i64> = figures
        .map(|figure| {
            let change = figure.wrapping_sub(before) as i64;
            before = figure;
            change
        })
        .collect();
    if column.iter().skip(1).all(|change| *change == 0) {
        column.truncate(1);
    }
    column
}

/// The records of a file, one a line; empty lines are left out.
///
/// # Errors
/// A line that is no record, with its number.
pub fn read(from: impl io::BufRead) -> Result<Vec<Record>, Error> {
    let mut records = Vec::new();
    for (number, text) in from.lines().enumerate() {
        let (text, line) = (text?, number + 1);
        if !text.trim().is_empty() {
            let record: Record =
                serde_json::from_str(&text).map_err(|source| Error::Line { line, source })?;
            records.push(record.check(line)?);
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::divide::tests::any_look;
    use proptest::prelude::*;

    fn any_full_look() -> impl Strategy<Value = Look> {
        (any_look(), any::<u32>(), any::<Option<u32>>(), any::<bool>()).prop_map(
            |(look, receive_queue_bytes, clamp_segments, paces)| Look {
                receive_queue_bytes,
                clamp_segments,
                paces,
                ..look
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_read_again_is_what_was_looked_at(looks in proptest::collection::vec(any_full_look(), 0..6)) {
            let text = serde_json::to_string(&Record::of("x".into(), &looks)).unwrap();
            let again = read(text.as_bytes()).unwrap().remove(0).to_looks();
            prop_assert_eq!(again.len(), looks.len());
            for (name, get, _) in every() {
                let (a, b): (Vec<_>, Vec<_>) = (looks.iter().map(get).collect(), again.iter().map(get).collect());
                prop_assert_eq!(a, b, "{}", name);
            }
        }

        #[test]
        fn a_line_of_anything_is_an_error_and_no_panic(text in ".{0,200}") {
            let _ = read(text.as_bytes());
        }
    }

    #[test]
    fn a_record_that_is_cut_says_its_line_and_its_column() {
        let line = r#"{"who":"a","looks":3,"columns":{"time_us":[1,2]}}"#;
        let said = read(format!("\n{line}\n").as_bytes()).unwrap_err().to_string();
        assert_eq!(said, "line 2: column 'time_us' has 2 figures, 3 looks were announced");
        let said = read(r#"{"who":"a","looks":99999999,"columns":{}}"#.as_bytes()).unwrap_err().to_string();
        assert!(said.starts_with("line 1: 99999999 looks"), "{said}");
        assert!(read(&b"{}"[..]).unwrap_err().to_string().contains("--record"));
    }
}
