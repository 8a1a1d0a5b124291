//! Quantities as people write them. Prefixes of rates are decimal (`1Gbit` = 10⁹ bit/s); sizes know both
//! `KB` (1000) and `KiB` (1024); a number without a unit is refused, because guesses about units are how
//! measurements go wrong.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{fmt, str::FromStr, time::Duration};

/// A quantity that could not be read: names what was expected, the text and the mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} '{text}' {why}; write it like {example}")]
pub struct UnitError {
    what: &'static str,
    text: String,
    why: String,
    example: &'static str,
}

/// One kind of quantity: its units from smallest name to factor in the base unit.
struct Kind {
    what: &'static str,
    example: &'static str,
    units: &'static [(&'static str, f64)],
}

const RATE: Kind = Kind {
    what: "rate",
    example: "'100Mbit' or '1Gbit'",
    units: &[
        ("bit", 1.0),
        ("kbit", 1e3),
        ("Mbit", 1e6),
        ("Gbit", 1e9),
        ("bps", 1.0),
        ("kbps", 1e3),
        ("Mbps", 1e6),
        ("Gbps", 1e9),
        ("bit/s", 1.0),
        ("kbit/s", 1e3),
        ("Mbit/s", 1e6),
        ("Gbit/s", 1e9),
    ],
};

const SIZE: Kind = Kind {
    what: "size",
    example: "'1500B', '64KiB' or '8MB'",
    units: &[
        ("B", 1.0),
        ("KB", 1e3),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
    ],
};

/// U+00B5 as keyboards write it and as our own tables do, and U+03BC as some editors do.
const MICRO: &str = "\u{b5}s";
const GREEK_MU: &str = "\u{3bc}s";

const TIME: Kind = Kind {
    what: "time",
    example: "'28.4ms' or '10s'",
    units: &[
        ("ns", 1.0),
        ("us", 1e3),
        (MICRO, 1e3),
        (GREEK_MU, 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("min", 60e9),
        ("h", 3600e9),
    ],
};

impl Kind {
    fn error(&self, text: &str, why: impl Into<String>) -> UnitError {
        UnitError { what: self.what, text: text.to_owned(), why: why.into(), example: self.example }
    }

    /// Reads `text` into the base unit, rounded to the nearest whole number.
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let trimmed = text.trim();
        if trimmed.starts_with('-') {
            return Err(self.error(text, "is negative"));
        }
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..split], trimmed[split..].trim());
        let value: f64 = number.parse().map_err(|_| self.error(text, "does not begin with a number"))?;
        if unit.is_empty() && value != 0.0 {
            return Err(self.error(text, "has no unit"));
        }
        let factor = self.factor(text, unit)?;
        let base = (value * factor).round();
        if base >= 9.2e18 {
            return Err(self.error(text, "is too large"));
        }
        Ok(base as u64)
    }

    /// What [`Kind::parse`] takes, as a regular expression.
    #[cfg(feature = "json-schema")]
    fn pattern(&self) -> String {
        let names: Vec<_> = self.units.iter().map(|(name, _)| *name).collect();
        format!(r"^\s*(0|([0-9]+\.?[0-9]*|\.[0-9]+)\s*({}))\s*$", names.join("|"))
    }

    fn factor(&self, text: &str, unit: &str) -> Result<f64, UnitError> {
        if unit.is_empty() {
            return Ok(1.0);
        }
        let known = self.units.iter().find(|(name, _)| *name == unit);
        known.map(|(_, factor)| *factor).ok_or_else(|| {
            let names: Vec<_> = self.units.iter().map(|(name, _)| *name).collect();
            self.error(text, format!("has the unknown unit '{unit}' (known: {})", names.join(", ")))
        })
    }
}

/// Reads a share of a whole, from 0 to 1: `0.01`, `1e-7` or `1%`.
///
/// # Errors
/// What is none, or lies outside.
pub fn part(text: &str) -> Result<f64, UnitError> {
    let error = |why: &str| UnitError {
        what: "share",
        text: text.to_owned(),
        why: why.to_owned(),
        example: "'0.01' or '1%', from 0 to 1",
    };
    let trimmed = text.trim();
    let (number, whole) = trimmed.strip_suffix('%').map_or((trimmed, 1.0), |percent| (percent.trim(), 100.0));
    let part = number.parse::<f64>().map_err(|_| error("is no number"))? / whole;
    if (0.0..=1.0).contains(&part) { Ok(part) } else { Err(error("is out of range")) }
}

