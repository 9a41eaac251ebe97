//! SandboxFusion's notebooks.

use serde_json::{Value, json};

use crate::server::Server;

fn run(server: &Server, request: &Value) -> Value {
    server.post("/run_jupyter", request).result()
}

fn cells(answer: &Value) -> &Vec<Value> {
    answer["cells"].as_array().unwrap()
}

#[test]
fn cells_share_a_process_and_each_has_its_own_results() {
    let server = Server::start();
    let answer = run(
        &server,
        &json!({"cells": [
            "a = 123", "a", "print(a); a;", "import sys; _ = sys.stderr.write('stderr message')",
            "raise RuntimeError('error message')", "a + 1",
        ]}),
    );
    assert_eq!((&answer["status"], &answer["message"]), (&json!("Success"), &json!("")));
    assert_eq!(json!([answer["driver"]["status"], answer["driver"]["return_code"]]), json!(["Finished", 0]));
    let cell = |stdout: &str, stderr: &str, display: Value| json!({"stdout": stdout, "stderr": stderr, "display": display, "error": []});
    let got = cells(&answer);
    assert_eq!(got[0], cell("", "", json!([])));
    assert_eq!(got[1], cell("", "", json!([{"text/plain": "123"}])));
    assert_eq!(got[2], cell("123\n", "", json!([])));
    assert_eq!(got[3], cell("", "stderr message", json!([])));
    let error = &got[4]["error"][0];
    assert_eq!(json!([error["ename"], error["evalue"]]), json!(["RuntimeError", "error message"]));
    let trace: String =
        error["traceback"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert!(
        trace.contains("<cell 5>") && trace.contains("raise RuntimeError") && !trace.contains("main.py"),
        "{trace}"
    );
    assert_eq!(got[5], cell("", "", json!([{"text/plain": "124"}])));
}

#[test]
fn values_are_displayed_in_every_form_that_they_have() {
    let server = Server::start();
    let rich = "class Rich:\n  def __repr__(self): return 'rich'\n  def _repr_html_(self): return '<b>'\n  \
                def _repr_png_(self): return b'\\x89PNG'\n  \
                def _repr_mimebundle_(self, **_): return {'text/x': 'more'}\n  \
                def _repr_svg_(self): raise ValueError\nRich()";
    let answer = run(
        &server,
        &json!({"cells": [rich, "display(1, 'two')", "import asyncio\nawait asyncio.sleep(0, 7)"]}),
    );
    let got = cells(&answer);
    let forms =
        json!([{"text/plain": "rich", "text/html": "<b>", "image/png": "iVBORw==", "text/x": "more"}]);
    assert_eq!(got[0]["display"], forms);
    assert_eq!(got[1]["display"], json!([{"text/plain": "1"}, {"text/plain": "'two'"}]));
    assert_eq!(got[2]["display"], json!([{"text/plain": "7"}]));
}

#[test]
fn commands_write_where_the_cell_writes() {
    let server = Server::start();
    let answer =
        run(&server, &json!({"cells": ["print('a')\n!echo b; echo c >&2\nprint('d')", "%time 1", "1 +"]}));
    let got = cells(&answer);
    assert_eq!(json!([got[0]["stdout"], got[0]["stderr"], got[0]["error"]]), json!(["a\nb\nd\n", "c\n", []]));
    assert_eq!(got[1]["error"][0]["evalue"], "Line magic function `%time` not found.");
    assert_eq!(got[2]["error"][0]["ename"], "SyntaxError");
}

#[test]
fn files_go_in_and_come_back() {
    let server = Server::start();
    let request = json!({
        "cells": ["import helper; helper.word", "open('main.py', 'w').write('mine')"],
        "files": {"helper.py": "d29yZCA9ICdoZWxwJw==", "data/x": "eA=="},
        "fetch_files": ["data/x", "main.py", "nothing"],
    });
    let answer = run(&server, &request);
    assert_eq!(cells(&answer)[0]["display"], json!([{"text/plain": "'help'"}]));
    assert_eq!(answer["files"], json!({"data/x": "eA==", "main.py": "bWluZQ=="}));
}

#[test]
fn a_cell_that_takes_too_long_ends_the_notebook() {
    let server = Server::start();
    let request = json!({"cells": ["print(1)", "try:\n  while True: pass\nexcept Exception: pass", "2"], "cell_timeout": 2});
    let answer = run(&server, &request);
    assert_eq!((&answer["status"], &answer["driver"]["status"]), (&json!("Failed"), &json!("Finished")));
    let got = cells(&answer);
    assert_eq!((got.len(), &got[1]["error"][0]["ename"]), (2, &json!("CellTimeoutError")));
}

#[test]
fn what_was_done_before_the_end_is_told_whatever_the_end_was() {
    let server = Server::start();
    for (last, status, total_timeout) in [
        ("import time; time.sleep(60)", "TimeLimitExceeded", 5),
        ("import os; os._exit(0)", "Finished", 50),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "Finished", 50),
        ("x = bytearray(800 << 20)", "Finished", 50),
    ] {
        let answer =
            run(&server, &json!({"cells": ["print(1)", last, "print(3)"], "total_timeout": total_timeout}));
        assert_eq!(
            (&answer["status"], &answer["driver"]["status"]),
            (&json!("Failed"), &json!(status)),
            "{last}"
        );
        assert_eq!((cells(&answer).len(), &cells(&answer)[0]["stdout"]), (1, &json!("1\n")), "{last}");
    }
}

#[test]
fn a_cell_can_only_spoil_its_own_results() {
    let server = Server::start();
    let forge = "import glob\nname = glob.glob('.run_*.json')[0]\nimport os\n\
                 open(name, 'w').write('{\"stopped\": false, \"cells\": [{\"display\": 1}]}')\nos._exit(0)";
    let answer = run(&server, &json!({"cells": [forge]}));
    assert_eq!((&answer["status"], &answer["cells"]), (&json!("Failed"), &json!([])));
    assert_eq!(answer["message"], "the results of the cells cannot be read");
    let removed = run(
        &server,
        &json!({"cells": ["import os, glob\nos.remove(glob.glob('.run_*.json')[0])\nos._exit(0)"]}),
    );
    assert_eq!(
        (&removed["status"], &removed["message"]),
        (&json!("Failed"), &json!("no results were brought back"))
    );
    let flood = run(
        &server,
        &json!({"cells": ["import os\nfor _ in range(60): os.write(1, b'x' * 65536)\nos.write(1, b'end')"]}),
    );
    let stdout = cells(&flood)[0]["stdout"].as_str().unwrap();
    assert!(stdout.contains("bytes omitted") && stdout.ends_with("end") && stdout.len() < 2 << 20);
}

#[test]
fn a_request_that_is_wrong_is_refused_as_fastapi_does() {
    let server = Server::start();
    let refused = |request: Value| {
        let answer = server.post("/run_jupyter", &request);
        assert_eq!(answer.status, 422, "{request}");
        answer.json()["detail"][0]["loc"].clone()
    };
    assert_eq!(refused(json!({})), json!(["body", "cells"]));
    assert_eq!(refused(json!({"cells": [], "kernel": "python2"})), json!(["body", "kernel"]));
    assert_eq!(refused(json!({"cells": [], "total_timeout": -1})), json!(["body", "total_timeout"]));
    assert_eq!(refused(json!({"cells": [], "files": {"../x": ""}})), json!(["body", "files", "../x"]));
    assert_eq!(run(&server, &json!({"cells": []}))["status"], "Success");
}
