//! Reading code before it runs. The engine knows that somebody can; who, and in which process, is the composition's.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_core::finding::{Finding, Launch, Launched, Position, Severity};
use belljar_core::language::Language;
use belljar_core::policy::Policy;
use belljar_core::request::{Code, EnvVar, MAX_CODE, RunRequest, Stdin};
use sha2::{Digest, Sha256};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::admission::Rights;
use crate::loading::{Loads, Reach, lines_that_python_runs, runs_at_start};
use crate::recorder::Origin;
use crate::{Engine, RunError};

/// How long a thread that drives runs waits for a scan.
const PATIENCE: Duration = Duration::from_millis(3);
/// What is found without a scan: a file of compiled code, a file that a runtime looks for when it starts, a variable that makes a
/// runtime run other code, and a standard input that is run and cannot be read before.
const COMPILED: &str = "any.scan.compiled-file";
const AT_START: &str = "any.files.runs-at-start";
const ENVIRONMENT: &str = "any.environment.runs-code";
const STREAMED: &str = "any.scan.streamed-code";

/// What a scan finds where code does not parse.
const UNREADABLE: &str = "any.scan.unreadable";

/// The rules that are the engine's own, beside those of the scanner.
pub const OWN_RULES: [&str; 4] = [COMPILED, AT_START, ENVIRONMENT, STREAMED];

/// A file that may be data is not parsed if it is larger: it would take longer than many a run. One that is read by its tokens may
/// have any size.
const LARGEST_PARSED: usize = 64 << 10;

/// How much of the name of a file is told.
const LONGEST_NAME: usize = 100;

/// Reads code and says what it found. It blocks for as long as that takes, which is bounded.
pub trait Scanner: fmt::Debug + Send + Sync + 'static {
    /// Scans code.
    ///
    /// # Errors
    /// The code could not be read, for a reason that is not in the code.
    fn scan(&self, subject: &Subject) -> Result<Scanned, Unscanned>;

    /// Begins a scan and waits for its end, for so long at most. A scanner that cannot stop waiting does not begin.
    fn begin(self: Arc<Self>, subject: Subject, patience: Duration) -> Scan {
        let _ = patience;
        Scan::Pending(Box::new(move || self.scan(&subject)))
    }
}

/// A scan that was begun.
pub enum Scan {
    /// It has ended.
    Ended(Result<Scanned, Unscanned>),
    /// This ends it, and blocks for as long as that takes.
    Pending(Box<dyn FnOnce() -> Result<Scanned, Unscanned> + Send>),
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scan::Ended(_) => "Ended",
            Scan::Pending(_) => "Pending",
        })
    }
}

/// What is scanned.
#[derive(Debug, Clone)]
pub struct Subject {
    /// What it is written in.
    pub language: Language,
    /// The code.
    pub code: Code,
    /// The only modules that it may import, if there are such.
    pub allowed_imports: Option<Vec<String>>,
}

/// What a scan says about code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scanned {
    /// What it found.
    pub findings: Vec<Finding>,
    /// What else the code runs, as far as its text names it.
    pub launches: Vec<Launch>,
}

/// What scans have said about parts of one request, which runs more than once.
#[derive(Debug, Default)]
pub struct Scans(Mutex<HashMap<[u8; 32], Scanned>>);

/// Why code could not be scanned.
#[derive(Debug, thiserror::Error)]
#[error("cannot scan the code: {reason}")]
pub struct Unscanned {
    /// What went wrong.
    pub reason: String,
}

/// Which code is scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scanning {
    /// Only what somebody asks to have scanned.
    OnRequest,
    /// That of every run, too.
    EveryRun,
}

impl Engine {
    /// Lets the engine scan code.
    #[must_use]
    pub fn with_scanner(self, scanner: Arc<dyn Scanner>, scanning: Scanning) -> Engine {
        Engine { scanner: Some((scanner, scanning)), ..self }
    }

