//! Runtimes are found on this host, and what is found is enough to run them with nothing else of the host in sight.
//!
//! Needs: ruby php-cli perl lua5.4 r-base-core zsh gcc g++ golang-go default-jdk-headless nodejs python3
//! bubblewrap, and a rustc.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belljar_core::backend::BackendError;
use belljar_core::language::Language;
use rustix::fs::inotify;

use belljar_host::runtimes::{BASE_SYSTEM, Runtime, RuntimeSettings, Runtimes};

const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Hello world in every language, each with something of the standard library.
const PROGRAMS: &[(&str, &str)] = &[
    ("python", "import json, ssl, sqlite3\nprint(json.loads('\"hello\"'))"),
    ("javascript", "console.log(require('util').format('%s', 'hello'))"),
    ("typescript", "console.log('hello')"), // As it is without its types, which it has none of.
    ("bash", "words=(hello); echo \"${words[0]}\""),
    ("sh", "echo hello"),
    ("zsh", "autoload -Uz colors && colors; print -r -- ${(L):-HELLO}"),
    ("ruby", "require 'json'; require 'set'; puts JSON.parse('[\"hello\"]').first"),
    ("php", "<?php echo json_decode('\"hello\"'), ctype_alpha('x') ? \"\\n\" : '';"),
    ("perl", "use strict; use List::Util 'first'; use POSIX; print first { /h/ } ('hello'); print qq(\\n);"),
    ("lua", "print(string.lower('HELLO'))"),
    ("r", "library(stats); cat(tolower('HELLO'), '\\n', sep = '')"),
    (
        "c",
        "#include <stdio.h>\n#include <math.h>\nint main(void) { return puts(\"hello\") < 0 || sqrt(4) != 2; }",
    ),
    ("cpp", "#include <iostream>\n#include <string>\nint main() { std::cout << std::string(\"hello\\n\"); }"),
    ("go", "package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"hello\") }"),
    ("rust", "fn main() { println!(\"{}\", [\"hello\"].join(\"\")); }"),
    ("java", "class Main { public static void main(String[] a) { System.out.println(\"hello\"); } }"),
];

/// The languages that take hundreds of megabytes to install. Their tests are called `large_languages_*` and are a phase
/// of their own (`make test-languages`).
const LARGE: &[&str] = &["r", "go", "java"];

fn large() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    PROGRAMS.iter().filter(|(name, _)| LARGE.contains(name))
}

fn small() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    PROGRAMS.iter().filter(|(name, _)| !LARGE.contains(name))
}

