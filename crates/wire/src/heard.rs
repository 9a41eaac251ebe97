//! What a client hears: answers, events and errors of a server, which may be another version, or no Belljar at all.

use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

use crate::network::NetworkActivity;
use crate::problem::{Code, Fault, Problem};
use crate::result::{ImagePull, RunResult, RunStarted, StageStarted};
use crate::run::{OutputText, RunState};

/// What can be read from JSON.
pub trait Readable: DeserializeOwned {}

impl<T: DeserializeOwned> Readable for T {}

/// Reads an answer.
///
/// # Errors
/// Why it is not what was asked for.
pub fn from_json<T: Readable>(json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|fault| fault.to_string())
}

/// An event of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// A person has to approve the run.
    AwaitingApproval(RunState),
    /// An image is being pulled for it.
    Pull(ImagePull),
    /// The program, or its compiler, has started.
    Start(RunStarted),
    /// The compiler is done, and the program has started.
    Stage(StageStarted),
    /// It did something with its network.
    Network(NetworkActivity),
    /// It wrote to standard output.
    Stdout(String),
    /// It wrote to standard error.
    Stderr(String),
    /// The run has ended.
    End(Box<RunResult>),
    /// Belljar could not run it.
    Error(Problem),
    /// Something that this version does not know.
    Other(String),
}

impl Heard {
    /// Reads the name and the data of a server-sent event.
    ///
    /// # Errors
    /// Why the data is not that of such an event.
    pub fn read(event: &str, data: &[u8]) -> Result<Heard, String> {
        Ok(match event {
            "awaiting_approval" => Heard::AwaitingApproval(from_json(data)?),
            "pull" => Heard::Pull(from_json(data)?),
            "start" => Heard::Start(from_json(data)?),
            "stage" => Heard::Stage(from_json(data)?),
            "network" => Heard::Network(from_json(data)?),
            "stdout" => Heard::Stdout(from_json::<OutputText>(data)?.text),
            "stderr" => Heard::Stderr(from_json::<OutputText>(data)?.text),
            "end" => Heard::End(Box::new(from_json(data)?)),
            "error" => Heard::Error(ServerRefusal::read(data, Code::Internal).ok_or("it is not an error")?.0),
            other => Heard::Other(other.to_owned()),
        })
    }
}

/// An error object of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRefusal(pub Problem);

/// The error object, as far as every version has it.
#[derive(Deserialize)]
struct Said {
    error: SaidFault,
}

#[derive(Deserialize)]
struct SaidFault {
    code: Option<String>,
    message: String,
    #[serde(default)]
    hint: String,
    field: Option<String>,
}

impl ServerRefusal {
    /// Reads an error object; `otherwise` is its code if this version does not know the one that it has.
    #[must_use]
    pub fn read(json: &[u8], otherwise: Code) -> Option<ServerRefusal> {
        let SaidFault { code, message, hint, field } = from_json::<Said>(json).ok()?.error;
        let known = |code: String| {
            let word: StrDeserializer<'_, ValueError> = code.as_str().into_deserializer();
            Code::deserialize(word).ok()
        };
        let code = code.and_then(known).unwrap_or(otherwise);
        let Problem { error, .. } = Problem::new(code, message, hint);
        Some(ServerRefusal(Problem { error: Fault { field, ..error }, retry_after: None }))
    }

    /// The code that a status of HTTP stands for.
    #[must_use]
    pub fn code_of(status: u16) -> Code {
        match status {
            401 => Code::Unauthorized,
            403 => Code::Forbidden,
            404 => Code::NotFound,
            409 => Code::Conflict,
            413 => Code::TooLarge,
            429 => Code::Busy,
            501 => Code::GuaranteeUnmet,
            502..=504 => Code::BackendUnavailable,
            400..=499 => Code::InvalidRequest,
            _ => Code::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OutputForm, to_json};
    use belljar_core::outcome::Outcome;

    #[test]
    fn a_result_reads_back_as_it_was_written() {
        let report = crate::result::tests::report(Outcome::Exited(3));
        for form in [OutputForm::Text, OutputForm::TextAndBase64] {
            let result = RunResult::new(&report, form);
            let read: RunResult = from_json(to_json(&result).as_bytes()).unwrap();
            assert_eq!(read, result);
            let heard = Heard::read("end", to_json(&result).as_bytes()).unwrap();
            assert_eq!(heard, Heard::End(Box::new(result)));
        }
    }

    #[test]
    fn words_of_another_version_are_kept() {
        let read: StageStarted = from_json(br#"{"stage": "link", "more": 1}"#).unwrap();
        assert_eq!(read.stage, "link");
        assert_eq!(Heard::read("news", b"{}").unwrap(), Heard::Other("news".to_owned()));
        assert!(Heard::read("stdout", b"{}").is_err());
    }

    #[test]
    fn an_error_has_the_code_that_it_says_or_that_of_its_status() {
        let read =
            |json: &str| ServerRefusal::read(json.as_bytes(), Code::Conflict).map(|refusal| refusal.0.error);
        let known =
            read(r#"{"error": {"code": "busy", "message": "m", "hint": "h", "field": "f"}}"#).unwrap();
        assert_eq!(
            (known.code, known.message.as_str(), known.field.as_deref()),
            (Code::Busy, "m", Some("f"))
        );
        let strange = read(r#"{"error": {"code": "on \"fire\"", "message": "m", "hint": "h"}}"#).unwrap();
        assert_eq!((strange.code, strange.field), (Code::Conflict, None));
        assert_eq!(read("<html>"), None);
        for code in [Code::Unauthorized, Code::NotFound, Code::Busy, Code::Internal, Code::GuaranteeUnmet] {
            assert_eq!(ServerRefusal::code_of(Problem::new(code, "", "").status()), code);
        }
    }
}
