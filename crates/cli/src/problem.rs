//! How Belljar reports that something went wrong: `error:` and `hint:` on stderr, or the error object on stdout.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use belljar_core::guarantee::Guarantee;
use belljar_core::request::BackendName;
use belljar_wire::{Code, Problem, to_json};
use clap::CommandFactory;
use clap::error::{ContextKind, ErrorKind};

use crate::args::{Cli, Verbosity};
use crate::mistaken;
use crate::output::inert;

/// The exit status of `run` if Belljar itself fails, and that of every other command.
pub(crate) const RUN_FAILED: u8 = 125;
pub(crate) const COMMAND_FAILED: u8 = 2;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Cyan.on_default().bold();

/// Sets when messages, help texts and the log are colored.
pub(crate) fn choose_colors(choice: clap::ColorChoice) {
    match choice {
        clap::ColorChoice::Auto => ColorChoice::Auto,
        clap::ColorChoice::Always => ColorChoice::Always,
        clap::ColorChoice::Never => ColorChoice::Never,
    }
    .write_global();
}

/// Whether what goes to stderr has colors: as chosen, else on a terminal unless `NO_COLOR` is set.
pub(crate) fn stderr_has_colors() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

/// Reports the problem in the form that the command line asked for.
pub(crate) fn report(problem: &Problem, json: bool) {
    if json {
        say(&to_json(problem));
        return;
    }
    tell(&described(problem));
}

/// Warns about a backend that is not a sandbox.
pub(crate) fn warn_of(backend: BackendName, waived: &[Guarantee], verbosity: Verbosity) {
    if backend.is_only_by_name() && verbosity != Verbosity::Quiet {
        tell(&warning(backend, waived));
    }
}

/// Warns about something that did not go as a user may expect.
pub(crate) fn warn(text: &str, verbosity: Verbosity) {
    if verbosity != Verbosity::Quiet {
        tell(&format!("{WARNING}warning:{WARNING:#} {}\n", inert(text)));
    }
}

/// Says something that only `--verbose` asks for.
pub(crate) fn note(text: &str) {
    tell(&format!("{NOTE}info:{NOTE:#} {}\n", inert(text)));
}

fn warning(backend: BackendName, waived: &[Guarantee]) -> String {
    let waived: Vec<_> = waived.iter().map(|guarantee| guarantee.name()).collect();
    let waived = waived.join(", ");
    format!("{WARNING}warning:{WARNING:#} the {backend} backend is not a sandbox; not guaranteed: {waived}\n")
}

/// Prints to stdout. A reader that has closed it does not want the rest.
pub(crate) fn say(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}

/// Prints styled text to stderr. If that fails, there is no place left to report it.
fn tell(styled: &str) {
    let _ = anstream::stderr().write_all(styled.as_bytes());
}

/// Prints what `clap` found: help and version are answers, everything else is a problem.
pub(crate) fn report_usage(usage: &clap::Error, argv: &[OsString]) -> ExitCode {
    choose_colors(typed_colors(argv));
    let styled = usage.render().ansi().to_string();
    if matches!(usage.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = anstream::stdout().write_all(styled.as_bytes());
        return ExitCode::SUCCESS;
    }
    if usage.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        tell(&styled);
        return ExitCode::from(COMMAND_FAILED);
    }
    let running = argv.get(1).is_some_and(|command| command == "run");
    let json = options(argv).any(|word| word == "--json");
    report(&in_our_words(usage, argv), json);
    ExitCode::from(if running { RUN_FAILED } else { COMMAND_FAILED })
}

/// The words before `--`, which separates them from the arguments of a program.
pub(crate) fn options(argv: &[OsString]) -> impl Iterator<Item = &OsStr> {
    argv.iter().map(OsString::as_os_str).take_while(|word| *word != "--")
}

/// What `--color` says on a command line that could not be parsed.
fn typed_colors(argv: &[OsString]) -> clap::ColorChoice {
    let mut words = options(argv).map(OsStr::to_string_lossy);
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--color") {
            Some("") => words.next(),
            Some(rest) => rest.strip_prefix('=').map(|value| value.to_owned().into()),
            None => None,
        };
        if let Some(choice) = value.and_then(|value| value.parse().ok()) {
            return choice;
        }
    }
    clap::ColorChoice::Auto
}

/// The command that was meant, as in `belljar mcp install`: the one whose help is of use.
fn command_path(argv: &[OsString]) -> String {
    let (mut command, mut path) = (Cli::command(), "belljar".to_owned());
    for word in options(argv).skip(1) {
        if let Some(sub) = command.find_subcommand(word).cloned() {
            path = format!("{path} {}", sub.get_name());
            command = sub;
        }
    }
    path
}

fn in_our_words(usage: &clap::Error, argv: &[OsString]) -> Problem {
    let path = command_path(argv);
    if let Some(problem) = (path == "belljar run").then(|| mistaken::module(argv)).flatten() {
        return problem;
    }
    let found = |kind| usage.get(kind).map(ToString::to_string).unwrap_or_default();
    Problem::new(Code::InvalidRequest, fault(usage, &found), usage_hint(usage, &found, &path, argv))
}

