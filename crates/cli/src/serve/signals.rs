//! What the server does when it is told: reload on SIGHUP, stop on SIGTERM and SIGINT.

use belljar_server::http::App;
use belljar_wire::Problem;
use tokio::signal::unix::{SignalKind, signal};

/// Says that the server is ready once it can be told something, reloads whenever that is asked for, and returns when the
/// server is to stop.
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
        Err(cause) => return tracing::error!(%cause, "cannot listen to signals"),
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
            tracing::error!(error, hint, "the configuration cannot be used; what was there before stays");
        }
    }
}
