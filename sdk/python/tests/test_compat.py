"""The shapes of other tools, each with its documented example."""

from __future__ import annotations

import asyncio
import pathlib
import threading

import pytest

import belljar
from belljar import Belljar
from belljar.compat import (
    LANGUAGES,
    BelljarBackend,
    CodeExecutionTool,
    CodeSandbox,
    ExecutionResult,
    SandboxBackend,
    SandboxConfig,
    SandboxPool,
    ToolContext,
    code_execute,
    code_run,
)
from conftest import Server

CONTEXT = ToolContext(prompt="add two numbers")


def test_code_execution_tool() -> None:
    output = CodeExecutionTool().run(
        CONTEXT, language="python", code="print(2 + 2)", sandbox=True, network=False, image=None, workspace_root=None
    )
    assert output.text == "exit_code: 0\nstdout:\n4\n\nstderr:\n"
    expected = {"ok": True, "sandbox": True, "sandbox_image": None, "sandbox_network": False, "error": None}
    assert {name: output.metadata[name] for name in expected} == expected


def test_a_failed_program_of_the_tool() -> None:
    output = CodeExecutionTool().run(CONTEXT, language="python", code="import sys; sys.exit('broken')")
    assert output.text == "exit_code: 1\nstdout:\n\nstderr:\nbroken\n"
    assert output.metadata["ok"] is False and output.metadata["error"] == "broken"


def test_without_a_sandbox_it_is_the_process_backend() -> None:
    output = CodeExecutionTool().run(CONTEXT, language="sh", code="echo out", sandbox=False)
    assert output.metadata["ok"] and output.metadata["sandbox"] is False
    assert belljar.run("sh", "true", backend="process").backend == "process"


@pytest.mark.parametrize(
    "options",
    [
        {"language": "python", "image": "python:3.11-slim"},  # the server of the tests has no Docker
        {"language": "python", "workspace_root": "/etc"},
        {"language": "klingon"},
        {"language": None},
    ],
)
def test_what_cannot_be_run_is_no_exception(options: dict) -> None:
    output = CodeExecutionTool().run(CONTEXT, code="print(1)", **options)
    assert output.text.startswith("Error: ") and output.metadata["ok"] is False and output.metadata["error"]


def test_no_server_is_no_exception() -> None:
    tool = CodeExecutionTool(Belljar("unix:/nowhere/at.all"))
    output = tool.run(CONTEXT, language="python", code="print(1)")
    assert output.text.startswith("Error: cannot connect to unix:/nowhere") and output.metadata["ok"] is False


def test_the_workspace_of_the_tool(make_server: object, tmp_path: pathlib.Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_text("of the project")
    for folder in (root, *root.parents):
        if folder.owner() == root.owner() and folder != pathlib.Path("/") and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    config = f'[server.allow]\nworkspace-roots = ["{root}"]\n'
    server: Server = make_server(config)  # type: ignore[operator]
    tool = CodeExecutionTool(Belljar(server.url))
    output = tool.run(CONTEXT, language="sh", code="pwd; cat a.txt", workspace_root=root)
    assert output.text.startswith("exit_code: 0\nstdout:\n/work\nof the project"), output.text


PROGRAMS = {
    "python": "print('hi')", "javascript": "console.log('hi')", "typescript": "const s: string = 'hi'; console.log(s)",
    "ruby": "puts 'hi'", "php": "<?php echo \"hi\\n\";", "perl": "print \"hi\\n\";", "lua": "print('hi')",
    "r": "cat('hi\\n')", "bash": "echo hi", "sh": "echo hi", "zsh": "echo hi",
}  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_that_the_server_has(language: str, client: Belljar) -> None:
    known = {one.name: one for one in client.languages()}[language]
    output = CodeExecutionTool(client).run(CONTEXT, language=language, code=PROGRAMS[language])
    if known.available:
        assert output.text == "exit_code: 0\nstdout:\nhi\n\nstderr:\n"
    else:
        assert output.text.startswith("Error: ") and not output.metadata["ok"]
    assert known.image, "there is a default image for backends that take one"


def test_code_run() -> None:
    assert code_run("python", "print('Hello')", 5000) == {"exit_code": 0, "stdout": "Hello\n", "stderr": ""}
    late = code_run("python", "while True: pass", 300)
    assert late["exit_code"] == 124 and "Execution timed out" in late["stderr"]


def test_code_execute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_execute({"language": "javascript", "code": "console.log(1 + 1)"}) == "2\n"
    with pytest.raises(belljar.ProgramFailedError) as caught:
        code_execute({"language": "python", "code": "print('so far'); 1 / 0"})
    assert caught.value.result.stdout == "so far\n" and "ZeroDivisionError" in str(caught.value)
    with pytest.raises(TypeError):
        code_execute({"language": "python"})
    monkeypatch.setenv("CODE_EXEC_SANDBOX", "process")
    assert code_execute({"language": "sh", "code": "echo $HOME"}) != "/sandbox\n"
    monkeypatch.setenv("CODE_EXEC_SANDBOX", "docker")
    with pytest.raises(belljar.BelljarError):
        code_execute({"language": "sh", "code": "true"})
    monkeypatch.setenv("CODE_EXEC_SANDBOX", "firejail")
    with pytest.raises(ValueError, match="firejail"):
        code_execute({"language": "sh", "code": "true"})


def test_code_sandbox() -> None:
    config = SandboxConfig(language="python", timeout_seconds=5, max_memory_mb=128, allowed_imports=["math", "json"])
    sandbox = CodeSandbox(config)
    assert sandbox.execute("import math; print(math.sqrt(16))") == ExecutionResult("4.0\n", "", 0, False)
    refused = sandbox.execute("import os; print(os.listdir('/'))")
    assert refused.exit_code == 126 and refused.stdout == "" and "Denied by policy" in refused.stderr and not refused.ok
    assert CodeSandbox(SandboxConfig(timeout_seconds=0.3)).execute("while True: pass").timed_out
    assert CodeSandbox(SandboxConfig(max_memory_mb=64)).execute("x = b'x' * (200 << 20)").exit_code == 137


def test_sandbox_pool() -> None:
    pool = SandboxPool(pool_size=2)
    assert pool.status() == {"pool_size": 2, "available": 0, "in_use": 0, "initialized": False}
    with pytest.raises(RuntimeError, match="initialize"):
        pool.acquire()
    pool.initialize()
    sandbox, other = pool.acquire(), pool.acquire()
    assert sandbox.execute("print(1)").stdout == "1\n"
    assert pool.status() == {"pool_size": 2, "available": 0, "in_use": 2, "initialized": True}
    with pytest.raises(TimeoutError):
        pool.acquire(timeout=0.01)
    got = []
    thread = threading.Thread(target=lambda: got.append(pool.acquire(60)))
    thread.start()
    pool.release(sandbox)
    thread.join(60)
    assert got == [sandbox]
    pool.release(sandbox)
    pool.release(other)
    with pytest.raises(ValueError):
        pool.release(other)
    assert pool.status()["available"] == 2
    with pytest.raises(ValueError, match="klingon"):
        SandboxPool(1, SandboxConfig(language="klingon")).initialize()


def test_sandbox_backend() -> None:
    backend: SandboxBackend = BelljarBackend()
    assert isinstance(backend, SandboxBackend)

    async def main() -> None:
        sandbox = await backend.create(SandboxConfig(language="sh"))
        assert await backend.execute(sandbox, "echo a") == ExecutionResult("a\n", "", 0, False)
        await backend.close(sandbox)
        with pytest.raises(ValueError, match="closed"):
            await backend.execute(sandbox, "echo a")

    asyncio.run(main())
