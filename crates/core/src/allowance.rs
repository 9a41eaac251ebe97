//! What a caller may ask for. A request that asks for more is refused, and the error says what is allowed. It is never
//! silently reduced, because a caller that got less than it asked for would not know what its result means.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::Field;
use crate::egress::Rule;
use crate::guarantee::Guarantee;
use crate::language::Language;
use crate::limits::{BoxLimits, Bytes, CompileLimits, Cpus, ExecutionLimits, show_duration};
use crate::path::Workspace;
use crate::request::{BackendChoice, BackendName, Network, RunRequest};
use crate::secret::SecretHost;

/// What a caller may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    /// Which languages, by their names in the contract.
    pub languages: Permitted<&'static str>,
    /// Which backends may be named. `auto` is always allowed: it picks one of these.
    pub backends: Permitted<BackendName>,
    /// What a box may reach.
    pub networks: Networks,
    /// Whose secrets may be used.
    pub secrets: Permitted<SecretHost>,
    /// Which guarantees may be waived.
    pub waivers: Permitted<Guarantee>,
    /// Which directories of the host may be shown.
    pub workspaces: Workspaces,
    /// The maximum of everything that has a limit.
    pub ceilings: Ceilings,
}

/// All of them, or only some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permitted<T> {
    /// All that exist.
    All,
    /// These and no others.
    Only(Vec<T>),
}

/// What a box may reach at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Networks {
    /// No network except its own loopback.
    None,
    /// These hosts, written as in `allow:HOST[:PORT]`; a request may name all or some of them, or parts of them.
    Hosts(Vec<String>),
    /// The public internet, and any hosts in it.
    Full,
    /// The same, and private addresses that a request names.
    Any,
}

/// Which directories of the host may be shown to a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workspaces {
    /// Any directory.
    Any,
    /// These and their subdirectories.
    Beneath(Vec<PathBuf>),
}

/// The maximum that may be asked for. A limit that is absent here has only its own range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the limits")]
pub struct Ceilings {
    pub timeout: Option<Duration>,
    pub cpu_time: Option<Duration>,
    pub memory: Option<Bytes>,
    pub cpus: Option<Cpus>,
    pub pids: Option<u32>,
    pub disk: Option<Bytes>,
    pub output: Option<Bytes>,
    pub collected: Option<Bytes>,
    pub compile_timeout: Option<Duration>,
    pub compile_memory: Option<Bytes>,
}

/// A request that is not allowed: which field asks for too much, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NotAllowed {
    /// The field at fault.
    pub field: Field,
    /// What is not allowed, in words for the caller.
    pub message: String,
    /// What is allowed instead.
    pub hint: String,
}

impl Allowance {
    /// What the owner of the machine may do: everything.
    #[must_use]
    pub fn everything() -> Allowance {
        Allowance {
            languages: Permitted::All,
            backends: Permitted::All,
            networks: Networks::Any,
            secrets: Permitted::All,
            waivers: Permitted::All,
            workspaces: Workspaces::Any,
            ceilings: Ceilings::default(),
        }
    }

    /// What an unknown caller may do by default: run code in a real box without a network. No guarantee may be waived,
    /// no directory of the host shown, and no backend named that is not a sandbox.
    #[must_use]
    pub fn boxed() -> Allowance {
        let boxes =
            [BackendName::Native, BackendName::Docker, BackendName::Wasm, BackendName::Kubernetes].to_vec();
        Allowance {
            backends: Permitted::Only(boxes),
            networks: Networks::None,
            secrets: Permitted::Only(Vec::new()),
            waivers: Permitted::Only(Vec::new()),
            workspaces: Workspaces::Beneath(Vec::new()),
            ..Allowance::everything()
        }
    }

