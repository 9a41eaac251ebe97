//! A record in words, for `belljar audit show`.

use belljar_wire::{AuditFile, AuditRecord, Decision};
use serde::Serialize;
use serde_json::Value;

use super::on_one_line;
use crate::output::inert;

type Row = (&'static str, String);

/// Everything about one attempt: a line for each thing, then the texts.
pub(super) fn described(record: &AuditRecord) -> String {
    let rows = [of_attempt(record), of_request(record), of_result(record), of_record(record)].concat();
    let line = |(name, value): &Row| format!("{name:<10}{}", on_one_line(value)).trim_end().to_owned() + "\n";
    rows.iter().map(line).collect::<String>() + &texts(record)
}

fn of_attempt(record: &AuditRecord) -> Vec<Row> {
    let from = record.peer.as_deref().map(|peer| format!(", from {peer}")).unwrap_or_default();
    let exit_code = record.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string());
    let [backend, image, network, start] =
        [&record.backend, &record.image, &record.network, &record.start].map(or_dash);
    vec![
        ("record", format!("{}, written {}", record.seq, record.recorded_at)),
        ("run", format!("{} at {}", record.id, record.at)),
        ("caller", format!("{} through {}{from}", record.caller, record.surface)),
        ("status", format!("{}, exit code {exit_code}", record.status)),
        ("compiler", compiler_described(record)),
        ("error", or_dash(&record.error)),
        ("language", format!("{} ({})", record.language, or_dash(&record.runtime))),
        ("backend", format!("{backend}, image {image}, network {network}, {start} start")),
    ]
}

fn of_request(record: &AuditRecord) -> Vec<Row> {
    let request = &record.request;
    let stdin = request.stdin.as_ref().map(|stdin| files(std::slice::from_ref(stdin)));
    vec![
        ("args", request.args.join(" ")),
        ("env", request.env.join(", ")),
        ("secrets of", request.secrets.join(", ")),
        ("stdin", or_dash(&stdin)),
        ("workspace", or_dash(&request.workspace)),
        ("files", files(&record.files)),
        ("limits", or_dash(&record.limits.as_ref().map(in_json))),
        ("decision", decision(record)),
    ]
}

fn of_result(record: &AuditRecord) -> Vec<Row> {
    vec![
        ("kept", record.kept.join(", ")),
        ("waived", record.waived.join(", ")),
        ("usage", or_dash(&record.usage.as_ref().map(in_json))),
        ("returned", files(&record.produced)),
    ]
}

fn of_record(record: &AuditRecord) -> Vec<Row> {
    let size = record.code_bytes.unwrap_or(0);
    vec![
        ("code", format!("{size} bytes, sha256:{}", or_dash(&record.code_sha256))),
        ("redacted", record.redactions.to_string()),
        ("hash", record.hash.clone()),
    ]
}

/// The findings, the code and what was printed, each with a heading.
fn texts(record: &AuditRecord) -> String {
    let compile = record.compile.as_ref();
    let found = record.findings.iter().map(finding).collect::<Vec<_>>().join("\n");
    let blocks = [
        ("findings", Some(&found)),
        ("code", record.code.as_ref()),
        ("compiler's stdout", compile.and_then(|compile| compile.stdout.as_ref())),
        ("compiler's stderr", compile.and_then(|compile| compile.stderr.as_ref())),
        ("stdout", record.stdout.as_ref()),
        ("stderr", record.stderr.as_ref()),
    ];
    let blocks = blocks.into_iter().filter_map(|(name, block)| Some((name, block?)));
    let blocks = blocks.filter(|(_, block)| !block.is_empty()).map(|(name, block)| {
        let lines: String = block.lines().map(|line| format!("  {}\n", inert(line))).collect();
        format!("\n{name}:\n{lines}")
    });
    blocks.collect()
}

/// What is not a finding, in a file that anybody may have written, is shown as it is.
fn finding(found: &Value) -> String {
    let text = |name: &str| found[name].as_str().unwrap_or("?").replace(['\n', '\r'], " ");
    let number = |name: &str| found[name].as_u64().unwrap_or_default();
    let (line, column) = (number("line"), number("column"));
    format!("{} {} at {line}:{column}: {}", text("severity"), text("rule"), text("message"))
}

fn compiler_described(record: &AuditRecord) -> String {
    let Some(compile) = &record.compile else { return "-".to_owned() };
    let before = if compile.cached { "compiled before" } else { "compiled for this run" };
    let ended = if record.stage.as_deref() == Some("compile") { ", ended the run" } else { "" };
    format!("exit code {}, {before}{ended}", compile.exit_code)
}

fn decision(record: &AuditRecord) -> String {
    let Some(Decision { action, rule, reason, by, approval_id }) = &record.decision else {
        return "-".to_owned();
    };
    let approval = approval_id.as_deref().map(|id| format!(", approval {id}")).unwrap_or_default();
    format!("{action} by {by}: {reason} (rule {rule}{approval})")
}

fn files(files: &[AuditFile]) -> String {
    let one = |file: &AuditFile| {
        let digest = file.sha256.as_deref().map(|digest| format!(" sha256:{digest}")).unwrap_or_default();
        let size = file.size.map(|size| format!(" {size} bytes")).unwrap_or_default();
        format!("{}{size}{digest}", file.path).trim().to_owned()
    };
    files.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn or_dash(text: &Option<String>) -> String {
    text.clone().unwrap_or_else(|| "-".to_owned())
}

/// None of the types has a `Serialize` that can fail.
fn in_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
