//! What is counted, in the words of Prometheus.

mod pool;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use belljar_core::backend::Backend;
use belljar_core::outcome::{Outcome, Report};
use belljar_engine::Engine;
use belljar_wire::{Code, Problem, RunResult};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use pool::PoolMetrics;

/// Everything that is counted. A label takes its values from lists that are ours, never from a request, so that nobody
/// can make the numbers of series grow.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    runs: Family<RunLabels, Counter>,
    seconds: Family<LanguageLabel, Histogram>,
    queue_seconds: Histogram,
    refused: Family<CodeLabel, Counter>,
    kills: Family<ReasonLabel, Counter>,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabel, Histogram>,
    state: State,
    pool: PoolMetrics,
}

/// Gauges, which are read when the metrics are asked for.
#[derive(Debug, Default)]
struct State {
    slots: Gauge<u64, AtomicU64>,
    slots_in_use: Gauge<u64, AtomicU64>,
    queue: Gauge<u64, AtomicU64>,
    leaks: Gauge<u64, AtomicU64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    language: &'static str,
    backend: &'static str,
    status: &'static str,
    start: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LanguageLabel {
    language: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("belljar"),
            runs: Family::default(),
            seconds: Family::new_with_constructor(latency),
            queue_seconds: latency(),
            refused: Family::default(),
            kills: Family::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(latency),
            state: State::default(),
            pool: PoolMetrics::default(),
        };
        metrics.register();
        metrics
    }

    /// A run took place.
    pub(crate) fn ran(&self, report: &Report) {
        let labels = RunLabels {
            language: report.language.name,
            backend: report.backend.name(),
            status: RunResult::status_of(report.outcome),
            start: RunResult::start_of(report.start),
        };
        self.runs.get_or_create(&labels).inc();
        let language = LanguageLabel { language: report.language.name };
        self.seconds.get_or_create(&language).observe(report.usage.wall.as_secs_f64());
        self.queue_seconds.observe(report.usage.queue.as_secs_f64());
        if !matches!(report.outcome, Outcome::Exited(_) | Outcome::Signaled(_)) {
            self.kills.get_or_create(&ReasonLabel { reason: labels.status }).inc();
        }
    }

    /// A run did not take place.
    pub(crate) fn refused(&self, problem: &Problem) {
        self.refused.get_or_create(&CodeLabel { code: word(problem.error.code) }).inc();
    }

    /// A request was answered. The route is the pattern of its path, not the path.
    pub(crate) fn answered(&self, route: &str, status: u16, took: Duration) {
        self.requests.get_or_create(&RequestLabels { route: route.to_owned(), status }).inc();
        let label = RouteLabel { route: route.to_owned() };
        self.request_seconds.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// All of it as text, with the engine's state as it is now.
    pub(crate) fn text(&self, engine: &Engine) -> String {
        if let Some(slots) = engine.slots() {
            self.state.slots.set(slots.total() as u64);
            self.state.slots_in_use.set(slots.in_use() as u64);
            self.state.queue.set(slots.waiting() as u64);
        }
        self.state.leaks.set(engine.backends().map(Backend::leaks_cleaned).sum());
        if let Some(pool) = engine.backends().find_map(Backend::pool) {
            self.pool.read_off(&pool);
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("runs", "Runs that took place", self.runs.clone());
        registry.register_with_unit(
            "run_duration",
            "From the first step of building a box to its end",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register_with_unit(
            "queue_wait",
            "How long runs waited for a slot",
            Unit::Seconds,
            self.queue_seconds.clone(),
        );
        registry.register("refused", "Requests for a run that did not take place", self.refused.clone());
        registry.register("kills", "Runs that were ended from outside, by reason", self.kills.clone());
        registry.register("http_requests", "Requests that were answered", self.requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "From the head of a request to the head of its answer",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        registry.register("slots", "Runs that there can be at a time", self.state.slots.clone());
        registry.register("slots_in_use", "Runs that there are", self.state.slots_in_use.clone());
        registry.register("queue_length", "Runs that wait for a slot", self.state.queue.clone());
        registry.register(
            "leaks_cleaned",
            "Boxes of a crashed predecessor that were removed at the start",
            self.state.leaks.clone(),
        );
        self.pool.register(registry);
    }
}

/// From a millisecond to a minute and a half, each step twice the one before.
fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

fn word(code: Code) -> &'static str {
    match code {
        Code::InvalidRequest => "invalid_request",
        Code::Unauthorized => "unauthorized",
        Code::Forbidden => "forbidden",
        Code::NotFound => "not_found",
        Code::Conflict => "conflict",
        Code::TooLarge => "too_large",
        Code::Busy => "busy",
        Code::Internal => "internal",
        Code::BackendUnavailable => "backend_unavailable",
        Code::GuaranteeUnmet => "guarantee_unmet",
    }
}