    /// Whether this request may run.
    ///
    /// # Errors
    /// The first thing in it that is not allowed.
    pub fn permits(&self, request: &RunRequest) -> Result<(), NotAllowed> {
        let (sandbox, execution) = (&request.sandbox, &request.execution);
        self.language(execution.language)?;
        self.backend(sandbox.backend)?;
        self.networks.permit(&sandbox.network)?;
        sandbox.secrets.iter().try_for_each(|host| self.secret(host))?;
        sandbox.waived.iter().try_for_each(|guarantee| self.waiver(*guarantee))?;
        sandbox.workspace.iter().try_for_each(|workspace| self.workspaces.permit(workspace))?;
        self.ceilings.permit(&sandbox.limits, &execution.limits)?;
        if execution.language.is_compiled() {
            self.ceilings.permit_compiler(&execution.limits.compile)
        } else {
            Ok(())
        }
    }

    /// Whether this language may be used.
    ///
    /// # Errors
    /// It may not; the hint lists those that may.
    pub fn language(&self, language: Language) -> Result<(), NotAllowed> {
        self.languages.permit(&language.name).map_err(|allowed| {
            refusal(
                Field::Language,
                format!("the language '{language}' is not allowed here"),
                format!("allowed: {}", listed(allowed)),
            )
        })
    }

    /// Whether this backend may be named.
    ///
    /// # Errors
    /// It may not; the hint lists those that may.
    pub fn backend(&self, choice: BackendChoice) -> Result<(), NotAllowed> {
        let BackendChoice::Named(name) = choice else { return Ok(()) };
        self.backends.permit(&name).map_err(|allowed| {
            refusal(
                Field::Backend,
                format!("the backend '{name}' is not allowed here"),
                format!("leave it out, or name one of these: {}", listed(allowed)),
            )
        })
    }

    fn secret(&self, host: &SecretHost) -> Result<(), NotAllowed> {
        self.secrets.permit(host).map_err(|allowed| {
            refusal(
                Field::Secrets,
                format!("the secret for '{host}' is not allowed here"),
                format!("secrets that may be used: {}", listed(allowed)),
            )
        })
    }

    fn waiver(&self, guarantee: Guarantee) -> Result<(), NotAllowed> {
        self.waivers.permit(&guarantee).map_err(|allowed| {
            refusal(
                Field::Waive,
                format!("the guarantee '{guarantee}' may not be waived here"),
                format!("guarantees that may be waived: {}", listed(allowed)),
            )
        })
    }
}

impl<T: PartialEq> Permitted<T> {
    /// Whether this one is among them.
    #[must_use]
    pub fn contains(&self, wanted: &T) -> bool {
        self.permit(wanted).is_ok()
    }

    fn permit(&self, wanted: &T) -> Result<(), &[T]> {
        match self {
            Permitted::Only(allowed) if !allowed.contains(wanted) => Err(allowed),
            Permitted::Only(_) | Permitted::All => Ok(()),
        }
    }
}

impl Networks {
    /// Whether a box may have this network.
    #[must_use]
    pub fn contains(&self, wanted: &Network) -> bool {
        self.permit(wanted).is_ok()
    }

    fn permit(&self, wanted: &Network) -> Result<(), NotAllowed> {
        let allowed = match (self, wanted) {
            (Networks::Any, _) | (_, Network::None) | (Networks::Full, Network::Full) => return Ok(()),
            (Networks::Hosts(allowed), Network::Allow(hosts))
                if hosts.iter().all(|host| is_covered(host, allowed)) =>
            {
                return Ok(());
            }
            (Networks::Full, Network::Allow(hosts)) if hosts.iter().all(|host| is_public(host)) => {
                return Ok(());
            }
            (Networks::Full, _) => {
                "none, full, and allow: with names and blocks of public addresses".to_owned()
            }
            (Networks::None, _) => "none".to_owned(),
            (Networks::Hosts(allowed), _) => format!("none, and allow: with {}", listed(allowed)),
        };
        let message = format!("the network '{wanted}' is not allowed here");
        Err(refusal(Field::Network, message, format!("allowed: {allowed}")))
    }
}

/// Whether one of these rules allows all that this one does. What cannot be understood is not covered.
fn is_covered(host: &str, allowed: &[String]) -> bool {
    let Ok(wanted) = Rule::parse(host) else { return false };
    // The host's own address is reachable for a rule that names nothing else. So a key has to name it, too.
    let allowed = allowed.iter().filter_map(|rule| Rule::parse(rule).ok());
    let mut allowed = allowed.filter(|rule| rule.is_one_address() || !wanted.is_one_address());
    allowed.any(|rule| rule.covers(&wanted))
}

