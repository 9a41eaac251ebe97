use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_core::allowance::Ceilings;
use belljar_core::language::Language;
use belljar_core::limits::LimitsRequest;
use belljar_core::path::{BoxPath, Workspace, Writes};
use belljar_core::policy::parse_allowed_imports;
use belljar_core::request::{
    Arg, BackendChoice, Code, EnvVar, ExecutionRequest, Extras, Glob, Network, SandboxRequest, Stdin,
    parse_waivers,
};
use belljar_core::secret::SecretHost;
use belljar_core::{Field, Invalid, request as domain};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use crate::ToSchema;
use crate::problem::{self, Problem};

/// The most bytes of JSON that one request may have. Files travel in it, in base64.
pub const MAX_REQUEST: usize = 128 << 20;

/// Code to run, and how to run it. Only `language` and `code` are required; the server may be configured with other defaults
/// than those given here.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The language of the code, by its name or an alias. `GET /v1/languages` lists them.
    #[schema(schema_with = crate::schema::language_or_alias)]
    pub language: String,
    /// The source code: at most 4 MiB, without NUL characters. An empty program does nothing.
    #[schema(pattern = r"^[^\u0000]*$")]
    pub code: String,
    /// What the program reads from standard input. Without it, standard input is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = crate::schema::stdin)]
    pub stdin: Option<Input>,
    /// Arguments of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = crate::schema::args)]
    pub args: Vec<String>,
    /// Environment variables of the program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(schema_with = crate::schema::env)]
    pub env: BTreeMap<String, String>,
    /// Files to put into the working directory before the program starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "objects")]
    #[schema(default = json!([]))]
    pub files: Vec<InputFile>,
    /// Files to return from the working directory after the run, as glob patterns such as `*.png` or `out/**`.
    /// Wildcards do not match a leading dot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 64, default = json!([]))]
    pub collect: Vec<String>,
    /// Limits of the run. A limit that is left out has its default.
    #[serde(default, deserialize_with = "object")]
    pub limits: Limits,
    /// What the program can reach over the network. Not every backend has every network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::schema::NetworkAccess>, default = "none")]
    pub network: Option<String>,
    /// The hosts whose secrets are added to the program's requests to them, such as `api.example.com`. The program never
    /// sees the values. Only those that the server's configuration has and allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 16, default = json!([]))]
    pub secrets: Vec<String>,
    /// The OCI image to run in, such as `python:3.11-slim`. The run then goes to the docker backend; a backend that
    /// takes no image refuses it. Without it, a backend that uses images takes the image of the language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What is to isolate the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::schema::BackendChoice>, default = "auto")]
    pub backend: Option<String>,
    /// A directory on the server to show at `/work`, read-only unless `writable` is set, where the program then starts. It must be beneath one of the
    /// roots that the server's configuration allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^/[^\u0000]*[^/.\u0000][^\u0000]*$")]
    pub workspace: Option<String>,
    /// Whether the program can write to the workspace. What it writes counts as disk and is gone afterwards; the directory
    /// on the server does not change. `collect` then returns files from what was written there. Only the native backend
    /// has this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(default = false)]
    pub writable: bool,
    /// Whether the result says what the program did to a writable workspace, as `changes`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(default = false)]
    pub changes: bool,
    /// Guarantees to do without if the backend cannot keep them. Only those that the server's configuration allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<crate::schema::GuaranteeName>, default = json!([]))]
    pub waive: Vec<String>,
    /// Whether the result also has the output byte for byte, as `stdout_base64` and `stderr_base64`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(default = false)]
    pub output_base64: bool,
    /// Python: whether what matplotlib's `show` would have shown comes back in `files`, as `figure-1.png` and so on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(default = false)]
    pub plots: bool,
    /// Whether a program that lacks a package gets one more line on stderr, `hint: …`, which says how to get it here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(default = false)]
    pub hints: bool,
    /// The only modules that the code may import; each stands for everything in it, too. Code that imports others is not
    /// run (`status` is `denied`). It can only narrow what the server allows. For Python, JavaScript and TypeScript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000)]
    pub allowed_imports: Option<Vec<String>>,
}

/// What a program reads: one text, or a list of texts, for each of which it runs once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Input {
    /// One text.
    One(String),
    /// Several of them.
    Many(Vec<String>),
}

