//! The entry trampoline: how a zygote's child gets into a box, and is confined before it runs anything.
//!
//! Two intermediate processes come and go on the way in (decision 0012). Neither makes more than a few system calls, so
//! neither needs its own memory: they borrow the zygote's, which is suspended meanwhile, and have only their own stacks.
//! An interpreter cannot run on two stacks, so this part is machine code, which the zygote loads and calls:
//!
//! ```text
//! zygote ──borrows──▶ first: setns…  ──borrows──▶ second: confinement… ──fork──▶ the program, on the zygote's stack
//! ```
//!
//! It decides nothing. Each process performs a list of system calls, which the maker of the box has written, and stores
//! the results in it. The program starts with everything that `confine.rs` does to others; that is not taken for granted
//! either (`entry_check.rs`).

use std::io;
use std::sync::LazyLock;

use rustix::thread::CapabilitySet;

use crate::codec;
use crate::fault::Fault;
use crate::message::{NAMESPACES, Reply};
use crate::plan::IdPair;
use crate::seccomp::Filter;

/// The code itself. A zygote maps it behind two stacks and its orders, 256 KiB for each.
#[cfg(target_arch = "x86_64")]
mod machine_code {
    // A system call in a list is six words: its number, four arguments, the answer. A number below 0 ends what one process
    // does.
    std::arch::global_asm!(
        r#"
    .pushsection .rodata.belljar_entry, "a", @progbits
    .globl belljar_entry
    .globl belljar_entry_end

    // int entry(place, calls, fork, munmap): 0 in the program; in the zygote the number of the first process, or an
    // error below 0.
belljar_entry:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    mov rbp, rsp                // where the program will go on
    mov r12, rsi
    mov r13, rdi
    mov r14, rdx
    mov r15, rcx
    mov eax, 56                 // clone
    mov edi, 0x4111             // CLONE_VM | CLONE_VFORK | SIGCHLD
    lea rsi, [r13 + 0x40000]    // the end of the first stack
    xor edx, edx
    xor r10d, r10d
    xor r8d, r8d
    syscall
    test rax, rax
    jnz 9f

    call 5f                     // the first process: its part of the list
    mov eax, 435                // clone3, as the head of the orders says
    mov rdi, [r13 + 0x80018]
    mov esi, 88
    syscall
    mov [r12 - 8], rax          // the answer to the end of its part
    test rax, rax
    js 8f
    jz 3f
    mov rdi, rax
    push 1
    mov rsi, rsp
    xor edx, edx
    xor r10d, r10d
    mov eax, 61                 // wait4: how did the second end?
    syscall
    cmp dword ptr [rsp], 0
    jne 8f
    xor edi, edi
    jmp 7f

3:  call 5f                     // the second process: its part
    call r14                    // fork of the C library, which knows what a child needs
    mov qword ptr [r12 - 8], -11 // EAGAIN, which is why a fork fails, if it does
    test eax, eax
    js 8f
    mov qword ptr [r12 - 8], 0
    mov edi, 0
    jnz 7f
    call 5f                     // the program: the rest of the list
    mov rsp, rbp                // then back to where the zygote called, in a copy of everything
    mov rdi, r13
    mov esi, 0x100000
    mov rax, r15
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    jmp rax                     // by way of munmap, which answers 0: nothing of this stays

5:  mov rax, [r12]              // does what the list says up to its next end, or until something fails
    test rax, rax
    js 6f
    mov rdi, [r12 + 8]
    mov rsi, [r12 + 16]
    mov rdx, [r12 + 24]
    mov r10, [r12 + 32]
    xor r8d, r8d
    syscall
    mov [r12 + 40], rax
    add r12, 48
    test rax, rax
    jns 5b
8:  mov edi, 1
7:  mov eax, 231                // exit_group
    syscall
6:  add r12, 48
    ret

9:  pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
belljar_entry_end:
    .popsection
    "#
    );

    pub(super) fn bytes() -> &'static [u8] {
        unsafe extern "C" {
            static belljar_entry: u8;
            static belljar_entry_end: u8;
        }
        let (start, end) = (&raw const belljar_entry, &raw const belljar_entry_end);
        let length = end.addr() - start.addr();
        // SAFETY: both are labels around the same constant bytes, which are there for as long as this program is.
        unsafe { std::slice::from_raw_parts(start, length) }
    }
}

