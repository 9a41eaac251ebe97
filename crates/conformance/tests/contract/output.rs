//! Output: passed through or kept, bounded either way.

use belljar_conformance::{Cell, from_base64, promise};
use rustix::process::Signal;

fn beyond_the_cap_head_and_tail_are_kept_and_one_line_tells_the_rest(cell: &Cell) {
    let code = "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done; echo short >&2; exit 5";
    let ran = cell.limit("output-limit", "200").run(code);
    assert_eq!(ran.exit_code, 5, "it is not killed for it");
    assert!(ran.stdout_truncated && !ran.stderr_truncated);
    assert!(
        ran.stdout.starts_with("line 0\nline 1\n") && ran.stdout.ends_with("line 998\nline 999\n"),
        "{}",
        ran.stdout
    );
    let whole: usize = (0..1000).map(|i| format!("line {i}\n").len()).sum();
    let notices: Vec<_> =
        ran.stdout.lines().filter(|line| line.contains(&(whole - 200).to_string())).collect();
    assert_eq!(notices.len(), 1, "one line says that {} bytes are missing: {}", whole - 200, ran.stdout);
    assert_eq!(ran.stderr, "short\n");
    let full = cell.run(code);
    assert!(!full.stdout_truncated && full.stdout.len() == whole, "the control");
}

promise!(beyond_the_cap_head_and_tail_are_kept_and_one_line_tells_the_rest);

fn each_stream_has_its_own_cap(cell: &Cell) {
    let ran = cell.limit("output-limit", "1K").run("head -c 5000 /dev/zero | tr '\\0' x >&2; echo fine");
    assert!(!ran.stdout_truncated && ran.stderr_truncated);
    assert_eq!(ran.ok(), "fine\n");
    assert!(ran.stderr.len() < 1500, "{}", ran.stderr.len());
}

promise!(each_stream_has_its_own_cap);

fn invalid_utf8_is_replaced_in_json_and_passed_through_otherwise(cell: &Cell) {
    let code = "printf 'a\\377\\376b\\303\\274\\000c'";
    assert_eq!(cell.run(code).ok(), "a\u{fffd}\u{fffd}bü\0c");
    assert_eq!(cell.plain(code).stdout, b"a\xff\xfeb\xc3\xbc\x00c");
}

promise!(invalid_utf8_is_replaced_in_json_and_passed_through_otherwise);

fn output_is_there_byte_for_byte_on_request(cell: &Cell) {
    let code = "printf 'a\\377b'; printf '\\376' >&2";
    let ran = cell.flag("--base64").run(code);
    let bytes = |field: &Option<String>| from_base64(field.as_deref().expect("it was asked for"));
    assert_eq!(
        (bytes(&ran.stdout_base64), bytes(&ran.stderr_base64)),
        (b"a\xffb".to_vec(), b"\xfe".to_vec())
    );
    let without = cell.run(code);
    assert!(without.stdout_base64.is_none() && without.stderr_base64.is_none());
}

promise!(output_is_there_byte_for_byte_on_request);

fn without_json_both_streams_pass_through(cell: &Cell) {
    let plain = cell.plain("echo out; echo err >&2; exit 3");
    assert_eq!(
        (plain.code(), plain.stdout_text().as_str(), plain.stderr_without_warnings().as_str()),
        (3, "out\n", "err\n")
    );
}

promise!(without_json_both_streams_pass_through; cold: "it is about the command line");

fn output_passes_through_live(cell: &Cell) {
    let mut running = cell.limit("timeout", "200s").start_plain("echo first; sleep 200; echo second");
    running.wait_for("first\n");
    assert!(running.is_running(), "before the program ends");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().stdout_text(), "first\n");
}

promise!(output_passes_through_live; cold: "it is about the command line");

fn pass_through_is_bounded_too(cell: &Cell) {
    let plain =
        cell.limit("output-limit", "1K").plain("head -c 100000 /dev/zero | tr '\\0' x; echo END; exit 4");
    assert_eq!(plain.code(), 4);
    assert!(plain.stdout.len() < 2000 && plain.stdout_text().ends_with("END\n"), "{}", plain.stdout.len());
}

promise!(pass_through_is_bounded_too; cold: "it is about the command line");

fn a_reader_that_goes_away_ends_the_run(cell: &Cell) {
    let waived: String = cell.waived().iter().map(|waived| format!(" --waive {waived}")).collect();
    // It is waited for, and not for so long.
    let line = format!(
        "belljar run sh -c yes --timeout 200s --backend {}{waived} 2>/dev/null | head -n 1",
        cell.backend()
    );
    assert_eq!(cell.in_a_terminal(&line).trim(), "y");
}

promise!(a_reader_that_goes_away_ends_the_run; cold: "it is about the command line");

fn colours_are_for_terminals_that_want_them(cell: &Cell) {
    let line = format!("TERM=xterm belljar run nothing -c '' --backend {}", cell.backend());
    let (coloured, plain) = (cell.in_a_terminal(&line), cell.in_a_terminal(&format!("NO_COLOR=1 {line}")));
    assert!(coloured.contains('\x1b') && coloured.contains("nothing"), "the control: {coloured:?}");
    assert!(!plain.contains('\x1b') && plain.contains("error: "), "{plain:?}");
}

promise!(colours_are_for_terminals_that_want_them; cold: "it is about the command line");

fn escapes_do_not_reach_a_terminal(cell: &Cell) {
    let code = "printf '\\033]0;title\\007\\033[31mred\\033[0m\\033[2J\\n'; printf '\\033[6n' >&2";
    let waived: String = cell.waived().iter().map(|waived| format!(" --waive {waived}")).collect();
    let words = format!(
        "belljar run sh -c {} --backend {}{waived}",
        belljar_conformance::quote(code),
        cell.backend()
    );
    let shown = cell.in_a_terminal(&words);
    assert!(shown.contains("red"), "{shown:?}");
    assert!(
        !shown.contains("\x1b]")
            && !shown.contains("\x1b[2J")
            && !shown.contains("\x1b[6n")
            && !shown.contains('\x07'),
        "{shown:?}"
    );
    assert!(cell.plain(code).stdout.contains(&0x1b), "the control: a pipe gets the bytes");
}

promise!(escapes_do_not_reach_a_terminal; cold: "it is about the command line");
