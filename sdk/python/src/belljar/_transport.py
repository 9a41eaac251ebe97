"""Requests over sockets that block, with connections that are used again. Safe for threads and across forks."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING, Callable, Iterator, List, Mapping, Optional, Protocol, Set

from ._calls import Answer, Call
from ._endpoint import Endpoint
from ._http import ProtocolError, ResponseParser, encode_request
from .errors import ConnectionLostError, ServerUnreachableError

if TYPE_CHECKING:
    import ssl
    from typing import Any

__all__ = ["FixedServer", "Place", "Transport", "head_of", "is_idle", "unreachable"]

CONNECT_SECONDS = 10.0
KEEP_IDLE = 16
KEEP_SECONDS = 30.0


class Place(Protocol):
    """Knows where the server is. `endpoint` may start one, and after `is_gone` another; `known_endpoint` never does."""

    def endpoint(self) -> Endpoint: ...
    def known_endpoint(self) -> Optional[Endpoint]: ...
    def is_gone(self, endpoint: Endpoint) -> None: ...


class FixedServer:
    """A server by its address."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def endpoint(self) -> Endpoint:
        return self._endpoint

    def known_endpoint(self) -> Optional[Endpoint]:
        return self._endpoint

    def is_gone(self, endpoint: Endpoint) -> None:
        pass


def unreachable(endpoint: Endpoint, error: OSError) -> ServerUnreachableError:
    return ServerUnreachableError(
        f"cannot connect to {endpoint.url}: {error.strerror or error}",
        hint="is the server running there? `belljar serve` starts one; BELLJAR_URL says where it is",
    )


def lost(endpoint: Endpoint, error: BaseException) -> ConnectionLostError:
    return ConnectionLostError(
        f"the connection to {endpoint.url} ended before the answer: {error}",
        hint="the server was stopped or killed; a run that was under way has been cancelled, so send it again",
    )


def head_of(call: "Call[Any]", endpoint: Endpoint, headers: Mapping[str, str]) -> bytes:
    everything = {"Host": endpoint.authority, **headers, **call.headers}
    return encode_request(call.method, endpoint.prefix + call.path, everything, call.body)


def is_idle(sock: socket.socket) -> bool:
    """Whether a connection can carry another request: nothing has arrived, not even its end."""
    if sock.fileno() < 0:
        return False
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return not poll.poll(0)
    return not select.select([sock], [], [], 0)[0]


class _Connection:
    def __init__(self, endpoint: Endpoint, sock: socket.socket) -> None:
        self.endpoint = endpoint
        self.sock = sock
        self.idle_since = 0.0

    def close(self) -> None:
        self.sock.close()


class Response:
    """An answer that is being read. Whoever does not read it to its end closes it, which cancels the run."""

    def __init__(self, pool: "_Pool", connection: _Connection, parser: ResponseParser, first: List[bytes]) -> None:
        self._pool = pool
        self._connection = connection
        self._parser = parser
        self._first = first
        self._done = False
        self.status = parser.status
        self.headers = parser.headers

    def pieces(self) -> Iterator[bytes]:
        try:
            while self._first:
                yield self._first.pop(0)
            while not self._parser.ended:
                yield from self._receive()
        except (OSError, ProtocolError) as error:
            raise lost(self._connection.endpoint, error) from error
        finally:
            self.close()

    def read(self) -> Answer:
        return Answer(self.status, self.headers, b"".join(self.pieces()))

    def close(self) -> None:
        """Gives the connection back, or closes it if there is something left to read."""
        if not self._done:
            self._done = True
            self._pool.give_back(self._connection, self._parser.reusable and not self._first)

    def _receive(self) -> List[bytes]:
        data = self._connection.sock.recv(65536)
        if data:
            return self._parser.feed(data)
        self._parser.close()
        return []


