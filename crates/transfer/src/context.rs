//! What the threads of one transfer share at one end.

use crate::{halt::Halt, plan::TransferPlan};
use longfat_host::monotonic_ns;
use longfat_schema::record::{AvailSample, Note, Record};
use std::{os::fd::BorrowedFd, time::Duration};

/// Where a transfer's threads put what they measure, and where they learn that they should stop.
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a TransferPlan,
    pub(crate) halt: &'a Halt,
    pub(crate) emit: &'a (dyn Fn(Record) + Sync),
    /// What a sending socket has found out about its path.
    pub(crate) avail: &'a (dyn Fn(BorrowedFd<'_>) -> Option<AvailSample> + Sync),
    /// Most payload of a stream, whatever is planned; a stream that goes beyond it fails.
    pub(crate) stream_bytes_max: u64,
}

impl Context<'_> {
    /// An error when a stream has come beyond what it may carry.
    pub(crate) fn refuse_beyond(&self, position: u64) -> Result<(), String> {
        let most = self.stream_bytes_max;
        if position <= most {
            return Ok(());
        }
        Err(format!("stopped after {position} bytes: the server allows a stream {most} (--max-bytes)"))
    }

    pub(crate) fn warn(&self, message: String) {
        (self.emit)(Record::Note(Note {
            time_us: longfat_host::monotonic_us(),
            level: "warning".to_owned(),
            source: self.plan.flow.clone(),
            message,
        }));
    }

    /// Sleeps until `time_ns`; `false` when the transfer is halted first.
    pub(crate) fn sleep_until(&self, time_ns: u64) -> bool {
        loop {
            if self.halt.is_raised() {
                return false;
            }
            let left = time_ns.saturating_sub(monotonic_ns());
            if left == 0 {
                return true;
            }
            std::thread::sleep(Duration::from_nanos(left).min(crate::sockets::LOOK_UP));
        }
    }
}
