//! `longfat relay status`.

use crate::{fitted, outcome::Outcome, output, stop};
use anyhow::Context;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use longfat_relay::{
    ControlPlan, RelayPlan, control,
    status::{ConnectionStatus, DirectionStatus, EndToEndStatus, MemoryStatus, Status},
};
use longfat_schema::{
    text::printable,
    units::{Nanos, Rate, Size},
};
use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};

/// What a running relay holds: totals, and every connection with both legs.
///
/// Rates are those since the last look with --watch, else since the connection began. Connections with the largest
/// backlog come first. The backlog is what one side sent and the other has not acknowledged; `queue` is about the
/// direction with the larger one: how long bytes wait, of how long they may, and the window and the unsent bytes that
/// are allowed for it, where full buffers would wait longer. 'off': its rule leaves the queue alone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat relay status
  longfat relay status --watch --top 10
  longfat relay status --json | jq \\
      '.connections[] | select(.to_server.backlog_bytes > 1e6)'")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Look again and again, until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value_t = Nanos(1_000_000_000), requires = "watch")]
    every: Nanos,
    /// Connections to show; 0 asks for the totals only.
    #[arg(long, value_name = "N", default_value_t = 40)]
    top: usize,
    /// One JSON object per look, with every connection.
    #[arg(long)]
    json: bool,
}

/// Which of the relays that run on this host.
#[derive(clap::Args)]
pub struct Which {
    /// The relay's control socket [default: that of --name, or of the only relay that runs].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The relay's name: its socket is /run/longfat-relay/NAME.sock, or NAME-PID.sock of one that was started by
    /// options.
    #[arg(long, conflicts_with = "socket")]
    name: Option<String>,
}

pub fn run(args: &Args) -> Outcome {
    if args.every.0 < 50_000_000 {
        return Err(anyhow::anyhow!("--every {} is too short; give 50ms or more", args.every).into());
    }
    let socket = args.which.socket()?;
    let question = if args.top == 0 { control::SUMMARY } else { control::STATUS };
    let stop = stop::flag()?;
    let mut last: Option<Status> = None;
    loop {
        let status = control::ask(&socket, question)?;
        let text = if args.json {
            serde_json::to_string(&status).context("write the status")?
        } else {
            show(&status, last.as_ref(), args.top)
        };
        let clear =
            if args.watch && !args.json && std::io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
        match writeln!(std::io::stdout(), "{clear}{}", printable(&text)) {
            Ok(()) if args.watch => {}
            written => return Ok(output::unless_closed(written)?),
        }
        last = Some(status);
        stop::wait(Duration::from(args.every), &stop);
        if stop.load(Ordering::Acquire) {
            return Ok(());
        }
    }
}

/// Sockets at the default place on which relays answer.
pub fn living_sockets() -> Vec<PathBuf> {
    let mut found = ControlPlan::default_sockets();
    // A killed relay leaves its file.
    found.retain(|path| UnixStream::connect(path).is_ok());
    found
}

impl Which {
    /// Where to ask.
    pub fn socket(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.socket {
            return Ok(path.clone());
        }
        let mut found = living_sockets();
        found.retain(|path| self.name.as_deref().is_none_or(|name| is_of(path, name)));
        only_one(self.name.as_deref(), &found)
    }
}

/// Whether that is where a relay of that name answers: 'NAME.sock', or 'NAME-PID.sock'.
fn is_of(path: &Path, name: &str) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let rest = stem.strip_prefix(name);
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('-').is_some_and(|pid| pid.parse::<u32>().is_ok())
    })
}

/// The socket of the relay that is meant: the only one, or else the one of the usual name.
fn only_one(name: Option<&str>, found: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let usual = ControlPlan::default_socket(name.unwrap_or(RelayPlan::DEFAULT_NAME));
    match found {
        [] => Ok(usual),
        [one] => Ok(one.clone()),
        many if many.contains(&usual) => Ok(usual),
        many => {
            let paths: Vec<_> = many.iter().map(|path| path.display().to_string()).collect();
            anyhow::bail!("several relays answer here; say which by --socket: {}", paths.join(", "))
        }
    }
}

fn show(status: &Status, last: Option<&Status>, top: usize) -> String {
    let mut text = head(status);
    if top == 0 {
        return text;
    }
    let before: BTreeMap<u32, &ConnectionStatus> =
        last.iter().flat_map(|last| &last.connections).map(|one| (one.connection, one)).collect();
    let elapsed_us = last.map_or(0, |last| (status.time_us - last.time_us).max(0) as u64);
    let mut order: Vec<&ConnectionStatus> = status.connections.iter().collect();
    order.sort_by_key(|one| std::cmp::Reverse(one.to_server.backlog_bytes + one.to_client.backlog_bytes));
    let mut table = table();
    for one in order.iter().take(top) {
        table.add_row(row(one, before.get(&one.connection).copied(), elapsed_us));
    }
    text.push_str(&format!("\n\n{}", fitted::fitted(table, &LEAST)));
    if order.len() > top {
        text.push_str(&format!("\n… and {} more (--top)", order.len() - top));
    }
    text
}

/// Columns that go first where there is no room for all: what is asked for least.
const LEAST: [usize; 12] = [14, 1, 9, 13, 8, 4, 11, 10, 7, 12, 6, 3];

