//! Controllers of a relay's queue: what each is told to do, and that they hold on a modelled relay.

use longfat_cc::queue::{Advertised, Kind, Marker, Room, Settings, View, Window};
use proptest::prelude::*;

const MSS_BYTES: u32 = 1448;

fn view(now_us: u64, backlog_bytes: u64) -> View {
    View {
        now_us,
        received_bytes: backlog_bytes,
        inbound_rtt_us: 10_000,
        outbound_rtt_us: 40_000,
        outbound_cwnd_bytes: 100_000,
        mss_bytes: MSS_BYTES,
        random: 1 << 31,
        ..View::default()
    }
}

fn settings(kind: Kind) -> Settings {
    let (allowed_bytes, red_bytes) = (300_000, 200_000);
    Settings { kind, hold_off_rtts: 0, allowed_cwnds_x16: 0, allowed_bytes, red_bytes, ..Settings::default() }
}

/// Window of a relay whose buffers are larger than any leg is fast.
fn held(target_us: u32) -> Window {
    Window::new(target_us, Room { inbound_bytes: u64::MAX, unsent_bytes: u32::MAX })
}

/// Share of packets marked at a backlog, of 1000 with evenly spread random numbers.
fn share(kind: Kind, backlog_bytes: u64) -> u32 {
    let mut marker = Marker::new(settings(kind));
    let marked = (0..1000u32).filter(|i| {
        marker.on_packet(&View { random: i * (u32::MAX / 1000), ..view(u64::from(*i) + 1, backlog_bytes) })
    });
    marked.count() as u32
}

#[test]
fn the_fixed_threshold_marks_all_above_and_none_below() {
    assert_eq!([299_999, 300_000, 300_001].map(|bytes| share(Kind::Fixed, bytes)), [0, 0, 1000]);
}

#[test]
fn the_threshold_follows_the_outbound_window_when_that_is_greater() {
    let two_windows = Settings { allowed_cwnds_x16: 64, ..settings(Kind::Fixed) };
    let mut marker = Marker::new(two_windows);
    assert!(!marker.on_packet(&view(1, 400_000)));
    assert!(marker.on_packet(&view(2, 400_001)));
}

#[test]
fn the_red_slope_rises_from_none_to_all_over_the_red_size() {
    assert_eq!([0, 100_000, 300_000].map(|bytes| share(Kind::Red, bytes)), [0, 0, 1000]);
    for (bytes, per_mille) in [(150_000, 250), (200_000, 500), (250_000, 750)] {
        assert!(share(Kind::Red, bytes).abs_diff(per_mille) <= 3, "{bytes}: {}", share(Kind::Red, bytes));
    }
}

#[test]
fn one_packet_is_marked_for_so_many_bytes_received_and_all_where_that_is_less_than_a_packet() {
    for (every_bytes, marked) in [(65_536, 15), (300_000, 3), (1_000, 688)] {
        let mut marker = Marker::new(Settings { allowed_bytes: every_bytes, ..settings(Kind::Every) });
        let packets = (1..=688).map(|number| view(number, number * u64::from(MSS_BYTES)));
        let found = packets.filter(|view| {
            let is_due = marker.on_packet(view);
            if is_due {
                marker.marked(view);
            }
            is_due
        });
        assert_eq!(found.count(), marked, "{every_bytes}");
    }
}

#[test]
fn the_limit_falls_below_an_initial_window_once_a_slow_rate_was_measured() {
    let mut window = held(20_000);
    let at = |ms: u64| View { sent_bytes: ms * 1250, received_bytes: ms * 1250, ..view(ms * 1000 + 1, 0) };
    let first = window.update(&at(0)).unwrap();
    assert!(first.limit_bytes >= 65_536, "{first:?}");
    // 10 Mbit/s for two seconds, with a few segments always waiting.
    let steady = (1..1000).map(|look| View { received_bytes: look * 2500 + 15_000, ..at(look * 2) });
    let last = steady.map(|view| window.update(&view)).last().unwrap().unwrap();
    assert!(last.limit_bytes < 40_000 && last.buffer_bytes < last.limit_bytes, "{last:?}");
}

#[test]
fn after_a_mark_there_is_none_for_the_hold_off() {
    let mut marker = Marker::new(Settings { hold_off_rtts: 4, ..settings(Kind::Fixed) });
    let first = view(1_000_000, 400_000);
    assert!(marker.on_packet(&first));
    marker.marked(&first);
    assert!(!marker.on_packet(&view(1_039_999, 400_000)));
    assert!(marker.on_packet(&view(1_040_000, 400_000)));
    assert_eq!((marker.state().marks, marker.state().packets), (1, 3));
}

#[test]
fn nothing_is_marked_when_the_outbound_leg_would_run_dry() {
    let small = Settings { hold_off_rtts: 4, allowed_bytes: 1000, ..settings(Kind::Fixed) };
    let mut marker = Marker::new(small);
    // 10 MB/s: half an inbound round trip's worth is 50 kB.
    for at in 0..20u64 {
        let sent_bytes = at * 100_000;
        marker.on_packet(&View { received_bytes: sent_bytes, sent_bytes, ..view(1 + at * 10_000, 0) });
    }
    let waiting =
        |bytes: u64| View { received_bytes: 2_000_000 + bytes, sent_bytes: 2_000_000, ..view(200_002, 0) };
    assert!(!marker.on_packet(&waiting(40_000)));
    assert!(marker.on_packet(&waiting(60_000)));
}

