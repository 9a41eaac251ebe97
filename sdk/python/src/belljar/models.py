"""What a server says about itself, its runs and its approvals. `raw` has every field, also those of a newer server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple, Type, TypeVar

from .results import Finding, finding_of

__all__ = ["Approval", "ApprovalDecision", "Backend", "Guarantee", "Language", "RunSummary", "Upload"]

Object = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Language:
    """A language, and what runs it on the server."""

    name: str
    available: bool
    aliases: Tuple[str, ...] = ()
    runtime: Optional[str] = None
    location: Optional[str] = None
    image: Optional[str] = None
    hint: Optional[str] = None
    raw: Object = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Guarantee:
    """Something that a backend promises, and how it is kept or why it is not."""

    name: str
    kept: bool
    how: Optional[str] = None
    why: Optional[str] = None
    fix: Optional[str] = None


@dataclass(frozen=True)
class Backend:
    """What can isolate runs on the server."""

    name: str
    ready: bool
    only_by_name: bool = False
    reason: Optional[str] = None
    hint: Optional[str] = None
    guarantees: Tuple[Guarantee, ...] = ()
    raw: Object = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class RunSummary:
    """A run in a list. `client.attach(summary.id)` gets hold of it."""

    id: str
    status: str
    language: str
    created_at: str
    exit_code: Optional[int] = None
    raw: Object = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class ApprovalDecision:
    """What somebody decided."""

    approved: bool
    by: str
    at: str
    reason: Optional[str] = None
    remembered_until: Optional[str] = None


@dataclass(frozen=True)
class Approval:
    """A run that needs a person's approval. In a list, `code` is only its beginning and `findings` are left out."""

    id: str
    status: str
    language: str
    code: str
    caller: str
    created_at: str
    expires_at: str
    surface: str = ""
    digest: Optional[str] = None
    waiting: int = 0
    findings: Tuple[Finding, ...] = ()
    decision: Optional[ApprovalDecision] = None
    raw: Object = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Upload:
    """A file that the server keeps for later runs: `files={"data.csv": upload}`."""

    id: str
    size: int
    sha256: str
    expires_at: str
    raw: Object = field(default_factory=dict, repr=False, compare=False)


def _made(kind: Type[T], found: Object, **parts: Any) -> T:
    names: Dict[str, Any] = getattr(kind, "__dataclass_fields__")
    known = {name: found[name] for name in names if name in found and name not in parts}
    if "raw" in names:
        known["raw"] = found
    return kind(**known, **parts)


def language_of(found: Object) -> Language:
    return _made(Language, found, aliases=tuple(found.get("aliases") or ()))


def backend_of(found: Object) -> Backend:
    return _made(Backend, found, guarantees=tuple(_made(Guarantee, one) for one in found.get("guarantees") or ()))


def summary_of(found: Object) -> RunSummary:
    return _made(RunSummary, found)


def approval_of(found: Object) -> Approval:
    decision = found.get("decision")
    return _made(
        Approval,
        found,
        findings=tuple(finding_of(one) for one in found.get("findings") or ()),
        decision=_made(ApprovalDecision, decision) if decision else None,
    )


def upload_of(found: Object) -> Upload:
    return _made(Upload, found)
