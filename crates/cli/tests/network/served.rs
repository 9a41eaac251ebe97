//! Boxes of a server's warm pool: they are made without a network, and get one with their code.

use belljar_conformance::eventually;
use serde_json::{Value, json};

use crate::client::{gateway_of, kill};
use crate::internet::GOOD;
use crate::server::Server;

const POOL: &str = "
[server.allow]
network = 'full'
[audit]
enabled = false
[pool.languages.python]
min = 1
[pool.languages.javascript]
min = 1
[pool.languages.bash]
min = 1
";

/// Runs code in a box that has been waiting.
fn run(server: &Server, body: &Value) -> Value {
    let language = &body["language"];
    eventually("a box waits", || {
        let pool: Value = serde_json::from_str(&server.get("/v1/pool")).unwrap();
        let mut rows = pool["languages"].as_array().unwrap().iter();
        rows.any(|row| row["language"] == *language && row["ready"].as_u64() > Some(0))
    });
    let result = post(server, body);
    assert_eq!(result["start"], "warm", "{result}");
    result
}

fn post(server: &Server, body: &Value) -> Value {
    let answer = server.post("/v1/runs", body);
    serde_json::from_str(&answer).unwrap_or_else(|fault| panic!("{fault}: {answer}"))
}

const TRY: &str = "
import socket, urllib.request
def attempt(url):
    try: return urllib.request.urlopen(url, timeout=20).read().decode().strip()
    except OSError as fault: return 'failed'
print(attempt('http://good.test/'))
print(attempt('http://other.test/'))
print([name for _, name in socket.if_nameindex()])
";

pub(crate) fn a_box_that_has_waited_gets_the_network_of_its_run() {
    let server = Server::start(POOL);
    let python = |network: &str| json!({"language": "python", "code": TRY, "network": network});
    let good = format!("{GOOD} good.test /");
    let result = run(&server, &python("allow:good.test"));
    assert_eq!(result["stdout"], format!("{good}\nfailed\n['lo', 'eth0']\n"), "{result}");
    assert_eq!(result["network_denied"][0]["host"], "other.test");
    assert!(result["usage"]["network_down_bytes"].as_u64() > Some(0), "{result}");
    // Another limit makes a difference to its plan, and so does a network; the box suits both.
    let mut limited = python("full");
    limited["limits"] = json!({"memory_bytes": 200 << 20, "pids": 20});
    let result = run(&server, &limited);
    assert!(result["stdout"].as_str().unwrap().starts_with(&good), "{result}");
    let result = run(&server, &python("none"));
    assert_eq!(result["stdout"], "failed\nfailed\n['lo']\n", "{result}");
    assert_eq!(
        (&result["network_denied"], &result["usage"]["network_up_bytes"]),
        (&Value::Null, &Value::Null)
    );
    let fetch = "fetch('http://good.test/').then(a => a.text()).then(t => process.stdout.write(t))";
    for (language, code) in [("javascript", fetch), ("bash", "curl -sS http://good.test/")] {
        let result = run(&server, &json!({"language": language, "code": code, "network": "allow:good.test"}));
        assert_eq!(result["stdout"], format!("{good}\n"), "{result}");
    }
    // Arguments are for a child of the zygote.
    let mut forked = python("allow:good.test");
    forked["args"] = json!(["one"]);
    eventually("a zygote lives", || {
        let result = post(&server, &forked);
        assert!(result["stdout"].as_str().unwrap().starts_with(&good), "{result}");
        result["start"] == "zygote"
    });
}

pub(crate) fn a_box_that_has_waited_loses_its_network_with_its_gateway() {
    let server = Server::start(POOL);
    // It waits until its connection ends.
    let code = format!(
        "import socket, time
s = socket.create_connection(('{GOOD}', 7)); s.sendall(b'x'); print(s.recv(1).decode(), flush=True)
s.settimeout(2)
for _ in range(600):
    try: socket.create_connection(('{GOOD}', 7), 2).close()
    except OSError: print('no network'); break
    time.sleep(0.1)"
    );
    let body = json!({"language": "python", "code": code, "network": "full",
        "limits": {"timeout_ms": 100_000}});
    let result = std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&server, &body));
        let mut gateway = None;
        eventually("there is a gateway", || {
            gateway = gateway_of(server.id());
            gateway.is_some()
        });
        std::thread::sleep(std::time::Duration::from_secs(1));
        kill(gateway.unwrap());
        running.join().unwrap()
    });
    assert_eq!(result["stdout"], "x\nno network\n", "{result}");
    assert!(result["network_denied"][0]["reason"].as_str().unwrap().contains("gateway ended"), "{result}");
}
