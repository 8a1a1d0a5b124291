//! Bakes the git revision into the program: every result says what made it.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=LONGFAT_GIT_REVISION");
    let given = std::env::var("LONGFAT_GIT_REVISION").ok().filter(|revision| !revision.is_empty());
    let revision = given.or_else(checked_out).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=LONGFAT_GIT_REVISION={revision}");
}

/// The commit that is checked out, `+dirty` with changes to files git knows. Built again when HEAD moves.
fn checked_out() -> Option<String> {
    let directory = git(&["rev-parse", "--absolute-git-dir"])?;
    let head = git(&["symbolic-ref", "-q", "HEAD"]);
    println!("cargo::rerun-if-changed={directory}/HEAD");
    head.iter().for_each(|branch| println!("cargo::rerun-if-changed={directory}/{branch}"));
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { commit } else { format!("{commit}+dirty") })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
