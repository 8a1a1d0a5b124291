//! States of a TCP socket as `tcp_info` has them (`net/tcp_states.h`).

pub(crate) const ESTABLISHED: u8 = 1;
pub(crate) const SYN_SENT: u8 = 2;
pub(crate) const SYN_RECEIVED: u8 = 3;
pub(crate) const FIN_WAIT1: u8 = 4;
pub(crate) const FIN_WAIT2: u8 = 5;
pub(crate) const TIME_WAIT: u8 = 6;
/// After a reset, or when both sides have finished.
pub(crate) const CLOSED: u8 = 7;
pub(crate) const CLOSE_WAIT: u8 = 8;
pub(crate) const LAST_ACK: u8 = 9;
pub(crate) const LISTEN: u8 = 10;
pub(crate) const CLOSING: u8 = 11;
