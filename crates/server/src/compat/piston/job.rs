//! What a client asks for, in Piston's fields, and what that is in ours.

use std::time::Duration;

use belljar_core::allowance::Ceilings;
use belljar_core::limits::Bytes;
use belljar_core::path::BoxPath;
use belljar_wire::{Input, Limits, Local, LocalCode, LocalFile, RunRequest};
use serde::Deserialize;

use super::PistonRefusal;
use super::runtimes::Runtime;
use crate::compat::encoding::{from_base64, from_hex};
use crate::compat::shallow::{Items, Shallow};
use crate::compat::time::{LONGEST, USUAL, millis, unless_less, usual_for_compiler};

/// The longest name of a file that is looked at; a box takes none that is longer.
const MAX_NAME: usize = 1024;

/// A request as JSON has it. Fields that Piston does not know are not looked at, as there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    language: Shallow,
    version: Shallow,
    files: Items<FileAsked>,
    stdin: Shallow,
    args: Items<Shallow>,
    compile_memory_limit: Shallow,
    run_memory_limit: Shallow,
    compile_timeout: Shallow,
    run_timeout: Shallow,
    compile_cpu_time: Shallow,
    run_cpu_time: Shallow,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FileAsked {
    name: Shallow,
    content: Shallow,
    encoding: Shallow,
}

#[derive(Debug)]
struct LimitsAsked {
    compile_memory_limit: Shallow,
    run_memory_limit: Shallow,
    compile_timeout: Shallow,
    run_timeout: Shallow,
    compile_cpu_time: Shallow,
    run_cpu_time: Shallow,
}

/// A request of which nothing is known yet but what it wants to run.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) language: String,
    pub(super) version: String,
    files: Vec<FileDraft>,
    stdin: Shallow,
    args: Items<Shallow>,
    limits: LimitsAsked,
}

#[derive(Debug)]
struct FileDraft {
    name: Option<String>,
    content: String,
    encoding: Encoding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Utf8,
    Base64,
    Hex,
}

/// A request that can be run.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: RunRequest,
    pub(super) local: Local,
}

impl Asked {
    /// Looks at the fields that come before the runtime, in Piston's order and words.
    pub(super) fn draft(self) -> Result<Draft, PistonRefusal> {
        let language = required(self.language, "language")?;
        let version = required(self.version, "version")?;
        let files = match self.files {
            Items::List(files) => files,
            Items::TooMany => return Err(PistonRefusal::bad("files has too many items")),
            Items::Nothing | Items::NotAList => {
                return Err(PistonRefusal::bad("files is required as an array"));
            }
        };
        let files =
            files.into_iter().enumerate().map(|(at, file)| file.draft(at)).collect::<Result<_, _>>()?;
        let limits = LimitsAsked {
            compile_memory_limit: self.compile_memory_limit,
            run_memory_limit: self.run_memory_limit,
            compile_timeout: self.compile_timeout,
            run_timeout: self.run_timeout,
            compile_cpu_time: self.compile_cpu_time,
            run_cpu_time: self.run_cpu_time,
        };
        Ok(Draft { language, version, files, stdin: self.stdin, args: self.args, limits })
    }
}

impl FileAsked {
    fn draft(self, at: usize) -> Result<FileDraft, PistonRefusal> {
        let missing = || PistonRefusal::bad(format!("files[{at}].content is required as a string"));
        let content = self.content.into_text().ok_or_else(missing)?;
        let name = self.name.into_text().filter(|name| !name.is_empty());
        let encoding = match self.encoding.text() {
            Some("base64") => Encoding::Base64,
            Some("hex") => Encoding::Hex,
            Some(_) | None => Encoding::Utf8,
        };
        Ok(FileDraft { name, content, encoding })
    }
}

impl Draft {
    pub(super) fn unknown_runtime(&self) -> PistonRefusal {
        PistonRefusal::bad(format!("{}-{} runtime is unknown", shown(&self.language), shown(&self.version)))
    }

