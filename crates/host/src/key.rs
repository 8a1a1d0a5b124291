//! A key that some hosts share and nobody else has, and the tags by which they know each other's words.

use crate::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use longfat_schema::hex::{from_hex, to_hex};
use sha2::Sha256;
use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Bytes of a tag: HMAC-SHA-256 (RFC 2104, FIPS 180-4).
pub const TAG_BYTES: usize = 32;
/// Fewest bytes of a key: 128 bits.
pub const KEY_MIN_BYTES: usize = 16;
/// Bytes of a key that we make: the length of the hash (RFC 2104, section 3).
const NEW_KEY_BYTES: usize = 32;

/// A shared key.
#[derive(Clone)]
pub struct Key {
    secret: Vec<u8>,
    id: u32,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:08x})", self.id)
    }
}

impl Key {
    /// A key of these bytes.
    ///
    /// # Errors
    /// When there are fewer than 16.
    pub fn new(secret: &[u8]) -> Result<Key> {
        if secret.len() < KEY_MIN_BYTES {
            return Err(Error::Key(format!("has {} bytes, fewer than {KEY_MIN_BYTES}", secret.len())));
        }
        let mut key = Key { secret: secret.to_vec(), id: 0 };
        let tag = key.tag(b"longfat mobility: which key");
        key.id = u32::from_be_bytes([tag[0], tag[1], tag[2], tag[3]]);
        Ok(key)
    }

    /// Reads a key file: one line of hexadecimal digits that nobody but its owner may read.
    ///
    /// # Errors
    /// When the file is not there, others may read it, or it holds no key.
    pub fn read(path: &Path) -> Result<Key> {
        let failed = |source: io::Error| {
            let mend = match source.kind() {
                io::ErrorKind::NotFound => " ('longfat transfer key' makes one)",
                _ => "",
            };
            Error::io(format!("read the key '{}'{mend}", path.display()), source)
        };
        let wrong = |why: &str| Error::Key(format!("'{}' {why}", path.display()));
        let about = fs::metadata(path).map_err(failed)?;
        if about.is_dir() {
            return Err(wrong("is a directory; name the file of the key"));
        }
        let mode = about.mode();
        if mode & 0o077 != 0 {
            let why = format!("may be read or written by others (mode {:03o}); chmod 600 it", mode & 0o777);
            return Err(wrong(&why));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let mend =
            "does not hold one line of at least 32 hexadecimal digits; 'longfat transfer key' makes one";
        let secret = from_hex(text.trim()).ok_or_else(|| wrong(mend))?;
        Key::new(&secret).map_err(|_| wrong(mend))
    }

    /// Makes a key file for its owner alone; one that is there is never overwritten.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
    pub fn create(path: &Path) -> Result<Key> {
        let failed = |source: io::Error| {
            let mend = match source.kind() {
                io::ErrorKind::AlreadyExists => {
                    " (nothing that is there is overwritten; choose another name)"
                }
                _ => "",
            };
            Error::io(format!("make the key '{}'{mend}", path.display()), source)
        };
        let secret = new_secret().map_err(failed)?;
        let mut open = OpenOptions::new();
        let mut file = open.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        file.write_all(as_text(&secret).as_bytes()).map_err(failed)?;
        Key::new(&secret)
    }

    /// What the file of a new key says, for a host elsewhere.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn new_text() -> Result<String> {
        let secret = new_secret().map_err(|source| Error::io("make a key".to_owned(), source))?;
        Ok(as_text(&secret))
    }

    /// Tells keys apart; says nothing of the key itself.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The tag of these bytes. What they are for must stand at their beginning: else a tag made for one thing would do
    /// for another.
    pub fn tag(&self, bytes: &[u8]) -> [u8; TAG_BYTES] {
        self.mac(bytes).finalize().into_bytes().into()
    }

    /// Whether `tag` is that of `bytes`, in a time that does not depend on where they differ.
    pub fn is_tag_of(&self, bytes: &[u8], tag: &[u8]) -> bool {
        self.mac(bytes).verify_slice(tag).is_ok()
    }

    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length (RFC 2104, section 2)")]
    fn mac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        Hmac::<Sha256>::new_from_slice(&self.secret).expect("a key of any length").chain_update(bytes)
    }
}

fn new_secret() -> io::Result<[u8; NEW_KEY_BYTES]> {
    let mut secret = [0; NEW_KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    Ok(secret)
}

/// One line of hexadecimal digits.
fn as_text(secret: &[u8]) -> String {
    to_hex(secret) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn tags_are_hmac_sha_256_as_in_rfc_4231_test_case_6() {
        // A key longer than the hash's block, 131 bytes of 0xaa.
        let tag =
            Key::new(&[0xaa; 131]).unwrap().tag(b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(to_hex(&tag), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn a_key_file_is_its_owners_alone_and_reads_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let made = Key::create(&path).unwrap();
        assert_eq!(Key::read(&path).unwrap().id(), made.id());
        assert!(Key::create(&path).is_err(), "an existing key is never overwritten");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Key::read(&path).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn what_is_no_key_is_refused_with_the_mend() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for text in ["", "00ff", "zz".repeat(20).as_str(), "0".repeat(33).as_str()] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(Key::read(&path).unwrap_err().to_string().contains("longfat transfer key"), "{text}");
        }
        assert!(!format!("{:?}", Key::new(b"sixteen bytes or more").unwrap()).contains("sixteen"));
    }
}
