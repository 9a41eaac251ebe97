"""What a run gives back. The fields are those of the result object; `raw` has what this version does not know."""

from __future__ import annotations

import base64
import html
import os
import pathlib
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union, overload

from .errors import BelljarError, ProgramFailedError, from_detail

__all__ = [
    "Batch",
    "Changes",
    "CompileResult",
    "Decision",
    "Event",
    "Finding",
    "Isolation",
    "NetworkDenied",
    "Result",
    "ResultFile",
    "Usage",
]

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Usage:
    """What a program used."""

    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    memory_peak_bytes: int = 0
    queue_ms: float = 0.0
    network_up_bytes: Optional[int] = None
    """What it sent over the network. None if it had none that Belljar watches."""
    network_down_bytes: Optional[int] = None


@dataclass(frozen=True)
class Isolation:
    """The guarantees that the backend kept, and those that the run did without."""

    kept: Tuple[str, ...] = ()
    waived: Tuple[str, ...] = ()


@dataclass(frozen=True)
class CompileResult:
    """What the compiler did. `usage` of the result is the program's alone."""

    exit_code: int
    timed_out: bool
    stdout: str
    stderr: str
    usage: Usage
    cached: bool = False


@dataclass(frozen=True)
class NetworkDenied:
    """Something that the program tried to reach in vain. `port` is None for a name that was only looked up."""

    host: str
    port: Optional[int]
    reason: str
    count: int = 1


@dataclass(frozen=True)
class Finding:
    """One place in the code that a rule of the scan matched."""

    rule: str
    severity: str
    message: str
    line: int
    column: int
    end_line: int
    end_column: int
    excerpt: str


@dataclass(frozen=True)
class Decision:
    """What was decided about the run before it could begin."""

    action: str
    rule: str
    reason: str
    by: str
    approval_id: Optional[str] = None


@dataclass(frozen=True)
class Changes:
    """What the program did to a writable workspace."""

    added: Tuple[str, ...] = ()
    changed: Tuple[str, ...] = ()
    removed: Tuple[str, ...] = ()
    patch: str = ""
    truncated: bool = False


@dataclass(frozen=True)
class ResultFile:
    """A file that the run left behind and `collect` or `plots` brought back."""

    path: str
    size: int
    content: bytes = field(repr=False)

    @property
    def text(self) -> str:
        return self.content.decode()

    def save(self, folder: Union[str, "os.PathLike[str]"] = ".", *, overwrite: bool = False) -> pathlib.Path:
        """Writes the file beneath `folder`. The path comes from untrusted code: one that would leave the folder, or
        pass through a link, is refused, and so is a file that exists, unless `overwrite` is set."""
        root = pathlib.Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        parts = _parts_within(self.path)
        parent = root
        for part in parts[:-1]:
            parent = parent / part
            if parent.is_symlink():
                raise ValueError(f"the run's file {self.path!r} is not saved: {parent} is a link")
            parent.mkdir(exist_ok=True)
        target = parent / parts[-1]
        if target.is_symlink():
            raise ValueError(f"the run's file {self.path!r} is not saved: {target} is a link")
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if overwrite else os.O_EXCL) | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(target, flags, 0o666), "wb") as opened:
            opened.write(self.content)
        return target

    def _repr_png_(self) -> Optional[bytes]:
        return self.content if _is_png(self.content) else None

    def _repr_jpeg_(self) -> Optional[bytes]:
        return self.content if self.content.startswith(b"\xff\xd8\xff") else None


def _parts_within(path: str) -> List[str]:
    """The parts of a relative path that stays where it is. Backslashes and drives count on Windows."""
    windows = pathlib.PureWindowsPath(path)
    parts = path.split("/")
    hostile = (
        not path
        or path.startswith("/")
        or "\0" in path
        or any(part in ("", ".", "..") for part in parts)
        or any(part.lower() == ".git" for part in parts)
        or (os.name == "nt" and (windows.drive or windows.root or "\\" in path or ":" in path))
    )
    if hostile:
        raise ValueError(f"the run's file {path!r} is not saved: its path leaves the folder, or is not one")
    return parts


