//! The server's log, on stderr, as text or JSON; with the feature `otel` also as spans that go to a collector.

use std::io;

use clap::ValueEnum;
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::args::Verbosity;
use crate::problem;
use crate::settings::Environment;

/// The format of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Human,
    Json,
}

impl Format {
    /// As `--log-format` has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Format::Human => "human",
            Format::Json => "json",
        }
    }
}

/// The log, for as long as the server runs. Dropping it sends the remaining spans to the collector.
#[must_use]
pub(crate) struct Log {
    #[cfg(feature = "otel")]
    _exporter: Option<super::otel::Exporter>,
}

/// The level that `--verbose` and `--quiet` ask for.
pub(crate) fn level(usual: Level, verbosity: Verbosity) -> Level {
    match verbosity {
        Verbosity::Quiet => Level::ERROR,
        Verbosity::Normal => usual,
        Verbosity::Verbose => Level::DEBUG,
    }
}

/// Starts the log at this level, unless `BELLJAR_LOG` has a filter for it (`debug`, `belljar_server=trace`).
pub(crate) fn begin(format: Format, usual: Level, environment: Environment<'_>) -> Log {
    let wanted = environment("BELLJAR_LOG").and_then(|text| text.into_string().ok()).unwrap_or_default();
    let wanted = if wanted.is_empty() { usually(usual) } else { wanted };
    let filter = EnvFilter::builder().with_default_directive(usual.into()).parse_lossy(wanted);
    let lines = lines(format, problem::stderr_has_colors());
    #[cfg(feature = "otel")]
    let (spans, exporter) = super::otel::export(environment).unzip();
    #[cfg(not(feature = "otel"))]
    let spans: Option<fmt::Layer<_>> = None;
    // It fails only if there is a log already.
    let _ = tracing_subscriber::registry().with(lines).with(spans).with(filter).try_init();
    Log {
        #[cfg(feature = "otel")]
        _exporter: exporter,
    }
}

/// Of the MCP library only warnings: it logs every session, and the requests are logged already.
fn usually(level: Level) -> String {
    format!("{level},rmcp={}", level.min(Level::WARN))
}

fn lines(format: Format, colours: bool) -> Box<dyn Layer<Registry> + Send + Sync> {
    let lines = fmt::layer().with_writer(io::stderr).with_target(false);
    match format {
        Format::Human => lines.with_ansi(colours).boxed(),
        Format::Json => lines.with_ansi(false).json().flatten_event(true).boxed(),
    }
}
