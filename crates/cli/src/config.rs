//! `belljar config`: the settings in effect, and where each one comes from.

use std::path::PathBuf;
use std::process::ExitCode;

use belljar_core::limits::{BoxLimits, Bytes, ExecutionLimits, show_duration};
use belljar_engine::Scanning;
use belljar_ledger::approvals::Own;
use belljar_server::Config;
use belljar_wire::{Code, Limits, Local, Problem, RunRequest, to_json};
use clap::{Args, ValueHint};
use serde::Serialize;

use crate::approvals::configured::Configured;
use crate::args::Choices;
use crate::audit::configured::retention;
use crate::configuration::{Configuration, FILE_NAME, FolderFile};
use crate::problem::{self, say};
use crate::serve::{self, DEFAULT_LISTEN, tables};
use crate::settings::{Environment, Origin, Settings};
use crate::table::aligned;

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    choices: Choices,

    /// Configuration file [default: the user's, else the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

/// What the command prints.
#[derive(Debug, Serialize)]
struct Listing {
    /// The configuration file that was read, if there is one.
    config_file: Option<String>,
    folder_file: Option<FolderStatus>,
    settings: Vec<Setting>,
}

/// The configuration in the working directory, if there is one.
#[derive(Debug, Serialize)]
struct FolderStatus {
    read: bool,
    /// Why it is not read.
    reason: Option<&'static str>,
}

