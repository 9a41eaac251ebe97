//! A directory that came from elsewhere: nothing in it changes where code runs, and nothing in it runs outside a box.
//! Its `belljar.toml` may only restrict runs.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::geteuid;
use serde_json::{Value, json};

const NOBODY: u32 = 65534;
/// What a command says that does not read the file that is there.
const OVERLOOKED: &str =
    "belljar.toml in the working directory is not read; to use it, add: --config belljar.toml";

/// A directory with a configuration, and an ordinary user to whom it belongs.
struct Folder {
    root: tempfile::TempDir,
    binary: PathBuf,
}

impl Folder {
    fn new() -> Folder {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        let mut binary = PathBuf::from(env!("CARGO_BIN_EXE_belljar"));
        if geteuid().is_root() {
            // The target directory may be closed to other users.
            fs::copy(&binary, root.path().join("belljar")).unwrap();
            binary = root.path().join("belljar");
        }
        let folder = Folder { root, binary };
        fs::create_dir(folder.path()).unwrap();
        fs::create_dir(folder.root.path().join("home")).unwrap();
        folder.give(&folder.path());
        folder.give(&folder.root.path().join("home"));
        folder
    }

    fn with(config: &str) -> Folder {
        let folder = Folder::new();
        folder.write(config);
        folder
    }

    fn path(&self) -> PathBuf {
        self.root.path().join("work")
    }

    fn config(&self) -> PathBuf {
        self.path().join("belljar.toml")
    }

    fn write(&self, config: &str) {
        fs::write(self.config(), config).unwrap();
        self.give(&self.config());
    }

