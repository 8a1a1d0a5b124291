//! The first retransmission timeout of the connections of some processes: the programs of bpf/first_timeout.bpf.c,
//! attached to a cgroup.

use crate::{
    Result,
    cgroup::Cgroup,
    object::{self, bpf_object},
};
use libbpf_rs::{Link, Object};
use nix::time::{ClockId, clock_getres};
use std::{process::Command, time::Duration};

const NAME: &str = "first_timeout";

/// The longest retransmission timeout of the kernel (`TCP_RTO_MAX`).
pub const LONGEST: Duration = Duration::from_secs(120);

/// Processes whose TCP connections take a SYN, a SYN-ACK, and what is sent before a round trip is measured, for lost
/// after another time than the kernel's second (RFC 6298, section 2.1). They are killed when it drops.
#[derive(Debug)]
pub struct FirstTimeout {
    // In the order in which they go.
    _links: Vec<Link>,
    _object: Object,
    cgroup: Cgroup,
}

impl FirstTimeout {
    /// A first timeout of that length, [`LONGEST`] at most, for the processes that will [enter](FirstTimeout::enter).
    ///
    /// # Errors
    /// There is no cgroup2 hierarchy, or the kernel refuses the program.
    pub fn set(length: Duration) -> Result<FirstTimeout> {
        let ticks = ticks(length.min(LONGEST))?;
        let bytes = bpf_object!(concat!(env!("OUT_DIR"), "/first_timeout.bpf.o"));
        let mut object = object::open(NAME, bytes)?;
        object::set_initial(&mut object, ".rodata.lf", |initial| {
            initial[..4].copy_from_slice(&ticks.to_ne_bytes());
        })?;
        let object = object::load(NAME, object)?;
        let cgroup = Cgroup::create()?;
        let links = cgroup.attach(object.progs_mut())?;
        Ok(FirstTimeout { _links: links, _object: object, cgroup })
    }

    /// Has a program start inside.
    ///
    /// # Errors
    /// The cgroup is gone.
    pub fn enter(&self, command: &mut Command) -> Result<()> {
        self.cgroup.enter(command)
    }
}

/// A time in ticks of the kernel, whose length is the resolution of its coarse clocks.
fn ticks(time: Duration) -> Result<u32> {
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE)
        .map_err(|source| crate::Error::io("ask for the length of a tick (clock_getres)", source))?;
    let tick_ns = u128::try_from(tick.tv_nsec()).unwrap_or(0).max(1);
    Ok(u32::try_from(time.as_nanos() / tick_ns).unwrap_or(u32::MAX))
}
