//! Packets of a relay's legs that look as if they had been forwarded: traffic class (DSCP), time to live and IPv6 flow
//! label of what arrives on one leg, on what leaves on the other.
//!
//! Attached by TCX links, which this process holds: they are gone when it ends, however it ends.

use crate::{
    Result,
    object::{self, bpf_object},
    support::{self, Capability},
    tcx,
};
use libbpf_rs::{Link, Object};
use longfat_host::support::Missing;

/// Gives a relay's packets what the packets of their connections arrived with, while it lives.
pub struct Alike {
    links: Vec<Link>,
    _object: Object,
}

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
        let both = |name| ["see", "wear"].into_iter().filter_map(move |program| attach(program, name));
        let links: Result<Vec<Link>> = interfaces.iter().flat_map(both).collect();
        Ok(Alike { links: links?, _object: object })
    }

    /// Descriptors it keeps open.
    pub fn descriptors(&self) -> usize {
        /// The object's maps, programs and type information.
        const OBJECT: usize = 9;
        OBJECT + self.links.len()
    }
}
