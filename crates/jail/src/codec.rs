//! Bytes for plans and messages. Both ends are the same binary, so there is no version and no schema; but the
//! decoder is written as if its input came from an enemy, because one day it might.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::plan::{
    Access, BindMode, CgroupEntry, Command, Confinement, IdPair, Identity, Input, Opener, Plan, Resource,
    ScratchPart, StdinFrom, Step,
};

/// Bytes that are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("malformed message")
    }
}

impl std::error::Error for Malformed {}

/// The bytes of a value.
pub fn encode<T: Coded>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4096);
    value.put(&mut bytes);
    bytes
}

/// The value of these bytes, all of them.
///
/// # Errors
/// Anything but exactly what [`encode`] makes.
pub fn decode<T: Coded>(mut bytes: &[u8]) -> Result<T, Malformed> {
    let value = T::take(&mut bytes)?;
    if bytes.is_empty() { Ok(value) } else { Err(Malformed) }
}

/// What can be put into bytes and taken out again.
pub trait Coded: Sized {
    /// Appends the value.
    fn put(&self, bytes: &mut Vec<u8>);
    /// Takes the value off the front.
    ///
    /// # Errors
    /// Too few bytes, or impossible ones.
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed>;
}

fn take_slice<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(Malformed)?;
    *bytes = rest;
    Ok(taken)
}

macro_rules! coded_number {
    ($($number:ty),*) => {$(
        impl Coded for $number {
            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
            fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
                let taken = take_slice(bytes, size_of::<$number>())?;
                taken.try_into().map(<$number>::from_le_bytes).map_err(|_| Malformed)
            }
        }
    )*};
}
coded_number!(u8, u16, u32, u64, i32);

impl Coded for bool {
    fn put(&self, bytes: &mut Vec<u8>) {
        u8::from(*self).put(bytes);
    }
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        match u8::take(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

impl<T: Coded> Coded for Vec<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).put(bytes);
        self.iter().for_each(|item| item.put(bytes));
    }
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let length = u32::take(bytes)? as usize;
        // Every item takes at least a byte, so a length beyond what is left is a lie; believing it would let
        // four bytes ask for gigabytes.
        if length > bytes.len() {
            return Err(Malformed);
        }
        (0..length).map(|_| T::take(bytes)).collect()
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.is_some().put(bytes);
        self.iter().for_each(|value| value.put(bytes));
    }
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        bool::take(bytes)?.then(|| T::take(bytes)).transpose()
    }
}

impl<A: Coded, B: Coded> Coded for (A, B) {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.0.put(bytes);
        self.1.put(bytes);
    }
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok((A::take(bytes)?, B::take(bytes)?))
    }
}

impl Coded for String {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.as_bytes().to_vec().put(bytes);
    }
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        String::from_utf8(Vec::take(bytes)?).map_err(|_| Malformed)
    }
}

impl Coded for PathBuf {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.as_os_str().as_bytes().to_vec().put(bytes);
    }
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(PathBuf::from(OsString::from_vec(Vec::take(bytes)?)))
    }
}

/// A struct is its fields, in order.
macro_rules! coded_struct {
    ($name:ident { $($field:ident),* }) => {
        impl Coded for $name {
            fn put(&self, bytes: &mut Vec<u8>) {
                $(self.$field.put(bytes);)*
            }
            fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
                Ok($name { $($field: Coded::take(bytes)?),* })
            }
        }
    };
}

/// An enum is a number, then the fields of that variant.
macro_rules! coded_enum {
    ($name:ident { $($tag:literal => $variant:ident $(($($item:ident),*))? $({$($field:ident),*})?),* $(,)? }) => {
        impl Coded for $name {
            fn put(&self, bytes: &mut Vec<u8>) {
                match self {
                    $($name::$variant $(($($item),*))? $({$($field),*})? => {
                        bytes.push($tag);
                        $($($item.put(bytes);)*)?
                        $($($field.put(bytes);)*)?
                    })*
                }
            }
            fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
                match u8::take(bytes)? {
                    $($tag => {
                        $($(let $item = Coded::take(bytes)?;)*)?
                        $($(let $field = Coded::take(bytes)?;)*)?
                        Ok($name::$variant $(($($item),*))? $({$($field),*})?)
                    })*
                    _ => Err(Malformed),
                }
            }
        }
    };
}
pub(crate) use coded_enum;

coded_struct!(Plan { identity, cgroup, orphans, sources, opener, build, confinement, commands });
coded_struct!(Identity { code, init });
coded_struct!(IdPair { inside, outside });
coded_enum!(CgroupEntry { 0 => None, 1 => V1 { tasks }, 2 => V2 { dir } });
coded_enum!(Opener { 0 => Keeper, 1 => Init });
coded_enum!(Step {
    0 => JoinCgroup,
    1 => HideCgroup,
    2 => Hostname(name),
    3 => Loopback,
    4 => PrivateMounts,
    5 => Root,
    6 => Dir(path, mode),
    7 => File(path, content),
    8 => Symlink { path, target },
    9 => Bind { source, path, mode },
    10 => Scratch { size, files, parts },
    11 => Workspace { source, path, owner, files },
    12 => Inputs { dir, files },
    13 => Proc,
    14 => Pivot,
    15 => SealRoot,
    16 => Offer(path),
});
coded_enum!(BindMode { 0 => ReadOnly, 1 => Device });
coded_struct!(ScratchPart { path, mode, executable });
coded_struct!(Input { path, offset, length, executable });
coded_struct!(Confinement { rlimits, landlock });
coded_enum!(Resource {
    0 => Core, 1 => Cpu, 2 => Data, 3 => FileSize, 4 => MemLock, 5 => MsgQueue, 6 => Nice, 7 => NoFile,
    8 => NProc, 9 => RtPrio, 10 => SigPending, 11 => Stack,
});
coded_enum!(Access { 0 => Read, 1 => Use, 2 => Write });
coded_struct!(Command { program, argv, env, cwd, stdin });
coded_enum!(StdinFrom { 0 => Nothing, 1 => Caller });
