//! The relay that the options describe: they are read as the keys of a relay's file, and checked as these are.

use super::{Args, daemon};
use anyhow::{Context, anyhow, bail};
use longfat_cc::queue::TARGET_US;
use longfat_relay::{
    Accept, Acknowledge, ControlPlan, RelayPlan, TargetSpec,
    spec::{ControlSpec, InterceptSpec, LegSpec, List, ListenSpec, RelaySpec, RuleSpec, SpecError, WaySpec},
};
use longfat_schema::{decode::Problem, units::Nanos};

/// Shortest distance of records.
const SAMPLE_EVERY_LEAST: Nanos = Nanos(100_000);
/// The rule that `--match-port` and `--match-dst` make.
const RULE: &str = "matched";
/// The options that stand for keys of the file.
const OPTIONS: [(&str, &str); 24] = [
    ("intercept.interfaces", "--intercept"),
    ("intercept.mark", "--mark"),
    ("intercept.table", "--table"),
    ("listen[0].to", "--to"),
    ("rule[0]", "--match-dst"),
    ("defaults.client.cc", "--cc-client"),
    ("defaults.server.cc", "--cc-server"),
    ("defaults.client.buffer", "--buffer-client"),
    ("defaults.server.buffer", "--buffer-server"),
    ("defaults.server.pacing", "--pacing-server"),
    ("defaults.client.notsent_lowat", "--notsent-lowat"),
    ("defaults.server.notsent_lowat", "--notsent-lowat"),
    ("defaults.queue", "--queue"),
    ("defaults.adopt_after", "--adopt-after"),
    ("defaults.adopt_rate", "--adopt-rate"),
    ("defaults.adopt_rtt", "--adopt-rtt"),
    ("defaults.adopt_losses", "--adopt-losses"),
    ("defaults.release_after", "--release-after"),
    ("defaults.acknowledge", "--acknowledge"),
    ("drain", "--drain"),
    ("reset_wait", "--reset-wait"),
    ("coalesce", "--coalesce"),
    ("workers", "--workers"),
    ("metrics", "--metrics"),
];

pub fn plan(args: &Args) -> anyhow::Result<RelayPlan> {
    let (spec, plan) = match &args.config {
        Some(file) => {
            let spec = daemon::read_spec(file)?;
            let plan = spec.resolve().with_context(|| format!("'{}'", file.display()));
            (spec, plan)
        }
        None => {
            check_target(args)?;
            let spec = spec(args);
            let plan = spec.resolve().map_err(by_option);
            (spec, plan)
        }
    };
    let mut plan = plan?;
    if spec.control == ControlSpec::default() {
        plan.control = None;
    }
    if args.samples.is_some() {
        if args.sample_every < SAMPLE_EVERY_LEAST {
            bail!("--sample-every {} is too short; give {SAMPLE_EVERY_LEAST} or more", args.sample_every);
        }
        plan.sample_every = Some(args.sample_every.into());
    }
    Ok(plan)
}

/// The plan with a control socket, on which 'longfat relay status' is answered, where the user may make it.
pub fn with_control(mut plan: RelayPlan) -> RelayPlan {
    let own = || ControlPlan::own_default(&plan.name);
    plan.control = plan.control.clone().or_else(|| own().map(|socket| ControlPlan { socket, group: None }));
    plan
}

/// A target is told by its own option, not by that of the queue's keys.
fn check_target(args: &Args) -> anyhow::Result<()> {
    let [least, most] = [TARGET_US.start(), TARGET_US.end()].map(|us| Nanos(u64::from(*us) * 1000));
    match args.queue_target {
        Some(TargetSpec::Within(target)) if !(least..=most).contains(&target) => {
            bail!("--queue-target {target} is out of range; give {least} to {most}, or off")
        }
        _ => Ok(()),
    }
}

fn spec(args: &Args) -> RelaySpec {
    RelaySpec {
        name: Some(args.name.clone()),
        intercept: intercept(args),
        listen: listen(args).into_iter().collect(),
        rule: rule(args).into_iter().collect(),
        defaults: way(args),
        drain: Some(args.drain),
        reset_wait: Some(args.reset_wait),
        coalesce: Some(args.coalesce),
        workers: args.workers,
        keep: args.keep,
        control: ControlSpec { socket: args.socket.clone(), group: None },
        metrics: args.metrics,
        ..RelaySpec::default()
    }
}

