//! `longfat relay` as a process: signals, a killed predecessor, exhausted descriptors, exit codes.

use crate::relay_bed::{Bed, SERVER, ask, echo_server};
use longfat_host::run_command;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::Stdio,
    time::{Duration, Instant},
};

#[test]
fn sigterm_drains_removes_every_rule_and_exits_with_zero() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let bed = Bed::new(&format!("trm{signal}"));
        let before = bed.footprint();
        echo_server(bed.listen());
        let relay =
            bed.start(bed.command(&["--intercept", "lan", "--forwarding", "--drain", "20s", "--json"]));
        assert_ne!(bed.footprint(), before);
        let client = bed.connect(SERVER);
        ask(&client, b"before");
        relay.signal(signal);
        std::thread::sleep(Duration::from_millis(300));
        ask(&client, b"while it drains");
        drop(client);
        let (code, said) = relay.wait();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(r#""connections":1,"finished":1"#), "{said}");
        assert_eq!(bed.footprint(), before);
    }
}

#[test]
fn after_a_kill_the_next_relay_starts_clean() {
    let bed = Bed::new("kill");
    let before = bed.footprint();
    echo_server(bed.listen());
    let args = ["--intercept", "lan", "--forwarding", "--name", "pep"];
    let first = bed.start(bed.command(&args));
    ask(&bed.connect(SERVER), b"first");
    first.signal(libc::SIGKILL);
    first.wait();
    assert!(bed.footprint().contains("longfat_pep"), "a killed relay cannot clean up");
    // Another name finds the remains too.
    let other = bed.start(bed.command(&["--intercept", "lan", "--forwarding", "--name", "other"]));
    let now = bed.footprint();
    assert!(!now.contains("longfat_pep") && now.matches("fwmark").count() == 2, "{now}");
    ask(&bed.connect(SERVER), b"other");
    other.signal(libc::SIGKILL);
    other.wait();
    let second = bed.start(bed.command(&args));
    ask(&bed.connect(SERVER), b"second");
    second.signal(libc::SIGTERM);
    assert_eq!(second.wait().0, Some(0));
    assert_eq!(bed.footprint(), before);
}

