"""The client for asyncio. It may be used in one event loop after another, and in several at a time."""

from __future__ import annotations

import asyncio
import inspect
import os
import pathlib
import time
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    List,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    overload,
)

from . import _calls as calls
from ._async_transport import AsyncResponse, AsyncTransport
from ._calls import Call, Patience
from ._options import Inputs, RunOptions, Stdin, request_body
from ._setup import BUSY_SECONDS, headers_for, place_for
from ._sse import EventReader
from .errors import BusyError, ConnectionLostError, not_finished
from .models import Approval, Backend, Language, RunSummary, Upload
from .results import Batch, Event, Finding, Result

if TYPE_CHECKING:
    import ssl

    from typing_extensions import Unpack

    from . import _types as wire

__all__ = ["AsyncApprovals", "AsyncAudit", "AsyncBelljar", "AsyncEventStream", "AsyncRun"]

T = TypeVar("T")
Listener = Callable[[str], object]
"""Called with a piece of output. What it returns is awaited if it can be."""


class AsyncBelljar:
    """A connection to a Belljar server, for asyncio. The server is found as `Belljar` finds it."""

    def __init__(
        self,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        binary: Optional[str] = None,
        busy_timeout: float = BUSY_SECONDS,
        tls: "Optional[ssl.SSLContext]" = None,
    ) -> None:
        """As for `Belljar`."""
        self._busy_timeout = busy_timeout
        self._transport = AsyncTransport(place_for(url, binary), headers_for(api_key), tls)

    async def __aenter__(self) -> "AsyncBelljar":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. The client can be used again."""
        self._transport.close()

    @overload
    async def run(
        self,
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
    async def run(
        self,
        language: str,
        code: Union[str, bytes],
        *,
        stdin: Optional[Stdin] = None,
        on_stdout: Optional[Listener] = None,
        on_stderr: Optional[Listener] = None,
        idempotency_key: Optional[str] = None,
        **options: "Unpack[RunOptions]",
    ) -> Result: ...
    async def run(
        self,
        language: str,
        code: Union[str, bytes],
        *,
        stdin: Union[Stdin, Inputs, None] = None,
        on_stdout: Optional[Listener] = None,
        on_stderr: Optional[Listener] = None,
        idempotency_key: Optional[str] = None,
        **options: "Unpack[RunOptions]",
    ) -> Union[Result, Batch]:
        """Runs code and returns the result, as `Belljar.run` does. Cancelling the task cancels the run."""
        body = request_body(language, code, stdin, options)
        if not (on_stdout or on_stderr):
            return await self._perform(calls.run(body, idempotency_key))
        if isinstance(stdin, (list, tuple)):
            raise TypeError("on_stdout and on_stderr do not go with a list of inputs")
        async with AsyncEventStream(self, calls.stream(body, idempotency_key)) as stream:
            async for event in stream:
                listener = {"stdout": on_stdout, "stderr": on_stderr}.get(event.type)
                if listener:
                    await _heard(listener(event.text))
            return stream.result

    def stream(
        self,
        language: str,
        code: Union[str, bytes],
        *,
        stdin: Union[Stdin, Inputs, None] = None,
        idempotency_key: Optional[str] = None,
        **options: "Unpack[RunOptions]",
    ) -> "AsyncEventStream":
        """Runs code and iterates over its events: `async for event in client.stream(…)`. The last one is of type `end` and
        has the `result`. Leaving the loop early and closing the stream cancels the run; `async with` sees to it."""
        call = calls.stream(request_body(language, code, stdin, options), idempotency_key)
        return AsyncEventStream(self, call)

    async def submit(
        self,
        language: str,
        code: Union[str, bytes],
        *,
        stdin: Optional[Stdin] = None,
        idempotency_key: Optional[str] = None,
        **options: "Unpack[RunOptions]",
    ) -> "AsyncRun":
        """Starts a run and returns at once. The run goes on even if this program ends."""
        body = request_body(language, code, stdin, options)
        return AsyncRun(self, await self._perform(calls.submit(body, idempotency_key)))

    def attach(self, run_id: str) -> "AsyncRun":
        """Gets hold of a run that was submitted, or that waits for approval, by its id."""
        return AsyncRun(self, run_id)

    def runs(self, *, status: Optional[str] = None, language: Optional[str] = None) -> AsyncIterator[RunSummary]:
        """The caller's own runs, newest first: those that have not ended, and those whose results are still kept."""
        return self._pages(lambda cursor: calls.runs(status, language, cursor))

    async def languages(self, *, backend: Optional[str] = None) -> List[Language]:
        """What can run on the server, and how to get what cannot."""
        return await self._perform(calls.languages(backend))

    async def backends(self) -> List[Backend]:
        """What isolates runs on the server, strongest first."""
        return await self._perform(calls.backends())

    async def pool(self) -> "wire.Pool":
        """The warm pool of the server."""
        return await self._perform(calls.pool())

    async def scan(self, language: str, code: str, *, allowed_imports: Optional[Sequence[str]] = None) -> List[Finding]:
        """What the code does that somebody may want to know before it runs. Nothing is run."""
        return await self._perform(calls.scan(language, code, allowed_imports))

    async def upload(self, content: Union[bytes, "os.PathLike[str]"]) -> Upload:
        """Keeps a file on the server for any number of runs: `files={"data.csv": upload}`."""
        data = pathlib.Path(content).read_bytes() if isinstance(content, os.PathLike) else bytes(content)
        return await self._perform(calls.upload(data))

    async def uploads(self) -> List[Upload]:
        """The files that were uploaded and are still kept."""
        return await self._perform(calls.uploads())

    async def delete_upload(self, upload: Union[Upload, str]) -> None:
        await self._perform(calls.delete_upload(upload.id if isinstance(upload, Upload) else upload))

    @property
    def approvals(self) -> "AsyncApprovals":
        """Runs that wait for a person."""
        return AsyncApprovals(self)

    @property
    def audit(self) -> "AsyncAudit":
        """The audit log."""
        return AsyncAudit(self)

    async def _perform(self, call: Call[T]) -> T:
        async def attempt() -> T:
            return call.result(await self._transport.fetch(call))

        return await self._while_busy(attempt)

    async def _open(self, call: Call[Any]) -> AsyncResponse:
        async def attempt() -> AsyncResponse:
            response = await self._transport.open(call)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                call.result(await response.read())
            return response

        return await self._while_busy(attempt)

    async def _while_busy(self, attempt: Callable[[], Awaitable[T]]) -> T:
        patience = Patience(self._busy_timeout)
        while True:
            try:
                return await attempt()
            except BusyError as busy:
                await asyncio.sleep(patience.delay_after(busy))

    async def _pages(self, page: Callable[[Optional[str]], Call[Tuple[List[T], Optional[str]]]]) -> AsyncIterator[T]:
        cursor: Optional[str] = None
        while True:
            entries, cursor = await self._perform(page(cursor))
            for entry in entries:
                yield entry
            if cursor is None:
                return


