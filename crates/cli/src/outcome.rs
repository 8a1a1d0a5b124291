//! How a command ends, and the exit code that says so.

use crate::output;
use longfat_host::support::Missing;
use std::process::ExitCode;

/// Exit code of what failed: usage, input or I/O.
const FAILED: u8 = 2;

/// Result of a command.
pub type Outcome = Result<(), Failure>;

/// Why a command did not end well.
#[derive(Debug)]
pub enum Failure {
    /// The command ran, and a stated expectation was missed: exit code 1.
    Missed(String),
    /// Usage, input or I/O: exit code 2.
    Failed(anyhow::Error),
    /// This host cannot do it: exit code 3.
    Unsupported(Vec<Missing>),
    /// This host can do a part of it only, and that is done: exit code 3.
    PartlyUnsupported(Vec<Missing>),
    /// The host, or one of those asked for, lacks so many things, which have been told: exit code 3.
    Lacking(usize),
    /// A program run on the user's behalf ended with this code of its own.
    Child(u8),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Failed(error.into())
    }
}

/// Refuses with exit code 3 when anything is missing.
pub fn require(missing: Vec<Missing>) -> Outcome {
    if missing.is_empty() { Ok(()) } else { Err(Failure::Unsupported(missing)) }
}

/// Says on standard error what went wrong, and turns it into the exit code.
pub fn exit_code(outcome: Outcome) -> ExitCode {
    // What was found out is of no use to anybody whom it did not reach: that is said, whatever else there is to say.
    let outcome = match (output::failure(), outcome) {
        (Err(unwritten), Ok(())) => Err(unwritten.into()),
        (Err(unwritten), outcome) => {
            eprintln!("longfat: {}", said_once(&unwritten));
            outcome
        }
        (Ok(()), outcome) => outcome,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Missed(what)) => {
            eprintln!("longfat: expectation missed: {what}");
            ExitCode::from(1)
        }
        Err(Failure::Failed(error)) => ExitCode::from(failed(&error)),
        Err(Failure::Unsupported(missing)) => {
            unsupported("this host cannot do that; nothing was touched", missing)
        }
        Err(Failure::PartlyUnsupported(missing)) => {
            unsupported("this host cannot do all of that; what it can do is done", missing)
        }
        Err(Failure::Lacking(count)) => {
            let things = if count == 1 { "thing is" } else { "things are" };
            eprintln!("longfat: {count} {things} missing, see above");
            ExitCode::from(3)
        }
        Err(Failure::Child(code)) => ExitCode::from(code),
    }
}

/// Says on standard error what failed; gives back the exit code that says so.
pub fn failed(error: &anyhow::Error) -> u8 {
    eprintln!("longfat: {}", said_once(error));
    FAILED
}

fn unsupported(what: &str, missing: Vec<Missing>) -> ExitCode {
    eprintln!("longfat: {what}. Missing:");
    for thing in missing {
        eprintln!("  - {thing}");
    }
    ExitCode::from(3)
}

/// What the standard library ends an error of the kernel's with, and the mend that it does not tell.
const MENDS: [(&str, &str); 4] = [
    (" (os error 2)", "; check its name"),
    (" (os error 13)", "; ask as root, or as whose it is"),
    (" (os error 20)", "; check its name"),
    (" (os error 21)", "; name a file"),
];

/// The error and its causes. Many messages contain their cause already; it is not said again.
fn said_once(error: &anyhow::Error) -> String {
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    for (end, mend) in MENDS {
        if let Some(said) = said.strip_suffix(end) {
            return format!("{said}{mend}");
        }
    }
    said
}
