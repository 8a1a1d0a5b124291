//! Bakes the git revision into the program: every result says what made it.

use std::{path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-env-changed=LONGFAT_GIT_REVISION");
    let given = std::env::var("LONGFAT_GIT_REVISION").ok().filter(|revision| !revision.is_empty());
    let revision = given.or_else(checked_out).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=LONGFAT_GIT_REVISION={revision}");
}

/// The commit that is checked out, `+dirty` with changes to files git knows. Built again when HEAD moves.
fn checked_out() -> Option<String> {
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    let watched = ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref());
    // A file that is not there would count as changed each time: a branch's is not while its commit is in packed-refs.
    watched.filter_map(file).for_each(|path| println!("cargo::rerun-if-changed={path}"));
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { commit } else { format!("{commit}+dirty") })
}

/// Where git keeps a file of its own, also for a worktree, if it is there.
fn file(name: &str) -> Option<String> {
    git(&["rev-parse", "--path-format=absolute", "--git-path", name]).filter(|path| Path::new(path).exists())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