/// The most inputs of one request.
pub const MAX_INPUTS: usize = 256;

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Input, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Input;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Input, E> {
                Ok(Input::One(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Input, E> {
                Ok(Input::One(text))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Input, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(Input::Many(texts))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// A file to put into the working directory. It has one of `content`, `content_base64`, `from_run` and `upload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputFile {
    /// Where to put the file, relative to the working directory.
    #[schema(min_length = 1)]
    pub path: String,
    /// The content as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The content in base64, with padding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// A run of the same caller that has ended: the content is that of a file which it collected. Results are kept for a
    /// limited time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_run: Option<String>,
    /// Which file of that run: the `path` that its result has. Without it, the file of the same `path` as here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_path: Option<String>,
    /// A file that the same caller has uploaded with `PUT /v1/files`, by its `id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<String>,
    /// Whether the file may be executed.
    #[serde(default)]
    #[schema(default = false)]
    pub executable: bool,
}

/// Limits of a run. A limit that is left out has its default, or the caller's ceiling if that is lower.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Wall-clock time for everything that the run starts, in milliseconds. Waiting in the queue does not count.
    #[serde(deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400000, default = 10000)]
    pub timeout_ms: Option<u64>,
    /// Wall-clock time for the compiler of a language that is compiled, in milliseconds. It does not count for the program.
    #[serde(deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400000, default = 30000)]
    pub compile_timeout_ms: Option<u64>,
    /// CPU time for everything that the run starts, in milliseconds. Without it, CPU time is not limited.
    #[serde(deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400000)]
    pub cpu_ms: Option<u64>,
    /// Memory and swap together, in bytes.
    #[serde(deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4194304, maximum = 17592186044416_i64, default = 268435456)]
    pub memory_bytes: Option<u64>,
    /// Memory and swap for the compiler, in bytes. It does not count for the program. Without it, the compiler has 512 MiB, or
    /// as much as the program if that is more.
    #[serde(deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4194304, maximum = 17592186044416_i64, default = 536870912)]
    pub compile_memory_bytes: Option<u64>,
    /// How many CPUs the run may use at a time; 0.5 is half of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.01, maximum = 1024, default = 1.0)]
    pub cpus: Option<f64>,
    /// Processes and threads at a time.
    #[serde(deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 32768, default = 50)]
    pub pids: Option<u64>,
    /// Everything that the program can write to files, in bytes.
    #[serde(deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 65536, maximum = 17592186044416_i64, default = 67108864)]
    pub disk_bytes: Option<u64>,
    /// How much of stdout, and how much of stderr, is kept, in bytes. Of longer output, the beginning and the end are kept.
    #[serde(deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1073741824, default = 1048576)]
    pub output_bytes: Option<u64>,
}

/// What a caller in the same process has at hand and JSON has no good place for: bytes that need not be text,
/// and a standard input that is still being written. It takes the place of the request's own.
#[derive(Default)]
#[allow(missing_docs, reason = "each stands in for the field of the same name")]
pub struct Local {
    pub code: Option<LocalCode>,
    pub stdin: Option<Box<dyn Read + Send>>,
    pub files: Vec<LocalFile>,
    /// More files to return, which need not be there.
    pub collect: Vec<String>,
    /// CPU time for the compiler.
    pub compile_cpu_time: Option<Duration>,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Local { code, stdin, files, collect, compile_cpu_time: _ } = self;
        let stdin = stdin.as_ref().map(|_| "a stream");
        let mut shown = f.debug_struct("Local");
        shown
            .field("code", code)
            .field("stdin", &stdin)
            .field("files", files)
            .field("collect", collect)
            .finish()
    }
}

/// Code that came from a file or a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalCode {
    /// The source text.
    pub bytes: Vec<u8>,
    /// The name of its file, for the program's own messages.
    pub file_name: Option<String>,
    /// Whether that is a path in the workspace, where the file is and stays.
    pub in_workspace: bool,
}

/// A file of the caller's own machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFile {
    /// Where it is to be in the working directory.
    pub path: String,
    /// What is in it.
    pub content: Vec<u8>,
    /// Whether it may be executed.
    pub executable: bool,
}

