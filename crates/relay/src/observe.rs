//! What a relay tells: whoever runs it, whoever asks, and Prometheus.
//!
//! Workers write into a [`journal`]; everybody else reads it, and the sockets of connections that live.

pub(crate) mod journal;
pub mod metrics;
pub mod observer;
pub(crate) mod reading;
pub(crate) mod registry;
pub(crate) mod sampling;
pub mod status;
