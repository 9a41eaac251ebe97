"""`python -m belljar` and the script `belljar`: they become the program that the package carries."""

from __future__ import annotations

import os
import subprocess
import sys

from ._background import find_binary
from .errors import ServerUnreachableError


def main() -> None:
    try:
        binary = find_binary()
    except ServerUnreachableError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(125)
    if os.name == "nt":
        sys.exit(subprocess.call([binary, *sys.argv[1:]]))
    os.execv(binary, [binary, *sys.argv[1:]])


if __name__ == "__main__":
    main()