fn head(status: &Status) -> String {
    let totals = &status.totals;
    let state = if status.draining { "draining" } else { "running" };
    let mut text = format!(
        "relay '{}' (process {}) {state} for {}: {} connections now, {} since its start \
         ({} finished, {} reset, {} not reached, {} refused)\n{} to servers, {} to clients by those that ended",
        status.name,
        status.pid,
        Nanos(status.uptime_us * 1000),
        status.live,
        totals.connections,
        totals.finished,
        totals.reset,
        totals.unreachable,
        totals.refused,
        Size(totals.client_to_server_bytes),
        Size(totals.server_to_client_bytes),
    );
    if status.taken_over > 0 {
        text.push_str(&format!("\n{} connections taken over from another relay", status.taken_over));
    }
    if !status.added_rules.is_empty() {
        text.push_str(&format!("\nrules added since its start: {}", status.added_rules.join(", ")));
    }
    let EndToEndStatus { inserted, watched, reached, adopted, released, moved_in, moved_out, passed } =
        &status.end_to_end;
    if *watched > 0 {
        text.push_str(&format!(
            "\nwatched {watched} connections end to end, of which {reached} were worth it and {adopted} were adopted"
        ));
    }
    if !released.is_empty() {
        let reasons: Vec<_> = released.iter().map(|(reason, count)| format!("{count} ({reason})")).collect();
        text.push_str(&format!("\nleft to their ends: {}", reasons.join(", ")));
    }
    if *moved_in + *moved_out > 0 {
        text.push_str(&format!(
            "\nmoved: {moved_in} here from another router, {moved_out} to another router"
        ));
    }
    if *inserted > 0 || !passed.is_empty() {
        let reasons: Vec<_> = passed.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let reasons = if reasons.is_empty() { "none".into() } else { reasons.join(", ") };
        text.push_str(&format!("\nstepped into {inserted} connections end to end; stayed out of: {reasons}"));
    }
    text.extend(status.memory.iter().map(memory));
    if let Some(problem) = &status.reload.problem {
        text.push_str(&format!("\nthe last reload was refused, the old rules stay: {problem}"));
    }
    text
}

fn memory(memory: &MemoryStatus) -> String {
    let of_all = memory.limit_bytes.map(|limit| format!(" of {}", Size(limit))).unwrap_or_default();
    let greatest = memory.networks.iter().map(|one| format!("{} by {}", Size(one.held_bytes), one.network));
    format!(
        "\nmemory: {}{of_all} held; a network may hold {} now, most hold: {}",
        Size(memory.held_bytes),
        Size(memory.network_limit_bytes),
        greatest.collect::<Vec<_>>().join(", ")
    )
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header([
        "#",
        "rule",
        "client",
        "server",
        "age",
        "to server",
        "backlog to server",
        "to client",
        "backlog to client",
        "cc client",
        "RTT client",
        "cc server",
        "RTT server",
        "retrans",
        "queue",
    ]);
    for index in [0, 4, 5, 6, 7, 8, 10, 12, 13, 14] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn row(one: &ConnectionStatus, before: Option<&ConnectionStatus>, elapsed_us: u64) -> [String; 15] {
    let rate = |now: u64, then: Option<u64>| {
        let (bytes, us) = match then {
            Some(then) if elapsed_us > 0 => (now.saturating_sub(then), elapsed_us),
            _ => (now, one.age_us),
        };
        let bps = u128::from(bytes) * 8_000_000 / u128::from(us.max(1));
        Rate(u64::try_from(bps).unwrap_or(u64::MAX)).to_string()
    };
    let (to_server, to_client) = (&one.to_server, &one.to_client);
    let (client, server) = (&one.client_leg, &one.server_leg);
    let rtt = |us: u32| Nanos(u64::from(us) * 1000).to_string();
    [
        one.connection.to_string(),
        one.rule.clone(),
        one.client.to_string(),
        one.server.to_string(),
        Nanos(one.age_us / 1000 * 1_000_000).to_string(),
        rate(to_server.relayed_bytes, before.map(|before| before.to_server.relayed_bytes)),
        Size(to_server.backlog_bytes).to_string(),
        rate(to_client.relayed_bytes, before.map(|before| before.to_client.relayed_bytes)),
        Size(to_client.backlog_bytes).to_string(),
        client.cc.clone(),
        rtt(client.srtt_us),
        server.cc.clone(),
        rtt(server.srtt_us),
        (client.retransmitted_segments + server.retransmitted_segments).to_string(),
        queue(if to_server.backlog_bytes >= to_client.backlog_bytes { to_server } else { to_client }),
    ]
}

/// How long bytes wait, of how long they may, what is allowed for that, and packets marked.
fn queue(direction: &DirectionStatus) -> String {
    let Some(queue) = &direction.queue else { return "off".to_owned() };
    let ms = |us: u32| f64::from(us) / 1000.0;
    let mut text = format!("{:.1} of {} ms", ms(queue.delay_us), ms(queue.target_us));
    if let (Some(window_bytes), Some(unsent_bytes)) = (queue.window_bytes, queue.unsent_bytes) {
        text += &format!(", window {}, unsent {}", Size(window_bytes.into()), Size(unsent_bytes));
    }
    if queue.marked_packets > 0 {
        text += &format!(", {} marks", queue.marked_packets);
    }
    text
}