impl FolderStatus {
    fn of(file: &FolderFile) -> Option<FolderStatus> {
        match file {
            FolderFile::Absent => None,
            FolderFile::Unread(reason) => Some(FolderStatus { read: false, reason: Some(reason) }),
            FolderFile::Read(_) => Some(FolderStatus { read: true, reason: None }),
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Setting {
    /// As `belljar.toml` has it.
    key: String,
    value: Option<String>,
    source: &'static str,
    /// The option, the variable or the file.
    name: Option<String>,
}

pub(crate) fn run(args: &ConfigArgs, environment: Environment<'_>) -> ExitCode {
    match list(args, environment) {
        Ok(listing) => {
            say(&if args.json { to_json(&listing) } else { shown(&listing) });
            ExitCode::SUCCESS
        }
        Err(problem) => {
            problem::report(&problem, args.json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn list(args: &ConfigArgs, environment: Environment<'_>) -> Result<Listing, Problem> {
    let configuration = Configuration::choose(args.config.as_deref(), environment)?;
    let folder = FolderFile::find(args.config.as_deref(), environment)?;
    let settings = Settings::gather_with(&args.choices, &|| Ok(configuration.clone()), &folder, environment)?;
    let written = Written::read(&configuration)?;
    let mut server = tables::config(&settings)?;
    server.defaults = settings.defaults();
    let mut listed = Lines { written, settings: &settings, lines: Vec::new() };
    listed.of_runs()?;
    listed.of_mcp_and_docker();
    listed.of_server(&server);
    listed.of_pool(&server)?;
    listed.configured("scan.enabled", settings.scan.scanning() == Scanning::EveryRun);
    listed.of_audit()?;
    listed.of_approvals()?;
    listed.of_host(environment);
    listed.of_the_rest();
    let config_file = configuration.text.is_some().then(|| settings.config.clone());
    Ok(Listing { config_file, folder_file: FolderStatus::of(&folder), settings: listed.lines })
}

/// What the configuration file says: dotted keys and values.
struct Written(Vec<(String, String)>);

impl Written {
    fn read(configuration: &Configuration) -> Result<Written, Problem> {
        let text = configuration.text.as_deref().unwrap_or_default();
        let table: toml::Table = toml::from_str(text).map_err(|fault| {
            let message = format!("{}: {}", configuration.path.display(), fault.message());
            Problem::new(Code::InvalidRequest, message, "write valid TOML")
        })?;
        let mut leaves = Vec::new();
        flatten("", &toml::Value::Table(table), &mut leaves);
        Ok(Written(leaves))
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(known, _)| known == key || known.starts_with(&format!("{key}.")))
    }
}

fn flatten(path: &str, value: &toml::Value, leaves: &mut Vec<(String, String)>) {
    let beneath = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        toml::Value::Table(table) => {
            table.iter().for_each(|(name, value)| flatten(&beneath(name), value, leaves));
        }
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            items.iter().enumerate().for_each(|(at, item)| flatten(&format!("{path}[{at}]"), item, leaves));
        }
        toml::Value::Array(_)
        | toml::Value::String(_)
        | toml::Value::Integer(_)
        | toml::Value::Float(_)
        | toml::Value::Boolean(_)
        | toml::Value::Datetime(_) => leaves.push((path.to_owned(), leaf(value))),
    }
}

fn leaf(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(truth) => truth.to_string(),
        toml::Value::Datetime(time) => time.to_string(),
        toml::Value::Array(items) => items.iter().map(leaf).collect::<Vec<_>>().join(", "),
        toml::Value::Table(_) => "{...}".to_owned(),
    }
}

struct Lines<'a> {
    written: Written,
    settings: &'a Settings,
    lines: Vec<Setting>,
}

impl Lines<'_> {
    fn add(&mut self, key: &str, value: Option<String>, origin: Origin) {
        let (source, name) = match origin {
            Origin::Flag(name) => ("flag", Some(name.to_owned())),
            Origin::Variable(name) => ("environment", Some(name.to_owned())),
            Origin::Folder => ("folder", Some(format!("./{FILE_NAME}"))),
            Origin::File => ("file", Some(self.settings.config.clone())),
            Origin::Default => ("default", None),
        };
        self.lines.push(Setting { key: key.to_owned(), value, source, name });
    }

    /// A setting that an option or a variable can set, too.
    fn chosen(&mut self, key: &str, value: Option<String>) {
        self.add(key, value, self.settings.origins.of(key).unwrap_or(Origin::Default));
    }

    /// A setting that only the configuration file can set.
    fn configured(&mut self, key: &str, value: impl ToString) {
        let origin = if self.written.has(key) { Origin::File } else { Origin::Default };
        self.add(key, Some(value.to_string()), origin);
    }

    fn of_runs(&mut self) -> Result<(), Problem> {
        let Settings { backend, language, network, host, waive, .. } = self.settings;
        self.chosen("backend", Some(backend.clone().unwrap_or_else(|| "auto".to_owned())));
        self.chosen("language", language.map(|language| language.name.to_owned()));
        self.chosen("network", Some(network.clone().unwrap_or_else(|| "none".to_owned())));
        self.chosen("image", host.docker.default_image.clone());
        self.chosen("waive", (!waive.is_empty()).then(|| waive.join(", ")));
        let request = any_run(self.settings.limits).parse(Local::default())?;
        let BoxLimits { memory, cpus, pids, disk } = request.sandbox.limits;
        let ExecutionLimits { timeout, cpu_time, output, compile, .. } = request.execution.limits;
        self.chosen("limits.timeout", Some(show_duration(timeout)));
        self.chosen("limits.compile-timeout", Some(show_duration(compile.timeout)));
        self.chosen("limits.cpu-time", cpu_time.map(show_duration));
        self.chosen("limits.memory", Some(memory.to_string()));
        self.chosen("limits.compile-memory", Some(compile.sandbox.memory.to_string()));
        self.chosen("limits.cpus", Some(cpus.to_string()));
        self.chosen("limits.pids", Some(pids.to_string()));
        self.chosen("limits.disk", Some(disk.to_string()));
        self.chosen("limits.output-limit", Some(output.to_string()));
        Ok(())
    }

    fn of_audit(&mut self) -> Result<(), Problem> {
        let Settings { audit, .. } = self.settings;
        let retention = retention(self.settings)?;
        let enabled = audit.enabled.map_or_else(|| "only by serve".to_owned(), |enabled| enabled.to_string());
        self.configured("audit.enabled", enabled);
        self.configured("audit.durable", audit.durable);
        self.configured("audit.on-full", audit.on_full.name());
        let age = retention.age.map(show_duration);
        self.configured("audit.retain.age", age.unwrap_or_else(|| "unlimited".to_owned()));
        self.configured("audit.retain.size", Bytes::new(retention.bytes.unwrap_or(u64::MAX)));
        Ok(())
    }

    fn of_approvals(&mut self) -> Result<(), Problem> {
        let Configured { wait, terms, hook: _ } = Configured::of(self.settings)?;
        self.configured("approvals.wait", show_duration(wait));
        self.configured("approvals.expire", show_duration(terms.expire));
        self.configured("approvals.remember", show_duration(terms.remember));
        self.configured("approvals.allow-own", terms.own == Own::Allowed);
        Ok(())
    }

    fn of_mcp_and_docker(&mut self) {
        let Settings { mcp, host, workspace_roots, .. } = self.settings;
        self.chosen("docker.runtime", host.docker.runtime.clone());
        self.chosen("docker.host", host.docker.host.clone());
        self.chosen("mcp.tool-name", Some(mcp.tool_name.to_string()));
        self.chosen("mcp.answer-within", Some(show_duration(mcp.answer_within)));
        self.chosen("mcp.max-text", Some(mcp.max_text.to_string()));
        let roots: Vec<_> = workspace_roots.iter().map(|root| root.display().to_string()).collect();
        self.chosen("mcp.workspace-roots", (!roots.is_empty()).then(|| roots.join(", ")));
    }

    fn of_server(&mut self, config: &Config) {
        let size = |bytes: usize| Bytes::new(bytes as u64);
        let listen = self.settings.server.listen.as_deref().unwrap_or(DEFAULT_LISTEN);
        self.configured("server.listen", listen);
        self.configured("server.keep-root", self.settings.server.keep_root);
        self.configured("server.slots", config.slots);
        self.configured("server.queue", config.queue);
        self.configured("server.max-body", size(config.max_body));
        if let Some(most) = config.anonymous.ceilings.collected {
            self.configured("server.max-collect", most);
        }
        self.configured("server.body-memory", size(config.body_memory));
        self.configured("server.max-connections", config.max_connections);
        self.configured("server.max-connections-per-address", config.max_per_address());
        self.configured("server.header-timeout", show_duration(config.header_timeout));
        self.configured("server.body-timeout", show_duration(config.body_timeout));
        self.configured("server.heartbeat", show_duration(config.heartbeat));
        self.configured("server.drain", show_duration(config.drain));
        let idle = config.idle_timeout.map(show_duration);
        self.configured("server.idle-timeout", idle.unwrap_or_else(|| "never".to_owned()));
        self.configured("server.keep-runs", config.kept.runs);
        self.configured("server.keep-bytes", size(config.kept.bytes));
        self.configured("server.keep-for", show_duration(config.kept.age));
        self.configured("server.max-upload", size(config.max_upload));
        self.configured("server.upload-memory", size(config.uploads.bytes));
        self.configured("server.keep-uploads-for", show_duration(config.uploads.age));
    }

    fn of_pool(&mut self, config: &Config) -> Result<(), Problem> {
        let pool = serve::pooled(self.settings, config)?;
        self.configured("pool.enabled", pool.is_some());
        let Some(pool) = pool else { return Ok(()) };
        self.configured("pool.memory", Bytes::new(pool.memory));
        self.configured("pool.max-age", show_duration(pool.max_age));
        if !self.written.has("pool.languages") {
            let names: Vec<_> = pool.languages.iter().map(|(language, _)| language.name).collect();
            self.configured("pool.languages", names.join(", "));
        }
        Ok(())
    }

    fn of_host(&mut self, environment: Environment<'_>) {
        let from = ["BELLJAR_STATE_DIR", "XDG_STATE_HOME", "HOME"].into_iter();
        let set =
            |name: &&str| environment(name).is_some_and(|path| path.as_encoded_bytes().starts_with(b"/"));
        let origin = from.clone().find(set).map_or(Origin::Default, Origin::Variable);
        let path = self.settings.host.state_dir.as_ref().map(|path| path.display().to_string());
        self.add("state-dir", path, origin);
    }

    /// Whatever else the file says: tables that have no defaults to show, such as keys and runtimes.
    fn of_the_rest(&mut self) {
        for (key, value) in std::mem::take(&mut self.written.0) {
            let secret = key.ends_with(".sha256") || key.ends_with("-secret");
            if !secret && !self.lines.iter().any(|line| line.key == key) {
                self.add(&key, Some(value), Origin::File);
            }
        }
    }
}

/// A run with these limits, which says what the others come to.
fn any_run(limits: Limits) -> RunRequest {
    RunRequest { language: "sh".to_owned(), code: "true".to_owned(), limits, ..RunRequest::default() }
}

fn shown(listing: &Listing) -> String {
    let file = listing.config_file.as_deref().unwrap_or("none");
    let row = |Setting { key, value, source, name }: &Setting| {
        let value = value.clone().unwrap_or_else(|| "-".to_owned());
        [key.clone(), value, name.clone().unwrap_or_else(|| (*source).to_owned())]
    };
    let table = aligned(["SETTING", "VALUE", "SOURCE"], listing.settings.iter().map(row));
    let folder = match &listing.folder_file {
        None => String::new(),
        Some(FolderStatus { reason: None, .. }) => format!("In the working directory: ./{FILE_NAME}\n"),
        Some(FolderStatus { reason: Some(why), .. }) => {
            format!("In the working directory: ./{FILE_NAME}, not read: {why}\n")
        }
    };
    format!("Configuration file: {file}\n{folder}\n{table}")
}
