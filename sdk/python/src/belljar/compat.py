"""The shapes of the tools that people come from. Change the import, keep the rest. Importing this starts nothing.

    CodeExecutionTool, ToolContext         a tool of an agent: `.text` and `.metadata`, never an exception
    code_run(language, code, timeout_ms)   {exit_code, stdout, stderr}
    code_execute({language, code})         the standard output as a string
    CodeSandbox, SandboxConfig,            a sandbox object with its settings
    ExecutionResult, SandboxPool           and a pool of them
    SandboxBackend, BelljarBackend         what frameworks plug in: create, execute, close
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Protocol, Sequence, TypedDict, Union, runtime_checkable

from ._default import default_async_client, default_client
from .errors import BelljarError

if TYPE_CHECKING:
    from .async_client import AsyncBelljar
    from .client import Belljar
    from .results import Result

__all__ = [
    "BelljarBackend",
    "CodeExecutionTool",
    "CodeRunResult",
    "CodeSandbox",
    "ExecutionResult",
    "SandboxBackend",
    "SandboxConfig",
    "SandboxPool",
    "ToolContext",
    "ToolResult",
    "code_execute",
    "code_run",
]

LANGUAGES = ("python", "javascript", "typescript", "ruby", "php", "perl", "lua", "r", "bash", "sh", "zsh")
"""What `CodeExecutionTool` takes. `code_run` and the others take every language of the server."""


# --- A tool of an agent


@dataclass(frozen=True)
class ToolContext:
    """What an agent knows when it calls a tool. The code does not get to see it."""

    prompt: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolResult:
    """What a tool gives back: text for the model, and metadata for the program."""

    text: str
    metadata: Dict[str, Any]

    def __str__(self) -> str:
        return self.text


class CodeExecutionTool:
    """Runs code for an agent. Whatever happens, the answer is a ToolResult."""

    name = "code_execution"
    description = f"Run code in a sandbox. Languages: {', '.join(LANGUAGES)}."

    def __init__(self, client: "Optional[Belljar]" = None, *, timeout: Optional[float] = None) -> None:
        self._client = client
        self._timeout = timeout

    def run(
        self,
        context: ToolContext,
        *,
        language: str,
        code: str,
        sandbox: bool = True,
        network: Union[bool, str] = False,
        image: Optional[str] = None,
        workspace_root: Optional[Union[str, "os.PathLike[str]"]] = None,
    ) -> ToolResult:
        """Runs code. `sandbox=False` is the backend `process`, which isolates nothing and which the server must allow; `image`
        goes to the backend that takes images; `workspace_root` is read-only at `/work`. `network=True` is the public internet;
        a text is a network as everywhere else, such as `allow:api.example.com:443`."""
        options: Dict[str, Any] = {"network": _network(network), "timeout": self._timeout}
        if not sandbox:
            options["backend"] = "process"
        if image:
            options["image"] = image
        if workspace_root is not None:
            options["workspace"] = workspace_root
        asked = {"sandbox": sandbox, "sandbox_image": image, "sandbox_network": network}
        try:
            if not isinstance(language, str) or language.lower() not in LANGUAGES:
                raise ValueError(f"language {language!r} is not supported; use one of {', '.join(LANGUAGES)}")
            client = self._client or default_client()
            result: Result = client.run(language.lower(), code, **options)
        except (BelljarError, ValueError, TypeError, OSError) as error:
            return ToolResult(f"Error: {error}", {"ok": False, **asked, "error": str(error)})
        return _tool_result(result, asked)


def _network(asked: Union[bool, str]) -> str:
    if isinstance(asked, str):
        return asked
    return "full" if asked else "none"


def _tool_result(result: "Result", asked: Dict[str, Any]) -> ToolResult:
    error = None if result.ok else (result.stderr.strip() or f"exit code {result.exit_code}")
    metadata = {
        "ok": result.ok,
        **asked,
        "sandbox_image": result.image or asked["sandbox_image"],
        "error": error,
        "exit_code": result.exit_code,
        "status": result.status,
        "run_id": result.id,
    }
    return ToolResult(f"exit_code: {result.exit_code}\nstdout:\n{result.stdout}\nstderr:\n{result.stderr}", metadata)


# --- Functions


class CodeRunResult(TypedDict):
    exit_code: int
    stdout: str
    stderr: str


def code_run(language: str, code: str, timeout_ms: Optional[int] = None) -> CodeRunResult:
    """Runs code. Its exit code is 124 after `timeout_ms`. The server is started or found at the first call."""
    timeout = None if timeout_ms is None else timeout_ms / 1000
    result = _run(language, code, timeout=timeout)
    return {"exit_code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}


def code_execute(request: Mapping[str, str]) -> str:
    """Runs `{"language": …, "code": …}` and returns its standard output.

    CODE_EXEC_SANDBOX (`docker`, `process`, `none`) chooses what isolates it; without it the server's strongest backend does.
    A program that fails raises ProgramFailedError, whose `result` has its output.
    """
    unknown = sorted(request.keys() - {"language", "code"})
    missing = sorted({"language", "code"} - request.keys())
    if unknown or missing:
        raise TypeError(f"code_execute takes language and code, not {unknown}" if unknown else f"missing: {missing}")
    return _run(request["language"], request["code"], backend=_chosen_backend()).check().stdout


def _chosen_backend() -> Optional[str]:
    chosen = os.environ.get("CODE_EXEC_SANDBOX") or None
    if chosen not in (None, "docker", "process", "none"):
        raise ValueError(f"CODE_EXEC_SANDBOX is {chosen!r}; it can be docker, process or none")
    return chosen


def _run(language: str, code: str, **options: Any) -> "Result":
    client: Any = default_client()
    result: Result = client.run(language, code, **options)
    return result


# --- Sandbox objects


@dataclass(frozen=True)
class SandboxConfig:
    """How a CodeSandbox runs code. With `allowed_imports`, code that imports anything else is denied and not run."""

    language: str = "python"
    timeout_seconds: float = 30.0
    max_memory_mb: int = 256
    allowed_imports: Optional[Sequence[str]] = None

    def options(self) -> Dict[str, Any]:
        return {
            "timeout": self.timeout_seconds,
            "memory": self.max_memory_mb << 20,
            "allowed_imports": self.allowed_imports,
        }


@dataclass(frozen=True)
class ExecutionResult:
    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def _execution_result(result: "Result") -> ExecutionResult:
    return ExecutionResult(result.stdout, result.stderr, result.exit_code, result.timed_out)


class CodeSandbox:
    """Runs code as a SandboxConfig says. Every execution is in a new box: nothing is left from the one before."""

    def __init__(self, config: Optional[SandboxConfig] = None, client: "Optional[Belljar]" = None) -> None:
        self.config = config or SandboxConfig()
        self._client = client

    def execute(self, code: str) -> ExecutionResult:
        client: Any = self._client or default_client()
        return _execution_result(client.run(self.config.language, code, **self.config.options()))


class SandboxPool:
    """Sandboxes to hand out, at most `pool_size` at a time. The warm boxes themselves are the server's."""

    def __init__(
        self, pool_size: int = 5, config: Optional[SandboxConfig] = None, client: "Optional[Belljar]" = None
    ) -> None:
        if pool_size < 1:
            raise ValueError(f"pool_size must be at least 1, not {pool_size}")
        self.pool_size = pool_size
        self._config = config or SandboxConfig()
        self._client = client
        self._idle: List[CodeSandbox] = []
        self._busy: List[CodeSandbox] = []
        self._ready = False
        self._changed = threading.Condition()

    def initialize(self) -> None:
        """Makes the sandboxes, and sees that the server answers and has the language."""
        client = self._client or default_client()
        names = {name: one for one in client.languages() for name in (one.name, *one.aliases)}
        known = names.get(self._config.language)
        if known is None or not known.available:
            hint = known.hint if known and known.hint else "belljar languages lists what can run"
            raise ValueError(f"the server cannot run {self._config.language!r}: {hint}")
        with self._changed:
            if not self._ready:
                self._idle = [CodeSandbox(self._config, self._client) for _ in range(self.pool_size)]
                self._ready = True
            self._changed.notify_all()

    def acquire(self, timeout: Optional[float] = None) -> CodeSandbox:
        """A sandbox of the pool. Waits until one is free, for up to `timeout` seconds, then raises TimeoutError."""
        with self._changed:
            if not self._ready:
                raise RuntimeError("the pool is not initialized: call initialize() first")
            if not self._changed.wait_for(lambda: bool(self._idle), timeout):
                raise TimeoutError(f"all {self.pool_size} sandboxes of the pool are in use")
            sandbox = self._idle.pop()
            self._busy.append(sandbox)
            return sandbox

    def release(self, sandbox: CodeSandbox) -> None:
        """Gives a sandbox back."""
        with self._changed:
            if not any(one is sandbox for one in self._busy):
                raise ValueError("this sandbox was not acquired from this pool, or was released already")
            self._busy = [one for one in self._busy if one is not sandbox]
            self._idle.append(sandbox)
            self._changed.notify()

    def status(self) -> Dict[str, Any]:
        with self._changed:
            return {
                "pool_size": self.pool_size,
                "available": len(self._idle),
                "in_use": len(self._busy),
                "initialized": self._ready,
            }


