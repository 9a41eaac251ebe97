//! Secrets outside the box: their hosts get them, and nobody else does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::client::{Ran, configured, finish};
use crate::world::WORLD;

/// All of these.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("the_host_of_a_secret_gets_it_in_every_request", the_host_of_a_secret_gets_it_in_every_request),
    ("nobody_else_gets_a_secret", nobody_else_gets_a_secret),
    ("a_run_that_does_not_name_a_secret_does_not_get_it", a_run_that_does_not_name_a_secret_does_not_get_it),
    ("a_host_that_cannot_show_who_it_is_gets_nothing", a_host_that_cannot_show_who_it_is_gets_nothing),
    (
        "a_secret_is_nowhere_in_the_box_nor_in_what_is_kept",
        a_secret_is_nowhere_in_the_box_nor_in_what_is_kept,
    ),
    (
        "a_secret_that_cannot_be_used_is_an_error_that_says_why",
        a_secret_that_cannot_be_used_is_an_error_that_says_why,
    ),
    ("curl_and_node_have_the_secret_added", curl_and_node_have_the_secret_added),
    ("a_key_needs_the_right_to_use_a_secret", a_key_needs_the_right_to_use_a_secret),
];

/// The value, which must not be found anywhere; the code of the tests has it backwards.
const VALUE: &str = "sk-live-8f14e45fceea167a5a36dedd4bea2543";
const VARIABLE: &str = "BELLJAR_TEST_KEY";

/// What the code of these runs can use.
const PRELUDE: &str = r#"
import errno, glob, hashlib, http.client, json, os, socket, ssl, urllib.request
socket.setdefaulttimeout(20)
value = "3452aeb4dded63a5a761aeecf54e41f8-evil-ks"[::-1]
digest = lambda text: hashlib.sha256(text.encode()).hexdigest()
def kind(answer):
    seen = json.loads(answer)
    known = {digest("Bearer " + value): "secret", digest(value): "bare", digest("mine"): "mine"}
    return [name.lower() + "=" + known.get(hash, "unknown") for name, hash in seen["secrets"]]
def get(url, **headers):
    try:
        return kind(urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read())
    except OSError as fault:
        reason = getattr(fault, "reason", fault)
        return errno.errorcode.get(getattr(reason, "errno", None), type(reason).__name__)
def talk(name, data, port=443):
    plain = socket.create_connection((name, port))
    with ssl.create_default_context().wrap_socket(plain, server_hostname=name, suppress_ragged_eofs=False) as s:
        s.sendall(data)
        seen = b""
        try:
            while part := s.recv(65536):
                seen += part
        except OSError as fault:
            return seen, 'broken off'
        return seen, 'closed'
def request(line, *headers, host="api.test", body=b""):
    return "\r\n".join([line, "Host: " + host, *headers, "", ""]).encode() + body
"#;

fn command(network: &str, secrets: &[&str]) -> Command {
    let mut command = configured("secrets.toml", network);
    command.args(secrets.iter().flat_map(|host| ["--secret", host]));
    command.args(["--timeout", "60s"]).env(VARIABLE, VALUE);
    command
}

/// Runs Python code. The value is nowhere in the result.
fn run(network: &str, secrets: &[&str], code: &str) -> Ran {
    let ran = finish(command(network, secrets).args(["python", "-c", &format!("{PRELUDE}\n{code}")]));
    assert!(!ran.result.to_string().contains(VALUE), "{}", ran.result);
    ran
}

