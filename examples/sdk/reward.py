#!/usr/bin/env python3
"""The reward of a reinforcement-learning loop: 1,000 generated programs, in batches, each run against the test of its task.

    reward.py [PROGRAMS] [BATCH]

The policy is a random generator of programs that are right, wrong, broken or endless. A reward is 1 if the test passes.
"""

import asyncio
import random
import sys
import time

from belljar import AsyncBelljar

SOLUTIONS = [
    ("def add(a, b): return a + b", 1.0),
    ("def add(a, b): return a - b", 0.0),
    ("def add(a, b) return a + b", 0.0),
    ("import sys\nsys.exit(0)\ndef add(a, b): pass", 0.0),  # ends well without having run the test
    ("def add(a, b):\n    while True: pass", 0.0),
]
WEIGHTS = [60, 20, 10, 9, 1]
# The last line proves that the test has run to its end: the program cannot know the word.
TEST = "\nfor a in range(5):\n    for b in range(5):\n        assert add(a, b) == a + b\nprint({word!r})\n"


async def reward(client, program, word):
    result = await client.run("python", program + TEST.format(word=word), cpu_time=0.5, timeout=60, memory="64M")
    return 1.0 if result.ok and result.stdout.splitlines()[-1:] == [word] else 0.0


async def main(programs, batch):
    policy = random.Random(7)
    expected, total, began = 0.0, 0.0, time.monotonic()
    async with AsyncBelljar() as client:
        for start in range(0, programs, batch):
            chosen = policy.choices(SOLUTIONS, WEIGHTS, k=min(batch, programs - start))
            words = [f"passed-{random.getrandbits(64):016x}" for _ in chosen]
            rewards = await asyncio.gather(*(reward(client, one, word) for (one, _), word in zip(chosen, words)))
            expected += sum(right for _, right in chosen)
            total += sum(rewards)
    rate = programs / (time.monotonic() - began)
    print(f"{programs} programs, mean reward {total / programs:.3f}, expected {expected / programs:.3f}")
    print(f"{rate:.0f} programs a second", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(*(int(text) for text in sys.argv[1:3]), *(1000, 100)[len(sys.argv) - 1 :]))
