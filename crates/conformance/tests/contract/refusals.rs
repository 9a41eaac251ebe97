//! Bad input: one clear error with a hint and exit status 125, in words and as the error object.

use std::os::unix::fs::PermissionsExt;

use belljar_conformance::{Cell, Ran, Scratch, User, has_program, promise};

fn an_unknown_language_suggests_the_nearest(cell: &Cell) {
    let refusal = cell.language("").option("--language", "pyhton").refuse("print(1)");
    refusal.says("invalid_request", Some("language"), "pyhton", "python");
    cell.language("pyhton").refuse("print(1)").says("invalid_request", Some("language"), "pyhton", "python");
}

promise!(an_unknown_language_suggests_the_nearest; cold: "it is about the command line");

fn code_that_is_not_source_text_is_refused(cell: &Cell) {
    let scratch = Scratch::new();
    assert_eq!(cell.run("").ok(), "", "an empty program is a program");
    let nul = scratch.file("nul.sh", b"echo 1\0");
    cell.refuse_words(&[nul.to_str().unwrap()]).says("invalid_request", Some("code"), "NUL", "");
    let large = scratch.file("large.sh", vec![b'#'; 10_000_000]);
    cell.refuse_words(&[large.to_str().unwrap()]).says("too_large", Some("code"), "10000000", "--file");
}

promise!(code_that_is_not_source_text_is_refused; cold: "it is about the command line");

fn code_of_some_megabytes_runs(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("big.sh", format!("echo ran\n#{}\n", "x".repeat(4_000_000)));
    assert_eq!(cell.run_file(&file).ok(), "ran\n");
}

promise!(code_of_some_megabytes_runs; cold: "it is more than is written into a box from outside");

fn a_file_that_cannot_be_read_is_refused(cell: &Cell) {
    let scratch = Scratch::new();
    let missing = scratch.path().join("missing.py");
    let refusal = cell.language("").refuse_words(&[missing.to_str().unwrap()]);
    assert!(refusal.error.message.contains("missing.py"), "{refusal:?}");
    let refusal = cell.refuse_words(&[scratch.path().to_str().unwrap()]);
    assert!(refusal.error.message.contains("directory"), "{refusal:?}");
    if cell.user() == User::Nobody {
        let secret = scratch.file("secret.sh", "echo 1");
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o000)).unwrap();
        let refusal = cell.refuse_words(&[secret.to_str().unwrap()]);
        assert!(refusal.error.message.contains("secret.sh"), "{refusal:?}");
    }
}

promise!(a_file_that_cannot_be_read_is_refused; cold: "it is about the command line");

fn a_file_without_a_known_language_is_refused(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("data.unknown", "1 2 3");
    let refusal = cell.language("").refuse_words(&[file.to_str().unwrap()]);
    assert_eq!(refusal.error.field.as_deref(), Some("language"), "{refusal:?}");
}

promise!(a_file_without_a_known_language_is_refused; cold: "it is about the command line");

fn limits_out_of_range_are_refused(cell: &Cell) {
    let limits = [
        ("timeout", "limits.timeout_ms"),
        ("compile-timeout", "limits.compile_timeout_ms"),
        ("cpu-time", "limits.cpu_ms"),
        ("memory", "limits.memory_bytes"),
        ("compile-memory", "limits.compile_memory_bytes"),
        ("cpus", "limits.cpus"),
        ("pids", "limits.pids"),
        ("disk", "limits.disk_bytes"),
        ("output-limit", "limits.output_bytes"),
    ];
    for (name, field) in limits {
        for value in ["0", "100000000000000000000", "-1", "much", ""] {
            // `=` because a value may begin with a dash.
            let refusal = cell.flag(&format!("--{name}={value}")).refuse("true");
            assert_eq!(refusal.error.code, "invalid_request", "{name}={value}: {refusal:?}");
            assert_eq!(refusal.error.field.as_deref(), Some(field), "{name}={value}: {refusal:?}");
        }
    }
}

promise!(limits_out_of_range_are_refused; cold: "it is about the command line");

fn a_workspace_must_be_a_directory_and_not_the_machine(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("file", "");
    let missing = scratch.path().join("missing");
    let cases = [
        (missing.to_str().unwrap(), "missing"),
        (file.to_str().unwrap(), "directory"),
        ("/", "whole machine"),
        ("/../", "whole machine"),
    ];
    for (path, word) in cases {
        let refusal = cell.option("--workspace", path).refuse("true");
        assert_eq!(refusal.error.field.as_deref(), Some("workspace"), "{path}: {refusal:?}");
        assert!(refusal.error.message.contains(word), "{path}: {refusal:?}");
    }
}

promise!(a_workspace_must_be_a_directory_and_not_the_machine; cold: "it is about the command line");

/// F5
fn a_file_cannot_be_placed_outside_of_the_working_directory(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("file", "x");
    let long = "n".repeat(300);
    for to in ["../x", "a/../../x", "/etc/x", "..", "a/", &long] {
        let refusal = cell.option("--file", &format!("{}:{to}", file.display())).refuse("true");
        assert_eq!(refusal.error.field.as_deref(), Some("files"), "{to}: {refusal:?}");
        assert_eq!(refusal.error.code, "invalid_request", "{to}");
    }
    let refusal = cell.option("--file", scratch.path().join("missing").to_str().unwrap()).refuse("true");
    assert!(refusal.error.message.contains("missing"), "{refusal:?}");
}

promise!(a_file_cannot_be_placed_outside_of_the_working_directory; cold: "it is about the command line");

fn a_pattern_cannot_leave_the_working_directory(cell: &Cell) {
    for pattern in ["/etc/*", "../*", "a/../../b", "["] {
        let refusal = cell.option("--collect", pattern).refuse("true");
        assert_eq!(refusal.error.field.as_deref(), Some("collect"), "{pattern}: {refusal:?}");
    }
}

