//! A direction that follows a trace: its beginning, its changes, and what it is on the average.

use super::{
    ChangeSpec, DirectionSpec, RateSpec, SpecError,
    resolve::{Side, Site},
};
use crate::{
    plan::{ChangePlan, DirectionPlan, LinePlan, LossPlan, OpportunitiesPlan, Unscheduled},
    trace::{Opportunities, Row, Trace, TraceSpec, opportunities},
};
use longfat_schema::units::{Nanos, Rate, Size};

/// mahimahi's files are in milliseconds.
const UNIT_NS: u64 = 1_000_000;

/// The direction with what its trace is on the average in place of what the trace says; unchanged where it follows
/// none.
///
/// # Errors
/// The trace and the direction say the same, or the trace was not read.
pub(super) fn on_average(site: Site<'_>, mut spec: DirectionSpec) -> Result<DirectionSpec, SpecError> {
    let Some(TraceSpec { file, once, trace }) = spec.trace.clone() else { return Ok(spec) };
    let shown = format!("'{}'", file.display());
    let Some(trace) = trace else {
        return site.refuse(
            "trace",
            shown,
            "was not read",
            "name it in a file that is read with what it names",
        );
    };
    let says = |field, why: &str| site.refuse(field, "(given)", why, "remove one of the two");
    match &*trace {
        Trace::Opportunities(at) => {
            if spec.rate.is_some() {
                return says("rate", "is what the trace's opportunities say");
            }
            spec.overhead.get_or_insert(Size(opportunities::OVERHEAD_BYTES.into()));
            spec.rate = Some(RateSpec(Some(Rate(recorded(at, !once).mean_bps()))));
        }
        Trace::Rows(rows) => {
            let given = |value: fn(&Row) -> Option<f64>| rows.first().is_some_and(|row| value(row).is_some());
            if spec.rate.is_some() && given(rate) {
                return says("rate", "is what the trace says over time");
            }
            if spec.delay.is_some() && given(delay) {
                return says("delay", "is what the trace says over time");
            }
            if spec.loss.is_some() && given(|row| row.loss) {
                return says("loss", "is what the trace says over time");
            }
            spec.rate = mean(rows, rate).map(|bps| RateSpec(Some(Rate(bps)))).or(spec.rate);
            spec.delay = mean(rows, delay).map(Nanos).or(spec.delay);
        }
    }
    Ok(spec)
}

/// Whether the trace says what the rate is. One that was not read may.
pub(super) fn gives_rate(spec: &TraceSpec) -> bool {
    match spec.trace.as_deref() {
        None | Some(Trace::Opportunities(_)) => true,
        Some(Trace::Rows(rows)) => rows.first().is_some_and(|row| rate(row).is_some()),
    }
}

/// A direction resolved; `spec` is as it is on the average.
pub(super) fn direction(
    side: Side<'_>,
    spec: &DirectionSpec,
    changes: &[ChangeSpec],
) -> Result<DirectionPlan, SpecError> {
    let Some(TraceSpec { file, once, trace: Some(trace) }) = &spec.trace else {
        return side.direction(spec, changes);
    };
    if !changes.is_empty() {
        let why = "cannot change a link that follows a trace";
        return side.site().refuse("schedule", "(given)", why, "remove one of the two");
    }
    let mut plan = side.direction(spec, &[])?;
    match &**trace {
        Trace::Opportunities(at) => plan.opportunities = Some(recorded(at, !once)),
        Trace::Rows(rows) => follow_rows(&mut plan, rows, !once),
    }
    match plan.unscheduled() {
        Some(Unscheduled { why, mend }) => {
            side.site().refuse("trace", format!("'{}'", file.display()), &why, &mend)
        }
        None => Ok(plan),
    }
}

fn recorded(at: &Opportunities, repeat: bool) -> OpportunitiesPlan {
    OpportunitiesPlan { bytes: opportunities::BYTES, unit_ns: UNIT_NS, repeat, at: at.clone() }
}

fn follow_rows(plan: &mut DirectionPlan, rows: &[Row], repeat: bool) {
    let changes =
        rows.iter().map(|row| ChangePlan { at_ns: row.at_ns, line: line(&plan.line, row), queue: None });
    let mut changes: Vec<ChangePlan> = changes.collect();
    if let Some(first) = changes.first() {
        plan.line = first.line.clone();
    }
    if changes.len() < 2 || !repeat {
        changes.drain(..changes.len().min(1));
    } else {
        plan.repeats_ns = Some(length_ns(rows));
    }
    plan.schedule = changes;
}

fn line(base: &LinePlan, row: &Row) -> LinePlan {
    LinePlan {
        rate_bps: row.rate_bps.or(base.rate_bps),
        delay_ns: row.delay_ns.unwrap_or(base.delay_ns),
        jitter_ns: base.jitter_ns,
        loss: row.loss.map_or_else(|| base.loss.clone(), |probability| LossPlan::Bernoulli { probability }),
    }
}

fn rate(row: &Row) -> Option<f64> {
    row.rate_bps.map(|bps| bps as f64)
}

fn delay(row: &Row) -> Option<f64> {
    row.delay_ns.map(|ns| ns as f64)
}

/// The last row lasts as long as the one before it.
fn length_ns(rows: &[Row]) -> u64 {
    match rows {
        [.., before, last] => last.at_ns + (last.at_ns - before.at_ns),
        _ => 1,
    }
}

/// Mean over the time that each row lasts.
fn mean(rows: &[Row], value: fn(&Row) -> Option<f64>) -> Option<u64> {
    let ends = rows.iter().skip(1).map(|row| row.at_ns).chain([length_ns(rows)]);
    let weighted = rows.iter().zip(ends).map(|(row, end_ns)| Some(value(row)? * (end_ns - row.at_ns) as f64));
    let sum: f64 = weighted.sum::<Option<f64>>()?;
    Some((sum / length_ns(rows) as f64).round() as u64)
}
