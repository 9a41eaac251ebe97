"""The measurements of bench/guard: guard.py BELLJAR ROUNDS [BEFORE].

Two servers of the same binary take turns: one scans and records every run, the other does neither. With BEFORE, the binary
of an earlier commit, a third server is compared with the one that does neither.
"""

import os
import statistics
import sys

from served import Load, Server

CODE = "print(1)"
CALLERS, WINDOWS, SECONDS = 64, 5, 4
POOL = "[pool.languages.python]\nmin = 8\nmax = 64\n"
OFF = "[audit]\nenabled = false\n"
ON = "[scan]\nenabled = true\n[audit]\nenabled = true\n"


def main():
    belljar, rounds, before = os.path.abspath(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or [None])[0]
    with Server(belljar, POOL + OFF) as off, Server(belljar, POOL + ON) as on:
        kept = compare_latency("with scan and audit", on, "without", off, rounds, lambda now, then: now <= then + 0.3)
        kept &= compare_throughput("with scan and audit", on, "without", off, 0.9)
        if before:
            with Server(os.path.abspath(before), POOL) as earlier:
                kept &= compare_latency("this commit, all off", off, "before", earlier, rounds, lambda now, then: now <= then * 1.01)
                kept &= compare_throughput("this commit, all off", off, "before", earlier, 0.97)
    return 0 if kept else 1


def compare_latency(name, server, other_name, other, rounds, enough):
    """The two take turns, and each goes first in every second round."""
    times = {server: [], other: []}
    for turn in range(rounds + 5):
        for one in (server, other) if turn % 2 else (other, server):
            one.until_one_waits("python")
            took = one.timed("python", CODE, "warm")
            if turn >= 5 and took is not None:
                times[one].append(took)
    now, then = (statistics.median(times[one]) for one in (server, other))
    verdict = enough(now, then)
    tell(f"p50 {name}", f"{now:.3f} ms, {other_name} {then:.3f}: {now - then:+.3f} ms, {now / then:.3f}x ({len(times[server])} runs)", verdict)
    return verdict


def compare_throughput(name, server, other_name, other, least):
    rates = {server: [], other: []}
    for turn in range(WINDOWS):
        for one in (server, other) if turn % 2 else (other, server):
            load = Load(one, CODE, CALLERS, SECONDS)
            if load.failures:
                sys.exit(f"not every run was answered:{load.failures}")
            rates[one].append(load.rate)
    now, then = (statistics.median(rates[one]) for one in (server, other))
    verdict = now >= least * then
    tell(f"{CALLERS} callers, {name}", f"{now:.0f} runs/s, {other_name} {then:.0f}: {now / then:.3f}x, wanted {least}x", verdict)
    return verdict


def tell(name, said, kept):
    print(f"{name:<40} {said:<76} {'kept' if kept else 'NOT KEPT'}", flush=True)


sys.exit(main())
