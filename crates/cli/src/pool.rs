//! `belljar pool`: the boxes that wait for runs, as a server on this machine or elsewhere tells it.

use std::process::ExitCode;

use belljar_wire::{LanguagePool, Pool, Problem, to_json};
use clap::Args;

use crate::problem::{self, say};
use crate::settings::Environment;
use crate::table::aligned;

mod ask;

#[derive(Debug, Args)]
pub(crate) struct PoolArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,

    /// The server to ask; its key is taken from BELLJAR_API_KEY
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8787")]
    url: String,
}

pub(crate) fn run(args: &PoolArgs, environment: Environment<'_>) -> ExitCode {
    match pool(args, environment) {
        Ok(pool) => {
            say(&if args.json { to_json(&pool) } else { shown(&pool) });
            ExitCode::SUCCESS
        }
        Err(problem) => {
            problem::report(&problem, args.json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn pool(args: &PoolArgs, environment: Environment<'_>) -> Result<Pool, Problem> {
    let key = environment("BELLJAR_API_KEY").filter(|key| !key.is_empty());
    ask::get(&args.url, "/v1/pool", key.as_deref())
}

fn shown(pool: &Pool) -> String {
    if !pool.enabled {
        return "this server keeps no boxes waiting\n".to_owned();
    }
    let heading = [
        "LANGUAGE", "READY", "BOOTING", "TARGET", "MIN", "MAX", "HITS", "MISSES", "UNFIT", "REFILL", "MEMORY",
    ];
    let memory = |bytes: u64| format!("{:.1}M", bytes as f64 / f64::from(1 << 20));
    let row = |language: &LanguagePool| {
        let refill = language.refill_ms.map_or("-".to_owned(), |millis| format!("{millis:.0}ms"));
        let LanguagePool { ready, booting, target, min, max, hits, misses, unfit, .. } = language;
        let numbers = [*ready, *booting, *target, *min, *max].map(|number| number.to_string());
        let counts = [*hits, *misses, *unfit].map(|count| count.to_string());
        let [ready, booting, target, min, max] = numbers;
        let [hits, misses, unfit] = counts;
        let name = language.language.clone();
        [name, ready, booting, target, min, max, hits, misses, unfit, refill, memory(language.memory_bytes)]
    };
    let table = aligned(heading, pool.languages.iter().map(row));
    let problems = pool.languages.iter().filter_map(|language| {
        Some(crate::output::inert(&format!("{}: {}", language.language, language.problem.as_ref()?)) + "\n")
    });
    let total = format!("memory {} of {}\n", memory(pool.memory_bytes), memory(pool.memory_limit_bytes));
    table + &total + &problems.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_what_waits_and_why_nothing_does() {
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
        insta::assert_snapshot!(shown(&pool), @"
        LANGUAGE  READY  BOOTING  TARGET  MIN  MAX  HITS  MISSES  UNFIT  REFILL  MEMORY
        python    2      1        3       1    16   70    1       0      35ms    14.0M
        lua       0      1        3       1    16   70    1       0      -       0.0M
        memory 14.0M of 256.0M
        lua: no runtime for lua was found
        ");
        assert_eq!(shown(&Pool { enabled: false, ..pool }), "this server keeps no boxes waiting\n");
    }
}