impl From<LocalFile> for InputFile {
    fn from(LocalFile { path, content, executable }: LocalFile) -> InputFile {
        let file = InputFile { path, executable, ..InputFile::default() };
        match String::from_utf8(content) {
            Ok(text) => InputFile { content: Some(text), ..file },
            Err(other) => InputFile { content_base64: Some(STANDARD.encode(other.as_bytes())), ..file },
        }
    }
}

impl RunRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// JSON that is too long, malformed, or has a field that the contract does not know.
    pub fn from_json(bytes: &[u8]) -> Result<RunRequest, Problem> {
        if bytes.len() > MAX_REQUEST {
            let message =
                format!("the request has {} bytes; at most {MAX_REQUEST} are accepted", bytes.len());
            return Err(Problem::new(problem::Code::TooLarge, message, "send less, or use a workspace"));
        }
        read_object(bytes)
    }

    /// Takes the inputs out of a request that has a list of them. One that has none or too many keeps them, and is refused
    /// when it is parsed.
    pub fn take_inputs(&mut self) -> Option<Vec<String>> {
        let may_run = |stdin: &mut Input| match stdin {
            Input::One(_) => false,
            Input::Many(inputs) => (1..=MAX_INPUTS).contains(&inputs.len()),
        };
        match self.stdin.take_if(may_run)? {
            Input::Many(inputs) => Some(inputs),
            Input::One(_) => None,
        }
    }

    /// The request in the terms of the domain. This is the one place where its text becomes types.
    ///
    /// # Errors
    /// The first field that is not what the contract wants.
    pub fn parse(self, local: Local) -> Result<domain::RunRequest, Invalid> {
        self.parse_within(&Ceilings::default(), local)
    }

    /// The same for a caller with ceilings: a limit that was left out takes the ceiling where the default is higher.
    /// One that was asked for stays as it is, for admission to refuse.
    ///
    /// # Errors
    /// The first field that is not what the contract wants.
    pub fn parse_within(self, ceilings: &Ceilings, local: Local) -> Result<domain::RunRequest, Invalid> {
        let limits = LimitsRequest { compile_cpu_time: local.compile_cpu_time, ..self.limits.into_domain() };
        let (box_limits, limits) = limits.within(ceilings).resolve()?;
        let workspace = workspace(&self)?;
        let files = files(self.files, local.files, box_limits.disk)?;
        let network = self.network.as_deref().map_or(Ok(Network::None), Network::parse)?;
        let sandbox = SandboxRequest {
            backend: self.backend.as_deref().map_or(Ok(BackendChoice::Auto), BackendChoice::parse)?,
            waived: parse_waivers(&self.waive)?,
            limits: box_limits,
            secrets: SecretHost::parse_all(&self.secrets, &network)?,
            network,
            workspace,
            env: EnvVar::parse_all(self.env.into_iter().collect())?,
            image: self.image,
        };
        let language = Language::parse(&self.language)?;
        let execution = ExecutionRequest {
            language,
            code: code(self.code, local.code, language)?,
            args: Arg::parse_all(self.args)?,
            stdin: stdin(self.stdin, local.stdin)?,
            files,
            collect: patterns(&self.collect, local.collect)?,
            limits,
            extras: Extras { plots: self.plots, hints: self.hints },
            allowed_imports: self
                .allowed_imports
                .map(|modules| parse_allowed_imports(language, modules))
                .transpose()?,
        };
        Ok(domain::RunRequest { sandbox, execution })
    }
}

/// The longest part of a request that an error names, in characters.
const MAX_FIELD: usize = 256;

/// JSON that is no request, and where, as far as a path leads there. (What a path cannot name it calls `?`.)
fn unreadable(fault: &serde_json::Error, path: Option<String>) -> Problem {
    let message = format!("the request cannot be read: {fault}");
    let hint = "a request is {\"language\": …, \"code\": …}; the documentation lists the other fields";
    let mut problem = Problem::new(problem::Code::InvalidRequest, message, hint);
    let path = path.filter(|path| fault.is_data() && path != "." && !path.contains('?'));
    // A name that a client has made up can be as long as its request.
    problem.error.field = path.map(|path| path.chars().take(MAX_FIELD).collect());
    problem
}

impl TryFrom<RunRequest> for domain::RunRequest {
    type Error = Invalid;

    fn try_from(request: RunRequest) -> Result<domain::RunRequest, Invalid> {
        request.parse(Local::default())
    }
}

