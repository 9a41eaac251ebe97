//! The settings in effect: an option beats the environment, which beats `belljar.toml`, which beats the default.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_core::language::Language;
use belljar_core::limits::{Bytes, parse_duration};
use belljar_core::request::{BackendChoice, BackendName, Network, parse_waivers};
use belljar_core::{Field, Invalid};
use belljar_engine::Scanning;
use belljar_native::{NetworkSettings, Runtime};
use belljar_server::{Defaults, mcp};
use belljar_wire::{Code, Limits, Problem};
use serde::Deserialize;

use crate::approvals::configured::ApprovalsTable;
use crate::args::Choices;
use crate::audit::configured::AuditTable;
use crate::configuration::{Configuration, FolderFile, to_write, users_file};
use crate::docker::{DockerChoices, DockerTable};
use crate::egress::EgressTable;
use crate::folder::{Restriction, refuse_other_keys};
use crate::malformed::malformed_file;
use crate::policy::table::{Policies, PolicyFile, PolicyTable};
use crate::secrets::{self, SecretTable};
use crate::serve::pool::PoolTable;
use crate::serve::tables::{KeyTable, ServerTable};

/// Reads an environment variable: that of the process, or of a test.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The settings in effect. Every text here has been parsed; the request checks whether it is in range.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) backend: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) network: Option<String>,
    /// The language of code that does not tell its own.
    pub(crate) language: Option<Language>,
    /// The image that `--image` names. One from elsewhere is a setting of the backends that take images.
    pub(crate) image: Option<String>,
    pub(crate) waive: Vec<String>,
    pub(crate) mcp: mcp::Config,
    /// The directories that a call to `belljar mcp` may show to its code.
    pub(crate) workspace_roots: Vec<PathBuf>,
    pub(crate) host: Host,
    pub(crate) server: ServerTable,
    pub(crate) keys: Vec<KeyTable>,
    pub(crate) pool: PoolTable,
    pub(crate) scan: ScanTable,
    pub(crate) audit: AuditTable,
    pub(crate) policies: Policies,
    /// If it is there, runs can wait for approval.
    pub(crate) approvals: Option<ApprovalsTable>,
    /// The configuration file, as messages name it.
    pub(crate) config: String,
    /// The file in which a setting would be changed: that one, or the user's if there is none.
    pub(crate) config_to_write: String,
    pub(crate) origins: Origins,
}

/// Where a value was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(&'static str),
    Variable(&'static str),
    /// The configuration in the working directory.
    Folder,
    File,
    Default,
}

/// Where each setting that has an option or a variable was written, by its key in `belljar.toml`.
#[derive(Debug, Default)]
pub(crate) struct Origins(Vec<(&'static str, Origin)>);

impl Origins {
    fn note(&mut self, key: &'static str, given: Option<&Given>) {
        self.0.push((key, given.map_or(Origin::Default, |given| given.origin)));
    }

    pub(crate) fn replace(&mut self, key: &'static str, origin: Origin) {
        self.0.retain(|(known, _)| *known != key);
        self.0.push((key, origin));
    }

    pub(crate) fn of(&self, key: &str) -> Option<Origin> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, origin)| *origin)
    }

    /// Whether an option or a variable sets it.
    pub(crate) fn is_of_the_caller(&self, key: &str) -> bool {
        match self.of(key) {
            Some(Origin::Flag(_) | Origin::Variable(_)) => true,
            Some(Origin::Folder | Origin::File | Origin::Default) | None => false,
        }
    }
}

/// What a setting is called in each of the three places.
struct Names {
    key: &'static str,
    flag: &'static str,
    variable: &'static str,
}

const fn names(key: &'static str, flag: &'static str, variable: &'static str) -> Names {
    Names { key, flag, variable }
}

/// A setting that no option of `run` sets.
const fn names_without_flag(key: &'static str, variable: &'static str) -> Names {
    Names { key, flag: "", variable }
}

const BACKEND: Names = names("backend", "--backend", "BELLJAR_BACKEND");
/// A second variable for the backend, which other tools set, too.
const SANDBOX_VARIABLE: &str = "CODE_EXEC_SANDBOX";
const NETWORK: Names = names("network", "--network", "BELLJAR_NETWORK");
const LANGUAGE: Names = names("language", "--language", "BELLJAR_LANGUAGE");
const IMAGE: Names = names("image", "--image", "BELLJAR_IMAGE");
const WAIVE: Names = names("waive", "--waive", "BELLJAR_WAIVE");
const TIMEOUT: Names = names("limits.timeout", "--timeout", "BELLJAR_TIMEOUT");
const COMPILE_TIMEOUT: Names =
    names("limits.compile-timeout", "--compile-timeout", "BELLJAR_COMPILE_TIMEOUT");
