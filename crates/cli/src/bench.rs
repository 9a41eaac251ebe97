//! `belljar bench`: what a sandbox costs on this host, compared with the bare interpreter and with other sandboxes.
//!
//! Every contender runs the same program with comparable limits. Each round runs each of them once, in an order
//! that rotates, so that a busy moment of the machine affects all alike. A contender that is missing or does not
//! work here is listed with the reason.

mod contender;
mod memory;
mod promise;
mod statistics;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use belljar_wire::{Code, Problem};
use clap::ValueHint;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use contender::{Absent, Contender, Peers};
use memory::Supervisor;
use promise::Promise;
use statistics::{Milliseconds, Summary};

use crate::args::Verbosity;
use crate::problem;
use crate::progress::Counter;

/// Rounds whose times are discarded: they fill the page cache and settle the CPU frequency.
const WARM_UP: usize = 3;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Number of rounds; each one runs every contender once
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,

    /// Print JSON with every measured time
    #[arg(long)]
    json: bool,

    /// Write the JSON to a file as well
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    save: Option<PathBuf>,

    /// Languages to measure
    #[arg(long, value_name = "LANGUAGE", default_values = ["bash", "python", "javascript"],
          value_parser = ["bash", "python", "javascript"])]
    language: Vec<String>,

    /// Measure only these contenders
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = PossibleValuesParser::new(contender::values()))]
    only: Vec<String>,

    /// Image for `docker run`; it must have been pulled already
    #[arg(long, value_name = "REF", default_value = "python:3.11-slim")]
    docker_image: String,

    /// Exit with status 1 if this host misses the project's targets for speed and memory
    #[arg(long)]
    check: bool,
}

/// Measures, and prints what was found.
pub(crate) fn run(args: &BenchArgs, verbosity: Verbosity) -> ExitCode {
    match measure_and_print(args, verbosity) {
        Ok(report) if args.check && report.breaks_a_promise() => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let message = format!("cannot measure: {error}");
            let hint = "`belljar doctor` shows whether code can run here";
            problem::report(&Problem::new(Code::Internal, message, hint), args.json);
            ExitCode::from(problem::RUN_FAILED)
        }
    }
}

fn measure_and_print(args: &BenchArgs, verbosity: Verbosity) -> io::Result<Report> {
    let report = Report::measure(args, verbosity)?;
    let json = belljar_wire::to_json(&report);
    if let Some(file) = &args.save {
        fs::write(file, format!("{json}\n"))?;
    }
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{json}")?
    } else {
        report.print(&mut out)?
    }
    Ok(report)
}

/// A program that does next to nothing, so that what is measured is what surrounds it.
#[derive(Debug, Clone, Copy)]
struct Snippet {
    language: &'static str,
    code: &'static str,
    prints: &'static str,
    /// What the interpreter is called inside of an image.
    program: &'static str,
    /// The interpreter's option that takes code.
    option: &'static str,
}

const SNIPPETS: &[Snippet] = &[
    Snippet { language: "bash", code: "true", prints: "", program: "bash", option: "-c" },
    Snippet { language: "python", code: "print(1)", prints: "1\n", program: "python3", option: "-c" },
    Snippet { language: "javascript", code: "console.log(1)", prints: "1\n", program: "node", option: "-e" },
];

/// Everything that was found out.
#[derive(Debug, Serialize)]
struct Report {
    /// The version of belljar.
    version: &'static str,
    kernel: String,
    cpus: usize,
    runs: u16,
    comparisons: Vec<Comparison>,
    supervisor: Result<Supervisor, String>,
    promises: Vec<Promise>,
}

/// One snippet, run by everyone.
#[derive(Debug, Serialize)]
struct Comparison {
    language: &'static str,
    code: &'static str,
    /// The interpreter that belljar uses, and everyone else on this host with it.
    program: Option<String>,
    results: Vec<Measured>,
    not_measured: Vec<Absent>,
}

/// How one contender did.
#[derive(Debug, Serialize)]
struct Measured {
    name: &'static str,
    #[serde(flatten)]
    summary: Summary,
    /// Its median as a multiple of the bare interpreter's.
    times_bare: Option<f64>,
    /// What its median adds to the bare interpreter's.
    over_bare_ms: Option<Milliseconds>,
    samples_ms: Vec<Milliseconds>,
}

