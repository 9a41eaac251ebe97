//! Files that run although no command starts them: those that a runtime looks for when it starts, and those that a program loads as
//! code of its own language, whatever they are called.
//!
//! Which file a program loads may be computed. So a file that the text of a load names is taken for code, and if there is a load
//! that does not say what it loads, any other file that reads like code is, too. The words below are looked for in the text and not in a
//! syntax tree: it costs little, and a word that means something else costs a scan and no more.

use std::collections::HashSet;

use belljar_core::finding::Finding;
use belljar_core::language::Language;

/// How much of the line after a word is looked at for names, and how often.
const LONGEST_STATEMENT: usize = 400;
const MOST_STATEMENTS: usize = 1000;

/// Names in the working directory, which is the home directory, and the language that they are read as. A directory stands for all
/// that is in it.
const AT_START: [(&str, &str); 24] = [
    // `site` runs the lines of `.pth` files there, and imports `usercustomize`.
    (".local/lib", "python"),
    (".pdbrc", "python"),
    (".pythonrc", "python"),
    (".zshenv", "zsh"),
    (".zshenv.zwc", "zsh"),
    (".zprofile", "zsh"),
    (".zshrc", "zsh"),
    (".zlogin", "zsh"),
    (".zlogout", "zsh"),
    (".bashrc", "bash"),
    (".bash_profile", "bash"),
    (".bash_login", "bash"),
    (".bash_logout", "bash"),
    (".profile", "sh"),
    // RubyGems evaluates the specifications there, and prefers the newest version of a default gem.
    (".gem", "ruby"),
    (".local/share/gem", "ruby"),
    (".gemrc", "ruby"),
    (".irbrc", "ruby"),
    (".rdbgrc", "ruby"),
    (".Rprofile", "r"),
    (".Renviron", "r"),
    (".RData", "r"),
    // Settings of the go command, GOFLAGS and GOCACHEPROG among them.
    (".config/go", "go"),
    (".perldb", "perl"),
];

/// The language that a file is read as by a runtime that looks for it when it starts.
pub(crate) fn runs_at_start(path: &str) -> Option<Language> {
    let is_there =
        |name: &str| path.strip_prefix(name).is_some_and(|rest| matches!(rest.as_bytes(), [] | [b'/', ..]));
    let known = AT_START.iter().find(|(name, _)| is_there(name)).map(|(_, language)| *language);
    // The user's own packages of R are in `R/PLATFORM-library`; `R/tools.R` is just a file.
    let of_r = || path.strip_prefix("R/")?.split_once('/')?.0.ends_with("-library").then_some("r");
    Language::by_name(known.or_else(of_r)?)
}

/// The lines of a `.pth` file that Python runs, in their places. It takes the others for paths.
pub(crate) fn lines_that_python_runs(content: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(content);
    // As `str.splitlines` does.
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let runs = |line: &&str| line.starts_with("import ") || line.starts_with("import\t");
    let lines = text.trim_start_matches('\u{feff}').split(ends);
    lines.map(|line| Some(line).filter(runs).unwrap_or_default()).collect::<Vec<_>>().join("\n").into_bytes()
}

/// How a program may come to load a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It loads something that is called like it.
    Named,
    /// It loads something.
    Possible,
}

/// What a program loads as code of its own language.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Loads {
    /// Parts of names that are written where it loads something.
    named: HashSet<String>,
    anything: bool,
}

impl Loads {
    /// What is loaded by code in this language.
    pub(crate) fn of(language: Language, code: &[u8]) -> Loads {
        let text = String::from_utf8_lossy(code);
        // A line of C may be broken anywhere.
        let text = if matches!(language.name, "c" | "cpp") {
            text.replace("\\\n", "").replace("\\\r\n", "")
        } else {
            text.into_owned()
        };
        // PHP does not distinguish case. Offsets are the same.
        let folded = text.to_ascii_lowercase();
        // JavaScript can write any letter of a name as an escape.
        let mut loads = Loads { anything: is_of_node(language), ..Loads::default() };
        let mut statements = 0;
        for word in words(language) {
            for (start, _) in folded.match_indices(word) {
                let (before, after) = (&text[..start], &text[start + word.len()..]);
                if !is_a_load(language, word, before, after) {
                    continue;
                }
                statements += 1;
                if statements > MOST_STATEMENTS {
                    loads.anything = true;
                    return loads;
                }
                let statement = statement(after);
                loads.anything |= !is_literal(language, statement);
                // The method of an object seldom loads code. If it does, the file is still possible.
                if is_method(before) {
                    loads.anything = true;
                } else {
                    loads.named.extend(names(statement).map(str::to_owned));
                }
            }
        }
        loads
    }

