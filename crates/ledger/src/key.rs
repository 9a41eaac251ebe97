//! The key of an installation: Ed25519, in a file that only its owner can read.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::chain::hex;
use crate::error::{LedgerError, file};

/// The file that has it, in the state directory.
pub const FILE: &str = "ledger.key";

/// The bytes of a signature.
pub(crate) type Signed = [u8; 64];

/// A key that signs.
#[derive(Clone)]
pub struct Key(SigningKey);

/// A key that checks signatures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl Key {
    /// The key of this directory. Both are made if they do not exist.
    ///
    /// # Errors
    /// That it cannot be read or made, or that others can read it.
    pub fn find_or_make(dir: &Path) -> Result<Key, LedgerError> {
        match Key::find(dir) {
            Err(LedgerError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
                made.map_err(file("make the directory", dir))?;
                make(dir).map_err(file("make", dir.join(FILE)))?;
                Key::find(dir)
            }
            found => found,
        }
    }

    /// The key of this directory.
    ///
    /// # Errors
    /// That there is none, or that others can read it.
    pub fn find(dir: &Path) -> Result<Key, LedgerError> {
        let path = dir.join(FILE);
        let text = read_private(&path).map_err(file("read", &path))?;
        let seed = unhex(text.trim_end()).ok_or(LedgerError::NoKey { path })?;
        Ok(Key(SigningKey::from_bytes(&seed)))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Signed {
        self.0.sign(message).to_bytes()
    }

    /// The key that checks its signatures.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }
}

impl PublicKey {
    /// 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<PublicKey> {
        VerifyingKey::from_bytes(&unhex(text)?).ok().map(PublicKey)
    }

    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        // The strict check: a signature has one form, and a weak key signs nothing.
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.0.verify_strict(message, &signature).is_ok())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.0.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Another process may do the same at this moment: the first one has made it.
fn make(dir: &Path) -> io::Result<()> {
    let mut seed = [0; 32];
    getrandom(&mut seed, GetRandomFlags::empty())?;
    let draft = dir.join(format!(".{FILE}.{}", std::process::id()));
    let mut made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = made
        .write_all((hex(&seed) + "\n").as_bytes())
        .and_then(|()| made.sync_all())
        .and_then(|()| fs::hard_link(&draft, dir.join(FILE)));
    fs::remove_file(&draft)?;
    match written {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        written => written.and_then(|()| File::open(dir)?.sync_all()),
    }
}

fn read_private(path: &Path) -> io::Result<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.mode() & 0o077 != 0 || found.uid() != rustix::process::geteuid().as_raw() {
        let why = "it must be a file that belongs to you and that nobody else can read (chmod 600)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let mut text = String::new();
    file.take(256).read_to_string(&mut text)?;
    Ok(text)
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digit = |at: usize| char::from(*text.as_bytes().get(at)?).to_digit(16);
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::try_from(digit(2 * at)? * 16 + digit(2 * at + 1)?).ok()?;
    }
    (text.len() == 64).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Key::find(dir.path()).is_err());
        let made = Key::find_or_make(dir.path()).unwrap();
        assert_eq!(Key::find_or_make(dir.path()).unwrap().public(), made.public());
        let path = dir.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Key::find(dir.path()).unwrap_err().with_causes().contains("nobody else can read"));
    }

    #[test]
    fn only_its_own_signatures_are_a_keys() {
        let [one, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (key, other) = (Key::find_or_make(one.path()).unwrap(), Key::find_or_make(other.path()).unwrap());
        let signature = key.sign(b"yes");
        assert!(key.public().has_signed(b"yes", &signature));
        assert!(!key.public().has_signed(b"no", &signature));
        assert!(!other.public().has_signed(b"yes", &signature));
        assert!(!key.public().has_signed(b"yes", &signature[..63]));
        assert_eq!(PublicKey::parse(&key.public().to_string()), Some(key.public()));
    }
}
