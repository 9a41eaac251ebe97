//! What is shown of connections while they are made, on the command line and by a server.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::client::{PRELUDE, evaluate, finish, run_with};
use crate::internet::{GOOD, OTHER, PRIVATE};
use crate::server::Server;
use crate::world::WORLD;

/// `belljar run` with a network, as a person starts it.
fn belljar(network: &str, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command
        .args(["run", "--config"])
        .arg(WORLD.file("belljar.toml"))
        .args(["--network", network, "--timeout", "60s"])
        .args(options)
        .env("BELLJAR_BACKEND", "native")
        .env("BELLJAR_STATE_DIR", WORLD.file("state"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn python(mut command: Command, code: &str) -> Command {
    command.args(["python", "-c"]).arg(format!("{PRELUDE}\n{code}"));
    command
}

/// What it says about the network, line by line.
fn told(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    network_lines(&text)
}

fn network_lines(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix("info: network: ")).map(str::to_owned).collect()
}

/// Connections of each kind. It ends when it has read a line.
fn each_kind() -> String {
    format!(
        "print(get('good.test'))
print(connect('{OTHER}', 80), connect('{PRIVATE}', 80), connect('evil.test', 443), connect('{GOOD}', 1))
s = socket.create_connection(('{GOOD}', 7)); s.sendall(b'x' * 1234); print(len(s.recv(9999)) > 0, flush=True)
sys.stdin.readline()
"
    )
}

const OF_EACH_KIND: &str = "allow:good.test,93.184.216.34";

/// How the lines begin that it should say before the program ends, and the others. A name is looked up for each kind of address,
/// which may be told as one.
fn expected() -> (Vec<String>, Vec<String>) {
    let before = [
        "good.test:80 allowed".to_owned(),
        format!("{OTHER}:80 refused (not allowed)"),
        format!("{PRIVATE}:80 refused (a private address)"),
        "evil.test refused (not allowed)".to_owned(),
        "good.test:1 failed (no answer, or not accepted)".to_owned(),
        "good.test:7 allowed".to_owned(),
    ];
    let ends = ["good.test:80 closed, ".to_owned(), "good.test:7 closed, 1.2 kB up, ".to_owned()];
    (before.to_vec(), ends.to_vec())
}

/// Reads what a command says until everything is there that it should say while its program runs; then lets the program end.
fn hear_while_it_runs(mut child: Child) -> Vec<String> {
    let (before, ends) = expected();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut heard = Vec::new();
    while !has_all(&heard, &before) {
        let line = lines.next().unwrap_or_else(|| panic!("it ended, having said {heard:?}"));
        heard.extend(network_lines(&line));
    }
    assert!(child.try_wait().unwrap().is_none(), "the program waits for a line");
    writeln!(child.stdin.take().unwrap()).unwrap();
    let rest: Vec<_> = lines.collect();
    heard.extend(network_lines(&rest.join("\n")));
    assert!(child.wait().unwrap().success(), "{rest:?}");
    assert!(has_all(&heard, &ends), "{heard:?}");
    heard
}

fn has_all(heard: &[String], beginnings: &[String]) -> bool {
    beginnings.iter().all(|beginning| heard.iter().any(|line| line.starts_with(beginning)))
}

pub(crate) fn verbose_shows_each_connection_as_it_is_made() {
    let mut command = python(belljar(OF_EACH_KIND, &["-v", "--stdin", "-"]), &each_kind());
    let heard = hear_while_it_runs(command.spawn().unwrap());
    let allowed: Vec<_> = heard.iter().filter(|line| line.ends_with(" allowed")).collect();
    assert_eq!(allowed, ["good.test:80 allowed", "good.test:1 allowed", "good.test:7 allowed"], "{heard:?}");
    // Whoever did not ask for it hears nothing of it.
    let told = told(&mut python(belljar(OF_EACH_KIND, &[]), "connect('10.9.0.5', 80)"));
    assert!(told.is_empty(), "{told:?}");
}

pub(crate) fn a_server_tells_of_connections_as_they_are_made() {
    let server = Server::start(&format!("[server.allow]\nnetwork = \"{OF_EACH_KIND}\"\n"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["run", "-v", "--url", &server.url, "--network", OF_EACH_KIND, "--timeout", "60s"]);
    // Its standard input is empty, so that it ends by itself.
    let told = told(&mut python(command, &each_kind()));
    let (before, ends) = expected();
    assert!(has_all(&told, &before) && has_all(&told, &ends), "{told:?}");
}

/// A box that does nothing but connect, to a different port each time.
pub(crate) fn thousands_of_connections_are_counted_rather_than_told() {
    const MANY: u64 = 3000;
    let code = format!("for port in range(1, {MANY} + 1): connect('{PRIVATE}', port)");
    let told = told(&mut python(belljar(&format!("allow:{GOOD}"), &["-v"]), &code));
    let number =
        |line: &str, word: &str| -> Option<u64> { line.strip_suffix(word)?.rsplit(' ').next()?.parse().ok() };
    let count = |line: &String| number(line, " times").or(number(line, " more events")).unwrap_or(1);
    assert_eq!(told.iter().map(count).sum::<u64>(), MANY, "each is told or counted");
    assert!(told.iter().any(|line| line.ends_with(" more events")), "{told:?}");
    assert!(told.len() < 2000, "{}", told.len());
}

/// A name may have any bytes.
pub(crate) fn names_from_inside_cannot_drive_a_terminal() {
    let code = r"
label = b'\x1b[31m\n\r\x7fx'
question = b'\0\7\1\0\0\1\0\0\0\0\0\0' + bytes([len(label)]) + label + b'\0\0\1\0\1'
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('192.0.2.1', 53))
s.send(question)
print(s.recv(512)[3] & 15)
";
    let output = python(belljar(&format!("allow:{GOOD}"), &["-v"]), code).output().unwrap();
    assert_eq!(output.stdout, b"3\n", "NXDOMAIN");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(network_lines(&text), ["?[31m???x refused (not allowed)"], "{text}");
    assert!(!text.contains('\x1b'));
}

pub(crate) fn quic_is_carried_where_a_rule_names_it() {
    let expressions = [
        format!("datagram('{GOOD}', 443)"),
        "datagram('good.test', 443)".to_owned(),
        format!("datagram('{OTHER}', 443)"),
        format!("connect('{GOOD}', 443)"),
    ];
    let expressions = expressions.each_ref().map(String::as_str);
    let (lines, ran) = evaluate("allow:good.test:443/udp", &expressions);
    // By its address only after its name was looked up, and nothing but datagrams.
    assert_eq!(lines, ["ECONNREFUSED", "ping", "ECONNREFUSED", "ECONNREFUSED"]);
    assert_eq!(ran.denied()[0], (GOOD.to_owned(), 443, "QUIC is switched off".to_owned()));
    let (lines, _) = evaluate(&format!("allow:{GOOD}:443/udp,{GOOD}:443"), &expressions);
    assert_eq!(lines, ["ping", "no such name", "ECONNREFUSED", "connected"]);
}

pub(crate) fn a_rate_is_kept_and_nothing_is_lost() {
    const RATE: usize = 512 << 10;
    const BYTES: usize = 1 << 20;
    let config = WORLD.file("slow.toml");
    let resolver = "93.184.216.34:53";
    std::fs::write(&config, format!("[egress]\nresolver = \"{resolver}\"\nbytes-per-second = {RATE}\n"))
        .unwrap();
    let code = format!(
        "import urllib.request
began = time.monotonic()
print(len(urllib.request.urlopen('http://good.test/bytes/{BYTES}').read()))
down = time.monotonic() - began
began = time.monotonic()
s = socket.create_connection(('{GOOD}', 11))
s.sendall(b'x' * {BYTES})
s.shutdown(socket.SHUT_WR)
print(s.recv(100).decode())
up = time.monotonic() - began
print(down, up)
"
    );
    let ran = finish(&mut run_with(&config, "allow:good.test,93.184.216.34:11", &code));
    let lines = ran.lines();
    assert_eq!(lines[..2], [BYTES.to_string(), BYTES.to_string()], "{}", ran.result);
    // A second's worth passes at once, and the rest takes as long as it must: never less.
    let least = (BYTES - RATE - (192 << 10)) as f64 / RATE as f64;
    for took in lines[2].split(' ') {
        assert!(took.parse::<f64>().unwrap() >= least, "{lines:?}");
    }
}
