//! What the ends agree on before a transfer: every value resolved, carried in the first control message.

use longfat_host::socket::CC_NAME_MAX;
use longfat_schema::{arrivals::Arrivals, units::Nanos};
use serde::{Deserialize, Serialize};

/// Bytes handed to a socket at once where no rate asks for fewer.
const BLOCK_USUAL_BYTES: u64 = 128 << 10;
/// Most streams of one transfer.
pub const STREAMS_MAX: u32 = 1024;
/// Largest block handed to a socket at once.
pub const BLOCK_MAX_BYTES: u32 = 64 << 20;
/// Largest UDP payload over IPv4.
pub const DATAGRAM_MAX_BYTES: u32 = 65_507;
/// Least window that can be asked for: a segment of the largest size that links of 1500 bytes carry, and more.
pub const WINDOW_MIN_BYTES: u64 = 2048;
/// Greatest: with all the room the kernel wants for it a socket buffer still fits what the kernel counts in.
pub const WINDOW_MAX_BYTES: u64 = 256 << 20;
/// Receive buffer that holds a window with the kernel's bookkeeping, in windows: segments of Ethernet's size fill less
/// than two, small ones four.
const WINDOW_BUFFERS: u64 = 4;
/// Closest spacing of timestamps in a stream.
pub const ECHO_EVERY_MIN_BYTES: u64 = 1024;

/// Transport of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// A byte stream under congestion control.
    Tcp,
    /// Datagrams at a given rate, whatever the path does.
    Udp,
}

/// How much is sent. Bytes are those of the whole flow, shared evenly by its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// Each stream for this long.
    DurationUs(u64),
    /// This many payload bytes.
    Bytes(u64),
}

/// How the receiving end takes bytes that need no inspection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receive {
    /// Copied to user space, as an application would.
    Copy,
    /// Dropped inside the kernel (MSG_TRUNC): saves the receiver's copy, so the figure is the stack's, not an
    /// application's.
    Discard,
}

/// Everything the two ends agree on. Spans are in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferPlan {
    /// Name of the flow in every record.
    pub flow: String,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Connections (or UDP sockets) side by side.
    pub streams: u32,
    /// Amount of data.
    pub amount: Amount,
    /// The serving end sends.
    pub reverse: bool,
    /// Bytes handed to a socket at once (TCP).
    pub block_bytes: u32,
    /// Send buffer, kernel bookkeeping included; absent: autotuned.
    pub sndbuf_bytes: Option<u64>,
    /// Receive buffer, kernel bookkeeping included; absent: autotuned (UDP: 4 MiB).
    pub rcvbuf_bytes: Option<u64>,
    /// Most payload of a connection in flight, whatever its congestion control would do: the receiving end advertises
    /// no more (TCP). Absent: as its buffer allows.
    pub window_bytes: Option<u64>,
    /// Congestion control of the sending end; absent: that host's default.
    pub cc_sender: Option<String>,
    /// Congestion control of the receiving end; absent: that host's default.
    pub cc_receiver: Option<String>,
    /// Payload rate offered by the whole flow, shared evenly by its streams.
    pub rate_bps: Option<u64>,
    /// Spacing of the timestamps to be echoed.
    pub echo_every_bytes: Option<u64>,
    /// The receiving end compares every byte with what was sent.
    pub verify: bool,
    /// Send from page cache (sendfile) instead of copying.
    pub zero_copy: bool,
    /// How the receiving end takes payload.
    pub receive: Receive,
    /// UDP payload size.
    pub datagram_bytes: u32,
    /// UDP: law by which datagrams leave.
    pub arrivals: Arrivals,
    /// UDP: seed of that law; stream i uses seed + i.
    pub arrivals_seed: u64,
    /// UDP: how much before each departure the sender spins instead of sleeping; 0 never.
    pub spin_us: u64,
    /// Stream i starts i times this late.
    pub stagger_us: u64,
    /// Period of the sender's TCP_INFO samples.
    pub sample_every_us: u64,
    /// Period of the receiver's byte counts.
    pub receiver_interval_us: u64,
    /// How long after its planned end a stream may take to empty its buffers before it is cut.
    pub drain_us: u64,
    /// How long the other end may be silent, or data unacknowledged, before it is dead.
    pub timeout_us: u64,
}

