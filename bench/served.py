"""What the measurements of servers share: a server, its clients, and how bare processes are timed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

PYTHON = "/usr/bin/python3"

class Connection:
    def __init__(self, address):
        self.address = address
        self.connect()

    def connect(self):
        host, port = self.address.split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.used = time.monotonic()

    def ask(self, method, path, body=None):
        return self.send(method, path, b"" if body is None else json.dumps(body).encode())

    def send(self, method, path, body):
        if time.monotonic() - self.used > 2:
            # The server closes connections that wait for long.
            self.connect()
        head = f"{method} {path} HTTP/1.1\r\nhost: {self.address}\r\ncontent-type: application/json\r\n"
        self.socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.receive()
        head, _, content = answer.partition(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
        while len(content) < length:
            content += self.receive()
        self.used = time.monotonic()
        return json.loads(content)

    def receive(self):
        return self.socket.recv(65536) or sys.exit(f"the server at {self.address} closed the connection")


class Server:
    """A server of its own, with this configuration."""

    def __init__(self, belljar, config, wait=True):
        self.belljar, self.wait = belljar, wait
        self.config = f'[runtimes]\npython = "{PYTHON}"\n' + config

    def __enter__(self):
        self.folder = tempfile.mkdtemp()
        with open(f"{self.folder}/belljar.toml", "w") as file:
            file.write(self.config)
        log = open(f"{self.folder}/log", "w")
        words = [self.belljar, "serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]
        env = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"} | {"BELLJAR_LOG": "warn", "BELLJAR_STATE_DIR": f"{self.folder}/state"}
        self.process = subprocess.Popen(words, cwd=self.folder, env=env, stderr=log)
        while not (found := [line for line in open(f"{self.folder}/log") if line.startswith("listening on ")]):
            time.sleep(0.002)
        self.listening = time.perf_counter()
        self.address = found[0].split("http://")[1].strip()
        self.line = self.connect()
        if self.wait:
            time.sleep(2)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder)

    def connect(self):
        return Connection(self.address)

    def pool(self, language):
        pools = self.line.ask("GET", "/v1/pool")["languages"]
        return next(pool for pool in pools if pool["language"] == language)

    def until_one_waits(self, language):
        """And nothing is being made, which would take what the next measurement needs."""
        for _ in range(4000):
            pools = self.line.ask("GET", "/v1/pool")["languages"]
            ready = any(pool["ready"] for pool in pools if pool["language"] == language)
            if ready and not any(pool["booting"] for pool in pools):
                return
            time.sleep(0.005)
        sys.exit(f"no box for {language} was ever ready")

    def timed(self, language, code, start, **more):
        """How long a run took, if it began like this."""
        began = time.perf_counter()
        result = self.line.ask("POST", "/v1/runs", {"language": language, "code": code, **more})
        took = (time.perf_counter() - began) * 1e3
        assert result["stdout"] == "1\n", result
        return took if result["start"] == start else None


class Load:
    """Callers who ask for the same run again and again, each as soon as it has its answer."""

    def __init__(self, server, code, callers, seconds):
        body = json.dumps({"language": "python", "code": code}).encode()
        script = f"{server.folder}/post.lua"
        with open(script, "w") as file:
            file.write(f'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\nwrk.body = {lua(body)}\n')
        words = ["wrk", "-t1", f"-c{callers}", f"-d{seconds}", "-s", script, f"http://{server.address}/v1/runs"]
        began = time.perf_counter()
        lines = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        self.runs = int(next(line.split()[0] for line in lines if "requests in" in line))
        self.rate = self.runs / (time.perf_counter() - began)
        self.failures = "".join(f" ({line.strip()})" for line in lines if "Non-2xx" in line or "Socket errors" in line)


def lua(text):
    return "'" + text.decode().replace("\\", "\\\\").replace("'", "\\'") + "'"


# Other variables of the shell slow some interpreters down (`NODE_EXTRA_CA_CERTS` doubles the time of Node), and a box has
# none of them.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith("DOCKER_")}


def bare(command):
    null = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    began = time.perf_counter()
    os.waitpid(os.posix_spawn(command[0], command, ENVIRONMENT, file_actions=null), 0)
    return (time.perf_counter() - began) * 1e3


def children_cpu():
    """Of the children that were waited for."""
    times = os.times()
    return times.children_user + times.children_system


def busy():
    """Seconds that the machine's processors have been doing something."""
    fields = [int(word) for word in open("/proc/stat").readline().split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:7])) / os.sysconf("SC_CLK_TCK")
