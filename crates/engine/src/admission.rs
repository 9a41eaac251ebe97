//! What may run, and when. Nothing below this point accepts a request that did not come through here.

use std::fmt;
use std::sync::Arc;

use belljar_core::allowance::Allowance;
use belljar_core::backend::Backend;
use belljar_core::finding::Finding;
use belljar_core::guarantee::Enforcement;
use belljar_core::language::Language;
use belljar_core::policy::{Action, Decision, Policy, Ruling};
use belljar_core::request::{BackendName, ExecutionRequest, RunRequest, SandboxRequest};

use crate::approver::{Answer, Ask, Verdict};
use crate::placement::{Demands, Placement};
use crate::recorder::{Asked, Open, Origin, with_causes};
use crate::scanner::Scans;
use crate::slots::Place;
use crate::unrun::{Awaiting, Denied, Unrun};
use crate::{Engine, RunError};

/// A request that may run, on a backend that accepts it, with its place in the queue. Only [`Engine::admit`] makes one,
/// when the policy has allowed it or a person has approved it; dropping it gives up the place.
#[must_use]
pub struct Admitted {
    pub(crate) caller: Arc<str>,
    pub(crate) sandbox: SandboxRequest,
    pub(crate) execution: ExecutionRequest,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) enforcement: Enforcement,
    pub(crate) findings: Vec<Finding>,
    pub(crate) decision: Option<Decision>,
    pub(crate) place: Place,
    pub(crate) account: Open,
}

/// What a caller may ask for, and what the operator wants done with what it asks for.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the types say it")]
pub struct Rights<'a> {
    pub allowance: &'a Allowance,
    pub policy: &'a Policy,
    /// What was found before in parts of the same request, if it runs more than once.
    pub scans: Option<&'a Scans>,
}

/// What a policy says about a request, and what it looked at.
#[derive(Debug)]
pub struct Appraisal {
    /// What it says, and where that is written.
    pub ruling: Ruling,
    /// What was found in the code.
    pub findings: Vec<Finding>,
    /// The backend that would run it, if one can.
    pub backend: Option<BackendName>,
    /// The request, unchanged.
    pub request: RunRequest,
}

/// What became of a request that makes sense, of a caller that may make it.
#[must_use]
#[allow(clippy::large_enum_variant, reason = "almost all of them are admitted, and pay for no allocation")]
#[derive(Debug)]
pub enum Admission {
    /// It may run.
    Admitted(Admitted),
    /// The policy does not let it run. That is a result like that of a run.
    Denied(Box<Denied>),
    /// A person has to decide. It holds no place in the queue meanwhile.
    Awaiting(Box<Awaiting>),
}

/// A request on its way to being admitted: it has a backend, and everything is known that a decision needs.
#[derive(Debug)]
pub(crate) struct Applicant {
    pub(crate) caller: Arc<str>,
    pub(crate) request: RunRequest,
    pub(crate) placement: Placement,
    pub(crate) findings: Vec<Finding>,
    pub(crate) decision: Option<Decision>,
}

impl Engine {
    /// Decides whether and where a request may run: checks it against what its caller may do, chooses a backend that
    /// can enforce what is demanded, has the code scanned if the policy needs that, asks the policy, and puts the request
    /// in the queue. It does no more than that; no box is touched. The record of the attempt names its origin; an
    /// attempt that is refused is recorded, too.
    ///
    /// # Errors
    /// The caller may not, no backend can, the code cannot be scanned, the queue is full, or the attempt cannot be recorded.
    pub async fn admit(
        &self,
        origin: &Origin,
        rights: Rights<'_>,
        request: RunRequest,
    ) -> Result<Admission, RunError> {
        let mut account = Open::new(self.recorder(), origin, || Asked::of(&request))?;
        let placement = match self.permit(rights.allowance, &request) {
            Ok(placement) => placement,
            Err(error) => return Err(refuse(account, error)),
        };
        account.place(placement.backend.name());
        let (caller, findings, decision) = (origin.caller.clone(), Vec::new(), None);
        let mut applicant = Applicant { caller, request, placement, findings, decision };
        if self.has_to_look(rights.policy, &applicant.request) {
            applicant = match self.look(origin, rights, applicant).await {
                Ok(applicant) => applicant,
                Err(error) => return Err(refuse(account, error)),
            };
            account.decided(&applicant.findings, applicant.decision.as_ref());
        }
        self.follow(origin, applicant, account)
    }