impl Default for TransferPlan {
    fn default() -> TransferPlan {
        TransferPlan {
            flow: "flow".to_owned(),
            protocol: Protocol::Tcp,
            streams: 1,
            amount: Amount::DurationUs(10_000_000),
            reverse: false,
            block_bytes: BLOCK_USUAL_BYTES as u32,
            sndbuf_bytes: None,
            rcvbuf_bytes: None,
            window_bytes: None,
            cc_sender: None,
            cc_receiver: None,
            rate_bps: None,
            echo_every_bytes: None,
            verify: false,
            zero_copy: false,
            receive: Receive::Copy,
            datagram_bytes: 1472,
            arrivals: Arrivals::Constant,
            arrivals_seed: 1,
            spin_us: 50,
            stagger_us: 0,
            sample_every_us: 10_000,
            receiver_interval_us: 100_000,
            drain_us: 10_000_000,
            timeout_us: 10_000_000,
        }
    }
}

/// What is wrong with a plan, and the mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value}: {mend}")]
pub struct PlanError {
    what: &'static str,
    value: String,
    mend: String,
}

impl PlanError {
    /// `what` is `value`, and what to do about it.
    pub(crate) fn new(
        what: &'static str,
        value: &dyn std::fmt::Display,
        mend: impl Into<String>,
    ) -> PlanError {
        PlanError { what, value: value.to_string(), mend: mend.into() }
    }
}

