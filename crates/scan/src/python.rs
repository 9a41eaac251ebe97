//! The view of a Python program, from ruff's syntax tree.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a syntax tree has dozens of kinds of nodes, and most of them say nothing"
)]

use std::rc::Rc;

use ruff_python_ast::visitor::source_order::{SourceOrderVisitor, walk_expr, walk_stmt};
use ruff_python_ast::{
    Arguments, DictItem, Expr, ExprAttribute, ExprCall, FStringPart, InterpolatedStringElement, Number,
    Operator, Parameters, PySourceType, Stmt,
};
use ruff_python_parser::parse_unchecked_source;
use ruff_text_size::Ranged;

use crate::Tree;
use crate::names::{Decode, Names, from_base64, from_hex, from_rot13, path};
use crate::view::{Fact, Sink, Span, Value};

/// How far an expression is followed. Nobody writes more by hand, and the time stays proportional to the text.
const FAR: usize = 40;
/// How many errors of the parser are reported.
const MOST_ERRORS: usize = 3;

/// Modules whose functions decode, with what they decode.
const DECODERS: [(&str, Decode); 6] = [
    ("base64.b64decode", from_base64),
    ("base64.standard_b64decode", from_base64),
    ("base64.urlsafe_b64decode", from_base64),
    ("binascii.a2b_base64", from_base64),
    ("bytes.fromhex", from_hex),
    ("binascii.unhexlify", from_hex),
];

/// Reads a program.
pub(crate) fn read(text: &str, sink: &mut dyn Sink) -> Tree {
    check_encoding(text, sink);
    let parsed = parse_unchecked_source(text, PySourceType::Python);
    for error in parsed.errors().iter().take(MOST_ERRORS) {
        sink.see(span(&error.location), Fact::Unreadable(error.error.to_string()));
    }
    let mut reader = Reader { names: Names::new(), sink, pass: Pass::Names, loops: 0 };
    for pass in [Pass::Names, Pass::Facts] {
        reader.pass = pass;
        for statement in parsed.suite() {
            reader.visit_stmt(statement);
        }
    }
    Tree::Made
}

/// Python decodes the file before it reads it, and some encodings hide code in what looks like a comment (PEP 263).
fn check_encoding(text: &str, sink: &mut dyn Sink) {
    let mut offset = 0;
    // A line may end with both characters, and then counts twice here.
    for line in text.split_inclusive(['\n', '\r']).take(4) {
        let named = line.match_indices("coding").filter_map(|(at, word)| encoding(&line[at + word.len()..]));
        let is_comment = line.trim_start_matches('\u{feff}').trim_start().starts_with('#');
        if is_comment && named.into_iter().any(|name| !is_plain(&name)) {
            sink.see(Span::new(offset, offset + line.trim_end().len()), Fact::Construct("odd-encoding"));
        }
        offset += line.len();
    }
}

/// The name of an encoding after the word `coding`, as Python compares it.
fn encoding(after: &str) -> Option<String> {
    let name = after.strip_prefix([':', '='])?.trim_start_matches([' ', '\t']);
    let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c))).unwrap_or(name.len());
    Some(name[..end].to_ascii_lowercase().replace('_', "-"))
}

/// Whether bytes of ASCII mean themselves in it.
fn is_plain(name: &str) -> bool {
    const PLAIN: [&str; 8] = ["", "utf-8", "utf8", "ascii", "us-ascii", "latin-1", "latin1", "iso-latin-1"];
    const NUMBERED: [&str; 4] = ["iso-8859-", "iso8859-", "cp125", "windows-125"];
    let numbered = |prefix: &&str| {
        let number = name.strip_prefix(*prefix).unwrap_or_default();
        !number.is_empty() && number.len() <= 2 && number.chars().all(|c| c.is_ascii_digit())
    };
    PLAIN.contains(&name) || name.starts_with("utf-8-") || NUMBERED.iter().any(numbered)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Learn what names stand for: functions are called after everything around them was defined.
    Names,
    /// Tell what happens.
    Facts,
}

struct Reader<'s> {
    names: Names,
    sink: &'s mut dyn Sink,
    pass: Pass,
    /// How many endless loops are around.
    loops: usize,
}