/// Writes `value` with the largest unit that keeps it exact to four digits.
fn write_scaled(f: &mut fmt::Formatter<'_>, value: u64, scale: &[(&str, f64)]) -> fmt::Result {
    let fits = |(_, factor): &&(&str, f64)| value as f64 >= *factor;
    let (name, factor) = scale.iter().find(fits).unwrap_or(&scale[scale.len() - 1]);
    let text = format!("{:.3}", value as f64 / factor);
    write!(f, "{}{name}", text.trim_end_matches('0').trim_end_matches('.'))
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $kind:ident, $scale:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                $kind.parse(text).map($name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_scaled(f, self.0, &$scale)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }

        #[cfg(feature = "json-schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "description": format!("A {} with its unit: {}.", $kind.what, $kind.example),
                    "pattern": $kind.pattern(),
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&exact(self.0, &$kind))
            }
        }
    };
}

/// A text that reads back to exactly `value`: what plans and manifests store.
fn exact(value: u64, kind: &Kind) -> String {
    format!("{value}{}", kind.units[0].0)
}

quantity!(
    /// A rate in bit/s.
    Rate, RATE, [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)]
);
quantity!(
    /// A size in bytes.
    Size, SIZE, [("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1.0)]
);
quantity!(
    /// A span of time in nanoseconds.
    Nanos, TIME, [("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)]
);

impl Nanos {
    /// The span in whole microseconds, rounded down.
    pub fn as_us(self) -> u64 {
        self.0 / 1000
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Duration {
        Duration::from_nanos(span.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_are_written_as_fractions_or_in_percent() {
        assert_eq!(part("1%"), Ok(0.01));
        assert_eq!(part(" 0.5 % "), Ok(0.005));
        assert_eq!(part("1e-7"), Ok(1e-7));
        assert_eq!((part("0"), part("100%")), (Ok(0.0), Ok(1.0)));
        for wrong in ["", "%", "1.01", "101%", "-1%", "NaN", "inf", "one"] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_negative_is_called_so() {
        let error = "-1Gbit".parse::<Rate>().map_err(|error| error.to_string());
        assert_eq!(error, Err("rate '-1Gbit' is negative; write it like '100Mbit' or '1Gbit'".to_owned()));
    }

    #[test]
    fn rates_sizes_and_times_read_as_people_write_them() {
        assert_eq!("1Gbit".parse(), Ok(Rate(1_000_000_000)));
        assert_eq!("64 kbit/s".parse(), Ok(Rate(64_000)));
        assert_eq!("256KiB".parse(), Ok(Size(262_144)));
        assert_eq!("3.5MB".parse(), Ok(Size(3_500_000)));
        assert_eq!("28.4ms".parse(), Ok(Nanos(28_400_000)));
        assert_eq!("0".parse(), Ok(Nanos(0)));
        for text in ["500us", "500 \u{b5}s", "0.5ms", "500\u{3bc}s"] {
            assert_eq!(text.parse(), Ok(Nanos(500_000)), "{text}");
        }
    }

    #[test]
    fn wrong_units_name_the_value_and_the_mend() {
        let message = |text: &str| text.parse::<Rate>().unwrap_err().to_string();
        assert_eq!(message("12"), "rate '12' has no unit; write it like '100Mbit' or '1Gbit'");
        assert!(message("1ms").contains("unknown unit 'ms'"));
        assert!(message("fast").contains("does not begin with a number"));
        assert!("1e99s".parse::<Nanos>().is_err());
        assert!("99999999999999h".parse::<Nanos>().unwrap_err().to_string().contains("too large"));
    }

    #[test]
    fn quantities_show_short_and_serialise_exactly() {
        assert_eq!(Nanos(28_400_000).to_string(), "28.4ms");
        assert_eq!(Rate(1_000_000_000).to_string(), "1Gbit");
        assert_eq!(serde_json::to_string(&Nanos(28_400_001)).unwrap(), "\"28400001ns\"");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,40}") {
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Size>();
            let _ = text.parse::<Nanos>();
        }

        #[test]
        fn serialised_quantities_read_back_exactly(value in 0u64..(1 << 52)) {
            let text = serde_json::to_string(&Size(value)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Size>(&text).unwrap(), Size(value));
        }
    }
}
