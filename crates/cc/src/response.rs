//! What an algorithm's window does over a whole saw-tooth, as real numbers: the response functions of its reference
//! ([`mean_window`]), and the cycle of growth and loss on a path of given size ([`Law::cycle`]).
//!
//! The code in `cc/` acts on one acknowledgement at a time; here stands what its authors derived from that. Tests hold
//! the two against each other. Parameters are the algorithm's tunables, so that each stands once.

use crate::{Tunables, table};

/// Mean window of the standard response under one loss in every 1/p segments, `sqrt(3/(2p))`: RFC 5681 grown by one
/// segment per round trip and halved (Mathis et al. 1997; RFC 3649, section 2, rounds it to 1.2/sqrt(p)).
pub fn reno(p: f64) -> f64 {
    (1.5 / p).sqrt()
}

/// RFC 3649, section 5: `0.12 / p^0.835`, and the standard response where that gives at most Low_Window.
pub fn highspeed(p: f64) -> f64 {
    let window = 0.12 / p.powf(0.835);
    if window > table::LOW_WINDOW { window } else { reno(p) }
}

/// Mean over the round trips of Kelly's saw-tooth, which grows by `1 + a` in each: `a / (p ln(1/(1-b)))`.
pub fn scalable(a: f64, b: f64, p: f64) -> f64 {
    a / p / -(1.0 - b).ln()
}

/// RFC 9438, section 5.1: `(C (3 + beta) / (4 (1 - beta)))^(1/4) (RTT / p)^(3/4)`, and the standard response where that
/// is more (the Reno-friendly region, section 4.3).
pub fn cubic(c: f64, beta: f64, p: f64, rtt_s: f64) -> f64 {
    let curve = (c * (3.0 + beta) / (4.0 * (1.0 - beta))).powf(0.25) * (rtt_s / p).powf(0.75);
    curve.max(reno(p))
}

/// Mean window in segments under one loss in every 1/p segments on a path that is never the limit; absent for an
/// algorithm whose window is not a function of loss.
pub fn mean_window(tunables: &Tunables, p: f64, rtt_s: f64) -> Option<f64> {
    Some(match Law::of(tunables)? {
        Law::Reno | Law::Vegas { .. } => reno(p),
        Law::HighSpeed => highspeed(p),
        Law::Scalable { a, b, legacy } => Some(scalable(a, b, p)).filter(|w| *w > legacy).unwrap_or(reno(p)),
        Law::Cubic { c, beta } => cubic(c, beta, p, rtt_s),
        law @ Law::Bic { .. } => law.cycle(&Bounds::loss_only(p, rtt_s)).mean_window,
    })
}

/// Loss rate under which the mean window is `window` segments: the least often that losses must come for it to be held.
pub fn loss_rate(tunables: &Tunables, window: f64, rtt_s: f64) -> Option<f64> {
    // Every response falls with p: bisection on its logarithm.
    let (mut low, mut high) = (-15.0, 0.0);
    for _ in 0..48 {
        let middle = f64::midpoint(low, high);
        let more = mean_window(tunables, 10f64.powf(middle), rtt_s)? > window;
        if more { low = middle } else { high = middle }
    }
    Some(10f64.powf(f64::midpoint(low, high)))
}

/// Saw-teeth lower than this are followed in sixteenths of a round trip: BIC's last steps are a large part of them.
const FINE_BELOW_SEGMENTS: f64 = 4096.0;
/// A window that a round trip's growth raises by less than this part of its height is followed by several round trips
/// at once: a saw-tooth takes no more steps than that, however high it is.
const STEPS_MOST: f64 = 100_000.0;

