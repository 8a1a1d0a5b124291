//! `longfat avail`.

use crate::{
    outcome::{Failure, Outcome, require},
    output, spans, stop,
};
use longfat_cc::Avail;
use longfat_host::{
    capability,
    confine::{Account, Confinement},
};
use longfat_kernel::{
    avail::{Measured, measured},
    support::{Capability, missing},
};
use longfat_relay::metrics::{Family, Format, Kind, http::Server, text};
use longfat_schema::{record::AvailSample, units::Nanos};
use serde::Serialize;
use std::{io, net::SocketAddr, sync::atomic::Ordering, time::Duration};

/// Available bandwidth, as running connections measure it with their own segments.
///
/// Connections under 'lf_imtcp' or 'lf_imtcp_bg' find out how much of their path they could have (IP headers and their
/// own share included), about once per round trip. Shown are the value, its standard deviation, how far to trust it,
/// and how old it is. Confidence is low where few measurement streams pass (losses, pauses) or where they disagree.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat cc exec imtcp -- rsync -a big host: &
      an unmodified program that measures
  longfat avail
      every connection that measures
  longfat avail 192.0.2.7
      those to or from an address
  longfat avail 192.0.2.7:443 --watch
      live, until Ctrl-C
  longfat avail --pid 4711 --json
      those of one process, as JSON
  longfat avail --metrics 127.0.0.1:9470
      for Prometheus, at /metrics, until Ctrl-C")]
pub struct Args {
    /// Only connections with this end: ADDRESS or ADDRESS:PORT.
    flow: Option<String>,
    /// Only those of this process.
    #[arg(long)]
    pid: Option<i32>,
    /// JSON: one array, or with --watch one line per connection and look.
    #[arg(long)]
    json: bool,
    /// Look again and again, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "500ms", requires = "watch")]
    every: Nanos,
    /// Answer Prometheus on this loopback address, like 127.0.0.1:9470, until Ctrl-C; each request looks anew.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with_all = ["watch", "json"])]
    metrics: Option<SocketAddr>,
    /// Started by root with --metrics or --watch: the user it becomes; 'root' to stay [default: longfat, or else
    /// nobody].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// Shortest time between two looks.
const EVERY_LEAST: Nanos = Nanos(10_000_000);

/// A line of what is shown.
#[derive(Debug, Serialize)]
struct Row {
    pid: i32,
    program: String,
    cc: String,
    local: SocketAddr,
    peer: SocketAddr,
    /// Absent: nothing found yet, as the rest.
    avail_bps: Option<u64>,
    deviation_bps: Option<u64>,
    capacity_bps: Option<u64>,
    confidence_ratio: Option<f64>,
    age_us: Option<i64>,
    results: Option<u32>,
    rejected: Option<u32>,
}

pub fn run(args: &Args) -> Outcome {
    require(missing(&[Capability::CongestionControl]))?;
    let wanted = args.flow.as_deref().map(End::parse).transpose()?;
    if let Some(address) = args.metrics {
        return serve(args, wanted, address);
    }
    if !args.watch {
        let rows = look(args, wanted)?;
        match show(&rows, args.json) {
            Err(error) if is_closed_pipe(&error) => {}
            shown => shown?,
        }
        return if rows.is_empty() { Err(nothing(args)) } else { Ok(()) };
    }
    spans::at_least("--every", args.every, EVERY_LEAST)?;
    match watch(args, wanted) {
        // Whoever reads, such as 'head', has seen enough.
        Err(error) if is_closed_pipe(&error) => Ok(()),
        result => Ok(result?),
    }
}

/// Answers Prometheus until it is stopped.
fn serve(args: &Args, wanted: Option<End>, address: SocketAddr) -> Outcome {
    if !address.ip().is_loopback() {
        return Err(Failure::Failed(anyhow::anyhow!(
            "--metrics {address} can be reached from elsewhere; choose a loopback address like 127.0.0.1:9470"
        )));
    }
    let stop = stop::flag().map_err(anyhow::Error::from)?;
    let server = Server::open(address).map_err(anyhow::Error::from)?;
    confine(args)?;
    if let Some(address) = server.address() {
        eprintln!("metrics at http://{address}/metrics");
    }
    server.serve(&|format| metrics(look(args, wanted).as_deref(), format), &stop);
    Ok(())
}

/// What a look takes: other processes' sockets, their namespaces, and the maps of BPF programs.
fn confine(args: &Args) -> anyhow::Result<()> {
    let account = Account::choose(args.user.as_deref())?;
    let kept = [
        // Of other users' processes, what is their own to read.
        capability::DAC_READ_SEARCH,
        capability::SYS_PTRACE,
        capability::SYS_ADMIN,
        capability::NET_ADMIN,
        capability::BPF,
        capability::PERFMON,
    ];
    Confinement::of(account).keeping(&kept).using_bpf().looking_into_processes().enter()?;
    Ok(())
}

/// What a look found, for Prometheus: bytes and seconds, as is its custom. A look that failed is said, not shown as
/// nothing.
fn metrics(rows: Result<&[Row], &anyhow::Error>, format: Format) -> String {
    let looked = f64::from(u8::from(rows.is_ok()));
    let rows = rows.unwrap_or_default();
    let gauge = |name, unit, help, value: &dyn Fn(&Row) -> Option<f64>| {
        rows.iter().fold(Family::new(Kind::Gauge, name, unit, help), |family, row| {
            let (pid, local, peer) = (row.pid.to_string(), row.local.to_string(), row.peer.to_string());
            let labels = [("process", &*row.program), ("pid", &*pid), ("cc", &*row.cc)];
            let ends = [("local", &*local), ("peer", &*peer)];
            match value(row) {
                Some(value) => family.with(&[&labels[..], &ends[..]].concat(), value),
                None => family,
            }
        })
    };
    let bytes = |bps: Option<u64>| Some(bps? as f64 / 8.0);
    const RATE: &str = "bytes_per_second";
    let help = "1 when the kernel could be asked.";
    text(
        &[
            Family::new(Kind::Gauge, "longfat_avail_up", "", help).with(&[], looked),
            gauge(
                "longfat_avail_bytes_per_second",
                RATE,
                "What a connection could have, IP headers and its own share included, as it measured it.",
                &|row| bytes(row.avail_bps),
            ),
            gauge("longfat_avail_deviation_bytes_per_second", RATE, "Standard deviation of that.", &|row| {
                bytes(row.deviation_bps)
            }),
            gauge("longfat_avail_capacity_bytes_per_second", RATE, "Capacity of its bottleneck.", &|row| {
                bytes(row.capacity_bps)
            }),
            gauge("longfat_avail_confidence_ratio", "ratio", "How far to trust it, 0 to 1.", &|row| {
                row.confidence_ratio
            }),
            gauge("longfat_avail_age_seconds", "seconds", "How old the newest result is.", &|row| {
                Some(row.age_us? as f64 / 1e6)
            }),
        ],
        format,
    )
}

fn watch(args: &Args, wanted: Option<End>) -> anyhow::Result<()> {
    let stop = stop::flag()?;
    confine(args)?;
    while !stop.load(Ordering::Relaxed) {
        let rows = look(args, wanted)?;
        if args.json {
            rows.iter().try_for_each(|row| say(&serde_json::to_string(row)?))?;
        } else {
            show(&rows, false)?;
        }
        stop::wait(Duration::from(args.every), &stop);
    }
    Ok(())
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(output::is_closed)
}

fn nothing(args: &Args) -> Failure {
    let which = if args.flow.is_some() || args.pid.is_some() {
        "no such connection measures"
    } else {
        "no connection measures"
    };
    Failure::Failed(anyhow::anyhow!(
        "{which}; one does under 'lf_imtcp' or 'lf_imtcp_bg': 'longfat cc exec imtcp -- COMMAND'"
    ))
}

/// One end of a connection, as a person names it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Address(std::net::IpAddr),
    Socket(SocketAddr),
}

