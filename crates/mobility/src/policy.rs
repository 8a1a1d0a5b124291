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

/// Round trips of the bare path that the queue before a link may add. A longer one is not kept full for a connection's
/// sake: its round-trip time would rise so far that timeouts are spurious.
const QUEUE_MAX_ROUND_TRIPS: u64 = 3;
/// Part of a known queue that is used: one in so many. With half of it, the path and half of the queue are at least
/// half of all that is under way when others fill the rest: more than the share of one among several. And when the link
/// changes, what is on its way finds room in the queue.
const QUEUE_USED_ONE_IN: u64 = 2;
/// How much too much, of what a path holds, is not worth beginning anew: the kernel's cubic then grows by a twentieth
/// each round trip until its first loss (bictcp_update), and loses about as much there.
const BEGINNING_ANEW_COSTS_ONE_IN: u64 = 20;

/// What a window is remembered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// Congestion window.
    pub cwnd_segments: u32,
    /// The largest that filled the path without a loss, queue included; absent where none was seen to.
    pub held_segments: Option<u32>,
    /// The link as it was.
    pub character: Character,
}

/// Facts by which the window for a link is found.
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
        let alone = situation.path(situation.new).least_alone_segments();
        let least = alone.div_ceil(situation.sharing.max(1)).max(WINDOW_MIN_SEGMENTS);
        let fits = situation.takes_at_once_segments().map_or(wanted, |most| wanted.min(most));
        // The ceiling is the person's; it holds before our least window does.
        fits.max(u64::from(least)).min(ceiling.max(1)).try_into().unwrap_or(u32::MAX)
    }
}

impl Situation {
    /// Up to which a window is not too large for the new link: what the pipe and the queue before it hold. A queue that
    /// is not announced is taken to be as long as it was shown to be on that link, or else on the one before. Nothing
    /// where no queue is known, and where the way becomes shorter: what was sent last then arrives together with what
    /// still was on the long one, and so do the ACKs, so that a whole window is sent at once.
    pub fn room_segments(&self) -> Option<u32> {
        if self.becomes_shorter() {
            return None;
        }
        let room = match self.path(self.new).holds_segments() {
            Some(holds) => self.share(u64::from(holds)),
            None => self.shown_room_segments()?,
        };
        let ceiling = self.ceiling_bytes / u64::from(self.mss_bytes.max(1));
        Some(room.min(ceiling).try_into().unwrap_or(u32::MAX))
    }

    /// By what a window that filled a path without a loss has shown of the queue there.
    fn shown_room_segments(&self) -> Option<u64> {
        let known = self.before.filter(|before| before.held_segments.is_some()).unwrap_or(self.old);
        let held = u64::from(known.held_segments?);
        let pipe = self.share(self.path(self.new).pipe_segments());
        let queue = held.saturating_sub(self.share(self.path(known.character).pipe_segments()));
        let room = pipe.saturating_add(queue.min(pipe.saturating_mul(QUEUE_MAX_ROUND_TRIPS)));
        Some(room.saturating_add(room / BEGINNING_ANEW_COSTS_ONE_IN))
    }

    /// This connection's share of what a link with a known queue takes, in the way it comes to it: where the way
    /// becomes shorter, as one burst.
    fn takes_at_once_segments(&self) -> Option<u64> {
        let path = self.path(self.new);
        let queue = path.queue_segments()?;
        let holds = u64::from(path.holds_segments()?);
        Some(self.share(if self.becomes_shorter() {
            path.pipe_segments().max(queue).min(holds)
        } else {
            holds
        }))
    }

    fn becomes_shorter(&self) -> bool {
        self.new.delay_us < self.old.character.delay_us
    }

    fn scaled(&self, from: &Remembered) -> u64 {
        let (now, then) = (self.path(self.new).product(), self.path(from.character).product().max(1));
        let wanted = now.saturating_mul(u128::from(from.cwnd_segments)).div_ceil(then);
        u64::try_from(wanted).unwrap_or(u64::MAX)
    }

    fn estimated(&self) -> u64 {
        self.share(self.path(self.new).pipe_segments())
    }

    fn share(&self, segments: u64) -> u64 {
        segments.div_ceil(u64::from(self.sharing.max(1)))
    }

    fn path(&self, link: Character) -> Path {
        Path { link, way: self.way, rest_us: self.rest_us, mss_bytes: self.mss_bytes }
    }
}

/// One way over a link.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// The link.
    pub link: Character,
    /// Which way.
    pub way: Way,
    /// Round-trip time of the rest of the path.
    pub rest_us: u32,
    /// Sending maximum segment size.
    pub mss_bytes: u32,
}

impl Path {
    /// What it holds with the queue before it, in segments: a window that never is larger loses nothing there. Nothing
    /// where the queue is not known.
    pub fn holds_segments(&self) -> Option<u32> {
        let pipe = self.pipe_segments();
        let queue = self.queue_segments()?.min(pipe.saturating_mul(QUEUE_MAX_ROUND_TRIPS));
        let holds = pipe.saturating_add(queue).max(u64::from(self.least_alone_segments()));
        Some(u32::try_from(holds).unwrap_or(u32::MAX))
    }

