//! Languages as data. To add one, add a row to [`ROWS`]; nothing else in the workspace names a language.
//!
//! A row says what the language is called, how its runtime is found and asked for its version, and which
//! commands turn a source file into a running program. A compiler has a box and limits of its own, and so has the
//! program that it makes.

pub mod java;

use std::fmt;
use std::ops::Deref;

use crate::{Field, Invalid};

/// A language that Belljar knows: a row of the table.
#[derive(Clone, Copy)]
pub struct Language(&'static Row);

impl Language {
    /// Every language, in the order of the contract.
    pub fn all() -> impl Iterator<Item = Language> {
        ROWS.iter().map(Language)
    }

    /// Finds a language by its name or an alias, without regard to case.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one as the hint.
    pub fn parse(name: &str) -> Result<Language, Invalid> {
        Language::by_name(name).ok_or_else(|| {
            let hint = match nearest(name) {
                Some(near) => format!("did you mean '{near}'? `belljar languages` lists what can run here"),
                None => "`belljar languages` lists what can run here".to_owned(),
            };
            Invalid::new(Field::Language, format!("unknown language '{}'", name.escape_debug()), hint)
        })
    }

    /// Finds a language by its name or an alias, without regard to case.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Language> {
        let name = name.to_ascii_lowercase();
        Language::all().find(|language| language.name == name || language.aliases.contains(&name.as_str()))
    }

    /// Code that is no file, as a file of the language. PHP prints whatever is outside its tags, so that a snippet without any
    /// would print itself; it gets an opening tag, in the same line.
    #[must_use]
    pub fn file_of(self, snippet: Vec<u8>) -> Vec<u8> {
        if self.name != "php" || snippet.windows(2).any(|bytes| bytes == b"<?") {
            return snippet;
        }
        [b"<?php ".as_slice(), &snippet].concat()
    }

    /// Whether programs in the two import each other's modules.
    #[must_use]
    pub fn shares_modules_with(self, other: Language) -> bool {
        let runs_in_node = |language: Language| ["javascript", "typescript"].contains(&language.name);
        self == other || (runs_in_node(self) && runs_in_node(other))
    }

    /// Finds a language by a file's extension.
    #[must_use]
    pub fn by_file_name(file: &str) -> Option<Language> {
        let (_, ending) = file.rsplit_once('.')?;
        Language::all().find(|language| language.endings.contains(&ending))
    }

    /// Finds a language by the `#!` line that its code begins with.
    #[must_use]
    pub fn by_first_line(code: &[u8]) -> Option<Language> {
        let line = code.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
        let line = str::from_utf8(line).ok()?;
        let mut words = line.split_ascii_whitespace().map(|word| word.rsplit('/').next().unwrap_or(word));
        let program = match words.next()? {
            "env" => words.find(|word| !word.starts_with('-') && !word.contains('='))?,
            program => program,
        };
        let unversioned = program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        Language::by_name(program).or_else(|| Language::by_name(unversioned))
    }
}

impl Language {
    /// Whether its programs consist of calls of other programs.
    #[must_use]
    pub fn is_shell(self) -> bool {
        matches!(self.name, "bash" | "sh" | "zsh")
    }
}

impl Deref for Language {
    type Target = Row;
    fn deref(&self) -> &Row {
        self.0
    }
}

impl PartialEq for Language {
    fn eq(&self, other: &Language) -> bool {
        self.name == other.name
    }
}

impl Eq for Language {}

