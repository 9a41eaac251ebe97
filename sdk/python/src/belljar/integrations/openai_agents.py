"""The OpenAI Agents SDK: a function tool.

    agent = Agent(name="Analyst", tools=[belljar_tool()])
"""

from __future__ import annotations

from typing import Any

from agents import FunctionTool
from agents.tool_context import ToolContext

from ._tool import CodeTool

__all__ = ["belljar_tool"]


def belljar_tool(client: Any = None, **options: Any) -> FunctionTool:
    """A function tool. The arguments are those of `CodeTool`; calls use `async_client`."""
    tool = CodeTool(client, **options)

    async def invoke(_context: "ToolContext[Any]", arguments: str) -> str:
        return await tool.acall(arguments)

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.schema,
        on_invoke_tool=invoke,
        strict_json_schema=False,  # stdin may be left out, which a strict schema does not know
    )
