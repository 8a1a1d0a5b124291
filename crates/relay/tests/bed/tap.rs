//! A wire between two relays that move connections: it counts the pieces that pass, and is cut or held where a test
//! says.

use longfat_host::Namespace;
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A direction of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    There,
    Back,
}

/// What becomes of the wire when so many pieces have passed in a direction, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The wire is as if there were none.
    Nothing,
    /// The wire is cut; the next one holds.
    Cut(Way, usize),
    /// The wire is cut, and nobody connects any more.
    CutForGood(Way, usize),
    /// Nothing passes any more, and nobody hears of it.
    Hold(Way, usize),
}

struct State {
    fate: Fate,
    /// Whether it has come to that.
    is_over: AtomicBool,
    passed: [AtomicUsize; 2],
    /// What passed there, all of it.
    recorded: Mutex<Vec<u8>>,
    is_gone: AtomicBool,
}

/// A wire.
pub struct Tap {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Tap {
    /// In a router's namespace, towards another relay.
    pub fn new(router: &Namespace, to: SocketAddr, fate: Fate) -> Tap {
        let listener = router.run(|| TcpListener::bind("127.0.0.1:0")).unwrap().unwrap();
        let (address, router) = (listener.local_addr().unwrap(), router.clone());
        let (is_over, passed, recorded, is_gone) = Default::default();
        let state = Arc::new(State { fate, is_over, passed, recorded, is_gone });
        let own = Arc::clone(&state);
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            while !own.is_gone.load(Ordering::Acquire) {
                let Ok((near, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                near.set_nonblocking(false).unwrap();
                if matches!(own.fate, Fate::CutForGood(..)) && own.is_over.load(Ordering::Acquire) {
                    continue;
                }
                let Ok(far) = router.run(|| TcpStream::connect(to)).unwrap() else { continue };
                let ends = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
                for ((from, into), way) in ends.into_iter().zip([Way::There, Way::Back]) {
                    let own = Arc::clone(&own);
                    std::thread::spawn(move || own.pass(from, into, way));
                }
            }
        });
        Tap { address, state }
    }

    /// Waits until it has come to its fate.
    pub fn wait(&self) {
        super::path::eventually("the wire is cut or held", || self.state.is_over.load(Ordering::Acquire));
    }

    pub fn recorded(&self) -> Vec<u8> {
        self.state.recorded.lock().unwrap().clone()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.state.is_gone.store(true, Ordering::Release);
    }
}

impl State {
    fn pass(&self, mut from: TcpStream, mut into: TcpStream, way: Way) {
        let mut head = [0; 2];
        while from.read_exact(&mut head).is_ok() {
            let mut piece = vec![0; usize::from(u16::from_be_bytes(head))];
            if from.read_exact(&mut piece).is_err() {
                break;
            }
            if way == Way::There {
                self.recorded.lock().unwrap().extend(head.iter().chain(&piece));
            }
            if self.is_held() || into.write_all(&[&head[..], &piece].concat()).is_err() {
                break;
            }
            let passed = self.passed[way as usize].fetch_add(1, Ordering::AcqRel) + 1;
            match self.fate {
                Fate::Cut(at, count) | Fate::CutForGood(at, count) if (at, count) == (way, passed) => {
                    self.is_over.store(true, Ordering::Release);
                    break;
                }
                Fate::Hold(at, count) if (at, count) == (way, passed) => {
                    self.is_over.store(true, Ordering::Release)
                }
                _ => {}
            }
        }
        if self.is_held() {
            // Neither side hears of the other one's end.
            while !self.is_gone.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        for end in [&from, &into] {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    fn is_held(&self) -> bool {
        matches!(self.fate, Fate::Hold(..)) && self.is_over.load(Ordering::Acquire)
    }
}
