//! What was asked for, wherever it was written: an option, the environment, `belljar.toml`, in that order.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_core::language::Language;
use belljar_core::limits::{Bytes, parse_duration};
use belljar_core::request::{BackendChoice, BackendName, Network, parse_waivers};
use belljar_core::{Field, Invalid};
use belljar_server::{Defaults, mcp};
use belljar_wire::{Code, Limits, Problem};
use serde::Deserialize;

use crate::args::Choices;
use crate::docker::{DockerChoices, DockerTable};
use crate::serve::pool::PoolTable;
use crate::serve::tables::{KeyTable, ServerTable};

/// Where variables come from: the process, or a test.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What it all came to. Every text here has been understood; whether it is in range is for the request to say.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) backend: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) network: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) waive: Vec<String>,
    pub(crate) mcp: mcp::Config,
    pub(crate) host: Host,
    pub(crate) server: ServerTable,
    pub(crate) keys: Vec<KeyTable>,
    pub(crate) pool: PoolTable,
    /// The configuration file, as messages name it.
    pub(crate) config: String,
}

/// What a backend needs to know of this host and its user.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) search_path: OsString,
    pub(crate) home: Option<PathBuf>,
    pub(crate) runtime_dir: Option<PathBuf>,
    pub(crate) state_dir: Option<PathBuf>,
    /// Where the modules of the wasm backend are, in a directory of their own.
    pub(crate) wasm_dir: Option<PathBuf>,
    pub(crate) temp_dir: PathBuf,
    /// How many boxes of crashed predecessors were cleaned up already.
    pub(crate) swept: usize,
    pub(crate) runtimes: Vec<(Language, PathBuf)>,
    pub(crate) docker: DockerChoices,
}

impl Settings {
    /// Weighs options, environment and configuration against each other.
    pub(crate) fn gather(
        flags: &Choices,
        config: Option<&Path>,
        environment: Environment<'_>,
    ) -> Result<Settings, Problem> {
        Settings::gather_with(flags, &|| Configuration::choose(config, environment), environment)
    }

    /// The same, with a configuration that somebody else has chosen.
    pub(crate) fn gather_with(
        flags: &Choices,
        choose: &dyn Fn() -> Result<Configuration, Problem>,
        environment: Environment<'_>,
    ) -> Result<Settings, Problem> {
        let Configuration { path, text } = choose()?;
        let file = text.map(|text| parse(&path, &text)).transpose()?.unwrap_or_default();
        let shown = path.display().to_string();
        let sources = Sources { environment, config: &shown };
        let backend = sources.backend(flags.backend.as_deref(), file.backend)?;
        let mut docker = sources.docker(flags.runtime.as_deref(), file.docker)?;
        docker.preferred = backend.as_ref().is_some_and(|given| given.text == "docker");
        Ok(Settings {
            backend: understood(backend, |text| BackendChoice::parse(text).map(drop))?,
            network: understood(sources.pick("network", flags.network.as_deref(), file.network)?, |text| {
                Network::parse(text).map(drop)
            })?,
            image: sources.pick("image", flags.image.as_deref(), file.image)?.map(|given| given.text),
            waive: sources.waivers(&flags.waive, file.waive)?,
            limits: Limits {
                timeout_ms: millis(
                    sources.pick("timeout", flags.timeout.as_deref(), file.limits.timeout)?,
                    Field::Timeout,
                )?,
                cpu_ms: millis(
                    sources.pick("cpu-time", flags.cpu_time.as_deref(), file.limits.cpu_time)?,
                    Field::CpuTime,
                )?,
                memory_bytes: bytes(
                    sources.pick("memory", flags.memory.as_deref(), file.limits.memory)?,
                    Field::Memory,
                )?,
                cpus: cpus(sources.pick("cpus", flags.cpus.as_deref(), file.limits.cpus)?)?,
                pids: count(sources.pick("pids", flags.pids.as_deref(), file.limits.pids)?)?,
                disk_bytes: bytes(
                    sources.pick("disk", flags.disk.as_deref(), file.limits.disk)?,
                    Field::Disk,
                )?,
                output_bytes: bytes(
                    sources.pick("output-limit", flags.output_limit.as_deref(), file.limits.output_limit)?,
                    Field::Output,
                )?,
            },
            mcp: sources.mcp(file.mcp)?,
            host: Host { docker, ..host(environment, runtimes(file.runtimes, &shown)?) },
            server: file.server,
            keys: file.keys,
            pool: file.pool,
            config: shown.clone(),
        })
    }

