//! Every command block of docs/guide does what the page says: the commands run, in one shell for each page, and what
//! they print has the shape that the page shows. Figures may differ. `guide_bed/page.rs` explains the annotations.

use crate::guide_bed::{page::Page, session::Session};
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{PoisonError, RwLock},
};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");

/// Pages on which a finding of real traffic is read: a processor that has other work would be found instead.
const UNDISTURBED: &[&str] = &["slow-transfer", "why"];

static TURN: RwLock<()> = RwLock::new(());

/// Carries out one page from its first block to its last.
fn follow(name: &str) {
    let is_undisturbed = UNDISTURBED.contains(&name);
    let _alone = is_undisturbed.then(|| TURN.write().unwrap_or_else(PoisonError::into_inner));
    let _beside = (!is_undisturbed).then(|| TURN.read().unwrap_or_else(PoisonError::into_inner));
    let text = fs::read_to_string(format!("{GUIDE}/{name}.md")).unwrap();
    let page = Page::parse(&text).unwrap_or_else(|wrong| panic!("{name}.md: {wrong}"));
    let mut session = Session::begin(name);
    for block in &page.blocks {
        session.carry_out(block).unwrap_or_else(|wrong| panic!("{name}.md:{}: {wrong}", block.line));
    }
}

macro_rules! pages {
    ($($test:ident $name:literal;)+) => {
        $(#[test]
        fn $test() {
            follow($name);
        })+

        const PAGES: &[&str] = &[$($name),+];
    };
}

pages! {
    a_slow_transfer_is_explained_and_made_fast "slow-transfer";
    a_relay_is_tried_and_set_up "satellite-relay";
    a_congestion_control_is_chosen_by_experiment "choose-congestion-control";
    a_figure_of_a_paper_is_reproduced "reproduce-figure";
    buffers_and_queue_of_a_path_are_sized "size-a-path";
    connections_are_watched_and_changed "watch-connections";
    a_transfer_gives_way "background-transfer";
    a_relay_is_a_service "relay-service";
    a_relay_stands_beside_a_firewall "relay-beside-a-firewall";
    a_relay_stands_on_a_bridge "relay-on-a-bridge";
    a_router_is_maintained "move-connections";
    a_program_runs_behind_a_path "emulate-a-path";
    a_parameter_is_swept "sweep";
    an_experiment_runs_on_real_hosts "real-hosts";
    results_are_read_in_python "python";
    results_are_read_in_a_browser "serve";
    a_metric_is_added "add-a-metric";
    a_flag_of_the_relay_is_added "add-a-relay-flag";
    a_congestion_control_is_added "add-a-congestion-control";
    a_finding_is_added "add-a-finding";
    a_connections_cause_is_found "why";
    a_package_is_installed "install";
}

#[test]
fn every_page_with_commands_is_carried_out() {
    let tested: BTreeSet<_> = PAGES.iter().map(|name| (*name).to_owned()).collect();
    let with_commands = |path: &Path| fs::read_to_string(path).unwrap().contains("```console");
    let pages = fs::read_dir(GUIDE).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|kind| kind == "md") && with_commands(path));
    let named: BTreeSet<_> =
        pages.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(named, tested);
}

#[test]
fn commands_stand_in_blocks_that_are_tested() {
    for entry in fs::read_dir(GUIDE).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|kind| kind != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        // What a tested command prints may name commands, too.
        let mut is_tested = false;
        let loose = text.lines().find(|line| {
            if line.starts_with("```") {
                is_tested = line.starts_with("```console");
            }
            !is_tested
                && ["    longfat ", "    sudo ", "    cargo "].iter().any(|start| line.starts_with(start))
        });
        assert_eq!(loose, None, "{}: a command outside of a console block", path.display());
    }
}
