//! Relays of one file, one after the other: started, upgraded, killed and started again.

use crate::relay_bed::{Bed, PATIENCE};
use longfat_relay::status::Status;
use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

/// Relays of one file, one after the other.
pub struct Service<'a> {
    bed: &'a Bed,
    pub directory: tempfile::TempDir,
    pub child: Child,
}

impl<'a> Service<'a> {
    pub fn start(bed: &'a Bed, file: &str) -> Service<'a> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let text = format!("control = {{ socket = '{}' }}\nworkers = 2\n{file}", socket.display());
        std::fs::write(directory.path().join("relay.toml"), text).unwrap();
        let child = spawn(bed, directory.path(), "run");
        let mut service = Service { bed, directory, child };
        service.wait_until_it_answers();
        service
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    pub fn ask(&self) -> Option<Status> {
        longfat_relay::control::ask(&self.socket(), longfat_relay::control::STATUS).ok()
    }

    pub fn wait_until_it_answers(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let pid = self.child.id();
        while self.ask().is_none_or(|status| status.pid != pid) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Killed, and started again.
    pub fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.bed, self.directory.path(), "run");
        self.wait_until_it_answers();
    }

    /// Another process takes over; this one ends by itself, and well.
    pub fn upgrade(&mut self) {
        let next = spawn(self.bed, self.directory.path(), "upgrade");
        let mut last = std::mem::replace(&mut self.child, next);
        let status = last.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{}", self.log());
        self.wait_until_it_answers();
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Ends it in order.
    pub fn end(mut self) {
        self.signal(libc::SIGTERM);
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.log());
        assert!(!self.socket().exists(), "its socket is gone");
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

pub fn spawn(bed: &Bed, directory: &Path, verb: &str) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(directory.join("log")).unwrap();
    let mut command = bed.command(&[verb, directory.join("relay.toml").to_str().unwrap()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().unwrap()
}

/// The process that keeps for the relay of that name.
pub fn keeper_of(name: &str) -> i32 {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let wanted = format!("relay\0keep\0--once\0{name}\0");
    let is_it = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).ends_with(&wanted))
    };
    pids.find(is_it).unwrap()
}
