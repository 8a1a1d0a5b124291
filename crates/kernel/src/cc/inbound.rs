//! Holding back what the sockets of a cgroup receive: the programs of bpf/give_way.bpf.c, attached.

use crate::{
    Result,
    cgroup::Cgroup,
    object::{self, bpf_object},
    sockets::{namespace::Scope, visit},
};
use libbpf_rs::{Link, MapHandle, Object};
use std::os::fd::AsFd as _;

const NAME: &str = "give_way";

/// What became of connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inbound {
    /// Connections whose windows were steered.
    pub steered: u64,
    /// Left alone, because no TCP timestamps are found in what they receive.
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
        let bytes = bpf_object!(concat!(env!("OUT_DIR"), "/give_way.bpf.o"));
        let object = object::load(NAME, object::open(NAME, bytes)?)?;
        let links = cgroup.attach(object.progs_mut().filter(|program| program.name() != "lift"))?;
        Ok(Holding { links, counts: object::map_handle(&object, ".bss.lf")?, object })
    }

    pub(super) fn counts(&self) -> Inbound {
        let at = |index: usize| object::read_u64(&self.counts, 8 * index).unwrap_or(0);
        Inbound { steered: at(0), untimed: at(1), refused: at(2) }
    }

    /// Gives sockets that have been handed to processes elsewhere the window that they would have had.
    fn lift(&mut self) -> Result<()> {
        self.links.clear();
        let lift = visit::attach_program(&mut self.object, "lift")?;
        let visits =
            Scope::All.namespaces()?.into_iter().map(|namespace| visit::visit(&namespace, lift.as_fd()));
        // All of them, whatever became of one.
        visits.map(|visited| visited.map(drop)).fold(Ok(()), Result::and)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Err(error) = self.lift() {
            eprintln!("longfat: {error}; connections handed to other programs keep the window they have");
        }
    }
}
