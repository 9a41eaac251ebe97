//! When the server reads its configuration again, and when it stops: SIGHUP, or a file that was changed, reloads the
//! configuration; SIGTERM and SIGINT stop the server, and so does nobody needing it.

use std::pin::pin;
use std::time::Duration;

use belljar_server::http::App;
use belljar_wire::Problem;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

/// How often the configuration file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Calls `ready` once signals are handled, `reload` for each SIGHUP and when the text of the configuration is another
/// one, and returns when the server should stop.
pub(super) async fn obey(
    app: App,
    ready: impl FnOnce(),
    text: impl Fn() -> Option<String>,
    reload: impl Fn(&App) -> Result<usize, Problem>,
    idle: impl Future<Output = ()>,
) {
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
    let mut file = Watched { known: text(), candidate: None };
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut idle = pin!(idle);
    ready();
    loop {
        tokio::select! {
            _ = hangup.recv() => {
                file = Watched { known: text().or(file.known), candidate: None };
                tell(reload(&app));
            }
            _ = look.tick() => if file.has_changed(text()) {
                tell(reload(&app));
            },
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            () = idle.as_mut() => return,
        }
    }
}

/// The configuration file, as it was when it was last read, whether it was valid or not.
struct Watched {
    known: Option<String>,
    candidate: Option<String>,
}

impl Watched {
    /// Whether the text is another one, twice in a row: a file that is being written is not read halfway. A file that is
    /// not there has not changed, because it may be on its way.
    fn has_changed(&mut self, now: Option<String>) -> bool {
        let Some(now) = now.filter(|now| self.known.as_ref() != Some(now)) else {
            self.candidate = None;
            return false;
        };
        if self.candidate.as_ref() != Some(&now) {
            self.candidate = Some(now);
            return false;
        }
        self.known = self.candidate.take();
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_changed_when_it_is_the_same_twice() {
        let mut file = Watched { known: Some("a".into()), candidate: None };
        let looks =
            [("a", false), ("ab", false), ("abc", false), ("abc", true), ("abc", false), ("a", false)];
        for (at, (text, changed)) in looks.into_iter().enumerate() {
            assert_eq!(file.has_changed(Some(text.to_owned())), changed, "{at}: {text}");
        }
        assert!(!file.has_changed(None), "it may be on its way");
        assert!(!file.has_changed(Some("a".to_owned())));
        assert!(file.has_changed(Some("a".to_owned())));
    }
}
