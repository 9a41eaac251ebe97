//! From the table to a program for the kernel's classic BPF machine.
//!
//! The program is a binary search over the ranges of numbers that share an answer, with the argument checks behind
//! its leaves. The kernel runs a filter once for every number when it is loaded, and verifies it first, so its
//! shape is what loading costs: a chain of comparisons takes four times as long.
//!
//! Jumps of this machine only go forward, so the program is written **from its end**: what a jump leads to is
//! there before the jump is, and every distance is known when it is needed. Conditional jumps reach 255
//! instructions; what is farther gets a return of its own, or an unconditional jump on the way.

use libc::sock_filter;

use super::policy::{Case, Policy, Rule, Test, Verdict};

#[cfg(target_endian = "big")]
compile_error!("the low half of an argument is elsewhere on a big-endian machine");

/// `AUDIT_ARCH_*` of this architecture: ELF machine, 64 bit, little-endian.
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: u32 = 0xC000_003E;
/// `AUDIT_ARCH_*` of this architecture: ELF machine, 64 bit, little-endian.
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: u32 = 0xC000_00B7;

/// The bit that makes an x86-64 number one of x32, an ABI with the same `AUDIT_ARCH`. Nothing else is up there.
pub(super) const X32: u32 = 0x4000_0000;

const NUMBER_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

/// The program for this policy.
pub(super) fn compile(policy: &Policy) -> Vec<sock_filter> {
    let mut program = Backward::new();
    let unlisted = Target::Return(policy.unlisted);

    let (below, bounds) = ranges_of_numbers(&mut program, policy);
    let search = program.search(below, &bounds);
    let known_abi = program.branch(libc::BPF_JGE, X32, unlisted, search);
    let by_number = program.load(NUMBER_OFFSET, Target::At(known_abi));
    let foreign = Target::Return(Verdict::Kill);
    let by_arch = program.branch(libc::BPF_JEQ, NATIVE, Target::At(by_number), foreign);
    program.load(ARCH_OFFSET, Target::At(by_arch));
    program.forward()
}

/// From each number on, until the next one, this is where to go; and where below the first.
type Bounds = Vec<(u32, Target)>;

fn ranges_of_numbers(program: &mut Backward, policy: &Policy) -> (Target, Bounds) {
    let unlisted = Target::Return(policy.unlisted);
    let mut by_number = Vec::with_capacity(512);
    let mut known: Vec<(Rule, Target)> = Vec::with_capacity(16);
    for row in policy.rows() {
        let target = target_of(program, &mut known, row.rule);
        let index = row.number as usize;
        if by_number.len() <= index {
            by_number.resize(index + 1, unlisted);
        }
        by_number[index] = target;
    }
    by_number.push(unlisted);
    coalesce(&by_number)
}

/// Where a rule is decided. Rules that are equal are decided in one place.
fn target_of(program: &mut Backward, known: &mut Vec<(Rule, Target)>, rule: Rule) -> Target {
    let (cases, otherwise) = match rule {
        Rule::Always(verdict) => return Target::Return(verdict),
        Rule::ByArguments { cases, otherwise } => (cases, otherwise),
    };
    if let Some((_, target)) = known.iter().find(|(other, _)| *other == rule) {
        return *target;
    }
    let target = cases.iter().rfold(Target::Return(otherwise), |next, case| program.case(case, next));
    known.push((rule, target));
    target
}

fn coalesce(by_number: &[Target]) -> (Target, Bounds) {
    let mut bounds = Bounds::with_capacity(by_number.len());
    let below = by_number[0];
    let mut current = below;
    for (number, target) in (0..).zip(by_number) {
        if *target != current {
            bounds.push((number, *target));
            current = *target;
        }
    }
    (below, bounds)
}

/// Where a jump leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// To an instruction, counted from the program's end.
    At(usize),
    /// To any return of this verdict.
    Return(Verdict),
}

/// A program in the making, last instruction first.
struct Backward {
    reversed: Vec<sock_filter>,
    /// The most recent, hence nearest, return of each verdict.
    returns: Vec<(Verdict, usize)>,
}

impl Backward {
    /// How far a conditional jump reaches, less one: its other target may need an instruction in between.
    const REACH: usize = 254;

    fn new() -> Backward {
        Backward { reversed: Vec::with_capacity(512), returns: Vec::with_capacity(8) }
    }

    fn forward(mut self) -> Vec<sock_filter> {
        self.reversed.reverse();
        self.reversed
    }

    /// Goes where the accumulator's value belongs: a balanced tree over the bounds.
    fn search(&mut self, below: Target, bounds: &[(u32, Target)]) -> Target {
        match bounds {
            [] => below,
            // One value among others needs one comparison, not two.
            [(value, at), (next, beyond)] if *beyond == below && value.checked_add(1) == Some(*next) => {
                Target::At(self.branch(libc::BPF_JEQ, *value, *at, below))
            }
            _ => {
                let middle = bounds.len() / 2;
                let (bound, from_bound) = bounds[middle];
                let high = self.search(from_bound, &bounds[middle + 1..]);
                let low = self.search(below, &bounds[..middle]);
                Target::At(self.branch(libc::BPF_JGE, bound, high, low))
            }
        }
    }

