//! Tells a server of the operator's about approvals: when one is asked for, and what becomes of it.
//!
//! What has to be told is in the file of the approvals, and a thread of its own sends it. So no request waits for a
//! webhook, a notice survives a restart, and it does not matter which process has decided.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_client::address::Address;
use belljar_ledger::approvals::{ApprovalError, ApprovalTerms, Approvals, Notice};
use belljar_wire::{ApprovalSummary, Code, Problem, moment};
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::http::uri::{PathAndQuery, Scheme};
use hyper::{Request, StatusCode, Uri};
use serde::Serialize;
use sha2::Sha256;

/// How often a notice is sent at most, and how long to wait after each failure: 1 s, 4 s, 16 s, 64 s.
const ATTEMPTS: u64 = 5;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a process has a notice for itself.
const LEASE: Duration = Duration::from_secs(30);
/// How often to look for notices that other processes wrote.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The most of an answer that is read. Nobody looks at it.
const MOST_READ: usize = 64 << 10;
/// The shortest secret, in bytes.
const SHORTEST_SECRET: usize = 16;
/// The header that has the signature.
const SIGNATURE: &str = "belljar-signature";

/// Where to send, and what to sign with.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hook {
    server: Address,
    path: PathAndQuery,
    secret: String,
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("server", &self.server).field("path", &self.path).finish_non_exhaustive()
    }
}

/// The option that is wrong, what is wrong with it, and what helps.
type Wrong = (&'static str, String, &'static str);

impl Hook {
    /// A URL and a secret.
    pub(crate) fn parse(url: &str, secret: &str) -> Result<Hook, Wrong> {
        let wrong = |message: &str| {
            let message = format!("'{}' {message}", url.escape_debug());
            ("webhook", message, "write a URL such as http://127.0.0.1:9000/approvals")
        };
        let parsed: Uri = url.parse().map_err(|_| wrong("is not a URL"))?;
        if parsed.scheme() == Some(&Scheme::HTTPS) {
            let message = format!("'{}' uses https, which Belljar does not support", url.escape_debug());
            let hint = "send to a proxy on this host that speaks TLS, such as http://127.0.0.1:9000";
            return Err(("webhook", message, hint));
        }
        if parsed.scheme() != Some(&Scheme::HTTP) {
            return Err(wrong("does not start with http://"));
        }
        let authority = parsed.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(|| wrong("is not a host, a port and a path"))?;
        if secret.len() < SHORTEST_SECRET {
            let message = format!("it has fewer than {SHORTEST_SECRET} bytes");
            return Err((
                "webhook-secret",
                message,
                "write a longer one, such as what `openssl rand -hex 32` prints",
            ));
        }
        let path = parsed.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        Ok(Hook { server: Address::Http(authority.clone()), path, secret: secret.to_owned() })
    }

    /// `t=` the seconds since 1970 and `v1=` the HMAC-SHA256, in hexadecimal, of these seconds, a full stop and the body.
    fn signature(&self, seconds: u64, body: &str) -> String {
        // HMAC takes keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.secret.as_bytes()) else {
            return String::new();
        };
        mac.update(format!("{seconds}.{body}").as_bytes());
        let code: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("t={seconds},v1={code}")
    }
}

/// What is sent.
#[derive(Serialize)]
struct Message<'a> {
    /// The same if it is sent again.
    id: String,
    event: String,
    at: String,
    approval: &'a ApprovalSummary,
}

