//! A cell's run as a request over HTTP, for boxes that have been waiting: only a server keeps those.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use base64::Engine;
use serde_json::{Map, Value, json};

use crate::cell::Cell;
use crate::served::Start;

/// The languages of which boxes can wait.
const WAITING: [&str; 11] =
    ["python", "javascript", "typescript", "bash", "sh", "zsh", "ruby", "php", "perl", "lua", "r"];
/// Less than a server takes in a body, in base64 and with what else is in it.
const MOST_INPUT: usize = 8 << 20;
/// Less code than is written into a waiting box.
const MOST_CODE: usize = 240 << 10;
/// Less than the kernel takes as one argument.
const MOST_SCRIPT: usize = 120 << 10;
/// Less than a waiting Python has already.
const LEAST_MEMORY: u64 = 24 << 20;
/// Less than a server takes unless told otherwise.
const MOST_STDIN: usize = 8 << 20;
/// As many processes as boxes are made with.
const USUAL_PIDS: u64 = 50;

/// What to ask a server for.
pub(crate) struct Asked {
    /// Of this language a box is to wait.
    pub(crate) language: String,
    pub(crate) body: Value,
}

/// Why a run cannot be warm, by design.
pub(crate) type Obstacle = &'static str;

/// The run of this code in this cell as a request.
pub(crate) fn of(cell: &Cell, start: Start, code: &str) -> Result<Asked, Obstacle> {
    if !cell.waived.is_empty() {
        return Err("something is waived");
    }
    let takes_extras = start == Start::Zygote && cell.language == "python";
    if !cell.args.is_empty() && !takes_extras {
        return Err("arguments are on the command line that the runtime was started with");
    }
    if cell.cwd != Path::new("/") {
        return Err("the caller's directory is the command line's");
    }
    let (language, code) = spoken(&cell.language, start, code)?;
    let mut body = json!({"language": language, "code": code, "backend": cell.backend});
    let mut options = Options { takes_extras, ..Options::default() };
    options.read(cell)?;
    let Options { fields, limits, files, collect, env, bytes, .. } = options;
    if bytes > MOST_INPUT || code.len() > MOST_CODE {
        return Err("it brings more than is written into a box from outside");
    }
    let object = body.as_object_mut().expect("it is one");
    object.extend(fields);
    object.insert("limits".into(), Value::Object(limits));
    object.insert("files".into(), Value::Array(files));
    object.insert("env".into(), Value::Object(env));
    object.insert("args".into(), json!(cell.args));
    if let Some(collect) = collect {
        object.insert("collect".into(), Value::Array(collect));
    }
    Ok(Asked { language, body })
}

/// In which language to say it: a zygote is a Python, and so a shell begins as one that becomes it.
fn spoken(language: &str, start: Start, code: &str) -> Result<(String, String), Obstacle> {
    if start == Start::Zygote && language == "sh" && code.len() < MOST_SCRIPT {
        return Ok(("python".into(), become_shell(code)));
    }
    if start == Start::Zygote && language != "python" {
        return Err("its runtime has no zygote");
    }
    if language.ends_with("script") && is_module(code) {
        return Err("the runtime would have to know sooner that this is a module");
    }
    let waits = WAITING.contains(&language).then(|| (language.into(), code.into()));
    waits.ok_or("its runtime cannot wait for code")
}

fn is_module(code: &str) -> bool {
    code.lines().any(|line| line.starts_with("import ") || line.starts_with("export "))
}

/// The way that everything which confines the child of a zygote is tried from a shell and from the probe.
fn become_shell(code: &str) -> String {
    // What Python ignores, a shell would, too. A string of JSON is one of Python.
    let code = Value::from(code);
    format!(
        "import os, signal\n\
         for number in (signal.SIGPIPE, signal.SIGXFSZ): signal.signal(number, signal.SIG_DFL)\n\
         os.execv('/bin/sh', ['sh', '-c', {code}, '/sandbox/main.sh'])\n"
    )
}

#[derive(Default)]
struct Options {
    fields: Map<String, Value>,
    limits: Map<String, Value>,
    files: Vec<Value>,
    collect: Option<Vec<Value>>,
    env: Map<String, Value>,
    /// Whether a zygote's child gets arguments and variables.
    takes_extras: bool,
    bytes: usize,
}

