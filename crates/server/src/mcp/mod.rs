//! The Model Context Protocol, as one more way to [`Runs`](crate::Runs).
//!
//! In reading order: `tools` is what a model is told that it can do; `call` makes a request of what it then asks for;
//! `service` carries that out, with `progress` on the way, and `elicit` asks a person where one has to approve; `answer` is what the model gets to read, and `excerpt` keeps
//! that short. [`serve_stdio`] and `endpoint` are the two transports; `refusal` is what the second says to what is no MCP. Both eras of the protocol are served on both of
//! them: the one that begins with `initialize`, and the one since 2026-07-28 in which every request stands alone.

mod answer;
mod call;
mod changes;
mod elicit;
mod endpoint;
mod excerpt;
mod progress;
mod refusal;
mod service;
mod stdio;
mod tools;

use std::fmt;
use std::time::Duration;

use belljar_wire::{Code, Problem};

pub use endpoint::serve_handler;
pub use stdio::serve_stdio;

pub(crate) use endpoint::{router, understands};

/// How MCP is to behave.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the tool that runs code is called.
    pub tool_name: ToolName,
    /// When a call is answered with a handle, because its run still goes on. Clients give up after a minute.
    pub answer_within: Duration,
    /// The most characters of output in one answer.
    pub max_text: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { tool_name: ToolName::default(), answer_within: Duration::from_secs(45), max_text: 30_000 }
    }
}

/// The name of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolName(String);

impl ToolName {
    /// Understands a name.
    ///
    /// # Errors
    /// A name that the protocol does not allow, or that another of the tools has.
    pub fn parse(text: &str) -> Result<ToolName, Problem> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let shown = || text.chars().take(140).collect::<String>().escape_debug().to_string();
        if text.is_empty() || text.len() > 128 || !text.chars().all(allowed) {
            let message = format!("'{}' cannot be the name of a tool", shown());
            let hint = "use 1 to 128 of the characters A-Z, a-z, 0-9, '_', '-' and '.', as in code_run";
            return Err(Problem::new(Code::InvalidRequest, message, hint));
        }
        if tools::OTHERS.contains(&text) {
            let message = format!("there is a tool '{}' already", shown());
            return Err(Problem::new(Code::InvalidRequest, message, "choose another name, as in code_run"));
        }
        Ok(ToolName(text.to_owned()))
    }
}

impl ToolName {
    fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ToolName {
    fn default() -> ToolName {
        ToolName("run_code".to_owned())
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_may_have_the_names_that_the_protocol_allows() {
        for name in ["run_code", "code_run", "a", "Belljar.run-1", &"x".repeat(128)] {
            assert_eq!(ToolName::parse(name).unwrap().to_string(), name);
        }
        for name in ["", "run code", "läuft", "a/b", "a\n", &"x".repeat(129)] {
            let problem = ToolName::parse(name).unwrap_err().error;
            assert!(problem.message.ends_with("cannot be the name of a tool"), "{}", problem.message);
        }
    }

    #[test]
    fn two_tools_do_not_share_a_name() {
        assert_eq!(
            ToolName::parse("get_run").unwrap_err().error.message,
            "there is a tool 'get_run' already"
        );
    }
}