    /// Scans code.
    ///
    /// # Errors
    /// There is no scanner, or the code could not be read, for a reason that is not in the code.
    pub async fn scan(&self, subject: Subject) -> Result<Vec<Finding>, RunError> {
        Ok(self.ask_scanner(subject).await?.findings)
    }

    async fn ask_scanner(&self, subject: Subject) -> Result<Scanned, RunError> {
        let Some((scanner, _)) = self.scanner.clone() else {
            return Err(Unscanned { reason: "there is no scanner here".to_owned() }.into());
        };
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Ok(scanner.scan(&subject)?);
        }
        // Most code is read sooner than another thread wakes up. What takes longer does not occupy a thread that drives runs.
        match scanner.begin(subject, PATIENCE) {
            Scan::Ended(scanned) => Ok(scanned?),
            Scan::Pending(rest) => {
                Ok(tokio::task::spawn_blocking(rest).await.map_err(RunError::Unprepared)??)
            }
        }
    }

    /// Whether the code of every run is scanned, whatever the policy needs.
    pub(crate) fn scans_every_run(&self) -> bool {
        matches!(self.scanner, Some((_, Scanning::EveryRun)))
    }

    /// What is to be scanned of a request, if anything is: the code, or what a program of Belljar's own reads in its place,
    /// and the files that are code.
    ///
    /// # Errors
    /// What the caller wrote cannot be read as code.
    pub(crate) fn subjects(
        &self,
        origin: &Origin,
        policy: &Policy,
        request: &RunRequest,
    ) -> Result<Material, RunError> {
        let execution = &request.execution;
        let (language, asked) = (execution.language, execution.allowed_imports.as_deref());
        if !policy.needs_findings(language) && asked.is_none() && !self.scans_every_run() {
            return Ok(Material::default());
        }
        let allowed_imports = policy.imports(language, asked);
        let of = |code: Code| Subject { language, code, allowed_imports: allowed_imports.clone() };
        let mut findings: Vec<Finding> = request.sandbox.env.iter().filter_map(runs_code).collect();
        let mut parts = Vec::new();
        match &origin.cells {
            None => parts.push(Part::whole(Of::Code, of(execution.code.clone()))),
            // Each on its own, as it runs: a quotation mark in one does not turn the next into text.
            Some(cells) => {
                for (at, cell) in cells.iter().enumerate() {
                    for text in [Some(cell.to_string()), with_commands(cell)].into_iter().flatten() {
                        let subject = of(Code::parse(text.into_bytes(), None)?);
                        parts.push(Part::whole(Of::Cell(at), subject));
                    }
                }
            }
        }
        for (at, file) in execution.files.iter().enumerate() {
            let name = file.path.as_str();
            let started = runs_at_start(name);
            findings.extend(started.map(|language| at_start(name, language)));
            if is_compiled(name, &file.content) {
                findings.push(compiled(name));
                continue;
            }
            let known = language_of(name, &file.content);
            if let Some(language) = known {
                parts.push(Part::of_file(policy, request, at, language)?);
            }
            if let Some(language) = started.filter(|language| known != Some(*language)) {
                parts.push(Part::of_start_file(policy, request, at, language)?);
            }
        }
        Ok(Material { findings, parts })
    }

    /// What a scan finds in a request. What the code runs or loads is scanned, too: files of the request and its standard input, as
    /// what they are run as. The request comes back: its standard input may be a stream, which cannot be shared.
    ///
    /// # Errors
    /// As [`scan`](Engine::scan); or what the caller wrote cannot be read as code.
    pub(crate) async fn examine(
        &self,
        origin: &Origin,
        rights: Rights<'_>,
        request: RunRequest,
    ) -> Result<(RunRequest, Vec<Finding>), RunError> {
        let Material { mut findings, parts } = self.subjects(origin, rights.policy, &request)?;
        let mut seen: HashSet<_> = parts.iter().map(Part::kind).collect();
        let mut parts = VecDeque::from(parts);
        while let Some(Part { of, subject, is_whole, taken_for }) = parts.pop_front() {
            let language = subject.language;
            let has_files = !request.execution.files.is_empty();
            let loads = if has_files { Loads::of(language, subject.code.bytes()) } else { Loads::default() };
            let Scanned { findings: mut found, launches } = self.scan_once(subject, rights.scans).await?;
            let loads = loads.with(&found);
            if !taken_for.keep(language, &mut found) {
                continue;
            }
            // If the code turns out to load it, no more than this would be found.
            seen.insert((of, read_as(language), TakenFor::Loaded));
            if let Some(name) = of.name(&request) {
                found.iter_mut().for_each(|finding| place(finding, &name));
                findings.extend((!is_whole).then(|| too_large(&name)));
            }
            findings.append(&mut found);
            parts.extend(loaded(rights.policy, &request, language, &loads, &mut seen)?);
            for launch in &launches {
                for followed in launched(rights.policy, &request, launch)? {
                    match followed {
                        Followed::Part(part) if seen.insert(part.kind()) => parts.push_back(part),
                        Followed::Finding(finding) if !findings.contains(&finding) => findings.push(finding),
                        Followed::Part(_) | Followed::Finding(_) => {}
                    }
                }
            }
        }
        Ok((request, findings))
    }

    async fn scan_once(&self, subject: Subject, scans: Option<&Scans>) -> Result<Scanned, RunError> {
        let Some(scans) = scans else { return self.ask_scanner(subject).await };
        let key = subject.digest();
        if let Some(scanned) = scans.locked().get(&key) {
            return Ok(scanned.clone());
        }
        let scanned = self.ask_scanner(subject).await?;
        scans.locked().insert(key, scanned.clone());
        Ok(scanned)
    }
}