fn usage_hint(
    usage: &clap::Error,
    found: &dyn Fn(ContextKind) -> String,
    path: &str,
    argv: &[OsString],
) -> String {
    let unknown = found(ContextKind::InvalidArg);
    if let Some(address) = (path == "belljar serve").then(|| mistaken::address(&unknown, argv)).flatten() {
        return format!("the address and the port are one option: --listen {address}");
    }
    let values = found(ContextKind::ValidValue);
    if let Some(near) = usage.get(ContextKind::SuggestedValue) {
        return format!("did you mean '{near}'? The values are {values}");
    }
    let mut suggestions = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand].into_iter();
    let help = format!("see {path} --help");
    match suggestions.find_map(|kind| usage.get(kind)) {
        Some(near) => format!("did you mean '{near}'? {}", capitalized(&help)),
        None if !values.is_empty() => format!("the values are {values}"),
        None if path == "belljar run" && is_stray(usage.kind()) => {
            format!("{help}; arguments for the program go after --")
        }
        None => help,
    }
}

fn fault(usage: &clap::Error, found: &dyn Fn(ContextKind) -> String) -> String {
    let (arg, value) = (found(ContextKind::InvalidArg), found(ContextKind::InvalidValue));
    match usage.kind() {
        ErrorKind::UnknownArgument if arg.starts_with('-') => format!("unknown option '{arg}'"),
        ErrorKind::UnknownArgument => format!("unexpected argument '{arg}'"),
        ErrorKind::TooManyValues => format!("unexpected argument '{value}'"),
        ErrorKind::InvalidSubcommand => {
            format!("unknown command '{}'", found(ContextKind::InvalidSubcommand))
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{arg} needs a value"),
        ErrorKind::InvalidValue => format!("'{value}' is not a value for {arg}"),
        ErrorKind::ValueValidation => {
            let why = usage.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("'{value}' is not a value for {arg}{why}")
        }
        ErrorKind::MissingRequiredArgument => format!("{} is required", alternatives(&arg)),
        ErrorKind::ArgumentConflict if arg == found(ContextKind::PriorArg) => format!("{arg} is given twice"),
        ErrorKind::ArgumentConflict => {
            format!("{arg} cannot be used together with {}", found(ContextKind::PriorArg))
        }
        ErrorKind::InvalidUtf8 => "an argument is not valid UTF-8".to_owned(),
        // The parser has no arguments that could cause these, or they are reported elsewhere.
        ErrorKind::NoEquals
        | ErrorKind::TooFewValues
        | ErrorKind::WrongNumberOfValues
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelp
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::DisplayVersion
        | ErrorKind::Io
        | ErrorKind::Format
        | _ => usage.kind().to_string(),
    }
}

/// Whether a word was found where none belongs.
fn is_stray(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnknownArgument | ErrorKind::TooManyValues)
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

fn described(problem: &Problem) -> String {
    let fault = &problem.error;
    let (message, hint) = (inert(&fault.message), inert(&fault.hint));
    format!("{ERROR}error:{ERROR:#} {message}\n{NOTE}hint:{NOTE:#} {hint}\n")
}

/// One of several arguments, which clap writes as `<--one|--other>`.
fn alternatives(arg: &str) -> String {
    match arg.strip_prefix('<').and_then(|arg| arg.strip_suffix('>')) {
        Some(several) if several.contains('|') => several.replace('|', " or "),
        _ => arg.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(styled: &str) -> String {
        anstream::adapter::strip_str(styled).to_string()
    }

    fn usage(words: &[&str]) -> String {
        let argv: Vec<OsString> = ["belljar"].iter().chain(words).map(OsString::from).collect();
        let error = Cli::read(&argv).unwrap_err();
        plain(&described(&in_our_words(&error, &argv)))
    }

    #[test]
    fn usage_errors_are_one_error_and_one_hint() {
        insta::assert_snapshot!(usage(&["run", "--tiemout", "1s"]), @"
        error: unknown option '--tiemout'
        hint: did you mean '--timeout'? See belljar run --help
        ");
        insta::assert_snapshot!(usage(&["run", "python", "a.py", "b"]), @"
        error: unexpected argument 'b'
        hint: see belljar run --help; arguments for the program go after --
        ");
        insta::assert_snapshot!(usage(&["run", "--memory"]), @"
        error: --memory <SIZE> needs a value
        hint: see belljar run --help
        ");
        insta::assert_snapshot!(usage(&["doktor"]), @"
        error: unknown command 'doktor'
        hint: did you mean 'doctor'? See belljar --help
        ");
        insta::assert_snapshot!(usage(&["run", "python", "--collect-to", "x"]), @"
        error: --collect <GLOB> or --plots is required
        hint: see belljar run --help
        ");
        insta::assert_snapshot!(usage(&["run", "--json", "--json"]), @"
        error: --json is given twice
        hint: see belljar run --help
        ");
        insta::assert_snapshot!(usage(&["run", "-v", "-q"]), @"
        error: --verbose cannot be used together with --quiet
        hint: see belljar run --help
        ");
        insta::assert_snapshot!(usage(&["doctor", "--color", "sometimes"]), @"
        error: 'sometimes' is not a value for --color <WHEN>
        hint: the values are auto, always, never
        ");
        insta::assert_snapshot!(usage(&["mcp", "install", "--client", "cursr"]), @"
        error: 'cursr' is not a value for --client <CLIENT>
        hint: did you mean 'cursor'? The values are claude-code, claude-desktop, cursor, vscode
        ");
        insta::assert_snapshot!(usage(&["mcp", "install"]), @"
        error: --client <CLIENT> is required
        hint: see belljar mcp install --help
        ");
        insta::assert_snapshot!(usage(&["key", "new", "--name", ""]), @"
        error: '' is not a value for --name <NAME>: a name has 1 to 64 bytes, no control characters, and is not 'anonymous'
        hint: see belljar key new --help
        ");
        insta::assert_snapshot!(usage(&["key", "old"]), @"
        error: unknown command 'old'
        hint: see belljar key --help
        ");
        insta::assert_snapshot!(usage(&["audit", "search", "--status", "timeout"]), @"
        error: 'timeout' is not a value for --status <STATUS>
        hint: did you mean 'timed_out'? The values are exited, timed_out, out_of_memory, signaled, cancelled, denied, refused, failed, unrecorded
        ");
        insta::assert_snapshot!(usage(&["audit", "search", "--status", "ok"]), @"
        error: 'ok' is not a value for --status <STATUS>
        hint: the values are exited, timed_out, out_of_memory, signaled, cancelled, denied, refused, failed, unrecorded
        ");
        insta::assert_snapshot!(usage(&["approvals", "list", "--status", "open"]), @"
        error: 'open' is not a value for --status <STATUS>
        hint: did you mean 'pending'? The values are pending, approved, denied, expired, cancelled, all
        ");
        insta::assert_snapshot!(usage(&["bench", "--runs", "0"]), @"
        error: '0' is not a value for --runs <N>: 0 is not in 1..=65535
        hint: see belljar bench --help
        ");
    }

    #[test]
    fn the_options_of_other_servers_lead_to_the_one_of_this() {
        insta::assert_snapshot!(usage(&["serve", "--port", "9000"]), @"
        error: unknown option '--port'
        hint: the address and the port are one option: --listen 127.0.0.1:9000
        ");
        insta::assert_snapshot!(usage(&["serve", "--host=0.0.0.0", "-p", "80"]), @"
        error: unknown option '--host'
        hint: the address and the port are one option: --listen 0.0.0.0:80
        ");
        insta::assert_snapshot!(usage(&["serve", "--prot", "9000"]), @"
        error: unknown option '--prot'
        hint: see belljar serve --help
        ");
    }

    #[test]
    fn a_module_of_python_is_recognized_on_a_line_that_does_not_parse() {
        insta::assert_snapshot!(usage(&["run", "python", "-m", "pytest", "-k", "slow"]), @r#"
        error: -m is short for --memory here, and 'pytest' is not a size
        hint: to run a module: belljar run python -c 'import runpy; runpy.run_module("pytest", run_name="__main__")' --workspace . (arguments of the module go after --)
        "#);
        insta::assert_snapshot!(usage(&["run", "python", "-m", "64M", "-k", "slow"]), @"
        error: unknown option '-k'
        hint: see belljar run --help; arguments for the program go after --
        ");
    }

    #[test]
    fn colors_are_found_on_a_line_that_does_not_parse() {
        let typed = |words: &[&str]| typed_colors(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(typed(&["belljar", "dance", "--color", "never"]), clap::ColorChoice::Never);
        assert_eq!(typed(&["belljar", "--color=always", "dance"]), clap::ColorChoice::Always);
        assert_eq!(typed(&["belljar", "--color", "blue"]), clap::ColorChoice::Auto);
        assert_eq!(typed(&["belljar", "run", "--", "--color=always"]), clap::ColorChoice::Auto);
    }

    #[test]
    fn a_backend_that_is_not_a_sandbox_is_warned_of_with_what_it_does_not_keep() {
        let text = warning(BackendName::Process, &[Guarantee::Filesystem, Guarantee::Network]);
        let said = "warning: the process backend is not a sandbox; not guaranteed: filesystem, network\n";
        assert_eq!(plain(&text), said);
    }

    #[test]
    fn a_hostile_name_in_a_message_cannot_drive_the_terminal() {
        let problem = Problem::new(Code::InvalidRequest, "cannot read \x1b[2Jx", "name\nanother");
        assert_eq!(plain(&described(&problem)), "error: cannot read ^[[2Jx\nhint: name\nanother\n");
    }
}
