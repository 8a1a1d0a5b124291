use super::*;
use crate::plan::{ConnectionPlan, LegPlan};
use proptest::prelude::*;
use std::time::Duration;

const FULL: &str = r#"
name = "pep"
drain = "30s"
fail = "closed"
metrics = "127.0.0.1:9469"

[intercept]
interfaces = ["lan0", "lan1"]
forwarding = true

[[listen]]
address = "127.0.0.1:8080"
to = "192.0.2.1:80"

[control]
group = "netops"

[log]
format = "json"

[limits]
connections = 20000
client = 2000
network = 5000
memory = "1GiB"
client_memory = "256MiB"
network_memory = "512MiB"

[defaults]
keepalive = "30s"
server = { cc = "cubic", rate = "1Gbit", rtt = "28.4ms" }

[[rule]]
name = "ssh"
port = 22
action = "pass"

[[rule]]
name = "long"
interface = "lan0"
destination = ["203.0.113.9/24", "2001:db8::/32"]
port = ["80-90", 85, 443]
accept = "after-server"
idle = "1h"
memory = "8MiB"
client = { buffer = "1MiB", notsent_lowat = "64KiB" }
server = { cc = "lf_highspeed", pacing = "900Mbit", mss = 1400 }
queue = { target = "20ms" }

[[rule]]
source = "10.0.0.0/8"
keepalive = 0
"#;

fn plan(text: &str) -> crate::RelayPlan {
    RelaySpec::parse(text).unwrap().resolve().unwrap()
}

#[test]
fn a_coalesce_of_seconds_is_refused_with_what_was_probably_meant() {
    assert_eq!(plan(&format!("coalesce = \"100ms\"\n{FULL}")).coalesce, Duration::from_millis(100));
    let found = problems(&format!("coalesce = \"2s\"\n{FULL}"));
    assert!(found.len() == 1, "{found:?}");
    assert!(
        found[0].starts_with("coalesce") && found[0].contains("2s") && found[0].contains("100ms"),
        "{found:?}"
    );
}

#[test]
fn a_key_that_was_renamed_names_the_new_one() {
    let found = problems(&format!("nap = \"2ms\"\n{FULL}"));
    assert!(found.len() == 1 && found[0].starts_with("nap") && found[0].contains("'coalesce'"), "{found:?}");
}

fn problems(text: &str) -> Vec<String> {
    let error = RelaySpec::parse(text).and_then(|spec| spec.resolve()).unwrap_err();
    match error {
        SpecError::Problems(problems) => problems.iter().map(ToString::to_string).collect(),
        other => vec![other.to_string()],
    }
}

#[test]
fn a_whole_file_becomes_a_plan() {
    let plan = plan(FULL);
    assert_eq!((plan.name.as_str(), plan.fail, plan.drain), ("pep", Fail::Closed, Duration::from_secs(30)));
    assert_eq!(plan.control.unwrap().socket.to_str(), Some("/run/longfat-relay/pep.sock"));
    let names: Vec<_> = plan.rules.iter().map(|rule| (rule.name.as_str(), rule.relay.is_some())).collect();
    assert_eq!(names, [("ssh", false), ("long", true), ("rule-3", true)]);
    let long = plan.rules[1].relay.as_deref().unwrap();
    let text: Vec<_> = plan.rules[1].matches.ports.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["80-90", "443"]);
    assert_eq!(plan.rules[1].matches.destinations[0].to_string(), "203.0.113.0/24");
    assert_eq!((long.accept, long.idle), (Accept::AfterServer, Some(Duration::from_secs(3600))));
    assert_eq!(long.queue.as_ref().unwrap().target_us, 20_000);
    assert_eq!((long.client.buffer_bytes, long.client.notsent_lowat_bytes), (1 << 20, 64 << 10));
    assert_eq!((long.server.pacing_bps, long.server.mss_bytes), (Some(900_000_000), Some(1400)));
}

#[test]
fn a_file_that_is_written_again_says_the_same() {
    let spec = RelaySpec::parse(FULL).unwrap();
    let again = RelaySpec::parse(&spec.text().unwrap()).unwrap();
    assert_eq!(again, spec);
    assert_eq!(again.resolve().unwrap(), plan(FULL));
}

#[test]
fn rules_inherit_what_they_do_not_say_from_the_defaults() {
    let plan = plan(FULL);
    let (long, rest) = (plan.rules[1].relay.as_deref().unwrap(), plan.rules[2].relay.as_deref().unwrap());
    // 1 Gbit/s x 28.4 ms are 3.55 MB; four times that is the buffer.
    assert_eq!([long.server.buffer_bytes, rest.server.buffer_bytes], [14_200_000; 2]);
    assert_eq!([&long.server.cc, &rest.server.cc], [&Some("lf_highspeed".into()), &Some("cubic".into())]);
    assert_eq!(long.client.keepalive_idle, Some(Duration::from_secs(30)));
    assert_eq!((rest.client.keepalive_idle, rest.server.keepalive_idle), (None, None));
    assert_eq!((rest.rule.as_str(), plan.defaults.rule.as_str()), ("rule-3", "default"));
    assert_eq!(plan.ccs(), ["cubic", "lf_highspeed"]);
}

