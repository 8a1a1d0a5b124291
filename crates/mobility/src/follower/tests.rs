#![allow(clippy::cloned_ref_to_slice_refs, reason = "one connection is as good a list as several")]
use super::*;
use crate::announcement::tests::announcement;
use proptest::prelude::*;

const fn link(bps: u64, delay_us: u32, loss_ppm: u32) -> Character {
    Character { up_bps: bps, down_bps: bps, delay_us, loss_ppm, up_queue_bytes: 0, down_queue_bytes: 0 }
}

const WIFI: Character = link(11_000_000, 10_000, 0);
const PHS: Character = link(64_000, 125_000, 10_000);
const LAN: u32 = 4;

fn said(link: &str, character: Character, sequence: u64) -> Announcement {
    Announcement {
        addresses: vec!["10.0.0.1".parse().unwrap()],
        link: link.parse().unwrap(),
        character,
        sequence,
        ..announcement()
    }
}

/// An established connection through 10.0.0.1 that has sent up to `snd_nxt` and has `flight` segments out.
fn block(cookie: u64, cwnd: u32, flight: u32, snd_nxt: u32) -> ControlBlock {
    ControlBlock {
        cookie,
        netns: 1,
        interface: LAN,
        gateway: Some("10.0.0.1".parse().unwrap()),
        local: "10.0.0.2:5000".parse().unwrap(),
        remote: "192.0.2.1:80".parse().unwrap(),
        state: State::ESTABLISHED,
        ca_state: 0,
        cc: "reno".into(),
        snd_una: snd_nxt.wrapping_sub(flight * 1448),
        snd_nxt,
        cwnd_segments: cwnd,
        ssthresh_segments: cwnd / 2,
        clamp_segments: u32::MAX,
        srtt_us: 30_000,
        rttvar_us: 1000,
        min_rtt_us: Some(21_000),
        flight_segments: flight,
        lost_segments: 0,
        mss_bytes: 1448,
        rto_min_us: Some(200_000),
        rto_max_ms: None,
        private: [0; 13],
    }
}

fn settings(policy: Policy) -> Settings {
    Settings {
        policy,
        ceiling_bytes: 64 << 20,
        burst_percent: 25,
        cc: BTreeMap::new(),
        peers: BTreeMap::new(),
        patience_us: 60_000_000,
    }
}

fn follower(policy: Policy) -> Follower {
    Follower::new(settings(policy))
}

/// The kernel did what was wished of this connection.
fn fulfil(follower: &mut Follower, wish: &Wish, before: &ControlBlock) {
    let change = &wish.change;
    let after = ControlBlock {
        cwnd_segments: change.cwnd_segments.unwrap_or(before.cwnd_segments),
        ssthresh_segments: change.ssthresh_segments.unwrap_or(before.ssthresh_segments),
        clamp_segments: change.clamp_segments.unwrap_or(before.clamp_segments),
        cc: change.cc.unwrap_or(before.cc),
        ..before.clone()
    };
    follower.done(wish, Some((before, &after)));
}

/// Hears Wi-Fi, sees the connection send, then hears PHS; what is wished then.
fn narrowed(follower: &mut Follower, on_wifi: &ControlBlock) -> Vec<Wish> {
    assert!(follower.hear(&said("wifi", WIFI, 1), Some(LAN), &[on_wifi.clone()], 0).is_empty());
    assert!(follower.look(&[on_wifi.clone()], 100).is_empty());
    follower.hear(&said("phs", PHS, 2), Some(LAN), &[on_wifi.clone()], 200)
}

fn windows(wish: &Wish) -> (Why, Option<u32>, Option<u32>) {
    (wish.why, wish.change.cwnd_segments, wish.change.ssthresh_segments)
}

