//! Asks the person at an MCP client about a run that needs approval, if the client can ask people (elicitation) and may
//! decide: where there are no keys, or a caller may decide about its own runs.
//!
//! In the era that begins with `initialize`, the question goes to the client while the call waits. Since 2026-07-28 a call
//! is answered with the question and a state, and the client calls again with an answer and that state. The state passes
//! through the client, so it is authenticated, and bound to the caller, to the arguments and to a time. It is used once,
//! because an approval is decided once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_ledger::approvals::{Approvals, Own, Ruling};
use belljar_wire::{Approval, ApprovalFile, Code, Problem};
use hmac::{Hmac, KeyInit, Mac};
use rmcp::RoleServer;
use rmcp::model::{
    ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest,
    InputRequiredResult, InputResponses, JsonObject, ProtocolVersion, ServerRequest,
};
use rmcp::service::{PeerRequestOptions, RequestContext};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::caller::Caller;

/// The name of the question.
const QUESTION: &str = "approve";
/// The most of code, files and standard input that a question shows, in bytes. What cannot be shown is not asked here.
const MOST_TEXT: usize = 8000;
/// The most findings that a question lists.
const MOST_FINDINGS: usize = 20;
/// How long a state is good for.
const LIFETIME: Duration = Duration::from_secs(600);
/// The first protocol version in which every request stands alone.
const STANDS_ALONE: &str = "2026-07-28";

/// Asks people through clients.
#[derive(Debug)]
pub(super) struct Elicitation {
    store: Arc<Approvals>,
    seal: Seal,
}

/// Which run a state is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) approval: String,
    pub(super) run: String,
}

/// What a person said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Approve,
    Deny,
    /// Nothing: somebody else may decide.
    Nothing,
}

impl Elicitation {
    /// Asks about what waits in this store.
    pub(super) fn new(store: Arc<Approvals>) -> Option<Elicitation> {
        Some(Elicitation { store, seal: Seal::random()? })
    }

    /// Whether the person at this client can be asked about a run of this caller.
    pub(super) fn suits(&self, caller: &Caller, context: &RequestContext<RoleServer>) -> bool {
        let may_decide = caller.approves() && self.store.terms().own == Own::Allowed;
        may_decide && shows_forms(context)
    }

    /// What is asked about an approval, if it can be shown.
    pub(super) async fn question(&self, approval: &str) -> Result<Option<ElicitRequest>, Problem> {
        let (store, id) = (self.store.clone(), approval.to_owned());
        let found = blocking(move || store.find(&id, SystemTime::now())).await??;
        Ok(found.and_then(|found| request(&found.approval)))
    }

    /// The answer to a call that waits for a person, for a client that calls again.
    pub(super) fn required(
        &self,
        question: ElicitRequest,
        state: &State,
        caller: &Caller,
        arguments: &JsonObject,
    ) -> InputRequiredResult {
        let expires = seconds(SystemTime::now() + LIFETIME);
        let sealed = self.seal.close(state, expires, caller.name(), arguments);
        let questions = BTreeMap::from([(QUESTION.to_owned(), InputRequest::Elicitation(question))]);
        InputRequiredResult::new(Some(questions), Some(sealed))
    }

    /// The run that a state is about, if this server gave it to this caller for these arguments, and not too long ago.
    pub(super) fn opened(
        &self,
        text: &str,
        caller: &Caller,
        arguments: &JsonObject,
    ) -> Result<State, Problem> {
        let now = seconds(SystemTime::now());
        self.seal.open(text, now, caller.name(), arguments).ok_or_else(|| {
            let message = "the requestState is not one of this server's for this call, or it has expired";
            Problem::new(
                Code::InvalidRequest,
                message,
                "call the tool again without inputResponses and requestState",
            )
        })
    }

    /// Asks while the call waits.
    pub(super) async fn ask(
        &self,
        question: ElicitRequest,
        context: &RequestContext<RoleServer>,
        patience: Duration,
    ) -> Said {
        let mut options = PeerRequestOptions::no_options();
        options.timeout = Some(patience);
        let asked =
            context.peer.send_request_with_option(ServerRequest::ElicitRequest(question), options).await;
        let answered = match asked {
            Ok(asked) => asked.await_response().await,
            Err(error) => Err(error),
        };
        match answered {
            Ok(ClientResult::ElicitResult(result)) => said(&result),
            // The client cannot, or nobody answered: the run goes on waiting.
            Ok(_) | Err(_) => Said::Nothing,
        }
    }