impl Limits {
    fn into_domain(self) -> LimitsRequest {
        LimitsRequest {
            timeout: self.timeout_ms.map(Duration::from_millis),
            cpu_time: self.cpu_ms.map(Duration::from_millis),
            memory: self.memory_bytes,
            cpus: self.cpus,
            pids: self.pids,
            disk: self.disk_bytes,
            output: self.output_bytes,
            compile_timeout: self.compile_timeout_ms.map(Duration::from_millis),
            compile_memory: self.compile_memory_bytes,
            ..LimitsRequest::default()
        }
    }
}

fn workspace(request: &RunRequest) -> Result<Option<Workspace>, Invalid> {
    let RunRequest { workspace: path, writable, changes, .. } = request;
    let refused = |field, message: &str, hint: &str| {
        Err(Invalid { field, message: message.to_owned(), hint: hint.to_owned(), too_large: false })
    };
    if *writable && path.is_none() {
        let hint = "name one, as in --workspace . --writable; without a workspace, /sandbox is writable";
        return refused(Field::Writable, "writable needs a workspace", hint);
    }
    let writes = match (writable, changes) {
        (false, false) => Writes::Refused,
        (true, false) => Writes::Discarded,
        (true, true) => Writes::Reported,
        (false, true) => {
            let hint = "add writable, as in --workspace . --writable --changes";
            return refused(Field::Changes, "changes needs a workspace that is writable", hint);
        }
    };
    let workspace = path.as_ref().map(|path| Workspace::parse(Path::new(path))).transpose()?;
    Ok(workspace.map(|workspace| workspace.with_writes(writes)))
}

fn code(text: String, local: Option<LocalCode>, language: Language) -> Result<Code, Invalid> {
    let Some(local) = local else { return Code::parse(language.file_of(text.into_bytes()), None) };
    if let (true, Some(path)) = (local.in_workspace, &local.file_name) {
        return Code::in_workspace(local.bytes, BoxPath::parse(path)?);
    }
    // A name that a box cannot have is no reason to refuse the code: it only goes into messages.
    let name = local.file_name.and_then(|name| BoxPath::parse(&name).ok());
    Code::parse(local.bytes, name)
}

/// Those of the request, and those of files that need not be there.
fn patterns(expected: &[String], optional: Vec<String>) -> Result<Vec<Glob>, Invalid> {
    let number = expected.len();
    let all: Vec<String> = expected.iter().cloned().chain(optional).collect();
    let patterns = Glob::parse_all(&all)?.into_iter().enumerate();
    Ok(patterns.map(|(at, glob)| if at < number { glob } else { glob.optional() }).collect())
}

/// A list of inputs that arrived where one is wanted: it is not taken apart everywhere, and not if it is too long.
fn not_here(inputs: usize) -> Invalid {
    let too_large = inputs > MAX_INPUTS;
    let (message, hint) = if (1..=MAX_INPUTS).contains(&inputs) {
        (
            "a list of inputs cannot be taken here".to_owned(),
            "send it to POST /v1/runs, without Prefer: respond-async and Idempotency-Key",
        )
    } else {
        let message = format!("stdin is a list of {inputs} inputs; it may have 1 to {MAX_INPUTS}");
        (
            message,
            if too_large { "send the others in another request" } else { "leave stdin out, or name one" },
        )
    };
    Invalid { field: Field::Stdin, message, hint: hint.to_owned(), too_large }
}

fn stdin(input: Option<Input>, local: Option<Box<dyn Read + Send>>) -> Result<Stdin, Invalid> {
    match (local, input) {
        (Some(stream), _) => Ok(Stdin::Stream(stream)),
        (None, Some(Input::One(text))) if !text.is_empty() => Ok(Stdin::Bytes(text.into_bytes())),
        (None, Some(Input::One(_)) | None) => Ok(Stdin::Empty),
        (None, Some(Input::Many(inputs))) => Err(not_here(inputs.len())),
    }
}

