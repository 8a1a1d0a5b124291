//! `longfat lab serve`: a local web page of what lies below a directory.

mod head;
mod http;
mod open;

use crate::{outcome::Outcome, stop};
use anyhow::{Context, anyhow};
use head::Request;
use http::Answer;
use longfat_host::{
    capability,
    confine::{Account, Confinement, system_files},
};
use longfat_report::{
    ReportError,
    site::{self, Filter, Found, RunIndex, State},
};
use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    thread,
    time::{Duration, SystemTime},
};

/// How soon a person who ends it is heard.
const LOOK: Duration = Duration::from_millis(100);

/// Show results in a browser: a local web page of everything below a directory, with filters, figures, two results
/// compared, and a session under way as it goes on.
///
/// It needs no network: nothing on its pages is from elsewhere, and it listens on the loopback address only, unless
/// --listen says otherwise (then whoever reaches that address can read these runs). It answers GET alone and changes
/// nothing: once it listens it gives up every right but to read that directory. Ctrl-C ends it.
///
/// Exit codes: 0 ended by a person; 2 failed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab serve
      what lies below runs/, at http://127.0.0.1:8350/
  longfat lab serve /shared/results --listen 127.0.0.1:0
      any free port; it is printed
  ssh -L 8350:127.0.0.1:8350 HOST longfat lab serve runs
      look at another machine's runs")]
pub struct ServeArgs {
    /// Where results are looked for.
    #[arg(value_name = "DIR", default_value = "runs")]
    directory: PathBuf,
    /// Where it listens; port 0 is any free one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8350")]
    listen: SocketAddr,
    /// Started by root: the user it becomes; 'root' stays [default: longfat, or else nobody].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// What every answer is made from.
struct Site {
    directory: PathBuf,
    /// Only this machine is answered.
    is_local: bool,
}

pub fn run(args: &ServeArgs) -> Outcome {
    let name = args.directory.display();
    let directory = args.directory.canonicalize().with_context(|| format!("{name}"))?;
    if !directory.is_dir() {
        return Err(anyhow!("{name} is no directory; give one that holds results").into());
    }
    readable(&directory).with_context(|| format!("read {name}; give a directory that this user may read"))?;
    let stop = stop::flag()?;
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("listen at {}; choose another with --listen ADDR:PORT", args.listen))?;
    let address = listener.local_addr().context("the address listened at")?;
    let is_local = address.ip().is_loopback();
    if !is_local {
        eprintln!("warning: whoever reaches {address} can read what lies below {name}");
    }
    // Runs may be for their owner alone to read: that right stays, and Landlock holds it to this directory.
    let account = Account::choose(args.user.as_deref())?;
    let kept: &[u32] = if account.is_some() { &[capability::DAC_READ_SEARCH] } else { &[] };
    let reading = system_files().map(Path::to_path_buf).chain([directory.clone()]);
    let confined = Confinement::of(account).keeping(kept).reading(reading).enter()?;
    if !confined.has_landlock {
        eprintln!("longfat: {confined}");
    }
    println!("http://{address}/");
    let site = Site { directory, is_local };
    thread::spawn(move || http::serve(&listener, move |request| site.answer(request)));
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Whether results in it can be found at all.
fn readable(directory: &Path) -> std::io::Result<()> {
    std::fs::read_dir(directory)?.next().transpose().map(drop)
}

impl Site {
    fn answer(&self, request: &Request) -> Answer {
        if self.is_local && !head::is_local(request.host.as_deref()) {
            return refused(403, "This page is for this machine alone: ask for localhost.");
        }
        let now = SystemTime::now();
        let index = RunIndex::of(&self.directory);
        let of = |name: &str| index.get(request.value(name)).filter(|found| found.trouble.is_none());
        let page = match request.path.as_str() {
            "/" => Some(Ok(site::index(&index, &filter(request)))),
            "/result" => of("of").map(|found| site::result(&index, found, now)),
            "/run" => of("of").and_then(|found| site::run(&index, found, request.value("run")).transpose()),
            "/compare" => of("a").zip(of("b")).map(|(a, b)| site::compared(&index, [a, b])),
            "/live" => return live(&index, of("of"), now),
            _ => None,
        };
        match page {
            Some(Ok(html)) => Answer::ok(html),
            Some(Err(error)) => refused(500, &error.to_string()),
            None => refused(404, "There is no such page, result or run here; it may have been removed."),
        }
    }
}

/// A part of a page. 410 when there is nothing under way any more.
fn live(index: &RunIndex, found: Option<&Found>, now: SystemTime) -> Answer {
    let running = found.filter(|found| found.state == State::Running);
    let shown = running.map(|found| site::live(index, found, now).map_err(ReportError::from));
    match shown {
        None => refused(410, "It is not under way."),
        Some(Ok(html)) => Answer::ok(html),
        Some(Err(error)) => refused(500, &error.to_string()),
    }
}

fn filter(request: &Request) -> Filter {
    let value = |name: &str| request.value(name).to_owned();
    Filter {
        text: value("text"),
        state: value("state"),
        backend: value("backend"),
        expectations: value("expectations"),
    }
}

fn refused(status: u16, why: &str) -> Answer {
    let title = if status == 404 { "Not found" } else { "No page" };
    Answer { status, html: site::refusal(title, why) }
}