#[test]
fn the_first_rule_that_matches_counts_and_clients_of_listeners_match_by_their_server() {
    let text = "[[listen]]\naddress='127.0.0.1:1'\nto='192.0.2.1:80'\n\
        [[rule]]\nname='no'\nsource='10.1.0.0/16'\naction='pass'\n\
        [[rule]]\nname='web'\nport=80\nsource=['10.0.0.0/8','2001:db8::/32']\n";
    let plan = plan(text);
    let way = |client: &str, server: &str| {
        plan.way_of(client.parse().unwrap(), server.parse().unwrap()).map(|way| way.rule.clone())
    };
    assert_eq!(way("10.1.2.3:5", "192.0.2.1:80"), None);
    assert_eq!(way("10.2.2.3:5", "192.0.2.1:80").as_deref(), Some("web"));
    assert_eq!(way("[::ffff:10.2.2.3]:5", "192.0.2.1:80").as_deref(), Some("web"));
    assert_eq!(way("10.2.2.3:5", "192.0.2.1:81").as_deref(), Some(ConnectionPlan::DEFAULT_RULE));
}

#[test]
fn every_unknown_key_is_an_error_with_a_suggestion() {
    let found = problems("[intercept]\ninterface='lan'\n[[rule]]\nprot=443\nserver={bufer='1MB'}\n[limit]\n");
    let has = |what: &str, mend: &str| found.iter().any(|line| line.contains(what) && line.contains(mend));
    assert!(has("intercept.interface:", "'interfaces'"), "{found:#?}");
    assert!(has("rule[0].prot:", "'port'"), "{found:#?}");
    assert!(has("rule[0].server.bufer:", "'buffer'"), "{found:#?}");
    assert!(has("limit:", "'limits'"), "{found:#?}");
}

#[test]
fn contradictions_are_named_all_at_once() {
    let found = problems(
        "metrics='0.0.0.0:9469'\n[intercept]\ninterfaces='lan'\n\
         [[rule]]\nname='a'\ninterface='lam'\nserver={rate='1Gbit'}\n\
         [[rule]]\nname='a'\naction='pass'\nidle='1h'\n\
         [[rule]]\nsource='10.0.0.0/8'\ndestination='::/0'\nclient={buffer='1MB',rtt='1ms',mss=100}\n",
    );
    for part in [
        "metrics: 0.0.0.0:9469 can be reached",
        "rule[0].interface: unknown interface 'lam'; did you mean 'lan'",
        "rule[0].server.rate: the buffer follows from rate and rtt",
        "rule[1].name: the name 'a' is taken",
        "rule[1]: a rule with action = \"pass\"",
        "rule[2]: source and destination",
        "rule[2].client.buffer: give either",
        "rule[2].client.mss: give 536",
    ] {
        assert!(found.iter().any(|line| line.starts_with(part)), "{part}: {found:#?}");
    }
    let limits = problems("[limits]\nmemory='8MB'\nclient_memory='9MB'\nnetwork_memory='1KB'\n");
    for part in ["limits.client_memory: 9MB is more than", "limits.network_memory: 1KB is too little"] {
        assert!(limits.iter().any(|line| line.starts_with(part)), "{part}: {limits:#?}");
    }
    assert!(problems("")[0].contains("interfaces to intercept on or an address"));
}

#[test]
fn a_buffer_follows_from_the_paths_rate_and_round_trip_time() {
    let buffer = |rate: &str, rtt: &str| LegPlan::buffer_for(rate.parse().unwrap(), rtt.parse().unwrap());
    assert_eq!(buffer("1Gbit", "28.4ms"), 14_200_000);
    assert_eq!(buffer("1kbit", "1ms"), 4096);
    assert_eq!(buffer("400Gbit", "500ms"), 1 << 30);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_panic(text in "\\PC{0,200}") {
        let _ = RelaySpec::parse(&text);
    }

    #[test]
    fn any_values_of_known_keys_are_read_or_refused_without_panic(
        key in prop::sample::select(vec!["port", "source", "idle", "queue", "client", "accept", "memory"]),
        value in prop::sample::select(vec!["1", "-1", "''", "[]", "[1,'x']", "{}", "{target='0'}", "1.5", "true",
            "'9999999h'", "{rate='0bit',rtt='1h'}", "{buffer='1B',mss=0}"]),
    ) {
        let text = format!("[intercept]\ninterfaces='lan'\n[[rule]]\n{key} = {value}\n");
        let _ = RelaySpec::parse(&text).map(|spec| spec.resolve());
    }
}
