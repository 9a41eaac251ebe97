//! The view of a JavaScript or TypeScript program, from oxc's syntax tree.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a syntax tree has dozens of kinds of nodes, and most of them say nothing"
)]

use std::rc::Rc;

use oxc_allocator::Allocator;
use oxc_ast::ast::{
    Argument, ArrayExpressionElement, ArrowFunctionExpression, AssignmentExpression, AssignmentTarget,
    BinaryExpression, BinaryOperator, BindingPattern, CallExpression, ComputedMemberExpression,
    ExportAllDeclaration, ExportFromDeclaration, Expression, FormalParameters, Function, ImportDeclaration,
    ImportDeclarationSpecifier, ImportExpression, NewExpression, PropertyKey, StaticMemberExpression,
    StringLiteral, TSImportEqualsDeclaration, TSModuleReference, TemplateLiteral, VariableDeclarator,
};
use oxc_ast_visit::{Visit, walk};
use oxc_parser::{ParseOptions, Parser};
use oxc_span::{GetSpan, SourceType};
use oxc_syntax::scope::ScopeFlags;

use crate::Tree;
use crate::names::{Names, from_base64, from_hex, path};
use crate::view::{Dialect, Fact, Sink, Span, Value};

/// How far an expression is followed.
const FAR: usize = 40;
/// How many errors of the parser are reported.
const MOST_ERRORS: usize = 3;

/// Reads a program.
pub(crate) fn read(dialect: Dialect, text: &str, sink: &mut dyn Sink) -> Tree {
    let allocator = Allocator::default();
    let kind = match dialect {
        Dialect::TypeScript => SourceType::ts(),
        Dialect::JavaScript | Dialect::Python | Dialect::Shell | Dialect::Other(_) => {
            SourceType::unambiguous()
        }
    };
    let options = ParseOptions { allow_return_outside_function: true, ..ParseOptions::default() };
    let attempts = [kind.with_unambiguous(true), kind.with_module(true), SourceType::tsx()];
    let mut parsed = None;
    for attempt in attempts {
        let read = Parser::new(&allocator, text, attempt).with_options(options).parse();
        let valid = !read.diagnostics.has_errors();
        parsed = Some(match parsed {
            Some(first) if !valid => first,
            Some(_) | None => read,
        });
        if valid {
            break;
        }
    }
    let Some(parsed) = parsed else { return Tree::Absent };
    for error in parsed.diagnostics.errors().take(MOST_ERRORS) {
        let offset = error.labels.first().map_or(0, |label| usize::try_from(label.offset()).unwrap_or(0));
        sink.see(Span::new(offset, offset), Fact::Unreadable(error.message.to_string()));
    }
    if parsed.panicked || (parsed.program.body.is_empty() && parsed.diagnostics.has_errors()) {
        return Tree::Absent;
    }
    let mut reader = Reader { names: Names::new(), sink, pass: Pass::Names };
    for pass in [Pass::Names, Pass::Facts] {
        reader.pass = pass;
        reader.visit_program(&parsed.program);
    }
    Tree::Made
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Names,
    Facts,
}

struct Reader<'s> {
    names: Names,
    sink: &'s mut dyn Sink,
    pass: Pass,
}