const CPU_TIME: Names = names("limits.cpu-time", "--cpu-time", "BELLJAR_CPU_TIME");
const MEMORY: Names = names("limits.memory", "--memory", "BELLJAR_MEMORY");
const COMPILE_MEMORY: Names = names("limits.compile-memory", "--compile-memory", "BELLJAR_COMPILE_MEMORY");
const CPUS: Names = names("limits.cpus", "--cpus", "BELLJAR_CPUS");
const PIDS: Names = names("limits.pids", "--pids", "BELLJAR_PIDS");
const DISK: Names = names("limits.disk", "--disk", "BELLJAR_DISK");
const OUTPUT_LIMIT: Names = names("limits.output-limit", "--output-limit", "BELLJAR_OUTPUT_LIMIT");
const DOCKER_RUNTIME: Names = names("docker.runtime", "--runtime", "BELLJAR_DOCKER_RUNTIME");
const DOCKER_HOST: &str = "DOCKER_HOST";
const TOOL_NAME: Names = names_without_flag("mcp.tool-name", "BELLJAR_MCP_TOOL_NAME");
const ANSWER_WITHIN: Names = names_without_flag("mcp.answer-within", "BELLJAR_MCP_ANSWER_WITHIN");
const MAX_TEXT: Names = names_without_flag("mcp.max-text", "BELLJAR_MCP_MAX_TEXT");
const WORKSPACE_ROOTS: Names = names_without_flag("mcp.workspace-roots", "BELLJAR_MCP_WORKSPACE_ROOTS");

/// What a backend needs to know about this host and its user.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) search_path: OsString,
    pub(crate) home: Option<PathBuf>,
    pub(crate) runtime_dir: Option<PathBuf>,
    pub(crate) state_dir: Option<PathBuf>,
    /// Where the modules of the wasm backend are, in a directory of their own.
    pub(crate) wasm_dir: Option<PathBuf>,
    pub(crate) temp_dir: PathBuf,
    /// How many boxes of crashed servers were removed already.
    pub(crate) swept: usize,
    pub(crate) runtimes: Vec<(Language, PathBuf)>,
    /// Runtimes that were found before the server gave up root's rights.
    pub(crate) found_runtimes: Vec<(Language, Runtime)>,
    pub(crate) docker: DockerChoices,
    /// What the networks of all boxes have in common.
    pub(crate) network: NetworkSettings,
}

impl Settings {
    /// Combines options, environment and configuration.
    pub(crate) fn gather(
        flags: &Choices,
        config: Option<&Path>,
        environment: Environment<'_>,
    ) -> Result<Settings, Problem> {
        let choose = || Configuration::choose(config, environment);
        Settings::gather_with(flags, &choose, &FolderFile::Absent, environment)
    }

    /// The same, with a configuration that the caller has chosen, and with that of the working directory.
    pub(crate) fn gather_with(
        flags: &Choices,
        choose: &dyn Fn() -> Result<Configuration, Problem>,
        folder: &FolderFile,
        environment: Environment<'_>,
    ) -> Result<Settings, Problem> {
        let Configuration { path, text } = choose()?;
        let config_to_write = to_write(&path, text.is_some(), environment);
        let text = text.unwrap_or_default();
        let mut file = parse(&path, &text)?;
        let shown = path.display().to_string();
        let of_keys = file.keys.iter().map(KeyTable::policy);
        let policies = Policies::read(&file.policy, of_keys, PolicyFile { path: &shown, text: &text })?;
        let mut sources = Sources { environment, config: &shown, origins: Origins::default() };
        let mut network = file.egress.read(&shown)?;
        network.secrets = secrets::read(file.secrets, &shown, environment)?;
        let backend = sources.backend(flags, file.backend)?;
        let mut docker = sources.docker(flags.runtime.as_deref(), file.docker)?;
        docker.default_image =
            sources.pick(&IMAGE, flags.image.as_deref(), file.image)?.map(|given| given.text);
        docker.preferred = backend.as_ref().is_some_and(|given| given.text == "docker");
        let mut settings = Settings {
            backend: understood(backend, |text| BackendChoice::parse(text).map(drop))?,
            network: sources.network(flags.network.as_deref(), file.network)?,
            language: sources.language(file.language)?,
            image: flags.image.clone(),
            waive: sources.waivers(&flags.waive, file.waive)?,
            limits: sources.limits(flags, file.limits)?,
            workspace_roots: sources.workspace_roots(file.mcp.workspace_roots.take())?,
            mcp: sources.mcp(file.mcp)?,
            host: Host { docker, network, ..host(environment, runtimes(file.runtimes, &shown)?) },
            server: file.server,
            keys: file.keys,
            pool: file.pool,
            scan: file.scan,
            audit: file.audit,
            policies,
            approvals: file.approvals,
            config: shown.clone(),
            config_to_write,
            origins: sources.origins,
        };
        if let FolderFile::Read(Configuration { path, text: Some(text) }) = folder {
            settings.restrict(path, text, users_file(environment).as_deref())?;
        }
        Ok(settings)
    }

