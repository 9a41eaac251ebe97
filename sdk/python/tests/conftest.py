"""Real servers for the tests, from the binary that BELLJAR_BINARY names, or the one in the installed package."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List

import pytest

from belljar import AsyncBelljar, Belljar
from belljar._background import find_binary

DEADLINE = 60.0


def wait_until(what: Callable[[], Any], why: str, seconds: float = DEADLINE) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds:g} s: {why}")


class Server:
    """A `belljar serve` on a free port."""

    def __init__(self, folder: pathlib.Path, config: str = "", *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "belljar.toml").write_text(config)
        self.lines: List[str] = []
        self.url = ""
        self.process = subprocess.Popen(
            [find_binary(), "serve", "--config", str(folder / "belljar.toml"), *(options or ("--listen", "127.0.0.1:0"))],
            env=private_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: self.url or self.process.poll() is not None, "the server listens")
        assert self.url, "\n".join(self.lines)

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if found := re.search(r"listening on ((?:http://|unix:)\S+)", line):
                self.url = found[1]

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(DEADLINE)
        assert self.process.stderr
        self.process.stderr.close()


def private_environment(folder: pathlib.Path, **more: str) -> Dict[str, str]:
    """The environment without anything that points to a server, state or settings of the person who runs the tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BELLJAR_", "XDG_", "CODE_EXEC_"))}
    return {**kept, "HOME": str(folder), "BELLJAR_STATE_DIR": str(folder / "state"), **more}


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = '[server]\nqueue = 256\n[server.allow]\nbackends = ["native", "process"]\nnetwork = "full"\n'
    server = Server(tmp_path_factory.mktemp("shared"), config)
    yield server
    server.stop()


@pytest.fixture
def make_server(tmp_path: pathlib.Path) -> Iterator[Callable[..., Server]]:
    servers: List[Server] = []

    def make(config: str = "", *options: str) -> Server:
        servers.append(Server(tmp_path / f"server-{len(servers)}", config, *options))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def client(shared_server: Server) -> Iterator[Belljar]:
    with Belljar(shared_server.url) as client:
        yield client


@pytest.fixture
def async_client(shared_server: Server) -> AsyncBelljar:
    return AsyncBelljar(shared_server.url)


@pytest.fixture(autouse=True)
def environment(shared_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What uses the default client uses the server of the tests."""
    for name in list(os.environ):
        if name.startswith(("BELLJAR_", "CODE_EXEC_")) and name != "BELLJAR_BINARY":
            monkeypatch.delenv(name)
    monkeypatch.setenv("BELLJAR_URL", shared_server.url)


@pytest.fixture
def background(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dict[str, str]]:
    """An environment in which the background server is one of this test. It is ended afterwards."""
    folder = tmp_path_factory.mktemp("bg")
    environment = private_environment(folder)
    if "BELLJAR_BINARY" in os.environ:
        environment["BELLJAR_BINARY"] = os.environ["BELLJAR_BINARY"]
    yield environment
    for path in (folder / "state" / "run").glob("*.sock"):
        with contextlib.suppress(OSError):
            os.kill(listener(str(path)), signal.SIGTERM)


def listener(path: str) -> int:
    """The process that listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def python(script: str, environment: Dict[str, str], *arguments: str) -> str:
    """What a new interpreter prints. Warnings of resources that were not closed are errors."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stdout + done.stderr
    return done.stdout


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    if terminalreporter.stats.get("skipped"):
        terminalreporter.write_line("error: tests were skipped, and nothing here may be")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 0 and reporter.stats.get("skipped"):
        session.exitstatus = 1