impl Scans {
    fn locked(&self) -> MutexGuard<'_, HashMap<[u8; 32], Scanned>> {
        // A panic while the lock was held has added something, or not.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subject {
    /// The same for the same code in the same language with the same imports.
    fn digest(&self) -> [u8; 32] {
        let Subject { language, code, allowed_imports } = self;
        let mut digest = Sha256::new();
        let imports =
            allowed_imports.as_ref().map_or(String::new(), |names| format!("={}", names.join("\n")));
        for part in [language.name.as_bytes(), imports.as_bytes(), code.bytes()] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }
}

/// What there is to scan in a request, and what is known of it without a scan.
#[derive(Debug, Default)]
pub(crate) struct Material {
    findings: Vec<Finding>,
    parts: Vec<Part>,
}

/// A part of a request that is scanned.
#[derive(Debug)]
pub(crate) struct Part {
    of: Of,
    subject: Subject,
    /// Whether that is all of the file.
    is_whole: bool,
    taken_for: TakenFor,
}

/// Why a part is scanned, and so what counts of that which is found in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum TakenFor {
    /// It is code: everything.
    Code,
    /// The code seems to load it. It may be data that does not parse.
    Loaded,
    /// The code loads something, and this is not known to be anything else.
    Anything,
}

impl TakenFor {
    /// Keeps what counts, and says whether the part is code at all.
    fn keep(self, language: Language, found: &mut Vec<Finding>) -> bool {
        // What does not parse does not run. A shell runs the lines before that, and other languages are not parsed.
        let is_parsed = is_parsed(language) && !language.is_shell();
        if self == TakenFor::Anything && is_parsed && found.iter().any(|finding| finding.rule == UNREADABLE) {
            return false;
        }
        // Data often has a text in it that code would not have. It seldom has what only a rule of one language finds.
        let is_telling =
            |finding: &Finding| finding.severity >= Severity::Medium && !finding.rule.starts_with("any.");
        let is_code = self != TakenFor::Anything || found.iter().any(is_telling);
        found.retain(|finding| self == TakenFor::Code || finding.severity >= Severity::Medium);
        is_code
    }
}

