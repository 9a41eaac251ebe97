use std::time::Duration;

use belljar_wire::{
    Approval, ApprovalList, ApprovalRuling, AuditList, AuditRecord, AuditVerdict, Backends, Languages, Pool,
    Readable, RunRequest, RunResult, RunState, ScanRequest, ScanResult, to_json,
};
use form_urlencoded::Serializer;
use hyper::{Method, StatusCode};

use crate::address::Address;
use crate::error::ClientError;
use crate::events::Events;
use crate::exchange::Server;

/// How long one question after the end of a run waits for it; then it is asked again.
const WAIT: Duration = Duration::from_secs(600);

/// A client of one server. It holds no connection: each question has its own, so that a server which was stopped and
/// started again is found. A clone is the same.
#[derive(Debug, Clone)]
pub struct Client {
    server: Server,
}

/// What has become of a run.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Waited {
    /// It has ended.
    Ended(RunResult),
    /// It has not.
    Unfinished(RunState),
}

/// Which approvals are to be listed. What is not said is the server's default.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, reason = "the fields are the parameters of the path")]
pub struct ApprovalQuery {
    pub status: Option<String>,
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

/// Which records of the audit log are to be listed. What is not said does not matter.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, reason = "the fields are the parameters of the path")]
pub struct AuditQuery {
    pub language: Option<String>,
    pub status: Option<String>,
    pub caller: Option<String>,
    pub from: Option<String>,
    pub to: Option<String>,
    pub words: Option<String>,
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

impl Client {
    /// A client of the server at `http://HOST:PORT` or `unix:PATH`, with the key that it wants, if any.
    ///
    /// # Errors
    /// That this is no address, or no key.
    pub fn new(url: &str, key: Option<&str>) -> Result<Client, ClientError> {
        Ok(Client { server: Server::new(url, key)? })
    }

    /// Where the server is.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.server.address
    }

    /// Runs code and waits for its end, also for a person who has to approve it. If this is dropped, the run is cancelled,
    /// unless it waits for approval.
    ///
    /// # Errors
    /// That it could not run, or that there is no answer.
    pub async fn run(&self, request: &RunRequest) -> Result<RunResult, ClientError> {
        let answer = self.server.ask(Method::POST, "/v1/runs", &[], Some(to_json(request))).await?;
        if answer.response.status() != StatusCode::ACCEPTED {
            return self.server.read(answer).await;
        }
        let mut state: RunState = self.server.read(answer).await?;
        loop {
            match self.wait(&state.id, WAIT).await? {
                Waited::Ended(result) => return Ok(result),
                Waited::Unfinished(later) => state = later,
            }
        }
    }

    /// Runs code and tells what happens.
    ///
    /// # Errors
    /// That it could not run, or that there is no answer.
    pub async fn stream(&self, request: &RunRequest) -> Result<Events, ClientError> {
        let headers = [("accept", "text/event-stream")];
        let answer = self.server.ask(Method::POST, "/v1/runs", &headers, Some(to_json(request))).await?;
        Ok(Events::new(self.server.clone(), answer))
    }

    /// Starts a run, which goes on whatever becomes of this client.
    ///
    /// # Errors
    /// That it is refused, or that there is no answer.
    pub async fn submit(&self, request: &RunRequest) -> Result<RunState, ClientError> {
        let headers = [("prefer", "respond-async")];
        let answer = self.server.ask(Method::POST, "/v1/runs", &headers, Some(to_json(request))).await?;
        self.server.read(answer).await
    }

    /// Waits for the end of a run, for as long as that.
    ///
    /// # Errors
    /// That there is no such run, that it could not run, or that there is no answer.
    pub async fn wait(&self, id: &str, wait: Duration) -> Result<Waited, ClientError> {
        let path = format!("{}?wait_ms={}", of_run(id, ""), wait.as_millis());
        let answer = self.server.ask(Method::GET, &path, &[], None).await?;
        match answer.response.status() {
            StatusCode::ACCEPTED => Ok(Waited::Unfinished(self.server.read(answer).await?)),
            _ => Ok(Waited::Ended(self.server.read(answer).await?)),
        }
    }

    /// Tells what happens in a run, from its start. It goes on whether or not anybody follows it.
    ///
    /// # Errors
    /// That there is no such run, or no answer.
    pub async fn follow(&self, id: &str) -> Result<Events, ClientError> {
        let answer = self.server.ask(Method::GET, &of_run(id, "/events"), &[], None).await?;
        Ok(Events::new(self.server.clone(), answer))
    }

    /// Tells a run to end.
    ///
    /// # Errors
    /// That there is no such run, that it has ended, or that there is no answer.
    pub async fn cancel(&self, id: &str) -> Result<RunState, ClientError> {
        self.post(&of_run(id, "/cancel"), None).await
    }

    /// Looks for dangerous things in code, without running it.
    ///
    /// # Errors
    /// That it is refused, or that there is no answer.
    pub async fn scan(&self, request: &ScanRequest) -> Result<ScanResult, ClientError> {
        self.post("/v1/scan", Some(to_json(request))).await
    }

