//! When bulk data gathers in its inbound socket, to be moved in fewer, larger pieces, as a network card moderates its
//! interrupts. Time is passed in.
//!
//! The model: a connection through which much has come one way, with nothing the other way and no pause, is a bulk
//! transfer. Its worker is then woken when a part of the receive window is full (SO_RCVLOWAT), or after a time,
//! whichever is first. It ends with anything that makes somebody wait for the data: a byte the other way, or a time in
//! which little came. A FIN, a reset and a window that is nearly full wake the worker anyhow.
//!
//! The window moves on only when the worker reads. What gathers takes the place of bytes that would be under way, so
//! that a sender whose window is no larger than its path needs would send less: rate = window / (round trip + time). So
//! bulk data gather only where both have room in the window.
//!
//! The kernel acknowledges every second segment as long as less waits than wakes the worker; else mostly when the
//! worker has read. Where a network card or the sender bundles segments that is a bundle each. Where each segment
//! comes alone, it costs the machine more than waking saves. There the worker is not told of data at all until a time
//! has passed, and the kernel acknowledges what it reads then. (Told of each, a worker that keeps pace with its
//! sender moves segment by segment, which takes the machine three times as long, and that keeps it at the sender's
//! pace.)

use crate::logic::connection::Direction;
use std::time::{Duration, Instant};

/// Bytes in one direction, without an answer or a pause, from which on a transfer is bulk. What is shorter may be an
/// answer whose end is waited for; of what has lasted so long, the default time of 2 ms at its end is one part in
/// fifty.
const BULK_BYTES: u64 = 1024 * 1024;
const BULK_TIME: Duration = Duration::from_millis(100);
/// What comes after so much silence, or twice the time, belongs to the next transfer.
const PAUSE: Duration = Duration::from_millis(20);
/// Less than this within the time is not worth a timer: the kernel hands over bundles of 64 KiB.
const LEAST_BYTES: u64 = 128 * 1024;
/// More than this within the time fills windows: whoever sends so fast would wait for the worker, which hardly sleeps
/// anyhow.
const MOST_BYTES: u64 = 4 * 1024 * 1024;
/// Less than this per acknowledgement is dear: some five segments of Ethernet's size.
const ACKNOWLEDGED_BYTES: u64 = 8 * 1024;
/// The longest that a worker is told nothing: then nothing wakes it when a part of the window is full.
const SILENCE: Duration = Duration::from_millis(1);
/// Over so many times the time the rate is measured: at the least that suits, twice what makes a bulk transfer.
const MEMORY: u32 = 16;

/// What a window holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Size of the window when nothing waits to be read.
    pub bytes: u64,
    /// What gathers of it at most, before the worker is woken.
    pub gathered_bytes: u64,
    /// Least round-trip time of the path; queues on the way make it longer, and are no reason to wait.
    pub rtt: Duration,
    /// Segments that its side has sent so far. While bulk data come that is acknowledgements.
    pub sent_segments: u32,
}

impl Window {
    /// Whether what is under way and what gathers have room at this rate, with an eighth of the window to spare: a
    /// sender that fills it seems to need no more than it gets.
    fn has_room(&self, bytes: u64, elapsed: Duration, length: Duration) -> bool {
        let within = |time: Duration| u128::from(bytes) * time.as_nanos() / elapsed.as_nanos().max(1);
        let gathered_bytes = within(length).min(self.gathered_bytes.into());
        within(self.rtt) + gathered_bytes <= u128::from(self.bytes) * 7 / 8
    }
}

/// What keeps a worker from being woken by each of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Data are reported when a part of the window is full.
    InPart,
    /// Data are not reported at all: each segment comes alone.
    InSilence,
}

/// What is to be told to an inbound socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// Data of a direction gather from now on.
    Begin(Direction, How),
    /// Every byte is reported again.
    End(Direction, How),
}

/// Gathering of one connection: at most one of its directions gathers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gather {
    direction: Direction,
    /// When the first byte came of all that came without an answer or a pause, and the last one.
    began: Instant,
    moved: Instant,
    /// What came of late, and since when: the rate.
    streak_bytes: u64,
    since: Instant,
    /// While it gathers: when what is there is to be moved at the latest.
    due: Option<Instant>,
    /// What its side of the connection had sent when the rate was last looked at.
    sent_segments: u32,
    /// Per direction: in part is dear, once it was found so. It stays so: how segments come is the path's.
    how: [How; 2],
}

