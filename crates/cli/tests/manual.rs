//! Manual pages and completions, as packages hold them.

#![allow(clippy::unwrap_used)]

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
    let pages = fs::read_dir(directory.path().join("man1")).unwrap().count();
    assert!(pages > 30, "{pages} pages");
    let hidden = directory.path().join("man1/longfat-manual.1");
    assert!(!hidden.exists(), "what is for packagers alone has none");
}
