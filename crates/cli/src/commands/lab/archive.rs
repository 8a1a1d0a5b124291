//! `longfat lab pack`, `unpack`, `verify`: a run or a result sent, and proven to be what was written.

use crate::{
    outcome::{Failure, Outcome},
    output::print_json,
};
use longfat_lab::archive::{self, Limits, Pack};
use longfat_schema::{run::verify as check, units::Size};
use serde_json::json;
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
    /// What was done as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Unpack a packed run or result, when it is whole.
///
/// It is read to its end first: how many files and bytes it becomes is told before anything is written, and what is
/// much larger than its pack is refused.
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
    /// Most that it may become, unpacked [default: 100 times the pack, at least 64MB].
    #[arg(long, value_name = "SIZE")]
    max_size: Option<Size>,
    /// What was done as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Check that a run or result, packed or not, is what was written: every file that changed, is missing or came in is
/// named.
///
/// A run's manifest holds the SHA-256 of all its other files and, as its seal, of itself; the result's manifest holds
/// the seals of its runs. They tell damage and change, not forgery: to prove who made it, sign the pack.
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
    /// Most that a packed one may be, unpacked [default: 100 times the pack, at least 64MB].
    #[arg(long, value_name = "SIZE")]
    max_size: Option<Size>,
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
    crate::kept::refuse_replacing("-o", &file)?;
    let files = archive::pack(&args.directory, &file)?;
    if args.json {
        return Ok(print_json(&json!({ "file": file, "files": files }))?);
    }
    println!("{} ({files} files)", file.display());
    Ok(())
}

pub fn unpack(args: &UnpackArgs) -> Outcome {
    crate::confined::reader([&*args.output.join("top")])?;
    let pack = Pack::open(&args.file, limits(args.max_size))?;
    eprintln!("{} becomes {} files, {:.1} MB", args.file.display(), pack.files(), pack.bytes() as f64 / 1e6);
    let (files, bytes) = (pack.files(), pack.bytes());
    let directory = pack.unpack(&args.output)?;
    if args.json {
        return Ok(print_json(&json!({ "directory": directory, "files": files, "bytes": bytes }))?);
    }
    println!("{}", directory.display());
    Ok(())
}

fn limits(max_size: Option<Size>) -> Option<Limits> {
    max_size.map(|size| Limits::of_bytes(size.0))
}

pub fn verify(args: &VerifyArgs) -> Outcome {
    crate::confined::reader([])?;
    let contents = archive::contents(&args.path, limits(args.max_size))?;
    let findings = check(&contents).map_err(|error| error.about(&args.path))?;
    if args.json {
        let list = |finding: &longfat_schema::run::Finding| json!({ "path": finding.path, "finding": finding.to_string() });
        let value = json!({
            "files": contents.files.len(), "whole": findings.is_empty(),
            "findings": findings.iter().map(list).collect::<Vec<_>>(),
        });
        print_json(&value)?;
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