    /// Makes it the ordinary user's.
    fn give(&self, path: &Path) {
        if geteuid().is_root() {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(words).current_dir(self.path()).stdin(Stdio::null()).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", self.root.path().join("home"));
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn run_as_root(&self, words: &[&str]) -> Output {
        self.command(words).uid(0).gid(0).output().unwrap()
    }

    /// What a run in the directory is refused with.
    fn refusal(&self) -> String {
        let refused = self.run(&["run", "sh", "-c", "true"]);
        assert_eq!(refused.status.code(), Some(125), "{refused:?}");
        text(&refused.stderr)
    }

    /// The value of a setting and its source.
    fn setting(&self, key: &str, more: &[&str]) -> (String, String) {
        let output = self.run(&[&["config", "--json"], more].concat());
        let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
        let settings = listing["settings"].as_array().unwrap_or_else(|| panic!("{listing}"));
        let found = settings.iter().find(|setting| setting["key"] == key).unwrap();
        let word = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        (word("value"), word("source"))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn pair(value: &str, source: &str) -> (String, String) {
    (value.to_owned(), source.to_owned())
}

#[test]
fn it_may_lower_limits_restrict_the_network_and_choose_a_language() {
    let folder =
        Folder::with("language = 'sh'\nnetwork = 'none'\n[limits]\nmemory = '64M'\ncpu-time = '3s'\n");
    assert_eq!(folder.setting("limits.memory", &[]), pair("64M", "folder"));
    assert_eq!(folder.setting("limits.cpu-time", &[]), pair("3s", "folder"));
    assert_eq!(folder.setting("network", &[]), pair("none", "folder"));
    assert_eq!(folder.setting("language", &[]), pair("sh", "folder"));
    assert_eq!(folder.setting("limits.pids", &[]), pair("50", "default"));
    assert_eq!(folder.setting("limits.memory", &["--memory", "1G"]), pair("1G", "flag"), "the user decides");
    let ran = folder.run(&["run", "--backend", "none", "-c", "echo $((40 + 2))"]);
    assert_eq!(text(&ran.stdout), "42\n", "{ran:?}");
}

#[test]
fn it_cannot_raise_a_limit_or_open_the_network() {
    for (config, told) in [
        (
            "[limits]\nmemory = '1G'",
            "sets limits.memory to 1G, but a file there can only lower it, and it is 256M",
        ),
        ("[limits]\ntimeout = '11s'", "sets limits.timeout to 11s"),
        ("[limits]\npids = 51", "sets limits.pids to 51"),
        ("[limits]\ncpus = 1.5", "sets limits.cpus to 1.5"),
        ("[limits]\ndisk = '65M'", "sets limits.disk to 65M"),
        ("[limits]\noutput-limit = '2M'", "sets limits.output-limit to 2M"),
        ("network = 'full'", "sets network to full"),
        ("network = 'allow:example.org'", "sets network to allow:example.org"),
    ] {
        let folder = Folder::with(config);
        let said = folder.refusal();
        assert!(said.contains(told) && said.contains("\nhint: write it in /"), "{config}: {said}");
    }
    let folder = Folder::with("[limits]\nmemory = '1G'");
    let users = folder.root.path().join("home/.config/belljar");
    fs::create_dir_all(&users).unwrap();
    fs::write(users.join("belljar.toml"), "network = 'full'\n[limits]\nmemory = '2G'\n").unwrap();
    [&users, &users.join("belljar.toml")].into_iter().for_each(|path| folder.give(path));
    assert_eq!(folder.setting("limits.memory", &[]), pair("1G", "folder"), "the user allows more");
    assert_eq!(folder.setting("network", &[]), pair("full", "file"));
}

#[test]
fn every_other_key_is_refused_by_name_and_read_from_a_file_that_is_named() {
    for (key, config) in [
        ("backend", "backend = 'none'"),
        ("image", "image = 'alpine:3.20'"),
        ("waive", "waive = ['filesystem']"),
        ("runtimes", "[runtimes]\nsh = '/bin/sh'"),
        ("docker", "[docker]\nruntime = 'runc'"),
        ("mcp", "[mcp]\ntool-name = 'x'"),
        ("server", "[server]\nslots = 1"),
        ("pool", "[pool]\nenabled = false"),
        ("audit", "[audit]\nenabled = false"),
        ("keys", &format!("[[keys]]\nname = 'a'\nsha256 = '{}'", "ab".repeat(32))),
    ] {
        let folder = Folder::with(config);
        let said = folder.refusal();
        let told = format!("belljar.toml in the working directory cannot set '{key}'");
        assert!(said.contains(&told) && said.contains("--config belljar.toml"), "{said}");
        let named = folder.run(&["config", "--config", "belljar.toml"]);
        assert!(named.status.success(), "the control: {named:?}");
    }
}

#[test]
fn a_file_that_somebody_else_could_have_written_is_refused() {
    let folder = Folder::with("[limits]\npids = 7");
    assert_eq!(folder.setting("limits.pids", &[]), pair("7", "folder"), "the control");
    fs::set_permissions(folder.config(), Permissions::from_mode(0o666)).unwrap();
    assert!(folder.refusal().contains("is not trusted: it can be changed by other users"));
    fs::set_permissions(folder.config(), Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
    assert!(folder.refusal().contains("is not trusted: its directory can be changed by other users"));
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    if geteuid().is_root() {
        chown(folder.config(), Some(1234), None).unwrap();
        assert!(folder.refusal().contains("it belongs to another user (uid 1234)"));
        chown(folder.config(), Some(0), None).unwrap();
        assert_eq!(folder.setting("limits.pids", &[]), pair("7", "folder"), "root is trusted");
        chown(folder.path(), Some(1234), None).unwrap();
        assert!(folder.refusal().contains("its directory belongs to another user (uid 1234)"));
    }
}

#[test]
fn a_link_or_a_pipe_is_refused_at_once() {
    let folder = Folder::new();
    let private = folder.root.path().join("home/secret");
    fs::write(&private, "hunter2").unwrap();
    symlink(&private, folder.config()).unwrap();
    let said = folder.refusal();
    assert!(said.contains("it is a symbolic link") && !said.contains("hunter2"), "{said}");
    fs::remove_file(folder.config()).unwrap();
    let made = Command::new("mkfifo").arg(folder.config()).status().unwrap();
    assert!(made.success());
    assert!(folder.refusal().contains("it is not a regular file"));
}

#[test]
fn root_reads_none_that_is_not_named() {
    if !geteuid().is_root() {
        return;
    }
    let folder = Folder::with("nonsense = 1");
    let listed = text(&folder.run_as_root(&["config"]).stdout);
    let told = "In the working directory: ./belljar.toml, not read: root reads a configuration only where --config names it";
    assert!(listed.contains(told), "{listed}");
    let run = |words: &[&str]| {
        let run = folder.run_as_root(&[words, &["--backend", "none", "sh", "-c", "echo ran"]].concat());
        assert_eq!(text(&run.stdout), "ran\n", "{run:?}");
        text(&run.stderr)
    };
    assert_eq!(run(&["run"]).matches(OVERLOOKED).count(), 1);
    assert_eq!(run(&["run", "-v"]).matches(OVERLOOKED).count(), 1);
    assert_eq!(run(&["run", "-q"]), "");
    let named = folder.run_as_root(&["run", "--config", "belljar.toml", "sh", "-c", "echo ran"]);
    assert_eq!(named.status.code(), Some(125), "the control: {named:?}");
}

#[test]
fn mcp_and_the_server_read_none_that_is_not_named() {
    let folder = Folder::with("backend = 'none'\n");
    let unread = folder.run(&["mcp"]);
    assert!(unread.status.success(), "{unread:?}");
    assert_eq!(text(&unread.stderr), format!("info: {OVERLOOKED}\n"));
    let quiet = folder.run(&["mcp", "-q"]);
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
    let named = text(&folder.run(&["mcp", "--config", "belljar.toml"]).stderr);
    assert!(named.contains("the none backend is not a sandbox"), "the control: {named}");
    assert!(!named.contains(OVERLOOKED), "{named}");
    let described = |words: &[&str]| {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        });
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}});
        let (mut input, asked) = (folder.command(words), folder.root.path().join("asked"));
        fs::write(&asked, format!("{list}\n")).unwrap();
        text(&input.stdin(fs::File::open(asked).unwrap()).output().unwrap().stdout)
    };
    let described_safe = described(&["mcp"]);
    assert!(
        described_safe.contains("in a sandbox") && !described_safe.contains("WITHOUT"),
        "{described_safe}"
    );
    let described_bare = described(&["mcp", "--config", "belljar.toml"]);
    assert!(described_bare.contains("WITHOUT a sandbox"), "{described_bare}");
    folder.write("nonsense = 1");
    let said = text(&folder.run(&["serve", "--listen", "nowhere"]).stderr);
    assert!(said.contains("'nowhere' is not an address") && said.contains(OVERLOOKED), "{said}");
    let named = text(&folder.run(&["serve", "--listen", "nowhere", "--config", "belljar.toml"]).stderr);
    assert!(named.contains("unknown field `nonsense`"), "the control: {named}");
}

