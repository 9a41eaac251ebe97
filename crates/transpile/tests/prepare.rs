//! Preparation as a caller sees it, worker included, and against hostile code. The result is run with Node where that
//! matters.

#![allow(clippy::expect_used, clippy::panic, reason = "a test with its own main is not seen as a test")]

use std::process::{Command, ExitCode, Output};
use std::time::{Duration, Instant};

use belljar_core::language::Preparation;
use belljar_core::limits::Bytes;
use belljar_core::outcome::{Outcome, TimeLimit, Usage};
use belljar_core::request::MAX_CODE;
use belljar_transpile::{Budget, Prepared, TranspileError, prepare};
use belljar_worker::run_as_worker;
use libtest_mimic::{Arguments, Failed, Trial};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn main() -> ExitCode {
    if let Some(code) = run_as_worker(&belljar_transpile::JOBS) {
        return code;
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        fn trials() -> Vec<Trial> {
            vec![$(Trial::test(stringify!($name), || -> Result<(), Failed> { $name(); Ok(()) })),*]
        }
    };
}

trials![
    a_javascript_module_is_named_as_one,
    a_javascript_script_keeps_its_name,
    javascript_that_does_not_parse_is_passed_on,
    types_are_taken_away,
    what_has_a_meaning_at_run_time_is_kept,
    imports_for_types_are_dropped_and_others_kept,
    typescript_modules_are_told_from_scripts,
    a_syntax_error_shows_its_place,
    errors_are_capped,
    text_that_is_not_utf8_is_an_error_with_its_place,
    run_time_errors_name_the_line_of_the_typescript,
    jsx_imports_nothing_by_itself,
    hostile_code_ends_no_process_but_its_worker,
    code_that_takes_for_ever_is_given_up,
    a_parser_has_the_limits_of_the_run,
    a_parser_has_no_rights_to_lose,
    what_a_parser_takes_is_told,
    long_code_is_prepared_all_the_same,
    no_text_makes_preparation_panic,
];

/// More than the parser's own limits.
const AMPLE: Budget =
    Budget { memory: Bytes::new(4 << 30), timeout: Duration::from_secs(60), cpu_time: None };

fn detect(name: &str, text: &str) -> String {
    let (prepared, _) = prepare(Preparation::DetectModule, name, text.as_bytes(), AMPLE);
    let prepared = prepared.expect("JavaScript is never an error");
    assert_eq!(prepared.text, text.as_bytes(), "the text stays as it is");
    prepared.name
}

fn strip(text: &str) -> Result<Prepared, TranspileError> {
    strip_within(text, AMPLE).0
}

fn strip_within(text: &str, budget: Budget) -> (Result<Prepared, TranspileError>, Usage) {
    prepare(Preparation::StripTypes, "main.ts", text.as_bytes(), budget)
}

/// The message for code that does not parse.
fn fault(text: &str) -> String {
    match strip(text) {
        Err(TranspileError::Syntax(message)) => message,
        other => panic!("no syntax error: {other:?}"),
    }
}

fn stripped(text: &str) -> (String, String) {
    let prepared = strip(text).expect("it parses");
    let code = String::from_utf8(prepared.text).expect("JavaScript is text");
    let (code, map) = code.rsplit_once("//# sourceMappingURL=").expect("it ends in a source map");
    assert!(map.starts_with("data:application/json;"));
    (prepared.name, code.to_owned())
}

fn run(prepared: &Prepared) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(&prepared.name), &prepared.text).expect("a file");
    let mut node = Command::new("node");
    node.arg("--enable-source-maps").arg(&prepared.name).current_dir(folder.path());
    node.output().expect("node is installed: these tests need it")
}

fn prints(text: &str) -> String {
    let output = run(&strip(text).expect("it parses"));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing on stderr");
    String::from_utf8(output.stdout).expect("text")
}

fn a_javascript_module_is_named_as_one() {
    for text in [
        "import fs from 'fs'",
        "import 'fs'",
        "export const a = 1",
        "export default 1",
        "console.log(import.meta.url)",
        "const x = await f()",
        "await (async () => { g() })()",
        "if (1) { await (f()) }",
        "for await (const a of b) {}",
    ] {
        assert_eq!(detect("main.js", text), "main.mjs", "{text}");
    }
}

fn a_javascript_script_keeps_its_name() {
    for text in [
        "console.log(1)",
        "const fs = require('fs') // import",
        "import('fs').then(fs => 1)",
        "async function f() { await g() }",
        "const f = async () => await g()",
        "console.log('export')",
        "module.exports = 1; // export",
        "var await = x => x; await (1)",
        "with (a) { b } // await",
        "return // await",
    ] {
        assert_eq!(detect("main.js", text), "main.js", "{text}");
    }
    assert_eq!(detect("main.cjs", "import 'fs'"), "main.cjs");
    assert_eq!(detect("main.mjs", "1 // import"), "main.mjs");
}

