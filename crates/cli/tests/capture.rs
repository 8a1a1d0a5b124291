//! `longfat capture` between two namespaces, read back by `longfat analyze`.

use crate::capture_bed::{Bed, analyzed, ended, json, longfat, number, signal};
use longfat_host::facts;
use serde_json::Value;
use std::{
    net::UdpSocket,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

/// Datagrams to a port where nobody listens.
fn datagrams(bed: &Bed, count: usize) {
    let socket = bed.near.run(|| UdpSocket::bind("10.77.0.1:0")).unwrap().unwrap();
    for _ in 0..count {
        // A refusal of one before comes back as an error of the next.
        while socket.send_to(&[0; 10], "10.77.0.2:9").is_err() {}
    }
}

fn written(summary: &Value) -> u64 {
    number(&summary["inbound"]["written_packets"]) + number(&summary["outbound"]["written_packets"])
}

#[test]
fn a_transfer_is_captured_until_ctrl_c_and_the_analysis_finds_all_of_it() {
    let bed = Bed::new("whole");
    let file = bed.file("whole.pcapng");
    let child = bed.capture(&["-o", &file, "--json", "tcp and host 10.77.0.2"]);
    bed.transfer(2_000_000);
    std::thread::sleep(Duration::from_millis(50));
    signal(&child, libc::SIGINT);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(0));
    let summary = json(&output.stdout);
    for way in ["inbound", "outbound"] {
        let way = &summary[way];
        assert_eq!(way["matched_packets"], way["written_packets"]);
        assert!(number(&way["written_packets"]) > 5 && number(&way["dropped_packets"]) == 0, "{summary}");
    }
    let analysis = analyzed(&[&file]);
    assert_eq!(number(&analysis["capture"]["packets"]), written(&summary));
    assert_eq!(number(&analysis["capture"]["interfaces"][0]["dropped"]), 0);
    assert_eq!(analysis["flows"].as_array().unwrap().len(), 1, "{analysis}");
    let directions = analysis["flows"][0]["directions"].as_array().unwrap();
    let payloads: Vec<u64> = directions.iter().map(|one| number(&one["unique_bytes"])).collect();
    assert_eq!(payloads, [2_000_000, 1]);
}

#[test]
fn what_goes_through_the_loopback_is_captured_once_and_was_sent_again_as_often_as_the_kernel_says() {
    let bed = Bed::new("lo");
    bed.near.ip(&["link", "set", "lo", "up"]).unwrap();
    let file = bed.file("lo.pcapng");
    let child = bed.capture_on("lo", &bed.near, &["-o", &file, "--json", "tcp"]);
    bed.transfer_between(&bed.near, &bed.near, "127.0.0.1:0", 1_000_000);
    std::thread::sleep(Duration::from_millis(50));
    signal(&child, libc::SIGINT);
    assert_eq!(ended(child).status.code(), Some(0));
    let analysis = analyzed(&[&file]);
    assert_eq!(analysis["flows"].as_array().unwrap().len(), 1, "{analysis}");
    let directions = analysis["flows"][0]["directions"].as_array().unwrap();
    let of = |name: &str| directions.iter().map(|one| number(&one[name])).collect::<Vec<u64>>();
    assert_eq!(of("unique_bytes"), [1_000_000, 1]);
    assert_eq!(of("duplicate_packets"), [0, 0], "{analysis}");
    // A sender that changes the processor may overtake itself, and the kernel then sends again.
    let resent_segments = bed.near.run(facts::counters).unwrap()["TcpRetransSegs"] as u64;
    assert_eq!(of("resent_segments").iter().sum::<u64>(), resent_segments, "{analysis}");
}

