//! `longfat tcb watch`.

mod model;
#[cfg(test)]
mod tests;
mod view;

use super::{Choice, show::Order};
use crate::{outcome::Outcome, spans, stop};
use longfat_kernel::tcb::Query;
use longfat_schema::units::Nanos;
use model::{Model, Next};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::{
    io::{self, IsTerminal as _},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Connections in the terminal, again and again: sorted, filtered, one of them drawn over time.
///
/// Keys: up, down, page up, page down choose; Enter draws cwnd and round-trip time of the chosen one; s sorts by the
/// next column, r the other way round; / writes a filter; space pauses; q ends.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat tcb watch
  longfat tcb watch 'dst 10.0.0.0/8' --sort -delivery --every 200ms")]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// Time between two looks.
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    every: Nanos,
    /// Sort by a field; '-rtt' puts the greatest first.
    #[arg(long, value_name = "[-]FIELD", default_value = "-delivery", allow_hyphen_values = true)]
    sort: Order,
}

/// Shortest time between two looks.
const EVERY_LEAST: Nanos = Nanos(10_000_000);
/// Longest wait for a key: how soon a signal ends the view.
const KEYS_EVERY: Duration = Duration::from_millis(100);

pub fn run(args: &Args) -> Outcome {
    let filter = args.choice.filter()?;
    spans::at_least("--every", args.every, EVERY_LEAST)?;
    if !io::stdout().is_terminal() {
        return Err(
            anyhow::anyhow!("'tcb watch' draws on a terminal; use 'longfat tcb list' elsewhere").into()
        );
    }
    let query = Query { scope: args.choice.scope(), processes: true, ..Query::default() };
    let mut model = Model::new(args.choice.filter.join(" "), filter, args.sort)?;
    let stop = stop::flag()?;
    // Puts the terminal back on a panic too.
    let mut terminal = ratatui::try_init()?;
    let result = watch(&mut terminal, &mut model, &query, args.every.into(), &stop);
    ratatui::restore();
    Ok(result?)
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    model: &mut Model,
    query: &Query,
    every: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut next_look = start;
    while !stop.load(Ordering::Relaxed) {
        if Instant::now() >= next_look && !model.paused {
            let wide = Query { every_state: model.asks_for("state"), ..query.clone() };
            model.on_look(start.elapsed().as_secs_f64(), wide.take()?);
            next_look = Instant::now() + every;
        }
        terminal.draw(|frame| view::draw(frame, model))?;
        let until_look =
            if model.paused { KEYS_EVERY } else { next_look.saturating_duration_since(Instant::now()) };
        let wait = until_look.min(KEYS_EVERY);
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && model.on_key(key) == Next::Quit
        {
            break;
        }
    }
    Ok(())
}