/// Whether this is a part of the public internet as `full` has it, which is without QUIC.
fn is_public(host: &str) -> bool {
    Rule::parse(host).is_ok_and(|rule| !rule.is_special() && !rule.is_one_address() && !rule.is_for_quic())
}

impl Workspaces {
    fn permit(&self, workspace: &Workspace) -> Result<(), NotAllowed> {
        let Workspaces::Beneath(roots) = self else { return Ok(()) };
        let path = workspace.as_path();
        if roots.iter().any(|root| is_beneath(path, root)) {
            return Ok(());
        }
        let hint = if roots.is_empty() {
            "send the files that the code needs with the request instead".to_owned()
        } else {
            let roots: Vec<_> = roots.iter().map(|root| root.display()).collect();
            format!("workspaces are allowed under {}", listed(&roots))
        };
        let message = format!("the workspace '{}' is not allowed here", path.display());
        Err(refusal(Field::Workspace, message, hint))
    }
}

/// Compares only the text; the code that opens the path must make sure that no link leads out.
fn is_beneath(path: &Path, root: &Path) -> bool {
    path.starts_with(root) && !path.components().any(|part| part == Component::ParentDir)
}

impl Ceilings {
    /// The most time that a compiler may have. Without a maximum of its own, it is that of the program.
    #[must_use]
    pub fn of_compile_timeout(&self) -> Option<Duration> {
        self.compile_timeout.or(self.timeout)
    }

    /// The most memory that a compiler may have. Without a maximum of its own, it is that of the program.
    #[must_use]
    pub fn of_compile_memory(&self) -> Option<Bytes> {
        self.compile_memory.or(self.memory)
    }

    fn permit(&self, sandbox: &BoxLimits, execution: &ExecutionLimits) -> Result<(), NotAllowed> {
        below(Field::Timeout, execution.timeout, self.timeout, |time| show_duration(*time))?;
        if let Some(asked) = execution.cpu_time {
            below(Field::CpuTime, asked, self.cpu_time, |time| show_duration(*time))?;
        }
        below(Field::Memory, sandbox.memory, self.memory, Bytes::to_string)?;
        below(Field::Cpus, sandbox.cpus, self.cpus, Cpus::to_string)?;
        below(Field::Pids, sandbox.pids, self.pids, u32::to_string)?;
        below(Field::Disk, sandbox.disk, self.disk, Bytes::to_string)?;
        below(Field::Output, execution.output, self.output, Bytes::to_string)
    }

    fn permit_compiler(&self, limits: &CompileLimits) -> Result<(), NotAllowed> {
        let (timeout, memory) = (limits.timeout, limits.sandbox.memory);
        below(Field::CompileTimeout, timeout, self.of_compile_timeout(), |time| show_duration(*time))?;
        below(Field::CompileMemory, memory, self.of_compile_memory(), Bytes::to_string)
    }
}

fn below<T: PartialOrd>(
    field: Field,
    asked: T,
    ceiling: Option<T>,
    show: impl Fn(&T) -> String,
) -> Result<(), NotAllowed> {
    match ceiling {
        Some(ceiling) if asked > ceiling => Err(refusal(
            field,
            format!("{field} may be at most {} here, not {}", show(&ceiling), show(&asked)),
            "ask for less, or leave it out".to_owned(),
        )),
        _ => Ok(()),
    }
}

fn refusal(field: Field, message: String, hint: String) -> NotAllowed {
    NotAllowed { field, message, hint }
}

