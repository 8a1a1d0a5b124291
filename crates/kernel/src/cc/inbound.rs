//! Holding back what the sockets of a cgroup receive: the programs of bpf/give_way.bpf.c, attached.

use crate::{
    Error, Result,
    cgroup::Cgroup,
    object::{self, bpf_object, refused},
    tcb,
};
use libbpf_rs::{Link, MapHandle, Object};
use std::{
    fs::File,
    os::fd::{AsFd as _, AsRawFd as _},
};

const NAME: &str = "give_way";

/// What became of connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inbound {
    /// Their windows were steered.
    pub steered: u64,
    /// Left alone, because they have no TCP timestamps.
    pub untimed: u64,
    /// Windows that the kernel did not take.
    pub refused: u64,
}

/// Attached while this lives; what outlives it gets its window back.
pub(super) struct Holding {
    links: Vec<Link>,
    object: Object,
    counts: MapHandle,
}

impl Holding {
    pub(super) fn attach(cgroup: &Cgroup) -> Result<Holding> {
        let directory = File::open(cgroup.path())
            .map_err(|source| Error::io(format!("open the cgroup {}", cgroup.path().display()), source))?;
        let bytes = bpf_object!(concat!(env!("OUT_DIR"), "/give_way.bpf.o"));
        let object = object::load(NAME, object::open(NAME, bytes)?)?;
        let of_cgroup = object.progs_mut().filter(|program| program.name() != "lift");
        let links: libbpf_rs::Result<Vec<Link>> =
            of_cgroup.map(|program| program.attach_cgroup(directory.as_raw_fd())).collect();
        let links = links.map_err(|source| refused("attach to the program's cgroup", source))?;
        Ok(Holding { links, counts: object::map_handle(&object, ".bss.lf")?, object })
    }

    pub(super) fn counts(&self) -> Inbound {
        let at = |index: usize| object::read_u64(&self.counts, 8 * index).unwrap_or(0);
        Inbound { steered: at(0), untimed: at(1), refused: at(2) }
    }

    /// Gives sockets that have been handed to processes elsewhere the window that they would have had.
    fn lift(&mut self) -> Result<()> {
        self.links.clear();
        let lift = tcb::attach_program(&mut self.object, "lift")?;
        for place in tcb::Scope::All.places()? {
            tcb::visit(&place, lift.as_fd())?;
        }
        Ok(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Err(error) = self.lift() {
            eprintln!("longfat: {error}; connections handed to other programs keep the window they have");
        }
    }
}
