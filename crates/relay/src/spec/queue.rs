//! How a queue is kept short, as people write it: in the relay's file, in experiment files, on the command line.

use super::of_words;
use longfat_cc::queue::{Kind, QueuePlan};
use longfat_schema::units::{Nanos, Size};
use serde::{Deserialize, Serialize, Serializer};
use std::{fmt, str::FromStr};

/// How long bytes may wait in the relay: a time, or `off`, which leaves the queue alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub enum TargetSpec {
    /// Nothing keeps the queue short.
    Off,
    /// Delay that bytes may wait.
    Within(Nanos),
}

impl FromStr for TargetSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<TargetSpec, String> {
        if text == "off" {
            return Ok(TargetSpec::Off);
        }
        let time = text.parse().map_err(|wrong| format!("{wrong}; or write 'off'"))?;
        Ok(TargetSpec::Within(time))
    }
}

impl TryFrom<String> for TargetSpec {
    type Error = String;

    fn try_from(text: String) -> Result<TargetSpec, String> {
        text.parse()
    }
}

impl Serialize for TargetSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            TargetSpec::Off => serializer.serialize_str("off"),
            // Shown spans are rounded, written ones are not.
            TargetSpec::Within(time) => time.serialize(serializer),
        }
    }
}

impl fmt::Display for TargetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetSpec::Off => f.write_str("off"),
            TargetSpec::Within(time) => time.fmt(f),
        }
    }
}

/// How long bytes may wait in the relay, and what keeps the wait short: `queue = { … }`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema), schemars(rename = "RelayQueueSpec"))]
pub struct QueueSpec {
    /// How long bytes may wait in the relay, 1 ms to 10 s; 20 ms when absent. `off` leaves the queue alone.
    pub target: Option<TargetSpec>,
    /// A leg is left alone while it is so fast that full buffers would go out within so many targets: 1 where a target
    /// is written, else 4.
    pub tolerance: Option<u32>,
    /// What decides which packets are marked beside the window: `none` (when absent), `pi`, `red`, `fixed`
    /// or `every`.
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub controller: Option<Kind>,
    /// Whether the advertised window is the steady limit; true when absent.
    pub window: Option<bool>,
    /// Inbound round trips without a mark after a mark; 4 when absent (`every`: 0).
    pub hold_off: Option<u32>,
    /// Backlog allowed (fixed, red), in windows of the outbound leg; 2.5 when absent.
    pub allowed_windows: Option<f64>,
    /// Backlog allowed (fixed, red): the greater of both holds. Bytes received per mark (every).
    pub allowed: Option<Size>,
    /// How far below the allowed backlog marking begins (red); 1 MiB when absent.
    pub red: Option<Size>,
    /// Whether packets of senders without ECN are dropped where they would be marked; false when absent.
    pub drop: Option<bool>,
    /// How many times slower than this host's time the target and the controller's time go: 1 when absent. A run of the
    /// lab that is carried out slower says it.
    pub dilate: Option<u32>,
}

impl QueueSpec {
    /// [`QueueSpec::plan`] of what can be.
    ///
    /// # Errors
    /// What cannot be, in words.
    pub fn checked(&self) -> Result<Option<QueuePlan>, String> {
        let plan = self.plan();
        plan.as_ref().map_or(Ok(()), QueuePlan::check)?;
        Ok(plan)
    }

    /// Every value resolved; nothing when it is turned off.
    pub fn plan(&self) -> Option<QueuePlan> {
        let ours = QueuePlan::default();
        let target_us = match self.target {
            Some(TargetSpec::Off) => return None,
            Some(TargetSpec::Within(target)) => u32::try_from(target.0 / 1000).unwrap_or(u32::MAX),
            None => ours.target_us,
        };
        let controller = self.controller.unwrap_or_default();
        // Marks that come by the byte and not by what waits are no answer to a queue: nothing is held off.
        let hold_off_rtts = if controller == Kind::Every { 0 } else { ours.hold_off_rtts };
        // An allowed backlog in bytes replaces the default in windows.
        let by_windows = if self.allowed.is_some() { 0 } else { ours.allowed_cwnds_x16 };
        let tolerance = self.target.map_or(ours.tolerance, |_| 1);
        Some(QueuePlan {
            target_us,
            tolerance: self.tolerance.unwrap_or(tolerance),
            controller,
            window: self.window.unwrap_or(ours.window),
            hold_off_rtts: self.hold_off.unwrap_or(hold_off_rtts),
            allowed_cwnds_x16: self.allowed_windows.map_or(by_windows, |windows| (windows * 16.0) as u32),
            allowed_bytes: self.allowed.map_or(ours.allowed_bytes, |size| size.0),
            red_bytes: self.red.map_or(ours.red_bytes, |size| size.0),
            drop: self.drop.unwrap_or(ours.drop),
            dilate: self.dilate.unwrap_or(ours.dilate),
        })
    }