fn span(node: &impl GetSpan) -> Span {
    let span = node.span();
    Span::new(span.start as usize, span.end as usize)
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_import_declaration(&mut self, import: &ImportDeclaration<'a>) {
        let module = module_name(import.source.value.as_str());
        for specifier in import.specifiers.iter().flatten() {
            match specifier {
                ImportDeclarationSpecifier::ImportSpecifier(one) => {
                    let name: Rc<str> = format!("{module}.{}", one.imported.name().as_str()).into();
                    self.names.bind(one.local.name.as_str(), Value::Path(name.clone()));
                    self.see(span(one.as_ref()), Fact::Name(name));
                }
                ImportDeclarationSpecifier::ImportDefaultSpecifier(one) => {
                    self.names.bind(one.local.name.as_str(), path(module));
                }
                ImportDeclarationSpecifier::ImportNamespaceSpecifier(one) => {
                    self.names.bind(one.local.name.as_str(), path(module));
                }
            }
        }
        self.see(span(import), Fact::Import(module.into()));
    }

    fn visit_export_from_declaration(&mut self, export: &ExportFromDeclaration<'a>) {
        self.see(span(export), Fact::Import(module_name(export.source.value.as_str()).into()));
        walk::walk_export_from_declaration(self, export);
    }

    fn visit_export_all_declaration(&mut self, export: &ExportAllDeclaration<'a>) {
        self.see(span(export), Fact::Import(module_name(export.source.value.as_str()).into()));
        walk::walk_export_all_declaration(self, export);
    }

    fn visit_ts_import_equals_declaration(&mut self, import: &TSImportEqualsDeclaration<'a>) {
        if let TSModuleReference::ExternalModuleReference(reference) = &import.module_reference {
            let module = module_name(reference.expression.value.as_str());
            self.names.bind(import.id.name.as_str(), path(module));
            self.see(span(import), Fact::Import(module.into()));
        }
    }

    fn visit_variable_declarator(&mut self, declared: &VariableDeclarator<'a>) {
        let value = declared.init.as_ref().map_or(Value::Unknown, |init| self.resolve(init, FAR));
        self.bind(&declared.id, &value, FAR);
        walk::walk_variable_declarator(self, declared);
    }

    fn visit_assignment_expression(&mut self, assignment: &AssignmentExpression<'a>) {
        let value = self.resolve(&assignment.right, FAR);
        match &assignment.left {
            AssignmentTarget::AssignmentTargetIdentifier(target) => {
                self.names.bind(target.name.as_str(), value)
            }
            AssignmentTarget::StaticMemberExpression(member) => {
                if let Expression::Identifier(object) = &member.object {
                    let key = format!("{}.{}", object.name.as_str(), member.property.name.as_str());
                    self.names.bind_globally(&key, value);
                }
            }
            _ => {}
        }
        walk::walk_assignment_expression(self, assignment);
    }

    fn visit_function(&mut self, function: &Function<'a>, flags: ScopeFlags) {
        if let Some(name) = &function.id {
            self.names.bind(name.name.as_str(), Value::Unknown);
        }
        let outer = self.names.enter(function.span.start);
        self.bind_parameters(&function.params);
        walk::walk_function(self, function, flags);
        self.names.leave(outer);
    }

    fn visit_arrow_function_expression(&mut self, function: &ArrowFunctionExpression<'a>) {
        let outer = self.names.enter(function.span.start);
        self.bind_parameters(&function.params);
        walk::walk_arrow_function_expression(self, function);
        self.names.leave(outer);
    }

    fn visit_call_expression(&mut self, call: &CallExpression<'a>) {
        if self.pass == Pass::Facts {
            self.call(span(call), &call.callee, &call.arguments);
            if let Some(text) = self.resolve_call(&call.callee, &call.arguments, FAR).text() {
                self.see(span(call), Fact::Text(text.clone()));
            }
        }
        walk::walk_call_expression(self, call);
    }

    fn visit_new_expression(&mut self, call: &NewExpression<'a>) {
        if self.pass == Pass::Facts {
            self.call(span(call), &call.callee, &call.arguments);
        }
        walk::walk_new_expression(self, call);
    }

    fn visit_import_expression(&mut self, import: &ImportExpression<'a>) {
        if self.pass == Pass::Facts {
            let module = self.resolve(&import.source, FAR);
            self.see(span(import), Fact::Call("import".into(), vec![module]));
        }
        walk::walk_import_expression(self, import);
    }

    fn visit_string_literal(&mut self, literal: &StringLiteral<'a>) {
        self.see(span(literal), Fact::Text(literal.value.as_str().into()));
    }

    fn visit_template_literal(&mut self, template: &TemplateLiteral<'a>) {
        if self.pass == Pass::Facts
            && let Some(text) = self.resolve_template(template, FAR).text()
        {
            self.see(span(template), Fact::Text(text.clone()));
        }
        walk::walk_template_literal(self, template);
    }

    fn visit_binary_expression(&mut self, operation: &BinaryExpression<'a>) {
        if self.pass == Pass::Facts
            && operation.operator == BinaryOperator::Addition
            && let Some(text) = self.resolve_sum(operation, FAR).text()
        {
            self.see(span(operation), Fact::Text(text.clone()));
        }
        walk::walk_binary_expression(self, operation);
    }

    fn visit_static_member_expression(&mut self, member: &StaticMemberExpression<'a>) {
        if self.pass == Pass::Facts {
            self.see(span(member), Fact::Attribute(member.property.name.as_str().into()));
            let name = self.resolve_member(&member.object, member.property.name.as_str(), FAR);
            self.mention(span(member), &name);
        }
        walk::walk_static_member_expression(self, member);
    }

    fn visit_computed_member_expression(&mut self, member: &ComputedMemberExpression<'a>) {
        if self.pass == Pass::Facts {
            self.computed_member(member);
        }
        walk::walk_computed_member_expression(self, member);
    }

    fn visit_identifier_reference(&mut self, name: &oxc_ast::ast::IdentifierReference<'a>) {
        if self.pass == Pass::Facts {
            let value = canonical(self.names.one(name.name.as_str()));
            self.mention(span(name), &value);
        }
    }
}

