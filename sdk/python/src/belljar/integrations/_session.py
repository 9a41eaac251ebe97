"""A Python session made of single runs: what a step leaves in its variables and files is there for the next one.

Boxes that live longer than a run will do this better. Until then, the state goes from run to run: it is made in a box and
read in a box, and never looked at here.
"""

from __future__ import annotations

import json
import pathlib
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from .._default import default_client
from ..results import Result, ResultFile

__all__ = ["PythonSession", "Step"]

GUEST = (pathlib.Path(__file__).parent / "_guest.py").read_text()
FOLDER = ".belljar/"
EVERYTHING = ["**", FOLDER + "*"]


@dataclass(frozen=True)
class Step:
    """How a step ended. What it says about itself comes from untrusted code."""

    result: Result
    value: Any = None
    text: Optional[str] = None
    error_name: Optional[str] = None
    error_value: str = ""
    traceback: str = ""
    lost: List[str] = field(default_factory=list)


class PythonSession:
    """Runs steps one after the other. The options are those of `Belljar.run`."""

    def __init__(self, client: Any = None, **options: Any) -> None:
        self._client = client
        self._options = options
        self._files: Dict[str, ResultFile] = {}

    def run(self, code: str) -> Step:
        client: Any = self._client or default_client()
        files = {**self._files, FOLDER + "step.py": code, **self._options.get("files", {})}
        options = {name: value for name, value in self._options.items() if name != "files"}
        result: Result = client.run("python", GUEST, files=files, collect=EVERYTHING, **options)
        kept = {one.path: one for one in result.files}
        answer = _answer(kept.pop(FOLDER + "answer.json", None))
        if answer is None:  # it was killed or denied: the session is where it was before
            return Step(result, error_name=result.status, error_value=result.stderr.strip())
        self._files = {path: one for path, one in kept.items() if path not in (FOLDER + "step.py", "main.py")}
        return _step(result, answer)

    def reset(self) -> None:
        """Forgets everything."""
        self._files = {}


def _answer(file: Optional[ResultFile]) -> Optional[Mapping[str, Any]]:
    try:
        found = json.loads(file.content) if file else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _step(result: Result, answer: Mapping[str, Any]) -> Step:
    error = answer.get("error")
    lost = [str(name) for name in answer.get("lost") or []]
    if isinstance(error, dict):
        name, value, trace = (str(error.get(part, "")) for part in ("name", "value", "traceback"))
        return Step(result, error_name=name, error_value=value, traceback=trace, lost=lost)
    text = answer.get("text")
    return Step(result, answer.get("value"), None if text is None else str(text), lost=lost)
