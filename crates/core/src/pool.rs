//! The boxes that wait for a run, as those who look at them see it.

use std::time::Duration;

use crate::language::Language;

/// All boxes that wait, by language.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolStatus {
    /// The most memory that they may have together, in bytes.
    pub memory_limit: u64,
    /// After how long one that waits is replaced.
    pub max_age: Duration,
    /// The languages that boxes wait for.
    pub languages: Vec<LanguagePool>,
}

/// The boxes of one language.
#[derive(Debug, Clone, PartialEq)]
pub struct LanguagePool {
    /// Which.
    pub language: Language,
    /// Boxes that wait.
    pub ready: usize,
    /// Boxes on their way to that.
    pub booting: usize,
    /// How many there are to be when nobody asks.
    pub min: usize,
    /// How many there may be.
    pub max: usize,
    /// How many there are to be now, after what was asked for of late.
    pub target: usize,
    /// Runs that found one.
    pub hits: u64,
    /// Runs that could have used one, and found none.
    pub misses: u64,
    /// Runs that asked for something else than what waits: variables, arguments, another disk.
    pub unfit: u64,
    /// Boxes that were made ready.
    pub refills: u64,
    /// What making them ready took, all together.
    pub refill_time: Duration,
    /// Boxes that could not be made ready, or died while they waited.
    pub losses: u64,
    /// Why the last one could not be made ready, until one is.
    pub problem: Option<String>,
    /// For how long the oldest one has waited.
    pub oldest: Option<Duration>,
    /// Memory of those that wait, in bytes.
    pub memory: u64,
}