#[test]
fn a_window_too_large_is_lowered_at_once_and_fitted_when_the_old_data_has_arrived() {
    let mut follower = follower(Policy::Restore);
    let on_wifi = block(1, 40, 40, 100_000);
    let wishes = narrowed(&mut follower, &on_wifi);
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Lowered, Some(20), Some(20))]);
    fulfil(&mut follower, &wishes[0], &on_wifi);
    let still = ControlBlock { cwnd_segments: 20, snd_una: 99_999, ..block(1, 20, 1, 100_000) };
    assert!(follower.look(&[still.clone()], 300).is_empty(), "not lowered twice, not fitted too early");
    // Losses of the old data cut ssthresh; at the moment it is set again.
    let cut = ControlBlock { cwnd_segments: 2, ssthresh_segments: 2, snd_una: 100_000, ..still };
    let repairing = ControlBlock { ca_state: 3, ..cut.clone() };
    assert!(follower.look(&[repairing], 400).is_empty(), "never while a loss is being repaired");
    let wishes = follower.look(&[cut.clone()], 500);
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Fitted, Some(5), Some(20))]);
    assert!(wishes[0].change.unless_recovering, "looked at again under the socket's lock");
    assert_eq!(follower.look(&[cut.clone()], 600).len(), 1, "wished until it is done");
    fulfil(&mut follower, &wishes[0], &cut);
    assert!(follower.look(&[cut], 700).is_empty());
    assert_eq!(follower.waiting(), 0);
}

#[test]
fn a_window_is_never_raised_before_what_was_sent_at_the_change_is_acknowledged() {
    let mut follower = follower(Policy::Restore);
    let on_wifi = block(1, 40, 40, 100_000);
    for wish in narrowed(&mut follower, &on_wifi) {
        fulfil(&mut follower, &wish, &on_wifi);
    }
    let on_phs = block(1, 10, 10, 120_000);
    for wish in follower.look(&[on_phs.clone()], 300) {
        fulfil(&mut follower, &wish, &on_phs);
    }
    assert!(follower.hear(&said("wifi", WIFI, 3), Some(LAN), &[on_phs.clone()], 400).is_empty());
    let late = ControlBlock { snd_una: 119_999, snd_nxt: 125_000, ..on_phs };
    assert!(follower.look(&[late.clone()], 500).is_empty());
    let arrived = ControlBlock { snd_una: 120_000, ..late };
    let wishes = follower.look(&[arrived], 600);
    // What it had on Wi-Fi: ssthresh at once, cwnd from a quarter of it.
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Fitted, Some(10), Some(40))]);
}

#[test]
fn a_router_that_is_heard_on_another_interface_too_is_followed_there_until_that_interface_is_gone() {
    const ANEW: u32 = 9;
    let mut follower = follower(Policy::Restore);
    let bus = said("wifi", WIFI, 1).router;
    let on_new = ControlBlock { interface: ANEW, ..block(1, 40, 40, 100_000) };
    follower.hear(&said("wifi", WIFI, 1), Some(LAN), &[on_new.clone()], 0);
    assert_eq!(follower.connections(), 0);
    assert!(!follower.hear_again(&bus, LAN, 1), "as before");
    assert!(follower.hear_again(&bus, ANEW, 2));
    follower.look(&[on_new.clone()], 3);
    assert_eq!(follower.connections(), 1);
    // The same change comes in on each interface; the second copy is a repeat.
    let both = [on_new, block(2, 40, 40, 100_000)];
    follower.look(&both, 4);
    let wishes = follower.hear(&said("phs", PHS, 2), Some(LAN), &both, 5);
    assert_eq!(wishes.iter().map(|wish| wish.cookie).collect::<Vec<_>>(), [1, 2]);
    follower.keep_interfaces(|index| index == LAN);
    follower.look(&both, 6);
    assert_eq!(follower.connections(), 1, "what has gone is no way to it");
}