fn span(ranged: &impl Ranged) -> Span {
    Span::new(ranged.start().to_usize(), ranged.end().to_usize())
}

impl<'a> SourceOrderVisitor<'a> for Reader<'_> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        self.learn(statement);
        match statement {
            Stmt::Import(_) | Stmt::ImportFrom(_) => {}
            Stmt::FunctionDef(function) => {
                let outer = self.names.enter(function.start().to_u32());
                self.bind_parameters(&function.parameters);
                let loops = std::mem::take(&mut self.loops);
                walk_stmt(self, statement);
                self.loops = loops;
                self.names.leave(outer);
            }
            Stmt::While(repeated) => {
                let endless = is_always_true(&repeated.test);
                self.loops += usize::from(endless);
                walk_stmt(self, statement);
                self.loops -= usize::from(endless);
            }
            _ => walk_stmt(self, statement),
        }
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::Named(named) => {
                let value = self.resolve(&named.value, FAR);
                self.assign(&named.target, &value);
            }
            Expr::Lambda(lambda) => {
                let outer = self.names.enter(lambda.start().to_u32());
                if let Some(parameters) = &lambda.parameters {
                    self.bind_parameters(parameters);
                }
                walk_expr(self, expression);
                self.names.leave(outer);
                return;
            }
            Expr::ListComp(list) => list.generators.iter().for_each(|part| self.forget(&part.target)),
            Expr::SetComp(set) => set.generators.iter().for_each(|part| self.forget(&part.target)),
            Expr::Generator(some) => some.generators.iter().for_each(|part| self.forget(&part.target)),
            Expr::DictComp(map) => map.generators.iter().for_each(|part| self.forget(&part.target)),
            _ if self.pass == Pass::Names => {}
            Expr::Call(call) => self.call(call),
            Expr::StringLiteral(_) | Expr::BytesLiteral(_) | Expr::FString(_) | Expr::BinOp(_) => {
                if let Some(text) = self.resolve(expression, FAR).text() {
                    self.see(span(expression), Fact::Text(text.clone()));
                }
            }
            Expr::Attribute(attribute) => {
                self.see(span(expression), Fact::Attribute(attribute.attr.as_str().into()));
                self.mention(expression);
            }
            Expr::Name(_) | Expr::Subscript(_) => self.mention(expression),
            _ => {}
        }
        walk_expr(self, expression);
    }
}

