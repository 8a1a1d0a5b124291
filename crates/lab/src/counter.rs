//! What a counter that was sampled now and then came to between two times.

/// Growth of a counter over a span. Before its first sample a counter is zero.
pub(crate) fn growth(points: &[(i64, f64)], (start_us, end_us): (i64, i64)) -> f64 {
    at(points, end_us) - at(points, start_us)
}

/// The counter's value at a time: linear between samples, level after the last.
fn at(points: &[(i64, f64)], time_us: i64) -> f64 {
    let after = points.partition_point(|(sample_us, _)| *sample_us <= time_us);
    match (after.checked_sub(1).and_then(|before| points.get(before)), points.get(after)) {
        (None, _) => 0.0,
        (Some((_, value)), None) => *value,
        (Some((t0, v0)), Some((t1, v1))) => v0 + (v1 - v0) * (time_us - t0) as f64 / (t1 - t0) as f64,
    }
}
