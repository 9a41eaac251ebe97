//! The examples of the documentation, as printed.

use std::process::Command;

use crate::server::Server;

#[test]
fn every_curl_example_works_as_printed() {
    let server = Server::start();
    let mut tried = 0;
    for page in ["README.md", "docs/http.md"] {
        let path = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap().replace("\\\n", " ");
        for line in
            text.lines().filter(|line| line.starts_with("    curl") && line.contains("localhost:8787"))
        {
            let command = line.replace("localhost:8787", &server.address.to_string());
            let output =
                Command::new("bash").args(["-c", &format!("{command} -sS --fail")]).output().unwrap();
            let (told, complained) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(told.contains(r#""status":"exited","exit_code":0"#), "{line}: {told} {complained}");
            tried += 1;
        }
    }
    assert!(tried >= 4, "{tried}");
}
