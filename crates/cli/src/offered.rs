//! Values that help texts and shell completions offer. The parser accepts any text: [`crate::settings`] and
//! [`crate::source`] check it, because their errors also have to cover the environment and the configuration.

use std::ffi::OsStr;

use belljar_core::finding::Severity;
use belljar_core::guarantee::Guarantee;
use belljar_core::language::Language;
use belljar_core::request::BackendName;
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Command};

/// A parser that offers values without insisting on them. The list is made only when it is shown.
#[derive(Debug, Clone)]
pub(crate) struct Offered<P> {
    parser: P,
    values: fn() -> Vec<PossibleValue>,
}

/// The backends of this build.
pub(crate) fn backends() -> Offered<StringValueParser> {
    text(|| {
        let names = BackendName::BUILDABLE.into_iter().filter(|name| is_built(*name)).map(BackendName::name);
        std::iter::once("auto").chain(names).map(PossibleValue::new).collect()
    })
}

/// The networks that a backend can provide. What follows the last is for the caller to write.
pub(crate) fn networks() -> Offered<StringValueParser> {
    text(|| ["none", "full", "allow:"].map(PossibleValue::new).to_vec())
}

/// What `--waive` takes.
pub(crate) fn guarantees() -> Offered<StringValueParser> {
    text(|| Guarantee::ALL.map(|guarantee| PossibleValue::new(guarantee.name())).to_vec())
}

/// The severities of findings, and no others.
pub(crate) fn severity() -> impl TypedValueParser<Value = Severity> {
    let names = PossibleValuesParser::new(Severity::ALL.map(Severity::name));
    names.map(|name| Severity::by_name(&name).unwrap_or(Severity::High))
}

/// The languages, with their aliases.
pub(crate) fn languages() -> Offered<StringValueParser> {
    text(language_values)
}

pub(crate) fn language_values() -> Vec<PossibleValue> {
    let value = |language: Language| PossibleValue::new(language.name).aliases(language.aliases);
    Language::all().map(value).collect()
}

fn text(values: fn() -> Vec<PossibleValue>) -> Offered<StringValueParser> {
    Offered { parser: StringValueParser::new(), values }
}

fn is_built(name: BackendName) -> bool {
    name != BackendName::Wasm || cfg!(feature = "wasm")
}

impl<P: TypedValueParser> TypedValueParser for Offered<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<P::Value, clap::Error> {
        self.parser.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.values)().into_iter()))
    }
}
