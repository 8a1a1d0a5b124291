//! `include = ["base.toml"]`: files whose keys this one builds on.

use super::SpecError;
use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};
use toml::{Table, Value};

/// An experiment file with everything it includes.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// One table; no `include` in it.
    pub table: Table,
    /// What would be read to the same end: the file itself, or, when it includes others, all of them in one.
    pub text: String,
}

/// Why a file could not be read with all it includes.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file could not be read.
    #[error("'{path}': {source}{}", named_by(.from))]
    Read {
        /// Path of the included file.
        path: PathBuf,
        /// The file that includes it.
        from: Option<PathBuf>,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A file is no TOML.
    #[error("'{path}': {source}")]
    Syntax {
        /// Path of the included file.
        path: PathBuf,
        /// What is wrong.
        source: Box<toml::de::Error>,
    },
    /// A file includes itself, by others perhaps.
    #[error("include goes round: {}; take one of them out", .0.join(" -> "))]
    Cycle(Vec<String>),
    /// More files than an experiment is made of.
    #[error("'{0}' would be one of more than {FILES_MAX} files; include each once, and fewer")]
    TooMany(PathBuf),
    /// `include` is something else than file names.
    #[error(
        "'{0}': include is a list of file names, relative to the file; write it like include = [\"base.toml\"]"
    )]
    NoList(PathBuf),
}

/// Most files that one builds on, each as often as it is included: a few that include each other twice would be
/// thousands.
const FILES_MAX: usize = 100;
/// Longest file.
const FILE_BYTES_MAX: u64 = 4_000_000;

fn named_by(from: &Option<PathBuf>) -> String {
    from.as_ref().map_or_else(String::new, |from| format!(" (included by '{}')", from.display()))
}

impl Source {
    /// Reads a file and what it includes.
    pub fn open(path: &Path) -> Result<Source, SourceError> {
        let (text, table) = parse(path, None)?;
        if !table.contains_key("include") {
            return Ok(Source { table, text });
        }
        let mut files = Vec::new();
        let table = merge(path, None, &mut Vec::new(), &mut files)?;
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        let text = format!("# One file made of {}.\n{table}", names.join(", "));
        Ok(Source { table, text })
    }

    /// A text by itself; one that includes others is refused.
    pub fn of_text(text: &str) -> Result<Source, SpecError> {
        let table: Table = text.parse().map_err(|error| SpecError::Syntax(Box::new(error)))?;
        Ok(Source { table, text: text.to_owned() })
    }
}

