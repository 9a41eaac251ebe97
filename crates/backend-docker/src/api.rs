//! The few calls of Docker's API that a run needs, over the daemon's socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;

/// How long the daemon may take to answer one call. Under load a container takes seconds to start.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a daemon may take to say that it is there. One that hangs must not hold up everybody who asks.
const GREETING: Duration = Duration::from_secs(10);
/// The most that is read of an answer.
const LONGEST_ANSWER: usize = 16 << 20;
/// The oldest version of the API that has everything, and the one that is used if the daemon supports it.
pub(crate) const OLDEST: ApiVersion = ApiVersion(1, 40);
const SPOKEN: ApiVersion = ApiVersion(1, 41);

/// A daemon that listens on a socket.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    socket: Arc<Path>,
    version: ApiVersion,
}

/// The stream of a container's standard input and output.
pub(crate) type Attached = TokioIo<Upgraded>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{} cannot be reached: {source}", socket.display())]
    Unreachable { socket: PathBuf, source: io::Error },
    #[error("the connection to the daemon broke: {0}")]
    Broken(String),
    #[error("{message}")]
    Refused { status: StatusCode, message: String },
    #[error("the daemon's answer cannot be read: {0}")]
    Unreadable(String),
    #[error("the daemon did not answer within {} s", patience.as_secs())]
    TooLate { patience: Duration },
}

impl ApiError {
    /// Whether the daemon is there: it has answered, whatever it said.
    pub(crate) fn is_an_answer(&self) -> bool {
        match self {
            ApiError::Refused { .. } | ApiError::Unreadable(_) => true,
            ApiError::Unreachable { .. } | ApiError::Broken(_) | ApiError::TooLate { .. } => false,
        }
    }

    pub(crate) fn is(&self, wanted: StatusCode) -> bool {
        matches!(self, ApiError::Refused { status, .. } if *status == wanted)
    }
}

/// What the daemon reports about itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Version {
    pub(crate) version: String,
    pub(crate) api_version: ApiVersion,
    #[serde(rename = "MinAPIVersion", default)]
    pub(crate) min_api_version: ApiVersion,
    #[serde(default)]
    components: Vec<Component>,
}

/// The components of a daemon: the first is the daemon itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Component {
    name: String,
}

impl Version {
    /// Whether it is Podman, which also answers Docker's calls.
    pub(crate) fn is_podman(&self) -> bool {
        self.components.iter().any(|component| component.name.starts_with("Podman"))
    }
}

/// `1.41`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ApiVersion(pub(crate) u32, pub(crate) u32);

impl TryFrom<String> for ApiVersion {
    type Error = String;
    fn try_from(text: String) -> Result<ApiVersion, String> {
        let parsed =
            text.split_once('.').and_then(|(a, b)| Some(ApiVersion(a.parse().ok()?, b.parse().ok()?)));
        if text.is_empty() { Ok(ApiVersion::default()) } else { parsed.ok_or(text) }
    }
}

impl std::fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Api {
    /// Asks which daemon listens there, and agrees on a version.
    pub(crate) async fn greet(socket: &Path) -> Result<(Api, Version), ApiError> {
        let unversioned = Api { socket: socket.into(), version: ApiVersion::default() };
        let version: Version = within(GREETING, unversioned.get("/version")).await?;
        let spoken = SPOKEN.max(version.min_api_version).min(version.api_version);
        Ok((Api { version: spoken, ..unversioned }, version))
    }

    /// Whether it still answers.
    pub(crate) async fn ping(&self) -> Result<(), ApiError> {
        within(GREETING, self.call(Method::GET, "/_ping", Content::None)).await.map(drop)
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// A GET request.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        read(self.call(Method::GET, path, Content::None).await?).await
    }

    /// A GET request whose answer is lines.
    pub(crate) async fn get_lines(&self, path: &str) -> Result<Vec<u8>, ApiError> {
        whole(self.call(Method::GET, path, Content::None).await?).await.map(Vec::from)
    }