#[test]
fn other_routers_other_interfaces_and_listeners_are_left_alone() {
    let mut follower = follower(Policy::Restore);
    let near = block(1, 40, 40, 100_000);
    let other_router = ControlBlock { gateway: Some("10.0.0.9".parse().unwrap()), ..block(2, 40, 9, 9) };
    let other_side = ControlBlock { interface: 5, ..block(3, 40, 9, 9) };
    let direct = ControlBlock { gateway: None, ..block(4, 40, 9, 9) };
    let listener = ControlBlock { state: State::LISTEN, ..block(5, 40, 9, 9) };
    let all = [near, other_router, other_side, direct, listener];
    follower.hear(&said("wifi", WIFI, 1), Some(LAN), &all, 0);
    let wishes = follower.hear(&said("phs", PHS, 2), Some(LAN), &all, 1);
    assert_eq!(wishes.iter().map(|wish| wish.cookie).collect::<Vec<_>>(), [1]);
    assert_eq!(follower.connections(), 1);
    follower.look(&[], 2);
    assert_eq!(follower.connections(), 0, "what is gone is forgotten");
}

#[test]
fn a_node_far_away_follows_for_the_peers_behind_the_router_with_the_rate_towards_them() {
    let peers = BTreeMap::from([("bus-7".parse().unwrap(), vec!["192.0.2.0/24".parse().unwrap()])]);
    let mut follower = Follower::new(Settings { peers, ..settings(Policy::Estimate) });
    let far = ControlBlock { gateway: None, interface: 9, ..block(1, 40, 40, 100_000) };
    follower.hear(&said("wifi", WIFI, 1), None, &[far.clone()], 0);
    let narrow = Character { down_bps: 2_000_000, ..WIFI };
    let wishes = follower.hear(&said("half", narrow, 2), None, &[far], 1);
    // 2 Mbit/s x 21 ms = 3.5 packets, and the least window of one alone is 10.
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Lowered, Some(10), Some(10))]);
}

#[test]
fn the_link_is_shared_by_those_that_send() {
    let mut follower = follower(Policy::Estimate);
    let wide = link(100_000_000, 50_000, 0);
    let narrow = Character { up_bps: 10_000_000, ..wide };
    let blocks = [block(1, 400, 400, 9), block(2, 400, 400, 9), block(3, 400, 0, 9)];
    follower.hear(&said("a", wide, 1), Some(LAN), &blocks, 0);
    let wishes = follower.hear(&said("b", narrow, 2), Some(LAN), &blocks, 1);
    // 10 Mbit/s x 100 ms = 83.3 packets; the third sends nothing, so it was fitted at once.
    assert!(wishes.iter().all(|wish| wish.change.cwnd_segments == Some(42)), "{wishes:?}");
    assert_eq!(wishes.len(), 3);
}

#[test]
fn a_link_may_have_its_congestion_control_and_the_own_one_comes_back() {
    let cc = BTreeMap::from([("phs".parse().unwrap(), CcName::from("lf_vegas"))]);
    let mut follower = Follower::new(Settings { cc, ..settings(Policy::Restore) });
    let on_wifi = block(1, 40, 0, 100_000);
    let wishes = narrowed(&mut follower, &on_wifi);
    assert_eq!((wishes[0].why, wishes[0].change.cc), (Why::Fitted, Some("lf_vegas".into())));
    fulfil(&mut follower, &wishes[0], &on_wifi);
    assert_eq!(follower.replaced_cc(), [(1, "reno".into())]);
    let on_phs = ControlBlock { cc: "lf_vegas".into(), ..block(1, 10, 0, 100_000) };
    let began = block(2, 10, 0, 100_000);
    let wishes = follower.look(&[on_phs.clone(), began.clone()], 300);
    assert_eq!((wishes.len(), wishes[0].cookie, wishes[0].why), (1, 2, Why::Began));
    assert_eq!(wishes[0].change.cwnd_segments, None, "a new connection's windows are its own");
    fulfil(&mut follower, &wishes[0], &began);
    let wishes = follower.hear(&said("wifi", WIFI, 3), Some(LAN), &[on_phs.clone()], 400);
    assert_eq!(wishes[0].change.cc, Some("reno".into()));
    fulfil(&mut follower, &wishes[0], &on_phs);
    assert!(follower.replaced_cc().is_empty());
}

