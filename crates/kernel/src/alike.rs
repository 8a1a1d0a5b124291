//! Packets of a relay's legs that look as if they had been forwarded: traffic class (DSCP), time to live and IPv6 flow
//! label of what arrives on one leg, on what leaves on the other.
//!
//! Attached by TCX links: they are gone with whoever holds them, this process and perhaps a keeper.

use crate::{
    Result,
    object::{self, bpf_object, refused},
    support::{self, Capability},
    tcx,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use longfat_host::support::Missing;
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Gives a relay's packets what the packets of their connections arrived with, while it lives.
pub struct Alike {
    /// Links on what leaves.
    leaving: Vec<OwnedFd>,
    /// Links on what arrives, by the interface.
    arriving: Mutex<BTreeMap<String, OwnedFd>>,
    /// The mark of what arrives for the relay's sockets.
    carried: MapHandle,
    object: Object,
}

/// The section of that mark.
const CARRIED: &str = ".data.carried";
/// Program that notes what arrives.
const SEE: &str = "see";

/// What this process or kernel lacks for it; nothing is touched.
pub fn missing() -> Vec<Missing> {
    // A marking program asks for the same, and for storage of sockets, which is as old as these links.
    support::missing(&[Capability::Marking])
}

impl Alike {
    /// Attaches to interfaces of the calling thread's network namespace, but for those that are gone by now: packets
    /// that leave with `own_mark` are the relay's. Links that another relay [left](Alike::links) are gone on with, and
    /// its programs end as these begin.
    ///
    /// # Errors
    /// When the kernel refuses; nothing is left then.
    pub fn attach(interfaces: &[String], own_mark: u32, left: Vec<OwnedFd>) -> Result<Alike> {
        let mut open = object::open("alike", bpf_object!(concat!(env!("OUT_DIR"), "/alike.bpf.o")))?;
        object::set_initial(&mut open, ".rodata.lf", |bytes| {
            bytes[..4].copy_from_slice(&own_mark.to_ne_bytes());
        })?;
        let object = object::load("alike", open)?;
        let mut left = tcx::Left::of(left);
        let mut attach = |program, name: &String| match left.attach(&object, program, name) {
            Err(_) if tcx::is_gone(name) => None,
            outcome => Some(outcome),
        };
        let (mut arriving, mut leaving) = (BTreeMap::new(), Vec::new());
        for name in interfaces {
            if let Some(link) = attach(SEE, name) {
                arriving.insert(name.clone(), link?);
            }
            if let Some(link) = attach("wear", name) {
                leaving.push(link?);
            }
        }
        let carried = object::map_handle(&object, CARRIED)?;
        Ok(Alike { leaving, arriving: Mutex::new(arriving), carried, object })
    }

    /// Links that hold its programs where they are, for a relay that comes after this one.
    ///
    /// # Errors
    /// This process has no descriptors left.
    pub fn links(&self) -> io::Result<Vec<OwnedFd>> {
        let arriving = self.lock();
        self.leaving.iter().chain(arriving.values()).map(OwnedFd::try_clone).collect()
    }

    /// From now on most of what arrives for the relay's sockets gets this mark, if it has none: nobody need look for
    /// its socket. With 0, nothing does.
    ///
    /// Not for a relay whose sockets may vanish without having sent a FIN or a reset, nor where some are not
    /// transparent.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn mark_carried(&self, mark: u32) -> Result<()> {
        let changed = self.carried.update(&[0; 4], &mark.to_ne_bytes(), MapFlags::ANY);
        changed.map_err(|source| refused("mark what arrives for a relay's sockets", source))
    }

    /// Lets another program call what notes arriving packets, by its array of programs.
    pub(crate) fn note_by(&self, programs: &MapHandle) -> Result<()> {
        let called = self.object.progs().find(|candidate| candidate.name() == "see_watched");
        let called = called.ok_or_else(|| object::missing_map("see_watched"))?;
        let descriptor = called.as_fd().as_raw_fd().to_ne_bytes();
        programs
            .update(&[0; 4], &descriptor, MapFlags::ANY)
            .map_err(|source| refused("note what arrives for a relay by its watching program", source))
    }

    /// The link on what arrives at an interface, for another program that calls this one's.
    pub(crate) fn take_arriving(&self, interface: &str) -> Option<OwnedFd> {
        self.lock().remove(interface)
    }

    /// Sees again what arrives at an interface.
    pub(crate) fn give_back(&self, interface: &str, link: OwnedFd) {
        // Where the kernel refuses, packets look like a relay's.
        if tcx::replace(link.as_fd(), &self.object, SEE).is_ok() {
            self.lock().insert(interface.to_owned(), link);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, OwnedFd>> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Descriptors it keeps open.
    pub fn descriptors(&self) -> usize {
        /// The object's maps, programs and type information.
        const OBJECT: usize = 12;
        OBJECT + 2 * self.leaving.len()
    }
}
