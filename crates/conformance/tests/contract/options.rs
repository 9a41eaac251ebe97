//! Every option of `belljar run`, on every backend: it has an effect, or the run is refused, or the result lists that it was
//! not kept. None is ignored in silence.

use belljar_conformance::{Cell, Scratch, Status, promise, secret};

/// What shows that an option was honoured or refused.
type Check = fn(&Cell);

/// `None`: it is about how Belljar itself talks, not about the run, and other tests cover it.
const OPTIONS: &[(&str, Option<Check>)] = &[
    ("--help", None),
    ("--color", None),
    ("--verbose", None),
    ("--quiet", None),
    ("--base64", None),
    ("--json", None),
    ("--config", Some(a_configuration_counts)),
    ("--code", Some(|cell| assert_eq!(cell.run("echo ran").ok(), "ran\n"))),
    ("--language", Some(|cell| assert_eq!(cell.language("sh").run("echo $0").ok().lines().count(), 1))),
    ("--stdin", Some(stdin_arrives)),
    ("--env", Some(|cell| assert_eq!(cell.option("--env", "A=b c").run("echo \"$A\"").ok(), "b c\n"))),
    ("--workspace", Some(a_workspace_is_there)),
    ("--writable", Some(writes_to_a_workspace_are_lost)),
    ("--changes", Some(changes_need_a_layer_to_be_in)),
    // It needs matplotlib; the tests of the languages cover it.
    ("--plots", None),
    ("--file", Some(a_file_is_there)),
    ("--collect", Some(a_file_comes_back)),
    ("--collect-to", Some(a_file_is_written)),
    ("--overwrite", Some(a_file_is_replaced)),
    ("--timeout", Some(a_timeout_ends_it)),
    // `compiling.rs` has what they do to a compiler.
    ("--compile-timeout", Some(|cell| out_of_range(cell, "compile-timeout", "0s"))),
    ("--compile-memory", Some(|cell| out_of_range(cell, "compile-memory", "1K"))),
    ("--cpu-time", Some(cpu_time_ends_it)),
    ("--memory", Some(memory_is_limited)),
    ("--cpus", Some(|cell| is_kept_or_listed(&cell.limit("cpus", "0.5"), "cpu"))),
    ("--pids", Some(processes_are_limited)),
    ("--disk", Some(the_disk_is_limited)),
    ("--output-limit", Some(output_is_cut)),
    ("--network", Some(a_network_is_named_in_the_result)),
    // The tests of networks have what it does.
    ("--secret", Some(a_secret_needs_a_network)),
    ("--backend", Some(|cell| assert_eq!(cell.run("true").backend, cell.backend()))),
    ("--image", Some(an_image_is_used_or_refused)),
    ("--runtime", Some(a_runtime_is_used_or_refused)),
    ("--waive", Some(a_waiver_is_listed)),
    // The tests of the server have the runs of a server that is there.
    ("--url", Some(a_server_that_is_not_there_is_named)),
    ("--allowed-imports", Some(another_import_is_denied)),
    ("--yes", Some(what_needs_an_approval_is_approved)),
    ("--explain", Some(an_explanation_runs_nothing)),
];

fn every_option_is_honoured_refused_or_listed(cell: &Cell) {
    let help = cell.belljar(&["run", "--help"]).stdout_text();
    let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let named: Vec<_> = words.filter(|word| word.starts_with("--") && word.len() > 2).collect();
    assert!(named.contains(&"--memory"), "the control: {help}");
    for name in &named {
        assert!(OPTIONS.iter().any(|(known, _)| known == name), "{name} has no check: add one to OPTIONS");
    }
    for (name, check) in OPTIONS {
        if let Some(check) = check.filter(|_| named.contains(name)) {
            check(cell);
        }
    }
}

promise!(every_option_is_honoured_refused_or_listed; cold: "it is about the command line");

