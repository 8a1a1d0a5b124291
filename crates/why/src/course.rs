//! The course of a connection: what held it in each stretch of a watch, and its figures beside. Pure.

use crate::{
    cause::Cause,
    divide::{Look, Talk, spans},
    judge,
};

/// Stretches of a course at the most: finer than a drawing shows says nothing more.
pub const MOST_STRETCHES: usize = 240;

/// One stretch of time.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// Since the watch, or the capture, began.
    pub from_us: u64,
    /// End of the stretch.
    pub to_us: u64,
    /// Microseconds under each cause that had some; they sum up to the stretch.
    pub causes: Vec<(Cause, u64)>,
    /// Payload acknowledged, or received where this end only receives, per second.
    pub rate_bps: f64,
    /// Smoothed round trip at its end; of a capture the least in it. Absent where none is known.
    pub rtt_us: Option<f64>,
    /// Congestion window at its end; absent in captures.
    pub cwnd_bytes: Option<u64>,
    /// Window that the receiver offers.
    pub window_bytes: Option<u64>,
    /// Payload under way: of a watch at its end, of a capture the most.
    pub flight_bytes: u64,
}

/// Divides a watch, the oldest look first, into stretches. Causes are those of [`crate::judge()`]: what lies behind a
/// window is told from the whole watch. Empty where no time passed.
pub fn course(looks: &[Look]) -> Vec<Stretch> {
    let Some((talk, cause_of)) = judge::held(looks) else { return Vec::new() };
    let spans = spans(looks, talk);
    let step = spans.len().div_ceil(MOST_STRETCHES);
    let ends = (0..spans.len()).step_by(step).map(|from| (from, (from + step).min(spans.len())));
    let start_us = looks[0].time_us;
    let stretch = |(from, to): (usize, usize)| {
        let mut stretch = at(&looks[to], talk);
        let elapsed_us = looks[to].time_us.saturating_sub(looks[from].time_us);
        stretch.from_us = looks[from].time_us.saturating_sub(start_us);
        stretch.to_us = stretch.from_us + elapsed_us;
        stretch.rate_bps =
            carried_bytes(&looks[from], &looks[to], talk) as f64 * 8e6 / elapsed_us.max(1) as f64;
        for (hold, time_us) in spans[from..to].iter().flat_map(|spent| spent.iter().enumerate()) {
            add(&mut stretch.causes, cause_of[hold], *time_us);
        }
        stretch
    };
    ends.map(stretch).filter(|stretch| stretch.to_us > stretch.from_us).collect()
}

/// Puts the course of the next watch behind `whole`, whose last look is the next one's first. Of a course that has
/// grown long, short neighbours become one stretch, the same everywhere in it: [`MOST_STRETCHES`] remain at the most.
pub fn append(whole: &mut Vec<Stretch>, next: Vec<Stretch>) {
    let offset_us = whole.last().map_or(0, |last| last.to_us);
    whole.extend(next.into_iter().map(|stretch| Stretch {
        from_us: stretch.from_us + offset_us,
        to_us: stretch.to_us + offset_us,
        ..stretch
    }));
    if whole.len() > MOST_STRETCHES {
        // Two neighbours together are longer than this, or they would be one: so many fit.
        let longest_us = 2 * whole.last().map_or(0, |last| last.to_us) / (MOST_STRETCHES as u64 - 1);
        *whole = joined(std::mem::take(whole), longest_us);
    }
}

fn joined(stretches: Vec<Stretch>, longest_us: u64) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::with_capacity(MOST_STRETCHES);
    for stretch in stretches {
        match found.last_mut() {
            Some(before) if stretch.to_us - before.from_us <= longest_us => before.extend(&stretch),
            _ => found.push(stretch),
        }
    }
    found
}

impl Stretch {
    fn elapsed_us(&self) -> u64 {
        self.to_us - self.from_us
    }

    /// Extends the stretch by the next one; what holds at its end is the next one's.
    fn extend(&mut self, next: &Stretch) {
        let carried = |one: &Stretch| one.rate_bps * one.elapsed_us() as f64;
        let rate_bps = (carried(self) + carried(next)) / (next.to_us - self.from_us).max(1) as f64;
        let mut causes = std::mem::take(&mut self.causes);
        next.causes.iter().for_each(|(cause, time_us)| add(&mut causes, *cause, *time_us));
        *self = Stretch { from_us: self.from_us, causes, rate_bps, ..next.clone() };
    }
}

fn add(causes: &mut Vec<(Cause, u64)>, cause: Cause, time_us: u64) {
    match causes.iter_mut().find(|(known, _)| *known == cause) {
        Some((_, known_us)) => *known_us += time_us,
        None if time_us > 0 => causes.push((cause, time_us)),
        None => {}
    }
}

