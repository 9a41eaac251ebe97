//! The engine that runs modules, and the clock that interrupts them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wasmtime::{Config, Engine, EngineWeak, OptLevel};

/// The maximum stack of a program: enough for an interpreter's own recursion limit.
const MAX_STACK: usize = 4 << 20;
/// The stack of a program's thread: the program's, and room for the system interface.
pub(crate) const THREAD_STACK: usize = MAX_STACK + (1 << 20);
/// How often a program is checked while it computes.
const TICK: Duration = Duration::from_millis(5);

/// An engine with a clock.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) engine: Engine,
    clock: Arc<Clock>,
}

impl Machine {
    /// Makes the engine; the clock is stopped.
    pub(crate) fn new() -> wasmtime::Result<Machine> {
        let mut config = Config::new();
        config
            .epoch_interruption(true)
            .max_wasm_stack(MAX_STACK)
            // Not used, but wasmtime checks it against the other.
            .async_stack_size(MAX_STACK)
            .cranelift_opt_level(OptLevel::Speed)
            .wasm_backtrace_max_frames(None)
            // Nothing unwinds the stack of an interpreter, and this takes a third of the file.
            .native_unwind_info(false)
            .generate_address_map(false);
        let engine = Engine::new(&config)?;
        let clock = Arc::new(Clock::new(engine.weak()));
        Ok(Machine { engine, clock })
    }

    /// What a compiled module must match to be loaded into this engine.
    pub(crate) fn make(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Runs the clock for as long as the returned value lives.
    pub(crate) fn run_clock(&self) -> std::io::Result<Running> {
        let mut state = self.clock.state();
        if !state.started {
            let clock = Arc::clone(&self.clock);
            let thread = std::thread::Builder::new().name("wasm clock".into()).stack_size(64 << 10);
            thread.spawn(move || clock.tick())?;
            state.started = true;
        }
        state.running += 1;
        drop(state);
        self.clock.bell.notify_all();
        Ok(Running(Arc::clone(&self.clock)))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.clock.state().closed = true;
        self.clock.bell.notify_all();
    }
}

/// Keeps the clock running.
#[derive(Debug)]
pub(crate) struct Running(Arc<Clock>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.state().running -= 1;
    }
}

struct Clock {
    engine: EngineWeak,
    state: Mutex<ClockState>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct ClockState {
    started: bool,
    running: usize,
    closed: bool,
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Clock {
    fn new(engine: EngineWeak) -> Clock {
        Clock { engine, state: Mutex::default(), bell: Condvar::new() }
    }

    fn tick(&self) {
        while self.is_wanted() {
            std::thread::sleep(TICK);
            match self.engine.upgrade() {
                Some(engine) => engine.increment_epoch(),
                None => return,
            }
        }
    }

    /// Waits until the clock is needed. A program may outlive the machine that it was started on.
    fn is_wanted(&self) -> bool {
        let mut state = self.state();
        while state.running == 0 && !state.closed {
            state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.running > 0
    }

    fn state(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
