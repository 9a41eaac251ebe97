"""Drives /payload/belljar through its public contract, and looks from outside at what a run leaves behind."""

import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections import namedtuple
from pathlib import Path

from checks import expect

BINARY = "/payload/belljar"
CGROUPS = Path("/sys/fs/cgroup")

# Emulation makes all that is not waiting a dozen times slower, so a run gets more time than the default of 10 s.
PATIENCE = "60s"

Process = namedtuple("Process", "pid name uid depth")


class Run:
    """A finished run: the exit status of belljar, and the result object."""

    def __init__(self, exit_status, stdout, stderr):
        self.exit_status = exit_status
        self.diagnostics = stderr
        try:
            self.result = json.loads(stdout)
        except ValueError:
            self.result = {}
            self.diagnostics += stdout

    def __getattr__(self, name):
        expect(name in self.result, f"no {name} in the result: {self}")
        return self.result[name]

    def __str__(self):
        return f"exit status {self.exit_status}, {json.dumps(self.result)} {self.diagnostics.strip()}"

    def expect_status(self, status, exit_code):
        expect(self.status == status, f"status is not {status}: {self}")
        expect(self.exit_code == exit_code, f"exit code is not {exit_code}: {self}")
        expect(self.exit_status == exit_code, f"exit status is not {exit_code}: {self}")


def command(code, *options, language="python"):
    if "--timeout" not in options:
        options = ("--timeout", PATIENCE, *options)
    return [BINARY, "run", language, "-c", code, "--json", *options]


def run(code, *options, language="python", env=None):
    return finish(start(code, *options, language=language, env=env))


def start(code, *options, language="python", env=None):
    return subprocess.Popen(
        command(code, *options, language=language), env=env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def finish(process, seconds=180):
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        expect(False, f"belljar did not end within {seconds} s")
    return Run(process.returncode, stdout, stderr)


class Server:
    """`belljar serve` with a pool of Python boxes, for as long as the block lasts."""

    POOL = "[pool.languages.python]\nmin = 1\nmax = 2\n"

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        Path(self.directory.name, "belljar.toml").write_text(self.POOL)
        self.process = subprocess.Popen(
            [BINARY, "serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"], cwd=self.directory.name,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "BELLJAR_STATE_DIR": f"{self.directory.name}/state"},
        )
        self.said = ""
        for line in self.process.stderr:
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                return self
            self.said += line
        expect(False, f"the server ended with {self.process.wait()}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=60)
        self.directory.cleanup()

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, headers={"content-type": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def run_warm(self, code, **more):
        """Runs in a box that has been waiting."""
        deadline = time.monotonic() + 90
        while not any(pool["ready"] for pool in self.ask("/v1/pool")["languages"]):
            expect(time.monotonic() < deadline, f"a box waits: {self.ask('/v1/pool')}")
            time.sleep(0.2)
        limits = {"timeout_ms": 60_000, **more.pop("limits", {})}
        result = self.ask("/v1/runs", {"language": "python", "code": code, "limits": limits, **more})
        expect(result["start"] == "warm", f"the start is not warm: {result}")
        return result


def cgroups():
    """All there are, but for the slices and services that systemd starts and stops as it likes."""
    found = set()
    for directory in CGROUPS.rglob("*/"):
        if directory.is_dir() and directory.suffix not in (".slice", ".service", ".socket", ".mount"):
            found.add(str(directory))
    return found


def boxed():
    """The uid, as the host sees it, of each process that is in a pid namespace below ours."""
    return {process.pid: process.uid for process in _processes() if process.depth > 1}


def belljar_processes():
    """The boxed ones, and those of belljar itself, as `pid name`."""
    return {f"{p.pid} {p.name}" for p in _processes() if p.depth > 1 or p.name.startswith("belljar")}


def own():
    """The uid, as the host sees it, of each process of belljar itself: keepers and wardens go by the name of their file."""
    return {process.pid: process.uid for process in _processes() if process.name in ("belljar", "exe")}


def _processes():
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue
        # NSpid has one number for each pid namespace that the process is in, from ours inwards.
        depth = len(fields["NSpid"].split())
        yield Process(int(fields["Pid"]), fields["Name"], int(fields["Uid"].split()[0]), depth)


class Traces:
    """What was there before, to be compared with what is there after."""

    def __init__(self):
        self.cgroups = cgroups()
        self.processes = belljar_processes()

    def expect_none(self):
        _expect_to_go("processes", lambda: belljar_processes() - self.processes)
        _expect_to_go("cgroups", lambda: cgroups() - self.cgroups)


def _expect_to_go(kind, remaining):
    # What the kernel does after the fact, such as removing a dead process, takes its time under emulation.
    deadline = time.monotonic() + 30
    while remaining() and time.monotonic() < deadline:
        time.sleep(0.1)
    left = remaining()
    expect(not left, f"{kind} are left: {sorted(left)}")


def wait_until(condition, process, why, seconds=60):
    """Waits for a condition, and gives up as soon as the process has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            expect(False, f"{why}, and belljar has ended: {finish(process)}")
        expect(time.monotonic() < deadline, f"{why} within {seconds} s")
        time.sleep(0.1)