/// What a backend does not keep, a result says.
fn is_kept_or_listed(cell: &Cell, guarantee: &str) {
    let ran = cell.run("true");
    let isolation = &ran.isolation;
    let kept = isolation.kept.iter().any(|name| name == guarantee);
    let waived = isolation.waived.iter().any(|name| name == guarantee);
    assert!(kept != waived, "{guarantee}: {isolation:?}");
    assert_eq!(kept, cell.keeps(guarantee), "{guarantee}: {isolation:?}");
}

fn out_of_range(cell: &Cell, limit: &str, value: &str) {
    let refusal = cell.limit(limit, value).refuse("true");
    assert!(refusal.error.message.contains(limit), "{refusal:?}");
}

fn a_configuration_counts(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("belljar.toml", "env = 1\n");
    let refusal = cell.option("--config", file.to_str().unwrap()).refuse("true");
    assert!(refusal.error.message.contains("belljar.toml"), "{refusal:?}");
}

fn a_server_that_is_not_there_is_named(cell: &Cell) {
    // Port 1 is nobody's.
    let refusal = cell.option("--url", "http://127.0.0.1:1").refuse("true");
    assert!(refusal.error.message.contains("http://127.0.0.1:1"), "{refusal:?}");
}

fn a_secret_needs_a_network(cell: &Cell) {
    let refusal = cell.option("--secret", "api.example.com").refuse("true");
    assert!(refusal.error.message.contains("secret"), "{refusal:?}");
}

fn another_import_is_denied(cell: &Cell) {
    let python = cell.language("python").option("--allowed-imports", "json");
    let denied = python.run("import socket");
    assert_eq!((denied.status, denied.exit_code), (Status::Denied, 126), "{denied:?}");
    assert_eq!(denied.decision.as_ref().map(|decision| decision.action.as_str()), Some("deny"));
}

fn what_needs_an_approval_is_approved(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("belljar.toml", "[policy]\ndefault = \"approve\"\n");
    let asked = cell.option("--config", file.to_str().unwrap());
    assert_eq!(asked.run("echo ran").status, Status::Denied, "the control: nobody can be asked");
    assert_eq!(asked.flag("--yes").run("echo ran").ok(), "ran\n");
}

fn stdin_arrives(cell: &Cell) {
    let word = secret();
    let ran = cell.option("--stdin", "-").caller_stdin(word.as_bytes()).run("cat");
    assert_eq!(ran.ok(), word);
}

fn a_workspace_is_there(cell: &Cell) {
    let scratch = Scratch::new();
    let _here = scratch.file("here.txt", "there\n");
    let ran = cell.option("--workspace", scratch.path().to_str().unwrap()).run("cat here.txt");
    assert_eq!(ran.ok(), "there\n");
}

fn writes_to_a_workspace_are_lost(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("here.txt", "before\n");
    let at = cell.option("--workspace", scratch.path().to_str().unwrap());
    let plain = at.flag("--writable").start_json("echo after > here.txt; cat here.txt").finish();
    // A backend that cannot do it refuses.
    assert!(plain.code() == 0 || plain.code() == 125, "{}", plain.stderr_text());
    assert_eq!(std::fs::read_to_string(file).unwrap(), "before\n");
}

/// `workspace.rs` has what they tell.
fn changes_need_a_layer_to_be_in(cell: &Cell) {
    let refusal = cell.flag("--changes").refuse("true");
    assert_eq!(refusal.error.code, "invalid_request", "{refusal:?}");
}

fn a_file_is_there(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("given", "content\n");
    let ran = cell.option("--file", &format!("{}:taken/by.txt", file.display())).run("cat taken/by.txt");
    assert_eq!(ran.ok(), "content\n");
}

fn a_file_comes_back(cell: &Cell) {
    let ran = cell.option("--collect", "*.txt").run("echo one > one.txt; echo two > two.log");
    let names: Vec<_> = ran.files.iter().flatten().map(|file| file.path.as_str()).collect();
    assert_eq!(names, ["one.txt"]);
}

