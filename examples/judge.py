#!/usr/bin/env python3
"""Judges programs as a programming contest does: each submission against each test case, within limits.

    BELLJAR_URL=http://localhost:8787 python3 judge.py submissions/*
"""

import pathlib
import sys

from client import run

# The problem: read a number n, print the sum of the numbers from 1 to n.
CASES = [("1", "1"), ("10", "55"), ("1000000", "500000500000")]
LIMITS = {"timeout_ms": 4000, "memory_bytes": 64 << 20}
LANGUAGES = {".py": "python", ".sh": "bash"}


def verdict(language, code):
    for number, (given, expected) in enumerate(CASES, 1):
        result = run(language, code, stdin=given + "\n", limits=LIMITS)
        if result["status"] == "timed_out":
            return f"time limit exceeded in case {number}"
        if result["status"] == "out_of_memory":
            return f"memory limit exceeded in case {number}"
        if result["exit_code"] != 0:
            return f"runtime error in case {number}: {result['stderr'].strip().splitlines()[-1]}"
        if result["stdout"].split() != expected.split():
            return f"wrong answer in case {number}"
    return "accepted"


for path in sorted(map(pathlib.Path, sys.argv[1:])):
    print(f"{path.name}: {verdict(LANGUAGES[path.suffix], path.read_text())}")
