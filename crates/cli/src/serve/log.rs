//! The server's log: on stderr, for people or for machines; with the feature `otel` also as spans to a collector.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::settings::Environment;

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Human,
    Json,
}

/// The log, for as long as the server runs. Dropping it sends what a collector has not been sent yet.
#[must_use]
pub(crate) struct Log {
    #[cfg(feature = "otel")]
    _exporter: Option<super::otel::Exporter>,
}

/// Begins to log, so much unless `BELLJAR_LOG` says otherwise, in the words of tracing's filters (`debug`, `belljar_server=trace`).
pub(crate) fn begin(format: Format, usual: Level, environment: Environment<'_>) -> Log {
    let wanted = environment("BELLJAR_LOG").and_then(|text| text.into_string().ok()).unwrap_or_default();
    let wanted = if wanted.is_empty() { usually(usual) } else { wanted };
    let filter = EnvFilter::builder().with_default_directive(usual.into()).parse_lossy(wanted);
    let lines = lines(format, io::stderr().is_terminal() && environment("NO_COLOR").is_none());
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

/// Of the library that speaks MCP only what is wrong: it tells every session, and the request was told already.
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