fn a_file_is_written(cell: &Cell) {
    let scratch = Scratch::new();
    let to = scratch.path().to_str().unwrap();
    let cell = cell.option("--collect", "one.txt").option("--collect-to", to);
    assert_eq!(cell.plain("echo one > one.txt").code(), 0);
    assert_eq!(std::fs::read_to_string(scratch.path().join("one.txt")).unwrap(), "one\n");
}

fn a_file_is_replaced(cell: &Cell) {
    let scratch = Scratch::new();
    let kept = scratch.file("one.txt", "before\n");
    let to = scratch.path().to_str().unwrap();
    let cell = cell.option("--collect", "one.txt").option("--collect-to", to);
    assert_eq!(cell.plain("echo after > one.txt").code(), 125);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "before\n", "the control");
    assert_eq!(cell.flag("--overwrite").plain("echo after > one.txt").code(), 0);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "after\n");
}

fn a_timeout_ends_it(cell: &Cell) {
    assert_eq!(cell.limit("timeout", "500ms").run("sleep 1000").status, Status::TimedOut);
}

fn cpu_time_ends_it(cell: &Cell) {
    let cell = cell.limit("cpu-time", "300ms");
    is_kept_or_listed(&cell, "cpu");
    if cell.keeps("cpu") {
        assert_eq!(cell.limit("timeout", "60s").run("while :; do :; done").status, Status::TimedOut);
    }
}

fn memory_is_limited(cell: &Cell) {
    let cell = cell.limit("memory", "32M");
    is_kept_or_listed(&cell, "memory");
    if cell.keeps("memory") {
        let hungry = "a=0123456789abcdef; while :; do a=$a$a; done";
        assert!(cell.limit("timeout", "60s").run(hungry).oom_killed);
    }
}

fn processes_are_limited(cell: &Cell) {
    let cell = cell.limit("pids", "20");
    is_kept_or_listed(&cell, "pids");
    if cell.keeps("pids") {
        let many = "i=0; while [ $i -lt 100 ]; do sleep 5 & i=$((i+1)); done; echo all";
        assert!(!cell.run(many).stdout.contains("all"));
    }
}

fn the_disk_is_limited(cell: &Cell) {
    let cell = cell.limit("disk", "1M");
    is_kept_or_listed(&cell, "disk");
    if cell.keeps("disk") {
        assert_ne!(cell.run("head -c 2000000 /dev/zero > big").exit_code, 0);
    }
}

fn output_is_cut(cell: &Cell) {
    let ran = cell.limit("output-limit", "1K").run("head -c 100000 /dev/zero | tr '\\0' x");
    assert!(ran.stdout_truncated && ran.stdout.len() < 2000, "{}", ran.stdout.len());
}

fn a_network_is_named_in_the_result(cell: &Cell) {
    let ran = cell.option("--network", "none").run("true");
    let kept = ran.isolation.kept.iter().any(|name| name == "network");
    assert_eq!((ran.network.as_str(), kept), ("none", cell.keeps("network")), "{ran:?}");
}

fn an_image_is_used_or_refused(cell: &Cell) {
    let refusal = cell.option("--image", "not a name").refuse("true");
    assert!(refusal.error.message.contains("not a name"), "{refusal:?}");
}

fn a_runtime_is_used_or_refused(cell: &Cell) {
    let refusal = cell.option("--runtime", "bogus").refuse("true");
    assert!(refusal.error.message.contains("bogus"), "{refusal:?}");
}

fn a_waiver_is_listed(cell: &Cell) {
    let ran = cell.option("--waive", "disk").run("true");
    let isolation = &ran.isolation;
    let named = |names: &[String]| names.iter().any(|name| name == "disk");
    assert!(named(&isolation.kept) || named(&isolation.waived), "{isolation:?}");
}

fn an_explanation_runs_nothing(cell: &Cell) {
    let word = secret();
    let plain = cell.flag("--explain").plain(&format!("echo {word} | rev"));
    let reversed: String = word.chars().rev().collect();
    assert!(!plain.stdout_text().contains(&reversed), "{}", plain.stdout_text());
}