    /// Decides as the person said.
    ///
    /// # Errors
    /// Somebody has decided already, or it is too late.
    pub(super) async fn decide(&self, approval: &str, said: Said, caller: &Caller) -> Result<(), Problem> {
        let approve = match said {
            Said::Approve => true,
            Said::Deny => false,
            Said::Nothing => return Ok(()),
        };
        let by = caller.name().to_owned();
        let reason = (!approve).then(|| "declined at the MCP client".to_owned());
        let ruling = Ruling { approve, by, reason, remember: None };
        let (store, id) = (self.store.clone(), approval.to_owned());
        blocking(move || store.decide(&id, &ruling, SystemTime::now())).await??;
        Ok(())
    }
}

/// Whether the client takes calls that are answered with a question.
pub(super) fn calls_again(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version: ProtocolVersion| version.as_str() >= STANDS_ALONE)
}

/// What a client answered to the question.
///
/// # Errors
/// That it did not.
pub(super) fn answered(responses: Option<&InputResponses>) -> Result<Said, Problem> {
    let response = responses.and_then(|responses| responses.get(QUESTION)).cloned().unwrap_or_default();
    let result: ElicitResult = serde_json::from_value(response).map_err(|_| {
        let message = format!("inputResponses has no answer to '{QUESTION}'");
        Problem::new(Code::InvalidRequest, message, "send the result of the elicitation")
    })?;
    Ok(said(&result))
}

fn said(result: &ElicitResult) -> Said {
    let agreed = result.content.as_ref().is_some_and(|content| content["approve"] == true);
    if result.action == ElicitationAction::Accept && agreed {
        Said::Approve
    } else if [ElicitationAction::Accept, ElicitationAction::Decline].contains(&result.action) {
        Said::Deny
    } else {
        Said::Nothing
    }
}

fn shows_forms(context: &RequestContext<RoleServer>) -> bool {
    let declared = context.client_capabilities().and_then(|capabilities| capabilities.elicitation);
    // Without modes, it is forms.
    declared.is_some_and(|modes| modes.form.is_some() || modes.url.is_none())
}

fn request(approval: &Approval) -> Option<ElicitRequest> {
    let message = message(approval)?;
    let schema = json!({
        "type": "object",
        "properties": {"approve": {
            "type": "boolean", "title": "Run this code?", "description": "Whether the code above may run, this once",
            "default": false,
        }},
        "required": ["approve"],
    });
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    let params: ElicitRequestParams = serde_json::from_value(params).ok()?;
    Some(ElicitRequest::new(params))
}

/// What a person is shown: everything that runs, or nothing is asked, and somebody else has to decide who can see it.
fn message(approval: &Approval) -> Option<String> {
    let Approval { language, code, policy, request, findings, .. } = approval;
    let carried: Vec<(&str, &ApprovalFile)> = (request.stdin.iter().map(|stdin| ("Standard input", stdin)))
        .chain(request.files.iter().map(|file| (file.path.as_str(), file)))
        .collect();
    let shown = carried.iter().map(|(name, file)| Some((*name, file.text.as_deref()?)));
    let shown: Vec<(&str, &str)> = shown.collect::<Option<_>>()?;
    let length: usize = code.len() + shown.iter().map(|(_, text)| text.len()).sum::<usize>();
    if length > MOST_TEXT || findings.len() > MOST_FINDINGS {
        return None;
    }
    let mut text =
        format!("May this {language} code run?\n\nThe policy wants it approved: {}\n", policy.reason);
    for finding in findings {
        text.push_str(&format!("- line {}, {}: {}\n", finding.line, finding.severity, finding.message));
    }
    text.push_str(&format!("\nNetwork: {}. Backend: {}.", request.network, request.backend));
    if !request.secrets.is_empty() {
        text.push_str(&format!(" The secrets of {} are added to its requests.", request.secrets.join(", ")));
    }
    // Quoted, so that none of it can look like a part of the question.
    let quoted =
        |words: &[String]| words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ");
    let workspace =
        request.workspace.as_ref().map(|path| format!("{path:?}, whose files are not shown here"));
    let more = [
        ("Arguments", quoted(&request.args)),
        ("Environment", quoted(&request.env)),
        ("Workspace", workspace.unwrap_or_default()),
        ("Image", quoted(request.image.as_slice())),
        ("Files to return", quoted(&request.collect)),
        ("Guarantees that it does without", quoted(&request.waive)),
    ];
    for (name, value) in more.iter().filter(|(_, value)| !value.is_empty()) {
        text.push_str(&format!(" {name}: {value}."));
    }
    text.push_str(&format!("\n\nThe code:\n{}", set_apart(code)));
    for (name, content) in shown {
        text.push_str(&format!("\n{name:?}:\n{}", set_apart(content)));
    }
    (text.len() <= 4 * MOST_TEXT).then(|| text.chars().map(harmless).collect())
}

