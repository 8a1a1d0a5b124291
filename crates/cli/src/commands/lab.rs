//! `longfat lab`: experiments.

mod agent;
mod archive;
mod check;
mod compare;
mod hosts;
mod metrics;
mod progress;
mod query;
mod rerun;
mod serve;
mod table;
mod worker;

use crate::{
    fitted::fitted,
    outcome::{Failure, Outcome, require},
    output::print_json,
    stop,
};
use anyhow::{Context, anyhow};
use clap::Subcommand;
use longfat_host::{facts, support};
use longfat_kernel::support::Capability;
use longfat_lab::{
    backend::BackendKind,
    plan::{Plan, plans},
    session::{Backend, Event, Finished, Ray, RayError, Session, SessionError, default_directory},
    spec::{
        Case, Experiment, decode,
        include::Source,
        overlay, sample,
        sweep::{Filter, OneOrMany},
    },
};
use longfat_schema::{
    run::{Provenance, ResultStatus, RunStatus},
    units::Nanos,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::{Duration, SystemTime},
};

/// Experiments: one file in, one result directory out.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(RunArgs),
    Check(CheckArgs),
    /// Print the experiment file's JSON Schema, by which editors complete and check it.
    ///
    /// 'experiments/experiment.schema.json' is the same. With the line '#:schema PATH-OR-URL' at the top of an
    /// experiment file, editors with Taplo (Even Better TOML) use it.
    #[command(after_help = "Examples:\n  longfat lab schema > ~/experiment.schema.json")]
    Schema,
    List(ListArgs),
    Metrics(metrics::MetricsArgs),
    Compare(compare::CompareArgs),
    Query(query::QueryArgs),
    Verify(archive::VerifyArgs),
    Pack(archive::PackArgs),
    Unpack(archive::UnpackArgs),
    Rerun(rerun::RerunArgs),
    Serve(serve::ServeArgs),
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    Clean(CleanArgs),
    Agent(agent::AgentArgs),
}

/// Remove what a run that was killed left behind: namespaces, programs, settings of this host.
#[derive(clap::Args)]
struct CleanArgs {
    /// What was removed as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Run every case of an experiment file: in network namespaces with the TCP of this kernel, in the simulator, or on
/// real hosts.
///
/// '--backend sim' needs no privileges, takes no account of how fast this machine is, and gives the same result every
/// time; 'longfat lab compare' puts it beside an emulated result. It knows the congestion controls that 'longfat cc'
/// lists as ours ('reno' and 'cubic' mean our own code there).
///
/// '--backend hosts --hosts hosts.toml' makes the runs on the machines that the table names, over the path that is
/// between them, by way of 'ssh'. Every machine is looked at before any is touched, and everything is set back at the
/// end, also when this program is killed.
///
/// Each run is one directory with its plan, its records and everything known about the hosts; 'result.json' is kept up
/// to date after every run. A run whose numbers cannot be trusted (the emulated path was late, a flow had another
/// congestion control than planned) is tried again, then marked. Nothing is left behind, also after Ctrl-C.
///
/// Exit codes: 0 every expectation met; 1 one was missed; 2 a run failed, or none was valid to judge by; 3 this host
/// cannot do it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab run experiments/conversion.toml
  longfat lab run experiments/conversion.toml --quick --case reno-relayed
  longfat lab run experiments/conversion.toml --set links.path.rate=100Mbit
  longfat lab run experiments/smoke.toml -o /tmp/smoke --json
  longfat lab run experiments/conversion.toml --backend sim
  longfat lab run experiments/cc-truth.toml --backend hosts --hosts hosts.toml
  longfat lab run sweep.toml --backend sim -o runs/sweep --on ray \\
      --address head:6379")]
struct RunArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// Backend that carries the runs out.
    #[arg(long, value_enum, default_value_t)]
    backend: BackendArg,
    /// Which machines are the experiment's hosts (docs/reference/hosts-file.md); with '--backend hosts'.
    #[arg(long, value_name = "FILE", required_if_eq("backend", "hosts"), conflicts_with = "on")]
    hosts: Option<PathBuf>,
    /// Where the result goes [default: runs/NAME-TIME]. Valid runs of the same plans that it holds are not made again.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Runs at once [default: one per processor where they are simulated; on Ray as many as find a place].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Only this run, by its number in 'longfat lab list', and no result: for job arrays. 'longfat lab run' with the
    /// same directory then gathers what they made.
    #[arg(long, value_name = "N", requires = "output")]
    only: Option<usize>,
    /// Carry the runs out on the hosts of a cluster and gather them here. Ray is a Python package: 'python3 -m pip
    /// install ray'.
    #[arg(long, value_enum, value_name = "CLUSTER", conflicts_with = "only")]
    on: Option<OnArg>,
    /// The cluster's address, as 'ray.init' takes it [default: RAY_ADDRESS, or else a Ray of its own on this host].
    #[arg(long, value_name = "ADDR", requires = "on")]
    address: Option<String>,
    /// Do not simulate what was emulated: nothing then says how far the two are apart.
    #[arg(long)]
    no_twin: bool,
    /// The result as JSON on standard output, instead of the table.
    #[arg(long)]
    json: bool,
}