/// Processor time of a process.
fn cpu_ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn without_descriptors_clients_wait_and_the_relay_does_not_spin() {
    const CLIENTS: usize = 60;
    let bed = Bed::new("fds");
    echo_server(bed.listen());
    // All come from one address, which would have half of all places.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("relay.toml");
    let listen = format!("[[listen]]\naddress = '10.72.1.1:7200'\nto = '{SERVER}'\n");
    std::fs::write(&file, format!("{listen}[limits]\nclient = 1000\nnetwork = 1000\n")).unwrap();
    let mut command = bed.relay.command("sh");
    let run = format!("ulimit -n 64; exec {} relay run {}", env!("CARGO_BIN_EXE_longfat"), file.display());
    let mut relay = command.args(["-c", &run]).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(relay.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("info ready") {
        assert!(log.read_line(&mut said).unwrap() > 0, "it ended: {said}");
    }
    // More clients than the relay has descriptors for; each has written before any is served.
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut client = bed.connect("10.72.1.1:7200");
            client.write_all(&[number as u8; 1000]).unwrap();
            client
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    let (ticks, since) = (cpu_ticks(relay.id()), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    // SAFETY: sysconf has no preconditions.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let busy_s = (cpu_ticks(relay.id()) - ticks) as f64 / ticks_per_s;
    assert!(busy_s < since.elapsed().as_secs_f64() / 4.0, "{busy_s} s of CPU while nothing could be done");
    // Each that is served makes room for one that waits.
    std::thread::scope(|scope| {
        for (number, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                let mut answer = [0; 1000];
                client.read_exact(&mut answer).unwrap();
                assert!(answer.iter().all(|byte| *byte == number as u8));
            });
        }
    });
    // SAFETY: the child has not been waited for, so its pid is its own.
    assert_eq!(unsafe { libc::kill(relay.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(relay.wait().unwrap().code(), Some(0));
}

fn fails(bed: &Bed, args: &[&str]) -> (Option<i32>, String) {
    let output = bed.command(args).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_cannot_be_done_is_named_with_its_mend_and_an_exit_code() {
    let bed = Bed::new("bad");
    let explicit = ["--listen", "10.72.1.1:7201", "--to", SERVER];
    let (code, said) = fails(&bed, &[&explicit[..], &["--cc-server", "lf_nosuch"]].concat());
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("'lf_nosuch'") && said.contains("longfat cc load nosuch"), "{said}");
    let (code, said) = fails(&bed, &["--intercept", "lan"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("net.ipv4.ip_forward") && said.contains("--forwarding"), "{said}");
    let taken = bed.relay.run(|| TcpListener::bind("10.72.1.1:7201")).unwrap().unwrap();
    let (code, said) = fails(&bed, &explicit);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("10.72.1.1:7201") && said.contains("free port"), "{said}");
    drop(taken);
    for wrong in [
        &["--listen", "10.72.1.1:7201"][..],
        &["--intercept", "lan", "--listen", "10.72.1.1:7201", "--to", SERVER],
        &[],
        &["--intercept", "lan", "--match-port", "http"],
        &["--listen", "10.72.1.1:7201", "--to", "nowhere"],
        &["--listen", "10.72.1.1:7201", "--to", SERVER, "--buffer-server", "16"],
        &["--listen", "10.72.1.1:7201", "--to", SERVER, "--samples", "/nosuch/directory/file"],
    ] {
        let (code, said) = fails(&bed, wrong);
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
    }
}

#[test]
fn samples_are_records_the_schema_reads_back() {
    use longfat_schema::{lines, record::Record};
    let bed = Bed::new("smp");
    echo_server(bed.listen());
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let args =
        ["--intercept", "lan", "--forwarding", "--name", "pep", "--samples", path, "--sample-every", "2ms"];
    let relay = bed.start(bed.command(&args));
    let client = bed.connect(SERVER);
    ask(&client, &[9; 10_000]);
    std::thread::sleep(Duration::from_millis(50));
    drop(client);
    relay.signal(libc::SIGTERM);
    assert_eq!(relay.wait().0, Some(0));
    let (mut legs, mut relayed) = (std::collections::BTreeSet::new(), std::collections::BTreeMap::new());
    lines::read(file.path(), |record| match record {
        Record::Tcp(sample) => {
            assert_eq!((sample.flow.as_str(), sample.stream), ("pep", 0));
            legs.insert(sample.role);
        }
        Record::Relay(sample) => {
            assert_eq!((sample.relay.as_str(), sample.connection), ("pep", 0));
            relayed.insert(sample.direction, sample.relayed_bytes);
        }
        other => panic!("{other:?}"),
    })
    .unwrap();
    assert_eq!(legs.into_iter().collect::<Vec<_>>(), ["relay_in", "relay_out"]);
    assert_eq!(relayed.values().copied().collect::<Vec<_>>(), [10_000, 10_000]);
}

#[test]
fn the_option_that_names_the_control_socket_is_one_word_and_the_former_one_means_the_same() {
    let bed = Bed::new("onew");
    let directory = tempfile::tempdir().unwrap();
    for option in ["--socket", "--control"] {
        let socket = directory.path().join(option);
        let socket = socket.to_str().unwrap();
        let relay = bed.start(bed.command(&["--intercept", "lan", "--forwarding", option, socket]));
        let asked = run_command(bed.command(&["status", "--socket", socket])).unwrap();
        assert!(asked.contains("relay 'relay'"), "{asked}");
        relay.signal(libc::SIGTERM);
        assert_eq!(relay.wait().0, Some(0));
    }
}

#[test]
fn a_relay_started_by_options_is_found_by_status_and_leaves_no_socket() {
    let bed = Bed::new("found");
    echo_server(bed.listen());
    let name = format!("found{}", std::process::id());
    let relay = bed.start(bed.command(&["--intercept", "lan", "--forwarding", "--name", &name]));
    let socket = longfat_relay::ControlPlan::default_socket(&name);
    let status = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_longfat"));
        command.args(["relay", "status", "--name", &name]).output().unwrap()
    };
    let output = status();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains(&format!("relay '{name}'")), "{output:?}");
    relay.signal(libc::SIGTERM);
    assert_eq!(relay.wait().0, Some(0));
    assert!(!socket.exists());
    assert_eq!(status().status.code(), Some(2));
}