impl Reader<'_> {
    fn see(&mut self, span: Span, fact: Fact) {
        if self.pass == Pass::Facts {
            self.sink.see(span, fact);
        }
    }

    fn mention(&mut self, at: Span, value: &Value) {
        if let Some(name) = value.path().filter(|name| !name.starts_with('?')) {
            self.see(at, Fact::Name(name.clone()));
        }
    }

    fn bind_parameters(&mut self, parameters: &FormalParameters<'_>) {
        for parameter in &parameters.items {
            let value =
                parameter.initializer.as_ref().map_or(Value::Unknown, |value| self.resolve(value, FAR));
            self.bind(&parameter.pattern, &value, FAR);
        }
    }

    fn bind(&mut self, pattern: &BindingPattern<'_>, value: &Value, far: usize) {
        let Some(far) = far.checked_sub(1) else { return };
        match pattern {
            BindingPattern::BindingIdentifier(name) => self.names.bind(name.name.as_str(), value.clone()),
            BindingPattern::ObjectPattern(object) => {
                for property in &object.properties {
                    let key = key_of(&property.key);
                    let part = match (key, value) {
                        (Some(_), Value::Unknown) | (None, _) => Value::Unknown,
                        (Some(key), known) => canonical(self.names.attribute(known, &key)),
                    };
                    self.mention(span(property), &part);
                    self.bind(&property.value, &part, far);
                }
            }
            BindingPattern::ArrayPattern(array) => {
                for (index, element) in array.elements.iter().enumerate() {
                    let part = match value {
                        Value::List(items) => items.get(index).cloned(),
                        _ => None,
                    };
                    if let Some(element) = element {
                        self.bind(element, &part.unwrap_or(Value::Unknown), far);
                    }
                }
            }
            BindingPattern::AssignmentPattern(default) => self.bind(&default.left, value, far),
        }
    }

    fn call(&mut self, at: Span, callee: &Expression<'_>, arguments: &[Argument<'_>]) {
        let mut values: Vec<Value> = arguments.iter().map(|argument| self.argument(argument)).collect();
        let callees = match callee {
            Expression::Identifier(name) => self.names.all(name.name.as_str()).map(<[Value]>::to_vec),
            _ => None,
        };
        let callees = callees.unwrap_or_else(|| vec![self.resolve(callee, FAR)]);
        for callee in callees {
            let callee = canonical(callee);
            let Some(mut name) = callee.path().cloned() else { continue };
            let reflected = name.strip_suffix(".call").or_else(|| name.strip_suffix(".apply"));
            if let Some(direct) = reflected.filter(|direct| !direct.is_empty()) {
                name = direct.into();
                if !values.is_empty() {
                    values.remove(0);
                }
                if let [Value::List(items)] = values.as_slice() {
                    values = items.to_vec();
                }
            }
            self.see(at, Fact::Call(name, values.clone()));
        }
    }

    fn argument(&mut self, argument: &Argument<'_>) -> Value {
        argument.as_expression().map_or(Value::Unknown, |expression| self.resolve(expression, FAR))
    }

    fn computed_member(&mut self, member: &ComputedMemberExpression<'_>) {
        let of = self.resolve(&member.object, FAR);
        let key = self.resolve(&member.expression, FAR);
        if let Some(text) = key.text() {
            self.see(span(member), Fact::Attribute(text.clone()));
            let name = canonical(self.names.attribute(&of, text));
            self.mention(span(member), &name);
        }
        let literal =
            matches!(member.expression, Expression::StringLiteral(_) | Expression::NumericLiteral(_));
        let is_global =
            of.path().is_some_and(|name| GLOBALS.contains(&name.as_ref()) || name.as_ref() == "process");
        if is_global && !literal {
            let construct = if key.text().is_some() { "assembled-name" } else { "computed-attribute" };
            self.see(span(member), Fact::Construct(construct));
        }
    }

    fn resolve(&mut self, expression: &Expression<'_>, far: usize) -> Value {
        let Some(far) = far.checked_sub(1) else { return Value::Unknown };
        match expression {
            Expression::Identifier(name) => canonical(self.names.one(name.name.as_str())),
            Expression::StringLiteral(literal) => Value::Text(literal.value.as_str().into()),
            Expression::NumericLiteral(number) => whole(number.value).map_or(Value::Unknown, Value::Number),
            Expression::TemplateLiteral(template) => self.resolve_template(template, far),
            Expression::BinaryExpression(sum) if sum.operator == BinaryOperator::Addition => {
                self.resolve_sum(sum, far)
            }
            Expression::ArrayExpression(array) if array.elements.len() <= 64 => {
                let items = array.elements.iter().map(|element| match element {
                    ArrayExpressionElement::SpreadElement(_) | ArrayExpressionElement::Elision(_) => {
                        Value::Unknown
                    }
                    other => other.as_expression().map_or(Value::Unknown, |item| self.resolve(item, far)),
                });
                Value::List(items.collect())
            }
            Expression::StaticMemberExpression(member) => self.resolve_static(member, far),
            Expression::ComputedMemberExpression(member) => self.resolve_computed(member, far),
            Expression::CallExpression(call) => self.resolve_call(&call.callee, &call.arguments, far),
            Expression::NewExpression(call) => self.resolve_call(&call.callee, &call.arguments, far),
            Expression::ImportExpression(import) => self.imported(&import.source, far),
            Expression::AwaitExpression(awaited) => self.resolve(&awaited.argument, far),
            Expression::ParenthesizedExpression(inner) => self.resolve(&inner.expression, far),
            Expression::AssignmentExpression(assignment) => self.resolve(&assignment.right, far),
            Expression::SequenceExpression(sequence) => {
                sequence.expressions.last().map_or(Value::Unknown, |last| self.resolve(last, far))
            }
            Expression::LogicalExpression(either) => {
                let left = self.resolve(&either.left, far);
                if left.path().is_some() { left } else { self.resolve(&either.right, far) }
            }
            Expression::ConditionalExpression(either) => {
                let first = self.resolve(&either.consequent, far);
                if first == Value::Unknown { self.resolve(&either.alternate, far) } else { first }
            }
            Expression::TSAsExpression(inner) => self.resolve(&inner.expression, far),
            Expression::TSNonNullExpression(inner) => self.resolve(&inner.expression, far),
            Expression::TSSatisfiesExpression(inner) => self.resolve(&inner.expression, far),
            Expression::FunctionExpression(_) | Expression::ArrowFunctionExpression(_) => path("?function"),
            _ => Value::Unknown,
        }
    }

    fn resolve_static(&mut self, member: &StaticMemberExpression<'_>, far: usize) -> Value {
        let property = member.property.name.as_str();
        if let Expression::Identifier(object) = &member.object {
            let key = format!("{}.{property}", object.name.as_str());
            if self.names.all(&key).is_some() {
                return canonical(self.names.one(&key));
            }
        }
        self.resolve_member(&member.object, property, far)
    }

    fn resolve_computed(&mut self, member: &ComputedMemberExpression<'_>, far: usize) -> Value {
        let of = self.resolve(&member.object, far);
        match (&of, self.resolve(&member.expression, far)) {
            (_, Value::Text(key) | Value::Decoded(key)) => canonical(self.names.attribute(&of, &key)),
            (Value::List(items), Value::Number(index)) => {
                let item = usize::try_from(index).ok().and_then(|index| items.get(index));
                item.cloned().unwrap_or(Value::Unknown)
            }
            _ => Value::Unknown,
        }
    }

    fn resolve_member(&mut self, object: &Expression<'_>, property: &str, far: usize) -> Value {
        let of = self.resolve(object, far);
        canonical(self.names.attribute(&of, property))
    }

    fn resolve_sum(&mut self, sum: &BinaryExpression<'_>, far: usize) -> Value {
        let Some(far) = far.checked_sub(1) else { return Value::Unknown };
        let (left, right) = (self.resolve(&sum.left, far), self.resolve(&sum.right, far));
        self.names.concatenated(&left, &right)
    }

    fn resolve_template(&mut self, template: &TemplateLiteral<'_>, far: usize) -> Value {
        let mut whole = Value::Text("".into());
        for (index, quasi) in template.quasis.iter().enumerate() {
            let text = quasi.value.cooked.as_ref().unwrap_or(&quasi.value.raw);
            whole = self.names.concatenated(&whole, &Value::Text(text.as_str().into()));
            if let Some(expression) = template.expressions.get(index) {
                let piece = match self.resolve(expression, far) {
                    text @ (Value::Text(_) | Value::Decoded(_)) => text,
                    _ => Value::Text("?".into()),
                };
                whole = self.names.concatenated(&whole, &piece);
            }
        }
        whole
    }

    fn imported(&mut self, source: &Expression<'_>, far: usize) -> Value {
        self.resolve(source, far).text().map_or(Value::Unknown, |module| path(module_name(module)))
    }

    fn resolve_call(&mut self, callee: &Expression<'_>, arguments: &[Argument<'_>], far: usize) -> Value {
        let Some(far) = far.checked_sub(1) else { return Value::Unknown };
        let mut values = arguments.iter().map(|argument| match argument.as_expression() {
            Some(expression) => self.resolve(expression, far),
            None => Value::Unknown,
        });
        let first = values.next().unwrap_or(Value::Unknown);
        let second = values.next().unwrap_or(Value::Unknown);
        if let Expression::StaticMemberExpression(method) = callee {
            let of = self.resolve(&method.object, far);
            let by_method = self.resolve_method(&of, method.property.name.as_str(), &first);
            if by_method != Value::Unknown {
                return by_method;
            }
        }
        let callee = self.resolve(callee, far);
        let Some(name) = callee.path() else { return Value::Unknown };
        match (name.as_ref(), &second) {
            ("require" | "module.createRequire()", _) => {
                first.text().map_or(Value::Unknown, |module| path(module_name(module)))
            }
            ("atob", _) => self.names.decoded(&first, from_base64),
            ("Buffer.from" | "buffer.Buffer.from", Value::Text(how)) if how.as_ref() == "base64" => {
                self.names.decoded(&first, from_base64)
            }
            ("Buffer.from" | "buffer.Buffer.from", Value::Text(how)) if how.as_ref() == "hex" => {
                self.names.decoded(&first, from_hex)
            }
            ("util.promisify", _) => first,
            ("unescape" | "decodeURIComponent" | "decodeURI" | "String" | "Buffer.from", _)
                if first.text().is_some() =>
            {
                first
            }
            ("String.fromCharCode" | "String.fromCodePoint", _) => {
                let codes: Option<String> = arguments
                    .iter()
                    .map(|argument| match self.argument(argument) {
                        Value::Number(code) => u32::try_from(code).ok().and_then(char::from_u32),
                        _ => None,
                    })
                    .collect();
                codes.map_or(Value::Unknown, |text| Value::Decoded(text.into()))
            }
            _ => self.names.result(&callee),
        }
    }

    fn resolve_method(&mut self, of: &Value, method: &str, argument: &Value) -> Value {
        match (of, method) {
            (Value::Text(_) | Value::Decoded(_), "toString" | "trim" | "split" | "concat") => of.clone(),
            (Value::Text(_) | Value::Decoded(_), "join") => of.clone(),
            (Value::Text(_) | Value::Decoded(_), "reverse") => self.names.reversed(of),
            (Value::List(parts), "join") => match argument {
                Value::Text(between) => self.names.joined(between, parts),
                _ => Value::Unknown,
            },
            (Value::Path(_), "bind") => of.clone(),
            _ => Value::Unknown,
        }
    }
}