#[test]
fn bbr_begins_anew_once_where_the_round_trip_is_no_longer_and_is_left_to_itself_elsewhere() {
    let mut follower = follower(Policy::Restore);
    let bbr = |block: ControlBlock| ControlBlock { cc: "bbr".into(), ..block };
    let on_wifi = bbr(block(1, 40, 40, 100_000));
    assert!(narrowed(&mut follower, &on_wifi).is_empty(), "it would take 21 ms for the round trip of PHS");
    assert_eq!(follower.waiting(), 0);
    let on_phs = bbr(block(1, 60, 60, 200_000));
    let wishes = follower.hear(&said("wifi", WIFI, 3), Some(LAN), &[on_phs.clone()], 300);
    assert_eq!((wishes[0].why, wishes[0].change.keep), (Why::Lowered, Keep::Never));
    fulfil(&mut follower, &wishes[0], &on_phs);
    assert!(follower.look(&[bbr(block(1, 9, 0, 200_000))], 400).is_empty());
    assert_eq!(follower.waiting(), 0);
}

#[test]
fn a_refusal_is_not_repeated_and_patience_ends() {
    let mut follower = follower(Policy::Restore);
    let on_wifi = block(1, 40, 40, 100_000);
    let wishes = narrowed(&mut follower, &on_wifi);
    follower.refused(&wishes[0]);
    assert!(follower.look(&[on_wifi.clone()], 300).is_empty());
    assert!(follower.hear(&said("wifi", WIFI, 3), Some(LAN), &[on_wifi.clone()], 400).is_empty());
    assert_eq!(follower.waiting(), 1);
    follower.look(&[on_wifi], 400 + 60_000_001);
    assert_eq!(follower.waiting(), 0, "left as it is");
}

proptest! {
    /// Whatever the links do and the acknowledgements say, nothing is wished for a connection that repairs, raised
    /// before its moment, or above the ceiling.
    #[test]
    fn the_bounds_hold_in_any_order_of_events(
        events in prop::collection::vec((0u8..4, 1u64..1_000_000_000, 0u32..400_000, 0u32..60, 0u8..5, 1u32..2000), 1..60),
        queue_bytes in prop::sample::select(vec![0u32, 3_000, 1_000_000]),
        policy in prop::sample::select(vec![Policy::Restore, Policy::Scale, Policy::Estimate]),
        fulfilled in any::<bool>(),
    ) {
        let ceiling_bytes = 100 * 1448;
        let mut follower = Follower::new(Settings { ceiling_bytes, ..settings(policy) });
        let (mut snd_nxt, mut unsettled_below, mut heard) = (1000u32, None, false);
        let mut clamp_segments = u32::MAX;
        for (index, (kind, rate_bps, delay_us, step, ca_state, cwnd)) in events.into_iter().enumerate() {
            snd_nxt = snd_nxt.wrapping_add(step * 1448);
            let seen = ControlBlock { ca_state, clamp_segments, ..block(1, cwnd, step, snd_nxt) };
            let now_us = index as u64 * 1000;
            let wishes = if kind == 0 {
                let character = with_queue(link(rate_bps, delay_us, 0), queue_bytes);
                if heard { unsettled_below = Some(snd_nxt); }
                heard = true;
                let link = format!("link{}", rate_bps % 3);
                follower.hear(&said(&link, character, index as u64), Some(LAN), &[seen.clone()], now_us)
            } else {
                follower.look(&[seen.clone()], now_us)
            };
            prop_assert!(wishes.len() <= 1);
            for wish in wishes {
                prop_assert!(ca_state < 2, "set while repairing");
                let settled = unsettled_below.is_none_or(|nxt: u32| seen.snd_una.wrapping_sub(nxt) as i32 >= 0);
                let wanted = wish.change.cwnd_segments;
                if wish.why == Why::Bounded {
                    let bound = wish.change.clamp_segments.unwrap();
                    prop_assert!(queue_bytes > 0 && bound != clamp_segments);
                    prop_assert!(wanted.is_none_or(|wanted| wanted == bound && wanted < cwnd));
                } else {
                    let wanted = wanted.unwrap();
                    prop_assert!(wanted <= 100 && wish.change.ssthresh_segments.unwrap() <= 100);
                    prop_assert!(settled || wanted < cwnd, "raised before its moment");
                    prop_assert!(settled || wish.why == Why::Lowered);
                }
                if fulfilled {
                    clamp_segments = wish.change.clamp_segments.unwrap_or(clamp_segments);
                    fulfil(&mut follower, &wish, &seen);
                }
            }
        }
    }
}