fn parse(path: &Path, from: Option<&Path>) -> Result<(String, Table), SourceError> {
    let read = |source| SourceError::Read { path: path.to_owned(), from: from.map(Path::to_owned), source };
    let text = read_bounded(path, from.is_some()).map_err(read)?;
    let table = text
        .parse()
        .map_err(|source| SourceError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
    Ok((text, table))
}

/// The file's text. What others include may be a stranger's word: no device, no pipe, and nothing without an end.
fn read_bounded(path: &Path, is_included: bool) -> io::Result<String> {
    if is_included && !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is no regular file"));
    }
    let mut text = String::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let why = format!("is longer than an experiment's {FILE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// The file's table laid over those it includes, the later over the earlier. `above` are the files on the way here.
fn merge(
    path: &Path,
    from: Option<&Path>,
    above: &mut Vec<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Result<Table, SourceError> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if above.contains(&real) {
        let way = above.iter().chain([&real]).map(|file| file.display().to_string());
        return Err(SourceError::Cycle(way.collect()));
    }
    if files.len() >= FILES_MAX {
        return Err(SourceError::TooMany(path.to_owned()));
    }
    let (_, mut table) = parse(path, from)?;
    let included = included(path, table.remove("include"))?;
    files.push(path.to_owned());
    above.push(real);
    let mut whole = Table::new();
    for file in included {
        lay(&mut whole, merge(&file, Some(path), above, files)?);
    }
    above.pop();
    lay(&mut whole, table);
    Ok(whole)
}

fn included(path: &Path, include: Option<Value>) -> Result<Vec<PathBuf>, SourceError> {
    let beside = path.parent().unwrap_or(Path::new(""));
    let names = match include {
        None => Vec::new(),
        Some(Value::Array(names)) => names,
        Some(name) => vec![name],
    };
    let file = |name: Value| name.as_str().map(|name| beside.join(name));
    names.into_iter().map(file).collect::<Option<_>>().ok_or_else(|| SourceError::NoList(path.to_owned()))
}

/// Tables are merged key by key; anything else takes the place of what was there.
fn lay(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => lay(under, over),
            (_, value) => drop(under.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, files: &[(&str, &str)]) {
        files.iter().for_each(|(name, text)| {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        });
    }

    #[test]
    fn a_file_lays_its_keys_over_those_it_includes_and_the_whole_reads_the_same_again() {
        let directory = tempfile::tempdir().unwrap();
        let files = [
            ("a.toml", "include = ['sub/b.toml', 'c.toml']\nname = 'a'\n[links.p]\nrate = '1Mbit'"),
            (
                "sub/b.toml",
                "include = 'd.toml'\nname = 'b'\nx = [1, 2]\n[links.p]\nrate = '2Mbit'\ndelay = '1ms'",
            ),
            ("sub/d.toml", "[links.p]\ndelay = '9ms'\nmtu = 1500"),
            ("c.toml", "x = [3]"),
        ];
        write(directory.path(), &files);
        let source = Source::open(&directory.path().join("a.toml")).unwrap();
        let expected: Table =
            "name = 'a'\nx = [3]\n[links.p]\nrate = '1Mbit'\ndelay = '1ms'\nmtu = 1500".parse().unwrap();
        assert_eq!(source.table, expected);
        assert_eq!(Source::of_text(&source.text).unwrap().table, expected);
    }

    #[test]
    fn cycles_and_files_that_are_not_there_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let files = [
            ("a.toml", "include = ['b.toml']"),
            ("b.toml", "include = ['a.toml']"),
            ("c.toml", "include = ['none.toml']"),
            ("d.toml", "include = 3"),
        ];
        write(directory.path(), &files);
        let said = |name: &str| Source::open(&directory.path().join(name)).unwrap_err().to_string();
        assert!(
            said("a.toml").contains("goes round") && said("a.toml").contains("b.toml -> "),
            "{}",
            said("a.toml")
        );
        assert!(
            said("c.toml").contains("none.toml") && said("c.toml").contains("included by"),
            "{}",
            said("c.toml")
        );
        assert!(said("d.toml").contains("list of file names"));
    }

    #[test]
    fn files_that_include_each_other_ever_more_often_and_what_has_no_end_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        for level in 0..40 {
            let next = format!("{}.toml", level + 1);
            write(
                directory.path(),
                &[(&format!("{level}.toml"), &format!("include = ['{next}', '{next}']"))],
            );
        }
        write(directory.path(), &[("40.toml", "name = 'x'"), ("zero.toml", "include = '/dev/zero'")]);
        let said = |name: &str| Source::open(&directory.path().join(name)).unwrap_err().to_string();
        assert!(said("0.toml").contains("more than 100 files"), "{}", said("0.toml"));
        assert!(said("zero.toml").contains("no regular file"), "{}", said("zero.toml"));
        write(directory.path(), &[("long.toml", &"#".repeat(4_000_001))]);
        assert!(said("long.toml").contains("longer than"), "{}", said("long.toml"));
    }

    #[test]
    fn a_file_that_includes_nothing_is_kept_as_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &[("a.toml", "# mine\nname = 'a'\n")]);
        assert_eq!(Source::open(&directory.path().join("a.toml")).unwrap().text, "# mine\nname = 'a'\n");
    }
}
