//! What a cause costs: the rate without it, by the response functions of `path-plan` and the path as it was measured.

use crate::{
    cause::Cause,
    remedy,
    verdict::{Assumed, Figures, Price, Share},
    words::size,
};
use longfat_path_plan::{HEADER_BYTES, Limit, PathSpec};
use longfat_schema::units::{Nanos, Rate};

/// Adds prices to causes whose end would let the connection be faster.
pub fn add(shares: &mut [Share], figures: &Figures, assumed: &Assumed) {
    for share in shares {
        share.without = share.cause.is_fault().then(|| price(share, figures, assumed)).flatten();
    }
}

/// The rate with what `--fix` sets: for most causes that without the cause.
pub fn of_remedy(share: &Share, figures: &Figures) -> Option<Price> {
    match share.cause {
        Cause::Policer => Some(Price {
            least_bps: remedy::BELOW_POLICER * figures.rate_bps,
            most_bps: Some(figures.rate_bps),
            then: "the policer's rate is all there is, without losses".to_owned(),
        }),
        _ => share.without.clone(),
    }
}

fn price(share: &Share, figures: &Figures, assumed: &Assumed) -> Option<Price> {
    match share.cause {
        // Turns end with the program's way of speaking; what it would send then is not known.
        Cause::AnswerAwaited | Cause::Nagle | Cause::LostSyns | Cause::NoAnswer | Cause::PacketSize => None,
        // What a policer lets pass for a moment is no rate that the path carries on.
        Cause::Policer => of_path(figures, assumed.path_rate, 0.0).or_else(|| at_least(figures)),
        // What was lost is the cause.
        Cause::RandomLoss | Cause::AfterLoss => of(figures, assumed, 0.0),
        Cause::Timeouts => of_the_rest(share, figures, assumed),
        Cause::SendBuffer => of_buffer(figures, assumed),
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
    let rate = Rate((figures.best_bps * figures.packet_over_payload()) as u64);
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

/// What it carries while it is not silent goes on all the time.
fn of_the_rest(share: &Share, figures: &Figures, assumed: &Assumed) -> Option<Price> {
    let path = of(figures, assumed, 0.0)?;
    let rest_bps = figures.rate_bps / (1.0 - share.share).max(1e-3);
    Some(bounded(path, figures.rate_bps, rest_bps, "what else holds it stays"))
}

/// The remedy's buffer is a bound, too: what the kernel lets be under way of it, once a round trip.
fn of_buffer(figures: &Figures, assumed: &Assumed) -> Option<Price> {
    let path = of(figures, assumed, figures.resent_share)?;
    let buffer = remedy::send_buffer_bytes(figures, assumed.path_rate);
    let rtt_s = f64::from(figures.least_rtt_us.max(1)) / 1e6;
    let most_bps = buffer as f64 * remedy::payload_share(figures) * 8.0 / rtt_s;
    let then = format!("a send buffer of {} limits again", size(buffer));
    Some(bounded(path, remedy::LEAST_FILLED * most_bps, most_bps, &then))
}

/// No more than a second bound allows, which is said where it is the lower one.
fn bounded(price: Price, least_bps: f64, most_bps: f64, then: &str) -> Price {
    if price.most_bps.is_some_and(|most| most <= least_bps) {
        return price;
    }
    let is_lower = price.most_bps.is_none_or(|most| most_bps < most);
    Price {
        least_bps: price.least_bps.min(least_bps),
        most_bps: Some(price.most_bps.map_or(most_bps, |most| most.min(most_bps))),
        then: if is_lower { then.to_owned() } else { price.then },
    }
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

    #[test]
    fn a_larger_send_buffer_carries_what_the_kernel_lets_be_under_way_of_it() {
        // bench/why/results/2026-11-24/proofs.jsonl: 43 Mbit/s with 1 MiB over 120 ms, 9/10 of what is held is payload.
        let small = Figures {
            sndbuf_bytes: 131_072,
            sndbuf_payload_share: 0.9,
            least_rtt_us: 120_000,
            best_bps: 0.0,
            ..figures()
        };
        let price = of_buffer(&small, &assumed(None)).unwrap();
        assert!(price.least_bps <= 4.3e7 && price.most_bps.unwrap() >= 4.3e7, "{price:?}");
        assert!(price.most_bps.unwrap() <= 6.4e7 && price.then.contains("1.0 MiB"), "{price:?}");
        let known = of_buffer(&small, &assumed(Some("100Mbit"))).unwrap();
        assert!(known.most_bps.unwrap() > 9e7 && known.then.contains("path is full"), "{known:?}");
    }

    #[test]
    fn what_carries_for_half_of_the_time_carries_twice_as_much_without_the_silence() {
        let share = Share {
            cause: Cause::Timeouts,
            time_us: 1,
            share: 0.5,
            basis: crate::Basis::Kernel,
            evidence: String::new(),
            without: None,
        };
        let price = price(&share, &figures(), &assumed(Some("100Mbit"))).unwrap();
        assert_eq!((price.least_bps, price.most_bps), (1e7, Some(2e7)));
        let price = super::price(&share, &figures(), &assumed(Some("12Mbit"))).unwrap();
        assert!(price.most_bps.unwrap() < 1.2e7, "the path carries no more: {price:?}");
    }

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