/// The thread that sends.
#[derive(Debug)]
pub(crate) struct Webhook {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Webhook {
    pub(crate) fn start(hook: Hook, dir: &Path, terms: ApprovalTerms) -> Result<Webhook, Problem> {
        let store = Approvals::open(dir, terms)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|cause| cannot_start(&cause))?;
        let (stop, stopped) = mpsc::channel();
        let delivery = Delivery { hook, store, runtime, version: None };
        let work = move || delivery.work(&stopped);
        let thread = std::thread::Builder::new().name("belljar-webhook".to_owned()).spawn(work);
        let thread = thread.map_err(|cause| cannot_start(&cause))?;
        Ok(Webhook { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Delivery {
    hook: Hook,
    store: Approvals,
    runtime: tokio::runtime::Runtime,
    version: Option<i64>,
}

impl Delivery {
    fn work(mut self, stopped: &mpsc::Receiver<()>) {
        loop {
            match stopped.recv_timeout(LOOK_EVERY) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(error) = self.look() {
                tracing::error!(%error, "cannot look for notices to the webhook");
                self.version = None;
            }
        }
    }

    /// Sends what is due, if there may be something.
    fn look(&mut self) -> Result<(), ApprovalError> {
        let version = self.store.version()?;
        let is_same = self.version.replace(version) == Some(version);
        if is_same && self.store.notices_due()?.is_none_or(|due| due > millis(SystemTime::now())) {
            return Ok(());
        }
        loop {
            let now = SystemTime::now();
            let Some(notice) = self.store.next_notice(now, now + LEASE)? else { return Ok(()) };
            match self.send(&notice) {
                Ok(()) => self.store.drop_notice(notice.seq)?,
                Err(error) => self.failed(&notice, error.as_ref())?,
            }
        }
    }

    fn failed(&self, notice: &Notice, error: &(dyn Error + 'static)) -> Result<(), ApprovalError> {
        let (attempt, root) = (notice.attempts + 1, root(error));
        if attempt >= ATTEMPTS {
            tracing::error!(error = %root, approval = notice.approval.id, "the webhook was not told, and is given up");
            return self.store.drop_notice(notice.seq);
        }
        tracing::warn!(error = %root, approval = notice.approval.id, attempt, "cannot tell the webhook");
        self.store.defer_notice(notice.seq, SystemTime::now() + pause_after(attempt))
    }

    fn send(&self, notice: &Notice) -> Result<(), Box<dyn Error + Send + Sync>> {
        let message = Message {
            id: format!("{}.{}", notice.approval.id, notice.event.name()),
            event: format!("approval.{}", notice.event.name()),
            at: moment(notice.at),
            approval: &notice.approval,
        };
        let body = serde_json::to_string(&message)?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let request = Request::post(self.hook.path.as_str())
            .header(HOST, self.hook.server.host())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("belljar/", env!("CARGO_PKG_VERSION")))
            .header(SIGNATURE, self.hook.signature(seconds, &body))
            .body(Full::new(Bytes::from(body)))?;
        match self.runtime.block_on(deliver(&self.hook.server, request))? {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answered with status {}", status.as_u16()).into()),
        }
    }
}

async fn deliver(
    server: &Address,
    request: Request<Full<Bytes>>,
) -> Result<StatusCode, Box<dyn Error + Send + Sync>> {
    let whole = async {
        let answer = belljar_client::exchange(server, request).await?;
        let status = answer.status();
        // What it says does not matter, nor whether it says too much.
        let _ = Limited::new(answer.into_body(), MOST_READ).collect().await;
        Ok(status)
    };
    tokio::time::timeout(PATIENCE, whole).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// How long to wait after so many attempts.
fn pause_after(attempts: u64) -> Duration {
    let factor = 4_u32.saturating_pow(u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX));
    FIRST_PAUSE.saturating_mul(factor).min(Duration::from_secs(600))
}

fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut root = error;
    while let Some(deeper) = root.source() {
        root = deeper;
    }
    root
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn cannot_start(cause: &io::Error) -> Problem {
    let message = format!("cannot start the thread that tells the webhook: {cause}");
    Problem::new(Code::Internal, message, "check the limit on processes (ulimit -u)")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "a secret of 16 b";

    #[test]
    fn a_signature_is_what_other_tools_compute() {
        // printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 'a secret of 16 b'
        let hook = Hook::parse("http://localhost/x", SECRET).unwrap();
        assert_eq!(
            hook.signature(1_700_000_000, "{\"a\":1}"),
            "t=1700000000,v1=0c4eefa52ddfc8729095e0cd461528b3c4fe1a8c5e2fd0cbd87a19d4629bee7d"
        );
        assert!(!format!("{hook:?}").contains("secret"), "{hook:?}");
    }

    #[test]
    fn a_webhook_is_plain_http_with_a_long_secret() {
        assert!(Hook::parse("http://127.0.0.1:9/a?b=c", SECRET).is_ok());
        for (url, secret, option, why) in [
            ("https://example.org/", SECRET, "webhook", "https"),
            ("ftp://example.org/", SECRET, "webhook", "http://"),
            ("/path", SECRET, "webhook", "http://"),
            ("http://me:you@host/", SECRET, "webhook", "host"),
            ("http://a b/", SECRET, "webhook", "URL"),
            ("http://host/", "short", "webhook-secret", "16"),
        ] {
            let (wrong, message, _) = Hook::parse(url, secret).unwrap_err();
            assert!(wrong == option && message.contains(why), "{url}: {wrong}: {message}");
        }
    }

    #[test]
    fn each_attempt_waits_longer() {
        assert_eq!((1..5).map(|attempt| pause_after(attempt).as_secs()).collect::<Vec<_>>(), [1, 4, 16, 64]);
        assert_eq!(pause_after(u64::MAX), Duration::from_secs(600));
    }
}