    /// Applies the configuration of the working directory.
    fn restrict(&mut self, path: &Path, text: &str, users_file: Option<&Path>) -> Result<(), Problem> {
        let ConfigFile { language, network, limits, .. } = parse(path, text)?;
        refuse_other_keys(
            &toml::from_str(text).map_err(|fault| malformed_file(path, text, &fault))?,
            users_file,
        )?;
        let shown = path.display().to_string();
        let mut folder = Sources { environment: &|_| None, config: &shown, origins: Origins::default() };
        let (language, network) = (folder.language(language)?, folder.network(None, network)?);
        let limits = folder.limits(&Choices::default(), limits)?;
        let mut restriction = Restriction { origins: &mut self.origins, users_file };
        self.language = restriction.language(self.language, language);
        self.network = restriction.network(self.network.take(), network)?;
        self.limits = restriction.limits(self.limits, limits)?;
        Ok(())
    }

    /// Whether a run can use the native backend.
    pub(crate) fn may_be_native(&self) -> bool {
        let backend = self.backend.as_deref().unwrap_or("auto");
        backend == BackendName::Native.name() || (backend == "auto" && self.image.is_none())
    }

    /// What a request gets if it does not say otherwise.
    pub(crate) fn defaults(&self) -> Defaults {
        Defaults {
            backend: self.backend.clone(),
            network: self.network.clone(),
            image: self.image.clone(),
            waive: self.waive.clone(),
            limits: self.limits,
        }
    }
}

/// A text and where it was written, so that a message about it can say so.
#[derive(Debug)]
struct Given {
    text: String,
    origin: Origin,
    /// The origin in words.
    place: String,
}

struct Sources<'a> {
    environment: Environment<'a>,
    config: &'a str,
    origins: Origins,
}