    /// What the policy says about a request, without admitting it or asking anybody.
    ///
    /// # Errors
    /// The caller may not make it, or the code cannot be scanned.
    pub async fn appraise(
        &self,
        origin: &Origin,
        rights: Rights<'_>,
        request: RunRequest,
    ) -> Result<Appraisal, RunError> {
        rights.allowance.permits(&request)?;
        let backend = self.permit(rights.allowance, &request).ok().map(|placement| placement.backend.name());
        let (request, findings) = self.examine(origin, rights, request).await?;
        let ruling = rights.policy.decide(&request, backend, &findings);
        Ok(Appraisal { ruling, findings, backend, request })
    }

    /// Records an attempt that was refused before there was a request that could be admitted.
    pub fn refused(&self, origin: &Origin, asked: impl FnOnce() -> Asked, why: &str) {
        // If it cannot be recorded, it was refused all the same.
        if let Ok(account) = Open::new(self.recorder(), origin, asked) {
            account.refused(why.to_owned());
        }
    }

    /// Where a request may run, if its caller may make it.
    pub(crate) fn permit(&self, allowance: &Allowance, request: &RunRequest) -> Result<Placement, RunError> {
        allowance.permits(request)?;
        let permitted = |name: BackendName| allowance.backends.contains(&name);
        self.place_among(permitted, &Demands::from(&request.sandbox))
    }

    /// Whether there is anything to find out or to decide.
    fn has_to_look(&self, policy: &Policy, request: &RunRequest) -> bool {
        !policy.is_open() || self.scans_every_run() || request.execution.allowed_imports.is_some()
    }

    async fn look(
        &self,
        origin: &Origin,
        rights: Rights<'_>,
        applicant: Applicant,
    ) -> Result<Applicant, RunError> {
        let policy = rights.policy;
        let Applicant { caller, request, placement, .. } = applicant;
        let (request, findings) = self.examine(origin, rights, request).await?;
        let is_decided = !policy.is_open() || request.execution.allowed_imports.is_some();
        let ruling = is_decided.then(|| policy.decide(&request, Some(placement.backend.name()), &findings));
        let decision = ruling.map(|ruling| ruling.decision);
        Ok(Applicant { caller, request, placement, findings, decision })
    }

    /// Does what was decided.
    fn follow(&self, origin: &Origin, applicant: Applicant, account: Open) -> Result<Admission, RunError> {
        let action = applicant.decision.as_ref().map_or(Action::Allow, |decision| decision.action);
        match (action, &applicant.decision) {
            (Action::Approve, Some(decision)) => {
                let (request, name) = (&applicant.request, applicant.placement.backend.name());
                let ask = Ask::new(origin, request, name, &applicant.findings, decision);
                self.inquire(ask, applicant, account)
            }
            (Action::Deny, _) => Ok(Admission::Denied(Box::new(Denied::new(applicant, account)))),
            (Action::Allow | Action::Warn | Action::Approve, _) => {
                self.join(applicant, account).map(Admission::Admitted)
            }
        }
    }

    /// Asks a person, if there is one.
    fn inquire(&self, ask: Ask, mut applicant: Applicant, account: Open) -> Result<Admission, RunError> {
        let answer = match self.approver() {
            Some(approver) => approver.ask(ask).map_err(|unapprovable| unapprovable.why),
            None => Err("nobody can be asked here".to_owned()),
        };
        match answer {
            Ok(Answer::Pending(pending)) => {
                Ok(Admission::Awaiting(Box::new(Awaiting::new(applicant, account, pending))))
            }
            Ok(Answer::Decided(verdict)) => self.heed(&verdict, applicant, account),
            Err(why) => {
                applicant.deny(|reason| format!("{reason}; it needs an approval, and {why}"));
                Ok(Admission::Denied(Box::new(Denied::new(applicant, account))))
            }
        }
    }

