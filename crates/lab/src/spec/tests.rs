//! Bad experiment files and what is said about them.

use super::*;
use overlay::Value;

const GOOD: &str = r#"
name = "small"
warmup = "1s"
duration = "2s"
focus = "measured"

[hosts.a]
[hosts.r]
forward = true
[hosts.b]

[links.lan]
between = ["a", "r"]
[links.path]
between = ["r", "b"]
rate = "100Mbit"
delay = "5ms"
queue = { discipline = "droptail", limit = "100KB" }

[flows.measured]
from = "a"
to = "b"
cc = "reno"
[flows.noise]
from = "r"
to = "b"
protocol = "udp"
rate = "1Mbit"
enabled = false

[relays.pep]
host = "r"
enabled = false
intercept = ["lan"]
cc_client = "reno"
cc_server = "lf_highspeed"

[[cases]]
name = "plain"
[[cases]]
name = "relayed"
set = { "relays.pep.enabled" = true, "flows.measured.cc" = "cubic" }

[[expect]]
text = "the relay helps"
left = { case = "relayed", metric = "goodput_bps", of = "measured" }
right = { case = "plain", metric = "goodput_bps", of = "measured" }
at_least = 1.0
"#;

/// What is said about the good file with one text replaced by another.
fn said(from: &str, to: &str) -> Vec<String> {
    assert!(GOOD.contains(from), "'{from}' is not in the file");
    match Experiment::read(&GOOD.replacen(from, to, 1), &[]) {
        Ok(_) => Vec::new(),
        Err(SpecError::Problems(problems)) => problems.iter().map(Problem::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn a_good_file_is_read_and_its_cases_differ_where_they_say() {
    let experiment = Experiment::read(GOOD, &[]).unwrap();
    let [plain, relayed] = experiment.cases.as_slice() else { panic!("two cases") };
    assert!(!plain.setting.relays["pep"].enabled && relayed.setting.relays["pep"].enabled);
    assert_eq!(plain.setting.flows["measured"].cc.as_deref(), Some("reno"));
    assert_eq!(relayed.setting.flows["measured"].cc.as_deref(), Some("cubic"));
    assert!(!plain.setting.links["lan"].is_emulated() && plain.setting.links["path"].is_emulated());
}

/// A text of the good file, what it is replaced by, and a part of what must be said.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "[[cases]]\nname = \"plain\"",
        "[follows.bus]\nrouter = \"r\"\nlink = \"pat\"\nnodes = [\"a\"]\n[[cases]]\nname = \"plain\"",
        "follows.bus.link: unknown link 'pat'",
    ),
    (
        "[[cases]]\nname = \"plain\"",
        "[follows.bus]\nrouter = \"r\"\nlink = \"lan\"\nnodes = [\"a\"]\n[[cases]]\nname = \"plain\"",
        "follows.bus.link: link 'lan' has neither rate nor delay",
    ),
    (
        "[[cases]]\nname = \"plain\"",
        "[follows.bus]\nrouter = \"a\"\nlink = \"path\"\nnodes = [\"b\"]\n[[cases]]\nname = \"plain\"",
        "follows.bus.link: link 'path' does not end at the router 'a'",
    ),
    (
        "[[cases]]\nname = \"plain\"",
        "[follows.bus]\nrouter = \"r\"\nlink = \"path\"\nnodes = []\n[[cases]]\nname = \"plain\"",
        "follows.bus.nodes: names no host",
    ),
    (
        "[[cases]]\nname = \"plain\"",
        "[follows.bus]\nrouter = \"r\"\nlink = \"path\"\nnodes = [\"a\"]\npolicy = \"guess\"\n[[cases]]\nname = \"plain\"",
        "follows.bus.policy",
    ),
    (
        "[[cases]]\nname = \"plain\"",
        "[follows.bus]\nrouter = \"r\"\nlink = \"path\"\nnodes = [\"a\"]\nburst = 101\n[[cases]]\nname = \"plain\"",
        "follows.bus.burst: is percent",
    ),
    (
        "[[cases]]\nname = \"plain\"",
        "[follows.bus]\nrouter = \"r\"\nlink = \"path\"\nnodes = [\"a\"]\nstart = \"3s\"\n[[cases]]\nname = \"plain\"",
        "follows.bus.start: lies at or after the end of the run",
    ),
    ("warmup = \"1s\"", "warmup = 1", "warmup: time '1' has no unit; write it like '28.4ms' or '10s'"),
    ("warmup = \"1s\"", "wramup = \"1s\"", "wramup: unknown key 'wramup'; did you mean 'warmup'?"),
    ("duration = \"2s\"", "duration = \"0s\"", "duration: must be longer than 0s"),
    (
        "duration = \"2s\"",
        "duration = \"2s\"\nsysctls = { \"vm.swappiness\" = 1 }",
        "sysctls.\"vm.swappiness\": is the whole machine's",
    ),
    ("duration = \"2s\"", "duration = \"2s\"\nrepeats = 0", "repeats: must be at least 1"),
    ("duration = \"2s\"", "duration = \"2s\"\nrepeats = 99999999", "repeats: 99999999 are too many"),
    (
        "focus = \"measured\"",
        "focus = \"mesured\"",
        "focus: unknown flow 'mesured'; did you mean 'measured'?",
    ),
    ("name = \"small\"", "name = \"a/b\"", "name: 'a/b' is no name"),
    ("forward = true", "foward = true", "hosts.r.foward: unknown key 'foward'; did you mean 'forward'?"),
    ("[hosts.r]\nforward = true", "[hosts.r]", "no route from 'a' to 'b'"),
    ("[\"a\", \"r\"]", "[\"a\", \"x\"]", "links.lan.between: unknown host 'x'"),
    ("[\"a\", \"r\"]", "[\"a\", \"a\"]", "links.lan.between: joins 'a' with itself"),
    ("[\"a\", \"r\"]", "[\"a\"]", "links.lan.between: names 1 hosts; name two"),
    ("\"100Mbit\"", "\"100ms\"", "links.path.rate: rate '100ms' has the unknown unit 'ms'"),
    ("rate = \"100Mbit\"", "rat = \"100Mbit\"", "links.path.rat: unknown key 'rat'; did you mean 'rate'?"),
    (
        "limit = \"100KB\"",
        "limt = \"100KB\"",
        "links.path.queue.limt: unknown key 'limt'; did you mean 'limit'?",
    ),
    (
        "\"droptail\"",
        "\"dorptail\"",
        "links.path.queue.discipline: unknown value 'dorptail'; did you mean 'droptail'?",
    ),
    ("delay = \"5ms\"", "delay = \"2h\"", "links.path.delay: 7200s is longer than ten minutes"),
    ("[links.lan]", "[links.a-name-that-is-too-long]", "has 23 characters; at most 15 fit"),
    ("from = \"a\"", "from = \"aa\"", "flows.measured.from: unknown host 'aa'"),
    ("from = \"a\"", "from = \"b\"", "flows.measured: goes from 'b' to itself"),
    ("from = \"a\"", "", "flows.measured: missing field 'from'"),
    ("cc = \"reno\"", "", "flows.measured.cc: is missing"),
    (
        "cc = \"reno\"",
        "cc = \"much-too-long-a-name\"",
        "'much-too-long-a-name' cannot be a congestion control's name",
    ),
    ("cc = \"reno\"", "cc = \"reno\"\nstreams = 0", "flows.measured.streams: 0 is not between 1 and 1000"),
    (
        "cc = \"reno\"",
        "cc = \"reno\"\nstart = \"3s\"",
        "flows.measured.start: 3s is after the end of the run",
    ),
    (
        "cc = \"reno\"",
        "cc = \"reno\"\narrivals = \"onoff\"",
        "flows.measured.arrivals: is for protocol = \"udp\"",
    ),
    (
        "cc = \"reno\"",
        "cc = \"reno\"\nwindow = \"1KB\"",
        "flows.measured.window: 1KB is not between 2048 and 268435456 bytes",
    ),
    (
        "cc = \"reno\"",
        "cc = \"reno\"\nwindow = \"50KB\"\nrcvbuf = \"50KB\"",
        "flows.measured.window: stands beside rcvbuf",
    ),
    (
        "rate = \"1Mbit\"",
        "rate = \"1Mbit\"\nwindow = \"50KB\"",
        "flows.noise.window: is for protocol = \"tcp\"",
    ),
    (
        "rate = \"1Mbit\"",
        "rate = \"1Mbit\"\narrivals = \"parteo\"",
        "unknown value 'parteo'; did you mean 'pareto'?",
    ),
    ("rate = \"1Mbit\"", "", "flows.noise.rate: is missing: UDP does not find its own rate"),
    ("\"udp\"", "\"upd\"", "flows.noise.protocol: unknown value 'upd'; did you mean 'udp'?"),
    ("host = \"r\"", "host = \"b\"", "relays.pep.host: 'b' does not forward"),
    ("[\"lan\"]", "[\"wan\"]", "relays.pep.intercept: unknown link 'wan'"),
    (
        "host = \"r\"",
        "host = \"r\"\nbuffer_client = \"1B\"",
        "relays.pep.buffer_client: it is 1B; give 4096B to 1GiB",
    ),
    (
        "host = \"r\"",
        "host = \"r\"\npacing_server = \"1kbit\"",
        "relays.pep.pacing_server: give 8kbit or more",
    ),
    ("host = \"r\"", "host = \"r\"\nqueue.target = \"1ns\"", "relays.pep.queue: "),
    ("host = \"r\"\nenabled = false\nintercept = [\"lan\"]", "host = \"r\"\nintercept = []", "names no link"),
    ("name = \"relayed\"", "name = \"plain\"", "two cases are named 'plain'"),
    (
        "relays.pep.enabled",
        "relays.pip.enabled",
        "cases.relayed.set: relays.pip.enabled: unknown relay 'pip'; did you mean 'pep'?",
    ),
    (
        "relays.pep.enabled",
        "relays.pep.enabeld",
        "cases.relayed.set: relays.pep.enabeld: unknown key 'enabeld'; did you mean 'enabled'?",
    ),
    ("relays.pep.enabled", "focus", "cases.relayed.set: focus: 'focus' belongs to the whole experiment"),
    (
        "\"flows.measured.cc\" = \"cubic\"",
        "\"flows.measured.streams\" = 0",
        "cases.relayed: flows.measured.streams: 0 is not",
    ),
    (
        "case = \"relayed\"",
        "case = \"relay\"",
        "expect.1.left.case: unknown case 'relay'; did you mean 'relayed'?",
    ),
    (
        "metric = \"goodput_bps\"",
        "metric = \"godput\"",
        "expect.1.left.metric: unknown metric 'godput'; did you mean 'goodput_bps'?",
    ),
    ("of = \"measured\"", "of = \"meas\"", "expect.1.left.of: unknown flow"),
    ("at_least = 1.0", "", "expect.1: says neither at_least nor at_most"),
    ("at_least = 1.0", "at_least = 1.0\nconfidence = 90.0", "expect.1.confidence: must lie between 0 and 1"),
    ("[hosts.a]\n", "[hosts]\na = 3\n", "hosts.a: invalid type"),
    ("[flows.noise]", "[flows.measured]", "duplicate key"),
];

#[test]
fn each_mistake_is_named_by_its_key_with_the_mend() {
    for (from, to, wanted) in MISTAKES {
        let said = said(from, to);
        assert!(
            said.iter().any(|line| line.contains(wanted)),
            "'{from}' -> '{to}': {said:#?}, wanted '{wanted}'"
        );
    }
}

#[test]
fn a_small_mtu_is_refused_where_a_flow_of_ipv6_passes_and_nowhere_else() {
    let read = |link: &str, family: &str| {
        let text = GOOD.replace(link, &format!("{link}\nmtu = 1279"));
        Experiment::read(&text.replace("cc = \"reno\"\n[", &format!("cc = \"reno\"\n{family}\n[")), &[])
    };
    let (lan, aside) = ("between = [\"a\", \"r\"]", "[hosts.c]\n[links.aside]\nbetween = [\"r\", \"c\"]");
    assert!(read(lan, "").is_ok());
    let said = read(lan, "family = 6").unwrap_err().to_string();
    let expected = "links.lan.mtu: is less than 1280, which IPv6 needs, and flow 'measured' uses IPv6 there";
    assert!(said.contains(expected), "{said}");
    let text = GOOD.replace("[links.path]", &format!("{aside}\nmtu = 1279\n[links.path]"));
    assert!(Experiment::read(&text.replace("cc = \"reno\"\n[", "cc = \"reno\"\nfamily = 6\n["), &[]).is_ok());
}

#[test]
fn what_only_follows_from_another_mistake_is_not_said() {
    let followed =
        "[follows.bus]\nrouter = \"r\"\nlink = \"lan\"\nnodes = [\"a\"]\n[[cases]]\nname = \"plain\"";
    let text = GOOD
        .replace("[[cases]]\nname = \"plain\"", followed)
        .replace("[links.lan]", "[links.lan]\nrate = \"1Gbit\"");
    assert!(Experiment::read(&text, &[]).is_ok());
    let said = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Experiment::read(&text.replacen(from, to, 1), &[]).unwrap_err().to_string()
    };
    // No way leads over such a link, no relay takes it, and no router announces it.
    for ends in ["[\"a\", \"x\"]", "[\"a\", \"a\"]", "[\"a\"]"] {
        let said = said("[\"a\", \"r\"]", ends);
        assert!(said.starts_with("1 problem\n  links.lan.between: "), "{ends}: {said}");
    }
    assert!(said("host = \"r\"", "host = \"q\"").starts_with("1 problem\n  relays.pep.host: "));
    assert!(said("router = \"r\"", "router = \"q\"").starts_with("1 problem\n  follows.bus: "));
    let sweep = "[sweep]\nrate = { set = \"links.path.rate\", values = [\"1Mbit\", \"1x\"] }\n[[expect]]";
    let said = said("[[expect]]", sweep);
    assert!(said.starts_with("1 problem\n") && said.contains("unknown unit 'x'"), "{said}");
}

