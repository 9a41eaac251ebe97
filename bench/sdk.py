"""The measurements of bench/sdk. Each says what is wanted and what came of it; the exit status says whether all was kept.

    sdk.py BELLJAR ROUNDS
"""

import contextlib
import glob
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from served import PYTHON, Connection

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TYPESCRIPT = f"{ROOT}/sdk/typescript/dist/index.js"
FIRST_RUN_MS, CALL_MS, CALLS = 500, 1, 100
BODY = {"language": "python", "code": "print(1)"}

# What a user's program does. It says when it was there: its clock is that of the process that started it.
FIRST = """
import time
begun = time.perf_counter()
import belljar
imported = time.perf_counter()
result = belljar.run("python", "print(1)")
returned = time.perf_counter()
assert result.stdout == "1\\n", result
print(begun, imported, returned, result.usage.wall_ms)
"""
# Two of a kind take turns with the bare socket, which this process asks from outside: each line read is one call.
CALLER = """
import sys, time, belljar
client = belljar.Belljar()
for _ in sys.stdin:
    begun = time.perf_counter()
    result = client.run("python", "print(1)")
    print((time.perf_counter() - begun) * 1e3, result.start, flush=True)
"""
CALLER_IN_TYPESCRIPT = """
import { createInterface } from "node:readline";
const { Belljar } = await import(process.argv[1]);
const client = new Belljar();
for await (const _ of createInterface({ input: process.stdin })) {
  const begun = performance.now();
  const result = await client.run("python", "print(1)");
  console.log(performance.now() - begun, result.start);
}
"""

belljar, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2])
missed = []


def main():
    first_runs()
    with Host() as host:
        host.run(FIRST)
        calls("Python", host, [PYTHON, "-c", CALLER])
        if os.path.exists(TYPESCRIPT):
            calls("TypeScript", host, ["node", "--input-type=module", "-e", CALLER_IN_TYPESCRIPT, TYPESCRIPT])
        else:
            print("a call of the TypeScript SDK: not measured, npm ci && npm run build in sdk/typescript")
    return 1 if missed else 0


class Host:
    """A host on which Belljar has never run: there is no state. What has been started there is stopped."""

    def __enter__(self):
        # A socket's path is short.
        self.folder = tempfile.mkdtemp(dir="/tmp")
        passed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.env = passed | {
            "BELLJAR_STATE_DIR": self.folder,
            "BELLJAR_BINARY": belljar,
            "PYTHONPATH": f"{ROOT}/sdk/python/src",
        }
        return self

    def __exit__(self, *_):
        for pid in self.servers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while self.servers():
            time.sleep(0.02)
        shutil.rmtree(self.folder)

    def servers(self):
        """Known by the socket that they are told to listen on, which is in this folder."""
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            with contextlib.suppress(OSError), open(path) as words:
                if f"\0--listen\0unix:{self.folder}/" in words.read():
                    found.append(int(path.split("/")[2]))
        return found

    def run(self, code):
        """From the start of the interpreter until the run has returned; and the parts of it, in milliseconds."""
        started = time.perf_counter()
        said = subprocess.run([PYTHON, "-c", code], env=self.env, stdout=subprocess.PIPE, text=True, check=True).stdout
        begun, imported, returned, wall = (float(word) for word in said.split())
        return [1e3 * (returned - started), 1e3 * (begun - started), 1e3 * (imported - begun), 1e3 * (returned - imported), wall]

    def socket(self):
        return glob.glob(f"{self.folder}/run/*.sock")[0]


class Bare(Connection):
    """The same request, with nothing around it."""

    def __init__(self, path):
        self.path = path
        super().__init__("localhost")

    def connect(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(self.path)
        self.used = time.monotonic()

    def until_one_waits(self):
        for _ in range(4000):
            pools = self.ask("GET", "/v1/pool")["languages"]
            if any(pool["ready"] for pool in pools if pool["language"] == "python") and not any(pool["booting"] for pool in pools):
                return
            time.sleep(0.005)
        sys.exit("no box was ever ready")


def first_runs():
    """Whatever the kernel has in its caches stays there: what is measured is a host without state, not one without files."""
    first, second = [], []
    for _ in range(rounds):
        with Host() as host:
            first.append(host.run(FIRST))
            second.append(host.run(FIRST))
    for name, times, most in [("first run on this host", first, FIRST_RUN_MS), ("first run of a second process", second, None)]:
        whole, start, imports, call, wall = (statistics.median(part) for part in zip(*times))
        parts = f"Python {start:.0f}, import {imports:.0f}, run() {call:.0f}, of which the program {wall:.0f}"
        said = f"{whole:.0f} ms (at most {max(time[0] for time in times):.0f}): {parts}"
        find(name, said, most and f"less than {most} ms", most is None or whole < most)


def calls(name, host, command):
    """Calls of the SDK and of a bare socket, in turns, each when a box waits."""
    bare, took, plain = Bare(host.socket()), [], []
    caller = subprocess.Popen(command, env=host.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for turn in range(CALLS + 5):
        bare.until_one_waits()
        caller.stdin.write("\n")
        caller.stdin.flush()
        time_taken, start = caller.stdout.readline().split()
        bare.until_one_waits()
        begun = time.perf_counter()
        result = bare.ask("POST", "/v1/runs", BODY)
        alone = (time.perf_counter() - begun) * 1e3
        if turn >= 5 and start == result["start"] == "warm":
            took.append(float(time_taken))
            plain.append(alone)
    caller.stdin.close()
    caller.wait()
    if not took:
        return find(f"a call of the {name} SDK", "no run was warm", "warm runs", False)
    ours, theirs = statistics.median(took), statistics.median(plain)
    said = f"{ours:.2f} ms, a bare socket {theirs:.2f}: {ours - theirs:+.2f} ms ({len(took)} runs)"
    return find(f"a call of the {name} SDK", said, f"at most {CALL_MS} ms more", ours - theirs <= CALL_MS)


def find(name, said, wanted, kept):
    print(f"{name:<32} {said}" + (f", wanted {wanted}: {'kept' if kept else 'NOT KEPT'}" if wanted else ""), flush=True)
    if not kept:
        missed.append(name)


sys.exit(main())