fn carried_bytes(before: &Look, after: &Look, talk: Talk) -> u64 {
    match talk {
        Talk::Receives => after.info.received_bytes.saturating_sub(before.info.received_bytes),
        _ => after.info.acked_bytes.saturating_sub(before.info.acked_bytes),
    }
}

/// What a look shows.
fn at(look: &Look, talk: Talk) -> Stretch {
    let info = &look.info;
    let bytes = |segments: u32| u64::from(segments) * u64::from(info.snd_mss_bytes);
    let receives = talk == Talk::Receives;
    let window_bytes = if receives { info.rcv_wnd_bytes } else { info.snd_wnd_bytes };
    let rtt_us = if receives && info.rcv_rtt_us > 0 { info.rcv_rtt_us } else { info.srtt_us };
    Stretch {
        from_us: 0,
        to_us: 0,
        causes: Vec::new(),
        rate_bps: 0.0,
        rtt_us: (rtt_us > 0).then_some(f64::from(rtt_us)),
        cwnd_bytes: (!receives && info.snd_cwnd_segments < UNBOUNDED).then(|| bytes(info.snd_cwnd_segments)),
        window_bytes: (window_bytes > 0).then_some(window_bytes.into()),
        flight_bytes: bytes(info.unacked_segments),
    }
}

/// A congestion window of so many segments is none.
const UNBOUNDED: u32 = 0x7fff_ffff;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Assumed, divide::tests::any_look};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stretches_follow_each_other_and_have_every_microsecond_once(
            mut looks in proptest::collection::vec(any_look(), 0..20),
        ) {
            looks.sort_by_key(|look| look.time_us);
            let course = course(&looks);
            let verdict = judge::judge(&looks, &Assumed::default());
            prop_assert_eq!(course.is_empty(), verdict.is_none());
            prop_assert!(course.windows(2).all(|pair| pair[0].to_us == pair[1].from_us));
            for stretch in &course {
                let sum: u64 = stretch.causes.iter().map(|(_, time_us)| time_us).sum();
                prop_assert_eq!(sum, stretch.to_us - stretch.from_us);
            }
            for share in verdict.iter().flat_map(|verdict| &verdict.causes) {
                let under = course.iter().flat_map(|stretch| &stretch.causes);
                let sum: u64 = under.filter(|(cause, _)| *cause == share.cause).map(|(_, time_us)| time_us).sum();
                prop_assert_eq!(sum, share.time_us);
            }
        }
    }

    proptest! {
        #[test]
        fn a_course_that_goes_on_keeps_every_microsecond_and_byte_and_stays_short_enough_to_be_drawn(
            lengths in proptest::collection::vec(proptest::collection::vec((1_u64..5_000_000, 0.0..1e9), 1..300), 1..8),
        ) {
            let (mut whole, mut time_us, mut carried) = (Vec::new(), 0, 0.0);
            for of_one in lengths {
                let mut from_us = 0;
                let next = of_one.iter().map(|(length_us, rate_bps)| {
                    let to_us = from_us + length_us;
                    let causes = vec![([Cause::Pacing, Cause::Nagle][(length_us % 2) as usize], *length_us)];
                    let stretch = Stretch { from_us, to_us, causes, rate_bps: *rate_bps, ..at(&Look::default(), Talk::Sends) };
                    from_us = to_us;
                    stretch
                });
                append(&mut whole, next.collect());
                time_us += from_us;
                carried += of_one.iter().map(|(length_us, rate_bps)| *length_us as f64 * rate_bps).sum::<f64>();
            }
            prop_assert!(whole.len() <= MOST_STRETCHES);
            prop_assert!(whole.windows(2).all(|pair| pair[0].to_us == pair[1].from_us));
            prop_assert_eq!((whole[0].from_us, whole[whole.len() - 1].to_us), (0, time_us));
            for stretch in &whole {
                prop_assert_eq!(stretch.causes.iter().map(|(_, time_us)| time_us).sum::<u64>(), stretch.elapsed_us());
            }
            let sum: f64 = whole.iter().map(|one| one.rate_bps * one.elapsed_us() as f64).sum();
            prop_assert!((sum - carried).abs() <= 1e-9 * carried, "{} of {}", sum, carried);
        }
    }

    #[test]
    fn a_long_watch_has_as_many_stretches_as_can_be_drawn() {
        let look = |number: u64| Look { time_us: number * 100_000, ..Look::default() };
        for looks in [2, 240, 241, 242, 481, 2048] {
            let looks: Vec<Look> = (0..looks).map(look).collect();
            let course = course(&looks);
            assert!(course.len() <= MOST_STRETCHES && course.len() * 2 >= looks.len().min(MOST_STRETCHES));
            assert_eq!(course.last().map(|stretch| stretch.to_us), looks.last().map(|look| look.time_us));
        }
    }
}