#[test]
fn several_mistakes_are_reported_together_and_each_once() {
    let text = GOOD
        .replace("warmup = \"1s\"", "warmup = \"1x\"")
        .replace("forward = true", "foward = true")
        .replace("host = \"r\"", "hots = \"r\"");
    let Err(SpecError::Problems(problems)) = Experiment::read(&text, &[]) else { panic!("read") };
    let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(paths, ["warmup", "hosts.r.foward", "relays.pep.hots", "relays.pep"]);
}

#[test]
fn a_mistake_of_the_file_is_said_once_though_every_case_has_it() {
    assert_eq!(said("cc = \"reno\"", "cc = \"reno\"\nstreams = 0").len(), 1);
}

#[test]
fn the_command_line_has_the_last_word() {
    let set = |key: &str, value: &str| (key.to_owned(), Value::String(value.into()));
    let overrides = [set("flows.measured.cc", "scalable"), ("repeats".into(), Value::Integer(7))];
    let experiment = Experiment::read(GOOD, &overrides).unwrap();
    assert_eq!(experiment.head.repeats, 7);
    let ccs: Vec<_> =
        experiment.cases.iter().filter_map(|case| case.setting.flows["measured"].cc.clone()).collect();
    assert_eq!(ccs, ["scalable", "scalable"]);
    let problem = Experiment::read(GOOD, &[set("links.pat.rate", "1Gbit")]).unwrap_err().to_string();
    assert!(problem.contains("--set links.pat.rate: unknown link 'pat'; did you mean 'path'?"), "{problem}");
}