    /// Does what a person has decided.
    pub(crate) fn heed(
        &self,
        verdict: &Verdict,
        mut applicant: Applicant,
        mut account: Open,
    ) -> Result<Admission, RunError> {
        applicant.heed(verdict);
        account.decided(&applicant.findings, applicant.decision.as_ref());
        if verdict.approved {
            return self.join(applicant, account).map(Admission::Admitted);
        }
        Ok(Admission::Denied(Box::new(Denied::new(applicant, account))))
    }

    /// Puts a request in the queue. What has come so far may run.
    fn join(&self, applicant: Applicant, account: Open) -> Result<Admitted, RunError> {
        let place = match Place::join(self.slots()) {
            Ok(place) => place,
            Err(error) => return Err(refuse(account, error)),
        };
        Ok(Admitted::new(applicant, place, account))
    }
}

fn refuse(account: Open, error: RunError) -> RunError {
    account.refused(with_causes(&error));
    error
}

impl Applicant {
    /// What a person has decided takes the place of what the policy said.
    pub(crate) fn heed(&mut self, verdict: &Verdict) {
        let Some(decision) = &mut self.decision else { return };
        let Verdict { approved, by, reason, approval_id } = verdict;
        decision.action = if *approved { Action::Approve } else { Action::Deny };
        decision.by.clone_from(by);
        if approval_id.is_some() {
            decision.approval_id.clone_from(approval_id);
        }
        match (approved, reason) {
            (_, Some(reason)) => decision.reason.clone_from(reason),
            (true, None) => {}
            (false, None) => decision.reason = format!("not approved: {}", decision.reason),
        }
    }

    fn deny(&mut self, reason: impl FnOnce(&str) -> String) {
        if let Some(decision) = &mut self.decision {
            decision.action = Action::Deny;
            decision.reason = reason(&decision.reason);
        }
    }

    /// The parts of a report that do not depend on how it ended.
    pub(crate) fn unrun(self) -> Unrun {
        let Applicant { caller: _, request, placement, findings, decision } = self;
        Unrun {
            language: request.execution.language,
            network: request.sandbox.network,
            output: request.execution.limits.output,
            collects: !request.execution.collect.is_empty(),
            placement,
            findings,
            decision,
        }
    }
}

impl Admission {
    /// What the code is written in.
    #[must_use]
    pub fn language(&self) -> Language {
        match self {
            Admission::Admitted(admitted) => admitted.language(),
            Admission::Denied(denied) => denied.language(),
            Admission::Awaiting(awaiting) => awaiting.language(),
        }
    }

    /// What a person decides it by, if that is what it waits for.
    #[must_use]
    pub fn approval_id(&self) -> Option<&str> {
        match self {
            Admission::Awaiting(awaiting) => Some(awaiting.approval_id()),
            Admission::Admitted(_) | Admission::Denied(_) => None,
        }
    }
}

impl Admitted {
    pub(crate) fn new(applicant: Applicant, place: Place, account: Open) -> Admitted {
        let Applicant { caller, request, placement, findings, decision } = applicant;
        let RunRequest { sandbox, execution } = request;
        let Placement { backend, enforcement } = placement;
        Admitted { caller, sandbox, execution, backend, enforcement, findings, decision, place, account }
    }

    /// What the code is written in.
    #[must_use]
    pub fn language(&self) -> Language {
        self.execution.language
    }

    /// Where it will run.
    #[must_use]
    pub fn backend(&self) -> BackendName {
        self.backend.name()
    }

    /// The guarantees that will be enforced while it runs.
    #[must_use]
    pub fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    /// What was decided about it, if there was something to decide.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Admitted { sandbox, execution, backend, .. } = self;
        f.debug_struct("Admitted")
            .field("sandbox", sandbox)
            .field("execution", execution)
            .field("backend", &backend.name())
            .finish_non_exhaustive()
    }
}
