"""Each adapter with its real framework. Where a model is needed, a scripted one stands in for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Dict, List

import pytest

import belljar
from belljar import Belljar

ADD = {"language": "python", "code": "print(20 + 22)"}


# --- OpenAI


def test_openai_chat_completions() -> None:
    from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionToolMessageParam
    from openai.types.chat import ChatCompletionMessageFunctionToolCall as ToolCall
    from pydantic import TypeAdapter

    from belljar.integrations.openai import OpenAITool

    tool = OpenAITool(timeout=10)
    TypeAdapter(ChatCompletionFunctionToolParam).validate_python(tool.chat_definition)
    call = ToolCall.model_validate(
        {"id": "call_1", "type": "function", "function": {"name": "run_code", "arguments": json.dumps(ADD)}}
    )
    answer = tool.handle(call)
    TypeAdapter(ChatCompletionToolMessageParam).validate_python(answer)
    assert answer == {"role": "tool", "tool_call_id": "call_1", "content": "exit code 0\nstdout:\n42"}
    assert asyncio.run(tool.ahandle(call)) == answer


def test_openai_responses() -> None:
    from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
    from openai.types.responses.response_input_param import FunctionCallOutput
    from pydantic import TypeAdapter

    from belljar.integrations.openai import OpenAITool

    tool = OpenAITool()
    TypeAdapter(FunctionToolParam).validate_python(tool.definition)
    call = ResponseFunctionToolCall(call_id="c", name="run_code", arguments=json.dumps(ADD), type="function_call")
    answer = tool.handle(call)
    TypeAdapter(FunctionCallOutput).validate_python(answer)
    assert answer == {"type": "function_call_output", "call_id": "c", "output": "exit code 0\nstdout:\n42"}
    with pytest.raises(ValueError, match="other"):
        tool.handle({"name": "other", "arguments": "{}", "call_id": "c"})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('{"language": "python"}', "missing arguments: code"),
        ('{"language": "python", "code": 5}', "'code' is not one of them"),
        ('{"language": "klingon", "code": ""}', "'klingon' is not one of the languages"),
        ('{"language": "python", "code": "", "network": "full"}', "'network'"),
    ],
)
def test_nonsense_is_told_to_the_model(arguments: str, problem: str) -> None:
    from belljar.integrations.openai import OpenAITool

    answer = OpenAITool().handle({"call_id": "c", "name": "run_code", "arguments": arguments})
    assert answer["output"].startswith("Error: ") and problem in answer["output"]


def test_what_the_model_cannot_help_is_raised() -> None:
    from belljar.integrations.openai import OpenAITool

    call = {"call_id": "c", "name": "run_code", "arguments": json.dumps(ADD)}
    with pytest.raises(belljar.ServerUnreachableError):
        OpenAITool(Belljar("unix:/nowhere/at.all")).handle(call)
    assert OpenAITool(waive=["network"]).handle(call)["output"].startswith("Error: ")


def test_what_a_model_reads() -> None:
    from belljar.integrations._tool import CodeTool

    tool = CodeTool(timeout=60)
    assert tool.run("python", "print(input())", "in") == "exit code 0\nstdout:\nin"
    assert CodeTool(timeout=0.5).run("python", "while True: pass").startswith("exit code 124 (timed_out)\nstderr:\nExecution timed out")
    assert tool.run("c", "int main() { retur }").startswith("exit code 1 of the compiler\nstderr:\n")
    assert len(tool.run("python", "print('x' * 500000)")) < 21_000


# --- Anthropic


def test_anthropic() -> None:
    from anthropic.types import ToolParam, ToolResultBlockParam, ToolUseBlock
    from pydantic import TypeAdapter

    from belljar.integrations.anthropic import AnthropicTool

    tool = AnthropicTool()
    TypeAdapter(ToolParam).validate_python(tool.definition)
    block = ToolUseBlock.model_validate({"id": "toolu_1", "name": "run_code", "input": ADD, "type": "tool_use"})
    answer = tool.handle(block)
    TypeAdapter(ToolResultBlockParam).validate_python(answer)
    assert answer == {"type": "tool_result", "tool_use_id": "toolu_1", "content": "exit code 0\nstdout:\n42"}
    assert asyncio.run(tool.ahandle({"id": "t", "name": "run_code", "input": {}}))["is_error"] is True


# --- LangChain


def test_langchain_agent() -> None:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, ToolMessage

    from belljar.integrations.langchain import BelljarTool

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            assert [tool.name for tool in tools] == ["run_code"]
            return self

    call = {"name": "run_code", "args": ADD, "id": "call_1"}
    model = Scripted(messages=iter([AIMessage(content="", tool_calls=[call]), AIMessage(content="It is 42.")]))
    messages = create_agent(model, tools=[BelljarTool()]).invoke({"messages": [("user", "20 + 22?")]})["messages"]
    [answer] = [message for message in messages if isinstance(message, ToolMessage)]
    assert answer.content == "exit code 0\nstdout:\n42" and messages[-1].content == "It is 42."


# --- LlamaIndex


def test_llama_index() -> None:
    from belljar.integrations.llama_index import BelljarToolSpec, belljar_tool, code_execute_fn

    tool = belljar_tool()
    assert tool.metadata.name == "run_code" and set(tool.metadata.get_parameters_dict()["properties"]) >= {"language", "code"}
    assert tool.call(**ADD).content == "exit code 0\nstdout:\n42"
    assert asyncio.run(tool.acall(**ADD)).content == "exit code 0\nstdout:\n42"
    [of_spec] = BelljarToolSpec().to_tool_list()
    assert of_spec.call(**ADD).content == "exit code 0\nstdout:\n42"
    assert asyncio.run(code_execute_fn()("print(1)")) == {"exit_code": 0, "stdout": "1\n", "stderr": ""}


def test_llama_index_agent() -> None:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
    from llama_index.core.llms.function_calling import FunctionCallingLLM
    from llama_index.core.llms.mock import MockLLM
    from llama_index.core.tools import ToolSelection

    from belljar.integrations.llama_index import belljar_tool

    class Scripted(MockLLM, FunctionCallingLLM):
        turns: List[Any] = []

        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata(is_function_calling_model=True)

        def _prepare_chat_with_tools(self, tools: Any, **_: Any) -> Dict[str, Any]:
            return {"messages": []}

        async def astream_chat_with_tools(self, tools: Any, chat_history: Any = None, **_: Any) -> Any:
            self.turns.append([message.content for message in chat_history or []])

            async def answers() -> Any:
                text = "" if len(self.turns) == 1 else "It is 42."
                yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=text)

            return answers()

        async def achat_with_tools(self, tools: Any, chat_history: Any = None, **more: Any) -> Any:
            async for answer in await self.astream_chat_with_tools(tools, chat_history=chat_history, **more):
                return answer

        def get_tool_calls_from_response(self, response: Any, **_: Any) -> Any:
            return [ToolSelection(tool_id="1", tool_name="run_code", tool_kwargs=ADD)] if len(self.turns) == 1 else []

    async def main() -> Any:
        return await FunctionAgent(tools=[belljar_tool()], llm=Scripted()).run("20 + 22?")

    answer = asyncio.run(main())
    assert [call.tool_output.content for call in answer.tool_calls] == ["exit code 0\nstdout:\n42"]
    assert str(answer) == "It is 42."


# --- AutoGen


def test_autogen_executor() -> None:
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock, CodeExecutor

    from belljar.integrations.autogen import BelljarCodeExecutor

    async def main() -> None:
        async with BelljarCodeExecutor(timeout=60) as executor:
            blocks = [
                CodeBlock("open('data.txt', 'w').write('kept')", "python"),
                CodeBlock("cat data.txt", "sh"),
                CodeBlock("import sys; sys.exit(3)", "python"),
                CodeBlock("print('never')", "python"),
            ]
            result = await executor.execute_code_blocks(blocks, CancellationToken())
            assert (result.exit_code, result.output) == (3, "kept")
            after = await executor.execute_code_blocks([CodeBlock("ls", "sh")], CancellationToken())
            assert after.output.split() == ["data.txt", "main.sh"]
            await executor.restart()
            gone = await executor.execute_code_blocks([CodeBlock("ls data.txt", "sh")], CancellationToken())
            assert gone.exit_code != 0
            with pytest.raises(asyncio.TimeoutError):
                await BelljarCodeExecutor(timeout=0.3).execute_code_blocks([CodeBlock("sleep 60", "sh")], CancellationToken())
            token = CancellationToken()
            task = asyncio.ensure_future(executor.execute_code_blocks([CodeBlock("sleep 60", "sh")], token))
            await asyncio.sleep(0)
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        copy = CodeExecutor.load_component(BelljarCodeExecutor(timeout=7, memory="64M").dump_component())
        assert isinstance(copy, BelljarCodeExecutor) and copy._timeout == 7 and copy._options == {"memory": "64M"}

    asyncio.run(main())


def test_autogen_agents() -> None:
    from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent
    from autogen_agentchat.messages import TextMessage
    from autogen_core import CancellationToken, FunctionCall
    from autogen_core.models import CreateResult, RequestUsage
    from autogen_ext.models.replay import ReplayChatCompletionClient
    from autogen_ext.tools.code_execution import PythonCodeExecutionTool

    from belljar.integrations.autogen import BelljarCodeExecutor

    async def main() -> None:
        async with BelljarCodeExecutor() as executor:
            agent = CodeExecutorAgent("executor", code_executor=executor)
            task = TextMessage(content="```python\nprint(20 + 22)\n```", source="user")
            response = await agent.on_messages([task], CancellationToken())
            assert isinstance(response.chat_message, TextMessage) and response.chat_message.content.strip() == "42"

            call = FunctionCall(id="1", name="CodeExecutor", arguments=json.dumps({"code": "print(20 + 22)"}))
            usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
            scripted = ReplayChatCompletionClient(
                [CreateResult(finish_reason="function_calls", content=[call], usage=usage, cached=False)],
                model_info={
                    "vision": False, "function_calling": True, "json_output": False, "structured_output": False,
                    "family": "unknown",
                },
            )  # fmt: skip
            assistant = AssistantAgent("assistant", scripted, tools=[PythonCodeExecutionTool(executor)])
            answer = (await assistant.run(task="20 + 22?")).messages[-1]
            assert "42" in answer.to_text()

    asyncio.run(main())


# --- smolagents


def test_smolagents_state() -> None:
    from smolagents.utils import AgentError

    from belljar.integrations.smolagents import BelljarExecutor

    executor = BelljarExecutor(timeout=20)
    executor.send_variables({"start": [1, 2]})
    first = executor("import math\nclass Point:\n    def __init__(self, x): self.x = x\ndef twice(n): return 2 * n\nop = lambda n: n + 1\np = Point(twice(4))\nprint('out')")
    assert first.logs == "out\n" and not first.is_final_answer
    assert executor("[p.x, start, op(1), math.floor(2.5)]").output == [8, [1, 2], 2, 2]
    assert "open_file" in executor("open_file = open('f.txt', 'w'); open_file.write('kept')").logs
    assert executor("open('f.txt').read()").output == "kept"
    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("q = 5\n1 / 0")
    assert executor("q").output == 5
    with pytest.raises(AgentError, match="SyntaxError|invalid syntax"):
        executor("def (")
    with pytest.raises(AgentError, match="Memory limit|out_of_memory"):
        executor("x = b'x' * (2000 << 20)")
    assert executor("q + 1").output == 6, "what was killed has changed nothing"
    executor.cleanup()
    with pytest.raises(AgentError, match="NameError"):
        executor("q")
    with pytest.raises(ValueError, match="not in the box"):
        BelljarExecutor(["no_such_package_at_all"])


def test_smolagents_agent() -> None:
    from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool

    from belljar.integrations.smolagents import BelljarExecutor

    @tool
    def double(number: int) -> int:
        """Doubles a number.

        Args:
            number: The number.
        """
        return 2 * number

    class Scripted(Model):
        steps = ["total = double(10)\nprint(total)", "final_answer(total + 22)"]

        def generate(self, messages: Any, **_: Any) -> ChatMessage:
            code = self.steps[0] if len(messages) < 4 else self.steps[1]
            return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go on.\n<code>\n{code}\n</code>")

    agent = CodeAgent(tools=[double], model=Scripted(), executor=BelljarExecutor(), max_steps=4, verbosity_level=0)
    assert agent.run("What is twice 10, plus 22?") == 42


# --- Pydantic AI


def test_pydantic_ai() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from belljar.integrations.pydantic_ai import belljar_tool, belljar_toolset

    def scripted(messages: List[ModelMessage], info: AgentInfo) -> ModelResponse:
        assert [tool.name for tool in info.function_tools] == ["run_code"]
        returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if returned:
            return ModelResponse(parts=[TextPart(str(returned[0].content))])
        return ModelResponse(parts=[ToolCallPart("run_code", ADD)])

    for agent in (
        Agent(FunctionModel(scripted), tools=[belljar_tool()]),
        Agent(FunctionModel(scripted), toolsets=[belljar_toolset()]),
    ):
        assert asyncio.run(agent.run("20 + 22?")).output == "exit code 0\nstdout:\n42"


# --- OpenAI Agents SDK


def test_openai_agents() -> None:
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
    from agents.items import ToolCallOutputItem
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from belljar.integrations.openai_agents import belljar_tool

    class Scripted(Model):
        turn = 0

        async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
            self.turn += 1
            if self.turn == 1:
                call = ResponseFunctionToolCall(
                    call_id="c", name="run_code", arguments=json.dumps(ADD), type="function_call", id="f"
                )
                return ModelResponse(output=[call], usage=Usage(), response_id=None)
            text = ResponseOutputText(text="It is 42.", type="output_text", annotations=[])
            message = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            return ModelResponse(output=[message], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    async def main() -> Any:
        agent = Agent(name="Analyst", tools=[belljar_tool()], model=Scripted())
        return await Runner.run(agent, "20 + 22?", run_config=RunConfig(tracing_disabled=True))

    answer = asyncio.run(main())
    outputs = [item.output for item in answer.new_items if isinstance(item, ToolCallOutputItem)]
    assert outputs == ["exit code 0\nstdout:\n42"] and answer.final_output == "It is 42."