    /// The spec that makes this plan, or none.
    pub fn of(plan: Option<&QueuePlan>) -> QueueSpec {
        let Some(plan) = plan else {
            return QueueSpec { target: Some(TargetSpec::Off), ..QueueSpec::default() };
        };
        QueueSpec {
            target: Some(TargetSpec::Within(Nanos(u64::from(plan.target_us) * 1000))),
            tolerance: Some(plan.tolerance),
            controller: Some(plan.controller),
            window: Some(plan.window),
            hold_off: Some(plan.hold_off_rtts),
            allowed_windows: Some(f64::from(plan.allowed_cwnds_x16) / 16.0),
            allowed: Some(Size(plan.allowed_bytes)),
            red: Some(Size(plan.red_bytes)),
            drop: Some(plan.drop),
            dilate: (plan.dilate != 1).then_some(plan.dilate),
        }
    }

    /// Reads keys and values as they stand between the braces of `queue = { … }`.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub fn from_words(words: &str) -> Result<QueueSpec, String> {
        of_words("queue", words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_queue_is_the_default_one_and_one_that_is_off_none() {
        assert_eq!(QueueSpec::from_words("").unwrap().plan(), Some(QueuePlan::default()));
        assert_eq!(QueueSpec::of(None).plan(), None);
    }

    #[test]
    fn by_default_the_window_keeps_the_queue_short_and_nothing_is_marked() {
        let plan = QueueSpec::default().plan().unwrap();
        assert_eq!((plan.target_us, plan.window, plan.controller), (20_000, true, Kind::None));
    }

    #[test]
    fn a_target_is_a_time_or_off() {
        assert_eq!("off".parse(), Ok(TargetSpec::Off));
        assert_eq!("5ms".parse(), Ok(TargetSpec::Within(Nanos(5_000_000))));
        let wrong = "never".parse::<TargetSpec>().unwrap_err();
        assert!(wrong.contains("never") && wrong.contains("'off'"), "{wrong}");
    }

    #[test]
    fn marks_by_the_byte_are_not_held_off_unless_somebody_asks_for_it() {
        let hold_off = |words: &str| QueueSpec::from_words(words).unwrap().plan().unwrap().hold_off_rtts;
        assert_eq!(hold_off("controller = \"every\", allowed = \"64KiB\""), 0);
        assert_eq!(hold_off("controller = \"every\", allowed = \"64KiB\", hold_off = 3"), 3);
        assert_eq!(hold_off("controller = \"red\""), 4);
    }

    #[test]
    fn what_cannot_be_is_said_and_what_is_turned_off_can_be() {
        let checked = |words: &str| QueueSpec::from_words(words).unwrap().checked();
        assert!(checked("controller = \"every\"").unwrap_err().contains("allowed"));
        assert_eq!(checked("controller = \"every\", target = \"off\""), Ok(None));
        assert_eq!(
            checked("target = \"20ms\""),
            Ok(Some(QueuePlan { tolerance: 1, ..QueuePlan::default() }))
        );
    }

    #[test]
    fn a_wrong_key_or_value_is_named() {
        assert!(QueueSpec::from_words("taget = \"20ms\"").unwrap_err().contains("'taget'"));
        assert!(QueueSpec::from_words("controller = \"pie\"").unwrap_err().contains("pie"));
    }

    proptest! {
        #[test]
        fn a_plan_survives_the_command_line(
            target_us in 1000u32..10_000_000, window: bool, drop: bool, hold_off_rtts in 0u32..100,
            allowed_cwnds_x16 in 0u32..1000, allowed_bytes in 0u64..1 << 40, red_bytes in 0u64..1 << 40,
            tolerance in 1u32..=1000, dilate in 1u32..=3600, controller in prop::sample::select(vec![Kind::Fixed, Kind::Red, Kind::Pi, Kind::Every, Kind::None]),
        ) {
            let plan = QueuePlan {
                target_us, tolerance, controller, window, hold_off_rtts, allowed_cwnds_x16, allowed_bytes, red_bytes, drop,
                dilate,
            };
            let spec = QueueSpec::of(Some(&plan));
            let text = toml::to_string(&spec).unwrap();
            prop_assert_eq!(toml::from_str::<QueueSpec>(&text).unwrap(), spec.clone());
            prop_assert_eq!(spec.plan(), Some(plan));
        }

        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,60}") {
            let _ = QueueSpec::from_words(&text);
        }
    }
}
