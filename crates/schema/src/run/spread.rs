//! What repeats of one figure come to: the one definition that the lab, its tables and the report share.

use serde::Serialize;

/// Median and spread of one figure over repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// Middle value; the mean of the two middle ones when their count is even.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
    /// How many.
    pub count: usize,
}

impl Spread {
    /// Of the finite numbers among `values`; `None` when there is none.
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
