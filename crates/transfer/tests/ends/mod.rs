//! A server on a thread, and plans that end soon.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, missing_docs, reason = "each test file uses a part of it")]

use longfat_schema::lines::Lines;
use longfat_transfer::{Amount, Outcome, SendOptions, ServeOptions, Served, Server, TransferPlan, send};
use std::{
    net::SocketAddr,
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
        bind: None,
        start_at_ns: None,
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
