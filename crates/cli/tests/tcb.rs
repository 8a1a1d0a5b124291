//! `longfat tcb`, against sockets that this test holds.

use longfat_host::socket::{cc, set_cc, tcp_info};
use serde_json::Value;
use std::{
    net::{TcpListener, TcpStream},
    process::{Command, Output},
};

fn longfat(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longfat")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn pair(congestion: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_cc(&listener, congestion).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    set_cc(&client, congestion).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    (client, accepted)
}

/// The filter that chooses one end alone. A client's port does not: connections to other servers may share it.
fn chosen(socket: &TcpStream) -> String {
    format!("src {} and dst {}", socket.local_addr().unwrap(), socket.peer_addr().unwrap())
}

/// What `list --json` says of one end.
fn listed(socket: &TcpStream) -> Value {
    let output = longfat(&["tcb", "list", "--json", &chosen(socket)]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows[0].clone()
}

#[test]
fn an_idle_connection_is_listed_field_by_field_as_the_socket_itself_says() {
    use std::io::{Read as _, Write as _};
    let (mut client, mut accepted) = pair("reno");
    client.write_all(&[7; 5000]).unwrap();
    accepted.read_exact(&mut [0; 5000]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    let row = listed(&client);
    let info = tcp_info(&client).unwrap();
    let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"));
    let fields = [
        ("cwnd_segments", u64::from(info.snd_cwnd_segments)),
        ("srtt_us", info.srtt_us.into()),
        ("rttvar_us", info.rttvar_us.into()),
        ("min_rtt_us", info.min_rtt_us.into()),
        ("rto_us", info.rto_us.into()),
        ("mss_bytes", info.snd_mss_bytes.into()),
        ("pmtu_bytes", info.pmtu_bytes.into()),
        ("flight_segments", 0),
        ("retransmitted_segments", info.total_retrans_segments.into()),
        ("delivery_rate_bps", info.delivery_rate_bytes_per_s * 8),
        ("pacing_rate_bps", info.pacing_rate_bytes_per_s * 8),
        ("peer_window_bytes", info.snd_wnd_bytes.into()),
        ("own_window_bytes", info.rcv_wnd_bytes.into()),
        ("sent_bytes", 5000),
        ("acked_bytes", info.acked_bytes),
        ("busy_us", info.busy_us),
        ("pid", std::process::id().into()),
    ];
    for (key, wanted) in fields {
        assert_eq!(number(key), wanted, "{key}");
    }
    assert_eq!(info.ssthresh_segments(), None);
    assert_eq!(row["ssthresh_segments"], Value::Null);
    assert_eq!((row["state"].as_str(), row["cc"].as_str()), (Some("established"), Some("reno")));
    assert_eq!((row["limit"].as_str(), row["ca_state"].as_str()), (Some("idle"), Some("open")));
    assert_eq!(cc(&client).unwrap(), "reno");
}

#[test]
fn a_wrong_filter_shows_its_place_and_the_mend_with_exit_code_2() {
    let output = longfat(&["tcb", "list", "dst", "10.0.0.0/8", "and", "cwdn", ">", "10"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("did you mean 'cwnd'?") && said.contains("^^^^"), "{said}");
    let output = longfat(&["tcb", "list", "--columns", "src,cwdn"]);
    assert!(text(&output.stderr).contains("did you mean 'cwnd'?"));
}

#[test]
fn every_connection_is_set_only_where_that_is_said_and_empty_words_say_nothing() {
    // Without --yes, so that nothing is changed whatever is taken for a filter.
    for words in [&[][..], &[""], &[" ", "\t"]] {
        let output = longfat(&[&["tcb", "set"], words, &["cwnd=10"]].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains("--all"), "{words:?}: {}", text(&output.stderr));
    }
    let nowhere = longfat(&["tcb", "set", "--netns", "", "--all", "cwnd=10"]);
    assert_eq!(nowhere.status.code(), Some(2), "{}", text(&nowhere.stdout));
    let all = longfat(&["tcb", "set", "", "--all", "cwnd=10"]);
    assert_ne!(all.status.code(), Some(2), "{}", text(&all.stderr));
}

#[test]
fn a_table_has_the_columns_asked_for_in_the_order_asked_for() {
    let (client, accepted) = pair("cubic");
    let filter = format!("({}) or ({})", chosen(&client), chosen(&accepted));
    let output = longfat(&["tcb", "list", "--columns", "dport,cc", "--sort", "-dport", &filter]);
    let wanted = {
        let mut ports = [client.peer_addr().unwrap().port(), accepted.peer_addr().unwrap().port()];
        ports.sort_by_key(|port| std::cmp::Reverse(*port));
        ports.map(|port| port.to_string())
    };
    let lines: Vec<Vec<String>> = text(&output.stdout)
        .lines()
        .map(|line| line.split_whitespace().map(String::from).collect())
        .collect();
    assert_eq!(lines[0], ["dport", "cc"]);
    assert_eq!([&lines[1][0], &lines[2][0]], [&wanted[0], &wanted[1]]);
    assert_eq!(lines.len(), 3);
}

#[test]
fn setting_shows_first_acts_on_yes_refuses_what_is_out_of_range_and_leaves_an_audit_line() {
    let (client, _accepted) = pair("reno");
    let filter = chosen(&client);
    let cwnd = || tcp_info(&client).unwrap().snd_cwnd_segments;
    let before = cwnd();
    let shown = longfat(&["tcb", "set", &filter, "cwnd=123", "ssthresh=99"]);
    let said = text(&shown.stdout);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(
        said.contains(&format!("cwnd {before} -> 123")) && said.contains("nothing was changed"),
        "{said}"
    );
    assert_eq!(cwnd(), before, "a dry run changes nothing");
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.jsonl");
    let saved = directory.path().join("saved.json");
    let (audit_path, saved_path) = (audit.to_str().unwrap(), saved.to_str().unwrap());
    assert!(longfat(&["tcb", "save", saved_path, &filter]).status.success());
    let set = longfat(&["tcb", "set", &filter, "cwnd=123", "ssthresh=99", "--yes", "--audit", audit_path]);
    assert!(set.status.success(), "{}{}", text(&set.stdout), text(&set.stderr));
    assert_eq!(cwnd(), 123);
    let change = format!("cwnd {before} -> 123");
    assert_eq!((text(&set.stdout) + &text(&set.stderr)).matches(&change).count(), 1, "said once");
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&audit).unwrap()).unwrap();
    assert_eq!(line["changes"][0], change);
    assert_eq!(line["pid"].as_u64(), Some(std::process::id().into()));
    let restored = longfat(&["tcb", "restore", saved_path, "--yes"]);
    assert!(restored.status.success(), "{}{}", text(&restored.stdout), text(&restored.stderr));
    assert_eq!((cwnd(), tcp_info(&client).unwrap().ssthresh_segments()), (before, None));
    // A file that somebody changed: its private state is not the kernel's any more, and its windows have bounds.
    let mut changed: Value = serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    assert!(
        changed["seal"].is_string() && !text(&restored.stderr).contains("no seal"),
        "{}",
        text(&restored.stderr)
    );
    changed["connections"][0]["cwnd_segments"] = 77.into();
    std::fs::write(&saved, changed.to_string()).unwrap();
    let unsealed = longfat(&["tcb", "restore", saved_path, "--yes"]);
    assert!(text(&unsealed.stderr).contains("no seal of this host"), "{}", text(&unsealed.stderr));
    assert_eq!(cwnd(), 77);
    changed["connections"][0]["cwnd_segments"] = 0.into();
    std::fs::write(&saved, changed.to_string()).unwrap();
    let refused = longfat(&["tcb", "restore", saved_path, "--yes"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("cwnd=0 is out of range"), "{}", text(&refused.stderr));
    let wrong = longfat(&["tcb", "set", &filter, "cwnd=0", "--yes"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("1 to 1000000 segments"), "{}", text(&wrong.stderr));
    let everything = longfat(&["tcb", "set", "cwnd=5", "--yes"]);
    assert!(text(&everything.stderr).contains("--all"), "{}", text(&everything.stderr));
}

#[test]
fn a_filter_without_a_file_is_not_taken_for_the_file_to_save_in() {
    let directory = tempfile::tempdir().unwrap();
    let save = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
        command.current_dir(&directory).args(["tcb", "save"]).args(words).output().unwrap()
    };
    for words in [&["dst", "ipv4"][..], &["cc reno and sport 1"], &["ipv4"]] {
        let refused = save(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        let mend = format!("longfat tcb save FILE {}", words[0]);
        assert!(text(&refused.stderr).contains(&mend), "{}", text(&refused.stderr));
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    let restored = longfat(&["tcb", "restore", "dst", "ipv4"]);
    assert!(text(&restored.stderr).contains("longfat tcb restore FILE dst"), "{}", text(&restored.stderr));
    let (client, _accepted) = pair("reno");
    let filter = chosen(&client);
    let saved = save(&["./dst", &filter]);
    assert!(saved.status.success() && directory.path().join("dst").exists(), "{}", text(&saved.stderr));
}

#[test]
fn what_cannot_be_set_is_named_with_the_reason_and_a_filter_that_chooses_none_is_said() {
    let (client, accepted) = pair("reno");
    let (port, filter) = (client.local_addr().unwrap().port(), chosen(&client));
    let shown = longfat(&["tcb", "set", &filter, "rto_min=20ms"]);
    assert!(text(&shown.stdout).contains("-> 20ms\n"), "{}{}", text(&shown.stdout), text(&shown.stderr));
    let condition = longfat(&["tcb", "set", &format!("sport={port}"), "cwnd=20"]);
    assert_eq!(condition.status.code(), Some(2));
    assert!(text(&condition.stderr).contains(&format!("sport = {port}")), "{}", text(&condition.stderr));
    let none = longfat(&["tcb", "set", &format!("sport {port} and dport 1"), "cwnd=20", "--yes"]);
    assert_eq!(none.status.code(), Some(1), "what did nothing says so by its exit code, too");
    assert!(text(&none.stderr).contains("no connection matches, nothing was changed"), "{none:?}");
    let order = longfat(&["tcb", "list", "--sort", "rtt-"]);
    assert!(text(&order.stderr).contains("'rtt-'; did you mean"), "{}", text(&order.stderr));
    drop(client);
    drop(accepted);
    let left = longfat(&["tcb", "set", &format!("state time-wait and {filter}"), "cwnd=20", "--yes"]);
    assert_eq!(left.status.code(), Some(1), "{}{}", text(&left.stdout), text(&left.stderr));
    assert!(
        text(&left.stdout).contains("in state time_wait: it has no control block"),
        "{}",
        text(&left.stdout)
    );
}

/// Traces one connection, over which blocks are sent with pauses, into a run directory below `directory`.
fn traced(
    directory: &std::path::Path,
    pause: std::time::Duration,
    more: &[&str],
) -> (i32, std::path::PathBuf) {
    use std::io::{Read as _, Write as _};
    let (mut client, mut accepted) = pair("cubic");
    let run = directory.join("run");
    let mut trace = Command::new(env!("CARGO_BIN_EXE_longfat"))
        .args(["tcb", "trace", &chosen(&client), "--duration", "2s", "-o", run.to_str().unwrap()])
        .args(more)
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (block, mut received) = ([7; 10_000], [0; 10_000]);
    while trace.try_wait().unwrap().is_none() {
        client.write_all(&block).unwrap();
        accepted.read_exact(&mut received).unwrap();
        std::thread::sleep(pause);
    }
    (trace.wait().unwrap().code().unwrap(), run)
}

#[test]
fn a_trace_is_a_run_directory_that_the_report_draws() {
    use longfat_schema::{record::TraceSample, run::RunDirectory};
    let directory = tempfile::tempdir().unwrap();
    let (code, run) = traced(directory.path(), std::time::Duration::from_millis(5), &[]);
    assert_eq!(code, 0);
    let found = RunDirectory::open(&run).unwrap();
    assert_eq!(found.manifest.metric("trace_lost_records", ""), Some(0.0));
    let rows = found.read::<TraceSample>().unwrap();
    assert_eq!(rows[0].event, "begin");
    let acks = rows.iter().filter(|row| row.event == "ack");
    assert!(acks.clone().count() > 10 && acks.clone().all(|row| row.cwnd_segments > 0 && row.cc == "cubic"));
    assert!(rows.iter().map(|row| row.acked_bytes).max().unwrap() >= 100_000);
    let report = longfat(&["report", run.to_str().unwrap()]);
    assert!(report.status.success(), "{}", text(&report.stderr));
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("Congestion window, segments") && !page.contains("No TCP samples"), "no figure");
}

#[test]
fn records_that_find_no_room_are_counted_and_make_the_run_invalid() {
    use longfat_schema::run::{RunDirectory, RunStatus};
    let directory = tempfile::tempdir().unwrap();
    let (code, run) = traced(directory.path(), std::time::Duration::ZERO, &["--buffer", "4KiB"]);
    assert_eq!(code, 1);
    let manifest = RunDirectory::open(&run).unwrap().manifest;
    let lost = manifest.metric("trace_lost_records", "").unwrap();
    assert!(lost > 0.0 && manifest.status == RunStatus::Invalid, "{lost} lost");
    let report = longfat(&["report", run.to_str().unwrap()]);
    assert!(report.status.success(), "{}", text(&report.stderr));
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(
        page.contains(&format!("{lost} records were lost")),
        "the report does not say that {lost} were lost"
    );
}

#[test]
fn a_trace_that_cannot_begin_leaves_nothing_that_refuses_the_next_try() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    for _ in 0..2 {
        let output = longfat(&["tcb", "trace", "--netns", "no-such-netns", "-o", run.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("no-such-netns"), "{}", text(&output.stderr));
    }
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), 0);
}

/// When losses were noted, and how many there were until then.
fn noted_losses(run: &std::path::Path) -> Vec<(i64, u64)> {
    let notes = std::fs::read_to_string(run.join("trace.notes.jsonl")).unwrap_or_default();
    let lost = |note: Value| Some((note["lost"]["at_us"].as_i64()?, note["lost"]["records"].as_u64()?));
    notes.lines().filter_map(|line| lost(serde_json::from_str(line).ok()?)).collect()
}

#[test]
fn losses_are_noted_in_the_loop_that_finds_them_for_a_trace_that_is_killed() {
    use longfat_schema::run::RunDirectory;
    use std::io::{Read as _, Write as _};
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let (mut client, mut accepted) = pair("cubic");
    let filter = chosen(&client);
    let mut trace = Command::new(env!("CARGO_BIN_EXE_longfat"))
        .args(["tcb", "trace", &filter, "--buffer", "4KiB", "-o", run.to_str().unwrap()])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
    // Those of every second lie a second apart.
    let is_soon = |pair: &[(i64, u64)]| pair[1].0 - pair[0].0 < 500_000 && pair[1].1 > pair[0].1;
    while !noted_losses(&run).windows(2).any(is_soon) {
        assert!(std::time::Instant::now() < give_up, "{:?}", noted_losses(&run));
        for _ in 0..100 {
            client.write_all(&[7; 10_000]).unwrap();
            accepted.read_exact(&mut [0; 10_000]).unwrap();
        }
    }
    trace.kill().unwrap();
    trace.wait().unwrap();
    let (_, lost) = *noted_losses(&run).last().unwrap();
    longfat(&["tcb", "trace", "--recover", run.to_str().unwrap()]);
    let manifest = RunDirectory::open(&run).unwrap().manifest;
    assert_eq!(manifest.metric("trace_lost_records", ""), Some(lost as f64));
}

#[test]
fn a_trace_that_was_killed_leaves_what_its_tables_are_made_of_afterwards() {
    use longfat_schema::{
        record::TraceSample,
        run::{RunDirectory, RunStatus},
    };
    use std::io::{Read as _, Write as _};
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let shown = run.to_str().unwrap();
    let (mut client, mut accepted) = pair("cubic");
    let filter = chosen(&client);
    let mut trace = Command::new(env!("CARGO_BIN_EXE_longfat"))
        .args(["tcb", "trace", &filter, "-o", shown])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let recorded = || std::fs::metadata(run.join("trace.spool")).map_or(0, |file| file.len());
    let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while recorded() < 20 * 72 {
        assert!(std::time::Instant::now() < give_up, "nothing is recorded");
        client.write_all(&[7; 10_000]).unwrap();
        accepted.read_exact(&mut [0; 10_000]).unwrap();
    }
    let early = longfat(&["tcb", "trace", "--recover", shown]);
    assert_eq!(early.status.code(), Some(2));
    assert!(text(&early.stderr).contains("still runs"), "{}", text(&early.stderr));
    trace.kill().unwrap();
    trace.wait().unwrap();
    let again = longfat(&["tcb", "trace", &filter, "-o", shown]);
    assert!(text(&again.stderr).contains("--recover"), "{}", text(&again.stderr));
    let recovered = longfat(&["tcb", "trace", "--recover", shown]);
    assert_eq!(recovered.status.code(), Some(1), "{}", text(&recovered.stderr));
    let found = RunDirectory::open(&run).unwrap();
    assert_eq!(found.manifest.status, RunStatus::Invalid);
    assert!(found.manifest.reasons[0].contains("killed") && found.manifest.duration_us > 0);
    let rows = found.read::<TraceSample>().unwrap();
    assert!(rows.len() >= 20 && rows[0].event == "begin", "{} rows", rows.len());
    assert_eq!(
        longfat(&["tcb", "trace", "--recover", shown]).status.code(),
        Some(2),
        "nothing is left of it"
    );
}

#[test]
fn a_connection_that_begins_during_a_trace_is_chosen_by_its_process_too() {
    use longfat_schema::{record::TraceSample, run::RunDirectory};
    use std::io::{Read as _, Write as _};
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let filter = format!("pid {} and dport {port}", std::process::id());
    let mut trace = Command::new(env!("CARGO_BIN_EXE_longfat"))
        .args(["tcb", "trace", &filter, "--duration", "3s", "-o", run.to_str().unwrap()])
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::patience::eventually("it records", || run.join("trace.spool").exists());
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut accepted = listener.accept().unwrap().0;
    while trace.try_wait().unwrap().is_none() {
        client.write_all(&[7; 1000]).unwrap();
        accepted.read_exact(&mut [0; 1000]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(trace.wait().unwrap().code(), Some(0));
    assert!(RunDirectory::open(&run).unwrap().read::<TraceSample>().unwrap().len() > 10);
}

#[test]
fn a_filter_may_ask_for_what_is_filled_in_after_the_look() {
    let (client, _accepted) = pair("cubic");
    let rows = |args: &[&str]| -> Vec<Value> {
        serde_json::from_slice(&longfat(&[&["tcb", "list", "--json"], args].concat()).stdout).unwrap()
    };
    let cause = listed(&client)["cause"].as_str().unwrap().to_owned();
    let by_cause = |cause: &str| rows(&[&format!("{} and cause {cause}", chosen(&client))]).len();
    assert_eq!((by_cause(&cause), by_cause("nothing")), (1, 0), "{cause}");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let waits = format!("state listen and sport {}", listener.local_addr().unwrap().port());
    assert_eq!((rows(&[&waits]).len(), rows(&["--over", "50ms", &waits]).len()), (1, 1));
    for command in
        [&["set", "cause path_full", "cwnd=10"][..], &["trace", "cause path_full", "-o", "/nonexistent/run"]]
    {
        let output = longfat(&[&["tcb"], command].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("'cause' is not known here"), "{output:?}");
    }
}
