//! Workers as a caller sees them: what they answer, what ends them, and what a pool does then.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test with its own main is not seen as a test")]

use std::fs::File;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use belljar_worker::{Excess, Failure, Job, Limits, Pool, Worker, run_as_worker};
use libtest_mimic::{Arguments, Failed, Trial};

const JOB: Job = Job { name: "test", prepare: || (), perform };
const LIMITS: Limits =
    Limits { wall: Duration::from_secs(60), cpu: Duration::from_secs(30), memory: 256 << 20 };

fn main() -> ExitCode {
    if let Some(code) = run_as_worker(&[JOB]) {
        return code;
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        fn trials() -> Vec<Trial> {
            vec![$(Trial::test(stringify!($name), || -> Result<(), Failed> { $name(); Ok(()) })),*]
        }
    };
}

trials![
    a_worker_answers_many_questions,
    a_limit_ends_a_worker_and_is_named,
    the_limit_on_cpu_time_is_for_each_question,
    a_pool_replaces_workers_that_died,
    many_threads_share_a_pool,
    a_worker_can_open_nothing,
];

fn perform(question: Vec<u8>, limits: Limits) -> io::Result<Vec<u8>> {
    match question.as_slice() {
        b"spin" => loop {
            std::hint::black_box(0);
        },
        b"sleep" => {
            // It may not ask the kernel to sleep, so it waits for a thread that never ends.
            let (_sender, receiver) = std::sync::mpsc::channel::<()>();
            let _ = receiver.recv();
            loop {
                thread::yield_now();
            }
        }
        b"burn" => {
            let until = std::time::Instant::now() + limits.cpu / 2;
            while std::time::Instant::now() < until {}
            Ok(Vec::new())
        }
        b"recurse" => Ok(vec![recurse(0)]),
        b"allocate" => Ok(vec![1; 512 << 20]),
        b"fail" => Err(io::Error::other("asked to")),
        b"open" => {
            Ok(format!("{:?}", File::open("/proc/version").map(drop).map_err(|cause| cause.kind())).into())
        }
        b"pid" => Ok(std::process::id().to_string().into()),
        other => Ok(other.iter().rev().copied().collect()),
    }
}

#[allow(unconditional_recursion, reason = "to overflow the stack")]
fn recurse(depth: u8) -> u8 {
    let big = std::hint::black_box([depth; 4096]);
    recurse(depth.wrapping_add(1)).wrapping_add(big[0])
}

fn a_worker_answers_many_questions() {
    let mut worker = Worker::start(&JOB, LIMITS).unwrap();
    assert_eq!(worker.ask(b"abc").unwrap().0, b"cba");
    let long = vec![b'x'; 4 << 20];
    let (answer, spent) = worker.ask(&long).unwrap();
    assert_eq!(answer, long);
    assert!(spent.memory_peak > 4 << 20);
    assert_eq!(worker.ask(b"").unwrap().0, b"");
}

fn failure(question: &[u8], limits: Limits) -> Failure {
    Worker::start(&JOB, limits).unwrap().ask(question).unwrap_err()
}

fn a_limit_ends_a_worker_and_is_named() {
    let short = Duration::from_millis(50);
    let excess = |question: &[u8], limits: Limits| match failure(question, limits) {
        Failure::TooMuch(excess) => excess,
        Failure::Broken(cause) => panic!("{cause}"),
    };
    assert_eq!(excess(b"spin", Limits { cpu: short, ..LIMITS }), Excess::Cpu);
    assert_eq!(excess(b"sleep", Limits { wall: short, ..LIMITS }), Excess::Wall);
    assert_eq!(excess(b"recurse", LIMITS), Excess::Depth);
    assert_eq!(excess(b"allocate", LIMITS), Excess::Memory);
    assert!(matches!(failure(b"fail", LIMITS), Failure::Broken(_)));
}

fn the_limit_on_cpu_time_is_for_each_question() {
    let mut worker = Worker::start(&JOB, Limits { cpu: Duration::from_millis(400), ..LIMITS }).unwrap();
    for _ in 0..5 {
        worker.ask(b"burn").unwrap();
    }
    assert!(matches!(worker.ask(b"spin"), Err(Failure::TooMuch(Excess::Cpu))));
}

fn a_pool_replaces_workers_that_died() {
    let pool = Pool::start(JOB, Limits { cpu: Duration::from_millis(200), ..LIMITS }, 1).unwrap();
    let first = pool.ask(b"pid").unwrap().0;
    assert_eq!(pool.ask(b"pid").unwrap().0, first, "a worker is used again");
    assert!(matches!(pool.ask(b"spin"), Err(Failure::TooMuch(Excess::Cpu))));
    assert_ne!(pool.ask(b"pid").unwrap().0, first);
}

fn many_threads_share_a_pool() {
    let pool = Arc::new(Pool::start(JOB, LIMITS, 2).unwrap());
    let threads: Vec<_> = (0..8)
        .map(|number: u8| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                for _ in 0..50 {
                    assert_eq!(pool.ask(&[number, 1, 2]).unwrap().0, [2, 1, number]);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn a_worker_can_open_nothing() {
    assert!(File::open("/proc/version").is_ok(), "the control");
    let mut worker = Worker::start(&JOB, LIMITS).unwrap();
    let answer = String::from_utf8(worker.ask(b"open").unwrap().0).unwrap();
    assert_eq!(answer, "Err(PermissionDenied)");
}
