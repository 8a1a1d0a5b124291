//! What is registered through struct_ops links, by anybody, and whether it is ours.
//!
//! A link names its map; the map's value names the congestion control and its programs; a program names its maps,
//! among them the settings that our objects carry (`struct lf_settings`).

use crate::{Error, Result, object::refused};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    btf::{
        Btf,
        types::{MemberAttr, Struct},
    },
    query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter, ProgInfoQueryOptions},
};
use longfat_cc::{Algorithm, Tunables};
use std::{
    os::fd::{FromRawFd, OwnedFd},
    sync::OnceLock,
};

/// A congestion control registered through a link.
#[derive(Debug)]
pub struct Loaded {
    /// Name of the congestion control in the kernel.
    pub kernel_name: String,
    /// The link that keeps it registered.
    pub link_id: u32,
    /// What our objects carry; `None` when it is not one of ours.
    pub settings: Option<Settings>,
}

/// `struct lf_settings` and the tunables after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Id of the sources it was built from.
    pub build_id: u64,
    /// How many times slower its connections' time passes.
    pub dilation: u32,
    values: Vec<u32>,
}

/// The object's map of them, and its layout.
pub const SETTINGS_MAP: &str = ".rodata.lf";
pub const RECORD_OFFSET: usize = 8;
pub const DILATION_OFFSET: usize = 12;
pub const VALUES_OFFSET: usize = 16;

impl Settings {
    /// The tunables, read as those of `algorithm`.
    pub fn tunables(&self, algorithm: Algorithm) -> Tunables {
        Tunables::from_values(algorithm, self.values.iter().copied())
    }

    /// Whether loading the algorithm anew, at the kernel's own speed, would change nothing.
    pub fn is_this_build_with(&self, tunables: &Tunables) -> bool {
        let same = self.build_id == longfat_cc::build_id() && self.dilation == 1;
        same && self.tunables(tunables.algorithm()) == *tunables
    }

    fn parse(bytes: &[u8]) -> Option<Settings> {
        let build_id = u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
        let dilation = u32::from_ne_bytes(bytes.get(DILATION_OFFSET..VALUES_OFFSET)?.try_into().ok()?).max(1);
        let words = bytes.get(VALUES_OFFSET..)?.chunks_exact(4);
        let values = words.map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect();
        Some(Settings { build_id, dilation, values })
    }

    /// Writes them into an object that is about to be loaded.
    pub fn write(bytes: &mut [u8], tunables: &Tunables, dilation: u32, record: bool) {
        bytes[..8].copy_from_slice(&longfat_cc::build_id().to_ne_bytes());
        bytes[RECORD_OFFSET..RECORD_OFFSET + 4].copy_from_slice(&u32::from(record).to_ne_bytes());
        bytes[DILATION_OFFSET..VALUES_OFFSET].copy_from_slice(&dilation.to_ne_bytes());
        for (to, from) in bytes[VALUES_OFFSET..].chunks_exact_mut(4).zip(tunables.values()) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
    }
}

/// Everything registered through a link.
pub fn all() -> Result<Vec<Loaded>> {
    let layout = layout()?;
    let mut found = Vec::new();
    for link in LinkInfoIter::default() {
        let LinkTypeInfo::StructOps(info) = link.info else { continue };
        // The link may have gone meanwhile, or belong to another kind of struct_ops.
        let Some(ops) = read_ops(info.map_id, layout) else { continue };
        let settings = map_of_program(ops.ssthresh_program, SETTINGS_MAP);
        let settings = settings.and_then(|map| Settings::parse(&first_value(&map)?));
        found.push(Loaded { kernel_name: ops.name, link_id: link.id, settings });
    }
    Ok(found)
}

/// A map that the `init` program of a registered congestion control uses; `None` when that is not registered through
/// a link, or uses none of that name.
pub fn map_of(kernel_name: &str, map: &str) -> Result<Option<MapHandle>> {
    let layout = layout()?;
    let registered = LinkInfoIter::default().filter_map(|link| match link.info {
        LinkTypeInfo::StructOps(info) => read_ops(info.map_id, layout),
        _ => None,
    });
    let mut named = registered.filter(|ops| ops.name == kernel_name);
    Ok(named.find_map(|ops| map_of_program(ops.init_program, map)))
}