# --- Backends for frameworks


@runtime_checkable
class SandboxBackend(Protocol):
    """What a framework wants from a sandbox: make one, run code in it, give it up."""

    async def create(self, config: Optional[SandboxConfig] = None) -> str: ...
    async def execute(self, sandbox_id: str, code: str) -> ExecutionResult: ...
    async def close(self, sandbox_id: str) -> None: ...


class BelljarBackend:
    """A SandboxBackend. Every execution is in a new box, with the settings that `create` was given."""

    def __init__(self, client: "Optional[AsyncBelljar]" = None) -> None:
        self._client = client
        self._sandboxes: Dict[str, SandboxConfig] = {}

    async def create(self, config: Optional[SandboxConfig] = None) -> str:
        import secrets

        sandbox_id = f"sandbox_{secrets.token_hex(8)}"
        self._sandboxes[sandbox_id] = config or SandboxConfig()
        return sandbox_id

    async def execute(self, sandbox_id: str, code: str) -> ExecutionResult:
        config = self._config_of(sandbox_id)
        client: Any = self._client or default_async_client()
        return _execution_result(await client.run(config.language, code, **config.options()))

    async def close(self, sandbox_id: str) -> None:
        self._config_of(sandbox_id)
        del self._sandboxes[sandbox_id]

    def _config_of(self, sandbox_id: str) -> SandboxConfig:
        try:
            return self._sandboxes[sandbox_id]
        except KeyError:
            raise ValueError(f"there is no sandbox {sandbox_id!r}: it was never created, or is closed") from None
