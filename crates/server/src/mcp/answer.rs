//! What a model gets to read: the first line says how it ended, then comes what the program wrote. The structured
//! content is the contract's result object, with as much of the output as the text has. A model pays for every token, so
//! what is as usual is left out of it, unless the call asks for all.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_core::backend::Stream;
use belljar_core::limits::show_duration;
use belljar_core::outcome::{CollectedFile, Outcome, Report, Stage, TimeLimit};
use belljar_wire::{Code, Compile, Languages, Problem, RunResult, Surface};
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::call::Part;
use super::changes;
use super::excerpt::{Page, Window, head_and_tail, last, page, share};
use super::tools::GET_RUN;
use crate::event_log::SoFar;
use crate::runs::Finished;

/// The most bytes of one picture that is shown as one, and of all of them.
const MAX_IMAGE: usize = 1 << 20;
const MAX_IMAGES: usize = 4 << 20;

/// The most characters of the output of a run that goes on: a model may ask for it many times.
const MAX_SO_FAR: usize = 4000;

/// The most bytes that an answer has on the wire, near enough: text and structure, each with its output, the names of
/// files and their content, all of it escaped; and pictures in base64.
pub(super) fn most_bytes(max_text: usize) -> usize {
    // A compiler's messages come on top of a program's.
    max_text.saturating_mul((2 * 3 + 1) * 6) + MAX_IMAGES / 3 * 4
}

/// How much of a result is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// All of it.
    Full,
    /// What is not as usual.
    Short,
}

/// A run that took place.
pub(super) fn finished(run: &Finished, max_text: usize, detail: Detail) -> CallToolResult {
    let mut result = run.result();
    shorten(&mut result, max_text);
    if let Some(changes) = &mut result.changes {
        changes::shorten(changes, max_text);
    }
    let files = run.report.files.as_deref().unwrap_or_default();
    let images = images(files);
    let mut content = vec![ContentBlock::text(told(&run.report, &result, &images, max_text))];
    content.extend(images.iter().map(|image| image.block(files)));
    let mut structured = structured(&result, files, &images, max_text);
    if let (Detail::Short, Some(members)) = (detail, structured.as_object_mut()) {
        members.retain(|name, value| ALWAYS.contains(&name.as_str()) || !is_usual(name, value));
    }
    let mut answer = with_content(content, structured);
    if run.report.outcome == Outcome::Denied {
        answer.is_error = Some(true);
    }
    answer
}

/// The members of a result that a finished run always has.
pub(super) const ALWAYS: [&str; 7] = ["id", "status", "exit_code", "stdout", "stderr", "language", "backend"];

/// Whether a member of a result says nothing that a model could need: nothing at all, or what is so for almost every run.
fn is_usual(name: &str, value: &Value) -> bool {
    match name {
        "usage" | "start" | "cold_reason" | "runtime" => true,
        "isolation" => value["waived"].as_array().is_some_and(Vec::is_empty),
        "network" => value == "none",
        "stage" => value == "run",
        "compile" => {
            let said = |stream: &str| value[stream].as_str().is_some_and(|text| !text.is_empty());
            value.is_null() || value["exit_code"] == 0 && !said("stdout") && !said("stderr")
        }
        "findings" | "network_denied" => value.as_array().is_some_and(Vec::is_empty),
        "decision" => value["action"] == "allow",
        _ => matches!(value, Value::Null | Value::Bool(false)),
    }
}

/// A run that a person has to approve before it begins.
pub(super) fn awaiting(id: &str, approval_id: &str) -> CallToolResult {
    let text = format!(
        "awaiting approval\nThe run has not begun: a person has to approve it ({approval_id}). Call {GET_RUN} with {} to \
         wait for the decision and the result.",
        json!({"run_id": id}),
    );
    let structured = json!({"id": id, "status": "awaiting_approval", "approval_id": approval_id});
    with_content(vec![ContentBlock::text(text)], structured)
}

/// A run that goes on, with the end of what it has written to stdout and to stderr by now.
pub(super) fn running(id: &str, kept: Duration, so_far: (&SoFar, &SoFar), max_text: usize) -> CallToolResult {
    let mut text = format!(
        "still running\nThe run goes on. Call {GET_RUN} with {} to wait for its result, which is kept for {} after \
         the run has ended.",
        json!({"run_id": id}),
        show_duration(kept),
    );
    let mut structured = json!({"id": id, "status": "running"});
    let length = |so_far: &SoFar| so_far.text.chars().count();
    let budgets = share(max_text.min(MAX_SO_FAR), length(so_far.0), length(so_far.1));
    for (name, so_far, budget) in [("stdout", so_far.0, budgets.0), ("stderr", so_far.1, budgets.1)] {
        let end = last(&so_far.text, budget);
        let before = so_far.before + (so_far.text.len() - end.len()) as u64;
        structured[name] = json!(end);
        structured[format!("{name}_truncated")] = json!(before > 0);
        if before > 0 {
            text += &format!("\n{name} so far, without the first {before} bytes:\n{}", without_break(end));
        } else if !end.is_empty() {
            text += &format!("\n{name} so far:\n{}", without_break(end));
        }
    }
    with_content(vec![ContentBlock::text(text)], structured)
}

