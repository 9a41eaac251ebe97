//! The caller's side: where code comes from, which setting wins, what `--explain` and `doctor` say.

use belljar_conformance::{Cell, Scratch, promise};

fn code_comes_from_a_file_by_its_ending_or_its_first_line(cell: &Cell) {
    let scratch = Scratch::new();
    let unsaid = cell.language("");
    let by_ending = scratch.file("hello.py", "import sys; print('py', sys.argv[0].split('/')[-1])");
    assert_eq!(unsaid.run_file(&by_ending).ok(), "py hello.py\n");
    let by_line = scratch.file("script", "#!/usr/bin/env bash\necho bash ${BASH_VERSION:+yes}\n");
    assert_eq!(unsaid.run_file(&by_line).ok(), "bash yes\n");
    let told = cell.language("sh").run_file(&scratch.file("unknown.ending", "echo told"));
    assert_eq!(told.ok(), "told\n");
    let option = unsaid.option("--language", "sh").run_file(&scratch.file("unknown.too", "echo option"));
    assert_eq!(option.ok(), "option\n");
}

promise!(code_comes_from_a_file_by_its_ending_or_its_first_line; cold: "it is about the command line");

fn code_comes_from_standard_input(cell: &Cell) {
    let fed = cell.caller_stdin(b"echo fed; cat");
    assert_eq!(fed.run_from_stdin(&["-"]).ok(), "fed\n");
    assert_eq!(fed.run_from_stdin(&[]).ok(), "fed\n", "with neither FILE nor -c");
}

promise!(code_comes_from_standard_input; cold: "it is about the command line");

fn standard_input_is_empty_a_file_or_the_callers(cell: &Cell) {
    let scratch = Scratch::new();
    let input = scratch.file("input", b"\x00\xffbinary");
    let count = "wc -c | tr -d ' '";
    assert_eq!(cell.caller_stdin(b"not for you").run(count).ok(), "0\n");
    assert_eq!(cell.option("--stdin", input.to_str().unwrap()).run(count).ok(), "8\n");
    assert_eq!(cell.option("--stdin", "-").caller_stdin(&[b'x'; 300_000]).run(count).ok(), "300000\n");
}

promise!(standard_input_is_empty_a_file_or_the_callers);

fn the_flag_wins_over_the_environment(cell: &Cell) {
    let misled = cell.caller_env("BELLJAR_BACKEND", "docker").caller_env("CODE_EXEC_SANDBOX", "process");
    assert_eq!(misled.run("true").backend, cell.backend());
}

promise!(the_flag_wins_over_the_environment; cold: "it is about the command line");

fn the_environment_chooses_the_backend_and_its_own_name_wins_over_the_alias(cell: &Cell) {
    let unsaid = cell.with_backend_unsaid();
    let chosen =
        unsaid.caller_env("BELLJAR_BACKEND", cell.backend()).caller_env("CODE_EXEC_SANDBOX", "docker");
    assert_eq!(chosen.run("true").backend, cell.backend());
    let alias = unsaid.caller_env("CODE_EXEC_SANDBOX", "podman").refuse("true");
    assert_eq!(alias.error.code, "invalid_request", "the alias is read: {alias:?}");
}

promise!(the_environment_chooses_the_backend_and_its_own_name_wins_over_the_alias; cold: "it is about the command line");

fn flag_wins_over_environment_and_environment_over_file(cell: &Cell) {
    let scratch = Scratch::new();
    let named = scratch.file("named.toml", "[limits]\noutput-limit = 15\n");
    let hundred = "printf %0100d 0";
    let here = cell.option("--config", named.to_str().unwrap());
    let says = |cell: &Cell, missing: &str| {
        let ran = cell.run(hundred);
        assert!(
            ran.stdout.contains(&format!("[... {missing} bytes omitted ...]")),
            "{missing}: {}",
            ran.stdout
        );
    };
    says(&here, "85");
    let told = here.caller_env("BELLJAR_OUTPUT_LIMIT", "20");
    says(&told, "80");
    says(&told.option("--output-limit", "30"), "70");
    assert_eq!(cell.run(hundred).ok().len(), 100, "the control: the default");
}

promise!(flag_wins_over_environment_and_environment_over_file; cold: "it is about the command line");

