//! `longfat why`: what holds a connection back, what that costs, and what mends it.

mod capture;
mod fix;
mod mend;
mod metrics;
mod page;
mod program;
mod recorded;
mod relay;
mod route;
mod show;
mod successors;
mod watch;

use crate::{
    kept,
    outcome::{Failure, Outcome},
    stop,
};
use anyhow::{Context as _, bail};
use longfat_kernel::tcb::{Connection, Filter, Scope, State};
use longfat_schema::units::{Nanos, Rate};
use longfat_why::Assumed;
pub use show::wrapped;
use std::{
    collections::HashMap,
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
};
use watch::{Chosen, Watch};

/// Why a connection is slow: every second of it has a cause; what that costs, and what mends it.
///
/// Living connections are chosen by the filter of 'longfat tcb' and watched for ten seconds: nothing is changed, no
/// privilege is needed. A program of one's own comes behind '--', and its exit code is this one's (1 where it is 0 and
/// no connection was seen); a capture is given as a file. What the kernel itself
/// says comes first (basis 'kernel': its clocks of who waits for whom), what follows from it second ('inference');
/// where the facts do not decide, the cause is 'unknown'.
///
/// --rate gives the rate of the path's slowest link: then the rate without a cause is told as well ('longfat path').
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat why dst 192.0.2.7
      living connections: ten seconds, then an answer
  longfat why 'dst 192.0.2.7' --rate 1Gbit
      and what the rate would be without the cause
  longfat why --pid 4711 --watch
      those of a process, going on until Ctrl-C
  longfat why --watch --metrics 127.0.0.1:9471
      for Prometheus: causes by peer prefix
  longfat why -- rsync -a big host:
      a program of one's own, to its end
  longfat why slow.pcapng
      a capture: the same causes and words, from less
  longfat why dst 192.0.2.7 --page why.html
      and its course over time, as a page
  longfat why dst 192.0.2.7 --fix
      the remedy, where one can be set here, until Ctrl-C
  longfat why dst 192.0.2.7 --fix --prove
      on and off in random order: was it one?
  longfat why dst 192.0.2.7 --fix --successors
      for new connections to it: a route, or a relay's rule
  longfat why --netns all --json | jq '.causes'
      everything on this host, by cause
  longfat why dst 192.0.2.7 --record slow.looks
      keep what was looked at; 'longfat why slow.looks' judges it again
  longfat why --list
      the catalogue: every cause, and how it is told apart")]