/// Why a text is no plan that can be carried out.
#[derive(Debug, thiserror::Error)]
pub enum PlanTextError {
    /// A text that is no plan in JSON, or one of another version.
    #[error("it is no plan of a transfer: {0}; 'longfat transfer send HOST --json' prints one, under 'plan'")]
    Form(#[from] serde_json::Error),
    /// A plan of a transfer that cannot be.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

fn refuse_unless(
    good: bool,
    what: &'static str,
    value: &dyn std::fmt::Display,
    mend: impl Into<String>,
) -> Result<(), PlanError> {
    if good { Ok(()) } else { Err(PlanError::new(what, value, mend)) }
}

fn refuse_outside(
    range: std::ops::RangeInclusive<u64>,
    what: &'static str,
    value: u64,
) -> Result<(), PlanError> {
    refuse_unless(
        range.contains(&value),
        what,
        &value,
        format!("it must be {} to {}", range.start(), range.end()),
    )
}

/// As [`refuse_outside`], of a time in microseconds.
fn refuse_span_outside(
    range: std::ops::RangeInclusive<u64>,
    what: &'static str,
    value_us: u64,
) -> Result<(), PlanError> {
    let mend = format!("it must be {} to {}", span(*range.start()), span(*range.end()));
    refuse_unless(range.contains(&value_us), what, &span(value_us), mend)
}

/// Microseconds as people write a time.
pub(crate) fn span(us: u64) -> Nanos {
    Nanos(us.saturating_mul(1000))
}

/// A day: no span of a transfer is longer.
pub(crate) const SPAN_MAX_US: u64 = 86_400_000_000;
/// Periods below this would be nothing but sampling.
const PERIOD_MIN_US: u64 = 100;

impl TransferPlan {
    /// Reads and checks a plan in JSON, as outcomes show it.
    ///
    /// # Errors
    /// A key is missing or unknown, or a value cannot be.
    pub fn parse(text: &str) -> Result<TransferPlan, PlanTextError> {
        let plan: TransferPlan = serde_json::from_str(text)?;
        plan.check()?;
        Ok(plan)
    }

    /// Block for a flow that says none, in bytes: 128 KiB, or with a limited rate what a stream sends in 2 ms if that
    /// is less, so that it is smooth.
    pub fn usual_block_bytes(rate_bps: Option<u64>, streams: u32) -> u32 {
        let in_2_ms = |rate_bps: u64| rate_bps / u64::from(streams.max(1)) / 8 / 500;
        let bytes = rate_bps.map_or(BLOCK_USUAL_BYTES, |rate| in_2_ms(rate).clamp(1448, BLOCK_USUAL_BYTES));
        bytes as u32
    }

    /// Checks the plan as a whole; both ends do, before anything is touched.
    pub fn check(&self) -> Result<(), PlanError> {
        let name_ok =
            !self.flow.is_empty() && self.flow.len() <= 64 && !self.flow.chars().any(char::is_control);
        refuse_unless(
            name_ok,
            "the flow name",
            &format!("'{}'", self.flow.escape_debug()),
            "give 1 to 64 printable bytes",
        )?;
        refuse_outside(1..=u64::from(STREAMS_MAX), "the number of streams", self.streams.into())?;
        self.check_amount()?;
        self.check_spans()?;
        self.check_sockets()?;
        match self.protocol {
            Protocol::Tcp => self.check_tcp(),
            Protocol::Udp => self.check_udp(),
        }
    }

    fn check_amount(&self) -> Result<(), PlanError> {
        match self.amount {
            Amount::DurationUs(span) => refuse_span_outside(1000..=SPAN_MAX_US, "the duration", span),
            Amount::Bytes(bytes) => {
                refuse_outside(u64::from(self.streams)..=1 << 47, "the number of bytes", bytes)
            }
        }
    }

    fn check_spans(&self) -> Result<(), PlanError> {
        refuse_span_outside(0..=SPAN_MAX_US, "the stagger", self.stagger_us)?;
        refuse_span_outside(PERIOD_MIN_US..=SPAN_MAX_US, "the sampling period", self.sample_every_us)?;
        refuse_span_outside(1000..=SPAN_MAX_US, "the receiver's interval", self.receiver_interval_us)?;
        refuse_span_outside(0..=SPAN_MAX_US, "the drain limit", self.drain_us)?;
        refuse_span_outside(200_000..=3_600_000_000, "the timeout", self.timeout_us)?;
        refuse_span_outside(0..=10_000, "the spin time", self.spin_us)
    }

    fn check_sockets(&self) -> Result<(), PlanError> {
        for (what, bytes) in
            [("the send buffer", self.sndbuf_bytes), ("the receive buffer", self.rcvbuf_bytes)]
        {
            refuse_outside(1024..=i32::MAX as u64, what, bytes.unwrap_or(1024))?;
        }
        for cc in [&self.cc_sender, &self.cc_receiver].into_iter().flatten() {
            let named = !cc.is_empty() && cc.len() <= CC_NAME_MAX;
            refuse_unless(
                named,
                "the congestion control",
                &format!("'{}'", cc.escape_debug()),
                "names have 1 to 15 bytes",
            )?;
        }
        refuse_outside(1000..=10_u64.pow(13), "the rate in bit/s", self.rate_bps.unwrap_or(1000))
    }

    fn check_tcp(&self) -> Result<(), PlanError> {
        refuse_outside(1..=u64::from(BLOCK_MAX_BYTES), "the block in bytes", self.block_bytes.into())?;
        let every = self.echo_every_bytes.unwrap_or(ECHO_EVERY_MIN_BYTES);
        refuse_outside(ECHO_EVERY_MIN_BYTES..=1 << 40, "the echo spacing in bytes", every)?;
        let copies = !self.verify || self.receive == Receive::Copy;
        refuse_unless(copies, "receive", &"'discard'", "verified bytes must be copied: drop --verify or it")?;
        let window = self.window_bytes.unwrap_or(WINDOW_MIN_BYTES);
        refuse_outside(WINDOW_MIN_BYTES..=WINDOW_MAX_BYTES, "the window in bytes", window)?;
        let alone = self.window_bytes.is_none() || self.rcvbuf_bytes.is_none();
        refuse_unless(
            alone,
            "the window",
            &"beside a receive buffer",
            "it brings its own: drop --rcvbuf or it",
        )
    }

    fn check_udp(&self) -> Result<(), PlanError> {
        let least = crate::datagram::HEADER_BYTES as u64;
        refuse_outside(
            least..=DATAGRAM_MAX_BYTES.into(),
            "the datagram in bytes",
            self.datagram_bytes.into(),
        )?;
        refuse_unless(self.rate_bps.is_some(), "the rate", &"absent", "UDP needs one: give --rate")?;
        let mend = "echoes, verification, windows and zero-copy are for TCP";
        let tcp_only =
            self.echo_every_bytes.is_some() || self.verify || self.zero_copy || self.window_bytes.is_some();
        refuse_unless(!tcp_only, "the protocol", &"udp", mend)
    }

    /// The receive buffer, bookkeeping included; `None`: autotuned.
    pub fn receive_buffer_bytes(&self) -> Option<u64> {
        self.rcvbuf_bytes.or_else(|| self.window_bytes.map(receive_buffer_of_window))
    }

    /// Bytes that stream number `stream` sends, when bytes are planned.
    pub fn stream_bytes(&self, stream: u32) -> Option<u64> {
        match self.amount {
            Amount::Bytes(bytes) => Some(share(bytes, self.streams, stream)),
            Amount::DurationUs(_) => None,
        }
    }

    /// Rate that stream number `stream` offers.
    pub fn stream_rate_bps(&self, stream: u32) -> Option<u64> {
        self.rate_bps.map(|rate| share(rate, self.streams, stream).max(1))
    }

    /// How long after the first stream the last one starts.
    pub fn last_start_us(&self) -> u64 {
        self.stagger_us.saturating_mul(u64::from(self.streams.saturating_sub(1)))
    }

    /// How long each stream is planned to send, when a duration is planned.
    pub fn duration_us(&self) -> Option<u64> {
        match self.amount {
            Amount::DurationUs(span) => Some(span),
            Amount::Bytes(_) => None,
        }
    }
}

/// The receive buffer that comes with a window.
pub fn receive_buffer_of_window(window_bytes: u64) -> u64 {
    window_bytes.saturating_mul(WINDOW_BUFFERS)
}

/// Part `index` of `whole` in `parts` nearly equal parts that sum to `whole`.
fn share(whole: u64, parts: u32, index: u32) -> u64 {
    let parts = u64::from(parts.max(1));
    whole / parts + u64::from(u64::from(index) < whole % parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_default_plan_is_sound() {
        assert_eq!(TransferPlan::default().check(), Ok(()));
    }

    #[test]
    fn a_wrong_plan_names_the_value_and_the_mend() {
        let message = |plan: TransferPlan| plan.check().unwrap_err().to_string();
        let plan = TransferPlan { streams: 0, ..TransferPlan::default() };
        assert_eq!(message(plan), "the number of streams is 0: it must be 1 to 1024");
        let plan = TransferPlan { protocol: Protocol::Udp, ..TransferPlan::default() };
        assert_eq!(message(plan), "the rate is absent: UDP needs one: give --rate");
        let plan = TransferPlan { cc_sender: Some("a-name-far-too-long".into()), ..TransferPlan::default() };
        assert!(message(plan).contains("'a-name-far-too-long'"));
        let plan = TransferPlan { verify: true, receive: Receive::Discard, ..TransferPlan::default() };
        assert!(message(plan).contains("--verify"));
        let window_bytes = Some(50_000);
        let plan = TransferPlan { window_bytes, rcvbuf_bytes: Some(50_000), ..TransferPlan::default() };
        assert!(message(plan).contains("drop --rcvbuf"));
        let (protocol, rate_bps) = (Protocol::Udp, Some(1_000_000));
        let plan = TransferPlan { window_bytes, protocol, rate_bps, ..TransferPlan::default() };
        assert!(message(plan).contains("for TCP"));
    }

    #[test]
    fn a_plan_from_another_version_is_refused_not_guessed() {
        let said = |key: &str, value: serde_json::Value| {
            let mut plan = serde_json::to_value(TransferPlan::default()).unwrap();
            plan[key] = value;
            TransferPlan::parse(&plan.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(said("streams", 1.into()), Ok(TransferPlan::default()));
        assert!(said("colour", "red".into()).unwrap_err().contains("unknown field `colour`"));
        assert_eq!(
            said("streams", 0.into()),
            Err("the number of streams is 0: it must be 1 to 1024".to_owned())
        );
        assert!(TransferPlan::parse("{}").unwrap_err().to_string().contains("missing field"));
    }

    #[test]
    fn the_usual_block_is_what_a_slow_stream_sends_in_two_milliseconds() {
        let block = TransferPlan::usual_block_bytes;
        assert_eq!(block(None, 1), TransferPlan::default().block_bytes);
        assert_eq!([block(Some(100_000_000), 1), block(Some(100_000_000), 2)], [25_000, 12_500]);
        assert_eq!([block(Some(1000), 1), block(Some(u64::MAX), 1)], [1448, 128 << 10]);
    }

    proptest! {
        #[test]
        fn shares_sum_to_the_whole(bytes in 0u64..1 << 50, streams in 1u32..1000) {
            let plan = TransferPlan { streams, amount: Amount::Bytes(bytes), ..TransferPlan::default() };
            let sum: u64 = (0..streams).filter_map(|stream| plan.stream_bytes(stream)).sum();
            prop_assert_eq!(sum, bytes);
        }
    }
}
