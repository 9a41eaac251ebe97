#!/usr/bin/env python3
"""Runs a repository's tests before and after a patch, each time in a new sandbox, and compares the JUnit reports.

    review.py REPOSITORY PATCH

Neither the repository nor the patch is trusted: the patch is applied inside the sandbox, to a layer that is gone afterwards.
Exits with 0 if no test fails after the patch, with 1 if one does, and with 2 if there is nothing to compare.
"""

import base64
import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
LIMITS = ["--timeout", "2m", "--memory", "512M", "--pids", "200"]


def main():
    if len(sys.argv) != 3:
        give_up("usage: review.py REPOSITORY PATCH")
    repository, patch = sys.argv[1:]
    before = run_tests(repository, [])
    after = run_tests(repository, ["--file", f"{patch}:.review.patch"])
    for test in sorted(before | after):
        print(f"{before.get(test, 'absent'):<8} {after.get(test, 'absent'):<8} {test}")
    sys.exit(1 if "failed" in after.values() else 0)


def run_tests(repository, files):
    """The outcome of every test, by name."""
    has_python = any(pathlib.Path(repository).rglob("test*.py"))
    runner = ["python", HERE / "report_unittest.py"] if has_python else ["node", HERE / "report_node.mjs"]
    words = ["--workspace", repository, "--writable", "--collect", "junit.xml", *files, *LIMITS]
    ran = subprocess.run(["belljar", "run", *runner, *words, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    result = json.loads(ran.stdout)
    if "error" in result:
        give_up(result["error"]["message"], result["error"]["hint"])
    if not result["files"]:
        give_up(f"there is no report: {result['status']}, exit code {result['exit_code']}", result["stderr"])
    report = ElementTree.fromstring(base64.b64decode(result["files"][0]["content_base64"]))
    return {name_of(case): outcome_of(case) for case in report.iter("testcase")}


def name_of(case):
    return " ".join(part for part in (case.get("classname"), case.get("name")) if part and part != "test")


def outcome_of(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def give_up(*lines):
    # What a sandbox has written could move the cursor of a terminal.
    text = "\n".join(line.rstrip("\n") for line in lines)
    print("".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
