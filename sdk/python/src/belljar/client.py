"""The client whose calls block."""

from __future__ import annotations

import os
import pathlib
import time
from typing import TYPE_CHECKING, Any, Callable, Generator, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union, overload

from . import _calls as calls
from ._calls import Call, Patience
from ._options import Inputs, RunOptions, Stdin, request_body
from ._setup import BUSY_SECONDS, headers_for, place_for
from ._sse import EventReader
from ._transport import Response, Transport
from .errors import BusyError, ConnectionLostError, not_finished
from .models import Approval, Backend, Language, RunSummary, Upload
from .results import Batch, Event, Finding, Result

if TYPE_CHECKING:
    import ssl

    from typing_extensions import Unpack

    from . import _types as wire

__all__ = ["Approvals", "Audit", "Belljar", "EventStream", "Run"]

T = TypeVar("T")
Listener = Callable[[str], object]


class Belljar:
    """A connection to a Belljar server.

    The server is that of `url` (`http://…`, `https://…` or `unix:/path`), else that of BELLJAR_URL, else one that this package
    starts in the background and that all programs of this user share. It stops when nobody uses it.

    One client serves any number of threads. It is a context manager, but need not be closed.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        binary: Optional[str] = None,
        busy_timeout: float = BUSY_SECONDS,
        tls: "Optional[ssl.SSLContext]" = None,
    ) -> None:
        """`binary` is the program to start in the background; `busy_timeout` is how many seconds a call goes on trying while
        the server is busy; `tls` is for a server whose certificate is not generally known."""
        self._busy_timeout = busy_timeout
        self._transport = Transport(place_for(url, binary), headers_for(api_key), tls)

    def __enter__(self) -> "Belljar":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. The client can be used again."""
        self._transport.close()

    @overload
    def run(
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
    def run(
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
    def run(
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
        """Runs code and returns the result. RunOptions lists the options.

        With a list as `stdin`, the program runs once for each input, and a Batch comes back. `on_stdout` and `on_stderr`
        are called with pieces of the output as it is written. A program that fails is a result like any other; an error is
        raised if Belljar could not or would not run it.
        """
        body = request_body(language, code, stdin, options)
        if not (on_stdout or on_stderr):
            return self._perform(calls.run(body, idempotency_key))
        if isinstance(stdin, (list, tuple)):
            raise TypeError("on_stdout and on_stderr do not go with a list of inputs")
        with self._open(calls.stream(body, idempotency_key)) as stream:
            for event in stream:
                listener = {"stdout": on_stdout, "stderr": on_stderr}.get(event.type)
                if listener:
                    listener(event.text)
            return stream.result

    def stream(
        self,
        language: str,
        code: Union[str, bytes],
        *,
        stdin: Union[Stdin, Inputs, None] = None,
        idempotency_key: Optional[str] = None,
        **options: "Unpack[RunOptions]",
    ) -> "EventStream":
        """Runs code and iterates over its events. The last one is of type `end` and has the `result`.

        Leaving the loop early and closing the stream cancels the run; `with client.stream(…) as events:` sees to it.
        """
        return self._open(calls.stream(request_body(language, code, stdin, options), idempotency_key))

    def submit(
        self,
        language: str,
        code: Union[str, bytes],
        *,
        stdin: Optional[Stdin] = None,
        idempotency_key: Optional[str] = None,
        **options: "Unpack[RunOptions]",
    ) -> "Run":
        """Starts a run and returns at once. The run goes on even if this program ends."""
        return Run(self, self._perform(calls.submit(request_body(language, code, stdin, options), idempotency_key)))

    def attach(self, run_id: str) -> "Run":
        """Gets hold of a run that was submitted, or that waits for approval, by its id."""
        return Run(self, run_id)

    def runs(self, *, status: Optional[str] = None, language: Optional[str] = None) -> Iterator[RunSummary]:
        """The caller's own runs, newest first: those that have not ended, and those whose results are still kept."""
        return self._pages(lambda cursor: calls.runs(status, language, cursor))

    def languages(self, *, backend: Optional[str] = None) -> List[Language]:
        """What can run on the server, and how to get what cannot."""
        return self._perform(calls.languages(backend))

    def backends(self) -> List[Backend]:
        """What isolates runs on the server, strongest first."""
        return self._perform(calls.backends())

    def pool(self) -> "wire.Pool":
        """The warm pool of the server."""
        return self._perform(calls.pool())

    def scan(self, language: str, code: str, *, allowed_imports: Optional[Sequence[str]] = None) -> List[Finding]:
        """What the code does that somebody may want to know before it runs. Nothing is run."""
        return self._perform(calls.scan(language, code, allowed_imports))

    def upload(self, content: Union[bytes, "os.PathLike[str]"]) -> Upload:
        """Keeps a file on the server for any number of runs: `files={"data.csv": upload}`."""
        data = pathlib.Path(content).read_bytes() if isinstance(content, os.PathLike) else bytes(content)
        return self._perform(calls.upload(data))

    def uploads(self) -> List[Upload]:
        """The files that were uploaded and are still kept."""
        return self._perform(calls.uploads())

    def delete_upload(self, upload: Union[Upload, str]) -> None:
        self._perform(calls.delete_upload(upload.id if isinstance(upload, Upload) else upload))

    @property
    def approvals(self) -> "Approvals":
        """Runs that wait for a person."""
        return Approvals(self)

    @property
    def audit(self) -> "Audit":
        """The audit log."""
        return Audit(self)

    def _perform(self, call: Call[T]) -> T:
        return self._while_busy(lambda: call.result(self._transport.fetch(call)))

    def _open(self, call: Call[Any]) -> "EventStream":
        def attempt() -> EventStream:
            response = self._transport.open(call)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                call.result(response.read())
            return EventStream(response, EventReader(call.several))

        return self._while_busy(attempt)

    def _while_busy(self, attempt: Callable[[], T]) -> T:
        patience = Patience(self._busy_timeout)
        while True:
            try:
                return attempt()
            except BusyError as busy:
                time.sleep(patience.delay_after(busy))

    def _pages(self, page: Callable[[Optional[str]], Call[Tuple[List[T], Optional[str]]]]) -> Iterator[T]:
        cursor: Optional[str] = None
        while True:
            entries, cursor = self._perform(page(cursor))
            yield from entries
            if cursor is None:
                return


class EventStream(Iterator[Event]):
    """The events of a run, as they happen. After the last one, `result` is there."""

    def __init__(self, response: Response, reader: EventReader) -> None:
        self._response = response
        self._events = self._read(response, reader)
        self._result: Optional[Result] = None

    def __iter__(self) -> "EventStream":
        return self

    def __next__(self) -> Event:
        event = next(self._events)
        if event.type == "end":
            self._result = event.result
        return event

    @property
    def result(self) -> Result:
        """The result, once the last event has been read."""
        if self._result is None:
            raise RuntimeError("the result of a stream is there after its last event")
        return self._result

    def close(self) -> None:
        """Stops reading. If the run has not ended, it is cancelled, unless it was submitted."""
        self._events.close()
        self._response.close()

    def __enter__(self) -> "EventStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        response = getattr(self, "_response", None)
        if response:
            response.close()

    @staticmethod
    def _read(response: Response, reader: EventReader) -> Generator[Event, None, None]:
        for piece in response.pieces():
            yield from reader.feed(piece)
        if not reader.ended:
            raise ConnectionLostError(
                "the stream of events ended before the run", hint="the server was stopped; send the run again"
            )


class Run:
    """A run that was submitted."""

    def __init__(self, client: Belljar, run_id: str) -> None:
        self._client = client
        self.id = run_id

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def status(self) -> str:
        """Where it is: `queued`, `awaiting_approval`, `running`, or how it ended."""
        found = self._client._perform(calls.run_state(self.id))
        return found if isinstance(found, str) else found.status

    def result(self) -> Result:
        """The result of a run that has ended. Raises RunNotFinishedError if it has not."""
        found = self._client._perform(calls.run_state(self.id))
        if isinstance(found, str):
            raise not_finished(self.id, found)
        return found

    def wait(self, timeout: Optional[float] = None) -> Result:
        """Waits for the result; after `timeout` seconds it raises RunNotFinishedError, and the run goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = calls.LONGEST_WAIT if deadline is None else deadline - time.monotonic()
            found = self._client._perform(calls.run_state(self.id, max(0.0, min(left, calls.LONGEST_WAIT))))
            if isinstance(found, Result):
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise not_finished(self.id, found, timeout)

    def cancel(self) -> None:
        """Ends the run. Its result then has the status `cancelled`. Raises ConflictError if it has ended already."""
        self._client._perform(calls.cancel(self.id))

    def events(self) -> EventStream:
        """The events of the run from its start, whenever this is called."""
        return self._client._open(calls.run_events(self.id))


class Approvals:
    """Runs that wait for a person."""

    def __init__(self, client: Belljar) -> None:
        self._client = client

    def list(self, *, status: Optional[str] = None) -> Iterator[Approval]:
        """Approvals, newest first: `pending`, `approved`, `denied`, `expired`, `cancelled`, or all of them."""
        return self._client._pages(lambda cursor: calls.approvals(status, cursor))

    def get(self, approval_id: str) -> Approval:
        """All that a decision would cover."""
        return self._client._perform(calls.approval(approval_id))

    def approve(self, approval_id: str, *, reason: Optional[str] = None, remember: Optional[float] = None) -> Approval:
        """Lets the run begin; for `remember` seconds also identical ones."""
        return self._client._perform(calls.decide(approval_id, "approve", reason, remember))

    def deny(self, approval_id: str, *, reason: Optional[str] = None, remember: Optional[float] = None) -> Approval:
        """Refuses the run; for `remember` seconds also identical ones."""
        return self._client._perform(calls.decide(approval_id, "deny", reason, remember))

    def revoke(self, approval_id: str, *, reason: Optional[str] = None) -> Approval:
        """Takes a decision back that still holds for later requests. A run that has begun goes on."""
        return self._client._perform(calls.decide(approval_id, "revoke", reason, None))


class Audit:
    """The audit log. Records are dicts, as the server has them."""

    def __init__(self, client: Belljar) -> None:
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
    ) -> "Iterator[wire.AuditSummary]":
        """Attempts to run something, newest first."""
        query = {"q": text, "language": language, "status": status, "caller": caller, "from": since, "to": until}
        return self._client._pages(lambda cursor: calls.audit(cursor, query))

    def get(self, run_id: str) -> "wire.AuditRecord":
        return self._client._perform(calls.audit_record(run_id))

    def verify(self) -> "wire.AuditVerdict":
        """Whether the log is as it was written."""
        return self._client._perform(calls.audit_verdict())
