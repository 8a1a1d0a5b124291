//! What the machine that leads a run and a host of it say to each other: a line of JSON there, a line back.

use crate::{conductor::Status, plan::Plan};
use longfat_host::support::Missing;
use longfat_schema::run::HostState;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io::{self, Read as _},
    time::Duration,
};

/// How often the leading machine gives a sign of life, an empty line, when it has nothing to ask.
pub const SIGN_EVERY: Duration = Duration::from_secs(5);
/// A host that hears nothing for so long ends everything and sets back what it set: its leader is gone.
pub const SILENCE: Duration = Duration::from_secs(60);

/// Longest answer: the parameters and counters of a host are some 100 kB.
pub const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Longest file of records, packed and unpacked: an hour of ten thousand records a second is half of it.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// Unpacks a file that a host sent: its host may be anybody's, and a few kilobytes become any number.
///
/// # Errors
/// It is damaged, or longer than a file may be.
pub fn unpack(packed: &[u8], most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = Vec::new();
    zstd::Decoder::new(packed)?.take(most_bytes + 1).read_to_end(&mut file)?;
    if file.len() as u64 > most_bytes {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("is longer than {most_bytes} bytes"),
        ));
    }
    Ok(file)
}

/// What a host is asked. `plan` is the plan as it happens on these machines.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", content = "with", rename_all = "snake_case")]
pub enum Ask {
    /// What time it is.
    Clock,
    /// What it lacks for its part in these plans.
    Check(Vec<Plan>),
    /// To get ready: congestion controls, network parameters, relays and receivers.
    Prepare(Box<Plan>),
    /// To start its senders, which agree with their receivers then.
    Agree,
    /// To tell them when to begin.
    Begin {
        /// When the flows begin, by its own clock.
        start_ns: u64,
    },
    /// How it goes.
    Status,
    /// For what its programs recorded since it was asked last, thinned: a file of lines.
    Recent,
    /// To end what serves.
    Finish,
    /// For one of the files that its programs wrote.
    File(String),
    /// To set everything back.
    End,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", content = "with", rename_all = "snake_case")]
pub enum Answer {
    /// Monotonic clock of the machine.
    Clock {
        /// Nanoseconds.
        monotonic_ns: u64,
    },
    /// What it lacks.
    Lacks(Vec<Missing>),
    /// The machine is ready; this is what it is like, its counters as they stand.
    Prepared(Box<HostState>),
    /// Done as asked.
    Done,
    /// How it goes.
    Status(Status),
    /// Everything has ended.
    Finished {
        /// Counters of the machine.
        counters: BTreeMap<String, i64>,
        /// The files that its programs wrote.
        files: Vec<String>,
    },
    /// One of them follows, compressed (zstd).
    File {
        /// That is so long.
        bytes: u64,
    },
    /// A program of the run failed; the next run may well succeed.
    RunFailed(String),
    /// What was asked could not be done.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_would_become_more_than_it_may_is_refused() {
        let packed = zstd::encode_all(&vec![0; 2_000_000][..], 1).unwrap();
        assert!(packed.len() < 1000);
        assert_eq!(unpack(&packed, 2_000_000).unwrap().len(), 2_000_000);
        assert!(unpack(&packed, 1_999_999).unwrap_err().to_string().contains("is longer than"));
    }
}
