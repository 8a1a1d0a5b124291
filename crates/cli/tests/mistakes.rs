//! What a user gets wrong in the first minute: every answer names the thing, the value and the mend, and nothing that
//! did nothing ends with 0. Those about `avail` and `tcb save` need root, and none changes anything.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

const EXPERIMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/smoke.toml");

fn longfat(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.args(words).current_dir(directory).stdin(Stdio::null()).output().unwrap()
}

/// A directory with what mistakes are made with: `adir/`, `text` that is no capture, no run and no TOML, `empty`.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("adir")).unwrap();
    fs::write(place.path().join("text"), "x").unwrap();
    fs::write(place.path().join("empty"), "").unwrap();
    place
}

/// Words as a shell would split them, `EXPERIMENT` in its place.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().map(|word| if word == "EXPERIMENT" { EXPERIMENT } else { word }).collect()
}

/// The command, its exit code, and what standard error must say.
type Mistake = (&'static str, i32, &'static [&'static str]);

fn hold(mistakes: &[Mistake]) {
    let place = place();
    let wrong: Vec<String> = mistakes.iter().filter_map(|mistake| fault(place.path(), mistake)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn fault(place: &Path, (line, code, said): &Mistake) -> Option<String> {
    let output = longfat(place, &words(line));
    let error = String::from_utf8_lossy(&output.stderr);
    let missing: Vec<_> = said.iter().filter(|words| !error.contains(*words)).collect();
    let is_right = output.status.code() == Some(*code) && missing.is_empty() && !error.contains("panicked");
    (!is_right).then(|| format!("longfat {line}: {:?}, without {missing:?}:\n{error}", output.status.code()))
}

#[test]
fn quantities_without_a_unit_negative_or_out_of_range_are_named() {
    hold(&[
        ("path --rate 1Gbit --rtt 100", 2, &["--rtt <TIME>", "'100' has no unit", "28.4ms"]),
        ("path --rate 1Gbit --rtt -5ms", 2, &["--rtt <TIME>", "'-5ms' is negative"]),
        ("path --rate -1Gbit --rtt 5ms", 2, &["--rate <RATE>", "'-1Gbit' is negative"]),
        ("path --rate 0 --rtt 5ms", 2, &["rate is 0bit", "1kbit"]),
        ("path --rate 1000Tbit --rtt 5ms", 2, &["'1000Tbit' has the unknown unit 'Tbit'", "Gbit"]),
        ("path --rate 1Gbit --rtt 5ms --loss 2", 2, &["--loss <SHARE>", "'2' is out of range", "1%"]),
        ("path --rate 1Gbit --rtt 5ms --loss 101%", 2, &["'101%' is out of range"]),
        ("path --rate 1Gbit --rtt 5ms --queue 3", 2, &["--queue <SIZE>", "'3' has no unit", "64KiB"]),
        ("path --rate 1Gbit --rtt 5ms --flows -1", 2, &["--flows <N>", "-1"]),
        ("path --rate 1Gbit --rtt 5ms --queue 9000000TB", 2, &["queue is", "give one of at most 125GB"]),
        ("path --rate 1Gbit --rtt 1s --flows 2000 --write f.toml", 2, &["--write", "2000", "fewer flows"]),
        ("path --rate fast --rtt 5ms", 2, &["rate 'fast' does not begin with a number", "100Mbit"]),
        ("transfer send HOST --duration 5", 2, &["--duration <TIME>", "'5' has no unit"]),
        ("transfer send HOST --rate 10Mbits", 2, &["unknown unit 'Mbits'", "Mbit"]),
        ("transfer send HOST --rate -1Gbit", 2, &["'-1Gbit' is negative"]),
        ("transfer send HOST --bytes 1", 2, &["'1' has no unit"]),
        ("link run --rate -1Gbit -- true", 2, &["'-1Gbit' is negative"]),
        ("link run --delay 10 -- true", 2, &["--delay <TIME>", "'10' has no unit"]),
        ("link run --loss 1.5 -- true", 2, &["--loss <SHARE>", "'1.5' is out of range"]),
        ("link run --queue 3 -- true", 2, &["--queue <SIZE>", "'3' has no unit"]),
        ("why --for 1h30 dst 192.0.2.1", 2, &["--for", "1h30"]),
        ("why --for 1ms dst 192.0.2.1", 2, &["--for 1ms is out of range", "500ms"]),
        ("why --rate 0 dst 192.0.2.1", 2, &["--rate 0bit is out of range", "1kbit"]),
        ("tcb list rtt > 50", 2, &["column 7", "'50' has no unit"]),
        ("transfer send 127.0.0.1 --duration 0s", 2, &["the duration is 0ns", "1ms to 86400s"]),
        ("transfer send 127.0.0.1 --timeout 1ms", 2, &["the timeout is 1ms", "200ms to 3600s"]),
        ("capture -i lo -o x.pcapng --duration 0s", 2, &["--duration 0ns", "100ms"]),
        ("capture -i lo -o x.pcapng --file-size 0B", 2, &["--file-size 0B", "64KiB"]),
        ("capture -i lo -o x.pcapng --file-size 1MB --files 0", 2, &["--files 0", "1 or more"]),
        ("why --pid x", 2, &["--pid <PID>", "'x'", "a whole number"]),
        ("relay status --top x", 2, &["--top <N>", "'x'", "a whole number"]),
        ("relay status --top 99999999999999999999999", 2, &["--top <N>", "too large"]),
        ("lab check EXPERIMENT --set repeats=x", 2, &["repeats", "\"x\"", "a whole number"]),
        ("avail --watch --every 0s", 2, &["--every 0ns is too short", "10ms"]),
        ("tcb list --over 0s", 2, &["--over 0ns is too short", "10ms"]),
        ("tcb watch --every 0s", 2, &["--every 0ns is too short", "10ms"]),
        ("tcb trace -o x --duration 0s", 2, &["--duration 0ns is too short", "100ms"]),
        ("tcb trace -o x --buffer 3B", 2, &["--buffer 3B", "no power of two from 4KiB to 2GiB"]),
        ("link import ping --interval 0s", 2, &["--interval 0ns is too short", "1ms"]),
        ("mobility tell sat --loss 2", 2, &["--loss <SHARE>", "'2' is out of range", "1%"]),
        ("mobility follow --key text --port 0", 2, &["--port <PORT>", "'0'", "1..=65535"]),
        ("mobility follow --key text --ceiling 0B", 2, &["--ceiling 0B", "3KB or more"]),
        ("transfer serve --max-transfers 0", 2, &["--max-transfers <N>", "'0'", "1.."]),
        ("transfer serve --max-streams 0", 2, &["--max-streams <N>", "'0'", "1.."]),
        ("transfer serve --max-duration 0s", 2, &["--max-duration 0ns is too short", "1ms"]),
        ("transfer serve --max-bytes 0B", 2, &["--max-bytes 0B would serve nobody", "leave it out"]),
        ("transfer serve --max-memory 0B", 2, &["--max-memory 0B would serve nobody", "leave it out"]),
        (
            "relay --listen 127.0.0.1:0 --to h:1 --queue-target 0",
            2,
            &["--queue-target 0ns", "1ms to 10s, or off"],
        ),
        (
            "relay --listen 127.0.0.1:0 --to h:1 --buffer-client 1B",
            2,
            &["--buffer-client: it is 1B", "4096B"],
        ),
        ("relay --listen 127.0.0.1:0 --to h:1 --notsent-lowat 0B", 2, &["--notsent-lowat: it is 0B", "1GiB"]),
        ("path --rate 1Gbit --rtt 5ms --queue 0B", 2, &["the queue is 0B", "a packet of 1500 bytes"]),
    ]);
}

#[test]
fn files_and_directories_that_are_not_what_is_wanted_are_named() {
    hold(&[
        ("analyze nosuch.pcap", 2, &["nosuch.pcap: No such file", "check its name"]),
        ("analyze adir", 2, &["adir: Is a directory", "name a file"]),
        ("analyze text", 2, &["text is neither pcap nor pcapng", "give a capture file"]),
        ("analyze empty", 2, &["empty is empty", "give a capture file"]),
        ("why nosuch.pcap", 2, &["nosuch.pcap: No such file"]),
        ("report nosuch", 2, &["'nosuch' holds neither a run", "longfat lab run"]),
        ("report adir", 2, &["'adir' holds neither a run", "longfat lab run"]),
        ("lab run nosuch.toml", 2, &["'nosuch.toml'", "No such file"]),
        ("lab run adir", 2, &["'adir'", "Is a directory"]),
        ("lab check text", 2, &["'text'", "line 1"]),
        ("lab verify adir", 2, &["'adir' holds neither a run", "longfat lab run"]),
        ("lab verify nosuch", 2, &["nosuch: No such file"]),
        ("lab pack adir", 2, &["'adir' holds neither a run", "longfat lab run"]),
        ("lab unpack text", 2, &["text is no whole pack"]),
        ("lab compare adir nosuch", 2, &["'adir' holds neither"]),
        ("lab serve nosuch", 2, &["nosuch: No such file"]),
        ("lab serve text", 2, &["text is no directory", "give one that holds results"]),
        ("lab run EXPERIMENT --backend sim -o /proc/x", 2, &["/proc/x"]),
        ("relay run nosuch.toml", 2, &["'nosuch.toml'", "No such file"]),
        ("relay check text", 2, &["'text'", "not valid TOML"]),
        ("relay status --socket /nosuch", 2, &["'/nosuch'", "is the relay running?", "--socket"]),
        ("relay upgrade nosuch.toml", 2, &["'nosuch.toml'"]),
        ("mobility follow --key nosuch", 2, &["the key 'nosuch'"]),
        ("transfer key text", 2, &["'text'", "choose another name"]),
        ("transfer serve --key nosuch", 2, &["'nosuch'", "longfat transfer key"]),
        ("lab query select nosuch", 2, &["'nosuch'", "longfat lab run"]),
        ("lab query select adir", 2, &["'adir' holds no result", "longfat lab run"]),
        ("tcb restore nosuch.json", 2, &["nosuch.json", "No such file"]),
        ("tcb restore text", 2, &["text was not written by 'longfat tcb save'"]),
        ("tcb trace --recover adir", 2, &["adir/trace.spool", "give its -o directory"]),
        ("transfer send 127.0.0.1 --plan text", 2, &["'text'", "transfer send HOST --json"]),
        ("doctor --diff nosuch", 2, &["'nosuch'", "longfat doctor --save nosuch"]),
        ("doctor --save nosuch/x", 2, &["'nosuch/x'", "a directory that is there"]),
        ("lab run EXPERIMENT --backend sim -o text/x", 2, &["text/x", "another directory with -o"]),
        ("tcb trace -o text", 2, &["the directory text cannot be made", "another with -o"]),
        ("tcb set dst 192.0.2.1 cwnd=10 --audit adir --yes", 2, &["--audit adir", "name a file"]),
        ("tcb restore adir", 2, &["adir", "longfat tcb save adir"]),
        ("why nosuch.looks", 2, &["'nosuch.looks'", "--record nosuch.looks"]),
        ("why adir", 2, &["'adir' is a directory", "a capture in it"]),
        ("lab run EXPERIMENT --backend sim -o text", 2, &["text: it is a file", "another directory with -o"]),
    ]);
}

#[test]
fn names_that_nobody_knows_are_named_beside_those_that_are_known() {
    hold(&[
        ("pth", 2, &["'pth'", "'path'"]),
        ("tcp list", 2, &["'tcp'", "'tcb'"]),
        ("plan --rate 1Gbit", 2, &["is called 'longfat path' now"]),
        ("lab plan", 2, &["is called 'longfat lab list' now"]),
        ("lab run EXPERIMENT --backend simm", 2, &["'simm'", "emulated, sim, hosts"]),
        ("lab list EXPERIMENT --case nosuch", 2, &["unknown case 'nosuch'", "relayed"]),
        ("lab run EXPERIMENT --set links.nosuch.rate=1Mbit", 2, &["unknown link 'nosuch'", "lan, path"]),
        ("lab run EXPERIMENT --set links.path.rate=fast", 2, &["links.path.rate", "'fast'", "100Mbit"]),
        ("lab run EXPERIMENT --repeats 0", 2, &["repeats", "at least 1"]),
        ("lab run EXPERIMENT --repeats 99999999", 2, &["99999999 are too many", "10000"]),
        ("cc load nosuch", 2, &["'nosuch'", "highspeed"]),
        ("cc load highsped", 2, &["'highsped'", "did you mean 'highspeed'"]),
        ("cc load highspeed --set nosuch=1", 2, &["no tunable 'nosuch'", "max_ssthresh_segments"]),
        ("cc load highspeed --set max_ssthresh_segments=x", 2, &["'x' is not a whole number"]),
        ("doctor nosuch", 2, &["'nosuch' is no feature", "relay"]),
        ("tcb list nosuch 3", 2, &["no field is called 'nosuch'", "cwnd"]),
        ("tcb list state nosuch", 2, &["no state is called 'nosuch'", "established"]),
        ("tcb list --columns nosuch", 2, &["nosuch"]),
        ("tcb list --netns nosuchns", 2, &["'nosuchns'", "ip netns list"]),
        ("tcb list dst example.org", 2, &["'example.org' is no address", "10.0.0.0/8"]),
        ("tcb list dst 10.77.2.300", 2, &["'10.77.2.300' is no address"]),
        ("tcb set dst 192.0.2.1 window=10", 2, &["'window'", "cwnd"]),
        ("tcb set dst 192.0.2.1 cwnd=many", 2, &["'many' is no number of segments"]),
        ("tcb set cwnd=10", 2, &["no filter", "--all"]),
        ("tcb save dst 192.0.2.1", 2, &["'dst' begins a filter", "'./dst'"]),
        ("relay keep no/name", 2, &["'no/name'", "1 to 32 letters"]),
        ("link run --reorder -- true", 2, &["--jitter <TIME>"]),
        ("lab check empty", 2, &["\n  missing field 'name'"]),
        ("mobility clean --name ../x", 2, &["--name <NAME>", "'../x'", "1 to 80 letters"]),
        ("mobility status --name a/b", 2, &["--name <NAME>", "'a/b'", "1 to 80 letters"]),
        ("mobility tell sat --name a/b", 2, &["--name <NAME>", "'a/b'", "1 to 80 letters"]),
        ("mobility announce --name a/b", 2, &["--name <NAME>", "'a/b'", "1 to 80 letters"]),
        ("mobility follow --name a/b", 2, &["--name <NAME>", "'a/b'", "1 to 80 letters"]),
        ("why --pid 99999999", 2, &["--pid 99999999", "longfat tcb list"]),
        ("why -- nosuchprog", 2, &["'nosuchprog'", "on PATH"]),
    ]);
}

#[test]
fn addresses_are_read_with_and_without_a_port_and_refused_by_name() {
    hold(&[
        ("transfer send 127.0.0.1:1", 2, &["127.0.0.1:1", "longfat transfer serve"]),
        ("transfer send 127.0.0.1:99999", 2, &["'127.0.0.1:99999'", "host:5201"]),
        ("transfer send [::1]:1", 2, &["[::1]:1", "longfat transfer serve"]),
        ("transfer send [::1", 2, &["'[::1'", "[2001:db8::1]:5201"]),
        ("transfer send", 2, &["<HOST[:PORT]>"]),
        ("transfer serve --listen nowhere", 2, &["'nowhere'", "5201"]),
        ("transfer serve --listen 5201x", 2, &["'5201x'", "10.0.0.2:5201"]),
        ("avail --metrics 9470", 2, &["'9470'", "127.0.0.1:9470"]),
        ("relay --listen 5201 --to HOST:80", 2, &["'5201'", "an IP address and a port"]),
        ("lab serve adir --listen 80x", 2, &["'80x'", "an IP address and a port"]),
        (
            "transfer send 127.0.0.1 --bind nosuch",
            2,
            &["--bind <ADDR>", "'nosuch'", "an IP address of this host"],
        ),
        ("transfer serve --listen 203.0.113.9:5201", 2, &["203.0.113.9:5201", "--listen"]),
    ]);
}

#[test]
fn what_finds_nothing_to_do_says_so_and_does_not_end_with_success() {
    hold(&[
        ("why --for 500ms dst 192.0.2.77", 1, &["no connection was there to be watched", "longfat tcb list"]),
        ("avail", 2, &["no connection measures", "longfat cc exec imtcp"]),
        ("tcb save x.json dst 192.0.2.1", 1, &["nothing was saved", "longfat tcb list"]),
        (
            "tcb trace dst 192.0.2.1 -o x --duration 100ms",
            1,
            &["nothing was recorded: no connection that matches", "longfat tcb list"],
        ),
    ]);
}

/// The command, and the file that it would write over: what was recorded is not replaced, a page by a page alone.
const WRITING: [(&str, &str); 9] = [
    ("lab pack result -o FILE", "-o"),
    ("doctor --save FILE", "--save"),
    ("link import ping.txt -o FILE", "-o"),
    ("tcb save FILE", "FILE"),
    ("capture -i lo --packets 1 -o FILE", "-o"),
    ("report result -o FILE", "-o"),
    ("lab compare result result -o FILE", "-o"),
    ("analyze small.pcap --html FILE", "--html"),
    ("why --for 500ms --page FILE", "--page"),
];

#[test]
fn a_table_of_hosts_that_the_experiment_cannot_use_is_no_success_of_its_check() {
    let place = place();
    fs::write(place.path().join("hosts.toml"), "[hosts.nobody]\nssh = \"nobody\"\n").unwrap();
    let output = longfat(place.path(), &words("lab check EXPERIMENT --hosts hosts.toml"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("hosts.toml: ") && said.contains("unknown host of the experiment 'nobody'"),
        "{said}"
    );
}

#[test]
fn a_quick_run_of_every_experiment_that_is_published_can_be_listed() {
    let directory = Path::new(EXPERIMENT).parent().unwrap();
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_one = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    let refused = entries.filter(is_one).filter_map(|path| {
        let output = longfat(directory, &["lab", "list", path.to_str().unwrap(), "--quick", "--count"]);
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    });
    assert_eq!(refused.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn what_holds_something_else_is_not_written_over() {
    let place = place();
    let file = place.path().join("kept.html");
    let wrong = WRITING.iter().filter_map(|(line, option)| {
        fs::write(&file, "years of work").unwrap();
        let output = longfat(place.path(), &words(&line.replace("FILE", "kept.html")));
        let error = String::from_utf8_lossy(&output.stderr);
        let said = error.contains(&format!("{option} 'kept.html' is there already"));
        let is_kept = fs::read_to_string(&file).unwrap() == "years of work";
        (output.status.code() != Some(2) || !said || !is_kept).then(|| format!("longfat {line}: {error}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_page_takes_the_place_of_a_page_and_a_recording_that_of_an_empty_file() {
    let place = place();
    let (page, capture) = (place.path().join("page.html"), place.path().join("small.pcap"));
    // The header of a capture of Ethernet without a packet.
    let words: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 96, 1];
    fs::write(&capture, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    fs::write(&page, "<!DOCTYPE html><p>old").unwrap();
    let output = longfat(place.path(), &["analyze", "small.pcap", "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!fs::read_to_string(&page).unwrap().contains("<p>old"));
    let output = longfat(place.path(), &["doctor", "--save", "empty"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::metadata(place.path().join("empty")).unwrap().len() > 0);
}

#[test]
fn looks_are_appended_to_looks_alone() {
    let place = place();
    let output = longfat(place.path(), &["why", "--for", "500ms", "--record", "text"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("--record 'text' holds no looks") && error.contains("name another"), "{error}");
    assert_eq!(fs::read_to_string(place.path().join("text")).unwrap(), "x");
}

/// A program's own exit code goes before ours.
#[test]
fn a_program_without_a_connection_is_no_answer_to_why() {
    for (program, code) in [("true", 1), ("false", 1)] {
        let output = longfat(place().path(), &["why", "--", program]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{program}: {error}");
        assert_eq!(error.contains("the program had no TCP connection"), program == "true", "{error}");
    }
}

/// What was to be printed is the result: a full disk fails it by name, however it is printed.
#[test]
fn a_result_that_a_full_disk_does_not_take_is_a_failure() {
    for line in ["why --list", "doctor --rate 10Gbit --rtt 90ms", "link import ping.txt"] {
        let place = place();
        fs::write(place.path().join("ping.txt"), "64 bytes from 1.1.1.1: icmp_seq=1 ttl=57 time=23.4 ms\n")
            .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
        command.args(words(line)).current_dir(place.path()).stdin(Stdio::null());
        let output =
            command.stdout(fs::File::create("/dev/full").unwrap()).stderr(Stdio::piped()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("write to standard output: No space left"), "{line}: {error}");
        assert_ne!(output.status.code(), Some(0), "{line}");
    }
}

/// An empty word, which a shell makes of a variable that is not set.
#[test]
fn a_namespace_without_a_name_is_no_namespace() {
    let output = longfat(place().path(), &["tcb", "list", "--netns", ""]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("a value is required for '--netns <NAME|PID|all>'"), "{error}");
}

/// The file may be another host's, so that it is no fault: but whoever reads it is told.
#[test]
fn a_congestion_control_that_this_kernel_lacks_is_told_when_a_relays_file_is_checked() {
    let place = place();
    let file = "[[listen]]\naddress = '127.0.0.1:5300'\nto = '127.0.0.1:5201'\n[defaults]\nserver = { cc = 'cubc' }\n";
    fs::write(place.path().join("relay.toml"), file).unwrap();
    let output = longfat(place.path(), &["relay", "check", "relay.toml"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0));
    assert!(error.contains("no congestion control 'cubc'; 'longfat cc list'"), "{error}");
}

/// A listing of nothing is a listing; who looks at it is told.
#[test]
fn a_list_without_a_connection_says_so_beside_its_header() {
    let place = place();
    let output = longfat(place.path(), &["tcb", "list", "dst", "192.0.2.77"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no connection matches"));
}

/// Commands that print no result: they run a program or serve until they are ended, talk to a terminal, write a file
/// whose form is the option's, or print what is for a program anyway.
const WITHOUT_JSON: [&str; 14] = [
    "background",
    "cc exec",
    "lab schema",
    "lab serve",
    "mobility announce",
    "mobility follow",
    "mobility key",
    "mobility tell",
    "relay keep",
    "relay run",
    "relay upgrade",
    "tcb trace",
    "tcb watch",
    "transfer key",
];

#[test]
fn every_command_that_prints_a_result_prints_it_as_json_too() {
    let mut lacking = Vec::new();
    walk(&mut Vec::new(), &mut |words, help| {
        let name = words.join(" ");
        let is_listed = WITHOUT_JSON.contains(&&*name);
        if help.contains("--json") == is_listed {
            lacking.push(name);
        }
    });
    assert!(lacking.is_empty(), "without --json, or listed although they have it: {lacking:?}");
}

/// What an argument may be called in help: one word for one thing.
#[test]
fn one_thing_has_one_name_in_help() {
    let mut found = Vec::new();
    walk(&mut Vec::new(), &mut |words, help| {
        let old =
            ["<SPAN>", "<PART>", "<DURATION>", "<DIRECTORY>", "<ADDRESS>", "<INTERFACE>", "<ADDRESS:PORT>"];
        found.extend(
            old.iter()
                .filter(|name| help.contains(**name))
                .map(|name| format!("{}: {name}", words.join(" "))),
        );
    });
    assert!(found.is_empty(), "TIME, SHARE, DIR, ADDR and IFACE are the words: {found:?}");
}

/// Every command that has none below it, with its help.
fn walk(words: &mut Vec<String>, visit: &mut impl FnMut(&[String], &str)) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    let output = command.args(&*words).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let below: Vec<String> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()))
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect();
    if below.is_empty() {
        visit(words, &help);
    }
    for name in below {
        words.push(name);
        walk(words, visit);
        words.pop();
    }
}
