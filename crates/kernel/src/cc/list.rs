//! Every congestion control of this kernel and every one of ours, and who uses them.

use super::loaded::{self, Loaded};
use crate::{Result, bpffs, sockets};
use longfat_cc::Algorithm;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// Origin of a congestion control's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Built into the kernel or a module of it.
    Kernel,
    /// A congestion control of this program.
    Longfat,
    /// Another program's BPF.
    Other,
}

/// How it is in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// Part of it.
    Builtin,
    /// Pinned: stays until it is unloaded.
    Pinned,
    /// Held by a running process.
    Held,
    /// Pinned or held: which of both is not seen from this mount namespace.
    Unseen,
    /// Not there; it can be loaded.
    Absent,
}

/// A process with sockets that use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Pid of the process.
    pub pid: i32,
    /// Name of the process.
    pub name: String,
    /// How many of its sockets.
    pub sockets: usize,
}

/// One congestion control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Name in the kernel.
    pub name: String,
    /// Origin of the congestion control.
    pub origin: Origin,
    /// How it is in the kernel.
    pub presence: Presence,
    /// Whether new sockets of this namespace get it.
    pub default: bool,
    /// How ours is set, or would be.
    pub tunables: BTreeMap<&'static str, u32>,
    /// For ours that are loaded: whether this build made it.
    pub same_build: Option<bool>,
    /// TCP sockets that use it, over all network namespaces.
    pub sockets: usize,
    /// Processes that have them open; a closing socket has none.
    pub processes: Vec<Process>,
}

/// Every one there is, the kernel's first, then ours.
pub fn list() -> Result<Vec<Entry>> {
    let loaded = loaded::all()?;
    let available = sysctl("tcp_available_congestion_control")?;
    let default = sysctl("tcp_congestion_control")?;
    let mut names: BTreeSet<(bool, String)> = BTreeSet::new();
    names.extend(available.split_whitespace().map(|name| (Algorithm::is_our_name(name), name.to_owned())));
    names.extend(Algorithm::all().map(|algorithm| (true, algorithm.kernel_name())));
    let present: BTreeSet<_> = available.split_whitespace().collect();
    let mut entries: Vec<_> = names
        .into_iter()
        .map(|(_, name)| {
            let found = loaded.iter().find(|loaded| loaded.kernel_name == name);
            let is_present = present.contains(name.as_str());
            Entry { default: name == default, ..entry(name, found, is_present) }
        })
        .collect();
    count_uses(&mut entries)?;
    Ok(entries)
}

fn sysctl(name: &str) -> Result<String> {
    Ok(longfat_host::sysctl::read(&format!("net.ipv4.{name}"))?)
}

fn entry(name: String, found: Option<&Loaded>, present: bool) -> Entry {
    let settings = found.and_then(|found| found.settings.as_ref());
    // A name of ours without our settings is somebody else's.
    let algorithm = Algorithm::find(&name).ok().filter(|ours| ours.kernel_name() == name);
    let tunables = algorithm.map(|ours| match settings {
        Some(settings) => settings.tunables(ours),
        None => longfat_cc::Tunables::defaults(ours),
    });
    let origin = match (found, settings, algorithm) {
        (_, Some(_), _) => Origin::Longfat,
        (None, None, Some(_)) if !present => Origin::Longfat,
        (Some(_), None, _) | (None, None, Some(_)) => Origin::Other,
        _ => Origin::Kernel,
    };
    let presence = match (found, present) {
        (Some(_), _) if fs::exists(bpffs::pin_path(&name)).unwrap_or(false) => Presence::Pinned,
        (Some(_), _) if bpffs::hides_pins() => Presence::Unseen,
        (Some(_), _) => Presence::Held,
        (None, true) => Presence::Builtin,
        (None, false) => Presence::Absent,
    };
    Entry {
        name,
        origin,
        presence,
        default: false,
        tunables: tunables.map(|tunables| tunables.iter().collect()).unwrap_or_default(),
        same_build: settings.map(|settings| settings.build_id == longfat_cc::build_id()),
        sockets: 0,
        processes: Vec::new(),
    }
}

fn count_uses(entries: &mut [Entry]) -> Result<()> {
    let uses = sockets::all()?;
    // Who has them open is asked for ours only: it walks every descriptor of every process.
    let of_ours: BTreeSet<u32> =
        uses.iter().filter(|socket| Algorithm::is_our_name(&socket.cc)).map(|socket| socket.inode).collect();
    let owners = sockets::owners(&of_ours);
    for entry in entries {
        let mine = || uses.iter().filter(|socket| socket.cc == entry.name);
        let mut processes: BTreeMap<i32, Process> = BTreeMap::new();
        for (pid, name) in mine().filter_map(|socket| owners.get(&socket.inode)) {
            let process = Process { pid: *pid, name: name.to_string(), sockets: 0 };
            processes.entry(*pid).or_insert(process).sockets += 1;
        }
        entry.sockets = mine().count();
        entry.processes = processes.into_values().collect();
    }
    Ok(())
}
