//! `belljar mcp install`: adds this server to the configuration of an MCP client, and keeps the rest of the file.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_core::request::{Network, parse_waivers};
use belljar_wire::{Code, Problem};
use clap::{Args, ValueEnum};
use rustix::fs::OFlags;
use serde_json::{Map, Value, json};

use super::ServerOptions;
use crate::args::Verbosity;
use crate::problem::{self, say};
use crate::settings::{Environment, Settings};
use crate::{compose, doctor};

/// The largest file that is read; some clients keep their state in theirs.
const MAX_FILE: u64 = 64 << 20;
/// How many symbolic links are followed to where the file really is.
const MAX_LINKS: usize = 16;

#[derive(Debug, Args)]
pub(super) struct InstallArgs {
    /// MCP client to configure
    #[arg(long, value_name = "CLIENT", value_enum)]
    client: Client,

    /// For you in every project, or for everyone who works in this directory
    #[arg(long, value_name = "SCOPE", value_enum, default_value_t = Scope::User)]
    scope: Scope,

    /// Name of the server in the client
    #[arg(long, value_name = "NAME", default_value = "belljar")]
    name: String,

    /// Print what would be written without writing it
    #[arg(long)]
    print: bool,

    // What the client starts the server with.
    #[command(flatten)]
    options: ServerOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Client {
    ClaudeCode,
    ClaudeDesktop,
    Cursor,
    Vscode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scope {
    User,
    Project,
}

pub(super) fn install(
    args: &InstallArgs,
    verbosity: Verbosity,
    environment: Environment<'_>,
) -> Result<(), Problem> {
    check_name(&args.name)?;
    let settings = args.options.settings(environment)?;
    if let Some(root) = settings.workspace_roots.iter().find(|root| !root.is_dir()) {
        let message = format!("the workspace root {} is not a directory", root.display());
        return Err(Problem::new(Code::InvalidRequest, message, "name a directory that exists"));
    }
    let entry = entry(args.client, &this_program()?, &args.options.words()?);
    if args.print {
        let snippet = json!({ args.client.table(): { args.name.as_str(): entry } });
        say(&pretty(&snippet));
        return Ok(());
    }
    write_entry(args, entry, verbosity, environment)?;
    warn_of_refusal(settings, verbosity)
}

/// Warns if this host would refuse what the client will ask for.
fn warn_of_refusal(settings: Settings, verbosity: Verbosity) -> Result<(), Problem> {
    let (choice, waived) = (doctor::backend_choice(&settings)?, parse_waivers(&settings.waive)?);
    let engine = compose::engine(settings.host, None);
    if let Err(refusal) = engine.place(choice, &Network::None, &waived) {
        let Problem { error, .. } = refusal.into();
        problem::warn(&format!("its runs will be refused: {}; {}", error.message, error.hint), verbosity);
    }
    Ok(())
}

fn write_entry(
    args: &InstallArgs,
    entry: Map<String, Value>,
    verbosity: Verbosity,
    environment: Environment<'_>,
) -> Result<(), Problem> {
    let path = args.client.path(args.scope, environment)?;
    let path = match args.scope {
        Scope::User => real(path),
        Scope::Project => without_links(path)?,
    };
    let before = read(&path)?;
    let after = merged(before.clone(), args.client.table(), &args.name, entry)
        .map_err(|part| not_as_expected(&path, &format!("{part} is not an object")))?;
    if before.as_ref() == Some(&after) {
        say(&format!("{} is already in {}\n", args.name, path.display()));
        return Ok(());
    }
    write(&path, &pretty(&after)).map_err(|cause| unwritable(&path, &cause))?;
    say(&format!("added {} to {}; restart the client to use it\n", args.name, path.display()));
    for variable in variables_of(&after, args.client.table(), &args.name) {
        problem::warn(
            &format!("the client will start it with the variable {variable}, which was there before"),
            verbosity,
        );
    }
    Ok(())
}

/// The variables that the client sets for the server. They can choose a backend that is not a sandbox, and in a project
/// they may be somebody else's.
fn variables_of(whole: &Value, table: &str, name: &str) -> Vec<String> {
    let variables = whole[table][name]["env"].as_object().into_iter().flatten();
    variables.map(|(variable, value)| format!("{variable}={}", value.as_str().unwrap_or_default())).collect()
}

/// The path of a file in a project, if no part of it is a link: a link would lead out of the project, and what it leads
/// to would be overwritten.
fn without_links(path: PathBuf) -> Result<PathBuf, Problem> {
    let parts = path.ancestors().filter(|part| !part.as_os_str().is_empty());
    match parts.filter(|part| part.is_symlink()).last() {
        None => Ok(path),
        Some(link) => {
            let message = format!("cannot write {}: {} is a symbolic link", path.display(), link.display());
            Err(Problem::new(
                Code::InvalidRequest,
                message,
                "replace the link, or add what --print shows by hand",
            ))
        }
    }
}

impl Client {
    /// The configuration file of the client.
    fn path(self, scope: Scope, environment: Environment<'_>) -> Result<PathBuf, Problem> {
        match (self, scope) {
            (Client::ClaudeCode, Scope::Project) => Ok(PathBuf::from(".mcp.json")),
            (Client::Cursor, Scope::Project) => Ok(PathBuf::from(".cursor/mcp.json")),
            (Client::Vscode, Scope::Project) => Ok(PathBuf::from(".vscode/mcp.json")),
            (Client::ClaudeDesktop, Scope::Project) => {
                let message = "Claude Desktop has no configuration for single projects";
                Err(Problem::new(Code::InvalidRequest, message, "leave --scope out"))
            }
            (Client::ClaudeCode, Scope::User) => Ok(home(environment)?.join(".claude.json")),
            (Client::Cursor, Scope::User) => Ok(home(environment)?.join(".cursor/mcp.json")),
            (Client::Vscode, Scope::User) => Ok(applications(environment)?.join("Code/User/mcp.json")),
            (Client::ClaudeDesktop, Scope::User) => {
                Ok(applications(environment)?.join("Claude/claude_desktop_config.json"))
            }
        }
    }

    /// The key of its table of servers.
    fn table(self) -> &'static str {
        match self {
            Client::ClaudeCode | Client::ClaudeDesktop | Client::Cursor => "mcpServers",
            Client::Vscode => "servers",
        }
    }
}

fn entry(client: Client, program: &str, options: &[String]) -> Map<String, Value> {
    let words: Vec<_> = ["mcp"].into_iter().chain(options.iter().map(String::as_str)).collect();
    let mut entry = Map::new();
    if matches!(client, Client::ClaudeCode | Client::Vscode) {
        entry.insert("type".to_owned(), json!("stdio"));
    }
    entry.insert("command".to_owned(), json!(program));
    entry.insert("args".to_owned(), json!(words));
    entry
}

/// The configuration with the entry added. If there is an entry of that name, its other fields, such as variables,
/// are kept.
fn merged(
    before: Option<Value>,
    table: &'static str,
    name: &str,
    entry: Map<String, Value>,
) -> Result<Value, &'static str> {
    let mut whole = before.unwrap_or_else(|| json!({}));
    let top = whole.as_object_mut().ok_or("it")?;
    let servers = top.entry(table).or_insert_with(|| json!({})).as_object_mut().ok_or(table)?;
    match servers.get_mut(name).and_then(Value::as_object_mut) {
        Some(existing) => existing.extend(entry),
        None => drop(servers.insert(name.to_owned(), Value::Object(entry))),
    }
    Ok(whole)
}

