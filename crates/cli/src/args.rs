//! What may be typed. Nothing is interpreted here: words stay words until [`crate::settings`] and
//! [`crate::source`] have weighed them against the environment and the configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, FromArgMatches, Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::key::KeyArgs;
use crate::mcp::McpArgs;
use crate::pool::PoolArgs;
use crate::serve::ServeArgs;
use crate::wasm::WasmArgs;

const RUN_HELP: &str = "\
{about-with-newline}
{usage-heading} {usage}

Examples:
  belljar run python -c 'print(2**64)'
  belljar run script.rb -- first second
  curl -s https://example.org/install.sh | belljar run bash
  belljar run python plot.py --file data.csv --collect '*.png'
  belljar run node app.js --workspace . --memory 512M --timeout 30s

{all-args}{after-help}";

/// Run code that nobody has read, in a box that is gone afterwards.
#[derive(Debug, Parser)]
#[command(
    name = "belljar",
    version,
    disable_help_subcommand = true,
    after_help = "Start with:  belljar run python -c 'print(2**64)'"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run code in a sandbox
    #[command(
        help_template = RUN_HELP,
        override_usage = "belljar run [LANGUAGE] [FILE | -] [-c CODE] [OPTIONS] [-- ARGS...]"
    )]
    Run(Box<RunArgs>),
    /// What can run here, with which runtime, and how to get what is missing
    Languages(HostArgs),
    /// What this host can guarantee, what it cannot, why, and what would help
    Doctor(HostArgs),
    /// Serve the HTTP API, on loopback unless told otherwise
    Serve(ServeArgs),
    /// Serve MCP on standard input and output, or tell an MCP client to
    Mcp(Box<McpArgs>),
    /// The boxes that a server keeps waiting for runs
    Pool(PoolArgs),
    /// The interpreters that run as WebAssembly modules
    Wasm(WasmArgs),
    /// Keys for those who may ask the server
    Key(KeyArgs),
    /// Print the OpenAPI description of the HTTP interface
    #[command(hide = true)]
    Openapi,
    /// Measure what a box costs on this host
    Bench(BenchArgs),
}

impl Cli {
    /// Reads the words that were typed. Only the parser of the command that they name is made, if that is `run`: making
    /// those of all commands takes longer than reading the words.
    pub(crate) fn read(words: &[OsString]) -> Result<Cli, clap::Error> {
        if words.get(1).is_some_and(|word| word == "run") {
            let matches = Cli::for_run().try_get_matches_from(words)?;
            return Cli::from_arg_matches(&matches);
        }
        Cli::try_parse_from(words)
    }

    fn for_run() -> clap::Command {
        let whole = clap::Command::new("belljar").disable_help_subcommand(true).subcommand_required(true);
        whole.subcommand(Command::run(clap::Command::new("run")))
    }
}

impl Command {
    fn run(command: clap::Command) -> clap::Command {
        // Augmenting sets another description, that of the last struct that was flattened in.
        RunArgs::augment_args(command)
            .about("Run code in a sandbox")
            .help_template(RUN_HELP)
            .override_usage("belljar run [LANGUAGE] [FILE | -] [-c CODE] [OPTIONS] [-- ARGS...]")
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The language, the file with the code, or both; `-` is standard input
    #[arg(value_name = "LANGUAGE] [FILE", num_args = 0..=2)]
    pub(crate) words: Vec<OsString>,

    /// Arguments to the program
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,

    /// The code itself
    #[arg(short = 'c', long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) code: Option<String>,

    /// Language or alias [default: from the file's ending or its `#!` line]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) language: Option<String>,

    /// What the code reads; `-` passes your own [default: nothing]
    #[arg(long, value_name = "FILE")]
    pub(crate) stdin: Option<PathBuf>,

    /// A variable for the program; nothing of your environment gets in otherwise
    #[arg(long, value_name = "K=V")]
    pub(crate) env: Vec<String>,

    /// A directory to show read-only at /work, and to work in
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub(crate) workspace: Option<PathBuf>,

    /// A file to copy into the working directory; repeatable
    #[arg(long, value_name = "SRC[:DEST]", help_heading = "Files")]
    pub(crate) file: Vec<OsString>,

    /// Files to bring back from the working directory; repeatable
    #[arg(long, value_name = "GLOB", help_heading = "Files")]
    pub(crate) collect: Vec<String>,

    /// Where to put them [default: .]
    #[arg(long, value_name = "DIR", help_heading = "Files", requires = "collect")]
    pub(crate) collect_to: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) choices: Choices,

    /// Print the result object instead of passing output through
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,

    /// With --json, also give the output byte for byte
    #[arg(long, help_heading = "Output", requires = "json")]
    pub(crate) base64: bool,

    /// Print what would be done, and do nothing
    #[arg(long, help_heading = "Output")]
    pub(crate) explain: bool,