/// The configuration of these runs. Every run is recorded.
pub(crate) fn configuration(dir: &Path) -> String {
    std::fs::write(dir.join("key"), format!("{VALUE}\n")).unwrap();
    let dir = dir.display();
    format!(
        "[egress]
resolver = \"93.184.216.34:53\"
ca-file = \"{dir}/ca.pem\"
[audit]
enabled = true
[secrets.\"api.test\"]
header = \"Authorization\"
value-from = \"env:{VARIABLE}\"
format = \"Bearer {{}}\"
[secrets.\"api.test:8443\"]
header = \"X-Api-Key\"
value-from = \"file:{dir}/key\"
[secrets.\"wrong.test\"]
header = \"Authorization\"
value-from = \"env:{VARIABLE}\"
[secrets.\"self.test\"]
header = \"Authorization\"
value-from = \"env:{VARIABLE}\"
[secrets.\"unset.test\"]
header = \"Authorization\"
value-from = \"env:BELLJAR_TEST_UNSET\"
"
    )
}

fn the_host_of_a_secret_gets_it_in_every_request() {
    let code = "
print(get('https://api.test/'))
print(get('https://api.test/', authorization='mine'))
print(get('https://api.test:8443/', **{'X-Api-Key': 'mine'}))
c = http.client.HTTPSConnection('api.test')
for body, headers in [(None, {}), ('text', {}), (iter([b'a', b'bc']), {'Transfer-Encoding': 'chunked'})]:
    c.request('POST', '/', body=body, headers=headers, encode_chunked=bool(headers))
    answer = c.getresponse().read()
    print(kind(answer), json.loads(answer)['body'])
twice = request('GET / HTTP/1.1', 'AUTHORIZATION: mine', 'authorization:mine', 'X-A: b')
seen, end = talk('api.test', twice + request('GET /close HTTP/1.1'))
print([kind(part.split(b'\\r\\n\\r\\n')[1]) for part in seen.split(b'HTTP/1.1 200 OK')[1:]], end)
c.request('POST', '/bytes/3000000', body=b'y' * 2000000)
answer = json.loads(c.getresponse().read())
print(answer['length'], len(answer['filling']))
seen, end = talk('api.test', request('GET / HTTP/1.0'))
print(kind(seen.split(b'\\r\\n\\r\\n')[1]), end)
";
    let ran = run("allow:api.test:443,api.test:8443", &["api.test", "api.test:8443"], code);
    let secret = "['authorization=secret']";
    let expected = [
        secret,
        secret,
        "['x-api-key=bare']",
        &format!("{secret} "),
        &format!("{secret} text"),
        &format!("{secret} abc"),
        &format!("[{secret}, {secret}] closed"),
        "2000000 3000000",
        &format!("{secret} closed"),
    ];
    assert_eq!(ran.lines(), expected, "{}", ran.result);
    assert!(ran.denied().is_empty(), "{}", ran.result);
}

fn nobody_else_gets_a_secret() {
    let code = "
print(get('https://same-api.test/', Authorization='mine'))
print(get('https://api.test:8443/', Authorization='mine'))
print(get('https://api.test/'))
good = request('GET /1 HTTP/1.1')
for refused in [request('GET /2 HTTP/1.1', host='same-api.test'), request('TRACE / HTTP/1.1'), request('CONNECT x:1 HTTP/1.1'),
                request('GET / HTTP/1.1', 'Upgrade: websocket', 'Connection: upgrade'), request('GET / HTTP/1.1', 'Host: same-api.test'),
                request('POST / HTTP/1.1', 'Content-Length: 1', 'Transfer-Encoding: chunked'), b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n']:
    seen, end = talk('api.test', good + refused + good)
    print(end, b'/2' in seen)
seen, end = talk('api.test', request('GET /echo HTTP/1.1') + request('GET /close HTTP/1.1'))
print(value.encode() in seen, (b'X-Echo: Bearer ' + b'*' * len(value)) in seen, (b'you sent Bearer ***') in seen)
";
    let ran = run("allow:api.test,same-api.test", &["api.test"], code);
    let mut expected = vec![
        "['authorization=mine']".to_owned(),
        "['authorization=mine']".to_owned(),
        "['authorization=secret']".to_owned(),
    ];
    expected.extend(std::iter::repeat_n("broken off False".to_owned(), 7));
    expected.push("False True True".to_owned());
    assert_eq!(ran.lines(), expected, "{}", ran.result);
    let denied = |host: &str, why: &str| (host.to_owned(), 443, why.to_owned());
    let unclear = denied("api.test", "neither TLS nor HTTP that can be verified");
    assert_eq!(ran.denied(), [denied("same-api.test", "shows another name"), unclear], "{}", ran.result);
}

fn a_run_that_does_not_name_a_secret_does_not_get_it() {
    // The certificate is the host's own, whose authority the box has to be told of.
    let code = "
print('SSL_CERT_FILE' in os.environ)
os.environ['SSL_CERT_FILE'] = 'ca.pem'
print(get('https://api.test/'), get('https://api.test/', Authorization='mine'))
";
    let ran = finish(
        command("allow:api.test", &[])
            .arg("--file")
            .arg(WORLD.file("ca.pem"))
            .args(["python", "-c"])
            .arg(format!("{PRELUDE}\n{code}")),
    );
    assert_eq!(ran.lines(), ["False", "[] ['authorization=mine']"], "{}", ran.result);
}

fn a_host_that_cannot_show_who_it_is_gets_nothing() {
    let code = "
for name in ('wrong.test', 'self.test', 'api.test'):
    print(get('https://' + name + '/'))
print(get('http://api.test/'))
";
    let hosts = ["wrong.test", "self.test", "api.test"];
    for network in ["allow:wrong.test,self.test,api.test", "full"] {
        let ran = run(network, &hosts, code);
        let refused = "ECONNRESET";
        assert_eq!(ran.lines(), [refused, refused, "['authorization=secret']", refused], "{}", ran.result);
        let denied = |host: &str, port, why: &str| (host.to_owned(), port, why.to_owned());
        let untrusted = "its certificate cannot be verified";
        assert_eq!(
            ran.denied(),
            [
                denied("wrong.test", 443, untrusted),
                denied("self.test", 443, untrusted),
                denied("api.test", 80, "plain HTTP to a host that has a secret")
            ],
            "{}",
            ran.result
        );
    }
    // At an address that is not the host's, its name is refused before anybody is asked for a certificate.
    let code = format!(
        "
c = ssl.create_default_context()
try:
    c.wrap_socket(socket.create_connection(('{}', 443)), server_hostname='api.test')
except OSError as fault:
    print(errno.errorcode.get(fault.errno))
print(get('https://api.test/'))
",
        crate::api::WRONG
    );
    let ran = run("full", &["api.test"], &code);
    assert_eq!(ran.lines(), ["ECONNRESET", "['authorization=secret']"], "{}", ran.result);
}

fn a_secret_is_nowhere_in_the_box_nor_in_what_is_kept() {
    let code = "
print(get('https://api.test/'))
def files():
    for top in ('/etc', '/sandbox', '/tmp', '/dev/shm'):
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name) for name in names)
    yield from glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline')
def found(needle):
    for path in files():
        try:
            if needle in open(path, 'rb').read():
                yield path
        except OSError:
            pass
print(list(found(value.encode())), value in repr(os.environ))
open('/sandbox/control', 'w').write(value)
print(list(found(value.encode())))
print(any('PRIVATE KEY' in open(path, errors='ignore').read() for path in glob.glob('/etc/*.pem')))
def memory(pid):
    try:
        with open(f'/proc/{pid}/maps') as maps, open(f'/proc/{pid}/mem', 'rb') as mem:
            return 'readable'
    except OSError as fault:
        return errno.errorcode[fault.errno]
print(memory(os.getpid()), memory(1))
";
    let code = format!("{PRELUDE}\n{code}");
    let ran = finish(
        command("allow:api.test", &["api.test"])
            .env("BELLJAR_STATE_DIR", WORLD.file("state"))
            .args(["python", "-c", &code]),
    );
    assert!(!ran.result.to_string().contains(VALUE), "{}", ran.result);
    let lines = ran.lines();
    let expected = ["['authorization=secret']", "[] False", "['/sandbox/control']", "False"];
    assert_eq!(lines[..4], expected, "{}", ran.result);
    assert!(lines[4].starts_with("readable E"), "{}", ran.result);
    // What is kept has the run, but not the value.
    let kept = everything_beneath(&WORLD.file("state"));
    let id = ran.result["id"].as_str().unwrap();
    assert!(contains(&kept, id.as_bytes()), "the control");
    assert!(!contains(&kept, VALUE.as_bytes()));
    let audit = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["audit", "show", id, "--json", "--config"])
        .arg(WORLD.file("secrets.toml"))
        .env("BELLJAR_STATE_DIR", WORLD.file("state"))
        .env(VARIABLE, VALUE)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&audit.stdout);
    assert!(said.contains(id) && !said.contains(VALUE), "{said}");
}

fn everything_beneath(dir: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => all.extend(everything_beneath(&entry.path())),
            Ok(kind) if kind.is_file() => all.extend(std::fs::read(entry.path()).unwrap_or_default()),
            _ => {}
        }
    }
    all
}

