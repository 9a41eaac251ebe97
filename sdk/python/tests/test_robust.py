"""Forks, threads, killed servers, the background server, and ten thousand calls."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any, Callable, Dict, List

import pytest

import belljar
from belljar import AsyncBelljar, Belljar
from conftest import Server, listener, python, wait_until

MakeServer = Callable[..., Server]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> List[str]:
    return pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_ten_thousand_calls_leave_nothing_behind(client: Belljar, async_client: AsyncBelljar) -> None:
    def some(count: int) -> None:
        for _ in range(count):
            client.languages()

    async def others(count: int) -> None:
        for _ in range(count // 10):
            await asyncio.gather(*(async_client.pool() for _ in range(10)))

    some(10)
    asyncio.run(others(10))
    client.run("sh", "true")
    before = (descriptors(), threading.active_count(), children())
    some(5000)
    for _ in range(10):
        asyncio.run(others(490))
    for _ in range(50):
        client.run("sh", "true")
        client.stream("sh", "true").close()
    after = (descriptors(), threading.active_count(), children())
    # Each client may keep a few connections that are not in use.
    assert after[0] <= before[0] + 12 and after[1:] == before[1:], (before, after)
    client.close()
    asyncio.run(async_client.aclose())
    assert descriptors() <= before[0]


def test_threads_share_a_client(client: Belljar) -> None:
    answers: List[Any] = []

    def work(number: int) -> None:
        for turn in range(5):
            answers.append(client.run("sh", f"echo {number}.{turn}").stdout.strip())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(answers) == sorted(f"{number}.{turn}" for number in range(12) for turn in range(5))


def test_parent_and_child_of_a_fork_do_not_disturb_each_other(client: Belljar, async_client: AsyncBelljar) -> None:
    async def of_async() -> str:
        return (await async_client.run("sh", "echo async")).stdout

    assert client.run("sh", "echo before").ok and asyncio.run(of_async())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = [client.run("sh", f"echo child {n}").stdout for n in range(20)] + [asyncio.run(of_async())]
            os.write(writing, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(writing)
    mine = [client.run("sh", f"echo parent {n}").stdout for n in range(20)] + [asyncio.run(of_async())]
    with os.fdopen(reading) as pipe:
        theirs = json.load(pipe)
    os.waitpid(child, 0)
    assert mine == [f"parent {n}\n" for n in range(20)] + ["async\n"]
    assert theirs == [f"child {n}\n" for n in range(20)] + ["async\n"]


def test_a_connection_that_the_server_closed_meanwhile(make_server: MakeServer) -> None:
    server = make_server('[server]\nheader-timeout = "1s"\n')
    client, other = Belljar(server.url), AsyncBelljar(server.url)

    async def both() -> None:
        assert client.run("sh", "true").ok and (await other.run("sh", "true")).ok
        connection = client._transport._pool._idle[-1]
        from belljar._transport import is_idle

        await asyncio.get_running_loop().run_in_executor(
            None, wait_until, lambda: not is_idle(connection.sock), "the server closes the idle connection"
        )
        assert client.run("sh", "true").ok and (await other.run("sh", "true")).ok
        assert client.run("sh", "true", stdin=["a", "b"]).ok

    asyncio.run(both())


def in_flight(client: Belljar) -> "tuple[threading.Thread, List[BaseException]]":
    errors: List[BaseException] = []

    def work() -> None:
        try:
            client.run("sh", "sleep 60", timeout=60)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, errors


def test_a_server_that_is_killed_in_the_middle_of_a_run(make_server: MakeServer) -> None:
    server = make_server()
    client = Belljar(server.url)
    thread, errors = in_flight(client)
    wait_until(lambda: list(Belljar(server.url).runs(status="running")), "the run is under way")
    stream = client.stream("sh", "echo up; sleep 60", timeout=60)
    next(stream)
    server.stop(signal.SIGKILL)
    thread.join(60)
    assert [type(error) for error in errors] == [belljar.ConnectionLostError], errors
    with pytest.raises(belljar.ConnectionLostError):
        list(stream)
    with pytest.raises(belljar.ServerUnreachableError):
        client.run("sh", "true")


def test_a_lost_connection_is_no_lost_run(make_server: MakeServer, tmp_path: pathlib.Path) -> None:
    """A proxy that drops the connection after the request: the run is sent again, with the same key."""
    import socket

    server = make_server()
    host, port = server.url[len("http://") :].split(":")
    requests: List[bytes] = []
    proxy = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                incoming, _ = proxy.accept()
            except OSError:
                return
            with incoming:
                requests.append(incoming.recv(65536))
                if len(requests) == 1:
                    continue
                with socket.create_connection((host, int(port))) as outgoing:
                    outgoing.sendall(requests[-1])
                    incoming.sendall(outgoing.recv(65536))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        result = Belljar(f"http://127.0.0.1:{proxy.getsockname()[1]}").run("sh", "echo once")
    finally:
        proxy.shutdown(socket.SHUT_RDWR)
        proxy.close()
        thread.join(60)
    keys = [line for request in requests for line in request.split(b"\r\n") if line.lower().startswith(b"idempotency-key")]
    assert result.stdout == "once\n" and len(keys) == 2 and keys[0] == keys[1]


SAY = "from belljar import run; print(run('python', 'print(1)').stdout, end='')"


def test_the_background_server_is_shared_and_comes_back(background: Dict[str, str]) -> None:
    script = """