impl End {
    fn parse(text: &str) -> anyhow::Result<End> {
        let socket = text.parse().map(End::Socket);
        let address = || text.parse().map(End::Address);
        socket.or_else(|_| address()).map_err(|_| {
            anyhow::anyhow!(
                "'{text}' is no end of a connection; give ADDRESS or ADDRESS:PORT ([ADDRESS]:PORT for IPv6)"
            )
        })
    }

    fn is(self, other: SocketAddr) -> bool {
        match self {
            End::Address(address) => other.ip() == address,
            End::Socket(socket) => other == socket,
        }
    }
}

fn look(args: &Args, wanted: Option<End>) -> anyhow::Result<Vec<Row>> {
    let now_us = longfat_host::monotonic_us();
    let all = measured(args.pid)?.into_iter();
    let those = all.filter(|one| wanted.is_none_or(|end| end.is(one.local) || end.is(one.peer)));
    Ok(those.map(|one| row(one, now_us)).collect())
}

fn row(measured: Measured, now_us: i64) -> Row {
    let Measured { pid, program, cc, local, peer, found } = measured;
    let sample = found.map(|found| sample(&found));
    let of = |value: fn(&AvailSample) -> u64| sample.as_ref().map(value);
    Row {
        avail_bps: of(|sample| sample.avail_bps),
        deviation_bps: of(|sample| sample.deviation_bps),
        capacity_bps: sample.as_ref().and_then(|sample| sample.capacity_bps),
        confidence_ratio: sample.as_ref().map(|sample| sample.confidence_ratio),
        age_us: sample.as_ref().map(|sample| (now_us - sample.time_us).max(0)),
        results: sample.as_ref().map(|sample| sample.results),
        rejected: sample.as_ref().map(|sample| sample.rejected),
        pid,
        program,
        cc,
        local,
        peer,
    }
}

