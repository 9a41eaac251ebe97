//! `belljar wasm`: the interpreters that run as WebAssembly modules. They are installed by a command of their own, so
//! that no run ever downloads anything.

use std::path::PathBuf;
use std::process::ExitCode;

use belljar_wire::Problem;
use clap::{Args, Subcommand, ValueHint};

use crate::args::Verbosity;
use crate::offered;
use crate::problem;
use crate::settings::Environment;

#[derive(Debug, Args)]
pub(crate) struct WasmArgs {
    #[command(subcommand)]
    command: WasmCommand,
}

#[derive(Debug, Subcommand)]
enum WasmCommand {
    /// Download or build modules with npm, cargo and pip, check their hashes, and compile them
    Install(InstallArgs),
    /// List the modules and whether they are installed
    List(ListArgs),
}

#[derive(Debug, Args)]
#[cfg_attr(not(feature = "wasm"), allow(dead_code, reason = "read by the backend, which is not there"))]
struct InstallArgs {
    /// Languages to install modules for [default: all that have one]
    #[arg(value_name = "LANGUAGE", value_parser = offered::languages(), hide_possible_values = true)]
    languages: Vec<String>,

    /// Install this module for the one language that is named, and record its hash
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "languages")]
    from: Option<PathBuf>,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &WasmArgs, verbosity: Verbosity, environment: Environment<'_>) -> ExitCode {
    let (done, json) = match &args.command {
        WasmCommand::Install(args) => (shelf::install(args, verbosity, environment), args.json),
        WasmCommand::List(args) => (shelf::list(args, verbosity, environment), args.json),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            problem::report(&problem, json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

/// Without the backend, there is nothing to install modules for.
#[cfg(not(feature = "wasm"))]
mod shelf {
    use belljar_wire::Code;

    use super::{Environment, InstallArgs, ListArgs, Problem, Verbosity};
    use crate::compose::{WASM_HINT, WASM_REASON};

    pub(super) fn install(_: &InstallArgs, _: Verbosity, _: Environment<'_>) -> Result<(), Problem> {
        Err(absent())
    }

    pub(super) fn list(_: &ListArgs, _: Verbosity, _: Environment<'_>) -> Result<(), Problem> {
        Err(absent())
    }

    fn absent() -> Problem {
        let message = format!("the wasm backend cannot run here: {WASM_REASON}");
        Problem::new(Code::BackendUnavailable, message, WASM_HINT)
    }
}

#[cfg(feature = "wasm")]
mod shelf {
    use std::io::{self, IsTerminal};

    use belljar_core::language::Language;
    use belljar_wasm::{INTERPRETERS, InstallError, Interpreter, Shelf, Wasm, install_from};
    use belljar_wire::{Code, to_json};
    use serde::Serialize;

    use super::{Environment, InstallArgs, ListArgs, Problem, Verbosity};
    use crate::args::Choices;
    use crate::problem::{self, say};
    use crate::progress::Spinner;
    use crate::settings::Settings;
    use crate::table::{aligned, columns};

    /// One module, as it is listed.
    #[derive(Debug, Serialize)]
    struct Line {
        name: &'static str,
        languages: &'static [&'static str],
        /// `missing`, `ready`, or `stale`: the next run will compile it again.
        state: &'static str,
        version: String,
        sha256: Option<String>,
        size: Option<u64>,
        compiled_size: Option<u64>,
        origin: Option<String>,
    }

    pub(super) fn install(
        args: &InstallArgs,
        verbosity: Verbosity,
        environment: Environment<'_>,
    ) -> Result<(), Problem> {
        let state_dir = state_dir(environment)?;
        let shelf = Shelf::new(&state_dir);
        let wanted = wanted(&args.languages)?;
        if args.from.is_some() && wanted.len() != 1 {
            let message = "--from installs one module, but several languages are named";
            return Err(Problem::new(
                Code::InvalidRequest,
                message,
                "name one language, as in belljar wasm install python --from FILE",
            ));
        }
        for interpreter in &wanted {
            let reporter = Reporter::new(interpreter.name, verbosity);
            let progress = &mut |doing: &str| reporter.say(doing);
            let done = match &args.from {
                Some(file) => install_from(&shelf, interpreter, file, progress),
                None => belljar_wasm::install(&shelf, interpreter, progress),
            };
            let installed = done.map_err(|error| explained(&error))?;
            reporter.say(&format!("installed, sha256 {}", installed.sha256));
        }
        let lines: Vec<Line> = lines(&Wasm::open(Some(state_dir)), &shelf, &wanted);
        say(&if args.json { to_json(&lines) } else { table(&lines, verbosity) });
        Ok(())
    }

    pub(super) fn list(
        args: &ListArgs,
        verbosity: Verbosity,
        environment: Environment<'_>,
    ) -> Result<(), Problem> {
        let state_dir = state_dir(environment)?;
        let shelf = Shelf::new(&state_dir);
        let all: Vec<_> = INTERPRETERS.iter().collect();
        let lines = lines(&Wasm::open(Some(state_dir)), &shelf, &all);
        say(&if args.json { to_json(&lines) } else { table(&lines, verbosity) });
        Ok(())
    }

    fn lines(wasm: &Wasm, shelf: &Shelf, wanted: &[&'static Interpreter]) -> Vec<Line> {
        wanted.iter().map(|interpreter| line(wasm, shelf, interpreter)).collect()
    }

    fn line(wasm: &Wasm, shelf: &Shelf, interpreter: &'static Interpreter) -> Line {
        let installed = shelf.find(interpreter);
        let compiled_size = installed.as_ref().and_then(|installed| wasm.compiled_size(installed));
        let state = match (&installed, compiled_size) {
            (None, _) => "missing",
            (Some(_), None) => "stale",
            (Some(_), Some(_)) => "ready",
        };
        let sha256 = installed.as_ref().map_or(interpreter.sha256, |installed| &installed.sha256);
        Line {
            name: interpreter.name,
            languages: interpreter.languages,
            state,
            version: interpreter.label(sha256),
            size: installed.as_ref().map(|installed| installed.size),
            compiled_size,
            sha256: installed.as_ref().map(|installed| installed.sha256.clone()),
            origin: installed.map(|installed| installed.origin),
        }
    }

    fn table(lines: &[Line], verbosity: Verbosity) -> String {
        let mebibytes = |size: Option<u64>| {
            size.map_or_else(|| "-".to_owned(), |size| format!("{} MiB", size.div_ceil(1 << 20)))
        };
        let row = |line: &Line| {
            let Line { name, languages, state, version, size, compiled_size, sha256, origin } = line;
            let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            let narrow = [
                (*name).to_owned(),
                languages.join(", "),
                (*state).to_owned(),
                version.clone(),
                mebibytes(*size),
                known(sha256),
            ];
            (narrow, [mebibytes(*compiled_size), known(origin)])
        };
        let narrow = ["MODULE", "LANGUAGES", "STATE", "VERSION", "SIZE", "SHA256"];
        match verbosity {
            Verbosity::Quiet | Verbosity::Normal => aligned(narrow, lines.iter().map(|line| row(line).0)),
            Verbosity::Verbose => {
                let wide =
                    |(narrow, more): ([String; 6], [String; 2])| narrow.into_iter().chain(more).collect();
                let heading = narrow.into_iter().chain(["COMPILED", "ORIGIN"]).map(str::to_owned).collect();
                let rows = lines.iter().map(|line| wide(row(line)));
                columns(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())
            }
        }
    }

    /// The interpreters of these languages, each once; all of them if none is named.
    fn wanted(names: &[String]) -> Result<Vec<&'static Interpreter>, Problem> {
        if names.is_empty() {
            return Ok(INTERPRETERS.iter().collect());
        }
        let mut wanted: Vec<&'static Interpreter> = Vec::new();
        for name in names {
            let language = Language::parse(name)?;
            let known: Vec<_> =
                INTERPRETERS.iter().flat_map(|interpreter| interpreter.languages).copied().collect();
            let interpreter = Interpreter::of(language).ok_or_else(|| {
                let message = format!("{language} has no WebAssembly module");
                Problem::new(Code::NotFound, message, format!("these have one: {}", known.join(", ")))
            })?;
            if !wanted.iter().any(|there| there.name == interpreter.name) {
                wanted.push(interpreter);
            }
        }
        Ok(wanted)
    }

    /// Says what is being done: on a terminal in one line that changes; elsewhere, or with `--verbose`, in a line for
    /// each step.
    enum Reporter {
        Silent,
        Terminal(Spinner),
        Lines(&'static str),
    }

    impl Reporter {
        fn new(name: &'static str, verbosity: Verbosity) -> Reporter {
            match verbosity {
                Verbosity::Quiet => Reporter::Silent,
                Verbosity::Normal if io::stderr().is_terminal() => Reporter::Terminal(Spinner::new(name)),
                Verbosity::Normal | Verbosity::Verbose => Reporter::Lines(name),
            }
        }

        fn say(&self, doing: &str) {
            match self {
                Reporter::Silent => {}
                Reporter::Terminal(spinner) => spinner.say(doing),
                Reporter::Lines(name) => problem::note(&format!("{name}: {doing}")),
            }
        }
    }

    fn explained(error: &InstallError) -> Problem {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(next) = cause {
            message = format!("{message}: {next}");
            cause = next.source();
        }
        Problem::new(Code::BackendUnavailable, message, error.hint())
    }

    fn state_dir(environment: Environment<'_>) -> Result<std::path::PathBuf, Problem> {
        let settings = Settings::gather(&Choices::default(), None, environment)?;
        let missing =
            || Problem::new(Code::BackendUnavailable, "there is no state directory", "set BELLJAR_STATE_DIR");
        settings.host.state_dir.ok_or_else(missing)
    }
}
