//! What this kernel lacks, found without changing anything.
//!
//! Facts are gathered first; what they mean is decided by a pure function.

use longfat_host::support::Missing;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Something a command needs of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Congestion controls as BPF programs, for the life of a process.
    CongestionControl,
    /// Congestion controls that outlive the process: a BPF file system.
    Pinning,
    /// Choosing the congestion control of a program's sockets: cgroup2.
    CgroupChoice,
    /// Steering the windows of a program's sockets: programs of cgroups and of its packets that know sockets.
    WindowSteering,
    /// Marking arriving packets: TCX programs that know sockets.
    Marking,
    /// Seeing every packet of an interface: TCX programs, and maps that user space shares.
    Capture,
    /// Reading and setting control blocks of any socket: struct_ops and an iterator over TCP sockets.
    ControlBlocks,
    /// Tracing every ACK: typed tracepoints and a ring buffer.
    Tracing,
}

/// What is missing for all of `needs`; empty when this kernel can do it.
pub fn missing(needs: &[Capability]) -> Vec<Missing> {
    missing_from(&Facts::gather(), needs)
}

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    release: String,
    /// CapEff of /proc/self/status.
    capabilities: u64,
    btf: bool,
    struct_ops: bool,
    struct_ops_link: bool,
    ring_buffer: bool,
    /// An iterator over TCP sockets, and storage in them.
    tcp_iterator: bool,
    /// Tracepoints with the kernel's types.
    tracing: bool,
    sock_ops: bool,
    /// Programs on the packets of a cgroup.
    cgroup_packets: bool,
    /// Links of tc programs.
    tcx_links: bool,
    /// Links of tc programs, and storage of sockets.
    tcx: bool,
    /// `bpf` and `cgroup2` in /proc/filesystems.
    bpf_filesystem: bool,
    cgroup2_filesystem: bool,
    cgroup2_mounted: bool,
}

impl Facts {
    fn lack(&self, absent: bool, what: &str, why: &str, mend: &str) -> Option<Missing> {
        absent.then(|| Missing::new(what, format!("{why} (this is Linux {})", self.release), mend))
    }