/// Every line with a mark before it, so that no text of the caller's looks like one of ours.
fn set_apart(text: &str) -> String {
    text.split('\n').map(|line| format!("| {line}\n")).collect()
}

/// Clients may show it on a terminal.
fn harmless(c: char) -> char {
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
    if c.is_control() && c != '\n' && c != '\t' || turns { '\u{fffd}' } else { c }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        Problem::new(Code::Internal, "the question about approvals was lost", "see the server's log")
    })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A key of this process. After a restart, states of before are good for nothing, as their runs are.
struct Seal([u8; 32]);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(…)")
    }
}

impl Seal {
    fn random() -> Option<Seal> {
        let mut key = [0; 32];
        getrandom(&mut key, GetRandomFlags::empty()).ok()?;
        Some(Seal(key))
    }

    fn close(&self, state: &State, expires: u64, caller: &str, arguments: &JsonObject) -> String {
        let State { approval, run } = state;
        let code = self.mac(state, expires, caller, arguments).map(|mac| mac.finalize().into_bytes());
        let code: String = code.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
        format!("v1.{approval}.{run}.{expires}.{code}")
    }

    fn open(&self, text: &str, now: u64, caller: &str, arguments: &JsonObject) -> Option<State> {
        let parts: Vec<&str> = text.split('.').collect();
        let ["v1", approval, run, expires, code] = parts[..] else { return None };
        let state = State { approval: approval.to_owned(), run: run.to_owned() };
        let (expires, code) = (expires.parse().ok()?, unhex(code)?);
        // In constant time.
        self.mac(&state, expires, caller, arguments)?.verify_slice(&code).ok()?;
        (now < expires).then_some(state)
    }

    /// Each part has its length before it, so that no two states have the same bytes.
    fn mac(&self, state: &State, expires: u64, caller: &str, arguments: &JsonObject) -> Option<Hmac<Sha256>> {
        let digest = Sha256::digest(canonical(&Value::Object(arguments.clone())).to_string());
        // HMAC takes keys of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        for part in [
            b"belljar approval state 1".as_slice(),
            state.approval.as_bytes(),
            state.run.as_bytes(),
            &expires.to_be_bytes(),
            caller.as_bytes(),
            &digest,
        ] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        Some(mac)
    }
}