fn files(
    remote: Vec<InputFile>,
    local: Vec<LocalFile>,
    disk: belljar_core::limits::Bytes,
) -> Result<Vec<domain::InputFile>, Invalid> {
    let mut files = Vec::with_capacity(remote.len() + local.len());
    for file in remote {
        let path = BoxPath::parse(&file.path)?;
        file.source()?;
        let content = match (file.content, file.content_base64) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(base64)) => decoded(&path, &base64)?,
            (None, None) => return Err(only_on_a_server(&path)),
        };
        files.push(domain::InputFile { path, content, executable: file.executable });
    }
    for LocalFile { path, content, executable } in local {
        files.push(domain::InputFile { path: BoxPath::parse(&path)?, content, executable });
    }
    refuse_duplicates(&files)?;
    refuse_overflow(files.iter().map(|file| file.content.len() as u64).sum(), disk)?;
    Ok(files)
}

/// Whether files of so many bytes fit on the disk of a box.
fn refuse_overflow(total: u64, disk: belljar_core::limits::Bytes) -> Result<(), Invalid> {
    if total <= disk.get() {
        return Ok(());
    }
    let message = format!("the files come to {total} bytes, more than the disk limit of {disk}");
    let hint = "raise --disk, or show a whole directory with --workspace";
    Err(Invalid { too_large: true, ..wrong_file(message, hint) })
}

/// Where the content of a file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the field of the same name")]
pub enum FileSource<'a> {
    Text(&'a str),
    Base64(&'a str),
    /// A file that an earlier run collected.
    Run {
        id: &'a str,
        path: &'a str,
    },
    Upload(&'a str),
}

impl InputFile {
    /// Where the content comes from.
    ///
    /// # Errors
    /// That it is said twice, or not at all.
    pub fn source(&self) -> Result<FileSource<'_>, Invalid> {
        let InputFile { path, content, content_base64, from_run, from_path, upload, .. } = self;
        let source = match (content, content_base64, from_run, upload) {
            (Some(text), None, None, None) => FileSource::Text(text),
            (None, Some(base64), None, None) => FileSource::Base64(base64),
            (None, None, Some(id), None) => {
                return Ok(FileSource::Run { id, path: from_path.as_ref().unwrap_or(path) });
            }
            (None, None, None, Some(id)) => FileSource::Upload(id),
            _ => {
                return Err(wrong_file(
                    format!(
                        "the file '{}' needs one of content, content_base64, from_run and upload",
                        path.escape_debug()
                    ),
                    "give text as content, anything else as content_base64",
                ));
            }
        };
        if from_path.is_some() {
            let message = format!("the file '{}' has from_path without from_run", path.escape_debug());
            return Err(wrong_file(message, "name the run that collected the file as from_run"));
        }
        Ok(source)
    }
}

impl RunRequest {
    /// Whether files of so many bytes fit on the disk that a run of a caller with these ceilings gets.
    ///
    /// # Errors
    /// That they do not, or that the limits are not what the contract wants.
    pub fn refuse_large_files(&self, total: u64, ceilings: &Ceilings) -> Result<(), Invalid> {
        let (limits, _) = self.limits.into_domain().within(ceilings).resolve()?;
        refuse_overflow(total, limits.disk)
    }
}

fn decoded(path: &BoxPath, base64: &str) -> Result<Vec<u8>, Invalid> {
    STANDARD.decode(base64).map_err(|fault| {
        let hint = "use the standard alphabet with padding (RFC 4648, section 4)";
        wrong_file(format!("the content_base64 of '{path}' is not base64: {fault}"), hint)
    })
}

fn only_on_a_server(path: &BoxPath) -> Invalid {
    let message = format!("the file '{path}' is one that only a server has");
    wrong_file(message, "give its content; from_run and upload are for requests to a server")
}

fn refuse_duplicates(files: &[domain::InputFile]) -> Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    for file in files {
        if !seen.insert(file.path.as_str()) {
            let message = format!("two files are to be '{}'", file.path);
            return Err(wrong_file(message, "give one of them another name, as in --file SRC:DEST"));
        }
    }
    let inside_a_file = |file: &domain::InputFile| file.path.parents().any(|parent| seen.contains(parent));
    match files.iter().find(|file| inside_a_file(file)) {
        None => Ok(()),
        Some(file) => Err(wrong_file(
            format!("'{}' is to be inside of something that is itself a file", file.path),
            "give one of them another name, as in --file SRC:DEST",
        )),
    }
}

fn wrong_file(message: String, hint: &str) -> Invalid {
    Invalid { field: Field::Files, message, hint: hint.to_owned(), too_large: false }
}