/// Which part of a request it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    Code,
    Cell(usize),
    File(usize),
    Stdin,
}

/// What is known about something that code runs.
enum Followed {
    Part(Part),
    Finding(Finding),
}

impl Of {
    /// What it is called; `None` for the code itself.
    fn name(self, request: &RunRequest) -> Option<String> {
        match self {
            Of::Code => None,
            Of::Cell(at) => Some(format!("cell {}", at + 1)),
            Of::File(at) => request.execution.files.get(at).map(|file| file.path.as_str().to_owned()),
            Of::Stdin => Some("standard input".to_owned()),
        }
    }
}

impl Part {
    fn whole(of: Of, subject: Subject) -> Part {
        Part { of, subject, is_whole: true, taken_for: TakenFor::Code }
    }

    fn of_start_file(
        policy: &Policy,
        request: &RunRequest,
        at: usize,
        language: Language,
    ) -> Result<Part, RunError> {
        let file = request.execution.files.get(at);
        let part = match file.filter(|file| file.path.as_str().ends_with(".pth")) {
            Some(file) => {
                let lines = lines_that_python_runs(&file.content);
                Part::of_bytes(policy, request, Of::File(at), language, &lines)?
            }
            None => Part::of_file(policy, request, at, language)?,
        };
        Ok(Part { taken_for: TakenFor::Loaded, ..part })
    }

    fn of_file(
        policy: &Policy,
        request: &RunRequest,
        at: usize,
        language: Language,
    ) -> Result<Part, RunError> {
        let content = request.execution.files.get(at).map_or(&[][..], |file| &file.content);
        Part::of_bytes(policy, request, Of::File(at), language, content)
    }

    fn of_bytes(
        policy: &Policy,
        request: &RunRequest,
        of: Of,
        language: Language,
        content: &[u8],
    ) -> Result<Part, RunError> {
        let execution = &request.execution;
        let shared = |_: &&[String]| language.shares_modules_with(execution.language);
        let allowed_imports = policy.imports(language, execution.allowed_imports.as_deref().filter(shared));
        // A NUL byte does not keep a shell from running the rest.
        let text: Vec<u8> = content.iter().copied().filter(|byte| *byte != 0).take(MAX_CODE).collect();
        let subject = Subject { language, code: Code::parse(text, None)?, allowed_imports };
        Ok(Part { of, subject, is_whole: content.len() <= MAX_CODE, taken_for: TakenFor::Code })
    }

    /// What it is, and as what it is read.
    fn kind(&self) -> Kind {
        // The cells of a notebook are there in two forms.
        (self.of, read_as(self.subject.language), self.taken_for)
    }
}

type Kind = (Of, &'static str, TakenFor);

/// All shells are read alike.
fn read_as(language: Language) -> &'static str {
    if language.is_shell() { "bash" } else { language.name }
}

/// The files of a request that a program may load as code of its own language, but for those that were seen.
fn loaded(
    policy: &Policy,
    request: &RunRequest,
    language: Language,
    loads: &Loads,
    seen: &mut HashSet<Kind>,
) -> Result<Vec<Part>, RunError> {
    let mut parts = Vec::new();
    for (at, file) in request.execution.files.iter().enumerate() {
        let (name, content) = (file.path.as_str(), file.content.as_slice());
        let taken_for = match loads.reach(language, name) {
            Some(Reach::Named) => TakenFor::Loaded,
            Some(Reach::Possible) if may_be_code(language, name, content) => TakenFor::Anything,
            Some(Reach::Possible) | None => continue,
        };
        let is_scanned = language_of(name, content).is_some_and(|known| reads_alike(known, language));
        let kind = |taken_for| (Of::File(at), read_as(language), taken_for);
        let is_seen = [TakenFor::Code, TakenFor::Loaded].map(kind).iter().any(|more| seen.contains(more));
        let is_new = !is_scanned && !is_seen && seen.insert(kind(taken_for));
        if is_new && !is_compiled(name, content) && can_be(language, content) {
            let part = Part::of_file(policy, request, at, language)?;
            // Nobody says that data is too large.
            let is_whole = part.is_whole || taken_for == TakenFor::Anything;
            parts.push(Part { is_whole, taken_for, ..part });
        }
    }
    Ok(parts)
}

