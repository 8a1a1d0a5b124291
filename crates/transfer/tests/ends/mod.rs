//! A server on a thread, and plans that end soon.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, missing_docs, reason = "each test file uses a part of it")]

use longfat_schema::lines::Lines;
use longfat_transfer::{
    Amount, Limits, Outcome, SendOptions, ServeOptions, Served, Server, Start, TransferPlan, send,
};
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

/// A server that is stopped, and must end, when dropped.
pub struct Serving {
    pub address: SocketAddr,
    pub stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Served>>,
}

pub fn serve_options(listen: &str) -> ServeOptions {
    ServeOptions {
        listen: listen.parse().unwrap(),
        once: false,
        timeout: Duration::from_secs(5),
        data_ports: None,
        limits: Limits::default(),
        key: None,
        samples: Lines::default(),
        stop: Arc::new(AtomicBool::new(false)),
    }
}

impl Serving {
    pub fn on(listen: &str) -> Serving {
        Serving::with(serve_options(listen))
    }

    pub fn with(options: ServeOptions) -> Serving {
        let stop = Arc::clone(&options.stop);
        let server = Server::bind(options).unwrap();
        let address = server.address();
        let thread = Some(std::thread::spawn(move || server.run(&()).unwrap()));
        Serving { address, stop, thread }
    }

    pub fn end(mut self) -> Served {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server failed");
        }
    }
}

/// The example server as a process of its own, killed when dropped.
pub struct ServerProcess {
    pub child: Child,
    pub port: u16,
}

/// The example server, not started yet.
pub fn server_program() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let program = deps.parent().unwrap().parent().unwrap().join("examples/serve_transfers");
    assert!(program.exists(), "{} is missing: cargo build -p longfat-transfer --examples", program.display());
    program
}

impl ServerProcess {
    /// Starts a command whose program is [`server_program`].
    pub fn start(mut command: Command, listen: &str) -> ServerProcess {
        let mut child = command.arg(listen).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit_once(':').unwrap().1.parse().unwrap();
        ServerProcess { child, port }
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// A figure of /proc/PID/status in kB.
    pub fn status_kb(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A verified transfer of so many bytes, with reno at both ends.
pub fn bytes_plan(bytes: u64) -> TransferPlan {
    TransferPlan {
        amount: Amount::Bytes(bytes),
        verify: true,
        cc_sender: Some("reno".into()),
        cc_receiver: Some("reno".into()),
        ..TransferPlan::default()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "a test reads better without ampersands")]
pub fn send_options(to: impl std::fmt::Display, plan: TransferPlan) -> SendOptions {
    SendOptions {
        to: to.to_string(),
        plan,
        key: None,
        bind: None,
        start: Start::AtOnce,
        interval: Duration::from_secs(1),
        samples: Lines::default(),
        stop: Arc::new(AtomicBool::new(false)),
    }
}

/// Sends, and expects every stream to end as planned.
pub fn sent(to: impl std::fmt::Display, plan: TransferPlan) -> Outcome {
    let outcome = send(&send_options(to, plan), &()).unwrap();
    assert!(outcome.is_complete(), "{:?} {:?}", outcome.errors(), outcome.lost);
    outcome
}
