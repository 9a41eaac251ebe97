//! Waits for a decision without a thread: `belljar run` must not have any when it makes a box.

use std::sync::Arc;
use std::time::SystemTime;

use belljar_engine::{Answer, Approver, Ask, Pending, Unapprovable, Verdict};

use super::error::ApprovalError;
use super::store::{Approvals, Submission, Submitted};
use super::waiting::{LOOK_EVERY, undecided, verdict};

/// Asks people through the file, and looks for what they decide while somebody waits for it. What is left behind stays to
/// be decided.
#[derive(Debug)]
pub struct Polling(Arc<Approvals>);

impl Polling {
    /// Asks through this file.
    #[must_use]
    pub fn new(store: Approvals) -> Polling {
        Polling(Arc::new(store))
    }

    fn submit(&self, ask: &Ask) -> Result<Answer, ApprovalError> {
        match self.0.submit(&Submission::from(ask), SystemTime::now())? {
            Submitted::Settled(settled) => Ok(Answer::Decided(verdict(settled, self.0.terms()))),
            Submitted::Pending { id, .. } => {
                let left = Left { store: self.0.clone(), id: id.clone() };
                Ok(Answer::Pending(Pending { approval_id: id, decided: Box::pin(left.decided()) }))
            }
        }
    }
}

impl Approver for Polling {
    fn ask(&self, ask: Ask) -> Result<Answer, Unapprovable> {
        self.submit(&ask).map_err(|error| Unapprovable { why: error.to_string() })
    }
}

/// An approval that one request waits for, until this is dropped. Leaving one that is decided changes nothing.
struct Left {
    store: Arc<Approvals>,
    id: String,
}

impl Left {
    async fn decided(self) -> Verdict {
        loop {
            match self.look() {
                Ok(Some(verdict)) => return verdict,
                Ok(None) => tokio::time::sleep(LOOK_EVERY).await,
                Err(error) => return undecided(self.id.clone(), error.to_string()),
            }
        }
    }

    fn look(&self) -> Result<Option<Verdict>, ApprovalError> {
        let now = SystemTime::now();
        // It only reads, as long as nothing has happened.
        if self.store.settled_among(std::slice::from_ref(&self.id), now)?.is_empty() {
            return Ok(None);
        }
        Ok(self.store.take(&self.id, now)?.map(|settled| verdict(settled, self.store.terms())))
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Err(error) = self.store.leave(&self.id, false, SystemTime::now()) {
            tracing::warn!(%error, id = self.id, "cannot leave an approval");
        }
    }
}
