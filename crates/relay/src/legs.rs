//! Sockets of the two legs, and what holds bytes between them.

pub(crate) mod buffer;
pub(crate) mod descriptors;
pub(crate) mod diag;
pub(crate) mod inbound;
pub(crate) mod leg;
pub(crate) mod queue_look;
pub(crate) mod steer;
pub(crate) mod tun;
