//! An interface that a driver has taken: it has it alone, and the interface does not speak on its own meanwhile (IPv6
//! would announce itself). That IPv6 is owed to it stands in its alias, which goes with the interface: after a kill the
//! next driver still gives IPv6 back. Who has it is known by an abstract name (unix(7)), which belongs to the network
//! namespace and goes with the process.

use super::{DriverError, has_ipv6, ipv6_switch};
use longfat_host::interface;
use nix::{
    net::if_::if_nametoindex,
    sys::socket::{getsockopt, sockopt::PeerCredentials},
};
use std::{
    fs,
    io::ErrorKind,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
};

/// Alias of an interface that had IPv6 before a driver took it.
const OWED: &str = "longfat link has turned IPv6 off";

/// A taken interface; dropped, it has IPv6 again where it had.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    interface: &'a str,
    had_ipv6: bool,
    _name: Option<UnixListener>,
}

impl Taken<'_> {
    /// Takes an interface of the calling thread's namespace. One that is not there is told of where it is opened.
    ///
    /// # Errors
    /// Another driver has it.
    pub fn take(interface: &str) -> Result<Taken<'_>, DriverError> {
        let name = name(interface)?;
        let alias = interface::alias(interface).unwrap_or_default();
        let had_ipv6 = alias == OWED || has_ipv6(interface);
        if had_ipv6 {
            if alias.is_empty() {
                // Without it a kill leaves the interface as it is then. Somebody's own text stays.
                let _ = interface::set_alias(interface, OWED);
            }
            let _ = fs::write(ipv6_switch(interface), "1");
        }
        Ok(Taken { interface, had_ipv6, _name: name })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.had_ipv6 {
            return;
        }
        // The interface may have gone.
        let _ = fs::write(ipv6_switch(self.interface), "0");
        if interface::alias(self.interface).is_ok_and(|alias| alias == OWED) {
            let _ = interface::set_alias(self.interface, "");
        }
    }
}

/// The name by which others see that the interface is taken; none where no name can be had.
fn name(interface: &str) -> Result<Option<UnixListener>, DriverError> {
    let Ok(index) = if_nametoindex(interface) else { return Ok(None) };
    let Ok(address) = SocketAddr::from_abstract_name(format!("longfat link {index}")) else {
        return Ok(None);
    };
    match UnixListener::bind_addr(&address) {
        Ok(name) => Ok(Some(name)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let pid = UnixStream::connect_addr(&address).ok();
            let pid =
                pid.and_then(|holder| getsockopt(&holder, PeerCredentials).ok()).map_or(0, |of| of.pid());
            Err(DriverError::Busy { interface: interface.to_owned(), pid })
        }
        Err(_) => Ok(None),
    }
}
