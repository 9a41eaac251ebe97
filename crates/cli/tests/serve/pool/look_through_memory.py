import os
import re

own = "a word of its own"
wanted = {"secret": re.compile(rb"SECRET"), "control": re.compile(rb"a wor[d] of its own")}
found = set()
memory = open("/proc/self/mem", "rb", 0)
for line in open("/proc/self/maps"):
    span, rights = line.split()[:2]
    low, high = (int(number, 16) for number in span.split("-"))
    try:
        memory.seek(low)
        text = memory.read(high - low) if rights.startswith("r") else b""
    except (OSError, ValueError, OverflowError):
        continue
    found.update(name for name, pattern in wanted.items() if pattern.search(text))
print(sorted(found), sorted(os.listdir("/sandbox") + os.listdir("/tmp") + os.listdir("/dev/shm")))
print([name for name in os.listdir("/proc") if name.isdigit()])
