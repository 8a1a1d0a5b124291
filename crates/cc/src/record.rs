//! Callbacks as they ran in the kernel, and their native replay.
//!
//! A recording is text: a head that names the algorithm and its tunables, then one callback per line, fields by
//! position ([`COLUMNS`]), private state as hexadecimal without trailing zeros.

use crate::{
    Ack, Algorithm, Conn, Sending, SettingError, State, Tunables, UnknownAlgorithm, native::STATE_BYTES,
};
use longfat_schema::hex::{from_hex, to_hex};
use std::fmt::{self, Write as _};

/// Which of the contract's functions was called (`enum lf_op`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A connection began.
    Init,
    /// Segments were acknowledged.
    OnAck,
    /// A loss.
    Ssthresh,
    /// A loss that was none.
    UndoCwnd,
    /// A round-trip time was measured.
    OnRttSample,
    /// A segment was sent while none was in flight.
    OnRestart,
    /// New segments may be sent.
    OnSend,
    /// An acknowledgement arrived.
    OnAckSeen,
}

const OPS: [(Op, &str); 8] = [
    (Op::Init, "init"),
    (Op::OnAck, "on_ack"),
    (Op::Ssthresh, "ssthresh"),
    (Op::UndoCwnd, "undo_cwnd"),
    (Op::OnRttSample, "on_rtt_sample"),
    (Op::OnRestart, "on_restart"),
    (Op::OnSend, "on_send"),
    (Op::OnAckSeen, "on_ack_seen"),
];

/// `struct lf_record`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawRecord {
    pub(crate) conn_id: u64,
    pub(crate) op: u32,
    pub(crate) result: u32,
    pub(crate) ack: Ack,
    pub(crate) rtt_us: u32,
    pub(crate) before: Conn,
    pub(crate) after: Conn,
    pub(crate) sending_before: Sending,
    pub(crate) sending_after: Sending,
    pub(crate) state_before: State,
    pub(crate) state_after: State,
}

/// One callback: what it was given, and what it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Which connection.
    pub conn_id: u64,
    /// Which function.
    pub op: Op,
    /// What the acknowledgement brought; zero for other calls.
    pub ack: Ack,
    /// Round-trip time of [`Op::OnRttSample`]; zero for other calls.
    pub rtt_us: u32,
    /// The connection before.
    pub before: Conn,
    /// The sender before, for [`Op::OnSend`] and [`Op::OnAckSeen`]; zero for other calls.
    pub sending: Sending,
    /// Private state before.
    pub state_before: State,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The connection after.
    pub conn: Conn,
    /// Private state after.
    pub state: State,
    /// The sender after.
    pub sending: Sending,
    /// What it returned: segments for [`Op::Ssthresh`], [`Op::UndoCwnd`] and [`Op::OnSend`], else 0.
    pub result: u32,
}

impl Call {
    /// Reads one record as the kernel wrote it; `None` when its length or its function is not ours.
    pub fn decode(bytes: &[u8]) -> Option<Call> {
        if bytes.len() != size_of::<RawRecord>() {
            return None;
        }
        // SAFETY: RawRecord is integers only, so any bytes of its length are a value; the read is unaligned.
        let raw = unsafe { bytes.as_ptr().cast::<RawRecord>().read_unaligned() };
        let op = OPS.get(raw.op as usize)?.0;
        let (state, sending) = (raw.state_after, raw.sending_after);
        let outcome = Outcome { conn: raw.after, state, sending, result: raw.result };
        Some(Call {
            conn_id: raw.conn_id,
            op,
            ack: raw.ack,
            rtt_us: raw.rtt_us,
            before: raw.before,
            sending: raw.sending_before,
            state_before: raw.state_before,
            outcome,
        })
    }

    /// Whether it is an acknowledgement that ends a round trip of a full path: there is a result, and no stream ended.
    pub fn ends_full_round(&self) -> bool {
        let (before, after) = (self.state_before.avail(), self.outcome.state.avail());
        self.op == Op::OnAckSeen && before.at_us != after.at_us && before.results == after.results
    }

    /// Runs the same callback natively.
    pub fn replay(&self, tunables: &Tunables) -> Outcome {
        let algorithm = tunables.algorithm();
        let (mut conn, mut state, mut sending) = (self.before, self.state_before, self.sending);
        let result = match self.op {
            Op::Init => {
                algorithm.init(&mut conn, &mut state, tunables);
                0
            }
            Op::OnAck => {
                algorithm.on_ack(&mut conn, &mut state, tunables, &self.ack);
                0
            }
            Op::Ssthresh => algorithm.ssthresh(&mut conn, &mut state, tunables),
            Op::UndoCwnd => algorithm.undo_cwnd(&mut conn, &mut state, tunables),
            Op::OnRttSample => {
                algorithm.on_rtt_sample(&mut conn, &mut state, tunables, self.rtt_us);
                0
            }
            Op::OnRestart => {
                algorithm.on_restart(&mut conn, &mut state, tunables);
                0
            }
            Op::OnSend => algorithm.on_send(&mut conn, &mut state, tunables, &mut sending).unwrap_or(0),
            Op::OnAckSeen => {
                algorithm.on_ack_seen(&mut conn, &mut state, tunables, &sending);
                0
            }
        };
        Outcome { conn, state, sending, result }
    }
}