fn javascript_that_does_not_parse_is_passed_on() {
    assert_eq!(detect("main.js", "import {"), "main.js");
    assert_eq!(detect("main.js", &format!("{}// import", "(".repeat(1 << 20))), "main.js");
    let binary = b"import \xff";
    let (prepared, _) = prepare(Preparation::DetectModule, "main.js", binary, AMPLE);
    let prepared = prepared.expect("JavaScript is never an error");
    assert_eq!(prepared, Prepared { name: "main.js".to_owned(), text: binary.to_vec() });
}

fn types_are_taken_away() {
    let (name, code) =
        stripped("interface A { b: number }\ntype C = A | null;\nlet x: C = <C>y as C;\nf<A>(x!);");
    assert_eq!((name.as_str(), code.as_str()), ("main.js", "let x = y;\nf(x);\n"));
}

fn what_has_a_meaning_at_run_time_is_kept() {
    assert_eq!(prints("enum E { A, B = 'x', C = 1 << 3 }\nconsole.log(E.A, E[0], E.B, E.C)"), "0 A x 8\n");
    assert_eq!(prints("const enum E { A = 4 }\nconsole.log(E.A)"), "4\n");
    assert_eq!(
        prints(
            "namespace N { export const a = 1; export namespace M { export const b = a + 1 } }\nconsole.log(N.M.b)"
        ),
        "2\n"
    );
    assert_eq!(
        prints(
            "class P { constructor(private x: number, readonly y = 2) {} get() { return this.x + this.y } }\nconsole.log(new P(1).get())"
        ),
        "3\n"
    );
    let decorated = "\
        const seen: string[] = []
        function cls(name: string) { return (target: Function) => { seen.push(name + target.name) } }
        function twice(_t: object, _k: string, d: PropertyDescriptor) {
            const f = d.value; return { ...d, value(...a: unknown[]) { return f.apply(this, a) * 2 } }
        }
        function prop(_t: object, key: string) { seen.push(key) }
        function param(_t: object, key: string, index: number) { seen.push(key + index) }
        @cls('1') @cls('2') class A { @prop field = 5; @twice get(@param _n?: number): number { return this.field } }
        console.log(seen.join(), new A().get())";
    assert_eq!(prints(decorated), "field,get0,2A,1A 10\n");
    assert_eq!(prints(&format!("#!/usr/bin/env node\n'use strict'\n{decorated}")), "field,get0,2A,1A 10\n");
    let strict = "'use strict'; function d(c: Function) {}\n@d class A {}\nconsole.log((function (this: unknown) { return this })())";
    assert_eq!(prints(strict), "undefined\n");
}

fn imports_for_types_are_dropped_and_others_kept() {
    let (name, code) = stripped(
        "import { A, type B, c } from './a'\nimport type D from './d'\nimport './side'\nimport { E } from './e'\n\
         let x: A | B | D | E = c",
    );
    assert_eq!(name, "main.mjs");
    assert_eq!(code, "import { c } from \"./a\";\nimport \"./side\";\nlet x = c;\n");
}

fn typescript_modules_are_told_from_scripts() {
    for (text, expected) in [
        ("let x: number = 1", "main.js"),
        ("const fs = require('fs')", "main.js"),
        ("import fs = require('fs'); fs.statSync('/')", "main.js"),
        ("export const x: number = 1", "main.mjs"),
        ("import type { A } from './a'", "main.mjs"),
        ("const x: number = await f()", "main.mjs"),
        ("await (async (): Promise<void> => {})()", "main.mjs"),
        ("for await (const a of b as AsyncIterable<number>) {}", "main.mjs"),
    ] {
        assert_eq!(stripped(text).0, expected, "{text}");
    }
}

fn a_syntax_error_shows_its_place() {
    let message = fault("let a = 1\nif (a) {\n\tlet b: number = = 2\n}\n");
    assert_eq!(message, "main.ts:3:18: Unexpected token\n\tlet b: number = = 2\n\t                ^\n");
    let message = fault("let a = 1\nlet a = 2\n");
    assert!(message.starts_with("main.ts:1:5: "), "{message}");
}

fn errors_are_capped() {
    let text: String = (0..50).map(|_| "let a = 1;\n".to_owned()).collect();
    assert_eq!(fault(&text).matches("main.ts:").count(), 10);
}

fn text_that_is_not_utf8_is_an_error_with_its_place() {
    let (refused, _) = prepare(Preparation::StripTypes, "main.ts", b"let x = '\xff'", AMPLE);
    let message = "main.ts: the code is not UTF-8: byte 10 is wrong\n".to_owned();
    assert_eq!(refused, Err(TranspileError::Syntax(message)));
}

