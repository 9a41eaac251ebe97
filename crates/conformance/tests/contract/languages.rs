//! Section 2: languages. One program in each says what it was given and ends with 7.

use std::process::Command;

use belljar_conformance::{Cell, Scratch, Status, User, has_program, portable, promise};

struct Spoken {
    name: &'static str,
    program: &'static str,
    code: &'static str,
}

const SAID: &str = "hello\nargs a b ü\nstdin line\nenv hi\ncwd /sandbox\nfile data\n";

const INTERPRETED: &[Spoken] = &[
    Spoken {
        name: "python",
        program: "python3",
        code: r#"
import os, sys
print("hello")
print("args", *sys.argv[1:])
print("stdin", sys.stdin.readline().strip())
print("env", os.environ["GREETING"])
print("cwd", os.getcwd())
print("file", open("data.txt").read())
sys.exit(7)"#,
    },
    Spoken {
        name: "javascript",
        program: "node",
        code: r#"
const fs = require("fs");
console.log("hello");
console.log("args", ...process.argv.slice(2));
console.log("stdin", fs.readFileSync(0, "utf8").trim());
console.log("env", process.env.GREETING);
console.log("cwd", process.cwd());
console.log("file", fs.readFileSync("data.txt", "utf8"));
process.exit(7);"#,
    },
    Spoken {
        name: "typescript",
        program: "node",
        code: r#"
import { readFileSync } from "node:fs";
enum Ending { Good = 0, Told = 7 }
interface Said { topic: string; words: string[] }
const say = ({ topic, words }: Said): void => console.log([topic, ...words].join(" "));
say({ topic: "hello", words: [] });
say({ topic: "args", words: process.argv.slice(2) });
say({ topic: "stdin", words: [readFileSync(0, "utf8").trim() as string] });
say({ topic: "env", words: [process.env.GREETING!] });
say({ topic: "cwd", words: [process.cwd()] });
say({ topic: "file", words: [readFileSync("data.txt", "utf8")] });
process.exit(Ending.Told);"#,
    },
    Spoken { name: "bash", program: "bash", code: SHELL },
    Spoken { name: "sh", program: "sh", code: SHELL },
    Spoken { name: "zsh", program: "zsh", code: SHELL },
    Spoken {
        name: "ruby",
        program: "ruby",
        code: r#"
puts "hello"
puts "args #{ARGV.join(' ')}"
puts "stdin #{STDIN.gets.strip}"
puts "env #{ENV['GREETING']}"
puts "cwd #{Dir.pwd}"
puts "file #{File.read('data.txt')}"
exit 7"#,
    },
    Spoken {
        name: "php",
        program: "php",
        code: r#"<?php
echo "hello\n";
echo "args ", implode(" ", array_slice($argv, 1)), "\n";
echo "stdin ", trim(fgets(STDIN)), "\n";
echo "env ", getenv("GREETING"), "\n";
echo "cwd ", getcwd(), "\n";
echo "file ", file_get_contents("data.txt"), "\n";
exit(7);"#,
    },
    Spoken {
        name: "perl",
        program: "perl",
        code: r#"
use Cwd;
print "hello\n";
print "args @ARGV\n";
my $line = <STDIN>; chomp $line;
print "stdin $line\n";
print "env $ENV{GREETING}\n";
print "cwd ", getcwd(), "\n";
open my $file, "<", "data.txt" or die;
print "file ", <$file>, "\n";
exit 7;"#,
    },
    Spoken {
        name: "lua",
        program: "lua",
        code: r#"
print("hello")
print("args " .. table.concat(arg, " "))
print("stdin " .. io.read("l"))
print("env " .. os.getenv("GREETING"))
print("cwd " .. io.popen("pwd"):read("l"))
print("file " .. io.open("data.txt"):read("a"))
os.exit(7)"#,
    },
];

const SHELL: &str = r#"
echo hello
echo "args $*"
read line
echo "stdin $line"
echo "env $GREETING"
echo "cwd $(pwd)"
echo "file $(cat data.txt)"
exit 7"#;

