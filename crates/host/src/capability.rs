//! Capabilities of the process (capabilities(7)): which it has, and giving up those it needs no longer.

use crate::{Error, Result};
use std::io;

/// CAP_NET_BIND_SERVICE: ports below 1024, others' too (`net.ipv4.ip_unprivileged_port_start`).
pub const NET_BIND_SERVICE: u32 = 10;

/// CAP_NET_ADMIN: nftables, routes, marks, transparent sockets, large buffers, any congestion control.
pub const NET_ADMIN: u32 = 12;

/// CAP_NET_RAW: sockets that send whole packets.
pub const NET_RAW: u32 = 13;

/// CAP_DAC_OVERRIDE: files whatever their permissions.
pub const DAC_OVERRIDE: u32 = 1;

/// CAP_DAC_READ_SEARCH: reading them.
pub const DAC_READ_SEARCH: u32 = 2;

/// CAP_SYS_PTRACE: looking into others' processes.
pub const SYS_PTRACE: u32 = 19;

/// CAP_SYS_ADMIN: others' namespaces, among much else.
pub const SYS_ADMIN: u32 = 21;

/// CAP_PERFMON: BPF programs that trace.
pub const PERFMON: u32 = 38;

/// CAP_BPF: BPF programs and maps.
pub const BPF: u32 = 39;

const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Whether the calling thread has a capability in its effective set.
pub fn has(capability: u32) -> bool {
    let mut sets = [Sets::default(); 2];
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: version 3 reads a header and writes two sets, which both outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) };
    let word = sets[(capability / 32) as usize % 2].effective;
    result == 0 && word & (1 << (capability % 32)) != 0
}

/// Bounds what the calling thread, and whatever it starts, can ever have to these. It takes CAP_SETPCAP, which goes
/// with the user: so it comes before a change of user.
pub fn bound(capabilities: &[u32]) {
    for capability in (0..64).filter(|capability| !capabilities.contains(capability)) {
        // SAFETY: takes numbers only. A number beyond the kernel's last, and a process without CAP_SETPCAP (whose
        // bounding set no_new_privs makes harmless), are refused, which changes nothing.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, u64::from(capability), 0, 0, 0) };
    }
}

/// Gives up every capability of the calling thread but these, for itself and for whatever it starts, and the ability
/// to gain any by executing programs. To be called before other threads start: each has its own.
pub fn keep_only(capabilities: &[u32]) -> Result<()> {
    let failed = |what: &str| Error::io(what, io::Error::last_os_error());
    let kept = |capability: u32| capabilities.contains(&capability);
    bound(capabilities);
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(failed("forbid new privileges"));
    }
    let mut sets = [Sets::default(); 2];
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: as in `has`.
    if unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) } != 0 {
        return Err(failed("read the capabilities"));
    }
    for (index, set) in sets.iter_mut().enumerate() {
        let bits = (0..32).filter(|bit| kept(32 * index as u32 + bit)).fold(0, |bits, bit| bits | 1 << bit);
        set.permitted &= bits;
        // After a change of user the kernel leaves them permitted, not effective.
        set.effective = set.permitted;
        set.inheritable &= bits;
    }
    // SAFETY: version 3 reads a header and two sets, which both outlive the call.
    if unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) } != 0 {
        return Err(failed("give up capabilities"));
    }
    Ok(())
}

/// Hands these capabilities, which the process has, on to the programs it executes, whoever its user is.
pub fn raise_ambient(capabilities: &[u32]) -> Result<()> {
    let failed = |what: &str| Error::io(what, io::Error::last_os_error());
    let mut sets = [Sets::default(); 2];
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: as in `has`.
    if unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) } != 0 {
        return Err(failed("read the capabilities"));
    }
    let bit = |capability: u32| ((capability / 32) as usize % 2, 1u32 << (capability % 32));
    // What the process does not have it cannot hand on.
    let own = |capability: &&u32| sets[bit(**capability).0].permitted & bit(**capability).1 != 0;
    let capabilities: Vec<u32> = capabilities.iter().filter(own).copied().collect();
    for capability in &capabilities {
        sets[bit(*capability).0].inheritable |= bit(*capability).1;
    }
    // SAFETY: as in `keep_only`.
    if unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) } != 0 {
        return Err(failed("make capabilities inheritable"));
    }
    for capability in capabilities {
        // SAFETY: takes numbers only.
        let raised = unsafe {
            libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, u64::from(capability), 0, 0)
        };
        if raised != 0 {
            return Err(failed("hand capabilities on"));
        }
    }
    Ok(())
}
