//! What a caller asks for, parsed. Each type here has one constructor, and it checks.

mod pattern;

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use crate::egress::{MAX_RULES, Rule};
use crate::guarantee::Guarantee;
use crate::language::Language;
use crate::limits::{BoxLimits, ExecutionLimits};
use crate::path::{BoxPath, Workspace};
use crate::secret::SecretHost;
use crate::{Field, Invalid};

pub use pattern::{Glob, MAX_PATTERN, MAX_PATTERNS};

/// One run: a sandbox that lives for one execution.
#[derive(Debug)]
pub struct RunRequest {
    /// The box.
    pub sandbox: SandboxRequest,
    /// The one program that runs in it.
    pub execution: ExecutionRequest,
}

/// The box: everything that outlives a single program in it.
#[derive(Debug)]
pub struct SandboxRequest {
    /// Which backend is to provide it.
    pub backend: BackendChoice,
    /// Guarantees that the caller waives.
    pub waived: Vec<Guarantee>,
    /// What the box as a whole may use.
    pub limits: BoxLimits,
    /// Its network.
    pub network: Network,
    /// The hosts whose secrets are added to its requests, outside of it.
    pub secrets: Vec<SecretHost>,
    /// A directory of the host to show at `/work`.
    pub workspace: Option<Workspace>,
    /// Variables on top of those that every box has.
    pub env: Vec<EnvVar>,
    /// An OCI image, for backends that take one.
    pub image: Option<String>,
}

/// One program in a box.
#[derive(Debug)]
pub struct ExecutionRequest {
    /// What the code is written in.
    pub language: Language,
    /// The code.
    pub code: Code,
    /// Arguments to the program.
    pub args: Vec<Arg>,
    /// What it reads.
    pub stdin: Stdin,
    /// Files to put into the working directory first.
    pub files: Vec<InputFile>,
    /// Files to bring back from the working directory.
    pub collect: Vec<Glob>,
    /// What it may take.
    pub limits: ExecutionLimits,
    /// What Belljar adds for the reader of its result.
    pub extras: Extras,
    /// The only modules that the code may import, if the request has such a list.
    pub allowed_imports: Option<Vec<String>>,
}

/// What Belljar adds to a run for whoever reads its result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extras {
    /// What matplotlib would have shown comes back as files.
    pub plots: bool,
    /// A program that lacks a package has a line at the end of stderr that says how to get it.
    pub hints: bool,
}

/// The most code that one run takes; data belongs in files.
pub const MAX_CODE: usize = 4 << 20;

/// Code: no NUL, at most [`MAX_CODE`]. An empty program is a program, too.
#[derive(Clone, PartialEq, Eq)]
pub struct Code {
    /// Shared: the record of a run has the same.
    bytes: Arc<Vec<u8>>,
    place: Option<CodePlace>,
}

/// Where the code was found.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CodePlace {
    /// In a file of this name, which is put into the working directory.
    File(BoxPath),
    /// At this path of the workspace, where it stays.
    Workspace(BoxPath),
}

impl Code {
    /// Code from text or from a file. The name of a file is kept for the program's messages.
    ///
    /// # Errors
    /// Code that is too large or binary.
    pub fn parse(bytes: Vec<u8>, file_name: Option<BoxPath>) -> Result<Code, Invalid> {
        if bytes.len() > MAX_CODE {
            let message = format!("the code is {} bytes long; at most {MAX_CODE} are accepted", bytes.len());
            return Err(Invalid::too_large(Field::Code, message, "pass data as a file with --file instead"));
        }
        if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
            return Err(Invalid::new(
                Field::Code,
                format!("the code has a NUL byte at offset {at}, so it is not source text"),
                "pass binary data as a file with --file",
            ));
        }
        Ok(Code { bytes: Arc::new(bytes), place: file_name.map(CodePlace::File) })
    }

    /// Code that runs where it lies: in the workspace, at this path.
    ///
    /// # Errors
    /// Code that is too large or binary.
    pub fn in_workspace(bytes: Vec<u8>, path: BoxPath) -> Result<Code, Invalid> {
        Ok(Code { place: Some(CodePlace::Workspace(path)), ..Code::parse(bytes, None)? })
    }

    /// The source text.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The name of the file that it came from, relative to the working directory.
    #[must_use]
    pub fn file_name(&self) -> Option<&BoxPath> {
        match &self.place {
            Some(CodePlace::File(name) | CodePlace::Workspace(name)) => Some(name),
            None => None,
        }
    }

    /// Whether that file is in the workspace.
    #[must_use]
    pub fn is_in_workspace(&self) -> bool {
        matches!(self.place, Some(CodePlace::Workspace(_)))
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({} bytes)", self.bytes.len())
    }
}

