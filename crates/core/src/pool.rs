//! The state of the warm pool, as reported to users.

use std::time::Duration;

use crate::language::Language;

/// All parked boxes, by language.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolStatus {
    /// The most memory that they may use together, in bytes.
    pub memory_limit: u64,
    /// The age at which a parked box is replaced.
    pub max_age: Duration,
    /// The languages in the pool.
    pub languages: Vec<LanguagePool>,
}

/// The boxes of one language.
#[derive(Debug, Clone, PartialEq)]
pub struct LanguagePool {
    /// Which.
    pub language: Language,
    /// Parked boxes.
    pub ready: usize,
    /// Boxes that are being made.
    pub booting: usize,
    /// How many there are without demand.
    pub min: usize,
    /// How many there may be at most.
    pub max: usize,
    /// How many there should be now, according to recent demand.
    pub target: usize,
    /// Runs that found one.
    pub hits: u64,
    /// Runs that could have used one, and found none.
    pub misses: u64,
    /// Runs that asked for something a parked box does not have: variables, arguments, another disk size.
    pub unfit: u64,
    /// Boxes that were parked.
    pub refills: u64,
    /// The total time it took to make them.
    pub refill_time: Duration,
    /// Boxes that could not be parked, or died while parked.
    pub losses: u64,
    /// Why the last one could not be parked, until one is.
    pub problem: Option<String>,
    /// How long the oldest one has been parked.
    pub oldest: Option<Duration>,
    /// Memory of the parked boxes, in bytes.
    pub memory: u64,
}