/// Callbacks of one algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// Which algorithm, and how it was set.
    pub tunables: Tunables,
    /// In the order they ran.
    pub calls: Vec<Call>,
}

/// A recording that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The first line is no head.
    #[error("line 1 does not name an algorithm; a recording begins with 'cc NAME tunable=value…'")]
    Head,
    /// The head names an algorithm that is not ours.
    #[error("line 1: {0}")]
    Algorithm(#[from] UnknownAlgorithm),
    /// The head names a tunable that the algorithm has not.
    #[error("line 1: {0}")]
    Setting(#[from] SettingError),
    /// A line that is no callback.
    #[error("line {line}: {why}; expected: {COLUMNS}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

/// The fields of a callback line; `given` is the acknowledged segments of on_ack, the microseconds of on_rtt_sample.
/// Lines of on_send and on_ack_seen go on with what they saw of the sender, and its pacing rate after.
pub const COLUMNS: &str = "op connection given | now_us cwnd credit ssthresh clamp prior_cwnd flight max_flight \
     is_cwnd_limited ca_state mss srtt_us min_rtt_us state | cwnd credit ssthresh state result";

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "cc {} {}", self.tunables.algorithm().name(), self.tunables)?;
        writeln!(f, "# {COLUMNS}")?;
        self.calls.iter().try_for_each(|call| writeln!(f, "{}", line(call)))
    }
}

fn line(call: &Call) -> String {
    let name = OPS.iter().find(|(op, _)| *op == call.op).map_or("", |(_, name)| name);
    let (c, after) = (&call.before, &call.outcome);
    let given = if call.op == Op::OnRttSample { call.rtt_us } else { call.ack.acked_segments };
    let mut text = format!("{name} {} {given} | {}", call.conn_id, c.now_us);
    for value in words(c) {
        let _ = write!(text, " {value}");
    }
    let changed = [after.conn.cwnd_segments, after.conn.cwnd_credit_segments, after.conn.ssthresh_segments];
    let _ = write!(text, " {} |", state_text(&call.state_before));
    for value in changed {
        let _ = write!(text, " {value}");
    }
    let _ = write!(text, " {} {}", state_text(&after.state), after.result);
    if sees_sender(call.op) {
        let s = &call.sending;
        let _ = write!(
            text,
            " | {} {} {} {} {} {} {} {}",
            s.pacing_bytes_per_s,
            s.next_seq,
            s.una_seq,
            s.unsent_bytes,
            s.packet_bytes,
            s.burst_segments,
            s.repair_segments,
            after.sending.pacing_bytes_per_s
        );
    }
    text
}

fn sees_sender(op: Op) -> bool {
    matches!(op, Op::OnSend | Op::OnAckSeen)
}

/// The fields after `now_us`, in order.
fn words(c: &Conn) -> [u32; 12] {
    [
        c.cwnd_segments,
        c.cwnd_credit_segments,
        c.ssthresh_segments,
        c.cwnd_clamp_segments,
        c.prior_cwnd_segments,
        c.flight_segments,
        c.max_flight_segments,
        c.is_cwnd_limited,
        c.ca_state,
        c.mss_bytes,
        c.srtt_us,
        c.min_rtt_us,
    ]
}

/// Bytes; a state too large for the kernel's connection as words between commas, because most of it is zero.
fn state_text(state: &State) -> String {
    const SMALL_WORDS: usize = 104 / 8;
    if let Some(last) = state.0.iter().rposition(|word| *word != 0).filter(|last| *last >= SMALL_WORDS) {
        let word = |word: &u64| if *word == 0 { String::new() } else { format!("{word:x}") };
        return state.0[..=last].iter().map(word).collect::<Vec<_>>().join(",");
    }
    let bytes: Vec<u8> = state.0.iter().flat_map(|word| word.to_le_bytes()).collect();
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    if used == 0 { "-".to_owned() } else { to_hex(&bytes[..used]) }
}

impl Recording {
    /// Reads what `Display` wrote.
    pub fn parse(text: &str) -> Result<Recording, ReadError> {
        let mut lines = text.lines();
        let mut head = lines.next().ok_or(ReadError::Head)?.split_whitespace();
        let (Some("cc"), Some(name)) = (head.next(), head.next()) else { return Err(ReadError::Head) };
        let tunables = Tunables::from_settings(Algorithm::find(name)?, head)?;
        let calls = lines
            .enumerate()
            .filter(|(_, line)| !line.starts_with('#'))
            .map(|(index, line)| {
                Fields::of(line).call().map_err(|why| ReadError::Line { line: index + 2, why })
            })
            .collect::<Result<_, _>>()?;
        Ok(Recording { tunables, calls })
    }
}

/// Reads a line field by field; `|` only helps the eye.
struct Fields<'a>(Box<dyn Iterator<Item = &'a str> + 'a>);