    /// What one connection alone is given at least.
    fn least_alone_segments(&self) -> u32 {
        WINDOW_MIN_ALONE_SEGMENTS * if self.link.loss_ppm > 0 { 2 } else { 1 }
    }

    /// Rate x round-trip time, in bits x microseconds.
    fn product(&self) -> u128 {
        let rate_bps = match self.way {
            Way::Up => self.link.up_bps,
            Way::Down => self.link.down_bps,
        };
        let rtt_us = u64::from(self.rest_us) + 2 * u64::from(self.link.delay_us);
        u128::from(rate_bps) * u128::from(rtt_us.max(1))
    }

    /// What it holds without any queue.
    fn pipe_segments(&self) -> u64 {
        let packets = self.product() / 1_000_000 / u128::from(8 * self.packet_bytes());
        u64::try_from(packets).unwrap_or(u64::MAX)
    }

    fn queue_segments(&self) -> Option<u64> {
        let bytes = match self.way {
            Way::Up => self.link.up_queue_bytes,
            Way::Down => self.link.down_queue_bytes,
        };
        (bytes > 0).then(|| u64::from(bytes) / QUEUE_USED_ONE_IN / self.packet_bytes())
    }

    fn packet_bytes(&self) -> u64 {
        u64::from(self.mss_bytes) + HEADERS_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn link(up_bps: u64, down_bps: u64, delay_us: u32, loss_ppm: u32) -> Character {
        Character { up_bps, down_bps, delay_us, loss_ppm, up_queue_bytes: 0, down_queue_bytes: 0 }
    }

    const WIFI: Character = link(11_000_000, 5_000_000, 10_000, 0);
    const PHS: Character = link(64_000, 64_000, 125_000, 10_000);
    const SATELLITE: Character = link(20_000_000, 20_000_000, 300_000, 0);

    fn situation() -> Situation {
        Situation {
            new: SATELLITE,
            old: Remembered { cwnd_segments: 30, held_segments: None, character: WIFI },
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
            old: Remembered { cwnd_segments: 1320, held_segments: None, character: SATELLITE },
            ..situation()
        };
        assert_eq!(Policy::Scale.window_segments(&back), 30);
    }

    #[test]
    fn restoring_takes_what_was_there_and_estimates_where_nothing_was() {
        let known = Remembered { cwnd_segments: 640, held_segments: None, character: SATELLITE };
        let restored = Situation { before: Some(known), ..situation() };
        assert_eq!(Policy::Restore.window_segments(&restored), 640);
        let half = Character { up_bps: 40_000_000, ..SATELLITE };
        let changed = Situation { before: Some(Remembered { character: half, ..known }), ..situation() };
        assert_eq!(Policy::Restore.window_segments(&changed), 320, "the link has half of its rate then");
        assert_eq!(Policy::Restore.window_segments(&situation()), 1008);
    }

    /// 300 Mbit/s, 5 ms: 260 packets with the rest of the path.
    const FAST: Character = link(300_000_000, 300_000_000, 5_000, 0);
    /// 40 Mbit/s, 35 ms: 235 packets.
    const LTE: Character = link(40_000_000, 40_000_000, 35_000, 0);

    fn onto_lte(held_segments: Option<u32>) -> Situation {
        let old = Remembered { cwnd_segments: 643, held_segments, character: FAST };
        Situation { new: LTE, old, rest_us: 400, ..situation() }
    }

    #[test]
    fn a_queue_that_was_shown_on_one_link_is_expected_before_the_next() {
        // 300 Mbit/s x 10.4 ms = 260 packets; 40 Mbit/s x 70.4 ms = 234.67, rounded down before it is shared.
        assert_eq!(onto_lte(Some(900)).room_segments(), Some((234 + 640) * 21 / 20));
        assert_eq!(onto_lte(None).room_segments(), None, "none was shown");
        assert_eq!(onto_lte(Some(200)).room_segments(), Some(234 * 21 / 20), "it never had a queue");
        assert_eq!(
            onto_lte(Some(100_000)).room_segments(),
            Some(4 * 234 * 21 / 20),
            "at most three round trips of it"
        );
        let shared = Situation { sharing: 2, ..onto_lte(Some(450)) };
        assert_eq!(shared.room_segments(), Some((117 + 320) * 21 / 20));
        let bounded = Situation { ceiling_bytes: 1448 * 300, ..onto_lte(Some(900)) };
        assert_eq!(bounded.room_segments(), Some(300));
        let old = Remembered { cwnd_segments: 643, held_segments: Some(900), character: LTE };
        assert_eq!(
            Situation { new: FAST, old, ..onto_lte(None) }.room_segments(),
            None,
            "all of it comes at once"
        );
    }

    #[test]
    fn a_queue_that_was_shown_on_the_new_link_itself_counts_more() {
        let before = Remembered { cwnd_segments: 250, held_segments: Some(300), character: LTE };
        let again = Situation { before: Some(before), ..onto_lte(Some(900)) };
        assert_eq!(again.room_segments(), Some(300 * 21 / 20));
        let never_filled = Remembered { held_segments: None, ..before };
        let again = Situation { before: Some(never_filled), ..onto_lte(Some(900)) };
        assert_eq!(again.room_segments(), onto_lte(Some(900)).room_segments());
    }

    fn with_queue(link: Character, bytes: u32) -> Character {
        Character { up_queue_bytes: bytes, ..link }
    }

    #[test]
    fn a_queue_that_is_announced_says_what_the_link_holds() {
        let path = |link, way| Path { link, way, rest_us: 400, mss_bytes: 1448 };
        // 234 packets under way, and half of a million bytes: 333 packets.
        let holds = path(with_queue(LTE, 1_000_000), Way::Up).holds_segments();
        assert_eq!(holds, Some(234 + 333));
        assert_eq!(path(with_queue(LTE, 1_000_000), Way::Down).holds_segments(), None, "nobody said");
        let long = path(with_queue(LTE, 10_000_000), Way::Up).holds_segments();
        assert_eq!(long, Some(4 * 234), "at most three round trips of it");
        assert_eq!(
            path(with_queue(PHS, 60_000), Way::Up).holds_segments(),
            Some(20),
            "it would be 7 s of delay"
        );
        let known = Situation { new: with_queue(LTE, 1_000_000), ..onto_lte(Some(100_000)) };
        assert_eq!(known.room_segments(), Some(567), "what was shown elsewhere does not count");
        assert_eq!(Situation { sharing: 4, ..known }.room_segments(), Some(142));
    }

    #[test]
    fn no_window_is_larger_than_what_a_known_queue_takes() {
        let old = Remembered { cwnd_segments: 900, held_segments: None, character: SATELLITE };
        let back = |bytes| {
            let before = Remembered { cwnd_segments: 900, held_segments: None, character: FAST };
            let new = with_queue(FAST, bytes);
            let situation = Situation { new, old, before: Some(before), rest_us: 400, ..situation() };
            Policy::Restore.window_segments(&situation)
        };
        assert_eq!(back(0), 900, "not known");
        assert_eq!(back(1_000_000), 333, "all of it comes at once");
        assert_eq!(back(100_000), 260, "never less than the pipe");
        let longer = Situation { new: with_queue(LTE, 1_000_000), ..onto_lte(None) };
        let scaled = |cwnd_segments| {
            let old = Remembered { cwnd_segments, ..longer.old };
            Policy::Scale.window_segments(&Situation { old, ..longer })
        };
        // 600 x 234.67 / 260.
        assert_eq!([scaled(600), scaled(2000)], [542, 567]);
    }

    fn character() -> impl Strategy<Value = Character> {
        let link = (1..=u64::MAX, 1..=u64::MAX, any::<u32>(), 0..=1_000_000u32, any::<[u32; 2]>());
        link.prop_map(|(up_bps, down_bps, delay_us, loss_ppm, [up_queue_bytes, down_queue_bytes])| {
            Character {
                up_queue_bytes,
                down_queue_bytes,
                ..super::tests::link(up_bps, down_bps, delay_us, loss_ppm)
            }
        })
    }

    proptest! {
        #[test]
        fn no_policy_leaves_its_bounds(
            links in [character(), character(), character()], cwnds in any::<[u32; 2]>(),
            held in any::<[Option<u32>; 2]>(), rest_us in any::<u32>(),
            sharing in any::<u32>(), mss_bytes in 1..=65_000u32, ceiling_bytes in 0..=u64::MAX, down in any::<bool>(),
        ) {
            let situation = Situation {
                new: links[0],
                old: Remembered { cwnd_segments: cwnds[0], held_segments: held[0], character: links[1] },
                before: Some(Remembered { cwnd_segments: cwnds[1], held_segments: held[1], character: links[2] }),
                way: if down { Way::Down } else { Way::Up },
                rest_us, sharing, mss_bytes, ceiling_bytes,
            };
            let ceiling = (ceiling_bytes / u64::from(mss_bytes)).max(1);
            for policy in [Policy::Restore, Policy::Scale, Policy::Estimate] {
                let window = u64::from(policy.window_segments(&situation));
                prop_assert!(window >= 1 && window <= ceiling.max(1));
                prop_assert!(window >= u64::from(WINDOW_MIN_SEGMENTS).min(ceiling));
            }
            prop_assert!(situation.room_segments().is_none_or(|room| u64::from(room) <= ceiling));
        }

        #[test]
        fn a_faster_link_never_gets_a_smaller_window(rate_bps in 1..=1u64 << 40, delay_us in 0..1_000_000u32) {
            let link = |rate_bps| link(rate_bps, rate_bps, delay_us, 0);
            for policy in [Policy::Scale, Policy::Estimate] {
                let window = |rate_bps| policy.window_segments(&Situation { new: link(rate_bps), ..situation() });
                prop_assert!(window(rate_bps) <= window(2 * rate_bps));
            }
        }
    }
}
