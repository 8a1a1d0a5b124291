//! A process that keeps duplicates of a relay's sockets, pipes and interfaces, and does nothing else.
//!
//! When the relay is killed, nothing is closed: peers wait, as they would behind a full window. The next relay of that
//! name gets everything and goes on. If none comes in time, or the keeper dies, too, the last descriptors are closed,
//! and the kernel resets both sides of every connection (all have SO_LINGER of zero): nobody takes a part for the
//! whole.
//!
//! The keeper understands who speaks and what comes and goes, not what it is. So it serves relays of any later version
//! that speak to it in the same words.

use super::estate::{Estate, understand};
use crate::{
    Error, Result,
    keeping::{
        OTHERS,
        record::{Hello, LIVES, Message, PER_CONNECTION, Say, VERSION},
        wire::{self, Came, Wire},
    },
    legs::descriptors::raise_limit,
};
use longfat_host::confine::Confinement;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Name of the socket of the keeper.
const KEEPER: &str = "keeper";
/// How often the end is looked for.
const LOOK_MS: u16 = 100;
/// How long whoever has come may take for a first word: a relay says it at once, and others wait behind it.
const FIRST_WORD: Duration = Duration::from_secs(2);
/// How long a relay that has come may take to read what it gets.
const GREETING: Duration = Duration::from_secs(10);
/// How long a killed relay may take to be gone.
const DYING: Duration = Duration::from_secs(5);

/// What it calls besides what every program that only serves descriptors does.
const CALLS: &[i64] = &[
    libc::SYS_ppoll,
    libc::SYS_accept4,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_geteuid,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sched_yield,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// What is kept: bodies and descriptors, by number.
#[derive(Debug, Default)]
struct Ledger {
    kept: BTreeMap<u64, Came>,
}

impl Ledger {
    /// What has the same number makes way.
    fn put(&mut self, came: Came) {
        self.kept.insert(came.0.id, came);
    }

    /// A connection takes all that belongs to it along.
    fn gone(&mut self, id: u64) {
        let next = if id < OTHERS { id + PER_CONNECTION } else { id + 1 };
        (id..next).for_each(|id| drop(self.kept.remove(&id)));
    }
}

/// The keeper of one relay.
pub struct Keeper {
    name: String,
    listener: OwnedFd,
    patience: Duration,
    ledger: Ledger,
    /// The relay that lives.
    relay: Option<Wire>,
    /// Worker threads of the relay that lives, or lived last.
    workers: usize,
    /// When what is kept is given up.
    deadline: Option<Instant>,
    /// Says to others that something is kept.
    sign: Option<UnixDatagram>,
}

/// Whether something is kept of a relay of that name, in this network namespace. Anybody may have bound the name of the
/// sign: a keeper that may be believed has to answer, too.
pub(crate) fn is_there(name: &str) -> bool {
    let ask = || UnixDatagram::unbound()?.connect_addr(&sign_address(name)?);
    ask().is_ok() && answers(name)
}

fn sign_address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("longfat relay {} kept", name.replace('-', "_")))
}

/// Whether a keeper answers for relays of that name.
pub fn answers(name: &str) -> bool {
    // It sees a relay that goes again without a word.
    wire::address(name, KEEPER).and_then(|address| Wire::connect(&address)).is_ok()
}

/// The keeper's wire, and all that it has. A relay that was killed a moment ago is waited for.
pub(crate) fn attach(plan: &crate::RelayPlan) -> Result<(Wire, Estate)> {
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::ConnectionRefused => Error::Plan(format!(
            "nobody keeps what the relay '{0}' has: run 'longfat relay keep {0}' before it, or leave 'keep' out",
            plan.name
        )),
        _ => Error::io(format!("speak to the keeper of '{}'", plan.name), source),
    };
    let address = wire::address(&plan.name, KEEPER).map_err(failed)?;
    let deadline = Instant::now() + DYING;
    loop {
        let wire = Wire::connect(&address).map_err(failed)?;
        match Estate::from_keeper(plan, &wire) {
            Ok(estate) => return Ok((wire, estate)),
            Err(Error::NameTaken { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Error::NameTaken { owner, .. }) => {
                return Err(Error::NameTaken { name: plan.name.clone(), owner });
            }
            Err(error) => return Err(error),
        }
    }
}

impl Keeper {
    /// Waits for relays of that name in the calling thread's network namespace. What a relay leaves is kept for so
    /// long.
    ///
    /// # Errors
    /// Another keeper of that name runs.
    pub fn open(name: &str, patience: Duration) -> Result<Keeper> {
        let failed = |source| Error::io(format!("wait for the relay '{name}'"), source);
        let listener =
            wire::address(name, KEEPER).and_then(|address| wire::listening(&address)).map_err(failed)?;
        let Some(listener) = listener else {
            let owner = "a keeper in this network namespace".to_owned();
            return Err(Error::NameTaken { name: name.to_owned(), owner });
        };
        raise_limit();
        let name = name.to_owned();
        let (ledger, relay, workers, deadline, sign) = Default::default();
        Ok(Keeper { name, listener, patience, ledger, relay, workers, deadline, sign })
    }

