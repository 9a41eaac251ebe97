#!/usr/bin/env python3
"""An agent that looks at data and draws it.

The data goes into the box as a file, and the picture comes back as one. The scripted model would like to use matplotlib; if the
box does not have it, it reads so, and draws the picture by hand.
"""

import pathlib
import sys
import tempfile

from belljar import Belljar

SALES = "month,sales\n" + "".join(f"{month},{sales}\n" for month, sales in enumerate([12, 15, 11, 19, 24, 22], 1))

WITH_MATPLOTLIB = """
import csv
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
rows = list(csv.DictReader(open("sales.csv")))
plt.bar([row["month"] for row in rows], [int(row["sales"]) for row in rows])
plt.savefig("sales.png")
print("best month:", max(rows, key=lambda row: int(row["sales"]))["month"])
"""
BY_HAND = """
import csv
rows = list(csv.DictReader(open("sales.csv")))
bars = "".join(
    f'<rect x="{40 * n}" y="{200 - 8 * int(row["sales"])}" width="30" height="{8 * int(row["sales"])}"/>'
    for n, row in enumerate(rows)
)
open("sales.svg", "w").write(f'<svg xmlns="http://www.w3.org/2000/svg" width="240" height="200">{bars}</svg>')
print("best month:", max(rows, key=lambda row: int(row["sales"]))["month"])
"""


def scripted_model(last):
    """The next program: the first one, or another one if that did not work."""
    if last is None:
        return WITH_MATPLOTLIB
    return None if last.ok else BY_HAND


def main(folder):
    client, last = Belljar(), None
    while code := scripted_model(last):
        last = client.run("python", code, files={"sales.csv": SALES}, collect="sales.*g", timeout=60, memory="512M", disk="128M")
    print(last.check().stdout, end="")
    [picture] = last.save(folder)
    print("picture:", "drawn" if picture.stat().st_size > 100 else "empty")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(pathlib.Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
