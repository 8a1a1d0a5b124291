//! Figures as people read them: the unit is in the metric's name.

use longfat_schema::run::Spread;
use std::time::Duration;

/// A figure with its unit: `93.0 Mbit/s`, `28.4 ms`, `0.97`.
pub fn value(metric: &str, value: f64) -> String {
    match metric.rsplit('_').next() {
        Some("bps") => scaled(value, &[(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")]),
        Some("us") => scaled(value, &[(1e6, "s"), (1e3, "ms"), (1.0, "us")]),
        Some("bytes") => scaled(value, &[(1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B")]),
        Some("ratio") => format!("{:.1} %", value * 100.0),
        Some("jain") => format!("{value:.3}"),
        _ => format!("{value:.0}"),
    }
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = units.iter().find(|(factor, _)| value.abs() >= *factor).or(units.last());
    let (factor, unit) = fits.copied().unwrap_or((1.0, ""));
    let scaled = value / factor;
    let digits = if scaled.abs() >= 100.0 || factor == 1.0 {
        0
    } else if scaled.abs() >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$} {unit}")
}

/// Several figures of one metric: `median [least – greatest]`.
pub fn spread(metric: &str, values: &[f64]) -> Option<String> {
    Some(spread_of(metric, &Spread::of(values.iter().copied())?))
}

/// The same of what was summed up already.
pub fn spread_of(metric: &str, spread: &Spread) -> String {
    let shown = value(metric, spread.median);
    if spread.count == 1 {
        return shown;
    }
    format!("{shown} [{} – {}]", value(metric, spread.min), value(metric, spread.max))
}

/// A span for people: `2 min 05 s`.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min {:02} s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_show_the_unit_of_their_name() {
        assert_eq!(value("goodput_bps", 93.04e6), "93.0 Mbit/s");
        assert_eq!(value("goodput_bps", 0.0), "0 bit/s");
        assert_eq!(value("goodput_bps", 1.5e9), "1.50 Gbit/s");
        assert_eq!(value("echo_p50_us", 28_400.0), "28.4 ms");
        assert_eq!(value("queue_mean_bytes", 3_550_000.0), "3.55 MB");
        assert_eq!(value("utilisation_ratio", 0.956), "95.6 %");
        assert_eq!(value("fairness_jain", 0.98765), "0.988");
        assert_eq!(value("retransmitted_segments", 12.0), "12");
    }

    #[test]
    fn a_spread_shows_median_least_and_greatest() {
        assert_eq!(
            spread("goodput_bps", &[3e6, 1e6, 2e6]).unwrap(),
            "2.00 Mbit/s [1.00 Mbit/s – 3.00 Mbit/s]"
        );
        assert_eq!(spread("goodput_bps", &[3e6]).unwrap(), "3.00 Mbit/s");
        assert_eq!(spread("goodput_bps", &[]), None);
        assert_eq!(span(Duration::from_secs(125)), "2 min 05 s");
    }
}
