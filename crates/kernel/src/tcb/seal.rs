//! The seal of saved control blocks. A congestion control's private state is memory of the kernel: divisors, indices,
//! modes. What comes out of a file goes back in only if this host wrote it, which the file proves with a key of the
//! host's.

use super::saved::SavedBlocks;
use hmac::{Hmac, KeyInit, Mac};
use longfat_host::own::{OwnDirectory, read_own};
use longfat_schema::hex::{from_hex, to_hex};
use sha2::Sha256;
use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Where root keeps what lives until the machine restarts, as cookies do.
const DIRECTORY: &str = "/run/longfat";
const FILE: &str = "tcb.key";
const KEY_BYTES: usize = 32;

/// The key of this host, for root alone to read. It is made when it is first asked for and lost when the machine
/// restarts.
#[derive(Clone, PartialEq, Eq)]
pub struct HostKey([u8; KEY_BYTES]);

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostKey")
    }
}

impl HostKey {
    /// The key of this host.
    ///
    /// # Errors
    /// This user may not have it, or others could have changed it.
    pub fn of_host() -> io::Result<HostKey> {
        HostKey::within(Path::new(DIRECTORY))
    }

    fn within(directory: &Path) -> io::Result<HostKey> {
        let directory = OwnDirectory::make(directory).map_err(io::Error::other)?;
        let path = directory.path().join(FILE);
        if let Some(bytes) = read_own(&path)? {
            let wrong = |_| io::Error::other(format!("{DIRECTORY}/{FILE} holds no key; remove it"));
            return bytes.try_into().map(HostKey).map_err(wrong);
        }
        let mut key = [0; KEY_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&key)?;
        Ok(HostKey(key))
    }

    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length (RFC 2104, section 2)")]
    fn mac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length").chain_update(bytes)
    }
}

/// What is sealed: everything but the seal. `None` cannot happen: every field has a form in JSON.
fn sealed_bytes(saved: &SavedBlocks) -> Option<Vec<u8>> {
    serde_json::to_vec(&SavedBlocks { seal: None, ..saved.clone() }).ok()
}

impl SavedBlocks {
    /// Saved blocks with the seal of this host.
    pub fn sealed(self, key: &HostKey) -> SavedBlocks {
        let tag = sealed_bytes(&self).map(|bytes| key.mac(&bytes).finalize().into_bytes());
        let seal = tag.map(|tag| to_hex(&tag));
        SavedBlocks { seal, ..self }
    }

    /// Whether it is as this host sealed it.
    pub fn is_sealed_by(&self, key: &HostKey) -> bool {
        let tag = self.seal.as_deref().and_then(from_hex);
        tag.zip(sealed_bytes(self)).is_some_and(|(tag, bytes)| key.mac(&bytes).verify_slice(&tag).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ControlBlock, Saved, block::RawBlock};
    use super::*;

    #[test]
    fn only_what_this_host_sealed_and_nobody_changed_has_its_seal() {
        let place = tempfile::tempdir().unwrap();
        let key = HostKey::within(&place.path().join("a")).unwrap();
        assert_eq!(HostKey::within(&place.path().join("a")).unwrap(), key, "it is kept");
        let other = HostKey::within(&place.path().join("b")).unwrap();
        let raw = RawBlock { cookie: 5, state: [7; 13], family: libc::AF_INET as u8, ..RawBlock::default() };
        let saved = SavedBlocks {
            version: 1,
            boot_id: "b".into(),
            saved_unix_ms: 3,
            connections: vec![Saved::from(&ControlBlock::from(&raw))],
            seal: None,
        };
        assert!(!saved.is_sealed_by(&key), "without a seal");
        let sealed = saved.sealed(&key);
        let text = serde_json::to_string(&sealed).unwrap();
        let read: SavedBlocks = serde_json::from_str(&text).unwrap();
        assert!(read.is_sealed_by(&key) && !read.is_sealed_by(&other));
        let mut changed = read.clone();
        changed.connections[0].private[2] = 0;
        assert!(!changed.is_sealed_by(&key));
        for seal in ["", "0", "zz", "é", &"00".repeat(32)] {
            let wrong = SavedBlocks { seal: Some(seal.to_owned()), ..read.clone() };
            assert!(!wrong.is_sealed_by(&key), "{seal}");
        }
    }
}
