//! What a capture came to, as a table and as JSON.

use super::{Args, collect::Collected, program::Program};
use crate::fitted;
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use serde::Serialize;
use std::path::PathBuf;

/// Everything, for programs.
#[derive(Serialize)]
struct Summary<'a> {
    interface: &'a str,
    netns: Option<&'a str>,
    filter: String,
    files: &'a [PathBuf],
    duration_s: f64,
    inbound: Way,
    outbound: Way,
    kept_bytes: u64,
    reader_cpu_us: u64,
    /// Processor time on the kernel's side, when it was asked for.
    observer_cost: Option<ObserverCost>,
    /// How the program that was captured ended, if one was and it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    program_exit_code: Option<i32>,
}

/// One direction. `matched` are `written` and `dropped` and, when the number of packets was limited, what was left.
/// Of packets that are written how many segments they were is unknown where others had no room in the file.
#[derive(Serialize, Clone, Copy)]
struct Way {
    seen_packets: u64,
    matched_packets: u64,
    dropped_packets: u64,
    written_packets: u64,
    written_segments: Option<u64>,
    wire_bytes: u64,
}

#[derive(Serialize)]
struct ObserverCost {
    packets: u64,
    ns_per_packet: f64,
    reader_ns_per_packet: f64,
}

pub fn print(
    args: &Args,
    found: &Collected,
    files: &[PathBuf],
    program: Option<&Program>,
) -> anyhow::Result<()> {
    let summary =
        Summary { program_exit_code: program.and_then(Program::exit_code), ..summary(args, found, files) };
    program.inspect(|program| eprintln!("{}", program.said()));
    if args.json {
        let text = serde_json::to_string(&summary)?;
        return crate::output::write_out(&format!("{text}\n"));
    }
    // Standard output may be the capture.
    eprintln!("\n{}", fitted::fitted(table(&summary), &[5]));
    if let Some(cost) = &summary.observer_cost {
        eprintln!(
            "capturing took {:.0} ns of the traffic's time per packet ({} packets), reading {:.0} ns beside it",
            cost.ns_per_packet, cost.packets, cost.reader_ns_per_packet
        );
    }
    if let [only] = files
        && only.as_os_str() != "-"
        && !found.is_unreadable
    {
        eprintln!("'longfat analyze {}' says what it means", only.display());
    }
    Ok(())
}

fn summary<'a>(args: &'a Args, found: &Collected, files: &'a [PathBuf]) -> Summary<'a> {
    let counts = &found.counts;
    let way = |index: usize| Way {
        seen_packets: counts.seen[index],
        matched_packets: counts.matched[index],
        dropped_packets: counts.dropped[index],
        written_packets: found.written[index],
        written_segments: (found.cut_packets == 0).then_some(found.segments[index]),
        wire_bytes: found.wire_bytes[index],
    };
    let written: u64 = found.written.iter().sum();
    Summary {
        interface: &args.interface,
        netns: args.netns.as_deref(),
        filter: args.filter.join(" "),
        files,
        duration_s: found.duration.as_secs_f64(),
        inbound: way(0),
        outbound: way(1),
        kept_bytes: found.kept_bytes,
        reader_cpu_us: found.reader_cpu_us,
        observer_cost: found.cost.map(|cost| ObserverCost {
            packets: cost.runs,
            ns_per_packet: per(cost.time_ns, cost.runs),
            reader_ns_per_packet: per(found.reader_cpu_us * 1000, written),
        }),
        program_exit_code: None,
    }
}

fn per(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

fn table(summary: &Summary<'_>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).use_stderr();
    table.set_header(["", "seen", "matched", "lost", "written", "segments", "octets on the wire"]);
    for (name, way) in [("in", summary.inbound), ("out", summary.outbound)] {
        table.add_row([
            name.to_owned(),
            way.seen_packets.to_string(),
            way.matched_packets.to_string(),
            way.dropped_packets.to_string(),
            way.written_packets.to_string(),
            way.written_segments.map_or_else(|| "-".to_owned(), |count| count.to_string()),
            way.wire_bytes.to_string(),
        ]);
    }
    table
}
