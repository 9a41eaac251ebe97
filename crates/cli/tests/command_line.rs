//! What people expect of a command line: help for everything, colors where they belong, completions, man pages, and
//! settings that can be looked up. Nothing here needs a host that can make boxes.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

/// A command in an empty environment and an empty directory.
struct Belljar {
    folder: tempfile::TempDir,
}

impl Belljar {
    fn new() -> Belljar {
        Belljar { folder: tempfile::tempdir().unwrap() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn has_colors(text: &str) -> bool {
    text.contains("\x1b[")
}

/// The names in the list of commands of a help text.
fn commands_of(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty()).filter(|line| line.starts_with("  "));
    let names = listed.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The help of a command and of everything beneath it.
fn walk(belljar: &Belljar, path: &[String], seen: &mut Vec<(String, String)>) {
    for option in ["--help", "-h"] {
        let words: Vec<&str> = path.iter().map(String::as_str).chain([option]).collect();
        let output = belljar.run(&words);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{words:?}");
        seen.push((words.join(" "), stdout(&output)));
    }
    for name in commands_of(&seen[seen.len() - 1].1) {
        walk(belljar, &[path, &[name]].concat(), seen);
    }
}

#[test]
fn every_command_has_help_that_offers_only_what_exists() {
    let belljar = Belljar::new();
    let mut seen = Vec::new();
    walk(&belljar, &[], &mut seen);
    let names: Vec<&str> = seen.iter().map(|(words, _)| words.as_str()).collect();
    for expected in [
        "run -h",
        "doctor -h",
        "config -h",
        "completions -h",
        "mcp install -h",
        "key new -h",
        "approvals show -h",
    ] {
        assert!(names.contains(&expected), "{expected} is not among {names:?}");
    }
    for (words, help) in &seen {
        assert!(help.contains("Usage: belljar") && help.contains("--help"), "{words}: {help}");
        let first = help.lines().next().unwrap();
        assert!(first.starts_with(char::is_uppercase), "{words} does not say what it is for: {first}");
        assert!(!help.contains("kubernetes"), "{words} offers kubernetes: {help}");
        let offers_wasm = help.to_lowercase().contains("wasm");
        assert!(cfg!(feature = "wasm") || !offers_wasm, "{words} offers wasm: {help}");
    }
}

#[test]
fn help_is_also_a_command() {
    let belljar = Belljar::new();
    for (words, option) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "run"], &["run", "--help"]),
        (&["help", "mcp", "install"], &["mcp", "install", "--help"]),
    ] {
        let output = belljar.run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert_eq!(stdout(&output), stdout(&belljar.run(option)), "{words:?}");
    }
    assert_eq!(belljar.run(&["help", "dance"]).status.code(), Some(2));
}

#[test]
fn what_is_not_there_yet_says_so_with_the_code_of_the_contract() {
    let belljar = Belljar::new();
    let error = |words: &[&str]| {
        let output = belljar.run(&[&["run", "sh", "-c", "true", "--json"], words].concat());
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["error"].clone()
    };
    let backend = error(&["--backend", "kubernetes"]);
    assert_eq!(backend["code"], "backend_unavailable");
    assert_eq!(backend["message"], "the kubernetes backend is not available yet");
    let network = error(&["--backend", "none", "--network", "allow:example.org"]);
    assert_eq!(network["code"], "guarantee_unmet");
    assert!(network["message"].as_str().unwrap().contains("cannot be limited to some hosts"), "{network}");
    let unknown = error(&["--backend", "podman"]);
    assert_eq!(
        unknown["hint"],
        "the backends are auto, native, docker, wasm, process and none; gVisor is docker with the runtime runsc"
    );
}

#[cfg(not(feature = "wasm"))]
#[test]
fn a_build_without_wasm_says_how_to_get_it() {
    let belljar = Belljar::new();
    for words in [&["wasm", "list"][..], &["run", "--backend", "wasm", "sh", "-c", "true"]] {
        let told = stderr(&belljar.run(words));
        assert!(told.contains("does not include it") && told.contains("--features wasm"), "{told}");
    }
}