#[test]
fn a_connection_that_does_not_fill_its_window_takes_no_share_is_not_raised_and_not_remembered() {
    let mut follower = follower(Policy::Restore);
    let wide = link(20_000_000, 300_000, 0);
    let (busy, idle) = (block(1, 40, 40, 9), block(2, 10, 1, 9));
    let both = [busy.clone(), idle.clone()];
    follower.hear(&said("wifi", WIFI, 1), Some(LAN), &both, 0);
    assert!(follower.hear(&said("satellite", wide, 2), Some(LAN), &both, 1).is_empty());
    let arrived = [block(1, 40, 0, 9), block(2, 10, 0, 9)];
    let wishes = follower.look(&arrived, 2);
    // 20 Mbit/s x 601 ms = 1001.7 packets, all for the one that sends.
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Fitted, Some(250), Some(1001))]);
    fulfil(&mut follower, &wishes[0], &busy);
    // It begins to send on the satellite, and comes back: ten segments were never shown to be enough there.
    let grown = block(2, 300, 300, 9);
    follower.look(&[grown.clone()], 3);
    let wishes = follower.hear(&said("wifi", WIFI, 3), Some(LAN), &[grown], 4);
    // 11 Mbit/s x 21 ms = 19.25 packets.
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Lowered, Some(19), Some(19))]);
}

fn with_queue(link: Character, bytes: u32) -> Character {
    Character { up_queue_bytes: bytes, ..link }
}

fn clamps(wishes: &[Wish]) -> Vec<(Why, Option<u32>, Option<u32>)> {
    let clamp = |wish: &Wish| (wish.why, wish.change.cwnd_segments, wish.change.clamp_segments);
    wishes.iter().map(clamp).collect()
}

#[test]
fn no_window_grows_beyond_a_link_whose_queue_is_known_and_the_bound_goes_with_the_link() {
    let mut follower = follower(Policy::Restore);
    let phs = with_queue(PHS, 60_000);
    let on_wifi = block(1, 40, 40, 100_000);
    assert!(follower.hear(&said("wifi", WIFI, 1), Some(LAN), &[on_wifi.clone()], 0).is_empty());
    let wishes = follower.hear(&said("phs", phs, 2), Some(LAN), &[on_wifi.clone()], 100);
    assert_eq!(clamps(&wishes), [(Why::Lowered, Some(20), Some(20))], "in the same visit");
    fulfil(&mut follower, &wishes[0], &on_wifi);
    assert_eq!(follower.bounded(), BTreeSet::from([1]));
    let on_phs = ControlBlock { clamp_segments: 20, ..block(1, 20, 20, 100_000) };
    assert!(follower.look(&[on_phs.clone()], 200).is_empty());
    // The Wi-Fi's queue is not known: no bound, at once, before anything that was sent has arrived.
    let wishes = follower.hear(&said("wifi", WIFI, 3), Some(LAN), &[on_phs.clone()], 300);
    assert_eq!(clamps(&wishes), [(Why::Bounded, None, Some(UNBOUNDED_SEGMENTS))]);
    fulfil(&mut follower, &wishes[0], &on_phs);
    assert!(follower.bounded().is_empty() && follower.waiting() == 1);
}

