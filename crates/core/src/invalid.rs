use std::fmt;

/// A part of a request, by the name that a caller uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the field of the same name in the contract")]
pub enum Field {
    Language,
    Code,
    Stdin,
    Args,
    Env,
    Files,
    Collect,
    Workspace,
    Writable,
    Changes,
    Network,
    Secrets,
    Image,
    Runtime,
    Backend,
    Waive,
    Timeout,
    CompileTimeout,
    CpuTime,
    Memory,
    CompileMemory,
    Cpus,
    Pids,
    Disk,
    Output,
    AllowedImports,
}

impl Field {
    /// The name in the JSON of the contract.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Field::Language => "language",
            Field::Code => "code",
            Field::Stdin => "stdin",
            Field::Args => "args",
            Field::Env => "env",
            Field::Files => "files",
            Field::Collect => "collect",
            Field::Workspace => "workspace",
            Field::Writable => "writable",
            Field::Changes => "changes",
            Field::Network => "network",
            Field::Secrets => "secrets",
            Field::Image => "image",
            Field::Runtime => "runtime",
            Field::Backend => "backend",
            Field::Waive => "waive",
            Field::Timeout => "limits.timeout_ms",
            Field::CompileTimeout => "limits.compile_timeout_ms",
            Field::CpuTime => "limits.cpu_ms",
            Field::Memory => "limits.memory_bytes",
            Field::CompileMemory => "limits.compile_memory_bytes",
            Field::Cpus => "limits.cpus",
            Field::Pids => "limits.pids",
            Field::Disk => "limits.disk_bytes",
            Field::Output => "limits.output_bytes",
            Field::AllowedImports => "allowed_imports",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A request that cannot be accepted: which field, why, and what to do instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// The field at fault.
    pub field: Field,
    /// What is wrong with it, in words for the caller.
    pub message: String,
    /// What the caller can do about it.
    pub hint: String,
    /// Whether the only fault is its size (`too_large` instead of `invalid_request`).
    pub too_large: bool,
}

impl Invalid {
    pub(crate) fn new(field: Field, message: impl Into<String>, hint: impl Into<String>) -> Invalid {
        Invalid { field, message: message.into(), hint: hint.into(), too_large: false }
    }

    pub(crate) fn too_large(field: Field, message: impl Into<String>, hint: impl Into<String>) -> Invalid {
        Invalid { too_large: true, ..Invalid::new(field, message, hint) }
    }
}