/// List the runs of an experiment file by number, as 'longfat lab run --only N' takes them.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab list experiments/conversion.toml
  seq $(longfat lab list sweep.toml --count) |
      xargs -P 8 -n 1 longfat lab run sweep.toml --backend sim -o runs/sweep \\
          --only
  longfat lab run sweep.toml --backend sim -o runs/sweep
      gathers and judges what they made")]
struct ListArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// Only how many there are.
    #[arg(long, conflicts_with = "json")]
    count: bool,
    /// The list as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Read an experiment file and explain what would be run, without touching anything: runs, time, disk, and whether this
/// host can emulate it honestly.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab check experiments/conversion.toml
  longfat lab check experiments/conversion.toml --set links.path.delay=50ms \\
      --json
  longfat lab check experiments/cc-truth.toml --hosts hosts.toml")]
struct CheckArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// Look at these machines as well ('longfat lab run --backend hosts'): by ssh, without changing anything.
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Every plan as JSON on standard output.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct SpecArgs {
    /// The experiment file (TOML).
    #[arg(value_name = "SPEC")]
    file: PathBuf,
    /// Change a value of the file, in every case; may be repeated. Keys are dotted.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Only this case (all its cells), or this cell of a sweep; may be repeated.
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Only cells of the sweep with this value; may be repeated (several of one axis: any of them).
    #[arg(long, value_name = "AXIS=LABEL", value_parser = axis_label)]
    cell: Vec<(String, String)>,
    /// Only N of these cells, drawn so that every value of every axis is among them about equally often.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// Which they are: the same seed draws the same ones.
    #[arg(long, value_name = "SEED", default_value_t = 1, requires = "sample")]
    sample_seed: u64,
    /// Runs of each case.
    #[arg(long, value_name = "N")]
    repeats: Option<u32>,
    /// One repeat, at most 2 s of warm-up and 3 s of window; flows and schedules in proportion. To see that it works,
    /// not to learn from.
    #[arg(long)]
    quick: bool,
}

/// Backends that carry runs out.
#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum BackendArg {
    /// Network namespaces, TCP of this kernel, an emulated path (root).
    #[default]
    Emulated,
    /// The simulator: virtual time, no privileges.
    Sim,
    /// Machines reached by SSH, and the path between them.
    Hosts,
}

impl From<BackendArg> for BackendKind {
    fn from(backend: BackendArg) -> BackendKind {
        match backend {
            BackendArg::Emulated => BackendKind::Emulated,
            BackendArg::Sim => BackendKind::Simulated,
            BackendArg::Hosts => BackendKind::Hosts,
        }
    }
}

/// Where runs are carried out that are not carried out here.
#[derive(Clone, Copy, clap::ValueEnum)]
enum OnArg {
    /// A Ray cluster.
    Ray,
}

/// Exit code of what a host cannot do.
const CANNOT: u8 = 3;
/// Longest warm-up and window of `--quick`.
const QUICK: [Nanos; 2] = [Nanos(2_000_000_000), Nanos(3_000_000_000)];
/// What a run takes beyond its flows: building, settling, emptying buffers, gathering.
const OVERHEAD: Duration = Duration::from_millis(2500);

pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::Run(args) => run_experiment(&args),
        Command::Check(args) => check::check(&args),
        Command::Schema => check::schema(),
        Command::List(args) => list_plans(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Query(args) => query::run(&args),
        Command::Verify(args) => archive::verify(&args),
        Command::Pack(args) => archive::pack(&args),
        Command::Unpack(args) => archive::unpack(&args),
        Command::Rerun(args) => rerun::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Worker(_) => worker::run(),
        Command::Clean(args) => clean(&args),
        Command::Agent(args) => agent::run(args),
    }
}

