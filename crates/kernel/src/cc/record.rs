//! Recording: every callback of a registered algorithm with its inputs and what it did, for replay elsewhere.

use super::register::{Registration, attach};
use crate::{Result, object};
use libbpf_rs::{MapHandle, RingBufferBuilder};
use longfat_cc::{Tunables, record::Call};
use std::{
    cell::{Cell, RefCell},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Room for about 100,000 callbacks between two looks.
const RECORDS_BYTES: u32 = 1 << 25;

/// How often the reader looks; the kernel does not wake it, a wake-up costs more than a callback.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A registration that records.
#[derive(Debug)]
pub struct Recorder {
    registration: Registration,
    records: MapHandle,
    lost: MapHandle,
}

/// Registers an algorithm under a name of its own, recording; `dilation`: the time of its connections passes so many
/// times slower than the kernel's. At most 15 bytes of name.
pub fn record(tunables: &Tunables, dilation: u32, kernel_name: &str) -> Result<Recorder> {
    let (loaded, link) = attach(tunables, dilation, kernel_name, Some(RECORDS_BYTES))?;
    Ok(Recorder {
        records: object::map_handle(&loaded, "records")?,
        lost: object::map_handle(&loaded, ".bss.lost")?,
        registration: Registration::new(kernel_name, tunables, dilation, link),
    })
}

impl Recorder {
    /// The name to give to a socket.
    pub fn kernel_name(&self) -> &str {
        self.registration.kernel_name()
    }

    /// Callbacks that found the buffer full, so far.
    pub fn lost(&self) -> u64 {
        object::read_u64(&self.lost, 0).unwrap_or(0)
    }

    /// Collects callbacks until `stop`, and what is left then.
    ///
    /// # Errors
    /// When the buffer cannot be mapped, or a record is none of ours.
    pub fn collect(&self, stop: &AtomicBool) -> Result<Vec<Call>> {
        let (calls, bad) = (RefCell::new(Vec::new()), Cell::new(0u64));
        let mut builder = RingBufferBuilder::new();
        let failed = |source| object::refused("read the ring buffer of records", source);
        let take = |bytes: &[u8]| {
            match Call::decode(bytes) {
                Some(call) => calls.borrow_mut().push(call),
                None => bad.set(bad.get() + 1),
            }
            0
        };
        builder.add(&self.records, take).map_err(failed)?;
        let buffer = builder.build().map_err(failed)?;
        loop {
            let last = stop.load(Ordering::Acquire);
            buffer.consume().map_err(failed)?;
            if last {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        drop(buffer);
        if bad.get() > 0 {
            let broken = std::io::Error::from(std::io::ErrorKind::InvalidData);
            return Err(crate::Error::io(format!("decode {} records", bad.get()), broken));
        }
        Ok(calls.into_inner())
    }
}
