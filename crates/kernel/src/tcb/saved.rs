//! Control blocks in a file, and back into the connections they were of.

use super::{
    block::{ControlBlock, PrivateState, RawBlock, UNLIMITED_CLAMP, UNLIMITED_SSTHRESH},
    change::{Change, ChangeError},
    keep,
};
use crate::sockets::connection::CcName;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Version of the file.
pub const SAVED_VERSION: u32 = 1;

/// A file of control blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBlocks {
    /// [`SAVED_VERSION`] of the writer.
    pub version: u32,
    /// Which boot of which machine: cookies mean nothing beyond it.
    pub boot_id: String,
    /// Wall clock, milliseconds since 1970.
    pub saved_unix_ms: u64,
    /// The control blocks.
    pub connections: Vec<Saved>,
    /// HMAC-SHA-256 of the rest with this host's key, in hexadecimal: without it private state is not put back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<String>,
}

/// What is kept of one control block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// What the kernel knows the socket by.
    pub cookie: u64,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Congestion control; the kernel's own name where a wrapper keeps its state.
    pub cc: String,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Slow-start threshold; absent while unlimited.
    pub ssthresh_segments: Option<u32>,
    /// What cwnd may not exceed.
    pub clamp_segments: u32,
    /// Least retransmission timeout.
    pub rto_min_us: Option<u32>,
    /// Greatest retransmission timeout.
    pub rto_max_ms: Option<u32>,
    /// The congestion control's own memory, as 64-bit words.
    pub private: PrivateState,
}

impl From<&ControlBlock> for Saved {
    fn from(block: &ControlBlock) -> Saved {
        let ssthresh = Some(block.ssthresh_segments).filter(|ssthresh| *ssthresh < UNLIMITED_SSTHRESH);
        Saved {
            cookie: block.cookie,
            local: block.local,
            remote: block.remote,
            cc: inner(block.cc.as_str()).to_owned(),
            cwnd_segments: block.cwnd_segments,
            ssthresh_segments: ssthresh,
            clamp_segments: block.clamp_segments,
            rto_min_us: block.rto_min_us,
            rto_max_ms: block.rto_max_ms,
            private: block.private,
        }
    }
}

fn inner(cc: &str) -> &str {
    keep::wrapped(cc).unwrap_or(cc)
}

/// The bound of cwnd as it can be set: what is unlimited has two values, and the kernel takes one.
fn settable(clamp_segments: u32) -> u32 {
    clamp_segments.min(UNLIMITED_CLAMP)
}