const COMPILED: &[Spoken] = &[
    Spoken {
        name: "c",
        program: "gcc",
        code: r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char line[100] = "", dir[100], data[100] = "";
    printf("hello\nargs");
    for (int i = 1; i < argc; i++) printf(" %s", argv[i]);
    if (!fgets(line, sizeof line, stdin)) return 1;
    printf("\nstdin %senv %s\ncwd %s\n", line, getenv("GREETING"), getcwd(dir, sizeof dir));
    FILE *file = fopen("data.txt", "r");
    if (!fgets(data, sizeof data, file)) return 1;
    printf("file %s\n", data);
    return 7;
}"#,
    },
    Spoken {
        name: "cpp",
        program: "g++",
        code: r#"
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
int main(int argc, char **argv) {
    std::string line, data;
    std::cout << "hello\nargs";
    for (int i = 1; i < argc; i++) std::cout << " " << argv[i];
    std::getline(std::cin, line);
    std::getline(std::ifstream("data.txt"), data);
    std::cout << "\nstdin " << line << "\nenv " << std::getenv("GREETING") << "\ncwd "
              << std::filesystem::current_path().string() << "\nfile " << data << "\n";
    return 7;
}"#,
    },
    Spoken {
        name: "rust",
        program: "rustc",
        code: r#"
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    println!("hello\nargs {}\nstdin {}", args.join(" "), line.trim());
    println!("env {}", std::env::var("GREETING").unwrap());
    println!("cwd {}", std::env::current_dir().unwrap().display());
    println!("file {}", std::fs::read_to_string("data.txt").unwrap());
    std::process::exit(7);
}"#,
    },
];

/// Those that take hundreds of megabytes to install; they are tested in a phase of their own (`make test-languages`).
const LARGE: &[Spoken] = &[
    Spoken {
        name: "r",
        program: "Rscript",
        code: r#"
cat("hello\n")
cat("args", commandArgs(trailingOnly = TRUE)); cat("\n")
cat("stdin", readLines(file("stdin"), n = 1)); cat("\n")
cat("env", Sys.getenv("GREETING")); cat("\n")
cat("cwd", getwd()); cat("\n")
cat("file", readLines("data.txt", warn = FALSE)); cat("\n")
quit(status = 7)"#,
    },
    Spoken {
        name: "go",
        program: "go",
        code: r#"
package main
import ("bufio"; "fmt"; "os"; "strings")
func main() {
    line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
    dir, _ := os.Getwd()
    data, _ := os.ReadFile("data.txt")
    fmt.Println("hello")
    fmt.Println("args", strings.Join(os.Args[1:], " "))
    fmt.Println("stdin", strings.TrimSpace(line))
    fmt.Println("env", os.Getenv("GREETING"))
    fmt.Println("cwd", dir)
    fmt.Println("file", string(data))
    os.Exit(7)
}"#,
    },
    Spoken {
        name: "java",
        program: "java",
        code: r#"
import java.io.*;
import java.nio.file.*;
public class Main {
    public static void main(String[] args) throws Exception {
        String line = new BufferedReader(new InputStreamReader(System.in)).readLine();
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        out.print("hello\nargs " + String.join(" ", args) + "\nstdin " + line + "\nenv " + System.getenv("GREETING")
            + "\ncwd " + Path.of("").toAbsolutePath() + "\nfile " + Files.readString(Path.of("data.txt")) + "\n");
        System.exit(7);
    }
}"#,
    },
];

/// The same where the working directory is shown at its own place: without a box it lies somewhere else.
fn in_the_sandbox(said: &str) -> String {
    let shown = |line: &str| match line.strip_prefix("cwd /") {
        Some(dir) if dir.ends_with("/sandbox\n") => "cwd /sandbox\n".to_owned(),
        _ => line.to_owned(),
    };
    said.split_inclusive('\n').map(shown).collect()
}