#[test]
fn a_file_without_cases_is_one_case() {
    let text = GOOD.split("[[cases]]").next().unwrap();
    let experiment = Experiment::read(text, &[]).unwrap();
    assert_eq!(experiment.cases.len(), 1);
    assert_eq!(experiment.cases[0].name, "default");
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_panic(text in "(\\[?\\[?[a-z.\"]{0,12}\\]?\\]?( = )?[0-9a-z\"{}\\[\\]]{0,9}\n){0,12}") {
        let _ = Experiment::read(&text, &[]);
    }
}

#[test]
fn tunables_of_our_congestion_controls_are_set_checked_and_changed_by_cases() {
    let read = |text: &str| Experiment::read(&format!("{GOOD}\n{text}"), &[]);
    let experiment = read("[cc.lf_highspeed]\nmax_ssthresh_segments = 100").unwrap();
    assert_eq!(experiment.cases[0].setting.tunables["lf_highspeed"]["max_ssthresh_segments"], 100);
    let message = |text: &str| read(text).unwrap_err().to_string();
    assert!(message("[cc.reno]\nmax_ssthresh_segments = 1").contains("'lf_reno' may be meant"));
    assert!(message("[cc.lf_highspeed]\nmax_sstresh = 1").contains("did you mean 'max_ssthresh_segments'"));
    assert!(message("[cc.lf_higspeed]\nx = 1").contains("did you mean 'highspeed'"));
}