pub struct Args {
    /// Which connections ('longfat tcb --help' has the language), or captures.
    #[arg(value_name = "FILTER|FILE", allow_hyphen_values = false)]
    words: Vec<String>,
    /// Only those of this process.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// How long to watch.
    #[arg(long = "for", value_name = "TIME", default_value = "10s")]
    span: Nanos,
    /// Time between two looks [default: 100ms, longer where there are very many connections].
    #[arg(long, value_name = "TIME")]
    every: Option<Nanos>,
    /// Go on, with an answer every so long as --for says, until Ctrl-C.
    #[arg(long, conflicts_with = "program")]
    watch: bool,
    /// Another network namespace: a name, a pid in it, or 'all'.
    #[arg(long, value_name = "NAME|PID|all")]
    netns: Option<String>,
    /// Rate of the path's slowest link, IP packets counted, where you know it.
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Do what can be done here on the living connections, until Ctrl-C; it is taken back then, and also after a kill
    /// (root).
    #[arg(long, conflicts_with_all = ["watch", "program"])]
    fix: bool,
    /// With --fix: help connections that are still to come, by a route to their peer alone or a rule of the relay that
    /// runs here, until Ctrl-C.
    #[arg(long, requires = "fix")]
    successors: bool,
    /// With and without the remedy in random order: the difference with its interval (with --fix; takes about five
    /// times --for and more).
    #[arg(long, requires = "fix")]
    prove: bool,
    /// Everything as JSON: one object, with --watch one per line.
    #[arg(long)]
    json: bool,
    /// With --watch: answer Prometheus on this loopback address, like 127.0.0.1:9471, with causes by peer prefix.
    #[arg(long, value_name = "ADDR:PORT", requires = "watch", conflicts_with = "json")]
    metrics: Option<SocketAddr>,
    /// Append everything looked at to this file, one connection per line: 'longfat why FILE.looks' judges it again.
    #[arg(long, value_name = "FILE.looks")]
    record: Option<PathBuf>,
    /// Also a page with the course over time: causes as bands, rate, round trip and windows below; renewed with
    /// --watch.
    #[arg(long, value_name = "FILE.html", conflicts_with = "metrics")]
    page: Option<PathBuf>,
    /// Print the catalogue of causes.
    #[arg(long, exclusive = true)]
    list: bool,
    /// A program to run, and to watch to its end.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub fn run(args: &Args) -> Outcome {
    if args.list {
        show::catalogue();
        return Ok(());
    }
    args.check()?;
    if let Some(files) = args.recorded()? {
        return recorded::run(&files, args);
    }
    if let Some(files) = args.captures()? {
        return capture::run(&files, args);
    }
    let stop = stop::flag().context("catch signals")?;
    if longfat_host::facts::user_id() == 0 {
        fix::Fixer::take_back();
    }
    if !args.program.is_empty() {
        return program::run(args, &stop);
    }
    if let Some(address) = args.metrics {
        return metrics::run(args, address, &stop);
    }
    let mut watch = Watch::new(args.chosen()?, args);
    loop {
        let is_over = watch.run(args.span.into(), &stop)?;
        if args.fix && !is_over && fix::Fixer::lacks().is_empty() {
            watch.ask_bounds()?;
        }
        watch.ask_surroundings();
        recorded::keep(&watch, args)?;
        let verdicts = watch.verdicts(args);
        show::answer(&verdicts, args)?;
        page::of_watch(&verdicts, args, args.watch && !is_over)?;
        if args.fix && !is_over {
            let mend = if args.successors { successors::run } else { mend::run };
            return mend(args, &watch, &verdicts, &stop);
        }
        if !args.watch || is_over {
            return if verdicts.is_empty() { Err(Failure::Missed(NOBODY.to_owned())) } else { Ok(()) };
        }
        watch.begin_again();
    }
}

const NOBODY: &str = "no connection was there to be watched; 'longfat tcb list' shows which there are";

/// Why a connection does not send faster, as far as one look, or two that are so far apart, can tell.
pub fn cause_of(before: Option<&Connection>, now: &Connection, elapsed_us: u64) -> Option<&'static str> {
    let look = watch::taken(now, elapsed_us).filter(|_| now.state != State::LISTEN)?;
    let before = before.and_then(|before| watch::taken(before, 0));
    let judged = before.and_then(|before| longfat_why::judge(&[before, look], &Assumed::default()));
    let first = judged.and_then(|verdict| verdict.first().map(|share| share.cause));
    Some(first.unwrap_or_else(|| longfat_why::at_once(&look)).name())
}

/// Fills the cause of each connection, of those seen before from two looks.
pub fn compare(before: &[Connection], after: &mut [Connection], elapsed_us: u64) {
    let earlier: HashMap<u64, &Connection> = before.iter().map(|one| (one.cookie, one)).collect();
    for connection in after {
        connection.cause = cause_of(earlier.get(&connection.cookie).copied(), connection, elapsed_us);
    }
}