impl Reader<'_> {
    fn see(&mut self, span: Span, fact: Fact) {
        if self.pass == Pass::Facts {
            self.sink.see(span, fact);
        }
    }

    /// What a statement says about names.
    fn learn(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Import(import) => {
                for alias in &import.names {
                    self.import(
                        span(alias),
                        alias.name.as_str(),
                        alias.asname.as_ref().map(|name| name.as_str()),
                    );
                }
            }
            Stmt::ImportFrom(import) => {
                let module = import.module.as_ref().map_or("", |module| module.as_str());
                let module = format!("{}{module}", ".".repeat(import.level.min(3) as usize));
                for alias in &import.names {
                    let local = alias.asname.as_ref().unwrap_or(&alias.name);
                    self.import_from(span(alias), &module, alias.name.as_str(), local.as_str());
                }
                self.see(span(import), Fact::Import(module.into()));
            }
            Stmt::Assign(assign) => {
                let value = self.resolve(&assign.value, FAR);
                assign.targets.iter().for_each(|target| self.assign(target, &value));
            }
            Stmt::AnnAssign(assign) => {
                let value = assign.value.as_ref().map(|value| self.resolve(value, FAR));
                self.assign(&assign.target, &value.unwrap_or(Value::Unknown));
            }
            Stmt::AugAssign(assign) => {
                let (before, more) = (self.resolve(&assign.target, FAR), self.resolve(&assign.value, FAR));
                let value = self.names.concatenated(&before, &more);
                self.assign(&assign.target, &value);
            }
            Stmt::FunctionDef(function) => self.names.bind(function.name.as_str(), Value::Unknown),
            Stmt::ClassDef(class) => self.names.bind(class.name.as_str(), Value::Unknown),
            Stmt::For(repeated) => self.forget(&repeated.target),
            Stmt::With(with) => {
                for (item, target) in
                    with.items.iter().filter_map(|item| Some((item, item.optional_vars.as_ref()?)))
                {
                    let value = self.resolve(&item.context_expr, FAR);
                    self.assign(target, &value);
                }
            }
            _ => {}
        }
    }

    fn import(&mut self, at: Span, module: &str, alias: Option<&str>) {
        match alias {
            Some(alias) => self.names.bind(alias, path(module)),
            None => {
                let first = module.split('.').next().unwrap_or(module);
                self.names.bind(first, path(first));
            }
        }
        self.see(at, Fact::Import(module.into()));
    }

    fn import_from(&mut self, at: Span, module: &str, name: &str, local: &str) {
        let full: Rc<str> = format!("{module}.{name}").into();
        if name == "*" {
            // Whatever it may bring, these are what rules look for.
            for dangerous in STARRED.iter().filter_map(|known| known.strip_prefix(module)?.strip_prefix('.'))
            {
                self.names.bind(dangerous, path(&format!("{module}.{dangerous}")));
            }
            return;
        }
        self.names.bind(local, canonical(Value::Path(full.clone())));
        self.see(at, Fact::Name(full));
    }

    fn bind_parameters(&mut self, parameters: &Parameters) {
        for parameter in parameters {
            let default = parameter.default().map_or(Value::Unknown, |default| self.resolve(default, FAR));
            self.names.bind(parameter.name().as_str(), default);
        }
    }

    fn forget(&mut self, target: &Expr) {
        self.assign(target, &Value::Unknown);
    }

    fn assign(&mut self, target: &Expr, value: &Value) {
        match target {
            Expr::Name(name) => self.names.bind(name.id.as_str(), value.clone()),
            Expr::Attribute(attribute) => {
                if let Expr::Name(object) = attribute.value.as_ref() {
                    let key = format!("{}.{}", object.id.as_str(), attribute.attr.as_str());
                    self.names.bind_globally(&key, value.clone());
                }
            }
            Expr::Tuple(_) | Expr::List(_) => {
                let targets = match target {
                    Expr::Tuple(tuple) => tuple.elts.as_slice(),
                    Expr::List(list) => list.elts.as_slice(),
                    _ => &[],
                };
                for (index, target) in targets.iter().enumerate() {
                    let part = match value {
                        Value::List(items) if items.len() == targets.len() => items.get(index).cloned(),
                        _ => None,
                    };
                    self.assign(target, &part.unwrap_or(Value::Unknown));
                }
            }
            _ => {}
        }
    }

    fn mention(&mut self, expression: &Expr) {
        if let Some(name) = self.resolve(expression, FAR).path()
            && !name.starts_with('?')
        {
            let name = name.clone();
            self.see(span(expression), Fact::Name(name));
        }
    }

    fn call(&mut self, call: &ExprCall) {
        let at = span(call);
        let arguments = self.arguments(&call.arguments);
        let callees = match call.func.as_ref() {
            Expr::Name(name) => self.names.all(name.id.as_str()).map(<[Value]>::to_vec),
            _ => None,
        };
        let callees = callees.unwrap_or_else(|| vec![self.resolve(&call.func, FAR)]);
        for callee in &callees {
            if let Some(name) = canonical(callee.clone()).path() {
                if self.loops > 0 && (name.as_ref() == "os.fork" || name.as_ref() == "os.forkpty") {
                    self.see(at, Fact::Construct("fork-in-loop"));
                }
                self.check_attribute(at, name, &arguments, call);
                self.see(at, Fact::Call(name.clone(), arguments.clone()));
            }
        }
        if let value @ (Value::Text(_) | Value::Decoded(_)) = self.resolve_call(call, FAR)
            && let Some(text) = value.text()
        {
            self.see(at, Fact::Text(text.clone()));
        }
    }

    /// `getattr` with a name that is not written out, of something that was imported.
    fn check_attribute(&mut self, at: Span, name: &str, arguments: &[Value], call: &ExprCall) {
        if name != "getattr" {
            return;
        }
        let [Value::Path(of), attribute, ..] = arguments else { return };
        let literal = matches!(call.arguments.args.get(1), Some(Expr::StringLiteral(_)));
        let is_module = !of.starts_with('?') && !of.contains('(');
        let bound =
            self.names.all(of.split('.').next().unwrap_or(of)).is_some() || of.as_ref() == "__builtins__";
        if literal || !is_module || !bound {
            return;
        }
        let construct = if attribute.text().is_some() { "assembled-name" } else { "computed-attribute" };
        self.see(at, Fact::Construct(construct));
    }

    fn arguments(&mut self, arguments: &Arguments) -> Vec<Value> {
        let mut values: Vec<Value> = Vec::new();
        for argument in &arguments.args {
            match argument {
                Expr::Starred(starred) => match self.resolve(&starred.value, FAR) {
                    Value::List(items) => values.extend(items.iter().cloned()),
                    _ => values.push(Value::Unknown),
                },
                other => values.push(self.resolve(other, FAR)),
            }
        }
        values.extend(arguments.keywords.iter().map(|keyword| self.resolve(&keyword.value, FAR)));
        values
    }

    fn resolve(&mut self, expression: &Expr, far: usize) -> Value {
        let Some(far) = far.checked_sub(1) else { return Value::Unknown };
        match expression {
            Expr::Name(name) => canonical(self.names.one(name.id.as_str())),
            Expr::Attribute(attribute) => self.resolve_attribute(attribute, far),
            Expr::StringLiteral(literal) => Value::Text(literal.value.to_str().into()),
            Expr::BytesLiteral(literal) => {
                let bytes: Vec<u8> = literal.value.bytes().collect();
                String::from_utf8(bytes).map_or(Value::Unknown, |text| Value::Text(text.into()))
            }
            Expr::NumberLiteral(number) => match &number.value {
                Number::Int(int) => int.as_i64().map_or(Value::Unknown, Value::Number),
                Number::Float(_) | Number::Complex { .. } => Value::Unknown,
            },
            Expr::FString(text) => self.resolve_format(text.value.iter(), far),
            Expr::BinOp(sum) if sum.op == Operator::Add => self.resolve_sum(&sum.left, &sum.right, far),
            Expr::List(list) => self.resolve_list(&list.elts, far),
            Expr::Tuple(tuple) => self.resolve_list(&tuple.elts, far),
            Expr::Dict(map) => self.resolve_map(&map.items, far),
            Expr::Named(named) => self.resolve(&named.value, far),
            Expr::Await(awaited) => self.resolve(&awaited.value, far),
            Expr::If(either) => {
                let first = self.resolve(&either.body, far);
                if first == Value::Unknown { self.resolve(&either.orelse, far) } else { first }
            }
            Expr::BoolOp(either) => {
                let mut values = either.values.iter().map(|value| self.resolve(value, far));
                values.find(|value| value.path().is_some()).unwrap_or(Value::Unknown)
            }
            Expr::Subscript(subscript) => {
                let of = self.resolve(&subscript.value, far);
                self.resolve_subscript(&of, &subscript.slice, far)
            }
            Expr::Call(call) => self.resolve_call(call, far),
            _ => Value::Unknown,
        }
    }

    fn resolve_attribute(&mut self, attribute: &ExprAttribute, far: usize) -> Value {
        if let Expr::Name(object) = attribute.value.as_ref() {
            let key = format!("{}.{}", object.id.as_str(), attribute.attr.as_str());
            if self.names.all(&key).is_some() {
                return canonical(self.names.one(&key));
            }
        }
        let of = self.resolve(&attribute.value, far);
        canonical(self.names.attribute(&of, attribute.attr.as_str()))
    }

    fn resolve_sum(&mut self, left: &Expr, right: &Expr, far: usize) -> Value {
        let (left, right) = (self.resolve(left, far), self.resolve(right, far));
        match (&left, &right) {
            (Value::List(first), Value::List(second)) if first.len() + second.len() < 64 => {
                Value::List(first.iter().chain(second.iter()).cloned().collect())
            }
            _ => self.names.concatenated(&left, &right),
        }
    }

    fn resolve_map(&mut self, items: &[DictItem], far: usize) -> Value {
        let mut entries = Vec::new();
        for item in items.iter().take(64) {
            let key = item.key.as_ref().map(|key| self.resolve(key, far));
            if let Some(Value::Text(key)) = key {
                let value = self.resolve(&item.value, far);
                entries.push((key, value));
            }
        }
        Value::Map(entries.into())
    }

    fn resolve_list(&mut self, items: &[Expr], far: usize) -> Value {
        if items.len() > 64 {
            return Value::Unknown;
        }
        Value::List(items.iter().map(|item| self.resolve(item, far)).collect())
    }

    fn resolve_format<'f>(&mut self, parts: impl Iterator<Item = &'f FStringPart>, far: usize) -> Value {
        let mut whole = Value::Text("".into());
        for part in parts {
            match part {
                FStringPart::Literal(literal) => {
                    whole = self.names.concatenated(&whole, &Value::Text(literal.as_str().into()));
                }
                FStringPart::FString(format) => {
                    for element in &format.elements {
                        let piece = match element {
                            InterpolatedStringElement::Literal(literal) => {
                                Value::Text(literal.value.as_ref().into())
                            }
                            // What is not known is left open: the rest of the text may still tell.
                            InterpolatedStringElement::Interpolation(inner) => {
                                match self.resolve(&inner.expression, far) {
                                    text @ (Value::Text(_) | Value::Decoded(_)) => text,
                                    _ => Value::Text("?".into()),
                                }
                            }
                        };
                        whole = self.names.concatenated(&whole, &piece);
                    }
                }
            }
        }
        whole
    }

    fn resolve_subscript(&mut self, of: &Value, key: &Expr, far: usize) -> Value {
        if let (Expr::Slice(slice), Some(_)) = (key, of.text()) {
            let step = slice.step.as_ref().map(|step| self.resolve(step, far));
            let backwards = matches!(slice.step.as_deref(), Some(Expr::UnaryOp(_))) && step.is_some();
            return if backwards { self.names.reversed(of) } else { Value::Unknown };
        }
        let key = self.resolve(key, far);
        match (of, &key) {
            (Value::Path(name), Value::Text(key) | Value::Decoded(key)) => match name.as_ref() {
                "sys.modules" => Value::Path(key.clone()),
                "globals()" | "locals()" | "vars()" => canonical(self.names.one(key)),
                "__builtins__" | "builtins" => Value::Path(key.clone()),
                other => {
                    let of = other.strip_suffix(".__dict__").map_or(Value::Unknown, path);
                    if of == Value::Unknown { of } else { canonical(self.names.attribute(&of, key)) }
                }
            },
            (Value::Map(_), Value::Text(key) | Value::Decoded(key)) => self.names.attribute(of, key),
            (Value::List(items), Value::Number(index)) => {
                let item = usize::try_from(*index).ok().and_then(|index| items.get(index));
                item.cloned().unwrap_or(Value::Unknown)
            }
            _ => Value::Unknown,
        }
    }

    fn resolve_call(&mut self, call: &ExprCall, far: usize) -> Value {
        let Some(far) = far.checked_sub(1) else { return Value::Unknown };
        let first = call.arguments.args.first();
        if let Expr::Attribute(method) = call.func.as_ref() {
            let of = self.resolve(&method.value, far);
            if let Some(text) = of.text() {
                return self.resolve_method(&of, &text.clone(), method.attr.as_str(), first, far);
            }
        }
        let callee = self.resolve(&call.func, far);
        let Some(name) = callee.path().cloned() else { return Value::Unknown };
        let argument = first.map_or(Value::Unknown, |first| self.resolve(first, far));
        if let Some((_, decode)) = DECODERS.iter().find(|(known, _)| *known == name.as_ref()) {
            return self.names.decoded(&argument, *decode);
        }
        match name.as_ref() {
            "__import__" | "importlib.import_module" | "importlib.__import__" => match argument.text() {
                Some(module) => Value::Path(module.clone()),
                None => Value::Unknown,
            },
            "getattr" => {
                let attribute =
                    call.arguments.args.get(1).map_or(Value::Unknown, |name| self.resolve(name, far));
                match attribute.text() {
                    Some(attribute) => canonical(self.names.attribute(&argument, &attribute.clone())),
                    None => Value::Unknown,
                }
            }
            "vars" if argument.path().is_some() => self.names.attribute(&argument, "__dict__"),
            "chr" => characters(&[argument]),
            "bytes" | "bytearray" | "map" => self.resolve_codes(&call.arguments, &name, far),
            "codecs.decode" => self.names.decoded(&argument, from_rot13),
            "compile" | "str" | "marshal.loads" | "zlib.decompress" | "gzip.decompress"
            | "bz2.decompress" | "lzma.decompress" => match argument {
                text @ (Value::Text(_) | Value::Decoded(_)) => text,
                _ => self.names.result(&callee),
            },
            "functools.partial" => argument,
            _ => self.names.result(&callee),
        }
    }

    /// `bytes([105, 100])` and `map(chr, [105, 100])`.
    fn resolve_codes(&mut self, arguments: &Arguments, name: &str, far: usize) -> Value {
        let index = usize::from(name == "map");
        let Some(list) = arguments.args.get(index) else { return Value::Unknown };
        match self.resolve(list, far) {
            Value::List(codes) => characters(&codes),
            _ => Value::Unknown,
        }
    }

    fn resolve_method(
        &mut self,
        of: &Value,
        text: &str,
        method: &str,
        argument: Option<&Expr>,
        far: usize,
    ) -> Value {
        match method {
            "join" => match argument {
                Some(Expr::Generator(parts)) => self.resolve_generated(&parts.elt, &parts.generators, far),
                Some(Expr::ListComp(parts)) => self.resolve_generated(&parts.elt, &parts.generators, far),
                Some(argument) => match self.resolve(argument, far) {
                    Value::List(parts) => self.names.joined(text, &parts),
                    Value::Decoded(parts) => Value::Decoded(parts),
                    _ => Value::Unknown,
                },
                None => Value::Unknown,
            },
            "decode" | "encode" | "strip" | "lower" | "rstrip" | "lstrip" => of.clone(),
            "replace" | "format" | "upper" | "title" => Value::Unknown,
            _ => path(&format!("str.{method}()")),
        }
    }

    /// `"".join(chr(c) for c in [105, 100])` and `"".join(c for c in reversed("di"))` are what hides code most often.
    fn resolve_generated(
        &mut self,
        element: &Expr,
        generators: &[ruff_python_ast::Comprehension],
        far: usize,
    ) -> Value {
        let [only] = generators else { return Value::Unknown };
        let is_chr = matches!(element, Expr::Call(call)
            if matches!(call.func.as_ref(), Expr::Name(name) if name.id.as_str() == "chr"));
        match self.resolve(&only.iter, far) {
            Value::List(codes) if is_chr => characters(&codes),
            _ => Value::Unknown,
        }
    }
}

