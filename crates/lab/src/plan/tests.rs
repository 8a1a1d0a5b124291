use super::network::Topology;
use super::tests_support::{SMALL, plan};
use super::*;
use crate::spec::Experiment;
use proptest::prelude::*;

/// A spec with hosts h0… that all forward, and links between the given pairs.
fn mesh(hosts: usize, links: &[(usize, usize, bool)]) -> Experiment {
    let mut text = String::from("name = \"mesh\"\nwarmup = \"1s\"\nduration = \"1s\"\n");
    (0..hosts).for_each(|h| text += &format!("[hosts.h{h}]\nforward = true\n"));
    for (index, (a, b, emulated)) in links.iter().enumerate() {
        text += &format!("[links.l{index}]\nbetween = [\"h{a}\", \"h{b}\"]\n");
        text += if *emulated { "delay = \"1ms\"\n" } else { "" };
    }
    let (a, b, _) = links[0];
    text += &format!("[flows.f]\nfrom = \"h{a}\"\nto = \"h{b}\"\ncc = \"reno\"\n");
    Experiment::read(&text, &[]).unwrap()
}

fn link_of<'a>(plan: &'a Plan, address: &Ipv4Addr) -> Option<&'a CablePlan> {
    plan.links.iter().find(|link| link.ends.iter().any(|end| end.ipv4 == *address))
}

/// Follows the routes from a host to an address; the hosts on the way, or nothing when they lead nowhere.
fn follow(plan: &Plan, from: &str, to: Ipv4Addr) -> Option<Vec<String>> {
    let target = link_of(plan, &to)?;
    let owner = &target.ends.iter().find(|end| end.ipv4 == to)?.host;
    let [a, b, c, _] = target.ends[0].ipv4.octets();
    let prefix = format!("{a}.{b}.{c}.0/24");
    let _ = c;
    let mut way = vec![from.to_owned()];
    while way.last() != Some(owner) {
        if way.len() > plan.hosts.len() {
            return None;
        }
        let here = way.last()?.clone();
        if target.ends.iter().any(|end| end.host == here) {
            way.push(owner.clone());
            continue;
        }
        let host = plan.hosts.iter().find(|host| host.name == here)?;
        let via = host.routes.iter().find(|route| route.ipv4 == prefix)?.ipv4_via;
        let next = link_of(plan, &via)?;
        assert!(next.ends.iter().any(|end| end.host == here), "the next hop is a neighbour");
        way.push(next.ends.iter().find(|end| end.ipv4 == via)?.host.clone());
    }
    Some(way)
}

proptest! {
    #[test]
    fn routes_lead_from_everywhere_to_every_address_that_can_be_reached(
        hosts in 2usize..7,
        raw in prop::collection::vec((0usize..7, 0usize..7, any::<bool>()), 1..12),
    ) {
        let links: Vec<_> = raw.into_iter().map(|(a, b, e)| (a % hosts, b % hosts, e)).filter(|(a, b, _)| a != b).collect();
        prop_assume!(!links.is_empty());
        let experiment = mesh(hosts, &links);
        let plan = plans(&experiment).unwrap().remove(0);
        let topology = Topology::of(&experiment.cases[0].setting);
        for from in &plan.hosts {
            for end in plan.links.iter().flat_map(|link| &link.ends) {
                let reachable = topology.path(&from.name, &end.host).is_some();
                prop_assert_eq!(follow(&plan, &from.name, end.ipv4).is_some(), reachable);
            }
        }
    }

    #[test]
    fn every_interface_has_its_own_address(count in 1u16..400) {
        let mut seen = std::collections::BTreeSet::new();
        for (index, end) in (0..count).flat_map(|index| [(index, 0), (index, 1)]) {
            let (ipv4, ipv6) = network::addresses(index, end);
            prop_assert!(seen.insert((ipv4, ipv6)) && ipv4.is_private());
        }
    }
}

#[test]
fn packets_are_kept_at_mtu_size_wherever_they_lead_into_an_emulated_link() {
    let plan = plan();
    let unsegmented =
        |name: &str| plan.hosts.iter().find(|host| host.name == name).unwrap().unsegmented.clone();
    assert_eq!(unsegmented("a"), ["lan"]);
    assert_eq!(unsegmented("r"), ["path"]);
    assert_eq!(unsegmented("b"), ["path"]);
}

