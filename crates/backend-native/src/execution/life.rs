//! How the program of a box comes to its end: a state machine without I/O.
//!
//! ```text
//!              a sign that it has ended
//!   Running ─────────────────────────────▶ Ended
//!      │                                     ▲
//!      │ killed: by the caller,              │ a sign that it has ended,
//!      │ or because of a limit               │ or that the keeper is gone
//!      ▼                                     │
//!    Dying ──────────────────────────────────┘
//! ```
//!
//! Several signs of the same end arrive, in any order; the first one counts. The run is over when its life has ended and
//! its streams have been read to their ends (`output.rs`).

use std::time::Duration;

use belljar_core::backend::Ending;
use tokio::time::Instant;

use crate::cgroup::Counters;

/// How long a killed box may take to die before its limit on CPU is lifted. Almost all are dead by then.
const DEATH_PATIENCE: Duration = Duration::from_millis(100);
/// How long the keeper may take to report that a killed box is dead.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// From the program's first instruction to the proof that it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    Dying { since: Instant, why: Why },
    Ended { exit: Exit, killed: Option<Why> },
}

/// Why a box was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The caller wants so: a timeout, too much output, a cancelled run.
    Asked,
    /// Its processes used more CPU time than they may.
    CpuTime,
    /// The kernel killed one of its processes, or it held too much memory that its cgroup does not limit.
    Memory,
}

/// How the program ended, and what was used if no cgroup counted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) status: WaitStatus,
    pub(super) cpu: Duration,
    pub(super) max_rss: u64,
}

/// Something that shows that the program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// The keeper reports that every process of the box is dead.
    Reported(Exit),
    /// PID 1 reports that the program has ended and left no process, or the kernel shows that the program is exiting
    /// and leaves none. What was used is counted by the box's cgroup.
    Alone(WaitStatus),
    /// The keeper is gone, so the kernel has killed the box.
    KeeperGone,
}

/// What a box that was killed and is not dead yet needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdue {
    Nothing,
    /// Its limit on CPU lifted: processes must run in order to die.
    Hastening,
    /// Its keeper killed as well.
    ItsKeeperKilled,
}

impl Life {
    /// Notes a sign of the end. Later ones change nothing.
    pub(super) fn show(&mut self, sign: Sign) {
        let killed = match *self {
            Life::Running => None,
            Life::Dying { why, .. } => Some(why),
            Life::Ended { .. } => return,
        };
        let exit = match sign {
            Sign::Reported(exit) => exit,
            Sign::Alone(status) => Exit::counted_elsewhere(status),
            Sign::KeeperGone => Exit::counted_elsewhere(WaitStatus::KILLED),
        };
        *self = Life::Ended { exit, killed };
    }

    /// Notes that the box is killed. The first reason stays.
    pub(super) fn kill(&mut self, why: Why) {
        if self.is_running() {
            *self = Life::Dying { since: Instant::now(), why };
        }
    }

    /// Why a running box must be killed, judging by what its cgroup counted since the run began. An OOM kill of one process
    /// ends them all, which cgroup v1 does not do itself.
    pub(super) fn excess(self, counters: &Counters, cpu_time: Option<Duration>) -> Option<Why> {
        if !self.is_running() {
            None
        } else if cpu_time.is_some_and(|limit| counters.cpu > limit) {
            Some(Why::CpuTime)
        } else {
            (counters.oom_kills > 0).then_some(Why::Memory)
        }
    }

    pub(super) fn is_running(self) -> bool {
        self == Life::Running
    }

    pub(super) fn has_ended(self) -> bool {
        matches!(self, Life::Ended { .. })
    }

    pub(super) fn overdue(self, now: Instant) -> Overdue {
        let Life::Dying { since, .. } = self else { return Overdue::Nothing };
        match now.saturating_duration_since(since) {
            waited if waited > KILL_PATIENCE => Overdue::ItsKeeperKilled,
            waited if waited > DEATH_PATIENCE => Overdue::Hastening,
            _ => Overdue::Nothing,
        }
    }

    /// How it ended. A box that is closed without any sign was killed.
    pub(super) fn exit(self) -> Exit {
        match self {
            Life::Ended { exit, .. } => exit,
            Life::Running | Life::Dying { .. } => Exit::counted_elsewhere(WaitStatus::KILLED),
        }
    }

    /// What the caller is told. A program that dies of a signal when it has used up its CPU time died of `RLIMIT_CPU`.
    pub(super) fn ending(self, counters: &Counters, cpu_time: Option<Duration>) -> Ending {
        let killed = match self {
            Life::Running => None,
            Life::Dying { why, .. } => Some(why),
            Life::Ended { killed, .. } => killed,
        };
        let status = self.exit().status;
        let spent = cpu_time.is_some_and(|limit| counters.cpu >= limit);
        if counters.oom_kills > 0 || killed == Some(Why::Memory) {
            Ending::OutOfMemory
        } else if killed == Some(Why::CpuTime) || (spent && status.signal().is_some()) {
            Ending::CpuTimeExhausted
        } else if let Some(signal) = status.signal() {
            Ending::Signaled(signal)
        } else {
            Ending::Exited(status.exit_code())
        }
    }
}

impl Exit {
    fn counted_elsewhere(status: WaitStatus) -> Exit {
        Exit { status, cpu: Duration::ZERO, max_rss: 0 }
    }
}

/// A status as `waitpid` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitStatus(pub(super) i32);

impl WaitStatus {
    const KILLED: WaitStatus = WaitStatus(9);

    fn signal(self) -> Option<u8> {
        let signal = u8::try_from(self.0 & 0x7f).unwrap_or_default();
        (signal != 0).then_some(signal)
    }

