"""The code of docs/python.md runs and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
from typing import Any, Dict, List, Optional, Tuple

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def blocks() -> List[Tuple[int, str, Optional[str]]]:
    page = PAGE.read_text()
    return [(page[: found.start()].count("\n") + 1, found[1], found[2]) for found in BLOCK.finditer(page)]


def lines(text: str) -> List[str]:
    """Without the white space at the end of lines, and of the text, which nobody sees on a page."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_the_page() -> None:
    namespace: Dict[str, Any] = {"__name__": "__main__"}
    found = blocks()
    assert len(found) == PAGE.read_text().count("```python") and len(found) > 5
    for line, code, expected in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(PAGE), "exec"), namespace)
        assert lines(printed.getvalue()) == lines(expected or ""), f"docs/python.md:{line}"
