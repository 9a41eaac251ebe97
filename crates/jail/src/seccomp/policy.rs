//! The policy as data: what the kernel offers, what a box may have of it, and why.
//!
//! Every system call that the kernel of this architecture knows is in the table exactly once, the refused ones
//! too, so that reading the table is reviewing the policy, and a call that is new to the kernel is a number
//! without a row and not an oversight. A few calls that stand or fall together share one row's reason.
//!
//! Arguments are compared by their **low 32 bits**: where the kernel takes an `int` it ignores the upper half of
//! the register, so a filter that looked at it could be passed by setting it (CVE-2019-10063).

use libc::{c_int, c_long};

use self::numbers::*;

/// A set of rules, and the answer for numbers that no rule names.
#[derive(Debug)]
pub struct Policy {
    pub(super) groups: &'static [Group],
    /// These replace the rules that `groups` has for the same calls.
    pub(super) instead: &'static [Group],
    /// For numbers without a row: newer than the table, never assigned, or of the x32 ABI.
    pub unlisted: Verdict,
}

/// One system call of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The number on this architecture.
    pub number: u32,
    /// The kernel's name for it.
    pub name: &'static str,
    /// The rule for it.
    pub rule: Rule,
    /// Why, in a few words.
    pub reason: &'static str,
}

/// The rule for a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The same, whatever its arguments are.
    Always(Verdict),
    /// That of the first case that holds.
    ByArguments {
        /// In order.
        cases: &'static [Case],
        /// If none holds.
        otherwise: Verdict,
    },
}

/// A verdict for some arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Holds if all of these do.
    pub when: &'static [Test],
    /// The verdict if it holds.
    pub then: Verdict,
}

/// A masked comparison of the low 32 bits of one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// Which argument, from 0 to 5.
    pub argument: u8,
    /// The bits that are looked at.
    pub mask: u32,
    /// Holds if those bits are one of these.
    pub any_of: &'static [u32],
}

/// What the filter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The call is made.
    Allow,
    /// The call is not made, and the caller sees this `errno`.
    Deny(c_int),
    /// The call is not made, and the caller sees success: for hints that programs give up without.
    Ignore,
    /// Whoever holds the filter's [`Listener`](super::Listener) decides when the call is made. Without a listener, the
    /// caller sees `ENOSYS`.
    Ask,
    /// The process dies of `SIGSYS`.
    Kill,
}

/// What untrusted code may ask of the kernel.
pub static STANDARD: Policy = Policy { groups: STANDARD_GROUPS, instead: &[], unlisted: ENOSYS };

/// The same in a container. There, nobody but the container's own PID 1 counts the locks of files and the connections, and
/// it shares the CPU limit with those who make them: it would be late. So each has to be asked for.
pub static CONTAINED: Policy =
    Policy { groups: STANDARD_GROUPS, instead: ASKING_FOR_WHAT_IS_COUNTED, unlisted: ENOSYS };

/// What PID 1 of a box may still ask of the kernel, once it has started the program.
///
/// Anything else kills it, and with it the box. An errno is for programs that we did not write and that may have a
/// fallback. The reaper is our own and has none: a call that it never makes means that it has been taken over. The
/// death of PID 1 is also the safe state: the kernel kills the whole box, and the keeper sees `SIGSYS` instead of
/// reports from a compromised reaper.
pub static REAPER: Policy = Policy { groups: REAPER_GROUPS, instead: &[], unlisted: Verdict::Kill };

/// The rows of [`STANDARD`], in the order in which they are best read.
pub fn rows() -> impl Iterator<Item = Row> {
    STANDARD.rows()
}

impl Policy {
    /// The rows, in the order in which they are best read.
    pub fn rows(&self) -> impl Iterator<Item = Row> + use<> {
        let (groups, instead) = (self.groups, self.instead);
        let replaced = move |row: &Row| rows_of(instead).any(|other| other.number == row.number);
        rows_of(groups).filter(move |row| !replaced(row)).chain(rows_of(instead))
    }

    /// The verdict on a call of the native ABI. Answers from the table, not from the compiled filter.
    #[must_use]
    pub fn verdict(&self, number: u32, arguments: &[u64; 6]) -> Verdict {
        self.rows().find(|row| row.number == number).map_or(self.unlisted, |row| row.rule.verdict(arguments))
    }
}

fn rows_of(groups: &'static [Group]) -> impl Iterator<Item = Row> {
    groups.iter().flat_map(|group| {
        let row = |&(number, name)| Row { number, name, rule: group.rule, reason: group.reason };
        group.calls.iter().map(row)
    })
}

impl Rule {
    /// The verdict for these arguments.
    #[must_use]
    pub fn verdict(&self, arguments: &[u64; 6]) -> Verdict {
        match self {
            Rule::Always(verdict) => *verdict,
            Rule::ByArguments { cases, otherwise } => cases
                .iter()
                .find(|case| case.when.iter().all(|test| test.holds(arguments)))
                .map_or(*otherwise, |case| case.then),
        }
    }
}

impl Test {
    fn holds(&self, arguments: &[u64; 6]) -> bool {
        let argument = arguments.get(usize::from(self.argument)).copied().unwrap_or_default();
        self.any_of.iter().any(|value| argument & u64::from(self.mask) == u64::from(*value))
    }
}

/// Calls that share a rule and its reason.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) rule: Rule,
    pub(super) reason: &'static str,
    pub(super) calls: &'static [(u32, &'static str)],
}

const ALLOW: Rule = Rule::Always(Verdict::Allow);
const REFUSE: Rule = Rule::Always(EPERM);
/// For what programs probe for and can do without: it looks like an older kernel.
const ABSENT: Rule = Rule::Always(ENOSYS);

const EPERM: Verdict = Verdict::Deny(libc::EPERM);
const ENOSYS: Verdict = Verdict::Deny(libc::ENOSYS);
const EAFNOSUPPORT: Verdict = Verdict::Deny(libc::EAFNOSUPPORT);
const EPROTONOSUPPORT: Verdict = Verdict::Deny(libc::EPROTONOSUPPORT);
const EINVAL: Verdict = Verdict::Deny(libc::EINVAL);
const ENODEV: Verdict = Verdict::Deny(libc::ENODEV);
const ENOPROTOOPT: Verdict = Verdict::Deny(libc::ENOPROTOOPT);

/// Allowed only if the masked argument is one of these.
macro_rules! only_if {
    ($argument:literal & $mask:expr, $any_of:expr, else $otherwise:expr) => {
        Rule::ByArguments {
            cases: &[Case {
                when: &[Test { argument: $argument, mask: $mask, any_of: $any_of }],
                then: Verdict::Allow,
            }],
            otherwise: $otherwise,
        }
    };
}

