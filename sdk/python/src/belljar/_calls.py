"""The requests of the interface: what is sent for each, and what its answer means. Both clients share them."""

from __future__ import annotations

import json
import random
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Generic, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union, cast
from urllib.parse import quote, urlencode

from . import errors, models
from .results import Batch, Finding, Result, batch_of, finding_of, result_of

if TYPE_CHECKING:
    from . import _types as wire

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds without a byte after which an answer that needs no run to end is given up."""
HEARTBEAT_PATIENCE = 90.0
"""The same for a stream of events, which has a heartbeat every few seconds."""
LONGEST_WAIT = 30.0
"""Seconds that one request waits for the end of a run. Proxies cut longer silences."""


@dataclass(frozen=True)
class Answer:
    """A response that has been read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise errors.UnexpectedAnswerError(
                f"the server answered {self.status} with something that is not JSON: {self.body[:200]!r}",
                hint="is BELLJAR_URL the address of a Belljar server?",
                status=self.status,
            ) from None


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. One that is `resendable` has the same effect however often it arrives."""

    method: str
    path: str
    decode: Callable[[Any, int], T]
    body: Optional[bytes] = None
    headers: Mapping[str, str] = field(default_factory=dict)
    resendable: bool = True
    patience: Optional[float] = PATIENCE
    several: bool = False

    def result(self, answer: Answer) -> T:
        if answer.status >= 400:
            raise failure(answer)
        if answer.status == 204:
            return self.decode(None, answer.status)
        try:
            return self.decode(answer.json(), answer.status)
        except (KeyError, TypeError, AttributeError) as missing:
            raise errors.UnexpectedAnswerError(
                f"the answer to {self.method} {self.path} is not as it should be: {missing!r}",
                hint="is BELLJAR_URL the address of a Belljar server?",
                status=answer.status,
            ) from missing


def failure(answer: Answer) -> errors.BelljarError:
    """The error of an answer of 400 or more."""
    try:
        detail = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        return errors.UnexpectedAnswerError(
            f"the server answered {answer.status}: {answer.body[:200].decode(errors='replace')}",
            hint="is there a proxy in between, or is BELLJAR_URL not the address of a Belljar server?",
            status=answer.status,
        )
    return errors.from_detail(
        detail,
        status=answer.status,
        retry_after=_seconds(answer.headers.get("retry-after")),
        run_id=answer.headers.get("x-run-id"),
    )


def _seconds(retry_after: Optional[str]) -> Optional[float]:
    """`Retry-After` is a number of seconds or a date."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    import email.utils  # takes long to import, and is hardly ever needed

    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