    /// The languages that can run there.
    ///
    /// # Errors
    /// That there is no answer.
    pub async fn languages(&self) -> Result<Languages, ClientError> {
        self.server.get("/v1/languages").await
    }

    /// The backends of the server, and what they guarantee.
    ///
    /// # Errors
    /// That there is no answer.
    pub async fn backends(&self) -> Result<Backends, ClientError> {
        self.server.get("/v1/backends").await
    }

    /// The warm pool of the server.
    ///
    /// # Errors
    /// That there is no answer.
    pub async fn pool(&self) -> Result<Pool, ClientError> {
        self.server.get("/v1/pool").await
    }

    /// Runs that wait for approval, or did, newest first.
    ///
    /// # Errors
    /// That it is refused, or that there is no answer.
    pub async fn approvals(&self, query: &ApprovalQuery) -> Result<ApprovalList, ClientError> {
        let ApprovalQuery { status, limit, cursor } = query;
        let limit = limit.map(|limit| limit.to_string());
        let parameters = [("status", status), ("limit", &limit), ("cursor", cursor)];
        self.server.get(&with("/v1/approvals", &parameters)).await
    }

    /// Everything about an approval.
    ///
    /// # Errors
    /// That there is no such approval, or no answer.
    pub async fn approval(&self, id: &str) -> Result<Approval, ClientError> {
        self.server.get(&of_approval(id, "")).await
    }

    /// Lets a run begin.
    ///
    /// # Errors
    /// That it cannot be decided, not by this caller, or that there is no answer.
    pub async fn approve(&self, id: &str, ruling: &ApprovalRuling) -> Result<Approval, ClientError> {
        self.post(&of_approval(id, "/approve"), Some(to_json(ruling))).await
    }

    /// Refuses a run.
    ///
    /// # Errors
    /// That it cannot be decided, not by this caller, or that there is no answer.
    pub async fn deny(&self, id: &str, ruling: &ApprovalRuling) -> Result<Approval, ClientError> {
        self.post(&of_approval(id, "/deny"), Some(to_json(ruling))).await
    }

    /// Takes back a decision that holds for further requests.
    ///
    /// # Errors
    /// That there is no such decision, that this caller may not decide, or that there is no answer.
    pub async fn revoke(&self, id: &str, ruling: &ApprovalRuling) -> Result<Approval, ClientError> {
        self.post(&of_approval(id, "/revoke"), Some(to_json(ruling))).await
    }

    /// Records of the audit log, newest first.
    ///
    /// # Errors
    /// That it is refused, or that there is no answer.
    pub async fn audit(&self, query: &AuditQuery) -> Result<AuditList, ClientError> {
        let AuditQuery { language, status, caller, from, to, words, limit, cursor } = query;
        let limit = limit.map(|limit| limit.to_string());
        let parameters = [
            ("language", language),
            ("status", status),
            ("caller", caller),
            ("from", from),
            ("to", to),
            ("q", words),
            ("limit", &limit),
            ("cursor", cursor),
        ];
        self.server.get(&with("/v1/audit", &parameters)).await
    }

    /// A record of the audit log, by the identifier of its run or by its number.
    ///
    /// # Errors
    /// That there is no such record, or no answer.
    pub async fn audit_record(&self, id: &str) -> Result<AuditRecord, ClientError> {
        self.server.get(&format!("/v1/audit/{}", segment(id))).await
    }

    /// Whether the audit log is as it was written.
    ///
    /// # Errors
    /// That it is refused, or that there is no answer.
    pub async fn verify_audit(&self) -> Result<AuditVerdict, ClientError> {
        self.server.get("/v1/audit/verify").await
    }

    async fn post<T: Readable>(&self, path: &str, body: Option<String>) -> Result<T, ClientError> {
        let answer = self.server.ask(Method::POST, path, &[], body).await?;
        self.server.read(answer).await
    }
}

fn of_run(id: &str, rest: &str) -> String {
    format!("/v1/runs/{}{rest}", segment(id))
}

fn of_approval(id: &str, rest: &str) -> String {
    format!("/v1/approvals/{}{rest}", segment(id))
}

/// A part of a path. Nothing in it can end it.
fn segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn with(path: &str, parameters: &[(&str, &Option<String>)]) -> String {
    let mut query = Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_cannot_lead_elsewhere() {
        assert_eq!(of_run("run_01J", "/cancel"), "/v1/runs/run_01J/cancel");
        assert_eq!(of_run("../x?y#z\r\n", ""), "/v1/runs/%2E%2E%2Fx%3Fy%23z%0D%0A");
    }

    #[test]
    fn a_query_has_what_was_said() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(with("/a", &[("b", &None)]), "/a");
        assert_eq!(with("/a", &[("b", &some("c d&e")), ("f", &None), ("g", &some("1"))]), "/a?b=c+d%26e&g=1");
    }
}
