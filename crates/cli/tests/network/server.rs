//! A server whose runs have networks, and the interfaces of other tools that it has.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::internet::{GOOD, PRIVATE};
use crate::world::WORLD;

/// It ends with the test, however that ends.
pub(crate) struct Server {
    process: Child,
    pub(crate) url: String,
}

impl Server {
    /// With this configuration, before which others may stand that belong to no table.
    pub(crate) fn start(config: &str) -> Server {
        let file =
            tempfile::Builder::new().prefix("server-").suffix(".toml").tempfile_in(WORLD.file("")).unwrap();
        std::fs::write(&file, format!("{config}[egress]\nresolver = \"{GOOD}:53\"\n")).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_belljar"))
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(file.path())
            .env("BELLJAR_BACKEND", "native")
            .env("BELLJAR_STATE_DIR", file.path().with_extension("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let listening = log.find_map(|line| Some(line.split_once("listening on ")?.1.trim().to_owned()));
        let server = Server { process, url: listening.unwrap_or_default() };
        assert!(!server.url.is_empty(), "the server does not start");
        std::thread::spawn(move || log.for_each(drop));
        server
    }

    /// The process that was started.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> String {
        self.ask(path, &["-H", "content-type: application/json", "-d", &body.to_string()])
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.ask(path, &[])
    }

    fn ask(&self, path: &str, options: &[&str]) -> String {
        // MCP wants both; of a run, the second would mean its events.
        let accept = if path == "/mcp" { "application/json, text/event-stream" } else { "application/json" };
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "100", "-H", &format!("accept: {accept}")])
            .args(options)
            .arg(format!("{}{path}", self.url))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

/// Reaches a host that is allowed, and one that is not.
fn program() -> String {
    format!(
        "import socket, urllib.request
print(urllib.request.urlopen('http://good.test/seen').read().decode().strip())
try: socket.create_connection(('{PRIVATE}', 80), 10)
except ConnectionRefusedError: print('refused at', 'once')
"
    )
}

pub(crate) fn every_interface_has_networks() {
    const NETWORK: &str = "allow:good.test";
    let allowed = format!("[server.allow]\nnetwork = \"{NETWORK}\"\n");
    let usual = Server::start(&format!("network = \"{NETWORK}\"\n{allowed}"));
    let named = Server::start(&allowed);
    let (piston, fusion) = (
        json!({"language": "python", "version": "*", "files": [{"content": program()}]}),
        json!({"language": "python", "code": program()}),
    );
    let call = |arguments: Value| {
        let params = json!({"name": "run_code", "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    };
    // Those who cannot ask for a network get that of the configuration.
    for (path, body) in [("/api/v2/execute", &piston), ("/run_code", &fusion)] {
        let answer = usual.post(path, body);
        assert!(answer.contains("good.test /seen") && answer.contains("refused at once"), "{path}: {answer}");
        let without = named.post(path, body);
        assert!(!without.contains("good.test /seen"), "{path}, without a network: {without}");
    }
    let answer =
        named.post("/mcp", &call(json!({"language": "python", "code": program(), "network": NETWORK})));
    assert!(answer.contains("good.test /seen") && answer.contains("refused at once"), "{answer}");
    assert!(answer.contains("network_denied") && answer.contains("a private address"), "{answer}");
    let without = named.post("/mcp", &call(json!({"language": "python", "code": program()})));
    assert!(!without.contains("good.test /seen"), "{without}");
    let wider = named.post("/mcp", &call(json!({"language": "python", "code": "1", "network": "full"})));
    assert!(wider.contains("is not allowed here"), "{wider}");
}
