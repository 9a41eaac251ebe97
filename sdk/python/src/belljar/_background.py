"""The server of this user in the background, which `belljar serve --background` finds or starts."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import Dict, List, Optional

from ._endpoint import Endpoint
from .errors import ServerUnreachableError

__all__ = ["BackgroundServer", "find_binary"]

START_SECONDS = 60
SET_URL = "set BELLJAR_URL, or pass url=, to use a server on another machine"


def find_binary(binary: Optional[str] = None) -> str:
    """The program `belljar`: the one named, that of BELLJAR_BINARY, the one in this package, the one on the PATH."""
    named = binary or os.environ.get("BELLJAR_BINARY")
    if named:
        if not os.access(named, os.X_OK):
            raise ServerUnreachableError(f"{named} is not a program", hint="correct BELLJAR_BINARY or binary=")
        return named
    bundled = pathlib.Path(__file__).parent / "bin" / "belljar"
    if os.access(bundled, os.X_OK):
        return str(bundled)
    # The package puts a script of that name on the PATH, too. It only looks here, and would find itself.
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("belljar", path=folder)
        if found and not _is_script(found):
            return found
    raise ServerUnreachableError(
        "there is no program `belljar` in this package, in BELLJAR_BINARY or on the PATH",
        hint=f"install the wheel for Linux, or {SET_URL}",
    )


def _is_script(path: str) -> bool:
    with open(path, "rb") as opened:
        return opened.read(2) == b"#!"


class BackgroundServer:
    """Remembers where the server is. All clients of a process that use the same binary share one."""

    _known: Dict[str, "BackgroundServer"] = {}

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._lock = threading.Lock()
        self._endpoint: Optional[Endpoint] = None

    @classmethod
    def of(cls, binary: Optional[str]) -> "BackgroundServer":
        if not sys.platform.startswith("linux"):
            raise ServerUnreachableError(
                f"Belljar runs code on Linux, and this is {sys.platform}",
                hint=f"{SET_URL}: `belljar serve` on a Linux host or in a container",
            )
        path = find_binary(binary)
        return cls._known.setdefault(path, cls(path))

    @classmethod
    def forget_locks(cls) -> None:
        """After a fork: a thread that held a lock does not exist in the child."""
        for server in cls._known.values():
            server._lock = threading.Lock()

    def endpoint(self) -> Endpoint:
        with self._lock:
            if self._endpoint is None:
                self._endpoint = self._start()
            return self._endpoint

    def known_endpoint(self) -> Optional[Endpoint]:
        """Where it is, if that is known: without waiting."""
        return self._endpoint

    def is_gone(self, endpoint: Endpoint) -> None:
        """Nobody listens there any more: it was killed, or had nothing to do. The next call starts another."""
        with self._lock:
            if self._endpoint is endpoint:
                self._endpoint = None

    def _start(self) -> Endpoint:
        status, said, complaint = _call([self._binary, "serve", "--background"])
        listening = [line for line in said.splitlines() if line.startswith("listening on ")]
        if status != 0 or not listening:
            message, hint = _explained(complaint)
            raise ServerUnreachableError(
                f"the background server did not start: {message or f'`belljar serve --background` ended with {status}'}",
                hint=hint or f"run `{self._binary} doctor`",
            )
        return Endpoint.parse(listening[-1][len("listening on ") :].strip())


def _call(command: List[str]) -> "tuple[int, str, str]":
    # Files and not pipes: a server that keeps them open must not keep us waiting for their end.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=START_SECONDS, check=False
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = -1
        except OSError as error:
            return -1, "", f"error: cannot execute {command[0]}: {error.strerror}"
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return status, texts[0], texts[1]


def _explained(complaint: str) -> "tuple[str, str]":
    found = {"error": "", "hint": ""}
    for line in complaint.splitlines():
        kind, _, text = line.partition(": ")
        if kind in found and not found[kind]:
            found[kind] = text.strip()
    return found["error"] or complaint.strip()[-300:], found["hint"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BackgroundServer.forget_locks)
