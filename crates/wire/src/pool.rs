//! The warm pool.

use belljar_core::pool::{self, PoolStatus};
use belljar_engine::Engine;
use serde::{Deserialize, Serialize};

use crate::ToSchema;

/// The warm pool: sandboxes that are ready for a run, so that it need not wait for its runtime to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Whether the server has a warm pool.
    pub enabled: bool,
    /// The memory that all sandboxes in the pool use now, in bytes.
    pub memory_bytes: u64,
    /// The memory that they may use, in bytes.
    pub memory_limit_bytes: u64,
    /// How long a sandbox may wait before it is replaced, in milliseconds.
    pub max_age_ms: f64,
    /// The languages that the pool has sandboxes for.
    pub languages: Vec<LanguagePool>,
}

/// The warm sandboxes of one language.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LanguagePool {
    /// The name of the language.
    #[schema(value_type = crate::schema::LanguageName)]
    pub language: String,
    /// Sandboxes that are ready for a run.
    pub ready: usize,
    /// Sandboxes whose runtime is starting.
    pub booting: usize,
    /// How many sandboxes there are when no runs come.
    pub min: usize,
    /// How many sandboxes there are at most.
    pub max: usize,
    /// How many sandboxes there should be now, judging by recent runs.
    pub target: usize,
    /// Runs that got a warm sandbox.
    pub hits: u64,
    /// Runs that could have used a warm sandbox, but found none ready.
    pub misses: u64,
    /// Runs that asked for something that no warm sandbox can offer, such as another limit on disk.
    pub unfit: u64,
    /// Sandboxes that were made ready.
    pub refills: u64,
    /// How long it takes on average to make a sandbox ready, in milliseconds, or `null` if none was.
    #[schema(required = true)]
    pub refill_ms: Option<f64>,
    /// Sandboxes that could not be made ready, or died in the pool.
    pub losses: u64,
    /// Why the last sandbox could not be made ready, or `null` if it could.
    #[schema(required = true)]
    pub problem: Option<String>,
    /// How long the oldest sandbox has waited, in milliseconds, or `null` if there is none.
    #[schema(required = true)]
    pub oldest_ms: Option<f64>,
    /// The memory of the sandboxes that are ready, in bytes, measured when they became ready.
    pub memory_bytes: u64,
}

impl Pool {
    /// What the backends of an engine say.
    #[must_use]
    pub fn of(engine: &Engine) -> Pool {
        engine.backends().find_map(|backend| backend.pool()).map_or_else(Pool::none, Pool::from)
    }

    fn none() -> Pool {
        let (memory_bytes, memory_limit_bytes) = (0, 0);
        Pool { enabled: false, memory_bytes, memory_limit_bytes, max_age_ms: 0.0, languages: Vec::new() }
    }
}

impl From<PoolStatus> for Pool {
    fn from(status: PoolStatus) -> Pool {
        let languages: Vec<_> = status.languages.into_iter().map(LanguagePool::from).collect();
        Pool {
            enabled: true,
            memory_bytes: languages.iter().map(|language| language.memory_bytes).sum(),
            memory_limit_bytes: status.memory_limit,
            max_age_ms: status.max_age.as_secs_f64() * 1000.0,
            languages,
        }
    }
}

impl From<pool::LanguagePool> for LanguagePool {
    fn from(pool: pool::LanguagePool) -> LanguagePool {
        let refills = u32::try_from(pool.refills).unwrap_or(u32::MAX);
        let refill_time = pool.refill_time.checked_div(refills);
        LanguagePool {
            language: pool.language.name.to_owned(),
            ready: pool.ready,
            booting: pool.booting,
            min: pool.min,
            max: pool.max,
            target: pool.target,
            hits: pool.hits,
            misses: pool.misses,
            unfit: pool.unfit,
            refills: pool.refills,
            refill_ms: refill_time.map(|time| time.as_secs_f64() * 1000.0),
            losses: pool.losses,
            problem: pool.problem,
            oldest_ms: pool.oldest.map(|age| age.as_secs_f64() * 1000.0),
            memory_bytes: pool.memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use belljar_core::language::Language;

    use super::*;

    #[test]
    fn a_pool_says_what_it_has_and_what_refilling_takes() {
        let python = pool::LanguagePool {
            language: Language::by_name("python").unwrap(),
            ready: 2,
            booting: 1,
            min: 1,
            max: 16,
            target: 3,
            hits: 7,
            misses: 1,
            unfit: 0,
            refills: 4,
            refill_time: Duration::from_millis(100),
            losses: 0,
            problem: None,
            oldest: Some(Duration::from_secs(2)),
            memory: 14 << 20,
        };
        let idle = pool::LanguagePool { refills: 0, refill_time: Duration::ZERO, ..python.clone() };
        let (memory_limit, max_age) = (256 << 20, Duration::from_secs(300));
        let pool = Pool::from(PoolStatus { memory_limit, max_age, languages: vec![python, idle] });
        assert_eq!((pool.memory_bytes, pool.max_age_ms), (28 << 20, 300_000.0));
        assert_eq!((pool.languages[0].refill_ms, pool.languages[1].refill_ms), (Some(25.0), None));
        let read: Pool = serde_json::from_str(&crate::to_json(&pool)).unwrap();
        assert_eq!(read, pool);
    }
}