impl Sources<'_> {
    /// The value of a setting from the first source that has it.
    fn pick(
        &mut self,
        names: &Names,
        flag: Option<&str>,
        file: Option<impl Into<String>>,
    ) -> Result<Option<Given>, Problem> {
        let given = match flag {
            Some(text) => Some(from_flag(names, text)),
            None => self.variable(names.variable)?.or_else(|| self.in_file(names, file)),
        };
        self.origins.note(names.key, given.as_ref());
        Ok(given)
    }

    fn in_file(&self, names: &Names, text: Option<impl Into<String>>) -> Option<Given> {
        let place = format!("{} in {}", names.key, self.config);
        text.map(|text| Given { text: text.into(), origin: Origin::File, place })
    }

    /// The backend has a second variable, which stands between the first and the file. `--runtime` chooses the docker
    /// backend, too: no other one takes it.
    fn backend(&mut self, flags: &Choices, file: Option<String>) -> Result<Option<Given>, Problem> {
        let given = match flags.backend.as_deref() {
            Some(text) => Some(from_flag(&BACKEND, text)),
            None => match self.variable(BACKEND.variable)? {
                Some(given) => Some(given),
                None => self.variable(SANDBOX_VARIABLE)?.or_else(|| self.in_file(&BACKEND, file)),
            },
        };
        let given = match &flags.runtime {
            Some(runtime) => Some(with_runtime(given, runtime)?),
            None => given,
        };
        self.origins.note(BACKEND.key, given.as_ref());
        Ok(given)
    }

    fn docker(&mut self, flag: Option<&str>, file: DockerTable) -> Result<DockerChoices, Problem> {
        let mut choices = DockerChoices::read(file, self.config)?;
        choices.runtime = self.pick(&DOCKER_RUNTIME, flag, choices.runtime.take())?.map(|given| given.text);
        let host = self.variable(DOCKER_HOST)?;
        self.origins.note("docker.host", host.as_ref());
        choices.host = host.map(|given| given.text);
        Ok(choices)
    }

    fn network(&mut self, flag: Option<&str>, file: Option<String>) -> Result<Option<String>, Problem> {
        understood(self.pick(&NETWORK, flag, file)?, |text| Network::parse(text).map(drop))
    }

    /// `--language` is not among the choices: what the code itself tells comes before what is set elsewhere.
    fn language(&mut self, file: Option<String>) -> Result<Option<Language>, Problem> {
        let Some(Given { text, place, .. }) = self.pick(&LANGUAGE, None, file)? else { return Ok(None) };
        Language::parse(&text).map(Some).map_err(|invalid| blame(&place, invalid))
    }

    fn limits(&mut self, flags: &Choices, file: LimitsTable) -> Result<Limits, Problem> {
        let timeout = self.pick(&TIMEOUT, flags.timeout.as_deref(), file.timeout)?;
        let compile_timeout =
            self.pick(&COMPILE_TIMEOUT, flags.compile_timeout.as_deref(), file.compile_timeout)?;
        let compile_memory =
            self.pick(&COMPILE_MEMORY, flags.compile_memory.as_deref(), file.compile_memory)?;
        let cpu_time = self.pick(&CPU_TIME, flags.cpu_time.as_deref(), file.cpu_time)?;
        let memory = self.pick(&MEMORY, flags.memory.as_deref(), file.memory)?;
        let disk = self.pick(&DISK, flags.disk.as_deref(), file.disk)?;
        let output = self.pick(&OUTPUT_LIMIT, flags.output_limit.as_deref(), file.output_limit)?;
        Ok(Limits {
            timeout_ms: millis(timeout, Field::Timeout)?,
            compile_timeout_ms: millis(compile_timeout, Field::CompileTimeout)?,
            compile_memory_bytes: bytes(compile_memory, Field::CompileMemory)?,
            cpu_ms: millis(cpu_time, Field::CpuTime)?,
            memory_bytes: bytes(memory, Field::Memory)?,
            cpus: cpus(self.pick(&CPUS, flags.cpus.as_deref(), file.cpus)?)?,
            pids: count(self.pick(&PIDS, flags.pids.as_deref(), file.pids)?)?,
            disk_bytes: bytes(disk, Field::Disk)?,
            output_bytes: bytes(output, Field::Output)?,
        })
    }

    /// A variable of the environment; an empty one counts as not set.
    fn variable(&self, name: &'static str) -> Result<Option<Given>, Problem> {
        let Some(value) = (self.environment)(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        let text = value.into_string().map_err(|_| {
            let message = format!("the environment variable {name} is not valid UTF-8");
            Problem::new(Code::InvalidRequest, message, "set it to text")
        })?;
        Ok(Some(Given { text, origin: Origin::Variable(name), place: name.to_owned() }))
    }

    /// The settings of MCP; what is not set keeps its default.
    fn mcp(&mut self, table: McpTable) -> Result<mcp::Config, Problem> {
        let mut config = mcp::Config::default();
        if let Some(given) = self.pick(&TOOL_NAME, None, table.tool_name)? {
            config.tool_name = tool_name(&given)?;
        }
        if let Some(given) = self.pick(&ANSWER_WITHIN, None, table.answer_within)? {
            config.answer_within = answer_time(&given.text)
                .map_err(|fault| unfit(&given, &fault, "a time from 100ms to 10m"))?;
        }
        if let Some(given) = self.pick(&MAX_TEXT, None, table.max_text)? {
            config.max_text = text_size(&given.text).ok_or_else(|| {
                unfit(&given, "not a number of characters", "a number from 1000 to 1000000")
            })?;
        }
        Ok(config)
    }

    /// In the variable, they are separated by colons, as in `PATH`.
    fn workspace_roots(&mut self, file: Option<Vec<String>>) -> Result<Vec<PathBuf>, Problem> {
        let file = file.filter(|roots| !roots.is_empty()).map(|roots| roots.join(":"));
        let Some(given) = self.pick(&WORKSPACE_ROOTS, None, file)? else { return Ok(Vec::new()) };
        let roots: Vec<PathBuf> = given.text.split(':').map(PathBuf::from).collect();
        match roots.iter().find(|root| !root.is_absolute()) {
            None => Ok(roots),
            Some(root) => {
                let message = format!("{}: '{}' is not an absolute path", given.place, root.display());
                let hint = "write absolute paths, such as workspace-roots = [\"/home/me/project\"]";
                Err(Problem::new(Code::InvalidRequest, message, hint))
            }
        }
    }

    /// Waivers do not add up across sources: a list on the command line is the whole list.
    fn waivers(&mut self, flags: &[String], file: Option<Vec<String>>) -> Result<Vec<String>, Problem> {
        let flag = (!flags.is_empty()).then(|| flags.join(","));
        let file = file.filter(|words| !words.is_empty()).map(|words| words.join(","));
        let Some(Given { text, place, .. }) = self.pick(&WAIVE, flag.as_deref(), file)? else {
            return Ok(Vec::new());
        };
        let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
        parse_waivers(&words).map_err(|invalid| blame(&place, invalid))?;
        Ok(words)
    }
}

fn from_flag(names: &Names, text: &str) -> Given {
    Given { text: text.to_owned(), origin: Origin::Flag(names.flag), place: names.flag.to_owned() }
}

