//! What a model gets to read: the first line says how it ended, then comes what the program wrote. The structured
//! content is the contract's result object, with as much of the output as the text has.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_core::backend::Stream;
use belljar_core::limits::show_duration;
use belljar_core::outcome::{CollectedFile, Outcome, Report, Stage, TimeLimit};
use belljar_wire::{Code, Compile, Languages, Problem, RunResult};
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::call::Part;
use super::excerpt::{Page, Window, head_and_tail, page, share};
use super::tools::GET_RUN;
use crate::runs::Finished;

/// The most bytes of one picture that is shown as one, and of all of them.
const MAX_IMAGE: usize = 1 << 20;
const MAX_IMAGES: usize = 4 << 20;

/// The most bytes that an answer has on the wire, near enough: text and structure, each with its output, the names of
/// files and their content, all of it escaped; and pictures in base64.
pub(super) fn most_bytes(max_text: usize) -> usize {
    // A compiler's messages come on top of a program's.
    max_text.saturating_mul((2 * 3 + 1) * 6) + MAX_IMAGES / 3 * 4
}

/// A run that took place.
pub(super) fn finished(run: &Finished, max_text: usize) -> CallToolResult {
    let mut result = run.result();
    shorten(&mut result, max_text);
    let mut content = vec![ContentBlock::text(told(&run.report, &result, max_text))];
    content.extend(images(&run.report));
    with_content(content, structured(&result, &run.report, max_text))
}

/// A run that goes on.
pub(super) fn running(id: &str, kept: Duration) -> CallToolResult {
    let text = format!(
        "still running\nThe run goes on. Call {GET_RUN} with {} to wait for its result, which is kept for {} after \
         the run has ended.",
        json!({"run_id": id}),
        show_duration(kept),
    );
    with_content(vec![ContentBlock::text(text)], json!({"id": id, "status": "running"}))
}

/// A part of a run's output, or of a file that it left.
pub(super) fn part(run: &Finished, part: &Part, window: Window) -> Result<CallToolResult, Problem> {
    let result = run.result();
    let (name, encoding, text) = match part {
        Part::Output(Stream::Stdout) => ("stdout", "utf-8", result.stdout),
        Part::Output(Stream::Stderr) => ("stderr", "utf-8", result.stderr),
        Part::File(path) => {
            let file = file(&run.report, path)?;
            let (encoding, text) = readable(&file.content);
            (file.path.as_str(), encoding, text)
        }
    };
    let Page { content, offset, total, next } = page(&text, window);
    let end = offset + content.chars().count();
    let more = next.map_or(String::new(), |next| {
        format!("\n[... {} more characters; read on from offset {next} ...]", total - next)
    });
    let shown = format!("{name}, {encoding}, characters {offset} to {end} of {total}:\n{content}{more}");
    let page = json!({"of": name, "encoding": encoding, "content": content,
                      "offset": offset, "total": total, "next_offset": next});
    let structured = json!({"id": result.id, "status": result.status, "page": page});
    Ok(with_content(vec![ContentBlock::text(shown)], structured))
}

/// What can run here.
pub(super) fn languages(languages: &Languages) -> CallToolResult {
    let line = |language: &belljar_wire::LanguageStatus| {
        let aliases = language.aliases.join(", ");
        let named = if aliases.is_empty() { String::new() } else { format!(" ({aliases})") };
        match (&language.runtime, &language.hint) {
            (Some(runtime), _) => format!("{}{named}: {runtime}", language.name),
            (None, hint) => format!("{}: missing; {}", language.name, hint.as_deref().unwrap_or_default()),
        }
    };
    let text = languages.languages.iter().map(line).collect::<Vec<_>>().join("\n");
    with_content(vec![ContentBlock::text(text)], json!(languages))
}

/// That Belljar could not or would not.
pub(super) fn problem(problem: &Problem) -> CallToolResult {
    let Problem { error, .. } = problem;
    let mut text = format!("error ({}): {}\nhint: {}", code(error.code), error.message, error.hint);
    if let Some(field) = &error.field {
        text += &format!("\nargument: {}", field.escape_debug());
    }
    CallToolResult::error(vec![ContentBlock::text(text)])
}

