//! The page: what was found, with its course over time, for `longfat-report` to draw.

use super::{Args, show, watch::Watched};
use anyhow::Context as _;
use longfat_report::course::{CauseShare, CauseTotal, Connection, Mend, Page, Stretch, html};
use longfat_schema::{quantity::utc, units::Nanos};
use longfat_why::{Remedy, Verdict, course, sentence};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// One connection, or one direction of a capture's flow, that was judged.
pub struct Judged<'a> {
    /// The connection or direction, as a person reads it.
    pub who: String,
    /// What was found.
    pub verdict: &'a Verdict,
    /// What mends it.
    pub remedies: Vec<Remedy>,
    /// Course of the connection over time.
    pub course: Vec<course::Stretch>,
}

/// Whether a page can be written there: to be asked before a watch of ten seconds, or of a day.
pub fn check(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    anyhow::ensure!(!path.is_dir(), "--page '{shown}' is a directory: name a file in it");
    anyhow::ensure!(
        above.is_dir(),
        "--page '{shown}': the directory '{}' is not there: make it, or name another",
        above.display()
    );
    Ok(())
}

/// Writes the page of a watch, where one is asked for. `goes_on` says that there will be a newer one.
pub fn of_watch(verdicts: &[(&Watched, Verdict)], args: &Args, goes_on: bool) -> anyhow::Result<()> {
    let judged = verdicts.iter().map(|(one, verdict)| Judged {
        remedies: show::remedies_of(one, verdict, args),
        who: show::who(&one.connection),
        verdict,
        course: one.course(),
    });
    // What could be faster comes first, then what carries most.
    let (faulty, healthy): (Vec<Judged>, Vec<Judged>) = judged.partition(|one| is_faulty(one.verdict));
    let judged: Vec<Judged> = faulty.into_iter().chain(healthy).collect();
    let longest_us = verdicts.iter().map(|(_, verdict)| verdict.elapsed_us).max().unwrap_or(0);
    let tenths = |us: u64| Nanos(us / 100_000 * 100_000_000);
    let how = match judged.iter().filter_map(|one| one.course.last()).map(|last| last.to_us).max() {
        Some(all_us) if all_us > longest_us => {
            format!("watched for {}, judged by the last {}", tenths(all_us), tenths(longest_us))
        }
        _ => format!("watched for {}", tenths(longest_us)),
    };
    write(args, judged, &how, goes_on)
}

fn is_faulty(verdict: &Verdict) -> bool {
    verdict.first().is_some_and(|share| share.cause.is_fault())
}

/// Writes the page of these, where one is asked for. `how` says what was looked at.
pub fn write(args: &Args, judged: Vec<Judged>, how: &str, goes_on: bool) -> anyhow::Result<()> {
    let Some(path) = &args.page else { return Ok(()) };
    let totals = show::by_cause(judged.iter().map(|one| one.verdict));
    let all_us: u64 = totals.iter().map(|(_, group)| group.time_us).sum();
    let total = |(cause, group): &(longfat_why::Cause, show::Group)| CauseTotal {
        name: cause.name().to_owned(),
        connections: group.connections,
        share: group.time_us as f64 / all_us.max(1) as f64,
        rate_bps: group.rate_bps,
    };
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let page = Page {
        title: title(args),
        about: format!("{} · {how} · {}", utc(now_ms), counted(judged.len())),
        renewed_s: goes_on.then_some(args.span.0 / 1_000_000_000).map(|seconds| seconds.max(1)),
        by_cause: totals.iter().map(total).collect(),
        connections: judged.into_iter().map(connection).collect(),
    };
    replace(path, &html(&page)).with_context(|| format!("write the page '{}'", path.display()))?;
    if !goes_on {
        eprintln!("page: {}", path.display());
    }
    Ok(())
}

fn counted(connections: usize) -> String {
    if connections == 1 { "1 connection".to_owned() } else { format!("{connections} connections") }
}

/// What was asked, as it was asked.
fn title(args: &Args) -> String {
    let mut words = vec!["why".to_owned()];
    words.extend(args.words.iter().cloned());
    words.extend(args.pid.map(|pid| format!("--pid {pid}")));
    words.extend(args.netns.as_ref().map(|name| format!("--netns {name}")));
    if !args.program.is_empty() {
        words.push("--".to_owned());
        words.extend(args.program.iter().map(|word| word.to_string_lossy().into_owned()));
    }
    words.join(" ")
}

/// A reader sees the old page or the new one, never half of one. What is no file, as /dev/stdout, is written to.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    if path.exists() && !path.is_file() {
        return fs::write(path, text);
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

fn connection(one: Judged) -> Connection {
    let cause = |share: &longfat_why::Share| CauseShare {
        name: share.cause.name().to_owned(),
        share: share.share,
        basis: format!("{:?}", share.basis).to_lowercase(),
        evidence: share.evidence.clone(),
        without: share.without.as_ref().map(|price| (sentence::without(price), price.least_bps)),
    };
    Connection {
        sentence: sentence::of(&one.who, one.verdict),
        who: one.who,
        causes: one.verdict.causes.iter().map(cause).collect(),
        remedies: one.remedies.iter().map(mend).collect(),
        stretches: one.course.iter().map(stretch).collect(),
    }
}

fn mend(remedy: &Remedy) -> Mend {
    let undo = remedy.undo.as_ref().map_or(String::new(), |undo| format!("; undone by: {undo}"));
    Mend {
        what: format!("{}: {}.", remedy.place.words(), remedy.what),
        command: remedy.command.clone(),
        note: format!("costs {}{undo}", remedy.costs),
    }
}

fn stretch(one: &course::Stretch) -> Stretch {
    let seconds = |us: u64| us as f64 / 1e6;
    let whole = one.to_us.saturating_sub(one.from_us).max(1) as f64;
    Stretch {
        from_s: seconds(one.from_us),
        to_s: seconds(one.to_us),
        causes: one.causes.iter().map(|(cause, us)| (cause.name().to_owned(), *us as f64 / whole)).collect(),
        rate_bps: one.rate_bps,
        rtt_us: one.rtt_us,
        cwnd_bytes: one.cwnd_bytes,
        window_bytes: one.window_bytes,
        flight_bytes: one.flight_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_replaces_a_file_whole_and_leaves_nothing_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("why.html");
        for text in ["old and longer", "new"] {
            replace(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        replace(Path::new("/dev/null"), "text").unwrap();
        assert!(!Path::new("/dev/null").is_file(), "a device stays one");
    }

    #[test]
    fn a_place_where_no_page_can_be_is_told_with_the_mend() {
        let place = tempfile::tempdir().unwrap();
        let said = |path: &Path| check(path).unwrap_err().to_string();
        assert!(said(place.path()).contains("name a file in it"));
        assert!(said(&place.path().join("none/a.html")).contains("is not there: make it"));
        check(&place.path().join("a.html")).unwrap();
        check(Path::new("a.html")).unwrap();
    }
}
