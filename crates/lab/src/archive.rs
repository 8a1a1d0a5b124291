//! A run or a result as one file to send: `tar`, compressed by zstd. The same directory always gives the same bytes.
//!
//! What others packed is untrusted: names may not leave the directory, and every file is hashed as it is read.

use longfat_schema::run::{Contents, Finding, RunError, verify};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Component, Path, PathBuf},
};
use tar::{Archive, Builder, EntryType, Header};

/// How hard zstd tries: tables are compressed already.
const LEVEL: i32 = 3;
/// What a pack's name ends in.
pub const SUFFIX: &str = ".tar.zst";

/// Why a directory could not be packed, or a pack not be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is cut off, damaged, or something else.
    #[error("{path} is no whole pack of a run or result: {source}")]
    Damaged {
        /// Which.
        path: String,
        /// What is wrong.
        source: io::Error,
    },
    /// A name that has no place in a pack.
    #[error(
        "{path} holds '{name}', which is not inside the one directory a pack is of; it was not made by 'longfat lab pack'"
    )]
    Outside {
        /// The pack.
        path: String,
        /// The name.
        name: String,
    },
    /// What is packed or unpacked is not as it was recorded.
    #[error("{path} is not as it was recorded: {}", .findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    NotWhole {
        /// The directory or pack.
        path: String,
        /// What is wrong.
        findings: Vec<Finding>,
    },
    /// There is something already.
    #[error("'{0}' is there already; choose another place with -o, or remove it")]
    Exists(String),
    /// A directory that has no name of its own.
    #[error("'{0}' has no name to be packed under; give the directory by its name")]
    Nameless(String),
    /// Neither a run nor a result.
    #[error(transparent)]
    Run(#[from] RunError),
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> ArchiveError + '_ {
    move |source| ArchiveError::Io { path: path.display().to_string(), source }
}

fn damaged(path: &Path) -> impl Fn(io::Error) -> ArchiveError + '_ {
    move |source| ArchiveError::Damaged { path: path.display().to_string(), source }
}

/// What a run or result holds, be it a directory or packed.
///
/// # Errors
/// It cannot be read to its end.
pub fn contents(path: &Path) -> Result<Contents, ArchiveError> {
    if path.is_dir() {
        return Ok(Contents::of_directory(path)?);
    }
    contents_of(File::open(path).map_err(io_error(path))?, path).map(|(contents, _)| contents)
}

/// What a pack holds, and the name of the directory that was packed; `path` is what messages call the pack.
fn contents_of(pack: impl Read, path: &Path) -> Result<(Contents, String), ArchiveError> {
    let mut found = Contents::default();
    let top = each_file_of(pack, path, &mut |name, file| found.add(name, file).map_err(damaged(path)))?;
    Ok((found, top))
}

/// Packs a run or result into a file. One that is not as it was recorded is not packed. Gives back how many files it holds.
///
/// # Errors
/// See [`ArchiveError`].
pub fn pack(directory: &Path, file: &Path) -> Result<usize, ArchiveError> {
    let contents = Contents::of_directory(directory)?;
    refuse_faults(directory, &contents)?;
    let name = fs::canonicalize(directory).map_err(io_error(directory))?;
    let name = name.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| ArchiveError::Nameless(directory.display().to_string()))?;
    let temporary = file.with_added_extension("part");
    let written = write_pack(directory, name, &contents, &temporary)
        .and_then(|()| fs::rename(&temporary, file).map_err(io_error(file)));
    if written.is_err() {
        // It may not even have been made.
        let _ = fs::remove_file(&temporary);
    }
    written.map(|()| contents.files.len())
}

