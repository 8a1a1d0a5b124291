//! `longfat cc` as a person meets it: the program, its exit codes, what it leaves and what it does not.

use crate::left_behind::{cgroups, within_20_s};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

fn longfat(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.arg("cc").args(args);
    command
}

fn run(args: &[&str]) -> Output {
    longfat(args).output().unwrap()
}

fn code_and_error(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn entry(name: &str) -> Value {
    let output = run(&["list", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let entries: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    entries.into_iter().find(|entry| entry["name"] == name).expect("it is in the list")
}

/// Prints the congestion control of a socket that asked for `argv[1]`, then waits to be ended.
const USER: &str = "
import socket as s, sys, time
sock = s.socket()
sock.setsockopt(s.IPPROTO_TCP, s.TCP_CONGESTION, sys.argv[1].encode())
sock.bind(('127.0.0.1', 0)); sock.listen()
print(sock.getsockopt(s.IPPROTO_TCP, s.TCP_CONGESTION, 16).split(b'\\0')[0].decode(), flush=True)
time.sleep(100)
";

/// Starts a program and reads the first line it prints.
fn start(mut command: Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The one test that loads under the real name, which is shared with whatever else runs on this machine.
#[test]
fn what_is_loaded_outlives_the_command_is_listed_with_its_users_and_goes_when_unloaded() {
    let output = run(&["load", "reno"]);
    assert!(output.status.success(), "{output:?}");
    let mut python = Command::new("python3");
    python.args(["-c", USER, "lf_reno"]);
    let (user, chosen) = start(python);
    assert_eq!(chosen, "lf_reno");
    let loaded = entry("lf_reno");
    assert_eq!((&loaded["origin"], &loaded["presence"]), (&"longfat".into(), &"pinned".into()));
    assert_eq!(loaded["tunables"]["max_ssthresh_segments"], 0);
    let pids: Vec<_> =
        loaded["processes"].as_array().unwrap().iter().map(|process| &process["pid"]).collect();
    assert!(pids.contains(&&user.id().into()), "{loaded}");
    assert!(loaded["sockets"].as_u64().unwrap() >= 1);
    a_relay_that_starts_keeps_its_tunables();
    what_is_pinned_elsewhere_is_not_said_to_be_held();
    let output = run(&["unload", "lf_reno"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("'lf_reno' is unloaded") && said.contains("until they close"), "{said}");
    end(user);
    assert_ne!(entry("lf_reno")["presence"], "pinned");
    let (code, error) = code_and_error(&run(&["unload", "reno"]));
    assert_eq!(code, Some(2));
    assert!(error.contains("'lf_reno' is not loaded"), "{error}");
}

/// As under `ip netns exec`, which mounts another /sys.
fn what_is_pinned_elsewhere_is_not_said_to_be_held() {
    let list = format!("mount -t tmpfs t /sys/fs/bpf && '{}' cc list --json", env!("CARGO_BIN_EXE_longfat"));
    let output = Command::new("unshare").args(["-m", "--", "sh", "-c", &list]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let entries: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let entry = entries.iter().find(|entry| entry["name"] == "lf_reno").unwrap();
    assert_eq!(entry["presence"], "unseen", "{entry}");
}

fn a_relay_that_starts_keeps_its_tunables() {
    assert!(run(&["load", "reno", "--set", "max_ssthresh_segments=100"]).status.success());
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text =
        "[[listen]]\naddress = '127.0.0.1:9'\nto = '127.0.0.1:10'\n[defaults]\nserver = { cc = 'lf_reno' }\n";
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_longfat"));
    let output = check.args(["relay", "check", "--load"]).arg(file.path()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(entry("lf_reno")["tunables"]["max_ssthresh_segments"], 100);
}

#[test]
fn the_list_names_the_kernels_and_ours_and_the_default() {
    assert_eq!(entry("reno")["origin"], "kernel");
    assert_eq!(entry("lf_highspeed")["origin"], "longfat");
    let default = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    assert_eq!(entry(default.trim())["default"], true);
    let table = String::from_utf8(run(&["list"]).stdout).unwrap();
    assert!(table.contains("lf_highspeed") && table.contains("max_ssthresh_segments=0"), "{table}");
}

#[test]
fn bad_input_is_exit_code_2_with_the_mend() {
    for (args, mend) in [
        (&["load", "higspeed"][..], "did you mean 'highspeed'?"),
        (&["load", "xyz"], "known: reno, highspeed, scalable, bic, vegas, cubic"),
        (&["load", "highspeed", "--set", "max_ssthresh=1"], "did you mean 'max_ssthresh_segments'?"),
        (&["load", "highspeed", "--set", "max_ssthresh_segments=x"], "from 0 to 2147483647"),
        (&["exec", "higspeed", "--", "true"], "did you mean 'highspeed'?"),
        (&["exec", "zzz", "--", "true"], "lf_highspeed"),
        (
            &["exec", "", "--", "true"],
            "'' is no name of a congestion control: give 1 to 15 bytes; 'longfat cc list'",
        ),
        (&["exec", "a_name_of_17_byte", "--", "true"], "give 1 to 15 bytes"),
        (&["exec", "reno", "--", "/no/such/program"], "start '/no/such/program'"),
    ] {
        let (code, error) = code_and_error(&run(args));
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(error.contains(mend), "{args:?}: {error}");
    }
}

#[test]
fn without_the_rights_it_is_exit_code_3_and_says_which() {
    for args in [&["list"][..], &["load", "reno"], &["exec", "reno", "--", "true"]] {
        let mut command = longfat(args);
        // SAFETY: only prctl(2) is called between fork and exec. Root gets no capability that is not in the
        // bounding set; dropping one that the kernel does not know fails, which is no matter.
        unsafe {
            command.pre_exec(|| {
                (0..64).for_each(|capability| {
                    libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
                });
                Ok(())
            });
        }
        let (code, error) = code_and_error(&command.output().unwrap());
        assert_eq!(code, Some(3), "{args:?}: {error}");
        assert!(error.contains("CAP_BPF") && error.contains("nothing was touched"), "{error}");
    }
}

#[test]
fn exec_gives_the_programs_exit_code_and_output_and_says_what_it_runs_under() {
    let output = run(&["exec", "highspeed", "--", "sh", "-c", "echo out; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("running under 'lf_highspeed'"));
}

#[test]
fn exec_says_whose_congestion_control_runs() {
    for (name, said) in [
        ("cubic", "running under 'cubic', the kernel's own"),
        ("kernel:reno", "running under 'reno', the kernel's own"),
        ("lf_reno", "running under 'lf_reno', longfat's own"),
        ("highspeed", "running under 'lf_highspeed', longfat's own"),
    ] {
        let (code, error) = code_and_error(&run(&["exec", name, "--", "true"]));
        assert_eq!(code, Some(0), "{name}: {error}");
        assert!(error.contains(said), "{name}: {error}");
    }
}

#[test]
fn a_terminated_exec_ends_its_program_and_leaves_nothing() {
    let (mut child, chosen) = start(longfat(&["exec", "highspeed", "--", "python3", "-c", USER, "cubic"]));
    assert_eq!(chosen, "lf_highspeed", "the program asked for cubic");
    assert_eq!(cgroups(child.id()).len(), 1);
    // SAFETY: a pid of ours that has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(cgroups(child.id()), [] as [PathBuf; 0]);
}

#[test]
fn what_a_killed_exec_leaves_is_removed_by_the_next() {
    let (mut child, _) = start(longfat(&["exec", "reno", "--", "python3", "-c", USER, "cubic"]));
    let pid = child.id();
    let mut output = child.stdout.take().unwrap();
    end(child);
    // The program died with its parent: its end of the pipe closes.
    output.read_to_string(&mut String::new()).unwrap();
    // Another test's exec may have cleaned up already.
    assert!(cgroups(pid).len() <= 1);
    assert!(run(&["exec", "reno", "--", "true"]).status.success());
    assert!(within_20_s(|| cgroups(pid).is_empty()));
}
