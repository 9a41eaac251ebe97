"""A host with a real TLS server: makes a certificate authority, a package of each kind and a repository in a directory,
and serves them over HTTPS until standard input ends.  usage: secure.py DIRECTORY ADDRESS"""

import base64, hashlib, http.server, io, json, os, socketserver, ssl, subprocess, sys, tarfile, threading, zipfile

directory, address = sys.argv[1:]
os.chdir(directory)


def run(*words, **more):
    # Not the caller's configuration, nor that of the machine.
    environment = {"PATH": "/usr/bin:/bin", "HOME": directory, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(words, check=True, capture_output=True, env=environment, **more)


def put(path, content):
    path = os.path.join("served", path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def make_certificates():
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    run(*new, "-subj", "/CN=authority of the test", "-keyout", "ca.key", "-out", "ca.pem",
        "-addext", "keyUsage=critical,keyCertSign")
    run(*new, "-subj", "/CN=secure.test", "-keyout", "server.key", "-out", "server.pem", "-CA", "ca.pem", "-CAkey",
        "ca.key", "-addext", "subjectAltName=DNS:secure.test,DNS:twin.test", "-addext", "basicConstraints=CA:FALSE")


def make_wheel():
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as files:
        about = "tiny-1.0.dist-info/"
        files.writestr("tiny.py", 'WORD = "installed"\n')
        files.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        files.writestr(about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files.writestr(about + "RECORD", "")
    name = "tiny-1.0-py3-none-any.whl"
    put("files/" + name, wheel.getvalue())
    digest = hashlib.sha256(wheel.getvalue()).hexdigest()
    put("simple/tiny/index.html", f'<a href="/files/{name}#sha256={digest}">{name}</a>'.encode())


def make_npm_package():
    package = io.BytesIO()
    about = {"name": "tiny", "version": "1.0.0", "main": "index.js"}
    with tarfile.open(fileobj=package, mode="w:gz") as files:
        for name, text in [("package.json", json.dumps(about)), ("index.js", "module.exports = 'installed'\n")]:
            entry = tarfile.TarInfo("package/" + name)
            entry.size = len(text)
            files.addfile(entry, io.BytesIO(text.encode()))
    put("files/tiny-1.0.0.tgz", package.getvalue())
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(package.getvalue()).digest()).decode()
    dist = {"tarball": "https://secure.test/files/tiny-1.0.0.tgz", "integrity": integrity}
    put("tiny", json.dumps({
        "name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": about | {"dist": dist}},
    }).encode())


def make_repository():
    """For the protocol that needs no more than files."""
    as_somebody = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    run("git", "init", "--quiet", "--initial-branch=main", "work")
    with open("work/word", "w") as file:
        file.write("cloned\n")
    run("git", "add", "word", cwd="work")
    run("git", *as_somebody, "commit", "--quiet", "--message", "a word", cwd="work")
    run("git", "clone", "--quiet", "--bare", "work", "served/repository.git")
    run("git", "update-server-info", cwd="served/repository.git")


class Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    extensions_map = {".html": "text/html", "": "application/octet-stream"}

    def __init__(self, *rest):
        super().__init__(*rest, directory="served")

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def server_bind(self):
        # Its parent would look for the name of the address, and nobody answers here.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address


put("hello", b"hello over TLS\n")
make_certificates()
make_wheel()
make_npm_package()
make_repository()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("server.pem", "server.key")
server = Server((address, 443), Files)
# The handshake is that connection's thread's, not everybody's.
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("serving", flush=True)
sys.stdin.read()
