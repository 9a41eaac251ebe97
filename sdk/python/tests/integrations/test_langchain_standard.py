"""The standard tests that LangChain has for tools."""

from __future__ import annotations

from typing import Any, Dict, Type

from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from belljar.integrations.langchain import BelljarTool


class TestToolUnit(ToolsUnitTests):
    @property
    def tool_constructor(self) -> Type[BelljarTool]:
        return BelljarTool

    @property
    def tool_constructor_params(self) -> Dict[str, Any]:
        return {"timeout": 10}

    @property
    def tool_invoke_params_example(self) -> Dict[str, Any]:
        return {"language": "python", "code": "print(1)"}


class TestToolIntegration(ToolsIntegrationTests):
    @property
    def tool_constructor(self) -> Type[BelljarTool]:
        return BelljarTool

    @property
    def tool_invoke_params_example(self) -> Dict[str, Any]:
        return {"language": "python", "code": "print(1)"}