#[test]
fn a_connection_that_begins_is_bounded_once_it_has_measured_its_path() {
    let mut follower = follower(Policy::Restore);
    let lte = with_queue(link(40_000_000, 35_000, 0), 1_000_000);
    let fresh = ControlBlock { min_rtt_us: None, ..block(1, 10, 10, 9) };
    assert!(follower.hear(&said("lte", lte, 1), Some(LAN), &[fresh], 0).is_empty());
    // 40 Mbit/s x 71 ms = 236 packets, and half of the queue.
    let measured = ControlBlock { min_rtt_us: Some(71_000), ..block(1, 10, 10, 9) };
    let wishes = follower.look(&[measured.clone()], 1);
    assert_eq!(clamps(&wishes), [(Why::Bounded, None, Some(236 + 333))]);
    fulfil(&mut follower, &wishes[0], &measured);
    let slightly_less = ControlBlock { min_rtt_us: Some(70_100), clamp_segments: 569, ..measured.clone() };
    assert!(follower.look(&[slightly_less], 2).is_empty(), "nearly right");
    let repairing = ControlBlock { ca_state: 3, ..block(2, 10, 10, 9) };
    let of_somebody = ControlBlock { clamp_segments: 300, min_rtt_us: Some(71_000), ..block(3, 10, 10, 9) };
    let bbr = ControlBlock { cc: "bbr".into(), min_rtt_us: Some(71_000), ..block(4, 10, 10, 9) };
    let bounded = ControlBlock { clamp_segments: 569, ..measured };
    assert!(follower.look(&[bounded, repairing, of_somebody, bbr], 3).is_empty());
}

#[test]
fn a_connection_that_leaves_its_router_leaves_its_bound() {
    let mut follower = follower(Policy::Restore);
    let on_wifi = block(1, 10, 10, 9);
    let wishes = follower.hear(&said("wifi", with_queue(WIFI, 60_000), 1), Some(LAN), &[on_wifi.clone()], 0);
    assert_eq!(clamps(&wishes), [(Why::Bounded, None, Some(19 + 20))]);
    fulfil(&mut follower, &wishes[0], &on_wifi);
    let elsewhere =
        ControlBlock { gateway: Some("10.0.0.9".parse().unwrap()), clamp_segments: 39, ..on_wifi };
    let wishes = follower.look(&[elsewhere.clone()], 1);
    assert_eq!(clamps(&wishes), [(Why::Left, None, Some(UNBOUNDED_SEGMENTS))]);
    assert_eq!(follower.bounded(), BTreeSet::from([1]), "still to be lifted");
    fulfil(&mut follower, &wishes[0], &elsewhere);
    assert!(follower.bounded().is_empty());
}

fn with_vegas_on_phs() -> Follower {
    let cc = BTreeMap::from([("phs".parse().unwrap(), CcName::from("lf_vegas"))]);
    Follower::new(Settings { cc, ..settings(Policy::Restore) })
}

/// A connection that has been given the congestion control of PHS.
fn on_phs(follower: &mut Follower) -> ControlBlock {
    let on_wifi = block(1, 40, 0, 100_000);
    let wishes = narrowed(follower, &on_wifi);
    fulfil(follower, &wishes[0], &on_wifi);
    ControlBlock { cc: "lf_vegas".into(), ..block(1, 10, 0, 100_000) }
}

#[test]
fn a_connection_that_leaves_its_router_gets_its_own_congestion_control_back() {
    let mut follower = with_vegas_on_phs();
    let over_the_router = on_phs(&mut follower);
    let elsewhere = ControlBlock { gateway: Some("10.0.0.9".parse().unwrap()), ..over_the_router.clone() };
    let repairing = ControlBlock { ca_state: 3, ..elsewhere.clone() };
    assert!(follower.look(&[repairing], 300).is_empty(), "not while a loss is being repaired");
    assert_eq!(follower.replaced_cc(), [(1, "reno".into())], "still to be put back");
    let wishes = follower.look(&[elsewhere.clone()], 400);
    assert_eq!((wishes[0].why, wishes[0].change.cc), (Why::Left, Some("reno".into())));
    assert_eq!(wishes[0].change.cwnd_segments, None);
    fulfil(&mut follower, &wishes[0], &elsewhere);
    let own = ControlBlock { cc: "reno".into(), ..elsewhere };
    assert!(follower.look(&[own], 500).is_empty() && follower.replaced_cc().is_empty());
}

