//! How a queue is kept short, as people write it: in the relay's file, in experiment files, on the command line.

use longfat_cc::queue::{Kind, QueuePlan};
use longfat_schema::{
    decode::decode,
    units::{Nanos, Size},
};
use serde::Deserialize;

/// `queue = { … }`. What is left out is as [`QueuePlan`] has it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema), schemars(rename = "RelayQueueSpec"))]
pub struct QueueSpec {
    /// `false` leaves the queue alone, also where a default would not.
    pub enabled: Option<bool>,
    /// Delay that bytes may wait in the relay.
    pub target: Option<Nanos>,
    /// What decides which packets are marked: `pi`, `red`, `fixed`, `every` or `none`.
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub controller: Option<Kind>,
    /// Whether the advertised window is the steady limit.
    pub window: Option<bool>,
    /// Inbound round trips without a mark after a mark.
    pub hold_off: Option<u32>,
    /// Backlog allowed (fixed, red), in windows of the outbound leg.
    pub allowed_windows: Option<f64>,
    /// Backlog allowed (fixed, red): the greater of both holds. Bytes received per mark (every).
    pub allowed: Option<Size>,
    /// How far below it marking begins (red).
    pub red: Option<Size>,
    /// Packets of senders without ECN are dropped where they would be marked.
    pub drop: Option<bool>,
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
        if self.enabled == Some(false) {
            return None;
        }
        let controller = self.controller.unwrap_or_default();
        // Marks that come by the byte and not by what waits are no answer to a queue: nothing is held off.
        let hold_off_rtts = if controller == Kind::Every { 0 } else { QueuePlan::default().hold_off_rtts };
        let ours = QueuePlan { controller, hold_off_rtts, ..QueuePlan::default() };
        // An allowed backlog in bytes replaces the default in windows.
        let by_windows = if self.allowed.is_some() { 0 } else { ours.allowed_cwnds_x16 };
        Some(QueuePlan {
            target_us: self.target.map_or(ours.target_us, |t| u32::try_from(t.0 / 1000).unwrap_or(u32::MAX)),
            controller,
            window: self.window.unwrap_or(ours.window),
            hold_off_rtts: self.hold_off.unwrap_or(ours.hold_off_rtts),
            allowed_cwnds_x16: self.allowed_windows.map_or(by_windows, |windows| (windows * 16.0) as u32),
            allowed_bytes: self.allowed.map_or(ours.allowed_bytes, |size| size.0),
            red_bytes: self.red.map_or(ours.red_bytes, |size| size.0),
            drop: self.drop.unwrap_or(ours.drop),
        })
    }

    /// A plan as this type: what the command line of a relay is made of.
    pub fn words(plan: &QueuePlan) -> String {
        format!(
            "target = \"{}us\", controller = \"{}\", window = {}, hold_off = {}, allowed_windows = {:?}, \
             allowed = \"{}B\", red = \"{}B\", drop = {}",
            plan.target_us,
            plan.controller,
            plan.window,
            plan.hold_off_rtts,
            f64::from(plan.allowed_cwnds_x16) / 16.0,
            plan.allowed_bytes,
            plan.red_bytes,
            plan.drop
        )
    }

    /// Reads keys and values as they stand between the braces of `queue = { … }`.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub fn from_words(words: &str) -> Result<QueueSpec, String> {
        let table = toml::from_str::<toml::Table>(&format!("queue = {{ {words} }}"))
            .map_err(|error| error.message().to_owned())?;
        let mut problems = Vec::new();
        let decoded = table.get("queue").and_then(|value| decode(value, "queue", &[], &mut problems));
        match (decoded, problems.first()) {
            (Some(spec), None) => Ok(spec),
            (_, Some(problem)) => Err(problem.to_string()),
            (None, None) => Err(format!("'{words}' are no keys and values of a queue")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_queue_is_the_default_one_and_a_disabled_one_none() {
        assert_eq!(QueueSpec::from_words("").unwrap().plan(), Some(QueuePlan::default()));
        assert_eq!(QueueSpec::from_words("enabled = false").unwrap().plan(), None);
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
        assert_eq!(checked("controller = \"every\", enabled = false"), Ok(None));
        assert_eq!(checked("target = \"20ms\""), Ok(Some(QueuePlan::default())));
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
            controller in prop::sample::select(vec![Kind::Fixed, Kind::Red, Kind::Pi, Kind::Every, Kind::None]),
        ) {
            let plan = QueuePlan {
                target_us, controller, window, hold_off_rtts, allowed_cwnds_x16, allowed_bytes, red_bytes, drop,
            };
            prop_assert_eq!(QueueSpec::from_words(&QueueSpec::words(&plan)).unwrap().plan(), Some(plan));
        }

        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,60}") {
            let _ = QueueSpec::from_words(&text);
        }
    }
}