    /// The verdict of a case if all its tests hold, else on to the next one.
    fn case(&mut self, case: &Case, next: Target) -> Target {
        case.when.iter().rfold(Target::Return(case.then), |holds, test| self.test(test, holds, next))
    }

    fn test(&mut self, test: &Test, holds: Target, fails: Target) -> Target {
        let compare = self.search(fails, &bounds_of_values(test.any_of, holds, fails));
        let masked = if test.mask == u32::MAX {
            compare
        } else {
            self.reach_next(compare);
            Target::At(self.push(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, test.mask))
        };
        Target::At(self.load(ARGUMENTS_OFFSET + 8 * u32::from(test.argument), masked))
    }

    /// Loads a word of `struct seccomp_data` and goes on.
    fn load(&mut self, offset: u32, then: Target) -> usize {
        self.reach_next(then);
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
    }

    fn branch(&mut self, comparison: u32, with: u32, yes: Target, no: Target) -> usize {
        let yes = self.reach_near(yes);
        let no = self.reach_near(no);
        let (yes, no) = (self.distance(yes), self.distance(no));
        let index = self.push(libc::BPF_JMP | comparison | libc::BPF_K, with);
        self.reversed[index].jt = short(yes);
        self.reversed[index].jf = short(no);
        index
    }

    /// An instruction that leads to the target and that a conditional jump placed here can reach.
    fn reach_near(&mut self, target: Target) -> usize {
        match target {
            Target::At(index) if self.distance(index) <= Self::REACH => index,
            Target::At(index) => self.jump(index),
            Target::Return(verdict) => match self.returns.iter().find(|(known, _)| *known == verdict) {
                Some((_, index)) if self.distance(*index) <= Self::REACH => *index,
                _ => self.answer(verdict),
            },
        }
    }

    /// Makes the next instruction written here, which does not jump, run into the target.
    fn reach_next(&mut self, target: Target) {
        match target {
            Target::At(index) if index + 1 == self.reversed.len() => {}
            Target::At(index) => {
                self.jump(index);
            }
            Target::Return(verdict) => {
                self.answer(verdict);
            }
        }
    }

    fn jump(&mut self, index: usize) -> usize {
        let distance = self.distance(index);
        self.push(libc::BPF_JMP | libc::BPF_JA, long(distance))
    }

    fn answer(&mut self, verdict: Verdict) -> usize {
        let index = self.push(libc::BPF_RET | libc::BPF_K, action(verdict));
        self.returns.retain(|(known, _)| *known != verdict);
        self.returns.push((verdict, index));
        index
    }

    /// How many instructions a jump placed here would skip.
    fn distance(&self, index: usize) -> usize {
        self.reversed.len() - index - 1
    }

    fn push(&mut self, code: u32, k: u32) -> usize {
        let index = self.reversed.len();
        self.reversed.push(sock_filter { code: opcode(code), jt: 0, jf: 0, k });
        index
    }
}

fn bounds_of_values(values: &[u32], holds: Target, fails: Target) -> Bounds {
    let mut values = values.to_vec();
    values.sort_unstable();
    let mut bounds = Bounds::with_capacity(2 * values.len());
    for value in values {
        if bounds.last().is_some_and(|(end, _)| *end == value) {
            bounds.pop();
        } else {
            bounds.push((value, holds));
        }
        if let Some(next) = value.checked_add(1) {
            bounds.push((next, fails));
        }
    }
    bounds
}

fn action(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Allow => libc::SECCOMP_RET_ALLOW,
        Verdict::Deny(errno) => libc::SECCOMP_RET_ERRNO | (errno.unsigned_abs() & libc::SECCOMP_RET_DATA),
        // An errno of 0 is success.
        Verdict::Ignore => libc::SECCOMP_RET_ERRNO,
        Verdict::Ask => libc::SECCOMP_RET_USER_NOTIF,
        Verdict::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    }
}

#[allow(
    clippy::expect_used,
    reason = "a wrong jump is a hole in the policy; the table is constant and tested"
)]
fn short(distance: usize) -> u8 {
    u8::try_from(distance).expect("a conditional jump reaches 255 instructions")
}

#[allow(
    clippy::expect_used,
    reason = "a wrong jump is a hole in the policy; the table is constant and tested"
)]
fn long(distance: usize) -> u32 {
    u32::try_from(distance).expect("a program has at most 4096 instructions")
}

#[allow(clippy::cast_possible_truncation, reason = "libc has these 16-bit codes as 32-bit constants")]
const fn opcode(code: u32) -> u16 {
    code as u16
}