#[test]
fn hosts_that_do_not_forward_are_not_passed() {
    let text = SMALL.replace("[hosts.b]", "[hosts.c]\n[links.back]\nbetween = [\"a\", \"c\"]\n[links.side]\nbetween = [\"c\", \"b\"]\n[hosts.b]");
    let plan = plans(&Experiment::read(&text, &[]).unwrap()).unwrap().remove(0);
    let IpAddr::V4(address) = plan.flows[0].address else { panic!("no IPv4 address") };
    assert_eq!(follow(&plan, "a", address).unwrap(), ["a", "r", "b"]);
}

#[test]
fn seeds_differ_by_case_repeat_and_seed_and_stay_within_53_bits() {
    let seeds = [
        seed_of(1, &["a", "1"]),
        seed_of(1, &["a", "2"]),
        seed_of(1, &["b", "1"]),
        seed_of(2, &["a", "1"]),
        seed_of(1, &["a1", ""]),
    ];
    let distinct: BTreeSet<_> = seeds.iter().collect();
    assert_eq!(distinct.len(), seeds.len());
    assert!(seeds.iter().all(|seed| *seed < 1 << 53));
    assert_eq!(seed_of(1, &["a", "1"]), seeds[0]);
}

#[test]
fn repeats_go_round_the_cases() {
    let text =
        SMALL.replace("warmup", "repeats = 2\nwarmup") + "[[cases]]\nname = \"x\"\n[[cases]]\nname = \"y\"\n";
    let plans = plans(&Experiment::read(&text, &[]).unwrap()).unwrap();
    let order: Vec<_> = plans.iter().map(Plan::directory).collect();
    assert_eq!(order, ["x/r1", "y/r1", "x/r2", "y/r2"]);
}

#[test]
fn a_case_may_have_more_repeats_than_the_others() {
    let text = SMALL.replace("warmup", "repeats = 1\nwarmup")
        + "[[cases]]\nname = \"x\"\n[[cases]]\nname = \"y\"\nset = { repeats = 2 }\n";
    let plans = plans(&Experiment::read(&text, &[]).unwrap()).unwrap();
    let made: Vec<_> = plans.iter().map(|plan| (plan.case.as_str(), plan.repeat)).collect();
    assert_eq!(made, [("x", 1), ("y", 1), ("y", 2)]);
}

#[test]
fn a_plan_survives_its_file() {
    let text = serde_json::to_string(&plan()).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan());
}

/// The plan of the relayed case of the conversion experiment, every value resolved. A change of this file is a change
/// of what the experiment does: review it as such. `LONGFAT_BLESS=1 cargo test -p longfat-lab` writes it anew.
#[test]
fn the_conversion_experiment_resolves_to_its_recorded_plan() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let text = std::fs::read_to_string(format!("{root}/experiments/conversion.toml")).unwrap();
    let plans = plans(&Experiment::read(&text, &[]).unwrap()).unwrap();
    let plan = plans.iter().find(|plan| plan.case == "reno-relayed").unwrap();
    let found = serde_json::to_string_pretty(plan).unwrap() + "\n";
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conversion-reno-relayed.plan.json");
    if std::env::var_os("LONGFAT_BLESS").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).unwrap();
        std::fs::write(golden, &found).unwrap();
    }
    let recorded = std::fs::read_to_string(golden).unwrap();
    assert!(found == recorded, "the plan differs from {golden}:\n{found}");
}

#[test]
fn a_plan_records_every_tunable_of_the_congestion_controls_it_uses_and_no_others() {
    let text = SMALL.replace("cc_server = \"cubic\"", "cc_server = \"lf_highspeed\"")
        + "[cc.lf_highspeed]\nmax_ssthresh_segments = 100\n[cc.lf_bic]\nmax_ssthresh_segments = 7\n";
    let plan = plans(&Experiment::read(&text, &[]).unwrap()).unwrap().remove(0);
    assert_eq!(plan.tunables.keys().collect::<Vec<_>>(), ["lf_highspeed"]);
    assert_eq!(plan.tunables_of("lf_highspeed").unwrap().to_string(), "max_ssthresh_segments=100");
    assert_eq!(plan.tunables_of("reno"), None, "the kernel's own");
}

