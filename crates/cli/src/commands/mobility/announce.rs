//! `longfat mobility announce` and `tell`.

use crate::{outcome::Outcome, stop};
use anyhow::{Context, bail};
use longfat_host::{
    confine::{Account, Confinement},
    monitor::{Duties, Monitor},
};
use longfat_mobility::{
    Key, Name,
    announce::{self, AnnouncePlan, Told},
    control,
    lan::PORT,
    links::{LinkEntry, LinkTable, model},
};
use longfat_schema::units::{Nanos, Rate, Size, part};
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

const EXAMPLES: &str = "\
Examples:
  # On the mobile router, whose nodes are on lan0. Which of these links is in
  # use is told by the default route:
  cat > links.toml <<'.'
  [wifi]
  interface = \"wlan0\"
  rate = \"11Mbit\"
  delay = \"10ms\"
  [phs]
  interface = \"ppp0\"
  rate = \"64kbit\"
  delay = \"125ms\"
  loss = 0.01
  queue = \"60KB\"
  .
  longfat mobility announce --router bus-7 --key mobility.key \\
      --interface lan0 --links links.toml

  # The link says that it has become slower (a script of the modem, of the
  # network manager):
  longfat mobility tell wifi --rate 5.5Mbit

  # An emulated link: what 'longfat link drive' does is announced as it happens
  longfat mobility announce --router r --key mobility.key --interface lan0 \\
      --model path.toml";

/// On a mobile router: tell the nodes behind it which link it uses now, and what that link can do.
///
/// The link is learnt from the route out (netlink: routes, carrier, addresses), from 'longfat mobility tell', or from
/// the model of an emulated link. One datagram reaches every node; it is repeated for those that get lost.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What the router is called.
    #[arg(long, value_name = "NAME", default_value = "router")]
    router: Name,
    /// The shared key ('longfat mobility key' makes one).
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Interface towards the nodes; may be repeated.
    #[arg(long = "interface", short, value_name = "IFACE", required = true)]
    interfaces: Vec<String>,
    /// Links by name, and which interface means which (TOML).
    #[arg(long, value_name = "FILE")]
    links: Option<PathBuf>,
    /// Addresses outside: the route to the first that has one tells which link is in use.
    #[arg(long, value_name = "ADDR", default_values = ["192.0.2.1", "2001:db8::1"])]
    towards: Vec<IpAddr>,
    /// A link with its schedule, as for 'longfat link' (.toml as people write it, else a JSON plan).
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// The nodes are at the model's second end.
    #[arg(long, requires = "model")]
    model_backward: bool,
    /// Begin the model's schedule on SIGUSR1 [default: at once].
    #[arg(long, requires = "model")]
    schedule_on_usr1: bool,
    /// A node that is far away, told by a datagram of its own; may be repeated.
    #[arg(long, value_name = "ADDR:PORT")]
    to: Vec<SocketAddr>,
    /// Reach IPv6 nodes of the whole site (ff15::), not of the link alone.
    #[arg(long)]
    site: bool,
    /// UDP port.
    #[arg(long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Between two repeats long after a change: how soon a node that comes later knows the link.
    #[arg(long, value_name = "TIME", default_value_t = Nanos(2_000_000_000))]
    every: Nanos,
    /// Name of this process: its control socket is /run/longfat-mobility/NAME.sock.
    #[arg(long, default_value = "announce", value_parser = super::process_name)]
    name: String,
    /// Control socket of the announcer, in place of that of --name.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Started by root: the user it becomes once its sockets are open; 'root' stays [default: longfat, or else nobody].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// Tell a running 'announce' that the link is another, or can do something else; nodes know it when this returns.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat mobility tell phs
  longfat mobility tell wifi --rate 5.5Mbit
  longfat mobility tell satellite --up 4Mbit --down 20Mbit --delay 300ms \\
      --loss 0.001")]
