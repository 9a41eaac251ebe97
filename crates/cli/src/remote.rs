//! A server that a command asks instead of this host.

use std::time::Duration;

use belljar_client::{Client, ClientError};
use belljar_wire::{Code, Fault, Problem};
use clap::{Args, ValueHint};

use crate::settings::Environment;

/// How long a question may take that waits for nobody.
const PATIENCE: Duration = Duration::from_secs(30);

// Not a doc comment: clap would take it for the description of the commands that this is flattened into.
// Which server is asked.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Server to ask, as http://HOST:PORT or unix:PATH; its API key comes from BELLJAR_API_KEY [default: that of BELLJAR_URL]
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    url: Option<String>,
}

/// A server, and how it was named.
pub(crate) struct Remote {
    pub(crate) client: Client,
}

impl Remote {
    /// The server that `--url` names, else that of `BELLJAR_URL`, if there is one.
    pub(crate) fn chosen(args: &ServerArgs, environment: Environment<'_>) -> Result<Option<Remote>, Problem> {
        if let Some(url) = &args.url {
            return Remote::new(url, environment).map(Some);
        }
        let Some(url) = environment("BELLJAR_URL").filter(|url| !url.is_empty()) else { return Ok(None) };
        let url = url.into_string().map_err(|_| {
            let message = "the environment variable BELLJAR_URL is not valid UTF-8";
            Problem::new(Code::InvalidRequest, message, "set it to a URL such as http://127.0.0.1:8787")
        })?;
        Remote::new(&url, environment).map(Some)
    }

    pub(crate) fn new(url: &str, environment: Environment<'_>) -> Result<Remote, Problem> {
        let key = environment("BELLJAR_API_KEY").filter(|key| !key.is_empty());
        // A key that is not text is as wrong as one that has other characters.
        let key = key.map(|key| key.into_string().map_err(|_| ClientError::Key)).transpose();
        let client = key.and_then(|key| Client::new(url, key.as_deref()));
        Ok(Remote { client: client.map_err(|error| told(&error))? })
    }

    /// Asks something that the server answers at once.
    pub(crate) fn ask<'a, T, F>(&'a self, question: impl FnOnce(&'a Client) -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|cause| {
            let message = format!("cannot set up the event loop: {cause}");
            Problem::new(Code::Internal, message, "check the limit on open files (ulimit -n)")
        })?;
        runtime.block_on(async {
            match tokio::time::timeout(PATIENCE, question(&self.client)).await {
                Ok(answer) => answer.map_err(|error| told(&error)),
                Err(_) => {
                    let message = format!("the server at {} does not answer", self.client.address());
                    Err(Problem::new(Code::BackendUnavailable, message, "see the server's log"))
                }
            }
        })
    }
}

/// What went wrong with a question, in the words of a command.
fn told(error: &ClientError) -> Problem {
    let mut problem = told_of_run(error);
    if let ClientError::Refused { address, .. } = error {
        problem.error.message = format!("{address} refused the request: {}", problem.error.message);
    }
    problem
}