fn contains(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len()).any(|part| part == needle)
}

fn a_secret_that_cannot_be_used_is_an_error_that_says_why() {
    for (network, host, backend, expected) in [
        ("allow:good.test", "api.test", "native", "does not reach api.test:443"),
        ("none", "api.test", "native", "does not reach api.test:443"),
        ("full", "*.test", "native", "no host that a secret can be for"),
        ("full", "good.test", "native", "there is no secret for 'good.test'"),
        ("full", "unset.test", "native", "the environment variable BELLJAR_TEST_UNSET: it is not set"),
        ("full", "api.test", "process", "the process backend cannot add secrets"),
    ] {
        let output = command(network, &[host])
            .args(["--backend", backend, "python", "-c", "print(1)"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(125), "{host} {network}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(expected) && said.contains("\"secrets\"") && !said.contains(VALUE), "{said}");
    }
}

fn curl_and_node_have_the_secret_added() {
    let script = "curl -sS https://api.test/; echo; curl -sS --http2 https://api.test/ >/dev/null && echo $GIT_SSL_CAINFO";
    let ran = finish(command("allow:api.test", &["api.test"]).args([
        "--env",
        "GIT_SSL_CAINFO=own",
        "bash",
        "-c",
        script,
    ]));
    let lines = ran.lines();
    assert!(lines[0].contains("\"secrets\": [[\"Authorization\""), "{}", ran.result);
    assert_eq!(lines[1], "own", "{}", ran.result);
    let script =
        "const a = await fetch('https://api.test/', {headers: {authorization: 'mine'}}).then(a => a.json());
        console.log(a.secrets.length, a.secrets[0][0])";
    let ran =
        finish(command("allow:api.test", &["api.test"]).args(["--memory", "1G", "javascript", "-c", script]));
    assert_eq!(ran.lines(), ["1 Authorization"], "{}", ran.result);
}

