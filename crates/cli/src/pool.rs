//! `belljar pool`: the warm pool of a running server.

use std::process::ExitCode;

use belljar_wire::{LanguagePool, Pool, Problem, to_json};
use clap::Args;

use crate::args::Verbosity;
use crate::problem::{self, say};
use crate::remote::{Remote, ServerArgs};
use crate::serve::DEFAULT_LISTEN;
use crate::settings::Environment;
use crate::table::columns;

#[derive(Debug, Args)]
pub(crate) struct PoolArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &PoolArgs, verbosity: Verbosity, environment: Environment<'_>) -> ExitCode {
    match pool(args, environment) {
        Ok(pool) => {
            say(&if args.json { to_json(&pool) } else { shown(&pool, verbosity) });
            ExitCode::SUCCESS
        }
        Err(problem) => {
            problem::report(&problem, args.json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn pool(args: &PoolArgs, environment: Environment<'_>) -> Result<Pool, Problem> {
    let remote = match Remote::chosen(&args.server, environment)? {
        Some(remote) => remote,
        None => Remote::new(&format!("http://{DEFAULT_LISTEN}"), environment)?,
    };
    remote.ask(async |client| client.pool().await)
}

fn shown(pool: &Pool, verbosity: Verbosity) -> String {
    if !pool.enabled {
        return "this server has no warm pool\n".to_owned();
    }
    let table = match verbosity {
        Verbosity::Verbose => columns(&table_of(pool, WIDE)),
        Verbosity::Normal | Verbosity::Quiet => columns(&table_of(pool, NARROW)),
    };
    let problems = pool.languages.iter().filter_map(|language| {
        Some(crate::output::inert(&format!("{}: {}", language.language, language.problem.as_ref()?)) + "\n")
    });
    let total = format!("memory {} of {}\n", memory(pool.memory_bytes), memory(pool.memory_limit_bytes));
    table + &total + &problems.collect::<String>()
}

/// A column: its heading, and what it says of a language.
type Column = (&'static str, fn(&LanguagePool) -> String);

const WIDE: &[Column] = &[
    ("LANGUAGE", |language| language.language.clone()),
    ("READY", |language| language.ready.to_string()),
    ("BOOTING", |language| language.booting.to_string()),
    ("TARGET", |language| language.target.to_string()),
    ("MIN", |language| language.min.to_string()),
    ("MAX", |language| language.max.to_string()),
    ("HITS", |language| language.hits.to_string()),
    ("MISSES", |language| language.misses.to_string()),
    ("UNFIT", |language| language.unfit.to_string()),
    ("REFILL", |language| millis(language.refill_ms)),
    ("MEMORY", |language| memory(language.memory_bytes)),
    ("REFILLS", |language| language.refills.to_string()),
    ("LOSSES", |language| language.losses.to_string()),
    ("OLDEST", |language| millis(language.oldest_ms)),
];
/// Without the last three.
const NARROW: &[Column] = WIDE.split_at(11).0;

fn table_of(pool: &Pool, shown: &[Column]) -> Vec<Vec<String>> {
    let heading = shown.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let row = |language: &LanguagePool| shown.iter().map(|(_, cell)| cell(language)).collect();
    std::iter::once(heading).chain(pool.languages.iter().map(row)).collect()
}

fn memory(bytes: u64) -> String {
    format!("{:.1}M", bytes as f64 / f64::from(1 << 20))
}

fn millis(time: Option<f64>) -> String {
    time.map_or("-".to_owned(), |millis| format!("{millis:.0}ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_the_pool_of_each_language_and_its_problem() {
        let python = LanguagePool {
            language: "python".into(),
            ready: 2,
            booting: 1,
            min: 1,
            max: 16,
            target: 3,
            hits: 70,
            misses: 1,
            unfit: 0,
            refills: 4,
            refill_ms: Some(35.2),
            losses: 0,
            problem: None,
            oldest_ms: Some(1000.0),
            memory_bytes: 14 << 20,
        };
        let lua = LanguagePool {
            language: "lua".into(),
            ready: 0,
            refill_ms: None,
            memory_bytes: 0,
            problem: Some("no runtime for lua was found".into()),
            ..python.clone()
        };
        let pool = Pool {
            enabled: true,
            memory_bytes: 14 << 20,
            memory_limit_bytes: 256 << 20,
            max_age_ms: 1.0,
            languages: vec![python, lua],
        };
        insta::assert_snapshot!(shown(&pool, Verbosity::Normal), @"
        LANGUAGE  READY  BOOTING  TARGET  MIN  MAX  HITS  MISSES  UNFIT  REFILL  MEMORY
        python    2      1        3       1    16   70    1       0      35ms    14.0M
        lua       0      1        3       1    16   70    1       0      -       0.0M
        memory 14.0M of 256.0M
        lua: no runtime for lua was found
        ");
        insta::assert_snapshot!(shown(&pool, Verbosity::Verbose), @"
        LANGUAGE  READY  BOOTING  TARGET  MIN  MAX  HITS  MISSES  UNFIT  REFILL  MEMORY  REFILLS  LOSSES  OLDEST
        python    2      1        3       1    16   70    1       0      35ms    14.0M   4        0       1000ms
        lua       0      1        3       1    16   70    1       0      -       0.0M    4        0       1000ms
        memory 14.0M of 256.0M
        lua: no runtime for lua was found
        ");
        let disabled = Pool { enabled: false, ..pool };
        assert_eq!(shown(&disabled, Verbosity::Normal), "this server has no warm pool\n");
    }
}
