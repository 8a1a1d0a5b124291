//! Hashes: of every file of a run in its manifest, of every manifest in itself and in the result's.
//!
//! They tell damage and change, not forgery: whoever can write the files can write the hashes.

use super::{Fault, Finding, RESULT_FILE, RUN_FILE, ResultManifest, RunError, RunManifest, write_json};
use crate::{
    hex::to_hex,
    regular::{self, JSON_BYTES_MAX},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::Path,
};

/// Bytes hashed at a time.
const CHUNK_BYTES: usize = 1 << 16;
/// Hexadecimal digits of a SHA-256.
const DIGITS: usize = 64;
/// Longest that all manifests of a result are together.
const MANIFESTS_BYTES_MAX: u64 = 1 << 30;

/// One file as it was when it was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Length of the file.
    pub bytes: u64,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
}

impl FileRecord {
    /// Length and hash of a file as it is now.
    ///
    /// # Errors
    /// It cannot be read to its end.
    pub fn of_file(path: &Path) -> io::Result<FileRecord> {
        FileRecord::read(regular::open(path)?, |_| Ok(()))
    }

    /// Length and hash of everything a reader gives; `keep` has the bytes as well.
    fn read(mut from: impl Read, mut keep: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<FileRecord> {
        let mut hash = Sha256::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut bytes = 0;
        loop {
            let count = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hash.update(&chunk[..count]);
            bytes += count as u64;
            keep(&chunk[..count])?;
        }
        Ok(FileRecord { bytes, sha256: to_hex(&hash.finalize()) })
    }
}

/// What a directory, or a packed one, holds: the hash of every file, and the manifests themselves.
#[derive(Debug)]
pub struct Contents {
    /// Every regular file by its path, parts apart by `/`.
    pub files: BTreeMap<String, FileRecord>,
    /// Bytes of those that are manifests.
    pub manifests: BTreeMap<String, Vec<u8>>,
    /// Entries that are no file of a run: a link, a device, a name given twice.
    pub strange: Vec<Finding>,
    /// Bytes that manifests may still have.
    room_bytes: u64,
}

impl Default for Contents {
    fn default() -> Contents {
        let (files, manifests, strange) = Default::default();
        Contents { files, manifests, strange, room_bytes: MANIFESTS_BYTES_MAX }
    }
}

impl Contents {
    /// Hashes a directory. Pages that were made from its runs are not part of it.
    ///
    /// # Errors
    /// Something in it cannot be read.
    pub fn of_directory(directory: &Path) -> Result<Contents, RunError> {
        let mut found = Contents::default();
        found.walk(directory, "")?;
        Ok(found)
    }

    fn walk(&mut self, directory: &Path, prefix: &str) -> Result<(), RunError> {
        let failed = |source| RunError::io(directory, source);
        for entry in fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().map_err(failed)?;
            let path = entry.path();
            if kind.is_dir() {
                self.walk(&path, &format!("{name}/"))?;
            } else if !kind.is_file() {
                self.strange.push(Finding { path: name, fault: Fault::NotAFile });
            } else if !is_derived(&name) {
                let file = regular::open(&path).map_err(|source| RunError::io(&path, source))?;
                self.add(&name, file).map_err(|source| RunError::io(&path, source))?;
            }
        }
        Ok(())
    }

    /// Hashes one file.
    ///
    /// # Errors
    /// It cannot be read to its end, or is a manifest for which there is no room in memory.
    pub fn add(&mut self, name: &str, from: impl Read) -> io::Result<()> {
        let mut kept = Vec::new();
        let is_manifest = [RUN_FILE, RESULT_FILE].contains(&name.rsplit('/').next().unwrap_or(name));
        let record = FileRecord::read(from, |bytes| {
            if is_manifest {
                self.take_room(name, (kept.len() + bytes.len()) as u64, bytes.len() as u64)?;
                kept.extend_from_slice(bytes);
            }
            Ok(())
        })?;
        if self.files.insert(name.to_owned(), record).is_some() {
            self.strange.push(Finding { path: name.to_owned(), fault: Fault::Twice });
        }
        if is_manifest {
            self.manifests.insert(name.to_owned(), kept);
        }
        Ok(())
    }
}