/// A relay between a sender whose window is halved by a mark (Reno) and an outbound leg of constant rate, in steps of
/// a millisecond.
struct Model {
    inbound_rtt_ms: usize,
    drain_bytes_per_ms: f64,
    /// Bytes under way, by the millisecond of arrival.
    coming: Vec<f64>,
    cwnd_bytes: f64,
    ssthresh_bytes: f64,
    advertised_bytes: f64,
    received_bytes: f64,
    sent_bytes: f64,
}

struct Outcome {
    /// Mean delay in the second half, us.
    delay_us: f64,
    /// Share of the outbound rate used in the second half.
    used: f64,
    marks: u64,
}

impl Model {
    fn new(inbound_rtt_ms: usize, drain_bytes_per_ms: f64) -> Model {
        Model {
            inbound_rtt_ms,
            drain_bytes_per_ms,
            coming: vec![0.0; inbound_rtt_ms],
            cwnd_bytes: 14_480.0,
            ssthresh_bytes: f64::MAX,
            advertised_bytes: f64::MAX,
            received_bytes: 0.0,
            sent_bytes: 0.0,
        }
    }

    fn view(&self, at_ms: usize, random: u32) -> View {
        View {
            now_us: at_ms as u64 * 1000 + 1,
            received_bytes: self.received_bytes as u64,
            sent_bytes: self.sent_bytes as u64,
            acked_bytes: self.sent_bytes as u64,
            inbound_rtt_us: self.inbound_rtt_ms as u32 * 1000,
            outbound_rtt_us: 20_000,
            outbound_cwnd_bytes: (self.drain_bytes_per_ms * 20.0) as u32,
            mss_bytes: MSS_BYTES,
            random,
            reserved: 0,
        }
    }

    /// What was acknowledged a round trip ago is replaced, within both windows.
    fn step(&mut self, at_ms: usize) -> f64 {
        let slot = at_ms % self.inbound_rtt_ms;
        let arrived = std::mem::take(&mut self.coming[slot]);
        self.received_bytes += arrived;
        let flight: f64 = self.coming.iter().sum();
        let is_limited = flight + arrived >= self.cwnd_bytes / 2.0;
        if is_limited && self.cwnd_bytes < self.ssthresh_bytes {
            self.cwnd_bytes += arrived;
        } else if is_limited {
            self.cwnd_bytes += f64::from(MSS_BYTES) * arrived / self.cwnd_bytes;
        }
        // What the sender's socket buffer holds.
        self.cwnd_bytes = self.cwnd_bytes.min(16e6);
        self.coming[slot] += (self.cwnd_bytes.min(self.advertised_bytes) - flight).max(0.0);
        let ready = self.received_bytes - self.sent_bytes;
        let sent = ready.min(self.drain_bytes_per_ms);
        self.sent_bytes += sent;
        arrived
    }

    fn run(mut self, mut marker: Option<Marker>, mut window: Option<Window>) -> Outcome {
        let (length_ms, mut seed) = (40_000, 1u64);
        let (mut delay, mut sent_by_half) = (0.0, 0.0);
        for at_ms in 0..length_ms {
            let arrived = self.step(at_ms);
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let packets = (arrived / f64::from(MSS_BYTES)).ceil() as u32;
            for packet in 0..packets {
                let random = ((seed >> 32) as u32).wrapping_add(packet.wrapping_mul(0x9e37_79b9));
                let mut seen = self.view(at_ms, random);
                // A packet does not see itself, nor those behind it.
                seen.received_bytes -=
                    (u64::from(packets - packet) * u64::from(MSS_BYTES)).min(seen.received_bytes);
                if let Some(marker) = marker.as_mut()
                    && marker.on_packet(&seen)
                {
                    marker.marked(&seen);
                    self.cwnd_bytes /= 2.0;
                    self.ssthresh_bytes = self.cwnd_bytes;
                }
            }
            if let Some(window) = window.as_mut() {
                let wanted = window.update(&self.view(at_ms, 0));
                self.advertised_bytes = wanted.map_or(f64::MAX, |wanted| wanted.window_bytes.into());
            }
            if at_ms == length_ms / 2 {
                sent_by_half = self.sent_bytes;
            }
            if at_ms > length_ms / 2 {
                let waiting = self.received_bytes - self.sent_bytes;
                delay += waiting / self.drain_bytes_per_ms * 1000.0;
            }
        }
        let half_ms = (length_ms / 2) as f64;
        Outcome {
            delay_us: delay / half_ms,
            used: (self.sent_bytes - sent_by_half) / (half_ms * self.drain_bytes_per_ms),
            marks: marker.map_or(0, |marker| marker.state().marks),
        }
    }
}

