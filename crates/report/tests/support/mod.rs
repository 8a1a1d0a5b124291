//! A synthetic result: the shape of a real one, from arithmetic instead of a network.

use longfat_schema::{SCHEMA_VERSION, record::*, run::*};
use serde_json::json;
use std::{collections::BTreeMap, path::Path};

/// What distinguishes one case of the synthetic experiment from another.
pub struct Shape {
    pub name: &'static str,
    pub title: &'static str,
    pub goodput_bps: f64,
    pub published_bps: Option<f64>,
    pub background: u32,
    pub relayed: bool,
    pub echoes: bool,
    pub rival: bool,
}

const PLAIN: Shape = Shape {
    name: "",
    title: "",
    goodput_bps: 0.0,
    published_bps: None,
    background: 10,
    relayed: false,
    echoes: true,
    rival: false,
};

/// Seven cases; the last one has a name and a title that try to break out of the page.
pub const CASES: [Shape; 7] = [
    Shape {
        name: "reno",
        title: "Reno end to end, beside ten HighSpeed flows",
        goodput_bps: 70e6,
        published_bps: Some(70.7e6),
        ..PLAIN
    },
    Shape {
        name: "highspeed",
        title: "HighSpeed end to end, beside the same ten",
        goodput_bps: 84e6,
        published_bps: Some(83.8e6),
        ..PLAIN
    },
    Shape {
        name: "reno-relayed",
        title: "Reno through the relay, HighSpeed on the long leg, beside the same ten",
        goodput_bps: 93e6,
        published_bps: Some(93e6),
        relayed: true,
        ..PLAIN
    },
    Shape {
        name: "relayed-empty",
        title: "Reno through the relay, empty path",
        goodput_bps: 905e6,
        published_bps: Some(67.4e6),
        background: 0,
        relayed: true,
        ..PLAIN
    },
    Shape {
        name: "duel-reno",
        title: "One Reno beside one HighSpeed",
        goodput_bps: 120e6,
        published_bps: Some(68.6e6),
        background: 0,
        rival: true,
        ..PLAIN
    },
    Shape {
        name: "duel-highspeed",
        title: "The same flow as HighSpeed",
        goodput_bps: 455e6,
        published_bps: Some(204.2e6),
        background: 0,
        rival: true,
        ..PLAIN
    },
    Shape {
        name: "x</script>&\"'",
        title: "<img src=x onerror=alert(1)> & \"quoted\" 'names'",
        goodput_bps: 88e6,
        background: 4,
        echoes: false,
        ..PLAIN
    },
];

/// Repeats of every case; of the second case the third is invalid, of the last the second has failed.
pub const REPEATS: u32 = 3;
const SECONDS: f64 = 60.0;
const FOCUS: &str = "focus";

/// Numbers that look random and are the same every time.
struct Noise(u64);

impl Noise {
    /// Between -1 and 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    }
}

/// Writes the whole result.
pub fn write_result(directory: &Path) {
    write_cases(directory, CASES.len());
}

/// Writes the first so many cases.
pub fn write_cases(directory: &Path, count: usize) {
    let mut runs = Vec::new();
    for shape in &CASES[..count] {
        for repeat in 1..=REPEATS {
            let path = format!("case{}/r{repeat}", runs.len() / REPEATS as usize + 1);
            let status = status(shape, repeat);
            write_run(&directory.join(&path), shape, repeat, status);
            runs.push(RunEntry { case: shape.name.into(), repeat, path, status, seal: None });
        }
    }
    let mut result = result_manifest(runs);
    result.cases.truncate(count);
    write_json(&directory.join(RESULT_FILE), &result).unwrap();
}

fn status(shape: &Shape, repeat: u32) -> RunStatus {
    match (shape.name, repeat) {
        ("highspeed", 3) => RunStatus::Invalid,
        (name, 2) if name.starts_with('x') => RunStatus::Failed,
        _ => RunStatus::Done,
    }
}