/// The machine code, which is position-independent. `None` if it has not been written for this processor.
#[must_use]
pub fn machine_code() -> Option<&'static [u8]> {
    #[cfg(target_arch = "x86_64")]
    return Some(machine_code::bytes());
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// What a zygote reports about itself when it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPoint {
    /// The address at which it takes its orders.
    orders: i64,
    /// The address and length of its C library's `rseq` area (`rseq(2)`). The kernel drops the registration in a
    /// process that borrows memory, and in its children.
    restartable: Option<(i64, i64)>,
}

impl EntryPoint {
    /// Parses a zygote's report: `ready`, and three numbers.
    #[must_use]
    pub fn parse(said: &[u8]) -> Option<EntryPoint> {
        let mut words = std::str::from_utf8(said).ok()?.strip_prefix("ready ")?.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (orders, place, length) = (number()?, number()?, number()?);
        Some(EntryPoint { orders, restartable: (length != 0).then_some((place, length)) })
    }
}

/// The child to be sent into a box.
#[derive(Debug, Clone, Copy)]
pub struct EntryOptions {
    /// Its user.
    pub code: IdPair,
    /// Whether a Landlock rule set comes with it.
    pub landlocked: bool,
    /// The number of cgroup files to write to.
    pub groups: usize,
    /// Whether it rehearses: then its stdout is `/dev/null`, and the real stdout is the descriptor after stderr.
    pub rehearses: bool,
}

/// A list of system calls and their data, in the form that a zygote takes. Attached to it, in this order: the
/// [`NAMESPACES`] of the box, stdin, stdout, stderr, the Landlock rule set, the files of the cgroup, and a socket to which the
/// listener of the filter is sent ([`Reply::Listening`]). A zygote has no descriptors except its streams, so the numbers that
/// these get are known.
#[derive(Debug)]
pub struct Orders {
    /// Their address in the zygote.
    place: i64,
    bytes: Vec<u8>,
    number: i64,
    /// What each call is for, and where its result will be.
    calls: Vec<(&'static str, usize)>,
}

/// The purpose of the end of a part: the next process is made there.
const END: &str = "start a process that enters a box";
/// The number of the first descriptor that a zygote receives.
const FIRST: i64 = 3;
/// How long entering a box may take, in seconds.
const PATIENCE: i64 = 10;
/// From `linux/capability.h`.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// The signature with which the C library registers `rseq`. From `sys/rseq.h`.
const RSEQ_SIGNATURE: i64 = 0x5305_3053;

impl Orders {
    /// The orders that bring a child with these options into its box. A zygote names the orders it answers by their number.
    #[must_use]
    pub fn new(entry_point: &EntryPoint, options: &EntryOptions, number: i64) -> Orders {
        let mut list = List::new(entry_point.orders);
        let mut numbers = FIRST..;
        let mut next = || numbers.next().unwrap_or_default();
        let namespaces = NAMESPACES.map(|_| next());
        let streams = [next(), next(), next()];
        let ruleset = options.landlocked.then(&mut next);
        let groups: Vec<_> = (0..options.groups).map(|_| next()).collect();
        let (line, null) = (next(), next());
        list.leave(&namespaces, &groups);
        list.settle(streams, null, options.rehearses);
        list.confine(options.code, ruleset);
        let first_free = if options.rehearses { FIRST + 1 } else { FIRST };
        list.keep_only(line, first_free);
        list.filter(first_free);
        list.end();
        list.be_a_program(entry_point);
        list.finish(options.rehearses, number)
    }

    /// What to send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The outcome, from a zygote's answer: the header alone if the child is in its box, otherwise all orders with the
    /// results filled in. `None`: the answer belongs to earlier orders.
    #[must_use]
    pub fn outcome(&self, answer: &[u8]) -> Option<Result<(), Fault>> {
        let orders = self.place..self.place + AREA;
        match (word(answer, 0), word(answer, NUMBER_AT)) {
            (Some(calls), Some(number)) if orders.contains(&calls) && number < self.number => None,
            (Some(calls), Some(number)) if orders.contains(&calls) && number == self.number => {
                Some(if answer.len() == HEADER { Ok(()) } else { Err(self.fault(answer)) })
            }
            // Two processes may take themselves for the zygote.
            _ => Some(Err(Fault::new("read the zygote's answer", &io::ErrorKind::InvalidData.into()))),
        }
    }