#[test]
fn colors_are_for_terminals_unless_asked_for() {
    let belljar = Belljar::new();
    for words in [&["--help"][..], &["run", "--help"], &["doctor", "--help"], &["dance"]] {
        let shown = |more: &[&str]| {
            let output = belljar.run(&[words, more].concat());
            stdout(&output) + &stderr(&output)
        };
        assert!(!has_colors(&shown(&[])), "{words:?} into a pipe");
        assert!(has_colors(&shown(&["--color", "always"])), "{words:?}");
        assert!(has_colors(&shown(&["--color=always"])), "{words:?}");
        assert!(!has_colors(&shown(&["--color=never"])), "{words:?}");
    }
    let refused = belljar.run(&["run", "--color=always", "pyhton", "-c", "1"]);
    assert!(has_colors(&stderr(&refused)), "{refused:?}");
}

#[test]
fn a_terminal_has_colors_unless_no_color_is_set() {
    let belljar = Belljar::new();
    let shown = |words: &[&str], variables: &[(&str, &str)]| on_a_terminal(&belljar, words, variables);
    assert!(has_colors(&shown(&["--help"], &[])));
    assert!(has_colors(&shown(&["dance"], &[])));
    assert!(!has_colors(&shown(&["dance"], &[("NO_COLOR", "1")])));
    assert!(!has_colors(&shown(&["dance", "--color", "never"], &[])));
    assert!(has_colors(&shown(&["dance", "--color", "always"], &[("NO_COLOR", "1")])));
}

