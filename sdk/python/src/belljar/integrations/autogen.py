"""A CodeExecutor for AutoGen.

    async with BelljarCodeExecutor() as executor:
        agent = CodeExecutorAgent("executor", code_executor=executor)
        tool = PythonCodeExecutionTool(executor)
"""

from __future__ import annotations

import asyncio
from typing import Any, Dict, List, Optional, Tuple

from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import BaseModel
from typing_extensions import Self

from .._default import default_async_client
from ..results import Result, ResultFile

__all__ = ["BelljarCodeExecutor", "BelljarCodeExecutorConfig"]


class BelljarCodeExecutorConfig(BaseModel):
    timeout: float = 60.0
    options: Dict[str, Any] = {}


class BelljarCodeExecutor(CodeExecutor, Component[BelljarCodeExecutorConfig]):
    """Runs each block in a new box. The files that blocks leave in their working directory are there for the next ones,
    until `restart` or `stop`; those whose names begin with a dot are not. The options are those of `Belljar.run`."""

    component_config_schema = BelljarCodeExecutorConfig
    component_provider_override = "belljar.integrations.autogen.BelljarCodeExecutor"

    def __init__(self, async_client: Any = None, *, timeout: float = 60.0, **options: Any) -> None:
        self._client = async_client
        self._timeout = timeout
        self._options = options
        self._files: Tuple[ResultFile, ...] = ()

    async def execute_code_blocks(
        self, code_blocks: List[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Runs the blocks one after the other, until one fails."""
        outputs: List[str] = []
        code = 0
        for block in code_blocks:
            result = await self._run(block, cancellation_token)
            outputs.append(result.stdout + result.stderr)
            code = result.exit_code
            if code != 0:
                break
        return CodeResult(exit_code=code, output="".join(outputs))

    async def start(self) -> None:
        """There is nothing to start: boxes are made when they are needed."""

    async def stop(self) -> None:
        self._files = ()

    async def restart(self) -> None:
        self._files = ()

    async def _run(self, block: CodeBlock, cancellation_token: CancellationToken) -> Result:
        client: Any = self._client or default_async_client()
        before = {one.path: one for one in self._files}
        running = client.run(
            block.language.lower() or "python",
            block.code,
            files={**before, **self._options.get("files", {})},
            collect=["**"],
            timeout=self._timeout,
            **{name: value for name, value in self._options.items() if name != "files"},
        )
        task: "asyncio.Task[Result]" = asyncio.ensure_future(running)
        cancellation_token.link_future(task)
        result = await task
        if result.timed_out:
            raise asyncio.TimeoutError(f"the code did not end within {self._timeout:g} s")
        # A program that was denied or killed returned nothing, and changed nothing.
        if result.status == "exited" and result.stage == "run":
            self._files = tuple(one for one in result.files if not _is_code(one, block))
        return result

    def _to_config(self) -> BelljarCodeExecutorConfig:
        return BelljarCodeExecutorConfig(timeout=self._timeout, options=self._options)

    @classmethod
    def _from_config(cls, config: BelljarCodeExecutorConfig) -> Self:
        return cls(timeout=config.timeout, **config.options)


def _is_code(one: ResultFile, block: CodeBlock) -> bool:
    """Whether a file is the program itself, which the server puts beside the others."""
    return one.path.startswith("main.") and one.content == block.code.encode()