impl<'a> Fields<'a> {
    fn of(line: &'a str) -> Fields<'a> {
        Fields(Box::new(line.split_whitespace().filter(|field| *field != "|")))
    }

    fn text(&mut self) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| "it ends too early".to_owned())
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T, String> {
        let text = self.text()?;
        text.parse().map_err(|_| format!("'{text}' is not a whole number in range"))
    }

    fn state(&mut self) -> Result<State, String> {
        let text = self.text()?;
        if text.contains(',') {
            return words_of(text);
        }
        let text = if text == "-" { "" } else { text };
        let bytes = from_hex(text).ok_or_else(|| format!("'{text}' is not hexadecimal"))?;
        let mut padded = [0u8; STATE_BYTES];
        padded.get_mut(..bytes.len()).ok_or("its state is too long")?.copy_from_slice(&bytes);
        let mut state = State::default();
        for (word, bytes) in state.0.iter_mut().zip(padded.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        Ok(state)
    }

    fn conn(&mut self) -> Result<Conn, String> {
        Ok(Conn {
            now_us: self.number()?,
            cwnd_segments: self.number()?,
            cwnd_credit_segments: self.number()?,
            ssthresh_segments: self.number()?,
            cwnd_clamp_segments: self.number()?,
            prior_cwnd_segments: self.number()?,
            flight_segments: self.number()?,
            max_flight_segments: self.number()?,
            is_cwnd_limited: self.number()?,
            ca_state: self.number()?,
            mss_bytes: self.number()?,
            srtt_us: self.number()?,
            min_rtt_us: self.number()?,
        })
    }

    fn sending(&mut self) -> Result<Sending, String> {
        Ok(Sending {
            pacing_bytes_per_s: self.number()?,
            next_seq: self.number()?,
            una_seq: self.number()?,
            unsent_bytes: self.number()?,
            packet_bytes: self.number()?,
            burst_segments: self.number()?,
            repair_segments: self.number()?,
        })
    }

    fn call(&mut self) -> Result<Call, String> {
        let name = self.text()?;
        let op = OPS.iter().find(|(_, known)| *known == name).map(|(op, _)| *op);
        let op = op.ok_or_else(|| format!("'{name}' is no callback"))?;
        let (conn_id, given) = (self.number()?, self.number()?);
        let (rtt_us, acked_segments) = if op == Op::OnRttSample { (given, 0) } else { (0, given) };
        let (before, state_before) = (self.conn()?, self.state()?);
        let conn = Conn {
            cwnd_segments: self.number()?,
            cwnd_credit_segments: self.number()?,
            ssthresh_segments: self.number()?,
            ..before
        };
        let (state, result) = (self.state()?, self.number()?);
        let sending = if sees_sender(op) { self.sending()? } else { Sending::default() };
        let pacing_bytes_per_s = if sees_sender(op) { self.number()? } else { 0 };
        let outcome = Outcome { conn, state, sending: Sending { pacing_bytes_per_s, ..sending }, result };
        Ok(Call { conn_id, op, ack: Ack { acked_segments }, rtt_us, before, sending, state_before, outcome })
    }
}

fn words_of(text: &str) -> Result<State, String> {
    let mut state = State::default();
    for (index, word) in text.split(',').enumerate() {
        let slot = state.0.get_mut(index).ok_or("its state is too long")?;
        if !word.is_empty() {
            *slot = u64::from_str_radix(word, 16).map_err(|_| format!("'{word}' is not hexadecimal"))?;
        }
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(seed: u32) -> Call {
        let before = Conn { cwnd_segments: seed, now_us: u64::from(seed) << 20, ..Conn::default() };
        let mut state = State::default();
        state.0[..if seed.is_multiple_of(3) { 13 } else { 96 }].fill(u64::from(seed));
        let op = if seed.is_multiple_of(2) { Op::OnAck } else { Op::OnSend };
        let sending = if op == Op::OnSend {
            Sending { next_seq: seed, ..Sending::default() }
        } else {
            Sending::default()
        };
        let outcome = Outcome { conn: before, state, sending, result: seed };
        let ack = Ack { acked_segments: 2 };
        Call { conn_id: 7, op, ack, rtt_us: 0, before, sending, state_before: State::default(), outcome }
    }

    proptest! {
        #[test]
        fn a_recording_reads_back_as_it_was_written(seeds in prop::collection::vec(any::<u32>(), 0..5)) {
            let tunables = Tunables::defaults(Algorithm::find("highspeed").unwrap());
            let recording = Recording { tunables, calls: seeds.into_iter().map(numbers).collect() };
            prop_assert_eq!(Recording::parse(&recording.to_string()).unwrap(), recording);
        }

        #[test]
        fn any_text_is_read_or_refused_without_panic(text in "(cc reno\n)?[a-z0-9 |\n-]{0,200}") {
            let _ = Recording::parse(&text);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Call::decode(&bytes);
        }
    }

    #[test]
    fn a_bad_line_is_named_with_what_was_expected() {
        let message = Recording::parse("cc reno\ninit 1 x").unwrap_err().to_string();
        assert!(message.starts_with("line 2: 'x' is not a whole number in range; expected: op"), "{message}");
    }
}
