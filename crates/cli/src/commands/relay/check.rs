//! `longfat relay check`, `longfat relay clean`.

use super::{daemon::read, nanos};
use crate::{
    fitted,
    outcome::{Failure, Outcome},
    output,
};
use anyhow::Context;
use comfy_table::{ContentArrangement, Table, presets};
use longfat_cc::Algorithm;
use longfat_kernel::cc;
use longfat_relay::{Accept, ConnectionPlan, Error, Fail, LegPlan, MatchPlan, RelayPlan};
use longfat_schema::units::{Rate, Size};
use std::path::PathBuf;

/// Say what a relay's file comes to: rules, legs, and the nft and ip commands. Touches nothing.
///
/// Every problem of the file is named with its key; exit code 2 when there is one.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat relay check relay.toml
  longfat relay check --json relay.toml
      every value resolved
  longfat relay check --load relay.toml
      load its 'lf_…' congestion controls, for a relay that may not do so")]
pub struct Check {
    /// The relay's file.
    file: PathBuf,
    /// Print the plan as one JSON object.
    #[arg(long)]
    json: bool,
    /// Load the congestion controls of ours that it names; they stay until unloaded or the next boot. One that is
    /// loaded already keeps its tunables.
    #[arg(long)]
    load: bool,
}

/// Remove what relays left that were killed, and the refusals of those that fail closed and have ended.
///
/// Control sockets of killed relays are removed from their default place; --socket names one that is elsewhere.
#[derive(clap::Args)]
pub struct Clean {
    /// A control socket elsewhere, whose file is removed when nobody answers on it.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Leave the refusals where they are: connections go on being dropped.
    #[arg(long)]
    keep_refusals: bool,
    /// What was removed as JSON on standard output.
    #[arg(long)]
    json: bool,
}

pub fn check(args: &Check) -> Outcome {
    let plan = read(&args.file)?;
    let ccs = plan.ccs().into_iter();
    let ours = ccs
        .filter(|name| Algorithm::is_our_name(name))
        .map(Algorithm::find)
        .collect::<Result<Vec<_>, _>>()?;
    for algorithm in ours.into_iter().filter(|_| args.load) {
        load(algorithm)?;
    }
    // The file may be another host's: that is told, and no fault of the file.
    for name in plan.ccs().into_iter().filter(|name| !Algorithm::is_our_name(name)) {
        match cc::kernel_has(name) {
            Ok(true) => {}
            Ok(false) => eprintln!(
                "longfat: this kernel has no congestion control '{name}'; 'longfat cc list' shows what there is"
            ),
            // The relay may be started by root.
            Err(error) => eprintln!("longfat: {error}"),
        }
    }
    let text = if args.json {
        serde_json::to_string_pretty(&plan).context("write the plan")?
    } else {
        explain(&plan)
    };
    Ok(output::write_out(&format!("{}\n", text.trim_end()))?)
}

/// Loads it; where somebody has loaded it already, as it is set there.
fn load(algorithm: Algorithm) -> anyhow::Result<()> {
    let (loading, tunables) = cc::load_as_set(algorithm)?;
    if loading == cc::Loading::Replaced {
        eprintln!(
            "longfat: '{}' had been loaded by another build, and is replaced by this one's, set as before \
             ({tunables}); open connections keep what they had",
            algorithm.kernel_name()
        );
    }
    Ok(())
}

pub fn clean(args: &Clean) -> Outcome {
    if let Some(missing) = longfat_host::support::missing_network_admin("rules of nftables") {
        return Err(Failure::Unsupported(vec![missing]));
    }
    let outcome = longfat_relay::clean(!args.keep_refusals);
    let sockets = longfat_relay::control::clean(args.socket.as_deref());
    let mut removed = match &outcome {
        Ok(removed) | Err(Error::NotUndone { removed, .. }) => removed.clone(),
        Err(_) => Vec::new(),
    };
    removed.extend(sockets.iter().map(|path| path.display().to_string()));
    match (&outcome, removed.is_empty()) {
        _ if args.json => output::print_json(&serde_json::json!({ "removed": removed }))?,
        (_, false) => println!("removed: {}", removed.join(", ")),
        (Ok(_), true) => println!("nothing was left"),
        (Err(_), true) => {}
    }
    Ok(outcome.map(drop)?)
}