/// The one of that name.
pub fn find(kernel_name: &str) -> Result<Option<Loaded>> {
    Ok(all()?.into_iter().find(|loaded| loaded.kernel_name == kernel_name))
}

impl Loaded {
    /// The link itself: registered at least as long as this is open. `None` when it went meanwhile.
    pub fn open(&self) -> Option<OwnedFd> {
        // SAFETY: the call returns a new descriptor that nothing else owns, or a negative error.
        unsafe {
            let fd = libbpf_sys::bpf_link_get_fd_by_id(self.link_id);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        }
    }
}

/// Offsets in the value of a tcp_congestion_ops map.
#[derive(Debug, Clone, Copy)]
struct Layout {
    value_bytes: usize,
    /// Where user space reads the id of the `ssthresh` program, which every congestion control has.
    ssthresh: usize,
    /// Where user space reads the id of the `init` program.
    init: usize,
    name: usize,
}

/// What a tcp_congestion_ops map says.
struct Ops {
    name: String,
    ssthresh_program: u32,
    init_program: u32,
}

const NAME_BYTES: usize = 16;

fn layout() -> Result<Layout> {
    static LAYOUT: OnceLock<Option<Layout>> = OnceLock::new();
    LAYOUT.get_or_init(read_layout).ok_or_else(|| {
        let absent = std::io::Error::from(std::io::ErrorKind::NotFound);
        Error::io("find tcp_congestion_ops in the kernel's type information", absent)
    })
}

fn read_layout() -> Option<Layout> {
    let btf = Btf::from_vmlinux().ok()?;
    let value: Struct<'_> = btf.type_by_name("bpf_struct_ops_tcp_congestion_ops")?;
    let ops: Struct<'_> = btf.type_by_name("tcp_congestion_ops")?;
    let data = offset(&value, "data")?;
    Some(Layout {
        value_bytes: data + offset(&ops, "name")? + NAME_BYTES,
        ssthresh: data + offset(&ops, "ssthresh")?,
        init: data + offset(&ops, "init")?,
        name: data + offset(&ops, "name")?,
    })
}

fn offset(of: &Struct<'_>, member: &str) -> Option<usize> {
    let found = of.iter().find(|candidate| candidate.name.is_some_and(|name| name == member))?;
    match found.attr {
        MemberAttr::Normal { offset } => Some(offset as usize / 8),
        MemberAttr::BitField { .. } => None,
    }
}

/// The name in a struct_ops map, and the ids of its programs; 0 where it has none.
fn read_ops(map_id: u32, layout: Layout) -> Option<Ops> {
    let value = first_value(&MapHandle::from_map_id(map_id).ok()?)?;
    if value.len() < layout.value_bytes {
        return None;
    }
    let name = value[layout.name..].split(|byte| *byte == 0).next()?;
    let program = |at: usize| -> Option<u32> {
        Some(u64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?) as u32)
    };
    Some(Ops {
        name: String::from_utf8(name.to_vec()).ok()?,
        ssthresh_program: program(layout.ssthresh)?,
        init_program: program(layout.init)?,
    })
}

/// A program's map by its name.
fn map_of_program(program_id: u32, name: &str) -> Option<MapHandle> {
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let program = ProgInfoIter::with_query_opts(options).find(|program| program.id == program_id)?;
    let mut maps = program.map_ids.into_iter().filter_map(|id| MapHandle::from_map_id(id).ok());
    maps.find(|map| map.name() == name)
}

fn first_value(map: &MapHandle) -> Option<Vec<u8>> {
    map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()?
}

/// Replaces what a link registers; sockets that use the old one keep it.
pub fn replace(link: &OwnedFd, map: &impl std::os::fd::AsFd, kernel_name: &str) -> Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: both descriptors are open, null options are allowed.
    let result =
        unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), map.as_fd().as_raw_fd(), std::ptr::null()) };
    if result == 0 {
        return Ok(());
    }
    Err(refused(
        format!("replace '{kernel_name}' in the kernel"),
        libbpf_rs::Error::from_raw_os_error(-result),
    ))
}