promise!(a_pattern_cannot_leave_the_working_directory; cold: "it is about the command line");

fn an_image_or_a_runtime_is_not_ignored(cell: &Cell) {
    if cell.has_an_image() {
        let refusal = cell.option("--image", "not a name").refuse("true");
        return refusal.says("backend_unavailable", None, "not a name", "--image");
    }
    assert_eq!(cell.run("echo ran").ok(), "ran\n", "the control");
    let refusal = cell.option("--image", "totally/bogus:9").refuse("echo ran");
    refusal.says("invalid_request", Some("image"), "totally/bogus:9", "docker");
    let refusal = cell.option("--runtime", "bogus").refuse("echo ran");
    refusal.says("invalid_request", Some("runtime"), "bogus", "--backend docker");
    let configured = cell.caller_env("BELLJAR_IMAGE", "totally/bogus:9").run("echo ran");
    assert_eq!(configured.ok(), "ran\n", "a default is for the backends that take one");
}

promise!(an_image_or_a_runtime_is_not_ignored; cold: "it is about the command line");

fn an_interpreter_that_is_not_installed_is_named_with_how_to_get_it(cell: &Cell) {
    if cell.has_an_image() {
        let refusal = cell.language("go").refuse("package main");
        return refusal.says("backend_unavailable", None, "go", "--image");
    }
    let scratch = Scratch::new();
    let empty = scratch.path().to_str().unwrap().to_owned();
    if !has_program(cell.user(), "lua") {
        return cell.skip("lua is not installed");
    }
    assert_eq!(cell.language("lua").run("print(1)").ok(), "1\n", "the control");
    let state = Scratch::new();
    let bare = cell
        .language("lua")
        .caller_env("PATH", &empty)
        .caller_env("BELLJAR_STATE_DIR", state.path().to_str().unwrap());
    let refusal = bare.refuse("print(1)");
    assert!(refusal.error.message.contains("lua") && refusal.error.hint.contains("lua5.4"), "{refusal:?}");
}

promise!(an_interpreter_that_is_not_installed_is_named_with_how_to_get_it; cold: "it is about the command line");

fn a_host_without_user_namespaces_is_told_so(cell: &Cell) {
    let (json, words) = (cell.without_user_namespaces(&["--json"]), cell.without_user_namespaces(&[]));
    let plan = cell.flag("--explain").plain("true");
    if !plan.stdout_text().starts_with("enter     user") && !plan.stdout_text().contains("\nenter     user") {
        return assert_eq!(words.code(), 0, "a request that waives them runs: {words:?}");
    }
    assert_eq!((json.code(), words.code()), (125, 125), "{words:?}");
    let told = words.stderr_text();
    assert!(told.starts_with("error: ") && told.contains("\nhint: ") && told.contains("namespace"), "{told}");
    let object: belljar_conformance::ErrorObject =
        serde_json::from_slice(&json.stdout).expect("an error object");
    assert!(["backend_unavailable", "guarantee_unmet"].contains(&object.error.code.as_str()), "{object:?}");
}

promise!(a_host_without_user_namespaces_is_told_so, nobody);

fn a_network_is_given_as_it_was_asked_for_or_refused(cell: &Cell) {
    for network in ["full", "allow:example.org:443"] {
        let asked = cell.option("--network", network);
        let told = asked.start_json("true").finish();
        if told.code() == 0 {
            let ran = Ran::read(told);
            assert_eq!(ran.network, network);
            if cell.backend() == "native" {
                let nothing = (Some(0), Some(0), Some(0));
                let denied = ran.network_denied.as_ref().map(Vec::len);
                assert_eq!((ran.usage.network_up_bytes, ran.usage.network_down_bytes, denied), nothing);
            }
            continue;
        }
        let refusal = asked.refuse("true");
        assert!(refusal.error.message.contains("network"), "{refusal:?}");
    }
    cell.option("--network", "lan").refuse("true").says("invalid_request", Some("network"), "lan", "none");
}

promise!(a_network_is_given_as_it_was_asked_for_or_refused; cold: "it is about the command line");

fn unknown_words_are_refused(cell: &Cell) {
    cell.option("--waive", "everything").refuse("true").says(
        "invalid_request",
        Some("waive"),
        "everything",
        "memory",
    );
    cell.with_backend_unsaid().option("--backend", "podman").refuse("true").says(
        "invalid_request",
        Some("backend"),
        "podman",
        "native",
    );
    cell.option("--env", "1A=b").refuse("true").says(
        "invalid_request",
        Some("env"),
        "1A",
        "a name has letters",
    );
    cell.option("--env", "NOVALUE").refuse("true").says("invalid_request", Some("env"), "NOVALUE", "");
}

promise!(unknown_words_are_refused; cold: "it is about the command line");

/// R25
fn arguments_that_the_kernel_would_not_take_are_refused(cell: &Cell) {
    let large = "x".repeat(100_000);
    let many: Vec<&str> = vec![&large; 12];
    cell.args(&many).refuse("true").says("too_large", Some("args"), "", "");
    assert_eq!(cell.args(&[&large]).run("echo ${#1}").ok(), "100000\n", "the control");
}

promise!(arguments_that_the_kernel_would_not_take_are_refused; cold: "it is about the command line");

fn an_unknown_option_is_an_error_of_belljars_own(cell: &Cell) {
    let told = cell.flag("--no-such-option").plain("true");
    assert_eq!(told.code(), 125, "{told:?}");
    assert!(told.stderr_text().starts_with("error: "), "{told:?}");
}

promise!(an_unknown_option_is_an_error_of_belljars_own; cold: "it is about the command line");
