//! How Belljar says that something went wrong: `error:` and `hint:` on stderr, or the error object on stdout.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use belljar_core::guarantee::Guarantee;
use belljar_core::request::BackendName;
use belljar_wire::{Code, Problem, to_json};
use clap::error::{ContextKind, ErrorKind};

use crate::output::inert;

/// The exit status of `run` for a failure of ours; of every other command.
pub(crate) const RUN_FAILED: u8 = 125;
pub(crate) const COMMAND_FAILED: u8 = 2;

/// Tells the problem the way that the command line asked for.
pub(crate) fn report(problem: &Problem, json: bool) {
    if json {
        say(&to_json(problem));
        return;
    }
    let text = described(problem, stderr_has_colours());
    // Nobody is left to tell if stderr is gone.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Tells whoever chose a backend that is no sandbox what that means.
pub(crate) fn warn_of(backend: BackendName, waived: &[Guarantee]) {
    if backend.is_only_by_name() {
        let text = warning(backend, waived, stderr_has_colours());
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

fn warning(backend: BackendName, waived: &[Guarantee], colours: bool) -> String {
    let (yellow, plain) = if colours { ("\x1b[1;33m", "\x1b[0m") } else { ("", "") };
    let waived: Vec<_> = waived.iter().map(|guarantee| guarantee.name()).collect();
    let waived = waived.join(", ");
    format!("{yellow}warning:{plain} the {backend} backend is no sandbox; not kept: {waived}\n")
}

/// Prints to stdout. Whoever closed it does not want to know more.
pub(crate) fn say(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}

/// What `clap` has to say, in our words: help and version are answers, everything else is a problem.
pub(crate) fn report_usage(usage: &clap::Error, argv: &[OsString]) -> ExitCode {
    if matches!(usage.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        say(&usage.render().to_string());
        return ExitCode::SUCCESS;
    }
    let running = argv.get(1).is_some_and(|command| command == "run");
    if usage.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = io::stderr().write_all(usage.render().to_string().as_bytes());
        return ExitCode::from(COMMAND_FAILED);
    }
    let json = argv.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    report(&in_our_words(usage, running), json);
    ExitCode::from(if running { RUN_FAILED } else { COMMAND_FAILED })
}

fn in_our_words(usage: &clap::Error, running: bool) -> Problem {
    let text = usage.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let message = paragraphs.next().unwrap_or_default().trim_start_matches("error: ");
    let message = match (usage.kind(), usage.get(ContextKind::InvalidValue)) {
        (ErrorKind::TooManyValues, Some(word)) => format!("unexpected argument '{word}' found"),
        _ => message.split_whitespace().collect::<Vec<_>>().join(" "),
    };
    let tip = paragraphs.find_map(|paragraph| paragraph.trim().strip_prefix("tip: ")?.lines().next());
    let help = if running { "belljar run --help" } else { "belljar --help" };
    let hint = match tip {
        Some(tip) => format!("{tip}; see {help}"),
        None if running => format!("see {help}; arguments to the program go after --"),
        None => format!("see {help}"),
    };
    Problem::new(Code::InvalidRequest, message, hint)
}

fn described(problem: &Problem, colours: bool) -> String {
    let (red, cyan, plain) = if colours { ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m") } else { ("", "", "") };
    let fault = &problem.error;
    let (message, hint) = (inert(&fault.message), inert(&fault.hint));
    format!("{red}error:{plain} {message}\n{cyan}hint:{plain} {hint}\n")
}

fn stderr_has_colours() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    io::stderr().is_terminal() && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    fn usage(words: &[&str]) -> String {
        let error = Cli::try_parse_from(["belljar"].iter().chain(words)).unwrap_err();
        described(&in_our_words(&error, words[0] == "run"), false)
    }

    #[test]
    fn usage_errors_are_one_error_and_one_hint() {
        insta::assert_snapshot!(usage(&["run", "--tiemout", "1s"]), @"
        error: unexpected argument '--tiemout' found
        hint: a similar argument exists: '--timeout'; see belljar run --help
        ");
        insta::assert_snapshot!(usage(&["run", "python", "a.py", "b"]), @"
        error: unexpected argument 'b' found
        hint: see belljar run --help; arguments to the program go after --
        ");
        insta::assert_snapshot!(usage(&["run", "--memory"]), @"
        error: a value is required for '--memory <SIZE>' but none was supplied
        hint: see belljar run --help; arguments to the program go after --
        ");
        insta::assert_snapshot!(usage(&["doktor"]), @"
        error: unrecognized subcommand 'doktor'
        hint: a similar subcommand exists: 'doctor'; see belljar --help
        ");
        insta::assert_snapshot!(usage(&["run", "python", "--collect-to", "x"]), @"
        error: the following required arguments were not provided: --collect <GLOB>
        hint: see belljar run --help; arguments to the program go after --
        ");
    }

    #[test]
    fn a_backend_that_is_no_sandbox_is_warned_of_with_what_it_does_not_keep() {
        let text = warning(BackendName::Process, &[Guarantee::Filesystem, Guarantee::Network], false);
        let said = "warning: the process backend is no sandbox; not kept: filesystem, network\n";
        assert_eq!(text, said);
    }

    #[test]
    fn a_hostile_name_in_a_message_cannot_drive_the_terminal() {
        let problem = Problem::new(Code::InvalidRequest, "cannot read \x1b[2Jx", "name\nanother");
        assert_eq!(described(&problem, false), "error: cannot read ^[[2Jx\nhint: name\nanother\n");
    }
}
