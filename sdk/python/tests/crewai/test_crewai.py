"""The CrewAI tool, with CrewAI itself and a scripted model."""

from __future__ import annotations

from typing import Any

from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM

from belljar.integrations.crewai import BelljarTool


def test_tool() -> None:
    tool = BelljarTool(timeout=10)
    assert tool.name == "run_code" and tool.run(language="python", code="print(20 + 22)") == "exit code 0\nstdout:\n42"


def test_a_crew() -> None:
    class Scripted(BaseLLM):
        def call(self, messages: Any, *_: Any, **__: Any) -> str:
            text = str(messages)
            if "stdout" in text and "42" in text:
                return "Thought: I now know the final answer\nFinal Answer: It is 42."
            return 'Thought: compute\nAction: run_code\nAction Input: {"language": "python", "code": "print(20 + 22)"}'

        def supports_function_calling(self) -> bool:
            return False

    agent = Agent(role="Analyst", goal="compute", backstory="careful", tools=[BelljarTool()], llm=Scripted(model="scripted"))
    task = Task(description="What is 20 + 22?", expected_output="a number", agent=agent)
    assert "42" in str(Crew(agents=[agent], tasks=[task]).kickoff())
