//! Which window a connection shall have on a new link. Pure arithmetic on what is known of both links.

use crate::announcement::Character;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{fmt, str::FromStr};

/// Where the new window comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// What the connection had when it last used that link; scaled when the link is not what it was then, estimated
    /// when it never used it.
    #[default]
    Restore,
    /// What it has now, times the change of rate x round-trip time.
    Scale,
    /// The announced rate x round-trip time, shared by the connections that send over the link.
    Estimate,
}

/// What people call the policies: the one list of their names.
const NAMES: [(&str, Policy); 3] =
    [("restore", Policy::Restore), ("scale", Policy::Scale), ("estimate", Policy::Estimate)];

/// A text that is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy '{0}'; choose restore, scale or estimate")]
pub struct PolicyError(String);

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let named = NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, policy)| *policy).ok_or_else(|| PolicyError(text.escape_debug().to_string()))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMES.iter().find(|(_, policy)| policy == self);
        f.pad(named.map_or("", |(name, _)| name))
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Which way a connection's data goes over the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From a node behind the router.
    Up,
    /// Towards one.
    Down,
}

/// Least window of each of many: with fewer than four segments in flight no loss can be found by three duplicate ACKs
/// (RFC 5681, section 3.2), so that each would cost a timeout.
pub const WINDOW_MIN_SEGMENTS: u32 = 4;
/// Least window of one alone, and of several together: what every connection may begin with (RFC 6928). Halved by a
/// loss, it still shows the next one by duplicate ACKs, and keeps a slow link busy. Twice that on a link that loses at
/// random: windows are halved there while the link is not full, and again before they have grown.
pub const WINDOW_MIN_ALONE_SEGMENTS: u32 = 10;
/// Headers of a segment that the rate counts: IP (20), TCP (20), timestamps (12).
const HEADERS_BYTES: u64 = 52;

/// What a window is remembered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// Congestion window.
    pub cwnd_segments: u32,
    /// The link as it was.
    pub character: Character,
}

/// What is known when the window for a link is to be found.
#[derive(Debug, Clone, Copy)]
pub struct Situation {
    /// The link from now on.
    pub new: Character,
    /// The link until now, and the window on it.
    pub old: Remembered,
    /// The last time on the new link.
    pub before: Option<Remembered>,
    /// Which way.
    pub way: Way,
    /// Round-trip time of the rest of the path.
    pub rest_us: u32,
    /// Connections that send over the link, this one included.
    pub sharing: u32,
    /// Sending maximum segment size.
    pub mss_bytes: u32,
    /// Most bytes a window may have.
    pub ceiling_bytes: u64,
}

impl Policy {
    /// The window, in segments, within its bounds.
    pub fn window_segments(self, situation: &Situation) -> u32 {
        let wanted = match self {
            Policy::Restore => match &situation.before {
                Some(before) => situation.scaled(before),
                None => situation.estimated(),
            },
            Policy::Scale => situation.scaled(&situation.old),
            Policy::Estimate => situation.estimated(),
        };
        let ceiling = situation.ceiling_bytes / u64::from(situation.mss_bytes.max(1));
        let alone = WINDOW_MIN_ALONE_SEGMENTS * if situation.new.loss_ppm > 0 { 2 } else { 1 };
        let least = alone.div_ceil(situation.sharing.max(1)).max(WINDOW_MIN_SEGMENTS);
        // The ceiling is the person's; it holds before our least window does.
        wanted.max(u64::from(least)).min(ceiling.max(1)).try_into().unwrap_or(u32::MAX)
    }
}

impl Situation {
    /// Rate x round-trip time, in bits x microseconds.
    fn product(&self, link: &Character) -> u128 {
        let rate_bps = match self.way {
            Way::Up => link.up_bps,
            Way::Down => link.down_bps,
        };
        let rtt_us = u64::from(self.rest_us) + 2 * u64::from(link.delay_us);
        u128::from(rate_bps) * u128::from(rtt_us.max(1))
    }

    fn scaled(&self, from: &Remembered) -> u64 {
        let (now, then) = (self.product(&self.new), self.product(&from.character).max(1));
        let wanted = now.saturating_mul(u128::from(from.cwnd_segments)).div_ceil(then);
        u64::try_from(wanted).unwrap_or(u64::MAX)
    }