/// How a window grows and falls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Law {
    /// One segment per round trip, half at a loss.
    Reno,
    /// a(w) and b(w) of RFC 3649.
    HighSpeed,
    /// A part of the window per round trip.
    Scalable {
        /// Increase per acknowledged segment.
        a: f64,
        /// Decrease at a loss.
        b: f64,
        /// Up to this window it is Reno.
        legacy: f64,
    },
    /// A search for the window of the last loss.
    Bic {
        /// S_max, segments per round trip.
        s_max: f64,
        /// B: the part of the distance taken per round trip.
        divisor: f64,
        /// B / S_min.
        smooth: f64,
        /// Part of the window kept at a loss.
        beta: f64,
        /// Up to this window it is Reno.
        low: f64,
    },
    /// A cubic function of the time since the loss.
    Cubic {
        /// Segments per s^3.
        c: f64,
        /// Part of the window kept at a loss.
        beta: f64,
    },
    /// Holds `queued` segments in the queue where there is room; otherwise Reno.
    Vegas {
        /// Between alpha and beta.
        queued: f64,
    },
}

/// Where a window is in its saw-tooth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// Window at the last loss, in segments.
    pub w_max: f64,
    /// Time since it.
    pub since_s: f64,
    /// Round trips since it.
    pub round_trips: f64,
}

/// What ends the growth of a window, and how long a round trip is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// One loss in every 1/p segments; 0 for none.
    pub p: f64,
    /// Round-trip time without a queue.
    pub rtt_s: f64,
    /// Window that fills the path; a larger one waits in the queue. Infinite: never.
    pub pipe_segments: f64,
    /// Window at which the queue is full and a segment is lost. Infinite: never.
    pub room_segments: f64,
}

impl Bounds {
    fn loss_only(p: f64, rtt_s: f64) -> Bounds {
        Bounds { p, rtt_s, pipe_segments: f64::INFINITY, room_segments: f64::INFINITY }
    }
}

/// One saw-tooth in the steady state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cycle {
    /// Window at the loss.
    pub w_max: f64,
    /// Mean over its round trips.
    pub mean_window: f64,
    /// Segments it carries.
    pub segments: f64,
    /// How long it lasts.
    pub period_s: f64,
    /// Most that it grows in a round trip, in segments.
    pub steepest: f64,
    /// The queue was full before a loss of another cause came.
    pub by_overflow: bool,
    /// Whether the window comes to rest, so that no loss follows.
    pub settles: bool,
}

impl Cycle {
    /// Segments per second.
    pub fn rate(&self) -> f64 {
        self.segments / self.period_s
    }
}