/// Whether the same is found in a file, whichever of the two it is read as.
fn reads_alike(one: Language, other: Language) -> bool {
    let is_c = |language: Language| matches!(language.name, "c" | "cpp");
    one.shares_modules_with(other) || (one.is_shell() && other.is_shell()) || (is_c(one) && is_c(other))
}

/// Whether a file that is not known to be code may be, and can be read in a time that does not matter.
fn may_be_code(language: Language, name: &str, content: &[u8]) -> bool {
    language_of(name, content).is_none() && (!is_parsed(language) || content.len() <= LARGEST_PARSED)
}

/// Whether a scan makes syntax trees of it.
fn is_parsed(language: Language) -> bool {
    language.is_shell() || matches!(language.name, "python" | "javascript" | "typescript")
}

/// Whether anything in a file can be run. PHP prints what is outside of its tags.
fn can_be(language: Language, content: &[u8]) -> bool {
    language.name != "php" || content.windows(2).any(|bytes| bytes == b"<?")
}

/// The language that the name of a file or its first line says it is written in.
fn language_of(name: &str, content: &[u8]) -> Option<Language> {
    const HEADERS: [&str; 5] = ["h", "hh", "hpp", "hxx", "h++"];
    let small = name.to_ascii_lowercase();
    let is_header = small.rsplit_once('.').is_some_and(|(_, ending)| HEADERS.contains(&ending));
    let by_name = Language::by_file_name(name).or_else(|| Language::by_file_name(&small));
    let by_name = by_name.or_else(|| Language::by_name("cpp").filter(|_| is_header));
    by_name.or_else(|| Language::by_first_line(content))
}

/// What a program runs, as far as that is a part of its request. If several files may be meant, all of them are.
fn launched(policy: &Policy, request: &RunRequest, launch: &Launch) -> Result<Vec<Followed>, RunError> {
    let (execution, language) = (&request.execution, launch.language);
    let followed = |at: usize| Part::of_file(policy, request, at, language).map(Followed::Part);
    match &launch.what {
        Launched::File(words) => {
            let meant = words.iter().map(|word| sources(request, word)).find(|files| !files.is_empty());
            meant.unwrap_or_default().into_iter().map(followed).collect()
        }
        Launched::Program(path) => {
            // One whose first line names its interpreter has been scanned as that.
            let is_named = |at: &usize| {
                let file = execution.files.get(*at);
                file.is_some_and(|file| Language::by_first_line(&file.content).is_some())
            };
            sources(request, path).into_iter().filter(|at| !is_named(at)).map(followed).collect()
        }
        Launched::Stdin => match &execution.stdin {
            Stdin::Empty => Ok(Vec::new()),
            Stdin::Bytes(bytes) => {
                let part = Part::of_bytes(policy, request, Of::Stdin, language, bytes)?;
                Ok(vec![Followed::Part(part)])
            }
            Stdin::Stream(_) => Ok(vec![Followed::Finding(streamed(language))]),
        },
    }
}

/// The files of a request that a path may mean, but for those that are no source.
fn sources(request: &RunRequest, path: &str) -> Vec<usize> {
    let path = path.trim_start_matches("./");
    let is_meant = |own: &str| !path.is_empty() && (is_end_of(own, path) || is_end_of(path, own));
    let files = request.execution.files.iter().enumerate();
    let meant = files
        .filter(|(_, file)| is_meant(file.path.as_str()) && !is_compiled(file.path.as_str(), &file.content));
    meant.map(|(at, _)| at).collect()
}