#[test]
fn names_that_no_host_can_give_are_refused() {
    for name in ["lo", "all", "default"] {
        let said = said("[links.path]", &format!("[links.{name}]")).join("\n");
        assert!(said.contains(&format!("links.{name}: '{name}' is the name of ")), "{said}");
    }
    let beside = |host: &str| said("[hosts.b]", &format!("[hosts.b]\n[hosts.{host}]")).join("\n");
    assert!(beside("link-path").contains("hosts.link-path: is called like the inside of the link 'path'"));
    assert_eq!(beside("link-lan"), "", "a plain cable has no inside");
}

#[test]
fn a_last_stream_that_would_start_when_its_flow_has_ended_is_refused() {
    let stagger = |keys: &str| said("cc = \"reno\"", &format!("cc = \"reno\"\n{keys}")).join("\n");
    assert_eq!(stagger("streams = 4\nstagger = '900ms'"), "");
    assert_eq!(stagger("stagger = '2500000h'"), "", "a stream by itself waits for none");
    let late = stagger("streams = 4\nstagger = '1s'");
    assert!(
        late.contains("flows.measured.stagger: 1s has the last of 4 streams start 3s after the first, when the flow has ended (3s)"),
        "{late}"
    );
    for flow in ["start = '1s'\nstop = '2s'", "duration = '1s'", "stop = '1s'"] {
        assert!(stagger(&format!("streams = 2\nstagger = '1s'\n{flow}")).contains("stagger"), "{flow}");
        assert_eq!(stagger(&format!("streams = 2\nstagger = '999ms'\n{flow}")), "");
    }
    assert!(stagger("streams = 1000\nstagger = '2500000h'").contains("make it shorter"));
}

