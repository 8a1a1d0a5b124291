//! How much a run leaves on disk. Pure.

use super::{BackendKind, FlowPlan, Plan};
use crate::spec::Protocol;

/// What a row takes, compressed; measured on runs of the conversion and the smoke experiment.
const TCP_ROW_BYTES: f64 = 36.0;
const QUEUE_ROW_BYTES: f64 = 14.0;
const RELAY_ROW_BYTES: f64 = 13.0;
const INTERVAL_ROW_BYTES: f64 = 4.0;
/// Plan, manifest and footers of the tables.
const RUN_BYTES: f64 = 45_000.0;
/// A host's parameters in the manifest: every sysctl of a namespace.
const HOST_BYTES: f64 = 75_000.0;

impl Plan {
    /// About how many bytes the run's directory will take; right to a factor of two or so.
    pub fn disk_bytes(&self, backend: BackendKind) -> f64 {
        let samples = self.end_us() as f64 / self.sample_every_us.max(1) as f64;
        let streams_of = |flow: &FlowPlan| f64::from(flow.streams);
        let connections: f64 =
            self.flows.iter().filter(|flow| flow.protocol == Protocol::Tcp).map(streams_of).sum();
        let streams: f64 = self.flows.iter().map(streams_of).sum();
        let paths = match backend {
            BackendKind::Hosts => 0.0,
            _ => self.links.iter().filter(|cable| cable.path.is_some()).count() as f64,
        };
        // Whose connections a relay takes over is not told apart: all of them at most, two ends and two directions
        // each.
        let relayed = if self.relays.is_empty() { 0.0 } else { connections };
        let row = TCP_ROW_BYTES * 2.0 * (connections + relayed)
            + QUEUE_ROW_BYTES * 2.0 * paths
            + RELAY_ROW_BYTES * 2.0 * relayed
            + INTERVAL_ROW_BYTES * streams;
        let hosts = if backend == BackendKind::Simulated { 0.0 } else { self.hosts.len() as f64 };
        RUN_BYTES + HOST_BYTES * hosts + samples * row
    }
}