/// What a connection has found, as a record; its flow is left open.
pub fn sample(found: &Avail) -> AvailSample {
    AvailSample {
        time_us: i64::try_from(found.at_us).unwrap_or(i64::MAX),
        avail_bps: u64::from(found.avail_kbps) * 1000,
        deviation_bps: u64::from(found.deviation_kbps) * 1000,
        capacity_bps: Some(u64::from(found.capacity_kbps) * 1000).filter(|rate| *rate > 0),
        confidence_ratio: f64::from(found.confidence_permille.min(1000)) / 1000.0,
        results: found.results,
        rejected: found.rejected,
        ..AvailSample::default()
    }
}

fn show(rows: &[Row], json: bool) -> anyhow::Result<()> {
    if json {
        return say(&serde_json::to_string_pretty(rows)?);
    }
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table.set_header([
        "process",
        "connection",
        "cc",
        "available",
        "capacity",
        "confidence",
        "age",
        "streams",
    ]);
    for row in rows {
        let or = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let mbps = |bps: u64| format!("{:.1}", bps as f64 / 1e6);
        let avail = row.avail_bps.zip(row.deviation_bps);
        table.add_row([
            format!("{}[{}]", row.program, row.pid),
            format!("{} -> {}", row.local, row.peer),
            row.cc.clone(),
            or(avail.map(|(avail, deviation)| format!("{} ± {} Mbit/s", mbps(avail), mbps(deviation)))),
            or(row.capacity_bps.map(|capacity| format!("{} Mbit/s", mbps(capacity)))),
            or(row.confidence_ratio.map(|ratio| format!("{:.0} %", ratio * 100.0))),
            or(row.age_us.map(|age_us| format!("{} ms", age_us / 1000))),
            or(row.results.zip(row.rejected).map(|(good, bad)| format!("{good} of {}", good + bad))),
        ]);
    }
    if rows.is_empty() { Ok(()) } else { say(&crate::fitted::fitted(table, &[7, 2, 6, 4])) }
}

fn say(text: &str) -> anyhow::Result<()> {
    Ok(crate::output::write_now(&format!("{text}\n"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_an_address_or_an_address_with_a_port() {
        let peer: SocketAddr = "192.0.2.7:443".parse().unwrap();
        assert!(End::parse("192.0.2.7").unwrap().is(peer) && End::parse("192.0.2.7:443").unwrap().is(peer));
        assert!(!End::parse("192.0.2.7:80").unwrap().is(peer) && !End::parse("192.0.2.8").unwrap().is(peer));
        assert!(End::parse("[2001:db8::1]:5").unwrap().is("[2001:db8::1]:5".parse().unwrap()));
        assert!(End::parse("host").unwrap_err().to_string().contains("give ADDRESS"));
    }

    #[test]
    fn metrics_are_in_bytes_and_seconds_and_say_when_nobody_could_be_asked() {
        let measured = |found| Measured {
            pid: 7,
            program: "rsync".into(),
            cc: "lf_imtcp".into(),
            local: "192.0.2.1:1000".parse().unwrap(),
            peer: "192.0.2.7:443".parse().unwrap(),
            found,
        };
        let found =
            Avail { at_us: 1_000_000, avail_kbps: 80_000, confidence_permille: 900, ..Avail::default() };
        let rows = [row(measured(Some(found)), 1_250_000), row(measured(None), 0)];
        let text = metrics(Ok(&rows), Format::OpenMetrics);
        let labels = r#"{process="rsync",pid="7",cc="lf_imtcp",local="192.0.2.1:1000",peer="192.0.2.7:443"}"#;
        for line in [
            &*format!("longfat_avail_bytes_per_second{labels} 10000000\n"),
            &*format!("longfat_avail_age_seconds{labels} 0.25\n"),
            &*format!("longfat_avail_confidence_ratio{labels} 0.9\n"),
            "# UNIT longfat_avail_bytes_per_second bytes_per_second\n",
            "longfat_avail_up 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(!text.contains("longfat_avail_capacity_bytes_per_second{"), "{text}");
        let failed = anyhow::anyhow!("not allowed");
        assert!(metrics(Err(&failed), Format::Prometheus).contains("longfat_avail_up 0\n"));
    }

    #[test]
    fn what_was_found_becomes_a_record_in_bits_per_second() {
        let found = Avail { at_us: 5, avail_kbps: 70_000, confidence_permille: 900, ..Avail::default() };
        let sample = sample(&found);
        assert_eq!((sample.time_us, sample.avail_bps, sample.capacity_bps), (5, 70_000_000, None));
        assert!((sample.confidence_ratio - 0.9).abs() < 1e-9);
    }
}