macro_rules! group {
    ($rule:expr, $reason:literal, $($call:ident)+) => {
        Group { rule: $rule, reason: $reason, calls: &[$((number($call), name(stringify!($call)))),+] }
    };
}

const ALL_BITS: u32 = !0;

/// `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`, `NEWUSER`, `NEWPID`, `NEWNET`. `CLONE_NEWTIME` is not among
/// them: its bit is part of the exit signal, so `clone` cannot ask for it, only `clone3` and `unshare`.
const NEW_NAMESPACES: u32 = 0x7E02_0000;
const CLONE_FILES: u32 = libc::CLONE_FILES.cast_unsigned();
const CLONE_THREAD: u32 = libc::CLONE_THREAD.cast_unsigned();
/// All threads of a process have the same descriptors, as those of every library do. The locks of a thread with
/// descriptors of its own would not be counted (`host/src/descriptors.rs`).
const CLONE: Rule = only_if!(
    0 & NEW_NAMESPACES | CLONE_FILES | CLONE_THREAD,
    &[0, CLONE_FILES, CLONE_FILES | CLONE_THREAD],
    else EPERM
);

/// Of `SOCK_STREAM | SOCK_CLOEXEC` the part that is the type: the kernel's `SOCK_TYPE_MASK`.
const SOCKET_TYPE: u32 = 0xF;
const UNIX: u32 = libc::AF_UNIX.cast_unsigned();
const NETLINK: u32 = libc::AF_NETLINK.cast_unsigned();
const INET: u32 = libc::AF_INET.cast_unsigned();
const INET6: u32 = libc::AF_INET6.cast_unsigned();
const STREAM: u32 = libc::SOCK_STREAM.cast_unsigned();
const DGRAM: u32 = libc::SOCK_DGRAM.cast_unsigned();
const RAW: u32 = libc::SOCK_RAW.cast_unsigned();
const SEQPACKET: u32 = libc::SOCK_SEQPACKET.cast_unsigned();

/// An allow-list of families: AF_ALG alone gave any process a write into the page cache (CVE-2026-31431), and the next
/// family of its kind already has a number.
///
/// Within the internet families, the protocols are an allow-list too, because asking for SCTP, DCCP or L2TP is enough
/// to make the kernel load their modules. The errnos are those of a kernel that lacks the feature: Go, for one, tries
/// MPTCP first and takes `EPROTONOSUPPORT` for "no". Raw sockets get the errno that they get without `CAP_NET_RAW`.
///
/// Of netlink, only what `getifaddrs` needs. Its replies wait in the socket, up to 212 KiB in each, nobody is charged for
/// them, and the kernel echoes every message that it does not understand. So a box has few of these sockets at a time:
/// each has to be asked for (`host/src/rations.rs`).
const SOCKET: Rule = Rule::ByArguments {
    cases: &[
        Case { when: &[family(&[UNIX]), socket_type(&[STREAM, DGRAM, SEQPACKET])], then: Verdict::Allow },
        Case {
            when: &[
                family(&[INET, INET6]),
                socket_type(&[STREAM, DGRAM]),
                protocol(&[
                    libc::IPPROTO_IP.cast_unsigned(),
                    libc::IPPROTO_ICMP.cast_unsigned(),
                    libc::IPPROTO_TCP.cast_unsigned(),
                    libc::IPPROTO_UDP.cast_unsigned(),
                    libc::IPPROTO_ICMPV6.cast_unsigned(),
                ]),
            ],
            then: Verdict::Allow,
        },
        Case {
            when: &[family(&[INET, INET6]), socket_type(&[STREAM, DGRAM, SEQPACKET])],
            then: EPROTONOSUPPORT,
        },
        Case { when: &[family(&[UNIX, INET, INET6])], then: EPERM },
        Case {
            when: &[
                family(&[NETLINK]),
                socket_type(&[DGRAM, RAW]),
                protocol(&[libc::NETLINK_ROUTE.cast_unsigned()]),
            ],
            then: Verdict::Ask,
        },
    ],
    otherwise: EAFNOSUPPORT,
};
const SOCKETPAIR: Rule = only_if!(0 & ALL_BITS, &[UNIX], else EAFNOSUPPORT);

const fn family(any_of: &'static [u32]) -> Test {
    Test { argument: 0, mask: ALL_BITS, any_of }
}

const fn socket_type(any_of: &'static [u32]) -> Test {
    Test { argument: 1, mask: SOCKET_TYPE, any_of }
}

const fn protocol(any_of: &'static [u32]) -> Test {
    Test { argument: 2, mask: ALL_BITS, any_of }
}

/// `TIOCSTI` types into the caller's terminal, `TIOCLINUX` pastes into a console, `TIOCSETD` loads line disciplines.
/// Other device ioctls are not filtered by number: the box has few devices, and Landlock restricts those.
const IOCTL: Rule = Rule::ByArguments {
    cases: &[Case {
        when: &[Test { argument: 1, mask: ALL_BITS, any_of: &[0x5412, 0x541C, 0x5423] }],
        then: EPERM,
    }],
    otherwise: Verdict::Allow,
};

/// `MAP_HUGETLB`. Pages that the host has set aside are not charged to a box. The errno is that of having none.
const MMAP: Rule = only_if!(3 & 0x4_0000, &[0], else Verdict::Deny(libc::ENOMEM));
/// `MFD_HUGETLB`.
const MEMFD: Rule = only_if!(1 & 4, &[0], else Verdict::Deny(libc::ENOMEM));

/// An allow-list of commands, because the kernel keeps learning new ones.
///
/// - `F_SETLEASE`, `F_NOTIFY` and the new `F_SETDELEG` reveal when another process opens a file that boxes and host share.
/// - `F_OFD_SETLK` and `F_OFD_SETLKW`: nobody is charged for locks. Those of a process can be counted
///   (`host/src/descriptors.rs`), those of an open file that is on its way through a socket cannot. `EINVAL` is the answer of a
///   kernel before 3.15.
const FCNTL: Rule =
    Rule::ByArguments { cases: &[FCNTL_WATCHES, PACKETS, FCNTL_LOCKS, FCNTL_OTHERS], otherwise: EINVAL };