fn intercept(args: &Args) -> Option<InterceptSpec> {
    (!args.intercept.is_empty()).then(|| InterceptSpec {
        interfaces: List(args.intercept.clone()),
        mark: args.mark,
        table: args.table,
        forwarding: args.forwarding,
    })
}

fn listen(args: &Args) -> Option<ListenSpec> {
    let to = args.to.clone().unwrap_or_default();
    args.listen.map(|address| ListenSpec { address, to })
}

fn rule(args: &Args) -> Option<RuleSpec> {
    let matches_some = !args.match_dst.is_empty() || !args.match_port.is_empty();
    matches_some.then(|| RuleSpec {
        name: Some(RULE.into()),
        destination: List(args.match_dst.clone()),
        port: List(args.match_port.clone()),
        ..RuleSpec::default()
    })
}

fn way(args: &Args) -> WaySpec {
    let mut queue = args.queue.clone().unwrap_or_default();
    queue.target = args.queue_target.or(queue.target);
    let notsent_lowat = Some(args.notsent_lowat);
    let Args { adopt_after, adopt_rate, adopt_rtt, adopt_losses, release_after, acknowledge, .. } = *args;
    let watches =
        adopt_after.is_some() || adopt_rate.is_some() || adopt_rtt.is_some() || adopt_losses.is_some();
    let is_end_to_end = watches || acknowledge == Some(Acknowledge::EndToEnd);
    WaySpec {
        accept: is_end_to_end.then_some(Accept::EndToEnd),
        adopt_after,
        adopt_rate,
        adopt_rtt,
        adopt_losses,
        release_after,
        acknowledge,
        client: LegSpec {
            cc: args.cc_client.clone(),
            buffer: args.buffer_client,
            notsent_lowat,
            ..LegSpec::default()
        },
        server: LegSpec {
            cc: args.cc_server.clone(),
            buffer: args.buffer_server,
            pacing: args.pacing_server,
            notsent_lowat,
            ..LegSpec::default()
        },
        queue: Some(queue),
        ..WaySpec::default()
    }
}

/// The problems of a file, told of the options that were given instead.
fn by_option(error: SpecError) -> anyhow::Error {
    let SpecError::Problems(problems) = error else { return error.into() };
    let mut told: Vec<String> = problems.into_iter().map(told).collect();
    // Both legs have one '--notsent-lowat'.
    told.dedup();
    anyhow!(told.join("; "))
}

