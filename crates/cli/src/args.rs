//! What may be typed. Nothing is interpreted here: words stay words until [`crate::settings`] and
//! [`crate::source`] have combined them with the environment and the configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use anstyle::{AnsiColor, Style};
use clap::builder::Styles;
use clap::{Args, ColorChoice, FromArgMatches, Parser, Subcommand, ValueHint};

use crate::approvals::ApprovalsArgs;
use crate::audit::AuditArgs;
use crate::bench::BenchArgs;
use crate::completions::{CompletionsArgs, ManArgs};
use crate::config::ConfigArgs;
use crate::doctor::DoctorArgs;
use crate::key::KeyArgs;
use crate::mcp::McpArgs;
use crate::offered;
use crate::policy::PolicyArgs;
use crate::pool::PoolArgs;
use crate::scan;
use crate::serve::ServeArgs;
use crate::wasm::WasmArgs;

const RUN_ABOUT: &str = "Run code in a sandbox";
const RUN_USAGE: &str = "belljar run [LANGUAGE] [FILE | -] [-c CODE] [OPTIONS] [-- ARGS...]";

/// A macro, because `concat!` takes no constants.
macro_rules! run_examples {
    () => {
        "\
Examples:
  belljar run python -c 'print(2**64)'
  belljar run script.rb -- first second
  curl -s https://example.org/install.sh | belljar run bash
  belljar run python plot.py --file data.csv --collect '*.png'
  belljar run node app.js --workspace . -m 512M --timeout 30s
"
    };
}

pub(crate) const RUN_EXAMPLES: &str = run_examples!();
const RUN_HELP: &str =
    concat!("{about-with-newline}\n{usage-heading} {usage}\n\n", run_examples!(), "\n{all-args}{after-help}");

/// The end of `belljar --help` and of the man page.
fn details() -> String {
    let wasm = if cfg!(feature = "wasm") { WASM_LEVELS } else { "" };
    format!("{LEVELS}{wasm}{ENVIRONMENT}")
}

const LEVELS: &str = "\
What -v and -q change:
  run           -v reports the backend, the limits and how the run ended;
                -q hides warnings and the progress of downloads
  doctor        -v is the same as --all
  languages     -v adds aliases and file extensions
  pool          -v adds columns
  serve, mcp    -v logs debug messages, -q only errors
  bench         -q hides progress
";
const WASM_LEVELS: &str = "  wasm install  -v prints each step, -q hides progress
  wasm list     -v adds columns
";
const ENVIRONMENT: &str = "
Results and errors are always printed. Other commands ignore -v and -q.

Environment:
  BELLJAR_CONFIG     Configuration file
  BELLJAR_STATE_DIR  Directory for caches and other state
  BELLJAR_URL        Server that pool, approvals and audit ask
  BELLJAR_API_KEY    API key for that server, and for the one of --url
  BELLJAR_LOG        What serve and mcp log, such as debug; overrides -v, -q
  BELLJAR_BACKEND, BELLJAR_TIMEOUT, BELLJAR_MEMORY and so on
                     Defaults for the options of `belljar run`
  NO_COLOR           Turns colors off

`belljar config` shows the settings in effect and their sources.";

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default())
    .context(Style::new().dimmed());

/// Run untrusted code in a disposable sandbox
#[derive(Debug, Parser)]
#[command(
    name = "belljar",
    version,
    styles = STYLES,
    after_help = "Start with:  belljar run python -c 'print(2**64)'",
    after_long_help = details()
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,

    #[command(subcommand)]
    pub(crate) command: Command,
}

// Not a doc comment: clap would take it for the description of the commands that this is flattened into.
// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Globals {
    /// When to use colors [default: auto]
    #[arg(long, global = true, value_name = "WHEN", value_enum, help_heading = "Global options")]
    color: Option<ColorChoice>,

    /// Print more details
    #[arg(short, long, global = true, help_heading = "Global options")]
    verbose: bool,

    /// Print no warnings and no progress
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Global options")]
    quiet: bool,
}

