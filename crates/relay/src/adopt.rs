//! Insertion (`accept = "end-to-end"`): the ends shake hands with each other, and the relay steps in between with their
//! own sequence numbers, right after the handshake or later.
//!
//! nftables forwards SYN and SYN-ACK and logs a copy of each. The handshake's last packet is held (a TUN interface, as
//! for held SYNs): at that moment the server has nothing to send yet and the client's bytes wait behind it, so both
//! ends' numbers are those of the handshake, and nothing is under way. Two sockets are made by TCP_REPAIR, the packet
//! goes on to the server, and the legs carry the bytes as any other connection's.
//!
//! - [`segment`]: what a packet says, and the packets that are made of it. Pure.
//! - [`handshake`]: what both ends agreed on, or why nobody can know. Pure.
//! - [`table`]: handshakes under way. Pure: time is passed in.
//! - [`midstream`]: the same of a connection that goes on already (`adopt_after`). Pure.
//! - `watcher`: which connections have come so far.
//! - [`log`]: the copies, by nfnetlink_log.
//! - `repaired`: a socket that speaks as one end to the other.
//! - `adopter`: puts them together in a worker.
//! - [`clocks`]: what the ends' timestamps say when the relay leaves. Pure.
//! - `acknowledging`: connections whose ends are acknowledged by each other alone.
//! - `release`: how two sockets leave a connection that goes on.
//! - `dump`: what two sockets hold, for others that go on elsewhere.
//!
//! Whatever is not known for certain stays end to end, and is counted by its [`Reason`].

mod acknowledging;
mod adopter;
pub mod clocks;
mod dump;
pub mod handshake;
pub mod log;
pub mod midstream;
mod release;
mod repaired;
pub mod segment;
pub mod table;
mod watcher;

use crate::legs::tun::seen_once;
pub(crate) use adopter::{Adopter, Adopting, missing, with_room_for};
pub(crate) use dump::Dump;
pub use handshake::Reason;
pub(crate) use handshake::{Between, LegState};
pub(crate) use release::{Both, Kept, Released};
pub(crate) use repaired::{Failure, Repaired, forget_both, wake};
pub(crate) use watcher::{Meant, missing as missing_to_watch};

/// Interfaces at which packets of others' connections are seen, each once: nothing passes by the loopback.
fn interfaces() -> longfat_kernel::Result<Vec<String>> {
    let mut names = seen_once()?;
    names.retain(|name| name != "lo");
    Ok(names)
}
