//! A path drawn by its seed, simulated, and its samples as looks.

use longfat_host::socket::TcpInfo;
use longfat_link::plan::{DirectionPlan, LinkPlan};
use longfat_schema::{
    random::SplitMix64,
    record::{Record, TcpSample},
};
use longfat_sim::{
    EndpointPlan, FlowPlan, LinkBetween, NodePlan, Scenario, SendBuffer, TcpPlan, Transport, run,
};
use longfat_why::{Look, Memory};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;
/// As 'longfat why -- PROGRAM' looks: every 50 ms.
const SAMPLES_PER_LOOK: usize = 5;
const LONGEST_ROUND_TRIP_US: i64 = 300_000;
/// TCP_ESTABLISHED and TCP_FIN_WAIT1 of the kernel.
const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
/// Scaling agreed on (TCPI_OPT_WSCALE), SACK and timestamps.
const OPTIONS: u8 = 7;

/// A path and what is done on it.
pub struct Case {
    pub rate_bps: u64,
    pub rtt_ns: u64,
    pub pipe_bytes: u64,
    pub part: f64,
    pub forward: DirectionPlan,
    /// One way, back.
    pub back_ns: u64,
    pub sender: EndpointPlan,
    pub receiver: EndpointPlan,
    pub bytes: Option<u64>,
    pub app_bps: Option<u64>,
    pub seed: u64,
    pub warm_ns: u64,
    pub watch_ns: u64,
}

impl Case {
    /// 5 to 80 Mbit/s, 10 to 160 ms, a queue of two pipes.
    pub fn drawn(seed: u64) -> Case {
        let mut random = SplitMix64::new(seed);
        let rate_bps = (5e6 * 16_f64.powf(random.unit())) as u64;
        let rtt_ns = (10e6 * 16_f64.powf(random.unit())) as u64;
        let sender = EndpointPlan { cc: "cubic".to_owned(), ..EndpointPlan::default() };
        let mut case = Case {
            part: 0.15 + 0.25 * random.unit(),
            forward: DirectionPlan::plain(None, 0, 0),
            back_ns: 0,
            sender,
            receiver: EndpointPlan::default(),
            bytes: None,
            app_bps: None,
            warm_ns: 6 * SECOND,
            watch_ns: 10 * SECOND,
            rate_bps,
            rtt_ns,
            pipe_bytes: 0,
            seed,
        };
        case.set_path();
        case
    }

    /// The path of its rate and round trip, with a queue of two pipes.
    pub fn set_path(&mut self) {
        self.pipe_bytes = (self.rate_bps / 8 * (self.rtt_ns / 1000) / 1_000_000).max(15_000);
        self.forward = DirectionPlan::plain(Some(self.rate_bps), self.rtt_ns / 2, 2 * self.pipe_bytes);
        self.back_ns = self.rtt_ns / 2;
    }

    pub fn part_of_pipe(&self) -> u64 {
        ((self.pipe_bytes as f64 * self.part) as u64).max(4 * 1448)
    }

    fn scenario(&self) -> Scenario {
        let plan = LinkPlan {
            name: "path".to_owned(),
            mtu_bytes: 1500,
            seed: self.seed,
            late_limit_ns: 0,
            pause_limit: 0.0,
            sample_interval_ns: SECOND,
            coalesce_ns: 0,
            forward: self.forward.clone(),
            backward: DirectionPlan::plain(Some(self.rate_bps), self.back_ns, 1 << 30),
        };
        let tcp = TcpPlan {
            sender: self.sender.clone(),
            receiver: self.receiver.clone(),
            block_bytes: 16 << 10,
            ..TcpPlan::default()
        };
        let flow = FlowPlan {
            name: "flow".to_owned(),
            from: 0,
            to: 1,
            streams: 1,
            start_ns: 0,
            stagger_ns: 0,
            send_for_ns: None,
            bytes: self.bytes,
            rate_bps: self.app_bps,
            transport: Transport::Tcp(Box::new(tcp)),
        };
        Scenario {
            nodes: vec![NodePlan::router("a"), NodePlan::router("b")],
            links: vec![LinkBetween { ends: [0, 1], plan }],
            flows: vec![flow],
            relays: Vec::new(),
            settle_ns: 0,
            start_within_ns: 0,
            duration_ns: self.warm_ns + self.watch_ns,
            sample_every_ns: 10 * MS,
            seed: self.seed,
        }
    }

    /// What the sender's end shows every ten milliseconds.
    pub fn samples(&self) -> Vec<TcpSample> {
        let mut samples = Vec::new();
        let keep = |record| match record {
            Record::Tcp(sample) if sample.role == "sender" => samples.push(sample),
            _ => {}
        };
        run(&self.scenario(), keep, |_| true).unwrap();
        samples
    }

