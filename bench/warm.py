"""The measurements of bench/warm. Each says what is wanted and what came of it; the exit status says whether all was kept.

    warm.py BELLJAR ROUNDS FILE [IMAGE]

With an image: what is compared, run by run, with other ways to do the same. Without one: the rest, which is added to FILE.
"""

import collections
import json
import math
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from served import PYTHON, Load, Server, bare, busy, children_cpu

SNIPPETS = {
    # language: code, the same bare, and how much of the bare run a warm one may take
    "python": ("print(1)", [PYTHON, "-c", "print(1)"], 1 / 10),
    "javascript": ("console.log(1)", [shutil.which("node"), "-e", "console.log(1)"], 1 / 15),
    "bash": ("echo 1", ["/usr/bin/bash", "-c", "echo 1"], 1),
}
PANDAS = "import pandas\nprint(pandas.Series([1]).sum())"
# Tables of one column. With the first program, pandas gets the same ten lines of both; with the second, everything.
TINY, LARGE = 90, 2_000_000
TABLES = {size: "number\n" + "12345678\n" * (size // 9) for size in (TINY, LARGE)}
# A file that is a global variable would be there at the end, and then Python takes itself apart, for longer than all the rest.
FIRST_LINES = """
import io, itertools, pandas

def first_lines():
    with open('table.csv') as table:
        return ''.join(itertools.islice(table, 10))

print(len(pandas.read_csv(io.StringIO(first_lines())).columns))
"""
WHOLE_TABLE = "import pandas\nprint(len(pandas.read_csv('table.csv').columns))"
CALLERS, BURST, STOCK = 64, 200, 200
# The flags of `belljar bench`, which are the limits that a run has by default.
DOCKER_RUN = (
    "run --rm --network none --read-only --memory 256m --memory-swap 256m --pids-limit 50 --cpus 1 --cap-drop ALL"
    " --security-opt no-new-privileges --user 65534:65534 --tmpfs /tmp:size=64m --workdir /tmp"
).split()

belljar, rounds, file, image = os.path.abspath(sys.argv[1]), int(sys.argv[2]), sys.argv[3], (sys.argv[4:] or [None])[0]
findings = []


def main():
    if image:
        for language in SNIPPETS:
            with Server(belljar, f"[pool.languages.{language}]\n") as server:
                latencies(server, language)
        with Server(belljar, "".join(f"[pool.languages.{language}]\n" for language in SNIPPETS)) as server:
            beside_others(server)
            memory(server)
        return report()
    with Server(belljar, "[pool.languages.python]\nmin = 0\nmax = 0\n") as server:
        miss(server)
    if can_import_pandas():
        with Server(belljar, "[pool.languages.python]\n") as server:
            with_import_and_table(server)
        with Server(belljar, '[pool.languages.python]\npreload = ["pandas"]\n') as server:
            preloaded(server)
            with_table(server)
    else:
        find("python with pandas preloaded", "not measured: apt-get install python3-pandas", False)
    with Server(belljar, "[pool.languages.python]\nmin = 8\nmax = 64\n") as server:
        throughput(server)
    with Server(belljar, f"[pool]\nmemory = '2G'\n[pool.languages.python]\nmin = {STOCK}\nmax = {STOCK}\n", wait=False) as server:
        refill(server)
        burst(server)
    return report()


def latencies(server, language):
    """The same in a box that waits, bare, and, of Python, now and then by `docker run`, which takes as long as twenty others."""
    (code, command, most), inside, outside, dockers = SNIPPETS[language], [], [], []
    docker = [shutil.which("docker"), *DOCKER_RUN, image, "python3", "-c", "print(1)"]
    for turn in range(rounds + 5):
        server.until_one_waits(language)
        times = (bare(command), server.timed(language, code, "warm"))
        if turn >= 5 and times[1] is not None:
            outside.append(times[0])
            inside.append(times[1])
        if language == "python" and turn % 4 == 0:
            dockers.append(bare(docker))
    compare(f"{language}, warm", inside, outside, most)
    if dockers:
        compare("python, warm, and docker run", inside, dockers, 1 / 200, "docker run")
        p50, p99 = tail(inside)
        find("python, warm: p99 over p50", f"{p99:.2f} / {p50:.2f} ms = {p99 / p50:.1f}, wanted at most 3", p99 <= 3 * p50)


def beside_others(server):
    """Python while boxes of other languages are used and made anew: a Node that boots takes a CPU for longer than a turn."""
    took = []
    for _ in range(rounds):
        for language, (code, command, _) in SNIPPETS.items():
            server.until_one_waits(language)
            bare(command)
            time_taken = server.timed(language, code, "warm")
            if language == "python" and time_taken is not None:
                took.append(time_taken)
    p50, p99 = tail(took)
    find("python, warm, beside others", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms = {p99 / p50:.1f}", None)


def tail(times):
    return statistics.median(times), sorted(times)[math.ceil(len(times) * 0.99) - 1]


def miss(server):
    inside, outside = [], []
    for _ in range(rounds):
        outside.append(bare(SNIPPETS["python"][1]))
        took = server.timed("python", "print(1)", "zygote")
        if took is not None:
            inside.append(took)
    compare("python, none waits (zygote)", inside, outside, 1 / 3)


def preloaded(server):
    inside, outside = [], []
    for _ in range(max(5, rounds // 5)):
        outside.append(bare([PYTHON, "-c", PANDAS]))
        server.until_one_waits("python")
        took = server.timed("python", PANDAS, "warm")
        if took is not None:
            inside.append(took)
    compare("python with pandas preloaded", inside, outside, 1 / 50)


def with_import_and_table(server):
    """What a table of 2 MB adds to a warm run that imports pandas and reads the whole table, as most such runs do."""
    times = {size: [] for size in TABLES}
    for _ in range(max(5, rounds // 5)):
        for size, table in TABLES.items():
            server.until_one_waits("python")
            took = sent(server, WHOLE_TABLE, table)
            if took is not None:
                times[size].append(took)
    if not all(times.values()):
        return find("import pandas, read 2 MB", "no run was warm", False)
    tiny, large = (statistics.median(times[size]) for size in (TINY, LARGE))
    said = f"{large:.0f} ms, with a tiny table {tiny:.0f}: {large / tiny:.2f}x, wanted 1.2x ({len(times[LARGE])} runs)"
    return find("import pandas, read 2 MB", said, large <= 1.2 * tiny)


def with_table(server):
    """The same where pandas is preloaded, so that the file is most of what a run costs. First our part of it: the program does the same with both tables, and only the
    size of the file differs. Then all of it: pandas reads the whole table, beside a bare process that does the same."""
    times = {size: [] for size in TABLES}
    whole, floor = [], BarePandas()
    bare_times = {size: [] for size in TABLES}
    for _ in range(max(5, rounds // 5)):
        for size, table in TABLES.items():
            server.until_one_waits("python")
            took = sent(server, FIRST_LINES, table)
            if took is not None:
                times[size].append(took)
            bare_times[size].append(floor.read(table))
        server.until_one_waits("python")
        took = sent(server, WHOLE_TABLE, TABLES[LARGE])
        if took is not None:
            whole.append(took)
    floor.close()
    if not (all(times.values()) and whole):
        return find("pandas, a table of 2 MB", "no run was warm", False)
    tiny, large, all_of_it = (statistics.median(taken) for taken in (times[TINY], times[LARGE], whole))
    said = f"{large:.2f} ms, with a tiny one {tiny:.2f}: {large / tiny:.2f}x, wanted 1.2x ({len(times[LARGE])} runs)"
    find("pandas, a table of 2 MB, same work", said, large <= 1.2 * tiny)
    bare_tiny, bare_large = (statistics.median(bare_times[size]) for size in (TINY, LARGE))
    said = f"{all_of_it:.2f} ms, bare pandas alone {bare_large:.2f} (tiny {bare_tiny:.2f}): {all_of_it / bare_large:.2f}x"
    return find("pandas, a table of 2 MB, all read", said, None)


def sent(server, code, table):
    """The request is made ready before the clock starts: to write 2 MB as JSON takes this Python as long as a run."""
    body = json.dumps({"language": "python", "code": code, "files": [{"path": "table.csv", "content": table}]}).encode()
    began = time.perf_counter()
    result = server.line.send("POST", "/v1/runs", body)
    took = (time.perf_counter() - began) * 1e3
    assert result["stdout"] == "1\n", result
    return took if result["start"] == "warm" else None


class BarePandas:
    """A booted Python that has imported pandas, without a box. Each table is read by a child, as in a box: what pandas does
    only once in a process is done for each."""

    PROGRAM = """
import os, sys, time
import pandas
for path in sys.stdin:
    if os.fork() == 0:
        began = time.perf_counter()
        assert len(pandas.read_csv(path.strip()).columns) == 1
        print((time.perf_counter() - began) * 1e3, flush=True)
        os._exit(0)
    os.wait()
"""

    def __init__(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm")
        self.process = subprocess.Popen([PYTHON, "-c", self.PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self, table):
        """How long pandas takes, in milliseconds. The file is in memory, as in a box."""
        path = f"{self.folder}/table.csv"
        with open(path, "w") as file:
            file.write(table)
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.folder)


def throughput(server):
    """Closed loops of callers; the CPU time is the machine's, without what the callers themselves took."""
    bare_cpu = cpu_of_bare()
    before, callers = busy(), children_cpu()
    load = Load(server, "print(1)", CALLERS, seconds=8)
    total, used = busy() - before, children_cpu() - callers
    per_run = (total - used) / load.runs * 1e3
    find(f"python, {CALLERS} callers", f"{load.rate:.0f} runs/s, wanted 400{load.failures}", load.rate >= 400 and not load.failures)
    find("CPU time of a run", f"{per_run:.2f} ms, bare {bare_cpu:.2f}: 1/{bare_cpu / per_run:.1f}, wanted 1/4", per_run <= bare_cpu / 4)


def refill(server):
    began = time.perf_counter()
    while server.pool("python")["ready"] < STOCK:
        if time.perf_counter() - began > 120:
            break
        time.sleep(0.01)
    took = time.perf_counter() - server.listening
    find(f"a pool of {STOCK} from empty", f"{took:.2f} s, wanted 2", took <= 2)


def burst(server):
    """All at once, from one thread: two hundred of them would measure each other."""
    while server.pool("python")["ready"] < STOCK:
        time.sleep(0.1)
    time.sleep(3)
    body = json.dumps({"language": "python", "code": "print(1)"})
    head = f"POST /v1/runs HTTP/1.1\r\nhost: {server.address}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    host, port = server.address.split(":")
    lines = [socket.create_connection((host, int(port))) for _ in range(BURST)]
    waiting, took, starts = selectors.DefaultSelector(), [], collections.Counter()
    for line in lines:
        began = time.perf_counter()
        line.sendall((head + body).encode())
        waiting.register(line, selectors.EVENT_READ, began)
    while len(took) < BURST:
        for key, _ in waiting.select(30) or sys.exit("a caller of the burst got no answer"):
            answer = key.fileobj.recv(65536).decode()
            took.append((time.perf_counter() - key.data) * 1e3)
            result = json.loads(answer.partition("\r\n\r\n")[2])
            assert result["stdout"] == "1\n", result
            starts[result["start"]] += 1
            waiting.unregister(key.fileobj)
    took.sort()
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99) - 1]
    kinds = ", ".join(f"{count} {start}" for start, count in starts.items())
    find(f"a burst of {BURST} after idle", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms ({kinds}), wanted 250", p99 <= 250)


def memory(server):
    """Of what belongs to a box that waits: its PID 1 and its program, each with its share of what is shared."""
    server.until_one_waits("python")
    shares = []
    for pid in descendants(server.process.pid):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
            numbers = next(line for line in open(f"/proc/{pid}/status") if line.startswith("NSpid:")).split()[1:]
            if "python" in words[0] and numbers[1:] == ["2"]:
                shares.append(pss(pid))
        except (OSError, IndexError, ValueError):
            continue
    share = statistics.median(shares) if shares else float("nan")
    find("memory of a waiting Python (PSS)", f"{share / 1e6:.2f} MB, wanted 3", share <= 3e6)


def compare(name, inside, outside, most, other="bare"):
    if not inside:
        return find(name, "no run was of this kind", False)
    p50, bare50 = statistics.median(inside), statistics.median(outside)
    said = f"{p50:.2f} ms, {other} {bare50:.2f}: 1/{bare50 / p50:.1f}, wanted 1/{1 / most:.0f} ({len(inside)} runs)"
    return find(name, said, p50 <= bare50 * most)


def find(name, said, kept):
    findings.append({"name": name, "said": said, "kept": kept})


def report():
    for finding in findings:
        verdict = {True: "kept", False: "NOT KEPT", None: ""}[finding["kept"]]
        print(f"{finding['name']:<32} {finding['said']:<64} {verdict}")
    before = [] if image else json.load(open(file))["findings"]
    with open(file, "w") as target:
        json.dump({"kernel": os.uname().release, "cpus": os.cpu_count(), "findings": before + findings}, target, indent=1)
    return 0 if all(finding["kept"] is not False for finding in findings) else 1


def cpu_of_bare():
    before = children_cpu()
    for _ in range(50):
        bare(SNIPPETS["python"][1])
    return (children_cpu() - before) / 50 * 1e3


def descendants(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in open(f"/proc/{pid}/task/{task}/children").read().split():
                found += [int(child)] + descendants(int(child))
    except OSError:
        # It has ended meanwhile.
        pass
    return found


def pss(pid):
    line = next(line for line in open(f"/proc/{pid}/smaps_rollup") if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


def can_import_pandas():
    return subprocess.run([PYTHON, "-c", "import pandas"], stderr=subprocess.DEVNULL).returncode == 0


sys.exit(main())
