"""What can go wrong, as classes by the `code` of the error object. A program that fails is no error: it is a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Type

if TYPE_CHECKING:
    from .results import Result

__all__ = [
    "ApprovalRequiredError",
    "BackendUnavailableError",
    "BelljarError",
    "BusyError",
    "ConflictError",
    "ConnectionLostError",
    "ForbiddenError",
    "GuaranteeUnmetError",
    "InternalError",
    "InvalidRequestError",
    "NotFoundError",
    "ProgramFailedError",
    "RunNotFinishedError",
    "ServerUnreachableError",
    "TooLargeError",
    "UnauthorizedError",
    "UnexpectedAnswerError",
]


class BelljarError(Exception):
    """Belljar could not or would not do what was asked for.

    `code` is stable, so branch on it or on the class. `message` and `hint` are for people. `field` names the part of the
    request that is at fault, if there is one; `status` is the HTTP status, or None if there was no answer.
    """

    code = "error"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        field: Optional[str] = None,
        status: Optional[int] = None,
        code: Optional[str] = None,
        run_id: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field
        self.status = status
        self.run_id = run_id
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message

    def __reduce__(self) -> Any:
        # Pickled by its fields: workers of a multiprocessing pool hand errors back to their parent.
        return (_restored, (type(self), self.args, dict(self.__dict__)))


def _restored(kind: Type[BelljarError], arguments: Any, fields: Dict[str, Any]) -> BelljarError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(fields)
    return error


class InvalidRequestError(BelljarError):
    """The request is not valid; `field` says where."""

    code = "invalid_request"


class UnauthorizedError(BelljarError):
    """The server wants a key, or does not know this one."""

    code = "unauthorized"


class ForbiddenError(BelljarError):
    """This caller may not ask for that."""

    code = "forbidden"


class NotFoundError(BelljarError):
    """There is no such run, file, approval or path."""

    code = "not_found"


class ConflictError(BelljarError):
    """The run has already ended, or an idempotency key was used for another request."""

    code = "conflict"


class TooLargeError(BelljarError):
    """The request is too large, or its files do not fit on the run's disk."""

    code = "too_large"


class BusyError(BelljarError):
    """The server's queue is full, or a quota is used up. `retry_after` says in how many seconds to try again."""

    code = "busy"
    retry_after: Optional[float] = None


class InternalError(BelljarError):
    """A bug in Belljar, or a host that failed."""

    code = "internal"


class BackendUnavailableError(BelljarError):
    """The backend cannot run here."""

    code = "backend_unavailable"


class GuaranteeUnmetError(BelljarError):
    """The host cannot keep a guarantee that the run needs."""

    code = "guarantee_unmet"


class UnexpectedAnswerError(BelljarError):
    """Something answered that does not speak Belljar's protocol, such as a proxy."""

    code = "unexpected_answer"


class ServerUnreachableError(BelljarError, ConnectionError):
    """No connection to the server: nothing was sent, or nothing could be started."""

    code = "unreachable"


class ConnectionLostError(ServerUnreachableError):
    """The connection ended before the answer did. The server has cancelled the run, or was itself killed."""

    code = "connection_lost"


class ApprovalRequiredError(BelljarError):
    """The run waits until a person approves it. `run_id` finds it again: `client.attach(error.run_id).wait()`."""

    code = "approval_required"
    approval_id: str = ""


class RunNotFinishedError(BelljarError, TimeoutError):
    """The run has not ended in the time that the caller was ready to wait. It goes on."""

    code = "not_finished"
    run_status: str = ""


class ProgramFailedError(BelljarError):
    """`Result.check()` was called, and the program did not end well. `result` says how."""

    code = "program_failed"

    def __init__(self, message: str, result: "Result") -> None:
        super().__init__(message, run_id=result.id)
        self.result = result


_BY_CODE: Dict[str, Type[BelljarError]] = {
    kind.code: kind
    for kind in (
        InvalidRequestError,
        UnauthorizedError,
        ForbiddenError,
        NotFoundError,
        ConflictError,
        TooLargeError,
        BusyError,
        InternalError,
        BackendUnavailableError,
        GuaranteeUnmetError,
    )
}


def from_detail(
    detail: Mapping[str, Any],
    *,
    status: Optional[int] = None,
    retry_after: Optional[float] = None,
    run_id: Optional[str] = None,
) -> BelljarError:
    """The error of an error object. A code that a newer server has invented is a plain BelljarError."""
    code = str(detail.get("code", "error"))
    error = _BY_CODE.get(code, BelljarError)(
        str(detail.get("message", "the server gave no reason")),
        hint=str(detail.get("hint") or ""),
        field=detail.get("field"),
        status=status,
        code=code,
        run_id=run_id,
    )
    if isinstance(error, BusyError):
        error.retry_after = retry_after
    return error


def approval_required(run_id: str, approval_id: str) -> ApprovalRequiredError:
    error = ApprovalRequiredError(
        f"the run {run_id} waits until a person approves it ({approval_id})",
        hint=f"client.approvals.get({approval_id!r}) shows it; client.attach({run_id!r}).wait() waits for its result",
        status=202,
        run_id=run_id,
    )
    error.approval_id = approval_id
    return error


def not_finished(run_id: str, status: str, waited: Optional[float] = None) -> RunNotFinishedError:
    after = f" after {waited:g} s" if waited is not None else ""
    error = RunNotFinishedError(
        f"the run {run_id} is still {status}{after}", hint="wait longer, or cancel it", run_id=run_id, status=202
    )
    error.run_status = status
    return error
