//! `longfat doctor` as a person and a script meet it.

use crate::programs;
use serde_json::Value;
use std::{
    os::unix::process::CommandExt as _,
    process::{Command, Output},
};

fn doctor(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.arg("doctor").args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn features(output: &Output) -> Vec<Value> {
    let object: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    object["features"].as_array().expect("a list").clone()
}

#[test]
fn what_needs_nothing_works_and_the_exit_code_says_so() {
    let output = doctor(&["simulate", "transfer"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = text(&output.stdout);
    assert!(lines.contains("works  transfer") && lines.contains("works  simulate"), "{lines}");
    assert!(!lines.contains("capture"), "only those that were asked for: {lines}");
}

#[test]
fn every_line_fits_a_terminal_and_json_says_the_same() {
    let shown = doctor(&[]).output().unwrap();
    let lines = text(&shown.stdout);
    let of_features =
        || lines.lines().filter(|line| line.starts_with("works  ") || line.starts_with("no     "));
    assert!(of_features().all(|line| line.chars().count() <= 80), "{lines}");
    let told = doctor(&["--json"]).output().unwrap();
    assert_eq!(shown.status.code(), told.status.code());
    let features = features(&told);
    assert_eq!(of_features().count(), features.len());
    let all_work = features.iter().all(|feature| feature["works"] == true);
    assert_eq!(told.status.code(), Some(if all_work { 0 } else { 3 }));
    for feature in features {
        let missing = feature["missing"].as_array().unwrap();
        assert_eq!(feature["works"] == true, missing.is_empty(), "{feature}");
        assert!(missing.iter().all(|thing| !thing["mend"].as_str().unwrap().is_empty()), "{feature}");
    }
}

#[test]
fn without_programs_their_features_do_not_work_and_others_do() {
    let output = doctor(&["--json"]).env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let works = |name: &str| {
        let features = features(&output);
        features.iter().find(|feature| feature["name"] == name).unwrap()["works"] == true
    };
    assert!(!works("emulate") && !works("relay-intercept") && !works("query") && !works("hosts"));
    assert!(works("simulate") && works("connections"));
}

#[test]
fn without_rights_they_are_what_is_missing() {
    let nobody = 65534;
    let mut command = doctor(&["cc-load", "capture"]);
    // Removed from root's directories, where nobody may not look.
    let own = tempfile::tempdir().unwrap();
    let program = own.path().join("longfat");
    programs::copy(env!("CARGO_BIN_EXE_longfat"), &program);
    std::fs::set_permissions(own.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = Command::new(&program);
    let output = command.args(args).uid(nobody).output().unwrap();
    let lines = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{lines}");
    assert!(lines.contains("Missing: the right to load BPF programs"), "{lines}");
    assert!(lines.contains("for:   cc-load, capture"), "said once, for both: {lines}");
}

#[test]
fn an_unknown_feature_is_refused_with_those_there_are() {
    let output = doctor(&["teleport"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("'teleport' is no feature") && said.contains("cc-load"), "{said}");
}

/// A namespace of its own, so that its sysctls are nobody else's; `nsenter` leaves the processes' rights as they are.
fn in_own_network(tag: &str, work: impl FnOnce(&longfat_host::Namespace) + Send) {
    let lease =
        longfat_host::Lease::take(&format!("dr{}-{tag}", std::process::id())).expect("root is needed");
    work(&lease.namespace("a").unwrap());
}

fn inside(namespace: &longfat_host::Namespace, args: &[&str]) -> Output {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_longfat"));
    command.arg("doctor").args(args).output().unwrap()
}

fn set(namespace: &longfat_host::Namespace, key: &str, value: &str) {
    namespace.run(|| longfat_host::sysctl::write(key, value)).unwrap().unwrap();
}

fn get(namespace: &longfat_host::Namespace, key: &str) -> String {
    namespace
        .run(|| longfat_host::sysctl::read(key))
        .unwrap()
        .unwrap()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

const RMEM: &str = "net.ipv4.tcp_rmem";
const WMEM: &str = "net.ipv4.tcp_wmem";

#[test]
fn small_buffers_are_priced_for_a_long_fat_path_and_their_mend_mends() {
    in_own_network("price", |host| {
        set(host, RMEM, "4096 131072 12582912");
        set(host, WMEM, "4096 16384 2147483647");
        let output = inside(host, &["--rate", "10Gbit", "--rtt", "90ms", "--json"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let advice = found["advice"].as_array().unwrap();
        let of = |key: &str| advice.iter().find(|one| one["setting"] == format!("sysctl {key}"));
        let rmem = of(RMEM).expect("it is told");
        assert!(rmem["costs"].as_str().unwrap().contains("559 Mbit/s of 9.65 Gbit/s"), "{rmem}");
        assert!(of(WMEM).is_none(), "{found}");
        let (key, value) = rmem["mend"].as_str().unwrap()[10..].split_once('=').unwrap();
        set(host, key, value.trim_matches('\''));
        let again = inside(host, &["--rate", "10Gbit", "--rtt", "90ms"]);
        let lines = text(&again.stdout);
        assert!(!lines.contains(&format!("sysctl {RMEM} =")), "{lines}");
    });
}

#[test]
fn advice_for_a_path_beyond_the_largest_window_comes_to_an_end() {
    in_own_network("vast", |host| {
        set(host, RMEM, "4096 131072 2147483647");
        set(host, WMEM, "4096 16384 2147483647");
        let output = inside(host, &["--rate", "10Gbit", "--rtt", "2s"]);
        let lines = text(&output.stdout);
        assert!(lines.contains("it takes 9 flows") && lines.contains("1024.0 MiB"), "{lines}");
        assert!(
            !lines.contains(&format!("sysctl {RMEM} =")) && !lines.contains(&format!("sysctl {WMEM} =")),
            "{lines}"
        );
    });
}

#[test]
fn on_a_short_slow_path_nothing_is_dear() {
    in_own_network("short", |host| {
        set(host, RMEM, "4096 131072 6291456");
        set(host, WMEM, "4096 16384 4194304");
        let output = inside(host, &["--rate", "10Mbit", "--rtt", "10ms"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    });
}

#[test]
fn what_was_kept_is_told_apart_from_what_is_and_put_back() {
    in_own_network("kept", |host| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("before.json");
        let file = file.to_str().unwrap();
        set(host, RMEM, "4096 131072 5000000");
        assert!(inside(host, &["--save", file]).status.success());
        assert_eq!(inside(host, &["--diff", file]).status.code(), Some(0));
        set(host, RMEM, "4096 87380 1000000");
        set(host, "net.ipv4.tcp_sack", "0");
        let output = inside(host, &["--diff", file]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let lines = text(&output.stdout);
        assert!(lines.contains("tcp_rmem: 4096 131072 5000000 -> 4096 87380 1000000"), "{lines}");
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(inside(host, &["--restore", file]).status.success());
        assert_eq!(
            (get(host, RMEM).as_str(), get(host, "net.ipv4.tcp_sack").as_str()),
            ("4096 131072 5000000", "1")
        );
        assert_eq!(inside(host, &["--diff", file]).status.code(), Some(0));
    });
}

#[test]
fn a_queueing_discipline_with_settings_of_its_own_is_not_made_again_without_them() {
    in_own_network("shaper", |host| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("before.json");
        let file = file.to_str().unwrap();
        let tc = |words: &str| {
            let mut command = host.command("tc");
            command.args(words.split(' '));
            longfat_host::run_command(command).unwrap()
        };
        host.ip(&["link", "add", "shaped", "type", "veth", "peer", "name", "other"]).unwrap();
        host.ip(&["link", "set", "shaped", "up"]).unwrap();
        tc("qdisc add dev shaped root htb default 1");
        assert!(inside(host, &["--save", file]).status.success());
        tc("qdisc replace dev shaped root pfifo");
        let output = inside(host, &["--restore", file]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("'shaped' was 'htb'"), "{output:?}");
        assert!(tc("qdisc show dev shaped").contains("qdisc pfifo "), "nothing was made in its place");
    });
}

#[test]
fn without_a_path_and_a_connection_the_doctor_asks_for_one() {
    in_own_network("none", |host| {
        let output = inside(host, &["--tuning"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("give --rate and --rtt"), "{output:?}");
    });
}

#[test]
fn a_file_of_something_else_is_refused_by_name_with_what_writes_one() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, b"{\"a\": 1}").unwrap();
    let output = doctor(&["--restore", file.path().to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("longfat doctor --save"), "{output:?}");
}

#[test]
fn what_only_the_first_namespace_has_is_said_and_neither_missed_nor_put_back_in_another() {
    in_own_network("first", |host| {
        let path = ["--rate", "10Gbit", "--rtt", "90ms"];
        let told = inside(host, &[&path[..], &["--json"]].concat());
        let found: Value = serde_json::from_slice(&told.stdout).unwrap();
        let elsewhere: Vec<_> = found["first_namespace_only"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| key.as_str().unwrap())
            .collect();
        assert!(elsewhere.contains(&"net.core.default_qdisc") && elsewhere.contains(&"net.core.rmem_max"));
        assert!(!elsewhere.contains(&RMEM), "{elsewhere:?}");
        for one in found["advice"].as_array().unwrap() {
            let key = one["setting"].as_str().unwrap().strip_prefix("sysctl ").unwrap_or_default();
            let mend = one["mend"].as_str().unwrap_or_default();
            let first = mend.starts_with("nsenter --net=/proc/1/ns/net sysctl -w");
            assert_eq!(first, elsewhere.contains(&key) && !mend.is_empty(), "{one}");
        }
        let lines = text(&inside(host, &path).stdout);
        let words = lines.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = "Set only in the machine's first network namespace: net.core.default_qdisc, ";
        assert!(words.contains(said), "{lines}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("before.json");
        let file = file.to_str().unwrap();
        assert!(inside(host, &["--save", file]).status.success());
        let mut kept: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        kept["settings"]["sysctl net.core.default_qdisc"] = "fq".into();
        std::fs::write(file, kept.to_string()).unwrap();
        for what in ["--diff", "--restore"] {
            let output = inside(host, &[what, file]);
            let said = text(&output.stderr);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{what}: {output:?}");
            assert!(said.contains("net.core.default_qdisc = fq is left out: it is set only in"), "{said}");
        }
    });
}