/// An experiment file, read.
struct Read {
    text: String,
    experiment: Experiment,
    /// Every run, in order.
    all: Vec<Plan>,
    /// Runs that were asked for.
    plans: Vec<Plan>,
}

impl SpecArgs {
    fn read(&self) -> anyhow::Result<Read> {
        let name = self.file.display();
        let Source { text, table } = Source::open(&self.file).context("experiment")?;
        let base = self.file.parent().unwrap_or(Path::new("."));
        let mut overrides = Vec::new();
        for assignment in &self.set {
            overrides.push(overlay::parse_assignment(assignment).map_err(|why| anyhow!("--set {why}"))?);
        }
        overrides.extend(self.repeats.map(|count| ("repeats".to_owned(), i64::from(count).into())));
        let mut experiment =
            Experiment::from_table(&table, &overrides, base).map_err(|error| anyhow!("{name}: {error}"))?;
        if self.quick {
            let [warmup, duration] = QUICK;
            experiment.shorten(warmup, duration);
        }
        let wanted = self.wanted(&experiment)?;
        let all = plans(&experiment).map_err(|error| anyhow!("{name}: {error}"))?;
        let plans = all.iter().filter(|plan| wanted.contains(&plan.case)).cloned().collect();
        Ok(Read { text, experiment, all, plans })
    }

    /// Names of the cases and cells asked for.
    fn wanted(&self, experiment: &Experiment) -> anyhow::Result<BTreeSet<String>> {
        let cases = &experiment.cases;
        if let Some(name) = self.case.iter().find(|name| !cases.iter().any(|case| case.is_called(name))) {
            let known: BTreeSet<&str> = cases.iter().map(|case| case.base.as_str()).collect();
            return Err(anyhow!("--case: {}", decode::unknown("case", name, known)));
        }
        let mut filter = Filter::new();
        for (axis, label) in &self.cell {
            let labels: BTreeSet<&str> = cases.iter().filter_map(|case| case.label(axis)).collect();
            if labels.is_empty() {
                let axes: BTreeSet<&str> =
                    cases.iter().flat_map(|case| &case.axes).map(|at| at.axis.as_str()).collect();
                return Err(anyhow!("--cell: {}", decode::unknown("axis", axis, axes)));
            }
            if !labels.contains(label.as_str()) {
                return Err(anyhow!("--cell {axis}: {}", decode::unknown("label", label, labels)));
            }
            let so_far = filter.remove(axis).map_or(Vec::new(), |labels| labels.all().to_vec());
            let all = so_far.into_iter().chain([label.clone()]).collect();
            filter.insert(axis.clone(), OneOrMany::Many(all));
        }
        let named = |case: &&Case| self.case.is_empty() || self.case.iter().any(|name| case.is_called(name));
        let asked: Vec<&Case> = cases.iter().filter(named).filter(|case| case.is_at(&filter)).collect();
        let count = asked.len();
        match self.sample.map(|wanted| wanted as usize) {
            _ if asked.is_empty() => Err(anyhow!(
                "--case and --cell leave nothing to run; 'longfat lab list' without them names all there is"
            )),
            Some(wanted) if wanted > count => {
                Err(anyhow!("--sample {wanted}: there are {count} cells; ask for {count} at most"))
            }
            wanted => Ok(sample(&asked, wanted.unwrap_or(count), self.sample_seed).into_iter().collect()),
        }
    }
}

fn axis_label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(axis, label)| (axis.to_owned(), label.to_owned()));
    pair.ok_or_else(|| format!("'{text}' is no AXIS=LABEL; write it like rate=25Mbit"))
}

/// Time a list of runs takes.
fn expected_time(plans: &[Plan], backend: BackendKind) -> Duration {
    let flows = |plan: &Plan| Duration::from_micros(plan.end_us());
    plans.iter().map(|plan| flows(plan) * backend.dilation(plan).times() + OVERHEAD).sum()
}