fn result_manifest(runs: Vec<RunEntry>) -> ResultManifest {
    let published =
        |shape: &Shape| shape.published_bps.map(|value| metric("goodput_bps", FOCUS, None, value));
    let case = |shape: &Shape| CaseInfo {
        name: shape.name.into(),
        title: shape.title.into(),
        axes: vec![],
        published: published(shape).into_iter().collect(),
    };
    let expectation = |text: &str, met, detail: &str| Expectation {
        text: text.into(),
        met,
        detail: detail.into(),
        cells: vec![],
    };
    ResultManifest {
        schema_version: SCHEMA_VERSION,
        experiment: "conversion".into(),
        title: "A relay that converts Reno to HighSpeed TCP on a long fat path".into(),
        description: "Ten HighSpeed flows share a 1 Gbit/s path of 28.4 ms with the flow under study.\n\n\
                      A relayed Reno flow should get what an end-to-end HighSpeed flow gets <or more> & \"fill\" an empty path."
            .into(),
        started_unix_ms: 1_738_324_800_000,
        status: ResultStatus::Complete,
        focus: Some(FOCUS.into()),
        cases: CASES.iter().map(case).collect(),
        runs,
        planned: None,
        twins: vec![],
        expectations: vec![
            expectation(
                "The relayed Reno gets at least what the end-to-end HighSpeed flow gets",
                Some(true),
                "median 93.0 Mbit/s against 84.0 Mbit/s: ratio 1.11, wanted at least 1.00",
            ),
            expectation("The empty path is filled", Some(false), "median 905 Mbit/s: ratio 0.95, wanted at least 0.97"),
            expectation("Nothing <b>breaks</b>", None, "no valid run"),
        ],
        provenance: provenance(),
        files: None,
        seal: None,
    }
}

fn provenance() -> Provenance {
    Provenance {
        longfat_version: "0.1.0".into(),
        git_revision: "77f1d5a0c0ffee+dirty".into(),
        command_line: ["longfat", "lab", "run", "experiments/conversion.toml"].map(String::from).to_vec(),
        kernel: "6.12.0-test #1 SMP".into(),
        cpu: "Synthetic <CPU> @ 3 GHz".into(),
        cpu_count: 2,
        memory_bytes: 8_000_000_000,
        load_average: 0.42,
        facts: BTreeMap::from([("clock source".into(), "tsc".into())]),
    }
}

fn metric(metric: &str, of: &str, stream: Option<u32>, value: f64) -> Metric {
    Metric { metric: metric.into(), of: of.into(), stream, value }
}

/// Writes one run; a failed one has a single table row and no metrics.
pub fn write_run(directory: &Path, shape: &Shape, repeat: u32, status: RunStatus) {
    let mut writer = RunWriter::create(directory).unwrap();
    let mut noise = Noise(u64::from(repeat) * 7919 + shape.name.len() as u64);
    let goodput_bps = shape.goodput_bps * (1.0 + 0.04 * noise.next());
    let mut metrics = Vec::new();
    if status == RunStatus::Failed {
        writer.push(Record::Note(note("warning", "relay", "died <unexpectedly>"))).unwrap();
    } else {
        write_flows(&mut writer, shape, goodput_bps, &mut noise, &mut metrics);
        write_queue(&mut writer, shape, &mut noise, &mut metrics);
        if shape.relayed {
            write_relay(&mut writer, goodput_bps, &mut noise, &mut metrics);
        }
        if shape.rival {
            write_avail(&mut writer, goodput_bps, &mut noise);
            metrics.push(metric("avail_error_ratio", FOCUS, None, 0.05));
            metrics.push(metric("avail_confidence_ratio", FOCUS, None, 0.9));
        }
    }
    let plan = json!({ "schema_version": SCHEMA_VERSION, "case": shape.name, "repeat": repeat, "path": { "rate": "1000000000bit", "delay": "14200000ns" } });
    write_json(&directory.join("plan.json"), &plan).unwrap();
    writer.finish().unwrap();
    seal_run(directory, &mut run_manifest(shape, repeat, status, metrics)).unwrap();
}

