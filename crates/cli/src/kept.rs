//! Files that are there already: what was recorded is not replaced by anything, a page by a page alone.

use anyhow::{Context as _, ensure};
use std::{
    fs::{self, File},
    io::Read as _,
    path::Path,
};

/// How every page of ours begins.
const PAGE: &[u8] = b"<!doctype html>";

/// Fails where something would be lost by writing to `path`, which `option` names. A device, a pipe and an empty file
/// have nothing to lose.
///
/// # Errors
/// The option, its value and what to do.
pub fn refuse_replacing(option: &str, path: &Path) -> anyhow::Result<()> {
    let holds = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() > 0);
    ensure!(
        !holds,
        "{option} '{}' is there already, and is not replaced; name another file, or remove it first",
        path.display()
    );
    Ok(())
}

/// As [`refuse_replacing`], of a page, which can be made again: it may take the place of another.
///
/// # Errors
/// The option, its value and what to do.
pub fn refuse_replacing_all_but_a_page(option: &str, path: &Path) -> anyhow::Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let mut begins = Vec::new();
    let opened = File::open(path).and_then(|file| file.take(PAGE.len() as u64).read_to_end(&mut begins));
    opened.with_context(|| format!("{option} '{}': see what it is", path.display()))?;
    if begins.eq_ignore_ascii_case(PAGE) { Ok(()) } else { refuse_replacing(option, path) }
}