    /// The configuration to read [default: ./belljar.toml, else the user's]
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) config: Option<PathBuf>,
}

/// The options that the environment and the configuration can set, too.
#[derive(Debug, Default, Args)]
pub(crate) struct Choices {
    /// Wall clock for the whole tree of processes [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) timeout: Option<String>,

    /// CPU time for the whole tree of processes [default: none]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) cpu_time: Option<String>,

    /// Memory and swap together [default: 256M]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) memory: Option<String>,

    /// CPU rate [default: 1.0]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) cpus: Option<String>,

    /// Processes and threads [default: 50]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) pids: Option<String>,

    /// Everything the code can write [default: 64M]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) disk: Option<String>,

    /// How much of each of stdout and stderr is kept [default: 1M]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) output_limit: Option<String>,

    /// none, full, or allow:HOST[:PORT],... [default: none]
    #[arg(long, value_name = "NETWORK", help_heading = "Isolation")]
    pub(crate) network: Option<String>,

    /// auto, native, docker, wasm, kubernetes, process or none [default: auto]
    #[arg(long, value_name = "NAME", help_heading = "Isolation")]
    pub(crate) backend: Option<String>,

    /// An OCI image, where the backend takes one [default: the language's]
    #[arg(long, value_name = "REF", help_heading = "Isolation")]
    pub(crate) image: Option<String>,

    /// Docker's runtime: runsc is gVisor [default: the daemon's]
    #[arg(long, value_name = "NAME", help_heading = "Isolation")]
    pub(crate) runtime: Option<String>,

    /// Accept that this host cannot keep this guarantee; repeatable
    #[arg(long, value_name = "GUARANTEE", help_heading = "Isolation")]
    pub(crate) waive: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// The backend that runs would go to: auto, native, docker, wasm, kubernetes, process or none [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,

    /// The configuration to read [default: ./belljar.toml, else the user's]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl HostArgs {
    /// What was chosen here, as `run` would have it.
    pub(crate) fn choices(&self) -> Choices {
        Choices { backend: self.backend.clone(), ..Choices::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run(words: &[&str]) -> Result<RunArgs, clap::Error> {
        let words: Vec<_> = ["belljar", "run"].iter().chain(words).map(OsString::from).collect();
        let command = Cli::read(&words)?.command;
        let Command::Run(args) = command else { unreachable!("asked for run, not {command:?}") };
        Ok(*args)
    }

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_parser_of_run_alone_is_that_of_the_whole() {
        let help = |mut command: clap::Command| {
            command.build();
            command.find_subcommand_mut("run").unwrap().render_long_help().to_string()
        };
        assert_eq!(help(Cli::for_run()), help(Cli::command()));
        let wrong = ["belljar", "run", "python", "--nonsense"].map(OsString::from);
        let (alone, whole) = (Cli::read(&wrong).unwrap_err(), Cli::try_parse_from(&wrong).unwrap_err());
        assert_eq!(alone.to_string(), whole.to_string());
    }

    #[test]
    fn words_before_and_after_the_dashes_are_kept_apart() {
        let args = run(&["python", "a.py", "--json", "--", "--json", "-c", "x"]).unwrap();
        assert_eq!(args.words, ["python", "a.py"]);
        assert_eq!(args.args, ["--json", "-c", "x"]);
        assert!(args.json && args.code.is_none());
    }

    #[test]
    fn options_may_stand_before_between_and_after_the_words() {
        let args =
            run(&["--timeout", "1s", "python", "--pids=3", "-", "--env", "A=b", "--env", "C=d"]).unwrap();
        assert_eq!(args.words, ["python", "-"]);
        assert_eq!(args.choices.timeout.as_deref(), Some("1s"));
        assert_eq!(args.choices.pids.as_deref(), Some("3"));
        assert_eq!(args.env, ["A=b", "C=d"]);
    }

    #[test]
    fn code_may_begin_with_a_dash() {
        assert_eq!(run(&["python", "-c", "-1"]).unwrap().code.as_deref(), Some("-1"));
    }

    #[test]
    fn a_third_word_is_refused() {
        assert!(run(&["python", "a.py", "b"]).is_err());
    }

    #[test]
    fn options_that_mean_nothing_alone_are_refused() {
        assert!(run(&["python", "a.py", "--collect-to", "out"]).is_err());
        assert!(run(&["python", "a.py", "--base64"]).is_err());
    }

    #[test]
    fn help_shows_examples_before_options() {
        let mut command = Cli::command();
        let run = command.find_subcommand_mut("run").unwrap().clone();
        insta::assert_snapshot!(run.term_width(100).render_help());
    }

    #[test]
    fn help_of_the_whole_names_every_command() {
        insta::assert_snapshot!(Cli::command().term_width(100).render_help());
    }
}
