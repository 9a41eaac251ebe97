//! Sections 1, 3 and 4: compiling has a box, limits and a result of its own, so a judge can tell a program that does not
//! compile from one that fails, and what a program uses is its own.

use belljar_conformance::{Cell, Ran, Scratch, Stage, Status, User, has_program, promise};

/// Time enough for a compiler on a busy host, whatever the program may have.
fn patient(cell: &Cell) -> Cell {
    cell.limit("compile-timeout", "300s")
}

/// A compiled language, its compiler, a small program that ends with 1, and one that does not compile.
type Judged = (&'static str, &'static str, &'static str, &'static str);

const COMPILED: &[Judged] = &[
    ("c", "gcc", "int main(){return 1;}", "int main(){return x;}"),
    ("cpp", "g++", "int main(){return 1;}", "int main(){return x;}"),
    ("rust", "rustc", "fn main(){std::process::exit(1)}", "fn main(){std::process::exit(x)}"),
];

/// The phase `languages` installs these.
const LARGE: &[Judged] = &[
    (
        "go",
        "go",
        "package main\nimport \"os\"\nfunc main(){os.Exit(1)}",
        "package main\nimport \"os\"\nfunc main(){os.Exit(x)}",
    ),
    (
        "java",
        "java",
        "public class Main{public static void main(String[] a){System.exit(1);}}",
        "public class Main{public static void main(String[] a){System.exit(x);}}",
    ),
];

fn is_here(cell: &Cell, language: &str, program: &str) -> bool {
    let here =
        if cell.has_an_image() { cell.has_language(language) } else { has_program(cell.user(), program) };
    // A compiler in root's home directory is nobody's.
    if !here && cell.user() == User::Root && !cell.has_an_image() {
        cell.skip(&format!("{program} is not installed"));
    } else if !here {
        let refusal = cell.language(language).refuse("1");
        assert!(refusal.error.message.contains(language), "{refusal:?}");
    }
    here
}

fn assert_compiled(ran: &Ran, language: &str) {
    let compiler = ran.compile.as_ref().unwrap_or_else(|| panic!("{language} is compiled: {ran:?}"));
    assert_eq!((compiler.exit_code, compiler.timed_out, compiler.cached), (0, false, false), "{language}");
    assert!(compiler.usage.wall_ms > 0.0, "{language}: {compiler:?}");
    assert_eq!(ran.stage, Stage::Run, "{language}");
}

fn code_that_does_not_compile_is_told_from_a_program_that_fails(cell: &Cell) {
    each_is_told_from_a_program_that_fails(cell, COMPILED);
}

promise!(code_that_does_not_compile_is_told_from_a_program_that_fails; cold: "a compiler cannot wait for code");

fn code_of_large_languages_that_does_not_compile_is_told_from_a_program_that_fails(cell: &Cell) {
    each_is_told_from_a_program_that_fails(cell, LARGE);
}

promise!(code_of_large_languages_that_does_not_compile_is_told_from_a_program_that_fails; cold: "a compiler cannot wait for code");

fn each_is_told_from_a_program_that_fails(cell: &Cell, judged: &[Judged]) {
    for (language, program, fails, wrong) in judged {
        if !is_here(cell, language, program) {
            continue;
        }
        let cell = patient(cell).language(language).limit("timeout", "60s");
        let ran = cell.run(fails);
        assert_eq!((ran.status, ran.exit_code), (Status::Exited, 1), "{language}: {ran:?}");
        assert_compiled(&ran, language);
        let ran = cell.run(wrong);
        let compiler = ran.compile.clone().expect("it was compiled");
        assert_eq!((ran.status, ran.stage), (Status::Exited, Stage::Compile), "{language}: {ran:?}");
        assert!(ran.exit_code != 0 && ran.exit_code == compiler.exit_code, "{language}: {ran:?}");
        assert!(ran.stderr.contains('x') && !ran.stderr.is_empty(), "{language}: {}", ran.stderr);
        assert_eq!((&ran.stdout, &ran.stderr), (&compiler.stdout, &compiler.stderr), "{language}");
        assert!(
            ran.usage.memory_peak_bytes == 0 && compiler.usage.memory_peak_bytes > 0,
            "{language}: {ran:?}"
        );
    }
}

fn what_is_interpreted_has_no_compiler(cell: &Cell) {
    let ran = cell.run("echo hi; exit 3");
    assert_eq!((ran.exited(3), ran.stage), ("hi\n", Stage::Run));
    assert!(ran.compile.is_none(), "{ran:?}");
}

promise!(what_is_interpreted_has_no_compiler);

/// The headers alone take a compiler tens of megabytes and half a second.
const TRIVIAL: &str = "#include <iostream>\n#include <regex>\nint main(){std::cout << 42 << std::endl;}";

fn what_a_program_uses_is_its_own(cell: &Cell) {
    if !is_here(cell, "cpp", "g++") {
        return;
    }
    let ran = patient(cell).language("cpp").limit("timeout", "60s").run(TRIVIAL);
    assert_eq!(ran.ok(), "42\n");
    assert_compiled(&ran, "cpp");
    let compiler = ran.compile.clone().expect("it was compiled");
    assert!(ran.usage.cpu_ms * 4.0 < compiler.usage.cpu_ms, "{ran:?}");
    assert!(ran.usage.memory_peak_bytes * 2 < compiler.usage.memory_peak_bytes, "{ran:?}");
}

promise!(what_a_program_uses_is_its_own; needs memory, cpu; cold: "a compiler cannot wait for code");

