//! Who asks, and what they may do.

use std::sync::Arc;

use belljar_core::allowance::Allowance;

/// One who asks. Every request carries one (as an extension, on HTTP); a run belongs to the caller that started it,
/// and no other caller can see it.
#[derive(Debug, Clone)]
pub struct Caller(Arc<Account>);

#[derive(Debug)]
struct Account {
    name: String,
    allowance: Allowance,
}

impl Caller {
    /// The one caller of a server without keys, and of a server on standard input and output.
    #[must_use]
    pub fn anonymous(allowance: Allowance) -> Caller {
        Caller(Arc::new(Account { name: "anonymous".to_owned(), allowance }))
    }

    /// What they are called, in logs and in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What they may do.
    #[must_use]
    pub fn allowance(&self) -> &Allowance {
        &self.0.allowance
    }
}
