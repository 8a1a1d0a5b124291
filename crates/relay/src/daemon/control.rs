//! The unix socket of `longfat relay status`: one question, one answer, one JSON object.

use super::answers::Relay;
use crate::{Error, Result, observe::status, plan::ControlPlan};
use longfat_host::control::{self, Patience};
use nix::unistd::{Group, chown};
use std::{
    fs,
    io::ErrorKind,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{fs::PermissionsExt, net::UnixListener},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// How often the end of the relay is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// A question is one word.
const PATIENCE: Patience = Patience { time: Duration::from_secs(2), question_bytes: 64 };

/// The question for everything.
pub const STATUS: &str = "status";
/// The question for everything but the connections.
pub const SUMMARY: &str = "summary";

/// A listening socket; its file is removed on drop.
#[derive(Debug)]
pub(crate) struct Control {
    listener: control::Control,
    plan: ControlPlan,
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Control {
    /// Listens, or goes on where another relay listened. A file that a dead relay left is replaced; one that somebody
    /// answers on is not. Among sockets at their default place those of dead relays of other names are removed.
    pub fn open(plan: &ControlPlan, inherited: Option<UnixListener>) -> Result<Control> {
        let is_there = |listener: &UnixListener| {
            listener.local_addr().is_ok_and(|address| address.as_pathname() == Some(&plan.socket))
        };
        if let Some(listener) = inherited.filter(is_there) {
            let listener = control::Control::inherited(listener);
            return Ok(Control { listener, plan: plan.clone() });
        }
        if plan.socket.parent() == Some(Path::new(ControlPlan::DEFAULT_DIRECTORY)) {
            clean(None);
        }
        let control = Control { listener: control::Control::open(&plan.socket)?, plan: plan.clone() };
        control.permit()?;
        Ok(control)
    }

    /// Nobody else goes on with its file.
    pub fn own(&mut self) {
        self.listener.own(&self.plan.socket);
    }

    /// Its file is another relay's from now on.
    pub fn leave(self) {
        self.listener.leave();
    }

    /// Members of the group that is named may ask too.
    fn permit(&self) -> Result<()> {
        let Some(name) = &self.plan.group else { return Ok(()) };
        let path = &self.plan.socket;
        let failed = |source| Error::io(format!("set who may use '{}'", path.display()), source);
        let group = Group::from_name(name).map_err(|errno| failed(errno.into()))?;
        let group = group.ok_or_else(|| Error::Plan(format!("control.group: there is no group '{name}'")))?;
        chown(path, None, Some(group.gid)).map_err(|errno| failed(errno.into()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(failed)
    }

    /// Answers until `done`; whoever asks while a successor takes over is answered by that one.
    pub fn serve(&self, relay: &Relay, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            if relay.workers.standstill.is_wanted()
                || !self.listener.answer(PATIENCE, |question| answer(question, relay))
            {
                std::thread::sleep(LOOK);
            }
        }
    }
}

fn answer(question: &str, relay: &Relay) -> String {
    let answered = match question {
        STATUS => serde_json::to_string(&relay.status(true)),
        SUMMARY => serde_json::to_string(&relay.status(false)),
        other => {
            let other = other.escape_default();
            let error = format!("unknown question '{other}'; ask '{STATUS}' or '{SUMMARY}'");
            serde_json::to_string(&serde_json::json!({ "error": error }))
        }
    };
    answered.unwrap_or_default()
}

/// Removes control sockets' files that killed relays left: at their default place, and on `socket`; which.
pub fn clean(socket: Option<&Path>) -> Vec<PathBuf> {
    let mut removed = control::remove_dead_in(Path::new(ControlPlan::DEFAULT_DIRECTORY));
    removed.extend(socket.filter(|path| control::remove_dead(path)).map(Path::to_owned));
    removed
}

/// Asks the relay that answers on `path`: [`STATUS`] or [`SUMMARY`].
pub fn ask(path: &Path, question: &str) -> Result<status::Status> {
    let failed = |source: std::io::Error| {
        let mend = match source.kind() {
            ErrorKind::ConnectionRefused if control::remove_dead(path) => {
                "; its relay was killed, and the file it left is removed now"
            }
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                "; is the relay running? name its socket with --socket"
            }
            ErrorKind::PermissionDenied => "; its owner and root may ask, and the group it names",
            _ => "",
        };
        Error::Plan(format!("ask the relay on '{}': {source}{mend}", path.display()))
    };
    let text = control::ask(path, question, 5 * PATIENCE.time).map_err(failed)?;
    let status: status::Status = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
    match status.version {
        status::STATUS_VERSION => Ok(status),
        version => Err(Error::Plan(format!(
            "the relay on '{}' speaks status version {version}, this program {}; use the relay's own program",
            path.display(),
            status::STATUS_VERSION
        ))),
    }
}
