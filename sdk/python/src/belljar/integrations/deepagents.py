"""A sandbox backend for deepagents.

    agent = create_deep_agent(model=model, backend=BelljarSandbox())

Files beneath `/sandbox/work`, where commands start, and `/tmp` are kept from command to command. Processes are not: each
command has a new box. The language `sh` needs `tar` and `gzip` there, and deepagents itself `python3`.
"""

from __future__ import annotations

import gzip
import io
import posixpath
import secrets
import tarfile
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from .._default import default_client
from ..errors import NotFoundError
from ..results import Result

__all__ = ["BelljarSandbox"]

KEPT = ("/sandbox/work", "/tmp")
STATE = ".state.tar.gz"
SECONDS = 120
# The command is the first argument. What it leaves is packed even if it fails or takes too long.
SCRIPT = f"""
[ ! -f {STATE} ] || {{ gzip -dc {STATE} | tar -xpf - -C / 2>/dev/null; rm -f {STATE}; }}
mkdir -p work
(cd work && exec timeout -k 2 "$2" sh -c "$1") 2>&1
code=$?
tar -cf - -C / sandbox/work tmp 2>/dev/null | gzip -1 >{STATE}
exit $code
"""


class BelljarSandbox(BaseSandbox):
    """Runs shell commands in boxes that share their files. The options are those of `Belljar.run`."""

    def __init__(self, client: Any = None, *, timeout: int = SECONDS, **options: Any) -> None:
        self._client = client
        self._timeout = timeout
        self._options = {"memory": "512M", "disk": "128M", "output_limit": "4M", **options}
        self._id = f"belljar-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._archive: Optional[bytes] = None
        self._kept_by: Optional[str] = None  # the run that has the archive, until somebody changes it

    @property
    def id(self) -> str:
        return self._id

    def execute(self, command: str, *, timeout: Optional[int] = None) -> ExecuteResponse:
        """Runs a command of the shell. Its exit code is 124 if it takes too long."""
        seconds = self._timeout if timeout is None else timeout
        with self._lock:
            result = self._run(command, seconds)
            archive = next((one.content for one in result.files if one.path == STATE), None)
            if archive is not None:
                self._archive, self._kept_by = gzip.decompress(archive), result.id
        output = result.stdout + result.stderr
        if archive is None:
            output += "\nnote: the files are as they were before this command: it was killed, or left more than can be kept\n"
        return ExecuteResponse(output, result.exit_code, result.stdout_truncated)

    def upload_files(self, files: List[Tuple[str, bytes]]) -> List[FileUploadResponse]:
        with self._lock:
            return [FileUploadResponse(path=path, error=self._put(path, content)) for path, content in files]

    def download_files(self, paths: List[str]) -> List[FileDownloadResponse]:
        with self._lock:
            members = _members(self._archive)
            return [self._get(path, members) for path in paths]

    def _run(self, command: str, seconds: int) -> Result:
        client: Any = self._client or default_client()
        options = {
            "args": [command, str(seconds)],
            "collect": [STATE],
            "timeout": (seconds or 3600) + 10,  # as for `timeout`, 0 is no limit; and packing takes a moment
            **self._options,
        }
        try:
            result: Result = client.run("sh", SCRIPT, files=self._state_files(client), **options)
        except NotFoundError:  # the server keeps results and uploads for a while only
            self._kept_by = None
            result = client.run("sh", SCRIPT, files=self._state_files(client), **options)
        return result

    def _state_files(self, client: Any) -> Dict[str, Any]:
        if self._archive is None:
            return {}
        if self._kept_by is not None:
            return {STATE: {"from_run": self._kept_by, "from_path": STATE}}
        return {STATE: client.upload(gzip.compress(self._archive, 1))}

    def _put(self, path: str, content: bytes) -> Any:
        """Adds a file to the archive: of two with the same name, the last one is unpacked last."""
        if not path.startswith("/") or "\0" in path:
            return "invalid_path"
        clean = posixpath.normpath(path)
        if not any(clean.startswith(folder + "/") for folder in KEPT):
            return "permission_denied"
        members = _members(self._archive)
        if clean in members and members[clean][0].isdir():
            return "is_directory"
        buffer = io.BytesIO(self._archive or b"")
        with tarfile.open(fileobj=buffer, mode="a" if self._archive else "w") as archive:
            for folder in _parents(clean):
                if folder not in members:
                    entry = tarfile.TarInfo(folder[1:])
                    entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
                    archive.addfile(entry)
            entry = tarfile.TarInfo(clean[1:])
            entry.size, entry.mode, entry.mtime = len(content), 0o644, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
        self._archive, self._kept_by = buffer.getvalue(), None
        return None

    def _get(self, path: str, members: "Dict[str, Tuple[tarfile.TarInfo, Optional[bytes]]]") -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        found = members.get(posixpath.normpath(path))
        for _ in range(8):  # links, within the archive
            if found is None or not found[0].issym():
                break
            found = members.get(posixpath.normpath(posixpath.join("/", posixpath.dirname(found[0].name), found[0].linkname)))
        if found is None:
            return FileDownloadResponse(path=path, error="file_not_found")
        entry, content = found
        if entry.isdir():
            return FileDownloadResponse(path=path, error="is_directory")
        if content is None or not entry.mode & 0o400:
            return FileDownloadResponse(path=path, error="permission_denied")
        return FileDownloadResponse(path=path, content=content)


def _members(archive: Optional[bytes]) -> "Dict[str, Tuple[tarfile.TarInfo, Optional[bytes]]]":
    """What is in the archive. It is only read, never unpacked here: it comes from untrusted code."""
    found: Dict[str, Tuple[tarfile.TarInfo, Optional[bytes]]] = {}
    if archive is None:
        return found
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
        for entry in opened:
            name = posixpath.normpath("/" + entry.name)
            if entry.islnk():
                target = found.get(posixpath.normpath("/" + entry.linkname))
                found[name] = target or (entry, None)
            else:
                extracted = opened.extractfile(entry) if entry.isreg() else None
                found[name] = (entry, extracted.read() if extracted else None)
    return found


def _parents(path: str) -> List[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]
