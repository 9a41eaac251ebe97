"""Anthropic's tools: the definition to send, and a handler for the calls that come back.

    tool = AnthropicTool()
    message = client.messages.create(model=…, max_tokens=…, messages=messages, tools=[tool.definition])
    answers = [tool.handle(block) for block in message.content if block.type == "tool_use"]
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": answers}]
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from ._tool import CodeTool

__all__ = ["AnthropicTool"]


class AnthropicTool(CodeTool):
    """A tool for the Messages interface."""

    @property
    def definition(self) -> Dict[str, Any]:
        """For `tools` of `messages.create`."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}

    def handle(self, block: Any) -> Dict[str, Any]:
        """Runs a `tool_use` block and returns the `tool_result` block that answers it."""
        identifier, arguments = self._read(block)
        return _answer(identifier, self.call(arguments))

    async def ahandle(self, block: Any) -> Dict[str, Any]:
        """As `handle`, for asyncio."""
        identifier, arguments = self._read(block)
        return _answer(identifier, await self.acall(arguments))

    def _read(self, block: Any) -> Tuple[str, Mapping[str, Any]]:
        found = block if isinstance(block, Mapping) else {name: getattr(block, name) for name in ("id", "name", "input")}
        if found["name"] != self.name:
            raise ValueError(f"this is a call of {found['name']!r}, and not of {self.name!r}")
        return found["id"], found["input"]


def _answer(identifier: str, text: str) -> Dict[str, Any]:
    answer: Dict[str, Any] = {"type": "tool_result", "tool_use_id": identifier, "content": text}
    if text.startswith("Error: "):
        answer["is_error"] = True
    return answer