impl Gather {
    pub fn new(now: Instant) -> Gather {
        Gather {
            direction: Direction::ClientToServer,
            began: now,
            moved: now,
            streak_bytes: 0,
            since: now,
            due: None,
            sent_segments: 0,
            how: [How::InPart; 2],
        }
    }

    /// The direction that gathers, and when it is due.
    pub fn due(&self) -> Option<(Direction, Instant)> {
        Some((self.direction, self.due?))
    }

    /// A turn has read so many bytes per direction; none may gather for longer than `length`. The window they come by
    /// is asked for as they begin, and now and then while they gather.
    pub fn after_turn(
        &mut self,
        read_bytes: [u64; 2],
        length: Duration,
        now: Instant,
        window: impl FnOnce(Direction) -> Window,
    ) -> Change {
        let [bytes, back_bytes] = match self.direction {
            Direction::ClientToServer => read_bytes,
            Direction::ServerToClient => [read_bytes[1], read_bytes[0]],
        };
        if back_bytes > 0 {
            return self.turn_round(read_bytes, now);
        }
        let length = self.time(length);
        match self.due {
            Some(due) => {
                // It may be served with others that are due half of the time earlier.
                let is_due = now + length / 2 >= due;
                if is_due && bytes < LEAST_BYTES / 2 {
                    return self.stop(now);
                }
                self.streak_bytes += bytes;
                if self.streak_bytes > BULK_BYTES && self.expected_bytes(length, now) > MOST_BYTES {
                    return self.stop(now);
                }
                if self.is_old(length, now) {
                    let window = window(self.direction);
                    if self.is_dear(&window) {
                        let change = self.stop(now);
                        self.how[self.direction.index()] = How::InSilence;
                        return change;
                    }
                    if !self.has_room(length, now, &window) {
                        return self.stop(now);
                    }
                    self.look(now, &window);
                }
                // What a turn left is fetched by the next one, and ends nothing.
                if bytes >= LEAST_BYTES / 2 {
                    self.due = Some(now + length);
                }
            }
            None if bytes == 0 => {}
            None => {
                self.add(bytes, length, now);
                if self.is_bulk(length, now) {
                    let window = window(self.direction);
                    let has_room = self.has_room(length, now, &window);
                    self.look(now, &window);
                    if has_room {
                        self.due = Some(now + length);
                        return Change::Begin(self.direction, self.how());
                    }
                } else if self.is_old(length, now) {
                    (self.streak_bytes, self.since) = (0, now);
                }
            }
        }
        Change::None
    }

    fn how(&self) -> How {
        self.how[self.direction.index()]
    }

    /// For how long data gather.
    fn time(&self, length: Duration) -> Duration {
        match self.how() {
            How::InPart => length,
            How::InSilence => length.min(SILENCE),
        }
    }

    fn add(&mut self, bytes: u64, length: Duration, now: Instant) {
        if now.duration_since(self.moved) > 2 * length {
            (self.streak_bytes, self.since) = (0, now);
        }
        if now.duration_since(self.moved) > PAUSE.max(2 * length) {
            self.began = now;
        }
        self.streak_bytes += bytes;
        self.moved = now;
    }

    /// Whether the last look was so long ago that the rate is no longer that of late.
    fn is_old(&self, length: Duration, now: Instant) -> bool {
        now.duration_since(self.since) >= MEMORY * length
    }

    /// From now on the rate, and the acknowledgements, are counted anew.
    fn look(&mut self, now: Instant, window: &Window) {
        (self.streak_bytes, self.since, self.sent_segments) = (0, now, window.sent_segments);
    }

    fn has_room(&self, length: Duration, now: Instant, window: &Window) -> bool {
        let gathered_bytes = match self.how() {
            How::InPart => window.gathered_bytes,
            How::InSilence => u64::MAX,
        };
        let window = Window { gathered_bytes, ..*window };
        window.has_room(self.streak_bytes, now.duration_since(self.since), length)
    }

    /// Whether little was acknowledged at a time since the last look.
    fn is_dear(&self, window: &Window) -> bool {
        if self.how() == How::InSilence {
            return false;
        }
        let acknowledgements = window.sent_segments.wrapping_sub(self.sent_segments);
        u64::from(acknowledgements) * ACKNOWLEDGED_BYTES > self.streak_bytes
    }

    fn is_bulk(&self, length: Duration, now: Instant) -> bool {
        let rate_suits = (LEAST_BYTES..=MOST_BYTES).contains(&self.expected_bytes(length, now));
        let has_lasted = now.duration_since(self.began) >= BULK_TIME && self.streak_bytes >= BULK_BYTES;
        has_lasted && rate_suits
    }

