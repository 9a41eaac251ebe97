#!/usr/bin/env python3
"""Judges programs as a programming contest does: each submission against each test case, within limits.

    BELLJAR_URL=http://localhost:8787 python3 judge.py submissions/*
"""

import contextlib
import json
import os
import pathlib
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

URL = os.environ.get("BELLJAR_URL", "http://localhost:8787")
# The problem: read n and then n numbers, print their sum.
CASES = [
    ("3\n1 2 3\n", "6"),
    ("1\n-5\n", "-5"),
    ("4\n2000000000 2000000000 2000000000 2000000000\n", "8000000000"),
]
# CPU time is the program's own however busy the machine is; the wall clock is only there for programs that sleep.
LIMITS = {"cpu_ms": 1000, "timeout_ms": 60_000, "memory_bytes": 128 << 20, "compile_timeout_ms": 120_000}
LANGUAGES = {".c": "c", ".cpp": "cpp", ".py": "python", ".js": "javascript"}
CALLERS = 8


def results(language, code, inputs):
    """The result for each input, as it comes. The program is compiled once; closing this ends what still runs."""
    body = json.dumps({"language": language, "code": code, "stdin": inputs, "limits": LIMITS}).encode()
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    with open_events(urllib.request.Request(f"{URL}/v1/runs", body, headers)) as events:
        name = None
        for line in events:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data" and name == "result":
                yield json.loads(value)["result"]
            elif field == "data" and name == "error":
                raise RuntimeError(value)


def open_events(request):
    try:
        return urllib.request.urlopen(request)
    except urllib.error.HTTPError as refused:
        error = json.load(refused)["error"]
        raise RuntimeError(f"{error['message']}; {error['hint']}") from None


def verdict(language, code):
    with contextlib.closing(results(language, code, [given for given, _ in CASES])) as answers:
        for number, (result, (_, expected)) in enumerate(zip(answers, CASES), 1):
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
    language = LANGUAGES.get(path.suffix)
    if language is None:
        return f"{path.name}: not judged: LANGUAGES has no '{path.suffix}'"
    try:
        return f"{path.name}: {verdict(language, path.read_text())}"
    except RuntimeError as refused:
        return f"{path.name}: not judged: {refused}"


paths = sorted(map(pathlib.Path, sys.argv[1:]))
with ThreadPoolExecutor(CALLERS) as callers:
    for line in callers.map(judge, paths):
        print(line, flush=True)
