//! What is known of a connection that was stepped into.

use serde::{Deserialize, Serialize};

/// What had passed of a connection, and was known of its path, when the relay stepped into it in mid-stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedStatus {
    /// Payload of both ends since then, repetitions included.
    pub passed_bytes: u64,
    /// Payload out of order, or sent again; part of `passed_bytes`.
    pub repeated_bytes: u64,
    /// Time since its SYN, or since the relay left it last.
    pub age_us: u64,
    /// Least round trip from here to the client; absent where none was measured, as without `adopt_rtt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_rtt_us: Option<u64>,
    /// Least round trip from here to the server; absent where none was measured, as without `adopt_rtt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_rtt_us: Option<u64>,
}