impl fmt::Debug for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// One language.
#[derive(Debug)]
pub struct Row {
    /// The contract's name.
    pub name: &'static str,
    /// Other names that callers use.
    pub aliases: &'static [&'static str],
    /// Extensions of its files, without the dot.
    pub endings: &'static [&'static str],
    /// What the code's file is called when the caller gave no name.
    pub source: &'static str,
    /// What must be done to the code before a runtime can read it.
    pub preparation: Preparation,
    /// How the runtime is found on a host.
    pub runtime: Discovery,
    /// The program, and before it the compiler, if there is one. Placeholders in their words: `{runtime}` is the
    /// interpreter or compiler, `{source}` the code's file, `{program}` where a compiler puts its result (a file or a
    /// directory), `{heap_mb}` how much memory is left for a heap within the memory limit, `{cpus}` the CPU limit, rounded
    /// up, `{tmp}` the directory for temporary files, `{classpath}` and `{main_class}` what Java calls so.
    pub stages: &'static [Stage],
    /// How its runtime says that a heap of limited size is exhausted, if it has one.
    pub exhaustion: Option<Exhaustion>,
    /// Environment variables that this language needs inside a box, with the same placeholders.
    pub env: &'static [(&'static str, &'static str)],
    /// How its runtime can be parked, if that gains anything.
    pub parking: Option<Parking>,
    /// The default image for backends that use images, if the contract names one.
    pub image: Option<DefaultImage>,
    /// The Debian package that brings the runtime.
    pub package: &'static str,
}

impl Row {
    /// The command that compiles the code, if it must be compiled.
    #[must_use]
    pub fn compiler(&self) -> Option<&'static Stage> {
        self.stages.split_last().and_then(|(_, before)| before.first())
    }

    /// The command that is the program.
    #[must_use]
    pub fn program(&self) -> Option<&'static Stage> {
        self.stages.last()
    }

    /// Whether a compiler turns the code into a program before it can run.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        self.compiler().is_some()
    }
}

/// How a runtime ends that has a heap of limited size when that is full: the limit on memory was reached, although the
/// kernel did not see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhaustion {
    /// Its exit status.
    pub code: u8,
    /// What its last line on stderr begins with. Both together: a program may exit with any status.
    pub last_line: &'static str,
}

impl Exhaustion {
    /// Whether a program that ended with this status, and wrote this to stderr at last, ran out of memory.
    #[must_use]
    pub fn shows_in(&self, code: u8, stderr: &[u8]) -> bool {
        let lines = stderr.trim_ascii_end().rsplit(|byte| *byte == b'\n');
        code == self.code && lines.take(1).any(|line| line.starts_with(self.last_line.as_bytes()))
    }
}

/// The image of a language that a run gets if it names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultImage {
    /// The image.
    pub reference: &'static str,
    /// The package that brings the runtime, if the image has only its package manager, Alpine's `apk`.
    pub package: Option<&'static str>,
}

/// A runtime that can be started before there is code for it: it boots, opens the code's file, and blocks, because the
/// file is a pipe and nothing has been written to it.
#[derive(Debug, Clone, Copy)]
pub struct Parking {
    /// The name of the code's file after its preparation, if the caller has not named it and it is not a module.
    pub source: &'static str,
    /// Names in the working directory that the runtime looks for while it boots. A file with such a name would come too
    /// late.
    pub looked_for: &'static [&'static str],
    /// Code that makes the runtime seek in its file, which is impossible in a pipe, or that must not follow a primer.
    pub hindrances: &'static [Hindrance],
    /// The most bytes of code for which this is faster than a new start.
    pub most_code: usize,
    /// What is first written into the pipe for a runtime that opens its file before it boots. The runtime ignores it,
    /// and has booted when it has read it.
    pub primer: &'static [u8],
    /// Whether it reads all of its code before it runs any of it.
    pub reads_first: bool,
    /// What it does before it blocks.
    pub rehearsal: Option<Rehearsal>,
}

/// A script that a runtime runs before it is parked, so that it has already done what most programs make it do.
#[derive(Debug, Clone, Copy)]
pub struct Rehearsal {
    /// The path of the script in every box of the language, parked or not.
    pub path: &'static str,
    /// The script.
    pub script: &'static str,
    /// The variable that makes the runtime run it, `NAME=value`. The script removes it from the environment.
    pub variable: &'static str,
}

