"""Errors by their code, retries, and approvals."""

from __future__ import annotations

import hashlib
import pickle
import socket
import threading
import time
from typing import Any, Callable, Iterator, List

import pytest

import belljar
from belljar import AsyncBelljar, Belljar
from belljar.errors import from_detail
from conftest import Server, wait_until

MakeServer = Callable[..., Server]


def test_invalid_request(client: Belljar) -> None:
    with pytest.raises(belljar.InvalidRequestError) as caught:
        client.run("klingon", "Qapla'")
    error = caught.value
    assert (error.code, error.status, error.field) == ("invalid_request", 400, "language") and error.hint
    assert "klingon" in str(error) and error.hint in str(error)


def test_forbidden_and_too_large(client: Belljar) -> None:
    with pytest.raises(belljar.ForbiddenError) as caught:
        client.run("python", "", waive=["network"])
    assert caught.value.field == "waive"
    with pytest.raises(belljar.TooLargeError):
        client.run("python", "", files={"big": b"x" * (20 << 20)})
    assert client.run("python", "").ok


def test_conflict_of_idempotency_keys(client: Belljar) -> None:
    code = "import random; print(random.random())"
    first = client.run("python", code, idempotency_key="once")
    assert client.run("python", code, idempotency_key="once").stdout == first.stdout
    with pytest.raises(belljar.ConflictError):
        client.run("python", "print(1)", idempotency_key="once")


def test_unauthorized_and_with_a_key(make_server: MakeServer) -> None:
    key = "bj_" + "0123456789abcdef" * 4
    digest = hashlib.sha256(key.encode()).hexdigest()
    server = make_server(f'[[keys]]\nname = "ci"\nsha256 = "{digest}"\n')
    with pytest.raises(belljar.UnauthorizedError):
        Belljar(server.url).languages()
    assert Belljar(server.url, key).run("sh", "echo in").stdout == "in\n"
    with pytest.raises(ValueError, match="line break"):
        Belljar(server.url, "key\r\nX-Other: 1").languages()


def test_backend_unavailable(client: Belljar) -> None:
    with pytest.raises((belljar.BackendUnavailableError, belljar.ForbiddenError)):
        client.run("python", "", backend="wasm")


@pytest.mark.parametrize("code", list(belljar.errors._BY_CODE))
def test_every_code_has_a_class(code: str) -> None:
    error = from_detail({"code": code, "message": "m", "hint": "h", "field": "f"}, status=400)
    assert type(error) is not belljar.BelljarError and error.code == type(error).code == code
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.hint, copy.field, str(copy)) == (type(error), code, "h", "f", str(error))


def test_the_codes_are_those_of_the_description() -> None:
    from typing import get_args

    from belljar import _types

    assert set(get_args(_types.ErrorCode)) == set(belljar.errors._BY_CODE)


def test_a_code_of_a_newer_server() -> None:
    error = from_detail({"code": "tea_time", "message": "m"})
    assert type(error) is belljar.BelljarError and error.code == "tea_time"


BUSY = "[server]\nslots = 1\nqueue = 1\n"


def occupied(client: Belljar) -> List[Any]:
    """Fills the slot and the queue."""
    handles = [client.submit("sh", "sleep 60", timeout=60)]
    wait_until(lambda: handles[0].status() == "running", "the first run has the slot")
    handles.append(client.submit("sh", "sleep 60", timeout=60))
    return handles


def test_busy_is_told_after_the_time_to_retry(make_server: MakeServer) -> None:
    server = make_server(BUSY)
    handles = occupied(Belljar(server.url))
    with pytest.raises(belljar.BusyError) as caught:
        Belljar(server.url, busy_timeout=0).run("sh", "true")
    assert caught.value.status == 429 and caught.value.retry_after is not None
    for handle in handles:
        handle.cancel()


def test_busy_is_retried(make_server: MakeServer) -> None:
    import asyncio

    server = make_server(BUSY)
    client = Belljar(server.url)
    handles = occupied(client)
    answers: List[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client.run("sh", "echo a").stdout)),
        threading.Thread(target=lambda: answers.append(asyncio.run(AsyncBelljar(server.url).run("sh", "echo b")).stdout)),
        threading.Thread(target=lambda: answers.append([event.text for event in client.stream("sh", "echo c")][1])),
    ]
    for thread in threads:
        thread.start()
    metrics = Belljar(server.url)
    wait_until(lambda: refusals(metrics) >= 3, "three requests were refused")
    assert answers == []
    for handle in handles:
        handle.cancel()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == ["a\n", "b\n", "c\n"]


