//! `longfat relay rule`: rules of a relay that runs.

use super::status::Which;
use crate::{outcome::Outcome, output};
use longfat_relay::control;

/// Add a rule to a relay that runs, or remove one that was added.
///
/// Added rules come before those of the relay's file, the last one first. They hold for new connections; living
/// ones keep what they have. They outlast a reload of the file, and end with the relay's process, also when it
/// is upgraded. Root and the relay's own user may change them.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat relay rule add far \\
      'destination = \"203.0.113.0/24\", server = { cc = \"bbr\" }'
  longfat relay rule add ssh 'port = 22, action = \"pass\"'
  longfat relay rule remove far
  longfat relay status --top 0                      which were added")]
pub struct Args {
    #[command(subcommand)]
    change: Change,
}

/// How the answer is printed.
#[derive(clap::Args)]
struct Printed {
    /// Print one JSON object: the names of the rules that were added.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Change {
    /// Add a rule before all others.
    Add {
        /// The rule's name: 1 to 32 letters, digits, '-', '_' or '.'.
        rule: String,
        /// The rule's keys as in the relay's file, separated by commas.
        keys: String,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        printed: Printed,
    },
    /// Remove a rule that was added.
    Remove {
        /// The rule's name.
        rule: String,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        printed: Printed,
    },
}

pub fn run(args: &Args) -> Outcome {
    let (names, printed) = match &args.change {
        Change::Add { rule, keys, which, printed } => {
            (control::add_rule(&which.socket()?, rule, keys)?, printed)
        }
        Change::Remove { rule, which, printed } => (control::remove_rule(&which.socket()?, rule)?, printed),
    };
    if printed.json {
        return Ok(output::write_out(&format!("{}\n", serde_json::json!({ "rules": names })))?);
    }
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Ok(output::write_out(&format!("rules added since the relay's start: {names}\n"))?)
}
