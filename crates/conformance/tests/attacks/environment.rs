//! E: information about the host, its users and other runs.

use belljar_conformance::{Cell, Scratch, Start, outside_with_env, promise, secret};

fn hex(word: &str) -> String {
    word.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// E1
fn a_secret_of_the_callers_is_in_no_environment_and_no_memory(cell: &Cell) {
    let word = secret();
    let scan = format!("scan {}", hex(&word));
    let control = outside_with_env(&scan, &[("SECRET", &word)]);
    assert!(control[0].ret >= 2, "the control: outside it is found in both: {control:?}");
    let seen = cell.caller_env("SECRET", &word).caller_env("AWS_SECRET_ACCESS_KEY", &word).probe(&scan);
    assert_eq!((seen.ret, seen.errno), (0, 0), "{seen:?}");
}

promise!(a_secret_of_the_callers_is_in_no_environment_and_no_memory; needs privileges);

/// E2
fn variables_that_steer_a_loader_reach_neither_belljar_nor_the_code(cell: &Cell) {
    let scratch = Scratch::new();
    let marker = scratch.path().join("loaded");
    let hook = scratch.file("hook.sh", format!("touch {}\n", marker.display()));
    let module = scratch.file("sitecustomize.py", format!("open('{}', 'w')\n", marker.display()));
    let mut cell = cell.clone();
    for (name, value) in [
        ("BASH_ENV", hook.to_str().unwrap()),
        ("ENV", hook.to_str().unwrap()),
        ("PYTHONPATH", module.parent().unwrap().to_str().unwrap()),
        ("NODE_OPTIONS", "--no-such-option"),
        ("PERL5OPT", "-Mno_such"),
        ("RUBYOPT", "-rno_such"),
        ("PYTHONSTARTUP", module.to_str().unwrap()),
    ] {
        cell = cell.caller_env(name, value);
    }
    assert_eq!(cell.language("bash").run("echo ${BASH_ENV-unset}").ok(), "unset\n");
    assert_eq!(cell.language("python").run("import os; print(os.environ.get('PYTHONPATH'))").ok(), "None\n");
    assert_eq!(cell.language("javascript").run("console.log(process.env.NODE_OPTIONS)").ok(), "undefined\n");
    assert_eq!(cell.language("perl").run("print 1").ok(), "1");
    assert!(!marker.exists(), "nothing of it ran on the host");
}

promise!(variables_that_steer_a_loader_reach_neither_belljar_nor_the_code);

/// E2
fn a_loader_variable_for_the_run_applies_to_the_code_alone(cell: &Cell) {
    let ran = cell
        .option("--env", "LD_PRELOAD=/sandbox/none.so")
        .run("echo $LD_PRELOAD; tr '\\0' '\\n' < /proc/1/environ 2>/dev/null | grep -c LD_PRELOAD; true");
    assert!(ran.ok().starts_with("/sandbox/none.so\n"), "{ran:?}");
    assert!(!ran.stdout.contains("\n1\n"), "PID 1 has it not: {ran:?}");
}

promise!(a_loader_variable_for_the_run_applies_to_the_code_alone; cold: "the environment is what the runtime was started with");

/// E4, K19
fn users_and_names_are_made_up(cell: &Cell) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let passwd = cell
        .run("cat /etc/passwd; echo; id -un; uname -n; cat /etc/hostname 2>/dev/null; cat /etc/hosts")
        .ok()
        .to_owned();
    assert!(passwd.contains("sandbox") && passwd.contains("belljar"), "{passwd}");
    assert!(!passwd.split_whitespace().any(|word| word == host), "{passwd}");
    let real = std::fs::read_to_string("/etc/passwd").unwrap();
    let users = cell.run("wc -l < /etc/passwd").ok().trim().parse::<usize>().unwrap();
    assert!(users < 6 && real.lines().count() > 6, "{users}");
}

promise!(users_and_names_are_made_up; needs filesystem);

/// E6
fn fresh_memory_holds_nothing_of_a_run_before(cell: &Cell) {
    let word = secret();
    let fill = format!(
        "import os\nm = b'{word}' * 1000000\nopen('/tmp/f', 'wb').write(m[:8000000])\nprint(len(m) > 0)"
    );
    assert_eq!(cell.language("python").run(&fill).ok(), "True\n");
    let look = r"
import mmap
m = mmap.mmap(-1, 64 << 20)
print(any(m[i] for i in range(0, len(m), 4096)))
open('/tmp/f', 'wb').truncate(8000000)
print(any(open('/tmp/f', 'rb').read()))";
    assert_eq!(cell.language("python").run(look).ok(), "False\nFalse\n");
}

promise!(fresh_memory_holds_nothing_of_a_run_before; needs filesystem);

/// E7
fn seeds_differ_from_run_to_run(cell: &Cell) {
    let code =
        "import random, uuid, secrets; print(random.random(), uuid.uuid4(), secrets.token_hex(8), hash('x'))";
    let runs: Vec<Vec<String>> = (0..2)
        .map(|_| cell.language("python").run(code).ok().split_whitespace().map(str::to_owned).collect())
        .collect();
    // Strings are hashed with a seed that is drawn when the runtime boots, and a zygote boots once (docs/warm.md).
    let own = if cell.start() == Start::Cold { 4 } else { 3 };
    for (one, other) in runs[0].iter().zip(&runs[1]).take(own) {
        assert_ne!(one, other);
    }
    assert_eq!(runs[0].len(), 4);
}

promise!(seeds_differ_from_run_to_run);

/// E9
fn messages_of_a_failed_run_name_no_path_of_the_host(cell: &Cell) {
    let scratch = Scratch::new();
    let file = scratch.file("broken.py", "def f(:\n");
    let ran = cell.language("python").run_file(&file);
    let host = scratch.path().to_str().unwrap();
    assert!(ran.stderr.contains("broken.py") && !ran.stderr.contains(host), "{}", ran.stderr);
    let ran = cell.language("c").limit("memory", "512M").run("int main(");
    assert!(!ran.stderr.contains("/tmp/belljar"), "{}", ran.stderr);
}

promise!(messages_of_a_failed_run_name_no_path_of_the_host; needs filesystem; cold: "it is about the command line");