    fn fault(&self, answered: &[u8]) -> Fault {
        let refused = self.calls.iter().find_map(|(doing, at)| {
            let errno = i32::try_from(-word(answered, *at)?).ok().filter(|errno| *errno > 0)?;
            Some(Fault::with_errno(doing, errno))
        });
        refused.unwrap_or_else(|| Fault::new("send a child into a box", &io::ErrorKind::Other.into()))
    }
}

/// Orders under construction.
struct List {
    /// Their address in the zygote.
    base: i64,
    data: Vec<u8>,
    calls: Vec<(&'static str, [i64; 6])>,
}

/// The header: where the calls begin, whether there will be a rehearsal, the number of these orders, and how to make
/// the second process.
const HEADER: usize = 32;
const NUMBER_AT: usize = 16;
/// How much of its memory a zygote reserves for each of: the first stack, the second stack, its orders, the code. The
/// machine code has the same constant.
const AREA: i64 = 0x40000;
/// Any number except those of PID 1 and of the program, which is 2.
const SECOND_NUMBER: i32 = 3;

impl List {
    fn new(base: i64) -> List {
        List { base, data: vec![0; HEADER], calls: Vec::with_capacity(80) }
    }

    /// The address that these bytes will have in the zygote's memory.
    fn put(&mut self, bytes: &[u8]) -> i64 {
        let at = self.data.len().next_multiple_of(8);
        self.data.resize(at, 0);
        self.data.extend_from_slice(bytes);
        self.base.wrapping_add_unsigned(at as u64)
    }

    fn call<const N: usize>(&mut self, doing: &'static str, number: libc::c_long, arguments: [i64; N]) {
        let mut words = [0; 6];
        words[0] = number;
        words[1..=N].copy_from_slice(&arguments);
        self.calls.push((doing, words));
    }

    /// The next process continues after this.
    fn end(&mut self) {
        self.call(END, -1, []);
    }

    /// Makes this process die with its parent.
    fn be_tied(&mut self) {
        let killed = [libc::PR_SET_PDEATHSIG.into(), libc::SIGKILL.into()];
        self.call("set the parent-death signal of a zygote's child", libc::SYS_prctl, killed);
    }

    /// The first process: moves from the host into the box, except for its process id.
    fn leave(&mut self, namespaces: &[i64], groups: &[i64]) {
        let alarm = words(&[0, 0, PATIENCE, 0]);
        let (alarm, itself) = (self.put(&alarm), self.put(b"0"));
        self.be_tied();
        self.call(
            "set a timeout for entering a box",
            libc::SYS_setitimer,
            [libc::ITIMER_REAL.into(), alarm, 0],
        );
        for group in groups {
            self.call("enter the box's cgroup", libc::SYS_write, [*group, itself, 1]);
        }
        for namespace in namespaces {
            self.call("enter the box's namespaces", libc::SYS_setns, [*namespace, 0]);
        }
        self.end();
    }

    /// How the first process makes the second: with a process id that leaves number 2, that of a box's first command,
    /// to the next.
    fn clone_second(&mut self) -> i64 {
        let number = self.put(&SECOND_NUMBER.to_ne_bytes());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK;
        let stack = self.base - AREA;
        // As in `struct clone_args`: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        // set_tid_size, cgroup.
        let arguments = [flags.into(), 0, 0, 0, libc::SIGCHLD.into(), stack, AREA, 0, number, 1, 0];
        self.put(&words(&arguments))
    }

    /// The second process.
    fn settle(&mut self, [stdin, stdout, stderr]: [i64; 3], null: i64, rehearses: bool) {
        self.be_tied();
        let (dev_null, sandbox) = (self.put(b"/dev/null\0"), self.put(b"/sandbox\0"));
        let doing = "connect standard input and output";
        let shown = if rehearses {
            let flags = libc::O_WRONLY | libc::O_CLOEXEC;
            self.call(doing, libc::SYS_openat, [libc::AT_FDCWD.into(), dev_null, flags.into()]);
            self.call(doing, libc::SYS_dup3, [stdout, FIRST, 0]);
            null
        } else {
            stdout
        };
        for (descriptor, stream) in [stdin, shown, stderr].into_iter().zip(0..) {
            self.call(doing, libc::SYS_dup3, [descriptor, stream, 0]);
        }
        self.call("enter the working directory", libc::SYS_chdir, [sandbox]);
    }

