//! What a cause costs: the rate without it, by the response functions of `path-plan` and the path as it was measured.

use crate::{
    cause::Cause,
    judge::{Assumed, Figures, Share},
};
use longfat_path_plan::{HEADER_BYTES, Limit, PathSpec};
use longfat_schema::units::Nanos;
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
        Cause::RandomLoss | Cause::Policer => of_path(figures, assumed, 0.0).or_else(|| at_least(figures)),
        _ => of_path(figures, assumed, figures.resent_share).or_else(|| at_least(figures)),
    }
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
fn of_path(figures: &Figures, assumed: &Assumed, loss: f64) -> Option<Price> {
    let path = PathSpec {
        rate: assumed.path_rate?,
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
