//! `longfat lab pack`, `unpack`, `verify`: a run or a result sent, and proven to be what was written.

use crate::outcome::{Failure, Outcome};
use longfat_lab::archive;
use longfat_schema::run::verify as check;
use std::path::PathBuf;

/// Pack a run or result into one file to send: tar, compressed by zstd.
///
/// It is verified first; what is not as it was recorded is not packed. The same directory always gives the same bytes.
/// Pages made from it ('report.html') are left out. 'tar --zstd -xf FILE' unpacks it too.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab pack runs/conversion-20250131T120000Z
  longfat lab pack runs/sweep/rate=25Mbit/repeat=1 -o /tmp/one-run.tar.zst
  longfat lab verify /tmp/one-run.tar.zst")]
pub struct PackArgs {
    /// A result or run directory.
    #[arg(value_name = "RUN")]
    directory: PathBuf,
    /// Where the pack goes [default: the directory's name with .tar.zst, here].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Unpack a packed run or result, when it is whole.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab unpack conversion-20250131T120000Z.tar.zst -o runs")]
pub struct UnpackArgs {
    /// What 'longfat lab pack' made.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The directory in which it gets its own.
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,
}

/// Check that a run or result, packed or not, is what was written: every file that changed, is missing or came in is named.
///
/// A run's manifest holds the SHA-256 of all its other files and, as its seal, of itself; the result's manifest holds the
/// seals of its runs. They tell damage and change, not forgery: to prove who made it, sign the pack.
///
/// Exit codes: 0 everything is as it was recorded; 1 something is not; 2 it cannot be read.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab verify runs/conversion-20250131T120000Z
  longfat lab verify conversion-20250131T120000Z.tar.zst --json")]
pub struct VerifyArgs {
    /// A result or run directory, or a packed one.
    #[arg(value_name = "RUN|FILE")]
    path: PathBuf,
    /// What is wrong as JSON on standard output.
    #[arg(long)]
    json: bool,
}

pub fn pack(args: &PackArgs) -> Outcome {
    let file = match &args.output {
        Some(file) => file.clone(),
        None => {
            let whole = args.directory.canonicalize().unwrap_or_else(|_| args.directory.clone());
            let name = whole.file_name().map_or_else(Default::default, |name| name.to_string_lossy());
            PathBuf::from(format!("{name}{}", archive::SUFFIX))
        }
    };
    let files = archive::pack(&args.directory, &file)?;
    println!("{} ({files} files)", file.display());
    Ok(())
}

pub fn unpack(args: &UnpackArgs) -> Outcome {
    println!("{}", archive::unpack(&args.file, &args.output)?.display());
    Ok(())
}

pub fn verify(args: &VerifyArgs) -> Outcome {
    let contents = archive::contents(&args.path)?;
    let findings = check(&contents)?;
    if args.json {
        let list = |finding: &longfat_schema::run::Finding| serde_json::json!({ "path": finding.path, "finding": finding.to_string() });
        let value = serde_json::json!({
            "files": contents.files.len(), "whole": findings.is_empty(),
            "findings": findings.iter().map(list).collect::<Vec<_>>(),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else if findings.is_empty() {
        println!("{}: {} files, each as it was recorded", args.path.display(), contents.files.len());
    } else {
        findings.iter().for_each(|finding| println!("{finding}"));
    }
    if findings.is_empty() {
        return Ok(());
    }
    Err(Failure::Missed(format!(
        "{} files of {} are not as they were recorded",
        findings.len(),
        args.path.display()
    )))
}