    /// A POST request, and its answer.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, ApiError> {
        read(self.call(Method::POST, path, Content::Json(body)).await?).await
    }

    /// A POST request without an answer.
    pub(crate) async fn order(&self, path: &str) -> Result<(), ApiError> {
        self.call(Method::POST, path, Content::None).await.map(drop)
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), ApiError> {
        self.call(Method::DELETE, path, Content::None).await.map(drop)
    }

    /// Sends an archive.
    pub(crate) async fn put_archive(&self, path: &str, archive: Bytes) -> Result<(), ApiError> {
        self.call(Method::PUT, path, Content::Archive(archive)).await.map(drop)
    }

    /// A POST request that takes long and reports progress in lines of JSON. The last line may be a failure.
    pub(crate) async fn follow(
        &self,
        path: &str,
        archive: Option<Bytes>,
        mut tell: impl FnMut(&Value),
    ) -> Result<(), ApiError> {
        let content = archive.map_or(Content::None, Content::Archive);
        let mut body = self.send(Method::POST, path, content).await?.into_body();
        let (mut line, mut fault) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::Broken(error.to_string()))?;
            for byte in frame.data_ref().into_iter().flatten().copied() {
                if byte == b'\n' {
                    let told: Value = serde_json::from_slice(&line).unwrap_or_default();
                    line.clear();
                    fault = fault.or_else(|| told["error"].as_str().map(str::to_owned));
                    tell(&told);
                } else if line.len() < LONGEST_ANSWER {
                    line.push(byte);
                }
            }
        }
        fault.map_or(Ok(()), |message| Err(ApiError::Refused { status: StatusCode::NOT_FOUND, message }))
    }

    /// Connects to a container's standard streams.
    pub(crate) async fn attach(&self, container: &str) -> Result<Attached, ApiError> {
        let path = format!("/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1");
        let response = self.call(Method::POST, &path, Content::Upgrade).await?;
        let upgraded = hyper::upgrade::on(response).await;
        upgraded.map(TokioIo::new).map_err(|error| ApiError::Broken(error.to_string()))
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        content: Content<'_>,
    ) -> Result<Response<Incoming>, ApiError> {
        within(PATIENCE, self.send(method, path, content)).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content: Content<'_>,
    ) -> Result<Response<Incoming>, ApiError> {
        let unreachable = |source| ApiError::Unreachable { socket: self.socket.to_path_buf(), source };
        let stream = UnixStream::connect(&*self.socket).await.map_err(unreachable)?;
        let broken = |error: hyper::Error| ApiError::Broken(error.to_string());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // It ends when the answer has been read, or when the upgraded stream is closed.
        tokio::spawn(connection.with_upgrades());
        let response = sender.send_request(self.request(method, path, content)?).await.map_err(broken)?;
        if response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        Err(refusal(response).await)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        content: Content<'_>,
    ) -> Result<Request<Full<Bytes>>, ApiError> {
        let prefix =
            if self.version == ApiVersion::default() { String::new() } else { format!("/v{}", self.version) };
        let request = Request::builder().method(method).uri(prefix + path).header(HOST, "docker");
        let request = match content {
            Content::None => request.body(Full::default()),
            Content::Json(body) => {
                request.header(CONTENT_TYPE, "application/json").body(Full::from(body.to_string()))
            }
            Content::Archive(archive) => {
                request.header(CONTENT_TYPE, "application/x-tar").body(Full::new(archive))
            }
            Content::Upgrade => {
                request.header(CONNECTION, "Upgrade").header(UPGRADE, "tcp").body(Full::default())
            }
        };
        request.map_err(|error| ApiError::Broken(error.to_string()))
    }
}

enum Content<'a> {
    None,
    Json(&'a Value),
    Archive(Bytes),
    Upgrade,
}

/// A call that may take this long.
pub(crate) async fn within<T>(
    patience: Duration,
    call: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    tokio::time::timeout(patience, call).await.unwrap_or(Err(ApiError::TooLate { patience }))
}

async fn read<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, ApiError> {
    let body = whole(response).await?;
    serde_json::from_slice(&body).map_err(|error| ApiError::Unreadable(error.to_string()))
}

async fn refusal(response: Response<Incoming>) -> ApiError {
    #[derive(Deserialize)]
    struct Message {
        message: String,
    }
    let status = response.status();
    let body = whole(response).await.unwrap_or_default();
    let message =
        serde_json::from_slice(&body).map_or_else(|_| status.to_string(), |said: Message| said.message);
    ApiError::Refused { status, message }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, ApiError> {
    let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| ApiError::Unreadable(error.to_string()))
}

/// Text escaped for a path or a query.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let version = |text: &str| ApiVersion::try_from(text.to_owned()).unwrap();
        assert!(version("1.9") < version("1.40"));
        assert_eq!(version("1.44").to_string(), "1.44");
        assert!(ApiVersion::try_from("new".to_owned()).is_err());
    }

    #[test]
    fn podman_is_distinguished_from_docker() {
        let version = |name: &str| -> Version {
            let told = serde_json::json!({
                "Version": "4.3.1", "ApiVersion": "1.41", "MinAPIVersion": "1.24", "Components": [{ "Name": name }],
            });
            serde_json::from_value(told).unwrap()
        };
        assert!(version("Podman Engine").is_podman() && !version("Engine").is_podman());
    }

    #[test]
    fn a_reference_cannot_leave_its_place_in_a_path() {
        assert_eq!(escaped("a/b:c@d?e#f g"), "a%2Fb%3Ac%40d%3Fe%23f%20g");
    }
}
