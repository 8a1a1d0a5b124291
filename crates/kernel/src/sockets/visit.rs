//! BPF iterators over the TCP sockets of a network namespace.

use super::namespace::NetNamespace;
use crate::{
    Error, Result,
    object::{self, refused},
};
use libbpf_rs::{Link, Object};
use std::{
    fs::File,
    io::Read as _,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _},
};

/// Attaches a program of an object by name.
pub fn attach_program(object: &mut Object, name: &str) -> Result<Link> {
    let program = object.progs_mut().find(|program| program.name() == name);
    let program = program.ok_or_else(|| object::missing_map(name))?;
    program.attach().map_err(|source| refused(format!("attach the iterator '{name}'"), source))
}

/// Runs an iterator inside a namespace to its end: it sees the namespace that is current when it is made.
pub fn visit(namespace: &NetNamespace, link: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let run = || -> std::io::Result<Vec<u8>> {
        // SAFETY: an open link; the call returns a new descriptor that nothing else owns, or a negative errno.
        let fd = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
        if fd < 0 {
            return Err(std::io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: as above.
        let mut file = unsafe { File::from_raw_fd(fd) };
        read_to_end(&mut file)
    };
    let read = namespace.run(run).unwrap_or_else(|| Ok(Vec::new()));
    read.map_err(|source| Error::io(format!("visit the sockets of namespace '{}'", namespace.label), source))
}

/// The kernel asks for another try (EAGAIN) after many sockets without output.
fn read_to_end(file: &mut File) -> std::io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 18]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(all),
            Ok(length) => all.extend_from_slice(&buffer[..length]),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
            Err(error) => return Err(error),
        }
    }
}