/// The small experiment with more at its top and end.
fn small(top: &str, end: &str) -> Vec<Plan> {
    plans(&Experiment::read(&format!("{top}\n{SMALL}\n{end}"), &[]).unwrap()).unwrap()
}

#[test]
fn every_cell_of_a_sweep_is_a_plan_that_says_where_it_stands() {
    let plans = small(
        "repeats = 2",
        "[sweep]\nlinks.path.rate = ['25Mbit', '50Mbit']\nflows.measured.cc = ['reno', 'cubic']",
    );
    assert_eq!(plans.len(), 8);
    let last = &plans[7];
    assert_eq!(last.case, "rate=50Mbit,cc=cubic");
    assert_eq!(last.directory(), "rate=50Mbit/cc=cubic/repeat=2");
    assert_eq!(last.flows[0].cc.as_deref(), Some("cubic"));
    assert_eq!(last.links[1].path.as_ref().unwrap().forward.line.rate_bps, Some(50_000_000));
    assert_eq!((last.axes[0].number, last.axes[1].label.as_str()), (Some(50e6), "cubic"));
}

#[test]
fn a_sweep_goes_through_every_case() {
    let plans = small(
        "",
        "[[cases]]\nname = 'with'\ntitle = 'With relay'\n[[cases]]\nname = 'without'\nset = { 'relays.pep.enabled' = false }\n\
         [sweep]\nlinks.path.rate = ['25Mbit', '50Mbit']\nexclude = [{ case = 'without', rate = '25Mbit' }]",
    );
    let names: Vec<&str> = plans.iter().map(|plan| plan.case.as_str()).collect();
    assert_eq!(names, ["with,rate=25Mbit", "with,rate=50Mbit", "without,rate=50Mbit"]);
    assert_eq!(plans[0].directory(), "case=with/rate=25Mbit/repeat=1");
    assert_eq!(plans[0].case_title, "With relay rate=25Mbit");
    assert_eq!((plans[1].relays.len(), plans[2].relays.len()), (1, 0));
}

#[test]
fn a_value_more_changes_no_other_runs_plan() {
    let sweep = |rates: &str| small("repeats = 2", &format!("[sweep]\nlinks.path.rate = [{rates}]"));
    let (few, many) = (sweep("'25Mbit', '50Mbit'"), sweep("'10Mbit', '25Mbit', '50Mbit'"));
    assert_eq!(many.len(), 6);
    assert!(few.iter().all(|plan| many.contains(plan)));
    let seeds: BTreeSet<u64> = many.iter().map(|plan| plan.seed).collect();
    assert_eq!(seeds.len(), 6);
}

#[test]
fn a_flow_ends_by_duration_stop_or_size_and_goes_over_the_family_it_names() {
    let end = |keys: &str| {
        small("family = 6", &format!("[flows.extra]\nfrom = 'a'\nto = 'b'\ncc = 'reno'\n{keys}"))
            .remove(0)
            .flows
            .remove(0)
    };
    let flow = end("start = '500ms'\nduration = '1s'");
    assert_eq!((flow.name.as_str(), flow.start_us, flow.duration_us), ("extra", 500_000, 1_000_000));
    assert!(flow.address.is_ipv6());
    assert_eq!(end("start = '500ms'\nstop = '2s'").duration_us, 1_500_000);
    let sized = end("size = '3MB'\nfamily = 4");
    assert_eq!((sized.size_bytes, sized.duration_us), (Some(3_000_000), 3_000_000));
    assert!(sized.address.is_ipv4());
}

