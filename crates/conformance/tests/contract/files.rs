//! Files that go in and files that come back.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use belljar_conformance::{Cell, Scratch, promise};

fn files_are_copied_in_under_their_own_or_a_given_name(cell: &Cell) {
    let scratch = Scratch::new();
    let bytes: Vec<u8> = (0..=255).collect();
    let one = scratch.file("one.bin", &bytes);
    let two = scratch.file("two.txt", "two");
    let cell = cell
        .option("--file", one.to_str().unwrap())
        .option("--file", &format!("{}:deep/er/zwei ü.txt", two.display()));
    let ran = cell.run("wc -c < one.bin; cat 'deep/er/zwei ü.txt'; echo more >> one.bin && echo own");
    assert_eq!(ran.ok().split_whitespace().collect::<Vec<_>>(), ["256", "twoown"]);
    assert_eq!(fs::read(&one).unwrap(), bytes, "the host's file is as it was");
}

promise!(files_are_copied_in_under_their_own_or_a_given_name);

fn a_program_that_is_copied_in_stays_executable(cell: &Cell) {
    let scratch = Scratch::new();
    let tool = scratch.file("tool", "#!/bin/sh\necho tool\n");
    let cell = cell.option("--file", tool.to_str().unwrap());
    assert_eq!(cell.run("./tool").exit_code, 126, "the control: not without its permission");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(cell.run("./tool").ok(), "tool\n");
}

promise!(a_program_that_is_copied_in_stays_executable);

fn collected_files_are_in_the_result(cell: &Cell) {
    let code = "mkdir -p out/deep; printf '\\000\\377' > out/a.bin; echo b > out/deep/b.csv; echo c > c.txt; \
        : > empty; echo n > not.log";
    let cell = cell.option("--collect", "out/**/*").option("--collect", "c.txt").option("--collect", "empty");
    let ran = cell.run(code);
    let mut files = ran.files.clone().expect("files, because they were asked for");
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let seen: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.size, file.content())).collect();
    assert_eq!(
        seen,
        [
            ("c.txt", 2, b"c\n".to_vec()),
            ("empty", 0, Vec::new()),
            ("out/a.bin", 2, vec![0, 255]),
            ("out/deep/b.csv", 2, b"b\n".to_vec()),
        ]
    );
}

promise!(collected_files_are_in_the_result);

fn what_was_asked_for_and_is_not_there_is_an_empty_list(cell: &Cell) {
    let ran = cell.option("--collect", "*.png").run("echo nothing");
    assert_eq!(ran.files.clone().expect("files, because they were asked for"), []);
}

promise!(what_was_asked_for_and_is_not_there_is_an_empty_list);

fn files_are_collected_however_the_run_ended(cell: &Cell) {
    let cell = cell.option("--collect", "*.txt").limit("timeout", "700ms");
    for code in ["echo a > a.txt; exit 3", "echo a > a.txt; kill -9 $$", "echo a > a.txt; sleep 60"] {
        let ran = cell.run(code);
        assert_eq!(ran.files.as_ref().map(Vec::len), Some(1), "{code}: {ran:?}");
    }
}

promise!(files_are_collected_however_the_run_ended);

fn a_wildcard_does_not_collect_what_is_hidden(cell: &Cell) {
    let code = "mkdir -p .git a/.b; for f in .env .git/config a/.b/c a/.d a/e f; do echo $f > $f; done";
    let collected = |pattern: &str| {
        let ran = cell.option("--collect", pattern).run(code);
        let files = ran.files.as_deref().expect("files were asked for");
        files.iter().map(|file| file.path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(collected("**"), ["a/e", "f"]);
    assert_eq!(collected(".*"), [".env"], "the control");
    assert_eq!(collected("**/.b/*"), ["a/.b/c"], "the control");
}

promise!(a_wildcard_does_not_collect_what_is_hidden);

fn an_existing_file_is_kept_unless_it_may_be_overwritten(cell: &Cell) {
    let here = Scratch::new();
    let read = |name: &str| fs::read_to_string(here.path().join(name)).unwrap();
    let _ = here.file("a.txt", "old");
    let cell = cell.option("--collect", "*.txt").caller_cwd(here.path());
    let code = "echo new > a.txt; echo new > b.txt; exit 3";
    let told = cell.plain(code);
    assert_eq!(
        (told.code(), read("a.txt").as_str(), read("b.txt").as_str()),
        (3, "old", "new\n"),
        "{told:?}"
    );
    let none = cell.plain(code);
    assert_eq!((none.code(), read("a.txt").as_str()), (125, "old"), "none could be written: {none:?}");
    let told = cell.flag("--overwrite").plain(code);
    assert_eq!((told.code(), read("a.txt").as_str()), (3, "new\n"), "{told:?}");
}

promise!(an_existing_file_is_kept_unless_it_may_be_overwritten; cold: "it is about the command line");

fn collected_files_go_to_a_directory_or_the_current_one(cell: &Cell) {
    let here = Scratch::new();
    let there = Scratch::new();
    let code = "mkdir d; echo deep > d/x.txt; echo flat > y.txt; echo z > z.log";
    let cell = cell.option("--collect", "**/*.txt").caller_cwd(here.path());
    assert_eq!(cell.plain(code).code(), 0);
    assert_eq!(fs::read_to_string(here.path().join("d/x.txt")).unwrap(), "deep\n");
    assert_eq!(fs::read_to_string(here.path().join("y.txt")).unwrap(), "flat\n");
    assert!(!here.path().join("z.log").exists());
    let target = there.path().join("made/for/it");
    let told = cell.option("--collect-to", target.to_str().unwrap()).plain(code);
    assert_eq!(told.code(), 0, "{told:?}");
    assert_eq!(fs::read_to_string(target.join("y.txt")).unwrap(), "flat\n");
}

promise!(collected_files_go_to_a_directory_or_the_current_one; cold: "it is about the command line");