/// Whether a path ends with another: the program may be in another directory, or name the file from the root.
fn is_end_of(end: &str, path: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// Says what a finding is in.
fn place(finding: &mut Finding, name: &str) {
    finding.message = format!("{} (in {})", finding.message, shown(name));
    finding.within = Some(name.to_owned());
}

fn too_large(file: &str) -> Finding {
    let message = "the file is too large to be scanned to its end".to_owned();
    let mut finding = without_a_scan("any.scan.too-expensive", message);
    place(&mut finding, file);
    finding
}

fn compiled(file: &str) -> Finding {
    let message = "the file has compiled code, which is not scanned".to_owned();
    let mut finding = without_a_scan(COMPILED, message);
    place(&mut finding, file);
    finding
}

fn at_start(file: &str, language: Language) -> Finding {
    let message = format!("the file has a name that {} looks for when it starts", language.name);
    let mut finding = without_a_scan(AT_START, message);
    place(&mut finding, file);
    finding
}

fn streamed(language: Language) -> Finding {
    let message =
        format!("the program runs its standard input as {}, which comes only while it runs", language.name);
    Finding { within: Some("standard input".to_owned()), ..without_a_scan(STREAMED, message) }
}

/// A variable by which a runtime, the linker or a shell is given code or a place to look for it.
fn runs_code(variable: &EnvVar) -> Option<Finding> {
    is_able_to_run_code(variable.name(), variable.value()).then(|| {
        let message = format!(
            "a variable of the environment can make the runtime run other code: {}",
            shown(variable.name())
        );
        let within = Some("environment".to_owned());
        Finding { within, ..without_a_scan(ENVIRONMENT, message) }
    })
}

fn is_able_to_run_code(name: &str, value: &str) -> bool {
    const NAMES: [&str; 45] = [
        "PATH",
        "HOME",
        "ENV",
        "SHELLOPTS",
        "PROMPT_COMMAND",
        "PS0",
        "PS1",
        "PS2",
        "PS4",
        "ZDOTDIR",
        "FPATH",
        "MODULE_PATH",
        "BROWSER",
        "PAGER",
        "MANPAGER",
        "EDITOR",
        "VISUAL",
        "LESSOPEN",
        "LESSCLOSE",
        "CLASSPATH",
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "LIBRARY_PATH",
        "COMPILER_PATH",
        "CC",
        "CXX",
        "AR",
        "PKG_CONFIG",
        "GCONV_PATH",
        "GLIBC_TUNABLES",
        "MAKEFILES",
        "MAKEFLAGS",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_ASKPASS",
        "GIT_EDITOR",
        "GIT_PAGER",
        "GIT_EXTERNAL_DIFF",
        "GIT_EXEC_PATH",
        "GIT_PROXY_COMMAND",
        "R_HOME",
        "R_DEFAULT_PACKAGES",
        "OPENSSL_CONF",
        "_JAVA_OPTIONS",
    ];
    // Runtimes get new variables with new versions, so what begins like theirs is one of them unless it is known to be harmless.
    const BEGINNINGS: [&str; 24] = [
        "BASH",
        "XDG_",
        "LD_",
        "PYTHON",
        "NODE_",
        "GO",
        "CGO_",
        "RUST",
        "CARGO",
        "RUBY",
        "GEM_",
        "BUNDLE",
        "PERL",
        "JAVA",
        "JDK_",
        "GCC_",
        "PHP",
        "LUA_",
        "R_PROFILE",
        "R_ENVIRON",
        "R_LIBS",
        "OPENSSL_ENGINES",
        "OPENSSL_MODULES",
        "GIT_CONFIG",
    ];
    if name == "PYTHONWARNINGS" {
        // Its filters can name a class, whose module is imported.
        return value.contains(['.', ':']);
    }
    let begins = |beginning: &&str| name.starts_with(*beginning);
    NAMES.contains(&name) || (BEGINNINGS.iter().any(begins) && !is_harmless(name))
}

/// Variables of runtimes that people set and that run nothing.
fn is_harmless(name: &str) -> bool {
    const NAMES: [&str; 36] = [
        "PYTHONUNBUFFERED",
        "PYTHONHASHSEED",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUTF8",
        "PYTHONIOENCODING",
        "PYTHONFAULTHANDLER",
        "PYTHONOPTIMIZE",
        "PYTHONDEBUG",
        "PYTHONDEVMODE",
        "PYTHONVERBOSE",
        "PYTHONNOUSERSITE",
        "PYTHONSAFEPATH",
        "PYTHONTRACEMALLOC",
        "PYTHONMALLOC",
        "PYTHONASYNCIODEBUG",
        "PYTHONINTMAXSTRDIGITS",
        "PYTHON_COLORS",
        "PYTHON_GIL",
        "NODE_ENV",
        "NODE_DEBUG",
        "NODE_NO_WARNINGS",
        "NODE_DISABLE_COLORS",
        "NODE_TLS_REJECT_UNAUTHORIZED",
        "GOMAXPROCS",
        "GOGC",
        "GOMEMLIMIT",
        "GODEBUG",
        "GOTRACEBACK",
        "GOOS",
        "GOARCH",
        "RUST_BACKTRACE",
        "RUST_LIB_BACKTRACE",
        "RUST_LOG",
        "RUST_MIN_STACK",
        "CARGO_TERM_COLOR",
        "GCC_COLORS",
    ];
    // They only begin like those of Go.
    const BEGINNINGS: [&str; 2] = ["GOOGLE_", "GOAL"];
    NAMES.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

fn without_a_scan(rule: &str, message: String) -> Finding {
    let start = Position { line: 1, column: 1 };
    let (rule, severity) = (rule.to_owned(), Severity::High);
    Finding { rule, severity, message, start, end: start, excerpt: String::new(), within: None }
}

/// Whether a file is a program or a module that needs no source.
fn is_compiled(name: &str, content: &[u8]) -> bool {
    const ENDINGS: [&str; 14] = [
        ".pyc", ".pyo", ".so", ".node", ".whl", ".egg", ".pyz", ".class", ".jar", ".wasm", ".zwc", ".luac",
        ".phar", ".syso",
    ];
    let name = name.to_ascii_lowercase();
    let begins = |magic: &[u8]| content.starts_with(magic);
    ENDINGS.iter().any(|ending| name.ends_with(ending)) || begins(b"\x7fELF") || begins(b"\x1bLua")
}

/// A cell of a notebook with its lines of the form `!command` as the Python that runs them, if it has any.
fn with_commands(cell: &str) -> Option<String> {
    let command = |line: &str| {
        let text = line.trim_start();
        let (space, command) = (&line[..line.len() - text.len()], text.strip_prefix('!')?);
        let quoted = command.replace('\\', "\\\\").replace('\'', "\\'");
        Some(format!("{space}__import__('subprocess').run('{quoted}', shell=True)"))
    };
    let lines: Vec<_> = cell.lines().map(|line| command(line).ok_or(line)).collect();
    let translated = |line: &Result<String, &str>| line.clone().unwrap_or_else(str::to_owned);
    lines.iter().any(Result::is_ok).then(|| lines.iter().map(translated).collect::<Vec<_>>().join("\n"))
}

/// The name of a file in messages: short, and harmless for a terminal.
fn shown(path: &str) -> String {
    path.chars().take(LONGEST_NAME).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_give_a_runtime_code_are_told_from_harmless_ones() {
        for name in [
            "SHELLOPTS",
            "BASHOPTS",
            "PS4",
            "HOME",
            "BROWSER",
            "XDG_CONFIG_HOME",
            "PYTHONBREAKPOINT",
            "PYTHONUSERBASE",
            "PYTHONPATH",
            "NODE_OPTIONS",
            "GOFLAGS",
            "GOCACHEPROG",
            "RUSTC_WRAPPER",
            "CARGO_HOME",
            "RUBYOPT",
            "GEM_PATH",
            "BUNDLE_GEMFILE",
            "PERL5OPT",
            "JAVA_TOOL_OPTIONS",
            "JDK_JAVA_OPTIONS",
            "GCC_EXEC_PREFIX",
            "LD_PRELOAD",
            "PHPRC",
            "BASH_ENV",
            "BASH_FUNC_ls",
            "LUA_INIT",
            "R_PROFILE_USER",
            "CPATH",
            "PATH",
        ] {
            assert!(is_able_to_run_code(name, "x"), "{name}");
        }
        for name in [
            "PYTHONUNBUFFERED",
            "PYTHONHASHSEED",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONUTF8",
            "PYTHONIOENCODING",
            "NODE_ENV",
            "GOMAXPROCS",
            "GOGC",
            "RUST_BACKTRACE",
            "RUST_LOG",
            "GOOGLE_API_KEY",
            "GREETING",
            "TZ",
            "LANG",
            "DEBUG",
            "PORT",
        ] {
            assert!(!is_able_to_run_code(name, "x"), "{name}");
        }
        assert!(is_able_to_run_code("PYTHONWARNINGS", "all:0:antigravity.x:0:0"));
        assert!(!is_able_to_run_code("PYTHONWARNINGS", "ignore"));
    }

    fn found(rule: &str, severity: Severity) -> Finding {
        Finding { severity, ..without_a_scan(rule, String::new()) }
    }

    #[test]
    fn a_file_that_may_be_data_counts_only_if_something_in_it_is_code() {
        let kept = |language: &str, taken_for: TakenFor, findings: &[&Finding]| {
            let mut findings: Vec<Finding> = findings.iter().copied().cloned().collect();
            let is_code = taken_for.keep(Language::by_name(language).unwrap(), &mut findings);
            is_code.then_some(findings.len())
        };
        let unreadable = &found(UNREADABLE, Severity::Low);
        let text = &found("any.credentials.accounts", Severity::High);
        let spawn = &found("x.process.spawn", Severity::Medium);
        assert_eq!(kept("ruby", TakenFor::Anything, &[text]), None);
        assert_eq!(kept("ruby", TakenFor::Anything, &[text, spawn]), Some(2));
        assert_eq!(kept("bash", TakenFor::Anything, &[unreadable, text, spawn]), Some(2));
        assert_eq!(kept("python", TakenFor::Anything, &[text, spawn]), Some(2));
        assert_eq!(kept("python", TakenFor::Anything, &[unreadable, text, spawn]), None, "it cannot run");
        assert_eq!(kept("python", TakenFor::Loaded, &[unreadable, text]), Some(1));
        assert_eq!(kept("python", TakenFor::Code, &[unreadable, text, spawn]), Some(3));
    }

    #[test]
    fn large_data_is_not_parsed_and_what_is_known_to_be_code_is_not_taken_for_other_code() {
        let may_be = |language: &str, name: &str, size: usize| {
            may_be_code(Language::by_name(language).unwrap(), name, &vec![b'x'; size])
        };
        assert!(may_be("javascript", "d.csv", LARGEST_PARSED) && may_be("ruby", "d.csv", 2 << 20));
        assert!(!may_be("javascript", "d.csv", LARGEST_PARSED + 1));
        assert!(!may_be("javascript", "d.py", 1) && !may_be("php", "e.h", 1));
        assert!(!can_be(Language::by_name("php").unwrap(), b"run `x`"));
        assert!(can_be(Language::by_name("php").unwrap(), b"\x89PNG <?= `x` ?>"));
        assert_eq!(language_of("lib/E.HPP", b"").map(|language| language.name), Some("cpp"));
    }
}