/// How much Belljar says besides results and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

impl Globals {
    pub(crate) fn color(&self) -> ColorChoice {
        self.color.unwrap_or(ColorChoice::Auto)
    }

    pub(crate) fn verbosity(&self) -> Verbosity {
        match self {
            Globals { quiet: true, .. } => Verbosity::Quiet,
            Globals { verbose: true, .. } => Verbosity::Verbose,
            Globals { .. } => Verbosity::Normal,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(about = RUN_ABOUT, help_template = RUN_HELP, override_usage = RUN_USAGE)]
    Run(Box<RunArgs>),
    /// List the languages that can run here, and how to install the others
    Languages(HostArgs),
    /// Check what isolation this host can guarantee, and how to fix what it cannot
    Doctor(DoctorArgs),
    /// Start the HTTP API server, which also serves MCP
    Serve(ServeArgs),
    /// Start an MCP server on standard input and output, or add it to an MCP client
    Mcp(Box<McpArgs>),
    /// Look for dangerous or suspicious things in code, without running it
    #[command(override_usage = scan::USAGE)]
    Scan(scan::ScanArgs),
    /// Show the policy in effect, or say what it does with a run
    Policy(PolicyArgs),
    /// List, show and decide the runs that wait for approval
    Approvals(ApprovalsArgs),
    /// Show, search and verify the record of everything that was run
    Audit(AuditArgs),
    /// Show the warm pool of a running server
    Pool(PoolArgs),
    /// Install and list the interpreters that run as WebAssembly
    #[cfg_attr(not(feature = "wasm"), command(hide = true))]
    Wasm(WasmArgs),
    /// Create API keys for the server
    Key(KeyArgs),
    /// Show the settings in effect and where each one comes from
    Config(Box<ConfigArgs>),
    /// Measure what a sandbox costs on this host
    Bench(BenchArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print the OpenAPI description of the HTTP API
    #[command(hide = true)]
    Openapi,
    /// Write the man pages to a directory
    #[command(hide = true)]
    Man(ManArgs),
}

impl Cli {
    /// Reads the words that were typed. For `run`, only the parser of `run` is made: making the parsers of all
    /// commands takes longer than reading the words.
    pub(crate) fn read(words: &[OsString]) -> Result<Cli, clap::Error> {
        match words {
            [_, command, ..] if command == "run" => Cli::read_run(&words[1..]),
            _ => Cli::try_parse_from(words),
        }
    }

    fn read_run(words: &[OsString]) -> Result<Cli, clap::Error> {
        let mut matches = Cli::run_parser().try_get_matches_from(words)?;
        let globals = Globals::from_arg_matches_mut(&mut matches)?;
        let command = Command::Run(Box::new(RunArgs::from_arg_matches_mut(&mut matches)?));
        Ok(Cli { globals, command })
    }

    fn run_parser() -> clap::Command {
        let command = clap::Command::new("run").bin_name("belljar run").styles(STYLES);
        let command = Globals::augment_args(RunArgs::augment_args(command));
        // Set last: augmenting sets another description, that of the last struct that was flattened in.
        command.about(RUN_ABOUT).help_template(RUN_HELP).override_usage(RUN_USAGE)
    }
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("brought_back").args(["collect", "plots"]).multiple(true))]
pub(crate) struct RunArgs {
    /// Language, file with the code, or both; `-` reads the code from standard input
    #[arg(index = 1, value_name = "LANGUAGE] [FILE", num_args = 0..=2, value_hint = ValueHint::FilePath)]
    pub(crate) words: Vec<OsString>,

    /// Arguments for the program
    #[arg(index = 2, last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,

    /// Code to run
    #[arg(short = 'c', long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) code: Option<String>,

