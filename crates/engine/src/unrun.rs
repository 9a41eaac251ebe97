//! Requests that do not run: because the policy or a person denies it, or not before a person has decided.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};

use belljar_core::backend::BoxFuture;
use belljar_core::finding::Finding;
use belljar_core::language::Language;
use belljar_core::limits::Bytes;
use belljar_core::outcome::{Outcome, Report, Stage, Start, Usage};
use belljar_core::policy::Decision;
use belljar_core::request::Network;

use crate::admission::{Admission, Admitted, Applicant};
use crate::approver::{Pending, Verdict};
use crate::placement::Placement;
use crate::recorder::{Open, Suspended};
use crate::slots::Place;
use crate::transcript::{Observer, Transcript};
use crate::{Engine, RunError, RunId};

/// A request that does not run.
#[derive(Debug)]
#[must_use]
pub struct Denied {
    unrun: Unrun,
    account: Open,
}

/// A request that a person has to decide about. It holds no place in the queue, and none in the ledger. Dropping it
/// withdraws the question.
#[must_use]
pub struct Awaiting {
    applicant: Applicant,
    account: Suspended,
    approval_id: String,
    decided: BoxFuture<'static, Verdict>,
}

/// What a report has of a request that did not run.
#[derive(Debug)]
pub(crate) struct Unrun {
    pub(crate) language: Language,
    pub(crate) network: Network,
    pub(crate) output: Bytes,
    pub(crate) collects: bool,
    pub(crate) placement: Placement,
    pub(crate) findings: Vec<Finding>,
    pub(crate) decision: Option<Decision>,
}

impl Engine {
    /// Runs what was admitted, reports what was denied, and waits for a person where one has to decide. Everything else is
    /// as with [`run`](Engine::run).
    ///
    /// # Errors
    /// Belljar could not run it. A program that failed, or that was denied, is an `Ok` like any other.
    pub async fn carry_out(
        &self,
        id: &RunId,
        admission: Admission,
        observer: &mut dyn Observer,
        cancel: impl Future<Output = Option<u8>>,
    ) -> Result<Report, RunError> {
        let mut cancel = pin!(cancel);
        let admission = match admission {
            Admission::Awaiting(awaiting) => {
                let settled = self.settle(*awaiting, cancel.as_mut()).await?;
                observer.decided();
                settled
            }
            admission @ (Admission::Admitted(_) | Admission::Denied(_)) => Settled::Admission(admission),
        };
        match admission {
            Settled::Admission(Admission::Admitted(admitted)) => {
                self.run(id, admitted, observer, cancel).await
            }
            Settled::Admission(Admission::Denied(denied)) => denied.report(id, observer).await,
            // An answer to a question is not another question.
            Settled::Admission(Admission::Awaiting(awaiting)) => awaiting.cancelled(None).report(id).await,
            Settled::Cancelled(cancelled) => cancelled.report(id).await,
        }
    }

    /// Waits until a person has decided, and then for a place in the queue: what was approved is not lost because the
    /// queue is full at that moment.
    async fn settle(
        &self,
        mut awaiting: Awaiting,
        mut cancel: Pin<&mut impl Future<Output = Option<u8>>>,
    ) -> Result<Settled, RunError> {
        let verdict = tokio::select! {
            biased;
            signal = cancel.as_mut() => return Ok(Settled::Cancelled(awaiting.cancelled(signal))),
            verdict = &mut awaiting.decided => verdict,
        };
        let verdict = Verdict {
            approval_id: verdict.approval_id.or_else(|| Some(awaiting.approval_id.clone())),
            ..verdict
        };
        if !verdict.approved {
            let Awaiting { applicant, account, .. } = awaiting;
            return self.heed(&verdict, applicant, account.resume()?).map(Settled::Admission);
        }
        let place = loop {
            match Place::join(self.slots()) {
                Ok(place) => break place,
                Err(RunError::Busy { retry_after, .. }) => tokio::select! {
                    biased;
                    signal = cancel.as_mut() => return Ok(Settled::Cancelled(awaiting.cancelled(signal))),
                    () = tokio::time::sleep(retry_after) => {}
                },
                Err(error) => return Err(error),
            }
        };
        let Awaiting { mut applicant, account, .. } = awaiting;
        applicant.heed(&verdict);
        let mut account = account.resume()?;
        account.decided(&applicant.findings, applicant.decision.as_ref());
        Ok(Settled::Admission(Admission::Admitted(Admitted::new(applicant, place, account))))
    }
}

