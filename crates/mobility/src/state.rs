//! What must outlive the process: what it changed, so that a crash leaves nothing behind, and what it heard, so that
//! nothing is believed again after a restart.

use crate::{Error, Name, Result, control::DIRECTORY, routes::Routes};
use longfat_host::{
    confine::Account,
    monitor::{Duties, Monitor, Question},
    own,
};
use longfat_kernel::tcb::CcName;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write as _},
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

/// Where a state is kept, by this process or by one that stays root beside it.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    monitor: Option<Monitor>,
}

/// Makes the file anew that takes the other's place when it is whole.
const BEGIN: u8 = 0;
const TAKE_ITS_PLACE: u8 = 1;

impl StateFile {
    /// One that this process keeps.
    pub fn new(path: &Path) -> StateFile {
        StateFile { path: path.to_owned(), monitor: None }
    }

    /// Leaves the keeping, and the removal of `socket` at the end, to a process that stays root, where this one is
    /// about to become another user: what the next one believes must lie where no other process of that user can write.
    ///
    /// # Errors
    /// See [`Monitor::beside`].
    pub(crate) fn by_monitor(&mut self, account: Option<&Account>, socket: &Path) -> Result<()> {
        let (path, part) = (self.path.clone(), self.part());
        let duties =
            Duties::default().writing(path.parent()).removing(socket).answering(
                move |question| match question.what {
                    BEGIN => own::create_new(&part).map(Some),
                    TAKE_ITS_PLACE => fs::rename(&part, &path).map(|()| None),
                    _ => Err(io::ErrorKind::InvalidInput.into()),
                },
            );
        self.monitor = Monitor::beside(account, duties)?;
        Ok(())
    }

    /// Writes a state, whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, state: &State) -> Result<()> {
        let failed =
            |error: io::Error| Error::io(format!("write the state '{}'", self.path.display()), error);
        let text = serde_json::to_vec(state).map_err(|error| failed(error.into()))?;
        let written = match &self.monitor {
            Some(monitor) => write_by(monitor, &text),
            None => own::write_new(&self.part(), &text).and_then(|()| fs::rename(self.part(), &self.path)),
        };
        written.map_err(failed)
    }

    fn part(&self) -> PathBuf {
        self.path.with_extension("part")
    }
}

fn write_by(monitor: &Monitor, text: &[u8]) -> io::Result<()> {
    monitor.open(Question { what: BEGIN, which: 0 })?.write_all(text)?;
    monitor.ask(Question { what: TAKE_ITS_PLACE, which: 0 }).map(drop)
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
        let file = StateFile::new(&path);
        file.write(&state).unwrap();
        assert_eq!(State::read(&path).unwrap(), state);
        assert_eq!(state.own_cc().collect::<Vec<_>>(), [(9, CcName::from("reno"))]);
        let bounded = State { bounded: BTreeSet::from([8, 9]), ..state };
        assert_eq!(bounded.owed(), 2, "one of them twice");
        let elsewhere = State { netns: Some(1), ..bounded };
        file.write(&elsewhere).unwrap();
        let refused = State::take_over(&path).unwrap_err().to_string();
        assert!(refused.contains("another network namespace") && refused.contains("--name"), "{refused}");
        file.write(&State { bounded: BTreeSet::new(), replaced_cc: Vec::new(), ..elsewhere }).unwrap();
        let mut own = State::take_over(&path).expect("nothing is to be put back");
        own.bounded.insert(8);
        file.write(&own).unwrap();
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
