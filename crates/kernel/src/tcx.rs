//! Programs at an interface's tc hooks, attached by TCX links (Linux 6.6): a link is gone with whoever holds it.

use crate::{Error, Result, object};
use libbpf_rs::{AsRawLibbpf, Link, Object};
use std::ptr::NonNull;

/// Where among an interface's programs: BPF_F_BEFORE is before all, BPF_F_AFTER behind them, 0 as the kernel likes.
pub type Order = u32;

/// Attaches a loaded program to an interface of the calling thread's network namespace.
///
/// # Errors
/// When there is no such interface, or the kernel refuses.
pub fn attach(object: &Object, program: &str, interface: &str, order: Order) -> Result<Link> {
    let index = nix::net::if_::if_nametoindex(interface)
        .map_err(|errno| Error::io(format!("find interface '{interface}'"), errno))?;
    let found = object.progs().find(|candidate| candidate.name() == program);
    let found = found.ok_or_else(|| object::missing_map(program))?;
    let options = libbpf_sys::bpf_tcx_opts {
        sz: size_of::<libbpf_sys::bpf_tcx_opts>() as _,
        flags: order,
        ..Default::default()
    };
    let raw = found.as_libbpf_object().as_ptr();
    // SAFETY: the program is loaded and lives as long as the object; the options live through the call.
    let link = unsafe { libbpf_sys::bpf_program__attach_tcx(raw, index as i32, &raw const options) };
    let link = NonNull::new(link).ok_or_else(|| {
        let what = format!("see the packets of '{interface}' (tcx {program})");
        Error::io(what, std::io::Error::last_os_error())
    })?;
    // SAFETY: libbpf made it for us, and nobody else has it.
    Ok(unsafe { Link::from_ptr(link) })
}

/// Whether an interface is there no more.
pub fn is_gone(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface) == Err(nix::errno::Errno::ENODEV)
}