impl Saved {
    /// Whether everything in it may be asked for, whoever wrote it. Private state has no bounds: the seal is for it.
    ///
    /// # Errors
    /// What may not, and what it may be.
    pub fn check(&self) -> Result<(), ChangeError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if !(1..=15).contains(&self.cc.len()) || !self.cc.bytes().all(plain) {
            let why = format!("{:?} is no congestion control's name", self.cc);
            return Err(ChangeError::Value { name: "cc".to_owned(), why });
        }
        let unchanged = ControlBlock {
            clamp_segments: self.clamp_segments,
            rto_min_us: self.rto_min_us,
            rto_max_ms: self.rto_max_ms,
            ..ControlBlock::from(&RawBlock::default())
        };
        // What the kernel has set itself may lie outside of what can be set; it checks timers and clamps.
        self.change(&unchanged).check()
    }

    /// Whether it is of that connection.
    pub fn is_of(&self, block: &ControlBlock) -> bool {
        self.cookie == block.cookie && self.local == block.local && self.remote == block.remote
    }

    /// What brings a connection back to it. Options that have not changed are left alone: setting them has effects of
    /// its own.
    pub fn change(&self, block: &ControlBlock) -> Change {
        let same_cc = inner(block.cc.as_str()) == self.cc;
        let if_other = |saved: Option<u32>, now: Option<u32>| saved.filter(|_| saved != now);
        Change {
            cwnd_segments: Some(self.cwnd_segments),
            ssthresh_segments: Some(self.ssthresh_segments.unwrap_or(UNLIMITED_SSTHRESH)),
            clamp_segments: if_other(
                Some(settable(self.clamp_segments)),
                Some(settable(block.clamp_segments)),
            ),
            rto_min_us: if_other(self.rto_min_us, block.rto_min_us),
            rto_max_ms: if_other(self.rto_max_ms, block.rto_max_ms),
            cc: (!same_cc).then(|| CcName::from(self.cc.as_str())),
            private: (self.cc != "reno").then_some(self.private),
            ..Change::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_block_of_anybodys_is_held_to_what_can_be_asked_for() {
        let good = Saved {
            cookie: 5,
            local: "10.0.0.1:5".parse().unwrap(),
            remote: "10.0.0.2:6".parse().unwrap(),
            cc: "cubic".into(),
            cwnd_segments: 10,
            ssthresh_segments: None,
            clamp_segments: u32::MAX,
            rto_min_us: Some(2_000_000),
            rto_max_ms: None,
            private: [0; 13],
        };
        assert_eq!(good.check(), Ok(()));
        let wrong = [
            Saved { cwnd_segments: 0, ..good.clone() },
            Saved { cwnd_segments: u32::MAX, ..good.clone() },
            Saved { ssthresh_segments: Some(0), ..good.clone() },
            Saved { cc: String::new(), ..good.clone() },
            Saved { cc: "sixteen_letters_".into(), ..good.clone() },
            Saved { cc: "a\u{1b}[2J".into(), ..good },
        ];
        for saved in wrong {
            assert!(saved.check().is_err(), "{saved:?}");
        }
    }

    #[test]
    fn a_saved_block_brings_its_connection_back_and_leaves_alone_what_has_not_changed() {
        let raw = RawBlock {
            cookie: 5,
            cwnd_segments: 80,
            ssthresh_segments: UNLIMITED_SSTHRESH,
            clamp_segments: 900,
            rto_min_us: 200_000,
            state: [7; 13],
            cc: CcName::from("cubic").bytes(),
            family: libc::AF_INET as u8,
            ..RawBlock::default()
        };
        let saved = Saved::from(&ControlBlock::from(&raw));
        let now = RawBlock {
            cwnd_segments: 10,
            ssthresh_segments: 5,
            rto_min_us: 20_000,
            cc: CcName::from("lfkeep_cubic").bytes(),
            ..raw
        };
        let now = ControlBlock::from(&now);
        let wanted = Change {
            cwnd_segments: Some(80),
            ssthresh_segments: Some(UNLIMITED_SSTHRESH),
            rto_min_us: Some(200_000),
            private: Some([7; 13]),
            ..Change::default()
        };
        assert!(saved.is_of(&now));
        assert_eq!(saved.change(&now), wanted);
        let other = ControlBlock { cc: "bbr".into(), ..now };
        assert_eq!(saved.change(&other).cc, Some("cubic".into()));
        assert!(!saved.is_of(&ControlBlock { cookie: 6, ..other }));
        let text = serde_json::to_string(&saved).unwrap();
        assert_eq!(serde_json::from_str::<Saved>(&text).unwrap(), saved);
    }

    #[test]
    fn a_bound_that_was_none_is_lifted_by_the_largest_that_can_be_set() {
        let block = |clamp_segments| {
            let raw = RawBlock { clamp_segments, family: libc::AF_INET as u8, ..RawBlock::default() };
            ControlBlock::from(&raw)
        };
        let saved = Saved::from(&block(u32::MAX));
        assert_eq!(saved.change(&block(50)).clamp_segments, Some(UNLIMITED_CLAMP));
        assert_eq!(saved.change(&block(UNLIMITED_CLAMP)).clamp_segments, None, "it is lifted already");
    }
}