    fn estimated(&self) -> u64 {
        let segment_bits = u128::from(8 * (u64::from(self.mss_bytes) + HEADERS_BYTES));
        let all = self.product(&self.new) / 1_000_000 / segment_bits;
        u64::try_from(all.div_ceil(u128::from(self.sharing.max(1)))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WIFI: Character =
        Character { up_bps: 11_000_000, down_bps: 5_000_000, delay_us: 10_000, loss_ppm: 0 };
    const PHS: Character =
        Character { up_bps: 64_000, down_bps: 64_000, delay_us: 125_000, loss_ppm: 10_000 };
    const SATELLITE: Character =
        Character { up_bps: 20_000_000, down_bps: 20_000_000, delay_us: 300_000, loss_ppm: 0 };

    fn situation() -> Situation {
        Situation {
            new: SATELLITE,
            old: Remembered { cwnd_segments: 30, character: WIFI },
            before: None,
            way: Way::Up,
            rest_us: 5000,
            sharing: 1,
            mss_bytes: 1448,
            ceiling_bytes: 1 << 30,
        }
    }

    #[test]
    fn policies_read_back_by_their_names() {
        for policy in [Policy::Restore, Policy::Scale, Policy::Estimate] {
            let text = serde_json::to_string(&policy).unwrap();
            assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy, "{text}");
        }
        let wrong = "guess".parse::<Policy>().unwrap_err().to_string();
        assert!(NAMES.iter().all(|(name, _)| wrong.contains(name)), "{wrong}");
    }

    #[test]
    fn an_estimate_is_the_announced_rate_times_the_round_trip_shared() {
        // 20 Mbit/s x 605 ms = 12.1 Mbit = 1008.3 packets of 1500 bytes.
        assert_eq!(Policy::Estimate.window_segments(&situation()), 1008);
        assert_eq!(Policy::Estimate.window_segments(&Situation { sharing: 4, ..situation() }), 252);
        let narrow = Situation { new: PHS, ..situation() };
        assert_eq!(Policy::Estimate.window_segments(&narrow), 20, "1.4 packets of a link that loses some");
        let clean = Situation { new: Character { loss_ppm: 0, ..PHS }, ..narrow };
        let shared = |sharing| Policy::Estimate.window_segments(&Situation { sharing, ..clean });
        assert_eq!([1, 2, 3, 100].map(shared), [10, 5, 4, 4]);
        let down = Situation { new: WIFI, way: Way::Down, ..situation() };
        assert_eq!(Policy::Estimate.window_segments(&down), 10, "5 Mbit/s x 25 ms");
    }

    #[test]
    fn scaling_keeps_the_share_of_the_link() {
        // 20/11 of the rate, 605/25 of the round-trip time.
        assert_eq!(Policy::Scale.window_segments(&situation()), 1320);
        let back = Situation {
            new: WIFI,
            old: Remembered { cwnd_segments: 1320, character: SATELLITE },
            ..situation()
        };
        assert_eq!(Policy::Scale.window_segments(&back), 30);
    }

    #[test]
    fn restoring_takes_what_was_there_and_estimates_where_nothing_was() {
        let known = Remembered { cwnd_segments: 640, character: SATELLITE };
        let restored = Situation { before: Some(known), ..situation() };
        assert_eq!(Policy::Restore.window_segments(&restored), 640);
        let half = Character { up_bps: 40_000_000, ..SATELLITE };
        let changed = Situation { before: Some(Remembered { character: half, ..known }), ..situation() };
        assert_eq!(Policy::Restore.window_segments(&changed), 320, "the link has half of its rate then");
        assert_eq!(Policy::Restore.window_segments(&situation()), 1008);
    }

    fn character() -> impl Strategy<Value = Character> {
        let link = (1..=u64::MAX, 1..=u64::MAX, any::<u32>(), 0..=1_000_000u32);
        link.prop_map(|(up_bps, down_bps, delay_us, loss_ppm)| Character {
            up_bps,
            down_bps,
            delay_us,
            loss_ppm,
        })
    }

    proptest! {
        #[test]
        fn no_policy_leaves_its_bounds(
            links in [character(), character(), character()], cwnds in any::<[u32; 2]>(), rest_us in any::<u32>(),
            sharing in any::<u32>(), mss_bytes in 1..=65_000u32, ceiling_bytes in 0..=u64::MAX, down in any::<bool>(),
        ) {
            let situation = Situation {
                new: links[0],
                old: Remembered { cwnd_segments: cwnds[0], character: links[1] },
                before: Some(Remembered { cwnd_segments: cwnds[1], character: links[2] }),
                way: if down { Way::Down } else { Way::Up },
                rest_us, sharing, mss_bytes, ceiling_bytes,
            };
            let ceiling = (ceiling_bytes / u64::from(mss_bytes)).max(1);
            for policy in [Policy::Restore, Policy::Scale, Policy::Estimate] {
                let window = u64::from(policy.window_segments(&situation));
                prop_assert!(window >= 1 && window <= ceiling.max(1));
                prop_assert!(window >= u64::from(WINDOW_MIN_SEGMENTS).min(ceiling));
            }
        }

        #[test]
        fn a_faster_link_never_gets_a_smaller_window(rate_bps in 1..=1u64 << 40, delay_us in 0..1_000_000u32) {
            let link = |rate_bps| Character { up_bps: rate_bps, down_bps: rate_bps, delay_us, loss_ppm: 0 };
            for policy in [Policy::Scale, Policy::Estimate] {
                let window = |rate_bps| policy.window_segments(&Situation { new: link(rate_bps), ..situation() });
                prop_assert!(window(rate_bps) <= window(2 * rate_bps));
            }
        }
    }
}
