"""The options of a run, and the request that they make."""

from __future__ import annotations

import base64
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union

from .models import Upload
from .results import ResultFile

if TYPE_CHECKING:
    from typing_extensions import Literal, TypeAlias

__all__ = ["Content", "Files", "Inputs", "RunOptions", "Size", "Stdin", "request_body"]

Size = Union[int, str]
"""Bytes, or a text like `256M`: K, M and G are powers of 1024."""
Stdin = Union[str, bytes]
Inputs = Union[List[str], Tuple[str, ...], List[bytes], Tuple[bytes, ...]]
Content = Union[str, bytes, "os.PathLike[str]", ResultFile, Upload, Mapping[str, Any]]
Files = Union[Mapping[str, Content], Sequence["os.PathLike[str]"]]

if TYPE_CHECKING:
    Backend: TypeAlias = Literal["auto", "native", "docker", "wasm", "kubernetes", "process", "none"]


class RunOptions(TypedDict, total=False):
    """What a run can be told besides its language and code. What is left out has the server's default."""

    args: Sequence[str]
    """Arguments of the program."""
    env: Mapping[str, str]
    """Environment variables of the program. It gets nothing of the server's."""
    files: "Files"
    """Files for the working directory: paths there and contents (text, bytes, a local `Path`, a file of another result, an
    upload), or a list of local paths."""
    collect: Union[str, Sequence[str]]
    """Patterns of files to bring back, as `Result.files`."""
    plots: bool
    """Python: bring back what matplotlib would have shown."""
    hints: bool
    """Add a line to stderr that says how to get a package that is missing."""
    timeout: float
    """Wall-clock time in seconds."""
    compile_timeout: float
    """Wall-clock time for the compiler, in seconds."""
    cpu_time: float
    """CPU time in seconds."""
    memory: "Size"
    """Memory and swap together."""
    compile_memory: "Size"
    """Memory for the compiler."""
    cpus: float
    """CPUs at a time; 0.5 is half of one."""
    pids: int
    """Processes and threads at a time."""
    disk: "Size"
    """Everything that the program can write."""
    output_limit: "Size"
    """How much of stdout, and how much of stderr, is kept."""
    network: str
    """`none`, `full`, or what the server takes besides."""
    secrets: Sequence[str]
    """Hosts whose secrets the server adds to the program's requests, outside of the box."""
    image: Optional[str]
    """The OCI image to run in."""
    backend: "Backend"
    """What isolates the run."""
    workspace: Union[str, "os.PathLike[str]", None]
    """A directory on the server, read-only at `/work`."""
    writable: bool
    """With a workspace: writes go to a layer that is gone afterwards."""
    changes: bool
    """With a writable workspace: report what the program did to it."""
    waive: Sequence[str]
    """Guarantees to do without if the backend cannot keep them."""
    allowed_imports: Optional[Sequence[str]]
    """The only modules that the code may import."""
    output_base64: bool
    """Also return the output byte for byte: `Result.stdout_bytes`."""


_SECONDS = {"timeout": "timeout_ms", "compile_timeout": "compile_timeout_ms", "cpu_time": "cpu_ms"}
_SIZES = {
    "memory": "memory_bytes",
    "compile_memory": "compile_memory_bytes",
    "disk": "disk_bytes",
    "output_limit": "output_bytes",
}
_NUMBERS = ("cpus", "pids")
_LISTS = ("args", "collect", "secrets", "waive", "allowed_imports")
_AS_THEY_ARE = ("plots", "hints", "network", "image", "backend", "writable", "changes", "output_base64")
_KNOWN = frozenset([*_SECONDS, *_SIZES, *_NUMBERS, *_LISTS, *_AS_THEY_ARE, "env", "files", "workspace"])


def request_body(
    language: str, code: Union[str, bytes], stdin: Union[Stdin, Inputs, None], options: Mapping[str, Any]
) -> Dict[str, Any]:
    """The body of `POST /v1/runs`. An option that nobody knows is a TypeError, as for any function."""
    if unknown := sorted(options.keys() - _KNOWN):
        raise TypeError(f"run() has no option {unknown[0]!r}; it has stdin, {', '.join(sorted(_KNOWN))}")
    body: Dict[str, Any] = {"language": language, "code": _text(code, "code")}
    if stdin is not None:
        body["stdin"] = [_text(one, "stdin") for one in stdin] if isinstance(stdin, (list, tuple)) else _text(stdin, "stdin")
    given = {name: value for name, value in options.items() if value is not None}
    limits = {field: _milliseconds(given[name], name) for name, field in _SECONDS.items() if name in given}
    limits.update({field: size_in_bytes(given[name], name) for name, field in _SIZES.items() if name in given})
    limits.update({name: given[name] for name in _NUMBERS if name in given})
    if limits:
        body["limits"] = limits
    body.update({name: given[name] for name in _AS_THEY_ARE if name in given})
    body.update({name: _list(given[name], name) for name in _LISTS if name in given})
    if "env" in given:
        body["env"] = dict(given["env"])
    if "files" in given:
        body["files"] = _files(given["files"])
    if "workspace" in given:
        body["workspace"] = os.fspath(given["workspace"])
    return body


def _text(value: object, what: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"{what} must be str or bytes, not {type(value).__name__}")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{what} is not UTF-8; send other bytes as one of the `files`") from None


def _list(value: Any, name: str) -> List[str]:
    if isinstance(value, str):
        if name == "collect":
            return [value]
        raise TypeError(f"{name} must be a list of texts, not one text")
    return list(value)


def _milliseconds(seconds: Any, name: str) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {type(seconds).__name__}")
    if not 0 < seconds < 1e9:
        raise ValueError(f"{name} must be a positive number of seconds, not {seconds}")
    return max(1, round(seconds * 1000))


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def size_in_bytes(size: Any, name: str) -> int:
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    if not isinstance(size, str):
        raise TypeError(f"{name} must be a number of bytes or a text like '256M', not {type(size).__name__}")
    found = _SIZE.fullmatch(size.strip())
    if not found:
        raise ValueError(f"{name} must be a number of bytes or a text like '256M', not {size!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _files(files: Any) -> List[Dict[str, Any]]:
    if isinstance(files, Mapping):
        return [_file(path, content) for path, content in files.items()]
    if isinstance(files, (str, bytes)):
        raise TypeError("files must be a dict of paths and contents, or a list of local paths")
    return [_file(pathlib.Path(one).name, pathlib.Path(one)) for one in files]


def _file(path: str, content: Any) -> Dict[str, Any]:
    if isinstance(content, str):
        return {"path": path, "content": content}
    if isinstance(content, Upload):
        return {"path": path, "upload": content.id}
    if isinstance(content, ResultFile):
        content = content.content
    elif isinstance(content, os.PathLike):
        content = pathlib.Path(content).read_bytes()
    elif isinstance(content, Mapping):
        known = {"content", "content_base64", "executable", "from_run", "from_path", "upload"}
        if content.keys() - known:
            raise TypeError(f"the file {path!r} has {sorted(content.keys() - known)}; a file has {sorted(known)}")
        return {"path": path, **content}
    if isinstance(content, (bytes, bytearray, memoryview)):
        return {"path": path, "content_base64": base64.b64encode(content).decode()}
    raise TypeError(f"the file {path!r} must be text, bytes or a path, not {type(content).__name__}")
