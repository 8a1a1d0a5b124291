//! Axes: from values to positions, with ticks at round values.

/// Ratio of the greatest to the least number from which an axis of figures is logarithmic.
pub const FAR_APART: f64 = 20.0;

/// A linear or logarithmic axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    logarithmic: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

/// A labelled value of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// The value.
    pub value: f64,
    /// As it is written.
    pub label: String,
}

impl Scale {
    /// From the domain `low`…`high` to the positions `from`…`to`. An empty or impossible domain becomes 0…1.
    pub fn linear(low: f64, high: f64, from: f64, to: f64) -> Scale {
        let usable = low.is_finite() && high.is_finite() && high > low;
        let (low, high) = if usable { (low, high) } else { (0.0, 1.0) };
        Scale { logarithmic: false, low, high, from, to }
    }

    /// From zero to a round value not below `greatest`.
    pub fn from_zero(greatest: f64, from: f64, to: f64) -> Scale {
        let greatest = if greatest.is_finite() && greatest > 0.0 { greatest } else { 1.0 };
        let step = nice_step(greatest, 4);
        Scale::linear(0.0, (greatest / step * (1.0 - 1e-9)).ceil() * step, from, to)
    }

    /// Around `least`…`greatest`, both above zero, between values of 1, 2 or 5 times a power of ten.
    pub fn logarithmic(least: f64, greatest: f64, from: f64, to: f64) -> Scale {
        if !(least.is_finite() && greatest.is_finite() && least > 0.0 && greatest >= least) {
            return Scale::logarithmic(1.0, 10.0, from, to);
        }
        let low = around(least, f64::max, 0.0, |round| round <= least * (1.0 + 1e-9));
        let high = around(greatest, f64::min, f64::INFINITY, |round| round >= greatest * (1.0 - 1e-9));
        let high = if high > low * 1.5 { high } else { low * 10.0 };
        Scale { logarithmic: true, low, high, from, to }
    }

    /// Around all `values`, from zero where the least is not far from it.
    pub fn around(values: &[f64], from: f64, to: f64) -> Scale {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let low = if least >= 0.0 && least <= greatest / 2.0 { 0.0 } else { least };
        if low < greatest {
            Scale::linear(low, greatest, from, to)
        } else {
            Scale::linear(low - 1.0, low + 1.0, from, to)
        }
    }

    /// From `least` to `greatest`, both above zero, without a margin.
    pub fn logarithmic_between(least: f64, greatest: f64, from: f64, to: f64) -> Scale {
        let round = Scale::logarithmic(least, greatest, from, to);
        if least > 0.0 && least < greatest { Scale { low: least, high: greatest, ..round } } else { round }
    }

    /// Where a value lies; values outside the domain are held at its ends.
    pub fn position(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let share = if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    /// Least and greatest value.
    pub fn domain(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// Whether equal distances are equal ratios.
    pub fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    /// About `count` ticks at round values.
    pub fn ticks(&self, count: usize) -> Vec<Tick> {
        if self.logarithmic { self.decade_ticks() } else { self.linear_ticks(count) }
    }

    fn linear_ticks(&self, count: usize) -> Vec<Tick> {
        let step = nice_step(self.high - self.low, count);
        let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        let tick = |index: i64| {
            // Multiples of the step, not a running sum, so that no rounding error gathers.
            let value = index as f64 * step;
            Tick { value, label: format!("{value:.decimals$}") }
        };
        (first..=last).map(tick).collect()
    }

    fn decade_ticks(&self) -> Vec<Tick> {
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let factors: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = ((last - first) / 7 + 1) as usize;
        let decades = (first..=last).step_by(every);
        let values = decades.flat_map(|decade| factors.iter().map(move |f| (decade, f * 10f64.powi(decade))));
        let tick = |(decade, value): (i32, f64)| {
            let decimals = usize::try_from(-decade).unwrap_or(0);
            let plain = format!("{value:.decimals$}");
            // A value of many zeros is read by its power of ten.
            let factor = (value / 10f64.powi(decade)).round();
            Tick { value, label: if decimals > 3 { format!("{factor:.0}e{decade}") } else { plain } }
        };
        let within = |value: f64| value >= self.low * (1.0 - 1e-9) && value <= self.high * (1.0 + 1e-9);
        values.filter(|(_, value)| within(*value)).map(tick).collect()
    }
}

/// Value of 1, 2 or 5 times a power of ten about `value`, among those that `fit`, that `choose` prefers.
fn around(value: f64, choose: fn(f64, f64) -> f64, start: f64, fit: impl Fn(f64) -> bool) -> f64 {
    let decade = value.log10().floor() as i32;
    let decades = decade - 1..=decade + 1;
    let round = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|factor| factor * 10f64.powi(decade)));
    round.filter(|round| fit(*round)).fold(start, choose)
}

