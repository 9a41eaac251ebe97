"""Server-sent events: bytes in, events out."""

from __future__ import annotations

import codecs
import json
from typing import Any, Iterator, List, Mapping, Tuple

from .errors import BelljarError, from_detail
from .results import Event, result_of

__all__ = ["EventReader"]


class EventReader:
    """Splits a stream into events of this client. `ended` is set once the last one has been read."""

    def __init__(self, several: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._several = several  # of several inputs, an error is an answer for one of them, and not the end
        self._answered = 0
        self.ended = False

    def feed(self, data: bytes) -> Iterator[Event]:
        self._text += self._decoder.decode(data)
        *blocks, self._text = self._text.replace("\r\n", "\n").split("\n\n")
        for block in blocks:
            name, content = _fields(block)
            if content:
                yield self._event(name, json.loads(content))

    def _event(self, name: str, data: Mapping[str, Any]) -> Event:
        if name == "error":
            return self._failure(from_detail(data.get("error", {})), data)
        self.ended = name in ("end", "done")
        if name == "end":
            return Event(name, result=result_of(data), data=data)
        if name == "result":
            self._answered += 1
            return Event(name, result=result_of(data["result"]), index=data["index"], data=data)
        return Event(name, text=str(data.get("text", "")), data=data)

    def _failure(self, error: BelljarError, data: Mapping[str, Any]) -> Event:
        if not self._several:
            raise error
        self._answered += 1
        return Event("error", error=error, index=self._answered - 1, data=data)


def _fields(block: str) -> Tuple[str, str]:
    name = "message"
    content: List[str] = []
    for line in block.split("\n"):
        key, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if key == "event":
            name = value
        elif key == "data":
            content.append(value)
    return name, "\n".join(content)