impl Options {
    fn read(&mut self, cell: &Cell) -> Result<(), Obstacle> {
        if let Some(limit) = cell.time_limit() {
            self.limit("timeout_ms", milliseconds(limit));
        }
        let mut words = cell.options.iter().map(String::as_str);
        while let Some(name) = words.next() {
            let mut value = || words.next().expect("an option of a test has a value");
            match name {
                "--timeout" => self.limit("timeout_ms", milliseconds(value())),
                "--compile-timeout" => self.limit("compile_timeout_ms", milliseconds(value())),
                "--compile-memory" => self.limit("compile_memory_bytes", bytes(value())),
                "--cpu-time" => self.limit("cpu_ms", milliseconds(value())),
                "--output-limit" => self.limit("output_bytes", bytes(value())),
                "--cpus" => self.limit("cpus", value().parse::<f64>().expect("a number")),
                "--memory" => self.memory(bytes(value()))?,
                "--pids" => self.pids(value().parse().expect("a number"))?,
                "--file" => self.file(value()),
                "--collect" => self.collect.get_or_insert_default().push(value().into()),
                "--stdin" => self.stdin(cell, value())?,
                "--network" => drop(self.fields.insert("network".into(), value().into())),
                "--plots" => drop(self.fields.insert("plots".into(), true.into())),
                "--base64" => drop(self.fields.insert("output_base64".into(), true.into())),
                "--disk" => return Err("the disk is made with the box"),
                "--env" if self.takes_extras => {
                    let (name, value) = value().split_once('=').expect("a variable of a test has a value");
                    self.env.insert(name.into(), value.into());
                }
                "--env" => return Err("the environment is what the runtime was started with"),
                "--workspace" => return Err("a workspace is mounted while the box is made"),
                _ => return Err("the option is the command line's"),
            }
        }
        Ok(())
    }

    fn limit(&mut self, name: &str, value: impl Into<Value>) {
        self.limits.insert(name.into(), value.into());
    }

    fn memory(&mut self, bytes: u64) -> Result<(), Obstacle> {
        if bytes < LEAST_MEMORY {
            return Err("a runtime that waits has more memory than that");
        }
        self.limit("memory_bytes", bytes);
        Ok(())
    }

    fn pids(&mut self, number: u64) -> Result<(), Obstacle> {
        if number > USUAL_PIDS {
            return Err("more processes than the box was made with");
        }
        self.limit("pids", number);
        Ok(())
    }

    fn file(&mut self, value: &str) {
        let (from, to) = value.split_once(':').unwrap_or((value, ""));
        let name = Path::new(from).file_name().and_then(|name| name.to_str()).expect("a path of ours");
        let content = fs::read(from).expect("a file of the test's");
        let mode = fs::metadata(from).expect("a file of the test's").permissions().mode();
        self.bytes += content.len() + 1024;
        self.files.push(json!({
            "path": if to.is_empty() { name } else { to },
            "content_base64": base64::engine::general_purpose::STANDARD.encode(content),
            "executable": mode & 0o100 != 0,
        }));
    }

    fn stdin(&mut self, cell: &Cell, from: &str) -> Result<(), Obstacle> {
        let bytes = match from {
            "-" => cell.stdin.clone().unwrap_or_default(),
            file => fs::read(file).expect("a file of the test's"),
        };
        if bytes.len() > MOST_STDIN {
            return Err("over HTTP a request is smaller");
        }
        let text = String::from_utf8(bytes).map_err(|_| "over HTTP standard input is text")?;
        self.fields.insert("stdin".into(), text.into());
        Ok(())
    }
}

fn milliseconds(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_alphabetic()).expect("a unit"));
    let unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        other => panic!("no unit of time: {other}"),
    };
    number.parse::<u64>().expect("a number") * unit
}

fn bytes(text: &str) -> u64 {
    let number = text.trim_end_matches(['K', 'M', 'G']);
    let unit = match &text[number.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        other => panic!("no unit of size: {other}"),
    };
    number.parse::<u64>().expect("a number") << unit
}
