//! The server's log: on stderr, for people or for machines.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::settings::Environment;

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Human,
    Json,
}

/// Begins to log. `BELLJAR_LOG` says how much, in the words of tracing's filters (`debug`, `belljar_server=trace`).
pub(super) fn begin(format: Format, environment: Environment<'_>) {
    let wanted = environment("BELLJAR_LOG").and_then(|text| text.into_string().ok()).unwrap_or_default();
    let filter = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).parse_lossy(wanted);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false);
    let colours = io::stderr().is_terminal() && environment("NO_COLOR").is_none();
    // It fails only if there is a log already.
    let _ = match format {
        Format::Human => log.with_ansi(colours).finish().try_init(),
        Format::Json => log.with_ansi(false).json().flatten_event(true).finish().try_init(),
    };
}
