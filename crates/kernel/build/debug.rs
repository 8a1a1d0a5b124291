//! Objects without debug information. clang has to make it, for types become BTF by it; nobody reads it afterwards,
//! and it names the folder in which it was made.

/// Octets of an ELF header and of a section's header (64 bits).
const HEADER: usize = 64;
const SECTION: usize = 64;
const NULL: u32 = 0;
const PROGBITS: u32 = 1;
const NOBITS: u32 = 8;

/// The object with all its sections, of which those with debug information are empty; nothing where it is no ELF
/// object of 64 bits, least octet first. Sections keep their numbers, so nothing that refers to them changes.
pub fn emptied(object: &[u8]) -> Option<Vec<u8>> {
    object.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let (start, count) = (usize::try_from(u64_at(object, 0x28)?).ok()?, u16_at(object, 0x3c)?);
    let mut headers = object.get(start..start + SECTION * usize::from(count))?.to_vec();
    let names = contents(object, headers.chunks(SECTION).nth(u16_at(object, 0x3e)?.into())?)?;
    let mut out = object.get(..HEADER)?.to_vec();
    for header in headers.chunks_mut(SECTION) {
        if is_debug(names, header)? {
            header[0x04..0x08].copy_from_slice(&PROGBITS.to_le_bytes());
            header[0x20..0x28].fill(0);
        }
        let alignment = usize::try_from(u64_at(header, 0x30)?.max(1)).ok()?;
        out.resize(out.len().next_multiple_of(alignment), 0);
        let kept = contents(object, header)?;
        header[0x18..0x20].copy_from_slice(&(out.len() as u64).to_le_bytes());
        out.extend_from_slice(kept);
    }
    out.resize(out.len().next_multiple_of(8), 0);
    let start = out.len() as u64;
    out[0x28..0x30].copy_from_slice(&start.to_le_bytes());
    out.extend_from_slice(&headers);
    Some(out)
}

fn is_debug(names: &[u8], header: &[u8]) -> Option<bool> {
    let name = names.get(u32_at(header, 0)? as usize..)?;
    Some([&b".debug_"[..], b".rel.debug_"].iter().any(|start| name.starts_with(start)))
}

fn contents<'a>(object: &'a [u8], header: &[u8]) -> Option<&'a [u8]> {
    if matches!(u32_at(header, 0x04)?, NULL | NOBITS) {
        return Some(&[]);
    }
    let (offset, size) =
        (usize::try_from(u64_at(header, 0x18)?).ok()?, usize::try_from(u64_at(header, 0x20)?).ok()?);
    object.get(offset..offset + size)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
