//! A run or a result as one file to send: `tar`, compressed by zstd. The same directory always gives the same bytes.
//!
//! What others packed is untrusted: only plain names are taken, every file is hashed as it is read, and what it would
//! become is bounded ([`Limits`]) and known before anything is written.

use longfat_schema::run::{Contents, Finding, RunError, is_plain_name, is_plain_path, verify};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};
use tar::{Archive, Builder, EntryType, Header};

/// How hard zstd tries: tables are compressed already.
const LEVEL: i32 = 3;
/// What a pack's name ends in.
pub const SUFFIX: &str = ".tar.zst";

/// Longest path within a pack.
const PATH_BYTES_MAX: u64 = 4096;

/// Most zeros after its end: tar writes blocks of up to a MiB.
const PADDING_BYTES_MAX: u64 = 1 << 20;

/// What a pack may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All that is packed, unpacked.
    pub bytes: u64,
    /// How many files.
    pub files: usize,
}

impl Limits {
    /// Tables are compressed before they are packed, logs become a tenth: a pack becomes 100 times its size at most,
    /// and a small one 64 MB. A file takes 100 bytes of a pack at least, a small pack apart.
    pub fn of_pack(packed_bytes: u64) -> Limits {
        Limits {
            bytes: packed_bytes.saturating_mul(100).max(64_000_000),
            files: files_of(packed_bytes / 100),
        }
    }

    /// Limits with so many bytes, in files of 1,000 bytes, the smallest apart.
    pub fn of_bytes(bytes: u64) -> Limits {
        Limits { bytes, files: files_of(bytes / 1000) }
    }
}

/// How many files a pack may have: so many, and as many as an ordinary result in any case.
fn files_of(count: u64) -> usize {
    count.max(250_000) as usize
}

/// Why a directory could not be packed, or a pack not be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The pack is cut off, damaged, or something else.
    #[error("{path} is no whole pack of a run or result: {source}")]
    Damaged {
        /// Path of the archive.
        path: String,
        /// What is wrong.
        source: io::Error,
    },
    /// The pack would become more than it may.
    #[error(
        "{path} would become more than {} MB or {} files; if that is what it should be, give --max-size", .limits.bytes / 1_000_000, .limits.files
    )]
    TooLarge {
        /// The pack.
        path: String,
        /// What it may become.
        limits: Limits,
    },
    /// A name that has no place in a pack.
    #[error(
        "{path} holds {name:?}, which is no plain name inside the one directory a pack is of; it was not made by 'longfat lab pack'"
    )]
    Outside {
        /// The pack.
        path: String,
        /// The name.
        name: String,
    },
    /// A run that is packed or unpacked is not as it was recorded.
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
/// It cannot be read to its end, or holds more than `limits` or, without any, than such a pack should.
pub fn contents(path: &Path, limits: Option<Limits>) -> Result<Contents, ArchiveError> {
    if path.is_dir() {
        return Ok(Contents::of_directory(path)?);
    }
    Ok(Pack::open(path, limits)?.contents)
}

/// Packs a run or result into a file. One that is not as it was recorded is not packed. Gives back how many files it
/// holds.
///
/// # Errors
/// See [`ArchiveError`].
pub fn pack(directory: &Path, file: &Path) -> Result<usize, ArchiveError> {
    // The pack takes the name at its end: a device, as /dev/null, would be gone.
    if file.exists() && !file.is_file() {
        let what = "it is no file that a pack may replace; name another";
        return Err(io_error(file)(io::Error::new(io::ErrorKind::AlreadyExists, what)));
    }
    let contents = Contents::of_directory(directory)?;
    refuse_faults(directory, &contents)?;
    let name = fs::canonicalize(directory).map_err(io_error(directory))?;
    let name = name.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| ArchiveError::Nameless(directory.display().to_string()))?;
    let name = plain(name);
    let temporary = file.with_added_extension("part");
    let written = write_pack(directory, &name, &contents, &temporary)
        .and_then(|()| fs::rename(&temporary, file).map_err(io_error(file)));
    if written.is_err() {
        // It may not even have been made.
        let _ = fs::remove_file(&temporary);
    }
    written.map(|()| contents.files.len())
}

/// A directory's name as a pack may have it.
fn plain(name: &str) -> String {
    let mut plain: String =
        name.chars().map(|c| if is_plain_name(&format!("x{c}")) { c } else { '_' }).collect();
    if !is_plain_name(&plain) {
        plain.insert(0, '_');
    }
    plain
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
    let findings = verify(contents).map_err(|error| error.about(path))?;
    if findings.is_empty() {
        return Ok(());
    }
    Err(ArchiveError::NotWhole { path: path.display().to_string(), findings })
}

