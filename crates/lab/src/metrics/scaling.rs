//! How soon a flow is as fast as it will be.

use super::Figures;
use crate::{plan::Plan, samples::Samples, spec::Protocol};
use std::collections::BTreeMap;

/// Share of the final flight at which the flight counts as grown.
const SHARE: f64 = 0.9;
/// Share of all samples, from the greatest on, above the final flight.
const UPPER: f64 = 0.1;

/// `scaling_us` of each TCP flow (Tamatsukuri 2006): from its start until its flight first reaches nine tenths of what
/// the upper tenth of all its samples reach, the slowest of its streams. Of the whole run, as growth comes before the
/// window.
pub fn scaling(plan: &Plan, samples: &Samples, found: &mut Figures) {
    for flow in plan.flows.iter().filter(|flow| flow.protocol == Protocol::Tcp) {
        let start_us = flow.start_us as i64;
        let mut streams: BTreeMap<u32, Vec<(i64, u32)>> = BTreeMap::new();
        let mine = samples.tcp.iter().filter(|s| s.flow == flow.name && s.role == "sender");
        for sample in mine.filter(|sample| sample.time_us >= start_us) {
            streams.entry(sample.stream).or_default().push((sample.time_us, sample.flight_segments));
        }
        let slowest = streams.values().filter_map(|flights| grown_us(flights)).max();
        found.extend("scaling_us", &flow.name, slowest.map(|time_us| (time_us - start_us) as f64));
    }
}

/// When the flight was grown; none where there never was one.
fn grown_us(flights: &[(i64, u32)]) -> Option<i64> {
    let mut sorted: Vec<u32> = flights.iter().map(|(_, segments)| *segments).collect();
    sorted.sort_unstable();
    let upper =
        sorted.get(((sorted.len() as f64) * (1.0 - UPPER)) as usize).copied().filter(|most| *most > 0)?;
    flights
        .iter()
        .find(|(_, segments)| f64::from(*segments) >= SHARE * f64::from(upper))
        .map(|(time, _)| *time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_is_grown_when_it_first_reaches_what_it_will_be() {
        let flights: Vec<(i64, u32)> = (0..100).map(|n| (n * 10, (n as u32 * 5).min(200))).collect();
        assert_eq!(grown_us(&flights), Some(360));
        assert_eq!(grown_us(&[(0, 0), (1, 0)]), None);
        assert_eq!(grown_us(&[]), None);
        assert_eq!(grown_us(&[(7, 3)]), Some(7));
    }
}
