//! `longfat reference`: the generated pages of docs/reference, made from what the program itself reads and writes.

mod commands;
mod keys;
mod markdown;
mod tables;

use crate::outcome::{Failure, Outcome};
use anyhow::Context as _;
use clap::Command;
use std::{fs, path::PathBuf};

/// Write the generated pages of the reference, or check that they are as they would be written.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of the pages: docs/reference.
    directory: PathBuf,
    /// Write nothing; exit code 1 when a page is stale.
    #[arg(long)]
    check: bool,
}

/// One page: its file's name and its text.
struct Page {
    name: String,
    text: String,
}

fn pages(program: Command) -> Vec<Page> {
    let mut pages = commands::pages(program);
    pages.extend(keys::pages());
    pages.push(tables::page());
    pages
}

pub fn run(args: &Args, program: Command) -> Outcome {
    let pages = pages(program);
    if args.check { check(args, &pages) } else { write(args, &pages) }
}

fn write(args: &Args, pages: &[Page]) -> Outcome {
    for page in pages {
        let path = args.directory.join(&page.name);
        fs::write(&path, &page.text).with_context(|| format!("write '{}'", path.display()))?;
    }
    println!("{} pages written to {}", pages.len(), args.directory.display());
    Ok(())
}

fn check(args: &Args, pages: &[Page]) -> Outcome {
    let is_stale =
        |page: &&Page| fs::read_to_string(args.directory.join(&page.name)).ok().as_ref() != Some(&page.text);
    let stale: Vec<_> = pages.iter().filter(is_stale).map(|page| page.name.as_str()).collect();
    if stale.is_empty() {
        return Ok(());
    }
    let directory = args.directory.display();
    let stale = stale.join(", ");
    Err(Failure::Missed(format!("stale in {directory}: {stale}; run 'longfat reference {directory}'")))
}