/// What a command writes to a terminal that is its stdout and its stderr.
fn on_a_terminal(belljar: &Belljar, words: &[&str], variables: &[(&str, &str)]) -> String {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
    let terminal = File::options().read(true).write(true).open(name).unwrap();
    let mut command = belljar.command(words);
    command.env("TERM", "xterm").envs(variables.iter().copied());
    command.stdout(terminal.try_clone().unwrap()).stderr(terminal);
    let mut child = command.spawn().unwrap();
    // Drops our own copies of the terminal, so that reading ends when the child does.
    drop(command);
    let (mut shown, mut controller) = (Vec::new(), File::from(controller));
    // The end of a terminal is an error (EIO).
    let _ = controller.read_to_end(&mut shown);
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn quiet_drops_warnings_and_verbose_says_how_the_run_went() {
    let belljar = Belljar::new();
    let run = |option: &[&str]| {
        belljar.run(&[&["run", "--backend", "none", "sh", "-c", "echo out; exit 3"], option].concat())
    };
    let told = |option: &[&str]| {
        let output = run(option);
        assert_eq!((output.status.code(), stdout(&output)), (Some(3), "out\n".to_owned()), "{output:?}");
        stderr(&output)
    };
    assert!(told(&[]).starts_with("warning: the none backend is not a sandbox"), "{}", told(&[]));
    assert_eq!(told(&["-q"]), "");
    let verbose = told(&["--verbose", "-m", "64M"]);
    for expected in
        ["info: none backend", "memory 64M", "info: exited with status 3 after", "not guaranteed: "]
    {
        assert!(verbose.contains(expected), "{expected}: {verbose}");
    }
    let refused = belljar.run(&["run", "-q", "pyhton", "-c", "1"]);
    assert!(stderr(&refused).starts_with("error: unknown language"), "errors are never dropped");
    let json = run(&["-v", "--json"]);
    assert!(serde_json::from_slice::<Value>(&json.stdout).is_ok() && !json.stderr.is_empty(), "{json:?}");
}

#[test]
fn the_short_options_mean_the_same_as_the_long_ones() {
    let belljar = Belljar::new();
    let output = belljar.run(&[
        "run",
        "-q",
        "--backend",
        "none",
        "-l",
        "sh",
        "-e",
        "A=1",
        "-e",
        "B=2",
        "-m",
        "64M",
        "-c",
        "echo $A$B",
    ]);
    assert_eq!(stdout(&output), "12\n", "{output:?}");
    let refused = belljar.run(&["run", "sh", "-c", "true", "-m", "lots"]);
    assert!(stderr(&refused).contains("--memory: 'lots' is not a size"), "{refused:?}");
}

/// What bash completes after these words.
fn completed_by_bash(script: &Path, words: &[&str]) -> Vec<String> {
    let (last, line) = (words.len() - 1, words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>());
    let code = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={last}; _belljar belljar '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        line.join(" "),
        words[last],
        words[last - 1],
    );
    let output = Command::new("bash").args(["--norc", "-c", &code]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    stdout(&output).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let belljar = Belljar::new();
    let script = belljar.path().join("belljar.bash");
    fs::write(&script, belljar.run(&["completions", "bash"]).stdout).unwrap();
    assert!(Command::new("bash").arg("-n").arg(&script).status().unwrap().success());
    let completed = |words: &[&str]| completed_by_bash(&script, words);
    assert_eq!(completed(&["belljar", "doc"]), ["doctor"]);
    assert_eq!(completed(&["belljar", "run", "--time"]), ["--timeout"]);
    assert_eq!(completed(&["belljar", "run", "py"]), ["python"]);
    assert_eq!(completed(&["belljar", "run", "--backend", "na"]), ["native"]);
    assert_eq!(completed(&["belljar", "run", "--waive", "mem"]), ["memory"]);
    assert_eq!(completed(&["belljar", "mcp", "install", "--client", "cur"]), ["cursor"]);
    let none: Vec<String> = completed(&["belljar", "run", "--backend", "kube"]);
    assert!(none.iter().all(String::is_empty), "{none:?}");
}

#[test]
fn every_shell_gets_a_script() {
    let belljar = Belljar::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = belljar.run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(stdout(&output).contains("--output-limit") || shell == "fish", "{shell}");
    }
    let refused = belljar.run(&["completions", "x"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("hint: the values are bash, elvish, fish, powershell, zsh"),
        "{refused:?}"
    );
}

#[test]
fn man_pages_are_written_for_every_command() {
    let belljar = Belljar::new();
    let output = belljar.run(&["man", "share/man/man1"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let folder = belljar.path().join("share/man/man1");
    for name in commands_of(&stdout(&belljar.run(&["-h"]))) {
        let page = fs::read_to_string(folder.join(format!("belljar-{name}.1"))).unwrap();
        assert!(page.contains(&format!(".TH belljar-{name} 1")), "{page}");
        // A line that starts with a dot is a request, and every one that is used here exists.
        for line in page.lines().filter(|line| line.starts_with('.')) {
            let request = line.split(' ').next().unwrap();
            let known = [
                ".TH", ".SH", ".SS", ".TP", ".RS", ".RE", ".PP", ".br", ".ie", ".el", ".ds", ".sp", ".nf",
                ".fi", ".IP",
            ];
            assert!(known.contains(&request), "{name}: {line}");
        }
    }
    let refused = belljar.run(&["man", "/dev/null/man"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).starts_with("error: cannot write man pages to /dev/null/man"), "{refused:?}");
}

#[test]
fn config_says_where_each_setting_comes_from() {
    let belljar = Belljar::new();
    let hash = "ab".repeat(32);
    let toml = format!(
        "waive = ['disk']\n[limits]\ntimeout = 3\nmemory = '3M'\npids = 7\ndisk = '1G'\n\
         [server]\nslots = 3\n[server.allow]\nlanguages = ['python']\n\
         [runtimes]\npython = '/opt/python'\n[[keys]]\nname = 'ci'\nsha256 = '{hash}'\n"
    );
    fs::write(belljar.path().join("belljar.toml"), toml).unwrap();
    let mut command = belljar.command(&["config", "--json", "--timeout", "1s", "--config", "belljar.toml"]);
    let output = command.env("BELLJAR_MEMORY", "64M").env("CODE_EXEC_SANDBOX", "docker").output().unwrap();
    let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listing["config_file"], "belljar.toml");
    let of = |key: &str| {
        let settings = listing["settings"].as_array().unwrap();
        let found: Vec<_> = settings.iter().filter(|setting| setting["key"] == key).collect();
        assert_eq!(found.len(), 1, "{key}: {found:?}");
        (found[0]["value"].clone(), found[0]["source"].clone(), found[0]["name"].clone())
    };
    let file = |value: &str| (json!(value), json!("file"), json!("belljar.toml"));
    assert_eq!(of("limits.timeout"), (json!("1s"), json!("flag"), json!("--timeout")));
    assert_eq!(of("limits.memory"), (json!("64M"), json!("environment"), json!("BELLJAR_MEMORY")));
    assert_eq!(of("backend"), (json!("docker"), json!("environment"), json!("CODE_EXEC_SANDBOX")));
    assert_eq!(of("limits.pids"), file("7"));
    assert_eq!(of("limits.disk"), file("1G"));
    assert_eq!(of("waive"), file("disk"));
    assert_eq!(of("limits.cpus"), (json!("1"), json!("default"), Value::Null));
    assert_eq!(of("server.slots"), file("3"));
    assert_eq!(of("server.queue").1, "default");
    assert_eq!(of("server.allow.languages"), file("python"));
    assert_eq!(of("runtimes.python"), file("/opt/python"));
    assert_eq!(of("keys[0].name"), file("ci"));
    assert!(!stdout(&output).contains(&hash), "hashes of keys are not shown");
}

#[test]
fn config_is_a_table_for_people_and_refuses_what_a_run_would_refuse() {
    let belljar = Belljar::new();
    let shown = stdout(&belljar.run(&["config"]));
    assert!(shown.starts_with("Configuration file: none\n\nSETTING"), "{shown}");
    let line = shown.lines().find(|line| line.starts_with("limits.timeout")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["limits.timeout", "10s", "default"]);
    for (words, told) in [
        (&["config", "--memory", "lots"][..], "--memory: 'lots' is not a size"),
        (&["config", "--memory", "0"], "memory must be between"),
        (&["config", "--config", "gone"], "cannot read the configuration file gone"),
    ] {
        let refused = belljar.run(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        assert!(stderr(&refused).contains(told), "{refused:?}");
    }
}

#[test]
fn doctor_is_short_and_shows_the_rest_on_request() {
    let belljar = Belljar::new();
    let shown = |words: &[&str]| stdout(&belljar.run(words));
    let short = shown(&["doctor", "--backend", "process"]);
    assert!(short.starts_with("Runs use the process backend.\n\nprocess: not a sandbox\n"), "{short}");
    assert!(short.contains("\nOther backends: native (") && !short.contains("\nnone: "), "{short}");
    let full = shown(&["doctor", "--backend", "process", "--all"]);
    for backend in ["process", "native", "docker", "wasm", "none"] {
        assert!(full.contains(&format!("\n{backend}: ")), "{backend}: {full}");
    }
    assert_eq!(shown(&["doctor", "--backend", "process", "-v"]), full);
    let none = shown(&["doctor", "--backend", "none"]);
    assert!(none.contains("Not guaranteed: filesystem, network, memory"), "{none}");
    let json: Value = serde_json::from_str(&shown(&["doctor", "--backend", "process", "--json"])).unwrap();
    let names: Vec<_> = json["backends"].as_array().unwrap().iter().map(|backend| &backend["name"]).collect();
    assert_eq!(names, ["native", "docker", "wasm", "process", "none"], "strongest first");
    assert_eq!(json["default"], "process");
}

#[test]
fn languages_are_listed_with_their_aliases_on_request() {
    let belljar = Belljar::new();
    let shown = |words: &[&str]| stdout(&belljar.run(words));
    assert!(!shown(&["languages", "--backend", "none"]).contains("py, python3"));
    assert!(shown(&["languages", "--backend", "none", "-v"]).contains("py, python3"));
}