fn explain(plan: &RelayPlan) -> String {
    let rules = longfat_relay::explain(plan);
    let mut text = format!(
        "{}\n\n{}\n",
        fitted::prose(&format!("relay '{}': {}", plan.name, sources(plan)), "  "),
        fitted::fitted(table(plan), &[3, 5, 2, 4])
    );
    for way in plan.ways() {
        text.push_str(&format!("\n{}", fitted::prose_lines(&describe(way))));
    }
    text.push_str(&format!("\n{}", fitted::prose_lines(&beside(plan))));
    if !rules.is_empty() {
        let mend = "The ports are chosen when it starts, mark and table, too, unless the file names them:";
        text.push_str(&format!("\n{}\n\n{rules}", fitted::prose(mend, "")));
    }
    text
}

fn sources(plan: &RelayPlan) -> String {
    let mut sources = Vec::new();
    if let Some(intercept) = &plan.intercept {
        sources.push(format!("takes connections that come in on {}", intercept.interfaces.join(", ")));
    }
    for listener in &plan.listeners {
        let to: Vec<_> = listener.to.iter().map(ToString::to_string).collect();
        sources.push(format!("listens on {} for {}", listener.listen, to.join(" or ")));
    }
    sources.join("; ")
}

fn table(plan: &RelayPlan) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["", "rule", "interface", "source", "destination", "port", "action"]);
    for (index, rule) in plan.rules.iter().enumerate() {
        let MatchPlan { interfaces, sources, destinations, ports } = &rule.matches;
        table.add_row([
            (index + 1).to_string(),
            rule.name.clone(),
            list(interfaces),
            list(sources),
            list(destinations),
            list(ports),
            if rule.relay.is_some() { "relay" } else { "pass" }.into(),
        ]);
    }
    let rest = match (plan.rules.is_empty(), plan.listeners.is_empty()) {
        (true, _) => "relay",
        (false, true) => "pass",
        (false, false) => "pass; to a listener: relay",
    };
    table.add_row(["", "(what none matches)", "any", "any", "any", "any", rest]);
    table
}

fn list<T: ToString>(values: &[T]) -> String {
    let values: Vec<_> = values.iter().map(ToString::to_string).collect();
    if values.is_empty() { "any".into() } else { values.join(", ") }
}

fn describe(way: &ConnectionPlan) -> String {
    let accept = match way.accept {
        Accept::Early => "the client's SYN is answered at once",
        Accept::AfterServer => "the client's SYN is answered when the server has answered",
        Accept::EndToEnd => "the server answers the client's SYN, and the relay steps in between",
    };
    let mut text =
        format!("{}: {accept}\n  client: {}\n  server: {}", way.rule, leg(&way.client), leg(&way.server));
    let mut more = vec![match way.idle {
        Some(idle) => format!("ended after {} without data", nanos(idle)),
        None => "never ended for being idle".into(),
    }];
    more.extend(way.memory_bytes.map(|bytes| format!("at most {} of memory", Size(bytes))));
    more.extend(way.queue.as_ref().map(|queue| {
        format!("queue held at {} ms ({})", f64::from(queue.target_us) / 1000.0, queue.controller)
    }));
    text.push_str(&format!("\n  {}", more.join(", ")));
    text
}

fn leg(leg: &LegPlan) -> String {
    let mut text = format!(
        "cc {}, buffer {} (about {} of payload), at most {} unsent",
        leg.cc.as_deref().unwrap_or("of the system"),
        Size(leg.buffer_bytes),
        Size(leg.buffer_bytes / 2),
        Size(leg.notsent_lowat_bytes.into()),
    );
    if let Some(rate) = leg.pacing_bps {
        text.push_str(&format!(", paced at {}", Rate(rate)));
    }
    if let Some(mss) = leg.mss_bytes {
        text.push_str(&format!(", segments of at most {mss} bytes"));
    }
    match leg.keepalive_idle {
        Some(idle) => text.push_str(&format!(", probed after {} of silence", nanos(idle))),
        None => text.push_str(", never probed"),
    }
    text
}

fn beside(plan: &RelayPlan) -> String {
    let mut lines = vec![match plan.fail {
        Fail::Open => "When it is not running, connections flow on unrelayed.".to_owned(),
        Fail::Closed => "When it is not running, new connections that it would take are dropped.".to_owned(),
    }];
    lines.push(format!("On SIGTERM living connections have {}.", nanos(plan.drain)));
    lines.extend(plan.control.as_ref().map(|control| format!("Status: {}", control.socket.display())));
    lines.extend(plan.moves.as_ref().map(|moves| {
        format!("Takes moves on {} from who has the key of '{}'.", moves.listen, moves.key.display())
    }));
    lines.extend(plan.metrics.map(|address| format!("Metrics: http://{address}/metrics")));
    lines.join("\n")
}