/// What prevents code from coming through a pipe: it makes the runtime seek in its file, or interpret a primer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hindrance {
    /// This text in a comment (after a `#`) in one of the first two lines.
    Comment(&'static str),
    /// This text anywhere.
    Anywhere(&'static str),
    /// This text at the beginning.
    Beginning(&'static str),
}

impl Parking {
    /// Whether this code can be read from a pipe as well as from a file.
    #[must_use]
    pub fn takes(&self, code: &[u8]) -> bool {
        code.len() <= self.most_code && !self.hindrances.iter().any(|hindrance| hindrance.occurs_in(code))
    }

    /// Whether a file at this path, relative to the working directory, would come too late.
    #[must_use]
    pub fn has_looked_for(&self, path: &str) -> bool {
        let first = path.split('/').next().unwrap_or(path);
        self.looked_for.contains(&first)
    }
}

impl Hindrance {
    fn occurs_in(self, code: &[u8]) -> bool {
        let has = |part: &[u8], text: &str| part.windows(text.len()).any(|window| window == text.as_bytes());
        match self {
            Hindrance::Anywhere(text) => has(code, text),
            Hindrance::Beginning(text) => code.starts_with(text.as_bytes()),
            Hindrance::Comment(text) => {
                let mut comments = code.split(|byte| *byte == b'\n').take(2).filter_map(comment);
                comments.any(|comment| has(comment, text))
            }
        }
    }
}

/// What follows the first `#` of a line.
fn comment(line: &[u8]) -> Option<&[u8]> {
    line.iter().position(|byte| *byte == b'#').map(|at| &line[at..])
}

/// What must be done to code before it is put into the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// Nothing.
    None,
    /// Detect whether it is a module, because Node needs that from the file's extension.
    DetectModule,
    /// Remove the types, and detect whether it is a module.
    StripTypes,
    /// Call its file like the public type in it, because Java's compiler demands that.
    NameAfterType,
}

/// How a runtime is found and asked about itself.
#[derive(Debug)]
pub struct Discovery {
    /// Program names to look for, in order of preference.
    pub programs: &'static [&'static str],
    /// Arguments that make it print what it is and where it lives, one line each; where one command cannot tell
    /// both, several. A runtime that fails one of them is not usable.
    ///
    /// A line that is an absolute path is a place that the runtime needs: the first file among them is the real
    /// executable, because behind a version manager's shim only the runtime itself knows it. Directories alone mean
    /// that it is in the `bin` of one of them; no path at all, that it is the program that was found.
    pub ask: &'static [&'static [&'static str]],
    /// How to read the label out of the answer.
    pub answer: Answer,
    /// Files and directories that it needs but does not report, if they exist.
    pub also: &'static [&'static str],
}

/// How to read what a runtime reports about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The first line is the label, `CPython 3.11.7`.
    Told,
    /// Free text; the label is the first of these names that occurs in it, else the last, and the first thing that
    /// looks like a version number.
    Version(&'static [&'static str]),
    /// `key = value` lines.
    Settings {
        /// As in [`Answer::Version`].
        names: &'static [&'static str],
        /// The key of the version.
        version: &'static str,
        /// The key of its home directory.
        home: &'static str,
    },
}

/// The longest label that is shown.
const LONGEST_LABEL: usize = 80;

impl Answer {
    /// What a runtime calls itself in this output. `None` if there is no usable label in it.
    #[must_use]
    pub fn label(self, text: &str) -> Option<String> {
        let label = match self {
            Answer::Told => text.lines().map(str::trim).find(|line| !line.is_empty())?.to_owned(),
            Answer::Version(names) => format!("{} {}", name_in(names, text)?, version_in(text)?),
            Answer::Settings { names, version, .. } => {
                format!("{} {}", name_in(names, text)?, setting(text, version)?)
            }
        };
        let presentable =
            !label.is_empty() && label.len() <= LONGEST_LABEL && !label.contains(char::is_control);
        presentable.then_some(label)
    }

    /// Its home directory, if a key names it.
    #[must_use]
    pub fn home(self, text: &str) -> Option<&str> {
        match self {
            Answer::Settings { home, .. } => setting(text, home),
            Answer::Told | Answer::Version(_) => None,
        }
    }
}

fn name_in(names: &[&'static str], text: &str) -> Option<&'static str> {
    names.iter().find(|name| text.contains(**name)).or(names.last()).copied()
}

fn setting<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let settings = text.lines().filter_map(|line| line.split_once(" = "));
    settings.into_iter().find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
}

/// The first thing that looks like a version: numbers with a dot between them.
fn version_in(text: &str) -> Option<&str> {
    let number = |c: char| c.is_ascii_digit() || c == '.';
    let mut runs = text.split(|c| !number(c)).map(|run| run.trim_matches('.'));
    runs.find(|run| run.contains('.'))
}

/// One command of a language.
#[derive(Debug)]
pub struct Stage {
    /// The words of the command.
    pub argv: &'static [&'static str],
}