#[test]
fn times_that_no_run_takes_are_refused() {
    let at = |from: &str, to: &str| said(from, to).join("\n");
    assert!(at("duration = \"2s\"", "duration = \"960h\"").contains("duration: 3456001s are too long"));
    assert!(at("warmup = \"1s\"", "warmup = \"960h\"").contains("a run takes 2678400s at most"));
    assert!(at("warmup = \"1s\"", "warmup = \"1s\"\nstart_within = \"960h\"").contains("start_within: "));
}

#[test]
fn a_shortened_experiment_has_its_flows_and_changes_in_their_order_and_can_be_carried_out() {
    let text = GOOD
        .replace("warmup = \"1s\"", "warmup = \"20s\"\nsample_every = \"2s\"\nrepeats = 5")
        .replace("duration = \"2s\"", "duration = \"30s\"")
        .replace("delay = \"5ms\"", "delay = \"5ms\"\nschedule = [{ at = \"20s\", rate = \"50Mbit\" }]")
        .replace(
            "cc = \"reno\"",
            "cc = \"reno\"\nstreams = 10\nstagger = \"2s\"\nstart = \"10s\"\nstop = \"35s\"",
        )
        .replace("rate = \"1Mbit\"", "rate = \"1Mbit\"\nstart = \"35s\"\nduration = \"15s\"");
    let mut experiment = Experiment::read(&text, &[]).unwrap();
    let nanos = |text: &str| text.parse::<Nanos>().unwrap();
    experiment.shorten(nanos("2s"), nanos("3s"));
    assert_eq!((experiment.head.repeats, experiment.head.duration), (1, nanos("3s")));
    for case in &experiment.cases {
        let Setting { head, links, flows, .. } = &case.setting;
        assert_eq!((head.warmup, head.duration, head.repeats), (nanos("2s"), nanos("3s"), 1));
        assert_eq!(head.sample_every, nanos("1s"));
        assert_eq!(links["path"].line.schedule.as_ref().unwrap()[0].at, nanos("2s"));
        let (measured, noise) = (&flows["measured"], &flows["noise"]);
        assert_eq!(
            (measured.start, measured.stop, measured.stagger),
            (nanos("1s"), Some(nanos("3500ms")), nanos("200ms"))
        );
        assert_eq!((noise.start, noise.duration), (nanos("3500ms"), Some(nanos("1500ms"))));
    }
    let mut problems = Vec::new();
    check::experiment(&experiment, &mut problems);
    assert_eq!(problems, []);
}