fn run_time_errors_name_the_line_of_the_typescript() {
    let text = "// comment\ninterface A {\n  b: number\n}\n\nfunction f(a: A | null) {\n  throw new Error('no ' + a)\n}\nf(null)\n";
    let output = run(&strip(text).expect("it parses"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("main.ts:7:") && stderr.contains("main.ts:9:"), "{stderr}");
}

fn jsx_imports_nothing_by_itself() {
    let text = "const React = { createElement: (...a: unknown[]) => a }; console.log(<a b='1'>{2}</a>)";
    let (prepared, _) = prepare(Preparation::StripTypes, "main.tsx", text.as_bytes(), AMPLE);
    let prepared = prepared.expect("it parses");
    assert_eq!(prepared.name, "main.js");
    assert_eq!(String::from_utf8_lossy(&run(&prepared).stdout), "[ 'a', { b: '1' }, 2 ]\n");
}

/// What is written before, in the middle and after, for each level.
const NESTS: &[(&str, &str, &str)] = &[
    ("(", "1", ")"),
    ("[", "1", "]"),
    ("{", "", "}"),
    ("({a:", "1", "})"),
    ("`${", "1", "}`"),
    ("!", "1", ""),
    ("-+", "1", ""),
    ("typeof ", "1", ""),
    ("new ", "a", ""),
    ("a?", "1", ":2"),
    ("a?1:", "2", ""),
    ("if(a);else ", ";", ""),
    ("if(a)", ";", ""),
    ("a:", ";", ""),
    ("a", "", ".b"),
    ("", "a", "()"),
    ("", "a", "[0]"),
    ("", "a", "!"),
    ("", "a", "`x`"),
    ("", "a", " as b"),
    ("", "a", "+a"),
    ("", "a", "&&a"),
    ("a**", "a", ""),
    ("a=", "1", ""),
    ("a=>", "1", ""),
    ("(a)=>", "1", ""),
    ("async(", "1", ")"),
    ("(a=", "1", ")"),
    ("x<", "y", ">"),
    ("<", "", ""),
    ("<a>", "b", ""),
    ("let x:", "a", ""),
    ("let x: A<", "a", ">"),
    ("type A=(a:", "b", ")=>c;"),
    ("a extends b?", "c", ":d"),
    ("keyof ", "a", ""),
    ("function f(){", "", "}"),
    ("class A{a=", "1", "}"),
    ("class A extends ", "B", "{}"),
    ("namespace A{", "", "}"),
    ("try{", "", "}finally{}"),
    ("for(;;)", ";", ""),
    ("do ", ";", "while(0)"),
    ("switch(a){case 1:", "", "}"),
    ("import(", "1", ")"),
    ("@a(", "1", ")class A{}"),
    ("a,", "b", ""),
    ("a\n", "", ""),
    ("'", "", ""),
    ("/*", "", "*/"),
    ("/[", "", "]/"),
    ("\\u{", "", "}"),
    ("[a=", "1", "]=b"),
    ("({a=", "1", "})=>2"),
];

fn hostile_code_ends_no_process_but_its_worker() {
    for &(before, middle, after) in NESTS {
        for levels in [30, 300_000] {
            let most = (4 << 20) / (before.len() + after.len());
            let levels = levels.min(most);
            let text = format!("{}{middle}{}// import", before.repeat(levels), after.repeat(levels));
            let began = Instant::now();
            // The promise is that it returns. Whether the code is refused is up to the parser, and to the time it gets: some
            // nests take twice as long with each level.
            let cpu_time = Some(Duration::from_millis(if levels == 30 { 200 } else { 500 }));
            let _ = strip_within(&text, Budget { cpu_time, ..AMPLE });
            assert!(began.elapsed() < Duration::from_secs(40), "{before} × {levels}");
        }
    }
}

fn code_that_takes_for_ever_is_given_up() {
    let text = format!("{}1{}", "x<(a=".repeat(40), ")=>void>y".repeat(40));
    assert_eq!(fault(&text), "main.ts: the code takes too long to parse\n");
    let text = format!("{}1{}", "(".repeat(1 << 20), ")".repeat(1 << 20));
    assert_eq!(fault(&text), "main.ts: the code is nested too deeply or too large\n");
}

/// Takes more and more memory, and twice as long with each level.
fn greedy(levels: usize) -> String {
    format!("{}1{}", "x<(a=".repeat(levels), ")>".repeat(levels))
}

fn a_parser_has_the_limits_of_the_run() {
    let small = Budget { memory: Bytes::new(64 << 20), ..AMPLE };
    assert!(strip_within("let x: number = 1", small).0.is_ok(), "the control");
    assert!(
        strip_within(&greedy(8), small).0 != Err(TranspileError::Limit(Outcome::OutOfMemory)),
        "the control"
    );
    let (refused, usage) = strip_within(&greedy(24), small);
    let ended = [TranspileError::Limit(Outcome::OutOfMemory), TranspileError::Syntax(TOO_LONG.to_owned())];
    // An unoptimised build may run out of CPU time before it has used that much memory.
    assert!(refused.as_ref().is_err_and(|refusal| ended.contains(refusal)), "{refused:?}");
    assert!(
        cfg!(debug_assertions) || refused == Err(TranspileError::Limit(Outcome::OutOfMemory)),
        "{usage:?}"
    );
    let large: String = "let a = 1;\n".repeat(100_000);
    let tiny = Budget { memory: Bytes::new(8 << 20), ..AMPLE };
    assert_eq!(strip_within(&large, tiny).0, Err(TranspileError::Limit(Outcome::OutOfMemory)));
    let limit = Duration::from_millis(50);
    let (refused, _) = strip_within(&greedy(40), Budget { cpu_time: Some(limit), ..AMPLE });
    assert_eq!(refused, Err(TranspileError::Limit(Outcome::TimedOut(TimeLimit::Cpu(limit)))));
    let (refused, _) = strip_within(&greedy(40), Budget { timeout: limit, ..AMPLE });
    assert_eq!(refused, Err(TranspileError::Limit(Outcome::TimedOut(TimeLimit::Wall(limit)))));
}

const TOO_LONG: &str = "main.ts: the code takes too long to parse\n";

/// While a worker is busy, its `/proc` entry shows what it is.
fn a_parser_has_no_rights_to_lose() {
    let busy = std::thread::spawn(|| drop(strip(&greedy(40))));
    let mut seen = None;
    while seen.is_none() && !busy.is_finished() {
        seen = worker_status().filter(|status| status.contains("Seccomp:\t2"));
    }
    busy.join().expect("it returns");
    let status = seen.expect("a worker was seen");
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim().to_owned();
    for capabilities in ["CapEff:", "CapPrm:", "CapInh:"] {
        assert_eq!(u64::from_str_radix(&field(capabilities), 16), Ok(0), "{status}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    if rustix::process::geteuid().is_root() {
        assert_eq!(field("Uid:"), "65534\t65534\t65534\t65534");
        assert_eq!(field("Groups:"), "");
    }
}

/// The status of a worker of this process.
fn worker_status() -> Option<String> {
    let own = format!("PPid:\t{}\n", std::process::id());
    let all = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    all.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok())
        .find(|status| status.contains(&own))
}

fn what_a_parser_takes_is_told() {
    let (_, little) = strip_within("let x: number = 1", AMPLE);
    assert!(
        little.cpu > Duration::ZERO && little.wall > Duration::ZERO && little.memory_peak > 0,
        "{little:?}"
    );
    let (_, more) = strip_within(&"{ let a: number = 1 }\n".repeat(20_000), AMPLE);
    assert!(more.memory_peak > little.memory_peak && more.cpu > little.cpu, "{little:?} {more:?}");
    assert_eq!(prepare(Preparation::DetectModule, "main.js", b"1", AMPLE).1, Usage::default());
}

/// The limit on CPU time is meant for a release build; an unoptimised one is much slower.
fn long_code_is_prepared_all_the_same() {
    let mut text = String::new();
    let most = if cfg!(debug_assertions) { MAX_CODE / 8 } else { MAX_CODE - 200 };
    while text.len() < most {
        let n = text.len();
        text += &format!(
            "export function f{n}(a: number, b: string): string {{ return `${{a}}` + b.repeat({n}) }}\n"
        );
    }
    let prepared = strip(&text).expect("ordinary code, only long");
    assert_eq!(prepared.name, "main.mjs");
}

fn no_text_makes_preparation_panic() {
    let words = prop::sample::select(
        "import export await async function class enum namespace type interface let const ( ) { } [ ] < > = => ? : ; , . ... \
         ` ${ ' \" / // /* */ + ++ - ! ~ @ # a b 1 0x 1n \\ \\u{61} as satisfies extends infer keyof new yield for of in if else \
         \n \u{2028} é \u{feff} <a> </a> declare abstract private static get set case switch"
            .split(' ')
            .collect::<Vec<_>>(),
    );
    let texts = prop::collection::vec(words, 0..40).prop_map(|words| words.join(" "));
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&texts, |text| {
        if let Err(TranspileError::Syntax(message)) = strip(&text) {
            // A panic inside of a worker would come out as this.
            prop_assert!(!message.contains("could not be run"), "{}", message);
        }
        detect("main.js", &text);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
