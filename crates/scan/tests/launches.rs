//! What else a program runs, as far as its text names it: files of any name, and standard input.

#![allow(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

use belljar_core::finding::{Launch, Launched};
use belljar_core::language::Language;
use belljar_scan::{Request, Trees, examine};

fn launched(language: &str, code: &str) -> Vec<String> {
    let language = Language::by_name(language).unwrap();
    let request = Request { language, code: code.as_bytes(), allowed_imports: None, trees: Trees::Wanted };
    let words = |launch: &Launch| match &launch.what {
        Launched::File(words) => format!("{} {}", launch.language.name, words.join(" ")),
        Launched::Program(path) => format!("program {path}"),
        Launched::Stdin => format!("{} stdin", launch.language.name),
    };
    examine(&request).launches.iter().map(words).collect()
}

#[test]
fn files_that_a_shell_runs_are_named_whatever_they_are_called() {
    for (code, expected) in [
        (". ./data.txt", "bash ./data.txt"),
        ("source data.txt", "bash data.txt"),
        ("f=data.txt; bash $f", "bash data.txt"),
        ("sh -e data.txt x", "bash data.txt x"),
        ("env A=b python3 data.txt", "python data.txt"),
        ("node data.json", "javascript data.json"),
        ("perl notes", "perl notes"),
        ("bash < data.txt", "bash data.txt"),
        ("if true; then bash -s < data.txt; fi", "bash data.txt"),
        ("./run --all", "program ./run"),
        ("find . -exec bash data.txt ';'", "bash data.txt"),
        ("bash -c 'python3 data.txt'", "python data.txt"),
    ] {
        assert!(
            launched("bash", code).iter().any(|found| found == expected),
            "{code}: {:?}",
            launched("bash", code)
        );
    }
}

#[test]
fn standard_input_is_run_where_nothing_in_the_script_takes_its_place() {
    for code in ["bash -s", "python3 -", "sh", "bash -s | cat", "( bash )", "while true; do sh; done"] {
        let found = launched("bash", code);
        assert!(found.iter().any(|found| found.ends_with(" stdin")), "{code}: {found:?}");
    }
    for code in
        ["echo id | bash", "bash <<< id", "bash <<X\nid\nX\n", "bash < x", "bash -c id", "cat", "bash x.sh"]
    {
        let found = launched("bash", code);
        assert!(!found.iter().any(|found| found.ends_with(" stdin")), "the control: {code}: {found:?}");
    }
}

#[test]
fn files_that_other_languages_have_run_are_named() {
    for (language, code, expected) in [
        ("python", "import os\nos.system('. ./data.txt')", "bash ./data.txt"),
        ("python", "import subprocess as s\ns.run(['bash', 'data.txt'])", "bash data.txt"),
        ("python", "import subprocess\nsubprocess.run(['sh'])", "bash stdin"),
        ("python", "import runpy\nrunpy.run_path('data.txt')", "python data.txt"),
        ("javascript", "require('child_process').execSync('node data.json')", "javascript data.json"),
        ("javascript", "require('child_process').fork('data.txt')", "javascript data.txt"),
    ] {
        let found = launched(language, code);
        assert!(found.iter().any(|found| found == expected), "{code}: {found:?}");
    }
    assert_eq!(launched("python", "print(open('data.txt').read())"), Vec::<String>::new(), "the control");
}

#[test]
fn more_than_is_followed_is_a_finding() {
    let many: String = (0..1001).map(|number| format!("bash x{number}\n")).collect();
    let language = Language::by_name("bash").unwrap();
    let request = Request { language, code: many.as_bytes(), allowed_imports: None, trees: Trees::Wanted };
    let report = examine(&request);
    assert_eq!(report.launches.len(), 1000);
    assert!(report.findings.iter().any(|finding| finding.rule == "any.scan.incomplete"));
}