    /// Whether a run can come to the native backend.
    pub(crate) fn may_be_native(&self) -> bool {
        self.backend.as_deref().is_none_or(|name| name == "auto" || name == BackendName::Native.name())
    }

    /// What a request gets where it does not say.
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
    origin: String,
}

struct Sources<'a> {
    environment: Environment<'a>,
    config: &'a str,
}

impl Sources<'_> {
    /// The value of an option from the first source that has it.
    fn pick(
        &self,
        option: &str,
        flag: Option<&str>,
        file: Option<impl Into<String>>,
    ) -> Result<Option<Given>, Problem> {
        if let Some(text) = flag {
            return Ok(Some(Given { text: text.to_owned(), origin: format!("--{option}") }));
        }
        let variable = format!("BELLJAR_{}", option.to_ascii_uppercase().replace('-', "_"));
        let from_file =
            || file.map(|text| Given { text: text.into(), origin: format!("{option} in {}", self.config) });
        Ok(self.variable(&variable)?.or_else(from_file))
    }

    /// The backend has a second variable, which stands between the first and the file.
    fn backend(&self, flag: Option<&str>, file: Option<String>) -> Result<Option<Given>, Problem> {
        match self.pick("backend", flag, None::<String>)? {
            Some(given) => Ok(Some(given)),
            None => match self.variable("CODE_EXEC_SANDBOX")? {
                Some(given) => Ok(Some(given)),
                None => self.pick("backend", None, file),
            },
        }
    }

    /// What was said about Docker.
    fn docker(&self, flag: Option<&str>, file: DockerTable) -> Result<DockerChoices, Problem> {
        let mut choices = DockerChoices::read(file, self.config)?;
        let runtime = match flag {
            Some(flag) => Some(flag.to_owned()),
            None => self.variable("BELLJAR_DOCKER_RUNTIME")?.map(|given| given.text),
        };
        choices.runtime = runtime.or(choices.runtime);
        choices.host = self.variable("DOCKER_HOST")?.map(|given| given.text);
        Ok(choices)
    }

    /// A variable of the environment; an empty one counts as not set.
    fn variable(&self, name: &str) -> Result<Option<Given>, Problem> {
        let Some(value) = (self.environment)(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        let text = value.into_string().map_err(|_| {
            Problem::new(Code::InvalidRequest, format!("the variable {name} is not UTF-8"), "set it to text")
        })?;
        Ok(Some(Given { text, origin: name.to_owned() }))
    }

    /// How MCP is to behave; what nobody has said stays as it is.
    fn mcp(&self, table: McpTable) -> Result<mcp::Config, Problem> {
        let mut config = mcp::Config::default();
        if let Some(given) = self.mcp_value("tool-name", table.tool_name)? {
            config.tool_name = tool_name(&given)?;
        }
        if let Some(given) = self.mcp_value("answer-within", table.answer_within)? {
            config.answer_within = answer_time(&given.text)
                .map_err(|fault| unfit(&given, &fault, "a time from 100ms to 10m"))?;
        }
        if let Some(given) = self.mcp_value("max-text", table.max_text)? {
            config.max_text = text_size(&given.text).ok_or_else(|| {
                unfit(&given, "not a number of characters", "a number from 1000 to 1000000")
            })?;
        }
        Ok(config)
    }

    fn mcp_value(&self, key: &str, file: Option<impl Into<String>>) -> Result<Option<Given>, Problem> {
        let variable = format!("BELLJAR_MCP_{}", key.to_ascii_uppercase().replace('-', "_"));
        let origin = format!("mcp.{key} in {}", self.config);
        Ok(self.variable(&variable)?.or(file.map(|text| Given { text: text.into(), origin })))
    }

    /// Waivers do not add up across sources: a list on the command line is the whole list.
    fn waivers(&self, flags: &[String], file: Option<Vec<String>>) -> Result<Vec<String>, Problem> {
        let (words, origin) = if !flags.is_empty() {
            (flags.to_vec(), "--waive".to_owned())
        } else if let Some(given) = self.variable("BELLJAR_WAIVE")? {
            (given.text.split(',').map(|word| word.trim().to_owned()).collect(), given.origin)
        } else {
            (file.unwrap_or_default(), format!("waive in {}", self.config))
        };
        parse_waivers(&words).map_err(|invalid| blame(&origin, invalid))?;
        Ok(words)
    }
}