/// Shortest and longest watch that makes sense.
const SHORTEST: Nanos = Nanos(500_000_000);
const LONGEST: Nanos = Nanos(86_400_000_000_000);
/// Least time between two looks: the kernel's clocks tick every 1 to 10 ms.
const LEAST_EVERY: Nanos = Nanos(10_000_000);

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        if !(SHORTEST..=LONGEST).contains(&self.span) {
            bail!("--for {} is out of range: {SHORTEST} to {LONGEST}", self.span);
        }
        if let Some(every) = self.every
            && !(LEAST_EVERY..=Nanos(self.span.0 / 2)).contains(&every)
        {
            bail!("--every {every} is out of range: {LEAST_EVERY} to half of --for");
        }
        if self.rate.is_some_and(|rate| rate.0 < 1000) {
            bail!("--rate {} is out of range: 1kbit and more", self.rate.unwrap_or(Rate(0)));
        }
        if let Some(path) = &self.page {
            page::check(path)?;
            kept::refuse_replacing_all_but_a_page("--page", path)?;
        }
        if let Some(path) = &self.record {
            recorded::check(path)?;
        }
        if let Some(pid) = self.pid
            && !Path::new("/proc").join(pid.to_string()).exists()
        {
            bail!(
                "--pid {pid}: no process has that number now; 'longfat tcb list --columns pid,process,dst' shows them"
            );
        }
        if let [word] = self.words.as_slice()
            && !Filter::begins_with(word)
            && Path::new(word).is_dir()
        {
            bail!("'{word}' is a directory; name a capture in it, or give a filter");
        }
        let is_program = !self.program.is_empty();
        if is_program && (self.pid.is_some() || self.netns.is_some()) {
            bail!("--pid and --netns choose living connections: leave them out before '-- PROGRAM'");
        }
        Ok(())
    }

    fn assumed(&self) -> Assumed {
        Assumed { path_rate: self.rate }
    }

    fn filter(&self) -> anyhow::Result<Filter> {
        let filter: Filter = self.words.join(" ").parse()?;
        if filter.asks_for("cause") {
            bail!(
                "'cause' is what 'longfat why' finds out; choose connections by something else, as in 'dport 443'"
            );
        }
        Ok(filter)
    }

    fn chosen(&self) -> anyhow::Result<Chosen> {
        let scope: Scope = match self.netns.as_deref().map(str::parse) {
            Some(Ok(scope)) => scope,
            _ => Scope::Own,
        };
        Ok(Chosen { scope, filter: self.filter()?, pid: self.pid })
    }

    /// The words, where they name files of looks.
    fn recorded(&self) -> anyhow::Result<Option<Vec<PathBuf>>> {
        let count = self.words.iter().filter(|word| word.ends_with(recorded::ENDS)).count();
        if count == 0 {
            return Ok(None);
        }
        if count < self.words.len()
            || self.pid.is_some()
            || self.watch
            || self.fix
            || !self.program.is_empty()
        {
            bail!(
                "looks that were kept stand alone: leave out filters, --pid, --watch, --fix and '-- PROGRAM'"
            );
        }
        Ok(Some(self.words.iter().map(PathBuf::from).collect()))
    }

    /// The words, where they name captures: a file that is there, or what ends like a capture, is one.
    fn captures(&self) -> anyhow::Result<Option<Vec<PathBuf>>> {
        let is_capture = |word: &String| {
            let ends = [".pcap", ".pcapng", ".pcap.gz", ".pcapng.gz", ".pcap.zst", ".pcapng.zst", ".cap"];
            ends.iter().any(|end| word.ends_with(end)) || std::path::Path::new(word).is_file()
        };
        let count = self.words.iter().filter(|word| is_capture(word)).count();
        if count == 0 || Filter::begins_with(&self.words[0]) {
            return Ok(None);
        }
        if let Some(other) = self.words.iter().find(|word| !is_capture(word)) {
            bail!("'{other}' is no file: give captures, or a filter, not both");
        }
        if self.pid.is_some() || self.watch || self.fix || !self.program.is_empty() {
            bail!(
                "a capture has no processes and has ended: leave out --pid, --watch, --fix and '-- PROGRAM'"
            );
        }
        Ok(Some(self.words.iter().map(PathBuf::from).collect()))
    }
}
