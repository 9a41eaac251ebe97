//! One program: a module with its own memory, on its own thread, from its first instruction to its last.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_core::backend::{Ending, Finished};
use belljar_core::limits::Cpus;
use belljar_core::outcome::CollectedFile;
use belljar_core::request::Glob;
use wasmtime::{InstancePre, ResourceLimiter, Store, Trap, UpdateDeadline};

use crate::layout::SANDBOX;
use crate::link::{Link, Stopped};
use crate::machine::{Machine, Running, THREAD_STACK};
use crate::wasi::{Exited, System, cpu_time};

/// The most entries of a module's table: function pointers, of which an interpreter has some ten thousand.
const MAX_TABLE: usize = 1 << 17;
/// The period of the CPU rate.
const RATE_PERIOD: Duration = Duration::from_millis(100);

/// The state of a program, for the calls that it makes.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) link: Arc<Link<End>>,
    pub(crate) system: System,
}

/// What is known when a program has ended. An error means that Belljar failed.
pub(crate) type End = io::Result<Finished>;

/// What to run, and on which terms.
pub(crate) struct Program {
    pub(crate) id: String,
    pub(crate) module: InstancePre<Guest>,
    pub(crate) system: System,
    pub(crate) terms: GuestTerms,
}

/// A program's limits, and what to collect.
#[derive(Debug)]
pub(crate) struct GuestTerms {
    pub(crate) cpu_time: Option<Duration>,
    pub(crate) cpus: Cpus,
    pub(crate) collect: Collect,
}

/// The files that are to be brought back.
#[derive(Debug)]
pub(crate) struct Collect {
    pub(crate) patterns: Vec<Glob>,
    /// The code's own file, which no wildcard matches.
    pub(crate) source: String,
    /// The most bytes of all of them.
    pub(crate) room: u64,
}

/// Starts a program. It ends by itself or when its link says so, and reports to its link.
pub(crate) fn start(machine: &Machine, program: Program, link: Arc<Link<End>>) -> io::Result<()> {
    let clock = machine.run_clock()?;
    let thread = std::thread::Builder::new().name(program.id.clone()).stack_size(THREAD_STACK);
    thread.spawn(move || conduct(program, link, clock)).map(drop)
}

/// The life of a program's thread. Whatever happens in it, its end is reported.
fn conduct(program: Program, link: Arc<Link<End>>, _clock: Running) {
    let _lost = TellOfLoss(Arc::clone(&link));
    let Program { module, system, terms, .. } = program;
    let mut store = Store::new(module.module().engine(), Guest { link: Arc::clone(&link), system });
    store.limiter(|guest| guest);
    store.set_epoch_deadline(1);
    let mut watch = Watch::new(&terms);
    store.epoch_deadline_callback(move |context| watch.look(&context.data().link));
    let ran = run(&mut store, &module);
    let Guest { system, .. } = store.into_data();
    let (files, left_out) = terms.collect.from(&system);
    let memory_peak = system.files.budget.peak();
    link.end(ran_to(ran, &link).map(|ending| Finished {
        ending,
        cpu: cpu_time(),
        memory_peak,
        files,
        left_out,
        changes: None,
        network: None,
    }));
}

fn run(store: &mut Store<Guest>, module: &InstancePre<Guest>) -> wasmtime::Result<()> {
    let instance = module.instantiate(&mut *store)?;
    instance.get_typed_func::<(), ()>(&mut *store, "_start")?.call(store, ())
}

/// How a program ended. A trap is reported on stderr, because nothing else explains it.
fn ran_to(ran: wasmtime::Result<()>, link: &Link<End>) -> io::Result<Ending> {
    let Err(error) = ran else { return Ok(Ending::Exited(0)) };
    if let Some(Exited(code)) = error.downcast_ref::<Exited>() {
        return Ok(Ending::Exited(code.to_le_bytes()[0]));
    }
    if error.is::<Stopped>() {
        return Ok(Ending::Signaled(KILL));
    }
    match error.downcast_ref::<Interruption>() {
        Some(Interruption::OutOfMemory) => return Ok(Ending::OutOfMemory),
        Some(Interruption::CpuTimeUp) => return Ok(Ending::CpuTimeExhausted),
        None => {}
    }
    let Some(trap) = error.downcast_ref::<Trap>() else {
        return Err(io::Error::other(format!("{error:#}")));
    };
    link.remark(&format!("{trap}\n"));
    Ok(Ending::Signaled(signal_of(*trap)))
}

const ABORT: u8 = 6;
const FLOATING_POINT: u8 = 8;
const KILL: u8 = 9;
const SEGMENTATION: u8 = 11;

/// The signal by which the same fault would have ended the same interpreter as a process. C's `abort` is compiled to
/// `unreachable`.
fn signal_of(trap: Trap) -> u8 {
    const ARITHMETIC: [Trap; 3] =
        [Trap::IntegerDivisionByZero, Trap::IntegerOverflow, Trap::BadConversionToInteger];
    if trap == Trap::UnreachableCodeReached {
        ABORT
    } else if ARITHMETIC.contains(&trap) {
        FLOATING_POINT
    } else {
        SEGMENTATION
    }
}

/// Which limit ended a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Interruption {
    #[error("the memory limit was reached")]
    OutOfMemory,
    #[error("the CPU time was used up")]
    CpuTimeUp,
}

/// Checks a program while it computes.
struct Watch {
    began: Instant,
    cpu_time: Option<Duration>,
    /// The rate of one CPU, if it is less than one: a program has no second thread.
    rate: Option<f64>,
}

impl Watch {
    fn new(terms: &GuestTerms) -> Watch {
        let milli = terms.cpus.milli();
        let rate = (milli < 1000).then(|| f64::from(milli) / 1000.0);
        Watch { began: Instant::now(), cpu_time: terms.cpu_time, rate }
    }

    fn look(&mut self, link: &Link<End>) -> wasmtime::Result<UpdateDeadline> {
        link.check()?;
        let used = cpu_time();
        if self.cpu_time.is_some_and(|limit| used >= limit) {
            return Err(Interruption::CpuTimeUp.into());
        }
        if let Some(rate) = self.rate {
            link.sleep_until(Some(self.began + earned_after(used, rate)))?;
        }
        Ok(UpdateDeadline::Continue(1))
    }
}

/// The time after which this much CPU time is within the rate.
fn earned_after(used: Duration, rate: f64) -> Duration {
    let ahead = RATE_PERIOD.mul_f64(rate);
    used.saturating_sub(ahead).div_f64(rate)
}

/// A limit that is reached ends the program, as it would end a process: few programs can continue without memory, and
/// those that try report a different cause in the end.
impl ResourceLimiter for Guest {
    fn memory_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        if self.system.files.budget.grow(desired as u64) {
            return Ok(true);
        }
        Err(Interruption::OutOfMemory.into())
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= MAX_TABLE)
    }

    /// One of each, so that what is counted is all there is.
    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        1
    }
}

impl Collect {
    fn from(&self, system: &System) -> (Vec<CollectedFile>, usize) {
        if self.patterns.is_empty() {
            return (Vec::new(), 0);
        }
        let wanted = |path: &str| {
            self.patterns
                .iter()
                .any(|glob| if path == self.source { glob.is_literally(path) } else { glob.matches(path) })
        };
        system.files.collect(SANDBOX, wanted, self.room)
    }
}

/// Reports that a thread ended without a result, which only a bug in Belljar can cause.
struct TellOfLoss(Arc<Link<End>>);

impl Drop for TellOfLoss {
    fn drop(&mut self) {
        self.0.end(Err(io::Error::other("its thread ended without a result")));
    }
}
