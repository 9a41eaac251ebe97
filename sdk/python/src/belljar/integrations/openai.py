"""OpenAI's function tools: the definition to send, and a handler for the calls that come back.

    tool = OpenAITool()
    response = client.responses.create(model=…, input=messages, tools=[tool.definition])
    for item in response.output:
        if item.type == "function_call":
            messages += [item, tool.handle(item)]

With the Chat Completions interface, `tool.chat_definition` is the definition, and `handle` takes each of
`message.tool_calls`.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from ._tool import CodeTool

__all__ = ["OpenAITool"]


class OpenAITool(CodeTool):
    """A function tool for the Responses and the Chat Completions interface."""

    @property
    def definition(self) -> Dict[str, Any]:
        """For `tools` of `responses.create`."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.schema,
            "strict": False,
        }

    @property
    def chat_definition(self) -> Dict[str, Any]:
        """For `tools` of `chat.completions.create`."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}

    def handle(self, call: Any) -> Dict[str, Any]:
        """Runs a call of the model and returns the message that answers it."""
        arguments, answer = self._read(call)
        return {**answer, _text_of(answer): self.call(arguments)}

    async def ahandle(self, call: Any) -> Dict[str, Any]:
        """As `handle`, for asyncio."""
        arguments, answer = self._read(call)
        return {**answer, _text_of(answer): await self.acall(arguments)}

    def _read(self, call: Any) -> Tuple[str, Dict[str, Any]]:
        """The arguments of a call, and its answer without the text."""
        function = _field(call, "function")
        if function is not None:
            name, arguments = _field(function, "name"), _field(function, "arguments")
            answer = {"role": "tool", "tool_call_id": _field(call, "id")}
        else:
            name, arguments = _field(call, "name"), _field(call, "arguments")
            answer = {"type": "function_call_output", "call_id": _field(call, "call_id")}
        if name != self.name:
            raise ValueError(f"this is a call of {name!r}, and not of {self.name!r}")
        return arguments, answer


def _text_of(answer: Mapping[str, Any]) -> str:
    return "content" if "role" in answer else "output"


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