impl Law {
    /// Law of an algorithm with its tunables; absent where none is known.
    pub fn of(tunables: &Tunables) -> Option<Law> {
        let value = |name: &str| {
            let found = tunables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| f64::from(value))
        };
        Some(match tunables.algorithm().name() {
            "reno" => Law::Reno,
            "highspeed" => Law::HighSpeed,
            "scalable" => Law::Scalable {
                a: value("increase_permille")? / 1000.0,
                b: value("decrease_permille")? / 1000.0,
                legacy: value("legacy_window_segments")?,
            },
            "bic" => Law::Bic {
                s_max: value("max_increment_segments")?,
                divisor: value("search_divisor")?,
                smooth: value("smooth_round_trips")?,
                beta: value("beta_1024")? / 1024.0,
                low: value("low_window_segments")?,
            },
            "cubic" => {
                Law::Cubic { c: value("c_permille")? / 1000.0, beta: value("beta_permille")? / 1000.0 }
            }
            "vegas" => {
                Law::Vegas { queued: f64::midpoint(value("alpha_segments")?, value("beta_segments")?) }
            }
            _ => return None,
        })
    }

    /// Part of a window of `w` segments that a loss leaves.
    pub fn kept(&self, w: f64) -> f64 {
        match *self {
            Law::Reno | Law::Vegas { .. } => 0.5,
            Law::HighSpeed if w > table::LOW_WINDOW => 1.0 - table::decrease(w.min(table::TABLE_END)),
            Law::Scalable { b, legacy, .. } if w > legacy => 1.0 - b,
            Law::Bic { beta, low, .. } if w > low => beta,
            Law::Cubic { beta, .. } => beta,
            Law::HighSpeed | Law::Scalable { .. } | Law::Bic { .. } => 0.5,
        }
    }

    /// The window one round trip of `rtt_s` after it was `w`.
    pub fn grown(&self, w: f64, phase: &Phase, rtt_s: f64) -> f64 {
        match *self {
            Law::Reno | Law::Vegas { .. } => w + 1.0,
            Law::HighSpeed if w > table::LOW_WINDOW => w + table::increase(w.min(table::TABLE_END)),
            Law::HighSpeed => w + 1.0,
            Law::Scalable { a, legacy, .. } => w + if w > legacy { a * w } else { 1.0 },
            Law::Bic { s_max, divisor, smooth, low, .. } if w > low => {
                w + bic_step(w, phase.w_max, s_max, divisor, divisor / smooth)
            }
            Law::Bic { .. } => w + 1.0,
            Law::Cubic { c, beta } => cubic_window(c, beta, phase, rtt_s).clamp(w, 1.5 * w),
        }
    }

    /// The saw-tooth that repeats itself between `bounds`, of which `p` or `room_segments` must be finite: it ends
    /// where it began, at a full queue or after the 1/p segments that separate two losses.
    pub fn cycle(&self, bounds: &Bounds) -> Cycle {
        let segments_to_loss = if bounds.p > 0.0 { 1.0 / bounds.p } else { f64::INFINITY };
        if let Some(resting) = self.resting(bounds, segments_to_loss) {
            return resting;
        }
        if bounds.room_segments.is_finite() {
            let full = self.tooth(bounds.room_segments, bounds);
            if full.segments <= segments_to_loss {
                return Cycle { by_overflow: true, ..full };
            }
        }
        // A higher saw-tooth carries more: bisection on the logarithm of its height.
        let (mut low, mut high) = (1f64, bounds.room_segments.min(1e12).ln());
        for _ in 0..44 {
            let middle = f64::midpoint(low, high);
            let more = self.tooth(middle.exp(), bounds).segments > segments_to_loss;
            if more { high = middle } else { low = middle }
        }
        self.tooth(f64::midpoint(low, high).exp(), bounds)
    }

    /// Where there is room for what Vegas queues it grows up to that, and stays.
    fn resting(&self, bounds: &Bounds, segments_to_loss: f64) -> Option<Cycle> {
        let Law::Vegas { queued } = self else { return None };
        let rest = bounds.pipe_segments + queued;
        let grown = (rest < bounds.room_segments).then(|| self.tooth(rest, bounds))?;
        let at_rest = segments_to_loss - grown.segments;
        if segments_to_loss.is_infinite() {
            let (segments, period_s) = (bounds.pipe_segments, bounds.rtt_s);
            return Some(Cycle { mean_window: rest, segments, period_s, settles: true, ..grown });
        }
        (at_rest > 0.0).then(|| {
            let rest_s = at_rest * bounds.rtt_s / bounds.pipe_segments;
            let round_trips = grown.segments / grown.mean_window + at_rest / rest;
            let mean_window = segments_to_loss / round_trips;
            let period_s = grown.period_s + rest_s;
            Cycle { mean_window, segments: segments_to_loss, period_s, ..grown }
        })
    }

    /// Round trips that one step of a saw-tooth takes, where the window grows by `growth` in one. CUBIC's growth
    /// follows the time since the loss, also where it is none; the time it takes is short without that.
    fn step(&self, w_max: f64, growth: f64) -> f64 {
        match self {
            _ if w_max < FINE_BELOW_SEGMENTS => 1.0 / 16.0,
            Law::Cubic { .. } => 1.0,
            _ => (w_max / STEPS_MOST / growth).max(1.0),
        }
    }

    /// The saw-tooth from a loss at `w_max` back to it, round trip by round trip (or [`STEPS_MOST`] steps), a part of
    /// the last one as a part; cut off once it has carried as much as any loss rate of `bounds` allows.
    fn tooth(&self, w_max: f64, bounds: &Bounds) -> Cycle {
        let enough = if bounds.p > 0.0 { 2.0 / bounds.p } else { f64::INFINITY };
        let mut w = self.kept(w_max) * w_max;
        let (mut segments, mut steepest, mut phase) =
            (0.0, 0f64, Phase { w_max, since_s: 0.0, round_trips: 0.0 });
        while w < w_max && segments < enough {
            let rtt_s = bounds.rtt_s * (w / bounds.pipe_segments).max(1.0);
            let growth = self.grown(w, &phase, rtt_s) - w;
            steepest = steepest.max(growth);
            let step = self.step(w_max, growth);
            let part = ((w_max - w) / growth).min(step);
            let next = if part < step { w_max } else { w + step * growth };
            segments += part * f64::midpoint(w, next);
            phase.since_s += part * rtt_s;
            phase.round_trips += part;
            w = next;
        }
        let mean_window = segments / phase.round_trips;
        Cycle {
            w_max: w,
            mean_window,
            segments,
            period_s: phase.since_s,
            steepest,
            by_overflow: false,
            settles: false,
        }
    }

    /// Time to grow again to `window` after a loss there, on a path without a queue.
    pub fn recovery_s(&self, window: f64, rtt_s: f64) -> f64 {
        let bounds = Bounds { p: 0.0, rtt_s, pipe_segments: window, room_segments: window };
        self.tooth(window, &bounds).period_s
    }

    /// Queue, in segments, that keeps a path of `pipe_segments` busy through one loss at a full queue: what is left of
    /// the window must fill the path, `kept(pipe + queue) (pipe + queue) = pipe`.
    pub fn queue_segments(&self, pipe_segments: f64) -> f64 {
        if let Law::Vegas { queued } = self {
            return *queued;
        }
        // kept() changes slowly with the window; a few substitutions are exact to a segment.
        let room = (0..20).fold(2.0 * pipe_segments, |room, _| pipe_segments / self.kept(room));
        room - pipe_segments
    }
}

