//! Measures a ledger with many records: how long it takes to append one, in batches as the server writes them, and how long
//! a search takes. `bench/ledger` runs it. It fails if that is more than a ledger may take.

#![allow(clippy::print_stdout, reason = "a measurement prints its result")]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use belljar_core::outcome::{Outcome, Stage, Start, Usage};
use belljar_core::request::Code;
use belljar_engine::{Account, Asked, Excerpt, Fate, Origin, Ran, RunId, WayIn};
use belljar_ledger::{Book, Entry, Key, Query, Reader, Redactor, Sync};

/// How many records a busy server writes at once.
const BATCH: usize = 16;
/// What it may take to append a record (the median), and to search, in milliseconds.
const MOST_TO_APPEND: f64 = 0.2;
const MOST_TO_SEARCH: f64 = 200.0;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: million DIRECTORY [RECORDS]")?;
    let records: usize = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let dir = Path::new(&dir);
    // Without records to append, it measures a ledger that is there.
    let append = if records == 0 { 0.0 } else { append(dir, records)? };
    let search = search(dir)?;
    let began = Instant::now();
    let verdict = Reader::open(dir)?.verify(&Key::find(dir)?.public())?;
    println!("verify {:.1} s, whole: {}", began.elapsed().as_secs_f64(), verdict.ok);
    println!("size {} MiB", std::fs::metadata(dir.join(belljar_ledger::FILE))?.len() >> 20);
    if !verdict.ok || append > MOST_TO_APPEND || search > MOST_TO_SEARCH {
        return Err("the ledger is not whole, or took too long".into());
    }
    Ok(())
}

/// The median.
fn append(dir: &Path, records: usize) -> Result<f64, Box<dyn Error>> {
    let mut book = Book::open(dir, Key::find_or_make(dir)?, Sync::Later)?;
    let redactor = Redactor::new(&[])?;
    let mut times = Vec::with_capacity(records / BATCH + 1);
    for first in (0..records).step_by(BATCH) {
        let accounts: Vec<_> =
            (first..(first + BATCH).min(records)).map(account).collect::<Result<_, _>>()?;
        let began = Instant::now();
        let entries: Vec<_> = accounts.iter().map(|account| Entry::new(account, &redactor)).collect();
        book.append(&entries)?;
        times.push(began.elapsed() / u32::try_from(entries.len())?);
    }
    book.sync()?;
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    println!("append {records} records: p50 {:.3} ms, p99 {:.3} ms each", at(50), at(99));
    Ok(at(50))
}

/// The slowest, each the median of five.
fn search(dir: &Path) -> Result<f64, Box<dyn Error>> {
    let text = |text: &str| Some(text.to_owned());
    let queries = [
        ("newest", Query::default()),
        ("one word of one record", Query { words: text("number_77"), ..Query::default() }),
        ("a word of every record", Query { words: text("import"), ..Query::default() }),
        ("two words", Query { words: text("import number_4"), ..Query::default() }),
        ("no such word", Query { words: text("nothing_like_this"), ..Query::default() }),
        ("a rare caller", Query { caller: text("rare"), ..Query::default() }),
        ("a status that there is not", Query { status: text("timed_out"), ..Query::default() }),
        ("a word of a caller", Query { words: text("import"), caller: text("rare"), ..Query::default() }),
        ("the beginning of a word of every record", Query { words: text("numb"), ..Query::default() }),
        (
            "the beginning of a word of every record, and a rare caller",
            Query { words: text("nu"), caller: text("rare"), ..Query::default() },
        ),
        ("the beginnings of two words of every record", Query { words: text("numb js"), ..Query::default() }),
        (
            "a caller that there is not, and a word",
            Query { words: text("import"), caller: text("nobody"), ..Query::default() },
        ),
        (
            "a rare caller, a language and a status",
            Query {
                caller: text("rare"),
                language: text("python"),
                status: text("exited"),
                ..Query::default()
            },
        ),
        ("a time", Query { from: Some(5_000_000), to: Some(5_100_000), ..Query::default() }),
        ("the oldest", Query { to: Some(1_000), ..Query::default() }),
        ("the last second", Query { from: Some(9_999_000), ..Query::default() }),
        ("a time that is to come", Query { from: Some(i64::MAX), ..Query::default() }),
        (
            "an old time, a caller and a word",
            Query {
                words: text("import"),
                caller: text("rare"),
                to: Some(1_000_000),
                from: Some(1_000),
                ..Query::default()
            },
        ),
    ];
    let mut slowest: f64 = 0.0;
    for (name, query) in queries {
        let (mut times, mut found) = (Vec::new(), 0);
        for _ in 0..5 {
            let began = Instant::now();
            // Each search has a reader of its own, as over HTTP and on the command line.
            let mut reader = Reader::open(dir)?;
            found = reader.search(&query, 50)?.len();
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        println!("search for {name}: {:.1} ms, {found} found", times[2]);
        slowest = slowest.max(times[2]);
    }
    Ok(slowest)
}

fn account(number: usize) -> Result<Account, Box<dyn Error>> {
    let code = format!(
        "import json, sys\nnumber_{number} = json.load(sys.stdin)\nfor row in number_{number}:\n    print(row['name'], row['value'] * 2)\n"
    );
    let ran = Ran {
        outcome: Outcome::Exited(0),
        stdout: Excerpt {
            head: format!("alpha {number}\nbeta {}\n", number * 2).into_bytes(),
            ..Excerpt::default()
        },
        stderr: Excerpt::default(),
        usage: Usage::default(),
        compile: None,
        stage: Stage::Run,
        start: Start::Warm,
        runtime: "CPython 3.11.7".to_owned(),
        image: None,
        network: "none".to_owned(),
        network_use: None,
        kept: Vec::new(),
        waived: Vec::new(),
        produced: Vec::new(),
    };
    let caller = if number.is_multiple_of(10_007) { "rare".into() } else { "ci".into() };
    Ok(Account {
        id: RunId::new().to_string(),
        at: SystemTime::UNIX_EPOCH + Duration::from_millis(number as u64 * 10),
        origin: Origin { caller, surface: WayIn::Http, peer: None, cells: None },
        asked: Asked {
            language: "python".to_owned(),
            code: Some(Code::parse(code.into_bytes(), None).map_err(|invalid| invalid.message)?),
            ..Asked::default()
        },
        findings: Vec::new(),
        decision: None,
        fate: Fate::Ran(Box::new(ran)),
    })
}
