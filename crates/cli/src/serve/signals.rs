//! The signals of the server: SIGHUP reloads the configuration, SIGTERM and SIGINT stop the server.

use belljar_server::http::App;
use belljar_wire::Problem;
use tokio::signal::unix::{SignalKind, signal};

/// Calls `ready` once signals are handled, `reload` for each SIGHUP, and returns when the server should stop.
pub(super) async fn obey(app: App, ready: impl FnOnce(), reload: impl Fn(&App) -> Result<usize, Problem>) {
    let streams = (|| {
        Ok::<_, std::io::Error>((
            signal(SignalKind::hangup())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        ))
    })();
    let (mut hangup, mut terminate, mut interrupt) = match streams {
        Ok(streams) => streams,
        Err(cause) => return tracing::error!(%cause, "cannot handle signals"),
    };
    ready();
    loop {
        tokio::select! {
            _ = hangup.recv() => tell(reload(&app)),
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
        }
    }
}

fn tell(reloaded: Result<usize, Problem>) {
    match reloaded {
        Ok(keys) => tracing::info!(keys, "the configuration was reloaded"),
        Err(problem) => {
            let (error, hint) = (problem.error.message, problem.error.hint);
            tracing::error!(error, hint, "cannot reload the configuration; the previous one stays in effect");
        }
    }
}
