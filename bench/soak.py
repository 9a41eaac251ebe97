#!/usr/bin/env python3
"""Lets a server that is there run many programs, and watches it: soak.py ADDRESS PROCESS RUNS.

The server keeps as many boxes at least as at most, so that what there is when nothing runs is always the same. What the
server keeps of results fills up first; what is there after a fifth of the runs is what the rest is compared with.
"""

import glob
import http.client
import json
import os
import random
import sys
import threading
import time

CALLERS = 6
LOOKS = 8
MEGABYTE = 1 << 20
# How long, in seconds, the server has to return memory after the last run.
PATIENCE = 60

# How often, the program, what else the request says, and what must come of it.
ENDINGS = [
    (40, "print(6 * 7)", {}, {"status": "exited", "exit_code": 0, "stdout": "42\n"}),
    (10, "import sys\nsys.exit(3)", {}, {"status": "exited", "exit_code": 3}),
    (10, "raise ValueError('here')", {}, {"status": "exited", "exit_code": 1}),
    (5, "import os\nos._exit(7)", {}, {"status": "exited", "exit_code": 7}),
    (5, "import os\nos.kill(os.getpid(), 9)", {}, {"status": "signaled", "signal": 9}),
    (5, "import ctypes\nctypes.string_at(0)", {}, {"status": "signaled", "signal": 11}),
    (5, "import sys\nprint(len(sys.stdin.read()))", {"stdin": "x" * 100_000}, {"stdout": "100000\n"}),
    (5, "print('x' * 300_000)", {"limits": {"output_bytes": 1000}}, {"stdout_truncated": True}),
    (5, "open('a.txt', 'w').write('a' * 50_000)", {"collect": ["*.txt"]}, {"status": "exited", "exit_code": 0}),
    (5, "import in_file\nprint(in_file.x)", {"files": [{"path": "in_file.py", "content": "x = 5"}]}, {"stdout": "5\n"}),
    (3, "import os, time\nfor _ in range(10):\n    if os.fork() == 0: time.sleep(100)", {}, {"status": "exited"}),
    (3, "import threading, time\nfor _ in range(5): threading.Thread(target=time.sleep, args=(100,)).start()\nimport os\nos._exit(0)", {}, {"exit_code": 0}),
    (2, "import time\ntime.sleep(100)", {"limits": {"timeout_ms": 60}}, {"status": "timed_out", "exit_code": 124}),
    (2, "x = bytearray(300 << 20)", {"limits": {"memory_bytes": 96 << 20}}, {"status": "out_of_memory", "exit_code": 137}),
    (1, "import time\ntime.sleep(100)", {"limits": {"timeout_ms": 60_000}}, None),
]