    /// Language or alias [default: from the file extension or the `#!` line]
    #[arg(short, long, value_name = "NAME", value_parser = offered::languages(), hide_possible_values = true)]
    pub(crate) language: Option<String>,

    /// File that the program reads as standard input; `-` passes yours through [default: empty]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) stdin: Option<PathBuf>,

    /// Set an environment variable; the program gets none of yours; repeatable
    #[arg(short, long, value_name = "K=V")]
    pub(crate) env: Vec<String>,

    /// Mount this directory read-only at /work and run there; a FILE in it runs where it is
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Files")]
    pub(crate) workspace: Option<PathBuf>,

    /// Let the program write to the workspace; your files do not change, and only what --collect names is kept after the run
    #[arg(long, help_heading = "Files")]
    pub(crate) writable: bool,

    /// With --writable, tell on stderr which files the program added, changed and removed, with a patch
    #[arg(long, help_heading = "Files")]
    pub(crate) changes: bool,

    /// Copy a file into the working directory before the run; repeatable
    #[arg(long, value_name = "SRC[:DEST]", value_hint = ValueHint::FilePath, help_heading = "Files")]
    pub(crate) file: Vec<OsString>,

    /// Copy matching files out of the working directory after the run; `*` matches no leading dot; repeatable
    #[arg(long, value_name = "GLOB", help_heading = "Files")]
    pub(crate) collect: Vec<String>,

    /// Python: copy out what matplotlib's show() would have shown, as figure-1.png and so on
    #[arg(long, help_heading = "Files")]
    pub(crate) plots: bool,

    /// Directory for the collected files [default: .]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Files",
          requires = "brought_back")]
    pub(crate) collect_to: Option<PathBuf>,

    /// Let collected files replace files that already exist [default: leave those unchanged]
    #[arg(long, help_heading = "Files", requires = "brought_back")]
    pub(crate) overwrite: bool,

    #[command(flatten)]
    pub(crate) choices: Choices,

    /// Add the configured secret for this host to the program's requests to it, outside of the sandbox; repeatable
    #[arg(long, value_name = "HOST", help_heading = "Isolation")]
    pub(crate) secret: Vec<String>,

    /// The only modules that the code may import, separated by commas; repeatable
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Policy")]
    pub(crate) allowed_imports: Option<Vec<String>>,

    /// Approve what the policy would ask about
    #[arg(short, long, help_heading = "Policy")]
    pub(crate) yes: bool,

    /// Print the result as JSON instead of passing output through
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,

    /// With --json, include stdout and stderr in base64 as well
    #[arg(long, help_heading = "Output", requires = "json")]
    pub(crate) base64: bool,

    /// Print what would be done without running anything
    #[arg(long, help_heading = "Output")]
    pub(crate) explain: bool,

    /// Configuration file [default: the user's, else the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(crate) config: Option<PathBuf>,

    /// Run on this server instead of here; its API key comes from BELLJAR_API_KEY
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, help_heading = "Output",
          conflicts_with_all = ["config", "explain", "runtime", "yes"])]
    pub(crate) url: Option<String>,
}

/// The options that the environment and the configuration can set, too.
#[derive(Debug, Default, Args)]
pub(crate) struct Choices {
    /// Wall-clock time limit [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) timeout: Option<String>,

    /// Wall-clock time limit of the compiler, for languages that have one [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) compile_timeout: Option<String>,

    /// CPU time limit, for all processes together [default: none]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) cpu_time: Option<String>,

    /// Memory limit, including swap [default: 256M]
    #[arg(short, long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) memory: Option<String>,

    /// Memory limit of the compiler [default: 512M, or the program's if that is more]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) compile_memory: Option<String>,

    /// Number of CPUs, such as 0.5 [default: 1.0]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) cpus: Option<String>,

    /// Maximum number of processes and threads [default: 50]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    pub(crate) pids: Option<String>,

    /// Maximum size of everything the program writes to disk [default: 64M]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) disk: Option<String>,