/// A server with two keys, of which one may use the secret.
struct Served {
    process: Child,
    port: u16,
    log: JoinHandle<String>,
}

impl Served {
    fn start() -> Served {
        let key = |name: &str, allow: &str| {
            let hash = sha256(name);
            format!(
                "[[keys]]\nname = \"{name}\"\nsha256 = \"{hash}\"\nallow = {{ network = \"allow:api.test\"{allow} }}\n"
            )
        };
        let text = std::fs::read_to_string(WORLD.file("secrets.toml")).unwrap()
            + &key("with", ", secrets = [\"api.test\"]")
            + &key("without", "");
        std::fs::write(WORLD.file("served.toml"), text).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_belljar"))
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(WORLD.file("served.toml"))
            .env("BELLJAR_STATE_DIR", WORLD.file("served"))
            .env(VARIABLE, VALUE)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stderr.take().unwrap());
        let (mut line, mut all) = (String::new(), String::new());
        let port = loop {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "{all}");
            all += &line;
            let address = line
                .split("127.0.0.1:")
                .nth(1)
                .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
            if let Some(port) = address.and_then(|port| port.parse().ok()) {
                break port;
            }
        };
        let log = std::thread::spawn(move || {
            let _ = said.read_to_string(&mut all);
            all
        });
        Served { process, port, log }
    }

    /// Ends it. Returns what it said.
    fn end(mut self) -> String {
        let id = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.process.wait().unwrap();
        self.log.join().unwrap()
    }

    fn run(&self, key: &str) -> Value {
        let code = format!("{PRELUDE}\nprint(get('https://api.test/'))");
        let body = serde_json::json!({
            "language": "python", "code": code, "network": "allow:api.test", "secrets": ["api.test"],
            "limits": {"timeout_ms": 60000},
        });
        let (body, mut stream) = (body.to_string(), TcpStream::connect(("127.0.0.1", self.port)).unwrap());
        let head = format!(
            "POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {key}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(!answer.contains(VALUE), "{answer}");
        let json = answer.find('{').zip(answer.rfind('}')).map(|(from, to)| &answer[from..=to]);
        serde_json::from_str(json.unwrap_or_default()).unwrap_or_else(|_| panic!("{answer}"))
    }
}

fn sha256(text: &str) -> String {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let Output { stdout, .. } = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&stdout).split_whitespace().next().unwrap().to_owned()
}

fn a_key_needs_the_right_to_use_a_secret() {
    let served = Served::start();
    let refused = served.run("without");
    assert_eq!(refused["error"]["code"], "forbidden", "{refused}");
    assert_eq!(refused["error"]["field"], "secrets", "{refused}");
    let allowed = served.run("with");
    assert_eq!(allowed["stdout"], "['authorization=secret']\n", "{allowed}");
    let said = served.end();
    assert!(!said.contains(VALUE), "{said}");
    let kept = everything_beneath(&WORLD.file("served"));
    assert!(contains(&kept, allowed["id"].as_str().unwrap().as_bytes()), "the control");
    assert!(!contains(&kept, VALUE.as_bytes()));
}