    /// What comes within the time, at the rate of this streak.
    fn expected_bytes(&self, length: Duration, now: Instant) -> u64 {
        let elapsed = now.duration_since(self.since).as_nanos().max(1);
        let bytes = u128::from(self.streak_bytes) * length.as_nanos() / elapsed;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn turn_round(&mut self, read_bytes: [u64; 2], now: Instant) -> Change {
        let change = self.stop(now);
        self.began = now;
        self.direction =
            if read_bytes[0] > read_bytes[1] { Direction::ClientToServer } else { Direction::ServerToClient };
        change
    }

    /// Stops gathering; what has come so far counts for nothing.
    pub fn stop(&mut self, now: Instant) -> Change {
        (self.streak_bytes, self.since, self.moved) = (0, now, now);
        self.due.take().map_or(Change::None, |_| Change::End(self.direction, self.how()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{ClientToServer, ServerToClient};

    const LENGTH: Duration = Duration::from_millis(2);
    const STEP: Duration = Duration::from_millis(1);
    /// Turns that make a bulk transfer.
    const LONG: usize = 150;
    /// The default's, nearby.
    const NEAR: Window =
        Window { bytes: 1 << 20, gathered_bytes: 1 << 19, rtt: Duration::from_micros(50), sent_segments: 0 };

    struct Bulk {
        gather: Gather,
        now: Instant,
        window: Window,
    }

    impl Bulk {
        fn new() -> Bulk {
            Bulk::by(NEAR)
        }

        fn by(window: Window) -> Bulk {
            let now = Instant::now();
            Bulk { gather: Gather::new(now), now, window }
        }

        fn read(&mut self, bytes: [u64; 2]) -> Change {
            self.now += STEP;
            self.gather.after_turn(bytes, LENGTH, self.now, |_| self.window)
        }

        /// Changes over so many turns, one every millisecond, with so many bytes each.
        fn changes(&mut self, turns: usize, bytes: [u64; 2]) -> Vec<Change> {
            (0..turns).map(|_| self.read(bytes)).filter(|change| *change != Change::None).collect()
        }
    }

    #[test]
    fn a_bulk_transfer_gathers_either_way_and_is_always_due_in_time() {
        for (bytes, direction) in [([250_000, 0], ClientToServer), ([0, 250_000], ServerToClient)] {
            let mut bulk = Bulk::new();
            assert_eq!(bulk.changes(99, bytes), [], "it may end soon");
            assert_eq!(bulk.changes(LONG, bytes), [Change::Begin(direction, How::InPart)]);
            let (gathers, due) = bulk.gather.due().unwrap();
            assert!(gathers == direction && due == bulk.now + LENGTH);
        }
    }

    #[test]
    fn full_speed_does_not_gather_nor_go_on_gathering() {
        assert_eq!(Bulk::new().changes(1000, [4_000_000, 0]), [], "32 Gbit/s");
        let mut bulk = Bulk::new();
        bulk.changes(LONG, [250_000, 0]);
        assert_eq!(bulk.changes(LONG, [4_000_000, 0]), [Change::End(ClientToServer, How::InPart)]);
    }

    #[test]
    fn what_is_slow_short_or_answered_does_not_gather() {
        assert_eq!(Bulk::new().changes(1000, [25_000, 0]), [], "200 Mbit/s");
        assert_eq!(Bulk::new().changes(3, [250_000, 0]), [], "too short");
        let mut answered = Bulk::new();
        for _ in 0..1000 {
            assert_eq!(answered.changes(3, [250_000, 0]), []);
            assert_eq!(answered.read([0, 100]), Change::None);
        }
        let mut both_ways = Bulk::new();
        assert_eq!(both_ways.changes(1000, [250_000, 250_000]), []);
    }

    #[test]
    fn a_request_after_each_pause_does_not_gather() {
        let mut bulk = Bulk::new();
        for _ in 0..100 {
            assert_eq!(bulk.changes(4, [250_000, 0]), []);
            bulk.now += 3 * LENGTH;
        }
        let mut slower = Bulk::new();
        for _ in 0..100 {
            assert_eq!(slower.changes(99, [250_000, 0]), []);
            slower.now += PAUSE;
        }
    }

    #[test]
    fn what_needs_its_window_does_not_gather_nor_go_on_gathering() {
        // 1 Gbit/s; a window of 1 MiB is full of it in 8.4 ms.
        const BYTES: [u64; 2] = [125_000, 0];
        let far = |ms| Window { rtt: Duration::from_millis(ms), ..NEAR };
        assert_eq!(Bulk::by(far(8)).changes(LONG, BYTES), [], "the window is full of what is under way");
        assert_eq!(Bulk::by(far(6)).changes(LONG, BYTES), [], "with what gathers it would nearly be");
        assert_eq!(Bulk::by(far(5)).changes(LONG, BYTES), [Change::Begin(ClientToServer, How::InPart)]);
        let large = Window { bytes: 4 << 20, ..far(20) };
        assert_eq!(Bulk::by(large).changes(LONG, BYTES), [Change::Begin(ClientToServer, How::InPart)]);
        let mut moved = Bulk::by(far(5));
        moved.changes(LONG, BYTES);
        moved.window = far(8);
        assert_eq!(moved.changes(40, BYTES), [Change::End(ClientToServer, How::InPart)], "at the next look");
        assert_eq!(moved.changes(LONG, BYTES), []);
    }

    /// Bulk data of which so much is acknowledged at a time.
    fn acknowledged_by(
        bulk: &mut Bulk,
        acknowledged_bytes: u32,
        turns: usize,
        bytes: [u64; 2],
    ) -> Vec<Change> {
        let acknowledgements = (bytes[0] + bytes[1]) as u32 / acknowledged_bytes;
        let turn = |_| {
            bulk.window.sent_segments = bulk.window.sent_segments.wrapping_add(acknowledgements);
            bulk.read(bytes)
        };
        (0..turns).map(turn).filter(|change| *change != Change::None).collect()
    }

    #[test]
    fn segments_that_come_alone_gather_in_silence_from_then_on_and_bundles_never() {
        for (bytes, direction) in [([250_000, 0], ClientToServer), ([0, 250_000], ServerToClient)] {
            let run = |acknowledged_bytes: u32| {
                let mut bulk = Bulk::new();
                // The counter wraps.
                bulk.window.sent_segments = u32::MAX - 100;
                acknowledged_by(&mut bulk, acknowledged_bytes, 10 * LONG, bytes)
            };
            let in_part = [Change::Begin(direction, How::InPart), Change::End(direction, How::InPart)];
            let silent = [&in_part[..], &[Change::Begin(direction, How::InSilence)]].concat();
            assert_eq!(run(2896), silent, "two at a time");
            assert_eq!(run(14_480), in_part[..1], "ten at a time");
        }
    }

    #[test]
    fn in_silence_nothing_waits_for_longer_than_it_and_only_where_all_of_it_has_room() {
        let mut bulk = Bulk::new();
        acknowledged_by(&mut bulk, 2896, 2 * LONG, [250_000, 0]);
        assert_eq!(bulk.gather.due(), Some((ClientToServer, bulk.now + SILENCE)));
        assert_eq!(bulk.changes(LONG, [800_000, 0]), [], "fewer than seven eighths of the window");
        let end = [Change::End(ClientToServer, How::InSilence)];
        assert_eq!(bulk.changes(LONG, [950_000, 0]), end, "nothing would wake the worker at half of it");
        let again = [Change::Begin(ClientToServer, How::InSilence)];
        assert_eq!(bulk.changes(LONG, [250_000, 0]), again);
        assert_eq!(bulk.read([250_000, 1]), end[0], "an answer");
    }

    #[test]
    fn where_the_path_is_short_half_of_the_window_may_gather() {
        // 12 Gbit/s: 3 MB would come within the time, and wake the worker six times.
        assert_eq!(Bulk::new().changes(LONG, [1_500_000, 0]), [Change::Begin(ClientToServer, How::InPart)]);
    }

    #[test]
    fn an_empty_look_at_once_ends_nothing() {
        let mut bulk = Bulk::new();
        bulk.changes(LONG, [250_000, 0]);
        assert_eq!(bulk.gather.after_turn([0, 0], LENGTH, bulk.now, |_| NEAR), Change::None);
        assert!(bulk.gather.due().is_some());
    }

    #[test]
    fn an_answer_silence_and_little_data_end_it() {
        for (last, end) in [([250_000, 1], 1), ([0, 0], 2), ([1000, 0], 2)] {
            let mut bulk = Bulk::new();
            bulk.changes(LONG, [250_000, 0]);
            assert_eq!(bulk.changes(end, last), [Change::End(ClientToServer, How::InPart)], "{last:?}");
            assert_eq!(bulk.gather.due(), None);
            assert_eq!(
                bulk.changes(LONG, [250_000, 0]),
                [Change::Begin(ClientToServer, How::InPart)],
                "it may begin again"
            );
        }
    }
}
