//! `longfat lab serve` over real HTTP: what is there is shown, what is not is refused, and nothing else can be had.

use longfat_schema::{
    lines::Lines,
    record::{IntervalSample, Record, TcpSample},
    run::{RESULT_FILE, ResultManifest, ResultStatus, START_FILE, Start, TableWriter, read_json, write_json},
};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

const SPEC: &str = r#"
name = "served"
title = "A served <sweep> & more"
warmup = "100ms"
duration = "300ms"
repeats = 2
focus = "measured"
expect = ["goodput > 1Mbit"]
[hosts.a]
[hosts.b]
[links.path]
between = ["a", "b"]
rate = "20Mbit"
delay = "5ms"
queue = { limit = "50KB" }
[flows.measured]
from = "a"
to = "b"
cc = "reno"
[sweep]
links.path.rate = ["10Mbit", "20Mbit"]
"#;

/// Two results, simulated once for all tests; a secret beside the directory that is served, and links to it.
static PLACE: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("spec.toml"), SPEC).unwrap();
    for (output, set) in
        [("runs/one", "flows.measured.cc=reno"), ("runs/below/two", "flows.measured.cc=cubic")]
    {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_longfat"));
        lab.current_dir(place.path()).args([
            "lab",
            "run",
            "spec.toml",
            "--backend",
            "sim",
            "-o",
            output,
            "--set",
            set,
        ]);
        let made = lab.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    fs::create_dir(place.path().join("secret")).unwrap();
    fs::write(place.path().join("secret/manifest.json"), "{\"secret\": 1}").unwrap();
    std::os::unix::fs::symlink("../secret", place.path().join("runs/link")).unwrap();
    place
});

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn of(directory: &Path) -> Server {
        let mut program = Command::new(env!("CARGO_BIN_EXE_longfat"));
        program.args(["lab", "serve", "--listen", "127.0.0.1:0"]).arg(directory);
        let mut process = program.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
        Server { address: address.unwrap().to_owned(), process }
    }

    /// Sends bytes as they are; the whole answer.
    fn says(&self, bytes: &[u8]) -> String {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        connection.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    fn get(&self, target: &str) -> (u16, String) {
        let host = &self.address;
        let answer = self.says(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        (status(&answer), answer)
    }

    /// A page that there is.
    fn page(&self, target: &str) -> String {
        let (status, answer) = self.get(target);
        assert_eq!(status, 200, "{target}: {answer}");
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn runs() -> PathBuf {
    PLACE.path().join("runs")
}

#[test]
fn everything_below_a_directory_is_listed_filtered_and_shown_down_to_each_run() {
    let server = Server::of(&runs());
    let index = server.page("/");
    assert!(index.contains("A served &lt;sweep&gt; &amp; more") && !index.contains("<sweep>"));
    assert!(index.contains("2 of 2 shown") && index.contains("✓ complete") && index.contains("✓ 1 met"));
    assert!(server.page("/?text=below").contains("1 of 2 shown"));
    assert!(server.page("/?backend=emulated").contains("0 of 2 shown"));
    assert!(
        server.page("/?state=complete&expectations=met&backend=sim&text=SERVED").contains("2 of 2 shown")
    );
    let result = server.page("/result?of=below%2Ftwo");
    assert!(result.contains("1 of 1 expectations met") && result.contains("data-chart"), "{result}");
    let run = "/run?of=below/two&amp;run=rate%3D20Mbit/repeat%3D2";
    assert!(result.contains(run), "{result}");
    let run = server.page(&run.replace("&amp;", "&"));
    assert!(run.contains("Congestion window, segments") && run.contains("Smoothed round-trip time"));
    let compared = server.page("/compare?a=one&b=below/two");
    assert!(compared.contains("flows.measured.cc") && compared.contains("<span class=\"letter\">B</span>"));
}

#[test]
fn pages_need_nothing_from_elsewhere_and_say_so_to_the_browser() {
    let server = Server::of(&runs());
    for target in ["/", "/result?of=one", "/run?of=one&run=rate%3D10Mbit/repeat%3D1", "/compare?a=one&b=one"]
    {
        let page = server.page(target).replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "src=", "@import", "url(", "<link"] {
            assert!(!page.contains(outside), "{target}: {outside}");
        }
        for field in [
            "Content-Security-Policy: default-src 'none'",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
        ] {
            assert!(page.contains(field), "{target}: {field}");
        }
    }
}

#[test]
fn no_name_leads_out_of_the_directory_and_nothing_but_get_is_answered() {
    let server = Server::of(&runs());
    let outside = PLACE.path().join("secret").display().to_string();
    let ways = [
        "../secret",
        "..%2Fsecret",
        "%2e%2e/secret",
        "link",
        "one/../../secret",
        "./one",
        "one/",
        outside.as_str(),
    ];
    for way in ways {
        for target in [
            format!("/result?of={way}"),
            format!("/run?of=one&run={way}"),
            format!("/compare?a={way}&b=one"),
            format!("/{way}"),
            format!("/one/{way}"),
        ] {
            let (status, answer) = server.get(&target);
            assert_eq!(status, 404, "{target}: {answer}");
            assert!(!answer.contains("\"secret\""), "{target}");
        }
    }
    let host = &server.address;
    assert_eq!(
        status(
            &server
                .says(format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\nabc").as_bytes())
        ),
        405
    );
    assert_eq!(
        status(&server.says(format!("DELETE /result?of=one HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())),
        405
    );
    assert_eq!(status(&server.says(b"GET / HTTP/1.1\r\nHost: evil.example:80\r\n\r\n")), 403);
    assert_eq!(status(&server.says(b"\x16\x03\x01 not http at all\r\n\r\n")), 400);
    assert_eq!(status(&server.says(&[b"GET /".as_slice(), &[b'a'; 9000]].concat())), 431);
    assert_eq!(server.get("/").0, 200, "it still answers");
}

#[test]
fn many_that_say_nothing_do_not_keep_others_from_an_answer() {
    let server = Server::of(&runs());
    let idle: Vec<TcpStream> = (0..32).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    assert_eq!(server.get("/").0, 200);
    drop(idle);
}

const RUN: &str = "/run?of=one&run=rate%3D10Mbit/repeat%3D1";
/// More than a server answers side by side, and fewer than a test may have open.
const CROWD: usize = 600;
/// Bounded answers (64 MB), one page that is being drawn, and the program itself, as it is built for tests.
const RESIDENT_MAX_KB: u64 = 192 << 10;
/// One for each connection that may be open, and the program's own.
const THREADS_MAX: u64 = 80;

impl Server {
    /// Connected, with these bytes sent; it may be closed by then.
    fn sent(&self, bytes: &[u8]) -> TcpStream {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let _ = connection.write_all(bytes);
        connection
    }

    fn request(&self, target: &str) -> Vec<u8> {
        format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).into_bytes()
    }

    /// A number of `/proc/PID/status`.
    fn status(&self, key: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Asserts that the server answers somebody else, and has not grown.
    fn is_well_beside(&self, what: &str) {
        assert_eq!(self.get("/").0, 200, "beside {what}");
        // Those that were closed to make room have an end to see yet.
        let patience = Instant::now() + Duration::from_secs(30);
        while self.status("Threads") >= THREADS_MAX && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        let (resident_kb, threads) = (self.status("VmHWM"), self.status("Threads"));
        println!("{what}: {resident_kb} kB resident at most, {threads} threads");
        assert!(resident_kb < RESIDENT_MAX_KB, "{what}: {resident_kb} kB");
        assert!(threads < THREADS_MAX, "{what}: {threads} threads");
    }
}

#[test]
fn a_crowd_that_is_idle_never_ends_its_request_or_reads_no_answer_costs_little_memory_and_nobody_an_answer() {
    let server = Server::of(&runs());
    let endless = format!("GET / HTTP/1.1\r\nHost: {}\r\nX: {}", server.address, "x".repeat(7000));
    for (what, bytes) in [
        ("idle connections", Vec::new()),
        ("requests without an end", endless.into_bytes()),
        ("answers that nobody reads", server.request(RUN)),
    ] {
        let crowd: Vec<TcpStream> = (0..CROWD).map(|_| server.sent(&bytes)).collect();
        server.is_well_beside(what);
        drop(crowd);
    }
}

#[test]
fn who_asks_and_goes_away_has_no_page_drawn_and_leaves_no_thread() {
    let server = Server::of(&runs());
    for _ in 0..CROWD {
        drop(server.sent(&server.request(RUN)));
    }
    server.is_well_beside("clients that went away");
}

#[test]
fn a_part_of_a_page_is_the_whole_page() {
    let server = Server::of(&runs());
    let host = &server.address;
    for range in ["bytes=0-9", "bytes=0-1,0-2,0-3", "bytes=-18446744073709551615"] {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nRange: {range}\r\n\r\n");
        let answer = server.says(request.as_bytes());
        assert!(status(&answer) == 200 && answer.ends_with("</html>\n"), "{range}: {answer}");
    }
}

#[test]
fn a_result_whose_tables_would_fill_all_memory_or_are_damaged_is_told_of_and_the_server_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let from = runs().join("one");
    let run = "rate=10Mbit/repeat=1";
    fs::create_dir_all(place.path().join("bad").join(run)).unwrap();
    let mut result: ResultManifest = read_json(&from.join(RESULT_FILE)).unwrap();
    result.runs.truncate(1);
    write_json(&place.path().join("bad").join(RESULT_FILE), &result).unwrap();
    for entry in fs::read_dir(from.join(run)).unwrap().flatten() {
        let to = place.path().join("bad").join(run).join(entry.file_name());
        if entry.path().is_file() {
            fs::copy(entry.path(), to).unwrap();
        }
    }
    let tables = place.path().join("bad").join(run);
    bomb(&tables.join("tcp.parquet"));
    let mut damaged = fs::read(tables.join("interval.parquet")).unwrap();
    damaged.iter_mut().skip(4).step_by(5).take(40).for_each(|byte| *byte ^= 0x55);
    fs::write(tables.join("interval.parquet"), damaged).unwrap();
    let server = Server::of(place.path());
    let page = server.page("/run?of=bad&run=rate%3D10Mbit/repeat%3D1");
    assert!(page.contains("tcp.parquet") && page.contains("in memory"), "{page}");
    assert!(page.contains("interval.parquet"), "{page}");
    assert_eq!(server.get("/").0, 200);
}

/// A copy of a run's directory, flat.
fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let files = fs::read_dir(from).unwrap().flatten().filter(|entry| entry.path().is_file());
    for file in files {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

fn make_pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn pipes_that_nobody_writes_into_keep_neither_a_page_nor_the_server_waiting() {
    let place = tempfile::tempdir().unwrap();
    let run = runs().join("one/rate=10Mbit/repeat=1");
    for (name, file) in [("plan", "plan.json"), ("table", "tcp.parquet"), ("manifest", "manifest.json")] {
        copied(&run, &place.path().join(name));
        make_pipe(&place.path().join(name).join(file));
    }
    running(place.path());
    let raw = place.path().join("now/rate=20Mbit/repeat=1/raw");
    make_pipe(&raw.join(START_FILE));
    make_pipe(&raw.join("sender-measured.jsonl"));
    let server = Server::of(place.path());
    assert!(server.page("/").contains("3 of 3 shown"), "one of the four has no manifest");
    assert!(server.page("/result?of=plan").contains("Congestion window, segments"));
    assert!(server.page("/result?of=table").contains("tcp.parquet: is no regular file"));
    assert_eq!(server.get("/result?of=manifest").0, 404);
    assert!(server.page("/live?of=now").contains("1 of 4 runs made"));
    let report = |name: &str| {
        let mut report = Command::new(env!("CARGO_BIN_EXE_longfat"));
        report.arg("report").arg(place.path().join(name)).args(["-o"]).arg(place.path().join("page.html"));
        report.output().unwrap()
    };
    assert!(report("plan").status.success());
    let table = report("table");
    assert_eq!(table.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&table.stderr).contains("tcp.parquet: is no regular file"));
}

/// A short table of a million rows.
fn bomb(path: &Path) {
    let mut table = TableWriter::create(path).unwrap();
    let row = TcpSample { role: "sender".into(), ..TcpSample::default() };
    (0..1 << 20).for_each(|_| table.push(row.clone()).unwrap());
    table.finish().unwrap();
    assert!(fs::metadata(path).unwrap().len() < 1 << 20);
}

/// A result as it stands while its second run is on.
fn running(place: &Path) {
    let earlier = runs().join("one");
    let directory = place.join("now");
    let mut result: ResultManifest = read_json(&earlier.join(RESULT_FILE)).unwrap();
    let first = result.runs[0].path.clone();
    result.runs.truncate(1);
    result.status = ResultStatus::Running;
    fs::create_dir_all(directory.join(&first)).unwrap();
    for entry in fs::read_dir(earlier.join(&first)).unwrap().flatten() {
        fs::copy(entry.path(), directory.join(&first).join(entry.file_name())).unwrap();
    }
    write_json(&directory.join(RESULT_FILE), &result).unwrap();
    let raw = directory.join("rate=20Mbit/repeat=1/raw");
    fs::create_dir_all(&raw).unwrap();
    let plan = earlier.join("rate=20Mbit/repeat=1/plan.json");
    fs::copy(plan, directory.join("rate=20Mbit/repeat=1/plan.json")).unwrap();
    write_json(&raw.join(START_FILE), &Start { start_us: 5_000_000, dilation: Default::default() }).unwrap();
    let lines = Lines::create(&raw.join("sender-measured.jsonl")).unwrap();
    for ms in (0..200).step_by(10) {
        let time_us = 5_000_000 + ms * 1000;
        let flow = "measured".to_owned();
        let tcp = TcpSample {
            time_us,
            flow: flow.clone(),
            role: "sender".into(),
            cwnd_segments: 10,
            srtt_us: 9000,
            ..TcpSample::default()
        };
        lines.write(&Record::Tcp(tcp)).unwrap();
        let interval =
            IntervalSample { time_us, flow, bytes: 9000, duration_us: 10_000, ..IntervalSample::default() };
        lines.write(&Record::Interval(interval)).unwrap();
    }
    lines.flush().unwrap();
    // Cut off where its writer is just now.
    fs::OpenOptions::new()
        .append(true)
        .open(raw.join("sender-measured.jsonl"))
        .unwrap()
        .write_all(b"{\"type\":\"tc")
        .unwrap();
}

#[test]
fn a_session_under_way_is_shown_as_far_as_it_is_and_no_more_once_it_has_ended() {
    let place = tempfile::tempdir().unwrap();
    running(place.path());
    let server = Server::of(place.path());
    assert!(server.page("/").contains("… running"));
    let page = server.page("/result?of=now");
    assert!(
        page.contains("id=\"live\" data-from=\"/live?of=now\"")
            && page.contains("1 of 4 runs made: 1 valid."),
        "{page}"
    );
    let live = server.page("/live?of=now");
    for shown in [
        "1 of 4 runs made",
        "rate=20Mbit, repeat 1",
        "Goodput",
        "Congestion window",
        "aria-label=\"runs made\"",
    ] {
        assert!(live.contains(shown), "{shown}: {live}");
    }
    assert!(live.matches("<svg").count() >= 3);
    let plan = place.path().join("now/rate=20Mbit/repeat=1/plan.json");
    let mut unnamed: serde_json::Value = read_json(&plan).unwrap();
    unnamed["focus"] = serde_json::Value::Null;
    let mut crowd = unnamed["flows"][0].clone();
    crowd["name"] = "crowd".into();
    crowd["streams"] = 3.into();
    unnamed["flows"].as_array_mut().unwrap().insert(0, crowd);
    write_json(&plan, &unnamed).unwrap();
    assert_eq!(server.page("/live?of=now").matches("<svg").count(), live.matches("<svg").count());
    let file = place.path().join("now").join(RESULT_FILE);
    let ended = ResultManifest { status: ResultStatus::Complete, ..read_json(&file).unwrap() };
    write_json(&file, &ended).unwrap();
    assert_eq!(server.get("/live?of=now").0, 410);
    assert!(!server.page("/result?of=now").contains("id=\"live\""));
}

/// A session that is interrupted with SIGINT, as by a person, and waited for when it is dropped: also by a panic.
struct Session(Child);

impl Drop for Session {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

#[test]
fn an_emulated_run_is_drawn_while_it_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let name = format!("t{}-live", std::process::id());
    let spec = SPEC.replace("\"served\"", &format!("\"{name}\"")).replace("300ms", "100s");
    let spec = spec.split("[sweep]").next().unwrap().to_owned() + "echo_every = \"20KB\"\n";
    fs::write(place.path().join("spec.toml"), spec).unwrap();
    let mut lab = Command::new(env!("CARGO_BIN_EXE_longfat"));
    lab.current_dir(place.path()).args(["lab", "run", "spec.toml", "-o", "runs/now"]);
    let session = Session(lab.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let until = Instant::now() + Duration::from_secs(60);
    while !place.path().join("runs/now").join(RESULT_FILE).exists() {
        assert!(Instant::now() < until, "no session within a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
    let server = Server::of(&place.path().join("runs"));
    let mut shown = String::new();
    let charts =
        ["Goodput", "Congestion window", "Smoothed round-trip time", "Echo latency", "Bottleneck queue"];
    // What has nothing to draw yet is named, too, but not as a chart's title.
    let is_drawn = |shown: &str, chart: &str| {
        let headings = shown.split("class=\"heading\"").skip(1);
        headings.map(|rest| &rest[..rest.find('<').unwrap_or(0)]).any(|heading| heading.contains(chart))
    };
    while !charts.iter().all(|chart| is_drawn(&shown, chart)) {
        assert!(Instant::now() < until, "nothing drawn within a minute: {shown}");
        std::thread::sleep(Duration::from_millis(200));
        shown = server.page("/live?of=now");
    }
    assert!(shown.contains("0 of 2 runs made") && shown.contains("default, repeat 1"), "{shown}");
    drop(session);
    assert_eq!(server.get("/live?of=now").0, 410);
    assert!(server.page("/").contains("‖ interrupted"));
}

#[test]
fn what_cannot_be_served_is_refused_with_the_mend() {
    let serve = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_longfat"));
        program.args(["lab", "serve"]).args(arguments).output().unwrap()
    };
    let none = serve(&["/nowhere-at-all"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&none.stderr).contains("/nowhere-at-all"));
    let server = Server::of(&runs());
    let taken = serve(&["--listen", &server.address, runs().to_str().unwrap()]);
    assert_eq!(taken.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&taken.stderr).contains("--listen ADDR:PORT"));
}