impl Contents {
    /// Room for `more` bytes of a manifest that has `length` with them.
    fn take_room(&mut self, name: &str, length: u64, more: u64) -> io::Result<()> {
        let refused = |limit: u64, what: &str| {
            let mib = limit >> 20;
            io::Error::other(format!("{name} has more than {mib} MiB{what}"))
        };
        if length > JSON_BYTES_MAX {
            return Err(refused(JSON_BYTES_MAX, ", as no manifest has; it was not written by longfat"));
        }
        let room_bytes = self.room_bytes.checked_sub(more).ok_or_else(|| {
            refused(MANIFESTS_BYTES_MAX, " with the manifests before it; look at the runs one by one")
        })?;
        self.room_bytes = room_bytes;
        Ok(())
    }
}

/// Pages that are made from runs and may lie beside them: they say nothing that the runs do not.
fn is_derived(path: &str) -> bool {
    ["report.html", "compare.html"].contains(&path.rsplit('/').next().unwrap_or(path))
}

/// Ends a run: hashes every file of its directory and writes its manifest, which must come last.
///
/// # Errors
/// A file cannot be read, or the manifest not be written.
pub fn seal_run(directory: &Path, manifest: &mut RunManifest) -> Result<(), RunError> {
    let mut files = Contents::of_directory(directory)?.files;
    files.remove(RUN_FILE);
    manifest.files = Some(files);
    write_sealed(&directory.join(RUN_FILE), manifest, |manifest| &mut manifest.seal)
}

/// Writes the manifest of a run that has ended again: its files are those that it named.
///
/// # Errors
/// The manifest cannot be written.
pub fn reseal_run(directory: &Path, manifest: &mut RunManifest) -> Result<(), RunError> {
    write_sealed(&directory.join(RUN_FILE), manifest, |manifest| &mut manifest.seal)
}

/// Writes a result's manifest. With `own` files the session has ended, and they are hashed.
///
/// # Errors
/// A file cannot be read, or the manifest not be written.
pub fn write_result(directory: &Path, manifest: &mut ResultManifest, own: &[&str]) -> Result<(), RunError> {
    manifest.files = None;
    let mut contents = Contents::default();
    for name in own {
        let path = directory.join(name);
        let failed = |source| RunError::io(&path, source);
        contents.add(name, regular::open(&path).map_err(failed)?).map_err(failed)?;
    }
    manifest.files = (!own.is_empty()).then_some(contents.files);
    write_sealed(&directory.join(RESULT_FILE), manifest, |manifest| &mut manifest.seal)
}

/// Writes a manifest with its seal: the hash of the manifest whose seal is all zeros.
fn write_sealed<M: Serialize>(
    path: &Path,
    manifest: &mut M,
    seal: fn(&mut M) -> &mut Option<String>,
) -> Result<(), RunError> {
    *seal(manifest) = Some("0".repeat(DIGITS));
    let hash = Sha256::digest(super::directory::json_bytes(path, manifest)?);
    *seal(manifest) = Some(to_hex(&hash));
    write_json(path, manifest)
}

/// Whether the bytes of a manifest are those its seal was made of.
pub(super) fn seal_holds(bytes: &[u8], seal: &str) -> bool {
    if seal.len() != DIGITS {
        return false;
    }
    // The seal is the last field.
    let at = bytes.windows(DIGITS).rposition(|window| window == seal.as_bytes());
    let Some(at) = at else { return false };
    let mut unsealed = bytes.to_vec();
    unsealed[at..at + DIGITS].fill(b'0');
    to_hex(&Sha256::digest(&unsealed)) == seal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_share_one_room_in_memory_and_nothing_is_kept_beyond_it() {
        let mut contents = Contents { room_bytes: 100, ..Contents::default() };
        contents.add("a/manifest.json", &[b'x'; 60][..]).unwrap();
        contents.add("a/tcp.parquet", &[b'x'; 1000][..]).unwrap();
        let said = contents.add("b/manifest.json", &[b'x'; 60][..]).unwrap_err().to_string();
        assert!(said.contains("b/manifest.json") && said.contains("one by one"), "{said}");
        assert_eq!(contents.manifests.values().map(Vec::len).sum::<usize>(), 60);
    }

    #[test]
    fn a_manifest_longer_than_any_is_refused_when_that_much_was_read() {
        let mut contents = Contents::default();
        let said = contents.add("result.json", io::repeat(b' ')).unwrap_err().to_string();
        assert!(said.contains("64 MiB") && said.contains("not written by longfat"), "{said}");
        assert!(contents.manifests.is_empty());
    }
}