    /// What a scan found in the code may mean that it loads files, too.
    pub(crate) fn with(mut self, found: &[Finding]) -> Loads {
        // What these have run is known, and was scanned.
        let is_known = |rule: &str| rule.ends_with(".dynamic.source") || rule.ends_with(".dynamic.literal");
        let runs_texts = |Finding { rule, .. }: &Finding| {
            (rule.contains(".dynamic.") || rule.contains(".obfuscation.")) && !is_known(rule)
        };
        self.anything |= found.iter().any(runs_texts);
        self
    }

    /// Whether a file may be loaded.
    pub(crate) fn reach(&self, language: Language, path: &str) -> Option<Reach> {
        let stem = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(stem, _)| stem);
        let is_named = path.split('/').chain(stem).any(|part| self.named.contains(part));
        // To Node, such a file is data, even if the program names it.
        let is_data = is_of_node(language) && path.ends_with(".json");
        match (is_named && !is_data, self.anything) {
            (true, _) => Some(Reach::Named),
            (false, true) => Some(Reach::Possible),
            (false, false) => None,
        }
    }
}

fn is_of_node(language: Language) -> bool {
    matches!(language.name, "javascript" | "typescript")
}

/// The words by which a program has a file run as code of its own language, in small letters. Go and Java load only files whose
/// names tell what they are.
fn words(language: Language) -> &'static [&'static str] {
    match language.name {
        "python" => &[
            "exec",
            "eval",
            "execfile",
            "runpy",
            "importlib",
            "imp",
            "pkgutil",
            "zipimport",
            "sourcefileloader",
            "addsitedir",
            "functiontype",
            "interactiveinterpreter",
            "interactiveconsole",
            "pdb",
            "cprofile",
            "doctest",
            "__import__",
            "__builtins__",
        ],
        "javascript" | "typescript" => {
            &["require", "import", "worker", "runinthiscontext", "runinnewcontext"]
        }
        "bash" | "sh" | "zsh" => &["source", ".", "eval"],
        "ruby" => &["load", "eval", "instance_eval", "class_eval", "module_eval"],
        "php" => &["include", "include_once", "require", "require_once", "eval"],
        "perl" => &["do", "require", "eval"],
        "lua" => &["dofile", "loadfile", "load", "loadstring", "package"],
        "r" => &["source", "parse", "eval"],
        "c" | "cpp" => &["include", "include_next", "import"],
        "rust" => &["include", "path"],
        _ => &[],
    }
}

fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_method(before: &str) -> bool {
    before.ends_with("->") || (before.ends_with('.') && !before.ends_with(".."))
}

/// Whether a word is one that loads a file, where it is.
fn is_a_load(language: Language, word: &str, before: &str, after: &str) -> bool {
    let next = after.trim_start().chars().next();
    match (language.name, word) {
        (_, ".") => {
            let begins =
                before.is_empty() || before.ends_with(|c: char| c.is_whitespace() || ";&|({`".contains(c));
            begins && after.starts_with([' ', '\t'])
        }
        _ if before.ends_with(is_of_a_name) || after.starts_with(is_of_a_name) => false,
        // A block; and a module, which is a file whose name tells what it is.
        ("perl", "do" | "eval") => next != Some('{'),
        ("perl", "require") => !next.is_some_and(is_of_a_name),
        ("ruby", "load") => {
            !["YAML.", "JSON.", "Marshal.", "Psych."].iter().any(|of_data| before.ends_with(of_data))
        }
        _ => true,
    }
}

/// The rest of a statement.
fn statement(after: &str) -> &str {
    let line = after.split(['\n', ';']).next().unwrap_or_default();
    &line[..line.floor_char_boundary(LONGEST_STATEMENT)]
}

/// Whether a statement says what it loads.
fn is_literal(language: Language, statement: &str) -> bool {
    let statement = statement.trim_matches(|c: char| c.is_whitespace() || "()!".contains(c));
    let is_plain = |text: &str| {
        !text.is_empty() && text.chars().all(|c| is_of_a_name(c) || matches!(c, '.' | '/' | '-' | '+' | ' '))
    };
    let quoted =
        |open: char, close: char| statement.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    if [quoted('"', '"'), quoted('\'', '\'')].into_iter().flatten().any(is_plain) {
        return true;
    }
    match language.name {
        // A path from the root, or one that leads there, may be that of a file of the request.
        "c" | "cpp" => quoted('<', '>')
            .is_some_and(|name| is_plain(name) && !name.starts_with('/') && !name.contains("..")),
        "bash" | "sh" | "zsh" => is_plain(statement),
        _ => false,
    }
}