async def _heard(answer: object) -> None:
    if inspect.isawaitable(answer):
        await answer


class AsyncEventStream(AsyncIterator[Event]):
    """The events of a run, as they happen. After the last one, `result` is there."""

    def __init__(self, client: AsyncBelljar, call: Call[Any]) -> None:
        self._client = client
        self._call = call
        self._reader = EventReader(call.several)
        self._response: Optional[AsyncResponse] = None
        self._ready: List[Event] = []
        self._result: Optional[Result] = None
        self._closed = False

    def __aiter__(self) -> "AsyncEventStream":
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            if self._closed or self._reader.ended:
                raise StopAsyncIteration
            await self._read_more()
        event = self._ready.pop(0)
        if event.type == "end":
            self._result = event.result
        return event

    @property
    def result(self) -> Result:
        """The result, once the last event has been read."""
        if self._result is None:
            raise RuntimeError("the result of a stream is there after its last event")
        return self._result

    async def aclose(self) -> None:
        """Stops reading. If the run has not ended, it is cancelled, unless it was submitted."""
        self._closed = True
        if self._response:
            self._response.close()

    async def __aenter__(self) -> "AsyncEventStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        response = getattr(self, "_response", None)
        if response:
            response.close()

    async def _read_more(self) -> None:
        if self._response is None:
            self._response = await self._client._open(self._call)
        pieces = await self._response.next_pieces()
        try:
            for piece in pieces:
                self._ready += self._reader.feed(piece)
        except BaseException:  # an error that the server told, after which there is nothing to read
            await self.aclose()
            raise
        if self._reader.ended:
            await self._response.read()  # what is left is the end of the answer, and then the connection is free
        elif not pieces:
            raise ConnectionLostError(
                "the stream of events ended before the run", hint="the server was stopped; send the run again"
            )


