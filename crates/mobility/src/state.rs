//! What must outlive the process: what it changed, so that a crash leaves nothing behind, and what it heard, so that
//! nothing is believed again after a restart.

use crate::{Error, Name, Result, control::DIRECTORY, routes::Routes};
use longfat_host::own;
use longfat_kernel::tcb::CcName;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The file of a follower called `name`.
pub fn state_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.state.json"))
}

/// The state of a follower. Its directory lies in /run, which a restart of the machine empties.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Newest epoch and sequence of each router.
    pub heard: BTreeMap<Name, (u64, u64)>,
    /// Routes with our rto_min.
    pub routes: Routes,
    /// Connections whose congestion control was replaced, by cookie, and their own.
    pub replaced_cc: Vec<(u64, String)>,
    /// Connections whose windows have a bound of ours, by cookie.
    #[serde(default)]
    pub bounded: BTreeSet<u64>,
    /// The network namespace of these routes and connections, by its inode: from any other they look gone.
    #[serde(default)]
    pub netns: Option<u64>,
}

impl State {
    /// Reads what a follower left; nothing when it left nothing.
    ///
    /// # Errors
    /// When there is a file, and it cannot be read.
    pub fn read(path: &Path) -> Result<State> {
        // What it says is put back with our rights: nobody else may have written it.
        match own::read_own(path) {
            Ok(Some(text)) => serde_json::from_slice(&text).map_err(|source| {
                let what = format!("the state '{}' is damaged; remove it", path.display());
                Error::io(what, source)
            }),
            Ok(None) => Ok(State::default()),
            Err(error) => Err(Error::io(format!("read the state '{}'", path.display()), error)),
        }
    }

    /// Reads what a follower left in the calling thread's network namespace, to put it back.
    ///
    /// # Errors
    /// When it cannot be read, or was left elsewhere.
    pub fn take_over(path: &Path) -> Result<State> {
        let what = "/proc/thread-self/ns/net";
        let here = fs::metadata(what).map_err(|error| Error::io(format!("look at '{what}'"), error))?.ino();
        let state = State::read(path)?;
        if !state.changed_nothing() && state.netns.is_some_and(|there| there != here) {
            return Err(Error::Elsewhere(path.display().to_string()));
        }
        Ok(State { netns: Some(here), ..state })
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed =
            |error: std::io::Error| Error::io(format!("write the state '{}'", path.display()), error);
        let part = path.with_extension("part");
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        own::write_new(&part, &text).map_err(failed)?;
        fs::rename(&part, path).map_err(failed)
    }

    /// Whether connections are to be given back what was theirs, which takes the programs that set them.
    pub fn changed_connections(&self) -> bool {
        !self.replaced_cc.is_empty() || !self.bounded.is_empty()
    }

    /// Whether there is nothing to be put back.
    pub fn changed_nothing(&self) -> bool {
        self.routes.is_empty() && !self.changed_connections()
    }

    /// How many routes and connections are to be put back.
    pub fn owed(&self) -> usize {
        let replaced = self.replaced_cc.iter().map(|(cookie, _)| *cookie);
        let connections: BTreeSet<u64> = replaced.chain(self.bounded.iter().copied()).collect();
        self.routes.len() + connections.len()
    }

    /// Congestion controls to be given back.
    pub fn own_cc(&self) -> impl Iterator<Item = (u64, CcName)> {
        self.replaced_cc.iter().map(|(cookie, cc)| (*cookie, CcName::from(cc.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_back_and_none_is_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.state.json");
        assert_eq!(State::read(&path).unwrap(), State::default());
        let state = State {
            heard: BTreeMap::from([("bus".parse().unwrap(), (7, 3))]),
            replaced_cc: vec![(9, "reno".into())],
            ..State::default()
        };
        state.write(&path).unwrap();
        assert_eq!(State::read(&path).unwrap(), state);
        assert_eq!(state.own_cc().collect::<Vec<_>>(), [(9, CcName::from("reno"))]);
        let bounded = State { bounded: BTreeSet::from([8, 9]), ..state };
        assert_eq!(bounded.owed(), 2, "one of them twice");
        let elsewhere = State { netns: Some(1), ..bounded };
        elsewhere.write(&path).unwrap();
        let refused = State::take_over(&path).unwrap_err().to_string();
        assert!(refused.contains("another network namespace") && refused.contains("--name"), "{refused}");
        State { bounded: BTreeSet::new(), replaced_cc: Vec::new(), ..elsewhere }.write(&path).unwrap();
        let mut own = State::take_over(&path).expect("nothing is to be put back");
        own.bounded.insert(8);
        own.write(&path).unwrap();
        assert_eq!(State::take_over(&path).unwrap(), own);
        // Whoever put it there could choose which routes and connections are changed.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(directory.path().join("planted"), &path).unwrap();
        fs::write(directory.path().join("planted"), "{}").unwrap();
        assert!(State::read(&path).unwrap_err().to_string().contains("this user alone"));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "{").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert!(State::read(&path).unwrap_err().to_string().contains("remove it"));
    }
}
