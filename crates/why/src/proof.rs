//! Whether a remedy was one: the rate with it and without it, in pairs of random order.
//!
//! Each pair has one stretch with the remedy and one without; what the connection carries drifts, but within a pair by
//! little. The difference is that of the pairs, with Student's interval of 95 %.

use serde::Serialize;

/// Rates of two stretches next to each other, bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pair {
    /// With the remedy.
    pub with_bps: f64,
    /// Without it.
    pub without_bps: f64,
}

/// What pairs say.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proof {
    /// The pairs themselves.
    pub pairs: Vec<Pair>,
    /// Mean with the remedy.
    pub with_bps: f64,
    /// Mean without it.
    pub without_bps: f64,
    /// Mean difference.
    pub gain_bps: f64,
    /// Interval of 95 % around it.
    pub interval_bps: (f64, f64),
    /// Whether the interval leaves no doubt of its sign.
    pub is_effect: bool,
}

/// Student's t, 97.5 %, by degrees of freedom from 1.
const STUDENT: [f64; 15] =
    [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13];
/// Student's t beyond these degrees of freedom.
const STUDENT_BEYOND: f64 = 2.12;

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

impl Proof {
    /// `None` of fewer than two pairs: one has no spread.
    pub fn of(pairs: Vec<Pair>) -> Option<Proof> {
        if pairs.len() < 2 {
            return None;
        }
        let differences: Vec<f64> = pairs.iter().map(|pair| pair.with_bps - pair.without_bps).collect();
        let gain_bps = mean(differences.iter().copied());
        let freedom = differences.len() - 1;
        let squares: f64 = differences.iter().map(|one| (one - gain_bps).powi(2)).sum();
        let error = (squares / freedom as f64 / differences.len() as f64).sqrt();
        let reach = STUDENT.get(freedom - 1).copied().unwrap_or(STUDENT_BEYOND) * error;
        let interval_bps = (gain_bps - reach, gain_bps + reach);
        Some(Proof {
            with_bps: mean(pairs.iter().map(|pair| pair.with_bps)),
            without_bps: mean(pairs.iter().map(|pair| pair.without_bps)),
            gain_bps,
            interval_bps,
            is_effect: interval_bps.0 > 0.0 || interval_bps.1 < 0.0,
            pairs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(f64, f64)]) -> Vec<Pair> {
        of.iter()
            .map(|(with_bps, without_bps)| Pair { with_bps: *with_bps, without_bps: *without_bps })
            .collect()
    }

    #[test]
    fn a_difference_is_an_effect_only_outside_its_interval() {
        let clear = Proof::of(pairs(&[(30.0, 10.0), (32.0, 11.0), (29.0, 10.0)])).unwrap();
        assert!(clear.is_effect && (clear.gain_bps - 20.0).abs() < 0.5, "{clear:?}");
        let noise = Proof::of(pairs(&[(30.0, 10.0), (8.0, 31.0), (20.0, 19.0)])).unwrap();
        assert!(!noise.is_effect && noise.interval_bps.0 < 0.0 && noise.interval_bps.1 > 0.0);
        assert_eq!(Proof::of(pairs(&[(2.0, 1.0)])), None);
    }

    #[test]
    fn the_interval_is_students() {
        // Differences 1, 2, 3: mean 2, standard error 1/√3, t of two degrees of freedom 4.30.
        let found = Proof::of(pairs(&[(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)])).unwrap();
        assert!((found.interval_bps.0 - (2.0 - 4.30 / 3f64.sqrt())).abs() < 1e-9);
    }
}