impl Report {
    fn measure(args: &BenchArgs, verbosity: Verbosity) -> io::Result<Report> {
        let peers = Peers::find(&args.docker_image);
        let chosen =
            SNIPPETS.iter().filter(|snippet| args.language.iter().any(|name| name == snippet.language));
        let comparisons: Vec<_> = chosen
            .map(|snippet| Comparison::measure(snippet, &peers, args, verbosity))
            .collect::<io::Result<_>>()?;
        let supervisor = memory::of_supervisor().map_err(|error| error.to_string());
        let promises = promise::weigh(&comparisons, supervisor.as_ref().ok());
        Ok(Report {
            version: env!("CARGO_PKG_VERSION"),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            cpus: std::thread::available_parallelism()?.get(),
            runs: args.runs,
            comparisons,
            supervisor,
            promises,
        })
    }

    fn breaks_a_promise(&self) -> bool {
        self.promises.iter().any(|promise| !promise.kept)
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        for comparison in &self.comparisons {
            comparison.print(out)?;
        }
        match &self.supervisor {
            Ok(supervisor) => writeln!(out, "supervisor  {supervisor}")?,
            Err(why) => writeln!(out, "supervisor  not measured: {why}")?,
        }
        writeln!(out)?;
        self.promises.iter().try_for_each(|promise| writeln!(out, "{promise}"))
    }
}

impl Comparison {
    fn measure(
        snippet: &'static Snippet,
        peers: &Peers,
        args: &BenchArgs,
        verbosity: Verbosity,
    ) -> io::Result<Comparison> {
        let found = contender::interpreter(snippet);
        let (contenders, not_measured) = match &found {
            Ok(program) => peers.line_up(snippet, program, &args.only),
            Err(error) => (vec![], contender::nobody(&error.to_string())),
        };
        let rounds = Counter::new(verbosity, snippet.language, WARM_UP + usize::from(args.runs));
        let samples = take_turns(&contenders, usize::from(args.runs), &rounds)?;
        drop(rounds);
        let bare = contenders.iter().position(|contender| contender.name == contender::BARE);
        let bare = bare.map(|position| Summary::of(&samples[position]).p50_ms);
        let results = contenders
            .iter()
            .zip(samples)
            .map(|(contender, samples_ms)| Measured::new(contender.name, samples_ms, bare))
            .collect();
        let program = found.ok();
        Ok(Comparison { language: snippet.language, code: snippet.code, program, results, not_measured })
    }

    fn median(&self, name: &str) -> Option<Milliseconds> {
        self.results.iter().find(|result| result.name == name).map(|result| result.summary.p50_ms)
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let program = self.program.as_deref().unwrap_or("no interpreter");
        writeln!(out, "{}  {}  ({program})", self.language, self.code)?;
        writeln!(
            out,
            "  {:<16}{:>9}{:>9}{:>9}{:>9}{:>9}{:>11}",
            "ms", "p50", "p90", "p99", "min", "× bare", "over bare"
        )?;
        for Measured { name, summary, times_bare, over_bare_ms, .. } in &self.results {
            let Summary { p50_ms, p90_ms, p99_ms, min_ms } = summary;
            write!(out, "  {name:<16}{p50_ms:>9.2}{p90_ms:>9.2}{p99_ms:>9.2}{min_ms:>9.2}")?;
            match (times_bare, over_bare_ms) {
                (Some(times), Some(over)) => writeln!(out, "{times:>9.2}{over:>11.2}")?,
                _ => writeln!(out)?,
            }
        }
        for Absent { name, why } in &self.not_measured {
            writeln!(out, "  {name:<16}not measured: {why}")?;
        }
        writeln!(out)
    }
}

impl Measured {
    fn new(name: &'static str, samples_ms: Vec<Milliseconds>, bare: Option<Milliseconds>) -> Measured {
        let summary = Summary::of(&samples_ms);
        let compared = bare.filter(|_| name != contender::BARE);
        Measured {
            name,
            times_bare: compared.map(|bare| summary.p50_ms / bare),
            over_bare_ms: compared.map(|bare| summary.p50_ms - bare),
            summary,
            samples_ms,
        }
    }
}

/// Runs every contender once per round and starts each round with the next one. Returns a list of times for each.
fn take_turns(contenders: &[Contender], runs: usize, rounds: &Counter) -> io::Result<Vec<Vec<Milliseconds>>> {
    let mut samples = vec![Vec::with_capacity(runs); contenders.len()];
    for round in 0..WARM_UP + runs {
        for turn in 0..contenders.len() {
            let position = (round + turn) % contenders.len();
            let time = contenders[position].time_one_run()?;
            if round >= WARM_UP {
                samples[position].push(time);
            }
        }
        rounds.advance();
    }
    Ok(samples)
}