pub struct Tell {
    /// The link.
    link: Name,
    /// Rate of the link in both directions, where the table of links does not say it (as with the options below).
    #[arg(long)]
    rate: Option<Rate>,
    /// Rate of the link outwards.
    #[arg(long, value_name = "RATE")]
    up: Option<Rate>,
    /// Rate of the link towards the nodes.
    #[arg(long, value_name = "RATE")]
    down: Option<Rate>,
    /// One-way delay of the link.
    #[arg(long, value_name = "TIME")]
    delay: Option<Nanos>,
    /// The share of packets it loses.
    #[arg(long, value_name = "SHARE", value_parser = part)]
    loss: Option<f64>,
    /// What may wait before it, either way: windows that fit it and the link grow no further.
    #[arg(long, value_name = "SIZE")]
    queue: Option<Size>,
    /// Name of the process that announces.
    #[arg(long, default_value = "announce", value_parser = super::process_name)]
    name: String,
    /// Control socket of the announcer, in place of that of --name.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let plan = plan(args)?;
    warn_of(&plan.table);
    let stop = stop::flag()?;
    let account = Account::choose(args.user.as_deref())?;
    // Its sockets are open by then; of all else it needs nothing but to take its control socket away.
    let mut monitor = None;
    let confine = || {
        let own = plan.control.parent().map(Path::to_owned);
        monitor = Monitor::beside(account.as_ref(), Duties::default().removing(&plan.control))?;
        Confinement::of(account).writing(own).enter()?;
        super::ready()
    };
    announce::run(&plan, &stop, confine, &mut |text| eprintln!("longfat: mobility announce: {text}"))?;
    Ok(())
}

/// Says what of a table cannot work, or not yet: an interface may come later.
fn warn_of(table: &LinkTable) {
    let there = longfat_kernel::mark::interfaces().unwrap_or_default();
    let absent = table.interfaces().filter(|(_, interface)| !there.iter().any(|known| known == interface));
    let absent = absent.map(|(link, interface)| {
        format!(
            "link '{link}': there is no interface '{interface}' now, and the link is not announced before it comes; there \
             are {}",
            there.join(", ")
        )
    });
    for flaw in table.flaws().into_iter().chain(absent) {
        eprintln!("longfat: mobility announce: WARNING: {flaw}");
    }
}

fn plan(args: &Args) -> anyhow::Result<AnnouncePlan> {
    let table = match &args.links {
        Some(path) => {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("links '{}'", path.display()))?;
            LinkTable::from_toml(&text).with_context(|| format!("links '{}'", path.display()))?
        }
        None => LinkTable::default(),
    };
    if args.every.0 < 10_000_000 {
        bail!("--every {} is too short; give 10ms or more", args.every);
    }
    let there = longfat_mobility::lan::interfaces(&args.interfaces)?;
    if let Some(missing) = args.interfaces.iter().find(|name| !there.contains_key(*name)) {
        bail!("--interface {missing}: there is none of that name that is up and can multicast");
    }
    let model_start = match args.schedule_on_usr1 {
        true => {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&flag))?;
            Some(flag)
        }
        false => None,
    };
    let plan = args.model.as_deref().map(crate::commands::link::read_plan).transpose()?;
    Ok(AnnouncePlan {
        router: args.router.clone(),
        key: Key::read(&args.key)?,
        interfaces: args.interfaces.clone(),
        to: args.to.clone(),
        port: args.port,
        site: args.site,
        every_us: args.every.as_us(),
        table,
        towards: args.towards.clone(),
        model: plan.map(|plan| model(&plan, args.model_backward)).transpose()?.unwrap_or_default(),
        model_start,
        control: super::socket(args.socket.as_deref(), &args.name),
    })
}

pub fn tell(args: &Tell) -> Outcome {
    let entry = LinkEntry {
        rate: args.rate,
        up: args.up,
        down: args.down,
        delay: args.delay,
        loss: args.loss,
        queue: args.queue,
        ..LinkEntry::default()
    };
    let told = serde_json::to_string(&Told { link: args.link.clone(), entry })?;
    let socket = super::socket(args.socket.as_deref(), &args.name);
    let answer = control::ask(&socket, &told)?;
    println!("announced: {}", answer["link"].as_str().unwrap_or_default());
    Ok(())
}