/// A packed run or result that was read to its end: what it holds is known, nothing is written yet.
#[derive(Debug)]
pub struct Pack {
    file: PathBuf,
    limits: Limits,
    /// The directory that was packed.
    top: String,
    contents: Contents,
}

impl Pack {
    /// Reads a pack.
    ///
    /// # Errors
    /// It cannot be read to its end, holds other names than plain ones, or more than `limits` or, without any, than
    /// such a pack should.
    pub fn open(path: &Path, limits: Option<Limits>) -> Result<Pack, ArchiveError> {
        let file = File::open(path).map_err(io_error(path))?;
        let packed_bytes = file.metadata().map_err(io_error(path))?.len();
        let limits = limits.unwrap_or_else(|| Limits::of_pack(packed_bytes));
        let mut contents = Contents::default();
        let top = each_file_of(file, path, limits, &mut |name, from| {
            contents.add(name, from).map_err(damaged(path))
        })?;
        Ok(Pack { file: path.to_owned(), limits, top, contents })
    }

    /// How many files it becomes.
    pub fn files(&self) -> usize {
        self.contents.files.len()
    }

    /// How many bytes they are together.
    pub fn bytes(&self) -> u64 {
        self.contents.files.values().map(|file| file.bytes).sum()
    }

    /// Unpacks it below a directory, when it is whole. Gives back where it is.
    ///
    /// # Errors
    /// See [`ArchiveError`].
    pub fn unpack(&self, below: &Path) -> Result<PathBuf, ArchiveError> {
        refuse_faults(&self.file, &self.contents)?;
        let target = below.join(&self.top);
        if target.symlink_metadata().is_ok() {
            return Err(ArchiveError::Exists(target.display().to_string()));
        }
        // Who is interrupted must not leave half a run that looks like a whole one.
        let unfinished = below.join(format!(".{}.part", self.top));
        let unpacked = fs::create_dir_all(below)
            .and_then(|()| remove_if_there(&unfinished))
            // Not one that somebody else has put there meanwhile.
            .and_then(|()| fs::create_dir(&unfinished))
            .map_err(io_error(&target))
            .and_then(|()| self.write(&unfinished))
            .and_then(|()| fs::rename(&unfinished, &target).map_err(io_error(&target)));
        if unpacked.is_err() {
            // It may not even have been made.
            let _ = fs::remove_dir_all(&unfinished);
        }
        unpacked.map(|()| target)
    }

    fn write(&self, target: &Path) -> Result<(), ArchiveError> {
        let file = File::open(&self.file).map_err(io_error(&self.file))?;
        let top = each_file_of(file, &self.file, self.limits, &mut |name, from| {
            let path = target.join(name);
            // The pack was read to its end before: what fails now is the place.
            let failed = io_error(&path);
            fs::create_dir_all(path.parent().unwrap_or(target)).map_err(&failed)?;
            io::copy(from, &mut File::create_new(&path).map_err(&failed)?).map(drop).map_err(&failed)
        })?;
        // Another file in its place meanwhile.
        if top == self.top { Ok(()) } else { Err(damaged(&self.file)(io::ErrorKind::InvalidData.into())) }
    }
}

