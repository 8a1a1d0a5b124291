//! Running an unmodified program and its children under a congestion control, or with what they receive held back,
//! through a cgroup of its own.

use super::{
    inbound::{Holding, Inbound},
    register::{self, Registration, hold},
};
use crate::{
    Error, Result,
    cgroup::Cgroup,
    object::{self, bpf_object},
};
use libbpf_rs::{Link, MapHandle, Object};
use longfat_cc::Algorithm;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};
use std::{
    os::{
        fd::{AsFd, FromRawFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::{Child, Command, ExitStatus},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// How often the stop flag is looked at.
const LOOK_EVERY_MS: u16 = 100;

/// How long processes may take to end after SIGTERM before they are killed.
const GRACE: Duration = Duration::from_secs(3);

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exec {
    /// Exit code of the program, or 128 + the signal that ended it, as shells say it.
    pub exit_code: u8,
    /// Sockets that did not take the congestion control.
    pub refused_sockets: u64,
    /// What became of connections that were to receive in the background.
    pub inbound: Inbound,
}

/// How a program's TCP sockets are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Treatment<'a> {
    /// The congestion control they send under; absent: what they choose.
    pub cc: Option<&'a str>,
    /// Whether what they receive gives way to others.
    pub receives_in_background: bool,
}

impl<'a> Treatment<'a> {
    /// Sending under a congestion control, receiving as ever.
    pub fn sending(cc: &'a str) -> Treatment<'a> {
        Treatment { cc: Some(cc), receives_in_background: false }
    }
}

/// The congestion control a person means: a name of the kernel's, else one of ours in its short form.
struct Chosen {
    kernel_name: String,
    /// Keeps ours registered while the program runs.
    _registration: Option<Registration>,
}

/// What names a congestion control of the kernel where there is one of ours, too: `kernel:highspeed`.
const KERNELS: &str = "kernel:";

/// What every kernel has: these names mean the kernel's.
const EVERY_KERNELS: [&str; 2] = ["reno", "cubic"];

/// Whether a name means one of ours: `highspeed` and `lf_highspeed` do, also where the kernel has a module of that
/// name; `cubic` and `kernel:highspeed` do not.
pub fn means_ours(name: &str) -> bool {
    let is_kernels = name.starts_with(KERNELS) || EVERY_KERNELS.contains(&name);
    Algorithm::is_our_name(name) || !is_kernels && Algorithm::find(name).is_ok()
}

fn choose(name: &str) -> Result<Chosen> {
    let plain = name.strip_prefix(KERNELS).unwrap_or(name);
    if !means_ours(name) && register::kernel_has(plain)? {
        return Ok(Chosen { kernel_name: plain.to_owned(), _registration: None });
    }
    let algorithm = Algorithm::find(name).map_err(|unknown| register::unknown(name, unknown))?;
    let registration = hold(algorithm)?;
    Ok(Chosen { kernel_name: registration.kernel_name().to_owned(), _registration: Some(registration) })
}

/// Runs `command` and everything it starts, its TCP sockets treated as said, whatever the programs ask for. `started`
/// hears the kernel's name of the congestion control, if there is one. Returns when the last of the processes has
/// ended; raising `stop` ends them. Nothing is left behind.
pub fn exec(
    treatment: Treatment<'_>,
    command: Command,
    stop: &AtomicBool,
    started: impl FnOnce(Option<&str>),
) -> Result<Exec> {
    let chosen = treatment.cc.map(choose).transpose()?;
    let kernel_name = chosen.as_ref().map(|chosen| chosen.kernel_name.as_str());
    let cgroup = Cgroup::create()?;
    let choice = kernel_name.map(|name| Choice::attach(&cgroup, name)).transpose()?;
    let holding = treatment.receives_in_background.then(|| Holding::attach(&cgroup)).transpose()?;
    started(kernel_name);
    let mut child = spawn(command, &cgroup)?;
    let status = wait(&mut child, &cgroup, stop)?;
    let refused_sockets = choice.as_ref().map_or(0, Choice::refused);
    let inbound = holding.as_ref().map(Holding::counts).unwrap_or_default();
    drop((choice, holding));
    drop(cgroup);
    Ok(Exec { exit_code: exit_code(status), refused_sockets, inbound })
}

/// The programs that choose, attached to a cgroup while this lives.
struct Choice {
    _links: Vec<Link>,
    _object: Object,
    counts: MapHandle,
}

impl Choice {
    fn attach(cgroup: &Cgroup, kernel_name: &str) -> Result<Choice> {
        let mut object = object::open("choose", bpf_object!(concat!(env!("OUT_DIR"), "/choose.bpf.o")))?;
        object::set_initial(&mut object, ".rodata.lf", |bytes| {
            bytes.fill(0);
            bytes[..kernel_name.len().min(15)]
                .copy_from_slice(&kernel_name.as_bytes()[..kernel_name.len().min(15)]);
        })?;
        let object = object::load("choose", object)?;
        let links = cgroup.attach(object.progs_mut())?;
        Ok(Choice { _links: links, counts: object::map_handle(&object, ".bss.lf")?, _object: object })
    }

    fn refused(&self) -> u64 {
        object::read_u64(&self.counts, 0).unwrap_or(0)
    }
}

/// Starts it inside the cgroup, to be killed when we are.
fn spawn(mut command: Command, cgroup: &Cgroup) -> Result<Child> {
    cgroup.enter(&mut command)?;
    longfat_host::die_with_parent(&mut command);
    let shown = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|source| Error::io(format!("start '{shown}'"), source))
}

/// Waits for the program, then for what it left running; ends them all once `stop` is raised.
fn wait(child: &mut Child, cgroup: &Cgroup, stop: &AtomicBool) -> Result<ExitStatus> {
    let failed = |source| Error::io("wait for the program", source);
    let handle = pidfd(child)?;
    let mut deadline = None;
    loop {
        if stop.load(Ordering::Relaxed) && deadline.is_none() {
            cgroup.signal(Signal::SIGTERM);
            deadline = Some(Instant::now() + GRACE);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            cgroup.signal(Signal::SIGKILL);
        }
        match child.try_wait().map_err(failed)? {
            Some(status) if cgroup.pids().is_empty() => return Ok(status),
            // What it left in the background has no handle of ours.
            Some(_) => std::thread::sleep(Duration::from_millis(u64::from(LOOK_EVERY_MS))),
            None => {
                let mut ready = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
                // Interrupted by a signal, or timed out: look again.
                let _ = poll(&mut ready, PollTimeout::from(LOOK_EVERY_MS));
            }
        }
    }
}

fn pidfd(child: &Child) -> Result<OwnedFd> {
    // SAFETY: the call returns a new descriptor that nothing else owns, or -1.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, child.id(), 0);
        if fd < 0 {
            return Err(Error::io("watch the program (pidfd_open)", std::io::Error::last_os_error()));
        }
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let signalled = || 128 + status.signal().unwrap_or(0);
    u8::try_from(status.code().unwrap_or_else(signalled)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_ours_where_we_have_one_but_for_those_that_every_kernel_has() {
        assert!(["highspeed", "lf_highspeed", "lf_cubic", "vegas"].into_iter().all(means_ours));
        assert!(!["cubic", "reno", "bbr", "kernel:highspeed", "htcp"].into_iter().any(means_ours));
    }
}
