"""Runs untrusted code in a sandbox.

    from belljar import run
    print(run("python", "print(6 * 7)").stdout)

No server has to be set up: the package carries one, and starts it when it is needed. `Belljar(url=…)` or BELLJAR_URL uses
another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from ._default import arun, run
from ._options import RunOptions
from ._version import __version__
from .client import Belljar, EventStream, Run
from .errors import (
    ApprovalRequiredError,
    BackendUnavailableError,
    BelljarError,
    BusyError,
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    GuaranteeUnmetError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    ProgramFailedError,
    RunNotFinishedError,
    ServerUnreachableError,
    TooLargeError,
    UnauthorizedError,
    UnexpectedAnswerError,
)
from .models import Approval, Backend, Guarantee, Language, RunSummary, Upload
from .results import (
    Batch,
    Changes,
    CompileResult,
    Decision,
    Event,
    Finding,
    Isolation,
    NetworkDenied,
    Result,
    ResultFile,
    Usage,
)

if TYPE_CHECKING:
    from .async_client import AsyncBelljar, AsyncEventStream, AsyncRun

__all__ = [
    "Approval",
    "ApprovalRequiredError",
    "AsyncBelljar",
    "AsyncEventStream",
    "AsyncRun",
    "Backend",
    "BackendUnavailableError",
    "Batch",
    "Belljar",
    "BelljarError",
    "BusyError",
    "Changes",
    "CompileResult",
    "ConflictError",
    "ConnectionLostError",
    "Decision",
    "Event",
    "EventStream",
    "Finding",
    "ForbiddenError",
    "Guarantee",
    "GuaranteeUnmetError",
    "InternalError",
    "InvalidRequestError",
    "Isolation",
    "Language",
    "NetworkDenied",
    "NotFoundError",
    "ProgramFailedError",
    "Result",
    "ResultFile",
    "Run",
    "RunNotFinishedError",
    "RunOptions",
    "RunSummary",
    "ServerUnreachableError",
    "TooLargeError",
    "UnauthorizedError",
    "UnexpectedAnswerError",
    "Upload",
    "Usage",
    "__version__",
    "arun",
    "run",
]

_LATER = ("AsyncBelljar", "AsyncEventStream", "AsyncRun")


def __getattr__(name: str) -> Any:
    """asyncio takes longer to import than the rest of the package, so that it waits until somebody wants it."""
    if name in _LATER:
        from . import async_client

        return getattr(async_client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted(__all__)