/// What the program reads.
pub enum Stdin {
    /// End of file at once.
    Empty,
    /// These bytes.
    Bytes(Vec<u8>),
    /// Whatever this yields, as it comes.
    Stream(Box<dyn Read + Send>),
}

impl fmt::Debug for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stdin::Empty => f.write_str("Empty"),
            Stdin::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Stdin::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// A file to put into the working directory.
#[derive(Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Where.
    pub path: BoxPath,
    /// What is in it.
    pub content: Vec<u8>,
    /// Whether it may be executed.
    pub executable: bool,
}

impl fmt::Debug for InputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InputFile({}, {} bytes)", self.path, self.content.len())
    }
}

/// The longest single argument or variable that Linux takes (`MAX_ARG_STRLEN`), less its terminator.
const MAX_STRING: usize = 128 * 1024 - 1;
/// The maximum of all of them together: well below a quarter of the stack, which is what Linux allows.
const MAX_STRINGS: usize = 1 << 20;

/// An argument to the program: no NUL, and short enough for `execve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arg(String);

impl Arg {
    /// All arguments of a run.
    ///
    /// # Errors
    /// Arguments that the kernel would not take.
    pub fn parse_all(args: Vec<String>) -> Result<Vec<Arg>, Invalid> {
        check_strings(Field::Args, "argument", args.iter().map(|arg| (arg.as_str(), arg.len())))?;
        Ok(args.into_iter().map(Arg).collect())
    }

    /// The argument.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A variable for the program's environment.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvVar {
    name: String,
    value: String,
}

impl EnvVar {
    /// All variables of a run.
    ///
    /// # Errors
    /// Names that no shell could read, values with NUL bytes, or too much of either.
    pub fn parse_all(variables: Vec<(String, String)>) -> Result<Vec<EnvVar>, Invalid> {
        for (name, _) in &variables {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(plain) {
                return Err(Invalid::new(
                    Field::Env,
                    format!("'{}' is not a valid name for an environment variable", name.escape_debug()),
                    "a name has letters, digits and underscores, and does not begin with a digit",
                ));
            }
        }
        check_strings(
            Field::Env,
            "environment variable",
            // The program gets NAME=VALUE.
            variables.iter().map(|(name, value)| (value.as_str(), name.len() + 1 + value.len())),
        )?;
        Ok(variables.into_iter().map(|(name, value)| EnvVar { name, value }).collect())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its value, which may be one of the caller's secrets.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl fmt::Debug for EnvVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=…", self.name)
    }
}

fn check_strings<'a>(
    field: Field,
    what: &str,
    strings: impl Iterator<Item = (&'a str, usize)>,
) -> Result<(), Invalid> {
    let mut total = 0;
    for (text, length) in strings {
        total += length + 1;
        if text.contains('\0') {
            let message = format!("an {what} contains a NUL byte");
            return Err(Invalid::new(field, message, "pass binary data on standard input or as a file"));
        }
        if length > MAX_STRING || total > MAX_STRINGS {
            let message = format!(
                "an {what} may have at most {MAX_STRING} bytes, and all of them together at most {MAX_STRINGS}"
            );
            return Err(Invalid::too_large(field, message, "pass large data on standard input or as a file"));
        }
    }
    Ok(())
}