/// Runs each language that this user has. One that the user has not must be refused with how to get it; one that
/// nobody has is a skip.
fn each_says_what_it_was_given(cell: &Cell, languages: &[Spoken]) {
    let scratch = Scratch::new();
    let data = scratch.file("data.txt", "data");
    for Spoken { name, program, code } in languages {
        let cell = cell
            .language(name)
            .option("--file", data.to_str().unwrap())
            .option("--env", "GREETING=hi")
            .option("--stdin", "-")
            .caller_stdin(b"line\n")
            .args(&["a b", "ü"]);
        let images = cell.has_an_image();
        if if images { cell.has_language(name) } else { has_program(cell.user(), program) } {
            let ran = cell.run(code);
            assert_eq!((in_the_sandbox(ran.exited(7)).as_str(), ran.stderr.as_str()), (SAID, ""), "{name}");
            assert_eq!(ran.language, *name);
            // dash and the shell of busybox cannot be asked for their version.
            let has_version = ran.runtime.contains(|c: char| c.is_ascii_digit());
            let has_none = ["dash", "busybox"].contains(&ran.runtime.as_str());
            assert!(has_version || has_none, "a version: {}", ran.runtime);
        } else if cell.user() == User::Root && !images {
            cell.skip(&format!("{program} is not installed"));
        } else {
            let refusal = cell.refuse(code);
            assert!(refusal.error.message.contains(name), "{refusal:?}");
        }
    }
}

fn interpreted_languages_get_args_stdin_env_directory_and_files_and_pass_their_status_on_within_the_defaults(
    cell: &Cell,
) {
    each_says_what_it_was_given(cell, INTERPRETED);
}

promise!(interpreted_languages_get_args_stdin_env_directory_and_files_and_pass_their_status_on_within_the_defaults; cold: "the environment is what the runtime was started with");

/// A backend that brings its own runtimes has them for some languages, whatever this host has.
fn every_language_of_the_backend_gets_what_it_was_given(cell: &Cell) {
    let scratch = Scratch::new();
    let data = scratch.file("data.txt", "data");
    let nothing = |name: &str| if name == "php" { "<?php" } else { "0" };
    let spoken: Vec<_> =
        INTERPRETED.iter().chain(LARGE).filter(|one| cell.speaks(one.name, nothing(one.name))).collect();
    assert!(spoken.iter().any(|one| one.name == "python"), "at least this one");
    for Spoken { name, code, .. } in spoken {
        let cell =
            cell.language(name).option("--file", data.to_str().unwrap()).option("--env", "GREETING=hi");
        let cell = cell.option("--stdin", "-").caller_stdin(b"line\n").args(&["a b", "ü"]);
        let ran = cell.run(code);
        assert_eq!((ran.exited(7), ran.stderr.as_str()), (SAID, ""), "{name}");
        assert_eq!(ran.language, *name);
    }
}

portable!(every_language_of_the_backend_gets_what_it_was_given; needs filesystem; cold: "the environment is what the runtime was started with");

/// Room for a compiler.
fn roomy(cell: &Cell) -> Cell {
    let cell = cell.limit("memory", "1G").limit("timeout", "60s").limit("pids", "200").limit("disk", "512M");
    cell.limit("cpus", "2").limit("compile-timeout", "120s")
}

fn compiled_languages_get_args_stdin_env_directory_and_files_and_pass_their_status_on(cell: &Cell) {
    each_says_what_it_was_given(&roomy(cell), COMPILED);
}

promise!(compiled_languages_get_args_stdin_env_directory_and_files_and_pass_their_status_on; cold: "its runtime cannot wait for code");

fn large_languages_get_args_stdin_env_directory_and_files_and_pass_their_status_on(cell: &Cell) {
    each_says_what_it_was_given(&roomy(cell), LARGE);
}

promise!(large_languages_get_args_stdin_env_directory_and_files_and_pass_their_status_on; cold: "a compiler cannot wait for code");

/// Modules of CPython's own tests that need what a small sandbox often lacks: terminals, names of services, processes that
/// are told apart, signals, shared memory.
const PYTHON_TESTS: &str = "test_pty test_openpty test_getpass test_mimetypes test_poll test_epoll test_fork1 test_wait4 \
    test_popen test_posixpath test_select";

fn large_languages_pass_tests_of_their_own(cell: &Cell) {
    // An image has the modules or not, as whoever made it decided.
    if cell.has_an_image() {
        return;
    }
    let code = format!(
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-m', 'test', *'{PYTHON_TESTS}'.split()])"
    );
    let outside = |code: &str| Command::new("python3").args(["-c", code]).output().expect("Python is there");
    if !outside("import test.test_pty").status.success() {
        return cell.skip("CPython's own tests are not installed (Debian: libpython3.11-testsuite)");
    }
    let bare = outside(&code);
    assert!(bare.status.success(), "the control: {}", String::from_utf8_lossy(&bare.stdout));
    let ran = roomy(cell).language("python").run(&code);
    assert!(ran.exit_code == 0 && ran.stdout.contains("Result: SUCCESS"), "{ran:?}");
}

