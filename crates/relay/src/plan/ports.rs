//! Ports as rules name them.

use serde::Serialize;
use std::{fmt, str::FromStr};

/// A port or a range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Whether `port` is one of them.
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// The fewest ranges that hold the same ports: nftables refuses sets whose ranges overlap.
    pub fn merge(mut ranges: Vec<Ports>) -> Vec<Ports> {
        ranges.sort_unstable();
        let mut merged: Vec<Ports> = Vec::new();
        for next in ranges {
            match merged.last_mut() {
                Some(last) if u32::from(next.first) <= u32::from(last.last) + 1 => {
                    last.last = last.last.max(next.last);
                }
                _ => merged.push(next),
            }
        }
        merged
    }
}

impl Serialize for Ports {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first > 0 && first <= last => Ok(Ports { first, last }),
            _ => {
                Err(format!("'{text}' is no port and no range of ports; write it like '443' or '8000-8080'"))
            }
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ports_read_as_people_write_them() {
        assert_eq!("443".parse::<Ports>().unwrap().to_string(), "443");
        assert_eq!("8000-8080".parse::<Ports>().unwrap().to_string(), "8000-8080");
        for wrong in ["0", "9-3", "70000", "http", ""] {
            assert!(wrong.parse::<Ports>().unwrap_err().contains("8000-8080"), "{wrong}");
        }
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let ports = |text: &[&str]| text.iter().map(|port| port.parse().unwrap()).collect::<Vec<Ports>>();
        assert_eq!(Ports::merge(ports(&["443", "80-90", "85-100", "101"])), ports(&["80-101", "443"]));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,30}") {
            let _ = text.parse::<Ports>();
        }

        #[test]
        fn merging_changes_no_answer(
            ranges in proptest::collection::vec((1u16.., 0u16..50), 0..8), port in 1u16..,
        ) {
            let ranges: Vec<Ports> = ranges.into_iter()
                .map(|(first, more)| Ports { first, last: first.saturating_add(more) }).collect();
            let merged = Ports::merge(ranges.clone());
            let among = |list: &[Ports]| list.iter().any(|ports| ports.contains(port));
            prop_assert_eq!(among(&merged), among(&ranges));
            prop_assert!(merged.windows(2).all(|two| two[0].last < two[1].first - 1));
        }
    }
}