fn run_experiment(args: &RunArgs) -> Outcome {
    let read = args.spec.read()?;
    let kind = BackendKind::from(args.backend);
    // Elsewhere, each host sees to itself.
    if kind == BackendKind::Emulated && args.on.is_none() {
        require(missing(&read.plans))?;
        // What a killed run left is removed before anything new is made.
        longfat_host::lease::sweep()?;
    }
    let stop = stop::flag()?;
    let name = &read.experiment.head.name;
    let directory = args.output.clone().unwrap_or_else(|| default_directory(name, SystemTime::now()));
    let program = std::env::current_exe().context("find the longfat program")?;
    let workers = args.jobs.map(usize::from);
    let hosts = hosts::enter(kind, args.hosts.as_deref(), &read.plans, &program, &stop)?;
    let backend = match (&hosts, args.backend) {
        (Some(hosts), _) => Backend::Hosts(hosts),
        (None, BackendArg::Sim) => Backend::Simulated { workers },
        (None, _) => Backend::Emulated { program: &program, twins: !args.no_twin },
    };
    let session = Session {
        experiment: &read.experiment,
        text: &read.text,
        backend,
        all: &read.all,
        plans: &read.plans,
        directory: &directory,
        provenance: provenance(kind),
    };
    if let Some(number) = args.only {
        return run_alone(&session, number, &stop);
    }
    let is_serial = kind != BackendKind::Simulated && args.on.is_none();
    let mut progress = progress::Progress::new(&read.plans, kind, is_serial);
    let tell = &mut |event: Event<'_>| progress.event(&event);
    let finished = match args.on {
        None => session.run(tell, &stop),
        Some(OnArg::Ray) => join(args, &program, &stop).and_then(|ray| session.run_on(ray, tell, &stop)),
    };
    progress.finish();
    let finished = finished.map_err(failure)?;
    if args.json {
        let value =
            serde_json::json!({ "directory": directory, "result": finished.result, "runs": finished.runs });
        crate::output::print_json(&value)?;
    } else {
        println!("{}", fitted(table::result(&finished), &[5, 4, 6, 3]));
        println!("{}{}", table::twins(&finished), table::expectations(&finished.result.expectations));
        println!("Result: {0}\nReport: longfat report {0}", directory.display());
    }
    conclude(&finished)
}

/// The Ray cluster asked for.
fn join(args: &RunArgs, program: &Path, stop: &AtomicBool) -> Result<Ray, SessionError> {
    let (address, python) = (args.address.as_deref(), crate::python::program());
    let at_once = args.jobs.map(usize::from);
    let ray = Ray::join(&python, address, at_once, args.backend.into(), program, stop)?;
    eprintln!("Ray {}: hosts: {}, runs at once: {}", ray.version, ray.hosts, ray.at_once);
    Ok(ray)
}

/// The failure of a session; what is missing here or there is exit code 3.
fn failure(error: SessionError) -> Failure {
    match error {
        SessionError::Ray(RayError::Missing(missing)) => Failure::Unsupported(vec![missing]),
        SessionError::Ray(RayError::Run { code: CANNOT, .. }) => {
            eprintln!("longfat: {error}");
            Failure::Child(CANNOT)
        }
        other => other.into(),
    }
}

/// One run of a job array.
fn run_alone(session: &Session<'_>, number: usize, stop: &AtomicBool) -> Outcome {
    let count = session.plans.len();
    let index = number.checked_sub(1).filter(|index| *index < count);
    let index = index.ok_or_else(|| anyhow!("--only {number}: there are runs 1 to {count}"))?;
    let kind = session.backend.kind();
    let mut progress = progress::Progress::new(session.plans, kind, kind != BackendKind::Simulated);
    let made = session.run_alone(index, &mut |event| progress.event(&event), stop);
    progress.finish();
    let plan = &session.plans[index];
    match made?.map(|manifest| (manifest.status, manifest.reasons)) {
        None => Err(anyhow!("interrupted").into()),
        Some((RunStatus::Done, _)) => {
            println!("{}", session.directory.join(plan.directory()).display());
            Ok(())
        }
        Some((status, reasons)) => {
            let how = if status == RunStatus::Failed {
                "failed".to_owned()
            } else {
                format!("is {}", status.name())
            };
            Err(anyhow!("{} r{} {how}: {}", plan.case, plan.repeat, reasons.join("; ")).into())
        }
    }
}

fn list_plans(args: &ListArgs) -> Outcome {
    let read = args.spec.read()?;
    if args.count {
        println!("{}", read.plans.len());
    } else if args.json {
        let entry = |(number, plan): (usize, &Plan)| {
            serde_json::json!({
                "number": number, "case": plan.case, "axes": plan.axes, "repeat": plan.repeat,
                "seed": plan.seed, "directory": plan.directory(),
            })
        };
        let list: Vec<_> = (1..).zip(&read.plans).map(entry).collect();
        crate::output::print_json(&list)?;
    } else {
        println!("{}", fitted(table::numbered(&read.plans), &[3]));
    }
    Ok(())
}

