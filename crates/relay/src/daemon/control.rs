//! The unix socket of `longfat relay status` and `longfat relay rule`: one question, one answer, one JSON object.

use super::{
    answers::{Relay, RuleChange},
    mover::{MoveOrder, MoveStatus},
};
use crate::{Error, Result, moving::channel::PURPOSE, observe::status, plan::ControlPlan, spec::RuleSpec};
use longfat_host::{
    control::{self, Patience},
    key::Key,
};
use nix::unistd::{Group, Uid, chown};
use std::{
    fs,
    io::ErrorKind,
    net::SocketAddr,
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
/// A question is a word, or a rule with networks and ports.
const PATIENCE: Patience = Patience { time: Duration::from_secs(2), question_bytes: 16 << 10 };

/// The question for everything.
pub const STATUS: &str = "status";
/// The question for everything but the connections.
pub const SUMMARY: &str = "summary";
/// Before the keys of a rule to add, as in an inline table.
const ADD: &str = "rule add ";
/// Before the name of a rule to remove.
const REMOVE: &str = "rule remove ";
/// Before an order to move connections, as JSON.
const MOVE: &str = "move ";
/// The question how far that is.
const MOVED: &str = "moved";

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

    /// Leaves the socket's file to another relay.
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
                || !self.listener.answer_to(PATIENCE, |question, user| answer(question, user, relay))
            {
                std::thread::sleep(LOOK);
            }
        }
    }
}

fn answer(question: &str, user: Uid, relay: &Relay) -> String {
    let answered = match question {
        STATUS => serde_json::to_string(&relay.status(true)),
        SUMMARY => serde_json::to_string(&relay.status(false)),
        MOVED => serde_json::to_string(&serde_json::json!({ "moved": &*relay.mover.status() })),
        other => serde_json::to_string(&match changed(other, user, relay) {
            Ok(answer) => answer,
            Err(error) => serde_json::json!({ "error": error }),
        }),
    };
    answered.unwrap_or_default()
}

/// What somebody has the relay do.
enum Order {
    Change(RuleChange),
    Move(MoveOrder),
}

impl Order {
    fn parse(question: &str) -> std::result::Result<Order, String> {
        if let Some(keys) = question.strip_prefix(ADD) {
            return Ok(Order::Change(RuleChange::Add(Box::new(RuleSpec::from_words(keys)?))));
        }
        if let Some(name) = question.strip_prefix(REMOVE) {
            return Ok(Order::Change(RuleChange::Remove(name.trim().to_owned())));
        }
        if let Some(order) = question.strip_prefix(MOVE) {
            // The key is among it, and is not repeated.
            return serde_json::from_str(order).map(Order::Move).map_err(|_| {
                "an order to move connections that is not understood; use the relay's own program".into()
            });
        }
        let question = question.escape_default();
        Err(format!(
            "unknown question '{question}'; ask '{STATUS}', '{SUMMARY}', '{ADD}KEYS', '{REMOVE}NAME', '{MOVE}ORDER' or \
             '{MOVED}'"
        ))
    }
}

/// The rules that were added after a change that somebody asked for, or that a move has begun. A group that may ask for
/// the status may not change what the relay does.
fn changed(question: &str, user: Uid, relay: &Relay) -> std::result::Result<serde_json::Value, String> {
    let order = Order::parse(question)?;
    if !user.is_root() && user != Uid::effective() {
        let what = match order {
            Order::Change(_) => "change this relay's rules",
            Order::Move(_) => "move this relay's connections",
        };
        return Err(format!("user {user} may not {what}: root and the relay's own user may"));
    }
    match order {
        Order::Change(change) => {
            let rules = relay.change_rules(change).map_err(|error| error.to_string())?;
            Ok(serde_json::json!({ "rules": rules }))
        }
        Order::Move(order) => {
            relay.mover.begin(order)?;
            Ok(serde_json::json!({ "moved": &*relay.mover.status() }))
        }
    }
}

