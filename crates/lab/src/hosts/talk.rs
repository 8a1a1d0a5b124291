//! What the machine that leads a run and a host of it say to each other: a line of JSON there, a line back.
//!
//! The host may be anybody's: what it answers is bounded in length, files go to disk as they come, and no answer is
//! read before the one before it was heard.

use crate::{conductor::Status, plan::Plan};
use longfat_host::support::Missing;
use longfat_schema::run::HostState;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, Read, Seek, Write},
    sync::mpsc::SyncSender,
    time::Duration,
};

/// How often the leading machine gives a sign of life, an empty line, when it has nothing to ask.
pub const SIGN_EVERY: Duration = Duration::from_secs(5);
/// A host that hears nothing for so long ends everything and sets back what it set: its leader is gone.
pub const SILENCE: Duration = Duration::from_secs(60);

/// Longest answer: the parameters and counters of a host are some 100 kB.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Longest file of records, packed and unpacked: an hour of ten thousand records a second is half of it.
pub const FILE_BYTES_MAX: u64 = 4 << 30;
/// Longest text of an answer that a person is shown.
pub const SHOWN_BYTES_MAX: usize = 1000;

/// An answer, and the file that came with it.
pub type Heard = (Answer, Option<File>);

/// Tells answers as they are wanted, until nobody wants any: none is read before the one before it was taken.
pub fn listen(mut from: impl BufRead, to: &SyncSender<Heard>) {
    while let Some(heard) = next(&mut from) {
        if to.send(heard).is_err() {
            return;
        }
    }
}

/// The next answer, and the file that follows it. What is none is told as what went wrong.
fn next(from: &mut impl BufRead) -> Option<Heard> {
    let mut line = Vec::new();
    from.take(ANSWER_BYTES_MAX + 1).read_until(b'\n', &mut line).ok().filter(|length| *length > 0)?;
    if line.len() as u64 > ANSWER_BYTES_MAX {
        return Some(strange(&format!("an answer of more than {ANSWER_BYTES_MAX} bytes")));
    }
    let said = || format!("it said: {}", String::from_utf8_lossy(&line).trim());
    let answer = serde_json::from_slice(&line).unwrap_or_else(|_| Answer::Failed(said()));
    let Answer::File { bytes } = answer else { return Some((answer, None)) };
    if bytes > FILE_BYTES_MAX {
        return Some(strange(&format!("a file of {bytes} bytes, of {FILE_BYTES_MAX} at most")));
    }
    Some(match receive(from, bytes) {
        Ok(file) => (answer, Some(file)),
        Err(error) => strange(&format!("a file of {bytes} bytes: {error}")),
    })
}

fn strange(what: &str) -> Heard {
    (Answer::Failed(format!("it sent {what}")), None)
}

/// A file on its way, on disk without a name.
fn receive(from: &mut impl BufRead, bytes: u64) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    if io::copy(&mut from.take(bytes), &mut file)? < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    file.rewind()?;
    Ok(file)
}

/// Unpacks a file that a host sent: a few kilobytes become any number.
///
/// # Errors
/// It is damaged, longer than a file may be, or cannot be written.
pub fn unpack(packed: impl Read, most_bytes: u64, to: &mut impl Write) -> io::Result<()> {
    let bytes = io::copy(&mut zstd::Decoder::new(packed)?.take(most_bytes + 1), to)?;
    if bytes > most_bytes {
        let why = format!("is longer than the {most_bytes} bytes that such a file may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(())
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
    /// To end everything at once, since the run has failed: what the programs wrote stays to be fetched.
    GiveUp,
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
        /// The file, and its length.
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
    use proptest::prelude::*;
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::sync_channel,
    };

    #[test]
    fn a_file_that_would_become_more_than_it_may_is_refused() {
        let packed = zstd::encode_all(&vec![0; 2_000_000][..], 1).unwrap();
        assert!(packed.len() < 1000);
        let mut file = Vec::new();
        unpack(&packed[..], 2_000_000, &mut file).unwrap();
        assert_eq!(file.len(), 2_000_000);
        let error = unpack(&packed[..], 1_999_999, &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("is longer than"));
    }

    fn heard(mut said: &[u8]) -> Vec<Heard> {
        std::iter::from_fn(|| next(&mut said)).collect()
    }

    fn why(said: &[u8]) -> String {
        match heard(said).into_iter().next() {
            Some((Answer::Failed(what), None)) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_answer_too_long_or_cut_off_is_told_as_that() {
        assert!(heard(b"").is_empty());
        assert_eq!(why(b"\x1b[2J\xff\n"), "it said: \u{1b}[2J\u{fffd}");
        assert!(why(&vec![b'['; 1_000_000]).starts_with("it said: [["), "no deeper than a parser goes");
        let line = vec![b'x'; ANSWER_BYTES_MAX as usize + 1];
        assert!(why(&line).contains("more than 4194304 bytes"));
        let file = |bytes: u64| format!("{{\"answer\":\"file\",\"with\":{{\"bytes\":{bytes}}}}}\nabc");
        assert!(why(file(u64::MAX).as_bytes()).contains("at most"));
        assert!(why(file(4).as_bytes()).contains("a file of 4 bytes"));
        let mut whole = heard((file(3) + "{\"answer\":\"done\"}\n").as_bytes());
        assert!(matches!(whole.pop(), Some((Answer::Done, None))));
        let mut text = String::new();
        whole.pop().unwrap().1.unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
    }

    #[test]
    fn answers_that_nobody_asked_for_wait_unread() {
        struct Endless<'a>(&'a AtomicUsize);
        impl Read for Endless<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let said = b"{\"answer\":\"done\"}\n";
                into[..said.len()].copy_from_slice(said);
                self.0.fetch_add(1, Ordering::SeqCst);
                Ok(said.len())
            }
        }
        static READ: AtomicUsize = AtomicUsize::new(0);
        let (to, answers) = sync_channel(0);
        std::thread::spawn(move || listen(io::BufReader::with_capacity(64, Endless(&READ)), &to));
        for heard in 1..=20 {
            assert!(matches!(answers.recv(), Ok((Answer::Done, None))));
            assert!(READ.load(Ordering::SeqCst) <= heard + 1);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answers_or_told_as_none(said: Vec<u8>) {
            heard(&said);
        }
    }
}
