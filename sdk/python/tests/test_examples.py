"""The programs of examples/sdk print what they should."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "examples" / "sdk"

EXPECTED = {
    "tool_loop.py": """\
model runs: print(sum(n for n in range(1, 101) if n % 3 = 0))
it reads: exit code 1
model runs: print(sum(n for n in range(1, 101) if n % 3 == 0))
it reads: exit code 0
The sum is 1683.
""",
    "data_analysis.py": "best month: 5\npicture: drawn\n",
    "review.py": """\
approve: fixes test_spaces_at_the_ends; breaks nothing
request changes: fixes nothing; breaks test_words
""",
    "tutor.py": """\
Ada: All cases pass.
Ben: The list can be empty.
Cem: Your program does not end. Does every loop get closer to its end?
Dot: Python cannot read your program. Look at the line that it names, and at the one before.
""",
    "judge.py": "20 submissions, 8 accepted, score 8.33\ndoes not compile, failed, too much memory, too slow, wrong answer\n",
    "reward.py": "1000 programs, mean reward 0.633, expected 0.633\n",
}


def test_every_example_is_here() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == EXPECTED.keys()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / name], env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == EXPECTED[name] and done.returncode == 0, done.stdout + done.stderr
