//! `longfat path` as a person uses it.

use std::process::{Command, Output};

fn longfat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longfat")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_plan_says_windows_sysctls_queue_and_every_congestion_control() {
    let output = longfat(&["path", "--rate", "1Gbit", "--rtt", "28ms"]);
    assert!(output.status.success());
    let text = stdout(&output);
    for part in [
        "2334 packets",
        "window scale 8",
        "net.ipv4.tcp_rmem=",
        "28ms when full",
        "highspeed",
        "cubic",
        "RFC 9438",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}

#[test]
fn as_json_it_is_in_base_units() {
    let output = longfat(&["path", "--rate", "10Gbit", "--rtt", "100ms", "--loss", "1e-7", "--json"]);
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["window"]["pipe_segments"], 83_334);
    let reno =
        plan["forecasts"].as_array().unwrap().iter().find(|forecast| forecast["cc"] == "reno").unwrap();
    assert_eq!(reno["limit"], "loss");
    assert!(reno["share"].as_f64().unwrap() < 0.06);
}

#[test]
fn a_written_plan_is_met_by_the_simulator_and_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let (file, result) = (directory.path().join("plan.toml"), directory.path().join("result"));
    let (file, result) = (file.to_str().unwrap(), result.to_str().unwrap());
    let arguments = ["path", "--rate", "20Mbit", "--rtt", "20ms", "--write", file];
    assert!(longfat(&arguments).status.success());
    let again = longfat(&arguments);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("could not be made"));
    let run = longfat(&["lab", "run", file, "--backend", "sim", "-o", result]);
    assert!(run.status.success(), "{}{}", stdout(&run), String::from_utf8_lossy(&run.stderr));
    assert_eq!(stdout(&run).matches("✓").count(), 6, "{}", stdout(&run));
}

#[test]
fn what_no_path_has_is_exit_code_2_with_the_mend() {
    let output = longfat(&["path", "--rate", "1Gbit", "--rtt", "28ms", "--loss", "0.5"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("from 0 to 0.1"));
}

#[test]
fn the_commands_old_name_is_answered_with_the_new_one() {
    let output = longfat(&["plan", "--rate", "1Gbit", "--rtt", "28ms"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "longfat: 'longfat plan' is called 'longfat path' now\n"
    );
}

#[test]
fn a_loss_may_be_in_percent_and_what_is_no_quantity_is_refused_with_the_mend() {
    let loss = |text: &str| longfat(&["path", "--rate", "1Gbit", "--rtt", "28ms", "--loss", text, "--json"]);
    assert_eq!(loss("1%").stdout, loss("0.01").stdout);
    assert!(loss("1%").status.success());
    for (args, mend) in [
        (&["--rate", "-1Gbit", "--rtt", "28ms"][..], "is negative; write it like"),
        (&["--rate", "1Gbit", "--rtt", "28"], "has no unit"),
        (&["--rate", "1Gbit", "--rtt", "28ms", "--loss", "200%"], "is out of range; write it like"),
    ] {
        let output = longfat(&[&["path"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(mend), "{args:?}: {said}");
    }
}
