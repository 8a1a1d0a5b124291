//! `longfat mobility`: a router and two nodes in network namespaces, a link that changes, and datagrams nobody should
//! believe.

use crate::mobility_bed::{self, Bed, Program, Stream, longfat, text, wait_for};
use longfat_host::{capability, interface};
use longfat_mobility::{
    Key,
    announcement::{Announcement, Character},
    lan::{GROUP_V4, GROUP_V6},
    state::{State, StateFile, state_of},
};
use serde_json::Value;
use std::{
    io::{self, BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::Stdio,
    time::{SystemTime, UNIX_EPOCH},
};

const WIDE: Character = Character {
    up_bps: 20_000_000,
    down_bps: 20_000_000,
    delay_us: 5_000,
    loss_ppm: 0,
    up_queue_bytes: 0,
    down_queue_bytes: 0,
};
const NARROW: Character = Character {
    up_bps: 1_000_000,
    down_bps: 1_000_000,
    delay_us: 20_000,
    loss_ppm: 0,
    up_queue_bytes: 0,
    down_queue_bytes: 0,
};

fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn said(link: &str, character: Character, sequence: u64) -> Announcement {
    let now_us = unix_us();
    Announcement {
        router: "bus".parse().unwrap(),
        addresses: vec!["10.73.1.1".parse().unwrap(), "fd73:1::1".parse().unwrap()],
        epoch_us: 1,
        sequence,
        sent_us: now_us,
        changed_us: now_us,
        link: link.parse().unwrap(),
        character,
    }
}

fn counter(status: &Value, name: &str) -> u64 {
    status["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status}"))
}

