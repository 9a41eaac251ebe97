"""A LangChain tool.

    agent = create_agent(model, tools=[BelljarTool()])
"""

from __future__ import annotations

from typing import Any, Optional, Type

from langchain_core.callbacks import AsyncCallbackManagerForToolRun, CallbackManagerForToolRun
from langchain_core.tools import BaseTool
from pydantic import BaseModel, Field, PrivateAttr

from ._tool import NAME, CodeTool

__all__ = ["BelljarTool"]


class CodeArguments(BaseModel):
    language: str = Field(description="The language of the code.")
    code: str = Field(description="The complete program.")
    stdin: str = Field(default="", description="What the program reads from standard input.")


class BelljarTool(BaseTool):
    """Runs code in a sandbox. The arguments are those of `CodeTool`: a client, languages, and the options of a run."""

    name: str = NAME
    description: str = ""
    args_schema: Type[BaseModel] = CodeArguments  # pyright: ignore[reportIncompatibleVariableOverride]
    _tool: CodeTool = PrivateAttr()

    def __init__(self, client: Any = None, *, async_client: Any = None, name: str = NAME, **options: Any) -> None:
        tool = CodeTool(client, async_client=async_client, name=name, **options)
        super().__init__(name=name, description=tool.description)
        self._tool = tool

    def _run(self, language: str, code: str, stdin: str = "", run_manager: Optional[CallbackManagerForToolRun] = None) -> str:
        return self._tool.run(language, code, stdin)

    async def _arun(
        self, language: str, code: str, stdin: str = "", run_manager: Optional[AsyncCallbackManagerForToolRun] = None
    ) -> str:
        return await self._tool.arun(language, code, stdin)