fn write_pack(directory: &Path, name: &str, contents: &Contents, to: &Path) -> Result<(), ArchiveError> {
    let failed = io_error(to);
    let mut encoder = zstd::Encoder::new(File::create(to).map_err(&failed)?, LEVEL).map_err(&failed)?;
    encoder.include_checksum(true).map_err(&failed)?;
    let mut pack = Builder::new(encoder);
    for (path, record) in &contents.files {
        let source = directory.join(path);
        let opened = File::open(&source).map_err(io_error(&source))?;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(record.bytes);
        // A file that grows or shrinks meanwhile must not spoil what follows it.
        let mut bytes = opened.take(record.bytes);
        pack.append_data(&mut header, format!("{name}/{path}"), &mut bytes).map_err(&failed)?;
        if bytes.limit() > 0 {
            return Err(io_error(&source)(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    pack.into_inner().and_then(zstd::Encoder::finish).map(drop).map_err(&failed)
}

fn refuse_faults(path: &Path, contents: &Contents) -> Result<(), ArchiveError> {
    let findings = verify(contents)?;
    if findings.is_empty() {
        return Ok(());
    }
    Err(ArchiveError::NotWhole { path: path.display().to_string(), findings })
}

/// Unpacks a run or result below a directory, when it is whole. Gives back where it is.
///
/// # Errors
/// See [`ArchiveError`].
pub fn unpack(file: &Path, below: &Path) -> Result<PathBuf, ArchiveError> {
    let open = || File::open(file).map_err(io_error(file));
    let (contents, top) = contents_of(open()?, file)?;
    refuse_faults(file, &contents)?;
    let target = below.join(top);
    if target.exists() {
        return Err(ArchiveError::Exists(target.display().to_string()));
    }
    let unpacked = each_file_of(open()?, file, &mut |name, from| {
        let path = target.join(name);
        // The pack was read to its end before: what fails now is the place.
        let failed = io_error(&path);
        fs::create_dir_all(path.parent().unwrap_or(&target)).map_err(&failed)?;
        io::copy(from, &mut File::create_new(&path).map_err(&failed)?).map(drop).map_err(&failed)
    });
    if unpacked.is_err() {
        // Half a run would be in the way of the next try.
        let _ = fs::remove_dir_all(&target);
    }
    unpacked.map(|_| target)
}

/// Every file of a pack by its name within the directory that was packed; that directory's name.
fn each_file_of(
    pack: impl Read,
    path: &Path,
    on_file: &mut dyn FnMut(&str, &mut dyn Read) -> Result<(), ArchiveError>,
) -> Result<String, ArchiveError> {
    let mut pack = Archive::new(zstd::Decoder::new(pack).map_err(damaged(path))?);
    let mut top = None;
    for entry in pack.entries().map_err(damaged(path))? {
        let mut entry = entry.map_err(damaged(path))?;
        let name = entry.path().map_err(damaged(path))?.into_owned();
        let outside =
            || ArchiveError::Outside { path: path.display().to_string(), name: name.display().to_string() };
        let (first, rest) = split(&name).ok_or_else(outside)?;
        if entry.header().entry_type() != EntryType::Regular || *top.get_or_insert(first.clone()) != first {
            return Err(outside());
        }
        on_file(&rest, &mut entry)?;
    }
    nothing_after(pack.into_inner()).map_err(damaged(path))?;
    Ok(top.unwrap_or_default())
}

/// The one directory of a pack and the name within; `None` for what leads elsewhere.
fn split(name: &Path) -> Option<(String, String)> {
    let parts = name.components().map(|part| match part {
        Component::Normal(part) => part.to_str().map(str::to_owned),
        _ => None,
    });
    let parts: Vec<String> = parts.collect::<Option<_>>()?;
    let (first, rest) = parts.split_first()?;
    (!rest.is_empty()).then(|| (first.clone(), rest.join("/")))
}

/// After the last file come zeros and then the end; anything else is not of the pack.
fn nothing_after(mut rest: impl Read) -> io::Result<()> {
    let mut chunk = [0; 4096];
    loop {
        match rest.read(&mut chunk)? {
            0 => return Ok(()),
            count if chunk[..count].iter().all(|byte| *byte == 0) => {}
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "something follows its end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_schema::{
        SCHEMA_VERSION,
        run::{RunManifest, RunStatus, RunWriter, seal_run},
    };
    use proptest::prelude::*;

    fn run(directory: &Path) {
        RunWriter::create(directory).unwrap().finish().unwrap();
        fs::create_dir(directory.join("log")).unwrap();
        fs::write(directory.join("log/sender.txt"), "all went well\n").unwrap();
        let mut manifest = RunManifest {
            schema_version: SCHEMA_VERSION,
            case: "c".into(),
            status: RunStatus::Done,
            ..RunManifest::default()
        };
        seal_run(directory, &mut manifest).unwrap();
    }

    /// A run and its pack.
    fn packed() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let (directory, file) = (place.path().join("r1"), place.path().join("r1.tar.zst"));
        run(&directory);
        pack(&directory, &file).unwrap();
        (place, directory, file)
    }

    #[test]
    fn what_is_unpacked_is_what_was_packed_and_packing_it_again_gives_the_same_bytes() {
        let (place, directory, file) = packed();
        assert_eq!(verify(&contents(&file).unwrap()).unwrap(), []);
        let target = unpack(&file, &place.path().join("elsewhere")).unwrap();
        assert_eq!(target, place.path().join("elsewhere/r1"));
        assert_eq!(contents(&target).unwrap().files, contents(&directory).unwrap().files);
        let again = place.path().join("again.tar.zst");
        pack(&target, &again).unwrap();
        assert_eq!(fs::read(&again).unwrap(), fs::read(&file).unwrap());
        let message = unpack(&file, &place.path().join("elsewhere")).unwrap_err().to_string();
        assert!(message.contains("is there already"), "{message}");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_and_a_pack_is_not_packed() {
        let (place, _, file) = packed();
        let message = unpack(&file, &file).unwrap_err().to_string();
        assert!(message.contains("r1.tar.zst/r1") && !message.contains("damaged"), "{message}");
        assert!(pack(&file, &place.path().join("b.tar.zst")).is_err());
        assert!(!place.path().join("b.tar.zst").exists() && !place.path().join("b.tar.zst.part").exists());
    }

    #[test]
    fn a_run_that_changed_is_not_packed_and_the_file_is_named() {
        let (place, directory, _) = packed();
        fs::write(directory.join("log/sender.txt"), "all went wrong\n").unwrap();
        let message = pack(&directory, &place.path().join("b.tar.zst")).unwrap_err().to_string();
        assert!(message.contains("log/sender.txt: changed, 14 bytes then, 15 now"), "{message}");
        assert!(!place.path().join("b.tar.zst").exists());
    }

    #[test]
    fn a_pack_that_is_cut_off_or_goes_on_after_its_end_is_damaged() {
        let (_place, _, file) = packed();
        let bytes = fs::read(&file).unwrap();
        for wrong in [bytes[..bytes.len() - 1].to_vec(), [&bytes[..], b"x"].concat(), Vec::new()] {
            fs::write(&file, wrong).unwrap();
            let found = contents(&file).and_then(|c| Ok(verify(&c)?));
            assert!(found.is_err(), "{found:?}");
        }
    }

    /// A pack of one file under any name and of any kind.
    fn hostile(name: &str, kind: EntryType) -> Result<Contents, ArchiveError> {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.tar.zst");
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_cksum();
        let mut pack = Builder::new(zstd::Encoder::new(File::create(&file).unwrap(), 1).unwrap());
        pack.append(&header, io::empty()).unwrap();
        pack.into_inner().unwrap().finish().unwrap();
        contents(&file)
    }

    #[test]
    fn names_that_leave_the_directory_and_links_are_refused() {
        assert!(hostile("r1/plan.json", EntryType::Regular).is_ok());
        for name in ["/etc/passwd", "../x/y", "r1/../../x", "alone"] {
            assert!(matches!(hostile(name, EntryType::Regular), Err(ArchiveError::Outside { .. })), "{name}");
        }
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Directory] {
            assert!(matches!(hostile("r1/x", kind), Err(ArchiveError::Outside { .. })), "{kind:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_changed_bit_of_a_pack_is_found_or_changes_no_file(at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let (_place, directory, file) = packed();
            let mut bytes = fs::read(&file).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            fs::write(&file, bytes).unwrap();
            if let Ok(found) = contents(&file)
                && verify(&found).is_ok_and(|findings| findings.is_empty())
            {
                prop_assert_eq!(found.files, contents(&directory).unwrap().files);
            }
        }

        #[test]
        fn arbitrary_bytes_are_never_a_whole_pack(bytes in prop::collection::vec(any::<u8>(), 0..2000), compressed: bool) {
            let place = tempfile::tempdir().unwrap();
            let file = place.path().join("x");
            let bytes = if compressed { zstd::encode_all(&bytes[..], 1).unwrap() } else { bytes };
            fs::write(&file, bytes).unwrap();
            prop_assert!(contents(&file).map_or(true, |found| verify(&found).is_err()));
        }
    }
}
