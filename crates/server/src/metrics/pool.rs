//! Metrics of the warm pool, read when they are asked for.

use std::sync::atomic::{AtomicU64, Ordering};

use belljar_core::pool::{LanguagePool, PoolStatus};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::LanguageLabel;

type Gauges = Family<LanguageLabel, Gauge<u64, AtomicU64>>;
type Counters = Family<LanguageLabel, Counter>;

/// What the pool has counted itself, and is read off.
#[derive(Debug, Default)]
pub(super) struct PoolMetrics {
    ready: Gauges,
    booting: Gauges,
    memory: Gauges,
    hits: Counters,
    misses: Counters,
    unfit: Counters,
    refills: Counters,
    refill_seconds: Family<LanguageLabel, Counter<f64, AtomicU64>>,
    losses: Counters,
}

impl PoolMetrics {
    pub(super) fn read_off(&self, pool: &PoolStatus) {
        pool.languages.iter().for_each(|language| self.read_off_language(language));
    }

    fn read_off_language(&self, pool: &LanguagePool) {
        let label = LanguageLabel { language: pool.language.name };
        self.ready.get_or_create(&label).set(pool.ready as u64);
        self.booting.get_or_create(&label).set(pool.booting as u64);
        self.memory.get_or_create(&label).set(pool.memory);
        let counted = [
            (&self.hits, pool.hits),
            (&self.misses, pool.misses),
            (&self.unfit, pool.unfit),
            (&self.refills, pool.refills),
            (&self.losses, pool.losses),
        ];
        for (counters, count) in counted {
            counters.get_or_create(&label).inner().store(count, Ordering::Relaxed);
        }
        let seconds = pool.refill_time.as_secs_f64();
        self.refill_seconds.get_or_create(&label).inner().store(seconds.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "pool_ready",
            "Boxes in the warm pool that are ready for a run",
            self.ready.clone(),
        );
        registry.register("pool_booting", "Boxes whose runtime boots", self.booting.clone());
        registry.register_with_unit(
            "pool_memory",
            "Memory of the ready boxes in the warm pool, measured when they became ready",
            Unit::Bytes,
            self.memory.clone(),
        );
        registry.register("pool_hits", "Runs that found a box waiting", self.hits.clone());
        registry.register(
            "pool_misses",
            "Runs that could have used a box and found none",
            self.misses.clone(),
        );
        registry.register(
            "pool_unfit",
            "Runs that asked for what no box that waits can be given",
            self.unfit.clone(),
        );
        registry.register("pool_refills", "Boxes that were made ready", self.refills.clone());
        registry.register_with_unit(
            "pool_refill",
            "What making boxes ready took",
            Unit::Seconds,
            self.refill_seconds.clone(),
        );
        registry.register(
            "pool_losses",
            "Boxes that could not be made ready, or died while they waited",
            self.losses.clone(),
        );
    }
}