#[test]
fn the_window_holds_the_target_at_the_full_rate_with_hardly_a_mark() {
    for inbound_rtt_ms in [1, 5, 20, 80, 200] {
        for drain_bytes_per_ms in [3125.0, 37_500.0] {
            let marker = Marker::new(Settings { target_us: 40_000, kind: Kind::Pi, ..Settings::default() });
            let out = Model::new(inbound_rtt_ms, drain_bytes_per_ms).run(Some(marker), Some(held(20_000)));
            let what = format!("{inbound_rtt_ms} ms, {drain_bytes_per_ms} B/ms: {} us", out.delay_us);
            assert!(out.used > 0.99, "{what}: {}", out.used);
            assert!(out.delay_us < 40_000.0 && out.marks <= 2, "{what}, {} marks", out.marks);
        }
    }
}

#[test]
fn marks_alone_bound_the_delay_that_would_grow_without_end() {
    let uncontrolled = Model::new(20, 3125.0).run(None, None);
    assert!(uncontrolled.delay_us > 1_000_000.0, "{}", uncontrolled.delay_us);
    let controlled = Model::new(20, 3125.0)
        .run(Some(Marker::new(Settings { kind: Kind::Pi, ..Settings::default() })), None);
    assert!(controlled.delay_us < 60_000.0 && controlled.marks > 3, "{}", controlled.delay_us);
    assert!(controlled.used > 0.8, "{}", controlled.used);
}

fn any_view() -> impl Strategy<Value = View> {
    (any::<[u64; 4]>(), any::<[u32; 5]>()).prop_map(|(large, small)| View {
        now_us: large[0] >> 8,
        received_bytes: large[1] >> 16,
        sent_bytes: large[2] >> 16,
        acked_bytes: large[3] >> 16,
        inbound_rtt_us: small[0],
        outbound_rtt_us: small[1],
        outbound_cwnd_bytes: small[2],
        mss_bytes: small[3] % 65_536,
        random: small[4],
        reserved: 0,
    })
}

proptest! {
    #[test]
    fn whatever_is_seen_the_window_is_never_zero_and_never_beyond_its_bounds(
        views in prop::collection::vec(any_view(), 1..50), target_us in 1u32..10_000_000,
    ) {
        let mut window = held(target_us);
        for seen in &views {
            let Advertised { limit_bytes, window_bytes, ahead_bytes, buffer_bytes } = window.update(seen).unwrap();
            prop_assert!(window_bytes >= 2 * seen.mss_bytes && window_bytes < 1 << 30);
            prop_assert!(limit_bytes >= 65_536 && ahead_bytes >= 4 * seen.mss_bytes && buffer_bytes >= 2 * seen.mss_bytes);
        }
    }

    #[test]
    fn marks_of_any_sequence_are_a_hold_off_apart(
        views in prop::collection::vec(any_view(), 1..80), kind in prop::sample::select(vec![Kind::Fixed, Kind::Red, Kind::Pi]),
    ) {
        let mut views = views;
        views.sort_by_key(|seen| seen.now_us);
        let mut marker = Marker::new(Settings { kind, hold_off_rtts: 4, ..settings(kind) });
        let mut hold_until_us = 0;
        for seen in &views {
            if marker.on_packet(seen) {
                prop_assert!(seen.now_us >= hold_until_us);
                marker.marked(seen);
                hold_until_us = seen.now_us + 4 * u64::from(seen.inbound_rtt_us.max(1000));
            }
        }
    }

    #[test]
    fn more_backlog_never_means_fewer_marks(a in 0u64..1 << 40, b in 0u64..1 << 40, random: u32) {
        for kind in [Kind::Fixed, Kind::Red] {
            let marks = |bytes| Marker::new(settings(kind)).on_packet(&View { random, ..view(1, bytes) });
            prop_assert!(marks(a.min(b)) <= marks(a.max(b)));
        }
    }
}

#[test]
fn at_a_host_whose_time_goes_faster_a_queue_is_kept_as_at_any_other() {
    let seen = |now_us: u64, times: u32| View {
        now_us: now_us * u64::from(times),
        inbound_rtt_us: 10_000 * times,
        outbound_rtt_us: 40_000 * times,
        sent_bytes: now_us,
        acked_bytes: now_us / 2,
        ..view(0, 400_000 + now_us)
    };
    let decided = |times: u32| {
        let settings = Settings { hold_off_rtts: 4, ..settings(Kind::Fixed) };
        let (mut marker, mut window) = (Marker::new(settings), held(20_000));
        let mut one = |now_us: u64| {
            let view = seen(now_us, times).slower(times);
            let is_marked = marker.on_packet(&view);
            if is_marked {
                marker.marked(&view);
            }
            (is_marked, window.update(&view))
        };
        (1..2000).map(|step| one(step * 1000)).collect::<Vec<_>>()
    };
    let own = decided(1);
    assert!(own.iter().any(|(is_marked, _)| *is_marked) && own.iter().any(|(is_marked, _)| !is_marked));
    assert_eq!(own, decided(10));
    assert_eq!(view(7, 1).slower(0), view(7, 1), "nobody said how much: not at all");
}