/// What is to be seen of the follower on the first node.
fn status(bed: &Bed) -> Value {
    let output = longfat(&["mobility", "status", "--json", "--name", &bed.process("n1")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn whys(audit: &[Value]) -> Vec<(&str, &str)> {
    audit.iter().map(|line| (line["why"].as_str().unwrap(), line["link"].as_str().unwrap())).collect()
}

#[test]
fn two_nodes_follow_a_link_that_narrows_and_widens_again() {
    let bed = Bed::new("follow");
    // So wide that on the way back each window is certainly less than it was: there is something to be fitted.
    let plan = bed.write(
        "path.toml",
        r#"
        rate = "60Mbit"
        delay = "5ms"
        queue = { limit = "60KB" }
        schedule = [ { at = "1s", rate = "1Mbit", delay = "20ms" }, { at = "4s", rate = "60Mbit", delay = "5ms" } ]
        "#,
    );
    let key = bed.key("key");
    let plan = plan.to_str().unwrap();
    let routes = bed.nodes[0].ip(&["route", "show", "default"]).unwrap();
    let _sink = Stream::sink(&bed.server);
    let link = Program::start(
        &bed.wire,
        &["link", "drive", "--plan", plan, "--a", "left", "--b", "right", "--schedule-on-usr1"],
    );
    let announce = bed.announce(&key, &["lan1", "lan2"], &["--model", plan, "--schedule-on-usr1"]);
    let nodes = [("n1", &bed.nodes[0]), ("n2", &bed.nodes[1])];
    let audits = nodes.map(|(name, _)| bed.path(&format!("{name}.jsonl")));
    let follows: Vec<Program> =
        nodes.iter().zip(&audits).map(|((name, node), audit)| bed.follow(node, name, &key, audit)).collect();
    wait_for("the routes to be raised", || {
        bed.nodes[0].ip(&["route", "show", "default"]).unwrap().contains("rto_min lock 2s")
    });
    let _streams = nodes.map(|(_, node)| Stream::source(node, "reno"));
    // Until both fill the link: a window that was never used cannot be remembered.
    std::thread::sleep(std::time::Duration::from_secs(1));
    link.signal(libc::SIGUSR1);
    announce.signal(libc::SIGUSR1);
    for audit in &audits {
        wait_for("the return to the wide link to be followed", || {
            whys(&bed.lines(audit)).contains(&("fitted", "60Mbit-5ms"))
        });
        let (bounds, lines): (Vec<Value>, Vec<Value>) =
            bed.lines(audit).into_iter().partition(|line| line["why"] == "bounded");
        assert_eq!(bounds[0]["link"], "60Mbit-5ms", "{bounds:?}");
        let wide = bounds[0]["clamp_segments"][1].as_u64().unwrap();
        assert!((65..200).contains(&wide), "50 packets and more of the path, 20 of its queue: {wide}");
        // Lowered at once, or, where a loss was being repaired just then, fitted after that.
        assert_eq!(lines[0]["link"], "1Mbit-20ms", "{lines:?}");
        assert_eq!(
            lines[0]["cwnd_segments"][1], 10,
            "1 Mbit/s x 42 ms is less than the least window of one alone"
        );
        let narrow = lines[0]["clamp_segments"][1].as_u64().unwrap();
        assert!((10..40).contains(&narrow), "3 packets and three round trips of queue: {narrow}");
        let had = lines[0]["cwnd_segments"][0].as_u64().unwrap();
        let back = lines.iter().rfind(|line| line["why"] == "fitted").unwrap();
        // The window from just before: what the last look saw, or the announcement.
        let ssthresh = back["ssthresh_segments"][1].as_u64().unwrap();
        assert!(ssthresh >= had / 3 && ssthresh <= had * 3, "{had} {back}");
        assert!(lines.iter().all(|line| line["not_as_asked"].as_array().unwrap().is_empty()), "{lines:?}");
    }
    drop(follows);
    assert_eq!(bed.nodes[0].ip(&["route", "show", "default"]).unwrap(), routes, "as it was before");
}

#[test]
fn what_is_forged_replayed_foreign_or_of_another_time_changes_nothing() {
    let bed = Bed::new("forged");
    let (path, audit) = (bed.key("key"), bed.path("audit.jsonl"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    let foreign = Key::new(&[9; 32]).unwrap();
    let _sink = Stream::sink(&bed.server);
    bed.cable();
    let _follow = bed.follow(&bed.nodes[0], "n1", &path, &audit);
    let stream = Stream::source(&bed.nodes[0], "reno");
    let send = |datagram: &[u8]| bed.multicast(GROUP_V4.into(), datagram);
    let wide = said("wide", WIDE, 1).seal(&key).unwrap();
    send(&wide);
    wait_for("the connection to be known", || status(&bed)["connections"] == 1);
    let forged = {
        let mut datagram = said("narrow", NARROW, 2).seal(&key).unwrap();
        datagram[68 + 2] ^= 1;
        datagram
    };
    let late =
        Announcement { sent_us: unix_us() - 60_000_000, ..said("narrow", NARROW, 2) }.seal(&key).unwrap();
    let older = said("narrow", NARROW, 0).seal(&key).unwrap();
    let stranger = said("narrow", NARROW, 2).seal(&foreign).unwrap();
    for datagram in
        [&forged, &late, &older, &stranger, &wide, &b"GET / HTTP/1.1".to_vec(), &wide[..90].to_vec()]
    {
        send(datagram);
    }
    wait_for("all to be judged", || {
        let names = ["forged", "off_time", "old", "foreign_key", "repeats", "not_ours"];
        names.iter().map(|name| counter(&status(&bed), name)).sum::<u64>() >= 7
    });
    let seen = status(&bed);
    for (name, wanted) in [
        ("news", 1),
        ("forged", 1),
        ("off_time", 1),
        ("old", 1),
        ("foreign_key", 1),
        ("repeats", 1),
        ("not_ours", 2),
    ] {
        assert_eq!(counter(&seen, name), wanted, "{name}: {seen}");
    }
    assert_eq!((seen["routers"][0]["link"].as_str(), seen["waiting"].as_u64()), (Some("wide"), Some(0)));
    assert!(bed.lines(&audit).is_empty(), "no connection was touched");
    // The same from the router itself is believed, by IPv6 as well, and once.
    let narrow = said("narrow", NARROW, 2).seal(&key).unwrap();
    bed.multicast(GROUP_V6.into(), &narrow);
    wait_for("the connection to be set", || !bed.lines(&audit).is_empty());
    send(&narrow);
    wait_for("the repeat to be heard", || counter(&status(&bed), "repeats") == 2);
    assert_eq!(whys(&bed.lines(&audit))[0].1, "narrow");
    assert_eq!(counter(&status(&bed), "news"), 2);
    assert!(stream.is_established());
}

#[test]
fn who_listens_on_an_interface_that_is_not_there_is_told_which_there_are() {
    let bed = Bed::new("absent");
    let (path, name) = (bed.key("key"), bed.process("n1"));
    let arguments = ["mobility", "follow", "--key", &path, "--name", &name, "-i", "eth0", "-i", "nosuch"];
    let mut command = bed.nodes[0].command(env!("CARGO_BIN_EXE_longfat"));
    let mut follow = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It goes on: the interface may come later.
    let mut line = String::new();
    BufReader::new(follow.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // SAFETY: the child has not been waited for, so its pid is its own.
    assert_eq!(unsafe { libc::kill(follow.id() as i32, libc::SIGTERM) }, 0);
    let said = std::io::read_to_string(follow.stderr.take().unwrap()).unwrap();
    assert!(follow.wait().unwrap().success(), "{said}");
    let warnings: Vec<_> = said.lines().filter(|line| line.contains("WARNING")).collect();
    let [warning] = warnings[..] else { panic!("{said}") };
    assert!(warning.contains("no interface 'nosuch' now") && warning.contains("eth0"), "{warning}");
}

#[test]
fn who_believes_nothing_says_why_and_once() {
    let bed = Bed::new("doubts");
    let (path, name) = (bed.key("key"), bed.process("n1"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    let arguments = ["mobility", "follow", "--key", &path, "--name", &name];
    let mut command = bed.nodes[0].command(env!("CARGO_BIN_EXE_longfat"));
    let mut follow = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(follow.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let late =
        Announcement { sent_us: unix_us() - 3_600_000_000, ..said("wide", WIDE, 1) }.seal(&key).unwrap();
    let stranger = said("wide", WIDE, 1).seal(&Key::new(&[9; 32]).unwrap()).unwrap();
    for datagram in [&late, &stranger, &late, &stranger, &late] {
        bed.multicast(GROUP_V4.into(), datagram);
    }
    wait_for("all to be judged", || {
        let seen = status(&bed);
        (counter(&seen, "off_time"), counter(&seen, "foreign_key")) == (3, 2)
    });
    // SAFETY: the child has not been waited for, so its pid is its own.
    assert_eq!(unsafe { libc::kill(follow.id() as i32, libc::SIGTERM) }, 0);
    let said = std::io::read_to_string(follow.stderr.take().unwrap()).unwrap();
    assert!(follow.wait().unwrap().success(), "{said}");
    let lines = |part: &str| said.lines().filter(|line| line.contains(part)).count();
    assert_eq!((lines("router 'bus' is 3600s"), lines("which is none of --key")), (1, 1), "{said}");
    assert_eq!(lines("behind this host (tolerance 30s)"), 1, "{said}");
}

#[test]
fn a_router_that_is_heard_on_two_interfaces_is_followed_on_each() {
    let bed = Bed::new("roam");
    let (key, audit, links) = (bed.key("key"), bed.path("audit.jsonl"), links(&bed));
    let node = &bed.nodes[0];
    let end = |namespace, name| interface::End { namespace, name };
    interface::veth(end(node, "eth1"), end(&bed.router, "lan3"), 1500).unwrap();
    bed.router.ip(&["addr", "add", "10.73.3.1/24", "dev", "lan3"]).unwrap();
    node.ip(&["addr", "add", "10.73.3.2/24", "dev", "eth1"]).unwrap();
    bed.router.ip(&["route", "add", "default", "via", "10.73.9.2"]).unwrap();
    bed.cable();
    let _sink = Stream::sink(&bed.server);
    let _announce = bed.announce(&key, &["lan1", "lan3"], &["--links", links.to_str().unwrap()]);
    let _follow = bed.follow(node, "n1", &key, &audit);
    let route = || node.ip(&["route", "show", "default"]).unwrap();
    wait_for("the first way to be raised", || route().contains("rto_min"));
    node.ip(&["route", "replace", "default", "via", "10.73.3.1", "dev", "eth1"]).unwrap();
    wait_for("the other way to be raised", || route().contains("eth1") && route().contains("rto_min"));
    let _stream = Stream::source(node, "reno");
    wait_for("the connection to be known", || status(&bed)["connections"] == 1);
    // An interface that was down is listened on again.
    node.ip(&["link", "set", "eth1", "down"]).unwrap();
    wait_for("it to be left", || status(&bed)["listening"] == serde_json::json!(["eth0"]));
    node.ip(&["link", "set", "eth1", "up"]).unwrap();
    wait_for("it to be listened on", || status(&bed)["listening"] == serde_json::json!(["eth0", "eth1"]));
}

#[test]
fn a_table_that_cannot_work_is_told_at_the_start() {
    let bed = Bed::new("flaws");
    let (key, name) = (bed.key("key"), bed.process("router"));
    let links = bed.write(
        "links.toml",
        "[lte]\ninterface = \"wan\"\nrate = \"40Mbit\"\n[lte2]\ninterface = \"wan\"\nrate = \"4Mbit\"\n\
         [lost]\ngateway = \"10.1.1.1\"\nrate = \"1Mbit\"\n[phs]\ninterface = \"ppp7\"\nrate = \"64kbit\"\n",
    );
    let warned = |more: &[&str]| {
        let arguments = ["mobility", "announce", "--key", &key, "-i", "lan1", "--name", &name];
        let mut command = bed.router.command(env!("CARGO_BIN_EXE_longfat"));
        let mut announce =
            command.args(arguments).args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(announce.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(announce.id() as i32, libc::SIGTERM) }, 0);
        let said = std::io::read_to_string(announce.stderr.take().unwrap()).unwrap();
        assert!(announce.wait().unwrap().success() && line == "ready\n", "{said}");
        said.lines().filter_map(|line| Some(line.split_once("WARNING: ")?.1.to_owned())).collect::<Vec<_>>()
    };
    let said = warned(&["--links", links.to_str().unwrap()]);
    let wanted = [
        "link 'lost' has the gateway 10.1.1.1 and no interface",
        "links 'lte' and 'lte2' are both of interface 'wan'",
        "link 'phs': there is no interface 'ppp7' now",
        "no route to 192.0.2.1 or 2001:db8::1 leads over a link of the table",
    ];
    assert_eq!(said.len(), wanted.len(), "{said:?}");
    assert!(said.iter().zip(wanted).all(|(said, wanted)| said.starts_with(wanted)), "{said:?}");
    let [nothing] = &warned(&[])[..] else { panic!("one warning") };
    assert!(nothing.contains("nothing tells which link is in use"), "{nothing}");
}

/// Recorded behind a router that shares the key and the address, and said again behind this one, in time.
#[test]
fn what_another_router_with_the_key_said_changes_nothing_where_one_is_named() {
    let bed = Bed::new("cross");
    let (path, audit) = (bed.key("key"), bed.path("audit.jsonl"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    let _sink = Stream::sink(&bed.server);
    bed.cable();
    let _follow = bed.follow_with(&bed.nodes[0], "n1", &path, &audit, &["--router", "bus"]);
    let _stream = Stream::source(&bed.nodes[0], "reno");
    let elsewhere = Announcement { router: "train".parse().unwrap(), ..said("narrow", NARROW, 2) };
    bed.multicast(GROUP_V4.into(), &elsewhere.seal(&key).unwrap());
    wait_for("it to be judged", || counter(&status(&bed), "other_router") == 1);
    let seen = status(&bed);
    assert!(seen["routers"].as_array().unwrap().is_empty() && counter(&seen, "news") == 0, "{seen}");
    assert!(bed.lines(&audit).is_empty(), "no connection was touched");
    bed.multicast(GROUP_V4.into(), &said("narrow", NARROW, 2).seal(&key).unwrap());
    wait_for("its own router to be believed", || counter(&status(&bed), "news") == 1);
}

#[test]
fn nothing_is_set_while_a_loss_is_being_repaired_and_a_crash_is_cleaned_up() {
    let bed = Bed::new("crash");
    let (path, audit) = (bed.key("key"), bed.path("audit.jsonl"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    let _sink = Stream::sink(&bed.server);
    bed.cable();
    let before = bed.nodes[0].ip(&["route", "show", "default"]).unwrap();
    let follow = bed.follow(&bed.nodes[0], "n1", &path, &audit);
    let stream = Stream::source(&bed.nodes[0], "reno");
    bed.multicast(GROUP_V4.into(), &said("wide", WIDE, 1).seal(&key).unwrap());
    wait_for("the connection to be known", || status(&bed)["connections"] == 1);
    bed.cut(&stream);
    wait_for("a timeout", || stream.ca_state() == 4);
    bed.multicast(GROUP_V4.into(), &said("narrow", NARROW, 2).seal(&key).unwrap());
    wait_for("the connection to wait", || status(&bed)["waiting"] == 1);
    let looks = counter(&status(&bed), "looks");
    wait_for("some more looks", || counter(&status(&bed), "looks") > looks + 20);
    assert!(bed.lines(&audit).is_empty(), "it repairs");
    assert_eq!(stream.ca_state(), 4);
    bed.mend();
    // The kernel may find that the timeout was spurious, and give the old window back before all that was sent then is
    // acknowledged: it is lowered at once, and fits. Otherwise it is fitted when all is.
    wait_for("the window to fit", || !bed.lines(&audit).is_empty() && status(&bed)["waiting"] == 0);
    let lines = bed.lines(&audit);
    assert!(matches!(whys(&lines)[0], ("lowered" | "fitted", "narrow")), "{lines:?}");
    assert_eq!(
        lines[0]["ssthresh_segments"][1], 10,
        "1 Mbit/s x 42 ms is less than the least window of one alone"
    );
    assert!(bed.nodes[0].ip(&["route", "show", "default"]).unwrap().contains("rto_min"));
    follow.kill();
    assert!(bed.nodes[0].ip(&["route", "show", "default"]).unwrap().contains("rto_min"), "left by the dead");
    let clean = bed.run(&bed.nodes[0], &["mobility", "clean", "--name", &bed.process("n1")]);
    assert_eq!(text(&clean.stdout), "1 routes and 0 connections are as before\n", "{}", text(&clean.stderr));
    assert_eq!(bed.nodes[0].ip(&["route", "show", "default"]).unwrap(), before);
}

#[test]
fn a_follower_that_fails_puts_its_routes_back_and_another_files_names_serve_status_and_clean() {
    let bed = Bed::new("fails");
    let (path, state, socket) = (bed.key("key"), bed.path("f.state.json"), bed.path("f.sock"));
    let (state_text, socket_text) = (state.to_str().unwrap(), socket.to_str().unwrap());
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    bed.cable();
    let node = &bed.nodes[0];
    // A route of two ways, one of them by the router: it cannot be raised, and is counted.
    let ways = ["nexthop", "via", "10.73.1.1", "dev", "eth0", "nexthop", "via", "10.73.1.9", "dev", "eth0"];
    node.ip(&[&["route", "add", "10.99.0.0/16"], &ways[..]].concat()).unwrap();
    let before = node.ip(&["route", "show"]).unwrap();
    let mut follow = Program::start(
        node,
        &["mobility", "follow", "--key", &path, "--state", state_text, "--socket", socket_text],
    );
    bed.multicast(GROUP_V4.into(), &said("wide", WIDE, 1).seal(&key).unwrap());
    wait_for("the routes to be raised", || node.ip(&["route", "show"]).unwrap().contains("rto_min"));
    let asked = || {
        let output = longfat(&["mobility", "status", "--json", "--socket", socket_text]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    wait_for("the routes to be counted", || asked()["routes_raised"] == 1);
    assert_eq!(asked()["routes_left_alone"], 1);
    let metrics = longfat(&["mobility", "status", "--metrics", "--socket", socket_text]);
    assert!(
        text(&metrics.stdout).contains("longfat_mobility_follow_news_total 1\n"),
        "{}",
        text(&metrics.stdout)
    );
    // The state cannot be written any more: what stands in its way is a directory.
    std::fs::create_dir(state.with_extension("part")).unwrap();
    bed.multicast(GROUP_V4.into(), &said("narrow", NARROW, 2).seal(&key).unwrap());
    assert_eq!(follow.exit_code(), Some(2));
    assert_eq!(node.ip(&["route", "show"]).unwrap(), before);
    std::fs::remove_dir(state.with_extension("part")).unwrap();
    let clean = bed.run(node, &["mobility", "clean", "--state", state_text, "--socket", socket_text]);
    assert_eq!(text(&clean.stdout), "nothing was left\n", "{}", text(&clean.stderr));
    let missing = bed.run(node, &["mobility", "clean", "--state", "/nonexistent/state"]);
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn a_state_is_kept_by_one_process_whatever_its_socket_is() {
    let bed = Bed::new("held");
    let (path, audit) = (bed.key("key"), bed.path("audit.jsonl"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    bed.cable();
    let (node, name) = (&bed.nodes[0], bed.process("n1"));
    let socket = bed.path("other.sock");
    let other = ["--name", &name, "--socket", socket.to_str().unwrap()];
    let route = || node.ip(&["route", "show", "default"]).unwrap();
    let before = route();
    let follow = bed.follow(node, "n1", &path, &audit);
    bed.multicast(GROUP_V4.into(), &said("wide", WIDE, 1).seal(&key).unwrap());
    wait_for("the route to be raised", || route().contains("rto_min"));
    for arguments in [&["mobility", "clean"][..], &["mobility", "follow", "--key", &path]] {
        let refused = bed.run(node, &[arguments, &other].concat());
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        let mend = text(&refused.stderr);
        assert!(mend.contains(&name) && mend.contains("give another --name or --state"), "{mend}");
        assert!(route().contains("rto_min"), "undone by {arguments:?}");
    }
    follow.kill();
    let clean = bed.run(node, &[&["mobility", "clean"][..], &other].concat());
    assert_eq!(text(&clean.stdout), "1 routes and 0 connections are as before\n", "{}", text(&clean.stderr));
    assert_eq!(route(), before);
}

#[test]
fn a_congestion_control_that_cannot_be_written_down_is_not_replaced() {
    let bed = Bed::new("owed");
    let (path, audit, state) = (bed.key("key"), bed.path("audit.jsonl"), bed.path("f.state.json"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    let _sink = Stream::sink(&bed.server);
    bed.cable();
    let name = bed.process("n1");
    let files = ["--name", &name, "--state", state.to_str().unwrap(), "--audit", audit.to_str().unwrap()];
    let follow = |link_cc| {
        let arguments = ["mobility", "follow", "--key", &path, "--rto-min", "0ms", "--cc", link_cc];
        Program::start(&bed.nodes[0], &[&arguments[..], &files].concat())
    };
    let wide = |sequence| bed.multicast(GROUP_V4.into(), &said("wide", WIDE, sequence).seal(&key).unwrap());
    let mut fails = follow("wide=cubic");
    let _stream = Stream::source(&bed.nodes[0], "reno");
    // What stands in the way of writing the state is a directory.
    std::fs::create_dir(state.with_extension("part")).unwrap();
    wide(1);
    assert_eq!(fails.exit_code(), Some(2));
    assert!(bed.lines(&audit).is_empty(), "{:?}", bed.lines(&audit));
    std::fs::remove_dir(state.with_extension("part")).unwrap();
    let _follow = follow("wide=cubic");
    wide(2);
    wait_for("the congestion control of the link", || !bed.lines(&audit).is_empty());
    assert_eq!(bed.lines(&audit)[0]["cc"], serde_json::json!(["reno", "cubic"]));
    wait_for("its own to be written down", || std::fs::read_to_string(&state).unwrap().contains("reno"));
}

#[test]
fn a_known_queue_bounds_the_window_and_no_follower_that_ends_or_died_leaves_the_bound() {
    let bed = Bed::new("bound");
    let (path, audit, saved) = (bed.key("key"), bed.path("audit.jsonl"), bed.path("saved.json"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    let node = &bed.nodes[0];
    let _sink = Stream::sink(&bed.server);
    bed.cable();
    let follow = bed.follow(node, "n1", &path, &audit);
    let _stream = Stream::source(node, "reno");
    let bound = || {
        let output =
            bed.run(node, &["tcb", "save", saved.to_str().unwrap(), "cc", "reno", "and", "state", "estab"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said: Value = serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
        std::fs::remove_file(&saved).unwrap();
        said["connections"][0]["clamp_segments"].as_u64().unwrap()
    };
    let none = u64::from(u32::MAX / 2);
    assert!(bound() >= none);
    let wide = |sequence| {
        let character = Character { up_queue_bytes: 120_000, ..WIDE };
        bed.multicast(GROUP_V4.into(), &said("wide", character, sequence).seal(&key).unwrap());
    };
    wide(1);
    // 20 Mbit/s x 10 ms = 16 packets, and half of the queue: 40.
    wait_for("the bound", || (56..100).contains(&bound()));
    // The route is looked after once a second.
    wait_for("the route", || node.ip(&["route", "show"]).unwrap().contains("rto_min"));
    follow.kill();
    assert!(bound() < none, "nobody is there to lift it");
    let clean = || {
        let output = bed.run(node, &["mobility", "clean", "--name", &bed.process("n1")]);
        text(&output.stdout) + &text(&output.stderr)
    };
    assert_eq!(clean(), "1 routes and 1 connections are as before\n");
    assert!(bound() >= none, "lifted by 'clean'");
    assert_eq!(clean(), "nothing was left\n", "once");
    let follow = bed.follow(node, "n1", &path, &audit);
    wide(2);
    wait_for("the bound again", || bound() < none);
    follow.kill();
    let follow = bed.follow(node, "n1", &path, &audit);
    assert!(bound() >= none, "lifted by the next");
    wide(3);
    wait_for("the bound once more", || bound() < none);
    drop(follow);
    assert!(bound() >= none, "lifted at the end");
}

#[test]
fn a_clean_up_that_may_not_set_connections_puts_routes_back_and_owes_the_rest() {
    let bed = Bed::new("rights");
    let (path, audit, name) = (bed.key("key"), bed.path("audit.jsonl"), bed.process("n1"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    let node = &bed.nodes[0];
    let _sink = Stream::sink(&bed.server);
    bed.cable();
    let route = || node.ip(&["route", "show", "default"]).unwrap();
    let before = route();
    let follow = bed.follow(node, "n1", &path, &audit);
    let _stream = Stream::source(node, "reno");
    let queued = Character { up_queue_bytes: 120_000, ..WIDE };
    bed.multicast(GROUP_V4.into(), &said("wide", queued, 1).seal(&key).unwrap());
    wait_for("a bound", || whys(&bed.lines(&audit)).contains(&("bounded", "wide")));
    wait_for("the route to be raised", || route().contains("rto_min"));
    follow.kill();
    let left = State::read(&state_of(&name)).unwrap();
    assert_eq!((left.bounded.len(), left.routes.len()), (1, 1));
    let mut clean = node.command(env!("CARGO_BIN_EXE_longfat"));
    clean.args(["mobility", "clean", "--name", &name]);
    // SAFETY: between fork and exec it makes system calls with numbers and sets of its own stack.
    unsafe { clean.pre_exec(|| capability::keep_only(&[capability::NET_ADMIN]).map_err(io::Error::other)) };
    let output = clean.output().unwrap();
    let (done, lacking) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(done, "1 routes and 0 connections are as before, 1 are not yet\n", "{lacking}");
    assert!(output.status.code() == Some(3) && lacking.contains("CAP_BPF"), "{lacking}");
    assert_eq!(route(), before);
    let owed = State::read(&state_of(&name)).unwrap();
    assert_eq!((owed.bounded, owed.routes.len()), (left.bounded, 0));
    let clean = bed.run(node, &["mobility", "clean", "--name", &name]);
    assert_eq!(text(&clean.stdout), "0 routes and 1 connections are as before\n", "{}", text(&clean.stderr));
    assert!(State::read(&state_of(&name)).unwrap().changed_nothing());
}

#[test]
fn a_congestion_control_that_is_not_there_stays_owed_until_it_can_be_given_back() {
    let bed = Bed::new("absent");
    let (path, audit, state) = (bed.key("key"), bed.path("audit.jsonl"), bed.path("f.state.json"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    let (node, name, saved) = (&bed.nodes[0], bed.process("n1"), bed.path("saved.json"));
    let _sink = Stream::sink(&bed.server);
    bed.cable();
    let _stream = Stream::source(node, "reno");
    let save = bed.run(node, &["tcb", "save", saved.to_str().unwrap(), "cc reno and state estab"]);
    assert!(save.status.success(), "{}", text(&save.stderr));
    let said_of: Value = serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    let cookie = said_of["connections"][0]["cookie"].as_u64().unwrap();
    let owing = |cc: &str| State { replaced_cc: vec![(cookie, cc.to_owned())], ..State::default() };
    let owed = || State::read(&state).unwrap().replaced_cc;
    let files = ["--name", &name, "--state", state.to_str().unwrap()];
    let clean = || bed.run(node, &[&["mobility", "clean"][..], &files].concat());
    StateFile::new(&state).write(&owing("lfnone")).unwrap();
    let refused = clean();
    let (done, why) = (text(&refused.stdout), text(&refused.stderr));
    assert_eq!(done, "0 routes and 0 connections are as before, 1 are not yet\n", "{why}");
    assert!(refused.status.code() == Some(1) && why.contains("'lfnone'"), "{why}");
    assert_eq!(owed(), owing("lfnone").replaced_cc);
    // A follower that sets the connection meanwhile does not forget it either.
    let options = ["mobility", "follow", "--key", &path, "--audit", audit.to_str().unwrap()];
    let follow = Program::start(node, &[&options[..], &files].concat());
    let queued = Character { up_queue_bytes: 120_000, ..WIDE };
    bed.multicast(GROUP_V4.into(), &said("wide", queued, 1).seal(&key).unwrap());
    wait_for("a bound", || whys(&bed.lines(&audit)).contains(&("bounded", "wide")));
    drop(follow);
    let after = State::read(&state).unwrap();
    assert!(after.bounded.is_empty() && after.replaced_cc == owing("lfnone").replaced_cc, "{after:?}");
    StateFile::new(&state).write(&owing("cubic")).unwrap();
    let given = clean();
    assert_eq!(text(&given.stdout), "0 routes and 1 connections are as before\n", "{}", text(&given.stderr));
    assert!(given.status.success() && owed().is_empty());
}

#[test]
fn a_follower_that_was_killed_and_started_again_believes_nothing_old_and_cleans_up_after_itself() {
    let bed = Bed::new("again");
    let (path, audit) = (bed.key("key"), bed.path("audit.jsonl"));
    let key = Key::read(std::path::Path::new(&path)).unwrap();
    bed.cable();
    let node = &bed.nodes[0];
    let route = || node.ip(&["route", "show", "default"]).unwrap();
    let before = route();
    let follow = bed.follow(node, "n1", &path, &audit);
    let older = said("wide", WIDE, 1).seal(&key).unwrap();
    let newest = said("narrow", NARROW, 2).seal(&key).unwrap();
    bed.multicast(GROUP_V4.into(), &newest);
    wait_for("the route to be raised", || route().contains("rto_min"));
    follow.kill();
    let again = bed.follow(node, "n1", &path, &audit);
    assert_eq!(route(), before, "put back by the next");
    bed.multicast(GROUP_V4.into(), &older);
    wait_for("the older one to be judged", || counter(&status(&bed), "old") == 1);
    assert!(status(&bed)["routers"].as_array().unwrap().is_empty() && route() == before);
    bed.multicast(GROUP_V4.into(), &newest);
    wait_for("the route to be raised again", || route().contains("rto_min"));
    assert_eq!(status(&bed)["routers"][0]["link"], "narrow", "what was the newest before still holds");
    drop(again);
    assert_eq!(route(), before);
}

#[test]
fn the_socket_of_one_that_was_killed_is_removed_by_the_next_start_and_by_asking_for_a_status() {
    let bed = Bed::new("killed");
    let (key, links) = (bed.key("key"), links(&bed));
    let start = |name: &str| {
        let (name, links) = (bed.process(name), links.to_str().unwrap());
        let named = ["--router", "bus", "--key", &key, "--name", &name, "-i", "lan1", "--links", links];
        // As root, with nobody beside it who would remove it.
        Program::start(&bed.router, &[&["mobility", "announce", "--user", "root"], &named[..]].concat())
    };
    let left = |name: &str| longfat_mobility::control::socket_of(&bed.process(name)).exists();
    // A start of another test may remove its socket already.
    let kill = |name: &str| start(name).kill();
    kill("first");
    let lives = start("lives");
    assert_eq!(["first", "lives"].map(left), [false, true]);
    kill("second");
    let status = longfat(&["mobility", "status", "--name", &bed.process("lives")]);
    assert!(status.status.success(), "{}", text(&status.stderr));
    assert_eq!(["second", "lives"].map(left), [false, true]);
    drop(lives);
}

fn links(bed: &Bed) -> std::path::PathBuf {
    bed.write(
        "links.toml",
        "[wide]\ninterface = \"wan\"\nrate = \"20Mbit\"\n[narrow]\ninterface = \"spare\"\nrate = \"64kbit\"\ndelay = \"125ms\"\n",
    )
}

#[test]
fn the_link_in_use_is_told_by_the_default_route_and_by_a_command() {
    let bed = Bed::new("routes");
    let (key, audit) = (bed.key("key"), bed.path("audit.jsonl"));
    let links = links(&bed);
    bed.spare();
    bed.router.ip(&["route", "add", "default", "via", "10.73.9.2"]).unwrap();
    let router = bed.process("router");
    let announce = bed.announce(&key, &["lan1"], &["--links", links.to_str().unwrap()]);
    let follow = bed.follow(&bed.nodes[0], "n1", &key, &audit);
    const NET_ADMIN_AND_BPF: u64 = 1 << 12 | 1 << 39;
    assert_eq!((announce.capabilities(), follow.capabilities()), (0, NET_ADMIN_AND_BPF));
    let link = || status(&bed)["routers"][0]["link"].as_str().map(str::to_owned);
    wait_for("the first link", || link().as_deref() == Some("wide"));
    bed.router.ip(&["route", "replace", "default", "via", "10.74.1.9"]).unwrap();
    wait_for("another route", || link().as_deref() == Some("narrow"));
    let told = longfat(&["mobility", "tell", "--name", &router, "narrow", "--rate", "128kbit"]);
    assert!(told.status.success(), "{}", text(&told.stderr));
    wait_for("another rate", || status(&bed)["routers"][0]["character"]["up_bps"] == 128_000);
    let unknown = longfat(&["mobility", "tell", "--name", &router, "satellite"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("'satellite'"), "{}", text(&unknown.stderr));
    bed.router.ip(&["link", "set", "spare", "down"]).unwrap();
    bed.router.ip(&["route", "replace", "default", "via", "10.73.9.2"]).unwrap();
    wait_for("the first link again", || link().as_deref() == Some("wide"));
    // Whoever looks between the last two commands sees one more: no way at all.
    let changes = status(&bed)["routers"][0]["changes"].as_u64().unwrap();
    assert!((3..=4).contains(&changes), "{changes}");
}

#[test]
fn what_is_told_stands_until_the_way_out_is_another_and_a_way_that_leads_nowhere_is_none() {
    let bed = Bed::new("told");
    let (key, links) = (bed.key("key"), links(&bed));
    bed.spare();
    bed.router.ip(&["route", "add", "default", "via", "10.73.9.2"]).unwrap();
    let router = bed.process("router");
    let _announce = bed.announce(&key, &["lan1"], &["--links", links.to_str().unwrap()]);
    let said = || -> Value {
        let output = longfat(&["mobility", "status", "--json", "--name", &router]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let up =
        || (said()["link"].as_str().unwrap().to_owned(), said()["character"]["up_bps"].as_u64().unwrap());
    let tell = || {
        let told = longfat(&["mobility", "tell", "--name", &router, "wide", "--rate", "5.5Mbit"]);
        assert!(told.status.success(), "{}", text(&told.stderr));
    };
    // What the kernel told before this address has been taken in, when it is announced.
    let mut addresses = 70..;
    let mut told_of_an_address = || {
        let (before, host) = (said()["sequence"].as_u64().unwrap(), addresses.next().unwrap());
        bed.router.ip(&["addr", "add", &format!("10.73.1.{host}/24"), "dev", "lan1"]).unwrap();
        wait_for("an address to be announced", || said()["sequence"].as_u64().unwrap() > before);
    };
    tell();
    bed.router.ip(&["addr", "add", "192.0.2.77/32", "dev", "lo"]).unwrap();
    told_of_an_address();
    assert_eq!(up(), ("wide".to_owned(), 5_500_000), "an address is no other way");
    for kind in ["blackhole", "prohibit", "unreachable", "throw"] {
        let network = ["192.0.2.0/24"];
        bed.router.ip(&[&["route", "add", kind], &network[..]].concat()).unwrap();
        told_of_an_address();
        assert_eq!(up().0, "wide", "{kind}");
        bed.router.ip(&[&["route", "del", kind], &network[..]].concat()).unwrap();
    }
    tell();
    bed.router.ip(&["route", "replace", "default", "via", "10.74.1.9"]).unwrap();
    wait_for("another way", || up() == ("narrow".to_owned(), 64_000));
    bed.router.ip(&["route", "replace", "default", "via", "10.73.9.2"]).unwrap();
    wait_for("the first way, as the table has it", || up() == ("wide".to_owned(), 20_000_000));
}

#[test]
fn wrong_arguments_are_refused_with_the_mend() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let path = path.to_str().unwrap();
    let missing = longfat(&["mobility", "follow", "--key", path]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(longfat(&["mobility", "key", path]).status.success());
    assert_eq!(longfat(&["mobility", "key", path]).status.code(), Some(2), "never overwritten");
    let refused = [
        (vec!["follow", "--key", path, "--policy", "guess"], "restore, scale or estimate"),
        (vec!["follow", "--key", path, "--rto-min", "300s"], "up to 120s"),
        (vec!["follow", "--key", path, "--cc", "phs=nosuch"], "longfat cc list"),
        (vec!["follow", "--key", path, "--cc", "phs"], "NAME=VALUE"),
        (vec!["announce", "--key", path, "-i", "nosuch0"], "nosuch0"),
        (vec!["announce", "--key", path, "-i", "lo", "--port", "0"], "--port"),
        (vec!["status", "--name", "no-such-process"], "does it run?"),
        (vec!["tell", "a b"], "is no name"),
    ];
    for (arguments, mend) in refused {
        let output = longfat(&[vec!["mobility"], arguments.clone()].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(mend), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_run_of_the_lab_announces_its_links_changes_and_its_hosts_follow() {
    let directory = tempfile::tempdir().unwrap();
    let (file, result) = (directory.path().join("small.toml"), directory.path().join("result"));
    let text = r#"
        name = "follow-small"
        warmup = "2s"
        duration = "2s"
        hold_up_limit = 1.0
        [hosts.node]
        [hosts.router]
        forward = true
        [hosts.server]
        [links.lan]
        between = ["node", "router"]
        [links.path]
        between = ["router", "server"]
        rate = "20Mbit"
        delay = "5ms"
        late_limit_p99 = "100s"
        pause_limit = 1.0
        schedule = [{ at = "2s", rate = "1Mbit", delay = "20ms" }]
        [flows.up]
        from = "node"
        to = "server"
        cc = "reno"
        [flows.down]
        from = "server"
        to = "node"
        cc = "reno"
        [follows.bus]
        router = "router"
        link = "path"
        nodes = ["node"]
        far = ["server"]
    "#;
    std::fs::write(&file, text).unwrap();
    let output = longfat(&["lab", "run", file.to_str().unwrap(), "-o", result.to_str().unwrap()]);
    assert!(
        output.status.success(),
        "{}{}",
        mobility_bed::text(&output.stdout),
        mobility_bed::text(&output.stderr)
    );
    let logs = result.join("default/r1/log");
    for host in ["node", "server"] {
        let audit =
            std::fs::read_to_string(logs.join(format!("follow-bus-{host}.audit.jsonl"))).unwrap_or_default();
        assert!(audit.contains(r#""link":"1Mbit-20ms""#), "{host}: {audit}");
    }
}