/// The text of these codes of characters.
fn characters(codes: &[Value]) -> Value {
    let character = |code: &Value| match code {
        Value::Number(code) => u32::try_from(*code).ok().and_then(char::from_u32),
        _ => None,
    };
    let text: Option<String> = codes.iter().map(character).collect();
    text.filter(|text| !text.is_empty()).map_or(Value::Unknown, |text| Value::Decoded(text.into()))
}

/// One name for what has several.
fn canonical(value: Value) -> Value {
    let Value::Path(name) = &value else { return value };
    let short = name.strip_prefix("builtins.").or_else(|| name.strip_prefix("__builtins__."));
    match short {
        Some("__dict__") | None => {}
        Some(short) => return path(short.strip_prefix("__dict__.").unwrap_or(short)),
    }
    match name.as_ref() {
        "posix.system" => path("os.system"),
        "posix.fork" => path("os.fork"),
        "_socket.socket" => path("socket.socket"),
        _ => value,
    }
}

fn is_always_true(test: &Expr) -> bool {
    match test {
        Expr::BooleanLiteral(literal) => literal.value,
        Expr::NumberLiteral(number) => matches!(&number.value, Number::Int(int) if int.as_i64() != Some(0)),
        _ => false,
    }
}

/// What `from module import *` brings that matters.
const STARRED: [&str; 22] = [
    "os.system",
    "os.popen",
    "os.fork",
    "os.execv",
    "os.execve",
    "os.execvp",
    "os.spawnl",
    "os.spawnv",
    "os.setuid",
    "os.environ",
    "os.remove",
    "subprocess.run",
    "subprocess.Popen",
    "subprocess.call",
    "subprocess.check_output",
    "subprocess.getoutput",
    "socket.socket",
    "socket.create_connection",
    "ctypes.CDLL",
    "shutil.rmtree",
    "urllib.request.urlopen",
    "base64.b64decode",
];
