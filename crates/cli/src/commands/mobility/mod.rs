//! `longfat mobility`: one file per subcommand.

mod announce;
mod follow;
mod status;

use crate::outcome::Outcome;
use clap::Subcommand;
use longfat_mobility::{Key, Name, control};
use std::path::{Path, PathBuf};

/// Follow a changing link: a mobile router announces it, nodes fit their TCP connections to it.
///
/// Both sides share a key; nobody without it can steer connections.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Mobility,
}

#[derive(Subcommand)]
enum Mobility {
    Key(KeyArgs),
    Announce(Box<announce::Args>),
    Tell(announce::Tell),
    Follow(Box<follow::Args>),
    Status(status::Args),
    Clean(follow::Clean),
}

/// Make a key file, readable by its owner alone. Copy it to the router and to every node.
#[derive(clap::Args)]
#[command(after_help = "Example:
  longfat mobility key /etc/longfat/mobility.key")]
struct KeyArgs {
    /// The file; an existing one is never overwritten.
    file: PathBuf,
}

pub fn run(args: Args) -> Outcome {
    match args.command {
        Mobility::Key(args) => {
            let key = Key::create(&args.file)?;
            println!("key {:08x} in {}", key.id(), args.file.display());
            Ok(())
        }
        Mobility::Announce(args) => announce::run(&args),
        Mobility::Tell(args) => announce::tell(&args),
        Mobility::Follow(args) => follow::run(&args),
        Mobility::Status(args) => status::run(&args),
        Mobility::Clean(args) => follow::clean(&args),
    }
}

/// `NAME=VALUE`.
fn pair<T: std::str::FromStr>(text: &str) -> Result<(Name, T), String>
where
    T::Err: std::fmt::Display,
{
    let (name, value) = text.split_once('=').ok_or_else(|| format!("'{text}': write NAME=VALUE"))?;
    let name = name.parse::<Name>().map_err(|error| error.to_string())?;
    Ok((name, value.parse().map_err(|error: T::Err| error.to_string())?))
}

/// Longest name of a process: the path of its socket has 107 bytes at most.
const NAME_MAX_BYTES: usize = 80;

/// Name of a process: files in a directory are called by it.
fn process_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = (1..=NAME_MAX_BYTES).contains(&text.len()) && text.bytes().all(is_plain);
    is_name
        .then(|| text.to_owned())
        .ok_or_else(|| format!("write 1 to {NAME_MAX_BYTES} letters, digits, '.', '_' and '-'"))
}

/// The control socket of a process: that of its name, unless another is given.
fn socket(given: Option<&Path>, name: &str) -> PathBuf {
    given.map_or_else(|| control::socket_of(name), Path::to_path_buf)
}

/// Tells whoever started this that it works.
fn ready() -> longfat_mobility::Result<()> {
    use std::io::Write as _;
    println!("ready");
    // Nobody may be listening any more; the work goes on all the same.
    let _ = std::io::stdout().flush();
    Ok(())
}
