//! The engine's scanner: `belljar_scan` in a worker, because the code is hostile and a parser is a large target.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use belljar_core::language::Language;
use belljar_engine::{Scan, Scanned, Scanner, Subject, Unscanned};
use belljar_scan::{Request, Trees, message};
use belljar_worker::{Answer, Failure, Job, Limits, Pool, Worker};

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

/// A scanner for many scans: its workers wait for them. If runs will be scanned, they are started at once, else when the
/// first scan is asked for.
pub(crate) fn warm(expected: bool) -> Arc<dyn Scanner> {
    let warm = Warm(OnceLock::new());
    if expected {
        warm.pool();
    }
    Arc::new(warm)
}

#[derive(Debug)]
struct Single;

impl Scanner for Single {
    fn scan(&self, subject: &Subject) -> Result<Scanned, Unscanned> {
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

    fn ask(&self, question: &[u8]) -> Result<Answer, Failure> {
        match self.pool() {
            Ok(pool) => pool.ask(question),
            Err(cause) => Err(Failure::Broken(io::Error::other(cause.clone()))),
        }
    }
}

impl Scanner for Warm {
    fn scan(&self, subject: &Subject) -> Result<Scanned, Unscanned> {
        scan(subject, |question| self.ask(question))
    }

    fn begin(self: Arc<Self>, subject: Subject, patience: Duration) -> Scan {
        let begun = match self.pool() {
            Ok(pool) => pool.begin(&question(&subject, Trees::Wanted)),
            Err(cause) => return Scan::Ended(Err(Unscanned { reason: cause.clone() })),
        };
        let Ok(Some(mut asked)) = begun else {
            // No worker is idle.
            return Scan::Pending(Box::new(move || self.scan(&subject)));
        };
        match asked.wait(patience) {
            Ok(Some((answer, _))) => Scan::Ended(read(&answer)),
            Ok(None) => Scan::Pending(Box::new(move || {
                let answered = asked.wait(LIMITS.wall);
                self.conclude(&subject, answered)
            })),
            failed => Scan::Pending(Box::new(move || self.conclude(&subject, failed))),
        }
    }
}

impl Warm {
    /// A worker that died of something else than the code says nothing about it: another one is asked.
    fn conclude(
        &self,
        subject: &Subject,
        answered: Result<Option<Answer>, Failure>,
    ) -> Result<Scanned, Unscanned> {
        match answered {
            Ok(Some(answer)) => scan_with(subject, Ok(answer), |question| self.ask(question)),
            Err(failure @ Failure::TooMuch(_)) => {
                scan_with(subject, Err(failure), |question| self.ask(question))
            }
            Ok(None) | Err(Failure::Broken(_)) => self.scan(subject),
        }
    }
}

fn scan(subject: &Subject, ask: impl Fn(&[u8]) -> Result<Answer, Failure>) -> Result<Scanned, Unscanned> {
    let answered = ask(&question(subject, Trees::Wanted));
    scan_with(subject, answered, ask)
}

/// Code that ends a parser is read once more, without one.
fn scan_with(
    subject: &Subject,
    answered: Result<Answer, Failure>,
    ask: impl Fn(&[u8]) -> Result<Answer, Failure>,
) -> Result<Scanned, Unscanned> {
    let answered = match answered {
        Err(Failure::TooMuch(_)) => ask(&question(subject, Trees::Failed)),
        answered => answered,
    };
    let (answer, _) = answered.map_err(|failure| Unscanned { reason: failure.to_string() })?;
    read(&answer)
}

fn question(subject: &Subject, trees: Trees) -> Vec<u8> {
    let Subject { language, code, allowed_imports } = subject;
    let allowed_imports = allowed_imports.as_deref();
    message::question(&Request { language: *language, code: code.bytes(), allowed_imports, trees })
}

fn read(answer: &[u8]) -> Result<Scanned, Unscanned> {
    let report = message::report(answer)
        .ok_or_else(|| Unscanned { reason: "the scanner's answer is not one".to_owned() })?;
    Ok(Scanned { findings: report.findings, launches: report.launches })
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