fn a_configuration_that_is_not_understood_is_refused(cell: &Cell) {
    let scratch = Scratch::new();
    for (name, text) in
        [("syntax.toml", "limits = ["), ("key.toml", "tiemout = 1"), ("value.toml", "backend = \"x\"")]
    {
        let config = scratch.file(name, text);
        let refusal = cell.with_backend_unsaid().option("--config", config.to_str().unwrap()).refuse("true");
        assert_eq!(refusal.error.code, "invalid_request", "{name}: {refusal:?}");
        assert!(refusal.error.message.contains(name), "{refusal:?}");
    }
    let missing = scratch.path().join("missing.toml");
    let refusal = cell.option("--config", missing.to_str().unwrap()).refuse("true");
    assert!(refusal.error.message.contains("missing.toml"), "{refusal:?}");
}

promise!(a_configuration_that_is_not_understood_is_refused; cold: "it is about the command line");

fn auto_never_chooses_a_backend_without_a_box(cell: &Cell) {
    let auto = cell.with_backend_unsaid().run("true");
    assert!(!["process", "none"].contains(&auto.backend.as_str()), "{auto:?}");
    assert_eq!(cell.with_backend_unsaid().option("--backend", "auto").run("true").backend, auto.backend);
}

promise!(auto_never_chooses_a_backend_without_a_box; cold: "it is about the command line");

fn state_is_kept_where_it_was_told_and_nowhere_else(cell: &Cell) {
    let (home, state) = (Scratch::new(), Scratch::new());
    let told = cell.caller_env("HOME", home.path().to_str().unwrap());
    let told = told.language("python").caller_cwd(home.path());
    let elsewhere = told.caller_env("BELLJAR_STATE_DIR", state.path().to_str().unwrap());
    assert_eq!(elsewhere.run("print(1)").ok(), "1\n");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "nothing in the home directory");
    let xdg =
        told.caller_env("BELLJAR_STATE_DIR", "").caller_env("XDG_STATE_HOME", state.path().to_str().unwrap());
    assert_eq!(xdg.run("print(1)").ok(), "1\n");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "nothing in the home directory");
}

promise!(state_is_kept_where_it_was_told_and_nowhere_else; cold: "it is about the command line");

fn explaining_does_nothing(cell: &Cell) {
    let scratch = Scratch::new();
    let cell = cell.flag("--explain").option("--collect", "x").caller_cwd(scratch.path());
    let told = cell.plain("echo ran > x; echo it-ran-after-all; exit 9");
    assert_eq!(told.code(), 0, "{told:?}");
    let text = told.stdout_text();
    assert!(text.contains("/sandbox"), "{text}");
    assert_eq!(text.contains("seccomp"), cell.keeps("syscalls"), "{text}");
    assert!(!text.lines().any(|line| line == "it-ran-after-all"), "{text}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

promise!(explaining_does_nothing; cold: "it is about the command line");

fn doctor_names_every_guarantee_and_says_whether_it_can_run(cell: &Cell) {
    let told = cell.belljar(&["doctor", "--backend", cell.backend()]);
    let can_run = cell.waived().is_empty() || cell.is_only_by_name();
    assert_eq!(told.code(), if can_run { 0 } else { 1 }, "1 if a run without waivers is refused: {told:?}");
    for name in ["filesystem", "network", "memory", "pids", "cpu", "disk", "syscalls", "privileges"] {
        assert!(told.stdout_text().contains(name), "{name}: {told:?}");
    }
    assert!(!told.stdout.contains(&0x1b), "no colours in a pipe");
}

promise!(doctor_names_every_guarantee_and_says_whether_it_can_run; cold: "it is about the command line");

fn every_command_has_help(cell: &Cell) {
    for command in ["run", "languages", "doctor", "bench"] {
        let told = cell.belljar(&[command, "--help"]);
        assert_eq!(told.code(), 0, "{command}");
        assert!(told.stdout_text().contains("Usage"), "{command}: {told:?}");
    }
}

promise!(every_command_has_help; cold: "it is about the command line");

trait FromStdin {
    fn run_from_stdin(&self, words: &[&str]) -> belljar_conformance::Ran;
}

impl FromStdin for Cell {
    fn run_from_stdin(&self, words: &[&str]) -> belljar_conformance::Ran {
        let mut all = vec!["run", "sh"];
        all.extend(words);
        all.extend(["--json", "--backend", self.backend()]);
        self.waived().iter().for_each(|waived| all.extend(["--waive", waived.as_str()]));
        belljar_conformance::Ran::read(self.belljar(&all))
    }
}
