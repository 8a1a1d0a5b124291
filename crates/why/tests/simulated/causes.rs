//! What is done to a drawn path so that a cause holds on it, or two in turns.

use crate::case::{Case, MS, SECOND};
use longfat_link::plan::{ChangePlan, CodelPlan, DisciplinePlan, LinePlan, LossPlan};
use longfat_schema::random::SplitMix64;
use longfat_sim::{ReceiveBuffer, SendBuffer};

fn receive_window(case: &mut Case) {
    case.receiver.receive_buffer = ReceiveBuffer::Fixed(case.part_of_pipe());
}

fn send_buffer(case: &mut Case) {
    case.sender.send_buffer = SendBuffer::Fixed(case.part_of_pipe());
}

fn program_idle(case: &mut Case) {
    case.app_bps = Some((case.rate_bps as f64 * case.part) as u64);
}

/// A few windows of a third of the pipe between two losses.
fn random_loss(case: &mut Case) {
    let third = case.pipe_bytes as f64 / 1500.0 / 3.0;
    let probability = (3.0 / third.powi(2)).clamp(0.003, 0.02);
    case.forward.line.loss = LossPlan::Bernoulli { probability };
    case.watch_ns = 20 * SECOND;
}

fn standing_queue(_: &mut Case) {}

fn path_full(case: &mut Case) {
    let (target_ns, interval_ns) = (case.rtt_ns / 8, case.rtt_ns + 50 * MS);
    case.forward.queue.discipline = DisciplinePlan::Codel(CodelPlan { target_ns, interval_ns, ecn: false });
}

fn slow_start(case: &mut Case) {
    case.bytes = Some(case.pipe_bytes.max(60_000) * 4 / 5);
    (case.warm_ns, case.watch_ns) = (0, case.rtt_ns * 12);
}

/// The path is dead for one and a half of every three seconds.
fn timeouts(case: &mut Case) {
    dies(case, 3 * SECOND, 0.5);
}

/// A fifth is lost for three moments before the watch; what the window was cut to then grows back slowly.
fn after_loss(case: &mut Case) {
    case.rtt_ns = case.rtt_ns.max(120 * MS);
    case.rate_bps = case.rate_bps.max(40_000_000);
    case.set_path();
    case.sender.cc = "reno".to_owned();
    case.forward.queue.limit_bytes = case.pipe_bytes / 2;
    let line =
        |loss| LinePlan { loss: LossPlan::Bernoulli { probability: loss }, ..case.forward.line.clone() };
    let moment = |number: u64| {
        let at_ns = 3 * SECOND + number * SECOND / 2;
        [(at_ns, 0.2), (at_ns + 60 * MS, 0.0)].map(|(at_ns, loss)| ChangePlan {
            at_ns,
            line: line(loss),
            queue: None,
        })
    };
    case.forward.schedule = (0..3).flat_map(moment).collect();
}

/// From the first second on, the line is `other` in the last part of each period.
fn in_turns(case: &mut Case, period_ns: u64, part: f64, other: &LinePlan) {
    let usual = case.forward.line.clone();
    let other_ns = (period_ns as f64 * part) as u64;
    let end_ns = case.warm_ns + case.watch_ns;
    let begins = (0..).map(|number| SECOND + number * period_ns).take_while(|at_ns| *at_ns < end_ns);
    let pair = |at_ns: u64| {
        let change = |at_ns, line: &LinePlan| ChangePlan { at_ns, line: line.clone(), queue: None };
        [change(at_ns + period_ns - other_ns, other), change(at_ns + period_ns, &usual)]
    };
    case.forward.schedule = begins.flat_map(pair).collect();
}

fn dies(case: &mut Case, period_ns: u64, part: f64) {
    let dead = LinePlan { loss: LossPlan::Bernoulli { probability: 1.0 }, ..case.forward.line.clone() };
    in_turns(case, period_ns, part, &dead);
}

fn bulk_reno(case: &mut Case) {
    case.sender.cc = "reno".to_owned();
}

fn bulk_cubic(case: &mut Case) {
    case.forward.queue.limit_bytes = case.pipe_bytes;
}

fn short_transfer(case: &mut Case) {
    case.bytes = Some(2_000 + (case.part * 100_000.0) as u64);
    (case.warm_ns, case.watch_ns) = (0, SECOND);
}

/// Makes a drawn path one on which a cause holds.
pub type Prepare = fn(&mut Case);

