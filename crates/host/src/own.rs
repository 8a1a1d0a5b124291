//! Directories that are this user's alone to write: what root believes and undoes must not be what another planted.

use crate::{Error, Result};
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::fstat,
    unistd::geteuid,
};
use std::{
    fs,
    io::{self, ErrorKind, Write as _},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

/// An open directory that is this user's alone to write, reached without following a link.
#[derive(Debug)]
pub struct OwnDirectory(OwnedFd);

impl OwnDirectory {
    /// Opens it, and makes it first where it is not there.
    ///
    /// # Errors
    /// A link is on the way, others may write it, or it cannot be made.
    pub fn make(path: &Path) -> Result<OwnDirectory> {
        match fs::DirBuilder::new().mode(0o755).create(path) {
            Err(source) if source.kind() != ErrorKind::AlreadyExists => {
                Err(Error::io(format!("create {}", path.display()), source))
            }
            _ => OwnDirectory::open(path),
        }
    }

    /// Opens one that is there.
    ///
    /// # Errors
    /// See [`OwnDirectory::make`].
    pub fn open(path: &Path) -> Result<OwnDirectory> {
        OwnDirectory::reach(AT_FDCWD, path).map_err(|source| Error::io(open_of(path), source))
    }

    /// Opens one in it; `None` where there is none of that name.
    ///
    /// # Errors
    /// See [`OwnDirectory::make`].
    pub fn within(&self, name: &str) -> Result<Option<OwnDirectory>> {
        match OwnDirectory::reach(&self.0, Path::new(name)) {
            Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::io(open_of(&self.path().join(name)), source)),
            Ok(directory) => Ok(Some(directory)),
        }
    }

    fn reach(from: impl AsFd, path: &Path) -> io::Result<OwnDirectory> {
        let how = OpenHow::new()
            .flags(OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let opened = match openat2(from, path, how) {
            Err(Errno::ELOOP) => return Err(io::Error::other("a link is on the way; remove it")),
            opened => opened?,
        };
        let found = fstat(&opened)?;
        let own = geteuid().as_raw();
        if found.st_uid != own {
            let why = format!("it belongs to user {}, not to {own} who asks; remove it", found.st_uid);
            return Err(io::Error::other(why));
        }
        if found.st_mode & 0o022 != 0 {
            return Err(io::Error::other("others may write it; remove it"));
        }
        Ok(OwnDirectory(opened))
    }

    /// A path to it for as long as it is open, whatever becomes of its name.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// Names of what is in it, the plain text among them.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

fn open_of(path: &Path) -> String {
    format!("open the directory {} as this user's own", path.display())
}

/// Reads a file that is this user's own, is no link, and that nobody else may write; `None` where there is none.
///
/// # Errors
/// It cannot be read, or is not this user's alone to write.
pub fn read_own(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    if !found.is_file() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is not a file that this user alone may write; remove it"));
    }
    fs::read(path).map(Some)
}

/// Writes a file for this user alone that was not there before; an old one of that name, or a link, is removed first.
///
/// # Errors
/// It cannot be made, or somebody else is quicker.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_new(path)?.write_all(bytes)
}

/// Makes it, empty; see [`write_new`].
///
/// # Errors
/// See [`write_new`].
pub fn create_new(path: &Path) -> io::Result<fs::File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    #[test]
    fn links_directories_of_others_and_those_that_others_may_write_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let own = OwnDirectory::make(&path("own")).unwrap();
        OwnDirectory::make(&path("own")).unwrap();
        fs::create_dir(path("own/inner")).unwrap();
        assert!(own.within("inner").unwrap().is_some() && own.within("none").unwrap().is_none());
        assert_eq!(own.names(), ["inner"]);
        symlink(path("own"), path("link")).unwrap();
        symlink(path("own/inner"), path("own/link")).unwrap();
        assert!(
            OwnDirectory::make(&path("link")).is_err() && OwnDirectory::open(&path("link/inner")).is_err()
        );
        assert!(own.within("link").unwrap_err().to_string().contains("link is on the way"));
        fs::set_permissions(path("own/inner"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(own.within("inner").unwrap_err().to_string().contains("others may write"));
        fs::write(path("note"), "mine").unwrap();
        assert_eq!(read_own(&path("note")).unwrap().unwrap(), b"mine");
        assert!(read_own(&path("own")).is_err() && read_own(&path("none")).unwrap().is_none());
        if geteuid().is_root() {
            chown(path("own"), Some(65534), None).unwrap();
            assert!(
                OwnDirectory::make(&path("own")).unwrap_err().to_string().contains("belongs to user 65534")
            );
            chown(path("note"), Some(65534), None).unwrap();
            assert!(read_own(&path("note")).is_err());
        }
    }
}