    /// Everything else, for a runtime that is there and a caller with these ceilings.
    pub(super) fn job(self, runtime: Runtime, ceilings: &Ceilings) -> Result<Job, PistonRefusal> {
        let Some(main) = self.files.iter().position(|file| file.encoding == Encoding::Utf8) else {
            return Err(PistonRefusal::bad("files must include at least one utf8 encoded file"));
        };
        let given = self.limits.check(ceilings)?;
        let mut local = Local { compile_cpu_time: given.compile_cpu, ..Local::default() };
        let limits = given.resolve(ceilings);
        for (at, file) in self.files.into_iter().enumerate() {
            let path = file.path(at)?;
            let content = file.bytes(at)?;
            if at == main {
                local.code = Some(LocalCode {
                    bytes: content,
                    file_name: main_name(path, file.name, runtime),
                    in_workspace: false,
                });
            } else {
                local.files.push(LocalFile { path, content, executable: false });
            }
        }
        let request = RunRequest {
            language: runtime.language.name.to_owned(),
            stdin: Some(Input::One(stdin(self.stdin)?)),
            args: args(self.args)?,
            limits,
            ..RunRequest::default()
        };
        Ok(Job { request, local })
    }
}

impl FileDraft {
    fn path(&self, at: usize) -> Result<String, PistonRefusal> {
        let path = self.name.clone().unwrap_or_else(|| format!("file{at}.code"));
        if path.len() > MAX_NAME {
            return Err(PistonRefusal::bad(format!("files[{at}].name is too long")));
        }
        BoxPath::parse(&path).map_err(|invalid| PistonRefusal::bad(invalid.message))?;
        Ok(path)
    }

    fn bytes(&self, at: usize) -> Result<Vec<u8>, PistonRefusal> {
        let wrong = |encoding: &str| PistonRefusal::bad(format!("files[{at}].content is not {encoding}"));
        match self.encoding {
            Encoding::Utf8 => Ok(self.content.clone().into_bytes()),
            Encoding::Base64 => from_base64(&self.content).ok_or_else(|| wrong("base64")),
            Encoding::Hex => from_hex(&self.content).ok_or_else(|| wrong("hex")),
        }
    }
}

/// A compiler knows code by the ending of its file, so a name without one gives way to the language's own.
fn main_name(path: String, given: Option<String>, runtime: Runtime) -> Option<String> {
    let (_, ending) = path.rsplit_once('.')?;
    (given.is_some() && runtime.language.endings.contains(&ending)).then_some(path)
}

/// Limits that are what they should be, but for what is to be taken where they were left out.
#[derive(Debug, Default, PartialEq)]
struct LimitsGiven {
    compile_memory: Option<u64>,
    run_memory: Option<u64>,
    compile_time: Option<Duration>,
    run_time: Option<Duration>,
    compile_cpu: Option<Duration>,
    run_cpu: Option<Duration>,
}

impl LimitsAsked {
    fn check(&self, ceilings: &Ceilings) -> Result<LimitsGiven, PistonRefusal> {
        let memory = ceilings.memory.map(Bytes::get);
        let compile_memory = ceilings.of_compile_memory().map(Bytes::get);
        let time = millis(ceilings.timeout.unwrap_or(LONGEST));
        let compile_time = millis(ceilings.of_compile_timeout().unwrap_or(LONGEST));
        let cpu = millis(ceilings.cpu_time.unwrap_or(LONGEST));
        let duration = |millis: Option<u64>| millis.map(Duration::from_millis);
        Ok(LimitsGiven {
            compile_memory: limit("compile_memory_limit", &self.compile_memory_limit, compile_memory)?,
            run_memory: limit("run_memory_limit", &self.run_memory_limit, memory)?,
            compile_time: duration(limit("compile_timeout", &self.compile_timeout, Some(compile_time))?),
            run_time: duration(limit("run_timeout", &self.run_timeout, Some(time))?),
            compile_cpu: duration(limit("compile_cpu_time", &self.compile_cpu_time, Some(cpu))?),
            run_cpu: duration(limit("run_cpu_time", &self.run_cpu_time, Some(cpu))?),
        })
    }
}

impl LimitsGiven {
    fn resolve(self, ceilings: &Ceilings) -> Limits {
        let compile_time = self.compile_time.unwrap_or_else(|| usual_for_compiler(ceilings));
        Limits {
            timeout_ms: Some(millis(self.run_time.unwrap_or_else(|| unless_less(USUAL, ceilings)))),
            compile_timeout_ms: Some(millis(compile_time)),
            cpu_ms: self.run_cpu.map(millis),
            memory_bytes: self.run_memory,
            compile_memory_bytes: self.compile_memory,
            ..Limits::default()
        }
    }
}

