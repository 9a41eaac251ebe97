"""Puts the binary that BELLJAR_WHEEL_BINARY names into the wheel, and says for which machines the wheel then is.

Without that variable the wheel has no binary, and is for every machine: there it needs a server, by BELLJAR_URL.
"""

import os
import struct
import sys

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}
PT_INTERP = 3


class BinaryHook(BuildHookInterface):
    def initialize(self, version, build_data):
        binary = os.environ.get("BELLJAR_WHEEL_BINARY")
        if binary:
            build_data["force_include"][os.path.abspath(binary)] = "belljar/bin/belljar"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_of(binary)}"


def platform_of(path):
    """A static binary runs on every Linux of its architecture; another one only where its libraries are."""
    with open(path, "rb") as opened:
        elf = opened.read(64)
        if elf[:6] != b"\x7fELF\x02\x01":
            sys.exit(f"error: {path} is not a 64-bit Linux program")
        machine = MACHINES.get(struct.unpack_from("<H", elf, 18)[0])
        if machine is None:
            sys.exit(f"error: {path} is for another machine than {' or '.join(MACHINES.values())}")
        start, size, count = struct.unpack_from("<Q", elf, 32)[0], *struct.unpack_from("<HH", elf, 54)
        opened.seek(start)
        headers = opened.read(size * count)
    kinds = {struct.unpack_from("<I", headers, at)[0] for at in range(0, len(headers), size)}
    if PT_INTERP in kinds:
        print(f"warning: {path} is not static, so the wheel is for this system only", file=sys.stderr)
        return f"linux_{machine}"
    return f"manylinux_2_17_{machine}.manylinux2014_{machine}"