/// The step of 1, 2 or 5 times a power of ten that divides `span` into about `count` parts.
fn nice_step(span: f64, count: usize) -> f64 {
    let rough = span / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let factor = match rough / power {
        f if f <= 1.0 + 1e-9 => 1.0,
        f if f <= 2.0 + 1e-9 => 2.0,
        f if f <= 5.0 + 1e-9 => 5.0,
        _ => 10.0,
    };
    factor * power
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(scale: Scale, count: usize) -> Vec<String> {
        scale.ticks(count).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(Scale::linear(0.0, 60.0, 0.0, 1.0), 6), ["0", "10", "20", "30", "40", "50", "60"]);
        assert_eq!(labels(Scale::linear(0.0, 0.3, 0.0, 1.0), 3), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(Scale::logarithmic(0.9, 4.0e4, 0.0, 1.0), 5), ["1", "10", "100", "1000", "10000"]);
        assert_eq!(labels(Scale::logarithmic(0.2, 8.0, 0.0, 1.0), 5), ["0.2", "0.5", "1", "2", "5", "10"]);
    }

    #[test]
    fn impossible_domains_still_give_an_axis() {
        for scale in [
            Scale::linear(f64::NAN, 1.0, 0.0, 9.0),
            Scale::linear(5.0, 5.0, 0.0, 9.0),
            Scale::from_zero(f64::INFINITY, 0.0, 9.0),
            Scale::logarithmic(0.0, 0.0, 0.0, 9.0),
        ] {
            assert!(scale.ticks(5).len() >= 2);
            assert!(scale.ticks(5).iter().all(|tick| scale.position(tick.value).is_finite()));
        }
    }

    proptest! {
        #[test]
        fn ticks_lie_in_order_within_the_axis_and_are_neither_few_nor_many(
            low in -1e9f64..1e9, span in 1e-3f64..1e9, count in 3usize..9,
        ) {
            let scale = Scale::linear(low, low + span, 0.0, 100.0);
            let ticks = scale.ticks(count);
            prop_assert!((1..=count + 2).contains(&ticks.len()), "{ticks:?}");
            prop_assert!(ticks.windows(2).all(|pair| pair[0].value < pair[1].value));
            let slack = span * 1e-6;
            prop_assert!(ticks.iter().all(|t| t.value >= low - slack && t.value <= low + span + slack));
        }

        #[test]
        fn an_axis_from_zero_holds_its_greatest_value_at_most_twice_over(greatest in 1e-6f64..1e15) {
            let (low, high) = Scale::from_zero(greatest, 0.0, 1.0).domain();
            prop_assert_eq!(low, 0.0);
            prop_assert!(high >= greatest * (1.0 - 1e-6) && high <= greatest * 2.0);
        }

        #[test]
        fn a_logarithmic_axis_holds_its_values_and_has_ticks(least in 1e-6f64..1e9, ratio in 1.0f64..1e6) {
            let scale = Scale::logarithmic(least, least * ratio, 0.0, 1.0);
            let (low, high) = scale.domain();
            prop_assert!(low <= least * (1.0 + 1e-6) && high >= least * ratio * (1.0 - 1e-6));
            prop_assert!((2..=14).contains(&scale.ticks(5).len()), "{:?}", scale.ticks(5));
        }

        #[test]
        fn positions_grow_with_values(a in 1e-3f64..1e6, b in 1e-3f64..1e6) {
            for scale in [Scale::linear(1e-3, 1e6, 0.0, 300.0), Scale::logarithmic(1e-3, 1e6, 0.0, 300.0)] {
                prop_assert_eq!(a < b, scale.position(a) < scale.position(b));
            }
        }
    }
}