fn read(path: &Path) -> Result<Option<Value>, Problem> {
    let mut text = String::new();
    let reading = open(path).and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
    match reading {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => {
            let message = format!("cannot read {}: {cause}", path.display());
            return Err(Problem::new(Code::InvalidRequest, message, "add what --print shows by hand"));
        }
        Ok(_) if text.trim().is_empty() => return Ok(None),
        Ok(_) => {}
    }
    serde_json::from_str(&text).map(Some).map_err(|fault| not_as_expected(path, &fault.to_string()))
}

/// A named pipe would block, and a device might never end.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Replaces the file in one step, so that neither a crash nor a client that reads meanwhile finds half of it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".belljar-{}", std::process::id()));
    let beside = folder.join(name);
    let written = fill(&beside, text, path).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Makes a new file with the permissions of the one that it will replace.
fn fill(beside: &Path, text: &str, replaced: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(beside)?;
    if let Ok(metadata) = fs::metadata(replaced) {
        file.set_permissions(metadata.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Follows links, so that the file is replaced and not a link to it.
fn real(mut path: PathBuf) -> PathBuf {
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

fn this_program() -> Result<String, Problem> {
    let path = std::env::current_exe().map_err(|cause| {
        let message = format!("cannot find the path of this program: {cause}");
        Problem::new(Code::Internal, message, "check that /proc is mounted")
    })?;
    path.into_os_string().into_string().map_err(|path| {
        let message = format!("the path of this program, {}, is not UTF-8", path.display());
        Problem::new(Code::InvalidRequest, message, "move it, for example to /usr/local/bin/belljar")
    })
}

fn check_name(name: &str) -> Result<(), Problem> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.len() <= 64 && name.chars().all(allowed) {
        return Ok(());
    }
    let message = format!("'{}' is not a valid server name", name.escape_debug());
    let hint = "use 1 to 64 of the characters A-Z, a-z, 0-9, '_' and '-'";
    Err(Problem::new(Code::InvalidRequest, message, hint))
}

fn home(environment: Environment<'_>) -> Result<PathBuf, Problem> {
    absolute(environment, "HOME").ok_or_else(|| {
        let hint = "set HOME, or use --scope project or --print";
        Problem::new(Code::InvalidRequest, "HOME is not set, so your configuration cannot be found", hint)
    })
}

/// Where applications keep their configuration.
fn applications(environment: Environment<'_>) -> Result<PathBuf, Problem> {
    if cfg!(target_os = "macos") {
        return Ok(home(environment)?.join("Library/Application Support"));
    }
    match absolute(environment, "XDG_CONFIG_HOME") {
        Some(path) => Ok(path),
        None => Ok(home(environment)?.join(".config")),
    }
}

fn absolute(environment: Environment<'_>, name: &str) -> Option<PathBuf> {
    environment(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn pretty(value: &Value) -> String {
    // All keys of a value are strings, so this cannot fail.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn not_as_expected(path: &Path, fault: &str) -> Problem {
    let message = format!("cannot add to the configuration {}: {fault}", path.display());
    Problem::new(Code::InvalidRequest, message, "repair the file, or add what --print shows by hand")
}

fn unwritable(path: &Path, cause: &io::Error) -> Problem {
    let message = format!("cannot write {}: {cause}", path.display());
    Problem::new(Code::InvalidRequest, message, "add what --print shows by hand")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn environment(name: &str) -> Option<OsString> {
        (name == "HOME").then(|| "/home/me".into())
    }

    #[test]
    fn every_client_has_its_places() {
        let path = |client: Client, scope| client.path(scope, &environment).unwrap().display().to_string();
        let user = |client| path(client, Scope::User);
        assert_eq!(user(Client::ClaudeCode), "/home/me/.claude.json");
        assert_eq!(user(Client::Cursor), "/home/me/.cursor/mcp.json");
        assert_eq!(path(Client::ClaudeCode, Scope::Project), ".mcp.json");
        assert_eq!(path(Client::Vscode, Scope::Project), ".vscode/mcp.json");
        assert!(Client::ClaudeDesktop.path(Scope::Project, &environment).is_err());
    }

    #[test]
    fn everything_else_in_the_file_stays() {
        let before = json!({"a": 1, "mcpServers": {"other": {"command": "x"}, "belljar": {"command": "old", "env": {"A": "b"}}}});
        let entry = entry(Client::Cursor, "/bin/belljar", &[]);
        let after = merged(Some(before), "mcpServers", "belljar", entry.clone()).unwrap();
        let expected = json!({"a": 1, "mcpServers": {
            "other": {"command": "x"},
            "belljar": {"command": "/bin/belljar", "args": ["mcp"], "env": {"A": "b"}},
        }});
        assert_eq!(after, expected);
        assert_eq!(merged(Some(after.clone()), "mcpServers", "belljar", entry).unwrap(), after);
    }

    #[test]
    fn a_file_of_another_shape_is_not_touched() {
        let entry = || entry(Client::Cursor, "/bin/belljar", &[]);
        assert_eq!(merged(Some(json!([])), "mcpServers", "belljar", entry()), Err("it"));
        assert_eq!(merged(Some(json!({"servers": 3})), "servers", "belljar", entry()), Err("servers"));
    }
}
