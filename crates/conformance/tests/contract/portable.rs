//! The contract told in Python, for every backend that has it, whether or not there is a shell in its boxes.

use belljar_conformance::{Cell, Scratch, Status, from_base64, portable, secret};

fn a_program_that_never_ends_is_ended_in_time_and_what_it_printed_is_kept(cell: &Cell) {
    for rest in ["while True: pass", "import time; time.sleep(1000)"] {
        let code = format!("print('first', flush=True)\n{rest}");
        let ran = cell.run_until_its_timeout(&code, |ran| !ran.stdout.is_empty());
        assert_eq!(
            (ran.status, ran.exit_code, ran.timed_out),
            (Status::TimedOut, 124, true),
            "{rest}: {ran:?}"
        );
        assert_eq!(ran.stdout, "first\n", "{rest}");
        assert!(ran.stderr.contains("Execution timed out"), "{rest}: {}", ran.stderr);
    }
    // The control: the same beginning, and an end.
    assert_eq!(cell.run("print('first', flush=True)").ok(), "first\n");
}

portable!(a_program_that_never_ends_is_ended_in_time_and_what_it_printed_is_kept);

fn cpu_time_runs_out_for_a_program_that_computes_and_not_for_one_that_sleeps(cell: &Cell) {
    let frugal = cell.limit("cpu-time", "1s").limit("timeout", "200s");
    let ran = frugal.run("while True: pass");
    assert_eq!((ran.status, ran.exit_code), (Status::TimedOut, 124), "{ran:?}");
    assert_eq!(frugal.run("import time; time.sleep(1.5); print('rested')").ok(), "rested\n");
}

portable!(cpu_time_runs_out_for_a_program_that_computes_and_not_for_one_that_sleeps; needs cpu);

fn memory_beyond_the_limit_ends_the_program(cell: &Cell) {
    let ran =
        cell.limit("memory", "64M").run("kept = []\nwhile True: kept.append(bytearray(b'x' * (1 << 20)))");
    assert_eq!((ran.status, ran.exit_code, ran.oom_killed), (Status::OutOfMemory, 137, true), "{ran:?}");
    assert!(ran.stderr.contains("Memory limit exceeded"), "{}", ran.stderr);
    let control = cell.limit("memory", "64M").run("kept = bytearray(b'x' * (8 << 20)); print(len(kept))");
    assert_eq!(control.ok(), "8388608\n");
}

portable!(memory_beyond_the_limit_ends_the_program; needs memory);

fn the_disk_is_full_when_it_is_full_and_counts_files_too(cell: &Cell) {
    let small = cell.limit("disk", "4M");
    let code = r"
import os
def fill(path):
    try:
        with open(path, 'wb', buffering=0) as file:
            written = 0
            while written < 64 << 20: written += file.write(b'x' * 65536)
    except OSError as error: return 'full'
    return 'not full'
print(fill('a'), fill('/tmp/b'))
os.remove('a'); os.path.exists('/tmp/b') and os.remove('/tmp/b')
made = 0
try:
    while made < 100_000:
        open(f'/tmp/{made}', 'w').close(); made += 1
except OSError: pass
print(0 < made < 100_000)";
    assert_eq!(small.run(code).ok(), "full full\nTrue\n");
    let control =
        small.run("open('a', 'wb').write(b'x' * (2 << 20)); import os; print(os.stat('a').st_size)");
    assert_eq!(control.ok(), "2097152\n");
}

portable!(the_disk_is_full_when_it_is_full_and_counts_files_too; needs disk; cold: "the disk is made with the box");

fn a_flood_of_output_is_cut_in_the_middle_and_the_program_goes_on(cell: &Cell) {
    let code = r"
import sys
for number in range(200_000): sys.stdout.write(f'{number:09}\n')
sys.stderr.write('done')";
    let ran = cell.limit("output-limit", "64K").limit("timeout", "60s").run(code);
    let told = ran.ok();
    assert!(told.starts_with("000000000\n") && told.ends_with("000199999\n"), "head and tail");
    assert!(ran.stdout_truncated && told.len() < 80_000, "{} bytes", told.len());
    assert_eq!((ran.stderr.as_str(), ran.stderr_truncated), ("done", false));
}

portable!(a_flood_of_output_is_cut_in_the_middle_and_the_program_goes_on);

fn files_that_are_asked_for_come_back(cell: &Cell) {
    let code = r"
import os
os.makedirs('out/deep')
open('out/deep/a.bin', 'wb').write(bytes(range(256)))
open('b.txt', 'w').write('text')
os.symlink('/etc/passwd', 'out/link.bin')";
    let ran = cell.option("--collect", "out/**").option("--collect", "*.txt").run(code);
    ran.ok();
    let files = ran.files.as_deref().expect("files were asked for");
    let names: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, ["b.txt", "out/deep/a.bin"]);
    assert_eq!(from_base64(&files[1].content_base64), (0..=255).collect::<Vec<u8>>());
}

