//! Programs at an interface's tc hooks, attached by TCX links (Linux 6.6): a link is gone with whoever holds it.

use crate::{Error, Result, object};
use libbpf_rs::{Object, Program};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Where among an interface's programs: BPF_F_BEFORE is before all, BPF_F_AFTER behind them, 0 as the kernel likes.
pub type Order = u32;

/// Attaches a loaded program to an interface of the calling thread's network namespace. The kernel waits for all
/// packets under way, which takes it 8 to 16 ms.
///
/// # Errors
/// When there is no such interface, or the kernel refuses.
pub fn attach(object: &Object, program: &str, interface: &str, order: Order) -> Result<OwnedFd> {
    let index = index_of(interface)?;
    let program_at = loaded(object, program)?;
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        flags: order,
        ..Default::default()
    };
    // SAFETY: the program's descriptor and the options live through the call.
    let made = unsafe {
        let program = program_at.as_fd().as_raw_fd();
        libbpf_sys::bpf_link_create(program, index as i32, hook(&program_at), &raw const options)
    };
    if made < 0 {
        let what = format!("see the packets of '{interface}' (tcx {program})");
        return Err(Error::io(what, io::Error::from_raw_os_error(-made)));
    }
    // SAFETY: a descriptor that was just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Puts another loaded program for the same hook in the place of a link's, between two packets. The kernel does not
/// wait.
///
/// # Errors
/// When the link's interface has gone, or the kernel refuses.
pub fn replace(link: BorrowedFd<'_>, object: &Object, program: &str) -> Result<()> {
    let replacing = loaded(object, program)?;
    // SAFETY: both descriptors live through the call; no options are given.
    let outcome = unsafe {
        let replacing = replacing.as_fd().as_raw_fd();
        libbpf_sys::bpf_link_update(link.as_raw_fd(), replacing, std::ptr::null())
    };
    match outcome {
        0 => Ok(()),
        error => Err(Error::io(format!("have tcx {program} in place"), io::Error::from_raw_os_error(-error))),
    }
}

/// Links that another process left, for programs that take their places.
#[derive(Debug, Default)]
pub struct Left {
    places: Vec<(Place, OwnedFd)>,
}

impl Left {
    /// Links that are at an interface still, of these.
    pub fn of(links: Vec<OwnedFd>) -> Left {
        let places = links.into_iter().filter_map(|link| Some((Place::of(link.as_fd())?, link)));
        Left { places: places.collect() }
    }

    /// Attaches a program to an interface: in the place of a link that was left there, or by a link of its own.
    ///
    /// # Errors
    /// As [`attach`].
    pub fn attach(&mut self, object: &Object, program: &str, interface: &str) -> Result<OwnedFd> {
        let place = Place { interface: index_of(interface)?, hook: hook(&loaded(object, program)?) };
        let found = self.places.iter().position(|(other, _)| *other == place);
        if let Some(at) = found {
            let (_, link) = self.places.swap_remove(at);
            if replace(link.as_fd(), object, program).is_ok() {
                return Ok(link);
            }
        }
        attach(object, program, interface, 0)
    }
}

/// Where a link's program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    interface: u32,
    /// `enum bpf_attach_type`.
    hook: u32,
}

impl Place {
    /// None of a link whose interface has gone, or that is no TCX link.
    fn of(link: BorrowedFd<'_>) -> Option<Place> {
        let mut info = libbpf_sys::bpf_link_info::default();
        let mut length = size_of_val(&info) as u32;
        // SAFETY: `info` has `length` octets to write to.
        let outcome = unsafe {
            libbpf_sys::bpf_obj_get_info_by_fd(link.as_raw_fd(), (&raw mut info).cast(), &raw mut length)
        };
        if outcome != 0 || info.type_ != libbpf_sys::BPF_LINK_TYPE_TCX {
            return None;
        }
        // SAFETY: of a TCX link the kernel has filled this part of the union, plain integers in zeroed memory.
        let at = unsafe { info.__bindgen_anon_1.tcx };
        (at.ifindex != 0).then_some(Place { interface: at.ifindex, hook: at.attach_type })
    }
}

/// Whether a link's program sees packets still: the kernel takes the interface from a link when the interface goes.
pub fn is_on_interface(link: &OwnedFd) -> bool {
    Place::of(link.as_fd()).is_some()
}

/// Whether an interface is there no more.
pub fn is_gone(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface) == Err(nix::errno::Errno::ENODEV)
}

fn index_of(interface: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(interface)
        .map_err(|errno| Error::io(format!("find interface '{interface}'"), errno))
}

fn loaded<'o>(object: &'o Object, program: &str) -> Result<Program<'o>> {
    let found = object.progs().find(|candidate| candidate.name() == program);
    found.ok_or_else(|| object::missing_map(program))
}

/// `enum bpf_attach_type` of a program, by its section.
fn hook(program: &Program<'_>) -> u32 {
    program.attach_type() as u32
}