    fn gather() -> Facts {
        let capabilities = effective_capabilities();
        let may_probe = RIGHTS[..2].iter().all(|(bit, _)| has(capabilities, *bit));
        let vmlinux = may_probe.then(|| libbpf_rs::btf::Btf::from_vmlinux().ok()).flatten();
        let has_type = |name: &str| {
            let found =
                vmlinux.as_ref().and_then(|btf| btf.type_by_name::<libbpf_rs::btf::types::Struct<'_>>(name));
            found.is_some()
        };
        Facts {
            release: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            capabilities,
            btf: has_btf(),
            struct_ops: may_probe
                && has_type("tcp_congestion_ops")
                && probe_program(libbpf_sys::BPF_PROG_TYPE_STRUCT_OPS),
            struct_ops_link: may_probe && has_type("bpf_struct_ops_link"),
            ring_buffer: may_probe && probe_map(libbpf_sys::BPF_MAP_TYPE_RINGBUF),
            tcp_iterator: may_probe
                && has_type("bpf_iter__tcp")
                && probe_map(libbpf_sys::BPF_MAP_TYPE_SK_STORAGE),
            // libbpf's own probe of tracing programs asks for fentry, which is another matter.
            tracing: may_probe && has_type("bpf_raw_tp_link"),
            sock_ops: may_probe
                && probe_program(libbpf_sys::BPF_PROG_TYPE_SOCK_OPS)
                && probe_program(libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCKOPT),
            cgroup_packets: may_probe && probe_program(libbpf_sys::BPF_PROG_TYPE_CGROUP_SKB),
            tcx_links: may_probe && has_type("tcx_link"),
            tcx: may_probe && has_type("tcx_link") && probe_map(libbpf_sys::BPF_MAP_TYPE_SK_STORAGE),
            bpf_filesystem: read("/proc/filesystems").contains("\tbpf\n"),
            cgroup2_filesystem: read("/proc/filesystems").contains("\tcgroup2\n"),
            cgroup2_mounted: crate::cgroup::mount_point().is_some(),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn effective_capabilities() -> u64 {
    let status = read("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
}

/// CAP_SYS_ADMIN includes the two that were once part of it.
fn has(capabilities: u64, capability: u32) -> bool {
    let has = |capability| capabilities >> capability & 1 == 1;
    has(capability) || (matches!(capability, CAP_BPF | CAP_PERFMON) && has(CAP_SYS_ADMIN))
}

/// The first two load programs. CAP_SYS_ADMIN, because we look at links and maps by id and mount bpffs.
const RIGHTS: [(u32, &str); 3] =
    [(CAP_BPF, "CAP_BPF"), (CAP_NET_ADMIN, "CAP_NET_ADMIN"), (CAP_SYS_ADMIN, "CAP_SYS_ADMIN")];
/// Marking does neither; its program reads the kernel's sockets.
const RIGHTS_TO_MARK: [(u32, &str); 3] =
    [(CAP_BPF, "CAP_BPF"), (CAP_NET_ADMIN, "CAP_NET_ADMIN"), (CAP_PERFMON, "CAP_PERFMON")];

fn probe_program(kind: libbpf_sys::bpf_prog_type) -> bool {
    // SAFETY: a null `opts` is allowed.
    unsafe { libbpf_sys::libbpf_probe_bpf_prog_type(kind, std::ptr::null()) == 1 }
}

fn probe_map(kind: libbpf_sys::bpf_map_type) -> bool {
    // SAFETY: a null `opts` is allowed.
    unsafe { libbpf_sys::libbpf_probe_bpf_map_type(kind, std::ptr::null()) == 1 }
}

fn missing_from(facts: &Facts, needs: &[Capability]) -> Vec<Missing> {
    let only_marks = !needs.is_empty() && needs.iter().all(|need| *need == Capability::Marking);
    let rights = if only_marks { RIGHTS_TO_MARK } else { RIGHTS };
    if let Some(missing) = missing_rights_of(facts.capabilities, &rights) {
        // Nothing else can be known without them.
        return vec![missing];
    }
    let mut missing: Vec<Missing> = Vec::new();
    for thing in needs.iter().flat_map(|need| missing_one(facts, *need)) {
        // Several needs may want the same thing.
        if !missing.contains(&thing) {
            missing.push(thing);
        }
    }
    missing
}

/// The right to load BPF programs, unless this process has it.
pub fn missing_rights() -> Option<Missing> {
    missing_rights_of(effective_capabilities(), &RIGHTS)
}

/// Whether the kernel tells the types of its structures.
pub fn has_btf() -> bool {
    Path::new("/sys/kernel/btf/vmlinux").exists()
}

/// Where cgroup2 is mounted.
pub fn cgroup2_mount() -> Option<PathBuf> {
    crate::cgroup::mount_point()
}

fn missing_rights_of(capabilities: u64, wanted: &[(u32, &str)]) -> Option<Missing> {
    let lacking: Vec<_> =
        wanted.iter().filter(|(bit, _)| !has(capabilities, *bit)).map(|(_, name)| *name).collect();
    let why = format!("this process lacks {}", lacking.join(", "));
    (!lacking.is_empty()).then(|| Missing::new("the right to load BPF programs", why, "run it with sudo"))
}

fn missing_one(facts: &Facts, need: Capability) -> Vec<Missing> {
    let lack = |absent: bool, what: &str, why: &str, mend: &str| facts.lack(absent, what, why, mend);
    let no_btf = || {
        lack(
            !facts.btf,
            "the kernel's type information",
            "/sys/kernel/btf/vmlinux is not there",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions' kernels are",
        )
    };
    let found = match need {
        Capability::CongestionControl => vec![
            no_btf(),
            lack(
                facts.btf && !facts.struct_ops,
                "congestion controls as BPF programs (struct_ops)",
                "the kernel refuses them",
                "use a kernel built with CONFIG_BPF_JIT=y and BPF not locked down",
            ),
            lack(
                facts.btf && facts.struct_ops && !facts.struct_ops_link,
                "struct_ops links",
                "the kernel does not know them",
                "use Linux 6.4 or newer",
            ),
            // The programs refer to one even when they do not record.
            lack(!facts.ring_buffer, "BPF ring buffers", "the kernel refuses them", "use Linux 5.8 or newer"),
        ],
        Capability::ControlBlocks | Capability::Tracing => return missing_for_control_blocks(facts, need),
        Capability::Pinning => vec![lack(
            !facts.bpf_filesystem,
            "the BPF file system",
            "/proc/filesystems does not name it",
            "use a kernel built with CONFIG_BPF_SYSCALL=y",
        )],
        Capability::Marking => vec![
            no_btf(),
            lack(
                facts.btf && !facts.tcx,
                "BPF programs on arriving packets (tcx) that know sockets",
                "the kernel does not know them",
                "use Linux 6.6 or newer, built with CONFIG_NET_XGRESS=y and CONFIG_BPF_SYSCALL=y",
            ),
        ],
        Capability::WindowSteering => vec![
            no_btf(),
            lack(
                !(facts.cgroup_packets && facts.tcp_iterator),
                "BPF programs on the packets of a cgroup that know sockets",
                "the kernel refuses them",
                "use Linux 6.4 or newer, built with CONFIG_CGROUP_BPF=y",
            ),
        ],
        Capability::Capture => vec![lack(
            !facts.tcx_links,
            "BPF programs on the packets of an interface (tcx)",
            "the kernel does not know them",
            "use Linux 6.6 or newer, built with CONFIG_NET_XGRESS=y, CONFIG_BPF_SYSCALL=y and \
             CONFIG_DEBUG_INFO_BTF=y",
        )],
        Capability::CgroupChoice => return missing_for_choosing(facts),
    };
    found.into_iter().flatten().collect()
}

fn missing_for_choosing(facts: &Facts) -> Vec<Missing> {
    let programs = facts.lack(
        !facts.sock_ops,
        "BPF programs of cgroups (sock_ops, setsockopt)",
        "the kernel refuses them",
        "use a kernel built with CONFIG_CGROUP_BPF=y",
    );
    let mend = if facts.cgroup2_filesystem {
        "mount one: mkdir -p /run/cgroup2 && mount -t cgroup2 none /run/cgroup2; 'ip netns exec' hides the host's, \
         'nsenter --net=/run/netns/NAME' does not"
    } else {
        "use a kernel built with CONFIG_CGROUPS=y"
    };
    let hierarchy = facts.lack(!facts.cgroup2_mounted, "a cgroup2 hierarchy", "none is mounted", mend);
    programs.into_iter().chain(hierarchy).collect()
}

/// Control blocks are set by going through congestion controls, and found by an iterator; tracing needs that too.
fn missing_for_control_blocks(facts: &Facts, need: Capability) -> Vec<Missing> {
    let by = if need == Capability::Tracing { facts.tracing } else { true };
    let mut found = missing_one(facts, Capability::CongestionControl);
    found.extend(facts.lack(
        facts.btf && !(facts.tcp_iterator && by),
        "BPF iterators over TCP sockets and typed tracepoints",
        "the kernel refuses them",
        "use Linux 6.4 or newer",
    ));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn able() -> Facts {
        Facts {
            release: "6.12.0".into(),
            capabilities: u64::MAX,
            btf: true,
            struct_ops: true,
            struct_ops_link: true,
            ring_buffer: true,
            tcp_iterator: true,
            tracing: true,
            sock_ops: true,
            cgroup_packets: true,
            tcx_links: true,
            tcx: true,
            bpf_filesystem: true,
            cgroup2_filesystem: true,
            cgroup2_mounted: true,
        }
    }

    const ALL: [Capability; 8] = [
        Capability::CongestionControl,
        Capability::Pinning,
        Capability::CgroupChoice,
        Capability::WindowSteering,
        Capability::Marking,
        Capability::Capture,
        Capability::ControlBlocks,
        Capability::Tracing,
    ];

    fn words(facts: &Facts) -> String {
        missing_from(facts, &ALL).iter().map(|missing| format!("{missing}\n")).collect()
    }

    #[test]
    fn a_kernel_with_everything_lacks_nothing() {
        assert_eq!(missing_from(&able(), &ALL), []);
    }

    #[test]
    fn without_rights_only_the_rights_are_named() {
        let facts = Facts { capabilities: 1 << CAP_NET_ADMIN, btf: false, ..able() };
        assert_eq!(
            words(&facts),
            "the right to load BPF programs: this process lacks CAP_BPF, CAP_SYS_ADMIN; run it with sudo\n"
        );
    }

    #[test]
    fn marking_needs_no_rights_over_the_whole_system() {
        let with = |bits: &[u32]| Facts { capabilities: bits.iter().map(|bit| 1 << bit).sum(), ..able() };
        let enough = with(&[CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON]);
        assert_eq!(missing_from(&enough, &[Capability::Marking]), []);
        assert_eq!(missing_from(&enough, &[Capability::Marking, Capability::Pinning]).len(), 1);
        assert_eq!(missing_from(&with(&[CAP_NET_ADMIN, CAP_SYS_ADMIN]), &[Capability::Marking]), []);
        let why = &missing_from(&with(&[CAP_NET_ADMIN]), &[Capability::Marking])[0].why;
        assert_eq!(why, "this process lacks CAP_BPF, CAP_PERFMON");
    }

    #[test]
    fn an_old_kernel_is_told_which_release_has_what_it_lacks() {
        let facts = Facts { struct_ops_link: false, release: "5.15.0".into(), ..able() };
        assert_eq!(
            words(&facts),
            "struct_ops links: the kernel does not know them (this is Linux 5.15.0); use Linux 6.4 or newer\n"
        );
    }

    #[test]
    fn every_lack_is_listed_at_once_and_only_for_what_is_needed() {
        let facts =
            Facts { btf: false, sock_ops: false, cgroup2_mounted: false, bpf_filesystem: false, ..able() };
        assert_eq!(missing_from(&facts, &ALL[..4]).len(), 4);
        assert_eq!(missing_from(&facts, &[Capability::CongestionControl]).len(), 1);
    }

    #[test]
    fn this_machine_is_asked_without_error() {
        // CI runs as root on a kernel that can do all of it; a developer's unprivileged run names the rights.
        let missing = missing(&ALL);
        assert!(missing.is_empty() || !nix::unistd::geteuid().is_root(), "{missing:?}");
    }
}
