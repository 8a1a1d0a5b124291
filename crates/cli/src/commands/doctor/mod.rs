//! `longfat doctor`.

mod feature;
mod need;
mod settings;
mod tuning;

use crate::{
    fitted::prose,
    outcome::{Failure, Outcome},
};
use feature::{Feature, Finding, features};
use longfat_host::{facts, support::Missing};
use longfat_schema::units::{Nanos, Rate};
use std::{collections::BTreeSet, path::PathBuf};

/// What of longfat works on this host and what to do about the rest; what the host's settings cost on a path.
///
/// Kernel, rights, programs and Python are asked, feature by feature; nothing is changed. What needs root is asked as
/// the user who runs this: 'sudo longfat doctor' says what root could do.
///
/// With --rate and --rtt, or --tuning, the host's settings are judged instead: buffers, features of TCP, congestion
/// control, interfaces, tables, clock; each with what it costs on that path, the command that mends it, and whether
/// that was measured here or stands in a book.
///
/// Exit codes: 0 every feature asked for works, or no setting costs more than a tenth of the path; 1 a setting does, or
/// (--diff) one is not as it was kept; 3 a feature does not work.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  sudo longfat doctor
  longfat doctor transfer simulate
      these two alone: for a script, by the exit code
  longfat doctor --rate 10Gbit --rtt 90ms
      this host's settings, for a path it is to have
  longfat doctor --tuning
      the same, for the longest path that a living connection has
  longfat doctor --save before.json
      keep all settings that are looked at
  longfat doctor --diff before.json
      which of them differ now
  sudo longfat doctor --restore before.json
      put them back
  longfat doctor --json | jq -r '.features[] | select(.works | not) | .name'")]
pub struct Args {
    /// Features by name [default: all].
    #[arg(value_name = "FEATURE")]
    #[arg(conflicts_with_all = ["rate", "tuning", "save", "diff", "restore"])]
    features: Vec<String>,
    /// Judge the host's settings for a path of this rate: its slowest link's.
    #[arg(long, value_name = "RATE", requires = "rtt")]
    rate: Option<Rate>,
    /// The path's round-trip time without a queue.
    #[arg(long, value_name = "TIME", requires = "rate")]
    rtt: Option<Nanos>,
    /// Judge them for the living connection with the largest pipe: its delivery rate times its least round trip.
    #[arg(long, conflicts_with = "rate")]
    tuning: bool,
    /// Keep every setting that is looked at in a file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "tuning", "diff", "restore", "json"])]
    save: Option<PathBuf>,
    /// Every setting that differs from a file of --save; exit code 1 when one does.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "tuning", "restore"])]
    diff: Option<PathBuf>,
    /// Put back every setting that differs from the file (root).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "tuning", "json"])]
    restore: Option<PathBuf>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome {
    match args {
        Args { save: Some(file), .. } => return tuning::save(file),
        Args { diff: Some(file), .. } => return tuning::diff(file, args.json),
        Args { restore: Some(file), .. } => return tuning::restore(file),
        _ => {}
    }
    if args.tuning || args.rate.is_some() {
        return tuning::run(args.rate.zip(args.rtt), args.json);
    }
    let findings = feature::look(chosen(features()?, &args.features)?);
    let host = host();
    if args.json {
        let object = serde_json::json!({ "host": host, "features": findings });
        crate::output::print_json(&object)?;
    } else {
        print(&host, &findings);
    }
    let missing = all_missing(&findings);
    if missing.is_empty() { Ok(()) } else { Err(Failure::Lacking(missing.len())) }
}

/// Features that were named, in the table's order; all where none was.
fn chosen(features: Vec<Feature>, names: &[String]) -> anyhow::Result<Vec<Feature>> {
    let known = |name: &&String| features.iter().any(|feature| feature.name == **name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let all: Vec<_> = features.iter().map(|feature| feature.name.as_str()).collect();
        anyhow::bail!("'{unknown}' is no feature of longfat; there are {}", all.join(", "));
    }
    Ok(features.into_iter().filter(|feature| names.is_empty() || names.contains(&feature.name)).collect())
}

/// What a report of a problem should say of the host.
#[derive(Debug, serde::Serialize)]
struct Host {
    longfat: &'static str,
    kernel: String,
    architecture: &'static str,
    btf: bool,
    bpf_rights: bool,
    cgroup2: Option<String>,
    tun: bool,
    nft: Option<String>,
    ip: Option<String>,
    python: Option<String>,
}

fn host() -> Host {
    Host {
        longfat: env!("CARGO_PKG_VERSION"),
        kernel: facts::kernel(),
        architecture: std::env::consts::ARCH,
        btf: longfat_kernel::support::has_btf(),
        bpf_rights: longfat_kernel::support::missing_rights().is_none(),
        cgroup2: longfat_kernel::support::cgroup2_mount().map(|path| path.display().to_string()),
        tun: longfat_relay::missing_tun().is_none(),
        nft: facts::first_line_of("nft", "--version"),
        ip: facts::first_line_of("ip", "-Version"),
        python: need::python_version(),
    }
}

fn print(host: &Host, findings: &[Finding]) {
    let said = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
    let whether = |there: bool| if there { "yes" } else { "no" };
    println!("longfat  {}", host.longfat);
    println!("{}", prose(&format!("kernel   {} on {}", host.kernel, host.architecture), &" ".repeat(9)));
    let rights = format!(
        "         BTF {}, rights to load BPF {}, /dev/net/tun {}",
        whether(host.btf),
        whether(host.bpf_rights),
        whether(host.tun)
    );
    println!("{}", prose(&rights, &" ".repeat(9)));
    println!("cgroup2  {}", said(&host.cgroup2));
    println!("nft      {}", said(&host.nft));
    println!("ip       {}", said(&host.ip));
    println!("Python   {}\n", said(&host.python));
    findings.iter().for_each(|finding| println!("{}", prose(&line(finding), &" ".repeat(24))));
    for missing in all_missing(findings) {
        let said = |line: String| println!("{}", prose(&line, &" ".repeat(9)));
        println!("\n{}", prose(&format!("Missing: {}", missing.what), &" ".repeat(9)));
        said(format!("  why:   {}", missing.why));
        said(format!("  mend:  {}", missing.mend));
        said(format!("  for:   {}", wanting(findings, &missing).join(", ")));
    }
}

fn line(finding: &Finding) -> String {
    let works = if finding.works { "works" } else { "no" };
    format!("{works:<5}  {:<15}  {}", finding.feature.name, finding.feature.does)
}

/// Features that lack it.
fn wanting<'a>(findings: &'a [Finding], missing: &Missing) -> Vec<&'a str> {
    let lack = findings.iter().filter(|finding| finding.missing.contains(missing));
    lack.map(|finding| finding.feature.name.as_str()).collect()
}

/// Everything missing, once each, in the order of the features.
fn all_missing(findings: &[Finding]) -> Vec<Missing> {
    let mut seen = BTreeSet::new();
    let all = findings.iter().flat_map(|finding| &finding.missing);
    all.filter(|missing| seen.insert(missing.to_string())).cloned().collect()
}