const FCNTL_WATCHES: Case = Case { when: &[command(&[1024, 1026])], then: EPERM };
/// `F_SETFL` with `O_DIRECT`. It would turn a pipe into one of packets, each of which the reader has to read by itself: the
/// program could make Belljar spend more CPU time on its output than it spends itself. `EINVAL` is the answer of a file
/// system without direct I/O.
const PACKETS: Case = Case {
    when: &[
        command(&[4]),
        Test { argument: 2, mask: libc::O_DIRECT.cast_unsigned(), any_of: &[libc::O_DIRECT.cast_unsigned()] },
    ],
    then: EINVAL,
};
/// `F_SETLK` and `F_SETLKW`.
const LOCKS: &[u32] = &[6, 7];
const FCNTL_LOCKS: Case = Case { when: &[command(LOCKS)], then: Verdict::Allow };
const FCNTL_OTHERS: Case = Case {
    when: &[command(&[
        0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 15, 16, 17, 36, 1025, 1027, 1028, 1029, 1030, 1031, 1032, 1033, 1034,
        1035, 1036, 1037, 1038,
    ])],
    then: Verdict::Allow,
};
const FCNTL_IN_A_CONTAINER: Rule = Rule::ByArguments {
    cases: &[FCNTL_WATCHES, PACKETS, Case { when: &[command(LOCKS)], then: Verdict::Ask }, FCNTL_OTHERS],
    otherwise: EINVAL,
};

static ASKING_FOR_WHAT_IS_COUNTED: &[Group] = &[
    group!(
        Rule::Always(Verdict::Ask),
        "sockets: connections, which nobody is charged for until they are accepted",
        SYS_connect
    ),
    group!(Rule::Always(Verdict::Ask), "files: locks, which nobody is charged for", SYS_flock),
    group!(FCNTL_IN_A_CONTAINER, "files: the same, and descriptor flags", SYS_fcntl),
];

const fn command(any_of: &'static [u32]) -> Test {
    Test { argument: 1, mask: ALL_BITS, any_of }
}

/// `MSG_OOB`, `MSG_MORE` and `MSG_FASTOPEN`. With the second, a UDP socket keeps up to 64 KiB that nobody is charged for.
/// With the third, a connection is made without `connect`. `EOPNOTSUPP` is what the kernel says if that is switched off.
const SEND_FLAGS: u32 = 1 | 0x8000 | 0x2000_0000;
const SEND: Rule = only_if!(3 & SEND_FLAGS, &[0], else Verdict::Deny(libc::EOPNOTSUPP));
const SENDMSG: Rule = only_if!(2 & SEND_FLAGS, &[0], else Verdict::Deny(libc::EOPNOTSUPP));
/// `SPLICE_F_MORE`, the same by another name.
const SPLICE: Rule = only_if!(5 & 4, &[0], else EINVAL);

/// An allow-list of socket options. Many others hold kernel memory that nobody is charged for, or load code into the
/// kernel, and the kernel keeps learning new ones:
///
/// - Filters: `SO_ATTACH_FILTER`, `SO_ATTACH_BPF` and the corresponding two for groups of sockets.
/// - Error queues: `IP_RECVERR`, `IPV6_RECVERR` and `SO_TIMESTAMPING` (in both its forms) let each socket keep 200 KiB
///   and more. The first two are ignored instead of refused: glibc's resolver sets them, and gives up if it cannot.
/// - `SO_RCVBUF`: a connection inherits it from its listener, and what arrives before it is accepted is charged to
///   nobody. It is a hint, which the kernel itself cuts down to the host's maximum.
/// - `SO_REUSEPORT`: 2 KiB for the port of each socket. Servers with several processes need it, so a box may use it some
///   thousand times (`host/src/rations.rs`).
/// - `UDP_CORK`, as `MSG_MORE` above.
/// - Multicast: each group that a socket joins is an entry of the interface, which nobody is charged for either. A box
///   has only a loopback, and a program that does not name it gets the same errno from the kernel.
/// - Headers of packets (`IP_OPTIONS`, `IPV6_RTHDR`, `IPV6_2292PKTOPTIONS`, `IPV6_HOPOPTS` and their like): 2 KiB for each socket.
/// - `IPV6_FLOWLABEL_MGR`: a label can hold 64 KiB, and there are 4,096 for the whole host.
/// - Signature keys of TCP (`TCP_MD5SIG`, `TCP_AO`), and `TCP_ULP`, which loads kernel TLS.
/// - `SO_ZEROCOPY`: a queue of notifications.
///
/// `ENOPROTOOPT` is the answer of a kernel that does not know an option.
const SETSOCKOPT: Rule = Rule::ByArguments {
    cases: &[
        Case { when: &[OF_SOCKET, option(&[26, 50, 51, 52])], then: EPERM },
        Case { when: &[OF_SOCKET, option(&[8])], then: Verdict::Ignore },
        Case { when: &[OF_SOCKET, option(&[15])], then: Verdict::Ask },
        Case { when: &[OF_SOCKET, option(SOCKET_OPTIONS)], then: Verdict::Allow },
        Case { when: &[OF_IP, option(&[11])], then: Verdict::Ignore },
        Case { when: &[OF_IP, option(&[35, 39, 41, 42, 46, 48])], then: ENODEV },
        Case { when: &[OF_IP, option(IP_OPTIONS)], then: Verdict::Allow },
        Case { when: &[OF_IPV6, option(&[25])], then: Verdict::Ignore },
        Case { when: &[OF_IPV6, option(&[20, 27, 42, 46, 48])], then: ENODEV },
        Case { when: &[OF_IPV6, option(IPV6_OPTIONS)], then: Verdict::Allow },
        Case { when: &[OF_TCP, option(TCP_OPTIONS)], then: Verdict::Allow },
        Case { when: &[OF_UDP, option(UDP_OPTIONS)], then: Verdict::Allow },
        Case { when: &[OF_NETLINK, option(NETLINK_OPTIONS)], then: Verdict::Allow },
    ],
    otherwise: ENOPROTOOPT,
};

/// `SO_DEBUG`, `REUSEADDR`, `DONTROUTE`, `BROADCAST`, `SNDBUF`, `KEEPALIVE`, `OOBINLINE`, `NO_CHECK`, `PRIORITY`, `LINGER`,
/// `BSDCOMPAT`, `PASSCRED`, `RCVLOWAT`, `SNDLOWAT`, `RCVTIMEO`,
/// `SNDTIMEO`, `BINDTODEVICE`, `DETACH_FILTER`, `TIMESTAMP`, `SNDBUFFORCE`, `RCVBUFFORCE`, `PASSSEC`, `TIMESTAMPNS`, `MARK`,
/// `RXQ_OVFL`, `PEEK_OFF`, `NOFCS`, `LOCK_FILTER`, `SELECT_ERR_QUEUE`, `BUSY_POLL`, `MAX_PACING_RATE`, `INCOMING_CPU`,
/// `BINDTOIFINDEX`, `TIMESTAMP_NEW`, `TIMESTAMPNS_NEW`, `RCVTIMEO_NEW`, `SNDTIMEO_NEW`, `DETACH_REUSEPORT_BPF`,
/// `PREFER_BUSY_POLL`, `BUF_LOCK`, `TXREHASH`, `RCVMARK`, `PASSPIDFD`, `PASSRIGHTS`. What takes a privilege is refused by the
/// kernel.
const SOCKET_OPTIONS: &[u32] = &[
    1, 2, 5, 6, 7, 9, 10, 11, 12, 13, 14, 16, 18, 19, 20, 21, 25, 27, 29, 32, 33, 34, 35, 36, 40, 42, 43, 44,
    45, 46, 47, 49, 62, 63, 64, 66, 67, 68, 69, 72, 74, 75, 76, 83,
];
/// `IP_TOS`, `TTL`, `HDRINCL`, `RECVOPTS`, `RETOPTS`, `PKTINFO`, `MTU_DISCOVER`, `RECVTTL`, `RECVTOS`, `FREEBIND`, `PASSSEC`,
/// `TRANSPARENT`, `ORIGDSTADDR`, `MINTTL`, `NODEFRAG`, `CHECKSUM`, `BIND_ADDRESS_NO_PORT`, `RECVFRAGSIZE`, `MULTICAST_IF`,
/// `MULTICAST_TTL`, `MULTICAST_LOOP`, `DROP_MEMBERSHIP`, `MULTICAST_ALL`, `UNICAST_IF`, `LOCAL_PORT_RANGE`.
const IP_OPTIONS: &[u32] =
    &[1, 2, 3, 6, 7, 8, 10, 12, 13, 15, 18, 19, 20, 21, 22, 23, 24, 25, 32, 33, 34, 36, 49, 50, 51];
