"""HTTP/1.1 as far as this client needs it, without any input or output: both transports feed their bytes to it."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

__all__ = ["ProtocolError", "ResponseParser", "encode_request"]

MAX_HEAD = 256 * 1024


class ProtocolError(Exception):
    """What arrived is not HTTP/1.1."""


def encode_request(method: str, target: str, headers: Mapping[str, str], body: Optional[bytes]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body or b'')}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of the request, such as the API key, contains a line break")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head + (body or b"")


class ResponseParser:
    """Takes the bytes of one response with `feed`, and gives its head and pieces of its body.

    `ended` is set when the whole body has been seen, and `reusable` then says whether the connection may carry another
    request. `close` tells that no more bytes will come.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._buffer = bytearray()
        self._left: Optional[int] = None  # of the body, or of a chunk; None: until the connection closes
        self._chunked = False
        self._in_trailer = False
        self._keep = True
        self.status = 0
        self.headers: Dict[str, str] = {}
        self.has_head = False
        self.ended = False

    @property
    def reusable(self) -> bool:
        return self.ended and self._keep and not self._buffer

    def feed(self, data: bytes) -> List[bytes]:
        """The pieces of the body that these bytes complete."""
        self._buffer += data
        if not self.has_head and not self._read_head():
            return []
        return self._read_body()

    def close(self) -> None:
        """The connection has ended. Raises ProtocolError if the response had not."""
        if self.has_head and not self.ended and self._left is None and not self._chunked:
            self.ended = True
        if not self.ended:
            raise ProtocolError("the connection was closed in the middle of an answer")

    def _read_head(self) -> bool:
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD:
                    raise ProtocolError("the head of the answer is too long")
                return False
            lines = self._buffer[:end].decode("latin-1").split("\r\n")
            del self._buffer[: end + 4]
            self.status, version = _status_of(lines[0])
            if self.status >= 200:
                break  # what comes before, such as 100 Continue, has no body
        self.headers = dict(_header_of(line) for line in lines[1:])
        self._keep = version == "HTTP/1.1" and self.headers.get("connection", "").lower() != "close"
        self._find_length()
        self.has_head = True
        return True

    def _find_length(self) -> None:
        length = self.headers.get("content-length")
        if self._method == "HEAD" or self.status in (204, 304):
            self._left, self.ended = 0, True
        elif self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._chunked, self._left = True, 0
        elif length is not None:
            if not length.isdigit():
                raise ProtocolError(f"the answer has a length of {length!r}")
            self._left = int(length)
            self.ended = self._left == 0
        else:
            self._keep = False

    def _read_body(self) -> List[bytes]:
        pieces: List[bytes] = []
        while not self.ended:
            if self._chunked and self._left == 0:
                if not self._read_chunk_size():
                    break
            elif not self._buffer:
                break
            else:
                pieces.append(self._take())
        return pieces

    def _take(self) -> bytes:
        size = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        if self._left is not None:
            self._left -= size
            self.ended = self._left == 0 and not self._chunked
        return piece

    def _read_chunk_size(self) -> bool:
        """Moves on to the next chunk. False if its size has not arrived yet."""
        while True:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD:
                    raise ProtocolError("a chunk of the answer has no size")
                return False
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            if self._in_trailer:
                if not line:
                    self.ended = True
                    return True
            elif line:  # an empty line is the end of the chunk before
                self._left = _chunk_size(line)
                if self._left:
                    return True
                self._in_trailer = True


def _status_of(line: str) -> Tuple[int, str]:
    version, _, rest = line.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not code.isdigit():
        raise ProtocolError(f"the answer begins with {line[:80]!r}, which is not HTTP/1.1")
    return int(code), version


def _header_of(line: str) -> Tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ProtocolError(f"the answer has a header without a colon: {line[:80]!r}")
    return name.strip().lower(), value.strip()


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.split(b";", 1)[0].strip(), 16)
    except ValueError:
        raise ProtocolError(f"a chunk of the answer has a size of {line[:40]!r}") from None
