"""Requests over sockets that an event loop watches. Connections belong to the loop that made them."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
import weakref
from typing import Any, Callable, List, Mapping, Optional, Set, TypeVar

from ._calls import Answer, Call
from ._endpoint import Endpoint
from ._http import ProtocolError, ResponseParser
from ._transport import CONNECT_SECONDS, KEEP_IDLE, KEEP_SECONDS, Place, head_of, is_idle, lost, tune, unreachable
from .errors import ConnectionLostError

__all__ = ["AsyncResponse", "AsyncTransport"]

T = TypeVar("T")


class _Connection:
    """A socket of this client's own, and not a transport of the loop: it can be closed after its loop was."""

    def __init__(self, endpoint: Endpoint, sock: socket.socket) -> None:
        self.endpoint = endpoint
        self.sock = sock
        self.loop = weakref.ref(asyncio.get_running_loop())
        self.idle_since = 0.0

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.sock, 65536)

    def close(self) -> None:
        self.sock.close()


class _TlsConnection(_Connection):
    def __init__(self, endpoint: Endpoint, sock: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(endpoint, sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=endpoint.host)

    async def handshake(self) -> None:
        await self._drive(self._tls.do_handshake)

    async def send(self, data: bytes) -> None:
        await self._drive(lambda: self._tls.write(data))

    async def receive(self) -> bytes:
        try:
            return await self._drive(lambda: self._tls.read(65536))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def _drive(self, step: Callable[[], T]) -> T:
        """Repeats a step of TLS until it needs nothing more from the other side."""
        while True:
            try:
                value = step()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await super().receive()
                self._incoming.write(data) if data else self._incoming.write_eof()
            else:
                await self._flush()
                return value

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await super().send(self._outgoing.read())


class AsyncResponse:
    """An answer that is being read. Whoever does not read it to its end closes it, which cancels the run."""

    def __init__(
        self,
        pool: "_Pool",
        connection: _Connection,
        parser: ResponseParser,
        first: List[bytes],
        patience: Optional[float],
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._parser = parser
        self._first = first
        self._patience = patience
        self._done = False
        self.status = parser.status
        self.headers = parser.headers

    async def next_pieces(self) -> List[bytes]:
        """Some pieces of the body; none at its end."""
        if self._first:
            pieces, self._first = self._first, []
            return pieces
        try:
            while not self._parser.ended:
                pieces = await self._receive()
                if pieces:
                    return pieces
        except (OSError, ProtocolError, asyncio.TimeoutError) as error:
            self.close()
            raise lost(self._connection.endpoint, error) from error
        except BaseException:  # cancelled
            self.close()
            raise
        self.close()
        return []

    async def read(self) -> Answer:
        body: List[bytes] = []
        while pieces := await self.next_pieces():
            body += pieces
        return Answer(self.status, self.headers, b"".join(body))

    def close(self) -> None:
        if not self._done:
            self._done = True
            self._pool.give_back(self._connection, self._parser.reusable and not self._first)

    async def _receive(self) -> List[bytes]:
        data = await asyncio.wait_for(self._connection.receive(), self._patience)
        if data:
            return self._parser.feed(data)
        self._parser.close()
        return []


class AsyncTransport:
    """Sends calls to the server of a place."""

    def __init__(
        self, find_place: Callable[[], Place], headers: Mapping[str, str], tls: Optional[ssl.SSLContext] = None
    ) -> None:
        self._find_place = find_place
        self._headers = headers
        self._pool = _Pool(tls)

    async def fetch(self, call: Call[Any]) -> Answer:
        return await (await self.open(call)).read()

    async def open(self, call: Call[Any]) -> AsyncResponse:
        """Sends a call and returns when the head of the answer is there."""
        connection = await self._connection(call)
        try:
            return await self._exchange(connection, call)
        except ConnectionLostError as error:
            if not call.resendable:
                raise
            return await self._exchange(await self._same_server(connection.endpoint, error), call)

    def close(self) -> None:
        self._pool.close()

    async def _connection(self, call: Call[Any]) -> _Connection:
        place = self._find_place()
        endpoint = await _endpoint_of(place)
        # A call that cannot be sent twice gets a connection that the server has had no reason to close.
        idle = self._pool.take(endpoint) if call.resendable else None
        if idle:
            return idle
        try:
            return await self._pool.connect(endpoint)
        except (OSError, asyncio.TimeoutError) as error:
            place.is_gone(endpoint)
            again = await _endpoint_of(place)
            if again is endpoint:
                raise unreachable(endpoint, _as_os_error(error)) from error
        try:
            return await self._pool.connect(again)
        except (OSError, asyncio.TimeoutError) as error:
            raise unreachable(again, _as_os_error(error)) from error

    async def _same_server(self, endpoint: Endpoint, error: ConnectionLostError) -> _Connection:
        """A new connection to where the last one was lost. A server that was killed has forgotten the run."""
        try:
            return await self._pool.connect(endpoint)
        except (OSError, asyncio.TimeoutError):
            self._find_place().is_gone(endpoint)
            raise error from None

    async def _exchange(self, connection: _Connection, call: Call[Any]) -> AsyncResponse:
        parser = ResponseParser(call.method)
        try:
            refused = await _send(connection, head_of(call, connection.endpoint, self._headers))
            first: List[bytes] = []
            while not parser.has_head:
                data = await asyncio.wait_for(connection.receive(), call.patience)
                if not data:
                    raise refused or ProtocolError("the server closed the connection")
                first += parser.feed(data)
            return AsyncResponse(self._pool, connection, parser, first, call.patience)
        except (OSError, ProtocolError, asyncio.TimeoutError) as error:
            self._pool.give_back(connection, False)
            raise lost(connection.endpoint, error) from error
        except BaseException:  # cancelled: closing the connection cancels the run, too
            self._pool.give_back(connection, False)
            raise


def _as_os_error(error: BaseException) -> OSError:
    return error if isinstance(error, OSError) else OSError(f"no connection within {CONNECT_SECONDS:g} s")


async def _endpoint_of(place: Place) -> Endpoint:
    """Finding the server may mean to start it, which must not stop the loop."""
    known = place.known_endpoint()
    if known is not None:
        return known
    return await asyncio.get_running_loop().run_in_executor(None, place.endpoint)


async def _send(connection: _Connection, data: bytes) -> Optional[OSError]:
    """Sends everything. A server that refuses a long body answers, and closes, before it has read it: that is returned, and
    the answer may still be there to read."""
    try:
        await connection.send(data)
        return None
    except (BrokenPipeError, ConnectionResetError) as error:
        return error


class _Pool:
    """The connections of one client, for each loop that it was used in."""

    def __init__(self, tls: Optional[ssl.SSLContext]) -> None:
        self._tls = tls
        self._lock = threading.RLock()
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._idle: List[_Connection] = []
        self._all: Set[_Connection] = set()

    def take(self, endpoint: Endpoint) -> Optional[_Connection]:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._clean_up()
            for connection in [one for one in reversed(self._idle) if one.loop() is loop]:
                self._idle.remove(connection)
                if connection.endpoint == endpoint and is_idle(connection.sock):
                    return connection
                self._drop(connection)
        return None

    async def connect(self, endpoint: Endpoint) -> _Connection:
        connection = await asyncio.wait_for(_connected(endpoint, self._tls), CONNECT_SECONDS)
        with self._lock:
            self._all.add(connection)
        return connection

    def give_back(self, connection: _Connection, reusable: bool) -> None:
        connection.idle_since = now = time.monotonic()
        with self._lock:
            if reusable and connection in self._all:
                self._idle.append(connection)
            else:
                self._drop(connection)
            for one in self._idle[:-KEEP_IDLE] + [one for one in self._idle if now - one.idle_since > KEEP_SECONDS]:
                self._drop(one)

    def close(self) -> None:
        with self._lock:
            everything = list(self._all)
            self._reset()
        for connection in everything:
            connection.close()

    def _clean_up(self) -> None:
        """Closes what a parent process or a loop that has ended left behind."""
        if self._process != os.getpid():
            self.close()
        for connection in list(self._all):
            loop = connection.loop()
            if loop is None or loop.is_closed():
                self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        connection.close()

    def __del__(self) -> None:
        for connection in getattr(self, "_all", ()):
            connection.close()


async def _connected(endpoint: Endpoint, tls: Optional[ssl.SSLContext]) -> _Connection:
    if endpoint.path is not None:
        family = getattr(socket, "AF_UNIX", None)
        if family is None:
            raise OSError(f"this Python has no unix sockets, and the server is at unix:{endpoint.path}")
        return _Connection(endpoint, await _connected_socket(family, endpoint.path))
    sock = await _connected_to_host(endpoint)
    if not endpoint.tls:
        return _Connection(endpoint, sock)
    connection = _TlsConnection(endpoint, sock, tls or ssl.create_default_context())
    try:
        await connection.handshake()
    except BaseException:
        connection.close()
        raise
    return connection


async def _connected_to_host(endpoint: Endpoint) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    problem: OSError = OSError(f"{endpoint.host} has no address")
    for family, _, _, _, address in found:
        try:
            sock = await _connected_socket(family, address)
        except OSError as error:
            problem = error
        else:
            tune(sock)
            return sock
    raise problem


async def _connected_socket(family: int, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        return sock
    except BaseException:
        sock.close()
        raise