/// Adds a rule of this name before those of the relay that answers on `path`; its keys are written as in an inline
/// table. The names of all rules that were added.
///
/// # Errors
/// When nobody answers, or the relay refuses: then its rules stay as they are.
pub fn add_rule(path: &Path, name: &str, keys: &str) -> Result<Vec<String>> {
    let name = toml::Value::from(name);
    let question = format!("{ADD}name = {name}, {keys}").replace(['\n', '\r'], " ");
    if question.len() >= PATIENCE.question_bytes {
        return Err(Error::Plan(format!(
            "the rule has {} bytes; give less than {}, or put it into the relay's file",
            question.len(),
            PATIENCE.question_bytes
        )));
    }
    change_rules(path, &question)
}

/// Removes a rule that was added; the names of those that are left.
///
/// # Errors
/// When nobody answers, or no rule of that name was added.
pub fn remove_rule(path: &Path, name: &str) -> Result<Vec<String>> {
    change_rules(path, &format!("{REMOVE}{name}"))
}

/// What an order, or a question about one, is answered by.
#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Rules(Vec<String>),
    Moved(Box<MoveStatus>),
    Error(String),
}

fn change_rules(path: &Path, question: &str) -> Result<Vec<String>> {
    match answered(path, question)? {
        Answer::Rules(names) => Ok(names),
        _ => Err(not_asked(path, &ErrorKind::InvalidData.into())),
    }
}

fn answered(path: &Path, question: &str) -> Result<Answer> {
    match serde_json::from_str(&asked(path, question)?) {
        Ok(Answer::Error(error)) => Err(Error::Plan(error)),
        Ok(answer) => Ok(answer),
        Err(error) => Err(not_asked(path, &error.into())),
    }
}

/// Has the relay that answers on `path` move its connections to the relay of another router, which has the same key.
///
/// # Errors
/// When nobody answers, or the relay moves connections already.
pub fn begin_move(path: &Path, to: SocketAddr, key: &Key, within: Duration) -> Result<()> {
    let order = MoveOrder {
        to,
        key: key.tag(PURPOSE),
        within_ms: u64::try_from(within.as_millis()).unwrap_or(u64::MAX),
    };
    let order = serde_json::to_string(&order).map_err(|error| Error::io("write an order", error))?;
    answered(path, &format!("{MOVE}{order}")).map(drop)
}

/// How far the last move of the relay that answers on `path` is.
///
/// # Errors
/// When nobody answers.
pub fn move_status(path: &Path) -> Result<MoveStatus> {
    match answered(path, MOVED)? {
        Answer::Moved(status) => Ok(*status),
        _ => Err(not_asked(path, &ErrorKind::InvalidData.into())),
    }
}

/// Removes control sockets' files that killed relays left: at their default place, and on `socket`; which.
pub fn clean(socket: Option<&Path>) -> Vec<PathBuf> {
    let mut removed = control::remove_dead_in(Path::new(ControlPlan::DEFAULT_DIRECTORY));
    removed.extend(socket.filter(|path| control::remove_dead(path)).map(Path::to_owned));
    removed
}

/// Asks the relay that answers on `path`: [`STATUS`] or [`SUMMARY`].
pub fn ask(path: &Path, question: &str) -> Result<status::Status> {
    let text = asked(path, question)?;
    let status: status::Status =
        serde_json::from_str(&text).map_err(|error| not_asked(path, &error.into()))?;
    match status.version {
        status::STATUS_VERSION => Ok(status),
        version => Err(Error::Plan(format!(
            "the relay on '{}' speaks status version {version}, this program {}; use the relay's own program",
            path.display(),
            status::STATUS_VERSION
        ))),
    }
}

fn asked(path: &Path, question: &str) -> Result<String> {
    control::ask(path, question, 5 * PATIENCE.time).map_err(|error| not_asked(path, &error))
}

fn not_asked(path: &Path, source: &std::io::Error) -> Error {
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
}
