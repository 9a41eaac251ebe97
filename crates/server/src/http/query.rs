//! The query of a request. A parameter that the path does not have, and a value that is not what its parameter takes, are
//! refused by the parameter's name.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use axum::http::Uri;
use belljar_core::language::Language;
use belljar_core::request::BackendChoice;
use belljar_ledger::approvals::Listed;
use belljar_wire::{AUDIT_STATUSES, ApprovalStatus, Code, Problem, RunStatus, parse_moment};

use crate::runs::Wanted;

/// The longest that a request may wait for a run: the longest that a run may take.
const MAX_WAIT_MS: u64 = 86_400_000;
/// How many runs a page has if the request does not say.
pub(super) const USUAL_PAGE: usize = 50;
/// How many runs a page has at most.
const MAX_PAGE: usize = 200;

/// The parameters of a query.
#[derive(Debug)]
pub(super) struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// Which runs are to be listed.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) wanted: Wanted,
    pub(super) limit: usize,
}

impl<'a> Query<'a> {
    pub(super) fn of(uri: &'a Uri) -> Query<'a> {
        let text = uri.query().unwrap_or_default();
        Query(form_urlencoded::parse(text.as_bytes()).collect())
    }

    /// Refuses all parameters, on a path that has none.
    pub(super) fn none(&self) -> Result<(), Problem> {
        self.only(&[])
    }

    /// How long to wait: not at all unless `wait_ms` says so.
    pub(super) fn wait(&self) -> Result<Duration, Problem> {
        self.only(&["wait_ms"])?;
        let range = 0..=MAX_WAIT_MS;
        let millis = self.number("wait_ms", range.clone(), &format!("a number from 0 to {MAX_WAIT_MS}"))?;
        Ok(Duration::from_millis(millis.unwrap_or(0)))
    }

    /// Which runs are to be listed.
    pub(super) fn page(&self) -> Result<Page, Problem> {
        self.only(&["status", "language", "limit", "cursor"])?;
        let (status, before) = (self.word("status", RunStatus::ALL, RunStatus::name)?, self.cursor("run_")?);
        let wanted = Wanted { status, language: self.language()?, before };
        Ok(Page { wanted, limit: self.limit()? })
    }

    /// Which approvals are to be listed, and how many.
    pub(super) fn approvals(&self) -> Result<(Listed, usize), Problem> {
        self.only(&["status", "remembered", "limit", "cursor"])?;
        let status = self.word("status", ApprovalStatus::ALL, ApprovalStatus::name)?;
        let name = |yes: bool| if yes { "true" } else { "false" };
        let remembered = self.word("remembered", [true, false], name)?.unwrap_or(false);
        Ok((Listed { status, caller: None, remembered, before: self.cursor("apr_")? }, self.limit()?))
    }

    /// Which records of the audit log are to be listed, and how many.
    pub(super) fn audit(&self, now: SystemTime) -> Result<(belljar_ledger::Query, usize), Problem> {
        self.only(&["language", "status", "caller", "from", "to", "q", "limit", "cursor"])?;
        let text = |name| Ok::<_, Problem>(self.one(name)?.map(str::to_owned));
        let most = i64::MAX.cast_unsigned();
        let query = belljar_ledger::Query {
            language: self.one("language")?.map(canonical),
            status: self.word("status", AUDIT_STATUSES, |word| word)?.map(str::to_owned),
            caller: text("caller")?,
            from: self.moment("from", now)?,
            to: self.moment("to", now)?,
            words: text("q")?,
            before: self.number("cursor", 1..=most, "the next_cursor of the page before")?,
        };
        Ok((query, self.limit()?))
    }

    fn moment(&self, name: &str, now: SystemTime) -> Result<Option<i64>, Problem> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        let expected = "a time such as 2026-11-17T10:00:00Z, a date, or how long ago it is, such as 2h";
        parse_moment(text, now).map(Some).ok_or_else(|| wrong(name, text, expected))
    }