fn with_content(content: Vec<ContentBlock>, structured: Value) -> CallToolResult {
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(structured);
    result
}

/// Both streams together within the budget.
fn shorten(result: &mut RunResult, budget: usize) {
    let length = |text: &str| text.chars().count();
    let (stdout, stderr) = share(budget, length(&result.stdout), length(&result.stderr));
    if let Some(compile) = &mut result.compile {
        shorten_compiler(compile, result.stage, budget / 4);
    }
    let id = result.id.clone();
    let note = |stream: &'static str| {
        let id = id.clone();
        move |missing: usize, offset: usize| {
            let call = json!({"run_id": id, "stream": stream, "offset": offset});
            format!("[... {missing} characters left out; {GET_RUN} with {call} reads on ...]")
        }
    };
    if let Some(short) = head_and_tail(&result.stdout, stdout, note("stdout")) {
        (result.stdout, result.stdout_truncated) = (short, true);
    }
    if let Some(short) = head_and_tail(&result.stderr, stderr, note("stderr")) {
        (result.stderr, result.stderr_truncated) = (short, true);
    }
}

/// What a compiler that failed wrote is told already, as the output of the run.
fn shorten_compiler(compile: &mut Compile, stage: &str, budget: usize) {
    if stage == "compile" {
        (compile.stdout, compile.stderr) = (String::new(), String::new());
    }
    let note = |missing: usize, _: usize| format!("[... {missing} characters left out ...]");
    for text in [&mut compile.stdout, &mut compile.stderr] {
        if let Some(short) = head_and_tail(text, budget / 2, note) {
            *text = short;
        }
    }
}

fn told(report: &Report, result: &RunResult, budget: usize) -> String {
    let mut text = match report.stage {
        Stage::Run => ending(report.outcome),
        Stage::Compile => format!("compilation failed: {}", ending(report.outcome)),
    };
    for (name, output) in [("stdout", &result.stdout), ("stderr", &result.stderr)] {
        if !output.is_empty() {
            text += &format!("\n{name}:\n{}", output.strip_suffix('\n').unwrap_or(output));
        }
    }
    if result.stdout.is_empty() && result.stderr.is_empty() {
        text += "\n(no output)";
    }
    if let Some(files) = &report.files {
        text += &listed(&report.id, files, budget);
    }
    text
}

/// The first line.
fn ending(outcome: Outcome) -> String {
    let code = outcome.exit_code();
    match outcome {
        Outcome::Exited(_) => format!("exit code {code}"),
        Outcome::Signaled(signal) => format!("killed by signal {signal} (exit code {code})"),
        Outcome::TimedOut(TimeLimit::Wall(limit)) => {
            format!("timed out after {} (exit code {code})", show_duration(limit))
        }
        Outcome::TimedOut(TimeLimit::Cpu(limit)) => {
            format!("timed out after {} of CPU time (exit code {code})", show_duration(limit))
        }
        Outcome::OutOfMemory => format!("memory limit exceeded (exit code {code})"),
        Outcome::Cancelled(_) => format!("cancelled (exit code {code})"),
    }
}

fn listed(id: &str, files: &[CollectedFile], budget: usize) -> String {
    if files.is_empty() {
        return "\nfiles: none matched".to_owned();
    }
    let named = nameable(files, budget);
    let mut text = format!("\nfiles ({GET_RUN} with {} reads one):", json!({"run_id": id, "file": "PATH"}));
    for file in &files[..named] {
        text += &format!("\n- {} ({} bytes)", file.path.escape_debug(), file.content.len());
    }
    if named < files.len() {
        text += &format!("\n- and {} more", files.len() - named);
    }
    text
}

/// How many files are named. A program can leave thousands, with names of any length.
fn nameable(files: &[CollectedFile], budget: usize) -> usize {
    let mut room = budget / 10;
    let fits = |file: &&CollectedFile| {
        let length = file.path.escape_debug().count() + 32;
        let fits = length <= room;
        room = room.saturating_sub(length);
        fits
    };
    files.iter().take_while(fits).count()
}