class Transport:
    """Sends calls to the server of a place."""

    def __init__(
        self, find_place: Callable[[], Place], headers: Mapping[str, str], tls: "Optional[ssl.SSLContext]" = None
    ) -> None:
        self._find_place = find_place
        self._headers = headers
        self._pool = _Pool(tls)

    def fetch(self, call: "Call[Any]") -> Answer:
        return self.open(call).read()

    def open(self, call: "Call[Any]") -> Response:
        """Sends a call and returns when the head of the answer is there."""
        connection = self._connection(call)
        try:
            return self._exchange(connection, call)
        except ConnectionLostError as error:
            if not call.resendable:
                raise
            return self._exchange(self._same_server(connection.endpoint, error), call)

    def close(self) -> None:
        self._pool.close()

    def _connection(self, call: "Call[Any]") -> _Connection:
        place = self._find_place()
        endpoint = place.endpoint()
        # A call that cannot be sent twice gets a connection that the server has had no reason to close.
        idle = self._pool.take(endpoint) if call.resendable else None
        if idle:
            return idle
        try:
            return self._pool.connect(endpoint)
        except OSError as error:
            place.is_gone(endpoint)
            again = place.endpoint()
            if again is endpoint:
                raise unreachable(endpoint, error) from error
        try:
            return self._pool.connect(again)
        except OSError as error:
            raise unreachable(again, error) from error

    def _same_server(self, endpoint: Endpoint, error: ConnectionLostError) -> _Connection:
        """A new connection to where the last one was lost. A server that was killed has forgotten the run."""
        try:
            return self._pool.connect(endpoint)
        except OSError:
            self._find_place().is_gone(endpoint)
            raise error from None

    def _exchange(self, connection: _Connection, call: "Call[Any]") -> Response:
        parser = ResponseParser(call.method)
        try:
            connection.sock.settimeout(call.patience)
            refused = _send(connection.sock, head_of(call, connection.endpoint, self._headers))
            first: List[bytes] = []
            while not parser.has_head:
                data = connection.sock.recv(65536)
                if not data:
                    raise refused or ProtocolError("the server closed the connection")
                first += parser.feed(data)
            return Response(self._pool, connection, parser, first)
        except (OSError, ProtocolError) as error:
            self._pool.give_back(connection, False)
            raise lost(connection.endpoint, error) from error
        except BaseException:  # such as KeyboardInterrupt: what has been sent cannot be taken back
            self._pool.give_back(connection, False)
            raise


def _send(sock: socket.socket, data: bytes) -> Optional[OSError]:
    """Sends everything. A server that refuses a long body answers, and closes, before it has read it: that is returned, and
    the answer may still be there to read."""
    try:
        sock.sendall(data)
        return None
    except (BrokenPipeError, ConnectionResetError) as error:
        return error


class _Pool:
    """The connections of one client."""

    def __init__(self, tls: "Optional[ssl.SSLContext]") -> None:
        self._tls = tls
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        # Reentrant: the garbage collector may close a stream while this thread holds it.
        self._lock = threading.RLock()
        self._idle: List[_Connection] = []
        self._all: Set[_Connection] = set()

    def take(self, endpoint: Endpoint) -> Optional[_Connection]:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.endpoint == endpoint and is_idle(connection.sock):
                return connection
            self._drop(connection)

    def connect(self, endpoint: Endpoint) -> _Connection:
        connection = _Connection(endpoint, _connected(endpoint, self._tls))
        with self._lock:
            self._all.add(connection)
        return connection

    def give_back(self, connection: _Connection, reusable: bool) -> None:
        now = time.monotonic()
        connection.idle_since = now
        with self._lock:
            kept = reusable and connection in self._all
            if kept:
                self._idle.append(connection)
            old = [one for one in self._idle if now - one.idle_since > KEEP_SECONDS] + self._idle[:-KEEP_IDLE]
            self._idle = [one for one in self._idle if one not in old]
        for one in old if kept else [*old, connection]:
            self._drop(one)

    def close(self) -> None:
        with self._lock:
            everything, self._idle, self._all = list(self._all), [], set()
        for connection in everything:
            connection.close()

    def after_fork(self) -> None:
        """In the child: the connections belong to the parent. Closing them here leaves them open there."""
        everything = list(self._all)
        self._reset()
        for connection in everything:
            connection.close()

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            self._all.discard(connection)
        connection.close()

    def __del__(self) -> None:
        for connection in getattr(self, "_all", ()):
            connection.close()


def _connected(endpoint: Endpoint, tls: "Optional[ssl.SSLContext]") -> socket.socket:
    if endpoint.path is not None:
        return _connected_to_path(endpoint.path)
    sock = socket.create_connection((endpoint.host, endpoint.port), CONNECT_SECONDS)
    try:
        tune(sock)
        if endpoint.tls:
            import ssl

            context = tls or ssl.create_default_context()
            return context.wrap_socket(sock, server_hostname=endpoint.host)
        return sock
    except BaseException:
        sock.close()
        raise


def _connected_to_path(path: str) -> socket.socket:
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise OSError(f"this Python has no unix sockets, and the server is at unix:{path}")
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_SECONDS)
        sock.connect(path)
        return sock
    except BaseException:
        sock.close()
        raise


def tune(sock: socket.socket) -> None:
    """Requests are small and must not wait; and a run may be silent for long, while its server is dead."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_pools: "weakref.WeakSet[_Pool]" = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