import os, signal, sys, threading, time, asyncio
import belljar
from belljar import Belljar, AsyncBelljar, run
from belljar._background import BackgroundServer
from conftest import listener, wait_until

assert run("sh", "echo one").stdout == "one\\n"
[server] = BackgroundServer._known.values()
path = server.endpoint().path
other = AsyncBelljar()
assert asyncio.run(other.run("sh", "echo two")).stdout == "two\\n"

errors = []
def work():
    try:
        run("sh", "sleep 60", timeout=60)
    except Exception as error:
        errors.append(error)
thread = threading.Thread(target=work)
thread.start()
wait_until(lambda: list(Belljar().runs(status="running")), "the run is under way")
killed = listener(path)
os.kill(killed, signal.SIGKILL)
thread.join(60)
assert [type(error) for error in errors] == [belljar.ConnectionLostError], errors
assert run("sh", "echo three").stdout == "three\\n"
assert asyncio.run(other.run("sh", "echo four")).stdout == "four\\n"
assert listener(server.endpoint().path) != killed
print(path, listener(path))
"""
    environment = {**background, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    path, pid = python(script, environment).split()
    assert listener(path) == int(pid), "it goes on after the program has ended"
    again = "from belljar import run; from belljar._background import BackgroundServer as B; run('sh', ''); "
    assert python(again + "print(*(b.endpoint().path for b in B._known.values()))", environment).strip() == path


def test_programs_that_start_together_share_a_background_server(background: Dict[str, str]) -> None:
    environment = {**background, "PYTHONPATH": os.pathsep.join(sys.path)}
    programs = [
        subprocess.Popen([sys.executable, "-c", SAY], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = [program.communicate(timeout=120) for program in programs]
    assert answers == [("1\n", "")] * 4
    sockets = list((pathlib.Path(environment["BELLJAR_STATE_DIR"]) / "run").glob("*.sock"))
    assert len(sockets) == 1


def test_a_background_server_that_does_not_start(tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'error: no room' >&2; echo 'hint: make some' >&2; exit 125\n")
    broken.chmod(0o755)
    with pytest.raises(belljar.ServerUnreachableError, match="no room") as caught:
        Belljar(binary=str(broken)).languages()
    assert caught.value.hint == "make some"
    with pytest.raises(belljar.ServerUnreachableError, match="is not a program"):
        Belljar(binary=str(tmp_path / "missing")).languages()


def test_importing_starts_nothing(background: Dict[str, str]) -> None:
    script = "import sys, belljar, belljar.compat; belljar.Belljar(); print('asyncio' in sys.modules, 'ssl' in sys.modules)"
    environment = {**background, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False False\n", done
    assert not pathlib.Path(environment["BELLJAR_STATE_DIR"]).exists()


def test_elsewhere_than_on_linux_a_url_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BELLJAR_URL")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(belljar.ServerUnreachableError, match="Belljar runs code on Linux") as caught:
        Belljar().languages()
    assert "BELLJAR_URL" in caught.value.hint