/// The backend for a run with this Docker runtime.
fn with_runtime(backend: Option<Given>, runtime: &str) -> Result<Given, Problem> {
    let docker = BackendName::Docker.name();
    match backend {
        Some(given) if given.text == docker => Ok(given),
        Some(Given { text, .. }) if text != "auto" => {
            let message = format!("the {text} backend takes no Docker runtime, but '{runtime}' is named");
            let hint = "leave --runtime out, or write --backend docker";
            Err(Problem::new(Code::InvalidRequest, message, hint).at(Field::Runtime))
        }
        Some(_) | None => Ok(Given { text: docker.to_owned(), ..from_flag(&DOCKER_RUNTIME, runtime) }),
    }
}

fn understood(
    given: Option<Given>,
    check: impl FnOnce(&str) -> Result<(), Invalid>,
) -> Result<Option<String>, Problem> {
    let Some(Given { text, place, .. }) = given else { return Ok(None) };
    check(&text).map_err(|invalid| blame(&place, invalid))?;
    Ok(Some(text))
}

/// Says where a value comes from, unless that is an option on the command line.
fn blame(place: &str, mut invalid: Invalid) -> Problem {
    if !place.starts_with("--") {
        invalid.message = format!("{place}: {}", invalid.message);
    }
    invalid.into()
}

fn tool_name(given: &Given) -> Result<mcp::ToolName, Problem> {
    mcp::ToolName::parse(&given.text).map_err(|mut problem| {
        problem.error.message = format!("{}: {}", given.place, problem.error.message);
        problem
    })
}

fn answer_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|fault| fault.to_string())?;
    let sensible = Duration::from_millis(100)..=Duration::from_secs(600);
    if sensible.contains(&time) { Ok(time) } else { Err("out of range".to_owned()) }
}

fn text_size(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|size| (1000..=1_000_000).contains(size))
}

fn unfit(given: &Given, fault: &str, wanted: &str) -> Problem {
    let message = format!("{}: '{}' is not valid: {fault}", given.place, given.text.escape_debug());
    Problem::new(Code::InvalidRequest, message, format!("write {wanted}"))
}

fn malformed(given: &Given, field: Field, fault: impl std::fmt::Display, example: &str) -> Problem {
    let message = format!("{}: {fault}", given.place);
    Problem::new(Code::InvalidRequest, message, format!("write a value such as {example}")).at(field)
}

fn millis(given: Option<Given>, field: Field) -> Result<Option<u64>, Problem> {
    let Some(given) = given else { return Ok(None) };
    let time =
        parse_duration(&given.text).map_err(|fault| malformed(&given, field, fault, "500ms or 30s"))?;
    Ok(Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}

fn bytes(given: Option<Given>, field: Field) -> Result<Option<u64>, Problem> {
    let Some(given) = given else { return Ok(None) };
    let size =
        Bytes::parse(&given.text).map_err(|fault| malformed(&given, field, fault, "512K, 64M or 1G"))?;
    Ok(Some(size.get()))
}

fn cpus(given: Option<Given>) -> Result<Option<f64>, Problem> {
    let Some(given) = given else { return Ok(None) };
    let fault = format!("'{}' is not a number of CPUs", given.text.escape_debug());
    given.text.trim().parse().map(Some).map_err(|_| malformed(&given, Field::Cpus, fault, "0.5 or 2"))
}

fn count(given: Option<Given>) -> Result<Option<u64>, Problem> {
    let Some(given) = given else { return Ok(None) };
    let fault = format!("'{}' is not a number of processes", given.text.escape_debug());
    let number: u128 = given.text.trim().parse().map_err(|_| malformed(&given, Field::Pids, fault, "50"))?;
    Ok(Some(u64::try_from(number).unwrap_or(u64::MAX)))
}

/// `belljar.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConfigFile {
    backend: Option<String>,
    language: Option<String>,
    network: Option<String>,
    image: Option<String>,
    waive: Option<Vec<String>>,
    limits: LimitsTable,
    runtimes: BTreeMap<String, PathBuf>,
    mcp: McpTable,
    server: ServerTable,
    keys: Vec<KeyTable>,
    pool: PoolTable,
    scan: ScanTable,
    audit: AuditTable,
    approvals: Option<ApprovalsTable>,
    docker: DockerTable,
    policy: PolicyTable,
    egress: EgressTable,
    secrets: BTreeMap<String, SecretTable>,
}

/// The table `[scan]`.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScanTable {
    /// Whether the code of every run is scanned.
    enabled: bool,
}