#[test]
fn an_experiment_of_which_every_cell_is_excluded_says_so() {
    let all = swept("", "exclude = [{ rate = ['25Mbit', '50Mbit'] }]").unwrap_err();
    assert!(all.contains("sweep.exclude: leaves out every cell"), "{all}");
    assert!(swept("", "exclude = [{ rate = '25Mbit' }]").is_ok());
}

#[test]
fn figures_that_no_run_has_are_refused_and_those_that_one_has_are_not() {
    let expected = |that: &str| swept(&format!("expect = ['{that}']"), "").map(drop);
    for that in [
        "goodput of measured > 1Mbit",
        "timeouts of pep/relay_out in relayed < 9",
        "held_up_drops_ratio of path < 0.5",
        "queue_mean of path/backward < 3KB",
        "backlog_max of pep/client_to_server in relayed < 1MB",
        "echo_p50 of measured < 1s",
        "cpu_busy < 90%",
    ] {
        assert_eq!(expected(that), Ok(()), "{that}");
    }
    for (that, why) in [
        ("queue_mean of measured < 3KB", "left.of: unknown direction of a link with a path 'measured'"),
        ("queue_mean of lan/forward < 3KB", "unknown direction of a link with a path 'lan/forward'"),
        ("utilisation of measured > 80%", "('utilisation_ratio' is of LINK/forward, LINK/backward)"),
        ("goodput of path/forward > 1Mbit", "unknown flow 'path/forward'"),
        ("fairness of measured > 0.9", "is of the run as a whole, not of 'measured'; leave it out"),
        ("timeouts of pep/relay_out < 9", "unknown flow or leg of a relay 'pep/relay_out'"),
        ("completion of measured < 1s", "needs an amount; write size in the flow"),
        ("rise of measured < 1s", "needs a link whose rate changes; write a schedule in the link"),
        ("avail_mean of measured > 1Mbit", "is of a flow of one connection"),
        ("lost_datagrams of measured < 1", "name a flow with protocol = \"udp\""),
        ("goodput of measured > 0.5 * goodput of noise", "right.of: unknown flow 'noise'"),
    ] {
        let said = expected(that).unwrap_err();
        assert!(said.contains(why), "{that}: {said}");
    }
    let long = |figure: &str| {
        said("left = { case = \"relayed\", metric = \"goodput_bps\", of = \"measured\" }", figure).join("\n")
    };
    assert!(
        long("left = { case = \"relayed\", metric = \"goodput_bps\" }")
            .contains("'goodput_bps' is of FLOW; say which")
    );
    assert!(
        long("left = { case = \"relayed\", metric = \"echo_p50_us\", of = \"measured\" }")
            .contains("needs echoes")
    );
    assert!(
        long("left = { case = \"relayed\", metric = \"fairness_jain\" }").contains("between TCP connections")
    );
}

#[test]
fn published_figures_are_of_what_a_run_has() {
    let published = |metric: &str, of: &str| {
        swept("", &format!("[[published]]\nmetric = '{metric}'\nof = '{of}'\nvalue = 1.0")).map(drop)
    };
    assert_eq!(published("goodput_bps", "measured"), Ok(()));
    assert_eq!(published("timeouts", "pep/relay_in"), Ok(()), "one of its cases has it");
    let unknown = published("goodput", "measured").unwrap_err();
    assert!(
        unknown.contains("published.1.metric: unknown metric 'goodput'; did you mean 'goodput_bps'"),
        "{unknown}"
    );
    assert!(
        published("goodput_bps", "nobody").unwrap_err().contains("published.1.of: unknown flow 'nobody'")
    );
    let own = said(
        "name = \"plain\"",
        "name = \"plain\"\npublished = [{ metric = \"goodput\", of = \"measured\", value = 1.0 }]",
    );
    assert!(own[0].contains("cases.plain.published.metric: unknown metric 'goodput'"), "{own:?}");
}

