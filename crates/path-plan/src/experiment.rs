//! The experiment that checks a plan, as a file for `longfat lab run`: one case per congestion control, each expected
//! to get what the plan says.

use crate::{Forecast, Limit, PathError, PathPlan};
use longfat_schema::units::{Nanos, Size};
use std::{fmt, fmt::Write as _, str::FromStr};

/// Bounds of a run: longer ones are exact, but somebody waits for them.
const WARMUP_S: (f64, f64) = (4.0, 30.0);
const DURATION_S: (f64, f64) = (10.0, 120.0);
/// Saw-teeth that a mean should be taken over, and how many are let go by first.
const COUNTED_PERIODS: f64 = 12.0;
const SETTLING_PERIODS: f64 = 3.0;
/// Fewer, and the run says nothing about the mean.
const LEAST_PERIODS: f64 = 2.0;
/// A start that ends only where the path is full may take this much longer than it was reckoned, and at most so long.
const START_MARGIN: f64 = 1.25;
const LONGEST_START_S: f64 = 120.0;

/// The experiment's name, from the path's figures: `plan-1Gbit-28ms`.
pub fn experiment_name(plan: &PathPlan) -> String {
    let path = &plan.path;
    let mut name = format!("plan-{}-{}", path.rate, path.rtt);
    if path.loss > 0.0 {
        let rounded = format!("{:.1e}", path.loss).parse().unwrap_or(path.loss);
        let _ = write!(name, "-loss{}", number(rounded));
    }
    if path.flows > 1 {
        let _ = write!(name, "-{}flows", path.flows);
    }
    name.replace('.', "_")
}

/// Most connections of one flow that the lab takes.
pub const STREAMS_MAX: u32 = 1000;

/// The experiment file, TOML.
///
/// # Errors
/// The plan has more flows than a flow of an experiment has connections.
pub fn experiment(plan: &PathPlan) -> Result<String, PathError> {
    if plan.path.flows > STREAMS_MAX {
        return Err(PathError::Connections(plan.path.flows));
    }
    let span = Span::of(plan);
    let mut text = head(plan, &span);
    text.push_str(&setting(plan));
    plan.forecasts.iter().for_each(|forecast| text.push_str(&case(forecast, &span)));
    Ok(text)
}

/// How long a run takes.
struct Span {
    warmup_s: f64,
    duration_s: f64,
}

impl Span {
    /// As every case has it but those that start more slowly.
    fn of(plan: &PathPlan) -> Span {
        let unfilled = |forecast: &Forecast| match (forecast.limit, forecast.period) {
            (Limit::Path, _) | (_, None) => 0.0,
            (_, Some(period)) => seconds(period),
        };
        let period_s = plan.forecasts.iter().map(unfilled).fold(0.0, f64::max);
        let start_s =
            plan.forecasts.iter().map(|forecast| seconds(forecast.slow_start)).fold(f64::INFINITY, f64::min);
        Span {
            warmup_s: (4.0 * start_s).max(SETTLING_PERIODS * period_s).clamp(WARMUP_S.0, WARMUP_S.1).ceil(),
            duration_s: (COUNTED_PERIODS * period_s).clamp(DURATION_S.0, DURATION_S.1).ceil(),
        }
    }

    /// The warm-up that one congestion control needs beyond the common one: a window that fills the path at last is no
    /// window of a start. Absent where the common one is enough.
    fn longer_warmup_s(&self, forecast: &Forecast) -> Option<f64> {
        let needed_s = (START_MARGIN * seconds(forecast.slow_start)).ceil();
        (forecast.limit == Limit::Path && needed_s > self.warmup_s).then_some(needed_s)
    }

    /// Why a run is too short to show the mean.
    fn hides(&self, forecast: &Forecast) -> Option<String> {
        if let Some(needed_s) = self.longer_warmup_s(forecast).filter(|needed_s| *needed_s > LONGEST_START_S)
        {
            return Some(format!("it fills the path only after about {needed_s} s"));
        }
        let period = forecast.period.filter(|_| forecast.limit != Limit::Path)?;
        let is_long = seconds(period) * LEAST_PERIODS > self.duration_s;
        is_long.then(|| format!("one saw-tooth takes {period}, a run {} s", self.duration_s))
    }
}

fn seconds(span: Nanos) -> f64 {
    span.0 as f64 / 1e9
}

fn head(plan: &PathPlan, span: &Span) -> String {
    let PathPlan { path, .. } = plan;
    let flows = if path.flows == 1 { "one flow".into() } else { format!("{} flows", path.flows) };
    let name = experiment_name(plan);
    format!(
        "# Written by 'longfat path'. Each case is one congestion control alone on the path; its goodput is expected within a\n\
         # factor of what its response function says. Run it either way:\n\
         #\n\
         #   longfat lab run {name}.toml --backend sim\n\
         #   sudo longfat lab run {name}.toml\n\n\
         name = \"{name}\"\n\
         title = \"{flows} on {} x {}, loss {}: what the plan says\"\n\
         warmup = \"{}s\"\nduration = \"{}s\"\nfocus = \"planned\"\nsample_every = \"50ms\"\n\n",
        path.rate,
        path.rtt,
        number(path.loss),
        span.warmup_s,
        span.duration_s
    )
}

