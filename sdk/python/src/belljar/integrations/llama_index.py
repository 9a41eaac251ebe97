"""LlamaIndex: a function tool, a tool spec, and what CodeActAgent runs its code with.

    agent = FunctionAgent(tools=[belljar_tool()], llm=llm)
    agent = FunctionAgent(tools=BelljarToolSpec().to_tool_list(), llm=llm)
    agent = CodeActAgent(code_execute_fn=code_execute_fn(), tools=[], llm=llm)
"""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Dict, List, Union

from llama_index.core.tools import FunctionTool
from llama_index.core.tools.tool_spec.base import BaseToolSpec

from .._default import default_async_client
from ..errors import BelljarError
from ._tool import CodeTool

__all__ = ["BelljarToolSpec", "belljar_tool", "code_execute_fn"]


def belljar_tool(client: Any = None, **options: Any) -> FunctionTool:
    """A function tool. The arguments are those of `CodeTool`."""
    tool = CodeTool(client, **options)
    return FunctionTool.from_defaults(fn=tool.run, async_fn=tool.arun, name=tool.name, description=tool.description)


class BelljarToolSpec(BaseToolSpec):
    """Runs code in a sandbox."""

    spec_functions: List[Any] = [("run_code", "arun_code")]

    def __init__(self, client: Any = None, **options: Any) -> None:
        self._tool = CodeTool(client, **options)

    def run_code(self, language: str, code: str, stdin: str = "") -> str:
        """Run a program in a sandbox and get its exit code and output. Every call starts afresh."""
        return self._tool.run(language, code, stdin)

    async def arun_code(self, language: str, code: str, stdin: str = "") -> str:
        """Run a program in a sandbox and get its exit code and output. Every call starts afresh."""
        return await self._tool.arun(language, code, stdin)


CodeExecuteFn = Callable[[str], Awaitable[Dict[str, Union[str, int]]]]


def code_execute_fn(async_client: Any = None, **options: Any) -> CodeExecuteFn:
    """For `CodeActAgent(code_execute_fn=…)`. Every call starts afresh, so the agent's prompt should say so."""

    async def execute(code: str) -> Dict[str, Union[str, int]]:
        client: Any = async_client or default_async_client()
        try:
            result = await client.run("python", code, **options)
        except BelljarError as error:
            return {"exit_code": 125, "stdout": "", "stderr": f"Error: {error}"}
        return {"exit_code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}

    return execute
