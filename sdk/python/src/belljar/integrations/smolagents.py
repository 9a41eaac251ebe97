"""A Python executor for smolagents.

    agent = CodeAgent(tools=[], model=model, executor=BelljarExecutor())

Variables, functions and files are kept between the steps of an agent. Each step runs in a new box, so that threads, open files
and other things that cannot be pickled are not.
"""

from __future__ import annotations

import ast
from typing import Any, Dict, Optional, Sequence

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.serialization import SafeSerializer
from smolagents.tools import get_tools_definition_code
from smolagents.utils import AgentError

from ._session import PythonSession, Step

__all__ = ["BelljarExecutor"]


class BelljarExecutor(RemotePythonExecutor):
    """Runs the code of a CodeAgent. The options are those of `Belljar.run`."""

    def __init__(
        self,
        additional_imports: Sequence[str] = (),
        logger: Optional[AgentLogger] = None,
        *,
        client: Any = None,
        **options: Any,
    ) -> None:
        # Answers are never unpickled: a pickle from the box could run code here.
        super().__init__(list(additional_imports), logger or AgentLogger(level=LogLevel.OFF), allow_pickle=False)
        self._session = PythonSession(client, **options)
        for package in additional_imports:
            self._expect(package)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        step = self._session.run(code)
        logs = step.result.stdout + step.result.stderr
        if step.error_name == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(SafeSerializer.loads(step.error_value, allow_pickle=False), logs, True)
        if step.error_name is not None:
            raise AgentError(f"{logs}\n{step.traceback or step.error_value}".strip(), self.logger)
        if step.lost:
            logs += f"note: the next step will not have {', '.join(step.lost)}, which cannot be pickled\n"
        return CodeOutput(_output(step), logs, False)

    def send_tools(self, tools: Dict[str, Any]) -> None:
        """Defines the tools in the box. What they import is needed only when it is used: a final answer, for example, may be a
        picture or an array, and its tool imports what these come from."""
        if "final_answer" in tools:
            self._patch_final_answer_with_exception(tools["final_answer"])
        self.run_code_raise_errors(_with_optional_imports(get_tools_definition_code(tools)))

    def _expect(self, package: str) -> None:
        module = package.split("[")[0].split(".")[0].replace("-", "_")
        step = self._session.run(f"import {module}")
        if step.error_name is not None:
            raise ValueError(
                f"the package {package!r} is not in the box: {step.error_value}; docs/packages.md says how to get it there"
            )

    def cleanup(self) -> None:
        """Forgets the state."""
        self._session.reset()


def _output(step: Step) -> Any:
    return step.value if step.value is not None else step.text


def _with_optional_imports(code: str) -> str:
    tree = ast.parse(code)
    handler = ast.ExceptHandler(ast.Name("ImportError", ast.Load()), None, [ast.Pass()])
    tree.body = [
        ast.Try([node], [handler], [], []) if isinstance(node, (ast.Import, ast.ImportFrom)) else node for node in tree.body
    ]
    return ast.unparse(ast.fix_missing_locations(tree))