fn remove_if_there(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Unpacks a run or result below a directory, when it is whole. Gives back where it is.
///
/// # Errors
/// See [`ArchiveError`].
pub fn unpack(file: &Path, below: &Path) -> Result<PathBuf, ArchiveError> {
    Pack::open(file, None)?.unpack(below)
}

/// Every file of a pack by its name within the directory that was packed; that directory's name.
fn each_file_of(
    pack: impl Read,
    path: &Path,
    limits: Limits,
    on_file: &mut dyn FnMut(&str, &mut dyn Read) -> Result<(), ArchiveError>,
) -> Result<String, ArchiveError> {
    let mut pack = Archive::new(zstd::Decoder::new(pack).map_err(damaged(path))?);
    let (mut top, mut long) = (None, None);
    let (mut bytes, mut files) = (0u64, 0);
    // Raw: the library would keep a long name of any length in memory.
    for entry in pack.entries().map_err(damaged(path))?.raw(true) {
        let mut entry = entry.map_err(damaged(path))?;
        let kind = entry.header().entry_type();
        let (size, is_first_name) = (entry.size(), long.is_none());
        bytes = bytes.saturating_add(size);
        files += usize::from(kind == EntryType::Regular);
        if bytes > limits.bytes || files > limits.files {
            return Err(ArchiveError::TooLarge { path: path.display().to_string(), limits });
        }
        if kind == EntryType::GNULongName && size <= PATH_BYTES_MAX && is_first_name {
            let mut name = Vec::new();
            entry.read_to_end(&mut name).map_err(damaged(path))?;
            long = Some(name.strip_suffix(b"\0").unwrap_or(&name).to_vec());
            continue;
        }
        let name = long.take().unwrap_or_else(|| entry.path_bytes().into_owned());
        let name = String::from_utf8_lossy(&name).into_owned();
        let outside = || ArchiveError::Outside { path: path.display().to_string(), name: name.clone() };
        let (first, rest) = name.split_once('/').ok_or_else(outside)?;
        let is_plain = is_plain_name(first) && is_plain_path(rest);
        if kind != EntryType::Regular || !is_plain || *top.get_or_insert(first.to_owned()) != first {
            return Err(outside());
        }
        on_file(rest, &mut entry)?;
    }
    nothing_after(pack.into_inner()).map_err(damaged(path))?;
    Ok(top.unwrap_or_default())
}

/// After the last file come some zeros and then the end; anything else is not of the pack.
fn nothing_after(rest: impl Read) -> io::Result<()> {
    let mut chunk = [0; 4096];
    let mut rest = rest.take(PADDING_BYTES_MAX + 1);
    loop {
        match rest.read(&mut chunk)? {
            0 if rest.limit() > 0 => return Ok(()),
            count if count > 0 && chunk[..count].iter().all(|byte| *byte == 0) => {}
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
    fn what_is_no_file_is_not_replaced_by_a_pack() {
        let (place, directory, _) = packed();
        let device = place.path().join("device");
        let _listener = std::os::unix::net::UnixListener::bind(&device).unwrap();
        let message = pack(&directory, &device).unwrap_err().to_string();
        assert!(message.contains("device") && message.contains("it is no file"), "{message}");
        assert!(device.exists() && !device.is_file());
    }

    #[test]
    fn what_is_unpacked_is_what_was_packed_and_packing_it_again_gives_the_same_bytes() {
        let (place, directory, file) = packed();
        assert_eq!(verify(&contents(&file, None).unwrap()).unwrap(), []);
        let target = unpack(&file, &place.path().join("elsewhere")).unwrap();
        assert_eq!(target, place.path().join("elsewhere/r1"));
        assert_eq!(contents(&target, None).unwrap().files, contents(&directory, None).unwrap().files);
        let again = place.path().join("again.tar.zst");
        pack(&target, &again).unwrap();
        assert_eq!(fs::read(&again).unwrap(), fs::read(&file).unwrap());
        let message = unpack(&file, &place.path().join("elsewhere")).unwrap_err().to_string();
        assert!(message.contains("is there already"), "{message}");
    }

    #[test]
    fn what_an_interrupted_unpacking_left_is_no_run_and_not_in_the_way() {
        let (place, directory, file) = packed();
        let below = place.path().join("below");
        fs::create_dir_all(below.join(".r1.part/log")).unwrap();
        fs::write(below.join(".r1.part/stray.txt"), "half").unwrap();
        let target = unpack(&file, &below).unwrap();
        assert_eq!(contents(&target, None).unwrap().files, contents(&directory, None).unwrap().files);
        assert_eq!(fs::read_dir(&below).unwrap().count(), 1);
    }

    #[test]
    fn names_too_long_for_a_header_are_no_files_and_a_larger_pack_may_have_more() {
        let ours = format!("r1/case=reno/{}/tcp.parquet", "rate=25Mbit".repeat(20));
        let (_place, file) = of_zeros(&[(ours, 1)]);
        let one = Limits { files: 1, ..Limits::of_bytes(10_000) };
        assert_eq!(Pack::open(&file, Some(one)).unwrap().files(), 1);
        assert_eq!((Limits::of_pack(1_000_000_000).files, Limits::of_bytes(1).files), (10_000_000, 250_000));
        assert_eq!(Limits::of_bytes(1_000_000_000).files, 1_000_000);
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
            let found = contents(&file, None).and_then(|c| Ok(verify(&c)?));
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
        contents(&file, None)
    }

    /// A pack of these files, each of so many zeros.
    fn of_zeros(files: &[(String, u64)]) -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.tar.zst");
        let mut pack = Builder::new(zstd::Encoder::new(File::create(&file).unwrap(), 1).unwrap());
        for (name, bytes) in files {
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::Regular);
            header.set_size(*bytes);
            pack.append_data(&mut header, name, io::repeat(0).take(*bytes)).unwrap();
        }
        pack.into_inner().unwrap().finish().unwrap();
        (place, file)
    }

    #[test]
    fn a_small_pack_that_would_become_a_large_run_is_refused_before_anything_is_written() {
        let bomb = [("r1/manifest.json".to_owned(), 100), ("r1/tcp.parquet".to_owned(), 70_000_000)];
        let (place, file) = of_zeros(&bomb);
        assert!(fs::metadata(&file).unwrap().len() < 100_000);
        let message = unpack(&file, &place.path().join("below")).unwrap_err().to_string();
        assert!(message.contains("64 MB") && message.contains("--max-size"), "{message}");
        assert!(!place.path().join("below").exists());
        let pack = Pack::open(&file, Some(Limits::of_bytes(300_000_000))).unwrap();
        assert_eq!((pack.files(), pack.bytes()), (2, 70_000_100));
        let few = Limits { files: 1, ..Limits::of_bytes(300_000_000) };
        assert!(matches!(Pack::open(&file, Some(few)), Err(ArchiveError::TooLarge { .. })));
    }

    #[test]
    fn a_name_of_any_length_and_directories_of_any_depth_are_refused_and_long_names_of_ours_are_not() {
        let deep = format!("r1/{}tcp.parquet", "a/".repeat(200));
        let long = format!("r1/{}/tcp.parquet", "a".repeat(300));
        for name in [deep, long] {
            let (_place, file) = of_zeros(&[(name.clone(), 1)]);
            assert!(matches!(contents(&file, None), Err(ArchiveError::Outside { .. })), "{name}");
        }
        let ours = format!("r1/case=reno/{}/tcp.parquet", "rate=25Mbit".repeat(20));
        let (_place, file) = of_zeros(&[(ours.clone(), 1)]);
        assert!(contents(&file, None).unwrap().files.contains_key(&ours[3..]));
        // Of the kind that tar keeps long names in, and longer than any.
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.tar.zst");
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(20_000_000);
        let mut pack = Builder::new(zstd::Encoder::new(File::create(&file).unwrap(), 1).unwrap());
        pack.append_data(&mut header, "x", io::repeat(b'a').take(20_000_000)).unwrap();
        pack.into_inner().unwrap().finish().unwrap();
        assert!(matches!(contents(&file, None), Err(ArchiveError::Outside { .. })));
    }

    #[test]
    fn a_directory_of_any_name_is_packed_under_a_plain_one() {
        for (name, packed) in
            [("my runs", "my_runs"), ("-rf", "_-rf"), ("r\u{1b}[2J", "r__2J"), (".r", "_.r")]
        {
            let place = tempfile::tempdir().unwrap();
            let (directory, file) = (place.path().join(name), place.path().join("x.tar.zst"));
            run(&directory);
            pack(&directory, &file).unwrap();
            assert_eq!(
                unpack(&file, &place.path().join("to")).unwrap(),
                place.path().join("to").join(packed)
            );
        }
    }

    #[test]
    fn names_that_leave_the_directory_or_are_not_plain_and_links_are_refused() {
        assert!(hostile("r1/plan.json", EntryType::Regular).is_ok());
        let sql = "r1/x\" as select 1; copy (select 1) to 'y.parquet";
        for name in
            ["/etc/passwd", "../x/y", "r1/../../x", "alone", sql, "r1/a b", "r1/\u{1b}[2J", "r 1/x", "r1/.x"]
        {
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
            if let Ok(found) = contents(&file, None)
                && verify(&found).is_ok_and(|findings| findings.is_empty())
            {
                prop_assert_eq!(found.files, contents(&directory, None).unwrap().files);
            }
        }

        #[test]
        fn arbitrary_bytes_are_never_a_whole_pack(bytes in prop::collection::vec(any::<u8>(), 0..2000), compressed: bool) {
            let place = tempfile::tempdir().unwrap();
            let file = place.path().join("x");
            let bytes = if compressed { zstd::encode_all(&bytes[..], 1).unwrap() } else { bytes };
            fs::write(&file, bytes).unwrap();
            prop_assert!(contents(&file, None).map_or(true, |found| verify(&found).is_err()));
        }
    }
}
