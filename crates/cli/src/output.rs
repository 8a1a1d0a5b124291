//! What commands print. All of it passes here: names and messages of peers, files and hosts are in it, and what a
//! terminal would obey in them is escaped. Whoever reads may have gone ('head' has seen enough, a terminal was closed):
//! that is no failure, and no reason to stop what was begun. The standard library's macros would panic.

use anyhow::Context;
use longfat_schema::text::{one_line, printable};
use std::{
    fmt,
    fs::File,
    io::{self, IsTerminal, Write},
    os::{fd::AsFd, unix::fs::FileTypeExt},
    sync::{Mutex, PoisonError},
};

/// Standard output could not be written although somebody reads it (a full disk): what is told at the end.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// What Linux says of a terminal that was closed, and of a broken disk.
const EIO: i32 = 5;

/// Whether nobody reads what was written.
pub fn is_closed(error: &io::Error) -> bool {
    let is_terminals = error.raw_os_error() == Some(EIO) && is_hung_up(&io::stdout());
    error.kind() == io::ErrorKind::BrokenPipe || is_terminals
}

/// A terminal that was closed is still a character device, but no terminal.
fn is_hung_up(out: &(impl AsFd + IsTerminal)) -> bool {
    let metadata = out.as_fd().try_clone_to_owned().and_then(|out| File::from(out).metadata());
    !out.is_terminal() && metadata.is_ok_and(|metadata| metadata.file_type().is_char_device())
}

/// What became of writing to standard output; that nobody reads it is no error.
pub fn unless_closed(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if is_closed(&error) => Ok(()),
        written => written.context("write to standard output"),
    }
}

/// Writes to standard output.
pub fn write_out(text: &str) -> anyhow::Result<()> {
    unless_closed(write_now(text))
}

/// Writes to standard output at once; that nobody reads it is an error.
pub fn write_now(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(printable(text).as_bytes()).and_then(|()| out.flush())
}

/// What `print!` and `println!` of this crate come to.
pub fn print(text: fmt::Arguments) {
    if let Err(error) = io::stdout().lock().write_all(printable(&text.to_string()).as_bytes())
        && !is_closed(&error)
    {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// What `eprint!` and `eprintln!` of this crate come to. Where standard error cannot be written, nobody can be told.
pub fn print_error(text: fmt::Arguments) {
    let _ = io::stderr().lock().write_all(printable(&text.to_string()).as_bytes());
}

/// Writes over the line of standard error that was written so before.
pub fn show_progress(text: &str) {
    let _ = write!(io::stderr().lock(), "\r{} ", one_line(text));
}

/// Why something printed did not arrive, if it did not.
pub fn failure() -> anyhow::Result<()> {
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner).take();
    unless_closed(failed.map_or_else(|| io::stdout().flush(), Err))
}

/// Prints one JSON value, indented.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(format_args!("{}\n", serde_json::to_string_pretty(value)?));
    Ok(())
}

macro_rules! print {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::output::print_error(format_args!($($text)*)) };
}

macro_rules! println {
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprintln {
    () => { $crate::output::print_error(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::print_error(format_args!("{}\n", format_args!($($text)*))) };
}