class Load:
    """Callers that ask for one run after the other."""

    def __init__(self, address):
        self.address, self.lock = address, threading.Lock()
        self.starts, self.wrong = {}, []

    def run(self, count, seed):
        """Has so many programs run, and returns when all are answered."""
        shares = [count // CALLERS + (caller < count % CALLERS) for caller in range(CALLERS)]
        threads = [threading.Thread(target=self.call, args=(share, f"{seed} {caller}")) for caller, share in enumerate(shares)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def call(self, count, seed):
        chance, connection = random.Random(seed), http.client.HTTPConnection(self.address, timeout=120)
        for _ in range(count):
            (_, code, more, expected), = chance.choices(ENDINGS, [ending[0] for ending in ENDINGS])
            body = json.dumps({"language": "python", "code": code, **more})
            connection.request("POST", "/v1/runs", body, {"content-type": "application/json"})
            if expected is None:
                time.sleep(0.02)
                connection.close()  # Disconnecting cancels the run.
                self.note("hung up")
                continue
            answer = connection.getresponse()
            result = json.loads(answer.read())
            if answer.status != 200 or any(result.get(name) != value for name, value in expected.items()):
                self.wrong.append((code, more, answer.status, result))
            self.note(result.get("start", "failed"))

    def note(self, what):
        with self.lock:
            self.starts[what] = self.starts.get(what, 0) + 1


class Watch:
    """What a server has while nothing runs."""

    COLUMNS = ["runs", "processes", "cgroups", "mounts", "descriptors", "server MB", "around boxes MB", "zygote MB", "boxes MB"]

    def __init__(self, address, server):
        self.address, self.server = address, unprivileged_child(server)
        self.last = None

    def look(self, runs):
        self.until_quiet()
        tree = self.descendants()
        pythons = [pid for pid in tree if "/sandbox/main.py" in command_line(pid)]
        outside = os.readlink("/proc/self/ns/pid")
        zygotes = [pid for pid in pythons if namespace(pid) == outside]
        others = [pid for pid in tree if pid not in pythons]
        mounts = len(read(f"/proc/{self.server}/mountinfo").splitlines())
        boxes = [pid for pid in pythons if pid not in zygotes]
        memory = [proportional(pids) for pids in ([self.server], others, zygotes, boxes)]
        return [runs, len(tree), len(self.cgroups()), mounts, len(os.listdir(f"/proc/{self.server}/fd")), *memory]

    def until_quiet(self):
        """Until all boxes wait, none is being made and none is being taken apart."""
        for _ in range(3000):
            pool = self.ask()
            state = (len(self.descendants()), len(self.cgroups()))
            if pool["ready"] == pool["min"] and not pool["booting"] and state == self.last:
                return
            self.last = state
            time.sleep(0.1)
        sys.exit(f"it never comes to rest: {self.ask()}")

    def ask(self):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request("GET", "/v1/pool")
        pool = json.loads(connection.getresponse().read())
        connection.close()
        return next(row for row in pool["languages"] if row["language"] == "python")

    def descendants(self):
        parents = {}
        for entry in glob.glob("/proc/[0-9]*/stat"):
            state = read(entry).rpartition(")")[2].split()
            if state:
                parents.setdefault(int(state[1]), []).append(int(entry.split("/")[2]))
        found = list(parents.get(self.server, []))
        for pid in found:
            found.extend(parents.get(pid, []))
        return found

    def cgroups(self):
        mark, found = f"box-{self.server}-", []
        for folder, names, _ in os.walk("/sys/fs/cgroup"):
            found.extend(os.path.join(folder, name) for name in names if mark in name)
        return found


def unprivileged_child(parent):
    """The process that serves, if root started it: it has another user than who stayed behind."""
    children = read(f"/proc/{parent}/task/{parent}/children").split()
    return next((int(pid) for pid in children if os.stat(f"/proc/{pid}").st_uid != os.geteuid()), parent)


def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def command_line(pid):
    return read(f"/proc/{pid}/cmdline").split("\0")


def namespace(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def proportional(pids):
    """Their memory in megabytes, what is shared by several counted in parts, and what is in files not at all: how many
    others use those is not theirs."""
    lines = [line.split() for pid in pids for line in read(f"/proc/{pid}/smaps_rollup").splitlines()]
    return sum(int(words[1]) * 1024 for words in lines if words and words[0] == "Pss_Anon:") / MEGABYTE


def grown(before, after):
    """What is more than it was, beyond what comes and goes."""
    # As many processes, cgroups and mounts as ever; a connection may be about to be closed.
    most = [None, 0, 0, 0, CALLERS + 4, 6, 6, 6, 12]
    columns = zip(Watch.COLUMNS, before, after, most)
    return [f"{name}: {was} before, {now} after" for name, was, now, room in columns if room is not None and now > was + room]


def settled(watch, before, runs):
    """What is left in the end. The server returns memory that it no longer uses every few seconds; a leak does not come back."""
    patience = time.monotonic() + PATIENCE
    now = watch.look(runs)
    while grown(before, now) and time.monotonic() < patience:
        time.sleep(1)
        now = watch.look(runs)
    show(now)
    return now


def show(row):
    print("".join(f"{value:>17.1f}" if isinstance(value, float) else f"{value:>17}" for value in row), flush=True)


def main():
    address, server, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    load, watch = Load(address), Watch(address, server)
    began, done, looks = time.monotonic(), 0, []
    show(Watch.COLUMNS)
    for turn, share in enumerate([runs // 5] + [runs * 4 // 5 // LOOKS] * LOOKS):
        load.run(share, turn)
        done += share
        looks.append(watch.look(done))
        show(looks[-1])
    print(f"{done} runs in {time.monotonic() - began:.0f} s; {load.starts}")
    problems = grown(looks[0], settled(watch, looks[0], done))
    problems += [f"not as it should be: {wrong}" for wrong in load.wrong[:5]]
    if load.starts.get("cold", 0) > done // 20:
        problems.append("more than a few were cold")
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


main()
