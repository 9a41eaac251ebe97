"""The tool that all adapters offer to a model: its name, its description, its arguments and what the model reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence

from .._default import default_async_client, default_client
from ..errors import (
    ApprovalRequiredError,
    BelljarError,
    ForbiddenError,
    InvalidRequestError,
    TooLargeError,
)

if TYPE_CHECKING:
    from ..async_client import AsyncBelljar
    from ..client import Belljar
    from ..results import Result

__all__ = ["NAME", "CodeTool", "text_for_model"]

NAME = "run_code"
LANGUAGES = ("python", "javascript", "typescript", "bash", "ruby", "php", "perl", "lua", "r", "c", "cpp", "go", "rust", "java")
LONGEST_TEXT = 20_000
_OF_THE_MODEL = (InvalidRequestError, ForbiddenError, TooLargeError, ApprovalRequiredError)
"""Errors that a model can do something about. It reads them; all others are raised, for the program that called it."""


class CodeTool:
    """Runs code for a model. `options` are those of `Belljar.run`, and hold for every call."""

    def __init__(
        self,
        client: "Optional[Belljar]" = None,
        *,
        async_client: "Optional[AsyncBelljar]" = None,
        languages: Sequence[str] = LANGUAGES,
        name: str = NAME,
        **options: Any,
    ) -> None:
        self._client = client
        self._async_client = async_client
        self._options = options
        self.languages = tuple(languages)
        self.name = name

    @property
    def description(self) -> str:
        return (
            f"Run a program in a sandbox and get its exit code and output. Languages: {', '.join(self.languages)}. "
            "Print what you want to see. Every call starts afresh: nothing is kept from an earlier one. "
            + ("There is no network." if self._options.get("network", "none") == "none" else "")
        ).strip()

    @property
    def schema(self) -> Dict[str, Any]:
        """The arguments, as JSON Schema."""
        return {
            "type": "object",
            "properties": {
                "language": {"type": "string", "enum": list(self.languages), "description": "The language of the code."},
                "code": {"type": "string", "description": "The complete program."},
                "stdin": {"type": "string", "description": "What the program reads from standard input."},
            },
            "required": ["language", "code"],
            "additionalProperties": False,
        }

    def run(self, language: str, code: str, stdin: str = "") -> str:
        """Runs a program and returns what the model reads about it."""
        if refusal := self._refusal(language):
            return refusal
        client: Any = self._client or default_client()
        try:
            return text_for_model(client.run(language, code, stdin=stdin or None, **self._options))
        except _OF_THE_MODEL as error:
            return f"Error: {error}"

    async def arun(self, language: str, code: str, stdin: str = "") -> str:
        """As `run`, for asyncio."""
        if refusal := self._refusal(language):
            return refusal
        client: Any = self._async_client or default_async_client()
        try:
            return text_for_model(await client.run(language, code, stdin=stdin or None, **self._options))
        except _OF_THE_MODEL as error:
            return f"Error: {error}"

    def call(self, arguments: "Mapping[str, Any] | str") -> str:
        """Runs what a model has written as arguments: an object, or its JSON. Nonsense is told to the model."""
        try:
            return self.run(**_checked(arguments))
        except _Nonsense as error:
            return f"Error: {error}"

    async def acall(self, arguments: "Mapping[str, Any] | str") -> str:
        try:
            return await self.arun(**_checked(arguments))
        except _Nonsense as error:
            return f"Error: {error}"

    def _refusal(self, language: str) -> Optional[str]:
        if language in self.languages:
            return None
        return f"Error: {language!r} is not one of the languages: {', '.join(self.languages)}"


class _Nonsense(BelljarError):
    pass


def _checked(arguments: "Mapping[str, Any] | str") -> Dict[str, str]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise _Nonsense(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise _Nonsense("the arguments are not an object")
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        if name not in ("language", "code", "stdin") or not isinstance(value, str):
            raise _Nonsense(f"the arguments are language, code and stdin, which are texts; {name!r} is not one of them")
    if missing := {"language", "code"} - given.keys():
        raise _Nonsense(f"missing arguments: {', '.join(sorted(missing))}")
    return given


def text_for_model(result: "Result") -> str:
    """A result in few words: how it ended, then what it wrote. Of much output, the beginning and the end."""
    ending = f"exit code {result.exit_code}" + ("" if result.status == "exited" else f" ({result.status})")
    if result.stage == "compile":
        ending += " of the compiler"
    parts = [ending]
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text:
            parts.append(f"{name}:\n{_shortened(text).rstrip()}")
    if result.files:
        parts.append("files: " + ", ".join(one.path for one in result.files))
    return "\n".join(parts)


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