def refusals(client: Belljar) -> int:
    from belljar._calls import Call

    text = client._transport.fetch(Call("GET", "/metrics", lambda found, _: found)).body.decode()
    counted = [line for line in text.splitlines() if 'code="busy"' in line or 'status="429"' in line]
    assert not counted or all(line.rsplit(" ", 1)[1] for line in counted)
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in counted))


APPROVE = """
[policy]
default = "allow"
rules = [{ when = { rule = "python.process.*" }, then = "approve" }, { when = { rule = "python.network.*" }, then = "deny" }]
[approvals]
wait = "0s"
"""
SPAWN = "import os\nos.system('echo spawned')"


def test_approvals(make_server: MakeServer) -> None:
    client = Belljar(make_server(APPROVE).url)
    with pytest.raises(belljar.ApprovalRequiredError) as caught:
        client.run("python", SPAWN)
    waiting = caught.value
    assert waiting.run_id and client.attach(waiting.run_id).status() == "awaiting_approval"
    assert [one.id for one in client.approvals.list(status="pending")] == [waiting.approval_id]
    approval = client.approvals.get(waiting.approval_id)
    assert approval.code == SPAWN and approval.findings[0].line == 2 and approval.decision is None
    decided = client.approvals.approve(approval.id, reason="it only greets", remember=60)
    assert decided.decision and decided.decision.approved and decided.decision.reason == "it only greets"
    result = client.attach(waiting.run_id).wait(60)
    assert result.stdout == "spawned\n" and result.decision and result.decision.approval_id == approval.id
    assert client.run("python", SPAWN).ok, "the decision is remembered"
    with pytest.raises(belljar.ConflictError):
        client.approvals.deny(approval.id)
    revoked = client.approvals.revoke(approval.id, reason="no longer")
    assert revoked.decision and "no longer" in (revoked.decision.reason or "")
    with pytest.raises(belljar.ApprovalRequiredError):
        client.run("python", SPAWN)


def test_a_run_that_a_person_denies(make_server: MakeServer) -> None:
    client = Belljar(make_server(APPROVE).url)
    handle = client.submit("python", SPAWN)
    wait_until(lambda: handle.status() == "awaiting_approval", "the run waits")
    [approval] = client.approvals.list(status="pending")
    client.approvals.deny(approval.id, reason="no")
    result = handle.wait(60)
    assert result.denied and result.exit_code == 126 and result.decision and result.decision.reason == "no"


def test_the_event_of_a_run_that_waits(make_server: MakeServer) -> None:
    client = Belljar(make_server(APPROVE).url)
    events = client.stream("python", SPAWN)
    first = next(events)
    assert first.type == "awaiting_approval"
    client.approvals.approve(first.data["approval_id"])
    assert [event.type for event in events] == ["start", "stdout", "end"]


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "unix:/nowhere/at.all"):
        with pytest.raises(belljar.ServerUnreachableError) as caught:
            Belljar(url).languages()
        assert isinstance(caught.value, ConnectionError) and url in str(caught.value) and caught.value.hint


@pytest.mark.parametrize("url", ["localhost:8787", "ftp://x", "unix:relative", "http://user:pw@host", "http://h/?q=1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError):
        Belljar(url)


@pytest.fixture
def liar() -> Iterator[Callable[[bytes], str]]:
    """A server that answers every connection with given bytes and closes it."""
    sockets: List[socket.socket] = []

    def start(answer: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for one in sockets:
        one.shutdown(socket.SHUT_RDWR)
        one.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\n<html", belljar.UnexpectedAnswerError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", belljar.UnexpectedAnswerError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", belljar.ConnectionLostError),
        (b"SSH-2.0-OpenSSH\r\n\r\n", belljar.ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", belljar.ConnectionLostError),
        (b"", belljar.ConnectionLostError),
    ],
)
def test_what_is_no_belljar_server(liar: Callable[[bytes], str], answer: bytes, error: type) -> None:
    with pytest.raises(error):
        Belljar(liar(answer)).run("python", "")


def test_time_passes_between_attempts() -> None:
    from belljar._calls import Patience

    busy = belljar.BusyError("busy")
    busy.retry_after = 1.0
    assert 1.0 <= Patience(10).delay_after(busy) <= 1.3
    with pytest.raises(belljar.BusyError):
        Patience(0.5).delay_after(busy)
    patience, delays = Patience(1000), []
    for _ in range(9):
        busy.retry_after = None
        delays.append(patience.delay_after(busy))
    assert delays[0] < 0.3 and 5 <= delays[-1] <= 6


def test_retry_after_may_be_a_date() -> None:
    from belljar._calls import _seconds

    assert _seconds("7") == 7 and _seconds(None) is None and _seconds("soon") is None
    in_a_minute = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 60))
    assert 55 < (_seconds(in_a_minute) or 0) <= 60


