#!/usr/bin/env python3
"""Runs code over HTTP, with nothing but the standard library.

    BELLJAR_URL=http://localhost:8787 BELLJAR_API_KEY=... python3 client.py
"""

import base64
import json
import os
import urllib.error
import urllib.request

URL = os.environ.get("BELLJAR_URL", "http://localhost:8787")
KEY = os.environ.get("BELLJAR_API_KEY")


class BelljarError(Exception):
    """Belljar could not or would not run the code. A program that fails is not an error, but a result."""

    def __init__(self, error):
        super().__init__(f"{error['code']}: {error['message']} ({error['hint']})")
        self.code = error["code"]


def run(language, code, **options):
    """Runs code and returns the result object. The options are the fields of the request: stdin, files, limits..."""
    headers = {"Content-Type": "application/json"}
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    body = json.dumps({"language": language, "code": code, **options}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{URL}/v1/runs", body, headers)) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        raise BelljarError(json.load(refused)["error"]) from None


def main():
    result = run("python", "print(input()[::-1])", stdin="stressed")
    print("output:", result["stdout"].strip())

    result = run("python", "import sys; sys.exit('cannot go on')")
    print("failed:", result["exit_code"], result["stderr"].strip())

    result = run("python", "while True: pass", limits={"timeout_ms": 300})
    print("stopped:", result["status"], result["exit_code"])

    files = [{"path": "in.csv", "content": "a,b\n1,2\n"}]
    result = run("python", "open('out.txt', 'w').write(open('in.csv').read().upper())", files=files, collect=["out.txt"])
    print("file:", base64.b64decode(result["files"][0]["content_base64"]))

    try:
        run("klingon", "Qapla'")
    except BelljarError as error:
        print("refused:", error.code)


if __name__ == "__main__":
    main()
