//! `longfat tcb list`.

use super::{Choice, show};
use crate::{commands::why, outcome::Outcome, output, spans};
use longfat_host::support;
use longfat_kernel::tcb::{Connection, Query, Scope, field::FIELDS, limit};
use longfat_schema::units::Nanos;
use std::{
    io::{self, Write as _},
    time::Instant,
};

/// Every TCP connection, one line each, as the kernel itself tells it (sock_diag; no privilege, no BPF).
///
/// Connections being made or gone are shown when the filter speaks of states ('state time-wait'). Processes of other
/// users are named to root only. 'limit' says what keeps a sender from sending more: from one look at the windows,
/// or, with --over, from how long the kernel says each limit held between two. 'cause' says why, in the words of
/// 'longfat why', as far as one look or two can tell: 'unknown' is common with one.
#[derive(clap::Args)]
#[command(after_help = after_help(), after_long_help = format!("{}\n\nFields:\n{}", after_help(), show::legend()))]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// A JSON array, every field under a name with its unit.
    #[arg(long)]
    json: bool,
    /// Which fields, in this order ('--help' lists them all).
    #[arg(long, value_name = "FIELD,…")]
    columns: Option<String>,
    /// Sort by a field; '-rtt' puts the greatest first.
    #[arg(long, value_name = "[-]FIELD", allow_hyphen_values = true)]
    sort: Option<show::Order>,
    /// Look twice, this far apart ('200ms'), to say what limited each in between.
    #[arg(long, value_name = "TIME")]
    over: Option<Nanos>,
}

fn after_help() -> &'static str {
    "Examples:
  longfat tcb list
      every connection of this namespace
  longfat tcb list 'dst 10.0.0.0/8 and cc cubic and rtt > 50ms'
  longfat tcb list --sort -retrans 'retrans > 0'
      who retransmits most
  longfat tcb list --over 500ms 'limit rwnd'
      whom the receiver holds back
  longfat tcb list --netns all --columns netns,dst,cc,cwnd,process
  longfat tcb list 'cc lf_imtcp*' \\
      --columns dst,process,cwnd,avail,avail_confidence,avail_age
  longfat tcb list --json | jq '.[] | select(.cwnd_segments > 1000)'"
}

const COLUMNS: &str = "src,dst,state,pid,process,cc,cwnd,ssthresh,rtt,rttvar,minrtt,rto,flight,retrans,delivery,pacing,rwnd,rcvwnd,limit,cause";

/// Shortest time between the two looks of --over: the kernel counts limits in milliseconds.
const OVER_LEAST: Nanos = Nanos(10_000_000);

pub fn run(args: &Args) -> Outcome {
    args.over.map_or(Ok(()), |over| spans::at_least("--over", over, OVER_LEAST))?;
    let own = args.choice.scope() == Scope::Own;
    let columns = match (&args.columns, args.json, own) {
        (Some(names), _, _) => show::fields(names)?,
        (None, true, _) => FIELDS.iter().collect(),
        (None, false, true) => show::fields(COLUMNS)?,
        (None, false, false) => show::fields(&format!("netns,{COLUMNS}"))?,
    };
    let sorted_by = args.sort.map(|order| order.field.name);
    let shown = columns.iter().map(|field| field.name).chain(sorted_by);
    let query = args.choice.look(
        shown.into_iter().any(|name| name == "pid" || name == "process" || name.starts_with("avail")),
    )?;
    if args.json {
        let objects: Vec<_> = gathered(args, &query)?.iter().map(|row| show::json(&columns, row)).collect();
        return print(|out| {
            serde_json::to_writer_pretty(&mut *out, &objects).map_err(io::Error::from)?;
            writeln!(out)
        });
    }
    let mut table = show::Table::new(&columns);
    if args.sort.is_some() || args.over.is_some() || query.filter.asks_for("cause") {
        gathered(args, &query)?.iter().for_each(|row| table.push(row));
    } else {
        query.each(|mut row| {
            row.cause = why::cause_of(None, &row, 0);
            table.push(&row);
        })?;
    }
    if table.is_empty() {
        say_nothing_matches(args);
    }
    let shown = terminal_width().filter(|_| args.columns.is_none()).map(|room| table.fitting(room));
    print(|out| table.write(out, shown.as_deref()))?;
    if let Some(count @ 1..) = shown.map(|shown| columns.len() - shown.len()) {
        eprintln!("longfat: {count} columns more have no room here; --columns chooses");
    }
    Ok(())
}

/// Columns of the terminal that standard output is; `None` for files and pipes.
fn terminal_width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into())
}

fn say_nothing_matches(args: &Args) {
    let is_part =
        args.choice.netns.as_deref() == Some("all") && support::missing_root("every namespace").is_some();
    let left_out = if is_part { "; namespaces that only root may enter were left out" } else { "" };
    eprintln!("longfat: tcb list: no connection matches{left_out}");
}

/// All of them, in the order asked for.
fn gathered(args: &Args, query: &Query) -> anyhow::Result<Vec<Connection>> {
    let mut rows = args.over.map_or_else(|| look_once(query), |span| look_twice(query, span.into()))?;
    if let Some(order) = args.sort {
        rows.sort_by(|a, b| order.compare(a, b));
    }
    Ok(rows)
}

/// The filter is applied to what has its cause: it may ask for that.
fn look_once(query: &Query) -> anyhow::Result<Vec<Connection>> {
    let mut rows = query.unfiltered().take()?;
    rows.iter_mut().for_each(|row| row.cause = why::cause_of(None, row, 0));
    rows.retain(|row| query.filter.matches(row));
    Ok(rows)
}

/// The filter is applied after the second look: it may ask for the limit.
fn look_twice(query: &Query, apart: std::time::Duration) -> anyhow::Result<Vec<Connection>> {
    let wide = query.unfiltered();
    let (before, start) = (wide.take()?, Instant::now());
    std::thread::sleep(apart);
    let mut after = Query { processes: true, ..wide }.take()?;
    let elapsed_us = start.elapsed().as_micros() as u64;
    limit::compare(&before, &mut after, elapsed_us);
    why::compare(&before, &mut after, elapsed_us);
    after.retain(|connection| query.filter.matches(connection));
    Ok(after)
}

fn print(write: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) -> Outcome {
    let mut out = io::stdout().lock();
    Ok(output::unless_closed(write(&mut out).and_then(|()| out.flush()))?)
}