#[test]
fn what_a_connection_that_left_cannot_be_given_back_stays_owed_and_is_not_tried_at_every_look() {
    for by_step in [true, false] {
        let mut follower = with_vegas_on_phs();
        let over_the_router = on_phs(&mut follower);
        let elsewhere =
            ControlBlock { gateway: Some("10.0.0.9".parse().unwrap()), ..over_the_router.clone() };
        let wishes = follower.look(&[elsewhere.clone()], 300);
        match by_step {
            true => follower.refused(&wishes[0]),
            false => follower.done(&wishes[0], Some((&elsewhere, &elsewhere))),
        }
        assert!(follower.look(&[elsewhere.clone()], 400).is_empty());
        assert_eq!(follower.replaced_cc(), [(1, "reno".into())], "{by_step}");
        assert!(follower.look(&[], 500).is_empty() && follower.replaced_cc().is_empty(), "it has ended");
    }
}

#[test]
fn a_connection_that_comes_back_to_its_router_still_knows_its_own_congestion_control() {
    let mut follower = with_vegas_on_phs();
    let over_the_router = on_phs(&mut follower);
    let elsewhere = ControlBlock { gateway: Some("10.0.0.9".parse().unwrap()), ..over_the_router.clone() };
    assert_eq!(follower.look(&[elsewhere], 300).len(), 1, "wished, and not done");
    assert!(follower.look(&[over_the_router], 400).is_empty());
    assert_eq!(follower.replaced_cc(), [(1, "reno".into())]);
}

#[test]
fn a_congestion_control_that_the_kernel_refuses_is_wished_once_and_not_noted_as_replaced() {
    let mut follower = with_vegas_on_phs();
    follower.hear(&said("phs", PHS, 1), Some(LAN), &[], 0);
    let began = block(2, 10, 0, 100_000);
    let wishes = follower.look(&[began.clone()], 300);
    assert_eq!(wishes[0].why, Why::Began);
    follower.done(&wishes[0], Some((&began, &began)));
    assert!(follower.look(&[began], 400).is_empty());
    assert!(follower.replaced_cc().is_empty());
}

#[test]
fn a_round_trip_time_that_was_not_measured_yet_is_no_long_one() {
    let mut follower = follower(Policy::Estimate);
    let wide = link(20_000_000, 300_000, 0);
    let new = ControlBlock { min_rtt_us: None, ..block(1, 10, 10, 9) };
    follower.hear(&said("wifi", WIFI, 1), Some(LAN), &[new.clone()], 0);
    follower.hear(&said("satellite", wide, 2), Some(LAN), &[new.clone()], 1);
    let wishes = follower.look(&[ControlBlock { snd_una: 9, ..new }], 2);
    // 20 Mbit/s x 600 ms = 1000 packets, a quarter of it at once.
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Fitted, Some(250), Some(1000))]);
}

const FAST: Character = link(300_000_000, 5_000, 0);
const LTE: Character = link(40_000_000, 35_000, 0);

fn on_fast(cwnd: u32) -> ControlBlock {
    ControlBlock { min_rtt_us: Some(10_400), ..block(1, cwnd, cwnd, 2_000_000) }
}

/// Sees these windows on the fast link, 200 ms apart, and then hears of LTE.
fn onto_lte(follower: &mut Follower, windows: &[u32]) -> Vec<Wish> {
    follower.hear(&said("fast", FAST, 1), Some(LAN), &[], 0);
    let mut now_us = 0;
    for cwnd in windows {
        now_us += 200_000;
        assert!(follower.look(&[on_fast(*cwnd)], now_us).is_empty());
    }
    let last = on_fast(*windows.last().unwrap());
    follower.hear(&said("lte", LTE, 2), Some(LAN), &[last], now_us + 1000)
}