const fn run(argv: &'static [&'static str]) -> Stage {
    Stage { argv }
}

/// A shell reads byte by byte where it cannot seek, so beyond this size a new start is faster.
const BYTE_BY_BYTE: usize = 8 << 10;

/// An image that has the runtime.
const fn official(reference: &'static str) -> DefaultImage {
    DefaultImage { reference, package: None }
}

/// For a language without an official image.
const fn alpine_with(package: &'static str) -> DefaultImage {
    DefaultImage { reference: "alpine:3.20", package: Some(package) }
}

/// A runtime that looks for nothing before it opens its file, and reads that from beginning to end.
const fn parked(source: &'static str) -> Parking {
    Parking {
        source,
        looked_for: &[],
        hindrances: &[],
        most_code: 256 << 10,
        primer: b"",
        reads_first: false,
        rehearsal: None,
    }
}

/// Node checks whether the files around are modules before it reads the first of them.
const fn parked_node() -> Parking {
    let rehearsal = Rehearsal {
        path: "/etc/belljar/rehearsal.cjs",
        script: include_str!("language/rehearsal.cjs"),
        variable: "NODE_OPTIONS=--require=/etc/belljar/rehearsal.cjs",
    };
    Parking {
        looked_for: &["package.json"],
        reads_first: true,
        rehearsal: Some(rehearsal),
        ..parked("main.js")
    }
}

