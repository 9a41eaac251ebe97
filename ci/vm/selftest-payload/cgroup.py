"""A cgroup of version 2 that is made, used and removed again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

# Touches as much memory as its argument says, in MiB; the pages are written, so that they count.
TOUCH_MEMORY = [sys.executable, "-c", "import sys; print(len(b'x' * (int(sys.argv[1]) << 20)))"]


def own():
    """Where the calling process is."""
    path = Path("/proc/self/cgroup").read_text().strip().removeprefix("0::")
    return ROOT / path.lstrip("/")


class Cgroup:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.path.mkdir()
        return self

    def __exit__(self, *_):
        self.kill()
        self.path.rmdir()

    def set(self, file, value):
        (self.path / file).write_text(str(value))

    def read(self, file):
        return (self.path / file).read_text()

    def counter(self, file, name):
        return int(dict(line.split() for line in self.read(file).splitlines())[name])

    def spawn(self, command):
        # The child moves itself, so that it has done nothing uncounted.
        procs = self.path / "cgroup.procs"
        return subprocess.Popen(
            command, preexec_fn=lambda: procs.write_text("0"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def run(self, command, timeout=60):
        return self.spawn(command).wait(timeout)

    def kill(self):
        self.set("cgroup.kill", 1)
        while self.counter("cgroup.events", "populated"):
            # A child of ours stays in its cgroup until we have waited for it.
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pass


def memory_limit_kills(cgroup, expect):
    """The limit kills what is above it, says so in its counter, and lets live what is below."""
    cgroup.set("memory.max", 64 << 20)
    below = cgroup.run([*TOUCH_MEMORY, "8"])
    expect(below == 0, f"8 MiB under a limit of 64 ended with {below}")
    expect(cgroup.counter("memory.events", "oom_kill") == 0, "oom_kill counted without an excess")
    above = cgroup.run([*TOUCH_MEMORY, "256"])
    expect(above == -signal.SIGKILL, f"256 MiB under a limit of 64 ended with {above}")
    expect(cgroup.counter("memory.events", "oom_kill") == 1, cgroup.read("memory.events"))