    /// The same confinement that `confine` applies to every other program.
    fn confine(&mut self, code: IdPair, ruleset: Option<i64>) {
        let doing = "empty the capability bounding set";
        for number in 0..*CAPABILITIES {
            self.call(doing, libc::SYS_prctl, [libc::PR_CAPBSET_DROP.into(), number]);
        }
        let clear = [libc::PR_CAP_AMBIENT.into(), libc::PR_CAP_AMBIENT_CLEAR_ALL.into()];
        self.call(doing, libc::SYS_prctl, clear);
        let (doing, id) = ("switch to the code's user", i64::from(code.inside));
        self.call(doing, libc::SYS_setgroups, [0, 0]);
        self.call(doing, libc::SYS_setresgid, [id, id, id]);
        self.call(doing, libc::SYS_setresuid, [id, id, id]);
        // The kernel clears the parent-death signal when a process changes its user.
        self.be_tied();
        let header: Vec<_> = [CAPABILITY_VERSION_3, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        let (header, none) = (self.put(&header), self.put(&[0; 24]));
        self.call("drop capabilities", libc::SYS_capset, [header, none]);
        self.call("become dumpable, as after exec", libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 1]);
        self.call("set no_new_privs", libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS.into(), 1]);
        if let Some(ruleset) = ruleset {
            self.call("apply Landlock", libc::SYS_landlock_restrict_self, [ruleset, 0]);
        }
    }

    /// Closes every descriptor from this number on, except for one, which gets that number.
    fn keep_only(&mut self, line: i64, number: i64) {
        let doing = "close spare descriptors";
        self.call(doing, libc::SYS_dup3, [line, number, 0]);
        self.call(doing, libc::SYS_close_range, [number + 1, u32::MAX.into(), 0]);
    }

    /// Loads the filter, whose listener gets the lowest free number, sends that to the line, and closes both.
    fn filter(&mut self, line: i64) {
        let filter = Filter::standard().to_bytes();
        let length = (filter.len() / 8) as i64;
        let instructions = self.put(&filter);
        let program = self.put(&words(&[length, instructions]));
        let flags = i64::try_from(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER).unwrap_or_default();
        let load = [libc::SECCOMP_SET_MODE_FILTER.into(), flags, program];
        self.call("load the syscall filter", libc::SYS_seccomp, load);
        let message = self.listening(line + 1);
        let flags = libc::MSG_NOSIGNAL.into();
        self.call("hand over the filter's listener", libc::SYS_sendmsg, [line, message, flags]);
        self.call("close spare descriptors", libc::SYS_close_range, [line, u32::MAX.into(), 0]);
    }

    /// A `struct msghdr` with [`Reply::Listening`] and this descriptor.
    fn listening(&mut self, descriptor: i64) -> i64 {
        let content = codec::encode(&Reply::Listening);
        let length = content.len() as i64;
        let content = self.put(&content);
        let slice = self.put(&words(&[content, length]));
        // As in `struct cmsghdr`: its length, then level and kind in one word, and the data.
        let (level, kind) = (i64::from(libc::SOL_SOCKET), i64::from(libc::SCM_RIGHTS));
        let rights = words(&[20, level | kind << 32, descriptor]);
        let space = rights.len() as i64;
        let rights = self.put(&rights);
        self.put(&words(&[0, 0, slice, 1, rights, space, 0]))
    }

    /// The program: what only it can do for itself.
    fn be_a_program(&mut self, entry_point: &EntryPoint) {
        self.call("start a session", libc::SYS_setsid, []);
        if let Some((place, length)) = entry_point.restartable {
            self.call("register restartable sequences", libc::SYS_rseq, [place, length, 0, RSEQ_SIGNATURE]);
        }
        self.end();
    }

