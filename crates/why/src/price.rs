//! What a cause costs: the rate without it, by the response functions of `path-plan` and the path as it was measured.

use crate::{
    cause::Cause,
    judge::{Assumed, Figures, Share},
};
use longfat_path_plan::{HEADER_BYTES, Limit, PathSpec};
use longfat_schema::units::{Nanos, Rate};
use serde::Serialize;

/// Payload per second without a cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Price {
    /// At the least.
    pub least_bps: f64,
    /// At the most; absent where the path's rate is not known.
    pub most_bps: Option<f64>,
    /// What holds it then.
    pub then: String,
}

/// Adds prices to causes whose end would let the connection be faster.
pub fn add(shares: &mut [Share], figures: &Figures, assumed: &Assumed) {
    for share in shares {
        share.without = share.cause.is_fault().then(|| price(share, figures, assumed)).flatten();
    }
}

fn price(share: &Share, figures: &Figures, assumed: &Assumed) -> Option<Price> {
    match share.cause {
        // Turns end with the program's way of speaking; what it would send then is not known.
        Cause::AnswerAwaited | Cause::Nagle | Cause::LostSyns | Cause::PacketSize => None,
        // What a policer lets pass for a moment is no rate that the path carries on.
        Cause::Policer => of_path(figures, assumed.path_rate, 0.0).or_else(|| at_least(figures)),
        Cause::RandomLoss => of(figures, assumed, 0.0),
        _ => of(figures, assumed, figures.resent_share),
    }
}

/// By the path's rate where it is known, else by the best that it has shown, else from below.
fn of(figures: &Figures, assumed: &Assumed, loss: f64) -> Option<Price> {
    let known = of_path(figures, assumed.path_rate, loss);
    known.or_else(|| of_shown(figures, loss)).or_else(|| at_least(figures))
}

/// A rate that is less above the mean than this says nothing of the path's.
const SHOWN_ABOVE: f64 = 1.1;

/// The path has shown a greater rate in this watch (RACK's delivery rate, over a round trip at the least): it carries
/// that, if not more.
fn of_shown(figures: &Figures, loss: f64) -> Option<Price> {
    let wire = f64::from(figures.mss_bytes + HEADER_BYTES) / f64::from(figures.mss_bytes.max(1));
    let rate = Rate((figures.best_bps * wire) as u64);
    let shown = of_path(figures, Some(rate), loss)?;
    let then = format!("{}, as far as this watch has seen it", shown.then);
    (figures.best_bps > SHOWN_ABOVE * figures.rate_bps).then_some(Price { then, ..shown })
}

/// The path's rate is not known: what was reached is the bound from below.
fn at_least(figures: &Figures) -> Option<Price> {
    (figures.rate_bps > 0.0).then(|| Price {
        least_bps: figures.rate_bps,
        most_bps: None,
        then: "the path's rate is not known from here (--rate gives it)".to_owned(),
    })
}

/// Loss beyond which `path-plan` does not go.
const MOST_LOSS: f64 = 0.1;

/// What one CUBIC flow gets on the path, by its saw-tooth.
fn of_path(figures: &Figures, path_rate: Option<Rate>, loss: f64) -> Option<Price> {
    let path = PathSpec {
        rate: path_rate?,
        rtt: Nanos(u64::from(figures.least_rtt_us) * 1000),
        mtu_bytes: (figures.mss_bytes + HEADER_BYTES).clamp(1280, 65_535),
        loss: loss.min(MOST_LOSS),
        flows: 1,
        queue: None,
    };
    let plan = path.plan().ok()?;
    let forecast = plan.forecasts.iter().find(|forecast| forecast.cc == "cubic")?;
    let expected = forecast.goodput.0 as f64;
    let most = (expected * forecast.within_factor).min(plan.goodput_max_bps as f64);
    Some(Price {
        least_bps: (expected / forecast.within_factor).min(most).max(figures.rate_bps),
        most_bps: Some(most.max(figures.rate_bps)),
        then: then(forecast.limit).to_owned(),
    })
}

fn then(limit: Limit) -> &'static str {
    match limit {
        Limit::Path => "the path is full",
        Limit::Queue => "the path's queue limits",
        Limit::Loss => "loss limits",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 Mbit/s over 20 ms, where 40 were seen for a while.
    fn figures() -> Figures {
        Figures { rate_bps: 1e7, best_bps: 4e7, least_rtt_us: 20_000, mss_bytes: 1448, ..Figures::default() }
    }

    fn assumed(rate: Option<&str>) -> Assumed {
        Assumed { path_rate: rate.map(|rate| rate.parse().unwrap()) }
    }

    #[test]
    fn without_a_given_rate_the_best_that_was_seen_is_the_paths() {
        let price = of(&figures(), &assumed(None), 0.0).unwrap();
        let most = price.most_bps.unwrap();
        assert!((3.9e7..=4.01e7).contains(&most) && price.least_bps >= 2.5e7, "{price:?}");
        assert!(price.then.contains("as far as this watch has seen it"), "{price:?}");
    }

    #[test]
    fn a_given_rate_comes_first_and_one_that_was_not_exceeded_tells_nothing() {
        let price = of(&figures(), &assumed(Some("100Mbit")), 0.0).unwrap();
        assert!(price.most_bps.unwrap() > 9e7, "{price:?}");
        let steady = Figures { best_bps: 1.05e7, ..figures() };
        let price = of(&steady, &assumed(None), 0.0).unwrap();
        assert_eq!((price.least_bps, price.most_bps), (1e7, None));
    }
}