    /// The backend that is meant.
    pub(super) fn backend(&self) -> Result<Option<BackendChoice>, Problem> {
        self.only(&["backend"])?;
        Ok(self.one("backend")?.map(BackendChoice::parse).transpose()?)
    }

    /// How many a page has at most.
    fn limit(&self) -> Result<usize, Problem> {
        let limit = self.number("limit", 1..=MAX_PAGE as u64, &format!("a number from 1 to {MAX_PAGE}"))?;
        Ok(limit.and_then(|limit| limit.try_into().ok()).unwrap_or(USUAL_PAGE))
    }

    /// One of the words that a parameter can be.
    fn word<T: Copy, const N: usize>(
        &self,
        name: &str,
        all: [T; N],
        word: fn(T) -> &'static str,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        let named = all.into_iter().find(|one| word(*one) == text);
        let names = || format!("one of {}", all.map(word).join(", "));
        named.map(Some).ok_or_else(|| wrong(name, text, &names()))
    }

    fn language(&self) -> Result<Option<Language>, Problem> {
        Ok(self.one("language")?.map(Language::parse).transpose()?)
    }

    /// An identifier that begins with this.
    fn cursor(&self, prefix: &str) -> Result<Option<String>, Problem> {
        let Some(text) = self.one("cursor")? else { return Ok(None) };
        let is_id = |text: &str| {
            text.strip_prefix(prefix).is_some_and(|ulid| {
                ulid.len() == 26 && ulid.as_bytes()[0] <= b'7' && ulid.bytes().all(is_ulid_digit)
            })
        };
        let expected = "the next_cursor of the page before";
        if is_id(text) { Ok(Some(text.to_owned())) } else { Err(wrong("cursor", text, expected)) }
    }

    fn number(
        &self,
        name: &str,
        range: std::ops::RangeInclusive<u64>,
        expected: &str,
    ) -> Result<Option<u64>, Problem> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = digits.and_then(|text| text.parse().ok()).filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| wrong(name, text, expected))
    }

    /// Refuses a parameter that would have no effect, such as a misspelt one.
    fn only(&self, known: &[&str]) -> Result<(), Problem> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_ref())) {
            Some((name, _)) => Err(unknown(name, known)),
            None => Ok(()),
        }
    }

    fn one(&self, name: &str) -> Result<Option<&str>, Problem> {
        let mut values = self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_ref());
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            (_, Some(_)) => Err(at(name, format!("the parameter {name} is there twice"), "send it once")),
        }
    }
}

/// A language by its name. One that is not known is looked for as it is: a request that named it was recorded, too.
fn canonical(text: &str) -> String {
    Language::parse(text).map_or_else(|_| text.to_owned(), |language| language.name.to_owned())
}

/// Crockford's base 32 leaves out the letters that look like others.
fn is_ulid_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.is_ascii_uppercase() && !b"ILOU".contains(&byte)
}

fn unknown(name: &str, known: &[&str]) -> Problem {
    let name = shown(name);
    let hint = match known {
        [] => "leave it out; this path has no parameters".to_owned(),
        known => format!("the parameters of this path are: {}", known.join(", ")),
    };
    at(&name, format!("unknown parameter '{name}'"), &hint)
}

fn wrong(name: &str, text: &str, expected: &str) -> Problem {
    at(name, format!("'{}' is not a value of {name}", shown(text)), &format!("send {expected}"))
}

/// What a client sent, as far as it fits into a message.
fn shown(text: &str) -> String {
    text.chars().take(64).collect::<String>().escape_debug().to_string()
}