/// The contract's object. Files come with it while they fit; beyond that they are named alone, and at last left out.
fn structured(result: &RunResult, report: &Report, budget: usize) -> Value {
    let mut value = json!(result);
    let mut room = budget;
    let Some(files) = value.get_mut("files").and_then(Value::as_array_mut) else { return value };
    files.truncate(nameable(report.files.as_deref().unwrap_or_default(), budget));
    for file in files.iter_mut().filter_map(Value::as_object_mut) {
        let length = file.get("content_base64").and_then(Value::as_str).map_or(0, str::len);
        if length <= room {
            room -= length;
        } else {
            file.remove("content_base64");
        }
    }
    value
}

fn images(report: &Report) -> Vec<ContentBlock> {
    let mut room = MAX_IMAGES;
    let mut images = Vec::new();
    for file in report.files.iter().flatten().filter(|file| file.content.len() <= MAX_IMAGE) {
        let Some(kind) = image_kind(&file.content) else { continue };
        if file.content.len() <= room {
            room -= file.content.len();
            images.push(ContentBlock::image(STANDARD.encode(&file.content), kind));
        }
    }
    images
}

/// By the first bytes: a name is the program's own claim, and a client would hand the wrong thing to a decoder.
fn image_kind(content: &[u8]) -> Option<&'static str> {
    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
    const JPEG: &[u8] = b"\xff\xd8\xff";
    [(PNG, "image/png"), (JPEG, "image/jpeg")]
        .into_iter()
        .find_map(|(magic, kind)| content.starts_with(magic).then_some(kind))
}

fn file<'a>(report: &'a Report, path: &str) -> Result<&'a CollectedFile, Problem> {
    let found = report.files.iter().flatten().find(|file| file.path == path);
    found.ok_or_else(|| {
        let shown: String = path.chars().take(200).collect();
        let message = format!("the run left no file '{}'", shown.escape_debug());
        Problem::new(Code::NotFound, message, "collect it: the run's collect argument takes names and globs")
    })
}

fn readable(content: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(content) {
        Ok(text) => ("utf-8", text.to_owned()),
        Err(_) => ("base64", STANDARD.encode(content)),
    }
}

fn code(code: Code) -> String {
    json!(code).as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(number: usize, path: &str) -> Vec<CollectedFile> {
        (0..number).map(|n| CollectedFile { path: format!("{path}{n}"), content: vec![0; n] }).collect()
    }

    #[test]
    fn files_are_named_within_bounds() {
        let few = listed("run_1", &files(2, "a"), 30_000);
        let expected = "\nfiles (get_run with {\"run_id\":\"run_1\",\"file\":\"PATH\"} reads one):\n- a0 (0 bytes)\n- a1 (1 bytes)";
        assert_eq!(few, expected);
        let many = listed("run_1", &files(5000, "a"), 30_000);
        assert!(many.len() < 3000 && many.contains("\n- and 49"), "{many}");
        let hostile = listed("run_1", &files(5000, &"\u{1b}".repeat(4000)), 30_000);
        assert!(hostile.len() < 200 && hostile.ends_with("- and 5000 more"), "{hostile}");
    }

    #[test]
    fn a_picture_is_known_by_its_first_bytes() {
        assert_eq!(image_kind(b"\x89PNG\r\n\x1a\n..."), Some("image/png"));
        assert_eq!(image_kind(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(image_kind(b"<svg onload=alert(1)>"), None);
    }

    #[test]
    fn the_first_line_says_how_it_ended() {
        let wall = Outcome::TimedOut(TimeLimit::Wall(Duration::from_secs(10)));
        assert_eq!(ending(Outcome::Exited(3)), "exit code 3");
        assert_eq!(ending(Outcome::Signaled(11)), "killed by signal 11 (exit code 139)");
        assert_eq!(ending(wall), "timed out after 10s (exit code 124)");
        assert_eq!(ending(Outcome::OutOfMemory), "memory limit exceeded (exit code 137)");
        assert_eq!(ending(Outcome::Cancelled(None)), "cancelled (exit code 130)");
    }
}