    /// How much of stdout and of stderr to keep [default: 1M]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) output_limit: Option<String>,

    /// What the program can connect to: nothing, the public internet, or allow:HOST[:PORT],… [default: none]
    #[arg(long, value_name = "NETWORK", value_parser = offered::networks(), help_heading = "Isolation")]
    pub(crate) network: Option<String>,

    /// How to isolate the program; `process` and `none` are not sandboxes [default: auto]
    #[arg(long, value_name = "NAME", value_parser = offered::backends(), help_heading = "Isolation")]
    pub(crate) backend: Option<String>,

    /// Run in this OCI image, with the docker backend [default: the language's]
    #[arg(long, value_name = "REF", help_heading = "Isolation")]
    pub(crate) image: Option<String>,

    /// Docker runtime, such as runsc for gVisor, with the docker backend [default: the daemon's]
    #[arg(long, value_name = "NAME", help_heading = "Isolation")]
    pub(crate) runtime: Option<String>,

    /// Run even if this host cannot keep this guarantee; repeatable
    #[arg(long, value_name = "GUARANTEE", value_parser = offered::guarantees(), help_heading = "Isolation")]
    pub(crate) waive: Vec<String>,
}

impl Choices {
    /// The words that say the same on another command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let Choices { timeout, cpu_time, memory, cpus, pids, disk, output_limit, .. } = self;
        let Choices { compile_timeout, compile_memory, network, backend, image, runtime, waive, .. } = self;
        let chosen = [
            ("--timeout", timeout),
            ("--compile-timeout", compile_timeout),
            ("--cpu-time", cpu_time),
            ("--memory", memory),
            ("--compile-memory", compile_memory),
            ("--cpus", cpus),
            ("--pids", pids),
            ("--disk", disk),
            ("--output-limit", output_limit),
            ("--network", network),
            ("--backend", backend),
            ("--image", image),
            ("--runtime", runtime),
        ];
        let chosen = chosen.into_iter().filter_map(|(option, value)| Some((option, value.as_ref()?)));
        let waived = waive.iter().map(|guarantee| ("--waive", guarantee));
        chosen.chain(waived).flat_map(|(option, value)| [option.to_owned(), value.clone()]).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// Backend to ask about [default: auto]
    #[arg(long, value_name = "NAME", value_parser = offered::backends())]
    pub(crate) backend: Option<String>,

    /// Configuration file [default: the user's, else the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

impl HostArgs {
    /// The choices that `run` would make with these options.
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
        let mut whole = Cli::command();
        whole.build();
        let whole = whole.find_subcommand_mut("run").unwrap().render_long_help().to_string();
        assert_eq!(Cli::run_parser().render_long_help().to_string(), whole);
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
    fn choices_read_back_as_they_were_said() {
        let words = "--timeout 30s --compile-timeout 9s --cpu-time 5s --memory 1G --compile-memory 2G --cpus 0.5 --pids 9 \
                     --disk 1M --output-limit 2M --network none --backend native --image a:1 --runtime runsc \
                     --waive memory --waive cpu";
        let words: Vec<_> = words.split_whitespace().collect();
        let said = run(&words).unwrap().choices.words();
        assert_eq!(said, words);
        let all = Choices::augment_args(clap::Command::new("all"));
        assert_eq!(said.len() / 2, all.get_arguments().count() + 1, "every option, and one of them twice");
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
        assert!(run(&["python", "a.py", "--overwrite"]).is_err());
        assert!(run(&["python", "a.py", "--overwrite", "--collect", "x"]).unwrap().overwrite);
        let plots = run(&["python", "a.py", "--plots", "--collect", "x", "--collect-to", "out"]).unwrap();
        assert!(plots.plots && plots.collect_to.is_some());
        assert!(run(&["python", "a.py", "--plots", "--collect-to", "out"]).is_ok());
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
