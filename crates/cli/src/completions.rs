//! `belljar completions` and the hidden `belljar man`: what a package installs besides the binary, made from the
//! same definitions as the parser.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use belljar_wire::{Code, Problem};
use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory, ValueHint};
use clap_complete::Shell;

use crate::args::{Cli, RUN_EXAMPLES};
use crate::offered;
use crate::problem;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bash  belljar completions bash > ~/.local/share/bash-completion/completions/belljar
  zsh   belljar completions zsh > ~/.zfunc/_belljar    (with ~/.zfunc in fpath)
  fish  belljar completions fish > ~/.config/fish/completions/belljar.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory to write to; it is created if it does not exist
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
}

/// Prints the completion script.
pub(crate) fn run(args: &CompletionsArgs) -> ExitCode {
    problem::say(&script(args.shell));
    ExitCode::SUCCESS
}

/// Writes one man page for each command.
pub(crate) fn write_man_pages(args: &ManArgs) -> ExitCode {
    match pages_beneath(&args.directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            let message = format!("cannot write man pages to {}: {cause}", args.directory.display());
            let hint = "name a directory that you may write to";
            problem::report(&Problem::new(Code::InvalidRequest, message, hint), false);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn script(shell: Shell) -> String {
    let mut command = visible(&Cli::command()).mut_subcommand("run", |run| {
        // A colon in the name of a value ends it in the scripts for zsh.
        let run = run.mut_arg("file", |file| file.value_name("FILE"));
        match shell {
            // `run` takes a language or a file first. bash completes files wherever nothing else matches, so only
            // there the languages can be offered as well.
            Shell::Bash => run.mut_arg("words", offer_languages),
            Shell::Elvish | Shell::Fish | Shell::PowerShell | Shell::Zsh | _ => run,
        }
    });
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "belljar", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The command without its hidden subcommands, which the scripts would offer otherwise.
fn visible(command: &clap::Command) -> clap::Command {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible);
    // clap wants names that live as long as the process, which ends once the script is printed.
    let mut copy = clap::Command::new(&*command.get_name().to_owned().leak());
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if command.get_version().is_some() {
        copy = copy.version(env!("CARGO_PKG_VERSION"));
    }
    copy.args(command.get_arguments().cloned()).groups(command.get_groups().cloned()).subcommands(shown)
}

fn offer_languages(words: clap::Arg) -> clap::Arg {
    words.value_parser(PossibleValuesParser::new(offered::language_values()))
}

fn pages_beneath(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    // The examples are in the template of the help text, which man pages do not use.
    let command = Cli::command().mut_subcommand("run", |run| run.after_help(RUN_EXAMPLES));
    clap_mangen::generate_to(command, directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_has_a_script_that_names_every_command_that_is_not_hidden() {
        let hidden = |command: &&clap::Command| command.is_hide_set();
        let cli = Cli::command();
        for shell in Shell::value_variants() {
            let script = script(*shell);
            for command in cli.get_subcommands().filter(|command| !hidden(command)) {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }

    #[test]
    fn what_this_build_does_not_have_is_not_completed() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            assert!(script.contains("native") && !script.contains("kubernetes"), "{shell}");
            assert!(script.contains("allow"), "{shell}");
        }
        for shell in Shell::value_variants() {
            let script = script(*shell);
            assert!(!script.contains("openapi") && !script.contains("fixtures"), "{shell}");
            assert!(cfg!(feature = "wasm") || !script.contains("wasm"), "{shell}");
        }
    }

    #[test]
    fn each_command_has_a_man_page() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("man1");
        pages_beneath(&directory).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(page("belljar.1").contains(".TH belljar 1"), "{}", page("belljar.1"));
        assert!(page("belljar-run.1").contains("\\-\\-timeout"), "{}", page("belljar-run.1"));
        assert!(page("belljar-run.1").contains("belljar run script.rb"), "{}", page("belljar-run.1"));
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let text = page(&format!("belljar-{}.1", command.get_name()));
            for section in [".TH ", ".SH NAME", ".SH SYNOPSIS"] {
                assert!(text.contains(section), "{}: no {section}", command.get_name());
            }
        }
        assert!(!directory.join("belljar-openapi.1").exists());
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error() {
        assert!(pages_beneath(Path::new("/dev/null/man")).is_err());
    }
}