fn note(level: &str, source: &str, message: &str) -> Note {
    Note { time_us: 1_000_000, level: level.into(), source: source.into(), message: message.into() }
}

fn run_manifest(shape: &Shape, repeat: u32, status: RunStatus, metrics: Vec<Metric>) -> RunManifest {
    let reasons = match status {
        RunStatus::Done => vec![],
        RunStatus::Unexplained => vec!["goodput of 'measured' is 1 Mbit/s".into()],
        RunStatus::Invalid => {
            vec!["link path/forward: p99 lateness 5210 µs exceeds the limit of 1000 µs".into()]
        }
        RunStatus::Failed => vec!["relay ended with exit code 2 <see log>".into()],
    };
    RunManifest {
        schema_version: SCHEMA_VERSION,
        experiment: "conversion".into(),
        case: shape.name.into(),
        repeat,
        backend: "emulated".into(),
        seed: u64::from(repeat),
        status,
        reasons,
        started_unix_ms: 1_738_324_800_000 + u64::from(repeat) * 60_000,
        duration_us: (SECONDS * 1e6) as i64,
        window_start_us: 10_000_000,
        window_end_us: 58_000_000,
        metrics,
        provenance: provenance(),
        hosts: ["sender", "relay", "receiver"].map(|name| (name.to_owned(), host(name))).into(),
        ..RunManifest::default()
    }
}

