"""`run` and `arun`: for programs that need no client of their own."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple, TypeVar, Union, overload

from ._options import Inputs, RunOptions, Stdin
from .client import Belljar, Listener
from .results import Batch, Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .async_client import AsyncBelljar

__all__ = ["arun", "default_async_client", "default_client", "run"]

C = TypeVar("C")


class _Default:
    """One client for each setting of the environment, so that a changed BELLJAR_URL is not ignored."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._clients: Dict[Tuple[Optional[str], ...], Any] = {}
        self._lock = threading.Lock()

    def client(self) -> Any:
        setting = tuple(os.environ.get(f"BELLJAR_{name}") for name in ("URL", "API_KEY", "BINARY"))
        with self._lock:
            if setting not in self._clients:
                self._clients[setting] = self._make()
            return self._clients[setting]

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        for client in self._clients.values():
            client._transport.close()


def _make_async() -> "AsyncBelljar":
    from .async_client import AsyncBelljar  # asyncio takes longer to import than everything else here

    return AsyncBelljar()


_sync, _async = _Default(Belljar), _Default(_make_async)
for _one in (_sync, _async):
    atexit.register(_one.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_one.after_fork)


def default_client() -> Belljar:
    client: Belljar = _sync.client()
    return client


def default_async_client() -> "AsyncBelljar":
    client: AsyncBelljar = _async.client()
    return client


@overload
def run(
    language: str,
    code: Union[str, bytes],
    *,
    stdin: Inputs,
    on_stdout: None = None,
    on_stderr: None = None,
    idempotency_key: None = None,
    **options: "Unpack[RunOptions]",
) -> Batch: ...
@overload
def run(
    language: str,
    code: Union[str, bytes],
    *,
    stdin: Optional[Stdin] = None,
    on_stdout: Optional[Listener] = None,
    on_stderr: Optional[Listener] = None,
    idempotency_key: Optional[str] = None,
    **options: "Unpack[RunOptions]",
) -> Result: ...
def run(language: str, code: Union[str, bytes], **options: Any) -> Union[Result, Batch]:
    """Runs code in a sandbox and returns the result: `run("python", "print(1)").stdout`.

    The options are those of `Belljar.run`: stdin, files, collect, timeout, memory, network and others.
    """
    client: Any = default_client()
    answer: Union[Result, Batch] = client.run(language, code, **options)
    return answer


@overload
async def arun(
    language: str,
    code: Union[str, bytes],
    *,
    stdin: Inputs,
    on_stdout: None = None,
    on_stderr: None = None,
    idempotency_key: None = None,
    **options: "Unpack[RunOptions]",
) -> Batch: ...
@overload
async def arun(
    language: str,
    code: Union[str, bytes],
    *,
    stdin: Optional[Stdin] = None,
    on_stdout: Optional[Listener] = None,
    on_stderr: Optional[Listener] = None,
    idempotency_key: Optional[str] = None,
    **options: "Unpack[RunOptions]",
) -> Result: ...
async def arun(language: str, code: Union[str, bytes], **options: Any) -> Union[Result, Batch]:
    """As `run`, for asyncio."""
    client: Any = default_async_client()
    answer: Union[Result, Batch] = await client.run(language, code, **options)
    return answer