/// The same value with its members in one order: a client may send them in another.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let sorted: BTreeMap<_, _> =
                members.iter().map(|(name, value)| (name.clone(), canonical(value))).collect();
            Value::Object(sorted.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digit = |at: usize| char::from(*text.as_bytes().get(at)?).to_digit(16);
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::try_from(digit(2 * at)? * 16 + digit(2 * at + 1)?).ok()?;
    }
    (text.len() == 64).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_wire::{ApprovalPolicy, ApprovalRequest, ApprovalStatus};

    fn arguments(text: &str) -> JsonObject {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_state_is_good_for_its_caller_its_arguments_and_its_time() {
        let (seal, other) = (Seal::random().unwrap(), Seal::random().unwrap());
        let state = State { approval: "apr_1".into(), run: "run_1".into() };
        let given = arguments(r#"{"language": "sh", "code": "id", "files": [{"a": 1, "b": 2}]}"#);
        let text = seal.close(&state, 100, "ci", &given);
        assert_eq!(seal.open(&text, 99, "ci", &given), Some(state), "the control");
        let reordered = arguments(r#"{"files": [{"b": 2, "a": 1}], "code": "id", "language": "sh"}"#);
        assert!(seal.open(&text, 99, "ci", &reordered).is_some());
        assert_eq!(seal.open(&text, 100, "ci", &given), None, "it has expired");
        assert_eq!(seal.open(&text, 99, "boss", &given), None, "another caller");
        assert_eq!(seal.open(&text, 99, "ci", &arguments(r#"{"language": "sh", "code": "ls"}"#)), None);
        assert_eq!(other.open(&text, 99, "ci", &given), None, "another server");
        for forged in [
            text.replace("apr_1", "apr_2"),
            text.replace("run_1", "run_2"),
            text.replace(".100.", ".101."),
            text.replace("v1.", "v2."),
            format!("{text}0"),
            format!("{text}."),
            text[..text.len() - 1].to_owned(),
            "v1....".to_owned(),
            String::new(),
        ] {
            assert_eq!(seal.open(&forged, 99, "ci", &given), None, "{forged}");
        }
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        let of = |text: &str| {
            let responses: InputResponses = serde_json::from_str(text).unwrap();
            answered(Some(&responses)).ok()
        };
        assert_eq!(
            of(r#"{"approve": {"action": "accept", "content": {"approve": true}}}"#),
            Some(Said::Approve)
        );
        for no in [
            r#"{"approve": {"action": "accept", "content": {"approve": false}}}"#,
            r#"{"approve": {"action": "accept", "content": {"approve": "true"}}}"#,
            r#"{"approve": {"action": "accept"}}"#,
            r#"{"approve": {"action": "decline"}}"#,
        ] {
            assert_eq!(of(no), Some(Said::Deny), "{no}");
        }
        assert_eq!(of(r#"{"approve": {"action": "cancel"}}"#), Some(Said::Nothing));
        for nothing in ["{}", r#"{"other": {"action": "accept"}}"#, r#"{"approve": true}"#] {
            assert_eq!(of(nothing), None, "{nothing}");
        }
        assert!(answered(None).is_err());
    }

    fn approval(files: Vec<ApprovalFile>, stdin: Option<ApprovalFile>) -> Approval {
        Approval {
            id: "apr_1".into(),
            status: ApprovalStatus::Pending,
            created_at: String::new(),
            expires_at: String::new(),
            caller: "anonymous".into(),
            surface: "mcp".into(),
            peer: None,
            policy: ApprovalPolicy::default(),
            language: "sh".into(),
            code: ". ./data.txt\n\"Standard input\":\nharmless".into(),
            findings: Vec::new(),
            request: ApprovalRequest {
                args: vec!["x\ny".into()],
                env: vec!["TOKEN".into()],
                image: Some("strange:1".into()),
                collect: vec!["*.bin".into()],
                waive: vec!["memory".into()],
                files,
                stdin,
                ..ApprovalRequest::default()
            },
            digest: String::new(),
            requests: 1,
            waiting: 1,
            decision: None,
        }
    }

    fn file(path: &str, text: Option<&str>) -> ApprovalFile {
        ApprovalFile { path: path.into(), size: Some(1), sha256: None, text: text.map(str::to_owned) }
    }

    #[test]
    fn a_question_shows_everything_and_no_text_of_the_callers_looks_like_the_question() {
        let stdin = Some(file("", Some("in\u{1b}[2J")));
        let shown = message(&approval(vec![file("data.txt", Some("rm -rf /\n"))], stdin)).unwrap();
        for part in [
            "| rm -rf /\n",
            "\"data.txt\":\n",
            "| in\u{fffd}[2J\n",
            "\"x\\ny\"",
            "\"TOKEN\"",
            "Image: \"strange:1\".",
            "Files to return: \"*.bin\".",
            "Guarantees that it does without: \"memory\".",
            "| . ./data.txt\n",
        ] {
            assert!(shown.contains(part), "{part:?}: {shown}");
        }
        assert_eq!(shown.lines().filter(|line| *line == "\"Standard input\":").count(), 1, "{shown}");
    }

    #[test]
    fn what_cannot_be_shown_is_not_asked() {
        let long = "x".repeat(MOST_TEXT);
        assert!(message(&approval(vec![file("a", Some("b"))], None)).is_some(), "the control");
        for (files, stdin) in [
            (vec![file("a.bin", None)], None),
            (vec![file("a", Some("b")), file("c", Some(&long))], None),
            (Vec::new(), Some(ApprovalFile { size: None, ..file("", None) })),
        ] {
            assert_eq!(message(&approval(files, stdin)), None);
        }
    }
}