/// `IPV6_2292PKTINFO`, `2292HOPLIMIT`, `UNICAST_HOPS`, `MULTICAST_IF`, `MULTICAST_HOPS`, `MULTICAST_LOOP`, `LEAVE_GROUP`,
/// `MTU_DISCOVER`, `MTU`, `V6ONLY`, `LEAVE_ANYCAST`, `MULTICAST_ALL`, `FLOWINFO_SEND`, `RECVPKTINFO`, `PKTINFO`, `RECVHOPLIMIT`,
/// `HOPLIMIT`, `RECVHOPOPTS`, `RECVRTHDR`, `RECVDSTOPTS`, `DONTFRAG`, `RECVTCLASS`, `TCLASS`, `AUTOFLOWLABEL`,
/// `ADDR_PREFERENCES`, `MINHOPCOUNT`, `ORIGDSTADDR`, `TRANSPARENT`, `UNICAST_IF`, `RECVFRAGSIZE`, `FREEBIND`.
const IPV6_OPTIONS: &[u32] = &[
    2, 8, 16, 17, 18, 19, 21, 23, 24, 26, 28, 29, 33, 49, 50, 51, 52, 53, 56, 58, 62, 66, 67, 70, 72, 73, 74,
    75, 76, 77, 78,
];
/// `TCP_NODELAY`, `MAXSEG`, `CORK`, `KEEPIDLE`, `KEEPINTVL`, `KEEPCNT`, `SYNCNT`, `LINGER2`, `DEFER_ACCEPT`, `WINDOW_CLAMP`,
/// `QUICKACK`, `CONGESTION`, `THIN_LINEAR_TIMEOUTS`, `THIN_DUPACK`, `USER_TIMEOUT`, `FASTOPEN`, `TIMESTAMP`, `NOTSENT_LOWAT`,
/// `SAVE_SYN`, `FASTOPEN_CONNECT`, `FASTOPEN_NO_COOKIE`, `INQ`, `TX_DELAY`, `RTO_MAX_MS`.
const TCP_OPTIONS: &[u32] =
    &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 18, 23, 24, 25, 27, 30, 34, 36, 37, 44];
/// `UDP_NO_CHECK6_TX`, `UDP_NO_CHECK6_RX`, `UDP_SEGMENT`, `UDP_GRO`.
const UDP_OPTIONS: &[u32] = &[101, 102, 103, 104];
/// From `NETLINK_ADD_MEMBERSHIP` to `NETLINK_GET_STRICT_CHK`.
const NETLINK_OPTIONS: &[u32] = &[1, 2, 3, 4, 5, 8, 10, 11, 12];

const OF_SOCKET: Test = level(&[libc::SOL_SOCKET.cast_unsigned()]);
const OF_IP: Test = level(&[libc::IPPROTO_IP.cast_unsigned()]);
const OF_IPV6: Test = level(&[libc::IPPROTO_IPV6.cast_unsigned()]);
const OF_TCP: Test = level(&[libc::IPPROTO_TCP.cast_unsigned()]);
const OF_UDP: Test = level(&[libc::IPPROTO_UDP.cast_unsigned()]);
const OF_NETLINK: Test = level(&[libc::SOL_NETLINK.cast_unsigned()]);

const fn level(any_of: &'static [u32]) -> Test {
    Test { argument: 1, mask: ALL_BITS, any_of }
}

const fn option(any_of: &'static [u32]) -> Test {
    Test { argument: 2, mask: ALL_BITS, any_of }
}

const FILE_TYPES: &[u32] = &[0, libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK];
#[cfg(target_arch = "x86_64")]
const MKNOD: Rule = only_if!(1 & libc::S_IFMT, FILE_TYPES, else EPERM);
const MKNODAT: Rule = only_if!(2 & libc::S_IFMT, FILE_TYPES, else EPERM);

/// 0 is plain Linux, `0xffffffff` asks what it is now. The rest switches protections off, first of all
/// `READ_IMPLIES_EXEC` and `ADDR_NO_RANDOMIZE`.
const PERSONALITY: Rule = only_if!(0 & ALL_BITS, &[0, 0xFFFF_FFFF], else EPERM);

/// Reading one's own state, naming things, and what can only tighten. Refused with the rest:
/// `PR_SET_DUMPABLE` and `PR_SET_PTRACER` (which processes may inspect it), `PR_SET_SECUREBITS`, `PR_SET_MM` (forging
/// one's own `/proc` entry), `PR_SET_TSC`, `PR_SET_SPECULATION_CTRL` (undoing a mitigation), `PR_SCHED_CORE`,
/// `PR_SET_MEMORY_MERGE` (shared pages are a side channel), `PR_SET_SYSCALL_USER_DISPATCH`.
///
/// `PR_SET_SECCOMP` is refused as [`SECCOMP`] is. `PR_SET_VMA` gives names to anonymous memory, which nobody is charged
/// for; Go and glibc take `EINVAL` for a kernel without it.
const PRCTL: Rule = Rule::ByArguments {
    cases: &[
        Case { when: &[prctl_option(PRCTL_OPTIONS)], then: Verdict::Allow },
        Case { when: &[prctl_option(&[libc::PR_SET_SECCOMP.cast_unsigned(), PR_SET_VMA])], then: EINVAL },
    ],
    otherwise: EPERM,
};
const PR_SET_VMA: u32 = 0x5356_4D41;

const fn prctl_option(any_of: &'static [u32]) -> Test {
    Test { argument: 0, mask: ALL_BITS, any_of }
}

