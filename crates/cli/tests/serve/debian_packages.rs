//! Debian's packages in boxes: each does one thing, without a word on stderr. `ci/tools packages` installs them.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::pool::{python, run_warm, with};
use crate::server::Server;
use crate::zygote::stdout;

/// Debian's own Python, whatever comes first on the search path.
const DEBIAN: &str = "[runtimes]\npython = '/usr/bin/python3'\n";

const SHOW: &str =
    "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('Größe')\nplt.show()\nprint('shown')";

fn has(module: &str) -> bool {
    let found = Command::new("/usr/bin/python3").args(["-c", &format!("import {module}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        belljar_conformance::skip(&format!("{test}.{module}"), &format!("Debian's Python has no {module}"));
    }
    found
}

/// What a run wrote to stderr, without what matplotlib says where it needs more than five seconds to look at the fonts.
fn noise(result: &Value) -> String {
    let slow = "Matplotlib is building the font cache; this may take a moment.\n";
    result["stderr"].as_str().unwrap_or_else(|| panic!("{result}")).replacen(slow, "", 1)
}

fn run(server: &Server, language: &str, code: &str) -> Value {
    let limits = json!({"timeout_ms": 120_000, "memory_bytes": 1 << 30});
    server.post("/v1/runs", &json!({"language": language, "code": code, "limits": limits})).result()
}

#[test]
fn each_package_does_one_thing_without_noise() {
    let server = Server::with(&format!("{DEBIAN}[pool]\nenabled = false\n"), &[]);
    for (module, code, expected) in [
        ("numpy", "import numpy\nprint(numpy.arange(4).sum())", "6\n"),
        ("pandas", "import pandas\nprint(pandas.DataFrame({'a': [1, 2]}).a.sum())", "3\n"),
        ("scipy", "import scipy.optimize as o\nprint(round(o.brentq(lambda x: x - 1, 0, 3), 6))", "1.0\n"),
        (
            "sklearn",
            "from sklearn.linear_model import LinearRegression as L\nprint(L().fit([[0], [1]], [0, 2]).coef_)",
            "[2.]\n",
        ),
        (
            "PIL",
            "from PIL import Image\nImage.new('RGB', (4, 3)).save('a.png')\nprint(Image.open('a.png').size)",
            "(4, 3)\n",
        ),
        ("lxml", "from lxml import etree\nprint(etree.fromstring('<a><b/></a>')[0].tag)", "b\n"),
        (
            // There is no network, but the certificates are found before that shows.
            "requests",
            "import requests\ntry:\n    requests.get('https://localhost')\nexcept requests.ConnectionError:\n    print('refused')",
            "refused\n",
        ),
        (
            "sqlite3",
            "import sqlite3\nprint(sqlite3.connect('a.db').execute('select 1').fetchone())",
            "(1,)\n",
        ),
        ("matplotlib", SHOW, "shown\n"),
        (
            "matplotlib",
            "import matplotlib.pyplot as plt, os\nplt.hist([1, 2, 2])\nplt.savefig('a.png')\nprint(os.path.getsize('a.png') > 0)",
            "True\n",
        ),
        ("ssl", "import ssl\nprint(len(ssl.create_default_context().get_ca_certs()) > 0)", "True\n"),
        (
            "zoneinfo",
            "import os, time, zoneinfo\ndel os.environ['TZ']\ntime.tzset()\nprint(time.tzname[0], zoneinfo.ZoneInfo('Asia/Tokyo'))",
            "UTC Asia/Tokyo\n",
        ),
    ] {
        if has(module) {
            let result = run(&server, "python", code);
            assert_eq!((stdout(&result), &*noise(&result)), (expected, ""), "{module}: {result}");
        }
    }
}

#[test]
fn fonts_are_found_without_noise() {
    if !belljar_conformance::installed("fc-match") {
        return;
    }
    let on_the_host = Command::new("fc-match").arg("monospace").env("LANG", "C.UTF-8").output().unwrap();
    let result = run(&Server::start(), "bash", "fc-match monospace");
    assert_eq!(
        (stdout(&result), &result["stderr"]),
        (&*String::from_utf8_lossy(&on_the_host.stdout), &json!(""))
    );
}

/// What programs need from `/etc` is there, and nothing else: a secret that anyone may read shows it.
#[test]
fn secrets_beside_what_is_shown_are_not_there() {
    let server = Server::start();
    let look = |path: &str| {
        stdout(&run(&server, "sh", &format!("test -e {path} && echo there || echo hidden"))).to_owned()
    };
    for path in [
        "/etc/ssl/private",
        "/etc/shadow",
        "/etc/ssh",
        "/etc/machine-id",
        "/etc/pip.conf",
        "/etc/npmrc",
        "/etc/gitconfig",
    ] {
        assert_eq!(look(path), "hidden\n", "{path}");
    }
    for path in
        ["/etc/ssl/certs", "/etc/fonts", "/etc/os-release"].iter().filter(|path| fs::exists(path).unwrap())
    {
        assert_eq!(look(path), "there\n", "the control: {path}");
    }
}

fn pictures(result: &Value) -> Vec<(String, Vec<u8>)> {
    let files = result["files"].as_array().cloned().unwrap_or_default();
    let picture = |file: &Value| {
        let content = belljar_conformance::from_base64(file["content_base64"].as_str().unwrap());
        (file["path"].as_str().unwrap().to_owned(), content)
    };
    files.iter().map(picture).collect()
}

fn assert_is_one_picture(result: &Value) {
    assert_eq!((stdout(result), &*noise(result)), ("shown\n", ""), "{result}");
    let pictures = pictures(result);
    let [(path, content)] = pictures.as_slice() else { panic!("{result}") };
    assert_eq!(path, "figure-1.png");
    assert!(content.starts_with(b"\x89PNG\r\n\x1a\n"), "{content:?}");
}

/// Cold, in a box that waited, and in one whose matplotlib had been imported before.
#[test]
fn what_is_shown_comes_back_as_a_picture_however_the_run_starts() {
    if !has("matplotlib") {
        return;
    }
    let limits = json!({"limits": {"timeout_ms": 120_000}, "plots": true});
    let (plots, plain) = (with(python(SHOW), &limits), python(SHOW));
    for preload in ["", "preload = ['matplotlib.pyplot']\n"] {
        let server =
            Server::with(&format!("{DEBIAN}[pool.languages.python]\nmin = 1\nmax = 1\n{preload}"), &[]);
        assert_is_one_picture(&run_warm(&server, &plots));
        let unasked = run_warm(&server, &with(plain.clone(), &json!({"limits": {"timeout_ms": 120_000}})));
        assert_eq!((stdout(&unasked), &*noise(&unasked), unasked.get("files")), ("shown\n", "", None));
        // No box that waits has another disk.
        let limits = json!({"limits": {"timeout_ms": 120_000, "disk_bytes": 32 << 20}});
        let cold = server.post("/v1/runs", &with(plots.clone(), &limits)).result();
        assert_eq!(cold["start"], json!("cold"));
        assert_is_one_picture(&cold);
    }
}

#[test]
fn a_model_sees_what_is_shown() {
    if !has("matplotlib") {
        return;
    }
    let server = Server::with(DEBIAN, &[]);
    let call = |arguments: Value| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "run_code", "arguments": arguments}});
        let headers =
            [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        let answer = server.ask("POST", "/mcp", &headers, body.to_string().as_bytes());
        String::from_utf8_lossy(&answer.body).into_owned()
    };
    let arguments = json!({"language": "python", "code": SHOW, "timeout_ms": 60_000});
    let shown = call(arguments.clone());
    assert!(shown.contains("\"mimeType\":\"image/png\"") && shown.contains("shown"), "{shown}");
    let hidden = call(with(arguments, &json!({"plots": false})));
    assert!(!hidden.contains("image/png") && hidden.contains("shown"), "{hidden}");
}
