//! Every fuzz target takes a few inputs, made up blindly and always the same. To search is another job: `make fuzz`.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, process::Command};

fn takes_what_comes(target: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = Command::new(target);
    command.args(["-seed=1", "-runs=500", "-max_len=2048", "-timeout=10", "-rss_limit_mb=1024"]);
    command.arg(format!("-artifact_prefix={}/", scratch.path().display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

macro_rules! targets {
    ($($name:ident)*) => {
        const NAMED: &[&str] = &[$(stringify!($name)),*];
        $(#[test]
        fn $name() {
            takes_what_comes(env!(concat!("CARGO_BIN_EXE_", stringify!($name))));
        })*
    };
}

targets! {
    analysis
    capture_columns
    capture_file
    capture_headers
    http_head
    link_trace
    mobility_announcement
    relay_connection
    relay_file
    relay_handover
    relay_handshake
    relay_midstream
    relay_move
    run_pack
    run_plan
    saved_blocks
    transfer_datagram
    transfer_hello
}

#[test]
fn each_target_is_named_here() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz_targets")).unwrap();
    let files = files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
    assert_eq!(files.collect::<BTreeSet<_>>(), NAMED.iter().map(|name| (*name).to_owned()).collect());
}