fn conclude(finished: &Finished) -> Outcome {
    if finished.result.status == ResultStatus::Interrupted {
        return Err(anyhow!("interrupted after {} runs; what was made is kept", finished.runs.len()).into());
    }
    let failed: Vec<_> = finished.runs.iter().filter(|run| run.status == RunStatus::Failed).collect();
    if let Some(run) = failed.first() {
        let reason = run.reasons.first().cloned().unwrap_or_default();
        return Err(anyhow!(
            "{} of {} runs failed, first {} r{}: {reason}",
            failed.len(),
            finished.runs.len(),
            run.case,
            run.repeat
        )
        .into());
    }
    let missed = finished.result.expectations.iter().find(|expectation| expectation.met == Some(false));
    if let Some(missed) = missed {
        return Err(Failure::Missed(format!("{}: {}", missed.text, missed.detail)));
    }
    match finished.result.expectations.iter().find(|expectation| expectation.met.is_none()) {
        Some(unjudged) => Err(anyhow!("cannot be judged: {}: {}", unjudged.text, unjudged.detail).into()),
        None => Ok(()),
    }
}

/// What this host lacks for these runs.
fn missing(plans: &[Plan]) -> Vec<support::Missing> {
    let mut missing = support::missing_for_namespaces();
    let ccs: BTreeSet<String> = plans.iter().flat_map(Plan::ccs).collect();
    if ccs.iter().any(|cc| longfat_cc::Algorithm::is_our_name(cc)) {
        missing.extend(longfat_kernel::support::missing(&[Capability::CongestionControl]));
    }
    let kernels = ccs.iter().filter(|cc| !longfat_cc::Algorithm::is_our_name(cc));
    missing.extend(kernels.filter_map(|cc| longfat_kernel::cc::missing(cc)));
    if plans.iter().any(|plan| !plan.follows.is_empty()) {
        missing.extend(longfat_kernel::support::missing(&[Capability::ControlBlocks]));
    }
    if plans.iter().any(|plan| longfat_lab::dilation::first_timeout(plan).is_some()) {
        missing.extend(longfat_kernel::support::missing(&[Capability::CgroupChoice]));
    }
    if plans.iter().any(|plan| !plan.relays.is_empty()) {
        // Forwarding is turned on in the relay's own namespace.
        missing.extend(longfat_relay::missing_for_interception());
    }
    let asked = plans.iter().flat_map(|plan| &plan.flows).filter(|flow| flow.ack_every.is_some());
    missing.extend(asked.map(|flow| {
        support::Missing::new(
            format!("flows.{}.ack_every", flow.name),
            "no kernel lets a program say how many segments it acknowledges at once",
            "leave it out, or run with --backend sim",
        )
    }));
    let mut unique: Vec<support::Missing> = Vec::new();
    missing.into_iter().for_each(|thing| {
        if !unique.contains(&thing) {
            unique.push(thing)
        }
    });
    unique
}

fn provenance(backend: BackendKind) -> Provenance {
    let tools = [("ip", "-V"), ("nft", "-v"), ("ethtool", "--version")];
    let mut known = BTreeMap::from([("cc_sources".to_owned(), longfat_cc::BUILD_ID.to_owned())]);
    match backend {
        BackendKind::Emulated => {
            for (tool, argument) in tools {
                known.extend(facts::first_line_of(tool, argument).map(|line| (format!("tool.{tool}"), line)));
            }
            known.insert("clock_source".to_owned(), facts::clock_source());
        }
        // In virtual time neither tools nor a clock have a part.
        BackendKind::Simulated => {}
        BackendKind::Hosts => {
            let path = "real; what the plan says of links is what was expected";
            known.insert("path".to_owned(), path.to_owned());
        }
    }
    crate::provenance::of(known)
}

/// Removes the leases of dead owners, and sets back what an agent that was killed had set.
fn clean(args: &CleanArgs) -> Outcome {
    require(support::missing_for_namespaces())?;
    // First: it claims this machine by a lease, which would be swept.
    let part = longfat_lab::hosts::clean()?.then(|| "this host's part in another's run".to_owned());
    longfat_kernel::cgroup::remove_left();
    let mut removed = longfat_host::lease::sweep()?;
    removed.extend(part);
    if args.json {
        print_json(&serde_json::json!({ "removed": removed }))?;
    } else if removed.is_empty() {
        println!("nothing was left behind");
    } else {
        println!("removed what was left of: {}", removed.join(", "));
    }
    Ok(())
}
