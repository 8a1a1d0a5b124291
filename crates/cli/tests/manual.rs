//! Manual pages and completions, as packages hold them.

use std::{fs, process::Command};

#[test]
fn every_command_has_a_page_and_every_shell_its_completions() {
    let directory = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
        command.arg("manual").arg(directory.path()).status().unwrap()
    };
    assert!(run().success() && run().success(), "what is there is replaced");
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    assert!(read("man1/longfat.1").contains(".TH longfat 1"));
    assert!(read("man1/longfat-relay-run.1").contains("Run a relay as its file says"));
    assert!(read("man1/longfat-doctor.1").contains("Exit codes"));
    assert!(read("bash/longfat").contains("doctor"));
    assert!(read("zsh/_longfat").starts_with("#compdef longfat"));
    assert!(read("fish/longfat.fish").contains("doctor"));
    let pages = fs::read_dir(directory.path().join("man1")).unwrap();
    let pages: Vec<_> = pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    assert!(pages.len() > 30, "{} pages", pages.len());
    let of_help: Vec<_> = pages.iter().filter(|page| page.contains("-help")).collect();
    assert!(of_help.is_empty(), "{of_help:?}");
    let hidden = directory.path().join("man1/longfat-manual.1");
    assert!(!hidden.exists(), "what is for packagers alone has none");
}

/// What `--help` of a command says on a terminal that is wide enough for everything.
fn help(command: &[String]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_longfat"));
    let output = program.args(command).arg("--help").env("COLUMNS", "400").output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Every command with its help, subcommands too.
fn helps(command: &[String], found: &mut Vec<(String, String)>) {
    let text = help(command);
    let listed =
        text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names =
        listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| *name != "help") {
        helps(&[command, &[name.to_owned()]].concat(), found);
    }
    found.push((command.join(" "), text));
}

#[test]
fn examples_fit_a_terminal_of_eighty_columns() {
    let mut found = Vec::new();
    helps(&[], &mut found);
    assert!(found.len() > 50, "{} commands", found.len());
    for (command, text) in found {
        let examples = text
            .lines()
            .skip_while(|line| !["Example", "What can"].iter().any(|start| line.starts_with(start)));
        let wide = examples.filter(|line| line.starts_with("  ")).find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "longfat {command} --help");
    }
}