def _is_png(content: bytes) -> bool:
    return content.startswith(b"\x89PNG\r\n\x1a\n")


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run. Whatever the program did, this is no error: look at `ok`, or call `check()`."""

    id: str
    status: str
    exit_code: int
    stdout: str
    stderr: str
    signal: Optional[int] = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    timed_out: bool = False
    oom_killed: bool = False
    usage: Usage = Usage()
    start: str = "cold"
    language: str = ""
    runtime: str = ""
    cold_reason: Optional[str] = None
    compile: Optional[CompileResult] = None
    stage: str = "run"
    backend: str = ""
    image: Optional[str] = None
    network: str = "none"
    network_denied: Tuple[NetworkDenied, ...] = ()
    isolation: Isolation = Isolation()
    files: Tuple[ResultFile, ...] = ()
    findings: Tuple[Finding, ...] = ()
    decision: Optional[Decision] = None
    changes: Optional[Changes] = None
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end and returned 0."""
        return self.status == "exited" and self.exit_code == 0

    @property
    def denied(self) -> bool:
        """Whether a policy or a person refused the run. `decision` says which and why."""
        return self.status == "denied"

    @property
    def stdout_bytes(self) -> bytes:
        """Standard output byte for byte if the run had `output_base64`, else `stdout` as UTF-8."""
        return _bytes(self.raw.get("stdout_base64"), self.stdout)

    @property
    def stderr_bytes(self) -> bytes:
        """Standard error byte for byte if the run had `output_base64`, else `stderr` as UTF-8."""
        return _bytes(self.raw.get("stderr_base64"), self.stderr)

    def file(self, path: str) -> ResultFile:
        """The collected file of that path."""
        for one in self.files:
            if one.path == path:
                return one
        raise KeyError(f"the run {self.id} returned no file {path!r}")

    def save(self, folder: Union[str, "os.PathLike[str]"] = ".", *, overwrite: bool = False) -> List[pathlib.Path]:
        """Writes all files beneath `folder`. Nothing is written if one of them has a path that would leave it."""
        for one in self.files:
            _parts_within(one.path)
        return [one.save(folder, overwrite=overwrite) for one in self.files]

    def check(self) -> "Result":
        """Returns the result itself, or raises ProgramFailedError if the program did not end well."""
        if not self.ok:
            last = self.stderr.strip().splitlines()[-1:] or [""]
            raise ProgramFailedError(f"the program {self._ending()}: {last[0]}".rstrip(": "), self)
        return self

    def _ending(self) -> str:
        words = {"timed_out": "timed out", "out_of_memory": "ran out of memory", "denied": "was denied"}
        if self.stage == "compile":
            return "did not compile"
        return words.get(self.status, f"ended with {self.exit_code}" if self.status == "exited" else self.status)

    def __repr__(self) -> str:
        more = f", files={[one.path for one in self.files]}" if self.files else ""
        return (
            f"Result(status={self.status!r}, exit_code={self.exit_code}, stdout={self.stdout!r}, stderr={self.stderr!r}{more})"
        )

    def _repr_html_(self) -> str:
        """For notebooks. Output comes from untrusted code, so that all of it is escaped."""
        parts = []
        if self.stdout:
            parts.append(f"<pre>{html.escape(self.stdout)}</pre>")
        if self.stderr:
            parts.append(f'<pre style="color:#b00020">{html.escape(self.stderr)}</pre>')
        parts += [_figure(one) for one in self.files]
        if not self.ok or not parts:
            parts.append(f"<p><small>{html.escape(self._ending())}</small></p>")
        return "".join(parts)

    def _repr_png_(self) -> Optional[bytes]:
        return next((one.content for one in self.files if _is_png(one.content)), None)


def _bytes(encoded: Any, text: str) -> bytes:
    return base64.b64decode(encoded) if isinstance(encoded, str) else text.encode()


