//! The encoding of plans and messages. Both ends are the same binary, so there is no version and no schema; but the
//! decoder is written as if its input came from an attacker, because one day it might.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::plan::{
    Access, BindMode, Birth, CgroupEntry, Command, Confinement, IdPair, Identity, Input, Opener, Plan,
    ProcContent, ProcFile, Resource, ScratchPart, Step,
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

/// What can be encoded and decoded.
pub trait Coded: Sized {
    /// Appends the value.
    fn put(&self, bytes: &mut Vec<u8>);
    /// Takes the value off the front.
    ///
    /// # Errors
    /// Too few bytes, or impossible ones.
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed>;
    /// Appends these values.
    fn put_all(values: &[Self], bytes: &mut Vec<u8>) {
        values.iter().for_each(|value| value.put(bytes));
    }
    /// Takes this number of values off the front.
    ///
    /// # Errors
    /// Too few bytes, or impossible ones.
    fn take_all(length: usize, bytes: &mut &[u8]) -> Result<Vec<Self>, Malformed> {
        (0..length).map(|_| Self::take(bytes)).collect()
    }
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
coded_number!(u16, u32, u64, i32);

/// Most of a plan is text, which is copied as a whole.
impl Coded for u8 {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(*self);
    }
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let (first, rest) = bytes.split_first().ok_or(Malformed)?;
        *bytes = rest;
        Ok(*first)
    }
    fn put_all(values: &[u8], bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(values);
    }
    fn take_all(length: usize, bytes: &mut &[u8]) -> Result<Vec<u8>, Malformed> {
        take_slice(bytes, length).map(<[u8]>::to_vec)
    }
}

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
        T::put_all(self, bytes);
    }
    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let length = u32::take(bytes)? as usize;
        // Every item takes at least a byte, so a length beyond the rest of the input is wrong; trusting it would let
        // four bytes ask for gigabytes.
        if length > bytes.len() {
            return Err(Malformed);
        }
        T::take_all(length, bytes)
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
pub(crate) use {coded_enum, coded_struct};

coded_struct!(Plan {
    birth,
    identity,
    cgroup,
    orphans,
    sources,
    opener,
    foundation,
    build,
    meminfo,
    confinement,
    command,
    exit_listener
});
coded_enum!(Birth { 0 => Executed, 1 => Forked { by }, 2 => Zygote });
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
    7 => File(path, content),
    8 => Symlink { path, target },
    9 => Bind { source, path, mode },
    10 => Scratch { size, files, parts },
    11 => Workspace { source, path, owner, files, writable },
    12 => Inputs { dir, files },
    13 => Proc,
    14 => Pivot,
    15 => SealRoot,
    16 => Offer(path),
    17 => Pipe(path),
    18 => Directory(path),
    19 => Terminals { max },
    20 => OfferLayer,
    21 => Cover(path, content),
    22 => DescribeMachine(files),
    23 => Uplink,
});
coded_struct!(ProcFile { name, content });
coded_enum!(ProcContent { 0 => Own, 1 => Kernel });
coded_enum!(BindMode { 0 => ReadOnly, 1 => Device });
coded_struct!(ScratchPart { path, mode, executable });
coded_struct!(Input { path, offset, length, executable });
coded_struct!(Confinement { rlimits, landlock });
coded_enum!(Resource {
    0 => Core, 1 => Cpu, 2 => Data, 3 => FileSize, 4 => MemLock, 5 => MsgQueue, 6 => Nice, 7 => NoFile,
    8 => NProc, 9 => RtPrio, 10 => SigPending, 11 => Stack,
});
coded_enum!(Access { 0 => Read, 1 => Use, 2 => Write });
coded_struct!(Command { program, argv, env, cwd });

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Plan {
        let input = Input { path: "a/b".into(), offset: 3, length: 4, executable: true };
        Plan {
            birth: Birth::Forked { by: 7 },
            identity: Identity {
                code: IdPair { inside: 1000, outside: 5 },
                init: Some(IdPair { inside: 0, outside: 4 }),
            },
            cgroup: CgroupEntry::V1 { tasks: vec!["/t".into()] },
            orphans: vec!["/o".into()],
            sources: vec!["/usr".into(), "/home/w".into()],
            opener: Opener::Keeper,
            foundation: vec![
                Step::PrivateMounts,
                Step::Root,
                Step::Directory("/d".into()),
                Step::File("/f".into(), vec![0, 255]),
                Step::Symlink { path: "/l".into(), target: "t".into() },
                Step::Bind { source: 0, path: "/usr".into(), mode: BindMode::ReadOnly },
            ],
            build: vec![
                Step::JoinCgroup,
                Step::HideCgroup,
                Step::Hostname("h".into()),
                Step::Loopback,
                Step::Uplink,
                Step::Cover("/c".into(), vec![1]),
                Step::Scratch {
                    size: 1,
                    files: 2,
                    parts: vec![ScratchPart { path: "/s".into(), mode: 0o700, executable: false }],
                },
                Step::Workspace {
                    source: 1,
                    path: "/work".into(),
                    owner: Some((1, 2)),
                    files: vec![input.clone()],
                    writable: true,
                },
                Step::Inputs { dir: "/sandbox".into(), files: vec![input] },
                Step::Pipe("/sandbox/p".into()),
                Step::Terminals { max: 16 },
                Step::Proc,
                Step::Pivot,
                Step::SealRoot,
                Step::DescribeMachine(vec![
                    ProcFile { name: "stat".into(), content: ProcContent::Own },
                    ProcFile { name: "uptime".into(), content: ProcContent::Kernel },
                ]),
                Step::Offer("/sandbox".into()),
                Step::OfferLayer,
            ],
            meminfo: b"MemTotal:".to_vec(),
            confinement: Confinement {
                rlimits: vec![(Resource::NoFile, 1024), (Resource::Stack, 8)],
                landlock: vec![("/".into(), Access::Read), ("/tmp".into(), Access::Write)],
            },
            command: Command {
                program: "/bin/true".into(),
                argv: vec![b"true".to_vec(), vec![0xff]],
                env: vec![b"A=1".to_vec()],
                cwd: "/".into(),
            },
            exit_listener: true,
        }
    }

    #[test]
    fn a_plan_reads_back_as_it_was_written() {
        assert_eq!(decode::<Plan>(&encode(&sample())).unwrap(), sample());
    }

    #[test]
    fn a_plan_with_a_byte_missing_or_to_spare_is_refused() {
        let bytes = encode(&sample());
        for length in 0..bytes.len() {
            assert_eq!(decode::<Plan>(&bytes[..length]), Err(Malformed), "{length}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(decode::<Plan>(&longer), Err(Malformed));
    }

    #[test]
    fn a_length_that_lies_costs_no_memory() {
        assert_eq!(decode::<Vec<u8>>(&u32::MAX.to_le_bytes()), Err(Malformed));
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_refused_or_means_another_plan(at in any::<prop::sample::Index>(), to: u8) {
            let mut bytes = encode(&sample());
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(plan) = decode::<Plan>(&bytes) {
                prop_assert_eq!(encode(&plan), bytes);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode::<Plan>(&bytes);
            let _ = decode::<crate::message::Reply>(&bytes);
            let _ = decode::<crate::message::Request>(&bytes);
        }
    }
}
