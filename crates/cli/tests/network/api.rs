//! The HTTPS servers of the internet: their certificates, made with a certificate authority of the test, and their start.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::world::DIRECTORY;

/// Where they are: one as it should be, one with a certificate for another name, and one with a certificate of its own.
pub(crate) const API: &str = "93.184.216.37";
pub(crate) const WRONG: &str = "93.184.216.38";
pub(crate) const SELF: &str = "93.184.216.39";

/// Makes the certificates, `ca.pem` among them, and the list of servers.
pub(crate) fn prepare(dir: &Path) {
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    openssl(
        dir,
        &[
            &["req", "-x509", "-days", "2", "-subj", "/CN=Test", "-keyout", "ca.key", "-out", "ca.pem"],
            &key[..],
        ],
    );
    for (file, names) in [("api", "DNS:api.test,DNS:same-api.test"), ("other", "DNS:elsewhere.test")] {
        let (request, certificate) = (format!("{file}.csr"), format!("{file}.pem"));
        let own = ["req", "-new", "-subj", "/CN=x", "-keyout", &format!("{file}.key"), "-out", &request];
        openssl(dir, &[&own, &key[..]]);
        std::fs::write(dir.join("names"), format!("subjectAltName={names}\n")).unwrap();
        let signed =
            ["x509", "-req", "-in", &request, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"];
        openssl(dir, &[&signed, &["-days", "2", "-extfile", "names", "-out", &certificate]]);
    }
    let own =
        ["req", "-x509", "-days", "2", "-subj", "/CN=self.test", "-addext", "subjectAltName=DNS:self.test"];
    openssl(dir, &[&own, &["-keyout", "self.key", "-out", "self.pem"], &key[..]]);
    let listen = format!("{API} 443 api\n{API} 8443 api\n{WRONG} 443 other\n{SELF} 443 self\n");
    std::fs::write(dir.join("listen"), listen).unwrap();
}

/// Starts the servers, in the namespace of this process.
pub(crate) fn serve() -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/network/api.py");
    let dir = std::env::var(DIRECTORY).unwrap();
    let mut servers = Command::new("python3")
        .arg(script)
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(servers.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "ready");
    servers
}

fn openssl(dir: &Path, words: &[&[&str]]) {
    let made = Command::new("openssl").args(words.concat()).current_dir(dir).output().unwrap();
    assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
}