#[test]
fn in_the_directory_of_the_users_own_file_that_file_is_read_as_such() {
    let folder = Folder::with("backend = 'none'\n[limits]\npids = 99\n");
    let own = folder.root.path().join("home/.config/belljar");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    symlink(folder.path(), &own).unwrap();
    let listed: Value = serde_json::from_slice(&folder.run(&["config", "--json"]).stdout).unwrap();
    assert_eq!(listed["folder_file"], Value::Null, "{listed}");
    assert_eq!(folder.setting("limits.pids", &[]), pair("99", "file"));
    let mcp = text(&folder.run(&["mcp"]).stderr);
    assert!(mcp.contains("the none backend is not a sandbox") && !mcp.contains(OVERLOOKED), "{mcp}");
    fs::remove_file(&own).unwrap();
    assert!(folder.refusal().contains("cannot set 'backend'"), "the control");
}

#[test]
fn a_project_cannot_lead_an_installation_out_of_itself() {
    let folder = Folder::new();
    let victim = folder.root.path().join("home/precious.json");
    fs::write(&victim, "{}").unwrap();
    folder.give(&victim);
    let install = |client: &str| folder.run(&["mcp", "install", "--client", client, "--scope", "project"]);
    symlink(&victim, folder.path().join(".mcp.json")).unwrap();
    let refused = install("claude-code");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        text(&refused.stderr).contains("cannot write .mcp.json: .mcp.json is a symbolic link"),
        "{refused:?}"
    );
    symlink(folder.root.path().join("home"), folder.path().join(".cursor")).unwrap();
    let refused = install("cursor");
    assert!(text(&refused.stderr).contains(".cursor is a symbolic link"), "{refused:?}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "{}");
    assert!(!folder.root.path().join("home/mcp.json").exists());
    assert!(install("vscode").status.success(), "the control");
    assert!(folder.path().join(".vscode/mcp.json").is_file());
}

#[test]
fn variables_that_a_project_has_planted_are_shown() {
    let folder = Folder::new();
    let install = || folder.run(&["mcp", "install", "--client", "claude-code", "--scope", "project"]);
    let said = text(&install().stderr);
    assert!(!said.contains("which was there before"), "the control: {said}");
    let path = folder.path().join(".mcp.json");
    let planted = "{\"mcpServers\": {\"belljar\": {\"env\": {\"BELLJAR_BACKEND\": \"none\"}}}}";
    fs::write(&path, planted).unwrap();
    folder.give(&path);
    let said = text(&install().stderr);
    assert!(said.contains("the variable BELLJAR_BACKEND=none, which was there before"), "{said}");
}

#[test]
fn a_variable_cannot_point_into_the_working_directory() {
    let folder = Folder::with("[limits]\npids = 7");
    let with = |value: &str| {
        folder.command(&["run", "sh", "-c", "true"]).env("BELLJAR_CONFIG", value).output().unwrap()
    };
    let refused = with("belljar.toml");
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("BELLJAR_CONFIG is a relative path"), "{refused:?}");
    let missing = with("/no/such.toml");
    assert!(text(&missing.stderr).contains("/no/such.toml: No such file"), "the control: {missing:?}");
}

#[test]
fn a_relative_directory_on_the_path_is_not_searched() {
    let folder = Folder::new();
    fs::copy("/bin/bash", folder.path().join("bash")).unwrap();
    let found = |path: &str| {
        let mut command = folder.command(&["languages", "--backend", "none", "--json"]);
        let listed: Value =
            serde_json::from_slice(&command.env("PATH", path).output().unwrap().stdout).unwrap();
        let rows = listed["languages"].as_array().unwrap();
        let bash = rows.iter().find(|row| row["name"] == "bash").unwrap();
        bash["location"].as_str().is_some_and(|location| Path::new(location).starts_with(folder.path()))
    };
    assert!(
        !found(".:/usr/bin:/bin") && !found(":/usr/bin:/bin"),
        "the empty word means the working directory"
    );
    assert!(found(&format!("{}:/usr/bin:/bin", folder.path().display())), "the control");
}
