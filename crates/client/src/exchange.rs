//! One request and its answer, on a connection of its own.

use std::io;
use std::time::Duration;

use belljar_wire::{Code, Problem, Readable, ServerRefusal, from_json};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::address::Address;
use crate::error::{ClientError, ExchangeError};

/// How long connecting may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read: more than a server keeps of a result.
const MOST: usize = 512 << 20;
/// The port of a URL that has none.
const HTTP_PORT: u16 = 80;

/// The server, and how to be let in.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) key: Option<HeaderValue>,
}

/// An answer that has begun.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
}

impl Server {
    pub(crate) fn new(url: &str, key: Option<&str>) -> Result<Server, ClientError> {
        let header = |key: &str| -> Result<HeaderValue, ClientError> {
            let mut header = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| ClientError::Key)?;
            header.set_sensitive(true);
            Ok(header)
        };
        Ok(Server { address: Address::parse(url)?, key: key.map(header).transpose()? })
    }

    /// Sends a request, and returns its answer if that is a success.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
        body: Option<String>,
    ) -> Result<Answer, ClientError> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.address.host());
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = self.send(request, Bytes::from(body.unwrap_or_default())).await?;
        match response.status().is_success() {
            true => Ok(Answer { response }),
            false => Err(self.refused(response).await),
        }
    }

    /// The same, for an answer that is read as a whole.
    pub(crate) async fn get<T: Readable>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.ask(Method::GET, path, &[], None).await?;
        self.read(answer).await
    }

    /// Reads what an answer says.
    pub(crate) async fn read<T: Readable>(&self, answer: Answer) -> Result<T, ClientError> {
        let body = self.collect(answer.response.into_body()).await?;
        from_json(&body).map_err(|_| self.not_belljar())
    }

    pub(crate) fn not_belljar(&self) -> ClientError {
        ClientError::NotBelljar { address: self.address.clone() }
    }

    pub(crate) fn interrupted(
        &self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> ClientError {
        ClientError::Interrupted { address: self.address.clone(), source: source.into() }
    }

    async fn send(&self, request: Builder, body: Bytes) -> Result<Response<Incoming>, ClientError> {
        let request = request.body(Full::new(body)).map_err(|cause| self.interrupted(cause))?;
        let connected = timeout(PATIENCE, connect(&self.address)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream =
            connected.map_err(|source| ClientError::Unreachable { address: self.address.clone(), source })?;
        talk(stream, request).await.map_err(|cause| match cause.is_parse() {
            true => self.not_belljar(),
            false => self.interrupted(cause),
        })
    }

    async fn collect(&self, body: Incoming) -> Result<Bytes, ClientError> {
        let whole = Limited::new(body, MOST).collect().await;
        Ok(whole.map_err(|cause| self.interrupted(cause))?.to_bytes())
    }

    async fn refused(&self, response: Response<Incoming>) -> ClientError {
        let code = ServerRefusal::code_of(response.status().as_u16());
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = match self.collect(response.into_body()).await {
            Ok(body) => body,
            Err(error) => return error,
        };
        let Some(ServerRefusal(problem)) = ServerRefusal::read(&body, code) else {
            return self.not_belljar();
        };
        let retry_after = wait.map(Duration::from_secs).filter(|_| problem.error.code == Code::Busy);
        let problem = Box::new(Problem { retry_after, ..problem });
        ClientError::Refused { address: self.address.clone(), problem }
    }
}

/// Sends a request to any HTTP server, on a connection of its own, and returns the answer when that has begun. It waits as
/// long as the server takes.
///
/// # Errors
/// That the server cannot be reached, or that the connection broke off.
pub async fn exchange(
    address: &Address,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, ExchangeError> {
    let stream = connect(address).await.map_err(ExchangeError::Unreachable)?;
    talk(stream, request).await.map_err(ExchangeError::Broken)
}

/// A connection of either kind, behind one type: the code that speaks HTTP is large, and compiled anew for every type.
type Stream = Box<dyn Connection>;

trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection for S {}

async fn connect(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Address::Http(authority) => {
            let name = authority.host().trim_start_matches('[').trim_end_matches(']');
            let place = (name, authority.port_u16().unwrap_or(HTTP_PORT));
            let stream = TcpStream::connect(place).await?;
            let _ = stream.set_nodelay(true);
            Ok(Box::new(stream))
        }
    }
}

async fn talk(stream: Stream, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, or when nobody reads that any more.
    tokio::spawn(connection);
    sender.send_request(request).await
}
