//! The unix socket of `longfat relay status`: one question, one answer, one JSON object.

use crate::{Error, Result, plan::ControlPlan, shared::Shared, status};
use nix::unistd::{Group, chown};
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// How often the end of the relay is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// A question is one word; who takes longer to ask, or to take the answer, gets none.
const PATIENCE: Duration = Duration::from_secs(2);
const QUESTION_MAX_BYTES: usize = 64;

/// The question for everything.
pub const STATUS: &str = "status";
/// The question for everything but the connections.
pub const SUMMARY: &str = "summary";

/// A listening socket; its file is removed on drop.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    plan: ControlPlan,
}

impl Control {
    /// Listens. A file that a dead relay left is replaced; one that somebody answers on is not.
    pub fn open(plan: &ControlPlan) -> Result<Control> {
        let path = plan.socket.as_path();
        let failed = |source| Error::io(format!("make the control socket '{}'", path.display()), source);
        if UnixStream::connect(path).is_ok() {
            return Err(Error::Plan(format!(
                "somebody answers on '{}' already; choose another control.socket",
                path.display()
            )));
        }
        make_room(path).map_err(failed)?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        let control = Control { listener, plan: plan.clone() };
        control.permit()?;
        control.listener.set_nonblocking(true).map_err(failed)?;
        Ok(control)
    }

    /// Nobody but the owner can write to a new socket's file, and nobody else ever can unless a group is named.
    fn permit(&self) -> Result<()> {
        let path = &self.plan.socket;
        let failed = |source| Error::io(format!("set who may use '{}'", path.display()), source);
        let mode = if self.plan.group.is_some() { 0o660 } else { 0o600 };
        if let Some(name) = &self.plan.group {
            let group = Group::from_name(name).map_err(|errno| failed(errno.into()))?;
            let group =
                group.ok_or_else(|| Error::Plan(format!("control.group: there is no group '{name}'")))?;
            chown(path, None, Some(group.gid)).map_err(|errno| failed(errno.into()))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)
    }

    /// Answers until `done`.
    pub fn serve(&self, shared: &Shared, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            match self.listener.accept() {
                // Who asks and goes away loses nothing but the answer.
                Ok((asker, _)) => drop(answer(asker, shared)),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.plan.socket);
    }
}

/// Makes the directory, and removes a socket that nobody listens on. Anything but a socket stays, and is in the way.
fn make_room(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => Ok(()),
    }
}

fn answer(mut asker: UnixStream, shared: &Shared) -> std::io::Result<()> {
    asker.set_nonblocking(false)?;
    asker.set_read_timeout(Some(PATIENCE))?;
    asker.set_write_timeout(Some(PATIENCE))?;
    let mut text = match question(&mut asker)?.as_str() {
        STATUS => serde_json::to_string(&status::status(shared, true)),
        SUMMARY => serde_json::to_string(&status::status(shared, false)),
        other => serde_json::to_string(&serde_json::json!({
            "error": format!("unknown question '{other}'; ask '{STATUS}' or '{SUMMARY}'")
        })),
    }?;
    text.push('\n');
    asker.write_all(text.as_bytes())
}

/// One line of at most [`QUESTION_MAX_BYTES`].
fn question(asker: &mut UnixStream) -> std::io::Result<String> {
    let mut text = Vec::new();
    let mut byte = [0];
    while text.len() < QUESTION_MAX_BYTES && asker.read(&mut byte)? == 1 && byte[0] != b'\n' {
        text.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&text).trim().escape_default().to_string())
}

/// Asks the relay that answers on `path`: [`STATUS`] or [`SUMMARY`].
pub fn ask(path: &Path, question: &str) -> Result<status::Status> {
    let failed = |source: std::io::Error| {
        let mend = match source.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                "; is the relay running? name its socket with --socket"
            }
            ErrorKind::PermissionDenied => "; its owner and root may ask, and the group it names",
            _ => "",
        };
        Error::Plan(format!("ask the relay on '{}': {source}{mend}", path.display()))
    };
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(5 * PATIENCE)).map_err(failed)?;
    stream.write_all(format!("{question}\n").as_bytes()).map_err(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
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