/// The good file without its long expectation, in a sweep over two rates.
fn swept(top: &str, end: &str) -> Result<Experiment, String> {
    let text = GOOD.split("[[expect]]").next().unwrap();
    let text = text.replacen("cc = \"reno\"", "cc = \"reno\"\nstreams = 2\necho_every = \"20KB\"", 1);
    let text = text.replacen("name = \"small\"", &format!("name = \"small\"\n{top}"), 1);
    let text = format!("{text}\n[sweep]\n\"links.path.rate\" = [\"25Mbit\", \"50Mbit\"]\n{end}");
    Experiment::read(&text, &[]).map_err(|error| error.to_string())
}

#[test]
fn a_short_expectation_is_of_every_case_and_cell() {
    let experiment = swept("expect = 'fairness > 0.9'", "").unwrap();
    let [expected] = experiment.expect.as_slice() else { panic!("{:?}", experiment.expect) };
    assert_eq!((expected.text.as_str(), expected.pairs.len()), ("fairness > 0.9", 4));
    let pair = &expected.pairs[3];
    assert_eq!(pair.left.case, "relayed,rate=50Mbit");
    assert_eq!((pair.left.metric.as_str(), pair.left.of.as_str()), ("fairness_jain", ""));
    assert_eq!(pair.bounds.least, Some(expect::Bound { value: 0.9, strict: true }));
}

#[test]
fn short_expectations_know_units_places_and_other_figures() {
    let experiment = swept(
        "expect = ['goodput >= 20Mbit', 'echo_p99_us of measured in plain at rate=25Mbit < 50ms', \
         'goodput in relayed >= 1.5 * goodput in plain', 'utilisation of path/forward>80%']",
        "",
    )
    .unwrap();
    let [goodput, echo, ratio, used] = experiment.expect.as_slice() else { panic!() };
    assert_eq!(goodput.pairs[0].left.of, "measured");
    assert_eq!(goodput.pairs[0].bounds.least, Some(expect::Bound { value: 20e6, strict: false }));
    assert_eq!(echo.pairs.len(), 1);
    assert_eq!(echo.pairs[0].bounds.most, Some(expect::Bound { value: 50_000.0, strict: true }));
    let against = |pair: &expect::Pair| match &pair.measure {
        expect::Measure::Over(right) => (pair.left.case.clone(), right.case.clone()),
        other => panic!("{other:?}"),
    };
    let pairs: Vec<_> = ratio.pairs.iter().map(against).collect();
    let same_rate = |rate: &str| (format!("relayed,rate={rate}"), format!("plain,rate={rate}"));
    assert_eq!(pairs, [same_rate("25Mbit"), same_rate("50Mbit")]);
    assert_eq!(used.pairs[0].bounds.least, Some(expect::Bound { value: 0.8, strict: true }));
}

#[test]
fn a_long_expectation_names_its_cell_or_is_for_each() {
    let expectation = |rest: &str| {
        swept(
            "",
            &format!(
                "[[expect]]\ntext = 't'\nright = {{ case = 'plain', metric = 'goodput_bps', of = 'measured' }}\nat_least = 1.0\n{rest}"
            ),
        )
    };
    let left = "left = { case = 'relayed', metric = 'goodput_bps', of = 'measured'";
    let message = expectation(&format!("{left} }}")).unwrap_err();
    assert!(message.contains("2 cases and cells") && message.contains("for_each = true"), "{message}");
    let pairs = |rest: &str| expectation(rest).unwrap().expect[0].pairs.len();
    assert_eq!(pairs(&format!("{left} }}\nfor_each = true")), 2);
    assert_eq!(pairs(&format!("{left} }}\nfor_each = {{ rate = '25Mbit' }}")), 1);
    assert_eq!(pairs(&format!("{left}, at = {{ rate = '50Mbit' }} }}")), 1);
    let message = expectation(&format!("{left}, at = {{ rate = '5Mbit' }} }}")).unwrap_err();
    assert!(message.contains("expect.1.left.at.rate: unknown label '5Mbit'"), "{message}");
}

