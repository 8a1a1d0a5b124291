//! `longfat`: arguments, progress, exit codes. What it does lives in the other crates.

// First: it has the macros that print.
#[macro_use]
mod output;

mod address;
mod commands;
mod confined;
mod fitted;
mod kept;
mod outcome;
mod provenance;
mod python;
mod renamed;
mod spans;
mod stop;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use outcome::Outcome;
use std::io::Write as _;

/// TCP over long fat networks: seen, steered, relayed and proven.
///
/// Exit codes: 0 done and every expectation met; 1 ran, but a stated expectation was missed; 2 failed (usage,
/// input, I/O); 3 this host cannot do it (what is missing is listed).
#[derive(Parser)]
#[command(name = "longfat", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Why(Box<commands::why::Args>),
    Tcb(commands::tcb::Args),
    Cc(commands::cc::Args),
    Avail(commands::avail::Args),
    Background(commands::background::Args),
    Mobility(commands::mobility::Args),
    Link(commands::link::Args),
    Transfer(commands::transfer::Args),
    Relay(Box<commands::relay::Args>),
    Lab(commands::lab::Args),
    Path(commands::path::Args),
    Report(commands::report::Args),
    Capture(commands::capture::Args),
    Analyze(commands::analyze::Args),
    #[command(hide = true)]
    Reference(commands::reference::Args),
    Doctor(commands::doctor::Args),
    Manual(commands::manual::Args),
}

fn main() -> std::process::ExitCode {
    #[cfg(target_feature = "crt-static")]
    look_names_up_here();
    let words: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(advice) = renamed::advice(&words) {
        return outcome::exit_code(Err(anyhow::anyhow!(advice).into()));
    }
    let code = outcome::exit_code(run(parsed().command));
    // What else went wrong has been said: it may have come of this.
    longfat_host::monitor::lost().map_or(code, |pid| outcome::exit_code(Err(unmonitored(pid).into())))
}

/// Why a program ended that was told to: nobody is left to do what needs root.
fn unmonitored(pid: i32) -> anyhow::Error {
    anyhow::anyhow!(
        "longfat-monitor (process {pid}), which stayed root beside this one, was killed, so this one has ended as by \
         SIGTERM; start it again"
    )
}

/// A program that has its C library in it must not load what `nsswitch.conf` names: that is for the library of the
/// host, of whichever version. Files and DNS are within.
#[cfg(target_feature = "crt-static")]
fn look_names_up_here() {
    unsafe extern "C" {
        /// From glibc's `nss.h`.
        fn __nss_configure_lookup(
            database: *const std::ffi::c_char,
            services: *const std::ffi::c_char,
        ) -> std::ffi::c_int;
    }
    for (database, services) in [(c"hosts", c"files dns"), (c"passwd", c"files"), (c"group", c"files")] {
        // SAFETY: both are strings with their terminators; no other thread runs yet.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}

/// The arguments of this process; ends it where they are wrong, or help is asked for.
fn parsed() -> Cli {
    let command = with_negative_quantities(Cli::command());
    let matches = command.try_get_matches().unwrap_or_else(|error| answer(&error));
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Ends the process with what was asked for (help, the version), or with what is wrong with its arguments.
fn answer(error: &clap::Error) -> ! {
    if error.use_stderr() {
        refuse(error);
    }
    let written = error.print().and_then(|()| std::io::stdout().flush());
    std::process::exit(match output::unless_closed(written) {
        Ok(()) => error.exit_code(),
        Err(unwritten) => outcome::failed(&unwritten).into(),
    })
}

/// What the standard library says of a text that is no number or no address, and the mend, which it does not say.
const MENDS: [(&str, &str); 4] = [
    ("invalid digit found in string", "write a whole number, like 4"),
    ("cannot parse integer from empty string", "write a whole number, like 4"),
    ("number too large to fit in target type", "the number is too large"),
    ("invalid socket address syntax", "write an IP address and a port, like 127.0.0.1:9470 or [::1]:9470"),
];

/// Ends the process with what is wrong with its arguments.
fn refuse(error: &clap::Error) -> ! {
    let said = error.render().to_string();
    let Some((theirs, mend)) = MENDS.iter().find(|(theirs, _)| said.contains(theirs)) else { error.exit() };
    eprint!("{}", said.replace(theirs, mend));
    std::process::exit(error.exit_code())
}

/// What quantities are called in help.
const QUANTITIES: [&str; 6] = ["TIME", "RATE", "SIZE", "SHARE", "PERCENT", "N"];

/// A quantity may begin with '-': it is then refused for being negative, not taken for an option that nobody knows.
fn with_negative_quantities(command: clap::Command) -> clap::Command {
    let is_quantity = |arg: &clap::Arg| {
        arg.get_value_names()
            .is_some_and(|names| names.iter().any(|name| QUANTITIES.contains(&name.as_str())))
    };
    command
        .mut_args(|arg| {
            if arg.get_long().is_some() && is_quantity(&arg) { arg.allow_hyphen_values(true) } else { arg }
        })
        .mut_subcommands(with_negative_quantities)
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Why(args) => commands::why::run(&args),
        Command::Tcb(args) => commands::tcb::run(args),
        Command::Cc(args) => commands::cc::run(args),
        Command::Avail(args) => commands::avail::run(&args),
        Command::Background(args) => commands::background::run(&args),
        Command::Mobility(args) => commands::mobility::run(args),
        Command::Link(args) => commands::link::run(args),
        Command::Transfer(args) => commands::transfer::run(args),
        Command::Relay(args) => commands::relay::run(*args),
        Command::Lab(args) => commands::lab::run(args),
        Command::Path(args) => commands::path::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Capture(args) => commands::capture::run(&args),
        Command::Analyze(args) => commands::analyze::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Manual(args) => commands::manual::run(&args, Cli::command()),
        Command::Reference(args) => commands::reference::run(&args, Cli::command()),
    }
}
