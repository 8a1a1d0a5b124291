//! BPF objects: opened, set, loaded; and what libbpf says when the kernel refuses.

use crate::{Error, Result, start};
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel};
use std::sync::{Mutex, Once};

/// Bytes of an object where an ELF reader may take them for structs.
#[repr(C, align(8))]
pub struct Aligned<T: ?Sized>(pub T);

/// A compiled BPF object of the build, aligned.
macro_rules! bpf_object {
    ($file:expr) => {{
        static OBJECT: &$crate::object::Aligned<[u8]> = &$crate::object::Aligned(*include_bytes!($file));
        &OBJECT.0
    }};
}
pub(crate) use bpf_object;

/// What libbpf printed since it was last asked; its messages go nowhere else.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());
static CAPTURE: Once = Once::new();

/// Lines of it worth showing: the verifier's verdict is at the end.
const LOG_LINES: usize = 12;

#[allow(clippy::needless_pass_by_value, reason = "libbpf-rs asks for this signature")]
fn capture(_level: PrintLevel, message: String) {
    if let Ok(mut log) = LOG.lock() {
        log.push(message.trim_end().to_owned());
    }
}

fn take_log() -> String {
    let taken = LOG.lock().map(|mut log| std::mem::take(&mut *log)).unwrap_or_default();
    let lines: Vec<_> = taken.iter().flat_map(|message| message.lines()).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| format!("\n  {line}")).collect()
}

/// An error with libbpf's last words.
pub fn refused(what: impl Into<String>, source: libbpf_rs::Error) -> Error {
    Error::Bpf { what: what.into(), source, log: take_log() }
}

/// Opens an object for setting.
pub fn open(name: &str, bytes: &[u8]) -> Result<OpenObject> {
    CAPTURE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, capture)));
    });
    take_log();
    ObjectBuilder::default()
        .open_memory(bytes)
        .map_err(|source| refused(format!("open the BPF object of '{name}'"), source))
}

/// Changes the initial bytes of a map: constants, or a struct_ops value.
///
/// # Errors
/// When the object has no such map with initial bytes.
pub fn set_initial(object: &mut OpenObject, map: &str, change: impl FnOnce(&mut [u8])) -> Result<()> {
    let mut maps = object.maps_mut();
    let mut found = maps.find(|candidate| candidate.name() == map);
    match found.as_mut().and_then(|map| map.initial_value_mut()) {
        Some(bytes) => {
            change(bytes);
            Ok(())
        }
        None => Err(missing_map(map)),
    }
}

/// Loads it, with the programs that this kernel calls: the verifier runs.
pub fn load(name: &str, mut object: OpenObject) -> Result<Object> {
    start::choose(&mut object);
    object.load().map_err(|source| refused(format!("load the BPF programs of '{name}'"), source))
}

/// A map of its own, that outlives the object.
pub fn map_handle(object: &Object, map: &str) -> Result<MapHandle> {
    let found = object.maps().find(|candidate| candidate.name() == map).ok_or_else(|| missing_map(map))?;
    MapHandle::try_from(&found).map_err(|source| refused(format!("share the map '{map}'"), source))
}

/// A little-endian integer at an offset of a map's first value.
pub fn read_u64(map: &MapHandle, offset: usize) -> Option<u64> {
    let value = map.lookup(&0u32.to_ne_bytes(), libbpf_rs::MapFlags::ANY).ok()??;
    Some(u64::from_ne_bytes(value.get(offset..offset + 8)?.try_into().ok()?))
}

/// The object was built without a map that this crate knows.
pub fn missing_map(map: &str) -> Error {
    Error::io(format!("find '{map}' in the BPF object"), std::io::Error::from(std::io::ErrorKind::NotFound))
}

/// Writes another name over the one the object was compiled with.
pub fn rename(ops: &mut [u8], from: &str, to: &str) {
    let at = ops.windows(from.len()).position(|window| window == from.as_bytes());
    if let Some(field) = at.and_then(|at| ops.get_mut(at..at + 16)) {
        field.fill(0);
        let length = to.len().min(15);
        field[..length].copy_from_slice(&to.as_bytes()[..length]);
    }
}
