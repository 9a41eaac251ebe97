"""Pydantic AI: a tool, and a toolset of it.

    agent = Agent(model, tools=[belljar_tool()])
    agent = Agent(model, toolsets=[belljar_toolset()])
"""

from __future__ import annotations

from typing import Any

from pydantic_ai import Tool
from pydantic_ai.toolsets import FunctionToolset

from ._tool import CodeTool

__all__ = ["belljar_tool", "belljar_toolset"]


def belljar_tool(client: Any = None, **options: Any) -> "Tool[Any]":
    """A tool. The arguments are those of `CodeTool`; calls use `async_client`."""
    tool = CodeTool(client, **options)

    async def run_code(**arguments: Any) -> str:
        return await tool.acall(arguments)

    return Tool.from_schema(run_code, name=tool.name, description=tool.description, json_schema=tool.schema)


def belljar_toolset(client: Any = None, **options: Any) -> "FunctionToolset[Any]":
    """A toolset with the tool."""
    return FunctionToolset([belljar_tool(client, **options)])
