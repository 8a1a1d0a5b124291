//! `longfat lab run --on ray` with a cluster that is somebody else's: whatever a worker answers by the rules, the
//! session ends with a short message that names the run, and takes no other run for the one that was asked for.
//!
//! Ray is a module of a hundred lines here (`hostile/ray`). What Ray itself would run of a hostile worker's pickles is
//! not tried: that is a cluster's trust.

use nix::sys::socket::Backlog;
use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Output},
    time::Duration,
};

const SPEC: &str = include_str!("hostile/spec.toml");
const MESSAGE_BYTES_MAX: usize = 8000;

fn run(place: &Path, trick: &str) -> Output {
    run_at(place, trick, &[])
}

fn run_at(place: &Path, trick: &str, address: &[&str]) -> Output {
    fs::write(place.join("spec.toml"), SPEC).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.args(["lab", "run", "spec.toml", "--backend", "sim", "-o", "out", "--on", "ray"]).args(address);
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    command.current_dir(place).env("PYTHONPATH", modules).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("TRICK", trick).env_remove("RAY_ADDRESS").output().unwrap()
}

fn said_of(trick: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let output = run(place.path(), trick);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(2..=3)), "{trick}: {:?}: {text}", output.status);
    assert!(text.len() < MESSAGE_BYTES_MAX, "{trick}: {} bytes", text.len());
    assert!(!text.contains(|c: char| c.is_control() && c != '\n' && c != '\t'), "{trick}: {text:?}");
    let runs = fs::read_dir(place.path().join("out")).into_iter().flatten().flatten();
    let runs: Vec<_> = runs.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name()).collect();
    assert!(runs.is_empty(), "{trick}: {runs:?}");
    text
}

#[test]
fn an_honest_worker_makes_the_run_that_it_was_asked_for() {
    let place = tempfile::tempdir().unwrap();
    let output = run(place.path(), "nothing");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(place.path().join("out/result.json").exists());
}

#[test]
fn a_cluster_that_is_not_there_is_named_and_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    // A port that nobody has, and one whose queue is full, where connections are not answered at all.
    let (gone, deaf) = (gone(), Deaf::new());
    for (address, why) in [(gone, "refused"), (deaf.address, "timed out")] {
        for address in [address.to_string(), format!("ray://{address}")] {
            let output = run_at(place.path(), "nothing", &["--address", &address]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains(&format!("no cluster at {address}: ")), "{said}");
            assert!(said.contains(why) || said.contains("has not answered"), "{said}");
        }
    }
}

fn gone() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A listener that takes no connection.
struct Deaf {
    address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Deaf {
    fn new() -> Deaf {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // What listens already takes a shorter queue.
        nix::sys::socket::listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let patience = Duration::from_millis(300);
        let queued = std::iter::from_fn(|| TcpStream::connect_timeout(&address, patience).ok());
        Deaf { address, _queued: queued.collect(), _listener: listener }
    }
}

macro_rules! tricks {
    ($($name:ident: $trick:literal, $says:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let said = said_of($trick);
                assert!(said.contains($says), "{said}");
            }
        )*
    };
}

tricks! {
    a_worker_that_answers_something_else_is_refused: "no_tuple", "a worker answered with list";
    a_worker_that_answers_words_for_numbers_is_refused: "other_types", "a worker answered with tuple";
    a_worker_with_an_exit_code_that_is_none_is_refused: "exit_code", "a worker answered with the exit code -1000000";
    a_worker_that_talks_without_end_is_quoted_in_part_without_its_escapes: "loud", "host \\u001b[2Jhost";
    a_worker_whose_pack_is_junk_is_refused: "junk", "is no whole pack of a run";
    a_worker_whose_error_is_endless_is_quoted_in_part: "error", "tried 4 times";
    a_worker_that_makes_another_run_is_refused: "other_run", "what came back is another run (seed";
}