const PRCTL_OPTIONS: &[u32] = &[
    libc::PR_SET_PDEATHSIG.cast_unsigned(),
    libc::PR_GET_PDEATHSIG.cast_unsigned(),
    libc::PR_GET_DUMPABLE.cast_unsigned(),
    libc::PR_GET_KEEPCAPS.cast_unsigned(),
    // Daemons that drop privileges set it first and give up if they cannot. There is nothing to keep.
    libc::PR_SET_KEEPCAPS.cast_unsigned(),
    libc::PR_GET_TIMING.cast_unsigned(),
    libc::PR_SET_NAME.cast_unsigned(),
    libc::PR_GET_NAME.cast_unsigned(),
    libc::PR_GET_SECCOMP.cast_unsigned(),
    libc::PR_CAPBSET_READ.cast_unsigned(),
    libc::PR_GET_TSC.cast_unsigned(),
    libc::PR_GET_SECUREBITS.cast_unsigned(),
    libc::PR_SET_TIMERSLACK.cast_unsigned(),
    libc::PR_GET_TIMERSLACK.cast_unsigned(),
    libc::PR_MCE_KILL_GET.cast_unsigned(),
    libc::PR_SET_CHILD_SUBREAPER.cast_unsigned(),
    libc::PR_GET_CHILD_SUBREAPER.cast_unsigned(),
    libc::PR_SET_NO_NEW_PRIVS.cast_unsigned(),
    libc::PR_GET_NO_NEW_PRIVS.cast_unsigned(),
    libc::PR_GET_TID_ADDRESS.cast_unsigned(),
    libc::PR_SET_THP_DISABLE.cast_unsigned(),
    libc::PR_GET_THP_DISABLE.cast_unsigned(),
    // Without permitted capabilities it can only be asked or cleared.
    libc::PR_CAP_AMBIENT.cast_unsigned(),
    50,          // PR_SVE_SET_VL: the vector length of the own thread (aarch64)
    51,          // PR_SVE_GET_VL
    52,          // PR_GET_SPECULATION_CTRL
    54,          // PR_PAC_RESET_KEYS: new pointer keys for the own process (aarch64)
    55,          // PR_SET_TAGGED_ADDR_CTRL: memory tagging by the own allocator
    56,          // PR_GET_TAGGED_ADDR_CTRL
    58,          // PR_GET_IO_FLUSHER
    61,          // PR_PAC_GET_ENABLED_KEYS
    63,          // PR_SME_SET_VL
    64,          // PR_SME_GET_VL
    65,          // PR_SET_MDWE: denies oneself write and execute together, for good
    66,          // PR_GET_MDWE
    68,          // PR_GET_MEMORY_MERGE
    74,          // PR_GET_SHADOW_STACK_STATUS
    75,          // PR_SET_SHADOW_STACK_STATUS: libc at start (aarch64)
    76,          // PR_LOCK_SHADOW_STACK_STATUS
    0x4155_5856, // PR_GET_AUXV
];

/// Asking what the kernel knows (`SECCOMP_GET_ACTION_AVAIL`, `SECCOMP_GET_NOTIF_SIZES`), but no filters of the code's own.
/// Nobody is charged for their memory, a listener keeps a filter alive after its process, all of them together can use
/// up the host's `bpf_jit_limit`, after which no box could load its filter, and `SECCOMP_RET_LOG` writes to the host's
/// log. `EINVAL` is the answer of a kernel without filters: OpenSSH, man-db and Chromium then go on without one.
const SECCOMP: Rule = only_if!(0 & ALL_BITS, &[2, 3], else EINVAL);

/// Calls that change the process that their first argument names, or the caller if that is 0. PID 1 is the one process
/// in the box that is not the code's, and it may have the code's uid: as an ordinary user's, or in a container.
const NOT_PID_1: Rule = Rule::ByArguments {
    cases: &[Case { when: &[Test { argument: 0, mask: ALL_BITS, any_of: &[1] }], then: EPERM }],
    otherwise: Verdict::Allow,
};

/// The same for calls that can also name a process group or a user, to which PID 1 may belong.
macro_rules! one_process_except_pid_1 {
    ($process:expr) => {
        Rule::ByArguments {
            cases: &[
                Case { when: &[Test { argument: 1, mask: ALL_BITS, any_of: &[1] }], then: EPERM },
                Case {
                    when: &[Test { argument: 0, mask: ALL_BITS, any_of: &[$process] }],
                    then: Verdict::Allow,
                },
            ],
            otherwise: EPERM,
        }
    };
}
/// `PRIO_PROCESS`.
const SETPRIORITY: Rule = one_process_except_pid_1!(0);
/// `IOPRIO_WHO_PROCESS`.
const IOPRIO_SET: Rule = one_process_except_pid_1!(1);

