//! Scans of code: what is asked, and what was found.

use belljar_core::finding;
use belljar_core::language::Language;
use belljar_core::request::Code;
use belljar_core::{Field, Invalid};
use belljar_engine::Subject;
use serde::{Deserialize, Serialize};

use crate::{Problem, ToSchema, Word};

/// The most modules that a list of allowed imports may have.
const MOST_IMPORTS: usize = 1000;
/// The longest name of a module, in bytes.
const LONGEST_IMPORT: usize = 200;

/// Code to scan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScanRequest {
    /// The language of the code, by its name or an alias. `GET /v1/languages` lists them.
    #[schema(schema_with = crate::schema::language_or_alias)]
    pub language: String,
    /// The source code: at most 4 MiB, without NUL characters.
    #[schema(pattern = r"^[^\u0000]*$")]
    pub code: String,
    /// The only modules that the code may import. Without it, it may import any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000)]
    pub allowed_imports: Option<Vec<String>>,
}

/// What a scan found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScanResult {
    /// What was found, in the order of the code. There is a limit on their number; of one rule, the first finding says how
    /// many more there are.
    pub findings: Vec<Finding>,
}

/// One place in the code that a rule matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// The rule, such as `python.process.spawn`.
    pub rule: String,
    /// How much it matters.
    #[schema(value_type = crate::schema::Severity)]
    pub severity: Word,
    /// What the code does there.
    pub message: String,
    /// The line on which it begins, counted from one.
    pub line: u32,
    /// The column at which it begins, in characters, counted from one.
    pub column: u32,
    /// The line on which it ends.
    pub end_line: u32,
    /// The column after its last character.
    pub end_column: u32,
    /// The line on which it begins, or a part of that line. Control characters are replaced.
    pub excerpt: String,
    /// What it is in, if that is not the code itself: the path of a file of the request, `cell N` of a notebook,
    /// `standard input` or `environment`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
}

impl ScanRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// It is not JSON, not a request, or says something that does not exist.
    pub fn parse(json: &[u8]) -> Result<Subject, Problem> {
        let request: ScanRequest = crate::request::read_object(json)?;
        Ok(Subject::try_from(request)?)
    }
}

impl TryFrom<ScanRequest> for Subject {
    type Error = Invalid;

    fn try_from(request: ScanRequest) -> Result<Subject, Invalid> {
        let ScanRequest { language, code, allowed_imports } = request;
        let names = allowed_imports.as_deref().unwrap_or_default();
        if names.len() > MOST_IMPORTS || names.iter().any(|name| !is_module(name)) {
            let message = format!(
                "a list of allowed imports has at most {MOST_IMPORTS} names of at most {LONGEST_IMPORT} bytes each"
            );
            let hint = "name the modules, such as json or os.path".to_owned();
            return Err(Invalid { field: Field::AllowedImports, message, hint, too_large: false });
        }
        Ok(Subject {
            language: Language::parse(&language)?,
            code: Code::parse(code.into_bytes(), None)?,
            allowed_imports,
        })
    }
}

fn is_module(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_IMPORT && !name.contains(char::is_control)
}

impl ScanResult {
    /// What was found.
    #[must_use]
    pub fn new(findings: &[finding::Finding]) -> ScanResult {
        ScanResult { findings: findings.iter().map(Finding::from).collect() }
    }
}

impl From<Finding> for finding::Finding {
    /// A finding of another version may have a severity that this one does not know.
    fn from(found: Finding) -> finding::Finding {
        let Finding { rule, severity, message, line, column, end_line, end_column, excerpt, within } = found;
        finding::Finding {
            rule,
            severity: finding::Severity::by_name(&severity).unwrap_or(finding::Severity::Info),
            message,
            start: finding::Position { line, column },
            end: finding::Position { line: end_line, column: end_column },
            excerpt,
            within,
        }
    }
}

impl From<&finding::Finding> for Finding {
    fn from(found: &finding::Finding) -> Finding {
        Finding {
            rule: found.rule.clone(),
            severity: found.severity.name().into(),
            message: found.message.clone(),
            line: found.start.line,
            column: found.start.column,
            end_line: found.end.line,
            end_column: found.end.column,
            excerpt: found.excerpt.clone(),
            within: found.within.clone(),
        }
    }
}
