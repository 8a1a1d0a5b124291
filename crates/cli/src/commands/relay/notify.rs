//! The service manager's notification socket (sd_notify(3)): one datagram per message, nothing when there is none.

use longfat_host::monotonic_us;
use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Connected while the process is still who was started: its later user may not come to the address any more.
fn connected(address: &SocketAddr) -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    // One that is not there yet, or is full, is reached by its address.
    let _ = socket.connect_addr(address);
    Ok(socket)
}

/// Where to say what.
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// How often a sign of life is due, and when the last one was given.
    watchdog: Option<(Duration, Mutex<Option<Instant>>)>,
}

impl Notify {
    /// As `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` say.
    pub fn from_environment() -> Notify {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            _ => SocketAddr::from_pathname(&path).ok(),
        });
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let mine = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let period = number("WATCHDOG_USEC").filter(|period_us| mine && *period_us > 0);
        Notify {
            to: address.and_then(|address| Some((connected(&address).ok()?, address))),
            // sd_watchdog_enabled(3) recommends half the time.
            watchdog: period.map(|period_us| (Duration::from_micros(period_us / 2), Mutex::default())),
        }
    }

    /// This process serves from now on, and not the one that the manager has started.
    pub fn serves(&self) {
        self.send(&format!("MAINPID={}", std::process::id()));
    }

    pub fn ready(&self) {
        self.send("READY=1");
    }

    pub fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_us()));
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// A sign of life, when one is due.
    pub fn alive(&self) {
        let Some((period, last)) = &self.watchdog else { return };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= *period) {
            *last = Some(Instant::now());
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.to {
            // The socket of a manager that began anew is another one.
            let sent = socket.send(message.as_bytes());
            // A manager that has gone does not want to know.
            let _ = sent.or_else(|_| socket.send_to_addr(message.as_bytes(), address));
        }
    }
}