/// Reads a request, which is an object and nothing else.
pub(crate) fn read_object<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let request = track(&mut json).map_err(|fault| {
        let path = fault.path().to_string();
        unreadable(fault.inner(), Some(path))
    })?;
    json.end().map_err(|fault| unreadable(&fault, None))?;
    Ok(request)
}

/// Reads a request, and knows where in it a fault is.
fn track<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    json: D,
) -> Result<T, serde_path_to_error::Error<D::Error>> {
    let mut track = serde_path_to_error::Track::new();
    let json = serde_path_to_error::Deserializer::new(json, &mut track);
    object(json).map_err(|fault| serde_path_to_error::Error::new(track.path(), fault))
}

/// A struct written as an object. Left to itself, serde would also take a list of its fields in their order.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(de::value::MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_map(Object(PhantomData))
}

/// A list of such structs.
fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Listed<T>(T);

    impl<'de, T: Deserialize<'de>> Deserialize<'de> for Listed<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Listed<T>, D::Error> {
            object(deserializer).map(Listed)
        }
    }

    let listed: Vec<Listed<T>> = Vec::deserialize(deserializer)?;
    Ok(listed.into_iter().map(|Listed(item)| item).collect())
}

/// A whole number, however it is written. One beyond 64 bits becomes the largest there is, so that it is refused
/// for its range, by name, like any other.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Whole;

    impl<'de> Visitor<'de> for Whole {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number that is not negative")
        }

        fn visit_none<E: de::Error>(self) -> Result<Option<u64>, E> {
            Ok(None)
        }

        fn visit_unit<E: de::Error>(self) -> Result<Option<u64>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u64>, D::Error> {
            deserializer.deserialize_any(self)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Option<u64>, E> {
            Ok(Some(number))
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<Option<u64>, E> {
            if number < 0.0 || number.fract() != 0.0 {
                return Err(E::invalid_value(de::Unexpected::Float(number), &self));
            }
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked above; `as` saturates, which is what is wanted"
            )]
            Ok(Some(number as u64))
        }
    }

    deserializer.deserialize_option(Whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use utoipa::PartialSchema;

    fn parse(json: &str) -> Result<domain::RunRequest, Problem> {
        Ok(RunRequest::from_json(json.as_bytes())?.parse(Local::default())?)
    }

    fn field_of(json: &str) -> String {
        let fault = parse(json).unwrap_err().error;
        fault.field.unwrap_or_else(|| panic!("no field: {}", fault.message))
    }

    #[test]
    fn the_smallest_request_has_a_language_and_code() {
        let request = parse(r#"{"language": "py", "code": "print(1)"}"#).unwrap();
        assert_eq!(request.execution.language.name, "python");
        assert_eq!(request.execution.code.bytes(), b"print(1)");
        assert_eq!(request.sandbox.backend, BackendChoice::Auto);
        assert_eq!(request.sandbox.network, Network::None);
        assert!(matches!(request.execution.stdin, Stdin::Empty));
    }

    #[test]
    fn a_workspace_is_writable_and_told_of_only_if_that_is_asked_for() {
        let of = |more: &str| {
            parse(&format!(r#"{{"language": "sh", "code": "true"{more}}}"#))
                .map(|request| request.sandbox.workspace.map(|workspace| workspace.writes()))
                .map_err(|problem| problem.error.field.unwrap())
        };
        let workspace = r#", "workspace": "/srv/p""#;
        assert_eq!(of(""), Ok(None));
        assert_eq!(of(workspace), Ok(Some(Writes::Refused)));
        assert_eq!(of(&format!(r#"{workspace}, "writable": true"#)), Ok(Some(Writes::Discarded)));
        let both = r#", "writable": true, "changes": true"#;
        assert_eq!(of(&format!("{workspace}{both}")), Ok(Some(Writes::Reported)));
        assert_eq!(of(both), Err("writable".into()));
        assert_eq!(of(&format!(r#"{workspace}, "changes": true"#)), Err("changes".into()));
    }

    #[test]
    fn every_field_of_the_contract_is_understood() {
        let request = parse(
            r#"{"language": "bash", "code": "cat", "stdin": "in", "args": ["a"], "env": {"A": "b"},
                "files": [{"path": "a.txt", "content": "x"},
                          {"path": "b/c", "content_base64": "AP8=", "executable": true}],
                "collect": ["*.png"], "network": "full", "image": "alpine:3.20", "backend": "docker",
                "workspace": "/srv/project", "waive": ["memory"],
                "limits": {"timeout_ms": 1, "cpu_ms": 2, "memory_bytes": 8388608, "cpus": 0.5, "pids": 3,
                           "disk_bytes": 65536, "output_bytes": 7}}"#,
        )
        .unwrap();
        let (sandbox, execution) = (request.sandbox, request.execution);
        assert!(matches!(execution.stdin, Stdin::Bytes(bytes) if bytes == b"in"));
        assert_eq!(execution.files[1].content, [0, 255]);
        assert!(execution.files[1].executable && !execution.files[0].executable);
        assert_eq!(execution.limits.timeout, Duration::from_millis(1));
        assert_eq!(execution.limits.cpu_time, Some(Duration::from_millis(2)));
        assert_eq!((sandbox.limits.pids, sandbox.limits.cpus.milli()), (3, 500));
        assert_eq!(execution.limits.output.get(), 7);
        assert_eq!(sandbox.image.as_deref(), Some("alpine:3.20"));
        assert_eq!(sandbox.env[0].value(), "b");
        assert!(execution.collect[0].matches("plot.png"));
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        for json in [
            r#"{"language": "py", "code": "1", "timeout": 3}"#,
            r#"{"language": "py", "code": "1", "limits": {"timeout": 3}}"#,
            r#"{"language": "py", "code": "1", "files": [{"path": "a", "content": "", "timeout": 1}]}"#,
        ] {
            let message = parse(json).unwrap_err().error.message;
            assert!(message.contains("unknown field `timeout`"), "{message}");
        }
    }

    #[test]
    fn a_failure_names_the_field() {
        let with = |more: &str| field_of(&format!(r#"{{"language": "py", "code": "1", {more}}}"#));
        assert_eq!(field_of(r#"{"language": "pyhton", "code": "1"}"#), "language");
        assert!(parse(r#"{"language": "py", "code": ""}"#).is_ok(), "an empty program is a program");
        assert_eq!(field_of(r#"{"language": "py", "code": "a\u0000"}"#), "code");
        assert_eq!(with(r#""args": ["\u0000"]"#), "args");
        assert_eq!(with(r#""env": {"A B": ""}"#), "env");
        assert_eq!(with(r#""network": "lan""#), "network");
        assert_eq!(with(r#""backend": "podman""#), "backend");
        assert_eq!(with(r#""workspace": "/""#), "workspace");
        assert_eq!(with(r#""waive": ["all"]"#), "waive");
        assert_eq!(with(r#""collect": ["../x"]"#), "collect");
        assert_eq!(with(&format!(r#""collect": [{}"a"]"#, r#""a","#.repeat(64))), "collect");
        assert_eq!(with(r#""files": [{"path": "../x", "content": ""}]"#), "files");
        assert_eq!(with(r#""limits": {"memory_bytes": 0}"#), "limits.memory_bytes");
        assert_eq!(with(r#""limits": {"pids": 100000000000000000000}"#), "limits.pids");
        assert_eq!(with(r#""limits": {"timeout_ms": 1e20}"#), "limits.timeout_ms");
    }

    #[test]
    fn a_limit_that_is_no_whole_number_is_refused() {
        for number in ["-1", "1.5", "\"10s\"", "true"] {
            let json = format!(r#"{{"language": "py", "code": "1", "limits": {{"pids": {number}}}}}"#);
            assert!(parse(&json).unwrap_err().error.message.contains("whole number"), "{number}");
        }
        assert!(parse(r#"{"language": "py", "code": "1", "limits": {"pids": null}}"#).is_ok());
    }

    #[test]
    fn the_ranges_that_the_schema_tells_are_those_of_the_limits() {
        let schema = serde_json::to_value(Limits::schema()).unwrap();
        let accepted = |name: &str, number: f64| {
            let json = format!(r#"{{"language": "py", "code": "1", "limits": {{"{name}": {number}}}}}"#);
            parse(&json).is_ok()
        };
        for (name, limit) in schema["properties"].as_object().unwrap() {
            let (least, most) = (limit["minimum"].as_f64().unwrap(), limit["maximum"].as_f64().unwrap());
            assert!(accepted(name, least) && accepted(name, most), "{name}");
            let step = if name == "cpus" { 0.001 } else { 1.0 };
            assert!(!accepted(name, least - step) && !accepted(name, most + step), "{name}");
        }
    }

    #[test]
    fn the_defaults_that_the_schema_tells_are_those_of_the_limits() {
        let schema = serde_json::to_value(Limits::schema()).unwrap();
        let defaults: serde_json::Map<_, _> = schema["properties"]
            .as_object()
            .unwrap()
            .iter()
            .filter_map(|(name, limit)| Some((name.clone(), limit.get("default")?.clone())))
            .filter(|(_, default)| !default.is_null())
            .collect();
        assert_eq!(defaults.len(), 8);
        let limits = |limits: &serde_json::Value| {
            let request =
                parse(&format!(r#"{{"language": "py", "code": "1", "limits": {limits}}}"#)).unwrap();
            (request.sandbox.limits, request.execution.limits)
        };
        assert_eq!(limits(&serde_json::json!({})), limits(&defaults.into()));
    }

    #[test]
    fn a_file_has_one_content_and_a_place_of_its_own() {
        let with = |files: &str| {
            parse(&format!(r#"{{"language": "py", "code": "1", "files": [{files}]}}"#))
                .unwrap_err()
                .error
                .message
        };
        assert!(with(r#"{"path": "a"}"#).contains("one of content, content_base64, from_run and upload"));
        assert!(with(r#"{"path": "a", "content": "", "upload": "file_1"}"#).contains("one of content"));
        assert!(with(r#"{"path": "a", "from_run": "run_1", "upload": "file_1"}"#).contains("one of content"));
        assert!(with(r#"{"path": "a", "content": "", "from_path": "b"}"#).contains("without from_run"));
        assert!(with(r#"{"path": "a", "upload": "file_1"}"#).contains("one that only a server has"));
        assert!(with(r#"{"path": "a", "content": "", "content_base64": ""}"#).contains("one of content"));
        assert!(with(r#"{"path": "a", "content_base64": "!"}"#).contains("is not base64"));
        let twice = r#"{"path": "a", "content": ""}, {"path": "./a", "content": ""}"#;
        assert!(with(twice).contains("two files are to be 'a'"));
        let nested = r#"{"path": "a", "content": ""}, {"path": "a/b", "content": ""}"#;
        assert!(with(nested).contains("inside of something that is itself a file"));
    }

    #[test]
    fn files_that_do_not_fit_on_the_disk_are_refused_beforehand() {
        let mut request = RunRequest { language: "py".into(), code: "1".into(), ..RunRequest::default() };
        request.limits.disk_bytes = Some(65536);
        let file = LocalFile { path: "big".into(), content: vec![0; 65537], executable: false };
        let local = Local { files: vec![file], ..Local::default() };
        let invalid = request.parse(local).unwrap_err();
        assert!(invalid.too_large);
        assert_eq!(invalid.message, "the files come to 65537 bytes, more than the disk limit of 64K");
    }

    #[test]
    fn code_of_the_same_process_need_not_be_text() {
        let request = RunRequest { language: "perl".into(), ..RunRequest::default() };
        let code =
            LocalCode { bytes: vec![b'#', 0xe4], file_name: Some("ä.pl".into()), in_workspace: false };
        let parsed = request.parse(Local { code: Some(code), ..Local::default() }).unwrap();
        assert_eq!(parsed.execution.code.bytes(), [b'#', 0xe4]);
        assert_eq!(parsed.execution.code.file_name().unwrap().as_str(), "ä.pl");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = RunRequest::from_json(&bytes);
        }

        #[test]
        fn a_request_reads_back_as_it_was_written(
            code in ".{0,40}", args in proptest::collection::vec(".{0,10}", 0..4),
            pids in proptest::option::of(any::<u64>()), name in "[a-z]{1,8}",
        ) {
            let mut request = RunRequest { language: name.clone(), code, args, ..RunRequest::default() };
            request.limits.pids = pids;
            request.files = vec![InputFile { path: name, content: Some(String::new()), ..InputFile::default() }];
            let json = crate::to_json(&request);
            prop_assert_eq!(RunRequest::from_json(json.as_bytes()).unwrap(), request);
        }
    }
}