    fn exit_code(self) -> u8 {
        u8::try_from((self.0 >> 8) & 0xff).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(1));

    /// Everything that can happen to a life.
    #[derive(Debug, Clone, Copy)]
    enum Happens {
        Shown(Sign),
        Killed(Why),
        Counted(Counters),
    }

    fn exit(status: i32) -> Exit {
        Exit { status: WaitStatus(status), cpu: Duration::from_millis(3), max_rss: 7 }
    }

    fn counters(cpu: Duration, oom_kills: u64) -> Counters {
        Counters { cpu, memory_peak: 0, oom_kills }
    }

    fn happens() -> impl Strategy<Value = Happens> {
        let status = prop_oneof![Just(0), Just(0x300), Just(9), Just(24)];
        let sign = prop_oneof![
            status.clone().prop_map(|status| Sign::Reported(exit(status))),
            status.prop_map(|status| Sign::Alone(WaitStatus(status))),
            Just(Sign::KeeperGone),
        ];
        let why = prop_oneof![Just(Why::Asked), Just(Why::CpuTime), Just(Why::Memory)];
        let count = (0_u64..3_000, 0_u64..2).prop_map(|(ms, oom)| counters(Duration::from_millis(ms), oom));
        prop_oneof![
            sign.prop_map(Happens::Shown),
            why.prop_map(Happens::Killed),
            count.prop_map(Happens::Counted),
        ]
    }

    fn live(life: &mut Life, event: Happens) {
        match event {
            Happens::Shown(sign) => life.show(sign),
            Happens::Killed(why) => life.kill(why),
            Happens::Counted(counters) => {
                if let Some(why) = life.excess(&counters, LIMIT) {
                    life.kill(why);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_first_sign_and_the_first_reason_count(events in prop::collection::vec(happens(), 0..12)) {
            let mut life = Life::Running;
            for event in &events {
                let before = life;
                live(&mut life, *event);
                match before {
                    Life::Ended { .. } => prop_assert_eq!(life, before, "an end is final"),
                    Life::Dying { why, .. } => match life {
                        Life::Running => prop_assert!(false, "a killed box does not come back"),
                        Life::Dying { why: after, .. } | Life::Ended { killed: Some(after), .. } => {
                            prop_assert_eq!(after, why);
                        }
                        Life::Ended { killed: None, .. } => prop_assert!(false, "the reason is lost"),
                    },
                    Life::Running => {}
                }
            }
            let shown = events.iter().any(|event| matches!(event, Happens::Shown(_)));
            prop_assert_eq!(life.has_ended(), shown, "it ends by a sign, and by nothing else");
        }

        #[test]
        fn no_limit_kills_what_is_dying_or_dead(events in prop::collection::vec(happens(), 1..12)) {
            let mut life = Life::Running;
            for event in events {
                live(&mut life, event);
                let beyond = counters(Duration::from_secs(9), 9);
                prop_assert_eq!(life.excess(&beyond, LIMIT).is_some(), life.is_running());
            }
        }
    }

    #[test]
    fn a_program_that_ends_by_itself_is_told_by_its_status() {
        let ending = |status| {
            let mut life = Life::Running;
            life.show(Sign::Alone(WaitStatus(status)));
            life.ending(&counters(Duration::ZERO, 0), LIMIT)
        };
        assert_eq!(ending(0), Ending::Exited(0));
        assert_eq!(ending(0x300), Ending::Exited(3));
        assert_eq!(ending(11), Ending::Signaled(11));
        assert_eq!(ending(0x80 | 6), Ending::Signaled(6), "with a core dump");
    }

    #[test]
    fn a_limit_tells_more_than_the_signal_that_enforced_it() {
        let ending = |why, cpu, oom_kills| {
            let mut life = Life::Running;
            life.kill(why);
            life.show(Sign::KeeperGone);
            life.ending(&counters(cpu, oom_kills), LIMIT)
        };
        let little = Duration::from_millis(1);
        assert_eq!(ending(Why::Asked, little, 0), Ending::Signaled(9), "the control");
        assert_eq!(ending(Why::CpuTime, little, 0), Ending::CpuTimeExhausted);
        assert_eq!(ending(Why::Asked, Duration::from_secs(1), 0), Ending::CpuTimeExhausted);
        assert_eq!(ending(Why::Memory, little, 0), Ending::OutOfMemory);
        assert_eq!(ending(Why::CpuTime, little, 1), Ending::OutOfMemory, "which is why it was slow");
    }

    #[test]
    fn a_program_that_ends_well_with_all_its_cpu_time_has_ended_well() {
        let mut life = Life::Running;
        life.show(Sign::Reported(exit(0)));
        assert_eq!(life.ending(&counters(Duration::from_secs(2), 0), LIMIT), Ending::Exited(0));
    }

    #[test]
    fn a_killed_box_gets_help_and_then_loses_its_keeper() {
        let mut life = Life::Running;
        let far = Instant::now() + Duration::from_secs(60);
        assert_eq!(life.overdue(far), Overdue::Nothing, "it is not dying");
        life.kill(Why::Asked);
        let Life::Dying { since, .. } = life else { panic!("{life:?}") };
        assert_eq!(life.overdue(since + DEATH_PATIENCE), Overdue::Nothing);
        assert_eq!(life.overdue(since + KILL_PATIENCE), Overdue::Hastening);
        assert_eq!(life.overdue(far), Overdue::ItsKeeperKilled);
        life.show(Sign::KeeperGone);
        assert_eq!(life.overdue(far), Overdue::Nothing, "it is dead");
    }
}