/// What a box may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Nothing but itself.
    None,
    /// The public internet.
    Full,
    /// These hosts, each the text of an [egress rule](Rule).
    Allow(Vec<String>),
}

impl Network {
    /// `none`, `full`, or `allow:HOST[:PORT],…`.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(text: &str) -> Result<Network, Invalid> {
        match text.split_once(':') {
            None if text == "none" => Ok(Network::None),
            None if text == "full" => Ok(Network::Full),
            Some(("allow", hosts)) => parse_hosts(hosts).map(Network::Allow),
            _ => Err(Invalid::new(
                Field::Network,
                format!("'{}' is not a network", text.escape_debug()),
                "write none, full, or allow: with hosts, such as allow:example.org:443",
            )),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Network::None => f.write_str("none"),
            Network::Full => f.write_str("full"),
            Network::Allow(hosts) => write!(f, "allow:{}", hosts.join(",")),
        }
    }
}

fn parse_hosts(hosts: &str) -> Result<Vec<String>, Invalid> {
    let rules: Vec<_> =
        hosts.split(',').map(|host| Ok(Rule::parse(host)?.to_string())).collect::<Result<_, Invalid>>()?;
    if rules.len() > MAX_RULES {
        let message = format!("{} hosts are too many", rules.len());
        return Err(Invalid::new(
            Field::Network,
            message,
            format!("name at most {MAX_RULES}, or a CIDR or *.name"),
        ));
    }
    Ok(rules)
}

/// Which backend is to run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChoice {
    /// The strongest that this host has; never `process` or `none`.
    Auto,
    /// This one only.
    Named(BackendName),
}

/// The backends of the contract, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub enum BackendName {
    Native,
    Docker,
    Wasm,
    Kubernetes,
    Process,
    None,
}

impl BackendName {
    /// All of them.
    pub const ALL: [BackendName; 6] = [
        BackendName::Native,
        BackendName::Docker,
        BackendName::Wasm,
        BackendName::Kubernetes,
        BackendName::Process,
        BackendName::None,
    ];

    /// Those that a build of Belljar can have. The other names are reserved for what is to come.
    pub const BUILDABLE: [BackendName; 5] = [
        BackendName::Native,
        BackendName::Docker,
        BackendName::Wasm,
        BackendName::Process,
        BackendName::None,
    ];

    /// The contract's word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BackendName::Native => "native",
            BackendName::Docker => "docker",
            BackendName::Wasm => "wasm",
            BackendName::Kubernetes => "kubernetes",
            BackendName::Process => "process",
            BackendName::None => "none",
        }
    }
}

impl BackendName {
    /// Whether it is no box but a process of the caller's own, so that somebody has to ask for it by name: that counts as
    /// doing without everything that it does not keep.
    #[must_use]
    pub fn is_only_by_name(self) -> bool {
        matches!(self, BackendName::Process | BackendName::None)
    }

    /// Whether `auto` may choose it. Besides those that are no box, that is not so for `wasm`: much of what programs do
    /// elsewhere does not work there, so whoever wants it says so.
    #[must_use]
    pub fn is_automatic(self) -> bool {
        match self {
            BackendName::Native | BackendName::Docker | BackendName::Kubernetes => true,
            BackendName::Wasm | BackendName::Process | BackendName::None => false,
        }
    }

    /// Whether it can put a layer over a workspace that the code can write to, within the run's limit on disk.
    #[must_use]
    pub fn layers_workspace(self) -> bool {
        match self {
            BackendName::Native => true,
            BackendName::Docker
            | BackendName::Kubernetes
            | BackendName::Wasm
            | BackendName::Process
            | BackendName::None => false,
        }
    }

