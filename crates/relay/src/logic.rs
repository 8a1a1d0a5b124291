//! What a relay decides, without sockets and without a clock: time is passed in.

pub(crate) mod accept_batch;
pub(crate) mod busy_pairs;
pub mod connection;
pub(crate) mod dial_order;
pub(crate) mod gather;
pub(crate) mod one_way;
pub(crate) mod packet;
pub(crate) mod places;
pub(crate) mod shares;
pub(crate) mod tcp_state;

use std::net::SocketAddr;

/// A client and the server it wants.
pub(crate) type Pair = (SocketAddr, SocketAddr);