promise!(large_languages_pass_tests_of_their_own, root; cold: "it needs more than the usual limits");

fn aliases_mean_their_language(cell: &Cell) {
    let pairs = [
        ("py", "python"),
        ("PYTHON", "python"),
        ("js", "javascript"),
        ("node", "javascript"),
        ("ts", "typescript"),
        ("rb", "ruby"),
        ("pl", "perl"),
    ];
    for (alias, name) in pairs {
        let code =
            if name == "perl" || name == "ruby" || name == "python" { "print(1)" } else { "console.log(1)" };
        assert_eq!(cell.language(alias).run(code).language, name, "{alias}");
    }
}

promise!(aliases_mean_their_language; cold: "it is about the command line");

fn a_typescript_syntax_error_is_an_ordinary_failed_run_with_its_position(cell: &Cell) {
    let ran = cell.language("typescript").run("console.log('never')\nconst x: number = ;\n");
    assert_eq!(ran.status, Status::Exited);
    assert_ne!(ran.exit_code, 0);
    assert!(ran.stderr.contains(":2:19"), "line 2, column 19: {}", ran.stderr);
    assert_eq!(ran.stdout, "");
    assert_eq!(ran.language, "typescript");
}

portable!(a_typescript_syntax_error_is_an_ordinary_failed_run_with_its_position; cold: "what does not compile does not reach the runtime");

fn typescript_is_not_type_checked(cell: &Cell) {
    let ran = cell.language("typescript").run("const x: number = 'text' as any as string; console.log(x)");
    assert_eq!(ran.ok(), "text\n");
}

portable!(typescript_is_not_type_checked; no zygote: "its runtime has no zygote");

fn python_has_the_codecs_of_its_library(cell: &Cell) {
    let code = r"
import codecs, encodings, sys
print(sys.stdout.encoding, 'é'.encode(), 'é'.encode('latin-1'), b'\xe9'.decode('cp1252') == 'é')
print(encodings.normalize_encoding('Latin 1'), encodings.aliases.aliases['l1'])
import encodings.idna
print(codecs.lookup('idna').name, codecs.lookup('utf8').name)
pieces = codecs.getincrementaldecoder('utf-8')()
print(pieces.decode(b'\xc3') + pieces.decode(b'\xa9') == 'é')
try:
    'x'.encode('nonsense')
except LookupError as error:
    print(error)
";
    let told =
        "utf-8 b'\\xc3\\xa9' b'\\xe9' True\nLatin_1 latin_1\nidna utf-8\nTrue\nunknown encoding: nonsense\n";
    assert_eq!(cell.language("python").run(code).ok(), told);
}

portable!(python_has_the_codecs_of_its_library);

fn both_kinds_of_javascript_module_run(cell: &Cell) {
    let node = cell.language("javascript");
    let module =
        "import { EOL } from 'node:os';\nawait null;\nconsole.log(typeof import.meta.url, EOL === '\\n');";
    assert_eq!(node.run(module).ok(), "string true\n");
    assert_eq!(node.run("console.log(typeof require, typeof module)").ok(), "function object\n");
    let typed = r"
import type { X } from './nowhere';
export const one: number = await Promise.resolve(1);
console.log(one);";
    assert_eq!(cell.language("typescript").run(typed).ok(), "1\n");
}

portable!(both_kinds_of_javascript_module_run; no zygote: "its runtime has no zygote");

fn the_list_of_languages_names_every_one_with_its_runtime(cell: &Cell) {
    let told = cell.belljar(&["languages"]).stdout_text();
    let contract = "python javascript typescript bash sh zsh ruby php perl lua r c cpp go rust java";
    for name in contract.split(' ') {
        assert!(told.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}: {told}");
    }
    let json = cell.belljar(&["languages", "--json"]).stdout_text();
    let listed: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    let listed = listed.to_string();
    for name in contract.split(' ') {
        assert!(listed.contains(&format!("\"{name}\"")), "{name}: {listed}");
    }
}

promise!(the_list_of_languages_names_every_one_with_its_runtime; cold: "it is about the command line");
