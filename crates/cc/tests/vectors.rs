//! Callbacks recorded in a kernel, replayed natively: the same answers, bit for bit. crates/kernel/tests/parity.rs
//! records them.

use longfat_cc::{
    Algorithm, LOSS,
    record::{Op, Recording},
};

fn recording(algorithm: Algorithm) -> Recording {
    let path = format!("{}/../../cc/vectors/{}.txt", env!("CARGO_MANIFEST_DIR"), algorithm.name());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Recording::parse(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_recorded_callback_of_every_algorithm_is_replayed_bit_for_bit() {
    for algorithm in Algorithm::all() {
        let recording = recording(algorithm);
        assert_eq!(recording.tunables.algorithm(), algorithm);
        for (number, call) in recording.calls.iter().enumerate() {
            let outcome = call.replay(&recording.tunables);
            assert_eq!(outcome, call.outcome, "{algorithm:?}, callback {number}: {call:?}");
        }
    }
}

#[test]
fn the_recordings_hold_slow_start_avoidance_losses_timeouts_and_undo() {
    for algorithm in Algorithm::all() {
        let calls = recording(algorithm).calls;
        let count = |op: Op| calls.iter().filter(|call| call.op == op).count();
        assert!(
            count(Op::Init) >= 1 && count(Op::Ssthresh) >= 5 && count(Op::UndoCwnd) >= 1,
            "{algorithm:?}"
        );
        let acks = || calls.iter().filter(|call| call.op == Op::OnAck);
        let in_slow_start = acks().filter(|call| call.before.cwnd_segments < call.before.ssthresh_segments);
        // One that measures soon knows where to stop.
        let least = if algorithm.measures() { 5 } else { 20 };
        assert!((least..acks().count() - 20).contains(&in_slow_start.count()), "{algorithm:?}");
        assert!(acks().any(|call| call.before.ca_state == LOSS), "{algorithm:?}");
    }
}

#[test]
fn the_recording_of_imtcp_holds_streams_and_round_trips_of_a_full_path() {
    let calls = recording(Algorithm::find("imtcp").unwrap()).calls;
    assert!(calls.iter().any(|call| call.outcome.state.avail().results > 0));
    assert!(calls.iter().any(|call| call.op == Op::OnRttSample));
    assert!(calls.iter().any(longfat_cc::record::Call::ends_full_round));
}

#[test]
fn a_changed_answer_is_noticed() {
    for algorithm in Algorithm::all() {
        let recording = recording(algorithm);
        let mut call = recording.calls.into_iter().find(|call| call.op == Op::Ssthresh).unwrap();
        call.outcome.result += 1;
        assert_ne!(call.replay(&recording.tunables), call.outcome);
    }
}