/// Names of the object that has everything global.
const GLOBALS: [&str; 4] = ["globalThis", "global", "window", "self"];

/// One name for what has several.
fn canonical(value: Value) -> Value {
    let Value::Path(name) = &value else { return value };
    if name.ends_with(".constructor.constructor") || name.as_ref() == "?function.constructor" {
        return path("Function");
    }
    for global in GLOBALS {
        if let Some(short) = name.strip_prefix(global).and_then(|rest| rest.strip_prefix('.')) {
            return canonical(path(short));
        }
    }
    match name.as_ref() {
        "module.require" | "process.mainModule.require" | "require.main.require" => path("require"),
        other => match other.strip_prefix("process.mainModule.require().") {
            Some(rest) => path(rest),
            None => value,
        },
    }
}

/// `node:fs` is `fs`.
fn module_name(module: &str) -> &str {
    module.strip_prefix("node:").unwrap_or(module)
}

fn key_of(key: &PropertyKey<'_>) -> Option<String> {
    match key {
        PropertyKey::StaticIdentifier(name) => Some(name.name.as_str().to_owned()),
        PropertyKey::StringLiteral(literal) => Some(literal.value.as_str().to_owned()),
        _ => None,
    }
}

/// A number without a fraction that a character or an index could be.
fn whole(number: f64) -> Option<i64> {
    #[allow(clippy::cast_possible_truncation, reason = "the bounds are checked")]
    let whole = (0.0..=1_114_111.0).contains(&number).then_some(number as i64);
    whole
}
