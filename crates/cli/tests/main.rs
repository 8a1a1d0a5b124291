//! Tests of the program as its users call it. They are one test program, since each would link all of longfat again;
//! `scripts/test` carries out each file by itself, and the files with the right neighbours. A folder is what files
//! share.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod analyze;
mod background;
mod capture;
mod capture_bed;
mod capture_exact;
mod cc;
mod doctor;
mod guide;
mod guide_bed;
mod hostile_hosts;
mod hostile_ray;
mod hosts;
mod hosts_bed;
mod hosts_ends;
mod lab;
mod left_behind;
mod link;
mod manual;
mod mistakes;
mod mobility;
mod mobility_bed;
mod noise;
mod output;
#[path = "../../report/tests/packets/mod.rs"]
mod packets;
mod path;
mod patience;
mod programs;
mod reference;
mod relay;
mod relay_adopt;
mod relay_bed;
mod relay_daemon;
mod relay_keep;
mod relay_remains;
mod relay_service;
mod relay_unit;
mod report;
mod serve;
#[path = "../../report/tests/support/mod.rs"]
mod support;
mod sweep;
mod tcb;
mod tcb_mark_ce;
mod tcb_watch;
mod terminal;
mod transfer;
mod truth;
mod users;
mod why;
mod why_page;
mod why_relay;
