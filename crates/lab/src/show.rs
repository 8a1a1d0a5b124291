//! Spreads and spans as people read them.

use longfat_schema::quantity;
use longfat_schema::run::Spread;
use std::time::Duration;

/// Several figures of one metric: `median [least – greatest]`.
pub fn spread(metric: &str, values: &[f64]) -> Option<String> {
    Some(spread_of(metric, &Spread::of(values.iter().copied())?))
}

/// Spread of what was summed up already, for people.
pub fn spread_of(metric: &str, spread: &Spread) -> String {
    let shown = quantity::of_metric(metric, spread.median);
    if spread.count == 1 {
        return shown;
    }
    format!(
        "{shown} [{} – {}]",
        quantity::of_metric(metric, spread.min),
        quantity::of_metric(metric, spread.max)
    )
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
