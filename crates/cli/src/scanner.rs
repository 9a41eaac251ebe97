//! The engine's scanner: `belljar_scan` in a worker, because the code is hostile and a parser is a large target.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use belljar_core::finding::Finding;
use belljar_core::language::Language;
use belljar_engine::{Scanner, Scanning, Subject, Unscanned};
use belljar_scan::{Request, Trees, message};
use belljar_worker::{Failure, Job, Limits, Pool, Spent, Worker};

/// What a scan may use. The largest code that is accepted, 4 MiB, takes a fraction of this; a deep one half of the
/// memory, for its stack.
const LIMITS: Limits = Limits { wall: Duration::from_secs(10), cpu: Duration::from_secs(2), memory: 1 << 30 };

const SCAN: Job = Job { name: "scan", prepare, perform };

/// Everything that a worker of this program can do.
pub(crate) fn jobs() -> [Job; 3] {
    let [detect_module, strip_types] = belljar_transpile::JOBS;
    [detect_module, strip_types, SCAN]
}

/// A scanner for one scan, or a few.
pub(crate) fn single() -> Arc<dyn Scanner> {
    Arc::new(Single)
}

/// A scanner for many scans: its workers wait for them. If every run is scanned, they are started at once, else when the
/// first scan is asked for.
pub(crate) fn warm(scanning: Scanning) -> Arc<dyn Scanner> {
    let warm = Warm(OnceLock::new());
    if scanning == Scanning::EveryRun {
        warm.pool();
    }
    Arc::new(warm)
}

#[derive(Debug)]
struct Single;

impl Scanner for Single {
    fn scan(&self, subject: &Subject) -> Result<Vec<Finding>, Unscanned> {
        scan(subject, |question| Worker::start(&SCAN, LIMITS).map_err(Failure::Broken)?.ask(question))
    }
}

#[derive(Debug)]
struct Warm(OnceLock<Result<Pool, String>>);

impl Warm {
    fn pool(&self) -> &Result<Pool, String> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        self.0.get_or_init(|| Pool::start(SCAN, LIMITS, cores).map_err(|cause| cause.to_string()))
    }
}

impl Scanner for Warm {
    fn scan(&self, subject: &Subject) -> Result<Vec<Finding>, Unscanned> {
        match self.pool() {
            Ok(pool) => scan(subject, |question| pool.ask(question)),
            Err(cause) => Err(Unscanned { reason: cause.clone() }),
        }
    }
}

/// Code that ends a parser is read once more, without one.
fn scan(
    subject: &Subject,
    ask: impl Fn(&[u8]) -> Result<(Vec<u8>, Spent), Failure>,
) -> Result<Vec<Finding>, Unscanned> {
    let Subject { language, code, allowed_imports } = subject;
    let with = |trees| {
        let allowed_imports = allowed_imports.as_deref();
        ask(&message::question(&Request { language: *language, code: code.bytes(), allowed_imports, trees }))
    };
    let answered = match with(Trees::Wanted) {
        Err(Failure::TooMuch(_)) => with(Trees::Failed),
        answered => answered,
    };
    let (answer, _) = answered.map_err(|failure| Unscanned { reason: failure.to_string() })?;
    message::findings(&answer)
        .ok_or_else(|| Unscanned { reason: "the scanner's answer is not one".to_owned() })
}

/// Makes the index of the rules, which takes longer than most scans, and has each parser used once.
fn prepare() {
    for language in ["python", "javascript", "bash"].into_iter().filter_map(Language::by_name) {
        let request = Request { language, code: b"x", allowed_imports: None, trees: Trees::Wanted };
        let _ = belljar_scan::scan(&request);
    }
}

fn perform(question: Vec<u8>, _: Limits) -> io::Result<Vec<u8>> {
    message::answer(&question).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