    /// Whether its boxes are made from an OCI image. A request that names an image cannot run on any other backend.
    #[must_use]
    pub fn takes_image(self) -> bool {
        match self {
            BackendName::Docker | BackendName::Kubernetes => true,
            BackendName::Native | BackendName::Wasm | BackendName::Process | BackendName::None => false,
        }
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl BackendChoice {
    /// `auto` or the name of a backend.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(text: &str) -> Result<BackendChoice, Invalid> {
        if text == "auto" {
            return Ok(BackendChoice::Auto);
        }
        let named = BackendName::ALL.into_iter().find(|backend| backend.name() == text);
        named.map(BackendChoice::Named).ok_or_else(|| {
            Invalid::new(
                Field::Backend,
                format!("unknown backend '{}'", text.escape_debug()),
                "the backends are auto, native, docker, wasm, process and none; gVisor is docker with the runtime runsc",
            )
        })
    }
}

/// The guarantees that a caller does without.
///
/// # Errors
/// A word that is not a guarantee.
pub fn parse_waivers(words: &[String]) -> Result<Vec<Guarantee>, Invalid> {
    let parse = |word: &String| {
        Guarantee::from_name(word).ok_or_else(|| {
            Invalid::new(
                Field::Waive,
                format!("'{}' is not a guarantee", word.escape_debug()),
                format!("the guarantees are {}", Guarantee::ALL.map(Guarantee::name).join(", ")),
            )
        })
    };
    words.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn code_that_cannot_be_source_text_is_refused() {
        assert!(Code::parse(vec![], None).is_ok(), "an empty program is a program");
        let nul = Code::parse(b"print(1)\0".to_vec(), None).unwrap_err();
        assert!(nul.message.contains("NUL byte at offset 8"));
        let large = Code::parse(vec![b' '; 10_000_000], None).unwrap_err();
        assert!(large.too_large && large.message.contains("10000000"));
        assert!(Code::parse(vec![b' '; MAX_CODE], None).is_ok());
    }

    #[test]
    fn networks_are_those_of_the_contract() {
        assert_eq!(Network::parse("none").unwrap(), Network::None);
        assert_eq!(Network::parse("full").unwrap(), Network::Full);
        let allow = Network::parse("allow:example.org,api.example.org:443").unwrap();
        assert_eq!(allow.to_string(), "allow:example.org,api.example.org:443");
        for text in ["", "lan", "allow:", "allow:a,,b", "allow:a:0", "allow:a:x", "allow:a b"] {
            assert!(Network::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn strings_that_the_kernel_would_not_take_are_refused() {
        assert!(Arg::parse_all(vec!["a\0b".into()]).is_err());
        assert!(Arg::parse_all(vec!["x".repeat(128 * 1024)]).unwrap_err().too_large);
        assert!(Arg::parse_all(vec!["x".repeat(100_000); 11]).unwrap_err().too_large);
        assert!(EnvVar::parse_all(vec![("A".into(), "b\0".into())]).is_err());
        for name in ["", "1A", "A B", "A=B", "Ä"] {
            assert!(EnvVar::parse_all(vec![(name.into(), String::new())]).is_err(), "{name:?}");
        }
        let secret = EnvVar::parse_all(vec![("TOKEN".into(), "hunter2".into())]).unwrap();
        assert_eq!(format!("{secret:?}"), "[TOKEN=…]");
    }

    #[test]
    fn every_backend_and_guarantee_reads_back() {
        for backend in BackendName::ALL {
            assert_eq!(BackendChoice::parse(backend.name()).unwrap(), BackendChoice::Named(backend));
        }
        assert_eq!(BackendChoice::parse("auto").unwrap(), BackendChoice::Auto);
        assert!(BackendChoice::parse("podman").is_err());
        assert!(parse_waivers(&["memory".into(), "everything".into()]).is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in ".{0,60}") {
            let _ = Network::parse(&text);
            let _ = Glob::parse(&text).map(|glob| glob.matches("a/b"));
            let _ = BackendChoice::parse(&text);
        }
    }
}
