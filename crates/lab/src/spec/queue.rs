//! How a relay's queues are kept short, as an experiment file says it.

use longfat_cc::queue::{Kind, QueuePlan};
use longfat_schema::units::{Nanos, Size};
use serde::Deserialize;

/// `[relays.NAME] queue = { … }`. What is left out is as [`QueuePlan`] has it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct QueueSpec {
    /// `false` leaves the queues alone; cases turn it on.
    pub enabled: Option<bool>,
    /// Delay that bytes may wait in the relay.
    pub target: Option<Nanos>,
    /// What decides which packets are marked: `pi`, `red`, `fixed` or `none`.
    pub controller: Option<Kind>,
    /// Whether the advertised window is the steady limit.
    pub window: Option<bool>,
    /// Inbound round trips without a mark after a mark.
    pub hold_off: Option<u32>,
    /// Backlog allowed (fixed, red), in windows of the outbound leg.
    pub allowed_windows: Option<f64>,
    /// Backlog allowed (fixed, red): the greater of both holds.
    pub allowed: Option<Size>,
    /// How far below it marking begins (red).
    pub red: Option<Size>,
    /// Packets of senders without ECN are dropped where they would be marked.
    pub drop: Option<bool>,
}

impl QueueSpec {
    /// Every value resolved; nothing when it is turned off.
    pub(crate) fn plan(&self) -> Option<QueuePlan> {
        if self.enabled == Some(false) {
            return None;
        }
        let ours = QueuePlan::default();
        // An allowed backlog in bytes replaces the default in windows.
        let by_windows = if self.allowed.is_some() { 0 } else { ours.allowed_cwnds_x16 };
        Some(QueuePlan {
            target_us: self.target.map_or(ours.target_us, |t| u32::try_from(t.0 / 1000).unwrap_or(u32::MAX)),
            controller: self.controller.unwrap_or(ours.controller),
            window: self.window.unwrap_or(ours.window),
            hold_off_rtts: self.hold_off.unwrap_or(ours.hold_off_rtts),
            allowed_cwnds_x16: self.allowed_windows.map_or(by_windows, |windows| (windows * 16.0) as u32),
            allowed_bytes: self.allowed.map_or(ours.allowed_bytes, |size| size.0),
            red_bytes: self.red.map_or(ours.red_bytes, |size| size.0),
            drop: self.drop.unwrap_or(ours.drop),
        })
    }
}
