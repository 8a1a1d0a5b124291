//! Looks kept in a file, and judged again.

use super::{
    Args,
    page::{self, Judged},
    show,
    watch::Watch,
};
use crate::{outcome::Outcome, output};
use anyhow::Context as _;
use longfat_why::{
    Look, Verdict, course, judge,
    record::{Record, read},
    sentence,
};
use serde_json::{Value, json};
use std::{
    fs::{File, OpenOptions},
    io::{BufReader, Write as _},
    path::{Path, PathBuf},
};

/// How such a file's name ends.
pub const ENDS: &str = ".looks";

/// Looks are appended to looks alone.
pub fn check(path: &Path) -> anyhow::Result<()> {
    if path.is_file() {
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("open --record '{shown}'"))?;
        read(BufReader::new(file)).with_context(|| {
            format!("--record '{shown}' holds no looks, and nothing is appended to it; name another file")
        })?;
    }
    Ok(())
}

/// Appends all that was looked at, where that is asked for.
pub fn keep(watch: &Watch, args: &Args) -> anyhow::Result<()> {
    let Some(path) = &args.record else { return Ok(()) };
    let opened = OpenOptions::new().create(true).append(true).open(path);
    let mut file = opened.with_context(|| format!("write looks to '{}'", path.display()))?;
    for one in watch.watched.values().filter(|one| one.looks.len() > 1) {
        let line = serde_json::to_string(&Record::of(show::who(&one.connection), &one.looks))?;
        writeln!(file, "{line}").with_context(|| format!("write looks to '{}'", path.display()))?;
    }
    Ok(())
}

/// Judges what was kept.
pub fn run(files: &[PathBuf], args: &Args) -> Outcome {
    let mut found = Vec::new();
    let mut seen: Vec<Vec<Look>> = Vec::new();
    for path in files {
        let shown = path.display();
        let file = File::open(path).with_context(|| {
            format!("open '{shown}'; 'longfat why FILTER --record {shown}' writes such a file")
        })?;
        let records = read(BufReader::new(file)).with_context(|| format!("'{shown}'"))?;
        for record in records {
            let looks = record.to_looks();
            if let Some(verdict) = judge(&looks, &args.assumed()) {
                seen.extend(args.page.is_some().then_some(looks));
                found.push((record.who, verdict));
            }
        }
    }
    output::write_out(&if args.json { document(&found)? } else { text(&found) })?;
    let judged = found.iter().zip(&seen).map(|((who, verdict), looks)| Judged {
        who: who.clone(),
        verdict,
        remedies: Vec::new(),
        course: course(looks),
    });
    Ok(page::write(args, judged.collect(), "looks that were kept", false)?)
}

fn text(found: &[(String, Verdict)]) -> String {
    if found.is_empty() {
        return "No connection was looked at twice.\n".to_owned();
    }
    let told = |(who, verdict): &(String, Verdict)| {
        show::Told { who: who.clone(), verdict, remedies: Vec::new() }.text()
    };
    found.iter().map(told).collect::<Vec<_>>().join("\n")
}

fn document(found: &[(String, Verdict)]) -> anyhow::Result<String> {
    let of_one = |(who, verdict): &(String, Verdict)| {
        json!({
            "who": who,
            "sentence": sentence::of(who, verdict),
            "elapsed_us": verdict.elapsed_us,
            "causes": verdict.causes,
            "figures": verdict.figures,
        })
    };
    let found: Vec<Value> = found.iter().map(of_one).collect();
    Ok(format!("{}\n", serde_json::to_string_pretty(&json!({ "schema_version": 1, "connections": found }))?))
}