fn told(Problem { path, message }: Problem) -> String {
    let option = OPTIONS.iter().find(|(key, _)| *key == path);
    format!("{}: {message}", option.map_or(path.as_str(), |(_, option)| option))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use longfat_relay::LegPlan;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plan_of(words: &str) -> anyhow::Result<RelayPlan> {
        plan(&Line::try_parse_from(["relay"].into_iter().chain(words.split_whitespace())).unwrap().args)
    }

    fn plan_of_file(text: &str) -> RelayPlan {
        let mut plan = RelaySpec::parse(text).unwrap().resolve().unwrap();
        plan.control = None;
        plan
    }

    #[test]
    fn options_make_the_plan_that_the_same_keys_of_a_file_make() {
        let pairs = [
            ("--intercept lan", "intercept = { interfaces = 'lan' }"),
            (
                "--listen 127.0.0.1:8080 --to 192.0.2.1:80",
                "listen = [{ address = '127.0.0.1:8080', to = '192.0.2.1:80' }]",
            ),
            (
                "--intercept lan --match-port 443 --match-dst 192.0.2.0/24 --cc-server cubic --buffer-client 1MiB",
                "intercept = { interfaces = 'lan' }
                 defaults = { client = { buffer = '1MiB' }, server = { cc = 'cubic' } }
                 rule = [{ name = 'matched', destination = '192.0.2.0/24', port = 443 }]",
            ),
            (
                "--intercept lan --pacing-server 10Mbit --notsent-lowat 16KiB --queue-target 5ms --coalesce 0 --drain 3s --workers 1",
                "intercept = { interfaces = 'lan' }
                 coalesce = '0'
                 drain = '3s'
                 workers = 1
                 defaults.queue.target = '5ms'
                 defaults.client.notsent_lowat = '16KiB'
                 defaults.server = { pacing = '10Mbit', notsent_lowat = '16KiB' }",
            ),
        ];
        let adopting = (
            "--intercept lan --adopt-after 1MB --adopt-rate 10Mbit --adopt-rtt 20ms --adopt-losses 0.01 --release-after 2s",
            "intercept = { interfaces = 'lan' }
             defaults = { accept = 'end-to-end', adopt_after = '1MB', adopt_rate = '10Mbit', adopt_rtt = '20ms', adopt_losses = 0.01, release_after = '2s' }",
        );
        let acknowledging = (
            "--intercept lan --acknowledge end-to-end",
            "intercept = { interfaces = 'lan' }
             defaults = { accept = 'end-to-end', acknowledge = 'end-to-end' }",
        );
        for (words, text) in pairs.into_iter().chain([adopting, acknowledging]) {
            assert_eq!(plan_of(words).unwrap(), plan_of_file(text), "{words}");
        }
    }

    #[test]
    fn a_file_makes_the_plan_that_options_make_and_what_is_wrong_is_named_by_its_key() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("relay.toml");
        let words = format!("--config {}", file.display());
        let text = "intercept = { interfaces = 'lan' }\nname = 'pep'\ndefaults.server = { cc = 'cubic', pacing = '10Mbit' }";
        std::fs::write(&file, text).unwrap();
        let by_options =
            plan_of("--intercept lan --name pep --cc-server cubic --pacing-server 10Mbit").unwrap();
        assert_eq!(plan_of(&words).unwrap(), by_options);
        std::fs::write(&file, text.replace("10Mbit", "1kbit")).unwrap();
        let error = format!("{:#}", plan_of(&words).unwrap_err());
        assert!(error.contains("relay.toml': 1 problem"), "{error}");
        assert!(error.contains("defaults.server.pacing: give 8kbit or more"), "{error}");
        let said =
            Line::try_parse_from(format!("relay {words} --pacing-server 9kbit").split(' ')).err().unwrap();
        assert!(said.to_string().contains("cannot be used with"), "{said}");
    }

    #[test]
    fn help_tells_the_buffers_that_a_relay_has_by_default() {
        use clap::CommandFactory as _;
        let help = Line::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for bytes in [LegPlan::CLIENT_BUFFER_BYTES, LegPlan::SERVER_BUFFER_BYTES] {
            assert!(help.contains(&format!("is payload [default: {}MiB]", bytes >> 20)), "{bytes}");
        }
    }

    #[test]
    fn what_a_file_may_not_say_options_may_not_either_and_the_option_is_named() {
        for (words, said) in [
            ("--buffer-client 1B", "--buffer-client: it is 1B; give 4096B to 1GiB"),
            ("--pacing-server 1kbit", "--pacing-server: give 8kbit or more"),
            ("--notsent-lowat 2GiB", "--notsent-lowat: it is 2.147GB; give 1B to 1GiB"),
            ("--metrics 192.0.2.1:9469", "--metrics: 192.0.2.1:9469 can be reached from elsewhere"),
            ("--cc-server a_name_of_a_congestion_control", "--cc-server: 'a_name_of"),
            ("--adopt-after 0s", "--adopt-after: 0 is right after the handshake"),
            ("--adopt-rate 1kbit", "--adopt-rate: it is 1kbit; give 8kbit or more"),
            ("--adopt-rtt 2min", "--adopt-rtt: it is 120s; give a round trip of up to 60s"),
            ("--release-after 1ms", "--release-after: it is 1ms; give 100ms or more"),
            ("--adopt-losses 2", "--adopt-losses: it is 2; give a share of 0.000001 to 0.5"),
            ("--intercept a/b", "--intercept: 'a/b' is no name of an interface"),
        ] {
            let error = plan_of(&format!("--intercept lan {words}")).unwrap_err().to_string();
            assert!(error.starts_with(said) && !error.contains("; --"), "{words}: {error}");
        }
    }
}
