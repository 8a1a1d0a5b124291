//! What a host's settings cost on a path: settings and counts in, advice out. Pure: nothing is read or set here.
//!
//! Windows and buffers are priced by the law of the window (rate = window / round trip) against what `path-plan` says
//! the path can carry. What has a price in other terms (processor time, a pause's slow start, a risk) says so in
//! words. Each piece of advice names what it rests on: a count or a time taken on this host, or a book.

mod buffers;
mod features;
mod machine;

use crate::words::{rate, size};
use longfat_path_plan::{PathError, PathPlan, PathSpec};
use longfat_schema::units::{Nanos, Rate};
use serde::Serialize;
use std::collections::BTreeMap;

/// What is set on a host: `sysctl net.ipv4.tcp_rmem`, `link eth0 mtu`, `offload eth0 tcp-segmentation-offload`,
/// `ring eth0 rx`, `qdisc eth0`, `rps eth0 rx-0`, `irq 24`, `clocksource`.
pub type Settings = BTreeMap<String, String>;

/// What was counted or timed on a host: `drops eth0 rx`, `conntrack entries`, `clock read ns`, `processors`,
/// `memory bytes`.
pub type Counts = BTreeMap<String, f64>;

/// What advice rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ground {
    /// A count or a time of this host.
    Measured(String),
    /// Advice of a document.
    Book(&'static str),
}

impl Ground {
    /// `measured: …` or `by the book: …`
    pub fn words(&self) -> String {
        match self {
            Ground::Measured(what) => format!("measured: {what}"),
            Ground::Book(what) => format!("by the book: {what}"),
        }
    }
}

/// One setting that could be better for the path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// Key in [`Settings`].
    pub setting: String,
    /// Value of the setting.
    pub value: String,
    /// What it costs on the path, in words.
    pub costs: String,
    /// Part of the path's goodput that it costs, 0 to 1; absent where the price is not one of rate.
    pub share: Option<f64>,
    /// Connections that it costs that, in words; absent: every connection.
    pub only: Option<&'static str>,
    /// What mends it, to be pasted.
    pub mend: Option<String>,
    /// What that rests on.
    pub ground: Ground,
}

impl Advice {
    /// Whether it costs every connection more than this part of the path.
    pub fn costs_more_than(&self, part: f64) -> bool {
        self.only.is_none() && self.share.is_some_and(|share| share > part)
    }
}

/// Part of a path from which on a setting's cost is an expectation missed.
pub const DEAR: f64 = 0.1;

/// A path, a host, and what is asked about them.
pub(crate) struct Asked<'a> {
    pub(crate) path: &'a PathPlan,
    pub(crate) settings: &'a Settings,
    pub(crate) counts: &'a Counts,
}

/// MTU assumed of a path: Ethernet's.
const MTU_BYTES: u32 = 1500;
/// An interface's MTU above it that a path may have.
const JUMBO_BYTES: u32 = 9000;

/// A path of this rate and round trip for one flow.
///
/// # Errors
/// No path is like that.
pub fn path(rate: Rate, rtt: Nanos) -> Result<PathPlan, PathError> {
    PathSpec { rate, rtt, mtu_bytes: MTU_BYTES, loss: 0.0, flows: 1, queue: None }.plan()
}

/// What could be better on this host for this path, the dearest first.
pub fn advice(path: &PathPlan, settings: &Settings, counts: &Counts) -> Vec<Advice> {
    let asked = Asked { path, settings, counts };
    let mut found = [buffers::advice(&asked), features::advice(&asked), machine::advice(&asked)].concat();
    let price = |one: &Advice| one.share.filter(|_| one.only.is_none()).unwrap_or(0.0);
    found.sort_by(|a, b| price(b).total_cmp(&price(a)));
    found
}

impl Asked<'_> {
    pub(crate) fn sysctl(&self, key: &str) -> Option<&str> {
        self.settings.get(&format!("sysctl {key}")).map(String::as_str)
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.sysctl(key)?.parse().ok()
    }

    /// One of a sysctl's several numbers.
    pub(crate) fn number_of(&self, key: &str, place: usize) -> Option<u64> {
        self.sysctl(key)?.split_whitespace().nth(place)?.parse().ok()
    }

    pub(crate) fn rtt_s(&self) -> f64 {
        self.path.path.rtt.0 as f64 / 1e9
    }

    /// What a window carries, in bit/s; no more than the path can.
    fn carried_bps(&self, window_bytes: f64) -> f64 {
        (window_bytes * 8.0 / self.rtt_s()).min(self.path.goodput_max_bps as f64)
    }

    /// `a window of 6.0 MiB carries 559 Mbit/s of 9.65 Gbit/s`, which the largest window carries, and the part that is
    /// left.
    pub(crate) fn window_words(&self, window_bytes: f64, largest_bytes: f64) -> (String, f64) {
        let most = self.carried_bps(largest_bytes);
        let carried = self.carried_bps(window_bytes).min(most);
        let words =
            format!("a window of {} carries {} of {}", size(window_bytes as u64), rate(carried), rate(most));
        (words, 1.0 - carried / most)
    }

    /// Whether a part of the path is worth a word: rounding is none.
    pub(crate) fn is_worth(share: f64) -> bool {
        share > 0.005
    }
}

/// Advice about a sysctl that costs part of the path.
pub(crate) fn of_sysctl(key: &str, value: &str, costs: String, better: &str, ground: Ground) -> Advice {
    Advice {
        setting: format!("sysctl {key}"),
        value: value.to_owned(),
        costs,
        share: None,
        only: None,
        mend: Some(format!("sysctl -w {key}='{better}'")),
        ground,
    }
}

#[cfg(test)]
mod tests;