#[test]
fn wrong_expectations_say_how_they_are_written() {
    let mistakes = [
        ("fairness", "is no expectation; write it like"),
        ("fairnes > 0.9", "unknown metric 'fairnes'; did you mean 'fairness_jain'"),
        ("echo > 3ms", "may be echo_p50_us or echo_p99_us"),
        ("goodput > 20", "goodput_bps: rate '20' has no unit"),
        ("queue_mean_bytes > 3KB", "of what?"),
        ("goodput of nobody > 1Mbit", "expect.1.left.of: unknown flow"),
        ("goodput in other > 1Mbit", "unknown case 'other'"),
    ];
    for (text, expected) in mistakes {
        let message = swept(&format!("expect = ['{text}']"), "").unwrap_err();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

/// As cells are called, and with a sign of its own behind a share.
#[test]
fn several_axes_of_an_expectation_are_written_as_cells_are_named() {
    let text = "expect = ['utilisation of path/forward in plain at rate=25Mbit,delay=2ms < 50 %']";
    let experiment = swept(text, "\"links.path.delay\" = [\"1ms\", \"2ms\"]").unwrap();
    let [pair] = experiment.expect[0].pairs.as_slice() else { panic!("{:?}", experiment.expect) };
    assert_eq!(pair.left.case, "plain,rate=25Mbit,delay=2ms");
    assert_eq!(pair.bounds.most, Some(expect::Bound { value: 0.5, strict: true }));
}

#[test]
fn published_figures_go_to_the_cells_they_are_of() {
    let text = "[[published]]\ncase = 'plain'\nat = { rate = '25Mbit' }\nmetric = 'goodput_bps'\nof = 'measured'\nvalue = 1.0";
    let experiment = swept("", text).unwrap();
    let having: Vec<_> = experiment.cases.iter().filter(|case| !case.published.is_empty()).collect();
    assert_eq!(having.iter().map(|case| case.name.as_str()).collect::<Vec<_>>(), ["plain,rate=25Mbit"]);
    assert!(swept("", &text.replace("25Mbit", "5Mbit")).unwrap_err().contains("unknown label '5Mbit'"));
}

#[test]
fn what_an_axis_and_a_case_both_set_is_refused_and_a_cells_fault_names_it() {
    let both = swept("", "flows.measured.cc = ['reno', 'scalable']").unwrap_err();
    assert!(both.contains("cases.relayed.set: flows.measured.cc: the axis 'cc'"), "{both}");
    let fault = swept("", "flows.noise.streams = [1, 0]").unwrap_err();
    assert!(
        fault.contains("at plain,rate=25Mbit,streams=0: flows.noise.streams: 0 is not between"),
        "{fault}"
    );
    let unknown = swept("", "flows.nobody.cc = ['reno']").unwrap_err();
    assert!(unknown.contains("unknown flow 'nobody'"), "{unknown}");
}

#[test]
fn samples_that_are_too_seldom_for_what_is_counted_are_refused() {
    let every =
        |value: &str| said("duration = ", &format!("sample_every = '{value}'\nduration = ")).join("\n");
    assert!(every("660ms").is_empty(), "{}", every("660ms"));
    let seldom = every("670ms");
    assert!(seldom.contains("sample_every: 670ms is too seldom for a duration of 2s: take 3"), "{seldom}");
}

#[test]
fn ends_of_flows_that_cannot_be_are_named() {
    let said = |keys: &str| {
        let at = "[flows.measured]\nfrom = \"a\"";
        said(at, &format!("[flows.measured]\n{keys}\nfrom = \"a\"")).join("\n")
    };
    assert!(said("duration = '1s'\nstop = '2s'").contains("stands beside duration"));
    assert!(said("start = '2500ms'\nduration = '1s'").contains("ends after the run does (3s)"));
    assert!(said("start = '1s'\nstop = '1s'").contains("is not after its start (1s)"));
    assert!(said("size = '1MB'\nstop = '1s'").contains("a flow ends by one of them"));
    assert!(said("family = 5").contains("neither 4 nor 6"));
}