    fn finish(mut self, rehearses: bool, number: i64) -> Orders {
        let (clone, calls_at) = (self.clone_second(), self.put(&[]));
        let mut bytes = self.data;
        let header = words(&[calls_at, rehearses.into(), number, clone]);
        bytes[..HEADER].copy_from_slice(&header);
        let mut calls = Vec::with_capacity(self.calls.len());
        for (doing, call) in self.calls {
            bytes.extend_from_slice(&words(&call));
            calls.push((doing, bytes.len() - 8));
        }
        Orders { place: self.base, bytes, number, calls }
    }
}

/// The word at this place.
fn word(bytes: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn words(words: &[i64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// How many capabilities this kernel knows.
static CAPABILITIES: LazyLock<i64> = LazyLock::new(|| {
    let known = |number: &i64| {
        rustix::thread::capability_is_in_bounding_set(CapabilitySet::from_bits_retain(1 << number)).is_ok()
    };
    (0..64).take_while(known).count() as i64
});

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY_POINT: EntryPoint = EntryPoint { orders: 0x7000_0000, restartable: Some((0x10, 32)) };
    const OPTIONS: EntryOptions = EntryOptions {
        code: IdPair { inside: 1000, outside: 70_001 },
        landlocked: true,
        groups: 2,
        rehearses: false,
    };

    fn word(bytes: &[u8], at: usize) -> i64 {
        super::word(bytes, at).unwrap()
    }

    #[test]
    fn a_zygote_that_is_ready_says_where_it_takes_orders() {
        assert_eq!(
            EntryPoint::parse(b"ready 7 16 32"),
            Some(EntryPoint { orders: 7, restartable: Some((16, 32)) })
        );
        assert_eq!(EntryPoint::parse(b"ready 7 0 0"), Some(EntryPoint { orders: 7, restartable: None }));
        for said in [&b"cannot preload x"[..], b"ready", b"ready 1 2", b"ready a b c", b""] {
            assert_eq!(EntryPoint::parse(said), None, "{said:?}");
        }
    }

    #[test]
    fn only_the_listener_is_handed_over_between_the_filter_and_the_program() {
        let orders = Orders::new(&ENTRY_POINT, &OPTIONS, 7);
        let doing: Vec<_> = orders.calls.iter().map(|(doing, _)| *doing).collect();
        let parts: Vec<_> = doing.split(|doing| *doing == END).collect();
        let [first, second, program, rest] = parts[..] else { panic!("{doing:?}") };
        assert_eq!(first.last(), Some(&"enter the box's namespaces"));
        let filter = second.iter().position(|doing| *doing == "load the syscall filter").unwrap();
        assert_eq!(second[filter + 1..], ["hand over the filter's listener", "close spare descriptors"]);
        assert_eq!(program, ["start a session", "register restartable sequences"]);
        assert!(rest.is_empty());
        let at = |what| second.iter().position(|doing| *doing == what).unwrap();
        assert!(at("empty the capability bounding set") < at("switch to the code's user"));
        assert!(at("set no_new_privs") < at("apply Landlock"));
        assert!(at("apply Landlock") < at("close spare descriptors"));
    }

    #[test]
    fn everything_is_where_the_orders_say() {
        let orders = Orders::new(&ENTRY_POINT, &OPTIONS, 7);
        let bytes = orders.bytes();
        let within = |address: i64| usize::try_from(address - ENTRY_POINT.orders).unwrap();
        assert_eq!(within(word(bytes, 0)), orders.calls[0].1 - 40, "where the calls begin");
        assert_eq!(word(bytes, 8), 0, "no rehearsal");
        let load = orders.calls.iter().find(|(doing, _)| *doing == "load the syscall filter").unwrap().1 - 40;
        let program = within(word(bytes, load + 24));
        let (length, filter) = (word(bytes, program), within(word(bytes, program + 8)));
        let standard = Filter::standard().to_bytes();
        assert_eq!(bytes[filter..].get(..standard.len()), Some(&standard[..]));
        assert_eq!(usize::try_from(length).unwrap() * 8, standard.len());
    }

    #[test]
    fn what_was_refused_is_named() {
        let orders = Orders::new(&ENTRY_POINT, &OPTIONS, 7);
        let mut answered = orders.bytes().to_vec();
        let (doing, at) = orders.calls[5];
        answered[at..at + 8].copy_from_slice(&(-i64::from(libc::EPERM)).to_ne_bytes());
        let fault = orders.outcome(&answered).unwrap().unwrap_err();
        assert_eq!((fault.doing.as_str(), fault.errno), (doing, libc::EPERM));
        let fault = orders.outcome(orders.bytes()).unwrap().unwrap_err();
        assert_eq!(fault.doing, "send a child into a box");
    }

    #[test]
    fn an_answer_to_other_orders_is_none() {
        let (earlier, orders) =
            (Orders::new(&ENTRY_POINT, &OPTIONS, 7), Orders::new(&ENTRY_POINT, &OPTIONS, 8));
        assert!(orders.outcome(&orders.bytes()[..HEADER]).unwrap().is_ok(), "the control");
        assert!(orders.outcome(&earlier.bytes()[..HEADER]).is_none());
        assert!(orders.outcome(earlier.bytes()).is_none());
        for strange in [&b"ready 140218163290112 140218179069088 32"[..], b"ready 1 2 3", b""] {
            orders.outcome(strange).unwrap().unwrap_err();
        }
        earlier.outcome(&orders.bytes()[..HEADER]).unwrap().unwrap_err();
    }
}