fn understood(
    given: Option<Given>,
    check: impl FnOnce(&str) -> Result<(), Invalid>,
) -> Result<Option<String>, Problem> {
    let Some(Given { text, origin }) = given else { return Ok(None) };
    check(&text).map_err(|invalid| blame(&origin, invalid))?;
    Ok(Some(text))
}

/// An option speaks for itself; a value from elsewhere needs to say from where.
fn blame(origin: &str, mut invalid: Invalid) -> Problem {
    if !origin.starts_with("--") {
        invalid.message = format!("{origin}: {}", invalid.message);
    }
    invalid.into()
}

fn tool_name(given: &Given) -> Result<mcp::ToolName, Problem> {
    mcp::ToolName::parse(&given.text).map_err(|mut problem| {
        problem.error.message = format!("{}: {}", given.origin, problem.error.message);
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
    let message = format!("{}: '{}' is no good: {fault}", given.origin, given.text.escape_debug());
    Problem::new(Code::InvalidRequest, message, format!("write {wanted}"))
}

fn malformed(given: &Given, field: Field, fault: impl std::fmt::Display, example: &str) -> Problem {
    let message = format!("{}: {fault}", given.origin);
    Problem::new(Code::InvalidRequest, message, format!("write it as in {example}")).at(field)
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
struct ConfigFile {
    backend: Option<String>,
    network: Option<String>,
    image: Option<String>,
    waive: Option<Vec<String>>,
    limits: LimitsTable,
    runtimes: BTreeMap<String, PathBuf>,
    mcp: McpTable,
    server: ServerTable,
    keys: Vec<KeyTable>,
    pool: PoolTable,
    docker: DockerTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct McpTable {
    tool_name: Option<String>,
    answer_within: Option<Scalar>,
    max_text: Option<Scalar>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct LimitsTable {
    pub(crate) timeout: Option<Scalar>,
    pub(crate) cpu_time: Option<Scalar>,
    pub(crate) memory: Option<Scalar>,
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
#[serde(untagged)]
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

const FILE_NAME: &str = "belljar.toml";
const MAX_CONFIG: u64 = 1 << 20;
/// Where a system service, which has no home, keeps its state.
const SERVICE_STATE: &str = "/var/lib/belljar";

/// The configuration that was chosen, and what it says.
#[derive(Debug)]
pub(crate) struct Configuration {
    /// As messages name it.
    pub(crate) path: PathBuf,
    /// `None`: there is none.
    pub(crate) text: Option<String>,
}

impl Configuration {
    /// The file that was named, which must exist; else the working directory's; else the user's; else nothing.
    pub(crate) fn choose(
        named: Option<&Path>,
        environment: Environment<'_>,
    ) -> Result<Configuration, Problem> {
        let from_environment =
            environment("BELLJAR_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        if let Some(path) = named.map(Path::to_owned).or(from_environment) {
            let text = Some(read(&path).map_err(|cause| unreadable(&path, &cause))?);
            return Ok(Configuration { path, text });
        }
        let users = user_directory(environment, "XDG_CONFIG_HOME", ".config").map(|dir| dir.join(FILE_NAME));
        for path in [Some(PathBuf::from(FILE_NAME)), users].into_iter().flatten() {
            match read(&path) {
                Ok(text) => return Ok(Configuration { path, text: Some(text) }),
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                // A directory on the way that is not one cannot hold a configuration.
                Err(cause) if cause.kind() == io::ErrorKind::NotADirectory => {}
                // A home that may not be looked into is somebody else's: `HOME` came along with a change of user.
                Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied && path.is_absolute() => {}
                Err(cause) => return Err(unreadable(&path, &cause)),
            }
        }
        Ok(Configuration { path: PathBuf::from(FILE_NAME), text: None })
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_CONFIG).read_to_string(&mut text)?;
    Ok(text)
}

fn parse(path: &Path, text: &str) -> Result<ConfigFile, Problem> {
    toml::from_str(text).map_err(|fault| {
        let line =
            fault.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let message = format!("{}:{line}: {}", path.display(), fault.message().trim().replace('\n', ", "));
        let hint = "the keys are backend, network, image, waive, [limits] with the names of the options, \
                    [runtimes], [server], [pool], [[keys]] and [mcp]";
        Problem::new(Code::InvalidRequest, message, hint)
    })
}

fn unreadable(path: &Path, cause: &io::Error) -> Problem {
    let message = format!("cannot read the configuration {}: {cause}", path.display());
    Problem::new(Code::InvalidRequest, message, "name a readable TOML file with --config FILE")
}

fn runtimes(table: BTreeMap<String, PathBuf>, config: &str) -> Result<Vec<(Language, PathBuf)>, Problem> {
    let mut runtimes = Vec::with_capacity(table.len());
    for (name, path) in table {
        let origin = format!("runtimes in {config}");
        let language = Language::parse(&name).map_err(|invalid| blame(&origin, invalid))?;
        if !path.is_absolute() {
            let message = format!("{origin}: '{}' is not an absolute path", path.display());
            let hint = format!("write it as in {name} = \"/usr/bin/{name}\"");
            return Err(Problem::new(Code::InvalidRequest, message, hint));
        }
        runtimes.push((language, path));
    }
    Ok(runtimes)
}

fn host(environment: Environment<'_>, runtimes: Vec<(Language, PathBuf)>) -> Host {
    let state_dir = absolute(environment("BELLJAR_STATE_DIR"))
        .or_else(|| user_directory(environment, "XDG_STATE_HOME", ".local/state"))
        .or_else(|| Some(PathBuf::from(SERVICE_STATE)));
    Host {
        search_path: environment("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
        home: absolute(environment("HOME")),
        runtime_dir: absolute(environment("XDG_RUNTIME_DIR")),
        wasm_dir: state_dir.clone(),
        state_dir,
        temp_dir: absolute(environment("TMPDIR")).unwrap_or_else(|| PathBuf::from("/tmp")),
        swept: 0,
        runtimes,
        docker: DockerChoices::default(),
    }
}

/// Belljar's own directory among the user's, by the XDG base directory specification: a relative path in the
/// variable is to be ignored.
fn user_directory(environment: Environment<'_>, variable: &str, beneath_home: &str) -> Option<PathBuf> {
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
        assert_eq!(settings.host.runtimes[0].0.name, "javascript");
        assert_eq!(settings.host.runtimes[1].1, Path::new("/usr/bin/python3"));
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
        let said = "cpus in DIR/belljar.toml: 'many' is not a number of CPUs";
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
            "cannot read the configuration /no/such.toml: No such file or directory (os error 2)"
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
