//! What people type because other programs take it, and what they can type here instead.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};

use belljar_core::Field;
use belljar_core::language::Language;
use belljar_core::limits::Bytes;
use belljar_wire::{Code, Problem};

use crate::args::RunArgs;
use crate::problem::options;
use crate::serve::DEFAULT_LISTEN;

const PORT: [&str; 2] = ["--port", "-p"];
const HOST: [&str; 5] = ["--host", "--bind", "--address", "--addr", "-b"];

/// `python -m MODULE`, on a command line that could not be parsed.
pub(crate) fn module(argv: &[OsString]) -> Option<Problem> {
    let words: Vec<&OsStr> = options(argv).collect();
    let at = words.iter().position(|word| *word == "-m")?;
    let is_python = words.iter().any(|word| is_python(word));
    words.get(at + 1).and_then(|word| word.to_str()).filter(|word| is_python && is_module(word)).map(no_size)
}

/// The same, on one that could.
pub(crate) fn module_for_memory(args: &RunArgs) -> Option<Problem> {
    let language = args.language.as_ref().map(OsString::from);
    let is_python = language.iter().chain(&args.words).any(|word| is_python(word));
    args.choices.memory.as_deref().filter(|word| is_python && is_module(word)).map(no_size)
}

fn is_python(word: &OsStr) -> bool {
    word.to_str().and_then(Language::by_name).is_some_and(|language| language.name == "python")
}

/// Whether it could be the name of a module, and could not be a size.
fn is_module(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(plain)
        && Bytes::parse(word).is_err()
}

/// The command works with every backend: `python3 -m` in a shell would need an image that has both.
fn no_size(module: &str) -> Problem {
    let message = format!("-m is short for --memory here, and '{module}' is not a size");
    let hint = format!(
        "to run a module: belljar run python -c 'import runpy; runpy.run_module(\"{module}\", run_name=\"__main__\")' \
         --workspace . (arguments of the module go after --)"
    );
    Problem::new(Code::InvalidRequest, message, hint).at(Field::Memory)
}

/// What `--listen` would be, if this option is one that says where other servers listen.
pub(crate) fn address(option: &str, argv: &[OsString]) -> Option<SocketAddr> {
    let mut address: SocketAddr = DEFAULT_LISTEN.parse().ok()?;
    if !PORT.iter().chain(&HOST).any(|name| *name == option) {
        return None;
    }
    if let Some(host) = value(argv, &HOST) {
        match host.parse::<SocketAddr>() {
            Ok(whole) => address = whole,
            // A name stays with the default, the only one that every machine has.
            Err(_) => host.parse::<IpAddr>().into_iter().for_each(|ip| address.set_ip(ip)),
        }
    }
    if let Some(port) = value(argv, &PORT).and_then(|port| port.parse().ok()) {
        address.set_port(port);
    }
    Some(address)
}

/// What was typed after the first of these options, or after it and `=`.
fn value(argv: &[OsString], names: &[&str]) -> Option<String> {
    let mut words = options(argv).map(OsStr::to_string_lossy);
    while let Some(word) = words.next() {
        let (name, value) = word.split_once('=').map_or((&*word, None), |(name, value)| (name, Some(value)));
        if names.contains(&name) {
            return value.map(str::to_owned).or_else(|| words.next().map(Into::into));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_address_is_made_of_what_was_typed() {
        let address = |option: &str, line: &str| address(option, &argv(line)).map(|it| it.to_string());
        for (option, line, expected) in [
            ("--port", "belljar serve --port 9000", "127.0.0.1:9000"),
            ("--port", "belljar serve --port=9000 --host 0.0.0.0", "0.0.0.0:9000"),
            ("--host", "belljar serve --host ::1", "[::1]:8787"),
            ("--host", "belljar serve --host localhost", "127.0.0.1:8787"),
            ("--bind", "belljar serve --bind 0.0.0.0:80", "0.0.0.0:80"),
            ("-p", "belljar serve -p", "127.0.0.1:8787"),
            ("-p", "belljar serve -p 99999", "127.0.0.1:8787"),
        ] {
            assert_eq!(address(option, line).as_deref(), Some(expected), "{line}");
        }
        assert_eq!(address("--verbos", "belljar serve --verbos --port 1"), None, "that is another mistake");
    }

    #[test]
    fn a_module_is_what_python_could_import_and_no_size() {
        for module in ["unittest", "http.server", "_x", "json.tool", "m"] {
            assert!(is_module(module), "{module}");
        }
        for other in ["64M", "", "lots of it", "-v", "64X", "a/b"] {
            assert!(!is_module(other), "{other}");
        }
        let said = |line: &str| module(&argv(line)).map(|problem| problem.error.message);
        let expected = "-m is short for --memory here, and 'pytest' is not a size";
        assert_eq!(said("belljar run py -m pytest -k x").as_deref(), Some(expected));
        assert_eq!(said("belljar run ruby -m pytest"), None);
        assert_eq!(said("belljar run python a.py -- -m pytest"), None, "that is the program's");
    }
}