    /// Gives up everything but what it does: to be called before other threads start.
    ///
    /// # Errors
    /// Something could not be given up.
    pub fn confine(&self, confinement: Confinement) -> Result<()> {
        Ok(confinement.reading([] as [&str; 0]).calling_little_but(CALLS).enter().map(drop)?)
    }

    /// Keeps, until it is stopped; with `once` until the relay has ended by itself, or its successor has not come in
    /// time.
    ///
    /// # Errors
    /// The kernel refuses what every program may do.
    pub fn serve(&mut self, stop: &AtomicBool, once: bool) -> Result<()> {
        while !stop.load(Ordering::Acquire) {
            self.wait().map_err(|source| Error::io("wait for a relay", source))?;
            // Whoever has died is seen to be dead before the next one is heard.
            self.hear();
            self.meet();
            let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if is_late {
                self.forget();
            }
            if once && self.is_over() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.workers > 0 && self.relay.is_none() && self.ledger.kept.is_empty()
    }

    fn wait(&self) -> io::Result<()> {
        let descriptors = std::iter::once(self.listener.as_fd()).chain(self.relay.iter().map(Wire::as_fd));
        let mut polled: Vec<_> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut polled, PollTimeout::from(LOOK_MS)) {
            Err(nix::errno::Errno::EINTR) => Ok(()),
            polled => Ok(polled.map(drop)?),
        }
    }

    /// Everything that the relay has said so far.
    fn hear(&mut self) {
        while let Some(relay) = self.relay.as_ref().filter(|relay| is_readable(relay)) {
            match relay.receive() {
                Ok(Some((Message { say: Say::Gone, id, .. }, _))) => self.ledger.gone(id),
                Ok(Some((Message { say: Say::End, .. }, _))) => {
                    self.relay = None;
                    self.forget();
                }
                Ok(Some(came)) if came.0.say == Say::Put => self.ledger.put(came),
                // It was killed, or speaks no language.
                _ => {
                    self.relay = None;
                    self.deadline = Some(Instant::now() + self.patience);
                }
            }
        }
        self.show();
    }

    fn forget(&mut self) {
        self.ledger = Ledger::default();
        self.deadline = None;
        self.show();
    }

    /// Says, or says no longer, that something is kept.
    fn show(&mut self) {
        if self.ledger.kept.is_empty() {
            self.sign = None;
        } else if self.sign.is_none() {
            let bound = sign_address(&self.name).and_then(|address| UnixDatagram::bind_addr(&address));
            self.sign = bound.ok();
        }
    }

    /// Gives the next relay everything, if one has come and the last one is dead.
    fn meet(&mut self) {
        let Ok(Some(wire)) = Wire::accept(&self.listener) else { return };
        if let Ok(hello) = self.greet(&wire) {
            self.workers = hello.workers;
            self.deadline = None;
            self.relay = Some(wire);
        }
    }

    fn greet(&self, wire: &Wire) -> io::Result<Hello> {
        wire.wait_at_most(FIRST_WORD)?;
        let Some((message, _)) = wire.receive()? else { return Err(ErrorKind::UnexpectedEof.into()) };
        wire.wait_at_most(GREETING)?;
        let understood = match (&self.relay, understand(&message)) {
            (Some(_), _) => Err(LIVES.to_owned()),
            (None, understood) => understood,
        };
        match understood {
            Ok(hello) => {
                let (name, pid) = (self.name.clone(), std::process::id());
                let own = Hello { version: VERSION, name, pid, workers: self.workers };
                wire.send(&Message::with(Say::Hello, 0, &own), &[])?;
                for (message, descriptors) in self.ledger.kept.values() {
                    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                    wire.send(message, &descriptors)?;
                }
                wire.send(&Message::bare(Say::End, 0), &[])?;
                Ok(hello)
            }
            Err(why) => {
                wire.send(&Message { say: Say::Refused, id: 0, body: why.clone().into_bytes() }, &[])?;
                Err(wire::invalid(why))
            }
        }
    }
}

fn is_readable(wire: &Wire) -> bool {
    let mut polled = [PollFd::new(wire.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_goes_with_all_that_belongs_to_it_and_nothing_else_does() {
        let mut ledger = Ledger::default();
        for id in [0, 1, 4, 5, 7, 8, OTHERS, OTHERS + 1] {
            ledger.put((Message::bare(Say::Put, id), Vec::new()));
        }
        ledger.gone(4);
        ledger.gone(OTHERS);
        assert_eq!(ledger.kept.keys().copied().collect::<Vec<_>>(), [0, 1, 8, OTHERS + 1]);
        ledger.put((Message::bare(Say::Put, 8), Vec::new()));
        assert_eq!(ledger.kept.len(), 4);
    }
}