#[test]
fn what_the_transfer_program_would_refuse_is_refused_of_every_flow_before_anything_runs() {
    let refused = |text: &str| plans(&Experiment::read(text, &[]).unwrap()).unwrap_err().to_string();
    for (key, what) in [
        ("echo_every = '512B'", "the echo spacing in bytes is 512: it must be 1024 to"),
        ("rate = '500bit'", "the rate in bit/s is 500: it must be 1000 to"),
        ("sndbuf = '512B'", "the send buffer is 512: it must be 1024 to"),
        ("block = '0B'", "the block in bytes is 0: it must be 1 to"),
        ("rate = '0bit'", "the rate in bit/s is 0"),
        ("echo_every = '1B'", "the echo spacing in bytes is 1"),
    ] {
        let said = refused(&SMALL.replace("streams = 2", key));
        assert!(said.contains(&format!("flows.measured: {what}")), "{key}: {said}");
    }
    let several = "[flows.extra]\nfrom = 'a'\nto = 'b'\ncc = 'reno'\nblock = '0B'\n\
                   [[cases]]\nname = 'x'\n[[cases]]\nname = 'y'\nset = { 'flows.measured.sndbuf' = '1B' }\n";
    let said = refused(&format!("{SMALL}{several}"));
    assert!(said.contains("2 problems") && said.contains("x: flows.extra: the block"), "{said}");
    assert!(said.contains("y: flows.measured: the send buffer"), "{said}");
}

#[test]
fn a_run_lasts_until_its_last_stream_has_sent_as_long_as_the_others() {
    let plan = small(
        "",
        "[flows.extra]\nfrom = 'a'\nto = 'b'\ncc = 'reno'\nstreams = 4\nstagger = '500ms'\nstop = '2s'",
    )
    .remove(0);
    assert_eq!((plan.flows[0].end_us(), plan.end_us()), (3_500_000, 3_500_000));
    let plan = small("", "").remove(0);
    assert_eq!((plan.end_us(), plan.window_end_us), (3_000_000, 3_000_000));
    let mut far = plan.clone();
    (far.flows[0].stagger_us, far.flows[0].streams) = (u64::MAX, u32::MAX);
    assert_eq!(far.end_us(), u64::MAX);
}

#[test]
fn who_follows_a_link_resolves_to_interfaces_and_addresses_and_the_simulator_has_none_of_it() {
    let text = include_str!("../../../../experiments/mobility-paper.toml");
    let plans = plans(&Experiment::read(text, &[]).unwrap()).unwrap();
    let (alone, followed): (Vec<&Plan>, Vec<&Plan>) = plans.iter().partition(|plan| plan.follows.is_empty());
    // Four congestion controls, two ways, two cases, three repeats.
    assert_eq!((alone.len(), followed.len()), (48, 48));
    let (plan, follow) = (followed[0], &followed[0].follows[0]);
    assert_eq!((follow.router.as_str(), follow.link.as_str(), follow.backward), ("router", "path", false));
    assert_eq!((&follow.interfaces, &follow.nodes), (&vec!["lan".to_owned()], &vec!["node".to_owned()]));
    let end =
        |host: &str| plan.links.iter().flat_map(|link| &link.ends).find(|end| end.host == host).unwrap();
    assert_eq!(follow.peers, [IpAddr::from(end("node").ipv4), end("node").ipv6.into()]);
    assert_eq!((follow.far[0].host.as_str(), follow.far[0].ipv4), ("server", end("server").ipv4));
    let refused = crate::simulated::check(std::slice::from_ref(plan)).unwrap_err().to_string();
    assert!(refused.contains("follows.bus"), "{refused}");
}

#[test]
fn a_host_elsewhere_is_told_where_announcements_reach_it_also_when_it_has_another_link_first() {
    // 'aside' comes before 'path' in order of names, and nothing behind it forwards.
    let more = "[hosts.c]\n[links.aside]\nbetween = ['b', 'c']\n\
                [follows.bus]\nrouter = 'r'\nlink = 'path'\nnodes = ['a']\nfar = ['b']";
    let plan = small("", more).remove(0);
    let far = plan.follows[0].far[0].ipv4;
    assert_eq!(link_of(&plan, &far).unwrap().name, "path");
    assert_eq!(follow(&plan, "r", far).unwrap(), ["r", "b"]);
}

#[test]
fn a_host_elsewhere_that_no_announcement_reaches_is_refused() {
    let more = "[hosts.c]\n[links.aside]\nbetween = ['b', 'c']\n\
                [follows.bus]\nrouter = 'r'\nlink = 'path'\nnodes = ['a']\nfar = ['c']";
    let refused = Experiment::read(&format!("{SMALL}\n{more}"), &[]).unwrap_err().to_string();
    assert!(refused.contains("follows.bus.far") && refused.contains("no route from 'r' to 'c'"), "{refused}");
}