class Patience:
    """How long to go on trying while the server is busy."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._next = 0.1

    def delay_after(self, busy: errors.BusyError) -> float:
        """Seconds until the next attempt. Raises the error itself if that would be too late."""
        delay = self._next if busy.retry_after is None else busy.retry_after
        delay += random.uniform(0, 0.1 + delay / 10)  # so that those who were refused together do not return together
        self._next = min(self._next * 2, 5.0)
        if time.monotonic() + delay > self._deadline:
            raise busy
        return delay


def _get(path: str, decode: Callable[[Any], T], **query: Any) -> Call[T]:
    given = {name: value for name, value in query.items() if value is not None}
    return Call("GET", f"{path}?{urlencode(given)}" if given else path, lambda found, _: decode(found))


def _post(path: str, body: Any, decode: Callable[[Any], T]) -> Call[T]:
    headers = {"Content-Type": "application/json"}
    encoded = None if body is None else json.dumps(body).encode()
    return Call("POST", path, lambda found, _: decode(found), encoded, headers if encoded else {})


def run(body: Mapping[str, Any], key: Optional[str]) -> Call[Union[Result, Batch]]:
    return _run(body, key, _ended, {"Accept": "application/json"}, None)


def stream(body: Mapping[str, Any], key: Optional[str]) -> Call[Any]:
    return _run(body, key, _ended, {"Accept": "text/event-stream"}, HEARTBEAT_PATIENCE)


def submit(body: Mapping[str, Any], key: Optional[str]) -> Call[str]:
    if isinstance(body.get("stdin"), list):
        raise TypeError("a list of inputs cannot be submitted; run() and stream() take one")
    return _run(body, key, lambda found, _: str(found["id"]), {"Prefer": "respond-async"}, PATIENCE)


def _run(
    body: Mapping[str, Any],
    key: Optional[str],
    decode: Callable[[Any, int], T],
    headers: Dict[str, str],
    patience: Optional[float],
) -> Call[T]:
    several = isinstance(body.get("stdin"), list)
    if several and key is not None:
        raise TypeError("idempotency_key does not go with a list of inputs")
    headers["Content-Type"] = "application/json"
    if not several:
        # With a key the server runs it once, even if it has to be sent again because the connection was lost.
        headers["Idempotency-Key"] = key or secrets.token_hex(16)
    encoded = json.dumps(body).encode()
    return Call("POST", "/v1/runs", decode, encoded, headers, not several, patience, several)


def _ended(found: Any, status: int) -> Union[Result, Batch]:
    if status == 202:
        raise errors.approval_required(found["id"], found.get("approval_id", ""))
    return batch_of(found) if "runs" in found else result_of(found)


def run_state(run_id: str, wait: float = 0.0) -> Call[Union[Result, str]]:
    """The result of a run, or its status if it has not ended."""
    query = f"?wait_ms={round(wait * 1000)}" if wait > 0 else ""

    def decode(found: Any, status: int) -> Union[Result, str]:
        return str(found["status"]) if status == 202 else result_of(found)

    return Call("GET", f"/v1/runs/{_id(run_id)}{query}", decode, patience=wait + PATIENCE)


def run_events(run_id: str) -> Call[Any]:
    headers = {"Accept": "text/event-stream"}
    return Call("GET", f"/v1/runs/{_id(run_id)}/events", _ended, headers=headers, patience=HEARTBEAT_PATIENCE)


def cancel(run_id: str) -> Call[str]:
    return _post(f"/v1/runs/{_id(run_id)}/cancel", None, lambda found: str(found["status"]))


def runs(status: Optional[str], language: Optional[str], cursor: Optional[str]) -> Call[Tuple[List[models.RunSummary], Optional[str]]]:
    return _get("/v1/runs", _page("runs", models.summary_of), status=status, language=language, cursor=cursor)


def languages(backend: Optional[str]) -> Call[List[models.Language]]:
    return _get("/v1/languages", _list_of("languages", models.language_of), backend=backend)


def backends() -> Call[List[models.Backend]]:
    return _get("/v1/backends", _list_of("backends", models.backend_of))


def pool() -> Call["wire.Pool"]:
    return _get("/v1/pool", lambda found: cast("wire.Pool", found))


def scan(language: str, code: str, allowed_imports: Optional[Sequence[str]]) -> Call[List[Finding]]:
    body: Dict[str, Any] = {"language": language, "code": code}
    if allowed_imports is not None:
        body["allowed_imports"] = list(allowed_imports)
    return _post("/v1/scan", body, _list_of("findings", finding_of))


def upload(content: bytes) -> Call[models.Upload]:
    headers = {"Content-Type": "application/octet-stream", "Idempotency-Key": secrets.token_hex(16)}
    return Call("PUT", "/v1/files", lambda found, _: models.upload_of(found), content, headers)


def uploads() -> Call[List[models.Upload]]:
    return _get("/v1/files", _list_of("files", models.upload_of))


def delete_upload(upload_id: str) -> Call[None]:
    return Call("DELETE", f"/v1/files/{_id(upload_id)}", lambda _found, _status: None)


def approvals(status: Optional[str], cursor: Optional[str]) -> Call[Tuple[List[models.Approval], Optional[str]]]:
    return _get("/v1/approvals", _page("approvals", models.approval_of), status=status, cursor=cursor)


def approval(approval_id: str) -> Call[models.Approval]:
    return _get(f"/v1/approvals/{_id(approval_id)}", models.approval_of)


def decide(approval_id: str, verb: str, reason: Optional[str], remember: Optional[float]) -> Call[models.Approval]:
    body: Dict[str, Any] = {}
    if reason is not None:
        body["reason"] = reason
    if remember is not None:
        body["remember_s"] = round(remember)
    # Not sent again: the first decision holds, and the second one would be a conflict.
    call = _post(f"/v1/approvals/{_id(approval_id)}/{verb}", body, models.approval_of)
    return Call(call.method, call.path, call.decode, call.body, call.headers, resendable=False)


def audit(cursor: Optional[str], query: Mapping[str, Optional[str]]) -> Call[Tuple[List["wire.AuditSummary"], Optional[str]]]:
    return _get("/v1/audit", _page("records", lambda found: cast("wire.AuditSummary", found)), cursor=cursor, **query)


def audit_record(run_id: str) -> Call["wire.AuditRecord"]:
    return _get(f"/v1/audit/{_id(run_id)}", lambda found: cast("wire.AuditRecord", found))


def audit_verdict() -> Call["wire.AuditVerdict"]:
    return _get("/v1/audit/verify", lambda found: cast("wire.AuditVerdict", found))


def _list_of(name: str, one: Callable[[Any], T]) -> Callable[[Any], List[T]]:
    return lambda found: [one(entry) for entry in found[name]]


def _page(name: str, one: Callable[[Any], T]) -> Callable[[Any], Tuple[List[T], Optional[str]]]:
    return lambda found: ([one(entry) for entry in found[name]], found.get("next_cursor"))


def _id(text: str) -> str:
    if not text:
        raise ValueError("an identifier is empty")
    return quote(text, safe="")