class AsyncRun:
    """A run that was submitted."""

    def __init__(self, client: AsyncBelljar, run_id: str) -> None:
        self._client = client
        self.id = run_id

    def __repr__(self) -> str:
        return f"AsyncRun({self.id!r})"

    async def status(self) -> str:
        """Where it is: `queued`, `awaiting_approval`, `running`, or how it ended."""
        found = await self._client._perform(calls.run_state(self.id))
        return found if isinstance(found, str) else found.status

    async def result(self) -> Result:
        """The result of a run that has ended. Raises RunNotFinishedError if it has not."""
        found = await self._client._perform(calls.run_state(self.id))
        if isinstance(found, str):
            raise not_finished(self.id, found)
        return found

    async def wait(self, timeout: Optional[float] = None) -> Result:
        """Waits for the result; after `timeout` seconds it raises RunNotFinishedError, and the run goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = calls.LONGEST_WAIT if deadline is None else deadline - time.monotonic()
            found = await self._client._perform(calls.run_state(self.id, max(0.0, min(left, calls.LONGEST_WAIT))))
            if isinstance(found, Result):
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise not_finished(self.id, found, timeout)

    async def cancel(self) -> None:
        """Ends the run. Its result then has the status `cancelled`. Raises ConflictError if it has ended already."""
        await self._client._perform(calls.cancel(self.id))

    def events(self) -> AsyncEventStream:
        """The events of the run from its start, whenever this is called."""
        return AsyncEventStream(self._client, calls.run_events(self.id))


class AsyncApprovals:
    """Runs that wait for a person."""

    def __init__(self, client: AsyncBelljar) -> None:
        self._client = client

    def list(self, *, status: Optional[str] = None) -> AsyncIterator[Approval]:
        """Approvals, newest first: `pending`, `approved`, `denied`, `expired`, `cancelled`, or all of them."""
        return self._client._pages(lambda cursor: calls.approvals(status, cursor))

    async def get(self, approval_id: str) -> Approval:
        """All that a decision would cover."""
        return await self._client._perform(calls.approval(approval_id))

    async def approve(
        self, approval_id: str, *, reason: Optional[str] = None, remember: Optional[float] = None
    ) -> Approval:
        """Lets the run begin; for `remember` seconds also identical ones."""
        return await self._client._perform(calls.decide(approval_id, "approve", reason, remember))

    async def deny(
        self, approval_id: str, *, reason: Optional[str] = None, remember: Optional[float] = None
    ) -> Approval:
        """Refuses the run; for `remember` seconds also identical ones."""
        return await self._client._perform(calls.decide(approval_id, "deny", reason, remember))

    async def revoke(self, approval_id: str, *, reason: Optional[str] = None) -> Approval:
        """Takes a decision back that still holds for later requests. A run that has begun goes on."""
        return await self._client._perform(calls.decide(approval_id, "revoke", reason, None))


class AsyncAudit:
    """The audit log. Records are dicts, as the server has them."""

    def __init__(self, client: AsyncBelljar) -> None:
        self._client = client

    def search(
        self,
        text: Optional[str] = None,
        *,
        language: Optional[str] = None,
        status: Optional[str] = None,
        caller: Optional[str] = None,
        since: Optional[str] = None,
        until: Optional[str] = None,
    ) -> "AsyncIterator[wire.AuditSummary]":
        """Attempts to run something, newest first."""
        query = {"q": text, "language": language, "status": status, "caller": caller, "from": since, "to": until}
        return self._client._pages(lambda cursor: calls.audit(cursor, query))

    async def get(self, run_id: str) -> "wire.AuditRecord":
        return await self._client._perform(calls.audit_record(run_id))

    async def verify(self) -> "wire.AuditVerdict":
        """Whether the log is as it was written."""
        return await self._client._perform(calls.audit_verdict())
