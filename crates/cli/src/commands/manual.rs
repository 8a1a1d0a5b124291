//! `longfat manual`: what packages hold beside the program.

use crate::outcome::Outcome;
use anyhow::Context as _;
use clap::Command;
use clap_complete::{Shell, generate_to};
use std::{fs, path::PathBuf};

/// Shells whose completions are written, and under which name they look for them.
const SHELLS: [(Shell, &str); 3] =
    [(Shell::Bash, "longfat"), (Shell::Zsh, "_longfat"), (Shell::Fish, "longfat.fish")];

/// Write manual pages and completions for bash, zsh and fish, as packages install them.
///
/// DIR gets man1/, a page per subcommand, and bash/, zsh/ and fish/, one file each.
#[derive(clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// Where to.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn run(args: &Args, mut command: Command) -> Outcome {
    // Completions are of everything that may be typed, `help` too; a page about `help` tells nobody anything.
    let documented = without_help(command.clone());
    for (shell, file) in SHELLS {
        let directory = made(&args.directory.join(shell.to_string()))?;
        let written = generate_to(shell, &mut command, "longfat", &directory)
            .with_context(|| format!("write completions for {shell}"))?;
        fs::rename(written, directory.join(file)).with_context(|| format!("name completions for {shell}"))?;
    }
    let pages = made(&args.directory.join("man1"))?;
    clap_mangen::generate_to(documented, &pages)
        .with_context(|| format!("write manual pages into {}", pages.display()))?;
    Ok(())
}

/// The command and its subcommands without `help`.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

fn made(directory: &std::path::Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("make the directory {}", directory.display()))?;
    Ok(directory.to_owned())
}