/// What became of a request that waited for a person.
#[allow(clippy::large_enum_variant, reason = "it is used up at once")]
enum Settled {
    Admission(Admission),
    Cancelled(Cancelled),
}

/// A request whose caller gave up before a person had decided.
struct Cancelled {
    unrun: Unrun,
    account: Suspended,
    signal: Option<u8>,
}

impl Denied {
    pub(crate) fn new(applicant: Applicant, account: Open) -> Denied {
        Denied { unrun: applicant.unrun(), account }
    }

    pub(crate) fn language(&self) -> Language {
        self.unrun.language
    }

    /// Why.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.unrun.decision.as_ref()
    }

    /// The result: that it was denied. It is told when it is recorded, like that of a run.
    async fn report(self: Box<Denied>, id: &RunId, observer: &mut dyn Observer) -> Result<Report, RunError> {
        let Denied { unrun, mut account } = *self;
        account.identify(id);
        let reason = unrun.decision.as_ref().map_or("", |decision| decision.reason.as_str());
        let note = format!("Denied by policy: {reason}");
        let end = Ok(unrun.report(id, Outcome::Denied, &note, observer));
        account.ended(&end).await.map_err(RunError::Unrecorded)?;
        end
    }
}

impl Awaiting {
    pub(crate) fn new(mut applicant: Applicant, account: Open, pending: Pending) -> Awaiting {
        let Pending { approval_id, decided } = pending;
        if let Some(decision) = &mut applicant.decision {
            decision.approval_id = Some(approval_id.clone());
        }
        Awaiting { applicant, account: account.suspend(), approval_id, decided }
    }

    pub(crate) fn language(&self) -> Language {
        self.applicant.request.execution.language
    }

    /// What a person decides it by.
    #[must_use]
    pub fn approval_id(&self) -> &str {
        &self.approval_id
    }

    fn cancelled(self, signal: Option<u8>) -> Cancelled {
        Cancelled { unrun: self.applicant.unrun(), account: self.account, signal }
    }
}

impl Cancelled {
    async fn report(self, id: &RunId) -> Result<Report, RunError> {
        let mut account = self.account.resume()?;
        account.identify(id);
        let end = Ok(self.unrun.report(id, Outcome::Cancelled(self.signal), "", &mut crate::Unobserved));
        account.ended(&end).await.map_err(RunError::Unrecorded)?;
        end
    }
}

impl Unrun {
    fn report(self, id: &RunId, outcome: Outcome, note: &str, observer: &mut dyn Observer) -> Report {
        let Unrun { language, network, output, collects, placement, findings, decision } = self;
        let Placement { backend, enforcement } = placement;
        let mut transcript = Transcript::new(output, observer);
        if !note.is_empty() {
            transcript.note(note);
        }
        let (stdout, stderr) = transcript.finish();
        Report {
            id: id.to_string(),
            outcome,
            stdout,
            stderr,
            usage: Usage::default(),
            compile: None,
            stage: Stage::Run,
            start: Start::Cold,
            language,
            // Nothing of it was started, so that it need not be there.
            runtime: backend.runtime(language).map(|runtime| runtime.label).unwrap_or_default(),
            backend: backend.name(),
            image: None,
            network,
            network_use: None,
            enforcement: enforcement.unused(),
            findings,
            decision,
            cold_reason: None,
            files: collects.then(Vec::new),
            changes: None,
        }
    }
}

impl fmt::Debug for Awaiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaiting").field("approval_id", &self.approval_id).finish_non_exhaustive()
    }
}