/// A part of a run's output, or of a file that it left.
pub(super) fn part(run: &Finished, part: &Part, window: Window) -> Result<CallToolResult, Problem> {
    let result = run.result();
    let (name, encoding, text) = match part {
        Part::Output(Stream::Stdout) => ("stdout", "utf-8", result.stdout),
        Part::Output(Stream::Stderr) => ("stderr", "utf-8", result.stderr),
        Part::File(path) => {
            let file = run.file(path)?;
            if let (true, Some(kind)) = (window.is_whole, shown_as(file)) {
                return Ok(picture(&result, file, kind));
            }
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

/// A file that a model sees instead of reading it.
fn picture(result: &RunResult, file: &CollectedFile, kind: &'static str) -> CallToolResult {
    let size = file.content.len();
    let text = format!("{}, {kind}, {size} bytes", file.path.escape_debug());
    let image = ContentBlock::image(STANDARD.encode(&file.content), kind);
    let files = json!([{"path": file.path, "size": size}]);
    let structured = json!({"id": result.id, "status": result.status, "files": files});
    with_content(vec![ContentBlock::text(text), image], structured)
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
    let Problem { error, .. } = problem.clone().over(Surface::Mcp);
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
        shorten_compiler(compile, &result.stage, budget / 4);
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

fn without_break(text: &str) -> &str {
    text.strip_suffix('\n').unwrap_or(text)
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

fn told(report: &Report, result: &RunResult, images: &[Image], budget: usize) -> String {
    let mut text = match report.stage {
        Stage::Run => ending(report.outcome),
        Stage::Compile => format!("compilation failed: {}", ending(report.outcome)),
    };
    for (name, output) in [("stdout", &result.stdout), ("stderr", &result.stderr)] {
        if !output.is_empty() {
            text += &format!("\n{name}:\n{}", without_break(output));
        }
    }
    if result.stdout.is_empty() && result.stderr.is_empty() {
        text += "\n(no output)";
    }
    if let Some(files) = &report.files {
        text += &listed(&report.id, files, images, budget);
    }
    if let Some(changes) = &result.changes {
        text += &changes::told(changes);
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
        Outcome::Denied => format!("denied (exit code {code})"),
    }
}

/// Patterns that no file matched are named on stderr already.
fn listed(id: &str, files: &[CollectedFile], images: &[Image], budget: usize) -> String {
    if files.is_empty() {
        return String::new();
    }
    let named = nameable(files, budget);
    let mut text = format!("\nfiles ({GET_RUN} with {} reads one):", json!({"run_id": id, "file": "PATH"}));
    for (at, file) in files[..named].iter().enumerate() {
        let shown = if images.iter().any(|image| image.file == at) { ", shown as an image" } else { "" };
        text += &format!("\n- {} ({} bytes){shown}", file.path.escape_debug(), file.content.len());
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

/// The contract's object. Files come with it while they fit; beyond that they are named alone, and at last left out. What
/// is shown as an image is not there a second time.
fn structured(result: &RunResult, collected: &[CollectedFile], images: &[Image], budget: usize) -> Value {
    let mut value = json!(result);
    let mut room = budget;
    let Some(files) = value.get_mut("files").and_then(Value::as_array_mut) else { return value };
    files.truncate(nameable(collected, budget));
    for (at, file) in files.iter_mut().enumerate() {
        let Some(file) = file.as_object_mut() else { continue };
        let length = file.get("content_base64").and_then(Value::as_str).map_or(0, str::len);
        if length <= room && !images.iter().any(|image| image.file == at) {
            room -= length;
        } else {
            file.remove("content_base64");
        }
    }
    value
}

/// A collected file that is shown as an image.
struct Image {
    /// Which one of the files.
    file: usize,
    kind: &'static str,
}

impl Image {
    fn block(&self, files: &[CollectedFile]) -> ContentBlock {
        ContentBlock::image(STANDARD.encode(&files[self.file].content), self.kind)
    }
}

fn images(files: &[CollectedFile]) -> Vec<Image> {
    let mut room = MAX_IMAGES;
    let mut images = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let Some(kind) = shown_as(file) else { continue };
        if file.content.len() <= room {
            room -= file.content.len();
            images.push(Image { file: at, kind });
        }
    }
    images
}

/// The kind of image that a file is, if it is small enough to be shown.
fn shown_as(file: &CollectedFile) -> Option<&'static str> {
    image_kind(&file.content).filter(|_| file.content.len() <= MAX_IMAGE)
}

/// By the first bytes: a name is the program's own claim, and a client would hand the wrong thing to a decoder.
fn image_kind(content: &[u8]) -> Option<&'static str> {
    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
    const JPEG: &[u8] = b"\xff\xd8\xff";
    [(PNG, "image/png"), (JPEG, "image/jpeg")]
        .into_iter()
        .find_map(|(magic, kind)| content.starts_with(magic).then_some(kind))
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
        let listed = |files: &[CollectedFile]| listed("run_1", files, &[], 30_000);
        assert_eq!(listed(&[]), "");
        let few = listed(&files(2, "a"));
        let expected = "\nfiles (get_run with {\"run_id\":\"run_1\",\"file\":\"PATH\"} reads one):\n- a0 (0 bytes)\n- a1 (1 bytes)";
        assert_eq!(few, expected);
        let many = listed(&files(5000, "a"));
        assert!(many.len() < 3000 && many.contains("\n- and 49"), "{many}");
        let hostile = listed(&files(5000, &"\u{1b}".repeat(4000)));
        assert!(hostile.len() < 200 && hostile.ends_with("- and 5000 more"), "{hostile}");
    }

    #[test]
    fn the_output_so_far_of_a_run_is_bounded_and_says_what_is_missing() {
        let so_far = |text: &str, before| SoFar { text: text.to_owned(), before };
        let answer = |stdout: &SoFar, stderr: &SoFar| {
            let answer = running("run_1", Duration::from_secs(600), (stdout, stderr), 30_000);
            let content = serde_json::to_value(&answer.content).unwrap();
            (content[0]["text"].as_str().unwrap().to_owned(), answer.structured_content.unwrap())
        };
        let (text, structured) = answer(&so_far("one\n", 0), &so_far("", 0));
        assert!(text.starts_with("still running\n") && text.ends_with("\nstdout so far:\none"), "{text}");
        assert_eq!(structured["stdout"], "one\n");
        assert_eq!((&structured["stdout_truncated"], &structured["stderr"]), (&json!(false), &json!("")));
        let (text, structured) = answer(&so_far(&"ä".repeat(8000), 5), &so_far("end", 0));
        assert_eq!(structured["stdout"].as_str().unwrap().chars().count(), MAX_SO_FAR - 3);
        assert_eq!((&structured["stdout_truncated"], &structured["stderr"]), (&json!(true), &json!("end")));
        let missing = 5 + 2 * (8000 - MAX_SO_FAR + 3);
        assert!(text.contains(&format!("stdout so far, without the first {missing} bytes:\nää")), "{text}");
    }

    #[test]
    fn what_is_shown_as_an_image_is_not_there_twice() {
        let png = b"\x89PNG\r\n\x1a\n...";
        let collected =
            |path: &str, content: &[u8]| CollectedFile { path: path.into(), content: content.into() };
        let files = [collected("a.csv", b"1,2"), collected("a.png", png)];
        let images = images(&files);
        assert_eq!(
            images.iter().map(|image| (image.file, image.kind)).collect::<Vec<_>>(),
            [(1, "image/png")]
        );
        let text = listed("run_1", &files, &images, 30_000);
        assert!(text.ends_with("\n- a.csv (3 bytes)\n- a.png (11 bytes), shown as an image"), "{text}");
    }

    #[test]
    fn what_is_as_usual_is_not_worth_a_token() {
        for (name, value) in [
            ("signal", json!(null)),
            ("timed_out", json!(false)),
            ("isolation", json!({"kept": ["disk"], "waived": []})),
            ("usage", json!({"wall_ms": 1})),
            ("network", json!("none")),
            ("findings", json!([])),
        ] {
            assert!(is_usual(name, &value), "{name}");
        }
        for (name, value) in [
            ("signal", json!(9)),
            ("stdout_truncated", json!(true)),
            ("isolation", json!({"kept": [], "waived": ["disk"]})),
            ("network", json!("full")),
            ("files", json!([])),
            ("image", json!("alpine:3.20")),
        ] {
            assert!(!is_usual(name, &value), "{name}");
        }
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