def _figure(one: ResultFile) -> str:
    name = html.escape(one.path)
    if _is_png(one.content):
        encoded = base64.b64encode(one.content).decode()
        return f'<p><img alt="{name}" title="{name}" src="data:image/png;base64,{encoded}"></p>'
    return f"<p><small>{name}, {one.size} bytes</small></p>"


@dataclass(frozen=True)
class Batch(Sequence[Union[Result, BelljarError]]):
    """The results of one program on several inputs, in their order. Where Belljar could not run it, the error.

    If the code does not compile, there is one result for all inputs.
    """

    entries: Tuple[Union[Result, BelljarError], ...]

    def results(self) -> List[Result]:
        """All results. Raises the first error, if there is one."""
        found = []
        for entry in self.entries:
            if isinstance(entry, BelljarError):
                raise entry
            found.append(entry)
        return found

    @property
    def ok(self) -> bool:
        return all(isinstance(entry, Result) and entry.ok for entry in self.entries)

    @overload
    def __getitem__(self, index: int) -> Union[Result, BelljarError]: ...
    @overload
    def __getitem__(self, index: slice) -> Tuple[Union[Result, BelljarError], ...]: ...
    def __getitem__(
        self, index: Union[int, slice]
    ) -> Union[Result, BelljarError, Tuple[Union[Result, BelljarError], ...]]:
        return self.entries[index]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Union[Result, BelljarError]]:
        return iter(self.entries)


@dataclass(frozen=True)
class Event:
    """Something that happened in a run.

    `type` is `start`, `stdout`, `stderr`, `end` or one of `awaiting_approval`, `pull`, `stage`, `network`; with several inputs
    `result`, `error` and `done`. `stdout` and `stderr` have `text`; `end` and `result` have `result`. `data` is all of it.
    A newer server may have other types.
    """

    type: str
    text: str = ""
    result: Optional[Result] = None
    index: Optional[int] = None
    error: Optional[BelljarError] = None
    data: Object = field(default_factory=dict, repr=False, compare=False)


def _usage(found: Any) -> Usage:
    known = found if isinstance(found, Mapping) else {}
    return Usage(
        wall_ms=known.get("wall_ms", 0.0),
        cpu_ms=known.get("cpu_ms", 0.0),
        memory_peak_bytes=known.get("memory_peak_bytes", 0),
        queue_ms=known.get("queue_ms", 0.0),
        network_up_bytes=known.get("network_up_bytes"),
        network_down_bytes=known.get("network_down_bytes"),
    )


def _known(kind: Any, found: Object) -> Dict[str, Any]:
    """The fields of a dataclass that an object has; lists become tuples, so that results cannot be changed."""
    return {
        name: tuple(found[name]) if isinstance(found[name], list) else found[name]
        for name in kind.__dataclass_fields__
        if name in found
    }


def finding_of(found: Object) -> Finding:
    return Finding(**_known(Finding, found))


def _compile_of(found: Optional[Object]) -> Optional[CompileResult]:
    return CompileResult(**{**_known(CompileResult, found), "usage": _usage(found.get("usage"))}) if found else None


def _file_of(found: Object) -> ResultFile:
    return ResultFile(found["path"], found["size"], base64.b64decode(found["content_base64"]))


def result_of(found: Object) -> Result:
    decision, changes = found.get("decision"), found.get("changes")
    parts = {
        "usage": _usage(found.get("usage")),
        "isolation": Isolation(**_known(Isolation, found.get("isolation") or {})),
        "compile": _compile_of(found.get("compile")),
        "files": tuple(_file_of(one) for one in found.get("files") or ()),
        "network_denied": tuple(NetworkDenied(**_known(NetworkDenied, one)) for one in found.get("network_denied") or ()),
        "findings": tuple(finding_of(one) for one in found.get("findings") or ()),
        "decision": Decision(**_known(Decision, decision)) if decision else None,
        "changes": Changes(**_known(Changes, changes)) if changes else None,
        "raw": found,
    }
    return Result(**{**_known(Result, found), **parts})


def batch_of(found: Object) -> Batch:
    return Batch(
        tuple(from_detail(entry["error"]) if "error" in entry else result_of(entry) for entry in found["runs"])
    )