pub const FAULTS: [(&str, Prepare); 9] = [
    ("receive_window", receive_window),
    ("send_buffer", send_buffer),
    ("program_idle", program_idle),
    ("random_loss", random_loss),
    ("after_loss", after_loss),
    ("standing_queue", standing_queue),
    ("path_full", path_full),
    ("slow_start", slow_start),
    ("timeouts", timeouts),
];
pub const HEALTHY: [(&str, Prepare); 4] = [
    ("healthy_reno", bulk_reno),
    ("healthy_cubic", bulk_cubic),
    ("healthy_slow", program_idle),
    ("healthy_short", short_transfer),
];

/// Makes a drawn path one on which two causes take turns, the second in this part of the time.
pub type PreparePair = fn(&mut Case, f64);

pub const PAIRS: [([&str; 2], PreparePair); 6] = [
    (["program_idle", "receive_window"], idle_and_window),
    (["program_idle", "send_buffer"], idle_and_buffer),
    (["program_idle", "standing_queue"], idle_and_queue),
    (["receive_window", "timeouts"], window_and_timeouts),
    (["send_buffer", "timeouts"], buffer_and_timeouts),
    (["program_idle", "timeouts"], idle_and_timeouts),
];

const PERIOD_NS: u64 = 6 * SECOND;
/// Parts of the time for a second cause that holds for the shorter and for the longer time.
const PARTS: [f64; 2] = [0.2, 0.7];
/// Timers that go off ever more seldom make an outage longer: it is so much shorter than what it takes.
const OUTAGE: f64 = 0.5;

/// A drawn path on which the causes of a pair take turns.
pub fn pair(prepare: PreparePair, seed: u64) -> Case {
    let mut case = Case::drawn(seed);
    case.watch_ns = 24 * SECOND;
    prepare(&mut case, PARTS[usize::from(second_is_longer(seed))]);
    case
}

/// Whether the second cause lasts longer, for pairs whose times the schedule alone decides.
pub fn second_is_longer(seed: u64) -> bool {
    SplitMix64::new(seed ^ 0x9a1f).unit() < 0.5
}

/// The program gives a fifth of what a window carries over the short way, and twice what it carries over the long one.
fn near_and_far(case: &mut Case, part: f64) -> u64 {
    case.rtt_ns = case.rtt_ns.max(40 * MS);
    case.rate_bps = case.rate_bps.max(1_200_000_000 * MS / case.rtt_ns);
    case.set_path();
    let (near_ns, window_bytes) = (case.rtt_ns / 8, case.pipe_bytes / 16);
    case.app_bps = Some(window_bytes * 8 * SECOND / near_ns / 5);
    case.forward.line.delay_ns = near_ns / 2;
    case.back_ns = near_ns / 2;
    let far = LinePlan { delay_ns: 10 * near_ns - near_ns / 2, ..case.forward.line.clone() };
    in_turns(case, PERIOD_NS, part, &far);
    window_bytes
}

fn idle_and_window(case: &mut Case, part: f64) {
    case.receiver.receive_buffer = ReceiveBuffer::Fixed(near_and_far(case, part));
}

fn idle_and_buffer(case: &mut Case, part: f64) {
    case.sender.send_buffer = SendBuffer::Fixed(near_and_far(case, part));
}

/// The path's rate falls to an eighth of what it was, which is less than the program gives.
fn idle_and_queue(case: &mut Case, part: f64) {
    case.rtt_ns /= 4;
    case.set_path();
    case.app_bps = Some(case.rate_bps / 5);
    case.forward.queue.limit_bytes = case.pipe_bytes;
    let slow = LinePlan { rate_bps: Some(case.rate_bps / 8), ..case.forward.line.clone() };
    in_turns(case, PERIOD_NS, part, &slow);
}

fn window_and_timeouts(case: &mut Case, part: f64) {
    receive_window(case);
    dies(case, PERIOD_NS, part * OUTAGE);
}

fn buffer_and_timeouts(case: &mut Case, part: f64) {
    send_buffer(case);
    dies(case, PERIOD_NS, part * OUTAGE);
}

fn idle_and_timeouts(case: &mut Case, part: f64) {
    // What waits from an outage has gone soon.
    case.app_bps = Some(case.rate_bps / 40);
    dies(case, PERIOD_NS, part * OUTAGE);
}
