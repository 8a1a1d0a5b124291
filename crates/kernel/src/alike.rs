//! Packets of a relay's legs that look as if they had been forwarded: traffic class (DSCP), time to live and IPv6 flow
//! label of what arrives on one leg, on what leaves on the other.
//!
//! Attached by TCX links, which this process holds: they are gone when it ends, however it ends.

use crate::{
    Result,
    object::{self, bpf_object, refused},
    support::{self, Capability},
    tcx,
};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};
use longfat_host::support::Missing;
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd},
    sync::{Mutex, PoisonError},
};

/// Gives a relay's packets what the packets of their connections arrived with, while it lives.
pub struct Alike {
    links: Vec<Link>,
    /// Links on what arrives, by the interface.
    arriving: Mutex<BTreeMap<String, Link>>,
    /// The mark of what arrives for the relay's sockets.
    carried: MapHandle,
    object: Object,
}

/// The section of that mark.
const CARRIED: &str = ".data.carried";

/// What this process or kernel lacks for it; nothing is touched.
pub fn missing() -> Vec<Missing> {
    // A marking program asks for the same, and for storage of sockets, which is as old as these links.
    support::missing(&[Capability::Marking])
}

impl Alike {
    /// Attaches to interfaces of the calling thread's network namespace, but for those that are gone by now: packets
    /// that leave with `own_mark` are the relay's.
    ///
    /// # Errors
    /// When the kernel refuses; nothing is left then.
    pub fn attach(interfaces: &[String], own_mark: u32) -> Result<Alike> {
        let mut open = object::open("alike", bpf_object!(concat!(env!("OUT_DIR"), "/alike.bpf.o")))?;
        object::set_initial(&mut open, ".rodata.lf", |bytes| {
            bytes[..4].copy_from_slice(&own_mark.to_ne_bytes());
        })?;
        let object = object::load("alike", open)?;
        let attach = |program, name: &String| match tcx::attach(&object, program, name, 0) {
            Err(_) if tcx::is_gone(name) => None,
            outcome => Some(outcome),
        };
        let arriving = |name: &String| attach("see", name).map(|link| Ok((name.clone(), link?)));
        let arriving = interfaces.iter().filter_map(arriving).collect::<Result<BTreeMap<_, _>>>()?;
        let links: Result<Vec<Link>> = interfaces.iter().filter_map(|name| attach("wear", name)).collect();
        let carried = object::map_handle(&object, CARRIED)?;
        Ok(Alike { links: links?, arriving: Mutex::new(arriving), carried, object })
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

    /// Somebody else sees now what arrives at these interfaces.
    pub(crate) fn leave_arriving(&self, interfaces: &[String]) {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        interfaces.iter().for_each(|name| drop(arriving.remove(name)));
    }

    /// Descriptors it keeps open.
    pub fn descriptors(&self) -> usize {
        /// The object's maps, programs and type information.
        const OBJECT: usize = 12;
        OBJECT + 2 * self.links.len()
    }
}
