#!/usr/bin/env python3
"""A judge that scores 20 submissions, some of them hostile, in four languages."""

import collections

from belljar import Belljar

CASES = [("4\n", "24"), ("0\n", "1"), ("10\n", "3628800")]

RIGHT = {
    "python": "import math; print(math.factorial(int(input())))",
    "javascript": "const n = +require('fs').readFileSync(0, 'utf8'); let f = 1; for (let i = 2; i <= n; i++) f *= i; console.log(f)",
    "c": '#include <stdio.h>\nint main() { long n, f = 1; scanf("%ld", &n); while (n > 1) f *= n--; printf("%ld\\n", f); }',
    "perl": "my $f = 1; $f *= $_ for 2 .. <STDIN>; print qq($f\\n);",
}
OTHERS = [
    ("python", "print(24)"),
    ("python", "def f(n): return n * f(n - 1)\nprint(f(int(input())))"),
    ("python", "while True: pass"),
    ("python", "x = []\nwhile True: x.append(bytearray(1 << 20))"),
    ("python", "import os\nwhile True: os.fork()"),
    ("python", "print(open('/etc/shadow').read())"),
    ("python", "import socket; socket.create_connection(('192.0.2.1', 80), 1)"),
    ("c", "int main() { return *(int *)0; }"),
    ("c", "int main() { retur 0; }"),
    ("javascript", "throw new Error('no')"),
    ("perl", "die"),
    ("python", "print('x' * 10**8)"),
]
SUBMISSIONS = [pair for pair in RIGHT.items()] * 2 + OTHERS


def verdict(client, language, code):
    """How a submission did, and its share of the cases."""
    inputs = [case for case, _ in CASES]
    runs = client.run(language, code, stdin=inputs, cpu_time=1, timeout=60, memory="64M", pids=20).results()
    if runs[0].stage == "compile":
        return "does not compile", 0.0
    wrong = [run for run, (_, expected) in zip(runs, CASES) if not run.ok or run.stdout.strip() != expected]
    if not wrong:
        return "accepted", 1.0
    worst = wrong[0]
    names = {"timed_out": "too slow", "out_of_memory": "too much memory", "exited": "wrong answer" if worst.ok else "failed"}
    return names.get(worst.status, "failed"), 1 - len(wrong) / len(CASES)


def main():
    client, counted, total = Belljar(), collections.Counter(), 0.0
    for language, code in SUBMISSIONS:
        name, score = verdict(client, language, code)
        counted[name] += 1
        total += score
    print(f"{len(SUBMISSIONS)} submissions, {counted['accepted']} accepted, score {total:.2f}")
    print(", ".join(sorted(name for name in counted if name != "accepted")))


if __name__ == "__main__":
    main()