/// What may be the parts of a path in a statement.
fn names(statement: &str) -> impl Iterator<Item = &str> {
    let parts = statement.split(['"', '\'', '`', '/', '\\', '(', ')', '<', '>', ',', '[', ']', '=', '!']);
    parts.map(str::trim).filter(|part| !matches!(*part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(language: &str, code: &str, path: &str) -> Option<Reach> {
        let language = Language::by_name(language).unwrap();
        Loads::of(language, code.as_bytes()).reach(language, path)
    }

    #[test]
    fn a_file_that_a_load_names_is_loaded_whatever_it_is_called() {
        for (language, code, path) in [
            ("javascript", "require('./d.txt')", "d.txt"),
            ("javascript", "require(\"./d\")", "d"),
            ("javascript", "require('./x')", "x/main.txt"),
            ("javascript", "require('./d')", "d.py"),
            ("typescript", "import d = require('./lib/d.txt');", "lib/d.txt"),
            ("ruby", "load './rb.txt'", "rb.txt"),
            ("perl", "do './pl.txt';", "pl.txt"),
            ("perl", "require './pl.txt'", "pl.txt"),
            ("php", "<?php Include 'php.txt';", "php.txt"),
            ("c", "#include \"c.txt\"\nint main() {}", "c.txt"),
            ("c", "#incl\\\nude \"c.txt\"", "c.txt"),
            ("cpp", "#include </sandbox/e.h>", "e.h"),
            ("rust", "include!(\"rs.txt\");", "rs.txt"),
            ("rust", "#[path = \"rs.txt\"] mod m;", "rs.txt"),
            ("lua", "dofile('l.txt')", "l.txt"),
            ("r", "source(\"r.txt\")", "r.txt"),
            ("python", "exec(open('a b.txt').read())", "a b.txt"),
        ] {
            assert_eq!(reach(language, code, path), Some(Reach::Named), "{language}: {code}");
        }
    }

    #[test]
    fn a_load_whose_file_is_computed_may_load_any() {
        for (language, code) in [
            ("javascript", "r\\u0065quire(x)"),
            ("ruby", "x = 'd' + '.txt'\nload x"),
            ("ruby", "Kernel.load('./d.txt')"),
            ("perl", "do $x;"),
            ("perl", "require $x"),
            ("c", "#define X \"d.txt\"\n#include X"),
            ("c", "#include <../../sandbox/x>"),
            ("rust", "include!(concat!(\"e\", \".txt\"));"),
            ("bash", ". \"$x\""),
            ("bash", "eval \"$(cat d.tx?)\""),
            ("php", "<?php include $x;"),
            ("python", "s = open('d.txt').read()\nexec(s)"),
        ] {
            assert_eq!(reach(language, code, "d.txt"), Some(Reach::Possible), "{language}: {code}");
        }
        assert_eq!(
            reach("javascript", "require('./d.json')", "d.json"),
            Some(Reach::Possible),
            "data, to Node"
        );
    }

    #[test]
    fn a_program_that_loads_nothing_loads_no_file() {
        for (language, code) in [
            ("python", "import csv\nprint(open('d.txt').read(), executor, evaluate(1))"),
            ("ruby", "puts File.read('d.txt'), payload, loaded"),
            ("ruby", "YAML.load(File.read('d.txt'))"),
            ("ruby", "load './other.rb'"),
            ("perl", "use JSON; require Foo::Bar; my $n = do { 1 }; eval { 2 };"),
            ("php", "<?php require_once 'other.php';"),
            ("c", "#include <stdio.h>\n#include \"other.h\"\nint main() {}"),
            ("bash", "source ./lib.sh\n. other.sh; cat ./d.txt"),
            ("go", "package main\nimport \"os\"\nfunc main() { os.ReadFile(\"d.txt\") }"),
        ] {
            assert_eq!(reach(language, code, "d.txt"), None, "{language}: {code}");
        }
    }

    #[test]
    fn files_that_runtimes_look_for_are_known() {
        let language = |path: &str| runs_at_start(path).map(|language| language.name);
        assert_eq!(language(".local/lib/python3.11/site-packages/e.pth"), Some("python"));
        assert_eq!(language(".zshenv"), Some("zsh"));
        assert_eq!(language(".bashrc"), Some("bash"));
        assert_eq!(language(".local/share/gem/ruby/3.1.0/specifications/x.gemspec"), Some("ruby"));
        assert_eq!(language("R/x86_64-pc-linux-gnu-library/4.2/stats/R/stats"), Some("r"));
        assert_eq!(language(".config/go/env"), Some("go"));
        for harmless in
            ["package.json", "R/tools.R", ".env", ".gitignore", "x/.zshenv", ".zshenvironment", ".local"]
        {
            assert_eq!(language(harmless), None, "{harmless}");
        }
    }

    #[test]
    fn only_lines_that_begin_with_import_run() {
        let of = |text: &str| String::from_utf8(lines_that_python_runs(text.as_bytes())).unwrap();
        assert_eq!(
            of("'''\nimport os; os.system('id')\r# x\nimport\tsys"),
            "\nimport os; os.system('id')\n\nimport\tsys"
        );
        assert_eq!(of("\u{feff}import os"), "import os");
        assert_eq!(of("importlib\n/usr/lib"), "\n");
    }
}
