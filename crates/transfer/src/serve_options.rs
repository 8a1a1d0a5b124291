//! What `longfat transfer serve` is told.

use crate::limits::Limits;
use longfat_host::Key;
use longfat_schema::lines::Lines;
use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// How a server serves.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// End after the first transfer.
    pub once: bool,
    /// How long a connection may take to say what it wants, or to show to which transfer it belongs.
    pub timeout: Duration,
    /// Ports for what cannot come to that one: datagrams, and TCP streams whose plan needs a listener of its own. Any,
    /// if none.
    pub data_ports: Option<RangeInclusive<u16>>,
    /// What clients may ask for.
    pub limits: Limits,
    /// Only clients that have this key are served.
    pub key: Option<Key>,
    /// Where this end's own records go. The client gets them in any case.
    pub samples: Lines,
    /// Ends everything when raised.
    pub stop: Arc<AtomicBool>,
}
