//! Delivery opportunities: mahimahi's packet-delivery files (Netravali et al., "Mahimahi", USENIX ATC 2015, section 4;
//! mm-link(1)).
//!
//! Model: each line is a time in milliseconds since the beginning, at which 1504 bytes could be delivered. A packet may
//! take several opportunities, and several packets may share one; what of an opportunity nobody used is lost. After the
//! last line the file begins again, its last time being the new zero. Units: milliseconds; bytes of the IP packet and 4
//! of framing.

use super::TraceError;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{fmt::Write as _, str::FromStr, sync::Arc};

/// Bytes that an opportunity carries: an IP packet of 1500 bytes and the 4 that a TUN interface puts before it.
pub const BYTES: u32 = 1504;
/// The part of an opportunity's bytes that stands before each packet.
pub const OVERHEAD_BYTES: u32 = 4;
/// Most lines.
const MOST: u64 = 4_000_000;

/// A time with opportunities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// When, in units of the trace's time since its beginning.
    pub at: u32,
    /// How many there are.
    pub count: u32,
}

/// Times at which something can be delivered, in order: there is one at least, and the last is not zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opportunities(Arc<[Moment]>);

impl Opportunities {
    /// Reads a file.
    ///
    /// # Errors
    /// A line that is no time or goes back in time, too many of them, or none.
    pub fn read(bytes: &[u8]) -> Result<Opportunities, TraceError> {
        let text = String::from_utf8_lossy(bytes);
        let mut found = Gathered::default();
        for (line, value) in (1..).zip(text.lines().map(str::trim_end)) {
            let mend = "write one time a line, in whole milliseconds, as '17'";
            let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let at = value.parse::<u32>().ok().filter(|_| digits);
            let at = at.ok_or_else(|| TraceError::line(line, value, "is no time in milliseconds", mend))?;
            if !found.add(at, 1) {
                let why = "is earlier than the line before";
                return Err(TraceError::line(line, value, why, "order them by time"));
            }
            if line as u64 > MOST {
                return Err(TraceError::TooMuch { what: "delivery opportunities", most: MOST });
            }
        }
        found.whole().map_err(TraceError::Whole)
    }

    /// Every time, in order.
    pub fn moments(&self) -> &[Moment] {
        &self.0
    }

    /// Length of the trace, in its units.
    pub fn length(&self) -> u64 {
        self.0.last().map_or(1, |moment| moment.at.into())
    }

    /// How many there are in all.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|moment| u64::from(moment.count)).sum()
    }

    /// Most opportunities within so many units, the trace repeated.
    pub fn most_within(&self, units: u64) -> u64 {
        let (passes, rest) = (units / self.length(), units % self.length());
        let twice = || {
            (0..2).flat_map(|turn| {
                self.0.iter().map(move |m| (turn * self.length() + u64::from(m.at), m.count))
            })
        };
        let (mut inside, mut most, mut oldest) = (0, 0, twice());
        let mut next_old = oldest.next();
        for (at, count) in twice() {
            inside += u64::from(count);
            while let Some((old, count)) = next_old.filter(|(old, _)| old + rest < at) {
                debug_assert!(old <= at);
                inside -= u64::from(count);
                next_old = oldest.next();
            }
            most = most.max(inside);
        }
        passes * self.count() + most
    }
}

/// Opportunities as they are read.
#[derive(Default)]
struct Gathered(Vec<Moment>);

impl Gathered {
    /// Whether they are in order.
    fn add(&mut self, at: u32, count: u32) -> bool {
        match self.0.last_mut() {
            Some(last) if last.at > at => return false,
            Some(last) if last.at == at => last.count = last.count.saturating_add(count),
            _ => self.0.push(Moment { at, count }),
        }
        true
    }

    fn whole(self) -> Result<Opportunities, String> {
        match self.0.last() {
            None => Err("holds no delivery opportunity; write one time a line, in milliseconds".to_owned()),
            Some(Moment { at: 0, .. }) => {
                Err("ends at 0 ms, and so has no length; its last line says when it begins again".to_owned())
            }
            Some(_) => Ok(Opportunities(self.0.into())),
        }
    }
}

/// In plans: `0 3x2 17`.
impl Serialize for Opportunities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        for Moment { at, count } in self.moments() {
            let space = if text.is_empty() { "" } else { " " };
            let times = if *count == 1 { String::new() } else { format!("x{count}") };
            // Writing to a string does not fail.
            let _ = write!(text, "{space}{at}{times}");
        }
        serializer.serialize_str(&text)
    }
}

impl FromStr for Opportunities {
    type Err = String;

    fn from_str(text: &str) -> Result<Opportunities, String> {
        let mut found = Gathered::default();
        for word in text.split_ascii_whitespace() {
            let (at, count) = word.split_once('x').unwrap_or((word, "1"));
            let read = at.parse().ok().zip(count.parse().ok().filter(|count| *count > 0));
            let (at, count) =
                read.ok_or_else(|| format!("'{word}' is no delivery opportunity; write '17' or '17x2'"))?;
            if !found.add(at, count) {
                return Err(format!("'{word}' is earlier than what stands before it"));
            }
        }
        found.whole()
    }
}

impl<'de> Deserialize<'de> for Opportunities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
