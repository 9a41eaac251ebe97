//! Real clients, as they are installed, against a real TLS server. Each works where the host is allowed, and not where
//! another one is.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use crate::client::{belljar, finish};
use crate::internet::SECURE;
use crate::world::WORLD;

/// The host `secure.test`, also called `twin.test`.
struct Secure {
    /// It ends when its standard input does.
    _server: Child,
}

static HOST: LazyLock<Secure> = LazyLock::new(|| {
    let log = WORLD.file("secure.log");
    let mut server = Command::new("nsenter")
        .args(["--target", &WORLD.internet().to_string(), "--net", "/usr/bin/python3", "-c"])
        .arg(include_str!("secure.py"))
        .arg(WORLD.dir())
        .arg(SECURE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // It may end a moment after the test, and must not hold on to the test's own.
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(said, "serving\n", "secure.py needs openssl, git and Debian's Python: {log}");
    Secure { _server: server }
});

/// The box's name for the certificate of the test's authority, which is in a different variable for each client.
const AUTHORITY: &str = "/sandbox/ca.pem";
const TRUST: [&str; 7] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",
];

fn client(network: &str) -> Command {
    LazyLock::force(&HOST);
    let mut command = belljar(network);
    command.arg("--file").arg(WORLD.file("ca.pem"));
    command.args(TRUST.iter().flat_map(|name| ["--env".to_owned(), format!("{name}={AUTHORITY}")]));
    command.args(["--memory", "1G", "--disk", "256M", "--pids", "100", "--timeout", "300s"]);
    command
}

fn works_where_it_is_allowed(language: &str, code: &str, prints: &str) {
    let attempt = |network: &str| finish(client(network).args([language, "-c", code]));
    let allowed = attempt("allow:secure.test");
    assert_eq!(allowed.result["stdout"], prints, "{}", allowed.result);
    assert_eq!(allowed.denied(), []);
    let refused = attempt("allow:other.test");
    assert_ne!(refused.result["exit_code"], 0, "{}", refused.result);
    assert_ne!(refused.result["stdout"], prints);
    assert_eq!(refused.denied(), [("secure.test".to_owned(), 0, "not allowed".to_owned())]);
}

const HELLO: &str = "hello over TLS\n";

pub(crate) fn curl_works_as_it_is() {
    works_where_it_is_allowed("bash", "curl -sS https://secure.test/hello", HELLO);
}

pub(crate) fn python_requests_work_as_they_are() {
    // Debian's package is for Debian's Python, and the first in `PATH` may be another.
    let code =
        "/usr/bin/python3 -c 'import requests; print(end=requests.get(\"https://secure.test/hello\").text)'";
    works_where_it_is_allowed("bash", code, HELLO);
}

pub(crate) fn node_fetch_works_as_it_is() {
    let code = "fetch('https://secure.test/hello').then(answer => answer.text())
        .then(text => process.stdout.write(text), () => process.exit(1))";
    works_where_it_is_allowed("javascript", code, HELLO);
}

pub(crate) fn git_clones_over_https() {
    let code = "/usr/bin/git clone -q https://secure.test/repository.git here && cat here/word";
    works_where_it_is_allowed("bash", code, "cloned\n");
}

pub(crate) fn pip_installs_from_an_allowed_index() {
    let code = "/usr/bin/python3 -m pip install -q --disable-pip-version-check --target lib --retries 0 \
                --index-url https://secure.test/simple/ tiny && \
                PYTHONPATH=lib /usr/bin/python3 -c 'import tiny; print(tiny.WORD)'";
    works_where_it_is_allowed("bash", code, "installed\n");
}

pub(crate) fn npm_installs_from_an_allowed_registry() {
    let code = "npm install --silent --no-audit --no-fund --no-update-notifier --fetch-retries 0 \
                --registry https://secure.test/ tiny && node -p 'require(\"tiny\")'";
    works_where_it_is_allowed("bash", code, "installed\n");
}

/// Go is installed with the large languages, and its test runs with theirs. It takes long to compile, so one program tries
/// both hosts.
pub(crate) fn large_languages_go_speaks_https() {
    let code = r#"package main
import ("fmt"; "io"; "net/http")
func main() {
    for _, host := range []string{"secure.test", "twin.test"} {
        answer, fault := http.Get("https://" + host + "/hello")
        if fault != nil { fmt.Println("refused"); continue }
        text, _ := io.ReadAll(answer.Body)
        fmt.Print(string(text))
    }
}"#;
    let ran = finish(client("allow:secure.test").args(["go", "-c", code]));
    assert_eq!(ran.lines(), [HELLO.trim(), "refused"], "{}", ran.result);
    assert_eq!(ran.denied(), [("twin.test".to_owned(), 0, "not allowed".to_owned())]);
}

pub(crate) fn a_real_handshake_must_show_the_allowed_name() {
    // The address is known, and it is the right server, but the name is not the allowed one.
    let code = format!(
        "curl -sS https://secure.test/hello
curl -sS --resolve twin.test:443:{SECURE} https://twin.test/hello 2>/dev/null || echo refused"
    );
    let attempt = |network: &str| finish(client(network).args(["bash", "-c", &code]));
    let ran = attempt("allow:secure.test");
    assert_eq!(ran.lines(), [HELLO.trim(), "refused"], "{}", ran.result);
    assert_eq!(ran.denied(), [("twin.test".to_owned(), 443, "shows another name".to_owned())]);
    let ran = attempt(&format!("allow:secure.test,{SECURE}"));
    assert_eq!(ran.lines(), [HELLO.trim(), HELLO.trim()], "the control: {}", ran.result);
}
