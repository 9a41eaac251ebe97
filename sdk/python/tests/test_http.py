"""The parser of HTTP: whatever way its bytes are split."""

from __future__ import annotations

from typing import List

import pytest

from belljar._http import ProtocolError, ResponseParser, encode_request
from belljar._sse import EventReader

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A:  b \r\n\r\n"
    b"5;x=y\r\nhello\r\n0006\r\n\r\nworl\r\n0\r\nTrailer: x\r\n\r\n"
)
LENGTH = b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nabc"
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\n\r\nabc"


@pytest.mark.parametrize(("answer", "body"), [(CHUNKED, b"hello\r\nworl"), (LENGTH, b"abc")])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_split(answer: bytes, body: bytes, size: int) -> None:
    parser, pieces = ResponseParser("GET"), []  # type: ResponseParser, List[bytes]
    for start in range(0, len(answer), size):
        assert not parser.ended
        pieces += parser.feed(answer[start : start + size])
    assert b"".join(pieces) == body and parser.ended and parser.reusable


def test_until_the_connection_closes() -> None:
    parser = ResponseParser("GET")
    assert parser.feed(UNTIL_CLOSE) == [b"abc"] and not parser.ended
    parser.close()
    assert parser.ended and not parser.reusable


def test_more_than_was_asked_for_is_not_the_next_answer() -> None:
    parser = ResponseParser("GET")
    parser.feed(LENGTH + LENGTH)
    assert parser.ended and not parser.reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"x" * (300 * 1024),
    ],
)
def test_what_is_not_http(answer: bytes) -> None:
    with pytest.raises(ProtocolError):
        ResponseParser("GET").feed(answer)


@pytest.mark.parametrize("cut", range(1, len(CHUNKED)))
def test_an_answer_that_is_cut_off(cut: int) -> None:
    parser = ResponseParser("GET")
    parser.feed(CHUNKED[:cut])
    with pytest.raises(ProtocolError):
        parser.close()


def test_a_header_with_a_line_break_is_not_sent() -> None:
    with pytest.raises(ValueError):
        encode_request("GET", "/", {"A": "b\r\nC: d"}, None)


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_events_however_they_are_split(size: int) -> None:
    text = ': beat\n\nevent: stdout\ndata: {"text":"ü\\n"}\n\nevent: stderr\r\ndata: {"text":"e"}\r\n\r\nevent: done\ndata: {}\n\n'
    data, reader, events = text.encode(), EventReader(True), []
    for start in range(0, len(data), size):
        events += reader.feed(data[start : start + size])
    assert [(event.type, event.text) for event in events] == [("stdout", "ü\n"), ("stderr", "e"), ("done", "")]
    assert reader.ended