/// Growth of BIC-TCP in a round trip (Xu 2004, as `cc/algorithms/bic.h` states it).
fn bic_step(w: f64, w_max: f64, s_max: f64, divisor: f64, s_min: f64) -> f64 {
    let distance = w_max - w;
    let step = match distance {
        below if below >= 2.0 * divisor => below / divisor,
        near if near > -divisor => s_min,
        above => -above / (divisor - 1.0),
    };
    step.min(s_max)
}

/// The greater of W_cubic(t + RTT) and W_est one round trip on (RFC 9438, sections 4.2 and 4.3).
fn cubic_window(c: f64, beta: f64, phase: &Phase, rtt_s: f64) -> f64 {
    let k = (phase.w_max * (1.0 - beta) / c).cbrt();
    let curve = c * (phase.since_s + rtt_s - k).powi(3) + phase.w_max;
    let alpha = 3.0 * (1.0 - beta) / (1.0 + beta);
    let until_regained = phase.w_max * (1.0 - beta) / alpha;
    let rounds = phase.round_trips + 1.0;
    let friendly =
        beta * phase.w_max + alpha * rounds.min(until_regained) + (rounds - until_regained).max(0.0);
    curve.max(friendly)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algorithm;

    fn defaults(name: &str) -> Tunables {
        Tunables::defaults(Algorithm::find(name).unwrap())
    }

    const LOSS_BASED: [&str; 5] = ["reno", "highspeed", "scalable", "bic", "cubic"];

    #[test]
    fn the_cycle_under_losses_alone_has_the_mean_window_of_the_response_function() {
        for name in LOSS_BASED {
            for p in [1e-3, 1e-4, 1e-5, 1e-6] {
                let tunables = defaults(name);
                let expected = mean_window(&tunables, p, 0.1).unwrap();
                let got = Law::of(&tunables).unwrap().cycle(&Bounds::loss_only(p, 0.1)).mean_window;
                // CUBIC follows whichever of its two curves is ahead, the formulas the greater of their means.
                assert!((got / expected - 1.0).abs() < 0.08, "{name} at {p:e}: {got} against {expected}");
            }
        }
    }

    #[test]
    fn the_loss_rate_for_a_window_gives_that_window() {
        for name in LOSS_BASED {
            for window in [100.0, 5_000.0, 83_000.0] {
                let p = loss_rate(&defaults(name), window, 0.1).unwrap();
                let back = mean_window(&defaults(name), p, 0.1).unwrap();
                assert!((back / window - 1.0).abs() < 0.01, "{name}: {window} at {p:e}, back {back}");
            }
        }
    }

    #[test]
    fn the_standard_needs_a_loss_in_five_billion_segments_and_highspeed_in_ten_million_at_10_gbit_per_s() {
        // RFC 3649, section 1 and 5: 83,333 segments; 2e-10 and 1e-7.
        let p = |name: &str| loss_rate(&defaults(name), 83_333.0, 0.1).unwrap();
        assert!((p("reno") / 2.16e-10 - 1.0).abs() < 0.01, "{:e}", p("reno"));
        assert!((p("highspeed") / 1e-7 - 1.0).abs() < 0.05, "{:e}", p("highspeed"));
    }

    #[test]
    fn a_queue_of_one_pipe_keeps_reno_busy_and_smaller_falls_suffice_with_less() {
        let queue = |name: &str| Law::of(&defaults(name)).unwrap().queue_segments(1000.0);
        for (name, expected) in
            [("reno", 1000.0), ("scalable", 1000.0 / 7.0), ("cubic", 3000.0 / 7.0), ("bic", 250.3)]
        {
            assert!((queue(name) - expected).abs() < 1.0, "{name}: {}", queue(name));
        }
        let highspeed = queue("highspeed");
        let room = 1000.0 + highspeed;
        assert!((room * (1.0 - table::decrease(room)) - 1000.0).abs() < 1.0, "{highspeed}");
    }

    #[test]
    fn without_a_queue_reno_fills_three_quarters_of_a_path_and_with_enough_all_of_it() {
        let rate = |queue: f64| {
            let bounds = Bounds { p: 0.0, rtt_s: 0.1, pipe_segments: 1000.0, room_segments: 1000.0 + queue };
            Law::Reno.cycle(&bounds).rate() / 10_000.0
        };
        assert!((rate(0.0) - 0.75).abs() < 0.001, "{}", rate(0.0));
        assert!(rate(1000.0) > 0.9999, "{}", rate(1000.0));
        assert!(rate(500.0) > rate(100.0) && rate(500.0) < 0.999);
    }

    #[test]
    fn a_loss_costs_reno_half_a_window_of_round_trips_and_scalable_fourteen() {
        assert!((Law::Reno.recovery_s(83_333.0, 0.1) / 60.0 - 69.4).abs() < 0.2);
        let scalable = Law::of(&defaults("scalable")).unwrap().recovery_s(83_333.0, 0.1);
        assert!((1.3..1.4).contains(&scalable), "{scalable}");
    }

    #[test]
    fn a_saw_tooth_of_any_height_is_followed_in_a_bounded_number_of_steps() {
        // 10 Tbit/s over 100 s: round trip by round trip, Reno's would take 4e10.
        let window = 8.3e10;
        let recovery = |name: &str| Law::of(&defaults(name)).unwrap().recovery_s(window, 1.0);
        assert!((recovery("reno") / (window / 2.0) - 1.0).abs() < 1e-4, "{}", recovery("reno"));
        let Some(Law::Bic { beta, s_max, .. }) = Law::of(&defaults("bic")) else { panic!() };
        let bic = (1.0 - beta) * window / s_max;
        assert!((recovery("bic") / bic - 1.0).abs() < 0.03, "{} against {bic}", recovery("bic"));
        let highspeed = table::decrease(table::TABLE_END) * window / table::increase(table::TABLE_END);
        assert!((recovery("highspeed") / highspeed - 1.0).abs() < 1e-3, "{}", recovery("highspeed"));
        assert!(LOSS_BASED.iter().all(|name| loss_rate(&defaults(name), window, 100.0).is_some()));
        // Where a step begins to be more than a round trip, nothing jumps.
        let exact = Law::Reno.recovery_s(99_999.0, 0.1) / 99_999.0;
        assert!((Law::Reno.recovery_s(400_001.0, 0.1) / 400_001.0 / exact - 1.0).abs() < 1e-4);
    }

    #[test]
    fn an_unknown_law_has_no_response() {
        for algorithm in Algorithm::all() {
            let tunables = Tunables::defaults(algorithm);
            let known = LOSS_BASED.contains(&algorithm.name()) || algorithm.name() == "vegas";
            assert_eq!(mean_window(&tunables, 1e-4, 0.1).is_some(), known, "{algorithm:?}");
        }
    }
}
