//! Figures in the units people read. A metric's name ends in its unit; that decides how it is shown.

/// What kind of thing a number counts, in its base unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// bit/s.
    Rate,
    /// Microseconds.
    Time,
    /// Bytes.
    Bytes,
    /// Segments, packets, anything counted.
    Count,
    /// A share of one, shown in per cent.
    Share,
    /// A dimensionless index such as Jain's.
    Index,
}

/// A unit to show numbers in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Written after the number; empty for counts.
    pub name: &'static str,
    /// How many base units one of it is.
    pub factor: f64,
    /// Whether it counts things that come in wholes.
    pub whole: bool,
}

/// Unit of what is counted.
pub const WHOLE: Unit = Unit { name: "", factor: 1.0, whole: true };

impl Quantity {
    /// The kind of a metric, from the unit at the end of its name.
    pub fn of_metric(name: &str) -> Quantity {
        const ENDINGS: [(&str, Quantity); 5] = [
            ("_bps", Quantity::Rate),
            ("_us", Quantity::Time),
            ("_bytes", Quantity::Bytes),
            ("_ratio", Quantity::Share),
            ("jain", Quantity::Index),
        ];
        let matching = ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
        matching.map_or(Quantity::Count, |(_, quantity)| *quantity)
    }

    /// The unit that keeps numbers up to `greatest` (in base units) short.
    pub fn unit(self, greatest: f64) -> Unit {
        let steps: &[(f64, &'static str, f64)] = match self {
            Quantity::Rate => &[(0.0, "kbit/s", 1e3), (1e6, "Mbit/s", 1e6), (1e10, "Gbit/s", 1e9)],
            Quantity::Time => &[(0.0, "µs", 1.0), (1e3, "ms", 1e3), (2e7, "s", 1e6)],
            Quantity::Bytes => &[(0.0, "kB", 1e3), (1e6, "MB", 1e6), (1e10, "GB", 1e9)],
            Quantity::Share => &[(0.0, "%", 0.01)],
            Quantity::Count | Quantity::Index => &[(0.0, "", 1.0)],
        };
        let fitting = steps.iter().rev().find(|(from, ..)| greatest >= *from).unwrap_or(&steps[0]);
        Unit { name: fitting.1, factor: fitting.2, whole: self == Quantity::Count }
    }
}

impl Unit {
    /// The number alone.
    pub fn number(self, value: f64) -> String {
        let scaled = value / self.factor;
        if self.whole && scaled.is_finite() && scaled.fract() == 0.0 {
            return group(&format!("{scaled:.0}"));
        }
        number(scaled)
    }

    /// Number and unit.
    pub fn text(self, value: f64) -> String {
        format!("{} {}", self.number(value), self.name).trim_end().to_owned()
    }
}

/// A figure in the unit that its metric's name ends in, as short as it goes: `93.0 Mbit/s`, `28.4 ms`, `0.988`.
pub fn of_metric(metric: &str, value: f64) -> String {
    Quantity::of_metric(metric).unit(value.abs()).text(value)
}

/// Three significant digits from 0.001 to 1000, whole numbers with grouped thousands above; a dash for what is no
/// number.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let magnitude = value.abs();
    // What is rounded up to the next power of ten has a digit less behind the point.
    let decimals = match magnitude {
        m if m >= 99.95 || m == 0.0 => 0,
        m if m >= 9.995 => 1,
        m if m >= 0.9995 => 2,
        m if m >= 0.099_95 => 3,
        m if m >= 0.009_995 => 4,
        m if m >= 0.000_999_5 => 5,
        _ => 3,
    };
    group(&format!("{value:.decimals$}"))
}

/// Thousands apart by a no-break space, from 10 000 on.
fn group(text: &str) -> String {
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    if digits.len() < 5 {
        return text.to_owned();
    }
    let first = digits.len() % 3;
    let mut parts: Vec<&str> = if first == 0 { vec![] } else { vec![&digits[..first]] };
    parts.extend((first..digits.len()).step_by(3).map(|at| &digits[at..at + 3]));
    format!("{sign}{}{rest}", parts.join("\u{a0}"))
}

/// Wall-clock time in UTC: `2025-01-31 12:00 UTC`.
pub fn utc(unix_ms: u64) -> String {
    let minutes = unix_ms / 60_000;
    let (year, month, day) = civil((minutes / 1440) as i64);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60 % 24, minutes % 60)
}

/// Time as part of a file's name, to the second: `20250131T120000Z`.
pub fn utc_compact(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (year, month, day) = civil((seconds / 86_400) as i64);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Gregorian date of a day counted from 1970-01-01, by whole 400-year cycles that begin on 1 March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let cycle = shifted.div_euclid(146_097);
    let day_of_cycle = shifted.rem_euclid(146_097);
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_cycle + cycle * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_never_nan() {
        let cases = [
            (93.04, "93.0"),
            (0.0, "0"),
            (3.0, "3.00"),
            (0.98765, "0.988"),
            (0.9996, "1.00"),
            (0.065_74, "0.0657"),
            (0.099_96, "0.100"),
            (0.006_574, "0.00657"),
            (0.000_1, "0.000"),
            (9.996, "10.0"),
            (99.97, "100"),
            (1234.5, "1234"),
            (-1_234_567.0, "-1\u{a0}234\u{a0}567"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_metric_name_says_its_unit() {
        assert_eq!(of_metric("goodput_bps", 93e6), "93.0 Mbit/s");
        assert_eq!(of_metric("goodput_bps", 0.0), "0 kbit/s");
        assert_eq!(of_metric("echo_p99_us", 28_400.0), "28.4 ms");
        assert_eq!(of_metric("queue_mean_bytes", 1.5e6), "1.50 MB");
        assert_eq!(of_metric("utilisation_ratio", 0.934), "93.4 %");
        assert_eq!(of_metric("fairness_jain", 0.98765), "0.988");
        assert_eq!(of_metric("retransmitted_segments", 12_345.0), "12\u{a0}345");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_738_324_800_000), "2025-01-31 12:00 UTC");
        assert_eq!(utc_compact(951_782_399_000), "20000228T235959Z");
        assert_eq!(utc_compact(1_735_689_599_999), "20241231T235959Z");
        assert_eq!(utc_compact(4_107_542_400_000), "21000301T000000Z");
    }
}