fn setting(plan: &PathPlan) -> String {
    let PathPlan { path, queue, .. } = plan;
    let mut text = String::from("[sysctls]\n");
    // The others are this kernel's defaults, or have no part in flows that never pause.
    for sysctl in plan.sysctls.iter().filter(|sysctl| sysctl.key.ends_with("mem")) {
        let _ = writeln!(text, "# {}\n\"{}\" = \"{}\"", sysctl.why, sysctl.key, sysctl.value);
    }
    let loss = if path.loss > 0.0 { format!("\nloss = {}", number(path.loss)) } else { String::new() };
    let _ = write!(
        text,
        "\n[hosts.sender]\n[hosts.receiver]\n\n\
         [links.path]\nbetween = [\"sender\", \"receiver\"]\nmtu = {}\nrate = \"{}\"\n# Half the round trip.\ndelay = \"{}\"{loss}\n\
         queue = {{ discipline = \"droptail\", limit = \"{}\" }}\n\n\
         [flows.planned]\nfrom = \"sender\"\nto = \"receiver\"\ncc = \"lf_reno\"\nstreams = {}\n\
         # Flows that begin at the same instant lose at the same instants.\nstagger = \"{}\"\n",
        path.mtu_bytes,
        written(&path.rate),
        written(&Nanos(path.rtt.0 / 2)),
        written(&Size(queue.bytes.max(2 * u64::from(path.mtu_bytes)))),
        path.flows,
        written(&stagger(plan)),
    );
    text
}

/// All flows begin within a second, and within a round trip or so of each other.
fn stagger(plan: &PathPlan) -> Nanos {
    let flows = u64::from(plan.path.flows);
    Nanos((plan.path.rtt.0 / 3).min(1_000_000_000 / flows))
}

fn case(forecast: &Forecast, span: &Span) -> String {
    let Forecast { cc, goodput, limit, within_factor: factor, .. } = forecast;
    let hidden = span.hides(forecast);
    let warmup = match span.longer_warmup_s(forecast).filter(|_| hidden.is_none()) {
        Some(needed_s) => format!(", warmup = \"{needed_s}s\""),
        None => String::new(),
    };
    let mut text = format!(
        "\n[[cases]]\nname = \"{cc}\"\ntitle = \"{cc}: {goodput}/s expected, limited by the {}\"\nset = {{ \"flows.planned.cc\" = \"lf_{cc}\"{warmup} }}\n",
        limit.name()
    );
    if let Some(why) = hidden {
        let _ = writeln!(text, "# Nothing is expected of it: {why}.");
        return text;
    }
    let _ = write!(
        text,
        "\n[[expect]]\ntext = \"{cc} gets what the plan says, within a factor of {factor}\"\n\
         left = {{ case = \"{cc}\", metric = \"goodput_bps\", of = \"planned\" }}\nright = {}\nat_least = {:.3}\nat_most = {factor}\n",
        goodput.0,
        1.0 / factor
    );
    text
}

impl Limit {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Path => "path",
            Limit::Queue => "queue",
            Limit::Loss => "loss",
        }
    }
}

/// A number as a person writes it, and reads back exactly: with an exponent only where there would be many zeros.
fn number(value: f64) -> String {
    const LEAST: f64 = 1e-4;
    if value == 0.0 || value.abs() >= LEAST { value.to_string() } else { format!("{value:e}") }
}

/// In the units people use where that is exact, in base units otherwise.
fn written<Q: fmt::Display + FromStr + PartialEq + serde::Serialize>(quantity: &Q) -> String {
    let text = quantity.to_string();
    if text.parse().is_ok_and(|back: Q| back == *quantity) {
        return text;
    }
    Exact(quantity).to_string()
}

/// A quantity as plans store it: whole base units.
struct Exact<'a, Q>(&'a Q);

impl<Q: serde::Serialize> fmt::Display for Exact<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_written_as_people_write_them() {
        let cases = [
            (0.0, "0"),
            (0.001, "0.001"),
            (0.0012, "0.0012"),
            (1e-7, "1e-7"),
            (2.5e-5, "2.5e-5"),
            (96e6, "96000000"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_back_exactly(value in prop_oneof![0.0..1.0f64, 1e-12..1e-3f64, 1.0..1e12f64]) {
            prop_assert_eq!(number(value).parse(), Ok(value));
        }
    }
}