/// A number within the limit that is configured. As with Piston, 0 is no limit of one's own; where nothing is
/// configured, neither is a number below it.
fn limit(name: &str, asked: &Shallow, configured: Option<u64>) -> Result<Option<u64>, PistonRefusal> {
    if *asked == Shallow::Nothing || asked.text() == Some("") {
        return Ok(None);
    }
    let no_number = || PistonRefusal::bad(format!("If specified, {name} must be a number"));
    let number = asked.number().ok_or_else(no_number)?;
    // Memory without a limit is what -1 means to every client; here it means the limit that everybody has.
    let unlimited = number == -1.0 && name.ends_with("memory_limit");
    if number == 0.0 || unlimited {
        return Ok(None);
    }
    if number < 0.0 {
        return Err(PistonRefusal::bad(format!("{name} must be non-negative")));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked above; `as` saturates"
    )]
    let number = number.ceil() as u64;
    match configured {
        Some(most) if number > most => {
            Err(PistonRefusal::bad(format!("{name} cannot exceed the configured limit of {most}")))
        }
        _ => Ok(Some(number)),
    }
}

/// As much of a client's text as goes into an answer.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

fn required(field: Shallow, name: &str) -> Result<String, PistonRefusal> {
    let missing = || PistonRefusal::bad(format!("{name} is required as a string"));
    field.into_text().filter(|text| !text.is_empty()).ok_or_else(missing)
}