#[test]
fn captures_at_both_ends_are_matched_packet_by_packet() {
    let bed = Bed::new("match");
    let files = [bed.file("near.pcapng"), bed.file("far.pcapng")];
    let captures = [(&bed.near, &files[0]), (&bed.far, &files[1])]
        .map(|(namespace, file)| bed.capture_in(namespace, &["-o", file, "--json", "tcp"]));
    bed.transfer(500_000);
    std::thread::sleep(Duration::from_millis(50));
    let summaries = captures.map(|child| {
        signal(&child, libc::SIGINT);
        json(&ended(child).stdout)
    });
    let output = longfat(&["analyze", "--json", &files[0], "--match", &files[1]]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = json(&output.stdout);
    assert_eq!(number(&found["matched_packets"]), written(&summaries[0]));
    assert_eq!(written(&summaries[0]), written(&summaries[1]));
    let flow = &found["flows"][0];
    let lost = |one: &Value| number(&one["lost_packets"]) + number(&one["unseen_before_packets"]);
    assert_eq!(flow["directions"].as_array().unwrap().iter().map(lost).sum::<u64>(), 0);
    // One machine, one clock: both ways take less than what the clocks are said to differ by at most.
    let round_trip_us = flow["least_round_trip_us"].as_f64().unwrap();
    assert!(round_trip_us > 0.0 && flow["clock_difference_us"].as_f64().unwrap().abs() < 10_000.0, "{flow}");
    let output = longfat(&["analyze", &files[0], &files[1], "--match", &files[1]]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn acknowledgements_that_the_way_back_merges_are_found_between_captures_at_both_ends() {
    // Packets keep their order, so that those behind a late one come with it: frames that carry several.
    let link = "rate = \"30Mbit\"\ndelay = \"5ms\"\nbackward = { jitter = \"8ms\" }\n";
    let bed = Bed::over_link("merge", link);
    let files = [bed.file("near.pcapng"), bed.file("far.pcapng")];
    let captures = [(&bed.near, &files[0]), (&bed.far, &files[1])]
        .map(|(namespace, file)| bed.capture_in(namespace, &["-o", file, "--json", "tcp"]));
    drop(bed.send(1_500_000));
    std::thread::sleep(Duration::from_millis(100));
    for child in captures {
        signal(&child, libc::SIGINT);
        assert_eq!(ended(child).status.code(), Some(0));
    }
    let output = longfat(&["analyze", "--json", &files[0], "--match", &files[1]]).output().unwrap();
    let found = json(&output.stdout);
    let directions = found["flows"][0]["directions"].as_array().unwrap();
    let back = directions.iter().find(|one| one["from"].as_str().unwrap().starts_with("10.77.0.2"));
    let share = back.unwrap()["compressed_ack_share"].as_f64().unwrap();
    assert!(share > 0.3, "{found}");
}

#[test]
fn a_capture_in_columns_tells_of_a_transfer_what_one_in_octets_tells() {
    let bed = Bed::new("table");
    let files = [bed.file("both.pcapng"), bed.file("both.parquet")];
    let captures = files.each_ref().map(|file| bed.capture(&["-o", file, "--json", "tcp"]));
    bed.transfer(1_000_000);
    std::thread::sleep(Duration::from_millis(50));
    for child in captures {
        signal(&child, libc::SIGINT);
        assert_eq!(ended(child).status.code(), Some(0));
    }
    let [octets, columns] = files.each_ref().map(|file| analyzed(&[file]));
    // They do not end at the same moment: what is behind the payload may be in one of them only.
    for name in ["flows", "payload_bytes", "resent_bytes", "timeouts"] {
        assert_eq!(octets["totals"][name], columns["totals"][name], "{name}");
    }
    assert_eq!(number(&columns["capture"]["damage_count"]), 0);
    assert_eq!(number(&columns["capture"]["interfaces"][0]["dropped"]), 0);
    let payloads = |analysis: &Value| analysis["flows"][0]["directions"][0]["unique_bytes"].clone();
    assert_eq!((payloads(&octets), payloads(&columns)), (1_000_000.into(), 1_000_000.into()));
    let refused = ["-o", &files[1], "--payload", "100B"];
    let output = longfat(&[&["capture", "-i", "lo"], refused.as_slice()].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--payload"));
}

#[test]
fn it_ends_by_itself_after_so_many_packets_and_has_exactly_those() {
    let bed = Bed::new("some");
    let file = bed.file("some.pcapng");
    let child = bed.capture(&["-o", &file, "--packets", "7", "--json", "udp"]);
    datagrams(&bed, 20);
    let output = ended(child);
    assert_eq!((output.status.code(), written(&json(&output.stdout))), (Some(0), 7));
    assert_eq!(number(&analyzed(&[&file])["capture"]["packets"]), 7);
}

#[test]
fn it_ends_by_itself_after_a_time() {
    let bed = Bed::new("time");
    let file = bed.file("time.pcapng");
    let output = ended(bed.capture(&["-o", &file, "--duration", "100ms", "--json", "vlan 4000"]));
    assert_eq!((output.status.code(), written(&json(&output.stdout))), (Some(0), 0));
    assert_eq!(number(&analyzed(&[&file])["capture"]["packets"]), 0);
}

#[test]
fn standard_output_can_be_the_capture() {
    let bed = Bed::new("pipe");
    let child = bed.capture(&["-o", "-", "--packets", "5", "udp and out"]);
    datagrams(&bed, 5);
    let file = bed.file("pipe.pcapng");
    std::fs::write(&file, ended(child).stdout).unwrap();
    assert_eq!(number(&analyzed(&[&file])["capture"]["packets"]), 5);
}

#[test]
fn a_reader_of_standard_output_that_goes_away_ends_the_capture_and_changes_no_exit_code() {
    let bed = Bed::new("gone");
    let mut child = bed.capture(&["-o", "-", "udp and out"]);
    drop(child.stdout.take());
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(10) {
        datagrams(&bed, 10);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(ended(child).status.code(), Some(0));
}

#[test]
fn a_ring_is_refused_where_an_earlier_one_left_files() {
    let bed = Bed::new("again");
    let file = bed.file("ring.pcapng");
    // Of a ring of two, which had removed those before.
    for number in [6, 7] {
        std::fs::write(format!("{file}.0000{number}"), "earlier").unwrap();
    }
    let args =
        ["-i", "eth0", "--netns", bed.near.name(), "-o", &file, "--file-time", "300ms", "--files", "10"];
    let said = refused(&args);
    assert!(said.contains("ring.pcapng.00006' to '") && said.contains("not replaced"), "{said}");
    assert_eq!(std::fs::read_dir(bed.folder.path()).unwrap().count(), 2);
    std::fs::remove_file(format!("{file}.00006")).unwrap();
    assert!(refused(&args).contains("ring.pcapng.00007' is there already"));
    assert_eq!(std::fs::read(format!("{file}.00007")).unwrap(), b"earlier");
}

#[test]
fn a_capture_that_cannot_begin_leaves_no_file_that_refuses_the_next() {
    let bed = Bed::new("begin");
    for more in [&[][..], &["--file-size", "1MB"][..]] {
        let file = bed.file("x.pcapng");
        let args = ["capture", "-i", "eth0", "--netns", bed.near.name(), "-o", &file];
        // No room for the maps.
        let mut command = bed.near.command("prlimit");
        command.args(["--as=300000000", env!("CARGO_BIN_EXE_longfat")]).args(args).args(more);
        let output = command.args(["--buffer", "512MiB"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(std::fs::read_dir(bed.folder.path()).unwrap().count(), 0, "{output:?}");
    }
}

#[test]
fn a_ring_of_files_keeps_the_newest_and_together_they_are_read_as_one() {
    let bed = Bed::new("ring");
    let file = bed.file("ring.pcapng");
    let child =
        bed.capture(&["-o", &file, "--file-size", "4KB", "--files", "3", "--json", "udp and dst port 9"]);
    datagrams(&bed, 500);
    std::thread::sleep(Duration::from_millis(50));
    signal(&child, libc::SIGTERM);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(0));
    let summary = json(&output.stdout);
    assert_eq!(written(&summary), 500);
    let files: Vec<&str> = summary["files"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    let number_of = |file: &str| file.rsplit('.').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(files.len(), 3);
    assert!(
        files.windows(2).all(|pair| number_of(pair[1]) == number_of(pair[0]) + 1) && number_of(files[0]) > 5
    );
    assert_eq!(std::fs::read_dir(bed.folder.path()).unwrap().count(), 3);
    let packets = number(&analyzed(&files)["capture"]["packets"]);
    assert!((3..500).contains(&packets), "{packets}");
    for file in files {
        let capture = &analyzed(&[file])["capture"];
        let (received, packets) =
            (number(&capture["interfaces"][0]["received"]), number(&capture["packets"]));
        assert!(received >= packets && packets > 0, "{file}: {capture}");
    }
}

#[test]
fn what_found_no_room_is_told_by_the_exit_code_the_summary_and_the_file() {
    let bed = Bed::new("loss");
    let file = bed.file("loss.pcapng");
    let child = bed.capture(&["-o", &file, "--buffer", "64KiB", "--json", "udp and dst port 9"]);
    // A reader that does not come.
    signal(&child, libc::SIGSTOP);
    datagrams(&bed, 4000);
    signal(&child, libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(50));
    signal(&child, libc::SIGINT);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(1));
    let summary = json(&output.stdout);
    let dropped = number(&summary["outbound"]["dropped_packets"]);
    assert!(dropped > 0 && dropped + written(&summary) == 4000, "{summary}");
    let analysis = analyzed(&[&file]);
    assert_eq!(number(&analysis["capture"]["interfaces"][0]["dropped"]), dropped);
    assert_eq!(number(&analysis["capture"]["packets"]), written(&summary));
}

#[test]
fn on_a_full_disk_the_file_ends_with_a_whole_packet_and_everything_that_matched_is_accounted_for() {
    let bed = Bed::new("full");
    let place = bed.file("small");
    std::fs::create_dir(&place).unwrap();
    // Mounted for this program alone, and gone with it.
    let mut command = bed.near.command("unshare");
    let script = "mount -t tmpfs -o size=256k none \"$1\" && \"$2\" capture -i eth0 -o \"$1/full.pcapng\" --user root --json \
                  --duration 20s udp and dst port 9; code=$?; cp \"$1/full.pcapng\" \"$3\"; exit $code";
    let file = bed.file("full.pcapng");
    command.args(["-m", "sh", "-c", script, "sh", &place, env!("CARGO_BIN_EXE_longfat"), &file]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let mut child = child;
    while child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(15) {
        datagrams(&bed, 300);
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = ended(child);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("the disk is full") && said.contains("No space left"), "{said}");
    let way = &json(&output.stdout)["outbound"];
    let of = |name: &str| number(&way[name]);
    assert!(of("written_packets") > 1000 && of("dropped_packets") > 0, "{way}");
    assert_eq!(of("written_packets") + of("dropped_packets"), of("matched_packets"), "{way}");
    let capture = &analyzed(&[&file])["capture"];
    assert_eq!(number(&capture["packets"]), of("written_packets"), "{capture}");
    assert_eq!(number(&capture["damage_count"]), 0, "{capture}");
    assert_eq!(number(&capture["interfaces"][0]["dropped"]), of("dropped_packets"), "{capture}");
}

#[test]
fn a_program_is_captured_from_its_first_packet_to_its_last_and_its_exit_code_is_told() {
    let bed = Bed::new("prog");
    let file = bed.file("prog.pcapng");
    let mut args =
        vec!["capture", "-i", "eth0", "--netns", bed.near.name(), "-o", &file, "--json", "udp and out", "--"];
    let said = "exec 3<>/dev/udp/10.77.0.2/9; for n in 1 2 3; do echo $n >&3; done 2>/dev/null; exit 7";
    args.extend(["bash", "-c", said]);
    let output = longfat(&args).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{words}");
    assert!(
        words.contains("until 'bash' ends") && words.contains("'bash' ended with exit code 7"),
        "{words}"
    );
    let summary = json(&output.stdout);
    // A refusal of one datagram comes back as an error of the next.
    assert!(number(&summary["program_exit_code"]) == 7 && written(&summary) >= 1, "{summary}");
    std::fs::remove_file(&file).unwrap();
    *args.last_mut().unwrap() = "sleep 2";
    args.splice(1..1, ["--duration", "100ms"]);
    let output = longfat(&args).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && words.contains("'bash' goes on"), "{words}");
    assert_eq!(json(&output.stdout)["program_exit_code"], Value::Null);
    std::fs::remove_file(&file).unwrap();
    let length = args.len();
    args.truncate(length - 2);
    *args.last_mut().unwrap() = "/nonexistent/program";
    assert!(refused(&args[1..]).contains("start '/nonexistent/program'") && !Path::new(&file).exists());
    assert!(refused(&["-i", "lo", "-o", "-", "--", "true"]).contains("name a file with -o"));
}

fn refused(args: &[&str]) -> String {
    let output = longfat(&[&["capture"], args].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_cannot_be_is_refused_with_the_mend_before_a_file_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no.pcapng").display().to_string();
    for (args, part) in [
        (&["-i", "nosuch0", "-o", &file][..], "nosuch0"),
        (&["-i", "lo", "-o", &file, "prt 80"], "did you mean"),
        (&["-i", "lo", "-o", &file, "--netns", "all"], "name that one"),
        (&["-i", "lo", "-o", &file, "--netns", "no-such"], "ip netns list"),
        (&["-i", "lo", "-o", &file, "--files", "3"], "--file-size"),
        (&["-i", "lo", "-o", "-", "--file-size", "1MB"], "standard output"),
        (&["-i", "lo", "-o", &file, "--buffer", "1KB"], "64KiB"),
        (&["-i", "lo", "-o", &file, "--payload", "9KB"], "1500B"),
        (&["-i", "lo", "-o", &file, "--packets", "0"], "0 is not in 1.."),
    ] {
        let said = refused(args);
        assert!(said.contains(part), "{args:?}: {said}");
    }
    assert!(!Path::new(&file).exists());
    assert!(refused(&["-i", "lo", "-o", "/no/such/place"]).contains("/no/such/place"));
}

#[test]
fn without_the_right_to_load_programs_nothing_is_touched_and_the_exit_code_is_3() {
    use std::os::unix::process::CommandExt as _;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no.pcapng").display().to_string();
    let mut command = longfat(&["capture", "-i", "lo", "-o", &file]);
    // SAFETY: prctl is async-signal-safe and is given plain numbers.
    unsafe {
        command.pre_exec(|| {
            (0..64).for_each(|capability| {
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            });
            Ok(())
        });
    }
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("CAP_BPF") && !Path::new(&file).exists(), "{said}");
}