fn at(name: &str, message: String, hint: &str) -> Problem {
    let mut problem = Problem::new(Code::InvalidRequest, message, hint);
    problem.error.field = Some(name.to_owned());
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(query: &str) -> Uri {
        format!("/v1/runs?{query}").parse().unwrap()
    }

    #[test]
    fn a_query_says_which_runs_are_wanted() {
        let uri = uri("status=timed_out&language=py&limit=7&cursor=run_01J00000000000000000000000");
        let page = Query::of(&uri).page().unwrap();
        assert_eq!((page.limit, page.wanted.status), (7, Some(RunStatus::TimedOut)));
        assert_eq!(page.wanted.language.unwrap().name, "python");
        assert_eq!(page.wanted.before.as_deref(), Some("run_01J00000000000000000000000"));
    }

    #[test]
    fn without_a_query_the_newest_runs_are_wanted() {
        let uri = Uri::from_static("/v1/runs");
        let page = Query::of(&uri).page().unwrap();
        assert_eq!(page.limit, USUAL_PAGE);
        assert!(
            page.wanted.status.is_none() && page.wanted.language.is_none() && page.wanted.before.is_none()
        );
        assert_eq!(Query::of(&uri).wait().unwrap(), Duration::ZERO);
    }

    #[test]
    fn a_word_that_a_filter_does_not_have_is_refused_with_those_that_it_has() {
        let now = SystemTime::now();
        let uri = uri("status=done");
        let refusals = [
            (Query::of(&uri).page().unwrap_err(), "send one of awaiting_approval, queued, running, exited, "),
            (
                Query::of(&uri).approvals().unwrap_err(),
                "send one of pending, approved, denied, expired, cancelled",
            ),
            (
                Query::of(&uri).audit(now).unwrap_err(),
                "send one of exited, timed_out, out_of_memory, signaled, ",
            ),
        ];
        for (Problem { error, .. }, hint) in refusals {
            assert_eq!((error.code, error.field.as_deref()), (Code::InvalidRequest, Some("status")));
            assert_eq!(error.message, "'done' is not a value of status");
            assert!(error.hint.starts_with(hint), "{}", error.hint);
        }
        for status in AUDIT_STATUSES {
            let uri = format!("/v1/audit?status={status}").parse().unwrap();
            assert_eq!(Query::of(&uri).audit(now).unwrap().0.status.as_deref(), Some(status));
        }
    }

    #[test]
    fn a_wrong_value_is_refused_by_the_name_of_its_parameter() {
        for (query, field) in [
            ("status=done", "status"),
            ("status=", "status"),
            ("status=exited&status=exited", "status"),
            ("language=cobol", "language"),
            ("limit=0", "limit"),
            ("limit=201", "limit"),
            ("limit=-1", "limit"),
            ("limit=many", "limit"),
            ("cursor=run_%00", "cursor"),
            ("cursor=run_01J0000000000000000000000U", "cursor"),
            ("cursor=run_81J00000000000000000000000", "cursor"),
            ("cursor=run_01J000000000000000000000%C3%A4", "cursor"),
            ("limit=%2B5", "limit"),
            ("cursor=", "cursor"),
            ("limit=1&Limit=1", "Limit"),
            ("wait_ms=1", "wait_ms"),
        ] {
            let problem = Query::of(&uri(query)).page().unwrap_err().error;
            assert_eq!(
                (problem.code, problem.field.as_deref()),
                (Code::InvalidRequest, Some(field)),
                "{query}"
            );
        }
        for query in [
            "wait_ms=-1",
            "wait_ms=%2B5",
            "wait_ms=",
            "wait_ms=1.5",
            "wait_ms=86400001",
            "wait_ms=1&wait_ms=2",
        ] {
            let problem = Query::of(&uri(query)).wait().unwrap_err().error;
            assert_eq!(problem.field.as_deref(), Some("wait_ms"), "{query}");
        }
        let refused = Query::of(&uri("wait=1")).wait().unwrap_err().error;
        assert_eq!((refused.field.as_deref(), refused.hint.contains("wait_ms")), (Some("wait"), true));
        assert!(Query::of(&uri("from=1")).none().is_err() && Query::of(&uri("")).none().is_ok());
    }
}
