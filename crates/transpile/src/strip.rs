//! What a worker does with the text: parse it, detect whether it is a module, remove the types.

use std::path::Path;

use oxc_allocator::Allocator;
use oxc_codegen::{Codegen, CodegenOptions};
use oxc_parser::{ParseOptions, Parser, ParserReturn};
use oxc_semantic::{Scoping, SemanticBuilder};
use oxc_span::SourceType;
use oxc_transformer::{
    DecoratorOptions, HelperLoaderMode, HelperLoaderOptions, JsxOptions, JsxRuntime, TransformOptions,
    Transformer,
};

use crate::diagnose;
use crate::worker::Reply;

/// The helper that decorated code calls. Oxc would import it from a package that no box has. It is one line, put before
/// the code's first, so that every other line keeps its number in the source map.
const HELPERS: &str = "const babelHelpers = { \
    decorate(decorators, target, key, descriptor) { \
        const onClass = arguments.length < 3; \
        let result = onClass ? target \
            : descriptor === null ? Object.getOwnPropertyDescriptor(target, key) : descriptor; \
        for (const decorator of decorators.reverse()) \
            result = (onClass ? decorator(result) : decorator(target, key, result)) || result; \
        if (!onClass && result) Object.defineProperty(target, key, result); \
        return result; \
    }, \
    decorateParam: (index, decorator) => (target, key) => decorator(target, key, index) \
}; ";

/// Detects whether JavaScript is a module. Code that does not parse counts as a script: Node decides.
pub(crate) fn detect_module(text: &str) -> Reply {
    let allocator = Allocator::default();
    let parsed = parse(&allocator, text, SourceType::unambiguous());
    let is_module = !parsed.diagnostics.has_errors() && (parsed.is_module() || parsed.awaits_at_top_level());
    if is_module { Reply::Module(Vec::new()) } else { Reply::Script(Vec::new()) }
}

/// Turns TypeScript into JavaScript.
pub(crate) fn strip_types(name: &str, text: &str) -> Reply {
    let allocator = Allocator::default();
    let dialect = if name.ends_with(".tsx") { SourceType::tsx() } else { SourceType::ts() };
    let mut parsed = parse(&allocator, text, dialect.with_unambiguous(true));
    if parsed.diagnostics.has_errors() {
        return Reply::Errors(diagnose::describe(name, text, parsed.diagnostics.errors()));
    }
    let checked =
        SemanticBuilder::new().with_check_syntax_error(true).with_enum_eval(true).build(&parsed.program);
    if checked.diagnostics.has_errors() {
        return Reply::Errors(diagnose::describe(name, text, checked.diagnostics.errors()));
    }
    let scoping = checked.semantic.into_scoping();
    let is_module = parsed.is_module() || has_await_for_a_name(&scoping);
    let transformed = Transformer::new(&allocator, Path::new(name), &options())
        .build_with_scoping(scoping, &mut parsed.program);
    if transformed.diagnostics.has_errors() {
        return Reply::Errors(diagnose::describe(name, text, transformed.diagnostics.errors()));
    }
    let code = print(name, &parsed);
    if is_module { Reply::Module(code) } else { Reply::Script(code) }
}

/// Parses code of unknown kind: as what it appears to be, and failing that as a module, which makes `for await` at the
/// top level legal.
fn parse<'a>(allocator: &'a Allocator, text: &'a str, dialect: SourceType) -> ParserReturn<'a> {
    // Node wraps a script in a function.
    let options = ParseOptions { allow_return_outside_function: true, ..ParseOptions::default() };
    let parsed = Parser::new(allocator, text, dialect).with_options(options).parse();
    if !parsed.diagnostics.has_errors() {
        return parsed;
    }
    let module = Parser::new(allocator, text, dialect.with_module(true)).parse();
    if module.diagnostics.has_errors() { parsed } else { module }
}

trait Kind {
    fn is_module(&self) -> bool;
    fn awaits_at_top_level(&self) -> bool;
}

impl Kind for ParserReturn<'_> {
    fn is_module(&self) -> bool {
        self.module_record.has_module_syntax || self.program.source_type.is_module()
    }

    fn awaits_at_top_level(&self) -> bool {
        has_await_for_a_name(SemanticBuilder::new().build(&self.program).semantic.scoping())
    }
}

/// In a script, `await (x)` is a call of something named `await`. If nothing has that name, it was meant for a module.
fn has_await_for_a_name(scoping: &Scoping) -> bool {
    scoping.root_unresolved_references().keys().any(|name| name.as_str() == "await")
}

fn options() -> TransformOptions {
    TransformOptions {
        jsx: JsxOptions { runtime: JsxRuntime::Classic, pure: false, ..JsxOptions::enable() },
        decorator: DecoratorOptions { legacy: true, ..DecoratorOptions::default() },
        helper_loader: HelperLoaderOptions {
            mode: HelperLoaderMode::External,
            ..HelperLoaderOptions::default()
        },
        ..TransformOptions::default()
    }
}

fn print(name: &str, parsed: &ParserReturn<'_>) -> Vec<u8> {
    let options = CodegenOptions { source_map_path: Some(name.into()), ..CodegenOptions::default() };
    let printed = Codegen::new().with_options(options).build(&parsed.program);
    let mut code = printed.code;
    if code.contains("babelHelpers.decorate") {
        insert_helpers(&mut code, parsed.program.has_use_strict_directive());
    }
    if let Some(map) = printed.map {
        code.push_str("//# sourceMappingURL=");
        code.push_str(&map.to_data_url());
        code.push('\n');
    }
    code.into_bytes()
}

fn insert_helpers(code: &mut String, strict: bool) {
    let after_hashbang =
        if code.starts_with("#!") { code.find('\n').map_or(code.len(), |end| end + 1) } else { 0 };
    code.insert_str(after_hashbang, HELPERS);
    if strict {
        // A directive counts only before anything else.
        code.insert_str(after_hashbang, "\"use strict\"; ");
    }
}
