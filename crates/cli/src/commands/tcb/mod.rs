//! `longfat tcb`: one file per subcommand.

mod list;
mod mark_ce;
mod set;
mod show;
mod trace;
mod watch;

use crate::outcome::Outcome;
use clap::builder::NonEmptyStringValueParser;
use longfat_kernel::tcb::{Filter, Query, Scope};

/// Live control blocks of TCP connections: see them, trace them, set them.
///
/// Connections are chosen by a filter: conditions joined by 'and', 'or', 'not'
/// and parentheses, like
///
///   dst 10.0.0.0/8 and cc cubic and rtt > 50ms
///
///   src, dst, host `ADDRESS[/LENGTH][:PORTS]`; sport, dport, port 80, 8000-8999
///   ipv4; ipv6; state estab; cc cub*; process curl; pid 123; netns NAME
///   limit cwnd; ca recovery; and figures with =, !=, <, <=, >, >=:
///   cwnd, ssthresh, flight, lost, retrans (segments); rtt, rttvar, minrtt, rto
///   (50ms); delivery, pacing (10Mbit); rwnd, rcvwnd, unsent, sendq, recvq,
///   acked (64KiB)
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    List(list::Args),
    Watch(watch::Args),
    MarkCe(mark_ce::Args),
    Trace(trace::Args),
    Set(set::Set),
    Save(set::Save),
    Restore(set::Restore),
}

pub fn run(args: Args) -> Outcome {
    match args.command {
        Subcommand::List(args) => list::run(&args),
        Subcommand::Watch(args) => watch::run(&args),
        Subcommand::MarkCe(args) => mark_ce::run(&args),
        Subcommand::Trace(args) => trace::run(&args),
        Subcommand::Set(args) => set::set(&args),
        Subcommand::Save(args) => set::save(&args),
        Subcommand::Restore(args) => set::restore(&args),
    }
}

/// Which connections: the same words for every subcommand.
#[derive(clap::Args)]
struct Choice {
    /// Which connections ('longfat tcb --help' has the language); all when left out.
    #[arg(value_name = "FILTER", allow_hyphen_values = false)]
    filter: Vec<String>,
    /// Another network namespace: a name, a pid in it, or 'all'.
    #[arg(long, value_name = "NAME|PID|all", value_parser = NonEmptyStringValueParser::new())]
    netns: Option<String>,
}

impl Choice {
    fn scope(&self) -> Scope {
        match self.netns.as_deref().map(str::parse) {
            Some(Ok(scope)) => scope,
            _ => Scope::Own,
        }
    }

    fn filter(&self) -> anyhow::Result<Filter> {
        Ok(self.filter.join(" ").parse()?)
    }

    fn look(&self, processes: bool) -> anyhow::Result<Query> {
        Ok(Query { scope: self.scope(), filter: self.filter()?, processes, ..Query::default() })
    }

    /// A look by what the kernel tells alone.
    fn look_without_cause(&self, processes: bool) -> anyhow::Result<Query> {
        let query = self.look(processes)?;
        if query.filter.asks_for("cause") {
            anyhow::bail!(
                "'cause' is not known here: 'longfat tcb list' tells it; choose by what it comes from, as in 'limit rwnd' \
                 or 'retrans > 0'"
            );
        }
        Ok(query)
    }
}