fn host(name: &str) -> HostState {
    let mut sysctls: BTreeMap<String, String> =
        (0..400).map(|i| (format!("net.ipv4.conf.if{i}.rp_filter"), "0".to_owned())).collect();
    sysctls.insert("net.ipv4.ip_forward".into(), u8::from(name == "relay").to_string());
    sysctls.insert("net.ipv4.tcp_rmem".into(), "4096\t131072\t<6291456>".into());
    HostState {
        sysctls,
        interfaces: BTreeMap::from([(
            "eth0".into(),
            BTreeMap::from([("mtu".into(), "1500".into()), ("tso".into(), "on".into())]),
        )]),
        qdiscs: vec![r#"{"kind":"noqueue","dev":"eth0"}"#.into()],
        routes: vec!["default via 10.0.0.1 dev eth0".into()],
        counters: BTreeMap::from([("TcpRetransSegs".into(), 1234), (format!("OnlyAt{name}"), 5)]),
        machine: None,
    }
}

/// What the focus flow measured of its path, every 100 ms, and what was free.
fn write_avail(writer: &mut RunWriter, goodput_bps: f64, noise: &mut Noise) {
    for step in 1..(SECONDS * 10.0) as i64 {
        let sample = AvailSample {
            time_us: step * 100_000,
            flow: FOCUS.into(),
            avail_bps: (goodput_bps * (1.0 + 0.1 * noise.next())) as u64,
            confidence_ratio: 0.9,
            free_bps: Some(goodput_bps as u64),
            ..Default::default()
        };
        writer.push(Record::Avail(sample)).unwrap();
    }
}

struct Stream {
    flow: &'static str,
    stream: u32,
    goodput_bps: f64,
    cc: &'static str,
}

fn streams(shape: &Shape, goodput_bps: f64, noise: &mut Noise) -> Vec<Stream> {
    let mut all = vec![Stream { flow: FOCUS, stream: 0, goodput_bps, cc: "lf_reno" }];
    let each = (940e6 - goodput_bps) / f64::from(shape.background.max(1));
    for stream in 0..shape.background {
        let goodput_bps = each * (1.0 + 0.2 * noise.next());
        all.push(Stream { flow: "background", stream, goodput_bps, cc: "lf_highspeed" });
    }
    if shape.rival {
        all.push(Stream { flow: "rival", stream: 0, goodput_bps: 930e6 - goodput_bps, cc: "lf_highspeed" });
    }
    all
}

fn write_flows(
    writer: &mut RunWriter,
    shape: &Shape,
    goodput_bps: f64,
    noise: &mut Noise,
    metrics: &mut Vec<Metric>,
) {
    let streams = streams(shape, goodput_bps, noise);
    for stream in &streams {
        write_stream(writer, shape, stream, noise);
        if stream.flow == "background" {
            metrics.push(metric("goodput_bps", stream.flow, Some(stream.stream), stream.goodput_bps));
        }
    }
    let total: f64 = streams.iter().map(|s| s.goodput_bps).sum();
    let squares: f64 = streams.iter().map(|s| s.goodput_bps.powi(2)).sum();
    metrics.push(metric("goodput_bps", FOCUS, None, goodput_bps));
    if total > goodput_bps {
        metrics.push(metric(
            "goodput_bps",
            if shape.rival { "rival" } else { "background" },
            None,
            total - goodput_bps,
        ));
    }
    if shape.relayed {
        metrics.push(metric(
            "retransmitted_segments",
            "relay/relay_out",
            None,
            (400.0 + 90.0 * noise.next()).round(),
        ));
    }
    metrics.push(metric("retransmitted_segments", FOCUS, None, (200.0 + 50.0 * noise.next()).round()));
    metrics.push(metric("fairness_jain", "", None, total * total / (streams.len() as f64 * squares)));
    metrics.push(metric("utilisation_ratio", "path/forward", None, total / 1e9));
    if shape.echoes {
        metrics.push(metric("echo_p50_us", FOCUS, None, 31_000.0 + 900.0 * noise.next()));
        metrics.push(metric("echo_p99_us", FOCUS, None, 48_000.0 + 4000.0 * noise.next()));
    }
}

/// A saw-tooth between a half and one.
fn sawtooth(time_s: f64, period_s: f64, phase: f64) -> f64 {
    0.5 + 0.5 * (time_s / period_s + phase).fract()
}

fn write_stream(writer: &mut RunWriter, shape: &Shape, stream: &Stream, noise: &mut Noise) {
    let (flow, phase) = (stream.flow.to_owned(), noise.next().abs());
    let focus = stream.flow == FOCUS;
    let window = stream.goodput_bps * 0.030 / 8.0 / 1448.0;
    let long_window = if shape.relayed && focus { window / 40.0 } else { window };
    for step in 1..(SECONDS * 10.0) as i64 {
        let time_s = step as f64 / 10.0;
        let start = (time_s / 1.5).min(1.0);
        let bytes =
            stream.goodput_bps / 80.0 * start * (sawtooth(time_s, 9.0, phase) + 0.25 + 0.08 * noise.next());
        writer
            .push(Record::Interval(IntervalSample {
                time_us: step * 100_000,
                duration_us: 100_000,
                flow: flow.clone(),
                stream: stream.stream,
                bytes: bytes as u64,
            }))
            .unwrap();
        writer.push(Record::Tcp(tcp(stream, "sender", time_s, long_window, phase, noise))).unwrap();
        if shape.relayed && focus {
            writer
                .push(Record::Tcp(TcpSample {
                    flow: "relay".into(),
                    stream: 1,
                    ..tcp(stream, "relay_out", time_s, window, phase, noise)
                }))
                .unwrap();
            writer
                .push(Record::Tcp(TcpSample {
                    flow: "relay".into(),
                    stream: 1,
                    ..tcp(stream, "relay_in", time_s, 10.0, phase, noise)
                }))
                .unwrap();
        }
        if shape.echoes && focus {
            let spike = if step % 97 == 0 { 80_000.0 } else { 0.0 };
            let latency = 29_000.0 + 9000.0 * sawtooth(time_s, 9.0, phase) + 800.0 * noise.next() + spike;
            writer
                .push(Record::Echo(EchoSample {
                    time_us: step * 100_000,
                    flow: flow.clone(),
                    stream: 0,
                    position_bytes: step as u64 * 1_000_000,
                    latency_us: latency as u64,
                }))
                .unwrap();
        }
    }
    let summary = FlowSummary {
        flow,
        stream: stream.stream,
        protocol: "tcp".into(),
        cc_sender: stream.cc.into(),
        goodput_bps: stream.goodput_bps as u64,
        ..Default::default()
    };
    writer.push(Record::Flow(summary)).unwrap();
}

fn tcp(stream: &Stream, role: &str, time_s: f64, window: f64, phase: f64, noise: &mut Noise) -> TcpSample {
    let slow_start = time_s < 1.5;
    let cwnd =
        if slow_start { 10.0 * 2f64.powf(time_s * 5.0) } else { window * 1.3 * sawtooth(time_s, 9.0, phase) };
    TcpSample {
        time_us: (time_s * 1e6) as i64,
        flow: stream.flow.into(),
        stream: stream.stream,
        role: role.into(),
        cc: stream.cc.into(),
        cwnd_segments: cwnd.max(2.0) as u32,
        ssthresh_segments: (!slow_start).then_some((window * 0.65) as u32),
        srtt_us: (28_400.0 + 9000.0 * sawtooth(time_s, 9.0, phase) + 300.0 * noise.next()) as u32,
        ..Default::default()
    }
}

fn write_queue(writer: &mut RunWriter, shape: &Shape, noise: &mut Noise, metrics: &mut Vec<Metric>) {
    let mut dropped_packets = 0;
    // Ten times denser than any drawing, so that thinning has something to do.
    for step in 1..(SECONDS * 100.0) as i64 {
        let level = sawtooth(step as f64 / 100.0, 9.0 / f64::from(shape.background.max(1)), 0.3);
        if level > 0.985 {
            dropped_packets += 7;
        }
        let queue_bytes = (1.8e6 * (level - 0.45) * (1.0 + 0.2 * noise.next())).max(0.0) as u64;
        for (direction, queue_bytes, dropped_packets) in
            [("forward", queue_bytes, dropped_packets), ("backward", 0, 0)]
        {
            let sample = QueueSample {
                time_us: step * 10_000,
                link: "path".into(),
                direction: direction.into(),
                queue_bytes,
                dropped_packets,
                ..Default::default()
            };
            writer.push(Record::Queue(sample)).unwrap();
        }
    }
    metrics.push(metric("queue_mean_bytes", "path/forward", None, 540e3 + 20e3 * noise.next()));
    let link = LinkSummary {
        link: "path".into(),
        direction: "forward".into(),
        driver: "af_packet".into(),
        dropped_packets,
        late_p50_us: 12,
        late_p99_us: 340,
        late_p999_us: 700,
        late_max_us: 1900,
        late_limit_us: 1000,
        punctual: true,
        ..Default::default()
    };
    writer.push(Record::Link(link)).unwrap();
}

fn write_relay(writer: &mut RunWriter, goodput_bps: f64, noise: &mut Noise, metrics: &mut Vec<Metric>) {
    for step in 1..(SECONDS * 20.0) as i64 {
        let level = sawtooth(step as f64 / 20.0, 9.0, 0.1);
        let unacked_bytes = (goodput_bps * 0.03 / 8.0 * level) as u64;
        let held_bytes = (262_144.0 * (0.5 + 0.5 * noise.next())) as u64;
        let sample = RelaySample {
            time_us: step * 50_000,
            relay: "relay".into(),
            connection: 1,
            direction: "client_to_server".into(),
            backlog_bytes: unacked_bytes + held_bytes,
            held_bytes,
            unacked_bytes,
            relayed_bytes: step as u64 * 1_000_000,
            ..Default::default()
        };
        // The transfer's control connection: first, and nearly idle.
        let control =
            RelaySample { connection: 0, relayed_bytes: 900, backlog_bytes: 5_000_000_000, ..sample.clone() };
        writer.push(Record::Relay(control)).unwrap();
        writer.push(Record::Relay(sample.clone())).unwrap();
        writer
            .push(Record::Relay(RelaySample {
                direction: "server_to_client".into(),
                backlog_bytes: 0,
                unacked_bytes: 0,
                ..sample
            }))
            .unwrap();
    }
    metrics.push(metric("backlog_mean_bytes", "relay", None, goodput_bps * 0.003));
    metrics.push(metric("backlog_max_bytes", "relay", None, goodput_bps * 0.005));
}