static STANDARD_GROUPS: &[Group] = &[
    group!(ALLOW, "files: read and write open files",
        SYS_read SYS_write SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_preadv SYS_pwritev SYS_preadv2
        SYS_pwritev2 SYS_lseek SYS_sendfile SYS_copy_file_range SYS_readahead SYS_fadvise64 SYS_fallocate
        SYS_ftruncate SYS_truncate SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_cachestat),
    group!(REFUSE, "files: flushes the whole host's writes, as often as called",
        SYS_sync SYS_syncfs),
    group!(ALLOW, "files: open, close, duplicate; mounts and Landlock decide which",
        SYS_openat SYS_openat2 SYS_close SYS_close_range SYS_dup SYS_dup3 SYS_pipe2),
    group!(MEMFD, "files in memory: multiprocessing, JITs; not from the host's huge pages", SYS_memfd_create),
    group!(ALLOW, "files: locks, which SQLite needs", SYS_flock),
    group!(FCNTL, "files: locks and descriptor flags; not what reveals others' use of a file", SYS_fcntl),
    group!(ALLOW, "files: read their metadata",
        SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_faccessat SYS_faccessat2
        SYS_readlinkat SYS_getdents64 SYS_getcwd),
    group!(ALLOW, "files: make, move, remove and describe them",
        SYS_mkdirat SYS_unlinkat SYS_renameat SYS_renameat2 SYS_linkat SYS_symlinkat SYS_fchmod
        SYS_fchmodat SYS_fchmodat2 SYS_fchown SYS_fchownat SYS_utimensat SYS_chdir SYS_fchdir SYS_umask),
    group!(ALLOW, "files: extended attributes; the box's file systems have few",
        SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr
        SYS_llistxattr SYS_flistxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_setxattrat
        SYS_getxattrat SYS_listxattrat SYS_removexattrat),
    #[cfg(target_arch = "x86_64")]
    group!(ALLOW, "older variants of allowed calls",
        SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_readlink SYS_getdents SYS_mkdir SYS_rmdir
        SYS_unlink SYS_rename SYS_link SYS_symlink SYS_chmod SYS_chown SYS_lchown SYS_utime SYS_utimes
        SYS_futimesat SYS_dup2 SYS_pipe SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_eventfd
        SYS_signalfd SYS_alarm SYS_pause SYS_time SYS_getpgrp SYS_fork SYS_vfork),
    group!(ALLOW, "zero-copy pipes: cat and cp use splice; Dirty Pipe was fixed in 5.16.11",
        SYS_tee SYS_vmsplice),
    group!(SPLICE, "the same; without the flag that makes a UDP socket keep what it was given", SYS_splice),
    #[cfg(target_arch = "x86_64")]
    group!(MKNOD, "FIFOs and sockets; a device node would give access to the host's devices", SYS_mknod),
    group!(MKNODAT, "FIFOs and sockets; a device node would give access to the host's devices", SYS_mknodat),
    group!(ALLOW, "polling: event loops",
        SYS_pselect6 SYS_ppoll SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2
        SYS_signalfd4 SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime),
    group!(ABSENT, "watching files reveals what the host and other boxes do with them: /usr is shared",
        SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch),
    #[cfg(target_arch = "x86_64")]
    group!(ABSENT, "older variant of a refused call", SYS_inotify_init),
    group!(IOCTL, "terminals, FIONREAD and such; not typing into a terminal (CVE-2019-10063)", SYS_ioctl),
    group!(ALLOW, "memory: allocators, loaders, garbage collectors",
        SYS_munmap SYS_mremap SYS_brk SYS_madvise SYS_mincore SYS_msync SYS_mprotect SYS_mseal),
    group!(MMAP, "memory: the same; not the host's huge pages, which are not charged to a box", SYS_mmap),
    group!(ALLOW, "memory: V8 write-protects its code space with keys",
        SYS_pkey_mprotect SYS_pkey_alloc SYS_pkey_free),
    group!(ALLOW, "memory: shadow stacks, which libc sets up for itself", SYS_map_shadow_stack),
    group!(ALLOW, "memory: locks; RLIMIT_MEMLOCK says how much",
        SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall),
    group!(REFUSE, "memory: replaced by mmap, emulated since 4.0", SYS_remap_file_pages),
    group!(REFUSE, "memory: NUMA placement can move other processes' pages; runtimes do without",
        SYS_mbind SYS_set_mempolicy SYS_get_mempolicy SYS_set_mempolicy_home_node SYS_migrate_pages
        SYS_move_pages),
    group!(REFUSE, "memory: pages hidden from the kernel itself, locked and not charged", SYS_memfd_secret),
    group!(
        ABSENT,
        "pauses the kernel in the middle of a copy, which exploits use to win races",
        SYS_userfaultfd
    ),
    group!(ALLOW, "threads",
        SYS_futex SYS_futex_waitv SYS_futex_wake SYS_futex_wait SYS_futex_requeue SYS_set_robust_list
        SYS_get_robust_list SYS_set_tid_address SYS_gettid SYS_rseq SYS_membarrier SYS_getcpu),
    #[cfg(target_arch = "x86_64")]
    group!(ALLOW, "threads: their local storage", SYS_arch_prctl),
    group!(
        CLONE,
        "threads and processes, but no new namespaces: most kernel escapes begin in one",
        SYS_clone
    ),
    group!(ABSENT, "its flags are behind a pointer; libc falls back to clone only on ENOSYS", SYS_clone3),
    group!(REFUSE, "namespaces: most kernel escapes begin in a new one (CVE-2022-0185, CVE-2024-1086)",
        SYS_unshare SYS_setns SYS_listns),
    group!(ALLOW, "processes: start, end, wait",
        SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_restart_syscall),
    group!(ALLOW, "processes: ids, groups, sessions; the PID namespace limits which can be named",
        SYS_getpid SYS_getppid SYS_getpgid SYS_setpgid SYS_getsid SYS_setsid SYS_pidfd_open
        SYS_pidfd_send_signal),
    group!(ALLOW, "signals",
        SYS_kill SYS_tkill SYS_tgkill SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending
        SYS_rt_sigtimedwait SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_rt_sigsuspend SYS_sigaltstack),
    group!(ALLOW, "scheduling: reading it",
        SYS_sched_yield SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler SYS_sched_getattr
        SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_getpriority
        SYS_ioprio_get),
    group!(NOT_PID_1, "scheduling: priority can only be lowered without CAP_SYS_NICE; never that of PID 1",
        SYS_sched_setaffinity SYS_sched_setparam SYS_sched_setscheduler SYS_sched_setattr),
    group!(SETPRIORITY, "scheduling: the same, for one process", SYS_setpriority),
    group!(IOPRIO_SET, "scheduling: the same, for one process", SYS_ioprio_set),
    group!(
        ABSENT,
        "scheduling: asks for longer time slices; any other call ends them as well",
        SYS_rseq_slice_yield
    ),
    group!(ALLOW, "limits and usage: hard limits only go down",
        SYS_getrlimit SYS_setrlimit SYS_getrusage SYS_times SYS_sysinfo),
    group!(NOT_PID_1, "limits: the same, of any process but PID 1, which watches the code", SYS_prlimit64),
    group!(
        PRCTL,
        "own name, own state and what only restricts; not what exposes or forges a process",
        SYS_prctl
    ),
    group!(PERSONALITY, "plain Linux only: other personalities switch protections off", SYS_personality),
    group!(ALLOW, "identity: reading it",
        SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_capget),
    group!(ALLOW, "identity: without capabilities it can only be kept or lowered",
        SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setgroups
        SYS_setfsuid SYS_setfsgid SYS_capset),
    group!(
        SECCOMP,
        "no filters: nobody is charged for them, and the host can have only so many",
        SYS_seccomp
    ),
    group!(ALLOW, "further confinement: a second rule set can only restrict, and is charged to the box",
        SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self),
    group!(ALLOW, "clocks and timers",
        SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_getitimer
        SYS_setitimer SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun
        SYS_timer_delete),
    group!(REFUSE, "clocks: would set the host's",
        SYS_settimeofday SYS_clock_settime SYS_clock_adjtime SYS_adjtimex),
    group!(ALLOW, "system: its name and random numbers", SYS_uname SYS_getrandom),
    group!(
        SOCKET,
        "unix, TCP, UDP, ping, and netlink for getifaddrs; no other family (CVE-2026-31431)",
        SYS_socket
    ),
    group!(SOCKETPAIR, "Unix sockets only; pairs of other families are not needed", SYS_socketpair),
    group!(ALLOW, "sockets: use of allowed ones",
        SYS_bind SYS_connect SYS_listen SYS_accept SYS_accept4 SYS_getsockname SYS_getpeername SYS_getsockopt
        SYS_shutdown SYS_recvfrom SYS_recvmsg SYS_recvmmsg),
    group!(
        SETSOCKOPT,
        "sockets: options; not those that hold uncharged memory, not filters, not kernel TLS (CVE-2023-0461)",
        SYS_setsockopt
    ),
    group!(SEND, "sockets: send; not out-of-band data (CVE-2025-38236), not data that waits for more",
        SYS_sendto SYS_sendmmsg),
    group!(
        SENDMSG,
        "sockets: send; not out-of-band data (CVE-2025-38236), not data that waits for more",
        SYS_sendmsg
    ),
    group!(REFUSE, "System V IPC: segments outlive the box and its memory limit (nsjail-shm-dos)",
        SYS_shmget SYS_shmat SYS_shmctl SYS_shmdt SYS_semget SYS_semop SYS_semctl SYS_semtimedop SYS_msgget
        SYS_msgsnd SYS_msgrcv SYS_msgctl),
    group!(REFUSE, "POSIX message queues: kernel memory that outlives the process",
        SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr),
    group!(ABSENT, "io_uring: makes calls past this filter; libuv probes for it and does without",
        SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register),
    group!(REFUSE, "legacy asynchronous I/O: much attack surface, few users",
        SYS_io_setup SYS_io_destroy SYS_io_getevents SYS_io_pgetevents SYS_io_submit SYS_io_cancel),
    group!(ABSENT, "keyrings are not namespaced: keys would pass between runs, and the quota is the host's",
        SYS_add_key SYS_request_key SYS_keyctl),
    group!(REFUSE, "other processes' memory, descriptors and registers",
        SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_process_mrelease
        SYS_pidfd_getfd SYS_kcmp),
    group!(REFUSE, "mounts: the box's file system is final",
        SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_open_tree SYS_open_tree_attr SYS_move_mount
        SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick SYS_mount_setattr),
    group!(REFUSE, "mounts: the table reveals details of the host", SYS_statmount SYS_listmount),
    group!(REFUSE, "files by handle: bypasses mounts and paths (shocker)",
        SYS_name_to_handle_at SYS_open_by_handle_at),
    group!(REFUSE, "watching whole file systems", SYS_fanotify_init SYS_fanotify_mark),
    group!(ABSENT, "inode flags by path, new in 6.17; the ioctl remains", SYS_file_getattr SYS_file_setattr),
    group!(REFUSE, "eBPF and perf: a long list of CVEs",
        SYS_bpf SYS_perf_event_open),
    #[cfg(target_arch = "x86_64")]
    group!(REFUSE, "only uprobe trampolines call them, and the kernel does not filter that",
        SYS_uretprobe SYS_uprobe),
    group!(REFUSE, "kernel: modules, kexec, reboot, log",
        SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_kexec_file_load SYS_reboot
        SYS_syslog),
    group!(REFUSE, "administration of the host",
        SYS_swapon SYS_swapoff SYS_acct SYS_quotactl SYS_quotactl_fd SYS_sethostname SYS_setdomainname
        SYS_vhangup SYS_lookup_dcookie),
    group!(REFUSE, "security modules: reveal their configuration",
        SYS_lsm_get_self_attr SYS_lsm_set_self_attr SYS_lsm_list_modules),
    #[cfg(target_arch = "x86_64")]
    group!(REFUSE, "I/O ports and LDT segments: direct access to hardware (CVE-2017-17053 for the latter)",
        SYS_ioperm SYS_iopl SYS_modify_ldt),
    #[cfg(target_arch = "x86_64")]
    group!(REFUSE, "obsolete: no current program calls them", SYS_uselib SYS_ustat SYS_sysfs),
    group!(ABSENT, "a number that no current kernel implements", SYS_nfsservctl),
    #[cfg(target_arch = "x86_64")]
    group!(ABSENT, "a number that no current kernel implements",
        SYS__sysctl SYS_create_module SYS_get_kernel_syms SYS_query_module SYS_getpmsg SYS_putpmsg
        SYS_afs_syscall SYS_tuxcall SYS_security SYS_set_thread_area SYS_get_thread_area SYS_epoll_ctl_old
        SYS_epoll_wait_old SYS_vserver),
];

