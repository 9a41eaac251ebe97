//! What the policy, or a person, decided about a run.

use belljar_core::policy;
use serde::{Deserialize, Serialize};

use crate::ToSchema;

/// What was decided about a run before it could begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Decision {
    /// What was done: `allow`, `warn` (it ran, and this is worth a look), `approve` (a person approved it) or `deny`.
    #[schema(value_type = crate::schema::PolicyAction)]
    pub action: String,
    /// The rule that decided, as the policy has it: its conditions, or `default`.
    pub rule: String,
    /// What made the rule match, or the reason of the person who decided.
    pub reason: String,
    /// Who decided: `policy`, `request` (what the request itself does not allow), or the name of a person.
    pub by: String,
    /// The approval, if a person was asked, or `null`.
    #[schema(required = true)]
    pub approval_id: Option<String>,
}

impl From<&policy::Decision> for Decision {
    fn from(decision: &policy::Decision) -> Decision {
        let policy::Decision { action, rule, reason, by, approval_id } = decision.clone();
        Decision { action: action.name().to_owned(), rule, reason, by, approval_id }
    }
}
