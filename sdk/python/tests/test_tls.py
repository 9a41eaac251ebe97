"""https: a proxy with a certificate of its own in front of a real server."""

from __future__ import annotations

import asyncio
import pathlib
import socket
import ssl
import subprocess
import threading
from typing import Iterator, List, Tuple

import pytest

import belljar
from belljar import AsyncBelljar, Belljar
from conftest import Server


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for one in (source, target):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@pytest.fixture(scope="module")
def https(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuple[str, ssl.SSLContext]]:
    folder: pathlib.Path = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key", "-out", folder / "certificate"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    host, port = shared_server.url[len("http://") :].split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    opened: List[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                incoming = context.wrap_socket(plain, server_side=True)
            except OSError:  # a client that does not trust the certificate
                plain.close()
                continue
            outgoing = socket.create_connection((host, int(port)))
            opened.extend((incoming, outgoing))
            for pair in ((incoming, outgoing), (outgoing, incoming)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"https://localhost:{listener.getsockname()[1]}", ssl.create_default_context(cafile=folder / "certificate")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for one in opened:
        one.close()


def test_sync(https: Tuple[str, ssl.SSLContext]) -> None:
    url, trusted = https
    with Belljar(url, tls=trusted) as client:
        for number in range(3):
            assert client.run("sh", f"echo {number}").stdout == f"{number}\n"
        assert len(client.run("python", "print('x' * 300000)", files={"f": b"x" * 500_000}).stdout) == 300_001
        assert [event.type for event in client.stream("sh", "echo a")] == ["start", "stdout", "end"]


def test_async(https: Tuple[str, ssl.SSLContext]) -> None:
    url, trusted = https

    async def main() -> None:
        async with AsyncBelljar(url, tls=trusted) as client:
            for number in range(3):
                assert (await client.run("sh", f"echo {number}")).stdout == f"{number}\n"
            long = await client.run("python", "print('x' * 300000)", files={"f": b"x" * 500_000})
            assert len(long.stdout) == 300_001
            assert [event.type async for event in client.stream("sh", "echo a")] == ["start", "stdout", "end"]

    asyncio.run(main())


def test_a_certificate_that_is_not_trusted(https: Tuple[str, ssl.SSLContext]) -> None:
    url, _ = https
    with pytest.raises(belljar.ServerUnreachableError, match="(?i)certificate"):
        Belljar(url).languages()

    async def main() -> None:
        async with AsyncBelljar(url) as client:
            await client.languages()

    with pytest.raises(belljar.ServerUnreachableError, match="(?i)certificate"):
        asyncio.run(main())
