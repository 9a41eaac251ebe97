#!/usr/bin/env python3
"""Judges programs as a programming contest does: each submission against each test case, within limits.

    BELLJAR_URL=http://localhost:8787 python3 judge.py submissions/*
"""

import pathlib
import sys
from concurrent.futures import ThreadPoolExecutor

from client import run

# The problem: read n and then n numbers, print their sum.
CASES = [
    ("3\n1 2 3\n", "6"),
    ("1\n-5\n", "-5"),
    ("4\n2000000000 2000000000 2000000000 2000000000\n", "8000000000"),
]
# CPU time is the program's own however busy the machine is; the wall clock is only there for programs that sleep.
LIMITS = {"cpu_ms": 2000, "timeout_ms": 60_000, "memory_bytes": 128 << 20, "compile_timeout_ms": 120_000}
LANGUAGES = {".c": "c", ".cpp": "cpp", ".py": "python", ".js": "javascript"}
CALLERS = 8


def verdict(language, code):
    # One request: the program is compiled once, and runs once for each case.
    answer = run(language, code, stdin=[given for given, _ in CASES], limits=LIMITS)
    for number, (result, (_, expected)) in enumerate(zip(answer["runs"], CASES), 1):
        if "error" in result:
            return f"not judged: {result['error']['message']}"
        if result["stage"] == "compile":
            return "compile error"
        if result["status"] == "timed_out":
            return f"time limit exceeded in case {number}"
        if result["status"] == "out_of_memory":
            return f"memory limit exceeded in case {number}"
        if result["exit_code"] != 0:
            return f"runtime error in case {number}"
        if result["stdout"].split() != expected.split():
            return f"wrong answer in case {number}"
    return "accepted"


def judge(path):
    return f"{path.name}: {verdict(LANGUAGES[path.suffix], path.read_text())}"


paths = sorted(map(pathlib.Path, sys.argv[1:]))
with ThreadPoolExecutor(CALLERS) as callers:
    for line in callers.map(judge, paths):
        print(line, flush=True)