/// New memory for the allocator, but not executable.
const NOT_EXECUTABLE: Rule = only_if!(2 & libc::PROT_EXEC.cast_unsigned(), &[0], else Verdict::Kill);

static REAPER_GROUPS: &[Group] = &[
    group!(ALLOW, "reaping, its purpose", SYS_wait4 SYS_waitid),
    group!(ALLOW, "reporting to the keeper",
        SYS_read SYS_write SYS_sendmsg SYS_sendto SYS_close),
    group!(ALLOW, "ending", SYS_exit SYS_exit_group),
    group!(ALLOW, "handling signals",
        SYS_rt_sigreturn SYS_rt_sigprocmask SYS_sigaltstack SYS_restart_syscall),
    group!(ALLOW, "the allocator", SYS_munmap SYS_mremap SYS_brk SYS_madvise),
    group!(NOT_EXECUTABLE, "the allocator", SYS_mmap SYS_mprotect),
    group!(ALLOW, "locks and panics of the standard library", SYS_futex SYS_gettid SYS_getpid),
    group!(ALLOW, "the time, if the clock needs a call", SYS_clock_gettime),
];

/// What a helper on the host may not ask of the kernel, on top of what [`STANDARD`] refuses: in a box, namespaces keep
/// it from other processes and from the network.
pub static APART: Policy = Policy { groups: APART_GROUPS, instead: &[], unlisted: Verdict::Allow };

/// Signal 0 is none.
const ONLY_WHETHER_IT_IS_THERE: Rule = only_if!(1 & ALL_BITS, &[0], else EPERM);

static APART_GROUPS: &[Group] = &[
    group!(REFUSE, "sockets lead to servers of the host and to the network", SYS_socket SYS_io_uring_setup),
    group!(
        ONLY_WHETHER_IT_IS_THERE,
        "other processes of the same user; shells wait for their own in this way",
        SYS_kill
    ),
    group!(REFUSE, "other processes of the same user", SYS_tkill SYS_rt_sigqueueinfo
        SYS_rt_tgsigqueueinfo SYS_pidfd_send_signal SYS_pidfd_getfd SYS_ptrace SYS_process_vm_readv
        SYS_process_vm_writev SYS_setpriority SYS_ioprio_set SYS_sched_setscheduler SYS_sched_setparam
        SYS_sched_setattr),
];

/// What a parser may ask of the kernel: memory, time, and the files that are open.
pub static PARSER: Policy = Policy { groups: PARSER_GROUPS, instead: &[], unlisted: EPERM };

