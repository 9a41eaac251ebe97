//! `belljar wasm`: the interpreters that run as WebAssembly modules. Getting them is a matter of its own, so that no run
//! ever downloads anything.

use std::path::PathBuf;
use std::process::ExitCode;

use belljar_wire::Problem;
use clap::{Args, Subcommand};

use crate::problem;
use crate::settings::Environment;

#[derive(Debug, Args)]
pub(crate) struct WasmArgs {
    #[command(subcommand)]
    command: WasmCommand,
}

#[derive(Debug, Subcommand)]
enum WasmCommand {
    /// Get or build modules with npm, cargo and pip, check their hashes, and compile them once
    Install(InstallArgs),
    /// Which modules there are, and in which state
    List(ListArgs),
}

#[derive(Debug, Args)]
#[cfg_attr(not(feature = "wasm"), allow(dead_code, reason = "read by the backend, which is not there"))]
struct InstallArgs {
    /// The languages to get modules for [default: all that there are]
    #[arg(value_name = "LANGUAGE")]
    languages: Vec<String>,

    /// A module of your own instead, for the one language that is named; its hash is recorded
    #[arg(long, value_name = "FILE", requires = "languages")]
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

pub(crate) fn run(args: &WasmArgs, environment: Environment<'_>) -> ExitCode {
    let (done, json) = match &args.command {
        WasmCommand::Install(args) => (shelf::install(args, environment), args.json),
        WasmCommand::List(args) => (shelf::list(args, environment), args.json),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            problem::report(&problem, json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

/// Without the backend, there is nothing to get modules for.
#[cfg(not(feature = "wasm"))]
mod shelf {
    use belljar_wire::Code;

    use super::{Environment, InstallArgs, ListArgs, Problem};
    use crate::compose::{WASM_HINT, WASM_REASON};

    pub(super) fn install(_: &InstallArgs, _: Environment<'_>) -> Result<(), Problem> {
        Err(absent())
    }

    pub(super) fn list(_: &ListArgs, _: Environment<'_>) -> Result<(), Problem> {
        Err(absent())
    }

    fn absent() -> Problem {
        let message = format!("the wasm backend cannot run here: {WASM_REASON}");
        Problem::new(Code::BackendUnavailable, message, WASM_HINT)
    }
}

#[cfg(feature = "wasm")]
mod shelf {
    use std::io::{IsTerminal, Write};

    use belljar_core::language::Language;
    use belljar_wasm::{INTERPRETERS, InstallError, Interpreter, Shelf, Wasm, install_from};
    use belljar_wire::{Code, to_json};
    use serde::Serialize;

    use super::{Environment, InstallArgs, ListArgs, Problem};
    use crate::args::Choices;
    use crate::problem::say;
    use crate::settings::Settings;
    use crate::table::aligned;

    /// One module, as it is told.
    #[derive(Debug, Serialize)]
    struct Line {
        name: &'static str,
        languages: &'static [&'static str],
        /// `missing`, `ready`, or `stale`: to be compiled again by the next run.
        state: &'static str,
        version: String,
        sha256: Option<String>,
        size: Option<u64>,
        compiled_size: Option<u64>,
        origin: Option<String>,
    }

    pub(super) fn install(args: &InstallArgs, environment: Environment<'_>) -> Result<(), Problem> {
        let state_dir = state_dir(environment)?;
        let shelf = Shelf::new(&state_dir);
        let wanted = wanted(&args.languages)?;
        if args.from.is_some() && wanted.len() != 1 {
            let message = "--from names one module, and there are several languages";
            return Err(Problem::new(
                Code::InvalidRequest,
                message,
                "name one language, as in: python --from FILE",
            ));
        }
        for interpreter in &wanted {
            let progress = &mut |doing: &str| tell(interpreter, doing);
            let done = match &args.from {
                Some(file) => install_from(&shelf, interpreter, file, progress),
                None => belljar_wasm::install(&shelf, interpreter, progress),
            };
            let installed = done.map_err(|error| explained(&error))?;
            tell(interpreter, &format!("ready, sha256 {}", installed.sha256));
        }
        let lines: Vec<Line> = lines(&Wasm::open(Some(state_dir)), &shelf, &wanted);
        say(&if args.json { to_json(&lines) } else { table(&lines) });
        Ok(())
    }

    pub(super) fn list(args: &ListArgs, environment: Environment<'_>) -> Result<(), Problem> {
        let state_dir = state_dir(environment)?;
        let shelf = Shelf::new(&state_dir);
        let all: Vec<_> = INTERPRETERS.iter().collect();
        let lines = lines(&Wasm::open(Some(state_dir)), &shelf, &all);
        say(&if args.json { to_json(&lines) } else { table(&lines) });
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

    fn table(lines: &[Line]) -> String {
        let row = |line: &Line| {
            let size = line.size.map_or_else(String::new, |size| format!("{} MiB", size.div_ceil(1 << 20)));
            let sha256 = line.sha256.clone().unwrap_or_default();
            let languages = line.languages.join(", ");
            [line.name.to_owned(), languages, line.state.to_owned(), line.version.clone(), size, sha256]
        };
        aligned(["MODULE", "LANGUAGES", "STATE", "VERSION", "SIZE", "SHA256"], lines.iter().map(row))
    }

    /// The interpreters of these languages, each once; all of them, if none is named.
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
                let message = format!("there is no WebAssembly module for {language}");
                Problem::new(Code::NotFound, message, format!("there are modules for {}", known.join(", ")))
            })?;
            if !wanted.iter().any(|there| there.name == interpreter.name) {
                wanted.push(interpreter);
            }
        }
        Ok(wanted)
    }

    /// What is being done, for whoever looks on: it takes a while.
    fn tell(interpreter: &Interpreter, doing: &str) {
        let mut stderr = std::io::stderr().lock();
        if stderr.is_terminal() {
            let _ = writeln!(stderr, "{}: {doing}", interpreter.name);
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