fn listed(items: &[impl fmt::Display]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LimitsRequest;
    use crate::request::{Code, ExecutionRequest, Extras, SandboxRequest, Stdin};

    fn request(limits: LimitsRequest) -> RunRequest {
        let (box_limits, limits) = limits.resolve().unwrap();
        RunRequest {
            sandbox: SandboxRequest {
                backend: BackendChoice::Auto,
                waived: Vec::new(),
                limits: box_limits,
                network: Network::None,
                secrets: Vec::new(),
                workspace: None,
                env: Vec::new(),
                image: None,
            },
            execution: ExecutionRequest {
                language: Language::by_name("python").unwrap(),
                code: Code::parse(b"1".to_vec(), None).unwrap(),
                args: Vec::new(),
                stdin: Stdin::Empty,
                files: Vec::new(),
                collect: Vec::new(),
                limits,
                extras: Extras::default(),
                allowed_imports: None,
            },
        }
    }

    fn refused(allowance: &Allowance, request: &RunRequest) -> (Field, String) {
        let refusal = allowance.permits(request).unwrap_err();
        (refusal.field, format!("{}; {}", refusal.message, refusal.hint))
    }

    #[test]
    fn everything_permits_everything() {
        let mut request = request(LimitsRequest { memory: Some(1 << 40), ..LimitsRequest::default() });
        request.sandbox.backend = BackendChoice::Named(BackendName::None);
        request.sandbox.network = Network::Full;
        request.sandbox.waived = Guarantee::ALL.to_vec();
        request.sandbox.workspace = Some(Workspace::parse(Path::new("/etc")).unwrap());
        assert_eq!(Allowance::everything().permits(&request), Ok(()));
        assert!(Allowance::boxed().permits(&request).is_err());
    }

    #[test]
    fn a_secret_has_to_be_among_those_that_are_allowed() {
        let host = |name: &str| SecretHost::parse(name).unwrap();
        let mut request = request(LimitsRequest::default());
        request.sandbox.secrets = vec![host("api.example.com")];
        let (field, text) = refused(&Allowance::boxed(), &request);
        assert_eq!(field, Field::Secrets);
        assert_eq!(
            text,
            "the secret for 'api.example.com' is not allowed here; secrets that may be used: none"
        );
        let other = Permitted::Only(vec![host("api.example.com:8443")]);
        assert!(Allowance { secrets: other, ..Allowance::boxed() }.permits(&request).is_err());
        let own = Permitted::Only(vec![host("api.example.com")]);
        assert_eq!(Allowance { secrets: own, ..Allowance::boxed() }.permits(&request), Ok(()));
    }

    #[test]
    fn a_limit_over_the_ceiling_is_refused_with_the_ceiling() {
        let ceilings = Ceilings {
            timeout: Some(Duration::from_secs(5)),
            memory: Some(Bytes::new(64 << 20)),
            ..Ceilings::default()
        };
        let allowance = Allowance { ceilings, ..Allowance::boxed() };
        let asked = LimitsRequest {
            timeout: Some(Duration::from_secs(5)),
            memory: Some(64 << 20),
            ..LimitsRequest::default()
        };
        assert_eq!(allowance.permits(&request(asked)), Ok(()));
        let asked = LimitsRequest { timeout: Some(Duration::from_secs(6)), ..asked };
        let (field, text) = refused(&allowance, &request(asked));
        assert_eq!(field, Field::Timeout);
        assert_eq!(text, "limits.timeout_ms may be at most 5s here, not 6s; ask for less, or leave it out");
    }

    #[test]
    fn a_limit_that_was_left_out_takes_the_ceiling_where_the_default_is_higher() {
        let ceilings = Ceilings {
            timeout: Some(Duration::from_secs(60)),
            cpu_time: Some(Duration::from_secs(2)),
            memory: Some(Bytes::new(64 << 20)),
            ..Ceilings::default()
        };
        let (sandbox, execution) = LimitsRequest::default().within(&ceilings).resolve().unwrap();
        assert_eq!(sandbox.memory, Bytes::new(64 << 20));
        assert_eq!(execution.timeout, Duration::from_secs(10));
        assert_eq!(execution.cpu_time, Some(Duration::from_secs(2)));
    }

    #[test]
    fn words_that_are_not_on_the_list_are_refused_with_the_list() {
        let allowance = Allowance { languages: Permitted::Only(vec!["ruby", "lua"]), ..Allowance::boxed() };
        let (field, text) = refused(&allowance, &request(LimitsRequest::default()));
        assert_eq!(field, Field::Language);
        assert_eq!(text, "the language 'python' is not allowed here; allowed: ruby, lua");
        let mut waived = request(LimitsRequest::default());
        waived.sandbox.waived = vec![Guarantee::Memory];
        assert_eq!(refused(&Allowance::boxed(), &waived).0, Field::Waive);
        let mut named = request(LimitsRequest::default());
        named.sandbox.backend = BackendChoice::Named(BackendName::Process);
        assert_eq!(refused(&Allowance::boxed(), &named).0, Field::Backend);
    }

    #[test]
    fn a_network_is_allowed_whole_or_host_by_host() {
        let mut asks = request(LimitsRequest::default());
        let hosts = Networks::Hosts(vec!["example.org".into(), "api.example.org:443".into()]);
        let some = Allowance { networks: hosts, ..Allowance::boxed() };
        let none = Allowance { networks: Networks::None, ..Allowance::boxed() };
        assert_eq!(none.permits(&asks), Ok(()));
        asks.sandbox.network = Network::parse("allow:example.org").unwrap();
        assert_eq!(some.permits(&asks), Ok(()));
        assert_eq!(refused(&none, &asks).0, Field::Network);
        asks.sandbox.network = Network::parse("allow:example.org,evil.org").unwrap();
        assert_eq!(refused(&some, &asks).0, Field::Network);
        asks.sandbox.network = Network::Full;
        assert_eq!(refused(&some, &asks).0, Field::Network);
        let full = Allowance { networks: Networks::Full, ..Allowance::boxed() };
        assert_eq!(full.permits(&asks), Ok(()));
        let mut permits = |allowance: &Allowance, network: &str| {
            asks.sandbox.network = Network::parse(network).unwrap();
            allowance.permits(&asks).is_ok()
        };
        assert!(permits(&some, "allow:example.org:443") && !permits(&some, "allow:api.example.org"));
        assert!(permits(&full, "allow:example.org,93.184.216.0/24,0.0.0.0/0"));
        assert!(!permits(&full, "allow:93.184.216.34"), "it may be the host's own");
        assert!(permits(&full, "allow:example.org:53/udp"));
        assert!(!permits(&full, "allow:example.org:443/udp"), "the public internet is without QUIC");
        assert!(!permits(&full, "allow:0.0.0.0/0:1-65535/udp"), "the same");
        let hosts = |hosts: &[&str]| Allowance {
            networks: Networks::Hosts(hosts.iter().map(|host| (*host).to_owned()).collect()),
            ..Allowance::boxed()
        };
        assert!(!permits(&hosts(&["93.184.216.0/24"]), "allow:93.184.216.34:80"), "the same");
        assert!(permits(&hosts(&["93.184.216.0/24"]), "allow:93.184.216.34/31:80"), "a block never is");
        assert!(permits(&hosts(&["93.184.216.34"]), "allow:93.184.216.34:80"), "the key names it");
        assert!(permits(&hosts(&["a.org:443/udp"]), "allow:a.org:443/udp"));
        assert!(!permits(&hosts(&["a.org:443", "*.org"]), "allow:a.org:443/udp"), "QUIC has to be named");
        for private in ["allow:10.0.0.1", "allow:example.org,169.254.169.254", "allow:fd00::/8"] {
            assert!(!permits(&full, private), "{private}: no part of the public internet");
            assert!(permits(&Allowance::everything(), private), "{private}: the control");
        }
    }

    #[test]
    fn a_workspace_lies_beneath_a_root() {
        let roots = Workspaces::Beneath(vec!["/srv/projects".into()]);
        let allowance = Allowance { workspaces: roots, ..Allowance::boxed() };
        let mut asks = request(LimitsRequest::default());
        for (path, allowed) in [
            ("/srv/projects", true),
            ("/srv/projects/a", true),
            ("/srv/projects-other", false),
            ("/srv/projects/../secret", false),
            ("/etc", false),
        ] {
            asks.sandbox.workspace = Some(Workspace::parse(Path::new(path)).unwrap());
            assert_eq!(allowance.permits(&asks).is_ok(), allowed, "{path}");
        }
    }
}