/// Piston ends it with a newline, if it does not end with one.
fn stdin(field: Shallow) -> Result<String, PistonRefusal> {
    if field == Shallow::Nothing {
        return Ok("\n".to_owned());
    }
    let text = field.into_text().ok_or_else(|| PistonRefusal::bad("If specified, stdin must be a string"))?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

fn args(field: Items<Shallow>) -> Result<Vec<String>, PistonRefusal> {
    let wrong = || PistonRefusal::bad("If specified, args must be an array of strings");
    let args = match field {
        Items::Nothing => return Ok(Vec::new()),
        Items::List(args) => args,
        Items::TooMany => return Err(PistonRefusal::bad("args has too many items")),
        Items::NotAList => return Err(wrong()),
    };
    args.into_iter().map(|arg| arg.into_text().ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::piston::version::Version;
    use belljar_core::language::Language;

    fn runtime(name: &str) -> Runtime {
        Runtime { language: Language::by_name(name).unwrap(), version: Version::default() }
    }

    fn job(language: &str, json: &str, ceilings: &Ceilings) -> Result<Job, String> {
        let asked: Asked = serde_json::from_str(json).unwrap();
        let job = asked.draft().and_then(|draft| draft.job(runtime(language), ceilings));
        job.map_err(|refusal| refusal.message)
    }

    fn with(field: &str) -> Result<Job, String> {
        let json = format!(r#"{{"language": "py", "version": "*", "files": [{{"content": "1"}}], {field}}}"#);
        job("python", &json, &Ceilings::default())
    }

    #[test]
    fn fields_are_refused_in_pistons_words() {
        let refused = |json: &str| job("python", json, &Ceilings::default()).unwrap_err();
        assert_eq!(refused("{}"), "language is required as a string");
        assert_eq!(refused(r#"{"language": 1}"#), "language is required as a string");
        assert_eq!(refused(r#"{"language": "a"}"#), "version is required as a string");
        assert_eq!(refused(r#"{"language": "a", "version": ""}"#), "version is required as a string");
        let files =
            |files: &str| refused(&format!(r#"{{"language": "a", "version": "*", "files": {files}}}"#));
        assert_eq!(files("null"), "files is required as an array");
        assert_eq!(files("{}"), "files is required as an array");
        assert_eq!(files(r#"[{"content": ""}, {"content": 1}]"#), "files[1].content is required as a string");
        assert_eq!(files("[]"), "files must include at least one utf8 encoded file");
        let binary = r#"[{"content": "", "encoding": "hex"}]"#;
        assert_eq!(files(binary), "files must include at least one utf8 encoded file");
        assert_eq!(
            files(r#"[{"content": ""}, {"content": "0", "encoding": "hex"}]"#),
            "files[1].content is not hex"
        );
        let long = format!(r#"[{{"content": "", "name": "{}"}}]"#, "x".repeat(2000));
        assert_eq!(files(&long), "files[0].name is too long");
        for name in ["../x", "/etc/passwd", "a/../../b", "a\\u0000b", "."] {
            let message = files(&format!(r#"[{{"content": "", "name": "{name}"}}]"#));
            assert!(message.starts_with("the path '"), "{message}");
        }
        assert_eq!(with(r#""stdin": 1"#).unwrap_err(), "If specified, stdin must be a string");
        assert_eq!(with(r#""args": "a""#).unwrap_err(), "If specified, args must be an array of strings");
        assert_eq!(with(r#""args": [1]"#).unwrap_err(), "If specified, args must be an array of strings");
    }

    #[test]
    fn the_first_file_of_text_is_the_code_and_the_others_lie_beside_it() {
        let json = r#"{"language": "c", "version": "*", "files": [
            {"name": "data.bin", "content": "/w==", "encoding": "base64"}, {"name": "a.c", "content": "int x;"},
            {"content": "00ff", "encoding": "hex"}, {"name": "b.h", "content": "h", "encoding": "latin1"}]}"#;
        let job = job("c", json, &Ceilings::default()).unwrap();
        let code =
            LocalCode { bytes: b"int x;".to_vec(), file_name: Some("a.c".into()), in_workspace: false };
        assert_eq!(job.local.code, Some(code));
        let beside: Vec<_> =
            job.local.files.iter().map(|file| (file.path.as_str(), file.content.as_slice())).collect();
        assert_eq!(beside, [("data.bin", &[0xff][..]), ("file2.code", &[0, 0xff]), ("b.h", b"h")]);
        let unnamed = super::main_name("file0.code".into(), None, runtime("c"));
        let odd = super::main_name("solution".into(), Some("solution".into()), runtime("c"));
        assert_eq!((unnamed, odd), (None, None));
    }

    #[test]
    fn standard_input_ends_with_a_newline() {
        for (asked, told) in [("null", "\n"), (r#""""#, "\n"), (r#""a""#, "a\n"), (r#""a\n""#, "a\n")] {
            let job = with(&format!(r#""stdin": {asked}"#)).unwrap();
            assert_eq!(job.request.stdin, Some(Input::One(told.to_owned())));
        }
    }

    #[test]
    fn limits_are_held_to_the_callers_ceilings() {
        let ceilings = Ceilings {
            timeout: Some(Duration::from_secs(3)),
            cpu_time: Some(Duration::from_secs(2)),
            memory: Some(Bytes::new(1 << 20)),
            ..Ceilings::default()
        };
        let asked = |limit: &str| {
            let json =
                format!(r#"{{"language": "c", "version": "*", "files": [{{"content": ""}}], {limit}}}"#);
            job("c", &json, &ceilings).map(|job| job.request.limits)
        };
        for name in ["run_timeout", "compile_timeout"] {
            let message = format!("{name} cannot exceed the configured limit of 3000");
            assert_eq!(asked(&format!(r#""{name}": 3001"#)).unwrap_err(), message);
            assert_eq!(
                asked(&format!(r#""{name}": -1"#)).unwrap_err(),
                format!("{name} must be non-negative")
            );
            let message = format!("If specified, {name} must be a number");
            assert_eq!(asked(&format!(r#""{name}": "1""#)).unwrap_err(), message);
        }
        let message = "run_cpu_time cannot exceed the configured limit of 2000";
        assert_eq!(asked(r#""run_cpu_time": 1e30"#).unwrap_err(), message);
        let message = "run_memory_limit cannot exceed the configured limit of 1048576";
        assert_eq!(asked(r#""run_memory_limit": 1048577"#).unwrap_err(), message);
        let limits = asked(r#""run_timeout": 3000, "run_cpu_time": 1, "run_memory_limit": -1"#).unwrap();
        assert_eq!((limits.timeout_ms, limits.cpu_ms, limits.memory_bytes), (Some(3000), Some(1), None));
        assert_eq!(limits.compile_timeout_ms, Some(3000));
    }

    #[test]
    fn a_compiler_has_limits_of_its_own() {
        let json = r#"{"language": "c", "version": "*", "files": [{"content": ""}], "compile_timeout": 4000,
            "run_timeout": 1500, "run_cpu_time": 1000, "compile_cpu_time": 500, "compile_memory_limit": 7000000}"#;
        let Job { request, local } = job("c", json, &Ceilings::default()).unwrap();
        let limits = request.limits;
        assert_eq!((limits.timeout_ms, limits.compile_timeout_ms), (Some(1500), Some(4000)));
        assert_eq!((limits.cpu_ms, local.compile_cpu_time), (Some(1000), Some(Duration::from_millis(500))));
        assert_eq!((limits.memory_bytes, limits.compile_memory_bytes), (None, Some(7_000_000)));
    }
}