#[test]
fn every_language_runs_with_only_the_base_system_and_its_mounts_in_sight() {
    let names: Vec<_> = Language::all().map(|language| language.name).collect();
    assert_eq!(names, PROGRAMS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    assert_each_runs_in_sight_of_its_mounts(small());
}

#[test]
fn large_languages_run_with_only_the_base_system_and_their_mounts_in_sight() {
    assert_each_runs_in_sight_of_its_mounts(large());
}

fn assert_each_runs_in_sight_of_its_mounts(
    programs: impl Iterator<Item = &'static (&'static str, &'static str)>,
) {
    for (name, code) in programs {
        let runtime = Runtimes::new(callers_settings()).find(language(name)).expect(name);
        assert!(fs::read(&runtime.program).unwrap().starts_with(b"\x7fELF"), "no script: {runtime:?}");
        assert_says_hello(name, code, &runtime);
    }
}

fn label(name: &str) -> String {
    let settings = RuntimeSettings { search_path: SYSTEM_PATH.into(), ..RuntimeSettings::default() };
    Runtimes::new(settings).find(language(name)).expect(name).label
}

fn assert_labels(programs: &[(&str, &str)]) {
    for (name, start) in programs {
        let label = label(name);
        assert!(label.starts_with(start), "{name}: {label}");
        assert!(label.ends_with(|c: char| c.is_ascii_digit()), "{name}: {label}");
    }
}

#[test]
fn every_language_of_the_distribution_has_its_usual_label() {
    assert_labels(&[
        ("python", "CPython 3."),
        ("javascript", "Node.js "),
        ("typescript", "Node.js "),
        ("bash", "GNU bash 5."),
        ("zsh", "zsh 5."),
        ("ruby", "CRuby 3."),
        ("php", "PHP 8."),
        ("perl", "Perl 5."),
        ("lua", "Lua 5."),
        ("c", "gcc 1"),
        ("cpp", "g++ 1"),
    ]);
    let sh = fs::read_link("/bin/sh").unwrap();
    assert!(label("sh").starts_with(sh.file_name().unwrap().to_str().unwrap()), "{}", label("sh"));
}

#[test]
fn large_languages_of_the_distribution_have_their_usual_labels() {
    assert_labels(&[("r", "R 4."), ("go", "Go 1."), ("java", "OpenJDK ")]);
}

#[test]
fn a_language_of_the_distribution_needs_nothing_but_its_configuration() {
    assert_configuration_is_enough(small().filter(|(name, _)| *name != "rust"));
}

#[test]
fn large_languages_of_the_distribution_need_nothing_but_their_configuration() {
    assert_configuration_is_enough(large());
}

fn assert_configuration_is_enough(programs: impl Iterator<Item = &'static (&'static str, &'static str)>) {
    for (name, _) in programs {
        let settings = RuntimeSettings { search_path: "/usr/bin:/bin".into(), ..RuntimeSettings::default() };
        let runtime = Runtimes::new(settings).find(language(name)).expect(name);
        assert!(runtime.program.starts_with("/usr") || runtime.program.starts_with("/bin"), "{runtime:?}");
        let expected = |mount: &PathBuf| {
            mount.starts_with("/etc")
                || mount.starts_with("/usr/local/lib")
                || mount.starts_with("/var/lib/gems")
        };
        assert!(runtime.mounts.iter().all(expected), "{name}: {:?}", runtime.mounts);
    }
}

#[test]
fn a_shim_is_seen_through_to_the_runtime_that_it_starts() {
    let place = Place::new();
    place.copy_program("/usr/bin/lua5.4", "manager/versions/5.4/bin/lua");
    place.script("manager/shims/lua", "exec \"${0%/shims/*}/versions/5.4/bin/lua\" \"$@\"");

    let runtime = place.runtimes("manager/shims").find(language("lua")).unwrap();
    assert_eq!(runtime.program, place.path("manager/versions/5.4/bin/lua"));
    assert_eq!(runtime.mounts, [place.path("manager/versions/5.4/bin")]);
    assert_says_hello("lua", "print('hello')", &runtime);
}

#[test]
fn the_choice_of_a_manager_is_read_without_its_shim() {
    let place = Place::new();
    for version in ["5.3", "5.4"] {
        place.copy_program("/usr/bin/lua5.4", &format!("manager/versions/{version}/bin/lua"));
    }
    place.script("manager/shims/lua", "exit 1");
    fs::write(place.path("manager/version"), "5.4\n").unwrap();
    let runtime = place.runtimes("manager/shims").find(language("lua")).unwrap();
    assert_eq!(runtime.program, place.path("manager/versions/5.4/bin/lua"));

    fs::write(place.path("manager/version"), "5.3\n").unwrap();
    let runtime = place.runtimes("manager/shims").find(language("lua")).unwrap();
    assert_eq!(runtime.program, place.path("manager/versions/5.3/bin/lua"));
}

#[test]
fn a_shim_is_asked_itself_if_its_choice_is_not_plain() {
    let place = Place::new();
    place.copy_program("/usr/bin/lua5.4", "manager/versions/mine/bin/lua");
    place.copy_program("/usr/bin/lua5.4", "manager/versions/other/bin/lua");
    place.copy_program("/usr/bin/lua5.4", "elsewhere/bin/lua");
    place.script("manager/shims/lua", "exec \"${0%/shims/*}/versions/other/bin/lua\" \"$@\"");
    let find = |settings: RuntimeSettings| Runtimes::new(settings).find(language("lua")).unwrap().program;
    let settings = || place.settings("manager/shims");
    let [mine, other] =
        ["mine", "other"].map(|version| place.path(&format!("manager/versions/{version}/bin/lua")));

    for choice in ["", "mine other", "mine\nother\n", "mine:other", "absent", "../../elsewhere", ".", "#mine"]
    {
        fs::write(place.path("manager/version"), choice).unwrap();
        assert_eq!(find(settings()), other, "{choice:?}");
    }
    fs::write(place.path("manager/version"), "mine\n").unwrap();
    assert_eq!(find(settings()), mine, "the control");
    let manager_env = vec![("LUAENV_VERSION".into(), "other".into())];
    assert_eq!(find(RuntimeSettings { manager_env, ..settings() }), other, "a variable goes first");

    place.script("manager/versions/mine/bin/lua", "exit 1");
    assert_eq!(find(settings()), other, "what was chosen does not answer");
}

#[test]
fn a_runtime_of_the_base_system_is_told_from_others_without_asking() {
    let place = Place::new();
    place.script("bin/lua", "exit 1");
    place.link("links/lua", Path::new("/usr/bin/lua5.4"));
    let may_be_elsewhere =
        |settings: RuntimeSettings| Runtimes::new(settings).may_be_elsewhere(language("lua"));
    let system = RuntimeSettings { search_path: "/usr/bin:/bin".into(), ..place.settings("bin") };
    assert!(!may_be_elsewhere(system.clone()));
    assert!(may_be_elsewhere(place.settings("bin")));
    assert!(may_be_elsewhere(place.settings("links")), "there is a link on the way to it");
    assert!(!may_be_elsewhere(place.settings("nothing")), "there is none");
    let overrides = vec![(language("lua"), place.path("bin/lua"))];
    assert!(may_be_elsewhere(RuntimeSettings { overrides, ..system }));
}

#[test]
fn a_shim_that_starts_its_manager_first_is_seen_through() {
    let place = Place::new();
    place.script("rb/bin/rb", "name=$1; shift; export RB_ROOT; exec /usr/bin/$name \"$@\"");
    let launcher = place.path("rb/bin/rb");
    place.script(
        "rb/shims/ruby",
        &format!("echo choosing >&2\nexec {} \"${{0##*/}}\" \"$@\"", launcher.display()),
    );

    let runtime = place.runtimes("rb/shims").find(language("ruby")).unwrap();
    assert_eq!(runtime.program, Path::new("/usr/bin/ruby").canonicalize().unwrap());
    assert!(!runtime.mounts.iter().any(|mount| mount.starts_with(&place.root)), "{:?}", runtime.mounts);
}

#[test]
fn a_shim_without_a_version_is_passed_over() {
    let place = Place::new();
    place.script("shims/node", "echo 'node: no version is set' >&2; exit 127");
    let mut settings = place.settings("shims");
    let only_shim = Runtimes::new(settings.clone()).find(language("javascript")).unwrap_err();
    assert!(only_shim.to_string().contains("no version is set"), "{only_shim}");

    settings.search_path = format!("{}:/usr/bin", place.path("shims").display()).into();
    let runtime = Runtimes::new(settings).find(language("javascript")).unwrap();
    assert_eq!(runtime.program, Path::new("/usr/bin/node").canonicalize().unwrap());
}

#[test]
fn a_shim_that_cannot_say_what_it_starts_is_refused() {
    let place = Place::new();
    place.script("shims/gcc", "exec /usr/bin/gcc \"$@\"");
    let refused = place.runtimes("shims").find(language("c")).unwrap_err();
    assert!(refused.to_string().contains("did not report the path of the real program"), "{refused}");
}

#[test]
fn a_chain_of_links_is_followed_for_as_long_as_it_keeps_the_name() {
    let place = Place::new();
    place.copy_program("/usr/bin/gcc", "tools/13/bin/real-driver");
    symlink("real-driver", place.path("tools/13/bin/gcc")).unwrap();
    place.link("alternatives/gcc", &place.path("tools/13/bin/gcc"));
    place.link("bin/gcc", &place.path("alternatives/gcc"));

    let runtime = place.runtimes("bin").find(language("c")).unwrap();
    assert_eq!(runtime.program, place.path("tools/13/bin/gcc"));
    assert_eq!(runtime.mounts, [place.path("tools/13/bin")]);
}

#[test]
fn a_virtual_environment_keeps_its_packages_and_shows_no_more_of_its_project() {
    let place = Place::new();
    let venv = place.path("project");
    let made =
        Command::new("/usr/bin/python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status().unwrap();
    assert!(made.success(), "a virtual environment without pip");
    let packages =
        fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path().join("site-packages");
    fs::write(packages.join("greeting.py"), "text = 'hello'").unwrap();
    fs::write(venv.join("secret.txt"), "secret").unwrap();

    let runtime = place.runtimes("project/bin").find(language("python")).unwrap();
    assert_eq!(runtime.program, venv.join("bin/python3"));
    assert!(!runtime.mounts.contains(&venv), "{:?}", runtime.mounts);
    assert_says_hello("python", "import greeting; print(greeting.text)", &runtime);

    let look = format!(
        "import os\nprint('hello' if not os.path.exists('{}/secret.txt') else 'seen')",
        venv.display()
    );
    assert_says_hello("python", &look, &runtime);
}

#[test]
fn the_links_on_the_way_to_a_program_are_shown_too() {
    let place = Place::new();
    let venv = place.path("venv");
    let made =
        Command::new("/usr/bin/python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status().unwrap();
    assert!(made.success(), "a virtual environment without pip");
    place.link("home/.local/bin/python3", Path::new("/usr/bin/python3"));
    fs::remove_file(venv.join("bin/python3")).unwrap();
    symlink(place.path("home/.local/bin/python3"), venv.join("bin/python3")).unwrap();

    let runtime = place.runtimes("venv/bin").find(language("python")).unwrap();
    assert!(runtime.mounts.contains(&place.path("home/.local/bin/python3")), "{:?}", runtime.mounts);
    let look = format!("import sys\nprint('hello' if sys.prefix == '{}' else sys.prefix)", venv.display());
    assert_says_hello("python", &look, &runtime);
}

#[test]
fn a_prefix_with_two_names_is_shown_under_both() {
    let place = Place::new();
    fs::create_dir_all(place.path("versions/9.1")).unwrap();
    symlink("9.1", place.path("versions/latest")).unwrap();
    let told = place.path("versions/latest");
    place.script("bin/ruby", &format!("printf 'CRuby 9.1\\n/bin/true\\n{}\\n'", told.display()));
    let runtime = place.runtimes("bin").find(language("ruby")).unwrap();
    assert_eq!(runtime.mounts, [place.path("versions/9.1"), told]);
}

#[test]
fn links_out_of_a_runtimes_tree_are_followed_to_the_systems_files_and_no_others() {
    let place = Place::new();
    let tree = place.path("opt/ruby");
    fs::write(place.path("home/diary"), "private").unwrap();
    place.link("opt/ruby/etc/config", Path::new("/etc/perl/Net/libnet.cfg"));
    place.link("opt/ruby/a", Path::new("/usr/share/perl"));
    place.link("opt/ruby/b", &place.path("home/diary"));
    for (index, secret) in
        ["/etc/shadow", "/etc/passwd", "/etc", "/", "/root", "/var/lib", "/proc"].iter().enumerate()
    {
        place.link(&format!("opt/ruby/secret{index}"), Path::new(secret));
    }
    place.script("bin/ruby", &format!("printf 'CRuby 9.1\\n/bin/true\\n{}\\n'", tree.display()));
    let runtime = place.runtimes("bin").find(language("ruby")).unwrap();
    assert_eq!(runtime.mounts, [PathBuf::from("/etc/perl/Net"), tree]);
}

#[test]
fn the_rust_toolchain_itself_is_found_behind_its_proxy() {
    let runtime = Runtimes::new(callers_settings()).find(language("rust")).unwrap();
    assert!(runtime.label.starts_with("rustc 1."), "{}", runtime.label);
    let version = Command::new(&runtime.program).arg("--version").env_clear().output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(version.starts_with(&runtime.label), "{version}");
    assert_ne!(runtime.program.canonicalize().unwrap().file_name().unwrap(), "rustup");
}

#[test]
fn what_the_configuration_names_is_taken_for_all_that_run_on_it() {
    let place = Place::new();
    place.copy_program("/usr/bin/lua5.4", "opt/lua/bin/lua-mine");
    let mut settings = place.settings("nowhere");
    settings.overrides = vec![
        (language("lua"), place.path("opt/lua/bin/lua-mine")),
        (language("javascript"), PathBuf::from("/usr/bin/node")),
        (language("ruby"), place.path("no-ruby")),
    ];
    let runtimes = Runtimes::new(settings);
    assert_eq!(runtimes.find(language("lua")).unwrap().program, place.path("opt/lua/bin/lua-mine"));
    assert!(runtimes.find(language("typescript")).unwrap().label.starts_with("Node.js"));
    let wrong = runtimes.find(language("ruby")).unwrap_err();
    assert!(wrong.to_string().contains("no-ruby is not a program"), "{wrong}");
}

#[test]
fn a_missing_runtime_comes_with_the_way_to_get_it() {
    let place = Place::new();
    match place.runtimes("empty").find(language("lua")) {
        Err(BackendError::RuntimeMissing { language, hint }) => {
            assert_eq!(language.name, "lua");
            assert!(hint.contains("apt-get install lua5.4"), "{hint}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_relative_search_path_is_not_searched() {
    let settings =
        RuntimeSettings { search_path: "../../../../../../usr/bin:.".into(), ..RuntimeSettings::default() };
    let missing = Runtimes::new(settings).find(language("bash")).unwrap_err();
    assert!(matches!(missing, BackendError::RuntimeMissing { .. }), "{missing}");
}

#[test]
fn a_runtime_that_needs_a_whole_home_is_refused() {
    let place = Place::new();
    let home = place.path("home");
    place.script("home/bin/ruby", &format!("printf 'CRuby 9\\n/bin/true\\n{}\\n'", home.display()));
    let refused = place.runtimes("home/bin").find(language("ruby")).unwrap_err();
    assert!(refused.to_string().contains("contains more than a runtime"), "{refused}");
}

#[test]
fn a_program_in_a_homes_bin_is_shown_alone() {
    let place = Place::new();
    place.copy_program("/usr/bin/lua5.4", "home/bin/lua");
    fs::write(place.path("home/bin/notes.txt"), "private").unwrap();
    let runtime = place.runtimes("home/bin").find(language("lua")).unwrap();
    assert_eq!(runtime.mounts, [place.path("home/bin/lua")]);
    assert_says_hello("lua", "print('hello')", &runtime);
}

#[test]
fn a_personal_prefix_is_narrowed_and_its_data_stay_hidden() {
    let place = Place::new();
    place.copy_program("/usr/bin/lua5.4", "home/.local/bin/lua");
    fs::create_dir_all(place.path("home/.local/share/keyrings")).unwrap();
    fs::create_dir_all(place.path("home/.local/lib")).unwrap();
    let runtime = place.runtimes("home/.local/bin").find(language("lua")).unwrap();
    assert_eq!(runtime.mounts, [place.path("home/.local/bin"), place.path("home/.local/lib")]);
}

#[test]
fn a_runtime_that_other_users_may_not_read_is_refused() {
    // Where code runs as the ordinary user who started it, that user's own files are good enough.
    let root = fs::metadata("/proc/self")
        .map(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0)
        .unwrap();
    let place = Place::new();
    place.copy_program("/usr/bin/lua5.4", "opt/lua/bin/lua");
    fs::set_permissions(place.path("opt/lua/bin/lua"), fs::Permissions::from_mode(0o700)).unwrap();
    let found = place.runtimes("opt/lua/bin").find(language("lua"));
    assert_eq!(found.is_err(), root, "{found:?}");
}

#[test]
fn a_candidate_that_hangs_is_given_up_and_ended() {
    let place = Place::new();
    let time = format!("600.{}", std::process::id());
    place.script("bin/lua", &format!("sleep {time} & wait"));
    let sleeps = move || {
        let wanted = format!("sleep\0{time}\0");
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
            .any(|words| words == wanted.as_bytes())
    };
    let seen = std::thread::spawn({
        let sleeps = sleeps.clone();
        move || eventually("the control: its child is there", sleeps)
    });
    let refused = place.runtimes("bin").find(language("lua")).unwrap_err();
    assert!(refused.to_string().contains("no answer within 10 s"), "{refused}");
    seen.join().unwrap();
    eventually("a killed process takes a moment to be gone", || !sleeps());
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_candidate_has_nothing_to_lose() {
    let place = Place::new();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let script =
        "id -u; id -G; echo x >$1 && echo wrote; kill -0 1 && kill -CONT $PPID && echo signalled; exit 1";
    let script = script.replace("$1", place.path("planted").to_str().unwrap()) + " 2>/dev/null";
    place.script("bin/lua", &format!("({script}) | tr '\\n' ' '; exit 1"));
    let mut settings = place.settings("bin");
    settings.search_path = format!("{}:/usr/bin:/bin", place.path("bin").display()).into();
    settings.overrides = vec![(language("lua"), place.path("bin/lua"))];
    let refused = Runtimes::new(settings).find(language("lua")).unwrap_err().to_string();
    assert!(!refused.contains("wrote") && !refused.contains("signalled"), "{refused}");
    assert!(!place.path("planted").exists());
    if rustix::process::geteuid().is_root() {
        assert!(refused.contains("65534 65534"), "{refused}");
    }
    let free = Command::new(place.path("bin/lua")).output().unwrap();
    assert!(String::from_utf8_lossy(&free.stdout).contains("wrote"), "the control: {free:?}");
}

#[test]
fn a_candidate_that_talks_without_end_is_given_up() {
    let place = Place::new();
    place.script("bin/lua", "while :; do echo Lua 5.4; done");
    let refused = place.runtimes("bin").find(language("lua")).unwrap_err();
    assert!(refused.to_string().contains("its answer is too long"), "{refused}");
}

#[test]
fn a_grandchild_that_holds_the_output_open_does_not_hold_the_answer() {
    let place = Place::new();
    place.script("bin/sh", "sleep 100 & echo 'odd shell 1'");
    let begun = Instant::now();
    let mut settings = place.settings("bin");
    settings.search_path = format!("{}:/usr/bin:/bin", place.path("bin").display()).into();
    let refused = Runtimes::new(settings).find(language("sh"));
    // A script that names no program is skipped, so the system's own is found.
    assert!(refused.is_ok(), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
}

#[test]
fn asking_shows_nothing_of_the_callers_environment_but_what_was_passed() {
    let place = Place::new();
    place.script("bin/lua", "env | cut -d= -f1 | sort | tr '\\n' ' '; exit 1");
    let mut settings = place.settings("bin");
    settings.search_path = format!("{}:/usr/bin:/bin", place.path("bin").display()).into();
    settings.overrides = vec![(language("lua"), place.path("bin/lua"))];
    settings.manager_env = vec![("PYENV_VERSION".into(), "3".into())];
    let refused = Runtimes::new(settings).find(language("lua")).unwrap_err().to_string();
    let seen = refused.rsplit_once(", ").unwrap().1;
    let own = ["PWD", "SHLVL", "_", "OLDPWD"]; // The shell's.
    let seen: Vec<_> = seen.split_whitespace().filter(|name| !own.contains(name)).collect();
    assert_eq!(seen, ["HOME", "LANG", "PATH", "PYENV_VERSION", "RUSTUP_AUTO_INSTALL", "TMPDIR"]);
}

#[test]
fn a_second_search_does_not_ask_again() {
    let asked = Counted::new();
    let first = asked.find();
    assert_eq!(asked.find(), first);
    assert_eq!(asked.count(), 1);
}

#[test]
fn a_change_of_the_shim_the_choice_the_runtime_or_the_question_asks_again() {
    let asked = Counted::new();
    asked.find();
    // Two versions, so that the shim is asked.
    fs::write(asked.place.path("manager/version"), "5.4 5.3\n").unwrap();
    asked.find();
    assert_eq!(asked.count(), 2, "the manager's choice changed");

    asked.place.copy_program("/usr/bin/lua5.4", "manager/versions/5.4/bin/lua");
    asked.find();
    assert_eq!(asked.count(), 3, "the runtime was replaced");

    let shim = asked.place.path("manager/shims/lua");
    let text = fs::read_to_string(&shim).unwrap();
    fs::write(&shim, format!("{text}\n")).unwrap();
    asked.find();
    assert_eq!(asked.count(), 4, "the shim changed");

    let mut settings = asked.settings();
    settings.manager_env.push(("PYENV_VERSION".into(), "3".into()));
    Runtimes::new(settings).find(language("lua")).unwrap();
    assert_eq!(asked.count(), 5, "the question is another");
    asked.find();
    assert_eq!(asked.count(), 5, "and the one before is still known");
}

#[test]
fn an_entry_that_another_user_could_have_written_is_not_trusted() {
    let asked = Counted::new();
    let truth = asked.find();
    let entry = asked.entry();
    let good = fs::read_to_string(&entry).unwrap();
    assert!(good.contains("Lua 5.4"), "{good}");
    let lie = good.replace("Lua 5.4", "Liar 9.9");
    let ask_with = |what: &str| {
        let before = asked.count();
        assert_eq!(asked.find(), truth, "{what}");
        assert_eq!(asked.count(), before + 1, "{what}");
    };

    fs::write(&entry, &lie).unwrap();
    assert!(asked.find().label.starts_with("Liar"), "the control: an entry of our own is believed");
    for mode in [0o666, 0o620] {
        fs::set_permissions(&entry, fs::Permissions::from_mode(mode)).unwrap();
        ask_with("writable by others");
        fs::write(&entry, &lie).unwrap();
    }
    let elsewhere = asked.place.path("elsewhere");
    fs::rename(&entry, &elsewhere).unwrap();
    symlink(&elsewhere, &entry).unwrap();
    ask_with("a link");
    for broken in ["", "belljar", &good[..good.len() - 5], &good.replace("end\n", ""), "\u{0}\n\n\n"] {
        fs::write(&entry, broken).unwrap();
        ask_with("broken");
    }
}

#[test]
fn a_cache_that_cannot_be_written_does_no_harm() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    let settings = RuntimeSettings {
        search_path: SYSTEM_PATH.into(),
        cache_dir: Some(place.path("file/below")),
        ..RuntimeSettings::default()
    };
    assert!(Runtimes::new(settings).find(language("bash")).is_ok());
}

fn language(name: &str) -> Language {
    Language::by_name(name).expect(name)
}

/// The settings of the user who runs the tests.
fn callers_settings() -> RuntimeSettings {
    RuntimeSettings {
        search_path: std::env::var_os("PATH").expect("PATH is set"),
        home: std::env::var_os("HOME").map(PathBuf::from),
        ..RuntimeSettings::default()
    }
}

fn assert_says_hello(name: &str, code: &str, runtime: &Runtime) {
    let output = run_in_sight_of(name, code, runtime);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let seen = (output.status.code(), text(&output.stdout), text(&output.stderr));
    assert_eq!(seen, (Some(0), "hello\n".to_owned(), String::new()), "{name} {runtime:?}");
}

/// Runs the language's stages as an unprivileged user who sees only the base system, the runtime's mounts and a scratch
/// directory.
fn run_in_sight_of(name: &str, code: &str, runtime: &Runtime) -> Output {
    let language = language(name);
    let source = Place::new();
    let file = language.source.replace(".ts", ".js");
    fs::write(source.path(&file), code).unwrap();

    let mut bwrap = Command::new("timeout");
    bwrap.args(["60", "bwrap", "--unshare-all", "--die-with-parent", "--uid", "65534", "--gid", "65534"]);
    bwrap.args(["--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp"]);
    bwrap.args(["--setenv", "LANG", "C.UTF-8"]);
    for (variable, value) in language.env {
        bwrap.args(["--setenv", variable]).arg(filled(value, runtime, &file));
    }
    for path in BASE_SYSTEM.iter().map(Path::new) {
        match fs::read_link(path) {
            Ok(target) if path.parent() == Some(Path::new("/")) => {
                bwrap.arg("--symlink").args([target.as_path(), path]);
            }
            _ => {
                bwrap.arg("--ro-bind-try").args([path, path]);
            }
        }
    }
    bwrap.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    for mount in &runtime.mounts {
        bwrap.arg("--ro-bind").args([mount, mount]);
    }
    bwrap
        .arg("--ro-bind")
        .args([source.path(&file), Path::new("/tmp").join(&file)])
        .args(["--chdir", "/tmp", "--"]);
    bwrap.args(["/bin/sh", "-c", &stages(language, runtime, &file)]).output().unwrap()
}

/// The stages as one line of shell.
fn stages(language: Language, runtime: &Runtime, file: &str) -> String {
    let quoted = |word: &&str| format!("'{}'", filled(word, runtime, file).to_str().unwrap());
    let command = |argv: &[&str]| argv.iter().map(quoted).collect::<Vec<_>>().join(" ");
    language.stages.iter().map(|stage| command(stage.argv)).collect::<Vec<_>>().join(" && ")
}

fn filled(word: &str, runtime: &Runtime, file: &str) -> OsString {
    let program = runtime.program.to_str().unwrap();
    let word = word.replace("{runtime}", program).replace("{source}", &format!("/tmp/{file}"));
    word.replace("{program}", "/tmp/program")
        .replace("{heap_mb}", "160")
        .replace("{classpath}", ".")
        .replace("{main_class}", "Main")
        .replace("{cpus}", "1")
        .replace("{tmp}", "/tmp")
        .into()
}

/// A test's own directory, which others can read, because a runtime must be readable.
struct Place {
    root: PathBuf,
}

impl Place {
    fn new() -> Place {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("belljar-runtimes-{}-{count}", std::process::id()));
        fs::create_dir(&root).unwrap();
        fs::create_dir(root.join("home")).unwrap();
        Place { root: root.canonicalize().unwrap() }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    fn settings(&self, searched: &str) -> RuntimeSettings {
        RuntimeSettings {
            search_path: self.path(searched).into(),
            home: Some(self.path("home")),
            ..RuntimeSettings::default()
        }
    }

    fn runtimes(&self, searched: &str) -> Runtimes {
        Runtimes::new(self.settings(searched))
    }

    fn script(&self, relative: &str, body: &str) {
        let path = self.parent_of(relative);
        fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn copy_program(&self, from: &str, relative: &str) {
        let path = self.parent_of(relative);
        let draft = path.with_extension("draft");
        fs::copy(from, &draft).unwrap();
        fs::rename(&draft, &path).unwrap();
    }

    fn link(&self, relative: &str, target: &Path) {
        symlink(target, self.parent_of(relative)).unwrap();
    }

    fn parent_of(&self, relative: &str) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A shim that counts how often it was asked.
struct Counted {
    place: Place,
    /// The program cannot write, but it can open a file.
    opened: OwnedFd,
    seen: Cell<usize>,
}

impl Counted {
    fn new() -> Counted {
        let place = Place::new();
        place.copy_program("/usr/bin/lua5.4", "manager/versions/5.4/bin/lua");
        let note = place.path("asked");
        place.script(
            "manager/shims/lua",
            &format!("read -r _ < {}\nexec \"${{0%/shims/*}}/versions/5.4/bin/lua\" \"$@\"", note.display()),
        );
        fs::write(&note, "\n").unwrap();
        let opened = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        // Events that are the same as the one before are counted as one, so opening and closing alternate.
        let both = inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE_NOWRITE;
        inotify::add_watch(&opened, &note, both).unwrap();
        Counted { place, opened, seen: Cell::new(0) }
    }

    fn settings(&self) -> RuntimeSettings {
        RuntimeSettings { cache_dir: Some(self.place.path("cache")), ..self.place.settings("manager/shims") }
    }

    fn find(&self) -> Runtime {
        Runtimes::new(self.settings()).find(language("lua")).unwrap()
    }

    fn count(&self) -> usize {
        let mut space = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.opened, &mut space);
        while let Ok(event) = events.next() {
            if event.events().contains(inotify::ReadFlags::OPEN) {
                self.seen.set(self.seen.get() + 1);
            }
        }
        self.seen.get()
    }

    fn entry(&self) -> PathBuf {
        let mut entries = fs::read_dir(self.place.path("cache")).unwrap();
        let entry = entries.next().unwrap().unwrap().path();
        assert!(entries.next().is_none());
        entry
    }
}
