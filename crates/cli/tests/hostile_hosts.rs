//! `longfat lab run --backend hosts` with a machine that is somebody else's: whatever it answers, the leader ends with
//! a short message that names the machine, has written nothing outside the result, and obeys no control character.
//!
//! `ssh` is a script here (`hostile/ssh`), so that neither root nor another machine is needed. It plays an honest agent
//! but for one thing.

use crate::programs;
use longfat_schema::run::{RunStatus, find_runs};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const SPEC: &str = include_str!("hostile/spec.toml");
const TABLE: &str = "[hosts.a]\nssh = \"a\"\n[hosts.b]\nssh = \"b\"\naddress = \"192.0.2.2\"\n";
/// Longest that an error is, in bytes: what was said is quoted up to a length.
const MESSAGE_BYTES_MAX: usize = 16_000;

struct Bed(tempfile::TempDir);

impl Bed {
    fn new() -> Bed {
        let bed = Bed(tempfile::tempdir().unwrap());
        fs::create_dir(bed.path("bin")).unwrap();
        let ssh = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/ssh");
        std::os::unix::fs::symlink(ssh, bed.path("bin/ssh")).unwrap();
        fs::write(bed.path("spec.toml"), SPEC).unwrap();
        fs::write(bed.path("hosts.toml"), TABLE).unwrap();
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A run with a machine 'b' that does `trick`.
    fn run(&self, trick: &str) -> Output {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("timeout");
        // Longer than every patience of the leader but that for a program on its way.
        command.args(["-k", "5", "400", "sh", "-c", "ulimit -v 4000000 && exec \"$0\" \"$@\""]);
        command.arg(programs::stripped());
        command.args(["lab", "run", "spec.toml", "-o", "out", "--backend", "hosts", "--hosts", "hosts.toml"]);
        command.current_dir(self.0.path()).env("PATH", path).env("TRICK", trick);
        command.env("TMPDIR", self.0.path()).output().unwrap()
    }
}

/// What the leader says when a machine does this; it ends as one whose machine failed, or lacks something.
fn said_of(trick: &str) -> String {
    let bed = Bed::new();
    let output = bed.run(trick);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(1..=3)), "{trick}: {:?}: {text}", output.status);
    assert!(text.len() < MESSAGE_BYTES_MAX, "{trick}: {} bytes", text.len());
    let is_obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!text.contains(is_obeyed), "{trick}: {text:?}");
    let kept: Vec<_> = fs::read_dir(bed.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let known = ["bin", "spec.toml", "hosts.toml", "out"];
    assert!(kept.iter().all(|name| known.contains(&name.to_str().unwrap())), "{trick}: {kept:?}");
    text
}

#[test]
fn an_honest_machine_passes_here_as_anywhere() {
    let bed = Bed::new();
    let output = bed.run("nothing");
    let text = String::from_utf8_lossy(&output.stderr);
    // Flows that never were have no figures.
    assert!(bed.path("out/result.json").exists() && !text.contains("host 'b'"), "{text}");
}

macro_rules! tricks {
    ($($name:ident: $trick:literal, $says:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let said = said_of($trick);
                assert!(said.contains("host 'b'") && said.contains($says), "{said}");
            }
        )*
    };
}

tricks! {
    a_machine_that_says_what_it_is_for_ever_is_refused: "endless_probe", "it said more than 65536 bytes";
    a_machine_whose_directory_is_no_name_is_refused: "directory", "no directory was made in /tmp there";
    a_machine_that_made_another_program_of_ours_is_refused: "other_program", "not the one that was sent";
    a_machine_that_answers_junk_is_quoted_without_its_escapes: "junk", "it said: \\u001b[2J";
    a_machine_that_answers_without_end_is_refused: "endless_answer", "an answer of more than 4194304 bytes";
    a_machine_that_answers_what_was_not_asked_is_refused: "unasked", "it answered Done";
    a_machine_that_answers_a_thousand_times_is_refused: "many_answers", "it answered";
    a_machine_with_a_clock_of_another_age_is_refused: "clock", "it answered Clock";
    a_machine_that_lacks_a_million_things_is_shown_in_part: "lacks", "lacks a thing";
    a_machine_that_goes_on_talking_on_standard_error_is_refused: "loud_end", "it is gone: the last line";
    a_machine_that_names_a_file_elsewhere_is_refused: "file_elsewhere", "it names a file '../../x'";
    a_machine_that_names_a_file_of_another_is_refused: "file_of_another", "it names a file 'sender-measured.jsonl'";
    a_machine_that_names_a_file_with_a_zero_is_refused: "file_zero", "it names a file 'receiver-b\\u0000.log'";
    a_machine_that_announces_a_file_of_exabytes_is_refused: "file_of_exabytes", "of 4294967296 at most";
    a_machine_whose_file_becomes_gigabytes_is_refused: "file_bomb", "is longer than the";
    a_machine_whose_file_is_damaged_is_refused: "file_damaged", "'receiver-b.jsonl'";
    a_machine_whose_records_are_of_another_year_is_refused: "records_elsewhen", "which is not of this run";
    a_machine_that_says_for_ever_that_a_sender_runs_is_left: "endless_run", "did not end within";
}

/// Figures of another's measurement are its own to say, and of any size: nothing adds them up without a bound.
#[test]
fn figures_of_any_size_are_figures() {
    let bed = Bed::new();
    let output = bed.run("huge_figures");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0..=2)) && !text.contains("panicked"), "{text}");
}

#[test]
fn of_a_failed_run_what_the_programs_said_on_every_machine_is_in_its_directory() {
    let bed = Bed::new();
    let output = bed.run("run_failed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_ne!(output.status.code(), Some(0), "{text}");
    let run = find_runs(&bed.path("out")).unwrap().1.remove(0);
    let failure = ["host 'b': receiver on host 'b' ended early".to_owned()];
    assert_eq!((run.manifest.status, &run.manifest.reasons[..]), (RunStatus::Failed, &failure[..]), "{text}");
    for (log, machine) in [("receiver-b.log", "b"), ("sender-measured.log", "a")] {
        let said = fs::read_to_string(run.path.join("log").join(log)).unwrap();
        assert_eq!(said, format!("$ {machine}"), "{log}");
    }
    assert!(run.path.join("raw/fetched/receiver-b.jsonl").exists());
}
