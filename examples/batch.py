#!/usr/bin/env python3
"""Starts many runs at once, without waiting for them, and collects the results.

    BELLJAR_URL=http://localhost:8787 python3 batch.py
"""

import json
import os
import urllib.request

URL = os.environ.get("BELLJAR_URL", "http://localhost:8787")


def submit(language, code):
    """Starts a run and returns its id. The run goes on when this connection ends."""
    body = json.dumps({"language": language, "code": code}).encode()
    headers = {"Content-Type": "application/json", "Prefer": "respond-async"}
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/v1/runs", body, headers)) as answer:
        return json.load(answer)["id"]


def result(run):
    """Waits for the end of a run, ten seconds at a time."""
    while True:
        with urllib.request.urlopen(f"{URL}/v1/runs/{run}?wait_ms=10000") as answer:
            found = json.load(answer)
        if found["status"] not in ("queued", "running"):
            return found


runs = [submit("python", f"print({number} ** {number})") for number in range(1, 9)]
for run in runs:
    print(result(run)["stdout"].strip())