/// The same for a run: what the server says about it is said as if it had been here.
pub(crate) fn told_of_run(error: &ClientError) -> Problem {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
    let last = causes.last().map(ToString::to_string).unwrap_or_default();
    match error {
        ClientError::Address { .. } => {
            let hint = "write a URL such as http://127.0.0.1:8787 or unix:/run/belljar/belljar.sock";
            Problem::new(Code::InvalidRequest, format!("--url: {error}"), hint)
        }
        ClientError::Key => {
            let message = "BELLJAR_API_KEY contains characters that no key has";
            Problem::new(Code::InvalidRequest, message, "set it to what `belljar key new` printed")
        }
        ClientError::Unreachable { .. } => {
            let hint = "start a server with `belljar serve`, or name another one with --url";
            Problem::new(Code::BackendUnavailable, format!("{error}: {last}"), hint)
        }
        ClientError::Interrupted { .. } => {
            let hint = "the run may have taken place; try again, and see the server's log";
            Problem::new(Code::Internal, format!("{error}: {last}"), hint)
        }
        ClientError::NotBelljar { .. } => {
            let hint = "pass the address of a `belljar serve` with --url";
            Problem::new(Code::BackendUnavailable, error.to_string(), hint)
        }
        ClientError::Refused { problem, .. } => {
            let own = "set BELLJAR_API_KEY to a key that the server knows";
            let Fault { code, hint, .. } = &problem.error;
            let hint = if *code == Code::Unauthorized { own.to_owned() } else { hint.clone() };
            Problem { error: Fault { hint, ..problem.error.clone() }, ..(**problem).clone() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ffi::OsString;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn with_key(name: &str) -> Option<OsString> {
        (name == "BELLJAR_API_KEY").then(|| "bj_abc".into())
    }

    fn pool_of(url: &str) -> Result<belljar_wire::Pool, Problem> {
        Remote::new(url, &with_key)?.ask(async |client| client.pool().await)
    }

    /// What becomes of an answer, and the request that was sent.
    fn asked(answer: &'static [u8]) -> (Result<belljar_wire::Pool, Problem>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(answer).unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        });
        (pool_of(&url), server.join().unwrap())
    }

    const POOL: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 89\r\n\r\n\
        {\"enabled\":false,\"memory_bytes\":0,\"memory_limit_bytes\":0,\"max_age_ms\":1.0,\"languages\":[]}";

    #[test]
    fn an_answer_is_read_and_the_key_is_sent() {
        let (got, request) = asked(POOL);
        assert!(!got.unwrap().enabled);
        assert!(request.starts_with("GET /v1/pool HTTP/1.1\r\n"), "{request}");
        assert!(request.to_lowercase().contains("authorization: bearer bj_abc\r\n"), "{request}");
    }

    #[test]
    fn a_key_cannot_end_its_header() {
        let environment = |name: &str| (name == "BELLJAR_API_KEY").then(|| "a\r\nhost: b".into());
        let error = Remote::new("http://localhost", &environment).map(drop).unwrap_err().error;
        assert!(error.message.contains("BELLJAR_API_KEY"), "{error:?}");
    }

    #[test]
    fn what_is_not_an_answer_of_belljar_is_told_apart_from_a_refusal() {
        let error = |answer| asked(answer).0.unwrap_err().error;
        let refused = error(
            b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 50\r\n\r\n{\"error\":{\"message\":\"unknown key\",\"hint\":\"\"    }}   ",
        );
        assert_eq!(refused.code, Code::Unauthorized, "{refused:?}");
        assert!(refused.hint.contains("BELLJAR_API_KEY"), "{refused:?}");
        let other = error(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
        assert!(other.message.ends_with("did not answer like a Belljar server"), "{other:?}");
        let stranger = error(b"SSH-2.0-x\r\n");
        assert!(stranger.message.ends_with("did not answer like a Belljar server"), "{stranger:?}");
    }

    #[test]
    fn a_server_that_is_not_there_is_a_clear_error() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = pool_of(&format!("http://{free}")).unwrap_err().error;
        assert!(error.message.contains("Connection refused"), "{error:?}");
        assert!(error.hint.contains("belljar serve"), "{error:?}");
        let error = pool_of("unix:/no/such.sock").unwrap_err().error;
        assert!(error.message.starts_with("cannot reach the server at unix:/no/such.sock"), "{error:?}");
    }

    #[test]
    fn an_option_beats_the_variable() {
        let environment = |name: &str| (name == "BELLJAR_URL").then(|| "unix:/variable.sock".into());
        let chosen = |url: Option<&str>, environment: Environment<'_>| {
            let args = ServerArgs { url: url.map(str::to_owned) };
            Remote::chosen(&args, environment).unwrap().map(|remote| remote.client.address().to_string())
        };
        assert_eq!(chosen(Some("unix:/option.sock"), &environment).as_deref(), Some("unix:/option.sock"));
        assert_eq!(chosen(None, &environment).as_deref(), Some("unix:/variable.sock"));
        assert_eq!(chosen(None, &|_| None), None);
    }
}
