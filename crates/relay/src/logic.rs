//! What a relay decides, without sockets and without a clock: time is passed in.

pub(crate) mod accept_batch;
pub mod adopted;
pub(crate) mod busy_pairs;
pub mod connection;
pub(crate) mod dial_order;
pub(crate) mod gather;
pub(crate) mod memory;
pub(crate) mod one_way;
pub(crate) mod packet;
pub(crate) mod places;
pub(crate) mod shares;
pub(crate) mod tcp_state;

use std::net::SocketAddr;

/// A client and the server it wants.
pub(crate) type Pair = (SocketAddr, SocketAddr);

/// Address and port as packets have them: IPv4 that an IPv6 socket shows as `::ffff:a.b.c.d` as what it is, and no
/// scope.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