static PARSER_GROUPS: &[Group] = &[
    group!(ALLOW, "its input and output", SYS_read SYS_pread64 SYS_write SYS_writev SYS_lseek SYS_close
        SYS_fstat SYS_newfstatat SYS_statx),
    group!(ALLOW, "the allocator", SYS_munmap SYS_mremap SYS_brk SYS_madvise),
    group!(NOT_EXECUTABLE, "the allocator", SYS_mmap SYS_mprotect),
    group!(ALLOW, "one thread with a large stack", SYS_clone SYS_clone3 SYS_set_robust_list SYS_rseq
        SYS_set_tid_address SYS_sched_getaffinity SYS_sched_yield SYS_prctl SYS_gettid SYS_getpid SYS_futex),
    group!(ALLOW, "signals: an overflow of the stack is one", SYS_rt_sigaction SYS_rt_sigprocmask
        SYS_rt_sigreturn SYS_sigaltstack SYS_tgkill SYS_restart_syscall),
    group!(ALLOW, "time and random numbers", SYS_clock_gettime SYS_getrandom),
    group!(ALLOW, "CPU time for the next question; the parent watches the clock, too", SYS_setitimer),
    group!(ALLOW, "ending", SYS_exit SYS_exit_group),
];

/// What a gateway may ask of the kernel: connections to other hosts, memory and time. It opens no file and listens nowhere.
pub static GATEWAY: Policy = Policy { groups: GATEWAY_GROUPS, instead: &[], unlisted: EPERM };

/// TCP and UDP, which are what no protocol means.
const INTERNET_SOCKET: Rule = Rule::ByArguments {
    cases: &[Case {
        when: &[family(&[INET, INET6]), socket_type(&[STREAM, DGRAM]), protocol(&[0])],
        then: Verdict::Allow,
    }],
    otherwise: EPERM,
};
/// `SO_SNDBUF`, `SO_RCVBUF`, `SO_LINGER` and `TCP_NODELAY`.
const SET_OF_GATEWAY: Rule = Rule::ByArguments {
    cases: &[
        Case { when: &[OF_SOCKET, option(&[7, 8, 13])], then: Verdict::Allow },
        Case { when: &[OF_TCP, option(&[1])], then: Verdict::Allow },
    ],
    otherwise: EPERM,
};
/// `SO_ERROR`: how a `connect` ended.
const GET_OF_GATEWAY: Rule = Rule::ByArguments {
    cases: &[Case { when: &[OF_SOCKET, option(&[4])], then: Verdict::Allow }],
    otherwise: EPERM,
};

static GATEWAY_GROUPS: &[Group] = &[
    group!(ALLOW, "packets, connections and messages to its parent", SYS_read SYS_write SYS_close SYS_recvfrom
        SYS_sendto SYS_recvmsg SYS_sendmsg SYS_shutdown SYS_fstat),
    group!(INTERNET_SOCKET, "connections for the box", SYS_socket),
    group!(ALLOW, "the same; it binds to no port and accepts nothing", SYS_connect),
    group!(SET_OF_GATEWAY, "buffers, resets, and packets that do not wait", SYS_setsockopt),
    group!(GET_OF_GATEWAY, "whether a connection was accepted", SYS_getsockopt),
    #[cfg(target_arch = "x86_64")]
    group!(ALLOW, "waiting", SYS_poll),
    group!(ALLOW, "waiting", SYS_ppoll SYS_clock_gettime SYS_clock_nanosleep SYS_restart_syscall),
    group!(ALLOW, "the allocator", SYS_munmap SYS_mremap SYS_brk SYS_madvise),
    group!(NOT_EXECUTABLE, "the allocator", SYS_mmap SYS_mprotect),
    group!(ALLOW, "random numbers, and locks of the standard library", SYS_getrandom SYS_futex SYS_sched_yield),
    group!(ALLOW, "signals: a panic, which ends without one of its own", SYS_rt_sigaction SYS_rt_sigprocmask
        SYS_rt_sigreturn SYS_sigaltstack SYS_gettid SYS_getpid),
    group!(ALLOW, "ending", SYS_exit SYS_exit_group),
];

const fn number(call: c_long) -> u32 {
    assert!(call >= 0 && call < 0x4000_0000);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked in the line above, at compile time"
    )]
    let number = call as u32;
    number
}

const fn name(constant: &'static str) -> &'static str {
    constant.split_at("SYS_".len()).1
}

/// libc's numbers, and those that it does not have for every target. From 424 on they are the same on every
/// architecture.
#[allow(non_upper_case_globals, reason = "named as libc names them")]
#[allow(unused_imports, reason = "libc has some of these for some targets")]
mod numbers {
    use libc::c_long;
    pub(super) use libc::*;

    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_create_module: c_long = 174;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_get_kernel_syms: c_long = 177;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_query_module: c_long = 178;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_io_pgetevents: c_long = 333;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_uretprobe: c_long = 335;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_uprobe: c_long = 336;

    #[cfg(target_arch = "aarch64")]
    pub(super) const SYS_renameat: c_long = 38;
    #[cfg(target_arch = "aarch64")]
    pub(super) const SYS_sync_file_range: c_long = 84;
    #[cfg(target_arch = "aarch64")]
    pub(super) const SYS_getrlimit: c_long = 163;
    #[cfg(target_arch = "aarch64")]
    pub(super) const SYS_setrlimit: c_long = 164;
    #[cfg(target_arch = "aarch64")]
    pub(super) const SYS_io_pgetevents: c_long = 292;
    #[cfg(target_arch = "aarch64")]
    pub(super) const SYS_kexec_file_load: c_long = 294;

    pub(super) const SYS_cachestat: c_long = 451;
    pub(super) const SYS_fchmodat2: c_long = 452;
    pub(super) const SYS_map_shadow_stack: c_long = 453;
    pub(super) const SYS_futex_wake: c_long = 454;
    pub(super) const SYS_futex_wait: c_long = 455;
    pub(super) const SYS_futex_requeue: c_long = 456;
    pub(super) const SYS_statmount: c_long = 457;
    pub(super) const SYS_listmount: c_long = 458;
    pub(super) const SYS_lsm_get_self_attr: c_long = 459;
    pub(super) const SYS_lsm_set_self_attr: c_long = 460;
    pub(super) const SYS_lsm_list_modules: c_long = 461;
    pub(super) const SYS_setxattrat: c_long = 463;
    pub(super) const SYS_getxattrat: c_long = 464;
    pub(super) const SYS_listxattrat: c_long = 465;
    pub(super) const SYS_removexattrat: c_long = 466;
    pub(super) const SYS_open_tree_attr: c_long = 467;
    pub(super) const SYS_file_getattr: c_long = 468;
    pub(super) const SYS_file_setattr: c_long = 469;
    pub(super) const SYS_listns: c_long = 470;
    pub(super) const SYS_rseq_slice_yield: c_long = 471;
}