portable!(files_that_are_asked_for_come_back; needs filesystem);

fn the_workspace_is_read_and_not_written(cell: &Cell) {
    let scratch = Scratch::new();
    let _ = scratch.file("data/one.txt", "one");
    let _ = scratch.file("main.py", "not this");
    std::os::unix::fs::symlink("data/one.txt", scratch.path().join("link")).unwrap();
    let code = r"
import os
print(os.getcwd(), open('data/one.txt').read(), open('link').read(), sorted(os.listdir('data')))
for act in (lambda: open('new', 'w'), lambda: os.remove('data/one.txt'), lambda: open('data/one.txt', 'a')):
    try: act(); print('written')
    except OSError: print('refused')
open('/tmp/x', 'w').write('y'); print(open('/tmp/x').read())";
    let ran = cell.option("--workspace", scratch.path().to_str().unwrap()).run(code);
    assert_eq!(ran.ok(), "/work one one ['one.txt']\nrefused\nrefused\nrefused\ny\n");
    assert_eq!(std::fs::read_to_string(scratch.path().join("data/one.txt")).unwrap(), "one");
    assert!(!scratch.path().join("new").exists());
}

portable!(the_workspace_is_read_and_not_written; needs filesystem; cold: "a workspace is mounted while the box is made");

fn nothing_of_the_host_is_seen_through_paths_or_links(cell: &Cell) {
    let (scratch, workspace) = (Scratch::new(), Scratch::new());
    let secret = secret();
    let hidden = scratch.file("hidden", &secret);
    std::os::unix::fs::symlink(&hidden, workspace.path().join("absolute")).unwrap();
    let up = format!("{}{}", "../".repeat(12), hidden.to_str().unwrap());
    std::os::unix::fs::symlink(&up, workspace.path().join("relative")).unwrap();
    let _ = workspace.file("seen", "seen");
    assert_eq!(std::fs::read_to_string(workspace.path().join("absolute")).unwrap(), secret, "the control");
    let code = format!(
        r"
for path in ['seen', 'absolute', 'relative', {hidden:?}, {up:?}, '/proc/self/environ', '/proc/1/root{}']:
    try: print(open(path).read())
    except OSError: print('no')",
        hidden.to_str().unwrap()
    );
    let cell = cell.caller_env("HIDDEN", &secret).option("--workspace", workspace.path().to_str().unwrap());
    let ran = cell.run(&code);
    assert!(ran.ok().starts_with("seen\n"), "{ran:?}");
    assert!(!ran.stdout.contains(&secret), "{ran:?}");
}

portable!(nothing_of_the_host_is_seen_through_paths_or_links; needs filesystem; cold: "a workspace is mounted while the box is made");

fn no_listener_of_the_host_can_be_reached(cell: &Cell) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::net::TcpStream::connect(("127.0.0.1", port)).expect("the control");
    let code = format!(
        r"
import socket
try:
    socket.socket().connect(('127.0.0.1', {port}))
    print('reached')
except (AttributeError, OSError): print('not reached')"
    );
    assert_eq!(cell.run(&code).ok(), "not reached\n");
}

portable!(no_listener_of_the_host_can_be_reached; needs network);

fn the_environment_is_the_contracts_and_the_callers_alone(cell: &Cell) {
    let code = "import os\nprint(os.environ.get('HOME'), os.environ.get('TZ'), os.environ.get('GIVEN'), 'KEPT' in os.environ)";
    let ran = cell.caller_env("KEPT", "back").option("--env", "GIVEN=x y").run(code);
    assert_eq!(ran.ok(), "/sandbox UTC x y False\n");
}

portable!(the_environment_is_the_contracts_and_the_callers_alone; needs filesystem; cold: "the environment is what the runtime was started with");

fn a_failing_program_is_a_result_with_its_own_status_and_traceback(cell: &Cell) {
    let ran = cell.run("import sys\nprint('out')\nraise ValueError('my fault')");
    assert_eq!(ran.exited(1), "out\n");
    assert!(ran.stderr.contains("main.py") && ran.stderr.contains("ValueError: my fault"), "{}", ran.stderr);
    assert_eq!(cell.run("import sys; sys.exit(42)").exited(42), "");
}

portable!(a_failing_program_is_a_result_with_its_own_status_and_traceback);

fn endless_recursion_is_an_exception_or_at_least_an_end(cell: &Cell) {
    let code = "def f(): f()\ntry: f()\nexcept RecursionError: print('caught')";
    assert_eq!(cell.run(code).ok(), "caught\n");
}

portable!(endless_recursion_is_an_exception_or_at_least_an_end);
