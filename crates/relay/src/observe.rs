//! What a relay tells: whoever runs it, whoever asks, and Prometheus.

pub mod metrics;
pub mod observer;
pub(crate) mod registry;
pub(crate) mod sampling;
pub mod status;