    /// Part of the watch in which something is out and nothing is acknowledged for longer than any round trip.
    pub fn silent_share(&self, samples: &[TcpSample]) -> f64 {
        let watched = samples.iter().filter(|sample| sample.time_us >= (self.warm_ns / 1000) as i64);
        let (mut heard, mut silent_us) = (None, 0);
        for sample in watched {
            let (acked_bytes, since_us) = *heard.get_or_insert((sample.acked_bytes, sample.time_us));
            let is_over = sample.acked_bytes > acked_bytes;
            if is_over && sample.time_us - since_us > LONGEST_ROUND_TRIP_US {
                silent_us += sample.time_us - since_us;
            }
            if is_over || sample.flight_segments == 0 {
                heard = Some((sample.acked_bytes, sample.time_us));
            }
        }
        silent_us as f64 / (self.watch_ns / 1000) as f64
    }

    /// Some of the samples of the watch, as looks.
    pub fn looks(&self, samples: &[TcpSample]) -> Vec<Look> {
        let (mut looks, mut busy_us, mut heard) = (Vec::new(), 0, (0, 0));
        let mut before_us = 0;
        for (number, sample) in samples.iter().enumerate() {
            let is_busy = sample.flight_segments > 0 || sample.unsent_bytes > 0;
            busy_us += if is_busy { sample.time_us - before_us } else { 0 } as u64;
            before_us = sample.time_us;
            if sample.acked_bytes > heard.0 {
                heard = (sample.acked_bytes, sample.time_us);
            }
            let is_meant = sample.time_us >= (self.warm_ns / 1000) as i64;
            let is_over = self.bytes.is_some_and(|bytes| sample.acked_bytes >= bytes);
            if is_meant && (number.is_multiple_of(SAMPLES_PER_LOOK) || is_over) {
                looks.push(self.look(sample, busy_us, sample.time_us - heard.1));
            }
            if is_over {
                break;
            }
        }
        looks
    }

    fn look(&self, sample: &TcpSample, busy_us: u64, silent_us: i64) -> Look {
        let outstanding = sample.flight_segments * sample.mss_bytes;
        let sndbuf_bytes = match self.sender.send_buffer {
            SendBuffer::Fixed(bytes) | SendBuffer::Counted(bytes) => bytes as u32,
            SendBuffer::Auto(_) => 0,
        };
        let info = TcpInfo {
            // The program ends it when it has written all; the model has no FIN.
            state: if self.bytes.is_some() && sample.unsent_bytes == 0 { FIN_WAIT_1 } else { ESTABLISHED },
            options: OPTIONS,
            ca_state: ["open", "disorder", "cwr", "recovery", "loss"]
                .iter()
                .position(|name| *name == sample.ca_state)
                .unwrap() as u8,
            snd_mss_bytes: sample.mss_bytes,
            unacked_segments: sample.flight_segments,
            rto_us: sample.rto_us,
            srtt_us: sample.srtt_us,
            rttvar_us: sample.rttvar_us,
            min_rtt_us: sample.min_rtt_us.unwrap_or(u32::MAX),
            snd_cwnd_segments: sample.cwnd_segments,
            snd_ssthresh_segments: sample.ssthresh_segments.unwrap_or(u32::MAX),
            total_retrans_segments: sample.retransmitted_segments as u32,
            total_rto: sample.timeouts.unwrap() as u16,
            dsack_dups: sample.duplicate_segments.unwrap() as u32,
            acked_bytes: sample.acked_bytes,
            sent_bytes: sample.sent_bytes,
            data_segs_out: (sample.sent_bytes / u64::from(sample.mss_bytes)) as u32,
            notsent_bytes: sample.unsent_bytes as u32,
            delivery_rate_bytes_per_s: sample.delivery_rate_bps / 8,
            last_ack_recv_ms: (silent_us / 1000) as u32,
            snd_wnd_bytes: self.receiver.receive_buffer.most_bytes() as u32,
            pacing_rate_bytes_per_s: u64::MAX,
            max_pacing_rate_bytes_per_s: u64::MAX,
            busy_us,
            rwnd_limited_us: sample.rwnd_limited_us,
            sndbuf_limited_us: sample.sndbuf_limited_us,
            ..TcpInfo::default()
        };
        let send_queued_bytes = outstanding + sample.unsent_bytes as u32;
        let memory = Memory { sndbuf_bytes, send_queued_bytes, ..Memory::default() };
        Look { time_us: sample.time_us as u64, info, memory, ..Look::default() }
    }
}
