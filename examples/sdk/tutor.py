#!/usr/bin/env python3
"""A tutor that runs a student's program on hidden cases and gives a hint, without giving the cases away.

The box gets the inputs only. The expected answers stay here, so that no submission can read or print them.
"""

from belljar import Belljar

CASES = {"3\n1 2 3\n": "6", "1\n-5\n": "-5", "0\n\n": "0", "2\n1000000000 1000000000\n": "2000000000"}
HINTS = {0: "Check the example from the exercise.", 1: "Numbers can be negative.", 2: "The list can be empty."}

SUBMISSIONS = {
    "Ada": "n = int(input())\nprint(sum(map(int, input().split())))",
    "Ben": "n = int(input())\nnumbers = list(map(int, input().split()))\nprint(numbers[0] + sum(numbers[1:]))",
    "Cem": "while True: pass",
    "Dot": "n = int(input()\nprint(n)",
}


def feedback(client, code):
    batch = client.run("python", code, stdin=list(CASES), cpu_time=1, timeout=60, memory="64M").results()
    for number, (result, expected) in enumerate(zip(batch, CASES.values())):
        if result.timed_out:
            return "Your program does not end. Does every loop get closer to its end?"
        if "SyntaxError" in result.stderr:
            return "Python cannot read your program. Look at the line that it names, and at the one before."
        if result.stdout.strip() != expected:
            return HINTS.get(number, "Think of large numbers.")
    return "All cases pass."


if __name__ == "__main__":
    belljar = Belljar()
    for student, program in SUBMISSIONS.items():
        print(f"{student}: {feedback(belljar, program)}")