/// Less memory, processes and CPU time than any compiler needs, and not more output than the program writes.
fn a_compiler_takes_nothing_of_what_the_program_may_have(cell: &Cell) {
    if !is_here(cell, "cpp", "g++") {
        return;
    }
    let tight = patient(cell).language("cpp").limit("memory", "16M").limit("pids", "3");
    let tight = tight.limit("timeout", "60s").limit("cpu-time", "200ms").limit("output-limit", "3");
    let code = format!("#warning a message that is longer than three bytes\n{TRIVIAL}");
    let ran = tight.run(&code);
    assert_eq!((ran.ok(), ran.stdout_truncated, ran.stderr.as_str()), ("42\n", false, ""), "{ran:?}");
    assert_compiled(&ran, "cpp");
}

promise!(a_compiler_takes_nothing_of_what_the_program_may_have; cold: "a compiler cannot wait for code");

fn a_compiler_that_takes_too_long_is_a_timeout_of_compiling(cell: &Cell) {
    if !is_here(cell, "cpp", "g++") {
        return;
    }
    // No compiler reads these headers in so little time.
    let ran = cell.language("cpp").limit("compile-timeout", "5ms").limit("timeout", "60s").run(TRIVIAL);
    assert_eq!((ran.status, ran.exit_code, ran.stage), (Status::TimedOut, 124, Stage::Compile), "{ran:?}");
    assert!(ran.timed_out && ran.stderr.contains("Execution timed out"), "{ran:?}");
    assert!(ran.compile.clone().is_some_and(|compiler| compiler.timed_out && compiler.exit_code == 124));
}

promise!(a_compiler_that_takes_too_long_is_a_timeout_of_compiling; cold: "a compiler cannot wait for code");

fn a_compilers_memory_is_limited_apart_from_the_programs(cell: &Cell) {
    if !is_here(cell, "cpp", "g++") {
        return;
    }
    let cell = patient(cell).language("cpp").limit("timeout", "60s").limit("memory", "1G");
    let ran = cell.limit("compile-memory", "8M").run(TRIVIAL);
    assert_eq!((ran.status, ran.exit_code, ran.stage), (Status::OutOfMemory, 137, Stage::Compile), "{ran:?}");
    assert!(ran.stderr.contains("Memory limit exceeded while compiling (8M)"), "{ran:?}");
}

promise!(a_compilers_memory_is_limited_apart_from_the_programs; needs memory; cold: "a compiler cannot wait for code");

/// The compiler sees what the program sees: the workspace, and the run's own files over it.
fn code_in_a_workspace_is_compiled_with_its_neighbours(cell: &Cell) {
    if !is_here(cell, "c", "gcc") {
        return;
    }
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let _header = scratch.file("src/answer.h", "#define ANSWER \"of the workspace\"\n");
    let code = "#include <stdio.h>\n#include \"answer.h\"\nint main(){puts(ANSWER);}\n";
    let main = scratch.file("src/main.c", code);
    let patched = elsewhere.file("answer.h", "#define ANSWER \"of the run\"\n");
    let cell = patient(cell).language("c").limit("timeout", "60s");
    let cell = cell.option("--workspace", scratch.path().to_str().unwrap());
    assert_eq!(cell.run_file(&main).ok(), "of the workspace\n");
    let over = cell.option("--file", &format!("{}:src/answer.h", patched.display()));
    assert_eq!(over.run_file(&main).ok(), "of the run\n");
}

promise!(code_in_a_workspace_is_compiled_with_its_neighbours; cold: "a workspace is mounted while the box is made");

/// The command line shows what a compiler writes on stderr, and nothing of it on stdout.
fn a_compilers_messages_are_shown_on_stderr(cell: &Cell) {
    if !is_here(cell, "c", "gcc") {
        return;
    }
    let cell = patient(cell).language("c").limit("timeout", "60s");
    let plain = cell.plain("int main(){return x;}");
    assert_ne!(plain.code(), 0);
    assert!(plain.stderr_text().contains("main.c:1"), "{}", plain.stderr_text());
    assert_eq!(plain.stdout_text(), "");
    let warned = cell.plain("#include <stdio.h>\n#warning odd\nint main(){puts(\"hi\");return 0;}");
    assert_eq!((warned.code(), warned.stdout_text().as_str()), (0, "hi\n"));
    assert!(warned.stderr_text().contains("odd"), "{}", warned.stderr_text());
}

promise!(a_compilers_messages_are_shown_on_stderr; cold: "it is about the command line");

const HEAP: &str = "import java.util.*;
class Filler { static int main; }
public class Solution {
    public static void main(String[] args) {
        if (args.length > 0) System.exit(3);
        List<byte[]> all = new ArrayList<>();
        try { while (true) all.add(new byte[1 << 20]); } catch (RuntimeException never) {}
    }
}";

/// Java has a heap of limited size, so the kernel does not see that the memory is exhausted.
fn a_full_heap_of_large_languages_is_out_of_memory(cell: &Cell) {
    if !is_here(cell, "java", "java") {
        return;
    }
    let java = patient(cell).language("java").limit("timeout", "120s");
    let ran = java.run(HEAP);
    assert_eq!((ran.status, ran.exit_code, ran.oom_killed), (Status::OutOfMemory, 137, true), "{ran:?}");
    assert!(ran.stderr.contains("Memory limit exceeded (256M)"), "{ran:?}");
    assert_eq!(ran.stage, Stage::Run);
    let own = java.args(&["x"]).run(HEAP);
    assert_eq!((own.status, own.exit_code), (Status::Exited, 3), "the program's own status: {own:?}");
}

promise!(a_full_heap_of_large_languages_is_out_of_memory; needs memory; cold: "a compiler cannot wait for code");
