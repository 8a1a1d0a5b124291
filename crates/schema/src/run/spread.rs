//! What repeats of one figure come to: the one definition that the lab, its tables and the report share.

use crate::random::SplitMix64;
use serde::Serialize;

/// Resamples of a bootstrap: the ends of a 90 % interval then move by a percent or so with the draws.
const RESAMPLES: usize = 4000;

/// Median and spread of one figure over repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// Middle value; the mean of the two middle ones when their count is even.
    pub median: f64,
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
    /// Number of values.
    pub count: usize,
}

impl Spread {
    /// Spread of the finite numbers among `values`; `None` when there is none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        // Halved before adding: two huge values must not overflow.
        Some(Spread { median: lower / 2.0 + upper / 2.0, min, max, count: sorted.len() })
    }
}

/// Where a figure of two medians (their ratio, their difference) lies with this confidence, as far as the repeats on
/// both sides tell: the percentile bootstrap (Efron 1979). The same draws every time: judging the same runs again must
/// not change the verdict. `None` without values on both sides, or when the figure is no number in some resample.
pub fn bootstrap(sides: [&[f64]; 2], confidence: f64, figure: impl Fn(f64, f64) -> f64) -> Option<[f64; 2]> {
    let mut random = SplitMix64::new(0);
    let mut drawn = Vec::new();
    let mut resampled = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let left = resample(sides[0], &mut drawn, &mut random)?;
        let right = resample(sides[1], &mut drawn, &mut random)?;
        resampled.push(Some(figure(left, right)).filter(|value| !value.is_nan())?);
    }
    resampled.sort_by(f64::total_cmp);
    let at = |share: f64| resampled[((RESAMPLES - 1) as f64 * share).round() as usize];
    let tail = (1.0 - confidence) / 2.0;
    Some([at(tail), at(1.0 - tail)])
}

/// Median of as many values drawn with replacement.
fn resample(values: &[f64], drawn: &mut Vec<f64>, random: &mut SplitMix64) -> Option<f64> {
    drawn.clear();
    for _ in values {
        drawn.push(values[(random.next_u64() % values.len() as u64) as usize]);
    }
    drawn.sort_by(f64::total_cmp);
    let (lower, upper) = (drawn.get(drawn.len().saturating_sub(1) / 2)?, drawn.get(drawn.len() / 2)?);
    Some(lower / 2.0 + upper / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_median_of_an_even_count_is_the_mean_of_the_middle_two() {
        let spread = Spread::of([4.0, 1.0, 3.0, 100.0]).unwrap();
        assert_eq!(spread, Spread { median: 3.5, min: 1.0, max: 100.0, count: 4 });
        assert_eq!(Spread::of([2.0, 9.0, 1.0]).unwrap().median, 2.0);
    }

    #[test]
    fn what_is_no_number_is_no_repeat() {
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(Spread::of([f64::NAN, 5.0]).unwrap().count, 1);
    }

    #[test]
    fn an_interval_holds_the_figure_and_is_narrow_where_repeats_agree() {
        let ratio = |left: f64, right: f64| left / right;
        let (scattered, steady) = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0; 5]);
        let [least, greatest] = bootstrap([&scattered, &steady], 0.9, ratio).unwrap();
        assert!((0.5..1.5).contains(&least) && (1.5..=2.5).contains(&greatest), "{least} to {greatest}");
        assert_eq!(bootstrap([&steady, &steady], 0.9, ratio), Some([1.0, 1.0]));
        assert_eq!(bootstrap([&steady, &steady], 0.9, ratio), bootstrap([&steady, &steady], 0.9, ratio));
        assert_eq!(bootstrap([&steady, &[]], 0.9, ratio), None);
        assert_eq!(bootstrap([&[0.0; 2], &[0.0; 2]], 0.9, ratio), None);
        assert_eq!(bootstrap([&steady, &[0.0, 1.0]], 0.9, ratio), Some([2.0, f64::INFINITY]));
    }

    #[test]
    fn nine_in_ten_intervals_hold_the_median_of_what_was_drawn_from() {
        let mut random = SplitMix64::new(7);
        let mut uniform = || random.unit();
        let trials = 200;
        let held = (0..trials).filter(|_| {
            let mut side = || (0..15).map(|_| uniform()).collect::<Vec<f64>>();
            let (left, right) = (side(), side());
            let [least, greatest] = bootstrap([&left, &right], 0.9, |left, right| left - right).unwrap();
            least <= 0.0 && greatest >= 0.0
        });
        assert!((170..=200).contains(&held.count()));
    }

    proptest! {
        #[test]
        fn a_median_lies_within_its_spread(values in proptest::collection::vec(-1e12f64..1e12, 1..20)) {
            let spread = Spread::of(values.clone()).unwrap();
            prop_assert!(spread.min <= spread.median && spread.median <= spread.max);
            prop_assert_eq!(spread.count, values.len());
            let below = values.iter().filter(|v| **v < spread.median).count();
            prop_assert!(below <= values.len() / 2);
        }
    }
}
