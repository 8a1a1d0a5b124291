//! How soon a flow uses a link that has just changed.

use super::{Figures, Window, bytes_within};
use crate::{plan::Plan, samples::Samples, spec::Protocol};
use std::collections::BTreeMap;

/// Share of the new rate at which a flow counts as using it.
const SHARE: f64 = 0.9;
/// Over at least this long, so that one burst is no rate …
const SPAN_US: i64 = 500_000;
/// … and over so many packets of 1500 bytes.
const SPAN_PACKETS: i64 = 20;

/// `rise_us` of each TCP flow: from the window's start to the first span in which its receiver got nine tenths of the
/// rate that the changing link has at the window's end; the window's length when there is none. Only where a link
/// changes its rate.
pub fn rises(plan: &Plan, samples: &Samples, window: Window, found: &mut Figures) {
    let Some(rate_bps) = new_rate_bps(plan) else { return };
    let packets_us = SPAN_PACKETS * 1500 * 8_000_000 / rate_bps.max(1) as i64;
    let span_us = SPAN_US.max(packets_us);
    for flow in plan.flows.iter().filter(|flow| flow.protocol == Protocol::Tcp) {
        let mine = samples.interval.iter().filter(|sample| sample.flow == flow.name);
        let mut arrived: BTreeMap<i64, f64> = BTreeMap::new();
        for sample in mine {
            *arrived.entry(sample.time_us).or_default() += bytes_within(sample, window);
        }
        let wanted_bytes = SHARE * rate_bps as f64 / 8.0 * span_us as f64 / 1e6;
        let rise_us = first_span(&arrived, wanted_bytes, span_us, window);
        found.push("rise_us", &flow.name, rise_us.unwrap_or(window.end_us - window.start_us) as f64);
    }
}

/// The least rate that a link whose rate changes has at the window's end.
fn new_rate_bps(plan: &Plan) -> Option<u64> {
    let end_ns = u64::try_from(plan.window_end_us).ok()?.saturating_mul(1000);
    let ways =
        plan.links.iter().flat_map(|cable| &cable.path).flat_map(|path| [&path.forward, &path.backward]);
    ways.filter_map(|way| way.changed_bps(end_ns)).min()
}

/// When the first span of the window begins in which so much arrived, since the window's start.
fn first_span(arrived: &BTreeMap<i64, f64>, wanted_bytes: f64, span_us: i64, window: Window) -> Option<i64> {
    let ends = arrived.keys().copied().filter(|time_us| *time_us >= window.start_us + span_us);
    let enough = |end_us: &i64| {
        arrived.range(end_us - span_us + 1..=*end_us).map(|(_, bytes)| bytes).sum::<f64>() >= wanted_bytes
    };
    ends.take_while(|end_us| *end_us <= window.end_us)
        .find(enough)
        .map(|end_us| end_us - span_us - window.start_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_is_the_beginning_of_the_first_span_that_holds_enough() {
        let window = Window { start_us: 1_000_000, end_us: 9_000_000 };
        // 100 bytes per 100 ms from the third second on, ten before that.
        let arrived: BTreeMap<i64, f64> =
            (1..100).map(|tick| (tick * 100_000, if tick > 30 { 100.0 } else { 10.0 })).collect();
        assert_eq!(first_span(&arrived, 500.0, 500_000, window), Some(2_000_000));
        assert_eq!(first_span(&arrived, 40.0, 500_000, window), Some(0));
        assert_eq!(first_span(&arrived, 501.0, 500_000, window), None);
    }
}