impl ScanTable {
    pub(crate) fn scanning(self) -> Scanning {
        if self.enabled { Scanning::EveryRun } else { Scanning::OnRequest }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct McpTable {
    tool_name: Option<String>,
    answer_within: Option<Scalar>,
    max_text: Option<Scalar>,
    workspace_roots: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct LimitsTable {
    pub(crate) timeout: Option<Scalar>,
    pub(crate) compile_timeout: Option<Scalar>,
    pub(crate) cpu_time: Option<Scalar>,
    pub(crate) memory: Option<Scalar>,
    pub(crate) compile_memory: Option<Scalar>,
    pub(crate) cpus: Option<Scalar>,
    pub(crate) pids: Option<Scalar>,
    pub(crate) disk: Option<Scalar>,
    pub(crate) output_limit: Option<Scalar>,
}

/// A value as text; a number may be written as one.
#[derive(Debug, Deserialize)]
#[serde(from = "Written")]
pub(crate) struct Scalar(pub(crate) String);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a number")]
enum Written {
    Text(String),
    Whole(i64),
    Real(f64),
}

impl From<Written> for Scalar {
    fn from(written: Written) -> Scalar {
        Scalar(match written {
            Written::Text(text) => text,
            Written::Whole(number) => number.to_string(),
            Written::Real(number) => number.to_string(),
        })
    }
}

impl From<Scalar> for String {
    fn from(scalar: Scalar) -> String {
        scalar.0
    }
}

/// Where a system service, which has no home, keeps its state.
const SERVICE_STATE: &str = "/var/lib/belljar";

pub(crate) fn parse(path: &Path, text: &str) -> Result<ConfigFile, Problem> {
    toml::from_str(text).map_err(|fault| malformed_file(path, text, &fault))
}

fn runtimes(table: BTreeMap<String, PathBuf>, config: &str) -> Result<Vec<(Language, PathBuf)>, Problem> {
    let mut runtimes = Vec::with_capacity(table.len());
    for (name, path) in table {
        let origin = format!("runtimes in {config}");
        let language = Language::parse(&name).map_err(|invalid| blame(&origin, invalid))?;
        if !path.is_absolute() {
            let message = format!("{origin}: '{}' is not an absolute path", path.display());
            let hint = format!("write an absolute path such as {name} = \"/usr/bin/{name}\"");
            return Err(Problem::new(Code::InvalidRequest, message, hint));
        }
        runtimes.push((language, path));
    }
    Ok(runtimes)
}

fn host(environment: Environment<'_>, runtimes: Vec<(Language, PathBuf)>) -> Host {
    let state_dir = Some(state_directory(environment));
    Host {
        search_path: environment("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
        home: absolute(environment("HOME")),
        runtime_dir: absolute(environment("XDG_RUNTIME_DIR")),
        wasm_dir: state_dir.clone(),
        state_dir,
        temp_dir: absolute(environment("TMPDIR")).unwrap_or_else(|| PathBuf::from("/tmp")),
        swept: 0,
        runtimes,
        found_runtimes: Vec::new(),
        docker: DockerChoices::default(),
        network: NetworkSettings::default(),
    }
}

/// Where state is kept.
pub(crate) fn state_directory(environment: Environment<'_>) -> PathBuf {
    absolute(environment("BELLJAR_STATE_DIR"))
        .or_else(|| user_directory(environment, "XDG_STATE_HOME", ".local/state"))
        .unwrap_or_else(|| PathBuf::from(SERVICE_STATE))
}

/// Belljar's directory among the user's. The XDG base directory specification says to ignore a relative path in
/// the variable.
pub(crate) fn user_directory(
    environment: Environment<'_>,
    variable: &str,
    beneath_home: &str,
) -> Option<PathBuf> {
    let base = absolute(environment(variable))
        .or_else(|| absolute(environment("HOME")).map(|home| home.join(beneath_home)))?;
    Some(base.join("belljar"))
}

fn absolute(path: Option<OsString>) -> Option<PathBuf> {
    path.map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::FILE_NAME;

    struct Case {
        folder: tempfile::TempDir,
        variables: BTreeMap<&'static str, OsString>,
    }

    impl Case {
        fn new() -> Case {
            Case { folder: tempfile::tempdir().unwrap(), variables: BTreeMap::new() }
        }

        fn set(mut self, name: &'static str, value: &str) -> Case {
            self.variables.insert(name, value.into());
            self
        }

        fn gather(&self, flags: &Choices, toml: &str) -> Result<Settings, Problem> {
            let config = self.folder.path().join(FILE_NAME);
            std::fs::write(&config, toml).unwrap();
            Settings::gather(flags, Some(&config), &|name| self.variables.get(name).cloned())
        }

        fn refusal(&self, flags: &Choices, toml: &str) -> String {
            let message = self.gather(flags, toml).unwrap_err().error.message;
            message.replace(self.folder.path().to_str().unwrap(), "DIR")
        }
    }

    #[test]
    fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
        let toml = "[limits]\ntimeout = \"3s\"\nmemory = \"3M\"\ncpus = 0.5\npids = 7";
        let case =
            Case::new().set("BELLJAR_TIMEOUT", "2s").set("BELLJAR_MEMORY", "2M").set("BELLJAR_PIDS", "");
        let flags = Choices { timeout: Some("1s".into()), ..Choices::default() };
        let limits = case.gather(&flags, toml).unwrap().limits;
        assert_eq!(limits.timeout_ms, Some(1000));
        assert_eq!(limits.memory_bytes, Some(2 << 20));
        assert_eq!(limits.cpus, Some(0.5));
        assert_eq!(limits.pids, Some(7));
        assert_eq!(limits.disk_bytes, None);
    }

    #[test]
    fn every_key_of_the_file_is_understood() {
        let toml = r#"
            backend = "native"
            network = "none"
            image = "alpine:3.20"
            waive = ["memory", "pids"]
            [limits]
            timeout = "10s"
            cpu-time = 5
            memory = 268435456
            cpus = "1.5"
            pids = "50"
            disk = "64M"
            output-limit = "1M"
            [runtimes]
            python = "/usr/bin/python3"
            js = "/opt/node/bin/node"
        "#;
        let settings = Case::new().gather(&Choices::default(), toml).unwrap();
        assert_eq!(settings.limits.cpu_ms, Some(5000));
        assert_eq!(settings.limits.memory_bytes, Some(256 << 20));
        assert_eq!(settings.limits.output_bytes, Some(1 << 20));
        assert_eq!(settings.waive, ["memory", "pids"]);
        assert_eq!(settings.host.docker.default_image.as_deref(), Some("alpine:3.20"));
        assert_eq!(settings.host.runtimes[0].0.name, "javascript");
        assert_eq!(settings.host.runtimes[1].1, Path::new("/usr/bin/python3"));
    }

    #[test]
    fn only_the_option_demands_an_image() {
        let images = |flag: Option<&str>, case: Case, toml: &str| {
            let flags = Choices { image: flag.map(str::to_owned), ..Choices::default() };
            let settings = case.gather(&flags, toml).unwrap();
            (settings.may_be_native(), settings.image, settings.host.docker.default_image)
        };
        let some = |image: &str| Some(image.to_owned());
        let toml = "image = \"file:1\"";
        assert_eq!(images(None, Case::new(), toml), (true, None, some("file:1")));
        let variable = || Case::new().set("BELLJAR_IMAGE", "variable:1");
        assert_eq!(images(None, variable(), toml), (true, None, some("variable:1")));
        assert_eq!(images(Some("flag:1"), variable(), toml), (false, some("flag:1"), some("flag:1")));
    }

    #[test]
    fn the_option_for_a_runtime_means_docker() {
        let runtime = || Choices { runtime: Some("runsc".into()), ..Choices::default() };
        let backend = |flags: &Choices, toml: &str| Case::new().gather(flags, toml).unwrap().backend;
        assert_eq!(backend(&runtime(), "").as_deref(), Some("docker"));
        assert_eq!(backend(&runtime(), "backend = \"auto\"").as_deref(), Some("docker"));
        assert_eq!(backend(&runtime(), "backend = \"docker\"").as_deref(), Some("docker"));
        assert_eq!(backend(&Choices::default(), "[docker]\nruntime = \"runsc\""), None, "a setting");
        for name in ["native", "process", "none", "wasm"] {
            let flags = Choices { backend: Some(name.into()), ..runtime() };
            let problem = Case::new().gather(&flags, "").unwrap_err();
            let said = format!("the {name} backend takes no Docker runtime, but 'runsc' is named");
            assert_eq!((problem.error.message, problem.error.field.as_deref()), (said, Some("runtime")));
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_name_and_file() {
        let case = Case::new();
        let top = case.refusal(&Choices::default(), "backend = \"native\"\ntiemout = 3");
        assert!(top.starts_with("DIR/belljar.toml:2: unknown field `tiemout`"), "{top}");
        let nested = case.refusal(&Choices::default(), "[limits]\n\nram = 3");
        assert!(nested.starts_with("DIR/belljar.toml:3: unknown field `ram`"), "{nested}");
        let runtime = case.refusal(&Choices::default(), "[runtimes]\npyhton = \"/x\"");
        assert_eq!(runtime, "runtimes in DIR/belljar.toml: unknown language 'pyhton'");
        let relative = case.refusal(&Choices::default(), "[runtimes]\npython = \"bin/python\"");
        assert_eq!(relative, "runtimes in DIR/belljar.toml: 'bin/python' is not an absolute path");
        assert!(case.refusal(&Choices::default(), "= 3").starts_with("DIR/belljar.toml:1: "));
    }

    #[test]
    fn a_value_that_is_not_understood_is_blamed_on_its_source() {
        let flags = Choices { memory: Some("lots".into()), ..Choices::default() };
        let said = "--memory: 'lots' is not a size such as 512K, 64M or 1G";
        assert_eq!(Case::new().refusal(&flags, ""), said);
        let case = Case::new().set("BELLJAR_CPU_TIME", "fast");
        let said = "BELLJAR_CPU_TIME: 'fast' is not a duration such as 500ms, 10s or 2m";
        assert_eq!(case.refusal(&Choices::default(), ""), said);
        let said = "limits.cpus in DIR/belljar.toml: 'many' is not a number of CPUs";
        assert_eq!(Case::new().refusal(&Choices::default(), "[limits]\ncpus = 'many'"), said);
        let flags = Choices { pids: Some("1.5".into()), ..Choices::default() };
        assert_eq!(Case::new().refusal(&flags, ""), "--pids: '1.5' is not a number of processes");
        let flags = Choices { backend: Some("podman".into()), ..Choices::default() };
        assert_eq!(Case::new().refusal(&flags, ""), "unknown backend 'podman'");
        let case = Case::new().set("BELLJAR_NETWORK", "lan");
        assert_eq!(case.refusal(&Choices::default(), ""), "BELLJAR_NETWORK: 'lan' is not a network");
        let case = Case::new().set("BELLJAR_WAIVE", "memory,all");
        assert_eq!(case.refusal(&Choices::default(), ""), "BELLJAR_WAIVE: 'all' is not a guarantee");
    }

    #[test]
    fn a_limit_of_ten_to_the_twenty_is_left_to_the_range_check() {
        let huge = || Some("100000000000000000000".to_owned());
        let flags = Choices { memory: huge(), pids: huge(), timeout: huge(), ..Choices::default() };
        let limits = Case::new().gather(&flags, "").unwrap().limits;
        assert_eq!((limits.memory_bytes, limits.pids), (Some(u64::MAX), Some(u64::MAX)));
        assert_eq!(limits.timeout_ms, Some(u64::MAX));
    }

    #[test]
    fn code_exec_sandbox_is_an_alias_that_comes_second() {
        let case = Case::new().set("CODE_EXEC_SANDBOX", "docker");
        let chosen = case.gather(&Choices::default(), "").unwrap().backend;
        assert_eq!(chosen.as_deref(), Some("docker"));
        let over_the_file = case.gather(&Choices::default(), "backend = \"wasm\"").unwrap().backend;
        assert_eq!(over_the_file.as_deref(), Some("docker"));
        let case = case.set("BELLJAR_BACKEND", "native");
        let chosen = case.gather(&Choices::default(), "").unwrap().backend;
        assert_eq!(chosen.as_deref(), Some("native"));
        let wrong = Case::new().set("CODE_EXEC_SANDBOX", "chroot");
        assert_eq!(wrong.refusal(&Choices::default(), ""), "CODE_EXEC_SANDBOX: unknown backend 'chroot'");
    }

    #[test]
    fn waivers_of_the_command_line_replace_those_of_the_file() {
        let flags = Choices { waive: vec!["cpu".into()], ..Choices::default() };
        assert_eq!(Case::new().gather(&flags, "waive = [\"memory\"]").unwrap().waive, ["cpu"]);
        let case = Case::new().set("BELLJAR_WAIVE", "pids, disk");
        assert_eq!(case.gather(&Choices::default(), "waive = [\"memory\"]").unwrap().waive, ["pids", "disk"]);
    }

    #[test]
    fn state_is_kept_where_the_xdg_specification_wants_it() {
        let state = |case: Case| case.gather(&Choices::default(), "").unwrap().host.state_dir.unwrap();
        assert_eq!(state(Case::new()), Path::new("/var/lib/belljar"));
        let home = || Case::new().set("HOME", "/home/me");
        assert_eq!(state(home()), Path::new("/home/me/.local/state/belljar"));
        assert_eq!(
            state(home().set("XDG_STATE_HOME", "relative")),
            Path::new("/home/me/.local/state/belljar")
        );
        assert_eq!(state(home().set("XDG_STATE_HOME", "/s")), Path::new("/s/belljar"));
        assert_eq!(state(home().set("BELLJAR_STATE_DIR", "/own")), Path::new("/own"));
    }

    #[test]
    fn a_configuration_that_was_named_must_exist_and_the_users_need_not() {
        let named = Settings::gather(&Choices::default(), Some(Path::new("/no/such.toml")), &|_| None);
        let message = named.unwrap_err().error.message;
        assert_eq!(
            message,
            "cannot read the configuration file /no/such.toml: No such file or directory (os error 2)"
        );
        let folder = tempfile::tempdir().unwrap();
        let environment = |name: &str| (name == "XDG_CONFIG_HOME").then(|| folder.path().into());
        assert_eq!(Settings::gather(&Choices::default(), None, &environment).unwrap().backend, None);
        std::fs::create_dir(folder.path().join("belljar")).unwrap();
        std::fs::write(folder.path().join("belljar/belljar.toml"), "backend = 'wasm'").unwrap();
        let users = Settings::gather(&Choices::default(), None, &environment).unwrap().backend;
        assert_eq!(users.as_deref(), Some("wasm"));
    }
}