#[test]
fn a_window_that_pipe_and_queue_of_the_new_link_can_hold_is_left_as_it_is() {
    let mut follower = follower(Policy::Restore);
    // 900 were held by 260 in the pipe and 640 in the queue; LTE's pipe holds 234.
    assert!(onto_lte(&mut follower, &[900, 900, 643]).is_empty());
    assert_eq!(follower.waiting(), 1, "losses may still cut it");
    let arrived = ControlBlock { snd_una: 2_000_000, ..on_fast(650) };
    assert!(follower.look(&[arrived], 700_000).is_empty());
    assert_eq!(follower.waiting(), 0);
}

#[test]
fn a_window_that_was_left_and_is_cut_by_losses_of_the_change_is_set_again() {
    let mut follower = follower(Policy::Restore);
    assert!(onto_lte(&mut follower, &[900, 900, 643]).is_empty());
    let cut = ControlBlock { cwnd_segments: 100, snd_una: 2_000_000, ..on_fast(650) };
    let wishes = follower.look(&[cut], 700_000);
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Fitted, Some(100), Some(234))]);
}

#[test]
fn a_window_larger_than_pipe_and_queue_is_lowered_to_the_pipe_and_then_left_to_grow() {
    let mut follower = follower(Policy::Restore);
    // (234 + 440) x 1.05 = 707.
    assert!(onto_lte(&mut follower, &[700, 700, 707]).is_empty());
    let mut follower = Follower::new(settings(Policy::Restore));
    let wishes = onto_lte(&mut follower, &[700, 700, 708]);
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Lowered, Some(234), Some(234))]);
    fulfil(&mut follower, &wishes[0], &on_fast(708));
    let grown = ControlBlock { snd_una: 2_000_000, ssthresh_segments: 234, ..on_fast(264) };
    assert!(follower.look(&[grown], 900_000).is_empty(), "what has grown on this link is of this link");
    assert_eq!(follower.waiting(), 0);
}

#[test]
fn what_was_cut_within_a_round_trip_was_not_held() {
    let mut follower = follower(Policy::Restore);
    // Slow start sends up to twice what the path holds before it learns of a loss.
    let wishes = onto_lte(&mut follower, &[1800, 650]);
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Lowered, Some(234), Some(234))]);
}

#[test]
fn on_a_shorter_way_a_window_above_the_wanted_one_is_lowered_whatever_the_queue_holds() {
    let mut follower = follower(Policy::Restore);
    let on_lte = ControlBlock { min_rtt_us: Some(70_400), ..on_fast(500) };
    follower.hear(&said("lte", LTE, 1), Some(LAN), &[], 0);
    (1..4).for_each(|index| drop(follower.look(&[on_lte.clone()], index * 200_000)));
    let wishes = follower.hear(&said("fast", FAST, 2), Some(LAN), &[on_lte], 700_000);
    assert_eq!(wishes.iter().map(windows).collect::<Vec<_>>(), [(Why::Lowered, Some(260), Some(250))]);
}

#[test]
fn bbr_begins_anew_whatever_the_queue_holds() {
    let slower = Character { up_bps: 100_000_000, ..FAST };
    // 260 segments of queue at most, and 86 of pipe.
    for (cc, wanted) in [("reno", None), ("bbr", Some((Why::Lowered, Some(86), Some(86))))] {
        let mut follower = follower(Policy::Restore);
        let sends = |cwnd| ControlBlock { cc: cc.into(), ..on_fast(cwnd) };
        follower.hear(&said("fast", FAST, 1), Some(LAN), &[], 0);
        [900, 900, 300].iter().zip(1..).for_each(|(cwnd, index)| {
            follower.look(&[sends(*cwnd)], index * 200_000);
        });
        let wishes = follower.hear(&said("slower", slower, 2), Some(LAN), &[sends(300)], 700_000);
        assert_eq!(wishes.iter().map(windows).next(), wanted, "{cc}");
    }
}