/// The table, in the order of the contract.
pub static ROWS: &[Row] = &[
    Row {
        name: "python",
        aliases: &["py", "python3", "cpython"],
        endings: &["py", "pyw"],
        source: "main.py",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["python3", "python"],
            // The unpacked arguments are a syntax error in Python 2, which may still be called `python`. A virtual
            // environment is recognised by the location of its link to the executable, so there the link is the
            // program.
            ask: &[&[
                "-c",
                "import os, platform, site, sys, sysconfig\n\
                 venv = sys.prefix != sys.base_prefix\n\
                 print(platform.python_implementation(), platform.python_version())\n\
                 print(sys.executable if venv else os.path.realpath(sys.executable))\n\
                 print(*[sys.base_prefix, sys.base_exec_prefix, sys.prefix], sep='\\n')\n\
                 print(sysconfig.get_path('stdlib'), *site.getsitepackages(), sep='\\n')",
            ]],
            answer: Answer::Told,
            also: &[],
        },
        // -u: what was printed before a timeout is not lost in a buffer. -B: bytecode of imported files would be
        // charged to the box's disk and never be read again.
        stages: &[run(&["{runtime}", "-u", "-B", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(Parking {
            // Python looks for the user's own packages while it boots.
            looked_for: &[".local"],
            // A declared encoding makes it read its file again.
            hindrances: &[Hindrance::Comment("coding")],
            reads_first: true,
            ..parked("main.py")
        }),
        image: Some(official("python:3.11-slim")),
        package: "python3",
    },
    Row {
        name: "javascript",
        aliases: &["js", "node", "nodejs", "mjs", "cjs"],
        endings: &["js", "mjs", "cjs"],
        source: "main.js",
        preparation: Preparation::DetectModule,
        runtime: NODE,
        stages: &[run(&["{runtime}", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(parked_node()),
        image: Some(official("node:22-alpine")),
        package: "nodejs",
    },
    Row {
        name: "typescript",
        aliases: &["ts", "tsx", "mts"],
        endings: &["ts", "mts", "cts", "tsx"],
        source: "main.ts",
        preparation: Preparation::StripTypes,
        runtime: NODE,
        stages: &[run(&["{runtime}", "--enable-source-maps", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(parked_node()),
        image: Some(official("node:22-alpine")),
        package: "nodejs",
    },
    Row {
        name: "bash",
        aliases: &["shell"],
        endings: &["bash"],
        source: "main.bash",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["bash"],
            // In `$( )`, or the shell would become the last command instead of starting it.
            ask: &[&[
                "-c",
                "echo \"GNU bash ${BASH_VERSION%%(*}\"; exe=$(readlink /proc/$$/exe); echo \"$exe\"",
            ]],
            answer: Answer::Told,
            also: &[],
        },
        stages: &[run(&["{runtime}", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(Parking { most_code: BYTE_BY_BYTE, ..parked("main.bash") }),
        image: Some(official("bash:5.2")),
        package: "bash",
    },
    Row {
        name: "sh",
        aliases: &["dash", "posix"],
        endings: &["sh"],
        source: "main.sh",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["sh"],
            // No path is reported: bash and busybox are a POSIX shell only under the name `sh`. gVisor does not show
            // one process what another runs.
            ask: &[&[
                "-c",
                "exe=$(readlink /proc/$$/exe || readlink -f \"$0\"); \
                 echo \"${exe##*/}${BASH_VERSION:+ ${BASH_VERSION%%[!0-9.]*}}\"",
            ]],
            answer: Answer::Told,
            also: &[],
        },
        stages: &[run(&["{runtime}", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(parked("main.sh")),
        image: Some(official("alpine:3.20")),
        package: "dash",
    },
    Row {
        name: "zsh",
        aliases: &[],
        endings: &["zsh"],
        source: "main.zsh",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["zsh"],
            ask: &[&["-fc", "echo \"zsh $ZSH_VERSION\"; exe=$(readlink /proc/$$/exe); echo \"$exe\""]],
            answer: Answer::Told,
            also: &[],
        },
        stages: &[run(&["{runtime}", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(Parking { looked_for: &[".zshenv", ".zshenv.zwc"], ..parked("main.zsh") }),
        image: Some(alpine_with("zsh")),
        package: "zsh",
    },
    Row {
        name: "ruby",
        aliases: &["rb"],
        endings: &["rb"],
        source: "main.rb",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["ruby"],
            ask: &[&[
                "-rrbconfig",
                "-e",
                "puts \"#{RUBY_ENGINE == 'ruby' ? 'CRuby' : RUBY_ENGINE} #{RUBY_VERSION}\", \
                 File.realpath(RbConfig.ruby), RbConfig::CONFIG['prefix'], $LOAD_PATH, Gem.default_dir",
            ]],
            answer: Answer::Told,
            also: &[],
        },
        stages: &[run(&["{runtime}", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(Parking {
            // The user's own gems.
            looked_for: &[".gem", ".local"],
            // What follows the end of the code can be read as a file; options and an encoding are looked for at the
            // beginning of the file.
            hindrances: &[
                Hindrance::Anywhere("__END__"),
                Hindrance::Beginning("#!"),
                Hindrance::Beginning("\u{feff}"),
                Hindrance::Comment("coding"),
            ],
            // The UTF-8 byte order mark; UTF-8 is the default encoding of scripts.
            primer: "\u{feff}".as_bytes(),
            reads_first: true,
            ..parked("main.rb")
        }),
        image: Some(official("ruby:3.3-alpine")),
        package: "ruby",
    },
    Row {
        name: "php",
        aliases: &[],
        endings: &["php"],
        source: "main.php",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["php"],
            ask: &[&[
                "-r",
                "echo 'PHP ', implode('.', [PHP_MAJOR_VERSION, PHP_MINOR_VERSION, PHP_RELEASE_VERSION]), \"\\n\", \
                 implode(\"\\n\", [realpath(PHP_BINARY), PHP_PREFIX, PHP_EXTENSION_DIR, php_ini_loaded_file(), \
                 PHP_CONFIG_FILE_SCAN_DIR]);",
            ]],
            answer: Answer::Told,
            also: &[],
        },
        // Whether errors are shown, logged or neither, and where, depends on each distribution's php.ini.
        stages: &[run(&["{runtime}", "-d", "display_errors=stderr", "-d", "log_errors=0", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(parked("main.php")),
        image: Some(official("php:8.3-cli-alpine")),
        package: "php-cli",
    },
    Row {
        name: "perl",
        aliases: &["pl"],
        endings: &["pl", "pm"],
        source: "main.pl",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["perl"],
            ask: &[&[
                "-MCwd=realpath",
                "-e",
                "printf \"Perl %vd\\n\", $^V; print \"$_\\n\" for realpath($^X), @INC;",
            ]],
            answer: Answer::Told,
            also: &[],
        },
        stages: &[run(&["{runtime}", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(Parking {
            // What follows is read through a handle on the file, in which programs often seek.
            hindrances: &[Hindrance::Anywhere("__DATA__"), Hindrance::Anywhere("__END__")],
            ..parked("main.pl")
        }),
        image: Some(official("perl:5.40-slim")),
        package: "perl",
    },
    Row {
        name: "lua",
        aliases: &[],
        endings: &["lua"],
        source: "main.lua",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["lua", "lua5.4", "lua5.3", "luajit"],
            // Lua cannot read a link, but the first line of its memory map ends in its executable.
            ask: &[&["-v", "-e", "print((io.open('/proc/self/maps'):read('*l'):match('/.*')))"]],
            answer: Answer::Version(&["LuaJIT", "Lua"]),
            also: &[],
        },
        stages: &[run(&["{runtime}", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(parked("main.lua")),
        image: Some(alpine_with("lua5.4")),
        package: "lua5.4",
    },
    Row {
        name: "r",
        aliases: &["rscript"],
        endings: &["r", "R"],
        source: "main.R",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["Rscript"],
            ask: &[&[
                "--vanilla",
                "-e",
                "cat(sprintf('R %s.%s', R.version$major, R.version$minor), \
                 normalizePath(file.path(R.home('bin'), 'Rscript')), R.home(), R.home('share'), R.home('doc'), \
                 .libPaths(), sep = '\\n')",
            ]],
            answer: Answer::Told,
            also: &[],
        },
        stages: &[run(&["{runtime}", "--vanilla", "{source}"])],
        exhaustion: None,
        env: &[],
        parking: Some(Parking {
            // The user's own packages.
            looked_for: &["R"],
            // An empty line; R's error messages have no line numbers.
            primer: b"\n",
            ..parked("main.R")
        }),
        image: Some(official("r-base:4.4.1")),
        package: "r-base-core",
    },
    Row {
        name: "c",
        aliases: &["gcc"],
        endings: &["c"],
        source: "main.c",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["gcc", "clang", "cc"],
            ask: &[&["--version"]],
            answer: Answer::Version(&["clang", "gcc"]),
            also: &[],
        },
        stages: &[
            run(&["{runtime}", "-O2", "-pipe", "-o", "{program}", "{source}", "-lm", "-lpthread"]),
            run(&["{program}"]),
        ],
        exhaustion: None,
        env: &[],
        parking: None,
        image: None,
        package: "gcc libc6-dev",
    },
    Row {
        name: "cpp",
        aliases: &["c++", "cxx", "g++"],
        endings: &["cpp", "cc", "cxx"],
        source: "main.cpp",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["g++", "clang++", "c++"],
            ask: &[&["--version"]],
            answer: Answer::Version(&["clang", "g++"]),
            also: &[],
        },
        stages: &[
            run(&["{runtime}", "-O2", "-pipe", "-o", "{program}", "{source}", "-lpthread"]),
            run(&["{program}"]),
        ],
        exhaustion: None,
        env: &[],
        parking: None,
        image: None,
        package: "g++",
    },
    Row {
        name: "go",
        aliases: &["golang"],
        endings: &["go"],
        source: "main.go",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["go"],
            ask: &[&["env", "GOVERSION", "GOROOT"]],
            answer: Answer::Version(&["Go"]),
            also: &[],
        },
        // One package at a time: each compiler takes its own share of the memory.
        stages: &[run(&["{runtime}", "build", "-p=1", "-o", "{program}", "{source}"]), run(&["{program}"])],
        exhaustion: None,
        env: &[
            ("GOCACHE", "{tmp}/.gocache"),
            ("GOPATH", "{tmp}/.gopath"),
            ("GOFLAGS", "-buildvcs=false"),
            ("GOTOOLCHAIN", "local"),
            ("GOPROXY", "off"),
            ("CGO_ENABLED", "0"),
        ],
        parking: None,
        image: None,
        package: "golang-go",
    },
    Row {
        name: "rust",
        aliases: &["rs"],
        endings: &["rs"],
        source: "main.rs",
        preparation: Preparation::None,
        runtime: Discovery {
            programs: &["rustc"],
            ask: &[&["--version"], &["--print", "sysroot"]],
            answer: Answer::Version(&["rustc"]),
            also: &[],
        },
        stages: &[
            // One codegen unit means one thread, however many CPUs the host has.
            run(&[
                "{runtime}",
                "--edition",
                "2021",
                "-C",
                "opt-level=1",
                "-C",
                "codegen-units=1",
                "-o",
                "{program}",
                "{source}",
            ]),
            run(&["{program}"]),
        ],
        exhaustion: None,
        env: &[],
        parking: None,
        image: None,
        package: "rustc",
    },
    Row {
        name: "java",
        aliases: &[],
        endings: &["java"],
        source: "Main.java",
        preparation: Preparation::NameAfterType,
        runtime: Discovery {
            programs: &["java"],
            // A JRE without the compiler fails the second command.
            ask: &[&["-XshowSettings:properties", "-version"], &["--describe-module", "jdk.compiler"]],
            answer: Answer::Settings {
                names: &["OpenJDK", "Java"],
                version: "java.version",
                home: "java.home",
            },
            also: &[],
        },
        stages: &[
            run(&[
                "{runtime}",
                "-Xmx{heap_mb}m",
                "-XX:ActiveProcessorCount={cpus}",
                "-XX:+UseSerialGC",
                // Most compilations end before the optimising compiler of the virtual machine has paid off.
                "-XX:TieredStopAtLevel=1",
                "-XX:-UsePerfData",
                // This is `javac`, but it is found wherever `java` is.
                "-m",
                "jdk.compiler/com.sun.tools.javac.Main",
                "-proc:none",
                "-cp",
                "{classpath}",
                "-d",
                "{program}",
                "{source}",
            ]),
            run(&[
                "{runtime}",
                "-Xmx{heap_mb}m",
                "-XX:ReservedCodeCacheSize=32m",
                "-XX:MaxMetaspaceSize=64m",
                "-XX:ActiveProcessorCount={cpus}",
                "-XX:+UseSerialGC",
                "-XX:-UsePerfData",
                "-XX:+ExitOnOutOfMemoryError",
                // Or else the reason would be in the middle of the program's own output.
                "-XX:+DisplayVMOutputToStderr",
                "-cp",
                "{program}:{classpath}",
                "{main_class}",
            ]),
        ],
        exhaustion: Some(Exhaustion {
            code: 3,
            last_line: "Terminating due to java.lang.OutOfMemoryError: ",
        }),
        env: &[],
        parking: None,
        image: None,
        package: "default-jdk-headless",
    },
];

const NODE: Discovery = Discovery {
    programs: &["node", "nodejs"],
    ask: &[&["-p", "`Node.js ${process.versions.node}\\n${fs.realpathSync(process.execPath)}`"]],
    answer: Answer::Told,
    also: &[],
};

/// The name or alias that may have been meant.
fn nearest(name: &str) -> Option<&'static str> {
    let names = ROWS.iter().flat_map(|row| std::iter::once(&row.name).chain(row.aliases));
    crate::spelling::nearest(&name.to_ascii_lowercase(), names.copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snippet_of_php_needs_no_opening_tag() {
        let file = |language: &str, snippet: &str| {
            let bytes = Language::by_name(language).unwrap().file_of(snippet.into());
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(file("php", "echo 1;"), "<?php echo 1;");
        assert_eq!(file("php", ""), "<?php ");
        for whole in ["<?php echo 1;", "<b><?= 1 ?></b>"] {
            assert_eq!(file("php", whole), whole);
        }
        assert_eq!(file("perl", "print 1"), "print 1");
    }

    #[test]
    fn code_that_makes_its_runtime_go_back_cannot_come_through_a_pipe() {
        let takes =
            |name: &str, code: &str| Language::by_name(name).unwrap().parking.unwrap().takes(code.as_bytes());
        assert!(!takes("python", "# -*- coding: latin-1 -*-\nprint(1)"));
        assert!(!takes("python", "#!/usr/bin/python\n# coding: latin-1\n"));
        assert!(!takes("python", "\r# coding: latin-1"));
        assert!(takes("python", "text = open('x', encoding='latin-1')\nprint(text)"));
        assert!(takes("python", "import os\nimport re\n# coding: latin-1"));
        assert!(!takes("perl", "print <DATA>;\n__DATA__\nx"));
        assert!(takes("perl", "print 1"));
        assert!(!takes("bash", &"#".repeat(BYTE_BY_BYTE + 1)));
    }

    #[test]
    fn a_file_that_a_runtime_looks_for_while_booting_comes_too_late() {
        let looked =
            |name: &str, path: &str| Language::by_name(name).unwrap().parking.unwrap().has_looked_for(path);
        assert!(looked("python", ".local/lib/python3.11/site-packages/x.pth"));
        assert!(!looked("python", "data/.local"));
        assert!(looked("node", "package.json") && !looked("node", "lib/package.json"));
    }

    #[test]
    fn no_compiled_language_can_be_parked() {
        for language in Language::all() {
            assert!((1..=2).contains(&language.stages.len()), "{language}");
            assert!(language.parking.is_none() || !language.is_compiled(), "{language}");
        }
    }

    #[test]
    fn a_full_heap_is_told_from_a_program_with_the_same_exit_status() {
        let java = Language::by_name("java").unwrap().exhaustion.unwrap();
        let last = b"working\nTerminating due to java.lang.OutOfMemoryError: Java heap space\n";
        assert!(java.shows_in(3, last));
        assert!(!java.shows_in(1, last), "another status");
        assert!(!java.shows_in(3, b""), "the program's own status");
        assert!(
            !java.shows_in(3, &[&last[..], b"and on\n"].concat()),
            "a line that the program wrote before"
        );
    }

    use proptest::prelude::*;

    #[test]
    fn the_contracts_languages_are_known_in_its_order() {
        let names: Vec<_> = Language::all().map(|language| language.name).collect();
        let contract = "python javascript typescript bash sh zsh ruby php perl lua r c cpp go rust java";
        assert_eq!(names.join(" "), contract);
    }

    #[test]
    fn no_name_or_alias_or_ending_means_two_languages() {
        let mut names: Vec<_> =
            ROWS.iter().flat_map(|row| std::iter::once(&row.name).chain(row.aliases)).collect();
        let mut endings: Vec<_> = ROWS.iter().flat_map(|row| row.endings).collect();
        for list in [&mut names, &mut endings] {
            let before = list.len();
            list.sort_unstable();
            list.dedup();
            assert_eq!(list.len(), before);
        }
    }

    #[test]
    fn an_unknown_language_suggests_the_nearest() {
        for (slip, meant) in
            [("pyhton", "python"), ("javascrpt", "javascript"), ("rubby", "ruby"), ("phyton", "python")]
        {
            let hint = Language::parse(slip).unwrap_err().hint;
            assert!(hint.contains(&format!("'{meant}'")), "{slip}: {hint}");
        }
        for far in ["brainfuck", "x", "d", "vb", "c#", "sql", ""] {
            let hint = Language::parse(far).unwrap_err().hint;
            assert!(!hint.contains("mean"), "{far}: {hint}");
        }
    }

    #[test]
    fn a_shebang_line_names_the_language() {
        let of = |line: &str| Language::by_first_line(line.as_bytes()).map(|language| language.name);
        assert_eq!(of("#!/usr/bin/env python3\nprint(1)"), Some("python"));
        assert_eq!(of("#!/usr/bin/env -S FOO=1 node --x"), Some("javascript"));
        assert_eq!(of("#!/usr/bin/python3.11"), Some("python"));
        assert_eq!(of("#! /bin/sh -e"), Some("sh"));
        assert_eq!(of("print(1)"), None);
        assert_eq!(of("#!/opt/unheard-of"), None);
    }

    proptest! {
        #[test]
        fn no_name_makes_the_parser_panic(name in ".{0,60}") {
            let _ = Language::parse(&name);
            let _ = Language::by_file_name(&name);
            let _ = Language::by_first_line(name.as_bytes());
        }
    }
}
