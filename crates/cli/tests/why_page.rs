//! `longfat why … --page` of what was kept, looks and captures, and of living connections. Needs no privileges.

use crate::{packets::packet, patience::eventually};
use longfat_analyze::capture::{LinkType, write::PcapWriter};
use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

fn why(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longfat")).arg("why").args(arguments).output().unwrap()
}

/// The first of the recorded looks that the causes are judged by.
fn looks(to: &Path, count: usize) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../why/tests/looks/tuning.looks.gz");
    let text = Command::new("gzip").arg("-dc").arg(kept).output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().take(count).collect();
    assert_eq!(lines.len(), count);
    fs::write(to, lines.join("\n")).unwrap();
}

#[test]
fn looks_that_were_kept_make_a_page_beside_the_answer() {
    let place = tempfile::tempdir().unwrap();
    let (kept, page) = (place.path().join("a.looks"), place.path().join("a.html"));
    looks(&kept, 3);
    let (kept, shown) = (kept.to_str().unwrap(), page.to_str().unwrap());
    let told = why(&[kept, "--rate", "50Mbit", "--page", shown]);
    let (text, said) = (String::from_utf8(told.stdout).unwrap(), String::from_utf8(told.stderr).unwrap());
    assert!(told.status.success() && said.contains(&format!("page: {shown}")), "{said}");
    let html = fs::read_to_string(&page).unwrap();
    // For looking at it.
    if let Ok(path) = std::env::var("LONGFAT_WHY_HTML") {
        fs::write(path, &html).unwrap();
    }
    assert_eq!(html.matches("<section class=\"case\"").count(), 3);
    assert_eq!(html.matches(">Time by cause, %</text>").count(), 3);
    assert!(html.contains("<h2>By cause</h2>") && html.contains("looks that were kept · 3 connections"));
    let causes = text.split(" %  ").skip(1).map(|line| line.split(' ').next().unwrap());
    for cause in causes {
        assert!(html.contains(&format!("<code>{cause}</code>")), "{cause} of {text}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2, "no half page is left");
}

#[test]
fn a_capture_makes_one_too() {
    let place = tempfile::tempdir().unwrap();
    let (file, page) = (place.path().join("a.pcap"), place.path().join("a.html"));
    let mut writer = PcapWriter::new(File::create(&file).unwrap(), LinkType(101), 96).unwrap();
    for n in 0..400 {
        let at = 1_700_000_000_000_000_000 + i64::from(n) * 1_000_000;
        let (data, data_bytes) = packet(true, n * 1000, 0, 1000);
        writer.packet(at, data_bytes, &data).unwrap();
        let (ack, ack_bytes) = packet(false, 0, (n + 1) * 1000, 0);
        writer.packet(at + 300_000, ack_bytes, &ack).unwrap();
    }
    drop(writer.into_inner());
    let told = why(&[file.to_str().unwrap(), "--page", page.to_str().unwrap()]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("10.0.0.1:40000 to 10.0.0.2:80 gets") && html.contains(">Time by cause, %</text>"));
    assert!(html.contains(">Payload, Mbit/s</text>") && html.contains("a capture · 1 connection"));
}

#[test]
fn a_page_that_cannot_be_written_is_refused_before_anything_is_watched() {
    let place = tempfile::tempdir().unwrap();
    let page = place.path().join("none/a.html");
    let told = why(&["--for", "1h", "--page", page.to_str().unwrap()]);
    let said = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(2));
    assert!(said.contains("none' is not there: make it, or name another"), "{said}");
}

#[test]
fn a_watch_renews_its_page_and_leaves_one_that_stays() {
    let place = tempfile::tempdir().unwrap();
    let page = place.path().join("a.html");
    let over = Arc::new(AtomicBool::new(false));
    let sending = connection(Arc::clone(&over));
    let own = std::process::id().to_string();
    let mut watch = Command::new(env!("CARGO_BIN_EXE_longfat"));
    watch.args(["why", "--pid", &own, "--watch", "--for", "500ms", "--page", page.to_str().unwrap()]);
    let mut watch = watch.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let shown = || fs::read_to_string(&page).unwrap_or_default();
    let renewed = "<meta http-equiv=\"refresh\" content=\"1\">";
    eventually("a page", || shown().contains(renewed));
    let first = shown();
    eventually("a newer page", || shown() != first && !shown().is_empty());
    assert!(first.contains("<section class=\"case\"") && first.contains(">Payload, "), "{first}");
    eventually("a course of four stretches", || whole(&shown()).is_some_and(|whole| whole >= 1.9));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(watch.id() as i32), nix::sys::signal::Signal::SIGINT)
        .unwrap();
    assert!(watch.wait().unwrap().success());
    assert!(!shown().contains(renewed) && shown().contains("<section class=\"case\""), "the last one stays");
    over.store(true, Ordering::Relaxed);
    sending.join().unwrap();
}

/// Seconds that a page goes back, where it goes back further than its answer.
fn whole(page: &str) -> Option<f64> {
    let (before, _) = page.split_once("s, judged by the last ")?;
    before.rsplit_once("watched for ")?.1.parse().ok()
}

/// A connection of this process with itself, over which something goes all the time.
fn connection(over: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut far = listener.accept().unwrap().0;
    thread::spawn(move || {
        let mut read = [0; 4096];
        while !over.load(Ordering::Relaxed) {
            near.write_all(&[0; 4096]).unwrap();
            far.read_exact(&mut read).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    })
}
